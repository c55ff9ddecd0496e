"""Waiting that Ctrl-C can interrupt, SIGTERM as Ctrl-C, cancellation of work in OS threads, and `StopSignal`.

An OS thread waits for another OS thread with a `SimpleQueue`. With any other way of waiting, Ctrl-C can leave a lock
acquired.
"""

from __future__ import annotations

import math
import queue
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Literal, TypeVar

T = TypeVar("T")
_LONGEST_WAIT = 0.05
"""The maximum seconds of one wait in the main thread.

Python reports a signal that arrives just before a wait only after the wait."""

SignalReason = Literal["paused", "parent_ended", "handed_back", "abandoned"]
"""The reason of a `StopSignal`, which documents the four values."""
_MESSAGES: dict[SignalReason, str] = {
    "paused": "a branch waits for human input",
    "parent_ended": "the parent run has ended",
    "handed_back": "the run was handed back and continues in another process",
    "abandoned": "no thread waits for this work any more",
}


class StopSignal(BaseException):
    """An exception that stops user code when the code must not continue, although nothing has failed.

    The signal passes through the user's tools and hooks. It derives from `BaseException`, like `KeyboardInterrupt` and
    `CancelledError`, so that `except Exception` in user code does not catch it. The attribute `reason` has four values:

    - `paused`: A branch that the code started waits for human input. The code runs again when the run is resumed.
    - `parent_ended`: The run of the code has ended.
    - `handed_back`: The process stops driving the run, and another process continues the run.
    - `abandoned`: The caller of the thread has stopped waiting, so the thread must not send its request.
    """

    def __init__(self, reason: SignalReason) -> None:
        super().__init__(reason)
        self.reason: SignalReason = reason

    def __str__(self) -> str:
        return _MESSAGES[self.reason]


def is_signal(error: BaseException | None, reason: SignalReason) -> bool:
    """Return True if the error is a `StopSignal` with this reason."""
    return isinstance(error, StopSignal) and error.reason == reason


def next_item(items: queue.SimpleQueue[T], seconds: float = math.inf) -> T:
    """Wait for the next item from another OS thread and return it. Ctrl-C can interrupt the wait.

    The function raises `queue.Empty` if no item arrives within `seconds`.
    """
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


@contextmanager
def interrupt_on_sigterm() -> Generator[list[int]]:
    """Raise `KeyboardInterrupt` inside the `with` block if the process receives SIGTERM, the signal of `kill`.

    The signal then has the same effect as Ctrl-C. The yielded list contains the received signals.
    """
    received: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, previous)


class CancelToken:
    """A flag for work in an OS thread. It is set when the caller no longer waits for the result of the work."""

    __slots__ = ("_callback", "_is_cancelled")

    def __init__(self) -> None:
        self._is_cancelled = False
        self._callback: Callable[[], object] | None = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if (callback := self._callback) is not None:
            callback()

    def on_cancel(self, callback: Callable[[], object] | None) -> None:
        """Set the function to call when the token is cancelled. Pass None to remove the function.

        If the token is already cancelled, the method calls the function immediately.
        """
        self._callback = callback
        if self._is_cancelled and callback is not None:
            callback()


cancel_token: ContextVar[CancelToken | None] = ContextVar("acorn_cancel_token", default=None)
"""The cancel token of the current thread, or None."""
