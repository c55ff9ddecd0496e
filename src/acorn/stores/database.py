"""A connection to a database that many threads share: opened when first needed, used by one of them at a time.

What a store does alike in every database: one transaction for each method, which its rooms of reads and writes fill.

A store beside it (`sqlite.py`, `postgres.py`) says how a transaction is made, and what it does in its own way.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from acorn._base.forks import close_at_fork
from acorn.errors import StoreError
from acorn.stores import messages
from acorn.stores.port import JournalRow, Process, RunFacts, Status, StoredAnswer, StoredRun
from acorn.types import Request


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
T = TypeVar("T")


class SharedConnection(Generic[C]):
    """What must not be open in a forked child is closed while the process forks."""

    def __init__(self, opens: Callable[[], C]) -> None:
        self._opens = opens
        self._lock = threading.Lock()
        self._connection: C | None = None
        close_at_fork(self)

    def use(self, act: Callable[[Callable[[], C]], T]) -> T:
        """Do something while nobody else uses it; it is handed what gives the connection.

        Where that ends with an error, the connection is opened anew. A `with` and a function, as nothing else is
        sure to let go of a lock when Ctrl-C comes.
        """
        with self._lock:
            return self._do(act)

    def _do(self, act: Callable[[Callable[[], C]], T]) -> T:
        try:
            return act(self.opened)
        except StoreError:
            raise
        except BaseException:
            self.drop()
            raise

    def opened(self) -> C:
        if self._connection is None:
            self._connection = self._opens()
        return self._connection

    def close(self) -> None:
        with self._lock:
            self.drop()

    def drop(self) -> None:
        """Close it, by whoever uses it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self.drop()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()


Opened = TypeVar("Opened")
C_contra = TypeVar("C_contra", contravariant=True)


class Reads(Protocol[C_contra]):
    """A room of reads."""

    def tree(self, inside: C_contra, run_id: str, /) -> Sequence[StoredRun]: ...
    def media(self, inside: C_contra, wanted: Sequence[str], /) -> Mapping[str, bytes]: ...
    def find(self, inside: C_contra, prefix: str, /) -> Sequence[str]: ...
    def holding(self, inside: C_contra, run_ids: Sequence[str], text: str, /) -> Sequence[str]: ...
    def statuses(self, inside: C_contra, run_ids: Sequence[str], /) -> Mapping[str, Status]: ...
    def requests(self, inside: C_contra, run_id: str | None, /) -> Sequence[Request]: ...
    def answers(self, inside: C_contra, run_id: str, /) -> Sequence[StoredAnswer]: ...
    def follow(self, inside: C_contra, run_id: str, after: int, /) -> tuple[Status | None, Sequence[JournalRow]]: ...
    def listed(
        self,
        inside: C_contra,
        status: Sequence[Status],
        agent: str | None,
        batch: str | None,
        before: datetime | None,
        limit: int | None,
        /,
    ) -> Sequence[RunFacts]: ...


class Driving(Protocol[C_contra]):
    """A room for who drives a run."""

    def claim(self, inside: C_contra, run_id: str, holder: Process, /) -> Sequence[StoredRun] | StoreError | None: ...
    def release(self, inside: C_contra, run_id: str, holder: Process, status: Status, /) -> None: ...
    def beat(self, inside: C_contra, holder: Process, seconds: float, /) -> Sequence[str]: ...


class Writes(Protocol[C_contra]):
    """A room for what those who look on want."""

    def answer(self, inside: C_contra, request_id: str, text: str, name: str, /) -> Request: ...
    def cancel(self, inside: C_contra, run_id: str, name: str, /) -> None: ...
    def delete(self, inside: C_contra, run_id: str, name: str, /) -> None: ...


class DatabaseStore(ABC, Generic[Opened]):
    """The methods of the port that are nothing but a transaction."""

    def __init__(self, name: str, reads: Reads[Opened], driving: Driving[Opened], writes: Writes[Opened]) -> None:
        self._name = name
        self._reads, self._driving, self._writes = reads, driving, writes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    @abstractmethod
    def transact(self, act: Callable[[Opened], T], run_id: str | None = None) -> T:
        """Do it in a transaction, together with whatever else waits; a `StoreError` undoes it, and nothing else."""

    @abstractmethod
    def _read(self, act: Callable[[Opened], T]) -> T:
        """All that it asks for is as of one moment."""

    # By whoever drives a run

    def claim(self, run_id: str, holder: Process) -> Sequence[StoredRun] | None:
        claimed = self.transact(lambda inside: self._driving.claim(inside, run_id, holder), run_id)
        if isinstance(claimed, StoreError):  # what it found out about the run was worth keeping
            raise claimed
        return claimed

    def release(self, run_id: str, holder: Process, status: Status) -> None:
        self.transact(lambda inside: self._driving.release(inside, run_id, holder, status), run_id)

    def answers(self, run_id: str) -> Sequence[StoredAnswer]:
        return self._read(lambda inside: self._reads.answers(inside, run_id))

    def beat(self, holder: Process, seconds: float) -> Sequence[str]:
        return self.transact(lambda inside: self._driving.beat(inside, holder, seconds))

    # By whoever wants runs to begin elsewhere

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        return self._read(lambda inside: self._reads.statuses(inside, run_ids))

    # By whoever looks on

    def read(self, run_id: str) -> Sequence[StoredRun]:
        return self._read(lambda inside: self._reads.tree(inside, run_id))

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        return self._read(lambda inside: self._reads.media(inside, wanted))

    def find(self, prefix: str) -> Sequence[str]:
        return self._read(lambda inside: self._reads.find(inside, prefix))

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[RunFacts]:
        return self._read(lambda inside: self._reads.listed(inside, status, agent, batch, before, limit))

    def holding(self, run_ids: Sequence[str], text: str) -> Sequence[str]:
        return self._read(lambda inside: self._reads.holding(inside, run_ids, text))

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[JournalRow]]:
        return self._read(lambda inside: self._reads.follow(inside, run_id, after))

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        return self._read(lambda inside: self._reads.requests(inside, run_id))

    def answer(self, request_id: str, value: Any) -> Request:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise messages.not_plain(request_id, error) from error
        return self.transact(lambda inside: self._writes.answer(inside, request_id, text, self._name))

    def cancel(self, run_id: str) -> None:
        self.transact(lambda inside: self._writes.cancel(inside, run_id, self._name), run_id)

    def delete(self, run_id: str) -> None:
        self.transact(lambda inside: self._writes.delete(inside, run_id, self._name), run_id)
