"""The asynchronous driver: the same walk on the caller's event loop.

One thing alone is awaited in place; several at once are tasks, and so is every tool: one that takes no notice
of its cancellation does not save the run from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, assert_never

from acorn._drive.bridge import call_async
from acorn._drive.perform import aattempt
from acorn._drive.sources import OpenSources
from acorn._drive.sync_driver import raise_own
from acorn._drive.tree import Tree, raise_if_late
from acorn._drive.walk import CloseFailure, Key, Walk
from acorn._machine.asks import Ask, AskBranch, AskHook, AskModel, AskSource, AskTool
from acorn._machine.machine import Machine
from acorn.chunk import StreamChunk, Streamer
from acorn.errors import ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import Delta, can_stream
from acorn.record import CallSite


async def adrive(tree: Tree, run_id: str) -> None:
    """Walk a run to its end; cancelling it cancels what is under way."""
    try:
        async with aclosing(awalk(tree, run_id, iterates=False)) as chunks:
            async for _ in chunks:
                pass
    except RuntimeError as error:
        raise_own(error, tree.loops[run_id], StopAsyncIteration)
        raise


async def awalk(tree: Tree, run_id: str, *, iterates: bool) -> AsyncGenerator[StreamChunk]:
    """Walk a run to its end, giving each chunk on the way; closing the iterator ends the run."""
    the_walk = AsyncWalk(tree, run_id, iterates=iterates)
    can_be_woken = tree.keeper is not None and run_id == tree.root
    try:
        async with aclosing(the_walk.steps()) as chunks:
            if can_be_woken:
                the_walk.let_be_woken(chunks)
            async for chunk in chunks:
                yield chunk
                if can_be_woken:
                    the_walk.go_on()
    except (
        GeneratorExit
    ) as error:  # the event loop may be ending too, so nothing is waited for before the record is done
        the_walk.end(error, the_walk.returned())
        await the_walk.stop()
        raise
    except BaseException as caught:
        meant = the_walk.meant(caught)
        try:
            await the_walk.stop()
        finally:  # though it was cancelled once more
            the_walk.end(meant, the_walk.returned())
        if meant is not caught:
            raise meant from None
        raise
    finally:
        try:
            await the_walk.close()
        finally:
            await the_walk.keep_end()


class _Outcome:
    """What came of an ask: filled in when its last chunk is out, since an async generator returns nothing."""

    __slots__ = ("error", "key", "value")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.value: Any = None
        self.error: BaseException | None = None


class _RunningTask:
    __slots__ = ("ask", "task")

    def __init__(self, ask: Ask, task: asyncio.Task[None]) -> None:
        self.ask, self.task = ask, task

    def end(self) -> None:
        self.task.cancel()


class _Traced:
    """A stream of which the first piece is waited for inside of its request, and no span is left current after it."""

    __slots__ = ("_deltas", "_has_begun", "_key", "_tree")

    def __init__(self, tree: Tree, key: Key, stream: AsyncIterable[Delta]) -> None:
        self._tree, self._key, self._deltas = tree, key, aiter(stream)
        self._has_begun = False

    def __aiter__(self) -> _Traced:
        return self

    async def __anext__(self) -> Delta:
        if self._has_begun:
            return await anext(self._deltas)
        self._has_begun = True
        with self._tree.inside(*self._key):
            first = await anext(self._deltas)
        self._tree.first_chunk(*self._key)
        return first


class AsyncWalk(Walk):
    """A walk on the caller's event loop."""

    def __init__(self, tree: Tree, run_id: str, *, iterates: bool) -> None:
        super().__init__(tree, run_id, iterates=iterates)
        self._news: asyncio.Queue[_Outcome | StreamChunk] = asyncio.Queue()
        self._sources: dict[str, OpenSources] = {}
        self._steps: Any = None
        self._task: asyncio.Task[Any] | None = None
        """Who walks, where somebody may want the run cancelled."""
        self._cancelled_before: int | None = None
        """How often that task was cancelled by others, when it was cancelled to wake it."""

    # Waking

    def let_be_woken(self, steps: Any) -> None:
        self._steps, self._task = steps, asyncio.current_task()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake)

        self.tree.wake = wake

    def go_on(self) -> None:
        """Whoever iterates wants to see more; it may be another task by now."""
        self._task = asyncio.current_task()
        if self.tree.lost is not None:
            raise self.tree.lost

    def _wake(self) -> None:
        """End whatever the walk awaits; a walk that waits for who iterates notices when it goes on."""
        if self._steps is not None and self._steps.ag_running and self._task is not None and not self.is_over:
            self._cancelled_before = self._task.cancelling()
            self._task.cancel()

    def meant(self, caught: BaseException) -> BaseException:
        """What the walk ends with: to be cancelled in order to be woken is no cancellation."""
        self._steps = None
        if self._cancelled_before is None or self._task is None:
            return caught
        is_ours = self._task.uncancel() <= self._cancelled_before
        is_woken = is_ours and isinstance(caught, asyncio.CancelledError) and self.tree.lost is not None
        return self.tree.lost if is_woken and self.tree.lost is not None else caught

    async def steps(self) -> AsyncGenerator[StreamChunk]:
        self.tree.open(self.root)
        while True:
            ready = [] if self.ended else self.ready()
            if self.ended:
                shown = await self._end_branch(*self.ended.pop(0))
                if shown is not None:
                    yield shown
            elif len(ready) == 1 and not self.busy and not isinstance(ready[0][1], AskTool):
                loop, ask = ready[0]
                outcome = _Outcome((loop.run.id, ask.id))
                self.tree.begin(*outcome.key)
                await self._keep()
                try:
                    async with aclosing(self._perform(loop, ask, outcome)) as chunks:
                        async for chunk in chunks:
                            yield chunk
                except BaseException as error:
                    self.miss(loop.run.id, ask.id, error)
                else:
                    shown = await self._take(ask, outcome)
                    if shown is not None:
                        yield shown
            elif ready or self.busy:
                for loop, ask in ready:
                    self.tree.begin(loop.run.id, ask.id)
                await self._keep()
                for loop, ask in ready:
                    key = (loop.run.id, ask.id)
                    self.busy[key] = _RunningTask(ask, asyncio.ensure_future(self._work(loop, ask, _Outcome(key))))
                news = await self._news.get()
                # What has come by then is taken in with it, to be kept in one go.
                for left in range(0 if self.iterates else self._news.qsize(), -1, -1):
                    if isinstance(news, StreamChunk):
                        yield news
                    self._news.task_done()
                    if isinstance(news, _Outcome) and news.key in self.busy:  # otherwise its branch has failed
                        shown = await self._take(self.busy.pop(news.key).ask, news)
                        if shown is not None:
                            yield shown
                    if left:
                        news = self._news.get_nowait()
            elif self.has_come_to_rest():
                return

    async def _take(self, ask: Ask, outcome: _Outcome) -> StreamChunk | None:
        """Tell an outcome; a tool's is shown when it is safe in the machine."""
        run_id = outcome.key[0]
        if outcome.error is not None:
            self.miss(*outcome.key, outcome.error)
            return None
        self.take(*outcome.key, outcome.value)
        return await self._show_result(self.tree.loops[run_id], ask, outcome.value)

    async def _show_result(self, loop: Machine, ask: Ask, result: Any) -> StreamChunk | None:
        if isinstance(ask, AskTool | AskBranch) and self.streams(loop):
            try:
                return await self._show(loop, ask.id, StreamChunk(tool_result=replace(result)))
            except BaseException as error:
                self.fail(loop.run.id, error)
        return None

    async def _work(self, loop: Machine, ask: Ask, outcome: _Outcome) -> None:
        """In a task of its own. What it ends with is told, not raised: Ctrl-C in a task would stop the event loop."""
        try:
            async with aclosing(self._perform(loop, ask, outcome)) as chunks:
                async for chunk in chunks:
                    if self.iterates:
                        self._news.put_nowait(chunk)
                        await self._news.join()  # no further than whoever iterates wants to see
        except BaseException as error:
            outcome.error = error
        self._news.put_nowait(outcome)

    async def _perform(self, loop: Machine, ask: Ask, outcome: _Outcome) -> AsyncGenerator[StreamChunk]:
        place = CallSite(self.tree, *outcome.key)
        match ask:
            case AskModel():
                if not ask.is_summary and self.streams(loop):
                    async with aclosing(self._stream(loop, ask, outcome)) as chunks:
                        async for chunk in chunks:
                            yield chunk
                    return
                try:
                    with self.tree.inside(*outcome.key):
                        outcome.value = await ask.model.acomplete(ask.request)
                except ModelError as error:
                    raise_if_late(loop, error, self.tree.now(loop.run.id))
                    raise
            case AskTool():
                with place:
                    outcome.value = await aattempt(ask)
            case AskHook():
                try:
                    with place:
                        outcome.value = await call_async(ask.function, *ask.arguments)
                except ask.forgives as error:
                    outcome.value = error
            case AskSource():
                opened = self._sources.setdefault(loop.run.id, OpenSources(loop.plan.agent))
                with place:
                    outcome.value = await opened.aopen(ask.source)
            case AskBranch():
                raise AssertionError("a branch is walked, not performed")
            case _:
                assert_never(ask)

    async def _stream(self, loop: Machine, ask: AskModel, outcome: _Outcome) -> AsyncGenerator[StreamChunk]:
        streamer = Streamer(loop.spec.output)
        async with aclosing(self._deltas(loop, ask)) as deltas:
            async for delta in deltas:
                for chunk in streamer.add(delta):
                    yield await self._show(loop, ask.id, chunk)
        outcome.value, last = streamer.end()
        yield await self._show(loop, ask.id, last)

    async def _deltas(self, loop: Machine, ask: AskModel) -> AsyncGenerator[Delta]:
        try:
            if not can_stream(ask.model):
                with self.tree.inside(loop.run.id, ask.id):
                    response = await ask.model.acomplete(ask.request)
                for delta in as_deltas(response):
                    yield delta
                return
            stream: Any = ask.model.astream(ask.request)
            is_timed = ask.request.timeout is not None
            try:
                async for delta in (
                    stream if self.tree.trace is None else _Traced(self.tree, (loop.run.id, ask.id), stream)
                ):
                    if is_timed:  # an answer that is whole may come to its end
                        is_timed = delta.stop_reason is None
                        if is_timed:
                            raise_if_late(loop, None, self.tree.now(loop.run.id))
                    yield delta
            finally:
                if hasattr(stream, "aclose"):
                    await stream.aclose()
        except ModelError as error:
            raise_if_late(loop, error, self.tree.now(loop.run.id))
            raise

    async def _show(self, loop: Machine, ask_id: str, chunk: StreamChunk) -> StreamChunk:
        """The chunk, when the listener has seen it; in place and in order, so a sync one is simply called."""
        self.marked(loop, chunk)
        listener = loop.plan.on_stream
        if listener is not None:
            with CallSite(self.tree, loop.run.id, ask_id):
                returned = listener(chunk)
                if hasattr(returned, "__await__"):
                    await returned
        return chunk

    # What is kept

    async def _keep(self) -> None:
        """Wait until what has happened is safe."""
        future = self.tree.keep()
        if future is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(future))
            except Exception as error:
                failure = self.tree.not_kept(error)
                raise failure from failure.__cause__

    async def keep_end(self) -> None:
        """The same when the walk is over; what cannot be kept now fails a run that was well."""
        try:
            await self._keep()
        except Exception as error:
            self.not_kept(error)
        finally:
            self.let_go()

    # Sources and ends

    async def stop(self) -> None:
        """Cancel what is under way, and wait for it."""
        self.begin_end()
        tasks = [busy.task for busy in self.busy.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def returned(self) -> Iterator[tuple[Key, Any]]:
        """What has come and was not taken in yet."""
        while not self._news.empty():
            news = self._news.get_nowait()
            if isinstance(news, _Outcome) and news.error is None and news.key in self.busy:
                yield news.key, news.value

    async def _end_branch(self, run_id: str, error: Exception | None) -> StreamChunk | None:
        shown = self.end_branch(run_id, await self._close_sources(run_id) or error)
        return None if shown is None else await self._show_result(*shown)

    async def _close_sources(self, run_id: str) -> Exception | None:
        opened = self._sources.pop(run_id, None)
        if opened is None:
            return None
        failed = CloseFailure(self.tree, run_id)
        with CallSite(self.tree, run_id, "close"):
            await opened.aclose(failed)
        return failed.error

    async def close(self) -> None:
        """The walk is over, one way or the other."""
        for run_id in reversed(self.active):
            error = await self._close_sources(run_id)
            self.tree.close(run_id)
            if error is not None and run_id == self.root:
                raise error
