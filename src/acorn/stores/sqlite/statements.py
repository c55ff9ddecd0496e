"""The tables of a SQLite file, and the statements that differ from other databases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from sqlite3 import Connection, Cursor
from typing import Any

from acorn.stores import statements as sql
from acorn.stores.port import NOT_STARTED, Change, QueuedRun, RunHeader
from acorn.stores.rules import insert_run
from acorn.stores.statements import encodable
from acorn.types import Usage

_TYPES = {
    "number": "INTEGER PRIMARY KEY",
    "run_key": "INTEGER PRIMARY KEY",
    "id": "TEXT",
    "time": "REAL",  # Seconds since 1970.
    "bytes": "BLOB",
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
_INSERT_STATE = f"INSERT INTO run_states VALUES ($1, coalesce($2, '{{}}'), coalesce($3, '{NOT_STARTED}'))"

_TEXT_LIST = re.compile(r"= ANY\(\$(\d+)::text\[\]\)")
_TIME = re.compile(r"(?:to_timestamp\(|make_interval\(secs => )([^)]+)\)")
_PARAMETER = re.compile(r"\$\d+")
_TRANSLATIONS = {
    # One transaction at a time writes to a file, so rows need no locks.
    " FOR UPDATE SKIP LOCKED": "",
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
    text = _TIME.sub(r"\1", text)  # Times are seconds since 1970.
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

    def store_run(
        self, statement: str, values: sql.Row, change: Change, header: RunHeader | None
    ) -> Callable[[], sql.Row | None]:
        row: sql.Row | None = self.execute(statement, values).fetchone()
        if row is not None:
            number, root, _ = row
            if header is not None:
                header_values = (number, header.branch, header.input, header.overrides)
                self.execute("INSERT INTO run_headers VALUES ($1, $2, $3, $4)", header_values)
                self.execute(_INSERT_STATE, (number, change.record, change.state))
            else:
                if change.state is not None:
                    self.execute("UPDATE run_states SET state = $1 WHERE run = $2", (change.state, number))
                if change.record is not None:
                    self.execute("UPDATE run_states SET record = $1 WHERE run = $2", (change.record, number))
            for entry in change.entries:
                self.execute("INSERT INTO entries (root, run, entry) VALUES ($1, $2, $3)", (root, number, entry))
        return lambda: row

    def insert_queued(self, runs: Sequence[QueuedRun], deliver: bool) -> list[str]:
        new: list[str] = []
        for run_id, header, *_ in runs:
            if self.execute("SELECT 1 FROM runs WHERE id = $1", (run_id,)).fetchone() is None:
                change = Change(
                    run_id, header, 0, (), NOT_STARTED, None, "queued", None, 0, Usage(), None, 0.0, None, None
                )  # fmt: skip
                insert_run(self, change, header, run_id, "queued", None)
                new.append(run_id)
        return new

    def delete_entries(self, root: int) -> None:
        # Reserve the last position, so that no new entry gets the position of a deleted entry.
        self.execute("DELETE FROM entries WHERE root = 0")
        self.execute("INSERT INTO entries (root, run, entry) VALUES (0, 0, '')")
        super().delete_entries(root)

    def notify(self, channel: str, payload: str) -> None:
        """Do nothing, because other processes poll the file."""
