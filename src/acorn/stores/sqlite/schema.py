"""The tables of the SQLite store, and functions that create, check and open its file.

acorn changes only files that acorn created, and empty or missing files. Before acorn opens an existing file for
writing, it inspects the file in the immutable mode of SQLite, which acquires no locks and creates no other files. Once
the file exists, only SQLite opens the file: if acorn opened the file itself and closed it again, the process would lose
the locks of SQLite on the file.

SQLite's built-in wait for a lock is unfair, because the process that has waited longest also sleeps longest. In acorn,
every process sleeps for a short random time instead.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from acorn.errors import StoreError
from acorn.stores.database import APPLICATION_ID, SCHEMA_VERSION

TABLES: tuple[str, ...] = (
    # Processes that drive runs. All times are seconds since 1970.
    """
    CREATE TABLE processes (
      id TEXT PRIMARY KEY, host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, process_started TEXT NOT NULL,
      last_heartbeat REAL NOT NULL, lease_expires REAL NOT NULL
    ) WITHOUT ROWID
    """,
    # The facts of runs, and the process that drives each tree. `root` contains the number of the root, and is null for
    # a root. Only a root has a process. `entry_count` is the length of the journal. `open_requests` is the number of
    # open requests of the tree. `takeovers` is the number of processes that died while the tree had `takeover_steps`
    # steps. `heartbeat_age` is the age in seconds of the last heartbeat of the previous process at the last takeover.
    """
    CREATE TABLE runs (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER, parent TEXT, agent TEXT NOT NULL,
      status TEXT NOT NULL, model TEXT, steps INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
      output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
      requests INTEGER NOT NULL, cache_write_tokens INTEGER NOT NULL, cost REAL, started REAL NOT NULL,
      updated REAL NOT NULL, seconds REAL NOT NULL, batch TEXT, item INTEGER, stop_reason TEXT, error TEXT,
      entry_count INTEGER NOT NULL, process TEXT, heartbeat_age REAL NOT NULL DEFAULT 0,
      takeovers INTEGER NOT NULL DEFAULT 0, takeover_steps INTEGER NOT NULL DEFAULT -1,
      cancel_requested INTEGER NOT NULL DEFAULT 0, open_requests INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX runs_by_time ON runs (started DESC, number DESC) WHERE root IS NULL",
    "CREATE INDEX runs_by_batch ON runs (batch, item) WHERE batch IS NOT NULL",
    "CREATE INDEX runs_by_root ON runs (root) WHERE root IS NOT NULL",
    "CREATE INDEX runs_by_process ON runs (process) WHERE process IS NOT NULL",
    # JSON text that SQLite does not parse. The header never changes, and the state changes with each commit.
    "CREATE TABLE run_headers (run INTEGER PRIMARY KEY, branch TEXT, input TEXT NOT NULL, overrides TEXT)",
    "CREATE TABLE run_states (run INTEGER PRIMARY KEY, record TEXT NOT NULL, state TEXT NOT NULL)",
    # The journals in commit order. A position is never used again: when the last entries are deleted, an entry with
    # root 0 reserves the last position. AUTOINCREMENT would write one more page in each commit.
    """
    CREATE TABLE entries (
      position INTEGER PRIMARY KEY, root INTEGER NOT NULL, run INTEGER NOT NULL, entry TEXT NOT NULL
    )
    """,
    "CREATE INDEX entries_by_root ON entries (root)",
    # Requests for human input, with their answers. `answer_order` is the number of the answer within its tree.
    """
    CREATE TABLE requests (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER NOT NULL, run TEXT NOT NULL,
      kind TEXT NOT NULL, question TEXT NOT NULL, tool TEXT NOT NULL, arguments TEXT NOT NULL, branch TEXT,
      choices TEXT, asked REAL NOT NULL, answer TEXT, answered REAL, answer_order INTEGER
    )
    """,
    "CREATE INDEX requests_by_root ON requests (root)",
    "CREATE INDEX requests_open ON requests (asked, number) WHERE answered IS NULL",
    # The data of images, audio clips and files. Equal data is stored once. `run_media` lists the data of each tree.
    "CREATE TABLE media (number INTEGER PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, data BLOB NOT NULL)",
    """
    CREATE TABLE run_media (
      root INTEGER NOT NULL, blob INTEGER NOT NULL, PRIMARY KEY (root, blob)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX run_media_by_blob ON run_media (blob)",
)

T = TypeVar("T")

_TIMEOUT = 60.0
"""The maximum seconds to wait while another process writes."""
_TEMPORARY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
"""Prefixes of the names of SQLite errors after which a retry may succeed."""


# Waiting for other processes


def retry_delay() -> float:
    """Return a short random number of seconds to wait before the next attempt to lock the file."""
    return random.uniform(0.005, 0.05)


def retry_while_busy(operation: Callable[[], T]) -> T:
    """Call a function and return its result. Repeat the call while another process has locked the file."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            return operation()
        except sqlite3.OperationalError as error:
            if not _error_name(error).startswith(_TEMPORARY) or time.monotonic() > deadline:
                raise
        time.sleep(retry_delay())


def _error_name(error: Exception) -> str:
    # Errors of Python's `sqlite3` module that do not come from SQLite have no name.
    name: str = getattr(error, "sqlite_errorname", "")
    return name


def explain(error: Exception, name: str) -> StoreError:
    """Return a `StoreError` that explains an error from SQLite and says what to do."""
    kind = _error_name(error)
    if kind.startswith(_TEMPORARY):
        text = (
            f"Cannot write {name}: another process has locked the file for {_TIMEOUT:.0f} s ({error}). Stop the "
            f"other process, or try again later."
        )
    elif kind.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")):
        text = (
            f"Cannot read or write {name} ({error}). Check that the disk is not full and that the directory is "
            f"writable."
        )
    elif kind.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        text = f"Cannot write {name} ({error}). Check the owner of the file and its directory."
    elif kind.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        text = f"{name} is damaged ({error}). Restore a backup, or recover the data with SQLite's command `.recover`."
    else:
        text = f"SQLite reported an error for {name} ({error})."
    return StoreError(text)


# Opening the file

_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs")
"""File systems on which a process does not see the locks of processes on other machines."""
_opening = threading.Lock()


def open_file(path: Path, name: str, tables: Sequence[str] = TABLES) -> sqlite3.Connection:
    """Open the file of a store and return the connection.

    Create the file if it does not exist.
    """
    try:
        with _opening:
            is_new = _check_path(path, name)
            _refuse_remote(path, name)
            if is_new:
                with suppress(FileExistsError):
                    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
            _inspect(path, name)
            return retry_while_busy(lambda: _connect(path, name, tables))
    except OSError as error:
        raise StoreError(
            f"Cannot open {name} ({error.strerror}). Check the owner of the file and its directory."
        ) from error
    except sqlite3.Error as error:
        raise explain(error, name) from error


def open_memory() -> sqlite3.Connection:
    """Create a database in memory and return its connection."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=256)
    _create_tables(connection, TABLES)
    return connection


def _check_path(path: Path, name: str) -> bool:
    """Return True if the file of a store does not exist yet.

    Raise `StoreError` if the path cannot be used for a store.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(
                f"Cannot create {name}: the directory {str(path.parent)!r} does not exist. Create the directory."
            ) from None
        return True
    except NotADirectoryError:
        raise StoreError(
            f"Cannot create {name}: {str(path.parent)!r} is not a directory. Use a path in an existing directory."
        ) from None
    if stat.S_ISDIR(mode):
        raise StoreError(f"{name} is a directory. Use the path of a file as the store.")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{name} is not a regular file. Use the path of a regular file as the store.")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreError(f"Cannot read and write {name} as this user. Check the owner of the file.")
    return False


def _inspect(path: Path, name: str) -> None:
    """Raise `StoreError` if the file has another schema version or belongs to another application.

    This check does not change the file.
    """
    size = path.stat().st_size
    if size == 0:
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as connection:
            _check_schema(connection, name)
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    except sqlite3.DatabaseError as error:
        # The file looks corrupt if another process is copying pages from the write-ahead log into the file, or died
        # while it copied them. The log still contains all pages.
        if not (_has_log(path) and _error_name(error).startswith("SQLITE_CORRUPT")):
            raise _foreign_file(name, str(error)) from error
    else:
        if size % page_size and not _has_log(path):
            raise _foreign_file(name, "the file is truncated")


def _has_log(path: Path) -> bool:
    return Path(f"{path}-wal").exists()


def _check_schema(connection: sqlite3.Connection, name: str) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise _foreign_file(name, "it belongs to another application")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{name} has schema version {version}, but this version of acorn supports only version {SCHEMA_VERSION}. "
            f"Use the version of acorn that created it, or another file. The file was not changed."
        )


def _foreign_file(name: str, reason: str) -> StoreError:
    return StoreError(f"{name} is not a store of acorn ({reason}). Use another file. The file was not changed.")


def _connect(path: Path, name: str, tables: Sequence[str]) -> sqlite3.Connection:
    """Open a connection, and create the tables if the file is empty.

    If an error occurs, the connection is closed, because an open connection could keep its lock on the file.
    """
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA application_id").fetchone()[0] == 0:
            _create_tables(connection, tables)
        _check_schema(connection, name)
        # The tables must exist first, because a file with only a WAL header could belong to any application.
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"Cannot use {name} as a store: its file system does not support SQLite's write-ahead log. Use a "
                f"local disk."
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _create_tables(connection: sqlite3.Connection, tables: Sequence[str]) -> None:
    connection.execute("BEGIN EXCLUSIVE")
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and objects == 0:
            for statement in tables:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _refuse_remote(path: Path, name: str) -> None:
    with suppress(OSError):
        kind = file_system(path, Path("/proc/mounts").read_text(encoding="utf-8", errors="replace"))
        if kind in _REMOTE:
            raise StoreError(
                f"{name} is on a network file system ({kind}), where SQLite cannot lock files between machines. Use a "
                f"local disk."
            )


def file_system(path: Path, mounts: str) -> str | None:
    """Return the type of the file system that contains a path.

    `mounts` is the content of `/proc/mounts`.
    """
    fields = [line.split(" ") for line in mounts.splitlines()]
    matches = [
        (len(point), kind)
        for _, point, kind, *_ in fields
        if path.is_relative_to(point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
    ]
    return max(matches)[1] if matches else None
