"""Group commit: what waits to be written to a file is one transaction.

The disk is what takes time, so many commits at once cost little more than one. Each stands for itself all the same:
one that is refused leaves the others alone. Whoever waits in place for the only one writes it himself, as a change of
threads costs more than the rest; whatever else there is, one thread of the process writes. It is there while there is
something to write.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from acorn.errors import StoreError
from acorn.stores.forks import closes_at_fork
from acorn.stores.sqlite_connection import SharedConnection, explained, jitter, patiently

T = TypeVar("T")

_IDLE = 2.0
"""Seconds without work after which the thread ends."""
_GLANCE = 0.05
"""Seconds after which the thread finds what nobody waits for."""
_MOST = 1000
"""Jobs in one transaction."""
_TURN = 0.02
"""Seconds for which a process writes before it looks whether others want to."""


class _Condition(threading.Condition):
    """One whose lock is taken and let go in one go: where Ctrl-C left it taken, the writer would wait for ever."""

    __enter__ = property(lambda self: self._lock.__enter__)  # pyright: ignore
    __exit__ = property(lambda self: self._lock.__exit__)  # pyright: ignore


class _Done(NamedTuple):
    value: Any = None
    error: BaseException | None = None


class _Job(Future[Any]):
    """Something to be done in a transaction, and what came of it: first known, then told."""

    def __init__(self, writer: Writer, act: Callable[[sqlite3.Connection], Any]) -> None:
        super().__init__()
        self._condition = _Condition()
        self.act = act
        self.outcome: _Done | None = None
        self._writer = writer
        self.set_running_or_notify_cancel()  # who stops waiting for it does not stop it

    def result(self, timeout: float | None = None) -> Any:
        self._get_on(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._get_on(timeout)
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        if not self.done():
            self._writer.wake()
        super().add_done_callback(fn)

    def _get_on(self, timeout: float | None) -> None:
        if self.done():
            return
        if timeout is None:
            self._writer.help()
        else:
            self._writer.wake()
        self.tell()

    def tell(self) -> None:
        """Tell whoever waits, where the outcome is known; again, where somebody was stopped at it."""
        if self.outcome is None or self.done():
            return
        with suppress(InvalidStateError):
            if self.outcome.error is None:
                self.set_result(self.outcome.value)
            else:
                self.set_exception(self.outcome.error)
        self.act = _nothing  # it may hold what nobody else holds any more


def _nothing(_: sqlite3.Connection) -> None:
    """What is left to do of what is done."""


class Writer:
    """What is submitted is written, in this order, whether or not anybody waits for it."""

    def __init__(self, connection: SharedConnection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._begin()
        self._has_met = False
        self._seen = (0, 0)
        self._ended = 0.0
        self._looked = 0.0
        closes_at_fork(self)

    def _begin(self) -> None:
        self._waiting: deque[_Job] = deque()
        """Only who has the connection takes from it."""
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True: there is work. False: there will be none."""

    def submit(self, act: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Do it in a transaction; the future is done when that would survive a crash."""
        job = _Job(self, act)
        with self._lock:
            self._waiting.append(job)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="acorn-store", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending; whoever waits for it writes it
                    thread.start()
                    self._thread = thread
        return job

    def close(self) -> None:
        """Write what waits, and end the thread; another one begins where there is more."""
        while self._waiting:
            self._write(_MOST)
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._bell.put(False)
            thread.join()

    def wake(self) -> None:
        if self._bell.empty():
            self._bell.put(True)

    def help(self) -> None:
        """Write the only one that waits; where there are more, let the thread have them all."""
        if len(self._waiting) == 1:
            self._write(1)
        else:
            self.wake()

    def _work(self) -> None:
        here = threading.current_thread()
        with self._lock:
            # One whose start was interrupted is not known yet, and may have been replaced.
            self._thread = self._thread or here
            if self._thread is not here:
                return
        is_over, worked = False, time.monotonic()
        while True:
            with suppress(queue.Empty):
                is_over = not self._bell.get(timeout=_GLANCE) or is_over
            if self._waiting:
                self._write(_MOST)
                worked = time.monotonic()
            elif is_over or time.monotonic() > worked + _IDLE:
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return

    def _write(self, most: int) -> None:
        jobs: list[_Job] = []
        self._make_room()
        try:
            self._connection.use(lambda opened: self._take(opened, jobs, most))
        finally:
            for job in jobs:
                job.tell()

    def _take(self, opened: Callable[[], sqlite3.Connection], jobs: list[_Job], most: int) -> None:
        """What waits longest, while nobody else writes."""
        jobs += [self._waiting[at] for at in range(min(len(self._waiting), most))]
        left = [job for job in jobs if job.outcome is None]  # somebody may have been stopped before the end
        try:
            if left:
                self._transact(opened(), left)
        except Exception as error:
            for job in left:
                job.outcome = job.outcome or _Done(error=self._told(error))
            if not isinstance(error, StoreError):
                self._connection.drop()
        finally:
            self._ended = time.monotonic()
            while self._waiting and self._waiting[0].outcome is not None:
                self._waiting.popleft()

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._meet_others)
        outcomes: list[_Done] = []
        try:
            self._look_for_others(connection)
            is_alone = len(jobs) == 1
            outcomes = [_Done(job.act(connection)) if is_alone else self._apart(connection, job) for job in jobs]
            connection.execute("COMMIT")
        except StoreError as error:  # of the only job
            connection.execute("ROLLBACK")
            outcomes = [_Done(error=error)]
        except Exception:
            raise
        except BaseException:
            if outcomes and not connection.in_transaction:  # Ctrl-C, when all was done
                self._know(jobs, outcomes)
            raise
        self._know(jobs, outcomes)

    def _know(self, jobs: list[_Job], outcomes: list[_Done]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.outcome = outcome

    def _apart(self, connection: sqlite3.Connection, job: _Job) -> _Done:
        """Do one of several: its failure undoes what it did, and nothing else."""
        connection.execute("SAVEPOINT one")
        try:
            outcome = _Done(job.act(connection))
        except Exception as error:
            if not connection.in_transaction:  # a full disk and the like undo everything
                raise
            connection.execute("ROLLBACK TO one")
            outcome = _Done(error=self._told(error))
        connection.execute("RELEASE one")
        return outcome

    def _told(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error):
            return error
        told = explained(error, self._name)
        told.__cause__ = error
        return told

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
            self._begin()
            self._thread = None
        self._lock.release()
