"""Copies of a store at one moment, from which a test resumes later: a copied file, or the rows of a database."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_TABLES = ("processes", "runs", "run_headers", "run_states", "entries", "requests", "media", "run_media")


def copy(store: str, to: Path) -> None:
    if "://" in store:
        _copy_rows(store, to)
        return
    with closing(sqlite3.connect(store)) as here, closing(sqlite3.connect(to)) as there:
        here.backup(there)


def restore(store: str, copied: Path) -> None:
    """Restore a copy: a file must be new; users of a database see its rows."""
    if "://" in store:
        _restore_rows(store, copied)
    else:
        shutil.copyfile(copied, store)


def _copy_rows(url: str, to: Path) -> None:
    with _connected(url) as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rows = {}
        for table in _TABLES:
            with connection.cursor().copy(f"COPY acorn.{table} TO STDOUT".encode()) as lines:
                rows[table] = b"".join(lines).decode()
    to.write_text(json.dumps(rows))


def _restore_rows(url: str, copied: Path) -> None:
    with _connected(url) as connection, connection.transaction():
        connection.execute(f"TRUNCATE {', '.join(f'acorn.{table}' for table in _TABLES)}".encode())
        for table, rows in json.loads(copied.read_text()).items():
            with connection.cursor().copy(f"COPY acorn.{table} FROM STDIN".encode()) as lines:
                lines.write(rows.encode())


def _connected(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True)
