"""Group commit: pending writes of all threads share one database connection and one transaction.

Most of the time of a transaction is spent waiting for the disk, so a transaction with many commits costs little more
than a transaction with one commit. The commits stay independent: if the database rejects one commit, it still stores
the other commits. A caller that waits for its commit writes all pending commits in its own thread, because a thread
switch would cost more than the commit. If another thread already writes, the caller waits until that thread has
written the commit or lets the caller write next. For callers that must not block, such as event loops, a thread of the
store waits.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from acorn._base.forks import close_at_fork
from acorn._base.log import logger
from acorn.errors import StoreError
from acorn.stores.port import Commit
from acorn.stores.statements import Transaction

_IDLE = 2.0
"""Seconds without jobs after which the writer thread ends."""
_MAX_JOBS = 1000
"""The maximum number of jobs in one transaction."""
_MAX_WAIT = 1.0
"""The maximum seconds for which a caller relies on the thread that writes, which Ctrl-C may have interrupted."""


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
T = TypeVar("T")


class SharedConnection(Generic[C]):
    """A database connection that many threads share.

    The connection opens at its first use. It is closed before the process forks, because a forked child must not use
    the connection of its parent.
    """

    def __init__(self, open_connection: Callable[[], C]) -> None:
        self._open = open_connection
        self._lock = threading.Lock()
        self._connection: C | None = None
        close_at_fork(self)

    def use(self, operation: Callable[[], T]) -> T:
        """Call a function while no other thread uses the connection, and return its result.

        The function gets the connection from `connect`. After an error other than `StoreError`, the connection is
        closed, and the next use opens a new connection. The `with` block contains only one call, because otherwise
        Ctrl-C could leave the lock locked.
        """
        with self._lock:
            return self._call(operation)

    def _call(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except StoreError:
            raise
        except BaseException:
            self.drop()
            raise

    def connect(self) -> C:
        """Return the connection, and open it if it is closed.

        Call this method only inside `use`.
        """
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def close(self) -> None:
        """Close the connection when no thread uses it."""
        with self._lock:
            self.drop()

    def drop(self) -> None:
        """Close the connection, so that the next call of `connect` opens a new connection.

        Call this method only inside `use`.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self.drop()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()


class CommitResult(NamedTuple):
    """The result of a commit job: its return value, or the error that it raised."""

    value: Any = None
    error: Exception | None = None
    is_undone: bool = False
    """Whether the writes of the job were undone because of the error."""


class KeepWrites(Exception):  # noqa: N818
    """A signal that a job has failed with an error, but that its writes must be stored."""

    def __init__(self, error: StoreError) -> None:
        super().__init__(error)
        self.error = error


class CommitJob(Generic[T]):
    """A function that writes to the database inside a transaction, and later its result."""

    __slots__ = ("_writer", "operation", "outcome", "simple_commit", "wakeups")

    def __init__(
        self, writer: GroupCommitWriter[Any], operation: Callable[[Transaction], T], simple_commit: Commit | None
    ) -> None:
        self._writer, self.operation, self.simple_commit = writer, operation, simple_commit
        self.outcome: CommitResult | None = None
        """Set when the written data would survive a crash, or when the job has failed."""
        self.wakeups: queue.SimpleQueue[None] | None = None
        """Receives an item when the job is written or can be written. It exists only while a caller waits."""

    def execute(self, transaction: Transaction) -> CommitResult:
        """Call the function and return its result. Any error except `KeepWrites` is raised."""
        try:
            return CommitResult(self.operation(transaction))
        except KeepWrites as failed:
            return CommitResult(error=failed.error)

    def result(self) -> T:
        """Wait until the job is written, and return its result. If no other thread writes, write the pending jobs."""
        if self.outcome is None:
            self._writer.write(self)
        assert self.outcome is not None
        if self.outcome.error is not None:
            raise self.outcome.error
        value: T = self.outcome.value
        return value

    def add_done_callback(self, call: Callable[[CommitJob[T]], object]) -> None:
        """Call a function in the writer thread when the job is written or has failed."""
        self._writer.write_in_thread(self, call)


def _wait(wakeups: queue.SimpleQueue[None]) -> bool:
    """Wait for a wakeup. Return False if it does not arrive."""
    with suppress(queue.Empty):
        wakeups.get(timeout=_MAX_WAIT)
        return True
    return False


def _copy_error(error: Exception) -> Exception:
    """Return a copy of a database error, so that each failed job raises its own error object.

    One error can fail several jobs, and each run attaches its own record to its error.
    """
    if not isinstance(error, StoreError):
        return error
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied


class GroupCommitWriter(ABC, Generic[C]):
    """A queue of commit jobs that are written in order, many jobs in one transaction.

    A job that no caller waits for is written together with a later job, or when the writer is closed.
    """

    def __init__(self, connection: SharedConnection[C], name: str) -> None:
        self._connection = connection
        self._name = name
        self._not_before = 0.0
        """The earliest time of the next transaction, on the monotonic clock."""
        self._reset()
        close_at_fork(self)

    def _reset(self) -> None:
        self._is_writing = False
        self._lock = threading.Lock()
        self._pending: deque[CommitJob[Any]] = deque()
        """Jobs without an outcome. Only the thread that uses the connection removes jobs."""
        self._awaited: queue.SimpleQueue[tuple[CommitJob[Any], Callable[[Any], object]]] = queue.SimpleQueue()
        """Jobs for which the writer thread waits, each with the function that it then calls."""
        self._thread: threading.Thread | None = None

    # Implemented for each database

    @abstractmethod
    def _transact(self, jobs: list[CommitJob[Any]]) -> None:
        """Execute jobs in one transaction and set the `outcome` of each job.

        If this method raises an exception, each job without an `outcome` fails with this exception.
        """

    @abstractmethod
    def _explain(self, error: Exception) -> Exception:
        """Return a `StoreError` that explains a database error and says what to do.

        Return any other error unchanged.
        """

    # Shared by all databases

    def submit(self, operation: Callable[[Transaction], T], simple_commit: Commit | None = None) -> CommitJob[T]:
        """Add a job that calls a function in a transaction with other jobs.

        If the job is a simple commit, the writer first tries to store it with `send_simple_commit`.
        """
        job = CommitJob(self, operation, simple_commit)
        self._pending.append(job)
        return job

    def close(self) -> None:
        """Write all pending jobs."""
        while self._pending:
            self._connection.use(self._write_oldest)

    def write(self, job: CommitJob[Any]) -> None:
        """Write a job together with the other pending jobs, or wait until another thread has written it."""
        while job.outcome is None:
            if not self._is_writing or (job.wakeups is not None and not _wait(job.wakeups)):
                self._connection.use(lambda: self._write_oldest() if job.outcome is None else None)
            elif job.wakeups is None:
                job.wakeups = queue.SimpleQueue()  # The next round checks whether the other thread still writes.

    def write_in_thread(self, job: CommitJob[Any], call: Callable[[CommitJob[Any]], object]) -> None:
        """Write a job in the writer thread, and then call a function. The thread runs only while it has jobs."""
        self._awaited.put((job, call))
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="acorn-store", daemon=True)
                thread.start()
                self._thread = thread  # After Ctrl-C in between, two threads do the same work.

    def _work(self) -> None:
        while True:
            try:
                job, call = self._awaited.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._awaited.empty():
                        self._thread = None
                        return
            else:
                with suppress(Exception):  # The function reads the error.
                    job.result()
                try:
                    call(job)
                except Exception:  # Other callers wait for this thread.
                    logger.exception("Cannot report a commit to %s", self._name)
                del job, call  # They may have the last reference to large objects.

    def _write_oldest(self) -> None:
        """Write the oldest pending jobs in one transaction. Call this method only inside `use`."""
        self._is_writing = True
        pause = self._not_before - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        jobs = [self._pending[at] for at in range(min(len(self._pending), _MAX_JOBS))]
        # If a thread was interrupted after its transaction, jobs that have an outcome are still in the queue.
        unwritten = [job for job in jobs if job.outcome is None]
        try:
            if unwritten:
                self._transact(unwritten)
        except Exception as error:
            explained = self._explain(error)
            for job in unwritten:
                job.outcome = job.outcome or CommitResult(error=_copy_error(explained))
            if not isinstance(error, StoreError):
                self._connection.drop()
        finally:
            while self._pending and self._pending[0].outcome is not None:
                self._pending.popleft()
            self._is_writing = False
            for job in jobs:
                if job.wakeups is not None:
                    job.wakeups.put(None)
            for job in list(self._pending):
                if job.wakeups is not None:  # The thread that waits for this job writes the next transaction.
                    job.wakeups.put(None)
                    break

    # In a forked child, the pending jobs belong to the parent.

    def before_fork(self) -> None:
        pass

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._reset()
