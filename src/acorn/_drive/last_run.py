"""The two ends of a record: begun and announced, ended and remembered."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from acorn.record import Run, announce

LAST = "_acorn_last"
"""Where an instance keeps its last runs."""
_hanging = threading.Lock()
Whereabouts = tuple[Any, ...]
"""What a run belongs to, the nearest first: the task, and the thread."""


def open_record(run: Run) -> tuple[float, Whereabouts]:
    """Note the beginning; the reading of the clock from which the run's seconds count, and where it began."""
    run.started = run.started or datetime.now(UTC)
    announce(run)
    return time.monotonic() - run.seconds, _whereabouts()


def close_record(run: Run, agent: object, began: float, where: Whereabouts) -> None:
    """Note the end, hang the record on the error, and remember it for the thread and task that made the call.

    An iterator that is dropped may be closed in another one.
    """
    run.seconds = time.monotonic() - began
    if run.error is not None:
        hang_on(run.error, run)
    _remember(run, agent, where)


def hang_on(error: BaseException, run: Run) -> None:
    """Hang a record on the error that its run has ended with.

    What ends a whole tree, such as a store that failed, is also the error of branches, which may end last in threads
    of their own; the record of all is not replaced by theirs.
    """
    with _hanging:
        if run.branch is None or getattr(error, "run", None) is None:
            with suppress(AttributeError, TypeError):  # an exception with slots has no room for it
                error.run = run  # type: ignore[attr-defined]


def return_stored(run: Run, agent: object) -> None:
    """A run that had ended before is the last one here."""
    _remember(run, agent, _whereabouts())


def _remember(run: Run, agent: object, where: Whereabouts) -> None:
    last: LastRuns | None = vars(agent).get(LAST)
    (last or vars(agent).setdefault(LAST, LastRuns())).remember(where, run)


def last_run(agent: object) -> Run | None:
    """The last run of this instance that ended in the calling task, else in the calling thread."""
    last: LastRuns | None = vars(agent).get(LAST)
    return None if last is None else last.find(_whereabouts())


class LastRuns:
    """The last runs of one instance, each for the task and the thread that it began in."""

    __slots__ = ("_enough", "_runs")

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Any, Run] = WeakKeyDictionary()
        self._enough = 8
        """How many are kept before those are dropped whose task or thread is over."""

    def remember(self, where: Whereabouts, run: Run) -> None:
        for each in where:
            self._runs[each] = run
        if len(self._runs) > self._enough:
            self._drop_ended()

    def find(self, where: Whereabouts) -> Run | None:
        return next((run for run in map(self._runs.get, where) if run is not None), None)

    def _drop_ended(self) -> None:
        """A task that failed may hang on the trace of its run's error, and would never be let go by itself."""
        for reference in self._runs.keyrefs():
            if _is_over(each := reference()):
                self._runs.pop(each, None)
        self._enough = 2 * len(self._runs) + 8


def _whereabouts() -> Whereabouts:
    """The task that this is, if any, and the thread."""
    thread = threading.current_thread()
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        with suppress(RuntimeError):
            task = asyncio.current_task()
            if task is not None:
                return task, thread
    return (thread,)


def _is_over(where: Any) -> bool:
    """Whether a task or thread has ended, so that nobody can ask from inside of it any more."""
    return bool(not where.is_alive() if isinstance(where, threading.Thread) else where is not None and where.done())
