"""What waits to be written to a SQLite file, in transactions that many share; and room for other processes.

Runs in one SQLite file, by the standard library: for many threads and processes of one machine.

What is written goes through the writer, in transactions that many share; what is read goes past it.
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
from acorn.stores.lease import nudge_heartbeat
from acorn.stores.port import Commit, Process, QueuedRun
from acorn.stores.sqlite import reads as reads
from acorn.stores.sqlite import writes as writes
from acorn.stores.sqlite.connection import (
    MIGRATIONS,
    FileConnection,
    Migration,
    explained,
    jitter,
    open_file,
    patiently,
)

T = TypeVar("T")

_TURN = 0.02
"""Seconds for which a process writes before it looks whether others want to."""


class SQLiteWriter(GroupCommitWriter[sqlite3.Connection, CommitJob]):
    def __init__(self, connection: SharedConnection[sqlite3.Connection], name: str) -> None:
        super().__init__(connection, name)
        self._has_met = False
        self._seen = (0, 0)
        self._ended = 0.0
        self._looked = 0.0

    def submit(self, act: Callable[[sqlite3.Connection], T]) -> Future[T]:
        return self._put(CommitJob(self, act))

    def _transact(self, opened: Callable[[], sqlite3.Connection], jobs: list[CommitJob]) -> None:
        connection = opened()
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._meet_others)
        outcomes: list[CommitResult] = []
        try:
            self._look_for_others(connection)
            is_alone = len(jobs) == 1
            outcomes = [CommitResult(job.act(connection)) if is_alone else self._apart(connection, job) for job in jobs]
            connection.execute("COMMIT")
        except StoreError as error:  # of the only job
            connection.execute("ROLLBACK")
            outcomes = [CommitResult(error=error)]
        except Exception:
            raise
        except BaseException:
            if outcomes and not connection.in_transaction:  # Ctrl-C, when all was done
                self._know(jobs, outcomes)
            raise
        finally:
            self._ended = time.monotonic()
        self._know(jobs, outcomes)

    def _apart(self, connection: sqlite3.Connection, job: CommitJob) -> CommitResult:
        """Do one of several: its failure undoes what it did, and nothing else."""
        connection.execute("SAVEPOINT one")
        try:
            outcome = CommitResult(job.act(connection))
        except Exception as error:
            if not connection.in_transaction:  # a full disk and the like undo everything
                raise
            connection.execute("ROLLBACK TO one")
            outcome = CommitResult(error=self._told(error))
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


class SQLiteStore(DatabaseStore[sqlite3.Connection]):
    """A store in a file, `SQLiteStore("runs.db")`. The file is made when it is first used."""

    def __init__(self, path: str | os.PathLike[str], *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        name = os.fspath(path)
        super().__init__(name, reads, writes, writes)
        whole = Path(os.path.realpath(os.path.expanduser(name)))
        self._reading = FileConnection(whole, lambda: open_file(whole, name, migrations))
        self._writing = FileConnection(whole, lambda: open_file(whole, name, migrations))
        self._writer = SQLiteWriter(self._writing, name)
        # Also when the program ends, and when the store is forgotten.
        weakref.finalize(self, _close, self._writer, self._writing, self._reading)

    # By whoever drives a run

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(lambda connection: writes.commit(connection, commit, self._name))

    # By whoever wants runs to begin elsewhere

    def put(self, runs: Sequence[QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            raise messages.no_engine(self._name)
        return self.transact(lambda connection: writes.put(connection, runs))

    def has_unwanted(self, holder: Process) -> bool:
        return self._read(lambda connection: reads.has_unwanted(connection, holder.id))

    # By whoever looks on

    def cancel(self, run_id: str) -> None:
        super().cancel(run_id)
        nudge_heartbeat(self)

    def close(self) -> None:
        _close(self._writer, self._writing, self._reading)

    def transact(self, act: Callable[[sqlite3.Connection], T], run_id: str | None = None) -> T:
        return self._writer.submit(act).result()

    def _read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        def in_one_go(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN")
            try:
                return act(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        try:
            return self._reading.use(lambda opened: patiently(lambda: in_one_go(opened())))
        except sqlite3.Error as error:
            raise explained(error, self._name) from error


def _close(writer: SQLiteWriter, *connections: SharedConnection[sqlite3.Connection]) -> None:
    writer.close()
    for connection in connections:
        connection.close()
