"""The core of both drivers: it performs the operations of a run in the right order and passes their results on.

An ask is an operation that a run requests, such as a model request or a tool call. The core consists of async functions
that call the methods of a subclass for everything that waits. `AsyncDriver` awaits on the caller's event loop. The
methods of `SyncDriver` block instead, so that `run_inline` can execute the same functions without an event loop.
"""

from __future__ import annotations

import asyncio
import queue
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, assert_never, cast

from acorn._drive.bridge import Bridge, WorkerThread
from acorn._drive.schedule import RunningAsk, Schedule
from acorn._drive.sources import OpenSources, sources_of
from acorn._drive.tree import Tree
from acorn._history.transcript import FinishedCall
from acorn._machine.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk, Streamer
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, ModelResponse, StreamingModel, can_stream, check_response, wrong_value
from acorn.models.request import ModelRequest
from acorn.record import CallSite
from acorn.types import ToolResult

T = TypeVar("T")


class Driver(ABC):
    """A driver that performs the operations of one run, and of the branches that its model calls."""

    bridge: Bridge
    worker: WorkerThread | None = None
    """The thread of a sync driver for model requests and tool calls, if another process may cancel the run."""

    _events: queue.SimpleQueue[Any] | asyncio.Queue[Any]
    """The outcomes and chunks from other threads or tasks."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        self.tree = tree
        self.root = run_id
        self.iterates = iterates
        """Whether the caller iterates over the stream chunks."""
        self.schedule = Schedule(tree, run_id, [run_id], {run_id: None})
        self.can_be_woken = tree.committer is not None and run_id == tree.root
        """Whether another process may cancel the run, so that `tree.wake` must end the wait of this driver."""
        self.has_yielded = False
        """Whether the caller is processing a chunk, so that the driver does not wait."""
        self._sources: dict[str, OpenSources] = {}
        """A dict that maps run ids to the tool sources that the run has opened."""

    async def chunks(self) -> AsyncGenerator[StreamChunk]:
        """Perform the operations of the run until it ends or pauses, and yield its stream chunks.

        Closing the iterator earlier ends the run. A stored run that has already finished has no more operations.
        """
        if self.tree.machines[self.root].run.stop_reason is not None:
            self.tree.remember(self.root)
            return
        try:
            if self.can_be_woken:
                self._resume()
            async with aclosing(self._steps()) as chunks:
                async for chunk in chunks:
                    self.has_yielded = True
                    yield chunk
                    self.has_yielded = False
                    if self.can_be_woken:
                        self._resume()
        except GeneratorExit as closing:
            # The event loop may be closing too, so complete the run record before the first `await`.
            self.schedule.stop_runs(closing)
            await self._stop()
            raise
        except BaseException as caught:
            error = self._run_error(caught)
            try:
                await self._stop()
            finally:  # This must happen even if Ctrl-C is pressed again, or if the task is cancelled again.
                self.schedule.stop_runs(error)
            if error is not caught:
                raise error from None
            raise
        finally:
            try:
                await self._close()
            finally:
                if self.worker is not None:
                    self.worker.close()
                if self.tree.committer is not None or self.tree.trace is not None:
                    await self._finish()

    async def _steps(self) -> AsyncGenerator[StreamChunk]:
        schedule = self.schedule
        self.tree.open(self.root)
        while True:
            if not schedule.ended and self._perform_alone():
                return
            ready = [] if schedule.ended else schedule.collect_asks()
            if schedule.ended:
                chunk = await self._end_branch(*schedule.ended.pop(0))
                if chunk is not None:
                    yield chunk
                continue
            is_alone = len(ready) == 1 and not schedule.running
            started: list[RunningAsk] = []
            for machine, ask in ready:
                if machine.is_over:  # The branch failed with another ask of this list.
                    continue
                running = RunningAsk(machine.run.id, ask)
                self.tree.begin(*running.key)
                if self._is_concurrent(ask, is_alone=is_alone):
                    started.append(running)
                    continue
                await self._commit()
                try:
                    async with aclosing(self._perform(running)) as chunks:
                        async for chunk in chunks:
                            yield chunk
                except BaseException as error:
                    running.error = error
                chunk = await self._tell(running)
                if chunk is not None:
                    yield chunk
            if started or schedule.running:  # A finished result must not wait for the asks that continue.
                await self._commit()
            for running in started:
                schedule.running[running.key] = running
                self._start(running)
            if schedule.running:
                async with aclosing(self._handle_events()) as chunks:
                    async for chunk in chunks:
                        yield chunk
            elif not ready and schedule.finish_or_pause():
                return

    async def _handle_events(self) -> AsyncGenerator[StreamChunk]:
        """Wait for an event, and handle all events that have arrived by then, so that a single commit stores them."""
        while True:
            event = await self._next_event()
            if isinstance(event, StreamChunk):
                yield event
            elif self.schedule.running.get(event.key) is event:  # A failed branch drops its asks.
                chunk = await self._tell(event)
                if chunk is not None:
                    yield chunk
            if self.iterates or self._events.empty():
                return

    async def _tell(self, running: RunningAsk) -> StreamChunk | None:
        """Pass the result or the error of an ask to its run, and return a tool result as a stream chunk.

        Return None if the ask was not a tool call, if it failed, or if the run is not streamed.
        """
        if running.error is not None:
            self.schedule.running.pop(running.key, None)
            self.schedule.on_failure(*running.key, running.error)
            return None
        self.schedule.tell(*running.key, running.value)
        self.schedule.running.pop(running.key, None)
        if isinstance(running.ask, AskTool):
            return await self._show_result(self.tree.machines[running.run_id], running.ask.id, running.value.result)
        return None

    # Performing an ask

    async def _perform(self, running: RunningAsk) -> AsyncGenerator[StreamChunk]:
        """Perform an ask (a requested operation), yield its stream chunks, and store its result in `running`."""
        machine, ask = self.tree.machines[running.run_id], running.ask
        if not isinstance(ask, AskModel) or ask.is_summary or not self._streams(machine):
            running.value = await self._result_of(running.run_id, ask)
            return
        streamer = Streamer(machine.spec.output)
        is_shown = machine.plan.on_stream is not None or bool(machine.path)
        async with aclosing(self._deltas(running.run_id, ask)) as deltas:
            async for delta in deltas:
                for chunk in streamer.add(delta):
                    if is_shown:
                        await self._show(machine, ask.id, chunk)
                    yield chunk
        running.value, last = streamer.end()
        await self._show(machine, ask.id, last)
        yield last

    async def _result_of(self, run_id: str, ask: Ask) -> Any:
        """Perform an ask (a requested operation) without streaming, and return its result."""
        tree = self.tree
        # `match` is twice as slow, and every ask uses this code.
        if isinstance(ask, AskModel):
            try:
                with tree.span(run_id, ask.id):
                    return await self._complete(ask)
            except ModelError as error:
                tree.raise_if_late(run_id, error)
                raise
        elif isinstance(ask, AskTool):
            with CallSite(tree, run_id, ask.id):
                return await self._call_tool(ask)
        elif isinstance(ask, AskHook):
            try:
                with CallSite(tree, run_id, ask.id):
                    return await self.bridge.call(ask.function, *ask.arguments)
            except ask.forgives as error:
                return error
        elif isinstance(ask, AskSource):
            sources = self._sources.setdefault(run_id, OpenSources(sources_of(tree.machines[run_id].plan.agent)))
            with CallSite(tree, run_id, ask.id):
                return await sources.open(ask.source, self.bridge)
        elif isinstance(ask, AskBranch):
            raise AssertionError("The schedule starts branches. A driver cannot perform `AskBranch`.")
        else:
            assert_never(ask)

    async def _deltas(self, run_id: str, ask: AskModel) -> AsyncGenerator[Delta]:
        """Yield the deltas of a model response, which arrive at once if the model cannot stream."""
        tree = self.tree
        try:
            if not can_stream(ask.model):
                with tree.span(run_id, ask.id):
                    response = await self._complete(ask)
                for delta in as_deltas(check_response(response, ask.model)):
                    yield delta
                return
            is_timed = ask.request.timeout is not None
            async with aclosing(self._open_stream(ask.model, ask.request)) as stream:
                # The span is not current while the caller processes a delta, so that spans of the caller do not become
                # its children.
                with tree.span(run_id, ask.id):
                    next_delta = await anext(stream, None)
                if next_delta is not None and tree.trace is not None:
                    tree.trace.record_first_chunk(run_id)
                while next_delta is not None:
                    if type(next_delta) is not Delta or not isinstance(next_delta.content, str):
                        raise wrong_value(ask.model, "stream `Delta` objects whose `content` is text", next_delta)
                    # A complete response may still end after the deadline.
                    is_timed = is_timed and next_delta.stop_reason is None
                    if is_timed:
                        tree.raise_if_late(run_id, None)
                    yield next_delta
                    next_delta = await anext(stream, None)
        except ModelError as error:
            tree.raise_if_late(run_id, error)
            raise

    def _streams(self, machine: Machine) -> bool:
        return self.iterates or machine.plan.on_stream is not None

    async def _show(self, machine: Machine, ask_id: str, chunk: StreamChunk) -> None:
        """Add the path of the branch to a chunk, and call the agent's hook `on_stream`, if it has one, with the chunk.

        A sync `on_stream` is not called in a new thread, so that the chunks stay in order.
        """
        if machine.path:
            chunk.branch, chunk.run_id = machine.path, machine.run.id
        listener = machine.plan.on_stream
        if listener is not None:
            with CallSite(self.tree, machine.run.id, ask_id):
                await self.bridge.complete(listener(chunk))

    async def _show_result(self, machine: Machine, ask_id: str, result: ToolResult) -> StreamChunk | None:
        if self._streams(machine):
            chunk = StreamChunk(tool_result=replace(result))
            try:
                await self._show(machine, ask_id, chunk)
                return chunk
            except BaseException as error:
                self.schedule.fail(machine.run.id, error)
        return None

    # Performing several asks concurrently

    async def _perform_concurrently(self, running: RunningAsk) -> None:
        """Perform an ask in its own thread or task, and report its chunks and its result to the driver.

        An exception is stored in `running` and not raised, because a KeyboardInterrupt in a task would stop the event
        loop. The function stops early if the driver or the run has ended.
        """
        machine = self.tree.machines[running.run_id]
        is_over = self.schedule.is_over or machine.is_over
        try:
            async with aclosing(self._perform(running)) as chunks:
                while not is_over and (chunk := await anext(chunks, None)) is not None:
                    if self.iterates:
                        await self._report_chunk(chunk)
                    is_over = self.schedule.is_over or machine.is_over
        except BaseException as error:
            running.error = error
        if not is_over or running.error is not None:
            self._report(running)

    def _report(self, running: RunningAsk) -> None:
        """Pass the outcome of an ask from another thread or task to the driver."""
        running.has_ended = True
        self._events.put_nowait(running)

    # The end

    async def _end_branch(self, run_id: str, error: Exception | None) -> StreamChunk | None:
        result = self.schedule.end_branch(run_id, await self._close_sources(run_id) or error)
        return None if result is None else await self._show_result(*result)

    async def _close_sources(self, run_id: str) -> Exception | None:
        """Close the tool sources that a run has opened.

        Return the error if the run fails because a tool source could not be closed. Return None otherwise.
        """
        sources = self._sources.pop(run_id, None)
        run = self.tree.machines[run_id].run
        first = run.error
        if sources is not None:
            with CallSite(self.tree, run_id, "close"):
                await sources.close(self.bridge, partial(self.schedule.on_close_error, run_id))
        return run.error if run.error is not first and isinstance(run.error, Exception) else None

    async def _close(self) -> None:
        """Close the tool sources of all runs that this driver drives, and complete the run records."""
        for run_id in reversed(self.schedule.active):
            error = await self._close_sources(run_id) if run_id in self._sources else None
            self.tree.close(run_id)
            if error is not None and run_id == self.root:
                raise error

    async def _finish(self) -> None:
        """Commit the end of the run, release this process's claim on the run in the store, and end its trace."""
        tree = self.tree
        try:
            await self._commit()
        except Exception as error:
            self.schedule.fail_last_commit(error)
        finally:
            if tree.committer is not None and self.root == tree.root:
                tree.committer.end(tree.fatal_error)
            if tree.trace is not None:
                tree.trace.close(self.root)

    # The methods of a sync or async driver

    def _resume(self) -> None:
        """Do what a driver that can be woken needs before it starts, and when the caller requests the next chunk."""
        return

    def _run_error(self, caught: BaseException) -> BaseException:
        """Return the error with which the run ends, for an exception that ended the driver."""
        return caught

    def _perform_alone(self) -> bool:
        """Perform the asks of a run that requests one at a time, if a driver has a faster way to do this.

        Return True if the run has ended.
        """
        return False

    @abstractmethod
    def _is_concurrent(self, ask: Ask, *, is_alone: bool) -> bool:
        """Return True if an ask needs its own thread or task. `is_alone` is True if no other ask is in progress."""

    @abstractmethod
    def _start(self, running: RunningAsk) -> None:
        """Start a thread or a task for an ask."""

    @abstractmethod
    async def _report_chunk(self, chunk: StreamChunk) -> None:
        """Pass a chunk from another thread or task to the driver."""

    @abstractmethod
    async def _next_event(self) -> RunningAsk | StreamChunk:
        """Wait until another thread or task reports a chunk or an outcome, and return it."""

    @abstractmethod
    async def _complete(self, ask: AskModel) -> ModelResponse:
        """Send a model request, and return the response."""

    @abstractmethod
    def _open_stream(self, model: StreamingModel, request: ModelRequest) -> AsyncGenerator[Delta]:
        """Send a model request, and yield the deltas of the response."""

    @abstractmethod
    async def _call_tool(self, ask: AskTool) -> FinishedCall:
        """Call a tool, and return its result, which is an error result if the tool raises an exception."""

    @abstractmethod
    async def _commit(self) -> None:
        """Commit all changes of the run and its branches, and wait until the store has saved them."""

    @abstractmethod
    async def _stop(self) -> None:
        """Cancel the operations in progress."""


# Executing the core in sync code


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """Execute a coroutine that never suspends in the calling thread, without an event loop, and return its result."""
    hooks = sys.get_asyncgen_hooks()
    if hooks.firstiter is not None:  # An event loop of the caller would close the async generators when it ends.
        sys.set_asyncgen_hooks(None, None)
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    finally:
        if hooks.firstiter is not None:
            sys.set_asyncgen_hooks(*hooks)
    raise AssertionError("A coroutine was suspended, although no event loop executes it.")


def iterate_inline(items: AsyncGenerator[T]) -> Generator[T]:
    """Yield the items of an async generator that never suspends, without an event loop."""
    end: Any = object()
    try:
        while (item := run_inline(_next_item(items, end))) is not end:
            yield item
    finally:
        run_inline(items.aclose())


async def _next_item(items: AsyncGenerator[T], end: T) -> T:
    return await anext(items, end)  # The first call must be inside `run_inline`, because it reads the hooks.
