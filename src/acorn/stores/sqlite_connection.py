"""A connection to a SQLite file, and how to wait for other processes.

SQLite's own waiting is unfair: whoever waits longest sleeps longest. Here everybody sleeps for a short random time.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from acorn.errors import StoreError
from acorn.stores.sharing import SharedConnection

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
