"""Waiting that Ctrl-C can end, cancelling work in threads, and the one signal that ends user code.

A thread waits for another one at a `SimpleQueue`, because Ctrl-C during any other wait can leave a lock taken.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from typing import Literal, TypeVar

T = TypeVar("T")
_LONGEST_WAIT = 0.05
"""Seconds that the main thread waits at most: Python reports a signal that arrives just before a wait only after it."""

SignalReason = Literal["paused", "parent_ended", "handed_back", "abandoned"]
_MESSAGES: dict[SignalReason, str] = {
    "paused": "a branch waits for human input",
    "parent_ended": "the parent run has ended",
    "handed_back": "the run was handed back and continues in another process",
    "abandoned": "no thread waits for this work any more",
}


class StopSignal(BaseException):
    """Ends code that must not continue, although nothing failed.

    The signal passes through tools and hooks of the user. It derives from `BaseException`, as `KeyboardInterrupt` and
    `CancelledError` do, so that `except Exception` in that code does not swallow it. Its `reason` says what happened:

    - `paused`: a branch that the code started waits for human input. The code runs again when the run is resumed.
    - `parent_ended`: the run that the code belongs to has ended.
    - `handed_back`: the process stops driving the run, which continues in another process.
    - `abandoned`: the thread works for a caller that stopped waiting, so it must not send its request.
    """

    def __init__(self, reason: SignalReason) -> None:
        super().__init__(reason)
        self.reason: SignalReason = reason

    def __str__(self) -> str:
        return _MESSAGES[self.reason]


def is_signal(error: BaseException | None, reason: SignalReason) -> bool:
    """Return whether the error is a `StopSignal` with this reason."""
    return isinstance(error, StopSignal) and error.reason == reason


def next_item(items: queue.SimpleQueue[T], seconds: float = math.inf) -> T:
    """Wait for the next item of another thread. Raise `queue.Empty` when the time is up."""
    is_main = threading.current_thread() is threading.main_thread()
    longest = 0.001 if is_main else math.inf
    deadline = monotonic() + seconds
    while True:
        left = max(0.0, deadline - monotonic())
        wait = min(left, longest)
        try:
            return items.get(timeout=None if wait == math.inf else wait)
        except queue.Empty:
            if wait == left:
                raise
        longest = min(2 * longest, _LONGEST_WAIT)


class CancelToken:
    """Tells the work of a thread that its caller has stopped waiting."""

    __slots__ = ("_callback", "_is_cancelled")

    def __init__(self) -> None:
        self._is_cancelled = False
        self._callback: Callable[[], object] | None = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if (callback := self._callback) is not None:
            callback()

    def on_cancel(self, callback: Callable[[], object] | None) -> None:
        """Set the callback, and call it at once if the token is cancelled already. None removes it."""
        self._callback = callback
        if self._is_cancelled and callback is not None:
            callback()


cancel_token: ContextVar[CancelToken | None] = ContextVar("acorn_cancel_token", default=None)
"""The token of the current thread, if it has one."""
