"""The SQLite store: runs in one file, for many threads and processes on one machine.

Reads and writes use separate connections. The writer puts many writes into one transaction. The memory store uses
the same code with a database in memory.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from acorn.errors import StoreError
from acorn.stores import rules
from acorn.stores.database import DatabaseStore
from acorn.stores.group_commit import CommitJob, CommitResult, GroupCommitWriter, SharedConnection
from acorn.stores.lease import wake_heartbeat
from acorn.stores.port import Commit, Process, QueuedRun
from acorn.stores.sqlite import reads, writes
from acorn.stores.sqlite.schema import explain, open_file, open_memory, retry_delay, retry_while_busy

T = TypeVar("T")

_STAT_INTERVAL = 0.02
"""Seconds between two checks whether the file was deleted or replaced."""
_VERSION_INTERVAL = 0.02
"""Seconds between two checks whether another process has written to the file."""


class FileConnection(SharedConnection[sqlite3.Connection]):
    """A connection to a SQLite file that many threads share.

    If the file is deleted or replaced, the next use opens a new connection.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(lambda: open_file(path, name))
        self._path = str(path)
        self._file: tuple[int, int] | None = None
        self._last_check = 0.0

    def connect(self) -> sqlite3.Connection:
        if time.monotonic() > self._last_check + _STAT_INTERVAL:
            self._last_check = time.monotonic()
            if self._connection is not None and self._file != self._file_identity():
                self.drop()
        if self._connection is None:
            self._connection = self._open()
            self._file = self._file_identity()
        return self._connection

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


class MemoryConnection(SharedConnection[sqlite3.Connection]):
    """A connection to a SQLite database in memory, which exists as long as the connection.

    Reads and writes share the connection. After a fork, the child has a copy of the database.
    """

    def __init__(self) -> None:
        super().__init__(open_memory)

    def drop(self) -> None:
        """Undo an interrupted transaction, because a closed connection would lose the runs."""
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()

    def close(self) -> None:
        """Close the connection and delete the database."""
        with self._lock:
            super().drop()


class SQLiteWriter(GroupCommitWriter[sqlite3.Connection, CommitJob]):
    """A writer that executes many jobs in one transaction of a SQLite file.

    A process that writes all the time would block all other processes. Therefore the writer pauses between transactions
    if other processes also write to the file.
    """

    def __init__(self, connection: SharedConnection[sqlite3.Connection], name: str) -> None:
        super().__init__(connection, name)
        self._has_seen_others = False
        """Whether another process has written since the last pause."""
        self._data_version = (0, 0)
        """The `id()` of the connection, and SQLite's counter of changes by other connections."""
        self._last_check = 0.0

    def submit(self, operation: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Add a job that calls a function in a transaction with other jobs, and return the future of the job."""
        return self._put(CommitJob(self, operation))

    def _transact(self, jobs: list[CommitJob]) -> None:
        connection = self._connection.connect()
        self._begin(connection)
        outcomes: list[CommitResult] = []
        try:
            self._check_for_others(connection)
            is_single = len(jobs) == 1
            outcomes = [
                CommitResult(job.operation(connection)) if is_single else self._execute_in_savepoint(connection, job)
                for job in jobs
            ]
            connection.execute("COMMIT")
        except StoreError as error:  # Only a single job raises its error. The savepoints catch the errors of many jobs.
            connection.execute("ROLLBACK")
            outcomes = [CommitResult(error=error)]
        except Exception:
            raise
        except BaseException:
            if outcomes and not connection.in_transaction:  # Ctrl-C arrived after the commit.
                self._set_outcomes(jobs, outcomes)
            raise
        finally:
            if self._has_seen_others:
                self._has_seen_others = False
                self._not_before = time.monotonic() + retry_delay()
        self._set_outcomes(jobs, outcomes)

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin a write transaction. If another process writes to the file, wait until it has finished."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._has_seen_others = True
            retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))

    def _execute_in_savepoint(self, connection: sqlite3.Connection, job: CommitJob) -> CommitResult:
        """Execute a job inside a savepoint of the current transaction.

        If the job fails, undo only its own writes.
        """
        connection.execute("SAVEPOINT one")
        try:
            outcome = CommitResult(job.operation(connection))
        except Exception as error:
            if not connection.in_transaction:  # Some errors, such as a full disk, roll back the whole transaction.
                raise
            connection.execute("ROLLBACK TO one")
            outcome = CommitResult(error=self._explain(error))
        connection.execute("RELEASE one")
        return outcome

    def _explain(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error):
            return error
        explained = explain(error, self._name)
        explained.__cause__ = error
        return explained

    def _check_for_others(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() < self._last_check + _VERSION_INTERVAL:
            return
        self._last_check = time.monotonic()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self._data_version[0] == id(connection) and self._data_version[1] != version:
            self._has_seen_others = True
        self._data_version = (id(connection), version)


class SQLiteStore(DatabaseStore[sqlite3.Connection]):
    """A store in a file, such as `SQLiteStore("runs.db")`.

    The file is created when the store is first used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = os.fspath(path)
        absolute = Path(os.path.realpath(os.path.expanduser(name)))
        self._use(name, FileConnection(absolute, name), FileConnection(absolute, name))

    def _use(
        self, name: str, read: SharedConnection[sqlite3.Connection], write: SharedConnection[sqlite3.Connection]
    ) -> None:
        super().__init__(name, reads, writes, writes)
        self._read_connection, self._write_connection = read, write
        self._writer = SQLiteWriter(write, name)
        # Also closes the store at the end of the program, and when no reference to the store is left.
        weakref.finalize(self, _close, self._writer, write, read)

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(partial(writes.commit, commit=commit, name=self._name))

    def enqueue(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            raise rules.no_workers_error(self._name)
        return self.transact(partial(writes.enqueue, runs=runs))

    def has_cancel_requests(self, process: Process) -> bool:
        return self._read(partial(reads.has_cancel_requests, process_id=process.id))

    def cancel(self, run_id: str) -> None:
        super().cancel(run_id)
        wake_heartbeat(self)

    def close(self) -> None:
        _close(self._writer, self._write_connection, self._read_connection)

    def transact(self, operation: Callable[[sqlite3.Connection], T], run_id: str | None = None) -> T:
        return self._writer.submit(operation).result()

    def _read(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return self._read_connection.use(lambda: retry_while_busy(lambda: self._read_in_transaction(operation)))
        except sqlite3.Error as error:
            raise explain(error, self._name) from error

    def _read_in_transaction(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._read_connection.connect()
        connection.execute("BEGIN")
        try:
            return operation(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


class MemoryStore(SQLiteStore):
    """A store in the memory of this process.

    Its runs are lost when the process ends.
    """

    def __init__(self) -> None:
        connection = MemoryConnection()
        self._use("memory", connection, connection)

    def close(self) -> None:
        """Finish pending writes. The runs remain in memory."""
        self._writer.close()


def _close(writer: SQLiteWriter, *connections: SharedConnection[sqlite3.Connection]) -> None:
    writer.close()
    for connection in connections:
        connection.close()
