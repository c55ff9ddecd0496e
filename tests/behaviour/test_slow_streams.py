"""Tests of slow model streams: they end when `max_seconds` of the run is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.cases import each_case
from tests.waiting import given_time

from acorn import LimitError, module
from acorn.models import Delta, ModelRequest
from acorn.models.port import CallDelta
from acorn.testing import ScriptedModel, finish

DROPS = 10_000
"""More than fit into the time of the run, by far."""


class Dripping(ScriptedModel):
    """A model that sends a little every few milliseconds."""

    def __init__(self, drops: int = DROPS, *, then: tuple[Delta, ...] = ()) -> None:
        super().__init__([finish(result="x")] * 9)
        self.drops, self.then = drops, then
        self.given = 0
        self.is_closed = False

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        self.requests.append(request)
        try:
            for _ in range(self.drops):
                time.sleep(0.005)
                self.given += 1
                yield Delta(content=".")
            yield from self.then
        finally:
            self.is_closed = True

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        try:
            for _ in range(self.drops):
                await asyncio.sleep(0.005)
                self.given += 1
                yield Delta(content=".")
            for delta in self.then:
                yield delta
        finally:
            self.is_closed = True


class Agent(module[Any, str]):
    """Answer."""


class Hearing(Agent):
    def on_stream(self, chunk: Any) -> None: ...


def iterate(way: str, agent: module[Any, Any]) -> Any:
    async def main() -> Any:
        if way == "acall":
            return await agent.acall()
        return [chunk async for chunk in agent.astream()][-1].result

    if way == "call":
        return agent()
    return list(agent.stream())[-1].result if way == "stream" else asyncio.run(main())


@each_case("way", ["stream", "astream", "call", "acall"])
def test_stream_still_running_after_max_seconds_raises_limit_error(way: str) -> None:
    kind = Hearing if "call" in way else Agent

    def drip(seconds: float) -> tuple[Dripping, LimitError, float] | None:
        model = Dripping()
        with pytest.raises(LimitError) as caught:
            iterate(way, kind(model=model, max_seconds=seconds))
        return (model, caught.value, seconds) if model.given else None

    model, error, seconds = given_time(drip)
    assert f"`{kind.__name__}` used up its `max_seconds` of {seconds:g} during a request to the model" in str(error)
    assert model.given < DROPS
    assert model.is_closed
    assert error.run.stop_reason == "error"
    assert len(model.requests) == 1


ENDED = (
    Delta(calls=(CallDelta(0, "a", "__finish__", '{"result": "done"}'),), stop_reason="tool_calls"),
    Delta(),
    Delta(),
)


@each_case("way", ["stream", "astream"])
def test_complete_answer_that_caller_reads_after_max_seconds_is_returned(way: str) -> None:
    def look(seconds: float) -> Any:
        agent, is_whole = Agent(model=Dripping(0, then=ENDED), max_seconds=seconds), False

        async def main() -> Any:
            nonlocal is_whole
            async for chunk in agent.astream():
                if chunk.tool_call is not None:
                    is_whole = True
                    await asyncio.sleep(seconds)
            return chunk.result

        try:
            if way == "astream":
                return asyncio.run(main())
            for chunk in agent.stream():
                if chunk.tool_call is not None:
                    is_whole = True
                    time.sleep(seconds)
            return chunk.result
        except LimitError:
            if is_whole:
                raise
            return None

    # The time is up while the caller reads the last piece.
    assert given_time(look) == "done"


@each_case("way", ["stream", "astream"])
def test_slow_stream_without_max_seconds_is_read_to_end(way: str) -> None:
    model = Dripping(50, then=ENDED)
    assert iterate(way, Agent(model=model)) == "done"
    assert model.given == 50
