"""The history of a run: its messages, their reconstruction from the journal, and the detection of edits by user code.

User code may change the history at any time, and acorn is not notified. Therefore acorn compares the history with
copies, and records each edit in the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Protocol, cast

from acorn._formats.blobs import to_saved_data
from acorn._formats.json import copy_json, to_compact_json, to_json_text
from acorn._history.ownership import HistoryOwnership
from acorn.journal import CalledTool, Compacted, Entry, HistoryEdited, MessagesAdded, ModelResponded, ToolResultsAdded
from acorn.types import Content, JsonObject, JsonValue, Message, is_json_list, is_json_object, is_list_or_tuple

SYSTEM_ROLES = ("system", "developer")
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")


def user_message(content: Content) -> Message:
    return {"role": "user", "content": content}


def assistant_message(content: str, calls: Sequence[CalledTool], extra: Mapping[str, Any]) -> Message:
    """Return a model response as an assistant message. Call arguments stay exactly as the model wrote them."""
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    if extra:
        cast(JsonObject, message).update(extra)  # The provider adds keys, such as reasoning blocks.
    return message


def tool_message(call_id: str, content: Content) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def call_ids(message: object) -> list[str]:
    """Return the ids of the tool calls in an assistant message, or an empty list for any other value.

    The user may have written the message, so it can have any form. The id of a call without an id is "".
    """
    if not is_json_object(message) or message.get("role") != "assistant":
        return []
    calls: object = message.get("tool_calls")
    if not is_list_or_tuple(calls):
        return []
    return [str(call.get("id") or "") if is_json_object(call) else "" for call in calls]


def history_of(entries: Iterable[Entry]) -> list[Message]:
    """Rebuild the history from journal entries, and return it as a list of new messages."""
    history: list[Message] = []
    for entry in entries:
        change = change_of(entry, len(history))
        if change is not None:
            start, removed, added = change
            history[start : start + removed] = added
    return history


def change_of(entry: Entry, length: int) -> tuple[int, int, list[Message]] | None:
    """Return the change that a journal entry makes to a history with `length` messages.

    The change is a tuple: an index, the number of messages to remove at this index, and the messages to insert there.
    Return None if entries of this class do not change the history.
    """
    match entry:
        case MessagesAdded():
            return (length if entry.where is None else entry.where), 0, copy_json(list(entry.messages))
        case ModelResponded() if entry.refusal is None:
            return length, 0, [assistant_message(entry.content, entry.calls, copy_json(entry.extra))]
        case ToolResultsAdded():
            results = () if entry.where is None else entry.results
            added = [tool_message(result.call_id, copy_json(result.content)) for result in results]
            added += [] if entry.context is None else [user_message(copy_json(entry.context))]
            return (length if entry.where is None else entry.where), 0, added
        case HistoryEdited() | Compacted():
            return entry.where, entry.removed, copy_json(list(entry.messages))
        case _:
            return None


def steps_of(entries: Iterable[Entry]) -> list[int]:
    """Return the step numbers of the messages in the history that the journal entries describe.

    The number of a message is the step that added it, or 0 if the message was added before the first step.
    """
    steps: list[int] = []
    for entry in entries:
        change = change_of(entry, len(steps))
        if change is not None:
            start, removed, added = change
            steps[start : start + removed] = [entry.step] * len(added)
    return steps


# The messages that a run added itself


def own_messages(history: object, entries: Iterable[Entry]) -> list[Message]:
    """Return the messages that a run added to its history, without the prompt and messages of other runs."""
    if not is_json_list(history):  # The user may assign any value to `history`.
        return []
    known: list[Message] = []
    is_own: list[bool] = []
    has_started = False
    for entry in entries:
        change = change_of(entry, len(known))
        if change is None:
            continue
        start, removed, added = change
        end = start + removed
        if isinstance(entry, HistoryEdited | Compacted):
            flags = _own_flags(known[start:end], is_own[start:end], added)
        elif isinstance(entry, MessagesAdded) and not has_started:
            # A branch inherits its first messages. Any other run adds only the last first message, its input.
            inherited, has_started = entry.inherited or len(added) - 1, True
            flags = [index >= inherited for index in range(len(added))]
        else:
            flags = [True] * len(added)
        known[start:end], is_own[start:end] = added, flags
    flags = _own_flags(known, is_own, history)
    return [message for message, is_run_message in zip(history, flags, strict=True) if is_run_message]


def _own_flags(before: Sequence[Message], is_own: Sequence[bool], after: Sequence[Any]) -> list[bool]:
    """Return a list of flags for the messages in `after`. A flag is True if the run added the message.

    `before` contains the messages before an edit, and `is_own` their flags. A message that stayed, moved or was edited
    has the same flag as before. For a new message the flag is True.
    """
    if list(before) == list(after):
        return list(is_own)
    old_texts, new_texts = (
        [to_compact_json(message) for message in before],
        [to_compact_json(message) for message in after],
    )
    flags: list[bool | None] = [None] * len(after)
    removed: list[int] = []
    added: list[int] = []
    opcodes = SequenceMatcher(None, old_texts, new_texts, autojunk=False).get_opcodes()
    for kind, old_start, old_end, new_start, new_end in opcodes:
        is_edit = kind == "replace" and old_end - old_start == new_end - new_start
        if kind == "equal" or is_edit:
            flags[new_start:new_end] = is_own[old_start:old_end]
        if kind != "equal":
            removed += range(old_start, old_end)
            added += range(new_start, new_end)
    for new in added:
        if flags[new] is None:
            same = [
                old for old in removed if old_texts[old] == new_texts[new] or _is_edited_copy(before[old], after[new])
            ]
            flags[new] = is_own[same[0]] if same else True
            removed = [old for old in removed if old not in same[:1]]
    return [bool(flag) for flag in flags]


def _is_edited_copy(message: object, other: object) -> bool:
    """Return True if two messages share a tool call id, because one is then an edited copy of the other."""
    ids = set(call_ids(message)) - {""}
    if ids:
        return not ids.isdisjoint(call_ids(other))
    if not (is_json_object(message) and is_json_object(other) and message.get("role") == other.get("role")):
        return False
    return message["role"] == "tool" and message.get("tool_call_id") == other.get("tool_call_id")


# Edits of the history by user code


class EntryList(Protocol):
    """The interface of a journal for `HistoryEdits`, which appends an entry for each edit of the history."""

    entries: list[Entry]
    step: int
    now: float


class HistoryEdits:
    """The detector of edits that user code makes in a history. It adds a journal entry for each edit."""

    def __init__(self, run_id: str, journal: EntryList, history: HistoryOwnership) -> None:
        self._run_id, self._journal, self._history = run_id, journal, history
        self._rebuilt: list[Message] = []
        """The history, rebuilt from the first `_entries_read` journal entries."""
        self._entries_read = 0

    def record_moves(self) -> None:
        """Add a journal entry if user code added, removed, replaced or moved messages in the history."""
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
        """Add journal entries for all edits by user code, including changes inside messages.

        The duration depends on the number of journal entries since the last call.
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
        """Add a journal entry for each message that differs from its earlier copy in `copies`."""
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
    """Return whether a value is a dict with a known `role`.

    If the history contains any other value, the next request raises an error.
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
    """Return the indexes of messages that user code added to the history.

    A message is not new if the snapshot contains the same object, or if it is a copy of a removed message. Copies of a
    response or a tool result are found by their tool call ids, even if the user edited them. Copies of other messages
    are found by their text.
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
    """Return strings that are equal for a message and its copies: tool call ids, or else the JSON text."""
    ids = [f"call {call_id}" for call_id in call_ids(message) if call_id]
    if ids:
        return ids
    if is_json_object(message) and message.get("role") == "tool":
        return [f"result {message.get('tool_call_id')}"]
    return [to_json_text(message)]
