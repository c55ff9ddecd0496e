"""The clock of waits and time limits. A test can replace it, so that the test does not have to wait."""

from __future__ import annotations

import time as system
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


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


class SystemClock:
    """The clock of the machine."""

    monotonic = staticmethod(system.monotonic)
    time = staticmethod(system.time)
    sleep = staticmethod(system.sleep)

    async def asleep(self, seconds: float, /) -> None:
        from asyncio import sleep  # A program without async calls does not load asyncio.

        await sleep(seconds)


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
