"""Attacks of providers that break a stream: acorn retries it while the caller has received nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.attack.lanes import Agent, Hostile, each_lane
from tests.attack.test_hostile_responses import bodies
from tests.loopback import EVENTS, Request

from acorn import ModelError
from acorn.models import Delta, ModelRequest
from acorn.models.port import CallDelta
from acorn.models.retry import RetryingModel, RetryPolicy
from acorn.testing import ScriptedModel, finish
from acorn.types import Usage

VISIBLE = ('"content": "', "_text.delta", "function_call", "text_delta", "tool_use", "tool_calls", "thinking_delta")


def is_visible(event: str) -> bool:
    is_start = "response.created" in event or "response.in_progress" in event
    return not is_start and any(sign in event for sign in VISIBLE)


def breaking(*, is_after_text: bool) -> Any:
    """Return an attack that breaks the first stream before or after its first visible event."""
    count = 0

    def pieces(request: Request) -> Iterator[bytes]:
        nonlocal count
        count += 1
        text, _ = bodies(request)
        text = text.replace('"content": ""', '"content": null')
        events = [f"{event}\n\n".encode() for event in text.split("\n\n") if event]
        if count == 1:
            first = next(at for at, event in enumerate(events) if is_visible(event.decode()))
            events = [b": keep-alive\n\n", *events[: first + 2 if is_after_text else first]]
        yield f"HTTP/1.1 200 OK\r\nContent-Type: {EVENTS}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        yield from (b"%x\r\n%s\r\n" % (len(event), event) for event in events)
        if count > 1:
            yield b"0\r\n\r\n"

    return pieces


def test_stream_that_breaks_before_its_first_visible_part_is_retried() -> None:
    for lane in each_lane(is_stream=(True,)):
        with Hostile(breaking(is_after_text=False)) as server:
            run = lane.run(server, num_retries=1)
            assert (run.output, len(server.requests)) == ("done", 2)


def test_stream_that_breaks_after_a_visible_part_is_not_retried() -> None:
    for lane in each_lane(is_stream=(True,)):
        with Hostile(breaking(is_after_text=True)) as server:
            assert lane.fails(server, num_retries=1).retryable
            assert len(server.requests) == 1


class Breaking(ScriptedModel):
    """A model whose first stream breaks after some deltas."""

    def __init__(self, *deltas: Delta) -> None:
        super().__init__([finish(result="done")] * 2)
        self.deltas = deltas
        self.streams = 0

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        self.streams += 1
        if self.streams == 1:
            yield from self.deltas
            raise ModelError("The connection broke.", retryable=True)
        yield from super().stream(request)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        for delta in self.stream(request):
            yield delta


def stream(model: Breaking, *, is_async: bool) -> Any:
    agent = Agent(model=RetryingModel(model, RetryPolicy(1, 0.0)))
    if not is_async:
        return [chunk.run for chunk in agent.stream("x")][-1]

    async def main() -> Any:
        return [chunk.run async for chunk in agent.astream("x")][-1]

    return asyncio.run(main())


def test_stream_that_breaks_after_invisible_deltas_is_retried_without_them() -> None:
    invisible = (Delta(), Delta(usage=Usage(7, 7, requests=1)), Delta(calls=(CallDelta(0, "id"),)), Delta(refusal="no"))
    for is_async in (False, True):
        model = Breaking(*invisible)
        run = stream(model, is_async=is_async)
        assert (run.output, model.streams) == ("done", 2)
        assert [message["role"] for message in run.history].count("assistant") == 1
        assert run.usage.input_tokens != 7


def test_stream_that_breaks_after_visible_delta_is_not_retried() -> None:
    for delta in (Delta("a"), Delta(reasoning="a"), Delta(calls=(CallDelta(0, "id", "__finish__"),))):
        for is_async in (False, True):
            model = Breaking(Delta(), delta)
            with pytest.raises(ModelError, match="The connection broke"):
                stream(model, is_async=is_async)
            assert model.streams == 1
