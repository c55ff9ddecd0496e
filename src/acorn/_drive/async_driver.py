"""The asynchronous driver, which performs the operations of a run on the caller's event loop.

An ask is an operation that a run requests, such as a model request or a tool call. If only one ask is ready, the driver
awaits it in the driver's own task. The driver starts a new task for each of several concurrent asks and for every tool
call, so that the run can be cancelled even if a tool ignores its cancellation.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from acorn._drive.bridge import ASYNC, call_async, is_async, schedule_on_loop
from acorn._drive.driver import Driver
from acorn._drive.schedule import RunningAsk, raise_original
from acorn._drive.tree import Tree
from acorn._formats.json import read_iterators
from acorn._history.transcript import FinishedCall, failed_call, finish_call
from acorn._machine.asks import Ask, AskModel, AskTool
from acorn.chunk import StreamChunk
from acorn.models.port import Delta, ModelResponse, StreamingModel, complete_async
from acorn.models.request import ModelRequest
from acorn.record import Run
from acorn.types import ToolResult


async def adrive(tree: Tree, run_id: str | None = None) -> Run:
    """Perform the operations of a run like `drive`, but on the event loop.

    If the task that awaits this function is cancelled, all operations in progress are cancelled too.
    """
    run_id = run_id or tree.root
    try:
        async with aclosing(AsyncDriver(tree, run_id, iterates=False).chunks()) as chunks:
            async for _ in chunks:
                pass
    except RuntimeError as error:
        if not isinstance(error.__cause__, StopIteration):  # It cannot leave a coroutine.
            raise_original(error, tree.machines[run_id].run)
        raise
    return tree.machines[run_id].run


def adrive_stream(tree: Tree, run_id: str) -> AsyncGenerator[StreamChunk]:
    """Perform the operations of a run like `drive_stream`, but on the event loop."""
    return AsyncDriver(tree, run_id, iterates=True).chunks()


class AsyncDriver(Driver):
    """A driver that performs the operations of one run, and of the branches that its model calls, on the event loop."""

    bridge = ASYNC

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        super().__init__(tree, run_id, iterates=iterates)
        self._queue = self._events = asyncio.Queue[Any]()
        self._is_handling_event = False
        self._task: asyncio.Task[Any] | None = None
        """The task that executes this driver. The caller may request each chunk in another task."""
        self._earlier_cancels: int | None = None
        """The number of cancellations of the task before `_wake` cancelled it. None if `_wake` did not cancel it."""

    # Waking

    def _resume(self) -> None:
        """Raise the fatal error of the run, if any. Allow another thread to wake the driver while it waits."""
        if self._task is None:
            self.tree.wake = partial(schedule_on_loop, asyncio.get_running_loop(), self._wake)
        elif self.tree.fatal_error is not None:
            raise self.tree.fatal_error
        self._task = asyncio.current_task()

    def _wake(self) -> None:
        """Cancel the task in which the driver waits, so that the driver raises the fatal error.

        If the driver does not wait, because it has yielded a chunk, `_resume` raises the error when the caller requests
        the next chunk.
        """
        if self._task is not None and not (self.has_yielded or self.schedule.is_over):
            self._earlier_cancels = self._task.cancelling()
            self._task.cancel()

    def _run_error(self, caught: BaseException) -> BaseException:
        """Return the fatal error of the run if `_wake` cancelled the task, or else return the caught error."""
        task, self._task = self._task, None
        if self._earlier_cancels is None or task is None:
            return caught
        is_ours = task.uncancel() <= self._earlier_cancels
        if is_ours and isinstance(caught, asyncio.CancelledError) and self.tree.fatal_error is not None:
            return self.tree.fatal_error
        return caught

    # Asks in tasks

    def _is_concurrent(self, ask: Ask, *, is_alone: bool) -> bool:
        return not is_alone or isinstance(ask, AskTool)

    def _start(self, running: RunningAsk) -> None:
        running.canceller = asyncio.ensure_future(self._perform_concurrently(running))

    async def _report_chunk(self, chunk: StreamChunk) -> None:
        self._queue.put_nowait(chunk)
        await self._queue.join()  # Wait until the caller has received the chunk.

    async def _next_event(self) -> RunningAsk | StreamChunk:
        if self._is_handling_event:
            self._queue.task_done()
        self._is_handling_event = False
        event: RunningAsk | StreamChunk = await self._queue.get()
        self._is_handling_event = True
        return event

    # Performing an ask

    async def _complete(self, ask: AskModel) -> ModelResponse:
        return await complete_async(ask.model, ask.request)

    async def _open_stream(self, model: StreamingModel, request: ModelRequest) -> AsyncGenerator[Delta]:
        stream: Any = model.astream(request)  # An async generator, or an async iterator without `aclose`.
        try:
            async for delta in stream:
                yield delta
        finally:
            if hasattr(stream, "aclose"):
                await stream.aclose()

    async def _call_tool(self, ask: AskTool) -> FinishedCall:
        return await acall_tool(ask)

    async def _commit(self) -> None:
        pending = self.tree.commit(waits=False)
        if pending is not None:
            loop, is_stored = asyncio.get_running_loop(), asyncio.Event()
            pending.add_done_callback(lambda _: schedule_on_loop(loop, is_stored.set))
            await is_stored.wait()
            self.tree.check_commit(pending)

    async def _stop(self) -> None:
        self.schedule.start_ending()
        tasks: list[Any] = [running.canceller for running in self.schedule.running.values()]
        await asyncio.gather(*tasks, return_exceptions=True)


# Tools


async def acall_tool(ask: AskTool) -> FinishedCall:
    """Call a tool within its time limit, and return its result.

    If the tool raises an exception or exceeds its time limit, return an error result.
    """
    started, call, function = time.monotonic(), ask.call, ask.tool.function
    limit = asyncio.timeout(None if ask.seconds == math.inf else ask.seconds)
    try:
        async with limit:
            called = function if is_async(function) else partial(_call_and_read, function)
            output = await call_async(called, *ask.args, **ask.kwargs)
            if inspect.isasyncgen(output):
                output = await collect_items(output)
    except Exception as caught:
        error = late_error(ask) if limit.expired() else caught
        return error_result(ask, error, time.monotonic() - started)
    return finish_call(ToolResult(call.id, call.name, output, None, time.monotonic() - started))


def late_error(ask: AskTool) -> TimeoutError:
    """Return the error of a tool call that exceeded its time limit."""
    return TimeoutError(f"the tool did not return within its time limit of {ask.seconds:g} s")


def error_result(ask: AskTool, error: Exception, seconds: float) -> FinishedCall:
    """Return the error result of a tool call that raised an exception."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        # Python replaces a StopIteration that leaves a coroutine by a RuntimeError.
        error = error.__cause__
    return failed_call(ask.call.id, ask.call.name, error, seconds)


def _call_and_read(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a sync function and read the iterators that it returns, in the same thread."""
    return read_iterators(function(*args, **kwargs))


async def collect_items(items: AsyncIterable[Any]) -> list[Any]:
    """Return the items of an async generator."""
    return [item async for item in items]
