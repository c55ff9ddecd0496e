"""Group commit: pending writes of all threads share one database connection and one transaction.

Most of the time of a transaction is spent waiting for the disk, so a transaction with many commits costs little more
than a transaction with one commit. The commits stay independent: if the database rejects one commit, it still stores
the other commits. If a caller waits for the only pending commit, the caller writes the commit in its own thread,
because a thread switch would cost more than the commit. One thread per store writes all other commits. The thread runs
only while commits are pending.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import copy
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from acorn._base.forks import close_at_fork
from acorn.errors import StoreError
from acorn.stores.statements import Transaction

_IDLE = 2.0
"""Seconds without pending jobs after which the writer thread ends."""
_POLL = 0.05
"""Seconds after which the writer thread writes pending jobs even if no caller waits for them."""
_MAX_JOBS = 1000
"""The maximum number of jobs in one transaction."""


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
T = TypeVar("T")
SendFirst = Callable[[Transaction], Callable[[], bool]]
"""A function that sends the statements of a simple job.

It returns a function that waits for the result and returns whether the job is complete. If the job is not complete,
nothing was written.
"""


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


class _Condition(threading.Condition):
    """A condition whose lock is always released after Ctrl-C.

    `threading.Condition` acquires and releases its lock in Python code. A signal can interrupt this code and leave the
    lock locked, and the writer would then wait forever. This class uses the methods of the lock directly.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))  # pyright: ignore
    __exit__ = property(attrgetter("_lock.__exit__"))  # pyright: ignore


class CommitResult(NamedTuple):
    """The result of a commit job: its return value, or the error that it raised."""

    value: Any = None
    error: BaseException | None = None


class CommitJob(Future[Any]):
    """A job for the writer: a function that writes to the database inside a transaction.

    The job is also a future. The future is done when the written data would survive a crash.
    """

    def __init__(
        self,
        writer: GroupCommitWriter[Any],
        operation: Callable[[Transaction], Any],
        key: str | None,
        send_first: SendFirst | None,
    ) -> None:
        super().__init__()
        self._condition = _Condition()
        self.operation, self.key, self.send_first = operation, key, send_first
        self.outcome: CommitResult | None = None
        """Set before the waiting callers are notified."""
        self.is_written_by_caller = False
        """Whether a waiting caller is about to write the job in its own thread."""
        self._writer = writer
        self.set_running_or_notify_cancel()  # The write must not be cancelled when a caller stops waiting for it.

    def result(self, timeout: float | None = None) -> Any:
        self._start(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._start(timeout)
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        if not self.done():
            self._writer.wake()
        super().add_done_callback(fn)

    def _start(self, timeout: float | None) -> None:
        """Make the writer write this job immediately, because a caller waits for the job."""
        if self.done():
            return
        if timeout is None:
            self._writer.write_or_wake()
        else:
            self._writer.wake()
        self.publish()

    def publish(self) -> None:
        """Complete the future if the writer has set `outcome`, so that the waiting callers get the result.

        If a signal interrupts this method, it is safe to call it again.
        """
        if self.outcome is None or self.done():
            return
        with suppress(InvalidStateError):
            if self.outcome.error is None:
                self.set_result(self.outcome.value)
            else:
                self.set_exception(self.outcome.error)
        self.operation, self.send_first = _do_nothing, None  # They may have the last reference to large objects.


def _do_nothing(*_: object) -> None: ...


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

    The writer also writes jobs that no caller waits for.
    """

    def __init__(self, connection: SharedConnection[C], name: str) -> None:
        self._connection = connection
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        """The earliest time of the next transaction, on the monotonic clock."""
        self._reset_queue()
        close_at_fork(self)

    def _reset_queue(self) -> None:
        self._pending: deque[CommitJob] = deque()
        """Jobs without an outcome. Only the thread that uses the connection removes jobs."""
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Messages to the writer thread. True: write now. False: end when no job is pending."""

    # Implemented for each database

    @abstractmethod
    def _transact(self, jobs: list[CommitJob]) -> None:
        """Execute jobs in one transaction and set the `outcome` of each job.

        If this method raises an exception, each job without an `outcome` fails with this exception.
        """

    @abstractmethod
    def _explain(self, error: Exception) -> Exception:
        """Return a `StoreError` that explains a database error and says what to do.

        Return any other error unchanged.
        """

    # Shared by all databases

    def submit(
        self, operation: Callable[[Transaction], T], key: str | None = None, send_first: SendFirst | None = None
    ) -> Future[T]:
        """Add a job that calls a function in a transaction with other jobs, and return the future of the job.

        `key` is the id of the run that the job writes to. `send_first` is called first. The writer may call it before
        the results of earlier jobs are known, but only if no earlier job in the transaction has the same `key`.
        """
        job = CommitJob(self, operation, key, send_first)
        with self._lock:
            self._pending.append(job)
            if self._thread is None:
                self._start_thread()
        return job

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="acorn-store", daemon=True)
        with suppress(RuntimeError):  # The interpreter shuts down. The waiting caller writes the job.
            thread.start()
            self._thread = thread

    def close(self) -> None:
        """Write all pending jobs and end the writer thread.

        If a job is added later, a new writer thread starts.
        """
        while self._pending:
            self._write(_MAX_JOBS)
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._signals.put(False)
            thread.join()

    def wake(self) -> None:
        """Tell the writer thread to write the pending jobs immediately."""
        if self._signals.empty():
            self._signals.put(True)

    def write_or_wake(self) -> None:
        """If exactly one job is pending, write the job in the current thread.

        Otherwise wake the writer thread.
        """
        pending = list(self._pending)
        if len(pending) != 1:
            self.wake()
            return
        pending[0].is_written_by_caller = True
        try:
            self._write(1)
        finally:
            pending[0].is_written_by_caller = False

    def _work(self) -> None:
        """Write pending jobs until no job has been pending for some seconds, or until the writer is closed."""
        this_thread = threading.current_thread()
        with self._lock:
            # If the start of this thread was interrupted, `_thread` is None or contains a newer thread.
            self._thread = self._thread or this_thread
            if self._thread is not this_thread:
                return
        is_closing, last_work = False, time.monotonic()
        while True:
            is_signalled = False
            with suppress(queue.Empty):
                is_closing = not self._signals.get(timeout=_POLL) or is_closing
                is_signalled = True
            if not is_signalled and self._is_left_to_caller():
                last_work = time.monotonic()
            elif self._pending:
                self._write(_MAX_JOBS)
                last_work = time.monotonic()
            elif is_closing or time.monotonic() > last_work + _IDLE:
                with self._lock:
                    if not self._pending:
                        self._thread = None
                        return

    def _is_left_to_caller(self) -> bool:
        pending = list(self._pending)
        return len(pending) == 1 and pending[0].is_written_by_caller

    def _write(self, max_jobs: int) -> None:
        """Write the oldest pending jobs in one transaction, and give the results to the waiting callers."""
        jobs: list[CommitJob] = []
        pause = self._not_before - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        try:
            self._connection.use(lambda: self._write_oldest(jobs, max_jobs))
        finally:
            for job in jobs:
                job.publish()

    def _write_oldest(self, jobs: list[CommitJob], max_jobs: int) -> None:
        """Write the oldest pending jobs in one transaction, and append these jobs to the list `jobs`.

        Call this method only inside `use`.
        """
        jobs += [self._pending[at] for at in range(min(len(self._pending), max_jobs))]
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

    def _set_outcomes(self, jobs: list[CommitJob], outcomes: list[CommitResult]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.outcome = outcome

    # In a forked child, the pending jobs belong to the parent.

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._reset_queue()
            self._thread = None
        self._lock.release()
