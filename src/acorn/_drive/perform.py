"""Calling one tool: whatever fails becomes an error to read.

Performing one ask from sync code, in place or aside: a request, a tool, a hook, a source of tools.

What is begun, in which order and in which thread, is the business of `sync.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, TypeVar, assert_never

from acorn._drive.bridge import PLAIN, WokenError, WorkerThread, awaited, call_async, call_sync, is_async
from acorn._drive.sources import OpenSources
from acorn._drive.tree import Tree, raise_if_late
from acorn._drive.walk import CloseFailure, Walk
from acorn._formats.json import describe_error
from acorn._machine.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk, Streamer
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, ModelResponse, can_stream
from acorn.record import CallSite
from acorn.types import ToolResult


def attempt(ask: AskTool) -> ToolResult:
    """Call it from sync code."""
    began, call = time.monotonic(), ask.call
    try:
        output = ask.tool.function(*ask.args, **ask.kwargs)
        if type(output) not in PLAIN:
            output = awaited(_items(output))
    except Exception as error:
        return _failed(ask, error, began)
    return ToolResult(call.id, call.name, output, None, time.monotonic() - began)


async def aattempt(ask: AskTool) -> ToolResult:
    """Call it from async code, within its time."""
    began, call, function = time.monotonic(), ask.call, ask.tool.function
    watch = asyncio.timeout(None if ask.seconds == math.inf else ask.seconds)
    try:
        async with watch:
            called = (function,) if is_async(function) else (_drained, function)
            output = await call_async(*called, *ask.args, **ask.kwargs)
    except Exception as error:
        return too_long(ask, time.monotonic() - began) if watch.expired() else _failed(ask, error, began)
    return ToolResult(call.id, call.name, output, None, time.monotonic() - began)


def too_long(ask: AskTool, seconds: float) -> ToolResult:
    """What a call that is out of time comes to."""
    error = f"TimeoutError: it took longer than {ask.seconds:g} s"
    return ToolResult(ask.call.id, ask.call.name, error=error, seconds=seconds)


def _drained(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return _items(function(*args, **kwargs))


def _items(returned: Any) -> Any:
    """Of a generator its items: its body runs here and now, and its errors are the tool's."""
    if type(returned) in PLAIN:
        return returned
    if inspect.isasyncgen(returned):
        return _collected(returned)
    return list(returned) if inspect.isgenerator(returned) else returned


async def _collected(items: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in items]


def _failed(ask: AskTool, error: BaseException, began: float) -> ToolResult:
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # Python lets none out of a coroutine
    return ToolResult(ask.call.id, ask.call.name, error=describe_error(error), seconds=time.monotonic() - began)


A = TypeVar("A")
T = TypeVar("T")


def _nothing() -> None:
    """There is nothing to close."""


def _complete(ask: AskModel) -> ModelResponse:
    return ask.model.complete(ask.request)


class _StreamInThread:
    """A stream whose pieces are waited for beside the caller's thread, one when it is wanted."""

    def __init__(self, stream: Any, aside: WorkerThread, away: Callable[..., Any]) -> None:
        self._stream, self._deltas = stream, iter(stream)
        self._aside, self._away = aside, away

    def __iter__(self) -> Iterator[Delta]:
        while (delta := self._away(self._aside, self._next, None)) is not None:
            yield delta

    def _next(self, _: object) -> Delta | None:
        return next(self._deltas, None)

    def close(self) -> None:
        """When what was left behind has returned, where something was."""
        self._aside.finish(getattr(self._stream, "close", _nothing))


class SyncPerformer(Walk):
    """A walk that can do what is asked for, and waits for it."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        super().__init__(tree, run_id, iterates=iterates)
        self._sources: dict[str, OpenSources] = {}

    def _perform(self, loop: Machine, ask: Ask, aside: WorkerThread | None = None) -> Generator[StreamChunk, None, Any]:
        if isinstance(ask, AskModel) and not ask.is_summary and self.streams(loop):
            return (yield from self._stream(loop, ask, aside))
        return self._call(loop, ask, aside)

    def _call(self, loop: Machine, ask: Ask, aside: WorkerThread | None) -> Any:
        """Do one thing that gives no chunks."""
        # Not `match`, which takes twice as long and is on the way of every ask.
        if isinstance(ask, AskModel):
            try:
                if self.tree.trace is None:
                    return ask.model.complete(ask.request) if aside is None else self._away(aside, _complete, ask)
                with self.tree.inside(loop.run.id, ask.id):
                    return ask.model.complete(ask.request) if aside is None else self._away(aside, _complete, ask)
            except ModelError as error:
                raise_if_late(loop, error, self.tree.now(loop.run.id))
                raise
        elif isinstance(ask, AskTool):
            with CallSite(self.tree, loop.run.id, ask.id):
                return attempt(ask) if aside is None else self._away(aside, attempt, ask)
        elif isinstance(ask, AskHook):
            try:
                with CallSite(self.tree, loop.run.id, ask.id):
                    return call_sync(ask.function, *ask.arguments)
            except ask.forgives as error:
                return error
        elif isinstance(ask, AskSource):
            return self._open_source(loop, ask)
        elif isinstance(ask, AskBranch):
            raise AssertionError("a branch is walked, not performed")
        else:
            assert_never(ask)

    def _away(self, aside: WorkerThread, act: Callable[[A], T], given: A) -> T:
        """Beside the caller's thread, which waits until it is done, or the run was cancelled."""
        try:
            return aside.call(act, given)
        except WokenError:
            assert self.tree.lost is not None
            raise self.tree.lost from None

    def _stream(
        self, loop: Machine, ask: AskModel, aside: WorkerThread | None
    ) -> Generator[StreamChunk, None, ModelResponse]:
        streamer = Streamer(loop.spec.output)
        with closing(self._deltas(loop, ask, aside)) as deltas:
            for delta in deltas:
                for chunk in streamer.add(delta):
                    yield self._show(loop, ask.id, chunk)
        response, last = streamer.end()
        yield self._show(loop, ask.id, last)
        return response

    def _deltas(self, loop: Machine, ask: AskModel, aside: WorkerThread | None) -> Generator[Delta]:
        try:
            if not can_stream(ask.model):
                with self.tree.inside(loop.run.id, ask.id):
                    response = _complete(ask) if aside is None else self._away(aside, _complete, ask)
                yield from as_deltas(response)
                return
            stream: Any = ask.model.stream(ask.request)
            if aside is not None:
                stream = _StreamInThread(stream, aside, self._away)
            is_timed = ask.request.timeout is not None
            try:
                for delta in stream if self.tree.trace is None else self._traced(loop, ask, stream):
                    if is_timed:  # an answer that is whole may come to its end
                        is_timed = delta.stop_reason is None
                        if is_timed:
                            raise_if_late(loop, None, self.tree.now(loop.run.id))
                    yield delta
            finally:
                getattr(stream, "close", lambda: None)()
        except ModelError as error:
            raise_if_late(loop, error, self.tree.now(loop.run.id))
            raise

    def _traced(self, loop: Machine, ask: AskModel, stream: Iterable[Delta]) -> Iterator[Delta]:
        """To begin a stream is to ask; a span must not be left current when a piece is handed out."""
        deltas = iter(stream)
        with self.tree.inside(loop.run.id, ask.id):
            first = next(deltas, None)
        if first is not None:
            self.tree.first_chunk(loop.run.id, ask.id)
            yield first
            yield from deltas

    def _show(self, loop: Machine, ask_id: str, chunk: StreamChunk) -> StreamChunk:
        """A chunk, when the listener of the run has seen it."""
        self.marked(loop, chunk)
        listener = loop.plan.on_stream
        if listener is not None:
            with CallSite(self.tree, loop.run.id, ask_id):
                call_sync(listener, chunk)
        return chunk

    # Sources

    def _open_source(self, loop: Machine, ask: AskSource) -> Any:
        opened = self._sources.setdefault(loop.run.id, OpenSources(loop.plan.agent))
        with CallSite(self.tree, loop.run.id, ask.id):
            return opened.open(ask.source)

    def _close_sources(self, run_id: str) -> Exception | None:
        """Close what a run has opened; what goes wrong then fails a run that was well until now."""
        opened = self._sources.pop(run_id, None)
        if opened is None:
            return None
        failed = CloseFailure(self.tree, run_id)
        with CallSite(self.tree, run_id, "close"):
            opened.close(failed)
        return failed.error
