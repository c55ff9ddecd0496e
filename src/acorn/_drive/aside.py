"""A thread that does one thing after the other for a walk, which can stop waiting for it.

For runs that somebody may want cancelled: what is done in the walk's own thread nobody can take it away from. What it
does when the wait ends is left behind.
"""

from __future__ import annotations

import contextvars
import queue
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from acorn._drive.bridge import start_thread
from acorn._waiting import Ending, ending, next_of

A = TypeVar("A")
T = TypeVar("T")


class WokenError(BaseException):
    """The wait was ended from outside."""


class _Job(NamedTuple):
    context: contextvars.Context
    act: Callable[..., Any]
    given: tuple[Any, ...] = ()


class _Done(NamedTuple):
    value: Any
    error: BaseException | None


class Aside:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] | None = None
        self._news: queue.SimpleQueue[_Done | None] = queue.SimpleQueue()
        self._is_left = False

    def call(self, act: Callable[[A], T], given: A) -> T:
        """What it comes to; `WokenError` where nobody is to wait for it."""
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            start_thread(_work, self._jobs, self._news)
        end, context = Ending(), contextvars.copy_context()
        context.run(ending.set, end)
        self._jobs.put(_Job(context, act, (given,)))
        try:
            done = next_of(self._news)
            if done is None:
                raise WokenError
        except BaseException:
            self._is_left = True
            end.end()
            raise
        if done.error is not None:
            raise done.error
        return done.value  # type: ignore[no-any-return]

    def wake(self) -> None:
        """End the wait, or the next one."""
        self._news.put(None)

    def finish(self, act: Callable[[], object]) -> None:
        """Do it now; or where something was left behind, when that has returned."""
        if self._is_left and self._jobs is not None:
            self._jobs.put(_Job(contextvars.copy_context(), act))
        else:
            act()

    def close(self) -> None:
        if self._jobs is not None:
            self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[_Job | None], news: queue.SimpleQueue[_Done | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            value = job.context.run(job.act, *job.given)
        except BaseException as error:
            news.put(_Done(None, error))
        else:
            news.put(_Done(value, None))
