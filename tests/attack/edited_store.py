"""Functions that edit the file of a SQLite store, like an attacker who may write to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any


def execute(path: Path, statement: str, *values: object) -> None:
    """Execute a statement on the file of a store that no process has open."""
    with closing(sqlite3.connect(path)) as connection, connection:
        changed = connection.execute(statement, values).rowcount
    assert changed > 0, f"the attack changed nothing: {statement}"


def edit_json(path: Path, table: str, column: str, change: Callable[[Any], object]) -> None:
    """Change the JSON of a column in all rows of a table. `change` changes the decoded JSON in place."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for row, text in connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
            if text is not None:
                data = json.loads(text)
                change(data)
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (json.dumps(data), row))
