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
    """The detector of user edits in the history of one run, which appends a journal entry for each edit."""

    def __init__(self, run: Run) -> None:
        self._run_id = run.id
        self._journal = run.journal
        self._history = history_of_run(run)
        self._rebuilt: list[Message] = []
        """The history, rebuilt from the first `_entries_read` journal entries."""
        self._entries_read = 0

    def record_moves(self) -> None:
        """Append a journal entry if user code added, removed, replaced or moved messages."""
        history: JsonValue = self._history.messages
        snapshot = self._history.snapshot
        if snapshot is None:  # No user code has received the history.
            return
        try:
            # Equal messages are not enough: a copy equals its original, but user code may edit the copy later.
            if history == snapshot and (not snapshot or (history[-1] is snapshot[-1] and history[0] is snapshot[0])):
                return
        except Exception:  # A user-defined `__eq__` may raise.
            pass
        if not isinstance(history, list):  # The user may assign any value to `history`.
            return
        start = _first_difference(history, snapshot)
        same_at_end = _first_difference(history[start:][::-1], snapshot[start:][::-1])
        added = [index for index in _added_indexes(history, snapshot) if _is_message(history[index])]
        if added:  # If a message now occurs twice, its second occurrence may be in the range that seems unchanged.
            start, same_at_end = min(start, added[0]), min(same_at_end, len(history) - added[-1] - 1)
        end, snapshot_end = len(history) - same_at_end, len(snapshot) - same_at_end
        self._add_entry(start, snapshot_end - start, history[start:end], [index - start for index in added])
        self._history.snapshot = history.copy()

    def record_all(self) -> None:
        """Append journal entries for all edits, also for changes inside messages.

        The cost grows with the number of new journal entries.
        """
        if self._history.snapshot is None:
            return
        self.record_moves()
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
            self.record_changed(rebuilt)

    def record_changed(self, copies: Sequence[Message]) -> None:
        """Append a journal entry for each message that no longer equals its copy in `copies`."""
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
    """Return whether a value is a message dict with a known role.

    The next request raises an error for any other value in the history.
    """
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


def _added_indexes(history: Sequence[object], snapshot: Sequence[Message]) -> list[int]:
    """Return the indexes of new messages: neither objects from the snapshot nor copies of removed messages.

    The ids of tool calls identify the copy of a response or a result, even if the user edited the copy. The text
    identifies the copy of any other message.
    """
    remaining = Counter(map(id, snapshot))
    unknown: list[int] = []
    for index, message in enumerate(history):
        if remaining[id(message)]:
            remaining[id(message)] -= 1
        else:
            unknown.append(index)
    if not unknown:
        return []
    removed: Counter[str] = Counter()
    for known in snapshot:
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
    """Return the strings that identify copies of a message."""
    ids = [f"call {call_id}" for call_id in call_ids(message) if call_id]
    if ids:
        return ids
    if is_json_object(message) and message.get("role") == "tool":
        return [f"result {message.get('tool_call_id')}"]
    return [to_json_text(message)]
