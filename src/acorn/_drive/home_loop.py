"""An event loop on which something must run, wherever it is called from: another loop, or sync code in any thread.

What is async about a source of tools lives on one loop. `open_source` chooses it and runs everything there through
this room.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from acorn._drive.bridge import _private_loop
from acorn._waiting import next_of
from acorn.errors import AcornError

Work = Callable[[], Awaitable[Any]]
Outcome = tuple[Any, BaseException | None]

_PATIENCE = 2.0
"""Seconds in which what was broken off may clean up before whoever pressed Ctrl-C is heard."""

_WENT_AWAY = "The source of tools is not open any more: its event loop, or what ran on it, has ended."

# An async tool of a source may call a module in the sync way, and so block the loop that it runs on. What that module
# opens needs the next one.
_level: contextvars.ContextVar[int] = contextvars.ContextVar("acorn_source_level", default=0)


class Home:
    """The event loop that a source lives on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, level: int | None = None, *, is_private: bool = False) -> None:
        self.loop = loop
        self.is_private = is_private or level is not None
        self.level = level
        """Of a private loop: which one it is; what runs on it opens sources on the next."""

    @classmethod
    def here(cls) -> Home:
        """The caller's loop."""
        return cls(asyncio.get_running_loop())

    @classmethod
    def apart(cls) -> Home:
        """A private loop; those of sources count down from -1, beside the ones on which functions are awaited."""
        level = _level.get()
        return cls(_private_loop(-1 - level), level)

    @classmethod
    def of_servers(cls) -> Home:
        """A private loop on which no code of the user's ever runs, so that nothing blocks it."""
        return cls(_private_loop("servers"), is_private=True)

    @property
    def is_here(self) -> bool:
        with suppress(RuntimeError):
            return asyncio.get_running_loop() is self.loop
        return False

    async def hop(self, work: Work) -> Any:
        """Await something on this loop, from any; who is cancelled cancels it."""
        if self.is_here:
            return await work()
        call = _Call(self, work)
        call.begin()
        return _unpacked(await asyncio.wrap_future(call.outcome))

    def wait(self, work: Work) -> Any:
        """Await something on this loop from sync code; who is interrupted cancels it."""
        call = _Call(self, work)
        done: queue.SimpleQueue[Future[Outcome]] = queue.SimpleQueue()
        call.outcome.add_done_callback(done.put)
        try:
            call.begin()
            outcome = next_of(done).result()
        except BaseException:
            call.outcome.cancel()
            call.is_over.wait(_PATIENCE)
            raise
        return _unpacked(outcome)


class _Call:
    """Something that is awaited on the loop for somebody elsewhere, with the context of whoever asks."""

    def __init__(self, home: Home, work: Work) -> None:
        self.home = home
        self.work = work
        self.outcome: Future[Outcome] = Future()
        """As a value: futures take some exceptions for their own."""
        self.is_over = threading.Event()

    def begin(self) -> None:
        loop = self.home.loop
        if loop.is_closed() or not (self.home.is_private or loop.is_running()):
            self.is_over.set()
            raise AcornError(_WENT_AWAY)
        loop.call_soon_threadsafe(self._start, context=contextvars.copy_context())

    def _start(self) -> None:
        task = self.home.loop.create_task(self._attempt())
        task.add_done_callback(self._end)
        self.outcome.add_done_callback(lambda _: self._soon(task.cancel))

    async def _attempt(self) -> Outcome:
        if self.home.level is not None:
            _level.set(self.home.level + 1)
        try:
            return await self.work(), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # KeyboardInterrupt would take the loop's thread with it
            return None, error

    def _end(self, task: asyncio.Task[Outcome]) -> None:
        self.is_over.set()
        if self.outcome.set_running_or_notify_cancel():
            # Nobody who waits has cancelled it, so it must not look as if the run had been.
            self.outcome.set_result((None, AcornError(_WENT_AWAY)) if task.cancelled() else task.result())

    def _soon(self, act: Callable[[], Any]) -> None:
        with suppress(RuntimeError):  # the loop has been closed, and everything on it with it
            self.home.loop.call_soon_threadsafe(act)


def _unpacked(outcome: Outcome) -> Any:
    returned, error = outcome
    if error is not None:
        raise error
    return returned
