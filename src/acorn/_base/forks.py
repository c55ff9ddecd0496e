"""What must not be open while the process forks.

SQLite counts its locks by process and file, in memory that a child inherits: a child that has it would believe that it
holds the locks of its parent, and a log could be thrown away under it. So connections are closed before a fork, in a
moment in which nobody uses them, and open again where they are used again.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    def before_fork(self) -> None:
        """Wait until nobody uses it, keep it so, and close it."""
        ...

    def after_fork(self, in_child: bool) -> None: ...


_guard = threading.RLock()
_known: WeakSet[Forked] = WeakSet()
_quiet: list[Forked] = []


def closes_at_fork(one: Forked) -> None:
    with _guard:
        _known.add(one)


def _before() -> None:
    _guard.acquire()
    for one in list(_known):
        one.before_fork()
        _quiet.append(one)


def _in_parent() -> None:
    _after(in_child=False)


def _in_child() -> None:
    _after(in_child=True)


def _after(in_child: bool) -> None:
    while _quiet:
        _quiet.pop().after_fork(in_child)
    _guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
