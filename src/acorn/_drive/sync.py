"""The synchronous driver: an ordinary blocking call on the caller's thread.

One thing alone is done in place. Several at once, tools or branches side by side, are done in threads of
their own, and the caller's thread waits, tells the machines what came, and begins what is next: so nothing
is begun any more once it is interrupted.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar, assert_never

from acorn._drive.aside import Aside, WokenError
from acorn._drive.bridge import call_sync, is_async, result_of, start_on_loop, start_thread
from acorn._drive.run_tree import Tree, raise_if_late
from acorn._drive.tool_sources import OpenSources
from acorn._drive.tools import aattempt, attempt, too_long
from acorn._drive.walk import CloseFailure, Key, Walk
from acorn._loop.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._loop.run import Loop
from acorn._loop.stream import Streamer
from acorn._waiting import Ending, ending, next_of
from acorn.chunk import StreamChunk
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, ModelResponse, can_stream
from acorn.record import Place
from acorn.types import ToolResult

A = TypeVar("A")
T = TypeVar("T")


def drive(tree: Tree, run_id: str) -> None:
    """Walk a run to its end."""
    try:
        for _ in walk(tree, run_id, iterates=False):
            pass
    except RuntimeError as error:
        raise_own(error, tree.loops[run_id], StopIteration)
        raise


def walk(tree: Tree, run_id: str, *, iterates: bool) -> Generator[StreamChunk[Any]]:
    """Walk a run to its end, giving each chunk on the way; closing the iterator ends the run."""
    the_walk = SyncWalk(tree, run_id, iterates=iterates)
    if tree.keeper is not None and run_id == tree.root:
        the_walk.let_be_woken()
    try:
        yield from the_walk.steps()
    except BaseException as error:
        try:
            the_walk.stop()
        finally:  # though Ctrl-C was pressed once more
            the_walk.end(error, the_walk.returned())
        raise
    finally:
        try:
            the_walk.close()
        finally:
            the_walk.keep_end()


class _Returned:
    """What came of an ask in another thread."""

    __slots__ = ("error", "key", "outcome")

    def __init__(self, key: Key, outcome: Any, error: BaseException | None) -> None:
        self.key, self.outcome, self.error = key, outcome, error


class _Busy:
    """Something under way in another thread."""

    __slots__ = ("ask", "began", "end", "ending", "returned")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.began = time.monotonic()
        self.ending = Ending() if isinstance(ask, AskModel) else None
        """Lets a request that was not sent yet know that nobody waits for it."""
        self.end: Callable[[], Any] = _nothing if self.ending is None else self.ending.end
        self.returned: _Returned | None = None
        """What came of it, until the machine knows."""

    @property
    def until(self) -> float:
        return self.began + self.ask.seconds if isinstance(self.ask, AskTool) else math.inf


def _nothing() -> None:
    """A thread cannot be ended."""


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


def _is_timed(ask: Ask) -> bool:
    return isinstance(ask, AskTool) and ask.seconds != math.inf


class SyncWalk(Walk):
    """A walk on the caller's thread."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        super().__init__(tree, run_id, iterates=iterates)
        self._news: queue.SimpleQueue[_Returned | StreamChunk[Any] | WokenError] = queue.SimpleQueue()
        self._aside: Aside | None = None
        """Does what takes long, where somebody may want the run cancelled meanwhile."""
        self._sources: dict[str, OpenSources] = {}

    def let_be_woken(self) -> None:
        self._aside = aside = Aside()

        def wake() -> None:
            self._news.put(WokenError())
            aside.wake()

        self.tree.wake = wake

    def steps(self) -> Generator[StreamChunk[Any]]:
        self.tree.open(self.root)
        while True:
            if self.ended:
                yield from self._end_branches()
            elif (
                len(self.active) == 1
                and not self.busy
                and not self.resting
                and not self.streams(self.tree.loops[self.root])
            ):
                self._go_alone()
            ready = [] if self.ended else self.ready()
            if self.ended:
                continue
            if len(ready) == 1 and not self.busy and not _is_timed(ready[0][1]):
                yield from self._do(*ready[0])
            elif ready or self.busy:
                sources = [each for each in ready if isinstance(each[1], AskSource)]
                for loop, ask in sources:  # here, where they will be closed as well
                    yield from self._do(loop, ask)
                new = [self._begin(loop, ask) for loop, ask in ready if not isinstance(ask, AskSource)]
                self._keep()
                for key, busy, loop in new:
                    self._start(key, busy, loop)
                if self.busy:
                    yield from self._wait()
            elif self.has_come_to_rest():
                return

    # In place

    def _do(self, loop: Loop, ask: Ask) -> Generator[StreamChunk[Any]]:
        run_id = loop.run.id
        self.tree.begin(run_id, ask.id)
        self._keep()
        try:
            outcome = yield from self._perform(loop, ask, self._aside)
        except BaseException as error:
            self.miss(run_id, ask.id, error)
            return
        yield from self._take(run_id, ask, outcome)

    def _go_alone(self) -> None:
        """One run, one thing at a time, and nobody who wants to see chunks: most walks are nothing else."""
        tree, run_id = self.tree, self.root
        while (ask := tree.begin_alone(run_id)) is not None:
            if tree.keeper is not None:
                self._keep()
            try:
                outcome = self._call(tree.loops[run_id], ask, self._aside)
            except BaseException as error:
                self.miss(run_id, ask.id, error)
                return
            else:
                tree.tell(run_id, ask.id, outcome)

    def _take(self, run_id: str, ask: Ask, outcome: Any) -> Generator[StreamChunk[Any]]:
        """Tell an outcome; a tool's is shown when it is safe in the machine."""
        self.take(run_id, ask.id, outcome)
        yield from self._show_tool(run_id, ask, outcome)

    def _show_tool(self, run_id: str, ask: Ask, outcome: Any) -> Generator[StreamChunk[Any]]:
        if isinstance(ask, AskTool):
            yield from self._show_result(self.tree.loops[run_id], ask.id, outcome)

    def _show_result(self, loop: Loop, ask_id: str, result: ToolResult) -> Generator[StreamChunk[Any]]:
        if self.streams(loop):
            try:
                yield self._show(loop, ask_id, StreamChunk(tool_result=replace(result)))
            except BaseException as error:
                self.fail(loop.run.id, error)

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

    # Beside each other

    def _begin(self, loop: Loop, ask: Ask) -> tuple[Key, _Busy, Loop]:
        key = (loop.run.id, ask.id)
        busy = self.busy[key] = _Busy(ask)
        self.tree.begin(*key)
        return key, busy, loop

    def _start(self, key: Key, busy: _Busy, loop: Loop) -> None:
        ask = busy.ask
        if isinstance(ask, AskTool) and is_async(ask.tool.function):
            future: Future[ToolResult] = Future()
            busy.end = future.cancel
            future.add_done_callback(lambda done: self._hear(key, busy, done))
            with Place(self.tree, *key):
                start_on_loop(aattempt(replace(ask, seconds=math.inf)), future)
        else:
            start_thread(self._work, key, busy, loop, ask)

    def _hear(self, key: Key, busy: _Busy, done: Future[ToolResult]) -> None:
        if not done.cancelled():
            error = done.exception()
            self._return(busy, _Returned(key, None if error else done.result(), error))

    def _return(self, busy: _Busy, returned: _Returned) -> None:
        busy.returned = returned
        self._news.put(returned)

    def _work(self, key: Key, busy: _Busy, loop: Loop, ask: Ask) -> None:
        """In a thread of its own; nobody listens any more once the walk is over."""
        ending.set(busy.ending)
        try:
            with closing(self._perform(loop, ask)) as steps:
                while not (self.is_over or loop.is_over):
                    try:
                        chunk = next(steps)
                    except StopIteration as end:
                        self._return(busy, _Returned(key, end.value, None))
                        return
                    if self.iterates:
                        self._news.put(chunk)
        except BaseException as error:
            self._return(busy, _Returned(key, None, error))

    def _wait(self) -> Generator[StreamChunk[Any]]:
        """Wait for the next news, and take it in."""
        news = self._next_news()
        if isinstance(news, StreamChunk):
            yield news
        elif isinstance(news, WokenError):
            assert self.tree.lost is not None
            raise self.tree.lost
        elif news is None:
            yield from self._end_late_ones()
        elif news.key in self.busy:  # otherwise its time was up, and the model was told so
            run_id, ask = news.key[0], self.busy[news.key].ask
            if news.error is not None:
                del self.busy[news.key]
                self.miss(*news.key, news.error)
            else:
                self.take(run_id, ask.id, news.outcome)
                self.busy.pop(news.key, None)
                yield from self._show_tool(run_id, ask, news.outcome)

    def _next_news(self) -> _Returned | StreamChunk[Any] | WokenError | None:
        """The next news; None when the time of a tool is up."""
        until = min(busy.until for busy in self.busy.values())
        try:
            return next_of(self._news, until - time.monotonic())
        except queue.Empty:
            return None

    def _end_late_ones(self) -> Generator[StreamChunk[Any]]:
        now = time.monotonic()
        for key, busy in list(self.busy.items()):
            if busy.until <= now and isinstance(busy.ask, AskTool):
                busy.end()
                del self.busy[key]
                yield from self._take(key[0], busy.ask, too_long(busy.ask, now - busy.began))

    def stop(self) -> None:
        """Nobody waits any more for what is under way."""
        if self.busy:
            time.sleep(0.001)  # a tool that has returned this moment still has to say so
        self.begin_end()
        for busy in self.busy.values():
            busy.end()

    def let_go(self) -> None:
        if self._aside is not None:
            self._aside.close()
        super().let_go()

    def returned(self) -> Iterator[tuple[Key, Any]]:
        """What has come and was not taken in yet."""
        came = [busy.returned for busy in self.busy.values() if busy.returned is not None]
        return iter([(each.key, each.outcome) for each in came if each.error is None])

    # What is kept

    def _keep(self) -> None:
        """Wait until what has happened is safe."""
        future = self.tree.keep()
        if future is not None:
            try:
                result_of(future)
            except Exception as error:
                failure = self.tree.not_kept(error)
                raise failure from failure.__cause__

    def keep_end(self) -> None:
        """The same when the walk is over; what cannot be kept now fails a run that was well."""
        try:
            self._keep()
        except Exception as error:
            self.not_kept(error)
        finally:
            self.let_go()

    # Sources and ends

    def _open_source(self, loop: Loop, ask: AskSource) -> Any:
        opened = self._sources.setdefault(loop.run.id, OpenSources(loop.plan.agent))
        with Place(self.tree, loop.run.id, ask.id):
            return opened.open(ask.source)

    def _end_branches(self) -> Generator[StreamChunk[Any]]:
        while self.ended:
            run_id, error = self.ended.pop(0)
            shown = self.end_branch(run_id, self._close_sources(run_id) or error)
            if shown is not None:
                loop, ask, result = shown
                yield from self._show_result(loop, ask.id, result)

    def _close_sources(self, run_id: str) -> Exception | None:
        """Close what a run has opened; what goes wrong then fails a run that was well until now."""
        opened = self._sources.pop(run_id, None)
        if opened is None:
            return None
        failed = CloseFailure(self.tree, run_id)
        with Place(self.tree, run_id, "close"):
            opened.close(failed)
        return failed.error

    def close(self) -> None:
        """The walk is over, one way or the other."""
        for run_id in reversed(self.active):
            error = self._close_sources(run_id)
            self.tree.close(run_id)
            if error is not None and run_id == self.root:
                raise error


def raise_own(error: RuntimeError, loop: Loop, kind: type[Exception]) -> None:
    """A hook's own StopIteration, which Python turns into a RuntimeError on its way out of a generator."""
    cause = error.__cause__
    if isinstance(cause, kind):
        loop.run.error = cause
        cause.run = loop.run  # type: ignore[attr-defined]
        raise cause from None
