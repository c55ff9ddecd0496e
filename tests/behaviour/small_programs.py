"""Functions for tests with many small programs: they call an agent and return the text that the model read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from acorn import Run, module
from acorn.testing import Reply, ScriptedModel, call, finish

WAYS: dict[str, Callable[[module[Any, Any]], Run[Any]]] = {
    "sync": lambda agent: agent.run(),
    "async": lambda agent: asyncio.run(agent.arun()),
    "streamed": lambda agent: _stream(agent),
    "streamed async": lambda agent: asyncio.run(_astream(agent)),
}
"""The ways to call an agent without an input; each returns the record."""


def _stream(agent: module[Any, Any]) -> Run[Any]:
    (run,) = [chunk.run for chunk in agent.stream() if chunk.run is not None]
    return run


async def _astream(agent: module[Any, Any]) -> Run[Any]:
    (run,) = [chunk.run async for chunk in agent.astream() if chunk.run is not None]
    return run


class Plain(module[Any, str]):
    """Use the tools."""

    initial_input: Any = []
    final_output = str
    max_steps = 5


def tool_results(run: Run[Any]) -> list[str]:
    """Return the tool results that the model read, without the result of `__finish__`."""
    found: list[str] = []
    is_finish: dict[str, bool] = {}
    history: list[Any] = run.history
    for message in history:
        # A resumed run may repeat an id of an earlier response.
        is_finish |= {made["id"]: made["function"]["name"] == "__finish__" for made in message.get("tool_calls", ())}
        if message["role"] == "tool" and not is_finish[message["tool_call_id"]]:
            found.append(str(message["content"]))
    return found


def read_result(function: Callable[..., Any], *, way: str = "sync", **arguments: Any) -> str:
    """Return what the model reads after it calls `function` with these arguments."""
    name = getattr(function, "__name__", "tool")
    model = ScriptedModel([call(name, **arguments), finish("done")])
    run = WAYS[way](Plain(model=model, tools=[function]))
    assert run.output == "done"
    (result,) = [str(each["content"]) for each in model.requests[1].messages if each["role"] == "tool"]
    return result


def read_after(reply: Reply, *tools: Callable[..., Any], way: str = "sync") -> list[str]:
    """Return the tool results that the model reads after it replied `reply`."""
    model = ScriptedModel([reply, finish("done")])
    assert WAYS[way](Plain(model=model, tools=list(tools))).output == "done"
    return [str(each["content"]) for each in model.requests[1].messages if each["role"] == "tool"]
