"""Objects that must be closed while the process forks.

SQLite counts its locks per process and file, in memory that a forked child inherits. A child would believe that it
holds the locks of its parent, and could delete a log that the parent still uses. So connections are closed before a
fork, at a moment when no thread uses them, and opened again when they are needed.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object with callbacks around a fork."""

    def before_fork(self) -> None:
        """Wait until no thread uses the object, block further use, and close it."""
        ...

    def after_fork(self, in_child: bool) -> None:
        """Allow use again."""
        ...


_lock = threading.RLock()
_registered: WeakSet[ForkAware] = WeakSet()
_closed: list[ForkAware] = []


def close_at_fork(item: ForkAware) -> None:
    """Call the object's callbacks around every fork, as long as the object exists."""
    with _lock:
        _registered.add(item)


def _before() -> None:
    _lock.acquire()
    for item in list(_registered):
        item.before_fork()
        _closed.append(item)


def _after_in_parent() -> None:
    _after(in_child=False)


def _after_in_child() -> None:
    _after(in_child=True)


def _after(in_child: bool) -> None:
    while _closed:
        _closed.pop().after_fork(in_child)
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
