"""The synchronous driver: an ordinary blocking call on the caller's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, assert_never

from acorn._drive.branches import run_branches
from acorn._drive.bridge import call_sync
from acorn._drive.record import close_record, open_record
from acorn._drive.tools import run_tools
from acorn._loop.asks import AskBranches, AskHook, AskModel, AskTools, Done
from acorn._loop.run import Loop
from acorn._loop.stream import Streamer
from acorn.chunk import StreamChunk
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, ModelResponse, can_stream
from acorn.record import inside
from acorn.types import ToolResult


def drive(loop: Loop, agent: object) -> None:
    """Walk a run to its end."""
    try:
        for _ in walk(loop, agent, iterates=False):
            pass
    except RuntimeError as error:
        raise_own(error, loop, StopIteration)
        raise


def walk(loop: Loop, agent: object, *, iterates: bool) -> Generator[StreamChunk[Any]]:
    """Walk a run to its end, giving each chunk on the way; closing the iterator ends the run."""
    began, where = open_record(loop.run)
    with ExitStack() as ends:
        ends.callback(close_record, loop.run, agent, began, where)
        try:
            yield from _Walk(loop, agent, began, iterates).steps()
        except BaseException as error:
            loop.abort(error, time.monotonic() - began)
            raise
        finally:
            for close in closers(loop):
                ends.callback(_close, loop, agent, close)


class _Walk:
    def __init__(self, loop: Loop, agent: object, began: float, iterates: bool) -> None:
        self.loop = loop
        self.agent = agent
        self.began = began
        self.listener = loop.plan.on_stream
        self.iterates = iterates
        self.streams = iterates or self.listener is not None

    def now(self) -> float:
        return time.monotonic() - self.began

    def steps(self) -> Generator[StreamChunk[Any]]:
        loop = self.loop
        while True:
            ask = loop.ask(self.now())
            match ask:
                case AskModel():
                    outcome: Any = yield from self.complete(ask)
                case AskTools():
                    effects = run_tools(ask, self.place)
                    outcome = (yield from self.watch(effects)) if self.streams else drained(effects)
                case AskBranches():
                    outcome = yield from self.watch(run_branches(ask.children, walk, self.iterates))
                case AskHook():
                    outcome = self.call(ask)
                case Done():
                    return
                case _:
                    assert_never(ask)
            loop.tell(outcome, self.now())

    def place(self) -> inside:
        return inside(self.agent, self.loop.run, self.loop)

    def watch(
        self, effects: Generator[StreamChunk[Any] | ToolResult, None, list[ToolResult]]
    ) -> Generator[StreamChunk[Any], None, list[ToolResult]]:
        """Chunks of branches, and one for each result; all results in the end."""
        try:
            while True:
                try:
                    news = next(effects)
                except StopIteration as end:
                    results: list[ToolResult] = end.value
                    return results
                if isinstance(news, StreamChunk):
                    yield news
                elif self.streams:
                    yield from self.tell([StreamChunk(tool_result=replace(news))])
        finally:
            effects.close()

    def complete(self, ask: AskModel) -> Generator[StreamChunk[Any], None, ModelResponse]:
        if not self.streams:
            with in_time(self.loop, self.now):
                return ask.model.complete(ask.request)
        streamer = Streamer(self.loop.spec.output)
        with closing(self.deltas(ask)) as deltas:
            for delta in deltas:
                yield from self.tell(streamer.add(delta))
        response, last = streamer.end()
        yield from self.tell([last])
        return response

    def deltas(self, ask: AskModel) -> Generator[Delta]:
        with in_time(self.loop, self.now):
            if not can_stream(ask.model):
                yield from as_deltas(ask.model.complete(ask.request))
                return
            stream: Any = ask.model.stream(ask.request)
            try:
                yield from stream
            finally:
                getattr(stream, "close", lambda: None)()

    def tell(self, chunks: Any) -> Iterator[StreamChunk[Any]]:
        for chunk in chunks:
            if self.loop.path:
                chunk.branch, chunk.run_id = self.loop.path, self.loop.run.id
            if self.listener is not None:
                with self.place():
                    call_sync(self.listener, chunk)
            yield chunk

    def call(self, ask: AskHook) -> Any:
        try:
            with self.place():
                return call_sync(ask.function, *ask.arguments)
        except ask.forgives as error:
            return error


def drained(effects: Generator[Any, None, list[ToolResult]]) -> list[ToolResult]:
    """All results, where nobody wants to see them one by one."""
    try:
        while True:
            next(effects)
    except StopIteration as end:
        results: list[ToolResult] = end.value
        return results


@contextmanager
def in_time(loop: Loop, now: Callable[[], float]) -> Generator[None]:
    """A request that fails in this block when the time of the run is up has failed of that."""
    try:
        yield
    except ModelError as error:
        if late := loop.purse.too_late(now()):
            raise late from error
        raise


def _close(loop: Loop, agent: object, close: Callable[[], Any]) -> None:
    try:
        with inside(agent, loop.run):
            call_sync(close)
    except BaseException as error:
        could_not_close(loop, error)


def raise_own(error: RuntimeError, loop: Loop, kind: type[Exception]) -> None:
    """A hook's own StopIteration, which Python turns into a RuntimeError on its way out of a generator."""
    cause = error.__cause__
    if isinstance(cause, kind):
        loop.run.error = cause
        cause.run = loop.run  # type: ignore[attr-defined]
        raise cause from None


def closers(loop: Loop) -> list[Callable[[], Any]]:
    """How to close the sources that were opened, in the order of their opening."""
    opened = loop.spec.sources[: (loop.state.opened + 1) // 2]
    found = [getattr(source, "close", None) for source in opened]
    return [close for close in found if close is not None]


def could_not_close(loop: Loop, error: BaseException) -> None:
    """This fails a run that was well until now, but does not hide what went wrong before."""
    first = loop.run.error
    if first is None:
        loop.abort(error)
    elif isinstance(error, Exception):
        first.add_note(f"Closing a source of tools failed as well: {error!r}")
        return
    raise error
