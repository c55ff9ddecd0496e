"""Runs in one SQLite file, by the standard library: for many threads and processes of one machine.

What is written goes through the writer, in transactions that many share; what is read goes past it.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from acorn.stores import sqlite_reads as reads
from acorn.stores import sqlite_writes as writes
from acorn.stores import words
from acorn.stores.database import DatabaseStore
from acorn.stores.holder import nudge
from acorn.stores.port import Commit, Holder, Queued
from acorn.stores.schema import MIGRATIONS, Migration
from acorn.stores.sharing import SharedConnection
from acorn.stores.sqlite_connection import FileConnection, explained, patiently
from acorn.stores.sqlite_file import open_file
from acorn.stores.sqlite_writer import SQLiteWriter

T = TypeVar("T")


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

    def put(self, runs: Sequence[Queued], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            raise words.no_engine(self._name)
        return self.transact(lambda connection: writes.put(connection, runs))

    def has_unwanted(self, holder: Holder) -> bool:
        return self._read(lambda connection: reads.has_unwanted(connection, holder.id))

    # By whoever looks on

    def cancel(self, run_id: str) -> None:
        super().cancel(run_id)
        nudge(self)

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
