"""Tests of slow model streams: they end when `max_seconds` of the run is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.cases import each_case
from tests.clock import FakeClock

from acorn import LimitError, StreamChunk, module
from acorn._base.clock import use_clock
from acorn.models import Delta, ModelRequest
from acorn.models.port import CallDelta
from acorn.testing import ScriptedModel, finish

DROPS = 10_000
"""More than fit into the time of the run, by far."""
SECONDS = 60.0


class Dripping(ScriptedModel):
    """A model that sends a little every second."""

    def __init__(self, clock: FakeClock, drops: int = DROPS, *, then: tuple[Delta, ...] = ()) -> None:
        super().__init__([finish(result="x")] * 9)
        self.clock, self.drops, self.then = clock, drops, then
        self.given = 0
        self.is_closed = False

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        self.requests.append(request)
        try:
            for _ in range(self.drops):
                self.clock.sleep(1)
                self.given += 1
                yield Delta(content=".")
            yield from self.then
        finally:
            self.is_closed = True

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        try:
            for _ in range(self.drops):
                await self.clock.asleep(1)
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

    model = Dripping(clock := FakeClock())
    with use_clock(clock), pytest.raises(LimitError) as caught:
        iterate(way, kind(model=model, max_seconds=SECONDS))
    error = caught.value
    assert f"`{kind.__name__}` used up its `max_seconds` of 60 during a request to the model" in str(error)
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
    agent = Agent(model=Dripping(clock := FakeClock(), 0, then=ENDED), max_seconds=SECONDS)

    def read(chunk: StreamChunk[Any]) -> Any:
        if chunk.tool_call is not None:
            clock.advance(SECONDS)  # The time is up while the caller reads the last piece.
        return chunk.result

    async def main() -> Any:
        return [read(chunk) async for chunk in agent.astream()]

    with use_clock(clock):
        results = asyncio.run(main()) if way == "astream" else [read(chunk) for chunk in agent.stream()]
    assert results[-1] == "done"


@each_case("way", ["stream", "astream"])
def test_slow_stream_without_max_seconds_is_read_to_end(way: str) -> None:
    model = Dripping(clock := FakeClock(), 50, then=ENDED)
    with use_clock(clock):
        assert iterate(way, Agent(model=model)) == "done"
    assert model.given == 50
