"""The functions that acorn calls when the process forks: they close or reset objects that a child must not share.

SQLite counts the locks of each file in memory, and a forked child process inherits this memory. The child process would
treat the locks of its parent as its own locks, and could delete a log file that the parent still uses. Therefore acorn
waits until no OS thread uses the connections, and closes them before a fork. Later, it opens them again on first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object that must be closed during a fork, such as a database connection."""

    def before_fork(self) -> None:
        """Wait until no OS thread uses the object, block further use of the object, and close it."""
        ...

    def after_fork(self, in_child: bool) -> None:
        """Allow the use of the object again, in the parent process or in the child process."""
        ...


_lock = threading.RLock()
_registered: WeakSet[ForkAware] = WeakSet()
_closed: list[ForkAware] = []


def close_at_fork(item: ForkAware) -> None:
    """Register an object, so that acorn calls its `before_fork` and `after_fork` around every fork of the process."""
    with _lock:
        _registered.add(item)


def call_in_child(function: Callable[[], object]) -> None:
    """Register a function that resets objects in a forked child process, which has no threads of its parent."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _before_fork() -> None:
    _lock.acquire()
    for item in list(_registered):
        item.before_fork()
        _closed.append(item)


def _after_fork(in_child: bool) -> None:
    while _closed:
        _closed.pop().after_fork(in_child)
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=partial(_after_fork, in_child=False))
call_in_child(partial(_after_fork, in_child=True))
