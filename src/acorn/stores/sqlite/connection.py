"""The file of a SQLite store, its connections and its writer.

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
from typing import Any, TypeVar
from urllib.parse import quote

from acorn.errors import StoreError
from acorn.stores.group_commit import CommitJob, CommitResult, GroupCommitWriter, SharedConnection
from acorn.stores.rules import send_simple_commit
from acorn.stores.sqlite.statements import TABLES, SQLiteTransaction
from acorn.stores.statements import APPLICATION_ID, SCHEMA_VERSION

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


_EXPLANATIONS = {
    _TEMPORARY: (
        f"Cannot write {{name}}: another process has locked the file for {_TIMEOUT:.0f} s ({{error}}). Stop the other "
        f"process, or try again later."
    ),
    ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN"): (
        "Cannot read or write {name} ({error}). Check that the disk is not full and that the directory is writable."
    ),
    ("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH"): (
        "Cannot write {name} ({error}). Check the owner of the file and its directory."
    ),
    ("SQLITE_CORRUPT", "SQLITE_NOTADB"): (
        "{name} is damaged ({error}). Restore a backup, or recover the data with SQLite's command `.recover`."
    ),
    ("",): "SQLite reported an error for {name} ({error}). Check the file and its disk, then resume the run.",
}
"""A dict that maps prefixes of the names of SQLite errors to explanations."""


def explain(error: Exception, name: str) -> StoreError:
    """Return a `StoreError` that explains an error from SQLite and says what to do."""
    text = next(text for prefixes, text in _EXPLANATIONS.items() if _error_name(error).startswith(prefixes))
    explained = StoreError(text.format(name=name, error=error))
    explained.__cause__ = error
    return explained


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
    connection = _new_connection(":memory:")
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
    connection = _new_connection(path)
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


def _new_connection(path: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.create_function("clock_timestamp", 0, time.time)
    return connection


def _create_tables(connection: sqlite3.Connection, tables: Sequence[str]) -> None:
    """Create the tables in an empty database. After an error, the caller must close the connection."""
    connection.execute("BEGIN EXCLUSIVE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and objects == 0:
        for statement in tables:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")


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


# Connections and the writer

_STAT_INTERVAL = 0.02
"""Seconds between two checks whether the file was deleted or replaced."""
_VERSION_INTERVAL = 0.02
"""Seconds between two checks whether another process has written to the file."""


class FileConnection(SharedConnection[sqlite3.Connection]):
    """A connection to a SQLite file that many threads share.

    If the file is deleted or replaced, the next use opens a new connection.
    """

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(lambda: open_file(path, name))
        self._path = str(path)
        self._file: tuple[int, int] | None = None
        self._last_check = 0.0

    def connect(self) -> sqlite3.Connection:
        if time.monotonic() > self._last_check + _STAT_INTERVAL:
            self._last_check = time.monotonic()
            if self._connection is not None and self._file != self._file_identity():
                self.drop()
        if self._connection is None:
            self._connection = self._open()
            self._file = self._file_identity()
        return self._connection

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


class MemoryConnection(SharedConnection[sqlite3.Connection]):
    """A connection to a SQLite database in memory, which exists as long as the connection.

    Reads and writes share the connection. After a fork, the child has a copy of the database.
    """

    def __init__(self) -> None:
        super().__init__(open_memory)

    def drop(self) -> None:
        """Undo an interrupted transaction, because a closed connection would lose the runs."""
        if self._connection is not None and self._connection.in_transaction:
            self._connection.rollback()

    def close(self) -> None:
        """Close the connection and delete the database."""
        with self._lock:
            super().drop()


class SQLiteWriter(GroupCommitWriter[sqlite3.Connection]):
    """A writer that executes many jobs in one transaction of a SQLite file.

    A process that writes all the time would block all other processes. Therefore the writer pauses between transactions
    if other processes also write to the file.
    """

    def __init__(self, connection: SharedConnection[sqlite3.Connection], name: str) -> None:
        super().__init__(connection, name)
        self._has_seen_others = False
        """Whether another process has written since the last pause."""
        self._transaction: SQLiteTransaction | None = None
        """The object that executes the statements of all transactions of the current connection."""
        self._data_version: int | None = None
        """SQLite's counter of changes by other connections, or None after the connection was opened."""
        self._last_check = 0.0

    def _transact(self, jobs: list[CommitJob[Any]]) -> None:
        connection = self._connection.connect()
        transaction = self._transaction
        if transaction is None or transaction.connection is not connection:
            self._transaction = transaction = SQLiteTransaction(connection)
            self._data_version = None
        self._begin(connection)
        outcomes: list[CommitResult] = []
        try:
            self._check_for_others(connection)
            execute = _execute if len(jobs) == 1 else self._execute_in_savepoint
            outcomes = [execute(transaction, job) for job in jobs]
            connection.execute("COMMIT")
        except StoreError as error:  # Only a single job raises its error. The savepoints catch the errors of many jobs.
            connection.execute("ROLLBACK")
            outcomes = [CommitResult(error=error)]
        except Exception:
            outcomes.clear()  # SQLite has undone the transaction, or the connection is closed.
            raise
        finally:
            if not connection.in_transaction:  # Ctrl-C may have arrived after the commit.
                for job, outcome in zip(jobs, outcomes, strict=False):
                    job.outcome = outcome
            if self._has_seen_others:
                self._has_seen_others = False
                self._not_before = time.monotonic() + retry_delay()

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin a write transaction. If another process writes to the file, wait until it has finished."""
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            self._has_seen_others = True
            retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))

    def _execute_in_savepoint(self, transaction: SQLiteTransaction, job: CommitJob[Any]) -> CommitResult:
        """Execute a job inside a savepoint of the current transaction.

        If the job fails, undo only its own writes.
        """
        connection = transaction.connection
        connection.execute("SAVEPOINT one")
        try:
            outcome = _execute(transaction, job)
        except Exception as error:
            if not connection.in_transaction:  # Some errors, such as a full disk, roll back the whole transaction.
                raise
            connection.execute("ROLLBACK TO one")
            outcome = CommitResult(error=self._explain(error))
        connection.execute("RELEASE one")
        return outcome

    def _explain(self, error: Exception) -> Exception:
        return explain(error, self._name) if isinstance(error, sqlite3.Error) else error

    def _check_for_others(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() < self._last_check + _VERSION_INTERVAL:
            return
        self._last_check = time.monotonic()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self._data_version not in (None, version):
            self._has_seen_others = True
        self._data_version = version


def _execute(transaction: SQLiteTransaction, job: CommitJob[Any]) -> CommitResult:
    if job.simple_commit is not None and send_simple_commit(transaction, job.simple_commit)():
        return CommitResult()
    return job.execute(transaction)
