"""A clock for tests of retries and time limits: waiting takes no time."""

from __future__ import annotations

import asyncio
import threading


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
