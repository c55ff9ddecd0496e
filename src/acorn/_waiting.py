"""How a thread waits for another one: at a `SimpleQueue`, where Ctrl-C ends the wait and leaves no lock taken."""

from __future__ import annotations

import math
import queue
import threading
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
