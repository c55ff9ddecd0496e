"""The tables of a store in SQLite, as the steps that lead from one version to the next. Forward only.

A step that was released never changes: files that it made are out there.

A connection to a SQLite file, and how to wait for other processes.

SQLite's own waiting is unfair: whoever waits longest sleeps longest. Here everybody sleeps for a short random time.

Opening a SQLite file as a store: only one that is ours, or nothing yet, is ever touched.

A file that is there is first looked at as if it could not change, which takes no locks and leaves nothing beside it.
Files are never opened but by SQLite once they exist: closing one by hand would drop the locks that SQLite has on it.
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
from acorn.stores.database import SharedConnection

APPLICATION_ID = 0x41434F52
"""How a file says that it is a store of acorn."""

Migration = tuple[str, ...]
"""Statements that run in one transaction."""

FIRST: Migration = (
    # A process that drives runs; `heard` and `until` are seconds since 1970, as all times here.
    """
    CREATE TABLE holders (
      id TEXT PRIMARY KEY, host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL,
      heard REAL NOT NULL, until REAL NOT NULL
    ) WITHOUT ROWID
    """,
    # What a list shows of a run, and who drives it. `root` is the number of the run that a branch belongs to, and
    # null for a run of its own: only that one has a holder. `length` counts the entries of its journal, `asks` the
    # open requests of the whole tree. `attempts` counts holders that died while the tree had made `attempted` steps.
    """
    CREATE TABLE runs (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER, parent TEXT, agent TEXT NOT NULL,
      status TEXT NOT NULL, model TEXT, steps INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
      output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
      requests INTEGER NOT NULL, cost REAL, started REAL NOT NULL, updated REAL NOT NULL, seconds REAL NOT NULL,
      batch TEXT, item INTEGER, stop_reason TEXT, error TEXT, length INTEGER NOT NULL,
      holder TEXT, silence REAL NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
      attempted INTEGER NOT NULL DEFAULT -1, is_unwanted INTEGER NOT NULL DEFAULT 0, asks INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX runs_by_time ON runs (started DESC, number DESC) WHERE root IS NULL",
    "CREATE INDEX runs_by_batch ON runs (batch, item) WHERE batch IS NOT NULL",
    "CREATE INDEX runs_by_root ON runs (root) WHERE root IS NOT NULL",
    "CREATE INDEX runs_by_holder ON runs (holder) WHERE holder IS NOT NULL",
    # What never changes of a run, and what changes with each commit: JSON that only acorn reads.
    "CREATE TABLE births (run INTEGER PRIMARY KEY, branch TEXT, input TEXT NOT NULL, overrides TEXT)",
    "CREATE TABLE states (run INTEGER PRIMARY KEY, record TEXT NOT NULL, state TEXT NOT NULL)",
    # The journals, in the order of the commits. A position is never given twice: where the last ones are deleted, one
    # of root 0 keeps their place. AUTOINCREMENT would write one page more with each commit.
    """
    CREATE TABLE entries (
      position INTEGER PRIMARY KEY, root INTEGER NOT NULL, run INTEGER NOT NULL, entry TEXT NOT NULL
    )
    """,
    "CREATE INDEX entries_by_root ON entries (root)",
    # What people are asked, and what they answered; `turn` is the order of the answers of a tree.
    """
    CREATE TABLE requests (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER NOT NULL, run TEXT NOT NULL,
      kind TEXT NOT NULL, question TEXT NOT NULL, tool TEXT NOT NULL, arguments TEXT NOT NULL, branch TEXT,
      choices TEXT, asked REAL NOT NULL, answer TEXT, answered REAL, turn INTEGER
    )
    """,
    "CREATE INDEX requests_by_root ON requests (root)",
    "CREATE INDEX requests_open ON requests (asked, number) WHERE answered IS NULL",
)

SECOND: Migration = (
    "ALTER TABLE runs ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0",
    # The data of pictures and files, each once, and which trees have it.
    "CREATE TABLE media (number INTEGER PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, data BLOB NOT NULL)",
    """
    CREATE TABLE media_of_runs (
      root INTEGER NOT NULL, medium INTEGER NOT NULL, PRIMARY KEY (root, medium)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX media_by_medium ON media_of_runs (medium)",
)

MIGRATIONS: tuple[Migration, ...] = (FIRST, SECOND)
"""The first makes version 1 of nothing, the next version 2 of that."""


T = TypeVar("T")

_PATIENCE = 60.0
"""Seconds to wait for another process that is writing."""
_GLANCE = 0.02
"""Seconds for which a file that was there counts as there."""
_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
"""What SQLite says where the same may succeed a moment later."""


def jitter() -> float:
    return random.uniform(0.005, 0.05)


def is_passing(error: sqlite3.Error) -> bool:
    # What the module itself complains of has no name of SQLite.
    return getattr(error, "sqlite_errorname", "").startswith(_PASSING)


def patiently(act: Callable[[], T], busy: Callable[[], None] = lambda: None) -> T:
    """Do it, again and again while another process is in the way."""
    limit = time.monotonic() + _PATIENCE
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not is_passing(error) or time.monotonic() > limit:
                raise
        busy()
        time.sleep(jitter())


def explained(error: Exception, name: str) -> StoreError:
    """What SQLite says, in words that help."""
    kind = getattr(error, "sqlite_errorname", "")
    if kind.startswith(_PASSING):
        text = f"{name} is being written by another process for {_PATIENCE:.0f} s now ({error}); stop it, or wait."
    elif kind.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")):
        text = (
            f"{name} could not be read or written ({error}); see whether the disk is full and the directory writable."
        )
    elif kind.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        text = f"{name} may not be written ({error}); see who owns the file and its directory."
    elif kind.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        text = f"{name} is damaged ({error}); put back a copy of it, or read what is left with SQLite's `.recover`."
    else:
        text = f"{name} could not do it ({error})."
    return StoreError(text)


class FileConnection(SharedConnection[sqlite3.Connection]):
    """One that is opened anew where its file was taken away, or another one put in its place."""

    def __init__(self, path: Path, opens: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(opens)
        self._path = str(path)
        self._file: object = None
        self._looked = 0.0

    def opened(self) -> sqlite3.Connection:
        if time.monotonic() > self._looked + _GLANCE:
            self._look()
        if self._connection is None:
            self._connection = self._opens()
            self._file = self._identity()
        return self._connection

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self._connection is not None and self._file != self._identity():
            self.drop()

    def _identity(self) -> object:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs")
"""File systems on which processes of several machines would not see each other's locks."""
_making = threading.Lock()


def open_file(path: Path, name: str, migrations: Sequence[Migration]) -> sqlite3.Connection:
    """A connection to the store in a file, which is made or brought to the newest version where that is needed."""
    try:
        with _making:
            is_new = _is_new(path, name)
            _refuse_remote(path, name)
            if is_new:
                with suppress(FileExistsError):
                    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
            _look(path, name, len(migrations))
            return patiently(lambda: _prepared(path, name, migrations))
    except OSError as error:
        raise StoreError(f"{name} cannot be opened ({error.strerror}); see who owns it and its directory.") from error
    except sqlite3.Error as error:
        raise explained(error, name) from error


def _is_new(path: Path, name: str) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(f"{name} cannot be made: there is no directory {str(path.parent)!r}; make it.") from None
        return True
    except NotADirectoryError:
        raise StoreError(f"{name} cannot be made: {str(path.parent)!r} is no directory.") from None
    if stat.S_ISDIR(mode):
        raise StoreError(f"{name} is a directory; a store is a file in one.")
    if not stat.S_ISREG(mode):
        raise StoreError(f"{name} is no ordinary file; a store is one.")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreError(f"{name} may not be read and written by this user; see who owns the file.")
    return False


def _look(path: Path, name: str, newest: int) -> None:
    """Refuse what is not ours, and what is newer, without touching it."""
    size = path.stat().st_size
    if size == 0:
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as connection:
            _refuse_foreign(connection, name, newest)
            (page,) = connection.execute("PRAGMA page_size").fetchone()
    except sqlite3.DatabaseError as error:
        # A process that died, or works, while it moved pages from the log into the file: the log has them all.
        if not (_has_log(path) and getattr(error, "sqlite_errorname", "").startswith("SQLITE_CORRUPT")):
            raise _foreign(name, str(error)) from error
    else:
        if size % page and not _has_log(path):
            raise _foreign(name, "it was cut off")


def _has_log(path: Path) -> bool:
    return Path(f"{path}-wal").exists()


def _refuse_foreign(connection: sqlite3.Connection, name: str, newest: int) -> int:
    """The version of the schema."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise _foreign(name, "a database of something else")
    if version > newest:
        raise StoreError(
            f"{name} has schema {version}, and this acorn knows up to {newest}; upgrade acorn. The file was not "
            f"touched."
        )
    return int(version)


def _foreign(name: str, why: str) -> StoreError:
    return StoreError(f"{name} is not a store of acorn ({why}); the file was not touched.")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256)


def _prepared(path: Path, name: str, migrations: Sequence[Migration]) -> sqlite3.Connection:
    """Where others are in the way it begins anew: one that was refused the change to WAL would keep its lock."""
    connection = _connect(path)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA application_id").fetchone()[0] == 0:
            _make(connection, migrations)
        version = _refuse_foreign(connection, name, len(migrations))
        # Only now: a header that says so before there is anything else could be anybody's.
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{name} cannot be a store: its file system does not allow a log beside it.")
        if version < len(migrations):
            _migrate(connection, path, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    connection.execute("BEGIN EXCLUSIVE")
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:
            for migration in migrations:
                for statement in migration:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


def _migrate(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Bring a file to the newest version, and keep a copy of what it was."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version < len(migrations):
            _copy(path, version)
            for migration in migrations[version:]:
                for statement in migration:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    with suppress(sqlite3.OperationalError):  # so that an older acorn sees the version without opening the log
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _copy(path: Path, version: int) -> None:
    """Beside it, `runs.db.v1`; a copy that is there stays. Nobody else writes now, and readers may read."""
    names = [f"{path}.v{version}", *(f"{path}.v{version}-{again}" for again in range(2, 100))]
    for name in names:
        with suppress(FileExistsError):
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            with closing(_connect(path)) as reader:
                reader.execute("VACUUM INTO ?", (name,))
            return
    raise StoreError(f"There are too many copies beside {path}; move {names[-1]!r} and the others away.")


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _refuse_remote(path: Path, name: str) -> None:
    with suppress(OSError):
        kind = file_system(path, Path("/proc/mounts").read_text(encoding="utf-8", errors="replace"))
        if kind in _REMOTE:
            raise StoreError(
                f"{name} is on a network ({kind}), where SQLite cannot keep machines apart; put it on a local disk."
            )


def file_system(path: Path, mounts: str) -> str | None:
    """The kind of file system that a path is on, by what `/proc/mounts` says."""
    fields = [line.split(" ") for line in mounts.splitlines()]
    found = [
        (len(point), kind)
        for _, point, kind, *_ in fields
        if path.is_relative_to(point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
    ]
    return max(found)[1] if found else None
