"""The start and the end of a record, and the last run of each instance (`agent.last`)."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from acorn.record import Run, announce

if TYPE_CHECKING:
    import asyncio

RunScope = tuple["asyncio.Task[object] | threading.Thread", ...]
"""The task, if any, and the thread that called a run."""
_attaching = threading.Lock()
_creating = threading.Lock()


class RunOwner(Protocol):
    """An instance of a module class, as far as it remembers its last runs."""

    __acorn_last_runs__: LastRuns | None


def start_record(run: Run) -> tuple[float, RunScope]:
    """Record the start of a run. Return the clock time that its seconds count from, and the scope of the call."""
    run.started = run.started or datetime.now(UTC)
    announce(run)
    return time.monotonic() - run.seconds, _current_scope()


def finish_record(run: Run, agent: RunOwner, began: float, scope: RunScope) -> None:
    """Record the end of a run, attach the record to its error, and remember the run in the scope of the call.

    The scope is that of the start: a dropped iterator may be closed in another thread.
    """
    run.seconds = time.monotonic() - began
    if run.error is not None:
        attach_record(run.error, run)
    _remember(run, agent, scope)


def attach_record(error: BaseException, run: Run) -> None:
    """Set `error.run` to the record of the run that ended with this error.

    An error that ends a whole tree, such as a failed store, is also the error of the branches. They may end last, in
    their own threads, and must not replace the record of the main run.
    """
    with _attaching:
        if run.branch is None or getattr(error, "run", None) is None:
            with suppress(AttributeError, TypeError):  # An exception class with slots has no place for it.
                error.run = run  # type: ignore[attr-defined]


def remember_stored(run: Run, agent: RunOwner) -> None:
    """Make a run that had already finished in its store the last run of the calling task or thread."""
    _remember(run, agent, _current_scope())


def _remember(run: Run, agent: RunOwner, scope: RunScope) -> None:
    last_runs = agent.__acorn_last_runs__
    if last_runs is None:
        with _creating:
            last_runs = agent.__acorn_last_runs__ or LastRuns()
            agent.__acorn_last_runs__ = last_runs
    last_runs.remember(scope, run)


def last_run(agent: RunOwner) -> Run | None:
    """Return the last run of an instance that ended in the calling task, or else in the calling thread."""
    last_runs = agent.__acorn_last_runs__
    return None if last_runs is None else last_runs.find(_current_scope())


class LastRuns:
    """The last runs of one instance, by the task and the thread that called them."""

    __slots__ = ("_cleanup_size", "_runs")

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[asyncio.Task[object] | threading.Thread, Run] = WeakKeyDictionary()
        self._cleanup_size = 8
        """The number of entries above which those of ended tasks and threads are dropped."""

    def remember(self, scope: RunScope, run: Run) -> None:
        for task_or_thread in scope:
            self._runs[task_or_thread] = run
        if len(self._runs) > self._cleanup_size:
            self._drop_ended()

    def find(self, scope: RunScope) -> Run | None:
        return next((run for run in map(self._runs.get, scope) if run is not None), None)

    def _drop_ended(self) -> None:
        """Drop the entries of ended tasks and threads.

        The traceback of a run's error may refer to the task that failed, so a weak reference alone never frees it.
        """
        for reference in self._runs.keyrefs():
            task_or_thread = reference()
            if task_or_thread is not None and _has_ended(task_or_thread):
                self._runs.pop(task_or_thread, None)
        self._cleanup_size = 2 * len(self._runs) + 8


def _current_scope() -> RunScope:
    thread = threading.current_thread()
    asyncio = sys.modules.get("asyncio")  # A program without async code does not load it.
    if asyncio is not None:
        with suppress(RuntimeError):
            task = asyncio.current_task()
            if task is not None:
                return task, thread
    return (thread,)


def _has_ended(task_or_thread: asyncio.Task[object] | threading.Thread) -> bool:
    if isinstance(task_or_thread, threading.Thread):
        return not task_or_thread.is_alive()
    return task_or_thread.done()
