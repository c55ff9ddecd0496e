"""The writer of the PostgreSQL store.

The writer puts many commits into one transaction and sends their statements together. The writer knows the result of
each commit before the transaction is committed. If the connection breaks while the transaction is committed, the writer
must find out whether the database has stored the transaction. Therefore each transaction stores its number.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow

from acorn.errors import StoreError
from acorn.stores.group_commit import CommitJob, CommitResult, GroupCommitWriter
from acorn.stores.postgres.connection import Database, PostgresConnection, is_connection_lost, run_in_pipeline
from acorn.stores.postgres.statements import PostgresTransaction
from acorn.stores.rules import send_simple_commit

WRITE_NUMBER = """
    INSERT INTO writers VALUES ($1, $2, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET last_transaction = excluded.last_transaction, written = excluded.written
"""
# `FOR UPDATE` waits for the end of the transaction if the server still executes the transaction.
_READ_NUMBER = "SELECT last_transaction FROM writers WHERE id = $1 FOR UPDATE"


class _UncertainCommit(NamedTuple):
    """The jobs of a transaction with an unknown result.

    The connection broke after the COMMIT was sent and before the database confirmed it.
    """

    number: int
    jobs: list[CommitJob[Any]]
    outcomes: list[CommitResult]


class PostgresWriter(GroupCommitWriter[Connection[TupleRow]]):
    """A writer that executes many jobs in one transaction of a PostgreSQL database."""

    def __init__(self, connection: PostgresConnection, database: Database) -> None:
        super().__init__(connection, database.name)
        self._database = database

    def _reset(self) -> None:
        super()._reset()
        self._uncertain: _UncertainCommit | None = None
        self._id, self._number = secrets.token_hex(8), 0

    def _transact(self, jobs: list[CommitJob[Any]]) -> None:
        try:
            self._write_with_retries(jobs)
        except psycopg.Error as error:
            if is_connection_lost(error) or len(jobs) == 1:
                raise
            for job in jobs:  # One of the jobs caused the error. Write each job alone to find this job.
                try:
                    self._write_with_retries([job])
                except psycopg.Error as job_error:
                    job.outcome = job.outcome or CommitResult(error=self._explain(job_error))

    def _write_with_retries(self, jobs: list[CommitJob[Any]]) -> None:
        def write_once() -> None:
            connection = self._connection.connect()
            self._resolve_uncertain(connection)
            unwritten = [job for job in jobs if job.outcome is None]
            if not unwritten:
                return
            try:
                self._write_together(connection, unwritten)
            except psycopg.Error as error:
                if self._uncertain is None or is_connection_lost(error):
                    raise
                # The database reported the error, and can be asked at once.
                self._connection.drop()
                self._resolve_uncertain(self._connection.connect())
                if any(job.outcome is None for job in unwritten):
                    raise

        self._database.retry(write_once, self._connection.drop)

    def _write_together(self, connection: Connection[TupleRow], jobs: list[CommitJob[Any]]) -> None:
        def write_all() -> list[CommitResult]:
            transaction = PostgresTransaction(connection)
            transaction.control(b"BEGIN")
            transaction.execute(WRITE_NUMBER, [self._id, self._number])
            results = _execute_all(transaction, jobs)
            if all(result.is_undone for result in results):
                transaction.control(b"ROLLBACK")
                return results
            self._uncertain = _UncertainCommit(self._number, jobs, results)
            transaction.control(b"COMMIT")
            _notify(transaction, transaction.notifications)
            return results

        self._number += 1
        _set_outcomes(jobs, run_in_pipeline(connection, write_all))
        self._uncertain = None

    def _resolve_uncertain(self, connection: Connection[TupleRow]) -> None:
        """Check whether the database has committed a transaction with an unknown result.

        If it has, set the outcomes of the jobs.
        """
        uncertain = self._uncertain
        if uncertain is not None:
            row = PostgresTransaction(connection).execute(_READ_NUMBER, [self._id]).fetchone()
            if row is not None and row[0] == uncertain.number:
                _set_outcomes(uncertain.jobs, uncertain.outcomes)
            self._uncertain = None

    def _explain(self, error: Exception) -> Exception:
        if not isinstance(error, psycopg.Error):
            return error
        explained = self._database.explain(error)
        if self._uncertain is not None:
            self._uncertain = None
            return StoreError(
                f"It is unknown whether {self._name} has stored the last commit: {explained} Resume the run. "
                f"It continues after its last stored commit."
            )
        return explained


def _set_outcomes(jobs: list[CommitJob[Any]], outcomes: list[CommitResult]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=True):
        job.outcome = outcome


def _execute_all(transaction: PostgresTransaction, jobs: list[CommitJob[Any]]) -> list[CommitResult]:
    """Execute jobs in the current transaction, and return their results.

    The statements of consecutive simple commits of different runs are sent before the first result is read. Any other
    job may depend on the results of the jobs before it.
    """
    results: dict[int, CommitResult] = {}
    sent: dict[str, tuple[int, Callable[[], bool]]] = {}
    """The jobs whose results are not yet read: their indexes and the functions that wait for the results, by run id."""

    def read_results() -> None:
        for index, was_stored in sent.values():
            results[index] = CommitResult() if was_stored() else execute(jobs[index])
        sent.clear()

    def execute(job: CommitJob[Any]) -> CommitResult:
        return _execute(transaction, job, is_single=len(jobs) == 1)

    for index, job in enumerate(jobs):
        commit = job.simple_commit
        if commit is None or commit.root in sent:
            read_results()
        if commit is None:
            results[index] = execute(job)
        else:
            sent[commit.root] = index, send_simple_commit(transaction, commit)
    read_results()
    return [results[index] for index in range(len(jobs))]


def _execute(transaction: PostgresTransaction, job: CommitJob[Any], *, is_single: bool) -> CommitResult:
    """Execute a job in the current transaction. If the job fails, undo only its own writes."""
    notifications = len(transaction.notifications)
    if not is_single:
        transaction.control(b"SAVEPOINT one")
    try:
        outcome = job.execute(transaction)
    except psycopg.Error:  # PostgreSQL has already aborted the whole transaction.
        raise
    except Exception as error:
        outcome = CommitResult(error=error, is_undone=True)
        del transaction.notifications[notifications:]
        if not is_single:
            transaction.control(b"ROLLBACK TO one")
    if not is_single:
        transaction.control(b"RELEASE one")
    return outcome


def _notify(transaction: PostgresTransaction, notifications: Iterable[tuple[str, str]]) -> None:
    """Send notifications in a transaction that contains nothing else.

    PostgreSQL commits transactions with notifications one after another, so notifications would slow down large
    transactions.
    """
    unique = list(dict.fromkeys(notifications))
    if unique:
        sql = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS news (channel, payload)"
        transaction.execute(sql, [[channel for channel, _ in unique], [payload for _, payload in unique]])
