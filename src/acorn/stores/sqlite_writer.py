"""What waits to be written to a SQLite file, in transactions that many share; and room for other processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from acorn.errors import StoreError
from acorn.stores.sharing import SharedConnection
from acorn.stores.sqlite_connection import explained, jitter, patiently
from acorn.stores.writer import Done, Job, Writer

T = TypeVar("T")

_TURN = 0.02
"""Seconds for which a process writes before it looks whether others want to."""


class SQLiteWriter(Writer[sqlite3.Connection, Job]):
    def __init__(self, connection: SharedConnection[sqlite3.Connection], name: str) -> None:
        super().__init__(connection, name)
        self._has_met = False
        self._seen = (0, 0)
        self._ended = 0.0
        self._looked = 0.0

    def submit(self, act: Callable[[sqlite3.Connection], T]) -> Future[T]:
        return self._put(Job(self, act))

    def _transact(self, opened: Callable[[], sqlite3.Connection], jobs: list[Job]) -> None:
        connection = opened()
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._meet_others)
        outcomes: list[Done] = []
        try:
            self._look_for_others(connection)
            is_alone = len(jobs) == 1
            outcomes = [Done(job.act(connection)) if is_alone else self._apart(connection, job) for job in jobs]
            connection.execute("COMMIT")
        except StoreError as error:  # of the only job
            connection.execute("ROLLBACK")
            outcomes = [Done(error=error)]
        except Exception:
            raise
        except BaseException:
            if outcomes and not connection.in_transaction:  # Ctrl-C, when all was done
                self._know(jobs, outcomes)
            raise
        finally:
            self._ended = time.monotonic()
        self._know(jobs, outcomes)

    def _apart(self, connection: sqlite3.Connection, job: Job) -> Done:
        """Do one of several: its failure undoes what it did, and nothing else."""
        connection.execute("SAVEPOINT one")
        try:
            outcome = Done(job.act(connection))
        except Exception as error:
            if not connection.in_transaction:  # a full disk and the like undo everything
                raise
            connection.execute("ROLLBACK TO one")
            outcome = Done(error=self._told(error))
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
