"""Group commit: what waits to be written to a database is one transaction.

The disk is what takes time, so many commits at once cost little more than one. Each stands for itself all the same:
one that is refused leaves the others alone. Whoever waits in place for the only one writes it himself, as a change of
threads costs more than the rest; whatever else there is, one thread of the process writes. It is there while there is
something to write.
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
_GLANCE = 0.05
"""Seconds after which the thread finds what nobody waits for."""
_MOST = 1000
"""Jobs in one transaction."""


class _Condition(threading.Condition):
    """One whose lock is taken and let go in one go: where Ctrl-C left it taken, the writer would wait for ever."""

    __enter__ = property(lambda self: self._lock.__enter__)  # pyright: ignore
    __exit__ = property(lambda self: self._lock.__exit__)  # pyright: ignore


class CommitResult(NamedTuple):
    """What came of a job."""

    value: Any = None
    error: BaseException | None = None


class CommitJob(Future[Any]):
    """Something to be done in a transaction, and what came of it: first known, then told."""

    def __init__(self, writer: GroupCommitWriter[Any, Any], act: Callable[..., Any]) -> None:
        super().__init__()
        self._condition = _Condition()
        self.act = act
        self.outcome: CommitResult | None = None
        self.is_at_hand = False
        """Whether somebody is about to write it in place."""
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


def _own(error: Exception) -> Exception:
    """What fails many is an error for each: a record is hung on it, which must not be that of another run."""
    if not isinstance(error, StoreError):
        return error
    own = copy(error)
    own.__cause__ = error.__cause__
    return own


def _nothing(*_: object) -> None:
    """What is left to do of what is done."""


class GroupCommitWriter(ABC, Generic[C, J]):
    """What is put in is written, in this order, whether or not anybody waits for it."""

    def __init__(self, connection: SharedConnection[C], name: str) -> None:
        self._connection = connection
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._begin()
        close_at_fork(self)

    def _begin(self) -> None:
        self._waiting: deque[J] = deque()
        """Only who has the connection takes from it."""
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True: there is work. False: there will be none."""

    # By the writer of a kind of database

    @abstractmethod
    def _transact(self, opened: Callable[[], C], jobs: list[J]) -> None:
        """Do them in one transaction, and note the outcome of each; what it raises is that of those without one."""

    @abstractmethod
    def _told(self, error: Exception) -> Exception:
        """What the database says, in words that help."""

    def _make_room(self) -> None:
        """Before each transaction."""

    # By everybody

    def _put(self, job: J) -> J:
        """Do it in a transaction; it is done when that would survive a crash."""
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
        waiting = list(self._waiting)
        if len(waiting) != 1:
            self.wake()
            return
        waiting[0].is_at_hand = True
        try:
            self._write(1)
        finally:
            waiting[0].is_at_hand = False

    def _work(self) -> None:
        here = threading.current_thread()
        with self._lock:
            # One whose start was interrupted is not known yet, and may have been replaced.
            self._thread = self._thread or here
            if self._thread is not here:
                return
        is_over, worked = False, time.monotonic()
        while True:
            is_called = False
            with suppress(queue.Empty):
                is_over = not self._bell.get(timeout=_GLANCE) or is_over
                is_called = True
            if not is_called and self._is_at_hand():
                worked = time.monotonic()
            elif self._waiting:
                self._write(_MOST)
                worked = time.monotonic()
            elif is_over or time.monotonic() > worked + _IDLE:
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return

    def _is_at_hand(self) -> bool:
        waiting = list(self._waiting)
        return len(waiting) == 1 and waiting[0].is_at_hand

    def _write(self, most: int) -> None:
        jobs: list[J] = []
        self._make_room()
        try:
            self._connection.use(lambda opened: self._take(opened, jobs, most))
        finally:
            for job in jobs:
                job.tell()

    def _take(self, opened: Callable[[], C], jobs: list[J], most: int) -> None:
        """What waits longest, while nobody else writes."""
        jobs += [self._waiting[at] for at in range(min(len(self._waiting), most))]
        left = [job for job in jobs if job.outcome is None]  # somebody may have been stopped before the end
        try:
            if left:
                self._transact(opened, left)
        except Exception as error:
            told = self._told(error)
            for job in left:
                job.outcome = job.outcome or CommitResult(error=_own(told))
            if not isinstance(error, StoreError):
                self._connection.drop()
        finally:
            while self._waiting and self._waiting[0].outcome is not None:
                self._waiting.popleft()

    def _know(self, jobs: list[J], outcomes: list[CommitResult]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.outcome = outcome

    # What waits when the process forks is the parent's to write.

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._begin()
            self._thread = None
        self._lock.release()
