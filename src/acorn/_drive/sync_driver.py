"""The synchronous driver, which performs the operations of a run in an ordinary blocking call.

An ask is an operation that a run requests, such as a model request or a tool call. If only one ask is ready, the driver
performs it in the caller's thread. Several concurrent asks, such as parallel tool calls, run in new threads. The
caller's thread waits for them, passes their results to the state machines and begins the next asks. Therefore no new
ask begins after Ctrl-C has interrupted the caller's thread.
"""

from __future__ import annotations

import inspect
import math
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from acorn._base.interrupts import CancelToken, cancel_token, next_item
from acorn._drive.async_driver import acall_tool, collect_items, error_result, late_error
from acorn._drive.bridge import (
    NOT_AWAITABLE,
    SYNC,
    WorkerThread,
    await_value,
    is_async,
    start_on_loop,
    start_thread,
    wait_for,
)
from acorn._drive.driver import Driver, iterate_inline, run_inline
from acorn._drive.schedule import RunningAsk, raise_original
from acorn._drive.tree import Tree
from acorn._history.transcript import FinishedCall, finish_call
from acorn._machine.asks import Ask, AskHook, AskModel, AskSource, AskTool
from acorn.chunk import StreamChunk
from acorn.errors import ModelError
from acorn.models.port import Delta, ModelResponse, StreamingModel
from acorn.models.request import ModelRequest
from acorn.record import CallSite, Run
from acorn.types import ToolResult

_LONG_ASKS: tuple[type[Ask], ...] = (AskModel, AskTool)
_SHORT_ASKS: tuple[type[Ask], ...] = (AskHook, AskSource)


def drive(tree: Tree, run_id: str | None = None) -> Run:
    """Perform the model requests, tool calls and hooks of a run until it ends or pauses, and return its record.

    By default, the run is the root of the tree. If it is a stored run that has already finished, only return its
    record.
    """
    run_id = run_id or tree.root
    try:
        for _ in iterate_inline(SyncDriver(tree, run_id, iterates=False).chunks()):
            pass
    except RuntimeError as error:
        raise_original(error, tree.machines[run_id].run)
        raise
    return tree.machines[run_id].run


def drive_stream(tree: Tree, run_id: str) -> Generator[StreamChunk]:
    """Perform the model requests, tool calls and hooks of a run, and yield its stream chunks.

    The iterator ends when the run ends or pauses. Closing the iterator earlier ends the run.
    """
    return iterate_inline(SyncDriver(tree, run_id, iterates=True).chunks())


class SyncDriver(Driver):
    """A driver that performs the operations of one run, and of the branches that its model calls in a blocking call."""

    bridge = SYNC

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        super().__init__(tree, run_id, iterates=iterates)
        self._queue = self._events = queue.SimpleQueue[Any]()
        self._thread = 0
        """The thread that executes this driver. The caller may request each chunk in another thread."""
        if self.can_be_woken:
            self.worker = WorkerThread()
            tree.wake = partial(self._wake, self.worker)

    def _wake(self, worker: WorkerThread) -> None:
        assert self.tree.fatal_error is not None
        self._queue.put(self.tree.fatal_error)
        worker.wake(self.tree.fatal_error)

    def _resume(self) -> None:
        self._thread = threading.get_ident()

    def _own_worker(self) -> WorkerThread | None:
        """Return the worker thread if the driver itself performs an ask, and None in the threads of concurrent asks."""
        return self.worker if self._thread == threading.get_ident() else None

    # A run without branches and stream

    def _perform_alone(self) -> bool:
        """Perform the operations of a run without branches and stream, while the run requests one at a time.

        Most runs need only this method. If another process may cancel the run, the worker thread performs model
        requests and tool calls, because the driver can stop waiting for it. The worker thread performs all of them up
        to the next hook, because each change of threads costs more time than a step.
        """
        tree, schedule, machine = self.tree, self.schedule, self.tree.machines[self.root]
        if len(schedule.active) > 1 or schedule.running or schedule.paused:
            return False
        if self.iterates or machine.plan.on_stream is not None:
            return False
        worker = self.worker
        if worker is None:
            self._perform_each(_LONG_ASKS + _SHORT_ASKS)
        elif not tree.driven[self.root].listeners:  # Listeners are called in the thread of the driver.
            while worker.call(self._perform_each, _LONG_ASKS) is not None and self._perform_each(_SHORT_ASKS):
                pass
        schedule.unchecked[self.root] = None
        return machine.run.stop_reason is not None and machine.run.error is None

    def _perform_each(self, kinds: tuple[type[Ask], ...]) -> int | None:
        """Perform one ask after the other, while the run requests a single ask that has a type in `kinds`.

        Return the number of performed asks, or None if an ask failed or paused.
        """
        tree, run_id = self.tree, self.root
        run, count = tree.machines[run_id].run, 0
        while run.stop_reason is None and (ask := tree.begin_only_ask(run_id, kinds)) is not None:
            if tree.committer is not None:
                tree.commit()
            try:
                # The most frequent asks do not need the code for all drivers.
                if isinstance(ask, AskTool):
                    with CallSite(tree, run_id, ask.id):
                        outcome: Any = call_tool(ask)
                elif isinstance(ask, AskModel) and tree.trace is None:
                    try:
                        outcome = ask.model.complete(ask.request)
                    except ModelError as error:
                        tree.raise_if_late(run_id, error)
                        raise
                else:
                    outcome = run_inline(self._result_of(run_id, ask))
            except BaseException as error:
                self.schedule.on_failure(run_id, ask.id, error)
                return None
            tree.tell(run_id, ask.id, outcome)
            count += 1
        return count

    # Asks in threads

    def _is_concurrent(self, ask: Ask, *, is_alone: bool) -> bool:
        if isinstance(ask, AskSource):  # Open tool sources in this thread, because it closes them too.
            return False
        return not is_alone or (isinstance(ask, AskTool) and ask.seconds != math.inf)

    def _start(self, running: RunningAsk) -> None:
        ask = running.ask
        if isinstance(ask, AskTool):
            running.deadline = time.monotonic() + ask.seconds
        if isinstance(ask, AskTool) and is_async(ask.tool.function):
            future: Future[FinishedCall] = Future()
            running.canceller = future
            future.add_done_callback(partial(self._receive, running))
            with CallSite(self.tree, *running.key):
                # The driver itself limits the time, because other code may block the private event loop.
                start_on_loop(acall_tool(replace(ask, seconds=math.inf)), future)
        else:
            token = CancelToken() if isinstance(ask, AskModel) else None
            running.canceller = token  # Python cannot end the thread of a sync tool.
            start_thread(self._work, running, token)

    def _work(self, running: RunningAsk, token: CancelToken | None) -> None:
        cancel_token.set(token)
        run_inline(self._perform_concurrently(running))

    def _receive(self, running: RunningAsk, done: Future[FinishedCall]) -> None:
        if not done.cancelled():
            running.error = done.exception()
            running.value = None if running.error else done.result()
            self._report(running)

    async def _report_chunk(self, chunk: StreamChunk) -> None:
        self._queue.put(chunk)

    async def _next_event(self) -> RunningAsk | StreamChunk:
        first = min(self.schedule.running.values(), key=attrgetter("deadline"))
        try:
            event: RunningAsk | StreamChunk | Exception = next_item(self._queue, first.deadline - time.monotonic())
        except queue.Empty:
            first.cancel()
            assert isinstance(first.ask, AskTool)
            seconds = time.monotonic() - first.deadline + first.ask.seconds
            first.value = error_result(first.ask, late_error(first.ask), seconds)
            return first
        if isinstance(event, Exception):
            raise event
        return event

    # Performing an ask

    async def _complete(self, ask: AskModel) -> ModelResponse:
        worker = self._own_worker()
        return ask.model.complete(ask.request) if worker is None else worker.call(ask.model.complete, ask.request)

    async def _open_stream(self, model: StreamingModel, request: ModelRequest) -> AsyncGenerator[Delta]:
        worker = self._own_worker()
        stream: Iterable[Delta] = model.stream(request)
        try:
            if worker is None:
                for delta in stream:
                    yield delta
            else:
                deltas = iter(stream)
                while (received := worker.call(next, deltas, None)) is not None:
                    yield received
        finally:
            close: Callable[[], object] | None = getattr(stream, "close", None)
            if close is not None and worker is not None:
                worker.finish(close)
            elif close is not None:
                close()

    async def _call_tool(self, ask: AskTool) -> FinishedCall:
        worker = self._own_worker()
        return call_tool(ask) if worker is None else worker.call(call_tool, ask)

    async def _commit(self) -> None:
        self.tree.commit()

    async def _stop(self) -> None:
        if self.schedule.running:
            time.sleep(0.001)  # A tool that returns at this moment needs time to report its outcome.
        self.schedule.start_ending()


def call_tool(ask: AskTool) -> FinishedCall:
    """Call a tool and return its result, or return an error result if the tool raises an exception."""
    started, call = time.monotonic(), ask.call
    try:
        output = ask.tool.function(*ask.args, **ask.kwargs)
        if type(output) not in NOT_AWAITABLE:
            output = await_value(output)
            if inspect.isasyncgen(output):
                output = wait_for(collect_items(output))
    except Exception as error:
        return error_result(ask, error, time.monotonic() - started)
    return finish_call(ToolResult(call.id, call.name, output, None, time.monotonic() - started))
