"""The synchronous driver: performs the asks of a run in an ordinary blocking call.

It performs a single ask in place. Several asks at once, such as parallel tool calls or branches, run in threads. The
caller's thread waits for them, tells the machines the outcomes and begins the next asks. So nothing begins after the
caller was interrupted.
"""

from __future__ import annotations

import heapq
import math
import queue
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from acorn._base.interrupts import CancelToken, cancel_token, next_item
from acorn._drive.async_driver import acall_tool, collect_items, error_result, timeout_result
from acorn._drive.bridge import (
    NOT_AWAITABLE,
    WorkerThread,
    await_value,
    call_sync,
    is_async,
    result_of,
    start_on_loop,
    start_thread,
)
from acorn._drive.pause import AskKey
from acorn._drive.schedule import Schedule, SourceCloseErrors, raise_original
from acorn._drive.sources import OpenSources
from acorn._drive.streaming import complete, show_chunk, stream_response
from acorn._drive.tree import Tree
from acorn._machine.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk
from acorn.errors import ModelError
from acorn.record import CallSite
from acorn.types import ToolResult


def drive(tree: Tree, run_id: str) -> None:
    """Drive a run to its end."""
    try:
        for _ in drive_stream(tree, run_id, iterates=False):
            pass
    except RuntimeError as error:
        raise_original(error, tree.machines[run_id], StopIteration)
        raise


def drive_stream(tree: Tree, run_id: str, *, iterates: bool = True) -> Generator[StreamChunk]:
    """Drive a run to its end and yield its chunks. Closing the iterator ends the run."""
    driver = SyncDriver(tree, run_id, iterates=iterates)
    try:
        yield from driver.steps()
    except BaseException as error:
        try:
            driver.stop()
        finally:  # Even if Ctrl-C is pressed again.
            driver.schedule.stop_runs(error, driver.returned())
        raise
    finally:
        try:
            driver.close()
        finally:
            driver.finish()


class _Returned:
    """The outcome of an ask that another thread performed."""

    __slots__ = ("error", "key", "value")

    def __init__(self, key: AskKey, value: Any, error: BaseException | None) -> None:
        self.key, self.value, self.error = key, value, error


class _RunningCall:
    """An ask that another thread performs."""

    __slots__ = ("ask", "future", "returned", "started", "token")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.started = time.monotonic()
        self.token = CancelToken() if isinstance(ask, AskModel) else None
        """Stops a request that is not sent yet."""
        self.future: Future[ToolResult] | None = None
        """The future of an async tool. A thread cannot be ended."""
        self.returned: _Returned | None = None
        """The outcome, until the machine knows it."""

    def cancel(self) -> None:
        if self.token is not None:
            self.token.cancel()
        if self.future is not None:
            self.future.cancel()


_LONG: tuple[type[Ask], ...] = (AskModel, AskTool)
_SHORT: tuple[type[Ask], ...] = (AskHook, AskSource)
_ALL = (*_LONG, *_SHORT)


class SyncDriver:
    """Drives one run, and the branches that its model calls, on the caller's thread."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        self.tree = tree
        self.root = run_id
        self.iterates = iterates
        """Whether the caller iterates over the chunks."""
        self._events: queue.SimpleQueue[_Returned | StreamChunk | Exception] = queue.SimpleQueue()
        """Outcomes and chunks of other threads, or the error to end with."""
        self._deadlines: list[tuple[float, AskKey]] = []
        """A heap of the time limits of tools, including tools that have returned since."""
        self._sources: dict[str, OpenSources] = {}
        """By run id, the tool sources that the run has opened."""
        self._worker: WorkerThread | None = None
        """Performs long asks, if another process may cancel the run meanwhile."""
        if tree.committer is not None and run_id == tree.root:
            self._allow_waking()
        self.schedule: Schedule[_RunningCall] = Schedule(tree, run_id, [run_id], {run_id: None})

    def _allow_waking(self) -> None:
        """Let another thread end the wait of this driver."""
        self._worker = worker = WorkerThread()

        def wake() -> None:
            error = self.tree.fatal_error
            assert error is not None
            self._events.put(error)
            worker.wake(error)

        self.tree.wake = wake

    def steps(self) -> Generator[StreamChunk]:
        """Perform asks until the run has ended or paused, and yield the chunks."""
        tree, schedule = self.tree, self.schedule
        tree.open(self.root)
        while True:
            if schedule.ended:
                yield from self._end_branches()
            elif len(schedule.active) == 1 and not (schedule.running or schedule.paused or self._streams_root()):
                self._perform_alone()
                run = tree.machines[self.root].run
                if run.stop_reason is not None and run.error is None:
                    return
                schedule.unchecked[self.root] = None
            ready = [] if schedule.ended else schedule.collect_asks()
            if schedule.ended:
                continue
            if len(ready) == 1 and not schedule.running and not _has_time_limit(ready[0][1]):
                yield from self._perform_in_place(*ready[0])
            elif ready or schedule.running:
                for machine, ask in ready:
                    if isinstance(ask, AskSource):  # In this thread, which closes them too.
                        yield from self._perform_in_place(machine, ask)
                new = [self._begin(machine, ask) for machine, ask in ready if not isinstance(ask, AskSource)]
                self._commit()
                for key, running, machine in new:
                    self._start(key, running, machine)
                if schedule.running:
                    yield from self._handle_events()
            elif schedule.finish_or_pause():
                return

    def _streams_root(self) -> bool:
        return self.iterates or self.tree.machines[self.root].plan.on_stream is not None

    def _streams(self, machine: Machine) -> bool:
        return self.iterates or machine.plan.on_stream is not None

    # Asks in place

    def _perform_alone(self) -> None:
        """Perform the asks of a run without branches, as long as there is one at a time and no chunks are shown.

        Most runs need nothing else. If another process may cancel the run, the worker thread performs the asks that
        may take long, from one hook to the next in one go: a change of threads costs more than a step.
        """
        worker = self._worker
        if worker is None or self.tree.is_listened_to(self.root):
            self._perform_each(_ALL, worker)
            return
        while worker.call(self._perform_each, _LONG) is not None and self._perform_each(_SHORT):
            pass

    def _perform_each(self, kinds: tuple[type[Ask], ...], worker: WorkerThread | None = None) -> int | None:
        """Perform single asks while they are of these kinds. Return their number, or None after a failure."""
        tree, run_id = self.tree, self.root
        count = 0
        while (ask := tree.begin_only_ask(run_id, kinds)) is not None:
            if tree.committer is not None:
                self._commit()
            try:
                outcome = self._perform(run_id, ask, worker)
            except BaseException as error:
                self.schedule.on_failure(run_id, ask.id, error)
                return None
            tree.tell(run_id, ask.id, outcome)
            count += 1
        return count

    def _perform_in_place(self, machine: Machine, ask: Ask) -> Generator[StreamChunk]:
        run_id = machine.run.id
        self.tree.begin(run_id, ask.id)
        self._commit()
        try:
            outcome = yield from self._perform_and_stream(machine, ask, self._worker)
        except BaseException as error:
            self.schedule.on_failure(run_id, ask.id, error)
            return
        yield from self._tell(run_id, ask, outcome)

    def _perform_and_stream(
        self, machine: Machine, ask: Ask, worker: WorkerThread | None = None
    ) -> Generator[StreamChunk, None, Any]:
        """Perform an ask, yield its chunks, and return the outcome."""
        if isinstance(ask, AskModel) and not ask.is_summary and self._streams(machine):
            return (yield from stream_response(self.tree, machine, ask, worker))
        return self._perform(machine.run.id, ask, worker)

    def _perform(self, run_id: str, ask: Ask, worker: WorkerThread | None) -> Any:
        """Perform an ask without chunks, and return its outcome."""
        tree = self.tree
        # `match` takes twice as long, and every ask passes here.
        if isinstance(ask, AskModel):
            try:
                if tree.trace is None:
                    return ask.model.complete(ask.request) if worker is None else worker.call(complete, ask)
                with tree.span(run_id, ask.id):
                    return ask.model.complete(ask.request) if worker is None else worker.call(complete, ask)
            except ModelError as error:
                tree.raise_if_late(run_id, error)
                raise
        elif isinstance(ask, AskTool):
            if worker is None:
                return call_tool(tree, run_id, ask)
            return worker.call(partial(call_tool, tree, run_id), ask)
        elif isinstance(ask, AskHook):
            try:
                with CallSite(tree, run_id, ask.id):
                    return call_sync(ask.function, *ask.arguments)
            except ask.forgives as error:
                return error
        elif isinstance(ask, AskSource):
            sources = self._sources.setdefault(run_id, OpenSources(tree.machines[run_id].plan.agent))
            with CallSite(tree, run_id, ask.id):
                return sources.open(ask.source)
        elif isinstance(ask, AskBranch):
            raise AssertionError("A branch is driven, not performed.")
        else:
            assert_never(ask)

    def _tell(self, run_id: str, ask: Ask, outcome: Any) -> Generator[StreamChunk]:
        """Give an outcome to its machine. Yield the result of a tool as a chunk, now that it cannot be lost."""
        self.schedule.tell(run_id, ask.id, outcome)
        yield from self._show_tool(run_id, ask, outcome)

    def _show_tool(self, run_id: str, ask: Ask, outcome: Any) -> Generator[StreamChunk]:
        if isinstance(ask, AskTool):
            yield from self._show_result(self.tree.machines[run_id], ask.id, outcome)

    def _show_result(self, machine: Machine, ask_id: str, result: ToolResult) -> Generator[StreamChunk]:
        if self._streams(machine):
            try:
                yield show_chunk(self.tree, machine, ask_id, StreamChunk(tool_result=replace(result)))
            except BaseException as error:
                self.schedule.fail(machine.run.id, error)

    # Asks in threads

    def _begin(self, machine: Machine, ask: Ask) -> tuple[AskKey, _RunningCall, Machine]:
        key = (machine.run.id, ask.id)
        running = self.schedule.running[key] = _RunningCall(ask)
        self.tree.begin(*key)
        if isinstance(ask, AskTool) and ask.seconds != math.inf:
            heapq.heappush(self._deadlines, (running.started + ask.seconds, key))
        return key, running, machine

    def _start(self, key: AskKey, running: _RunningCall, machine: Machine) -> None:
        ask = running.ask
        if isinstance(ask, AskTool) and is_async(ask.tool.function):
            future: Future[ToolResult] = Future()
            running.future = future
            future.add_done_callback(partial(self._receive, key, running))
            with CallSite(self.tree, *key):
                start_on_loop(acall_tool(replace(ask, seconds=math.inf)), future)
        else:
            start_thread(self._perform_in_thread, key, running, machine, ask)

    def _receive(self, key: AskKey, running: _RunningCall, done: Future[ToolResult]) -> None:
        if not done.cancelled():
            error = done.exception()
            self._return(running, _Returned(key, None if error else done.result(), error))

    def _return(self, running: _RunningCall, returned: _Returned) -> None:
        running.returned = returned
        self._events.put(returned)

    def _perform_in_thread(self, key: AskKey, running: _RunningCall, machine: Machine, ask: Ask) -> None:
        """Perform an ask in its own thread, until it returns or the drive is over."""
        cancel_token.set(running.token)
        try:
            with closing(self._perform_and_stream(machine, ask)) as chunks:
                while not (self.schedule.is_over or machine.is_over):
                    try:
                        chunk = next(chunks)
                    except StopIteration as end:
                        self._return(running, _Returned(key, end.value, None))
                        return
                    if self.iterates:
                        self._events.put(chunk)
        except BaseException as error:
            self._return(running, _Returned(key, None, error))

    def _handle_events(self) -> Generator[StreamChunk]:
        """Wait for an event. Handle those that arrived meanwhile too, so that one commit stores them all."""
        yield from self._handle_event()
        if not self.iterates:
            for _ in range(self._events.qsize()):
                yield from self._handle_event()

    def _handle_event(self) -> Generator[StreamChunk]:
        event = self._next_event()
        if isinstance(event, StreamChunk):
            yield event
        elif isinstance(event, Exception):
            raise event
        elif event is None:
            yield from self._end_late_tools()
        elif event.key in self.schedule.running:  # Otherwise it timed out, and the model knows it.
            run_id, ask = event.key[0], self.schedule.running[event.key].ask
            if event.error is not None:
                del self.schedule.running[event.key]
                self.schedule.on_failure(*event.key, event.error)
            else:
                self.schedule.tell(run_id, ask.id, event.value)
                self.schedule.running.pop(event.key, None)
                yield from self._show_tool(run_id, ask, event.value)

    def _next_event(self) -> _Returned | StreamChunk | Exception | None:
        """Wait for the next event. Return None when a tool has exceeded its time limit."""
        deadlines, running = self._deadlines, self.schedule.running
        while deadlines and deadlines[0][1] not in running:
            heapq.heappop(deadlines)
        seconds = deadlines[0][0] - time.monotonic() if deadlines else math.inf
        try:
            return next_item(self._events, seconds)
        except queue.Empty:
            return None

    def _end_late_tools(self) -> Generator[StreamChunk]:
        now = time.monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, key = heapq.heappop(self._deadlines)
            running = self.schedule.running.pop(key, None)
            if running is not None and isinstance(running.ask, AskTool):
                running.cancel()
                yield from self._tell(key[0], running.ask, timeout_result(running.ask, now - running.started))

    # Storing

    def _commit(self) -> None:
        """Wait until everything that has happened is stored."""
        future = self.tree.commit()
        if future is not None:
            try:
                result_of(future)
            except Exception as error:
                failure = self.tree.fail_commit(error)
                raise failure from failure.__cause__

    # The end

    def stop(self) -> None:
        """Stop waiting for the running asks."""
        if self.schedule.running:
            time.sleep(0.001)  # A tool that is just returning needs a moment to report it.
        self.schedule.start_ending()
        for running in self.schedule.running.values():
            running.cancel()

    def returned(self) -> Iterator[tuple[AskKey, object]]:
        """Return the outcomes that have arrived but are unknown to their machines."""
        returned = [running.returned for running in self.schedule.running.values() if running.returned is not None]
        return iter([(each.key, each.value) for each in returned if each.error is None])

    def _end_branches(self) -> Generator[StreamChunk]:
        while self.schedule.ended:
            run_id, error = self.schedule.ended.pop(0)
            result = self.schedule.end_branch(run_id, self._close_sources(run_id) or error)
            if result is not None:
                machine, ask, tool_result = result
                yield from self._show_result(machine, ask.id, tool_result)

    def _close_sources(self, run_id: str) -> Exception | None:
        """Close the sources of a run. An error fails a run that had none before."""
        sources = self._sources.pop(run_id, None)
        if sources is None:
            return None
        errors = SourceCloseErrors(self.tree, run_id)
        with CallSite(self.tree, run_id, "close"):
            sources.close(errors)
        return errors.error

    def close(self) -> None:
        """Close the sources and the records of all runs."""
        for run_id in reversed(self.schedule.active):
            error = self._close_sources(run_id)
            self.tree.close(run_id)
            if error is not None and run_id == self.root:
                raise error

    def finish(self) -> None:
        """Store the end of the run, and release its claim."""
        try:
            if self.tree.committer is not None:
                self._commit()
        except Exception as error:
            self.schedule.fail_last_commit(error)
        finally:
            if self._worker is not None:
                self._worker.close()
            if self.tree.committer is not None or self.tree.trace is not None:
                self.schedule.release()


def call_tool(tree: Tree, run_id: str, ask: AskTool) -> ToolResult:
    """Call a tool. Every error becomes a result that the model can read."""
    started, call = time.monotonic(), ask.call
    with CallSite(tree, run_id, ask.id):
        try:
            output = ask.tool.function(*ask.args, **ask.kwargs)
            if type(output) not in NOT_AWAITABLE:
                output = await_value(collect_items(output))
        except Exception as error:
            return error_result(ask, error, time.monotonic() - started)
    return ToolResult(call.id, call.name, output, None, time.monotonic() - started)


def _has_time_limit(ask: Ask) -> bool:
    return isinstance(ask, AskTool) and ask.seconds != math.inf
