"""The clock of waits and time limits. A test can replace it, so that the test does not have to wait."""

from __future__ import annotations

import queue
import time as system
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from acorn._base.interrupts import next_item

if TYPE_CHECKING:
    import asyncio

_LONGEST_WAIT = 5.0
"""The maximum seconds of one wait for another thread.

Ctrl-C can interrupt the code of the other thread that ends the wait. The waiting code must therefore check again.
"""


class Clock(Protocol):
    """The functions of the modules `time` and `asyncio` that read a clock or wait."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""
        ...

    def time(self) -> float:
        """Return the seconds since 1970, as a date needs them."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Block the thread for some seconds."""
        ...

    async def asleep(self, seconds: float, /) -> None:
        """Suspend the task for some seconds."""
        ...

    def wait(self, wakeups: queue.SimpleQueue[None], seconds: float) -> None:
        """Block the thread until another thread puts an item into a queue, and remove the item.

        The method returns after `seconds` at the latest. It may return earlier without an item.
        """
        ...

    async def await_event(self, event: asyncio.Event, seconds: float) -> None:
        """Suspend the task until an event is set.

        The method returns after `seconds` at the latest. It may return earlier.
        """
        ...


class SystemClock:
    """The clock of the machine."""

    monotonic = staticmethod(system.monotonic)
    time = staticmethod(system.time)
    sleep = staticmethod(system.sleep)

    async def asleep(self, seconds: float, /) -> None:
        import asyncio  # A program without async calls does not load asyncio.

        await asyncio.sleep(seconds)

    def wait(self, wakeups: queue.SimpleQueue[None], seconds: float) -> None:
        with suppress(queue.Empty):
            next_item(wakeups, min(seconds, _LONGEST_WAIT))

    async def await_event(self, event: asyncio.Event, seconds: float) -> None:
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, _LONGEST_WAIT)):
                await event.wait()


SYSTEM_CLOCK: Clock = SystemClock()
_clock: ContextVar[Clock] = ContextVar("acorn_clock", default=SYSTEM_CLOCK)

current_clock = _clock.get
"""Return the clock of the current context."""


@contextmanager
def use_clock(clock: Clock) -> Generator[None]:
    """Use another clock in the block, and in the threads and tasks that acorn starts in it."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)
