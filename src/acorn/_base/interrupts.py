"""How a thread waits for another one: at a `SimpleQueue`, where Ctrl-C ends the wait and leaves no lock taken.

And how the wait of a thread is ended that nobody waits for any more. The drivers begin such threads; what waits on
their behalf far below, for a turn to send a request, hears of the end here.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
_HEARTBEAT = 0.05
"""Seconds: a signal that comes just before a wait is noticed after it, so the main thread never waits for long."""


def next_of(news: queue.SimpleQueue[T], seconds: float = math.inf) -> T:
    """The next thing that another thread puts there; `queue.Empty` when the time is up."""
    is_main = threading.current_thread() is threading.main_thread()
    longest = 0.001 if is_main else math.inf
    until = monotonic() + seconds
    while True:
        left = max(0.0, until - monotonic())
        pause = min(left, longest)
        try:
            return news.get(timeout=None if pause == math.inf else pause)
        except queue.Empty:
            if pause == left:
                raise
        longest = min(2 * longest, _HEARTBEAT)


class AbandonedError(BaseException):
    """Nobody waits any more for what a thread does."""


class Ending:
    """Whether the work of a thread is still wanted."""

    __slots__ = ("_is_here", "_wake")

    def __init__(self) -> None:
        self._is_here = False
        self._wake: Callable[[], object] | None = None

    def end(self) -> None:
        self._is_here = True
        if (wake := self._wake) is not None:
            wake()

    def watch(self, wake: Callable[[], object] | None) -> None:
        """Who is to be woken when the end comes, or has come; None is nobody."""
        self._wake = wake
        if self._is_here and wake is not None:
            wake()


ending: ContextVar[Ending | None] = ContextVar("acorn_ending", default=None)
"""That of the calling thread, where it has one."""
