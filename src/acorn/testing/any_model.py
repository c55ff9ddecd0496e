"""A model that answers any agent by itself, for tests in which what is said does not matter.

    with MyAgent.override(model=AnyModel()):
        application()

It calls every tool once, all that it has not called yet in one response, and then finishes; branches are tools to
it. What was called it reads from the conversation, so a branch, which goes on with its parent's, does not call the
parent's tools again. It is the same each time.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from acorn._inside import FINISH, example_value, is_finish_result
from acorn.models.port import ModelRequest, Price, RawCall
from acorn.testing.scripted import Reply, ScriptedModel, conversation_of
from acorn.types import JsonObject


class AnyModel(ScriptedModel):
    """A model that calls every tool once and then finishes, with values that fit what each asks for.

    A single turn in which there are tools ends `Unfinished`, as it does whenever a tool is called there.
    """

    def __init__(self, *, name: str = "any", chunk_size: int = 8) -> None:
        super().__init__(_reply, name=name, price=Price(0.0, 0.0), chunk_size=chunk_size)


def _reply(request: ModelRequest) -> Reply:
    functions = {each["function"]["name"]: each["function"] for each in request.tools if "function" in each}
    if not functions:
        return Reply("In short.")
    called = _called(conversation_of(request.messages))
    wanted = [] if request.forced_tool else [name for name in functions if name != FINISH and name not in called]
    calls: list[RawCall] = []
    for name in wanted or [FINISH]:
        arguments = example_value(functions[name].get("parameters") or {"type": "object"}, name)
        calls.append(RawCall(None, name, to_json(arguments).decode()))
    return Reply(calls=calls)


def _called(messages: list[JsonObject]) -> set[str]:
    """The tools that were called since the last answer: what is before it was another run."""
    called: set[str] = set()
    finishes: set[Any] = set()
    for message in messages:
        for each in message.get("tool_calls") or ():
            called.add(each["function"]["name"])
            if each["function"]["name"] == FINISH:
                finishes.add(each["id"])
        if message.get("tool_call_id") in finishes and is_finish_result(message.get("content")):
            called.clear()
    return called
