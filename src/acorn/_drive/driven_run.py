"""One run while it is driven: its clock, its listeners, and the last run that each instance remembers."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from acorn.record import Run, Subscriber

if TYPE_CHECKING:
    import asyncio

    Place = asyncio.Task[object] | threading.Thread
    """The asyncio task or the thread that code runs in."""

LAST = "_acorn_last"
"""The attribute of an instance that holds its last runs."""
_attach_lock = threading.Lock()


class DrivenRun:
    """The state of a run while it is driven, apart from its machine."""

    __slots__ = (
        "clock_start",
        "failed_subscribers",
        "is_closed",
        "is_observed",
        "places",
        "published",
        "subscribers",
    )

    def __init__(self, run: Run, clock_start: float, subscribers: tuple[Subscriber, ...], *, is_stored: bool) -> None:
        self.clock_start = clock_start
        """The reading of the monotonic clock at second 0 of the run."""
        self.places = _current_places()
        """The task and the thread that started the run. A dropped iterator may be closed in another one."""
        self.subscribers = subscribers
        self.is_observed = bool(subscribers) or is_stored
        """Whether a listener or a store must hear of new entries."""
        self.published = len(run.journal.entries)
        """The number of entries that the subscribers have received."""
        self.failed_subscribers: list[Subscriber] = []
        """The subscribers whose failure was logged."""
        self.is_closed = False

    def close(self, run: Run, agent: object) -> None:
        """Complete the record, attach it to its error, and remember it as the last run of the agent."""
        self.is_closed = True
        run.seconds = time.monotonic() - self.clock_start
        if run.error is not None:
            attach_run(run.error, run)
        _remember(run, agent, self.places)


def attach_run(error: BaseException, run: Run) -> None:
    """Set `error.run` to the run that ended with the error.

    An error that ends a whole tree, such as the failure of a store, is also the error of its branches. Those may end
    last, in other threads, and must not replace the record of the root.
    """
    with _attach_lock:
        if run.branch is None or getattr(error, "run", None) is None:
            with suppress(AttributeError, TypeError):  # An exception with `__slots__` cannot hold it.
                error.run = run  # type: ignore[attr-defined]


# The last run of an instance


def last_run(agent: object) -> Run | None:
    """Return the last run of this instance that ended in the calling task, else in the calling thread."""
    last: LastRuns | None = vars(agent).get(LAST)
    return None if last is None else last.find(_current_places())


def remember_stored(run: Run, agent: object) -> None:
    """Remember a stored run that had ended before the call as the last run of the agent."""
    _remember(run, agent, _current_places())


def _remember(run: Run, agent: object, places: tuple[Place, ...]) -> None:
    last: LastRuns | None = vars(agent).get(LAST)
    (last or vars(agent).setdefault(LAST, LastRuns())).remember(places, run)


class LastRuns:
    """The last runs of one instance, by the task and the thread that started them."""

    __slots__ = ("_limit", "_runs")

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Place, Run] = WeakKeyDictionary()
        self._limit = 8
        """The number of entries after which those of finished tasks and threads are removed."""

    def remember(self, places: tuple[Place, ...], run: Run) -> None:
        for place in places:
            self._runs[place] = run
        if len(self._runs) > self._limit:
            self._remove_finished()

    def find(self, places: tuple[Place, ...]) -> Run | None:
        return next((run for run in map(self._runs.get, places) if run is not None), None)

    def _remove_finished(self) -> None:
        """Remove finished tasks and threads. The traceback of a failed run may keep its task alive forever."""
        for reference in self._runs.keyrefs():
            place = reference()
            if place is not None and _is_finished(place):
                self._runs.pop(place, None)
        self._limit = 2 * len(self._runs) + 8


def _current_places() -> tuple[Place, ...]:
    """Return the current task, if there is one, and the current thread."""
    thread = threading.current_thread()
    if "asyncio" in sys.modules:
        with suppress(RuntimeError):
            task = sys.modules["asyncio"].current_task()
            if task is not None:
                return task, thread
    return (thread,)


def _is_finished(place: Place) -> bool:
    return not place.is_alive() if isinstance(place, threading.Thread) else place.done()
