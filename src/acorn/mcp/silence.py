"""How long a server may say nothing in a call: one timer for all calls of a connection, for most of them end soon.

A call that waits too long is cancelled, and `is_ours` tells that from a run that was cancelled, whichever came first.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

Call = asyncio.Task[Any]


class _Wait:
    __slots__ = ("is_late", "questions", "until")

    def __init__(self) -> None:
        self.until = math.inf
        self.questions = 0
        self.is_late = False


class Silence:
    """The calls under way in one connection, and until when each of them waits."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waits: dict[Call, _Wait] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call: Call) -> None:
        self._waits[call] = _Wait()
        self._wait(call, self.seconds)

    def end(self, call: Call) -> None:
        del self._waits[call]

    def heard(self, call: Call) -> None:
        """The server has said something, and has all the time again."""
        if (wait := self._waits.get(call)) is not None and not wait.questions:
            self._wait(call, self.seconds)

    @contextmanager
    def asking(self, call: Call) -> Generator[None]:
        """A person is asked meanwhile, which takes none of the server's time."""
        wait = self._waits[call]
        left = wait.until - self._loop.time()
        wait.questions += 1
        wait.until = math.inf
        try:
            yield
        finally:
            wait.questions -= 1
            if not wait.questions and call in self._waits:
                self._wait(call, min(left, self.seconds))

    def is_ours(self, call: Call) -> bool:
        """Whether a call that was cancelled was cancelled here, and by nobody else."""
        return self._waits[call].is_late and call.uncancel() == 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, call: Call, seconds: float) -> None:
        until = self._waits[call].until = self._loop.time() + seconds
        if self._timer is None or until < self._timer.when():
            self._look_at(until)

    def _look_at(self, until: float) -> None:
        self.close()
        self._timer = self._loop.call_at(until, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for call, wait in self._waits.items():
            if wait.until <= now:
                wait.is_late, wait.until = True, math.inf
                call.cancel()
        nearest = min((wait.until for wait in self._waits.values()), default=math.inf)
        if nearest != math.inf:
            self._look_at(nearest)
