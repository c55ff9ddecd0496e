"""The history of one run, and whether anybody but the run has it.

The history is also the user's, who may change anything in it and tells nobody. As long as nobody was handed it,
nothing in it can have changed, and there is nothing to compare. `record.py` hands it out; the loop writes in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import RLock
from typing import Any

from acorn._json import copied


class HistoryBook:
    """The messages of one run; `messages` is for the loop, and `hand_out` for everybody else."""

    __slots__ = ("_borrowed", "messages", "noted")

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.noted: list[dict[str, Any]] | None = None
        """What the messages are if nobody else has written in them; None while nobody else has them."""
        self._borrowed = 0
        """How many of the first messages are another's, who keeps them as they are."""

    @property
    def is_ours(self) -> bool:
        """Whether nobody else has it."""
        return self.noted is None

    def begin(self, messages: list[dict[str, Any]], borrowed: int = 0) -> None:
        """Other messages; so many of the first are copied only when somebody wants to have them."""
        was_out = self.noted is not None
        self.messages, self._borrowed, self.noted = messages, borrowed, None
        if was_out:
            self.hand_out()

    def hand_out(self) -> list[dict[str, Any]]:
        """The messages for somebody who may keep and change them."""
        if self.noted is None:
            with _lock.handing_out:
                self._hand_out()
        return self.messages

    def _hand_out(self) -> None:
        if self.noted is None:  # no other thread was quicker
            count, self._borrowed = self._borrowed, 0
            if count:
                self.messages[:count] = [copied(message) for message in self.messages[:count]]
            self.noted = list(self.messages)

    def replace(self, messages: Any) -> None:
        """What somebody else puts in their place: a list of messages, or whatever it is."""
        self.hand_out()
        self.messages = messages

    def put(self, at: int, made: Sequence[dict[str, Any]]) -> None:
        """Messages of the loop's."""
        noted = self.noted
        self.messages[at:at] = made
        if noted is not None:
            noted[at:at] = made
        elif self.noted is not None:  # it was handed out just now, in another thread
            self.noted = list(self.messages)


class _Lock:
    """Whose threads wait for each other; those of a process that was forked wait for nobody."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.handing_out = RLock()


_lock = _Lock()
