"""The last run of each instance: `agent.last`."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from acorn.record import Run

if TYPE_CHECKING:
    import asyncio

    Place = asyncio.Task[object] | threading.Thread
    """The asyncio task or the thread that code runs in."""

_create_lock = threading.Lock()


class RunOwner(Protocol):
    """An instance of a module class, as far as it remembers its last runs."""

    __acorn_last_runs__: LastRuns | None


def last_run(agent: RunOwner) -> Run | None:
    """Return the last run of an instance that ended in the calling task, else in the calling thread."""
    last_runs = agent.__acorn_last_runs__
    return None if last_runs is None else last_runs.find(current_places())


def remember_run(run: Run, agent: RunOwner, places: tuple[Place, ...]) -> None:
    """Make a run the last run of an instance in a task and a thread."""
    last_runs = agent.__acorn_last_runs__
    if last_runs is None:
        with _create_lock:
            last_runs = agent.__acorn_last_runs__ or LastRuns()
            object.__setattr__(agent, "__acorn_last_runs__", last_runs)  # A frozen dataclass refuses assignment.
    last_runs.remember(places, run)


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


def current_places() -> tuple[Place, ...]:
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
