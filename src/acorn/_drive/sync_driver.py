"""The synchronous driver, which performs the operations of a run in an ordinary blocking call.

An ask is an operation that a run requests, such as a model request or a tool call. If only one ask is ready, the driver
performs it in the caller's thread. Several concurrent asks, such as parallel tool calls, run in new threads. The
caller's thread waits for them, passes their results to the state machines and begins the next asks. Therefore no new
ask begins after Ctrl-C has interrupted the caller's thread.
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
    """Perform the model requests, tool calls and hooks of a run until the run ends or pauses."""
    try:
        for _ in drive_stream(tree, run_id, iterates=False):
            pass
    except RuntimeError as error:
        raise_original(error, tree.machines[run_id], StopIteration)
        raise


def drive_stream(tree: Tree, run_id: str, *, iterates: bool = True) -> Generator[StreamChunk]:
    """Perform the model requests, tool calls and hooks of a run, and yield its stream chunks.

    The iterator ends when the run ends or pauses. Closing the iterator earlier ends the run. `iterates` is False if the
    caller ignores the chunks.
    """
    driver = SyncDriver(tree, run_id, iterates=iterates)
    try:
        yield from driver.steps()
    except BaseException as error:
        try:
            driver.stop()
        finally:  # This must happen even if Ctrl-C is pressed again.
            driver.schedule.stop_runs(error, driver.pending_outcomes())
        raise
    finally:
        try:
            driver.close()
        finally:
            driver.finish()


class _ThreadOutcome:
    """The result or the error of an ask (an operation that a run requests) that another thread performed."""

    __slots__ = ("error", "key", "value")

    def __init__(self, key: AskKey, value: Any, error: BaseException | None) -> None:
        self.key, self.value, self.error = key, value, error


class _RunningCall:
    """An ask (an operation that a run requests) that another thread performs, with the objects to cancel it."""

    __slots__ = ("ask", "future", "outcome", "started", "token")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.started = time.monotonic()
        self.token = CancelToken() if isinstance(ask, AskModel) else None
        """A token that cancels a model request before the request is sent."""
        self.future: Future[ToolResult] | None = None
        """The future of an async tool, which can be cancelled. Python cannot end the thread of a sync tool."""
        self.outcome: _ThreadOutcome | None = None
        """The outcome of the ask, before its machine receives it."""

    def cancel(self) -> None:
        if self.token is not None:
            self.token.cancel()
        if self.future is not None:
            self.future.cancel()


_LONG_ASKS: tuple[type[Ask], ...] = (AskModel, AskTool)
_SHORT_ASKS: tuple[type[Ask], ...] = (AskHook, AskSource)
_ALL_ASKS = (*_LONG_ASKS, *_SHORT_ASKS)


class SyncDriver:
    """A driver that performs the operations of one run, and of the branches that its model calls in a blocking call."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        self.tree = tree
        self.root = run_id
        self.iterates = iterates
        """Whether the caller iterates over the stream chunks."""
        self._events: queue.SimpleQueue[_ThreadOutcome | StreamChunk | Exception] = queue.SimpleQueue()
        """The outcomes and chunks from other threads, and the fatal error of the tree after a cancellation."""
        self._deadlines: list[tuple[float, AskKey]] = []
        """A heap of tool deadlines with the keys of their asks. It may contain tools that have already returned."""
        self._sources: dict[str, OpenSources] = {}
        """A dict that maps run ids to the tool sources that the run has opened."""
        self._worker: WorkerThread | None = None
        """The thread that performs long asks, if another process may cancel the run."""
        if tree.committer is not None and run_id == tree.root:
            self._allow_waking()
        self.schedule: Schedule[_RunningCall] = Schedule(tree, run_id, [run_id], {run_id: None})

    def _allow_waking(self) -> None:
        """Set the callback `tree.wake`, with which another thread can interrupt this driver while it waits."""
        self._worker = worker = WorkerThread()

        def wake() -> None:
            error = self.tree.fatal_error
            assert error is not None
            self._events.put(error)
            worker.wake(error)

        self.tree.wake = wake

    def steps(self) -> Generator[StreamChunk]:
        """Perform the operations of the run until it ends or pauses, and yield its stream chunks."""
        tree, schedule = self.tree, self.schedule
        tree.open(self.root)
        while True:
            if schedule.ended:
                yield from self._end_branches()
            elif len(schedule.active) == 1 and not (
                schedule.running or schedule.paused or self._streams(tree.machines[self.root])
            ):
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
                    if isinstance(ask, AskSource):  # Open tool sources in this thread, because it closes them too.
                        yield from self._perform_in_place(machine, ask)
                new = [self._begin(machine, ask) for machine, ask in ready if not isinstance(ask, AskSource)]
                self._commit()
                for key, running, machine in new:
                    self._start(key, running, machine)
                if schedule.running:
                    yield from self._handle_events()
            elif schedule.finish_or_pause():
                return

    def _streams(self, machine: Machine) -> bool:
        return self.iterates or machine.plan.on_stream is not None

    # Asks in the caller's thread

    def _perform_alone(self) -> None:
        """Perform the operations of a run without branches and stream, while the run requests one at a time.

        Most runs need only this method. If another process may cancel the run, the worker thread performs model
        requests and tool calls, because the driver can stop waiting for them. The worker thread performs all of them up
        to the next hook, because each change of threads costs more time than a step.
        """
        worker = self._worker
        if worker is None or self.tree.is_listened_to(self.root):
            self._perform_each(_ALL_ASKS, worker)
            return
        while worker.call(self._perform_each, _LONG_ASKS) is not None and self._perform_each(_SHORT_ASKS):
            pass

    def _perform_each(self, kinds: tuple[type[Ask], ...], worker: WorkerThread | None = None) -> int | None:
        """Perform one ask after the other, while the run requests a single ask that has a type in `kinds`.

        Return the number of performed asks, or None if an ask failed or paused.
        """
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
        """Perform an ask (an operation that the run requests), yield its stream chunks, and return its result."""
        if isinstance(ask, AskModel) and not ask.is_summary and self._streams(machine):
            return (yield from stream_response(self.tree, machine, ask, worker))
        return self._perform(machine.run.id, ask, worker)

    def _perform(self, run_id: str, ask: Ask, worker: WorkerThread | None) -> Any:
        """Perform an ask (an operation that the run requests) without streaming, and return its result."""
        tree = self.tree
        # `match` is twice as slow, and every ask uses this code.
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
            raise AssertionError("The schedule starts branches. A driver cannot perform `AskBranch`.")
        else:
            assert_never(ask)

    def _tell(self, run_id: str, ask: Ask, outcome: Any) -> Generator[StreamChunk]:
        """Pass the result of an ask to the state machine of its run, and yield a tool result as a stream chunk."""
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
            self._report(running, _ThreadOutcome(key, None if error else done.result(), error))

    def _report(self, running: _RunningCall, outcome: _ThreadOutcome) -> None:
        running.outcome = outcome
        self._events.put(outcome)

    def _perform_in_thread(self, key: AskKey, running: _RunningCall, machine: Machine, ask: Ask) -> None:
        """Perform an ask in its own thread, and put its chunks and its result into the event queue.

        Stop early if the driver or the run has ended.
        """
        cancel_token.set(running.token)
        try:
            with closing(self._perform_and_stream(machine, ask)) as chunks:
                while not (self.schedule.is_over or machine.is_over):
                    try:
                        chunk = next(chunks)
                    except StopIteration as end:
                        self._report(running, _ThreadOutcome(key, end.value, None))
                        return
                    if self.iterates:
                        self._events.put(chunk)
        except BaseException as error:
            self._report(running, _ThreadOutcome(key, None, error))

    def _handle_events(self) -> Generator[StreamChunk]:
        """Wait for an event, and handle all events in the queue, so that a single commit saves them."""
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
        elif event.key in self.schedule.running:  # Otherwise the tool timed out, and the model already has a result.
            run_id, ask = event.key[0], self.schedule.running[event.key].ask
            if event.error is not None:
                del self.schedule.running[event.key]
                self.schedule.on_failure(*event.key, event.error)
            else:
                self.schedule.tell(run_id, ask.id, event.value)
                self.schedule.running.pop(event.key, None)
                yield from self._show_tool(run_id, ask, event.value)

    def _next_event(self) -> _ThreadOutcome | StreamChunk | Exception | None:
        """Wait for the next event and return it.

        Return None if a tool exceeds its time limit first.
        """
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
        """Commit all changes of the run and its branches, and wait until the store has saved them."""
        pending = self.tree.commit()
        if pending is not None:
            try:
                pending.result()
            except Exception as error:
                self.tree.fail_commit(error)

    # The end

    def stop(self) -> None:
        """Cancel the operations in progress, without waiting until they have ended."""
        if self.schedule.running:
            time.sleep(0.001)  # A tool that returns at this moment needs time to report its outcome.
        self.schedule.start_ending()
        for running in self.schedule.running.values():
            running.cancel()

    def pending_outcomes(self) -> Iterator[tuple[AskKey, object]]:
        """Return the results of operations that have finished, but that the state machines have not received yet.

        Each result comes with its key: the id of the run and the id of the ask.
        """
        outcomes = [running.outcome for running in self.schedule.running.values() if running.outcome is not None]
        return iter([(outcome.key, outcome.value) for outcome in outcomes if outcome.error is None])

    def _end_branches(self) -> Generator[StreamChunk]:
        while self.schedule.ended:
            run_id, error = self.schedule.ended.pop(0)
            result = self.schedule.end_branch(run_id, self._close_sources(run_id) or error)
            if result is not None:
                machine, ask, tool_result = result
                yield from self._show_result(machine, ask.id, tool_result)

    def _close_sources(self, run_id: str) -> Exception | None:
        """Close the tool sources that a run has opened.

        Return the error if the run fails because a tool source could not be closed. Return None otherwise.
        """
        sources = self._sources.pop(run_id, None)
        if sources is None:
            return None
        errors = SourceCloseErrors(self.tree, run_id)
        with CallSite(self.tree, run_id, "close"):
            sources.close(errors)
        return errors.error

    def close(self) -> None:
        """Close the tool sources of all runs that this driver drives, and complete the run records."""
        for run_id in reversed(self.schedule.active):
            error = self._close_sources(run_id)
            self.tree.close(run_id)
            if error is not None and run_id == self.root:
                raise error

    def finish(self) -> None:
        """Commit the end of the run, and release this process's claim on the run in the store."""
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
    """Call a tool and return its result, or return an error result if the tool raises an exception."""
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
