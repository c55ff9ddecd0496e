"""A clock for tests of retries and time limits: waiting takes no time."""

from __future__ import annotations

import asyncio
import math
import queue
import threading

from acorn._base.clock import SYSTEM_CLOCK


class FakeClock:
    """A clock that advances only when code waits or when the test says so."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        """The seconds of each wait, in order."""
        self._now = 1_000.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return 1_700_000_000.0 + self._now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)
        await asyncio.sleep(0)

    def wait(self, wakeups: queue.SimpleQueue[None], seconds: float) -> None:
        if seconds == math.inf:  # The code waits for another thread, not for a time.
            SYSTEM_CLOCK.wait(wakeups, seconds)
        else:
            try:
                wakeups.get_nowait()
            except queue.Empty:
                self.sleep(seconds)

    async def await_event(self, event: asyncio.Event, seconds: float) -> None:
        if seconds == math.inf:
            await SYSTEM_CLOCK.await_event(event, seconds)
        else:
            await asyncio.sleep(0)
            if not event.is_set():
                self.sleep(seconds)
