"""The tables of a SQLite file, and the statements that differ from other databases."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from sqlite3 import Connection, Cursor
from typing import Any

from acorn.stores import statements as sql
from acorn.stores.port import NOT_STARTED, Change, Commit, Process, QueuedRun, RunHeader, Status
from acorn.stores.statements import CHANGE_COUNT, SET_CHANGE, change_values, encodable
from acorn.types import Usage

_TYPES = {
    "number": "INTEGER PRIMARY KEY",
    "run_key": "INTEGER PRIMARY KEY",
    "id": "TEXT",
    "time": "REAL",  # Seconds since 1970.
    "bytes": "BLOB",
    "worker_columns": "",
    "often_updated": "",
    "no_number": " WITHOUT ROWID",
}
TABLES = (
    *(table.format(**_TYPES) for table in sql.TABLES),
    # The journals in commit order. A position is never used again: when the last entries are deleted, an entry with
    # root 0 reserves the last position. AUTOINCREMENT would write one more page in each commit.
    """
    CREATE TABLE entries (
      position INTEGER PRIMARY KEY, root INTEGER NOT NULL, run INTEGER NOT NULL, entry TEXT NOT NULL
    )
    """,
    "CREATE INDEX entries_by_root ON entries (root)",
)
_DELETE_IDLE_AFTER = 86_400.0
"""Seconds after the end of its lease when the row of an idle process is deleted."""

_AFTER_CHANGE = [f"${CHANGE_COUNT + at}" for at in range(1, 5)]
# The statement does not set the process, which does not change, because that would write a page of an index.
_UPDATE_RUNNING_ROOT = """
    UPDATE runs SET {}, updated = {}
    WHERE id = {} AND entry_count = {} AND process = {} AND root IS NULL AND NOT cancel_requested AND open_requests = 0
    RETURNING number
""".format(SET_CHANGE, *_AFTER_CHANGE)  # fmt: skip
_UPDATE_RUN = """
    UPDATE runs SET {}, updated = clock_timestamp(), process = {},
      cancel_requested = cancel_requested AND $1 = 'running'
    WHERE id = {}
    RETURNING number, coalesce(root, number)
""".format(SET_CHANGE, *_AFTER_CHANGE)  # fmt: skip
_RUN_COLUMNS = f"{sql.HEADER_COLUMNS}, {sql.CHANGE_COLUMNS}, process"
_RUN_VALUES = ["$1", "(SELECT number FROM runs WHERE id = $2)", *sql.parameters(_RUN_COLUMNS)[2:]]
_INSERT_RUN = f"""
    INSERT INTO runs ({_RUN_COLUMNS}, updated) VALUES ({", ".join(_RUN_VALUES)}, clock_timestamp())
    RETURNING number, coalesce(root, number)
"""

_INSERT_STATE = f"INSERT INTO run_states VALUES ($1, coalesce($2, '{{}}'), coalesce($3, '{NOT_STARTED}'))"

_TEXT_LIST = re.compile(r"= ANY\(\$(\d+)::text\[\]\)")
_PARAMETER = re.compile(r"\$\d+")
_TRANSLATIONS = {
    # One transaction at a time writes to a file, so rows need no locks.
    " FOR UPDATE": "",
    "DO UPDATE SET sha256 = excluded.sha256": "DO NOTHING",
    'COLLATE "C" ILIKE': "LIKE",
}


@cache
def _translate(statement: str) -> tuple[str, bool]:
    """Translate a statement of `stores/statements.py` to the SQL of SQLite.

    The second result is True if the statement has a parameter with a list, which SQLite takes as JSON text.
    """
    text, lists = _TEXT_LIST.subn(r"IN (SELECT value FROM json_each($\1))", statement)
    for postgres, sqlite in _TRANSLATIONS.items():
        text = text.replace(postgres, sqlite)
    # Some versions of Python 3.12 warn about numbered parameters, so only parameters that repeat have numbers.
    numbers = _PARAMETER.findall(text)
    if numbers == [f"${at}" for at in range(1, len(numbers) + 1)]:
        return _PARAMETER.sub("?", text), lists > 0
    return text.replace("$", "?"), lists > 0


class SQLiteTransaction(sql.Transaction):
    """A transaction of a SQLite database.

    The connection must have the SQL function `clock_timestamp`.
    """

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        text, has_lists = _translate(sql)
        if has_lists:
            values = [json.dumps(value) if isinstance(value, list) else value for value in values]
        try:
            return self.connection.execute(text, values)
        except UnicodeEncodeError:  # SQLite cannot store lone surrogates.
            return self.connection.execute(text, encodable(values))

    def to_time(self, moment: datetime) -> float:
        return moment.timestamp()

    def set_lease(self, process: Process, seconds: float) -> None:
        now = time.time()
        statement = "UPDATE processes SET last_heartbeat = $1, lease_expires = $2 WHERE id = $3"
        if self.execute(statement, (now, now + seconds, process.id)).rowcount:
            return
        statement = """
            DELETE FROM processes WHERE lease_expires < $1
              AND id NOT IN (SELECT process FROM runs WHERE process IS NOT NULL)
        """
        self.execute(statement, (now - _DELETE_IDLE_AFTER,))
        values = (process.id, process.host, process.boot, process.pid, process.started, now, now + seconds)
        self.execute("INSERT INTO processes VALUES ($1, $2, $3, $4, $5, $6, $7)", values)

    def send_simple_commit(self, commit: Commit) -> Callable[[], bool]:
        change = commit.changes[0]
        entry_count = change.offset + len(change.entries)
        values = (
            "running", *change_values(change), entry_count, time.time(), change.run_id, change.offset,
            commit.process.id,
        )  # fmt: skip
        row = self.execute(_UPDATE_RUNNING_ROOT, values).fetchone()
        if row is not None:
            self._store_state(row[0], row[0], change)
        return lambda: row is not None

    def insert_run(self, change: Change, header: RunHeader, root: str, status: Status, process: str | None) -> None:
        values = (
            change.run_id, root, header.parent, header.agent, header.started.timestamp(), header.batch, header.item,
            status, *change_values(change), change.offset + len(change.entries), process,
        )  # fmt: skip
        number, root_number = self.execute(_INSERT_RUN, values).fetchone()
        header_values = (number, header.branch, header.input, header.overrides)
        self.execute("INSERT INTO run_headers VALUES ($1, $2, $3, $4)", header_values)
        self.execute(_INSERT_STATE, (number, change.record, change.state))
        self._append(root_number, number, change.entries)

    def update_run(self, change: Change, status: Status, process: str | None) -> None:
        entry_count = change.offset + len(change.entries)
        values = (status, *change_values(change), entry_count, process, change.run_id)
        number, root_number = self.execute(_UPDATE_RUN, values).fetchone()
        self._store_state(root_number, number, change)

    def _store_state(self, root: int, number: int, change: Change) -> None:
        if change.state is not None:
            self.execute("UPDATE run_states SET state = $1 WHERE run = $2", (change.state, number))
        if change.record is not None:
            self.execute("UPDATE run_states SET record = $1 WHERE run = $2", (change.record, number))
        self._append(root, number, change.entries)

    def _append(self, root: int, number: int, entries: Sequence[str]) -> None:
        for entry in entries:
            self.execute("INSERT INTO entries (root, run, entry) VALUES ($1, $2, $3)", (root, number, entry))

    def insert_queued(self, runs: Sequence[QueuedRun], deliver: bool) -> list[str]:
        new: list[str] = []
        for run_id, header, *_ in runs:
            if self.execute("SELECT 1 FROM runs WHERE id = $1", (run_id,)).fetchone() is None:
                change = Change(
                    run_id, header, 0, (), NOT_STARTED, None, "queued", None, 0, Usage(), None, 0.0, None, None
                )  # fmt: skip
                self.insert_run(change, header, run_id, "queued", None)
                new.append(run_id)
        return new

    def notify(self, channel: str, payload: str) -> None:
        """Do nothing, because other processes poll the file."""

    def delete_entries(self, root: int) -> None:
        # Reserve the last position, so that no new entry gets the position of a deleted entry.
        self.execute("DELETE FROM entries WHERE root = 0")
        self.execute("INSERT INTO entries (root, run, entry) VALUES (0, 0, '')")
        self.execute("DELETE FROM entries WHERE root = $1", (root,))
