"""The event loop that owns an object, such as a tool source.

All async methods of a tool source must run on the same event loop. An `OwnerLoop` runs work on that loop for code on
other loops and for sync code in any thread. `sources.py` chooses the loop for each tool source.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from acorn._base.interrupts import next_item
from acorn._drive.bridge import SYNC, Bridge, Outcome, private_loop, schedule_on_loop, unpack
from acorn.errors import AcornError

T = TypeVar("T")

_SECONDS_TO_CLEAN_UP = 2.0
"""The seconds that cancelled work may use to clean up before Ctrl-C is raised."""

_CLOSED = "The tool source is closed, because its event loop or its task has ended. Open the source again."

# An async tool of a source may make a blocking call of another module. The call blocks the loop of the tool, so the
# sources of the other module need another loop, which has the next level.
_level: contextvars.ContextVar[int] = contextvars.ContextVar("acorn_source_level", default=0)


class OwnerLoop:
    """An event loop that owns an object, such as a tool source, with methods to run work on this loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, level: int | None = None, *, is_private: bool = False) -> None:
        self.loop = loop
        self.is_private = is_private or level is not None
        self.level = level
        """The number of a private loop for tool sources. Code on this loop opens tool sources on the next loop."""

    @classmethod
    def here(cls) -> OwnerLoop:
        """Return an `OwnerLoop` for the running event loop."""
        return cls(asyncio.get_running_loop())

    @classmethod
    def for_sources(cls) -> OwnerLoop:
        """Return the private event loop on which sync runs use their tool sources.

        This loop has a negative key, because the private loops for async functions have the keys 0, 1, 2 and so on.
        """
        level = _level.get()
        return cls(private_loop(-1 - level), level)

    @classmethod
    def for_servers(cls) -> OwnerLoop:
        """Return the private event loop for MCP servers.

        User code never runs on this loop, so user code cannot block the servers.
        """
        return cls(private_loop("servers"), is_private=True)

    @property
    def is_here(self) -> bool:
        """Whether the calling code runs on this loop."""
        with suppress(RuntimeError):
            return asyncio.get_running_loop() is self.loop
        return False

    async def perform(self, work: Callable[[], Awaitable[T]], bridge: Bridge) -> T:
        """Run async work on this loop, for a caller in sync or in async code, and return the result."""
        return self.wait(work) if bridge is SYNC else await self.run(work)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run async work on this loop, for a caller on any loop, and return the result.

        If the caller is cancelled, the work is cancelled too.
        """
        if self.is_here:
            return await work()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Outcome[T]] = loop.create_future()

        def resolve(outcome: Outcome[T]) -> None:
            if not waiting.done():
                waiting.set_result(outcome)

        call = _LoopCall(self, work, partial(schedule_on_loop, loop, resolve))
        call.begin()
        try:
            outcome = await waiting
        except BaseException:
            call.cancel()
            raise
        return unpack(outcome)

    def wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run async work on this loop, for a caller in sync code, and return the result.

        Ctrl-C cancels the work.
        """
        done: queue.SimpleQueue[Outcome[T]] = queue.SimpleQueue()
        call = _LoopCall(self, work, done.put)
        try:
            call.begin()
            outcome = next_item(done)
        except BaseException:
            if call.is_begun:
                call.cancel()
                with suppress(queue.Empty):
                    next_item(done, _SECONDS_TO_CLEAN_UP)
            raise
        return unpack(outcome)


class _LoopCall(Generic[T]):
    """Async work that runs on the loop of an `OwnerLoop` for a caller in another thread.

    The work has the context variables of the caller.
    """

    __slots__ = ("_has_ended", "_on_end", "_owner", "_task", "_work", "is_begun")

    def __init__(
        self, owner: OwnerLoop, work: Callable[[], Awaitable[T]], on_end: Callable[[Outcome[T]], None]
    ) -> None:
        self._owner = owner
        self._work = work
        self._on_end = on_end
        """A callback that receives the outcome. The owner loop calls it."""
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False
        self.is_begun = False

    def begin(self) -> None:
        loop = self._owner.loop
        if loop.is_closed() or not (self._owner.is_private or loop.is_running()):
            raise AcornError(_CLOSED)
        self.is_begun = True
        try:
            loop.call_soon_threadsafe(self._start, context=contextvars.copy_context())
        except RuntimeError as error:  # The loop was closed after the check.
            raise AcornError(_CLOSED) from error

    def cancel(self) -> None:
        schedule_on_loop(self._owner.loop, self._cancel)  # If the loop is closed, its tasks have ended.

    def _start(self) -> None:
        self._task = self._owner.loop.create_task(self._attempt())
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # Ctrl-C interrupted `begin`. The loop executes calls in order, so `_start` was never scheduled.
            self._on_end((None, AcornError(_CLOSED)))

    async def _attempt(self) -> None:
        if self._owner.level is not None:
            _level.set(self._owner.level + 1)
        outcome: Outcome[T]
        try:
            outcome = await self._work(), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # A KeyboardInterrupt in a task would end the thread of the loop.
            outcome = None, error
        self._has_ended = True
        self._on_end(outcome)  # A callback of the task would run one loop iteration later.

    def _end(self, _: asyncio.Task[None]) -> None:
        # A caller that cancelled the task no longer waits. For any other caller, a cancelled task means that the
        # source was closed. The caller gets an error, because its run was not cancelled.
        if not self._has_ended:
            self._on_end((None, AcornError(_CLOSED)))
