"""The asynchronous driver: the same walk on the caller's event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any, assert_never

from acorn._drive.branches import arun_branches
from acorn._drive.bridge import call_async
from acorn._drive.record import close_record, open_record
from acorn._drive.sync import closers, could_not_close, in_time, raise_own
from acorn._drive.tools import arun_tools
from acorn._loop.asks import AskBranches, AskHook, AskModel, AskTools, Done
from acorn._loop.run import Loop
from acorn._loop.stream import Streamer
from acorn.chunk import StreamChunk
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, ModelResponse, can_stream
from acorn.record import inside
from acorn.types import ToolResult


async def adrive(loop: Loop, agent: object) -> None:
    """Walk a run to its end; cancelling it cancels what is under way."""
    try:
        async with aclosing(awalk(loop, agent, iterates=False)) as chunks:
            async for _ in chunks:
                pass
    except RuntimeError as error:
        raise_own(error, loop, StopAsyncIteration)
        raise


async def awalk(loop: Loop, agent: object, *, iterates: bool) -> AsyncGenerator[StreamChunk[Any]]:
    """Walk a run to its end, giving each chunk on the way; closing the iterator ends the run."""
    began, where = open_record(loop.run)
    async with AsyncExitStack() as ends:
        ends.callback(close_record, loop.run, agent, began, where)
        try:
            async with aclosing(_Walk(loop, agent, began, iterates).steps()) as chunks:
                async for chunk in chunks:
                    yield chunk
        except BaseException as error:
            loop.abort(error, time.monotonic() - began)
            raise
        finally:
            for close in closers(loop):
                ends.push_async_callback(_close, loop, agent, close)


class _Walk:
    def __init__(self, loop: Loop, agent: object, began: float, iterates: bool) -> None:
        self.loop = loop
        self.agent = agent
        self.began = began
        self.listener = loop.plan.on_stream
        self.iterates = iterates
        self.streams = iterates or self.listener is not None
        self.response: ModelResponse | None = None

    def now(self) -> float:
        return time.monotonic() - self.began

    async def steps(self) -> AsyncGenerator[StreamChunk[Any]]:
        loop = self.loop
        while True:
            ask = loop.ask(self.now())
            match ask:
                case AskModel():
                    if self.streams:
                        async with aclosing(self.stream(ask)) as chunks:
                            async for chunk in chunks:
                                yield chunk
                    outcome: Any = self.response if self.streams else await self.complete(ask)
                case AskTools() | AskBranches():
                    outcome = []
                    async with aclosing(self.effects(ask, outcome)) as effects:
                        async for news in effects:
                            if isinstance(news, StreamChunk):
                                yield news
                            elif self.streams:
                                yield await self.told(StreamChunk(tool_result=replace(news)))
                case AskHook():
                    outcome = await self.call(ask)
                case Done():
                    return
                case _:
                    assert_never(ask)
            loop.tell(outcome, self.now())

    def place(self) -> inside:
        return inside(self.agent, self.loop.run, self.loop)

    def effects(
        self, ask: AskTools | AskBranches, results: list[ToolResult]
    ) -> AsyncGenerator[ToolResult] | AsyncGenerator[StreamChunk[Any] | ToolResult]:
        if isinstance(ask, AskTools):
            return arun_tools(ask, self.place, results)
        return arun_branches(ask.children, awalk, self.iterates, results)

    async def complete(self, ask: AskModel) -> ModelResponse:
        with in_time(self.loop, self.now):
            return await ask.model.acomplete(ask.request)

    async def stream(self, ask: AskModel) -> AsyncGenerator[StreamChunk[Any]]:
        streamer = Streamer(self.loop.spec.output)
        async with aclosing(self.deltas(ask)) as deltas:
            async for delta in deltas:
                for chunk in streamer.add(delta):
                    yield await self.told(chunk)
        self.response, last = streamer.end()
        yield await self.told(last)

    async def deltas(self, ask: AskModel) -> AsyncGenerator[Delta]:
        with in_time(self.loop, self.now):
            if not can_stream(ask.model):
                for delta in as_deltas(await ask.model.acomplete(ask.request)):
                    yield delta
                return
            stream: Any = ask.model.astream(ask.request)
            try:
                async for delta in stream:
                    yield delta
            finally:
                if hasattr(stream, "aclose"):
                    await stream.aclose()

    async def told(self, chunk: StreamChunk[Any]) -> StreamChunk[Any]:
        """The chunk, when the listener has seen it; in place and in order, so a sync one is simply called."""
        if self.loop.path:
            chunk.branch, chunk.run_id = self.loop.path, self.loop.run.id
        if self.listener is not None:
            with self.place():
                returned = self.listener(chunk)
                if hasattr(returned, "__await__"):
                    await returned
        return chunk

    async def call(self, ask: AskHook) -> Any:
        try:
            with self.place():
                return await call_async(ask.function, *ask.arguments)
        except ask.forgives as error:
            return error


async def _close(loop: Loop, agent: object, close: Callable[[], Any]) -> None:
    try:
        with inside(agent, loop.run):
            await call_async(close)
    except BaseException as error:
        could_not_close(loop, error)
