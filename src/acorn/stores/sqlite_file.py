"""Opening a SQLite file as a store: only one that is ours, or nothing yet, is ever touched.

A file that is there is first looked at as if it could not change, which takes no locks and leaves nothing beside it.
Files are never opened but by SQLite once they exist: closing one by hand would drop the locks that SQLite has on it.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from acorn.errors import StoreError
from acorn.stores.schema import APPLICATION_ID, Migration
from acorn.stores.sqlite_connection import explained, patiently

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
