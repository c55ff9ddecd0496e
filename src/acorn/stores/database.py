"""The base class of the SQLite store and the PostgreSQL store.

It contains the store methods that are the same for both databases. Each of these methods executes one transaction. The
folders `sqlite/` and `postgres/` contain the SQL statements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from acorn.errors import StoreError
from acorn.stores.port import JournalRow, Process, RunFacts, Status, StoredAnswer, StoredRun
from acorn.stores.rules import answer_text
from acorn.types import Request

APPLICATION_ID = 0x41434F52
"""The application id in a SQLite file of acorn, and the key of the advisory lock of acorn in PostgreSQL."""
SCHEMA_VERSION = 1
"""The version of the tables in SQLite and in PostgreSQL."""


T = TypeVar("T")
Session = TypeVar("Session")
"""The object that executes statements: a SQLite connection, or a PostgreSQL transaction."""
Session_contra = TypeVar("Session_contra", contravariant=True)


class ReadStatements(Protocol[Session_contra]):
    """The functions that a database module `reads.py` must define: they read runs, requests, answers and media."""

    def tree(self, session: Session_contra, run_id: str, /) -> Sequence[StoredRun]: ...
    def media(self, session: Session_contra, wanted: Sequence[str], /) -> Mapping[str, bytes]: ...
    def find(self, session: Session_contra, prefix: str, /) -> Sequence[str]: ...
    def search(self, session: Session_contra, run_ids: Sequence[str], text: str, /) -> Sequence[str]: ...
    def statuses(self, session: Session_contra, run_ids: Sequence[str], /) -> Mapping[str, Status]: ...
    def requests(self, session: Session_contra, run_id: str | None, /) -> Sequence[Request]: ...
    def answers(self, session: Session_contra, run_id: str, /) -> Sequence[StoredAnswer]: ...
    def follow(
        self, session: Session_contra, run_id: str, after: int, /
    ) -> tuple[Status | None, Sequence[JournalRow]]: ...
    def list_runs(
        self,
        session: Session_contra,
        status: Sequence[Status],
        agent: str | None,
        batch: str | None,
        before: datetime | None,
        limit: int | None,
        /,
    ) -> Sequence[RunFacts]: ...


class ClaimStatements(Protocol[Session_contra]):
    """The functions that a database module must define to change claims and leases."""

    def claim(
        self, session: Session_contra, run_id: str, process: Process, /
    ) -> Sequence[StoredRun] | StoreError | None: ...
    def release(self, session: Session_contra, run_id: str, process: Process, status: Status, /) -> None: ...
    def renew_lease(self, session: Session_contra, process: Process, seconds: float, /) -> Sequence[str]: ...


class WriteStatements(Protocol[Session_contra]):
    """The functions that a database module `writes.py` must define: they store answers, and cancel and delete runs."""

    def answer(self, session: Session_contra, request_id: str, text: str, name: str, /) -> Request: ...
    def cancel(self, session: Session_contra, run_id: str, name: str, /) -> None: ...
    def delete(self, session: Session_contra, run_id: str, name: str, /) -> None: ...


class DatabaseStore(ABC, Generic[Session]):
    """A store in a database.

    Each method calls one function of the database modules inside one transaction.
    """

    def __init__(
        self,
        name: str,
        reads: ReadStatements[Session],
        claims: ClaimStatements[Session],
        writes: WriteStatements[Session],
    ) -> None:
        self._name = name
        self._reads, self._claims, self._writes = reads, claims, writes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    @abstractmethod
    def transact(self, operation: Callable[[Session], T], run_id: str | None = None) -> T:
        """Call a function in a transaction that may also contain other writes, and return the result of the function.

        If the function raises `StoreError`, only its own writes are undone. `run_id` is the id of the root run that the
        function writes to.
        """

    @abstractmethod
    def _read(self, operation: Callable[[Session], T]) -> T:
        """Call a function in a read transaction and return the result of the function.

        All statements of the function see the same snapshot of the database.
        """

    # Called by the process that drives a run

    def claim(self, run_id: str, process: Process) -> Sequence[StoredRun] | None:
        claimed = self.transact(lambda session: self._claims.claim(session, run_id, process), run_id)
        if isinstance(claimed, StoreError):  # An exception would undo the takeover count, so it was returned.
            raise claimed
        return claimed

    def release(self, run_id: str, process: Process, status: Status) -> None:
        self.transact(lambda session: self._claims.release(session, run_id, process, status), run_id)

    def answers(self, run_id: str) -> Sequence[StoredAnswer]:
        return self._read(lambda session: self._reads.answers(session, run_id))

    def renew_lease(self, process: Process, seconds: float) -> Sequence[str]:
        return self.transact(lambda session: self._claims.renew_lease(session, process, seconds))

    # Called by processes that submit runs for other processes

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        return self._read(lambda session: self._reads.statuses(session, run_ids))

    # Called by processes that inspect runs

    def read(self, run_id: str) -> Sequence[StoredRun]:
        return self._read(lambda session: self._reads.tree(session, run_id))

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        return self._read(lambda session: self._reads.media(session, wanted))

    def find(self, prefix: str) -> Sequence[str]:
        return self._read(lambda session: self._reads.find(session, prefix))

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[RunFacts]:
        return self._read(lambda session: self._reads.list_runs(session, status, agent, batch, before, limit))

    def search(self, run_ids: Sequence[str], text: str) -> Sequence[str]:
        return self._read(lambda session: self._reads.search(session, run_ids, text))

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[JournalRow]]:
        return self._read(lambda session: self._reads.follow(session, run_id, after))

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        return self._read(lambda session: self._reads.requests(session, run_id))

    def answer(self, request_id: str, value: Any) -> Request:
        text = answer_text(request_id, value)
        return self.transact(lambda session: self._writes.answer(session, request_id, text, self._name))

    def cancel(self, run_id: str) -> None:
        self.transact(lambda session: self._writes.cancel(session, run_id, self._name), run_id)

    def delete(self, run_id: str) -> None:
        self.transact(lambda session: self._writes.delete(session, run_id, self._name), run_id)
