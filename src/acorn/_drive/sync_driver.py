"""The synchronous driver: an ordinary blocking call on the caller's thread.

One thing alone is done in place. Several at once, tools or branches side by side, are done in threads of
their own, and the caller's thread waits, tells the machines what came, and begins what is next: so nothing
is begun any more once it is interrupted.
"""

from __future__ import annotations

import heapq
import math
import queue
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

from acorn._base.interrupts import Ending, ending, next_of
from acorn._drive.bridge import WokenError, WorkerThread, is_async, result_of, start_on_loop, start_thread
from acorn._drive.perform import SyncPerformer, aattempt, too_long
from acorn._drive.tree import Tree
from acorn._drive.walk import Key
from acorn._machine.asks import Ask, AskHook, AskModel, AskSource, AskTool
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk
from acorn.record import CallSite
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


def walk(tree: Tree, run_id: str, *, iterates: bool) -> Generator[StreamChunk]:
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


class _RunningCall:
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


def _nothing() -> None:
    """A thread cannot be ended."""


_LONG: tuple[type[Ask], ...] = (AskModel, AskTool)
_SHORT: tuple[type[Ask], ...] = (AskHook, AskSource)
_IN_PLACE = (*_LONG, *_SHORT)


def _is_timed(ask: Ask) -> bool:
    return isinstance(ask, AskTool) and ask.seconds != math.inf


class SyncWalk(SyncPerformer):
    """A walk on the caller's thread."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        super().__init__(tree, run_id, iterates=iterates)
        self._news: queue.SimpleQueue[_Returned | StreamChunk | WokenError] = queue.SimpleQueue()
        self._aside: WorkerThread | None = None
        """Does what takes long, where somebody may want the run cancelled meanwhile."""
        self._deadlines: list[tuple[float, Key]] = []
        """When the time of a tool is up, the soonest first; of those that have returned as well."""

    def let_be_woken(self) -> None:
        self._aside = aside = WorkerThread()

        def wake() -> None:
            self._news.put(WokenError())
            aside.wake()

        self.tree.wake = wake

    def steps(self) -> Generator[StreamChunk]:
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
                self._unseen[self.root] = None
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
                    yield from self._hear_news()
            elif self.has_come_to_rest():
                return

    # In place

    def _do(self, loop: Machine, ask: Ask) -> Generator[StreamChunk]:
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
        """One run, one thing at a time, and nobody who wants to see chunks: most walks are nothing else.

        What may take long is done aside where the run may be cancelled, from one hook to the next in one go: a change
        of threads costs more than a step.
        """
        aside = self._aside
        if aside is None or self.tree.is_heard(self.root):
            self._go(_IN_PLACE, aside)
            return
        while self._away(aside, self._go, _LONG) is not None and self._go(_SHORT):
            pass

    def _go(self, kinds: tuple[type[Ask], ...], aside: WorkerThread | None = None) -> int | None:
        """Do what is asked for while it is of these kinds; how many there were, None where one went wrong."""
        tree, run_id = self.tree, self.root
        count = 0
        while (ask := tree.begin_alone(run_id, kinds)) is not None:
            if tree.keeper is not None:
                self._keep()
            try:
                outcome = self._call(tree.loops[run_id], ask, aside)
            except BaseException as error:
                self.miss(run_id, ask.id, error)
                return None
            else:
                tree.tell(run_id, ask.id, outcome)
            count += 1
        return count

    def _take(self, run_id: str, ask: Ask, outcome: Any) -> Generator[StreamChunk]:
        """Tell an outcome; a tool's is shown when it is safe in the machine."""
        self.take(run_id, ask.id, outcome)
        yield from self._show_tool(run_id, ask, outcome)

    def _show_tool(self, run_id: str, ask: Ask, outcome: Any) -> Generator[StreamChunk]:
        if isinstance(ask, AskTool):
            yield from self._show_result(self.tree.loops[run_id], ask.id, outcome)

    def _show_result(self, loop: Machine, ask_id: str, result: ToolResult) -> Generator[StreamChunk]:
        if self.streams(loop):
            try:
                yield self._show(loop, ask_id, StreamChunk(tool_result=replace(result)))
            except BaseException as error:
                self.fail(loop.run.id, error)

    # Beside each other

    def _begin(self, loop: Machine, ask: Ask) -> tuple[Key, _RunningCall, Machine]:
        key = (loop.run.id, ask.id)
        busy = self.busy[key] = _RunningCall(ask)
        self.tree.begin(*key)
        if isinstance(ask, AskTool) and ask.seconds != math.inf:
            heapq.heappush(self._deadlines, (busy.began + ask.seconds, key))
        return key, busy, loop

    def _start(self, key: Key, busy: _RunningCall, loop: Machine) -> None:
        ask = busy.ask
        if isinstance(ask, AskTool) and is_async(ask.tool.function):
            future: Future[ToolResult] = Future()
            busy.end = future.cancel
            future.add_done_callback(lambda done: self._hear(key, busy, done))
            with CallSite(self.tree, *key):
                start_on_loop(aattempt(replace(ask, seconds=math.inf)), future)
        else:
            start_thread(self._work, key, busy, loop, ask)

    def _hear(self, key: Key, busy: _RunningCall, done: Future[ToolResult]) -> None:
        if not done.cancelled():
            error = done.exception()
            self._return(busy, _Returned(key, None if error else done.result(), error))

    def _return(self, busy: _RunningCall, returned: _Returned) -> None:
        busy.returned = returned
        self._news.put(returned)

    def _work(self, key: Key, busy: _RunningCall, loop: Machine, ask: Ask) -> None:
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

    def _hear_news(self) -> Generator[StreamChunk]:
        """Wait for the next news; what has come by then is taken in with it, to be kept in one go."""
        yield from self._wait()
        if not self.iterates:
            for _ in range(self._news.qsize()):
                yield from self._wait()

    def _wait(self) -> Generator[StreamChunk]:
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

    def _next_news(self) -> _Returned | StreamChunk | WokenError | None:
        """The next news; None when the time of a tool is up."""
        deadlines, busy = self._deadlines, self.busy
        while deadlines and deadlines[0][1] not in busy:
            heapq.heappop(deadlines)
        seconds = deadlines[0][0] - time.monotonic() if deadlines else math.inf
        try:
            return next_of(self._news, seconds)
        except queue.Empty:
            return None

    def _end_late_ones(self) -> Generator[StreamChunk]:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, key = heapq.heappop(self._deadlines)
            busy = self.busy.pop(key, None)
            if busy is not None:
                busy.end()
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

    # Ends

    def _end_branches(self) -> Generator[StreamChunk]:
        while self.ended:
            run_id, error = self.ended.pop(0)
            shown = self.end_branch(run_id, self._close_sources(run_id) or error)
            if shown is not None:
                loop, ask, result = shown
                yield from self._show_result(loop, ask.id, result)

    def close(self) -> None:
        """The walk is over, one way or the other."""
        for run_id in reversed(self.active):
            error = self._close_sources(run_id)
            self.tree.close(run_id)
            if error is not None and run_id == self.root:
                raise error


def raise_own(error: RuntimeError, loop: Machine, kind: type[Exception]) -> None:
    """A hook's own StopIteration, which Python turns into a RuntimeError on its way out of a generator."""
    cause = error.__cause__
    if isinstance(cause, kind):
        loop.run.error = cause
        cause.run = loop.run  # type: ignore[attr-defined]
        raise cause from None
