"""Performing one ask from sync code, in place or aside: a request, a tool, a hook, a source of tools.

What is begun, in which order and in which thread, is the business of `sync.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, TypeVar, assert_never

from acorn._drive.aside import Aside, WokenError
from acorn._drive.bridge import call_sync
from acorn._drive.run_tree import Tree, raise_if_late
from acorn._drive.tool_sources import OpenSources
from acorn._drive.tools import attempt
from acorn._drive.walk import CloseFailure, Walk
from acorn._loop.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._loop.run import Loop
from acorn._loop.stream import Streamer
from acorn.chunk import StreamChunk
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, ModelResponse, can_stream
from acorn.record import Place

A = TypeVar("A")
T = TypeVar("T")


def _nothing() -> None:
    """There is nothing to close."""


def _complete(ask: AskModel) -> ModelResponse:
    return ask.model.complete(ask.request)


class _PulledAside:
    """A stream whose pieces are waited for beside the caller's thread, one when it is wanted."""

    def __init__(self, stream: Any, aside: Aside, away: Callable[..., Any]) -> None:
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


class Performing(Walk):
    """A walk that can do what is asked for, and waits for it."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        super().__init__(tree, run_id, iterates=iterates)
        self._sources: dict[str, OpenSources] = {}

    def _perform(self, loop: Loop, ask: Ask, aside: Aside | None = None) -> Generator[StreamChunk[Any], None, Any]:
        if isinstance(ask, AskModel) and not ask.is_quiet and self.streams(loop):
            return (yield from self._stream(loop, ask, aside))
        return self._call(loop, ask, aside)

    def _call(self, loop: Loop, ask: Ask, aside: Aside | None) -> Any:
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
            with Place(self.tree, loop.run.id, ask.id):
                return attempt(ask) if aside is None else self._away(aside, attempt, ask)
        elif isinstance(ask, AskHook):
            try:
                with Place(self.tree, loop.run.id, ask.id):
                    return call_sync(ask.function, *ask.arguments)
            except ask.forgives as error:
                return error
        elif isinstance(ask, AskSource):
            return self._open_source(loop, ask)
        elif isinstance(ask, AskBranch):
            raise AssertionError("a branch is walked, not performed")
        else:
            assert_never(ask)

    def _away(self, aside: Aside, act: Callable[[A], T], given: A) -> T:
        """Beside the caller's thread, which waits until it is done, or the run was cancelled."""
        try:
            return aside.call(act, given)
        except WokenError:
            assert self.tree.lost is not None
            raise self.tree.lost from None

    def _stream(
        self, loop: Loop, ask: AskModel, aside: Aside | None
    ) -> Generator[StreamChunk[Any], None, ModelResponse]:
        streamer = Streamer(loop.spec.output)
        with closing(self._deltas(loop, ask, aside)) as deltas:
            for delta in deltas:
                for chunk in streamer.add(delta):
                    yield self._show(loop, ask.id, chunk)
        response, last = streamer.end()
        yield self._show(loop, ask.id, last)
        return response

    def _deltas(self, loop: Loop, ask: AskModel, aside: Aside | None) -> Generator[Delta]:
        try:
            if not can_stream(ask.model):
                with self.tree.inside(loop.run.id, ask.id):
                    response = _complete(ask) if aside is None else self._away(aside, _complete, ask)
                yield from as_deltas(response)
                return
            stream: Any = ask.model.stream(ask.request)
            if aside is not None:
                stream = _PulledAside(stream, aside, self._away)
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

    def _traced(self, loop: Loop, ask: AskModel, stream: Iterable[Delta]) -> Iterator[Delta]:
        """To begin a stream is to ask; a span must not be left current when a piece is handed out."""
        deltas = iter(stream)
        with self.tree.inside(loop.run.id, ask.id):
            first = next(deltas, None)
        if first is not None:
            self.tree.first_chunk(loop.run.id, ask.id)
            yield first
            yield from deltas

    def _show(self, loop: Loop, ask_id: str, chunk: StreamChunk[Any]) -> StreamChunk[Any]:
        """A chunk, when the listener of the run has seen it."""
        self.marked(loop, chunk)
        listener = loop.plan.on_stream
        if listener is not None:
            with Place(self.tree, loop.run.id, ask_id):
                call_sync(listener, chunk)
        return chunk

    # Sources

    def _open_source(self, loop: Loop, ask: AskSource) -> Any:
        opened = self._sources.setdefault(loop.run.id, OpenSources(loop.plan.agent))
        with Place(self.tree, loop.run.id, ask.id):
            return opened.open(ask.source)

    def _close_sources(self, run_id: str) -> Exception | None:
        """Close what a run has opened; what goes wrong then fails a run that was well until now."""
        opened = self._sources.pop(run_id, None)
        if opened is None:
            return None
        failed = CloseFailure(self.tree, run_id)
        with Place(self.tree, run_id, "close"):
            opened.close(failed)
        return failed.error
