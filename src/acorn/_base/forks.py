"""Callbacks that close objects before the process forks, and allow their use again after the fork.

SQLite counts the locks of each file in memory, and a forked child inherits this memory. The child would treat the locks
of its parent as its own locks, and could delete a log file that the parent still uses. So acorn closes connections
before a fork, when no thread uses them, and opens them again when they are needed.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object that must be closed during a fork, such as a database connection."""

    def before_fork(self) -> None:
        """Wait until no thread uses the object, block further use, and close it."""
        ...

    def after_fork(self, in_child: bool) -> None:
        """Allow the use of the object again, in the parent process or in the child process."""
        ...


_lock = threading.RLock()
_registered: WeakSet[ForkAware] = WeakSet()
_closed: list[ForkAware] = []


def close_at_fork(item: ForkAware) -> None:
    """Call `before_fork` and `after_fork` of an object around every fork, as long as the object exists."""
    with _lock:
        _registered.add(item)


def _before_fork() -> None:
    _lock.acquire()
    for item in list(_registered):
        item.before_fork()
        _closed.append(item)


def _after_in_parent() -> None:
    _after_fork(in_child=False)


def _after_in_child() -> None:
    _after_fork(in_child=True)


def _after_fork(in_child: bool) -> None:
    while _closed:
        _closed.pop().after_fork(in_child)
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
