"""Runs in one SQLite file, by the standard library: for many threads and processes of one machine.

What is written goes through the writer, in transactions that many share; what is read goes past it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from acorn.errors import StoreError
from acorn.stores import sqlite_reads as reads
from acorn.stores import sqlite_writes as writes
from acorn.stores import words
from acorn.stores.holder import nudge
from acorn.stores.port import Answered, Commit, Heard, Holder, Kept, Queued, RunFacts, Status
from acorn.stores.schema import MIGRATIONS, Migration
from acorn.stores.sharing import SharedConnection
from acorn.stores.sqlite_connection import FileConnection, explained, patiently
from acorn.stores.sqlite_file import open_file
from acorn.stores.sqlite_writer import SQLiteWriter
from acorn.types import Request

T = TypeVar("T")


class SQLiteStore:
    """A store in a file, `SQLiteStore("runs.db")`. The file is made when it is first used."""

    def __init__(self, path: str | os.PathLike[str], *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self._name = os.fspath(path)
        whole, name = Path(os.path.realpath(os.path.expanduser(self._name))), self._name
        self._reading = FileConnection(whole, lambda: open_file(whole, name, migrations))
        self._writing = FileConnection(whole, lambda: open_file(whole, name, migrations))
        self._writer = SQLiteWriter(self._writing, name)
        # Also when the program ends, and when the store is forgotten.
        weakref.finalize(self, _close, self._writer, self._writing, self._reading)

    def __repr__(self) -> str:
        return f"SQLiteStore({self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    # By whoever drives a run

    def commit(self, commit: Commit) -> Future[None]:
        return self._writer.submit(lambda connection: writes.commit(connection, commit, self._name))

    def claim(self, run_id: str, holder: Holder) -> Sequence[Kept] | None:
        claimed = self._write(lambda connection: writes.claim(connection, run_id, holder))
        if isinstance(claimed, StoreError):  # what it found out about the run was worth keeping
            raise claimed
        return claimed

    def release(self, run_id: str, holder: Holder, status: Status) -> None:
        self._write(lambda connection: writes.release(connection, run_id, holder, status))

    def answers(self, run_id: str) -> Sequence[Answered]:
        return self._read(lambda connection: reads.answers(connection, run_id))

    def beat(self, holder: Holder, seconds: float) -> Sequence[str]:
        return self._write(lambda connection: writes.beat(connection, holder, seconds))

    # By whoever wants runs to begin elsewhere

    def put(self, runs: Sequence[Queued], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            raise words.no_engine(self._name)
        return self._write(lambda connection: writes.put(connection, runs))

    def statuses(self, run_ids: Sequence[str]) -> Mapping[str, Status]:
        return self._read(lambda connection: reads.statuses(connection, run_ids))

    def has_unwanted(self, holder: Holder) -> bool:
        return self._read(lambda connection: reads.has_unwanted(connection, holder.id))

    # By whoever looks on

    def read(self, run_id: str) -> Sequence[Kept]:
        return self._read(lambda connection: reads.tree(connection, run_id))

    def media(self, wanted: Sequence[str]) -> Mapping[str, bytes]:
        return self._read(lambda connection: reads.media(connection, wanted))

    def find(self, prefix: str) -> Sequence[str]:
        return self._read(lambda connection: reads.find(connection, prefix))

    def list(
        self,
        *,
        status: Sequence[Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[RunFacts]:
        return self._read(lambda connection: reads.listed(connection, status, agent, batch, before, limit))

    def holding(self, run_ids: Sequence[str], text: str) -> Sequence[str]:
        return self._read(lambda connection: reads.holding(connection, run_ids, text))

    def follow(self, run_id: str, after: int = 0) -> tuple[Status | None, Sequence[Heard]]:
        return self._read(lambda connection: reads.follow(connection, run_id, after))

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        return self._read(lambda connection: reads.requests(connection, run_id))

    def answer(self, request_id: str, value: Any) -> Request:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise words.not_plain(request_id, error) from error
        return self._write(lambda connection: writes.answer(connection, request_id, text, self._name))

    def cancel(self, run_id: str) -> None:
        self._write(lambda connection: writes.cancel(connection, run_id, self._name))
        nudge(self)

    def delete(self, run_id: str) -> None:
        self._write(lambda connection: writes.delete(connection, run_id, self._name))

    def close(self) -> None:
        _close(self._writer, self._writing, self._reading)

    def _write(self, act: Callable[[sqlite3.Connection], T]) -> T:
        return self._writer.submit(act).result()

    def _read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """All that it asks for is as of one moment."""

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
