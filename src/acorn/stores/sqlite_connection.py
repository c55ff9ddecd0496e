"""A connection to a SQLite file that many threads share, and how to wait for other processes.

SQLite's own waiting is unfair: whoever waits longest sleeps longest. Here everybody sleeps for a short random time.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from acorn.errors import StoreError
from acorn.stores.forks import closes_at_fork

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


class SharedConnection:
    """Opened when first needed, used by one thread at a time, closed while the process forks."""

    def __init__(self, path: Path, opens: Callable[[], sqlite3.Connection]) -> None:
        self._path = str(path)
        self._opens = opens
        self._file: object = None
        self._looked = 0.0
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        closes_at_fork(self)

    def use(self, act: Callable[[Callable[[], sqlite3.Connection]], T]) -> T:
        """Do something while nobody else uses it; it is handed what gives the connection.

        Where that ends with an error, the connection is opened anew. A `with` and a function, as nothing else is
        sure to let go of a lock when Ctrl-C comes.
        """
        with self._lock:
            return self._do(act)

    def _do(self, act: Callable[[Callable[[], sqlite3.Connection]], T]) -> T:
        try:
            return act(self._opened)
        except StoreError:
            raise
        except BaseException:
            self.drop()
            raise

    def _opened(self) -> sqlite3.Connection:
        if time.monotonic() > self._looked + _GLANCE:
            self._look()
        if self._connection is None:
            self._connection = self._opens()
            self._file = self._identity()
        return self._connection

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self._connection is not None and self._file != self._identity():
            self.drop()  # somebody took the file away, or put another one in its place

    def _identity(self) -> object:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        with self._lock:
            self.drop()

    def drop(self) -> None:
        """Close it, by whoever uses it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self.drop()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()
