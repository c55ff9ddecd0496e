"""What waits to be written to a PostgreSQL database, in transactions that many share.

The statements of all commits that wait are sent together. What came of each is known before the transaction is
committed, so that of a connection that breaks at that moment only one thing has to be found out: whether that
transaction was. Each writes its number, so the database knows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import Connection

from acorn.errors import StoreError
from acorn.stores.group_commit import CommitJob, CommitResult, GroupCommitWriter
from acorn.stores.postgres.claims import count_turn, forget, last_turn
from acorn.stores.postgres.claims import forget as forget_allowances
from acorn.stores.postgres.connection import Database, PostgresConnection, Transaction, is_lost, piped
from acorn.stores.postgres.writes import tell

T = TypeVar("T")


_Ahead = Callable[[Transaction], Callable[[], bool] | None]
"""Sends what may be all there is to do, and gives what tells whether it was; None: it has to be done in order."""


class _WriteJob(CommitJob):
    """Something to be done in a transaction, in order, or ahead of what comes of others."""

    def __init__(
        self,
        writer: PostgresWriter,
        key: str | None,
        act: Callable[[Transaction], Any],
        ahead: _Ahead | None,
    ) -> None:
        super().__init__(writer, act)
        self.key, self.ahead = key, ahead


class _UncertainCommit(NamedTuple):
    """A transaction of which it is not known whether it was committed."""

    turn: int
    jobs: list[_WriteJob]
    outcomes: list[CommitResult]


class PostgresWriter(GroupCommitWriter[Connection[Any], _WriteJob]):
    def __init__(self, connection: PostgresConnection, place: Database) -> None:
        super().__init__(connection, place.name)
        self._place = place
        self._doubt: _UncertainCommit | None = None
        self._has_forgotten = False
        self._begin_turns()

    def _begin_turns(self) -> None:
        self._id, self._turn = secrets.token_hex(8), 0

    def submit(
        self,
        key: str | None,
        act: Callable[[Transaction], T],
        ahead: _Ahead | None = None,
    ) -> Future[T]:
        """Do it in a transaction; of what has the same key, only the first is done ahead."""
        return self._put(_WriteJob(self, key, act, ahead))

    def _transact(self, opened: Callable[[], Connection[Any]], jobs: list[_WriteJob]) -> None:
        try:
            self._patiently(opened, jobs)
        except psycopg.Error as error:
            if is_lost(error) or len(jobs) == 1:
                raise
            for job in jobs:  # one of them is what the database does not like
                try:
                    self._patiently(opened, [job])
                except psycopg.Error as own:
                    job.outcome = job.outcome or CommitResult(error=self._told(own))

    def _patiently(self, opened: Callable[[], Connection[Any]], jobs: list[_WriteJob]) -> None:
        def act() -> None:
            connection = opened()
            self._settle(connection)
            self._forget(connection)
            left = [job for job in jobs if job.outcome is None]
            if left:
                self._together(connection, left)

        self._place.patiently(act, self._connection.drop)

    def _forget(self, connection: Connection[Any]) -> None:
        """Once is enough."""
        if not self._has_forgotten:
            self._has_forgotten = True
            forget(Transaction(connection))
            forget_allowances(Transaction(connection))

    def _together(self, connection: Connection[Any], jobs: list[_WriteJob]) -> None:
        def act() -> list[CommitResult]:
            transaction = Transaction(connection)
            transaction.control(b"BEGIN")
            count_turn(transaction, self._id, self._turn)
            sent = self._send_ahead(transaction, jobs)
            is_alone = len(jobs) == 1
            done = [self._do(transaction, job, ahead, is_alone) for job, ahead in zip(jobs, sent, strict=True)]
            if all(one.error is not None for one in done):
                transaction.control(b"ROLLBACK")
                return done
            self._doubt = _UncertainCommit(self._turn, jobs, done)
            transaction.control(b"COMMIT")
            tell(transaction, transaction.news)
            return done

        self._turn += 1
        outcomes = piped(connection, act)
        self._know(jobs, outcomes)
        self._doubt = None

    def _send_ahead(self, transaction: Transaction, jobs: list[_WriteJob]) -> list[Callable[[], bool] | None]:
        """What is the first of its key; a later one must find what came of that."""
        keys: set[str | None] = set()
        sent: list[Callable[[], bool] | None] = []
        for job in jobs:
            is_first = job.key not in keys
            keys.add(job.key)
            sent.append(job.ahead(transaction) if is_first and job.ahead is not None else None)
        return sent

    def _do(
        self, transaction: Transaction, job: _WriteJob, was_all: Callable[[], bool] | None, is_alone: bool
    ) -> CommitResult:
        """Its failure undoes what it did, and nothing else."""
        if was_all is None and job.ahead is not None:
            was_all = job.ahead(transaction)
        if was_all is not None and was_all():
            return CommitResult()
        told = len(transaction.news)
        if not is_alone:
            transaction.control(b"SAVEPOINT one")
        try:
            outcome = CommitResult(job.act(transaction))
        except psycopg.Error:  # that undoes everything
            raise
        except Exception as error:
            outcome = CommitResult(error=error)
            del transaction.news[told:]
            if not is_alone:
                transaction.control(b"ROLLBACK TO one")
        if not is_alone:
            transaction.control(b"RELEASE one")
        return outcome

    def _settle(self, connection: Connection[Any]) -> None:
        """Find out what came of a transaction whose end was not heard."""
        doubt = self._doubt
        if doubt is not None:
            if last_turn(Transaction(connection), self._id) == doubt.turn:
                self._know(doubt.jobs, doubt.outcomes)
            self._doubt = None

    def _told(self, error: Exception) -> Exception:
        if not isinstance(error, psycopg.Error):
            return error
        told = self._place.explained(error)
        if self._doubt is not None:
            self._doubt = None
            told = StoreError(self._unknown(str(told)))
        return told

    def _unknown(self, why: str) -> str:
        return (
            f"Whether the last commit to {self._name} was kept is not known: {why} The run goes on from what was kept "
            f"when it is resumed."
        )

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._doubt = None  # the parent's
            self._begin_turns()
        super().after_fork(in_child)
