"""Models that receive `<thread>` documents and record the conversations in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.provider_rules import assert_request_valid
from tests.raw_model import RawModel

from acorn.models import ModelRequest, ModelResponse
from acorn.testing import ScriptedModel
from acorn.testing.scripted import Scripted
from acorn.thread import parse_thread_xml, serialize_thread_to_xml, to_messages

Message = Any  # A message as a user may write it: any dict.
_LABEL = re.compile(r"Media (?P<number>\d+) of event (?P<event>\d+):")


class Given:
    """The ids of the calls that the models of a test have made, which a document does not have."""

    def __init__(self) -> None:
        self._made: list[tuple[str, Any, str]] = []
        self._seen: dict[tuple[int, int], str] = {}
        """The ids by the conversation up to a call, so that a call keeps the one it was first seen with."""

    def note(self, response: ModelResponse) -> ModelResponse:
        self._made += [(made.name, _read(made.arguments), made.id) for made in response.tool_calls if made.id]
        return response

    def restore(self, messages: list[Message]) -> None:
        """Give calls the ids of their model; of several equal ones, the latest are new."""
        so_far, places = 0, list[tuple[tuple[int, int], dict[str, Any]]]()
        for message in messages:
            so_far = hash((so_far, json.dumps(message)))
            places += [((so_far, slot), call) for slot, call in enumerate(message.get("tool_calls", ()))]
        left = list(self._made)
        used: set[str] = set()
        ids: dict[str, str] = {}
        for place, call in reversed(places):
            wanted = (call["function"]["name"], _read(call["function"]["arguments"]))
            fitting = [made for made in left if made[:2] == wanted and self._seen.get(place, made[2]) == made[2]]
            if fitting and fitting[-1][2] not in used:
                left.remove(fitting[-1])
                used.add(fitting[-1][2])
                ids[call["id"]] = self._seen[place] = fitting[-1][2]
                call["id"] = fitting[-1][2]
        for message in messages:
            if message.get("tool_call_id") in ids:
                message["tool_call_id"] = ids[message["tool_call_id"]]


class ThreadedModel(ScriptedModel):
    """A scripted model whose `requests` have messages, although it receives the document."""

    def __init__(
        self, replies: Sequence[Scripted] | Callable[[ModelRequest], Scripted], given: Given, **options: Any
    ) -> None:
        super().__init__(replies, **options)
        self._given = given

    def _next_reply(self, request: ModelRequest) -> tuple[Scripted, int, float]:
        return super()._next_reply(translated(request, self._given))

    def _respond(self, reply: Scripted, request: ModelRequest, at: int) -> ModelResponse:
        return self._given.note(super()._respond(reply, request, at))


class RawThreadedModel(RawModel):
    """The same model for exact responses."""

    def __init__(
        self, responses: Sequence[ModelResponse] | Callable[[ModelRequest], ModelResponse], given: Given, **options: Any
    ) -> None:
        super().__init__(responses, **options)
        self._given = given

    def complete(self, request: ModelRequest) -> ModelResponse:
        return self._given.note(super().complete(translated(request, self._given)))


def translated(request: ModelRequest, given: Given) -> ModelRequest:
    """Return the request with messages. A module that another one calls has not declared the format and sends none."""
    assert_request_valid(request)
    if "history_format" not in request.declared:
        assert not str(request.messages[-1]["content"]).startswith("<thread>")
        return request
    assert type(request.messages) is list, "the body would have other messages"
    messages = conversation(request.messages)
    given.restore(messages)
    return replace(request, messages=messages)


def conversation(sent: list[Message]) -> list[Message]:
    """Return the messages in a request of this format; the format itself is checked exactly."""
    *above, last = sent
    assert [message["role"] for message in above] == ["system"] * len(above), "something stands beside the document"
    assert last.keys() == {"role", "content"}
    assert last["role"] == "user"
    content, others = last["content"], list[Any]()
    if isinstance(content, list):
        first, *others = content
        assert first.keys() == {"type", "text"}
        assert others, "parts without need"
        content = first["text"]
    events = parse_thread_xml(content)
    assert events.response_prefix is None
    assert serialize_thread_to_xml(events) == content
    assert not [event for event in events if event.type in ("completion", "summary")]
    told = to_messages(events)
    for message in told:
        if message.get("tool_calls") and not message["content"]:
            message["content"] = None  # As it is sent.
    for line, part in zip(others[::2], others[1::2], strict=True):
        found = _LABEL.fullmatch(line["text"])
        assert found, "text that is not in the document"
        assert not isinstance(part.get("text"), str), "text that is not in the document"
        message = told[len(to_messages(events[: int(found["event"]) + 1])) - 1]
        text = message["content"]
        message["content"] = content = text if isinstance(text, list) else [{"type": "text", "text": text}]
        content.append(part)
        assert len(content) == int(found["number"]) + 1, "a part without its number"
    return [*above, *told]


def _read(arguments: str) -> Any:
    """Return arguments in comparable form; arguments that are not an object are sent as an empty one."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
