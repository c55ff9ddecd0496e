"""The PostgreSQL store: runs in a database, for many processes on many machines.

A process has one connection for reads and one connection for writes. The writer puts many commits into one transaction
and sends their statements together. The writer knows the result of each commit before the transaction is committed. If
the connection breaks while the transaction is committed, the writer must find out whether the database has stored the
transaction. Therefore each transaction stores its number.

While the process drives or watches runs, it has a third connection for notifications.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow

from acorn.errors import StoreError
from acorn.stores.database import DatabaseStore
from acorn.stores.group_commit import CommitJob, CommitResult, GroupCommitWriter
from acorn.stores.port import Commit, PlaceAnswer, PlaceOrder, Process, QueuedRun
from acorn.stores.postgres import claims, queue, reads, writes
from acorn.stores.postgres.connection import (
    Database,
    PostgresConnection,
    Transaction,
    is_connection_lost,
    run_in_pipeline,
)
from acorn.stores.postgres.listener import Listener, PostgresWatch
from acorn.types import JsonObject

T = TypeVar("T")


class PostgresStore(DatabaseStore[Transaction]):
    """A store in a PostgreSQL database, such as `PostgresStore("postgresql://host/name")`.

    The store creates its tables at its first use.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        super().__init__(self._database.name, reads, claims, writes)
        self._read_connection = PostgresConnection(self._database.open)
        self._write_connection = PostgresConnection(self._database.open)
        self._writer = PostgresWriter(self._write_connection, self._database)
        self._listener = Listener(self._database)
        self._has_engine = False
        # Also closes the store at the end of the program, and when no reference to the store is left.
        weakref.finalize(self, _close, self._listener, self._writer, self._write_connection, self._read_connection)

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(
            commit.root,
            lambda transaction: writes.commit(transaction, commit, self._name),
            lambda transaction: writes.send_simple_commit(transaction, commit),
        )

    def enqueue(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            self.prepare_engine()
        return self.transact(lambda transaction: writes.enqueue(transaction, runs, deliver))

    def close(self) -> None:
        _close(self._listener, self._writer, self._write_connection, self._read_connection)

    # Called by workers

    def prepare_engine(self) -> None:
        """Create the tables of the job engine if they do not exist."""
        if not self._has_engine:
            self._database.use_once(lambda connection: queue.prepare_engine(connection, self._name))
            self._has_engine = True

    def engine_parameters(self) -> JsonObject:
        """Return the parameters, including the password, with which the job engine connects to the database."""
        parameters = self._database.address.parameters
        return {**parameters, "options": f"{parameters.get('options', '')} -c search_path={queue.SCHEMA}".strip()}

    def register_worker(self, process: Process, agents: Sequence[str], concurrency: int) -> None:
        """Register a worker process with its agent classes and the maximum number of its concurrent runs."""
        self.transact(lambda transaction: queue.register_worker(transaction, process, agents, concurrency))

    def unregister_worker(self, process: Process) -> None:
        """Remove a worker process that has stopped from the stored list of workers."""
        self.transact(lambda transaction: queue.unregister_worker(transaction, process))

    def requeue_lost(self, agents: Sequence[str], seconds: float) -> Sequence[str]:
        """Add jobs for lost runs of some agent classes, and return the ids of these runs.

        A run is lost if no live process drives it and it has no pending job.
        """
        return self.transact(lambda transaction: queue.requeue_lost(transaction, agents, seconds))

    def fail_undriven(self, run_id: str, error: str) -> bool:
        """Set the status of a `queued` or `stopped` run that no worker can drive to `failed`, and return True.

        If the run has another status or does not exist, change nothing and return False.
        """
        return self.transact(lambda transaction: claims.fail_undriven(transaction, run_id, error), run_id)

    def fleet(self) -> queue.FleetFacts:
        """Return the live workers, and the numbers of runs of each agent class."""
        return self._read(queue.fleet)

    # Notifications

    def watch(self, run_id: str) -> PostgresWatch:
        def register(seconds: float) -> int | None:
            return self.transact(lambda transaction: writes.watch(transaction, run_id, seconds))

        return PostgresWatch(self._listener, register)

    def on_cancel_request(self, process: Process, call: Callable[[], None]) -> Callable[[], None]:
        notification = (claims.CANCEL_CHANNEL, process.id)
        self._listener.add(notification, call)
        return lambda: self._listener.remove(notification, call)

    # Shared rate limits

    def take_place(self, order: PlaceOrder) -> PlaceAnswer:
        # This method does not use the writer, because a request to a model must not wait for commits. If the connection
        # breaks, the database may store a second place, which is not used and expires.
        return self._read_connection.execute(self._database, lambda transaction: writes.take_place(transaction, order))

    # Transactions

    def transact(self, operation: Callable[[Transaction], T], run_id: str | None = None) -> T:
        return self._writer.submit(run_id, operation).result()

    def _read(self, operation: Callable[[Transaction], T]) -> T:
        return self._read_connection.read(self._database, operation)


def _close(listener: Listener, writer: PostgresWriter, *connections: PostgresConnection) -> None:
    listener.close()
    writer.close()
    for connection in connections:
        connection.close()


# The writer

_SendFirst = Callable[[Transaction], Callable[[], bool] | None]
"""A function that sends one statement, which completes a simple job.

It returns a function that waits for the result and returns whether the job is complete. It returns None if the job
needs more statements.
"""

WRITE_NUMBER = b"""
    INSERT INTO acorn.writers VALUES ($1, $2, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET last_transaction = excluded.last_transaction, written = excluded.written
"""
# `FOR UPDATE` waits for the end of the transaction if the server still executes the transaction.
_READ_NUMBER = b"SELECT last_transaction FROM acorn.writers WHERE id = $1 FOR UPDATE"


class _WriteJob(CommitJob):
    """A job of the writer, with an optional statement that is sent early.

    The writer sends the early statements of all jobs before it waits for the first result.
    """

    def __init__(
        self,
        writer: PostgresWriter,
        key: str | None,
        operation: Callable[[Transaction], Any],
        send_first: _SendFirst | None,
    ) -> None:
        super().__init__(writer, operation)
        self.key, self.send_first = key, send_first


class _UncertainCommit(NamedTuple):
    """The jobs of a transaction with an unknown result.

    The connection broke after the COMMIT was sent and before the database confirmed it.
    """

    number: int
    jobs: list[_WriteJob]
    outcomes: list[CommitResult]


class PostgresWriter(GroupCommitWriter[Connection[TupleRow], _WriteJob]):
    """A writer that executes many jobs in one transaction of a PostgreSQL database."""

    def __init__(self, connection: PostgresConnection, database: Database) -> None:
        super().__init__(connection, database.name)
        self._database = database
        self._uncertain: _UncertainCommit | None = None
        self._has_cleaned_up = False
        self._reset_numbers()

    def _reset_numbers(self) -> None:
        self._id, self._number = secrets.token_hex(8), 0

    def submit(
        self, key: str | None, operation: Callable[[Transaction], T], send_first: _SendFirst | None = None
    ) -> Future[T]:
        """Add a job that calls a function in a transaction with other jobs, and return the future of the job.

        `key` is the id of the run that the job writes to. `send_first` sends a statement before the results of earlier
        jobs are known. It is called only if no earlier job in the transaction has the same `key`.
        """
        return self._put(_WriteJob(self, key, operation, send_first))

    def _transact(self, jobs: list[_WriteJob]) -> None:
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

    def _write_with_retries(self, jobs: list[_WriteJob]) -> None:
        def write_once() -> None:
            connection = self._connection.connect()
            self._resolve_uncertain(connection)
            self._clean_up(connection)
            unwritten = [job for job in jobs if job.outcome is None]
            if unwritten:
                self._write_together(connection, unwritten)

        self._database.retry(write_once, self._connection.drop)

    def _clean_up(self, connection: Connection[TupleRow]) -> None:
        """Delete old rows of processes, writers and rate limits at the first transaction of this process."""
        if not self._has_cleaned_up:
            self._has_cleaned_up = True
            claims.delete_idle_processes(Transaction(connection))
            writes.delete_unused_limits(Transaction(connection))

    def _write_together(self, connection: Connection[TupleRow], jobs: list[_WriteJob]) -> None:
        def write_all() -> list[CommitResult]:
            transaction = Transaction(connection)
            transaction.control(b"BEGIN")
            transaction.execute(WRITE_NUMBER, [self._id, self._number])
            sent = self._send_first_statements(transaction, jobs)
            is_single = len(jobs) == 1
            results = [
                self._execute(transaction, job, was_stored, is_single)
                for job, was_stored in zip(jobs, sent, strict=True)
            ]
            if all(result.error is not None for result in results):
                transaction.control(b"ROLLBACK")
                return results
            self._uncertain = _UncertainCommit(self._number, jobs, results)
            transaction.control(b"COMMIT")
            _notify(transaction, transaction.notifications)
            return results

        self._number += 1
        outcomes = run_in_pipeline(connection, write_all)
        self._set_outcomes(jobs, outcomes)
        self._uncertain = None

    def _send_first_statements(
        self, transaction: Transaction, jobs: list[_WriteJob]
    ) -> list[Callable[[], bool] | None]:
        """Send the early statements of the jobs, but only for the first job of each run (`job.key`).

        Later jobs of the same run depend on the result of the first job.
        """
        keys: set[str | None] = set()
        sent: list[Callable[[], bool] | None] = []
        for job in jobs:
            is_first = job.key not in keys
            keys.add(job.key)
            sent.append(job.send_first(transaction) if is_first and job.send_first is not None else None)
        return sent

    def _execute(
        self, transaction: Transaction, job: _WriteJob, was_stored: Callable[[], bool] | None, is_single: bool
    ) -> CommitResult:
        """Execute a job in the current transaction.

        If the job fails, undo only its own writes.
        """
        if was_stored is None and job.send_first is not None:
            was_stored = job.send_first(transaction)
        if was_stored is not None and was_stored():
            return CommitResult()
        notifications = len(transaction.notifications)
        if not is_single:
            transaction.control(b"SAVEPOINT one")
        try:
            outcome = CommitResult(job.operation(transaction))
        except psycopg.Error:  # PostgreSQL has already aborted the whole transaction.
            raise
        except Exception as error:
            outcome = CommitResult(error=error)
            del transaction.notifications[notifications:]
            if not is_single:
                transaction.control(b"ROLLBACK TO one")
        if not is_single:
            transaction.control(b"RELEASE one")
        return outcome

    def _resolve_uncertain(self, connection: Connection[TupleRow]) -> None:
        """Check whether the database has committed a transaction with an unknown result.

        If it has, set the outcomes of the jobs.
        """
        uncertain = self._uncertain
        if uncertain is not None:
            row = Transaction(connection).execute(_READ_NUMBER, [self._id]).fetchone()
            if row is not None and row[0] == uncertain.number:
                self._set_outcomes(uncertain.jobs, uncertain.outcomes)
            self._uncertain = None

    def _explain(self, error: Exception) -> Exception:
        if not isinstance(error, psycopg.Error):
            return error
        explained = self._database.explain(error)
        if self._uncertain is not None:
            self._uncertain = None
            return StoreError(
                f"It is unknown whether {self._name} has stored the last commit: {explained} Resume the run; it "
                f"continues after its last stored commit."
            )
        return explained

    def after_fork(self, in_child: bool) -> None:
        if in_child:
            self._uncertain = None  # The transaction belongs to the parent.
            self._reset_numbers()
        super().after_fork(in_child)


def _notify(transaction: Transaction, notifications: Iterable[tuple[str, str]]) -> None:
    """Send notifications in a transaction that contains nothing else.

    PostgreSQL commits transactions with notifications one after another, so notifications would slow down large
    transactions.
    """
    unique = list(dict.fromkeys(notifications))
    if unique:
        sql = b"SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS news (channel, payload)"
        transaction.execute(sql, [[channel for channel, _ in unique], [payload for _, payload in unique]])
