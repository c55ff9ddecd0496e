"""An event loop on which something must run, wherever it is called from: another loop, or sync code in any thread.

What is async about a source of tools lives on one loop. `open_source` chooses it and runs everything there through
this room.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from acorn._base.interrupts import next_item
from acorn._drive.bridge import private_loop
from acorn.errors import AcornError

Work = Callable[[], Awaitable[Any]]
Outcome = tuple[Any, BaseException | None]

_PATIENCE = 2.0
"""Seconds in which what was broken off may clean up before whoever pressed Ctrl-C is heard."""

_WENT_AWAY = "The source of tools is not open any more: its event loop, or what ran on it, has ended."

# An async tool of a source may call a module in the sync way, and so block the loop that it runs on. What that module
# opens needs the next one.
_level: contextvars.ContextVar[int] = contextvars.ContextVar("acorn_source_level", default=0)


class OwnerLoop:
    """The event loop that a source lives on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, level: int | None = None, *, is_private: bool = False) -> None:
        self.loop = loop
        self.is_private = is_private or level is not None
        self.level = level
        """Of a private loop: which one it is; what runs on it opens sources on the next."""

    @classmethod
    def here(cls) -> OwnerLoop:
        """The caller's loop."""
        return cls(asyncio.get_running_loop())

    @classmethod
    def apart(cls) -> OwnerLoop:
        """A private loop; those of sources count down from -1, beside the ones on which functions are awaited."""
        level = _level.get()
        return cls(private_loop(-1 - level), level)

    @classmethod
    def of_servers(cls) -> OwnerLoop:
        """A private loop on which no code of the user's ever runs, so that nothing blocks it."""
        return cls(private_loop("servers"), is_private=True)

    @property
    def is_here(self) -> bool:
        with suppress(RuntimeError):
            return asyncio.get_running_loop() is self.loop
        return False

    async def hop(self, work: Work) -> Any:
        """Await something on this loop, from any; who is cancelled cancels it."""
        if self.is_here:
            return await work()
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Outcome] = loop.create_future()

        def ended(outcome: Outcome) -> None:
            with suppress(RuntimeError):  # the loop of whoever waited has been closed
                loop.call_soon_threadsafe(_settle, waiting, outcome)

        call = _Call(self, work, ended)
        call.begin()
        try:
            outcome = await waiting
        except BaseException:
            call.cancel()
            raise
        return _unpacked(outcome)

    def wait(self, work: Work) -> Any:
        """Await something on this loop from sync code; who is interrupted cancels it."""
        done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        call = _Call(self, work, done.put)
        try:
            call.begin()
            outcome = next_item(done)
        except BaseException:
            if call.is_begun:
                call.cancel()
                with suppress(queue.Empty):
                    next_item(done, _PATIENCE)
            raise
        return _unpacked(outcome)


class _Call:
    """Something that is awaited on the loop for somebody elsewhere, with the context of whoever asks."""

    __slots__ = ("_ended", "_has_ended", "_home", "_task", "_work", "is_begun")

    def __init__(self, home: OwnerLoop, work: Work, ended: Callable[[Outcome], None]) -> None:
        self._home = home
        self._work = work
        self._ended = ended
        """Is told the outcome as a value, on the loop: futures take some exceptions for their own."""
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False
        self.is_begun = False

    def begin(self) -> None:
        loop = self._home.loop
        if loop.is_closed() or not (self._home.is_private or loop.is_running()):
            raise AcornError(_WENT_AWAY)
        self.is_begun = True
        try:
            loop.call_soon_threadsafe(self._start, context=contextvars.copy_context())
        except RuntimeError as error:  # closed just now
            raise AcornError(_WENT_AWAY) from error

    def cancel(self) -> None:
        with suppress(RuntimeError):  # the loop has been closed, and everything on it with it
            self._home.loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._home.loop.create_task(self._attempt())
        self._task.add_done_callback(self._end)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # Ctrl-C came while it was begun; in the order of the calls it would have been started by now
            self._ended((None, AcornError(_WENT_AWAY)))

    async def _attempt(self) -> None:
        if self._home.level is not None:
            _level.set(self._home.level + 1)
        outcome: Outcome
        try:
            outcome = await self._work(), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # KeyboardInterrupt would take the loop's thread with it
            outcome = None, error
        self._has_ended = True
        self._ended(outcome)  # by this task, for its callbacks come a turn of the loop later

    def _end(self, _: asyncio.Task[None]) -> None:
        # Whoever has cancelled it waits no more; to anybody else it must not look as if the run had been.
        if not self._has_ended:
            self._ended((None, AcornError(_WENT_AWAY)))


def _settle(waiting: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not waiting.done():
        waiting.set_result(outcome)


def _unpacked(outcome: Outcome) -> Any:
    returned, error = outcome
    if error is not None:
        raise error
    return returned
