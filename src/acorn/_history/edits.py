"""Detection of the edits that user code makes to the history, and their entries in the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from acorn._formats.blobs import to_saved_data
from acorn._formats.json import to_json_text
from acorn._history.history import call_ids, change_of
from acorn._history.repair import ROLES
from acorn.journal import HistoryEdited
from acorn.record import Run, history_of_run
from acorn.types import JsonValue, Message, is_json_object


class HistoryEdits:
    """Compares the history of one run with the last known state, and adds an entry for each edit."""

    def __init__(self, run: Run) -> None:
        self._run_id = run.id
        self._journal = run.journal
        self._history = history_of_run(run)
        self._rebuilt: list[Message] = []
        """The history as the journal describes it, as far as the entries were read."""
        self._entries_read = 0

    def note_moves(self) -> None:
        """Note messages that user code added, removed, replaced or moved."""
        history: JsonValue = self._history.messages
        noted = self._history.noted
        if noted is None:  # No user code has received the history.
            return
        try:
            # A copy is equal to its original, but user code may still edit it.
            if history == noted and (not noted or (history[-1] is noted[-1] and history[0] is noted[0])):
                return
        except Exception:  # A user-defined `__eq__` may raise.
            pass
        if not isinstance(history, list):  # The user may assign any value to `history`.
            return
        start = _first_difference(history, noted)
        same_at_end = _first_difference(history[start:][::-1], noted[start:][::-1])
        added = [index for index in _added_indexes(history, noted) if _is_message(history[index])]
        if added:  # If a message now occurs twice, the second may be in the part that seems unchanged.
            start, same_at_end = min(start, added[0]), min(same_at_end, len(history) - added[-1] - 1)
        end, noted_end = len(history) - same_at_end, len(noted) - same_at_end
        self._add_entry(start, noted_end - start, history[start:end], [index - start for index in added])
        self._history.noted = history.copy()

    def note_all(self) -> None:
        """Note every edit, also inside messages. The cost grows with the number of new entries."""
        if self._history.noted is None:
            return
        self.note_moves()
        entries, rebuilt = self._journal.entries, self._rebuilt
        for entry in entries[self._entries_read :]:
            change = change_of(entry, len(rebuilt))
            if change is not None:
                start, removed, added = change
                rebuilt[start : start + removed] = added
        self._entries_read = len(entries)
        try:
            if self._history.messages == rebuilt:
                return
        except Exception:  # A user-defined `__eq__` may raise.
            pass
        if isinstance(self._history.messages, list):  # The user may assign any value to `history`.
            self.note_changed(rebuilt)

    def note_changed(self, copies: Sequence[Message]) -> None:
        """Note messages that were edited in place since these copies were made."""
        for index, (message, copy) in enumerate(zip(self._history.messages, copies, strict=False)):
            if _differs(message, copy):
                self._add_entry(index, 1, [message], [])

    def _add_entry(self, start: int, removed: int, messages: Sequence[Any], added: Sequence[int]) -> None:
        journal = self._journal
        saved = tuple([to_saved_data(message) for message in messages])
        journal.entries.append(
            HistoryEdited(self._run_id, journal.step, journal.now, start, removed, saved, tuple(added))
        )


def _is_message(message: object) -> bool:
    """Whether a value is a message. The next request raises an error for any other value."""
    return is_json_object(message) and message.get("role") in ROLES


def _differs(message: object, copy: Message) -> bool:
    try:
        if message == copy:
            return False
    except Exception:  # A user-defined `__eq__` may raise.
        pass
    return bool(to_saved_data(message) != copy)


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    index = 0
    for index, (left, right) in enumerate(zip(one, other, strict=False), start=1):
        if left is not right:
            return index - 1
    return index


def _added_indexes(history: Sequence[object], noted: Sequence[Message]) -> list[int]:
    """Return the indexes of new messages, which are neither known objects nor copies of removed ones.

    The copy of a response or a result is recognized by its ids, even if it was edited. Any other copy is recognized by
    its text.
    """
    remaining = Counter(map(id, noted))
    unknown: list[int] = []
    for index, message in enumerate(history):
        if remaining[id(message)]:
            remaining[id(message)] -= 1
        else:
            unknown.append(index)
    if not unknown:
        return []
    removed: Counter[str] = Counter()
    for known in noted:
        if remaining[id(known)]:
            remaining[id(known)] -= 1
            removed.update(_fingerprints(known))
    added: list[int] = []
    for index in unknown:
        matches = [fingerprint for fingerprint in _fingerprints(history[index]) if removed[fingerprint]]
        removed.subtract(matches)
        if not matches:
            added.append(index)
    return added


def _fingerprints(message: object) -> list[str]:
    """Return the strings by which a copy of a message is recognized."""
    ids = [f"call {call_id}" for call_id in call_ids(message) if call_id]
    if ids:
        return ids
    if is_json_object(message) and message.get("role") == "tool":
        return [f"result {message.get('tool_call_id')}"]
    return [to_json_text(message)]
