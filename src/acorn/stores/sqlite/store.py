"""The SQLite store: runs in one file, for many threads and processes of one machine.

Writes go through a writer that puts many of them into one transaction. Reads use their own connection.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from acorn.errors import StoreError
from acorn.stores import messages
from acorn.stores.database import DatabaseStore, SharedConnection
from acorn.stores.group_commit import CommitJob, CommitResult, GroupCommitWriter
from acorn.stores.lease import wake_heartbeat
from acorn.stores.port import Commit, Process, QueuedRun
from acorn.stores.sqlite import reads, writes
from acorn.stores.sqlite.connection import FileConnection, explain, open_file, retry_delay, retry_while_busy

T = TypeVar("T")

_CHECK_INTERVAL = 0.02
"""Seconds for which a process writes before it checks whether other processes write too."""


class SQLiteWriter(GroupCommitWriter[sqlite3.Connection, CommitJob]):
    """Writes jobs to a SQLite file.

    A process that writes without a pause would leave other processes no gap in which to write. If there are others, it
    makes a gap.
    """

    def __init__(self, connection: SharedConnection[sqlite3.Connection], name: str) -> None:
        super().__init__(connection, name)
        self._has_seen_others = False
        self._data_version = (0, 0)
        """The connection, by its `id()`, and SQLite's counter of changes by others."""
        self._last_write = 0.0
        self._last_check = 0.0

    def submit(self, act: Callable[[sqlite3.Connection], T]) -> Future[T]:
        return self._put(CommitJob(self, act))

    def _transact(self, opened: Callable[[], sqlite3.Connection], jobs: list[CommitJob]) -> None:
        connection = opened()
        retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"), self._note_others)
        outcomes: list[CommitResult] = []
        try:
            self._check_for_others(connection)
            is_single = len(jobs) == 1
            outcomes = [
                CommitResult(job.act(connection)) if is_single else self._in_savepoint(connection, job) for job in jobs
            ]
            connection.execute("COMMIT")
        except StoreError as error:  # Raised only by a single job. The others catch theirs in a savepoint.
            connection.execute("ROLLBACK")
            outcomes = [CommitResult(error=error)]
        except Exception:
            raise
        except BaseException:
            if outcomes and not connection.in_transaction:  # Ctrl-C after the commit
                self._set_outcomes(jobs, outcomes)
            raise
        finally:
            self._last_write = time.monotonic()
        self._set_outcomes(jobs, outcomes)

    def _in_savepoint(self, connection: sqlite3.Connection, job: CommitJob) -> CommitResult:
        """Execute one of several jobs. If it fails, only its own writes are undone."""
        connection.execute("SAVEPOINT one")
        try:
            outcome = CommitResult(job.act(connection))
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

    def _yield_to_others(self) -> None:
        if self._has_seen_others:
            self._has_seen_others = False
            time.sleep(max(0.0, self._last_write + retry_delay() - time.monotonic()))

    def _note_others(self) -> None:
        self._has_seen_others = True

    def _check_for_others(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() < self._last_check + _CHECK_INTERVAL:
            return
        self._last_check = time.monotonic()
        (version,) = connection.execute("PRAGMA data_version").fetchone()  # changes when other processes write
        if self._data_version[0] == id(connection) and self._data_version[1] != version:
            self._has_seen_others = True
        self._data_version = (id(connection), version)


class SQLiteStore(DatabaseStore[sqlite3.Connection]):
    """A store in a file, such as `SQLiteStore("runs.db")`. The file is created when the store is first used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = os.fspath(path)
        super().__init__(name, reads, writes, writes)
        absolute = Path(os.path.realpath(os.path.expanduser(name)))
        self._read_connection = FileConnection(absolute, lambda: open_file(absolute, name))
        self._write_connection = FileConnection(absolute, lambda: open_file(absolute, name))
        self._writer = SQLiteWriter(self._write_connection, name)
        # Also closes the store at the end of the program, and when no reference to it is left.
        weakref.finalize(self, _close, self._writer, self._write_connection, self._read_connection)

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(lambda connection: writes.commit(connection, commit, self._name))

    def enqueue(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            raise messages.no_workers(self._name)
        return self.transact(lambda connection: writes.enqueue(connection, runs))

    def has_cancel_requests(self, process: Process) -> bool:
        return self._read(lambda connection: reads.has_cancel_requests(connection, process.id))

    def cancel(self, run_id: str) -> None:
        super().cancel(run_id)
        wake_heartbeat(self)

    def close(self) -> None:
        _close(self._writer, self._write_connection, self._read_connection)

    def transact(self, act: Callable[[sqlite3.Connection], T], run_id: str | None = None) -> T:
        return self._writer.submit(act).result()

    def _read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        def in_transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN")
            try:
                return act(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        try:
            return self._read_connection.use(lambda opened: retry_while_busy(lambda: in_transaction(opened())))
        except sqlite3.Error as error:
            raise explain(error, self._name) from error


def _close(writer: SQLiteWriter, *connections: SharedConnection[sqlite3.Connection]) -> None:
    writer.close()
    for connection in connections:
        connection.close()
