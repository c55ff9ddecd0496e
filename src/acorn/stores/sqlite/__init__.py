"""The SQLite store: runs in one file, for many threads and processes on one machine.

Reads and writes use separate connections. The writer puts many writes into one transaction. The memory store uses the
same code with a database in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from acorn.errors import StoreError
from acorn.stores.group_commit import SharedConnection
from acorn.stores.lease import wake_heartbeat
from acorn.stores.port import Process
from acorn.stores.rules import DatabaseStore, in_snapshot
from acorn.stores.sqlite.connection import (
    SQLITE_ERRORS,
    FileConnection,
    MemoryConnection,
    SQLiteWriter,
    explain,
    retry_while_busy,
)
from acorn.stores.sqlite.statements import SQLiteTransaction
from acorn.stores.statements import Transaction

T = TypeVar("T")


class SQLiteStore(DatabaseStore):
    """A store in a file, such as `SQLiteStore("runs.db")`.

    The file is created when the store is first used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = os.fspath(path)
        absolute = Path(os.path.realpath(os.path.expanduser(name)))
        self._use(name, FileConnection(absolute, name, is_reader=True), FileConnection(absolute, name))

    def _use(self, name: str, read: SharedConnection[Connection], write: SharedConnection[Connection]) -> None:
        self._read_connection, self._write_connection = read, write
        writer = SQLiteWriter(write, name)
        super().__init__(name, writer, writer, write, read)

    def read_transaction(self, operation: Callable[[Transaction], T]) -> T:
        def read() -> T:
            connection = self._read_connection.connect()
            connection.execute("BEGIN")
            try:
                return operation(SQLiteTransaction(connection))
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        try:
            return self._read_connection.use(lambda: retry_while_busy(read))
        except SQLITE_ERRORS as error:
            raise explain(error, self._name) from error

    def _prepare_delivery(self) -> None:
        raise StoreError(
            f"{self._name} cannot deliver runs to workers. Workers need a PostgreSQL store, such as "
            f"`store = 'postgresql://host/name'`. Without workers, call the agent in this process, or submit the run "
            f"with `using(deliver=False)` and pass its id to `acorn.durable.perform`."
        )

    @in_snapshot
    def has_cancel_requests(self, transaction: Transaction, process: Process) -> bool:
        sql = "SELECT 1 FROM runs WHERE process = $1 AND cancel_requested LIMIT 1"
        return transaction.execute(sql, [process.id]).fetchone() is not None

    def cancel(self, run_id: str) -> None:
        super().cancel(run_id)
        wake_heartbeat(self)


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
