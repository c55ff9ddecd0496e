"""Group commit: all pending writes to a database share one transaction.

Waiting for the disk takes most of the time, so that a transaction with many commits costs little more than one. The
commits stay independent: if one is refused, the others are still stored. A caller that waits for the only pending
commit writes it in its own thread, because a thread switch would cost more than everything else. All other commits are
written by one thread per process, which runs only while there is work.
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
from typing import Any, Generic, NamedTuple, TypeVar

from acorn._base.forks import close_at_fork
from acorn.errors import StoreError
from acorn.stores.database import C, SharedConnection

J = TypeVar("J", bound="CommitJob")

_IDLE = 2.0
"""Seconds without work after which the thread ends."""
_POLL = 0.05
"""Seconds after which the thread writes jobs for which no caller waits."""
_MAX_JOBS = 1000
"""Jobs in one transaction."""


class _Condition(threading.Condition):
    """A condition whose lock Ctrl-C cannot leave locked.

    `threading.Condition` takes and releases its lock in Python code, which a signal can interrupt. The writer would
    then wait forever. This class hands out the methods of the lock itself.
    """

    __enter__ = property(lambda self: self._lock.__enter__)  # pyright: ignore
    __exit__ = property(lambda self: self._lock.__exit__)  # pyright: ignore


class CommitResult(NamedTuple):
    """The result of a job."""

    value: Any = None
    error: BaseException | None = None


class CommitJob(Future[Any]):
    """A function to call in a transaction. Its outcome is set first, then the waiting callers are notified."""

    def __init__(self, writer: GroupCommitWriter[Any, Any], act: Callable[..., Any]) -> None:
        super().__init__()
        self._condition = _Condition()
        self.act = act
        self.outcome: CommitResult | None = None
        self.is_written_by_caller = False
        """Whether a waiting caller is about to write it in its own thread."""
        self._writer = writer
        self.set_running_or_notify_cancel()  # A caller that stops waiting does not cancel the write.

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
        """Make sure that the job is written now, because a caller waits for it."""
        if self.done():
            return
        if timeout is None:
            self._writer.write_or_wake()
        else:
            self._writer.wake()
        self.publish()

    def publish(self) -> None:
        """Notify the waiting callers if the outcome is known. It may be called again after an interruption."""
        if self.outcome is None or self.done():
            return
        with suppress(InvalidStateError):
            if self.outcome.error is None:
                self.set_result(self.outcome.value)
            else:
                self.set_exception(self.outcome.error)
        self.act = _do_nothing  # The function may hold the last reference to large objects.


def _do_nothing(*_: object) -> None: ...


def _copy_of(error: Exception) -> Exception:
    """Copy an error that fails several jobs: each run attaches its own record to its error."""
    if not isinstance(error, StoreError):
        return error
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied


class GroupCommitWriter(ABC, Generic[C, J]):
    """Writes submitted jobs in order, whether or not a caller waits for them."""

    def __init__(self, connection: SharedConnection[C], name: str) -> None:
        self._connection = connection
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reset_queue()
        close_at_fork(self)

    def _reset_queue(self) -> None:
        self._pending: deque[J] = deque()
        """Only the thread that uses the connection removes jobs."""
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True: write now. False: end when nothing is pending."""

    # Implemented for each database

    @abstractmethod
    def _transact(self, opened: Callable[[], C], jobs: list[J]) -> None:
        """Execute jobs in one transaction and set their outcomes. An exception fails the jobs without an outcome."""

    @abstractmethod
    def _explain(self, error: Exception) -> Exception:
        """Turn an error of the database into a `StoreError` with a helpful message."""

    def _yield_to_others(self) -> None:
        """Called before each transaction, to give other processes a chance to write."""

    # Shared by all databases

    def _put(self, job: J) -> J:
        """Add a job. It is done when its transaction would survive a crash."""
        with self._lock:
            self._pending.append(job)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="acorn-store", daemon=True)
                with suppress(RuntimeError):  # The interpreter is shutting down; the waiting caller writes the job.
                    thread.start()
                    self._thread = thread
        return job

    def close(self) -> None:
        """Write all pending jobs and end the thread. A later job starts a new thread."""
        while self._pending:
            self._write(_MAX_JOBS)
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._signals.put(False)
            thread.join()

    def wake(self) -> None:
        """Let the thread write now."""
        if self._signals.empty():
            self._signals.put(True)

    def write_or_wake(self) -> None:
        """Write the job in this thread if it is the only one. Otherwise let the writer thread write all."""
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
        this_thread = threading.current_thread()
        with self._lock:
            # If its start was interrupted, this thread is not registered yet, and another one may have replaced it.
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
        jobs: list[J] = []
        self._yield_to_others()
        try:
            self._connection.use(lambda opened: self._write_oldest(opened, jobs, max_jobs))
        finally:
            for job in jobs:
                job.publish()

    def _write_oldest(self, opened: Callable[[], C], jobs: list[J], max_jobs: int) -> None:
        """Write the oldest pending jobs and add them to `jobs`. The caller has exclusive use of the connection."""
        jobs += [self._pending[at] for at in range(min(len(self._pending), max_jobs))]
        # A thread that was interrupted after the transaction leaves jobs that already have an outcome.
        unwritten = [job for job in jobs if job.outcome is None]
        try:
            if unwritten:
                self._transact(opened, unwritten)
        except Exception as error:
            explained = self._explain(error)
            for job in unwritten:
                job.outcome = job.outcome or CommitResult(error=_copy_of(explained))
            if not isinstance(error, StoreError):
                self._connection.drop()
        finally:
            while self._pending and self._pending[0].outcome is not None:
                self._pending.popleft()

    def _set_outcomes(self, jobs: list[J], outcomes: list[CommitResult]) -> None:
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
