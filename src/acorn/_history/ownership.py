"""Ownership of the history: whether user code has received the message list of a run.

User code that has the list may change it at any time, and acorn is not notified. As long as no user code has received
the list, it cannot have changed, so acorn need not compare it with copies. `record.py` passes the list to user code,
and the transcript adds messages to it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import RLock
from typing import Any

from acorn._formats.json import copy_json
from acorn.types import Message


class HistoryOwnership:
    """The message list of one run, and the information whether user code has received the list."""

    __slots__ = ("_borrowed", "messages", "snapshot")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        """The messages. Only acorn's code reads this attribute; user code receives the list from `hand_out`."""
        self.snapshot: list[Message] | None = None
        """A copy of the list without the user's later edits. None while no user code has received the list."""
        self._borrowed = 0
        """The number of messages at the start that are shared with the parent run, which does not change them."""

    def start(self, messages: list[Message], borrowed: int = 0) -> None:
        """Replace all messages of the list. The first `borrowed` messages are shared with the parent run.

        The shared messages are copied before user code receives the list.
        """
        was_handed_out = self.snapshot is not None
        self.messages, self._borrowed, self.snapshot = messages, borrowed, None
        if was_handed_out:
            self.hand_out()

    def hand_out(self) -> list[Message]:
        """Return the message list to user code. From now on, user code may change the list at any time."""
        if self.snapshot is None:
            with _lock.lock:
                if self.snapshot is None:  # Another thread may have set the snapshot in the meantime.
                    count, self._borrowed = self._borrowed, 0
                    if count:
                        self.messages[:count] = [copy_json(message) for message in self.messages[:count]]
                    self.snapshot = list(self.messages)
        return self.messages

    def replace(self, messages: Any) -> None:
        """Use the value that the user assigned to `history`, usually a list of messages, as the new list."""
        self.hand_out()
        self.messages = messages

    def insert(self, index: int, messages: Sequence[Message]) -> None:
        """Insert messages that acorn adds, so that they do not count as edits by the user."""
        snapshot = self.snapshot
        self.messages[index:index] = messages
        if snapshot is not None:
            snapshot[index:index] = messages
        elif self.snapshot is not None:  # Another thread handed out the history just now.
            self.snapshot = list(self.messages)


class _ForkSafeLock:
    """A lock that is replaced by a new lock in a forked child process.

    The OS thread that holds the old lock may not exist in the child process, so the old lock might never be released.
    """

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = RLock()


_lock = _ForkSafeLock()
