"""Group commit: one thread of the process writes to a file, and all that waits is one transaction.

The disk is what takes time, so many commits at once cost little more than one. Each stands for itself all the same:
one that is refused leaves the others alone. The thread is there while there is something to write.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from acorn.errors import StoreError
from acorn.stores.forks import closes_at_fork
from acorn.stores.sqlite_connection import SharedConnection, explained, jitter, patiently

T = TypeVar("T")

_IDLE = 2.0
"""Seconds without work after which the thread ends."""
_MOST = 1000
"""Jobs in one transaction."""
_TURN = 0.02
"""Seconds for which a process writes before it looks whether others want to."""


class _Job(NamedTuple):
    act: Callable[[sqlite3.Connection], Any]
    future: Future[Any]


class Writer:
    """What is submitted is written, in this order, whether or not anybody waits for it."""

    def __init__(self, connection: SharedConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_met = False
        self._seen = (0, 0)
        self._ended = 0.0
        self._looked = 0.0
        closes_at_fork(self)

    def submit(self, act: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Do it in a transaction; the future is done when that would survive a crash."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # who stops waiting for it does not stop it
        with self._lock:
            self._queue.put(_Job(act, future))
            is_alone = self._thread is None and not self._start()
        if is_alone:
            self._write_all()
        return future

    def close(self) -> None:
        """Write what waits, and end the thread; another one begins where there is more."""
        with self._lock:
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._work, name="acorn-store", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many
            return False
        self._thread = thread
        return True

    def _work(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=_IDLE)
            except queue.Empty:
                job = None
            if job is None:
                with self._lock:
                    if self._queue.empty():
                        self._thread = None
                        return
                continue
            self._write(self._and_what_waits(job))
            del job  # it may hold what nobody else holds any more

    def _write_all(self) -> None:
        """Here and now, as there is no thread."""
        while not self._queue.empty():
            with suppress(queue.Empty):
                job = self._queue.get_nowait()
                if job is not None:
                    self._write([job])

    def _and_what_waits(self, job: _Job) -> list[_Job]:
        jobs = [job]
        for _ in range(min(self._queue.qsize(), _MOST)):
            more = self._queue.get_nowait()
            if more is None:  # somebody closes it; there may be more behind
                self._queue.put(None)
                break
            jobs.append(more)
        return jobs

    def _write(self, jobs: list[_Job]) -> None:
        self._make_room()
        try:
            with self._connection as connection:
                outcomes = self._transact(connection, jobs)
        except sqlite3.Error as error:
            outcomes = [_Refused(explained(error, self._name), error) for _ in jobs]
        except BaseException as error:
            outcomes = [_Refused(error) for _ in jobs]
        self._ended = time.monotonic()
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, _Refused):
                outcome.error.__cause__ = outcome.cause
                job.future.set_exception(outcome.error)
            else:
                job.future.set_result(outcome)

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[Any]:
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._meet_others)
        try:
            self._look_for_others(connection)
            is_alone = len(jobs) == 1
            outcomes = [job.act(connection) if is_alone else self._apart(connection, job) for job in jobs]
            connection.execute("COMMIT")
        except StoreError as error:  # of the only job
            connection.execute("ROLLBACK")
            return [_Refused(error)]
        except BaseException:
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        return outcomes

    def _apart(self, connection: sqlite3.Connection, job: _Job) -> Any:
        """Do one of several: its failure undoes what it did, and nothing else."""
        connection.execute("SAVEPOINT one")
        try:
            outcome = job.act(connection)
        except Exception as error:
            if not connection.in_transaction:  # a full disk and the like undo everything
                raise
            connection.execute("ROLLBACK TO one")
            told = explained(error, self._name) if isinstance(error, sqlite3.Error) else error
            outcome = _Refused(told, error if told is not error else error.__cause__)
        connection.execute("RELEASE one")
        return outcome

    # A process that writes without pause would leave others no gap: where there are others, it makes one.

    def _make_room(self) -> None:
        if self._has_met:
            self._has_met = False
            time.sleep(max(0.0, self._ended + jitter() - time.monotonic()))

    def _meet_others(self) -> None:
        self._has_met = True

    def _look_for_others(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() < self._looked + _TURN:
            return
        self._looked = time.monotonic()
        (version,) = connection.execute("PRAGMA data_version").fetchone()  # changes with what others write
        if self._seen[0] == id(connection) and self._seen[1] != version:
            self._has_met = True
        self._seen = (id(connection), version)

    # What waits when the process forks is the parent's to write.

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._queue = queue.SimpleQueue()
            self._thread = None
        self._lock.release()


class _Refused(NamedTuple):
    error: BaseException
    cause: BaseException | None = None
