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
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from types import AsyncGeneratorType
from typing import Any, assert_never

from acorn._drive.bridge import NOT_AWAITABLE, call_async, is_async
from acorn._drive.pause import AskKey
from acorn._drive.schedule import Schedule, SourceCloseErrors, raise_original
from acorn._drive.sources import OpenSources
from acorn._drive.streaming import StreamedResponse, ashow_chunk
from acorn._drive.tree import Tree
from acorn._formats.json import describe_error
from acorn._machine.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk
from acorn.errors import ModelError
from acorn.record import CallSite
from acorn.types import ToolResult


async def adrive(tree: Tree, run_id: str) -> None:
    """Perform the model requests, tool calls and hooks of a run on the event loop until the run ends or pauses.

    If the task that awaits this function is cancelled, all operations in progress are cancelled too.
    """
    try:
        async with aclosing(adrive_stream(tree, run_id, iterates=False)) as chunks:
            async for _ in chunks:
                pass
    except RuntimeError as error:
        raise_original(error, tree.machines[run_id], StopAsyncIteration)
        raise


async def adrive_stream(tree: Tree, run_id: str, *, iterates: bool = True) -> AsyncGenerator[StreamChunk]:
    """Perform the model requests, tool calls and hooks of a run on the event loop, and yield its stream chunks.

    The iterator ends when the run ends or pauses. Closing the iterator earlier ends the run. `iterates` is False if the
    caller ignores the chunks.
    """
    driver = AsyncDriver(tree, run_id, iterates=iterates)
    can_be_woken = tree.committer is not None and run_id == tree.root
    try:
        async with aclosing(driver.steps()) as chunks:
            if can_be_woken:
                driver.allow_waking(chunks)
            async for chunk in chunks:
                yield chunk
                if can_be_woken:
                    driver.check_woken()
    except GeneratorExit as error:
        # The event loop may be closing too, so complete the run record before the first `await`.
        driver.schedule.stop_runs(error, driver.pending_outcomes())
        await driver.stop()
        raise
    except BaseException as caught:
        run_error = driver.translate_wake(caught)
        try:
            await driver.stop()
        finally:  # This must happen even if the task is cancelled again.
            driver.schedule.stop_runs(run_error, driver.pending_outcomes())
        if run_error is not caught:
            raise run_error from None
        raise
    finally:
        try:
            await driver.close()
        finally:
            await driver.finish()


class _Outcome:
    """The result or the error of one ask (an operation that a run requests).

    `_perform` is an async generator, which cannot return a value. Therefore it stores the result here after the last
    chunk.
    """

    __slots__ = ("error", "key", "value")

    def __init__(self, key: AskKey) -> None:
        self.key = key
        self.value: Any = None
        self.error: BaseException | None = None


class _RunningTask:
    """An ask (an operation that a run requests) and the asyncio task that performs it."""

    __slots__ = ("ask", "task")

    def __init__(self, ask: Ask, task: asyncio.Task[None]) -> None:
        self.ask, self.task = ask, task

    def cancel(self) -> None:
        self.task.cancel()


class AsyncDriver:
    """A driver that performs the operations of one run, and of the branches that its model calls, on the event loop."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        self.tree = tree
        self.root = run_id
        self.iterates = iterates
        """Whether the caller iterates over the stream chunks."""
        self.schedule: Schedule[_RunningTask] = Schedule(tree, run_id, [run_id], {run_id: None})
        self._events: asyncio.Queue[_Outcome | StreamChunk] = asyncio.Queue()
        self._sources: dict[str, OpenSources] = {}
        """A dict that maps run ids to the tool sources that the run has opened."""
        self._steps: AsyncGenerator[StreamChunk] | None = None
        self._task: asyncio.Task[Any] | None = None
        """The task that executes this driver, if another process may cancel the run."""
        self._earlier_cancels: int | None = None
        """The number of cancellations of the task before `_wake` cancelled it. None if `_wake` did not cancel it."""

    # Waking

    def allow_waking(self, steps: AsyncGenerator[StreamChunk]) -> None:
        """Set the callback `tree.wake`, with which another thread can interrupt this driver while it waits."""
        self._steps, self._task = steps, asyncio.current_task()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # The loop may be closed.
                loop.call_soon_threadsafe(self._wake)

        self.tree.wake = wake

    def check_woken(self) -> None:
        """Raise the fatal error of the run, if any, when the caller requests the next chunk.

        Also store the current task for `_wake`, because the caller may request each chunk in another task.
        """
        self._task = asyncio.current_task()
        if self.tree.fatal_error is not None:
            raise self.tree.fatal_error

    def _wake(self) -> None:
        """Cancel the task in which the driver waits, so that the driver raises the fatal error.

        If the driver does not wait, because it has yielded a chunk, `check_woken` raises the error when the caller
        requests the next chunk.
        """
        is_waiting = isinstance(self._steps, AsyncGeneratorType) and self._steps.ag_running
        if is_waiting and self._task is not None and not self.schedule.is_over:
            self._earlier_cancels = self._task.cancelling()
            self._task.cancel()

    def translate_wake(self, caught: BaseException) -> BaseException:
        """Return the fatal error of the run if `_wake` cancelled the task, or else return the caught error."""
        self._steps = None
        if self._earlier_cancels is None or self._task is None:
            return caught
        is_ours = self._task.uncancel() <= self._earlier_cancels
        if is_ours and isinstance(caught, asyncio.CancelledError) and self.tree.fatal_error is not None:
            return self.tree.fatal_error
        return caught

    # Steps

    async def steps(self) -> AsyncGenerator[StreamChunk]:
        """Perform the operations of the run until it ends or pauses, and yield its stream chunks."""
        schedule = self.schedule
        self.tree.open(self.root)
        while True:
            ready = [] if schedule.ended else schedule.collect_asks()
            if schedule.ended:
                chunk = await self._end_branch(*schedule.ended.pop(0))
                if chunk is not None:
                    yield chunk
            elif len(ready) == 1 and not schedule.running and not isinstance(ready[0][1], AskTool):
                machine, ask = ready[0]
                outcome = _Outcome((machine.run.id, ask.id))
                self.tree.begin(*outcome.key)
                await self._commit()
                try:
                    async with aclosing(self._perform(machine, ask, outcome)) as chunks:
                        async for chunk in chunks:
                            yield chunk
                except BaseException as error:
                    schedule.on_failure(machine.run.id, ask.id, error)
                else:
                    chunk = await self._tell(ask, outcome)
                    if chunk is not None:
                        yield chunk
            elif ready or schedule.running:
                for machine, ask in ready:
                    self.tree.begin(machine.run.id, ask.id)
                await self._commit()
                for machine, ask in ready:
                    key = (machine.run.id, ask.id)
                    task = asyncio.ensure_future(self._perform_in_task(machine, ask, _Outcome(key)))
                    schedule.running[key] = _RunningTask(ask, task)
                event = await self._events.get()
                # Handle all events that have arrived by now, so that one commit stores them.
                for left in range(0 if self.iterates else self._events.qsize(), -1, -1):
                    if isinstance(event, StreamChunk):
                        yield event
                    self._events.task_done()
                    if isinstance(event, _Outcome) and event.key in schedule.running:  # A failed branch drops its asks.
                        chunk = await self._tell(schedule.running.pop(event.key).ask, event)
                        if chunk is not None:
                            yield chunk
                    if left:
                        event = self._events.get_nowait()
            elif schedule.finish_or_pause():
                return

    async def _tell(self, ask: Ask, outcome: _Outcome) -> StreamChunk | None:
        """Pass the result or the error of an ask to its run, and return a tool result as a stream chunk.

        Return None if the ask was not a tool call, if it failed, or if the run is not streamed.
        """
        run_id = outcome.key[0]
        if outcome.error is not None:
            self.schedule.on_failure(*outcome.key, outcome.error)
            return None
        self.schedule.tell(*outcome.key, outcome.value)
        return await self._show_result(self.tree.machines[run_id], ask, outcome.value)

    async def _show_result(self, machine: Machine, ask: Ask, result: ToolResult) -> StreamChunk | None:
        if isinstance(ask, AskTool | AskBranch) and self._streams(machine):
            try:
                return await ashow_chunk(self.tree, machine, ask.id, StreamChunk(tool_result=replace(result)))
            except BaseException as error:
                self.schedule.fail(machine.run.id, error)
        return None

    def _streams(self, machine: Machine) -> bool:
        return self.iterates or machine.plan.on_stream is not None

    async def _perform_in_task(self, machine: Machine, ask: Ask, outcome: _Outcome) -> None:
        """Perform an ask in its own task, and put its chunks and its result into the event queue.

        An exception is stored in `outcome` and not raised, because a KeyboardInterrupt in a task would stop the event
        loop.
        """
        try:
            async with aclosing(self._perform(machine, ask, outcome)) as chunks:
                async for chunk in chunks:
                    if self.iterates:
                        self._events.put_nowait(chunk)
                        await self._events.join()  # Wait until the caller has received the chunk.
        except BaseException as error:
            outcome.error = error
        self._events.put_nowait(outcome)

    async def _perform(self, machine: Machine, ask: Ask, outcome: _Outcome) -> AsyncGenerator[StreamChunk]:
        """Perform an ask (a requested operation), yield its stream chunks, and store its result in `outcome`."""
        site = CallSite(self.tree, *outcome.key)
        match ask:
            case AskModel():
                if not ask.is_summary and self._streams(machine):
                    streamed = StreamedResponse(self.tree, machine, ask)
                    async with aclosing(streamed.chunks()) as chunks:
                        async for chunk in chunks:
                            yield chunk
                    outcome.value = streamed.response
                    return
                try:
                    with self.tree.span(*outcome.key):
                        outcome.value = await ask.model.acomplete(ask.request)
                except ModelError as error:
                    self.tree.raise_if_late(machine.run.id, error)
                    raise
            case AskTool():
                with site:
                    outcome.value = await acall_tool(ask)
            case AskHook():
                try:
                    with site:
                        outcome.value = await call_async(ask.function, *ask.arguments)
                except ask.forgives as error:
                    outcome.value = error
            case AskSource():
                sources = self._sources.setdefault(machine.run.id, OpenSources(machine.plan.agent))
                with site:
                    outcome.value = await sources.aopen(ask.source)
            case AskBranch():
                raise AssertionError("The schedule starts branches. A driver cannot perform `AskBranch`.")
            case _:
                assert_never(ask)

    # Storing

    async def _commit(self) -> None:
        """Commit all changes of the run and its branches, and wait until the store has saved them."""
        pending = self.tree.commit()
        if pending is not None:
            loop, is_stored = asyncio.get_running_loop(), asyncio.Event()

            def wake(_: object) -> None:
                with suppress(RuntimeError):  # The loop may be closed.
                    loop.call_soon_threadsafe(is_stored.set)

            pending.add_done_callback(wake)
            await is_stored.wait()
            try:
                pending.result()
            except Exception as error:
                self.tree.fail_commit(error)

    # The end

    async def stop(self) -> None:
        """Cancel the tasks that perform operations of the run, and wait until these tasks have ended."""
        self.schedule.start_ending()
        tasks = [running.task for running in self.schedule.running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def pending_outcomes(self) -> Iterator[tuple[AskKey, object]]:
        """Yield the results of operations that have finished, but that the state machines have not received yet.

        Each result comes with its key: the id of the run and the id of the ask.
        """
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, _Outcome) and event.error is None and event.key in self.schedule.running:
                yield event.key, event.value

    async def _end_branch(self, run_id: str, error: Exception | None) -> StreamChunk | None:
        result = self.schedule.end_branch(run_id, await self._close_sources(run_id) or error)
        return None if result is None else await self._show_result(*result)

    async def _close_sources(self, run_id: str) -> Exception | None:
        """Close the tool sources that a run has opened.

        Return the error if the run fails because a tool source could not be closed. Return None otherwise.
        """
        sources = self._sources.pop(run_id, None)
        if sources is None:
            return None
        errors = SourceCloseErrors(self.tree, run_id)
        with CallSite(self.tree, run_id, "close"):
            await sources.aclose(errors)
        return errors.error

    async def close(self) -> None:
        """Close the tool sources of all runs that this driver drives, and complete the run records."""
        for run_id in reversed(self.schedule.active):
            error = await self._close_sources(run_id)
            self.tree.close(run_id)
            if error is not None and run_id == self.root:
                raise error

    async def finish(self) -> None:
        """Commit the end of the run, and release this process's claim on the run in the store."""
        try:
            await self._commit()
        except Exception as error:
            self.schedule.fail_last_commit(error)
        finally:
            self.schedule.release()


# Tools


async def acall_tool(ask: AskTool) -> ToolResult:
    """Call a tool within its time limit, and return its result.

    If the tool raises an exception or exceeds its time limit, return an error result.
    """
    started, call, function = time.monotonic(), ask.call, ask.tool.function
    limit = asyncio.timeout(None if ask.seconds == math.inf else ask.seconds)
    try:
        async with limit:
            if is_async(function):
                output = await call_async(function, *ask.args, **ask.kwargs)
            else:
                output = await call_async(_call_and_collect, function, *ask.args, **ask.kwargs)
    except Exception as error:
        if limit.expired():
            return timeout_result(ask, time.monotonic() - started)
        return error_result(ask, error, time.monotonic() - started)
    return ToolResult(call.id, call.name, output, None, time.monotonic() - started)


def timeout_result(ask: AskTool, seconds: float) -> ToolResult:
    """Return the error result of a tool call that exceeded its time limit."""
    error = f"TimeoutError: it took longer than {ask.seconds:g} s"
    return ToolResult(ask.call.id, ask.call.name, error=error, seconds=seconds)


def error_result(ask: AskTool, error: Exception, seconds: float) -> ToolResult:
    """Return the error result of a tool call that raised an exception."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        # Python replaces a StopIteration that leaves a coroutine by a RuntimeError.
        return error_result(ask, error.__cause__, seconds)
    return ToolResult(ask.call.id, ask.call.name, error=describe_error(error), seconds=seconds)


def _call_and_collect(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return collect_items(function(*args, **kwargs))


def collect_items(returned: Any) -> Any:
    """Return the items of a generator as a list, and any other value unchanged.

    For an async generator, return a coroutine that collects the items. The generator runs inside the tool call, so that
    its exceptions count as exceptions of the tool.
    """
    if type(returned) in NOT_AWAITABLE:
        return returned
    if inspect.isasyncgen(returned):
        return _collect_async(returned)
    return list(returned) if inspect.isgenerator(returned) else returned


async def _collect_async(items: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in items]
