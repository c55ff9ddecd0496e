"""The history of a run: its messages, their reconstruction from the journal, and the edits by user code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import RLock
from typing import Any, cast

from acorn._formats.blobs import to_saved_data
from acorn._formats.json import copy_json, to_json_text
from acorn.errors import AcornError
from acorn.journal import Compacted, Entry, HistoryEdited, MessagesAdded, ModelResponded, ToolResultsAdded
from acorn.types import Content, JsonObject, Message, is_json_list, is_json_object, is_list_or_tuple

SYSTEM_ROLES = ("system", "developer")
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool")


def user_message(content: Content) -> Message:
    return {"role": "user", "content": content}


def assistant_message(response: ModelResponded) -> Message:
    """Return a model response as an assistant message. Call arguments stay exactly as the model wrote them."""
    message: Message = {"role": "assistant", "content": response.content}
    if response.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in response.calls
        ]
    if response.extra:
        cast(JsonObject, message).update(response.extra)  # The provider adds keys, such as reasoning blocks.
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
    """Rebuild the history from journal entries. The entries share the messages, which must not change."""
    history: list[Message] = []
    for _, changed, added in _changes(entries):
        history[changed] = added
    return history


def _changes(entries: Iterable[Entry]) -> Iterator[tuple[Entry, slice, list[Message]]]:
    """Yield each entry that changes the history, the range of messages that it replaces, and the new messages."""
    length = 0
    for entry in entries:
        change = change_of(entry, length)
        if change is not None:
            start, removed, added = change
            length += len(added) - removed
            yield entry, slice(start, start + removed), added


def change_of(entry: Entry, length: int) -> tuple[int, int, list[Message]] | None:
    """Return the change that a journal entry makes to a history with `length` messages.

    The change is a tuple: an index, the number of messages to remove at this index, and the messages to insert there.
    Return None if entries of this class do not change the history.
    """
    match entry:
        case MessagesAdded():
            return (length if entry.where is None else entry.where), 0, list(entry.messages)
        case ModelResponded() if entry.refusal is None:
            return length, 0, [assistant_message(entry)]
        case ToolResultsAdded():
            results = () if entry.where is None else entry.results
            added = [tool_message(result.call_id, result.content) for result in results]
            added += [] if entry.context is None else [user_message(entry.context)]
            return (length if entry.where is None else entry.where), 0, added
        case HistoryEdited() | Compacted():
            return entry.where, entry.removed, list(entry.messages)
        case _:
            return None


def steps_of(entries: Iterable[Entry]) -> list[int]:
    """Return the step numbers of the messages in the history that the journal entries describe.

    The number of a message is the step that added it, or 0 if the message was added before the first step.
    """
    steps: list[int] = []
    for entry, changed, added in _changes(entries):
        steps[changed] = [entry.step] * len(added)
    return steps


# The messages that a run added itself


def own_messages(history: Sequence[Message], entries: Iterable[Entry]) -> list[Message]:
    """Return the messages that a run added to its history, without the prompt and messages of other runs."""
    known: list[Message] = []
    is_own: list[bool] = []
    has_started = False
    for entry, changed, added in _changes(entries):
        if isinstance(entry, HistoryEdited | Compacted):
            flags = _own_flags(known[changed], is_own[changed], added)
        elif isinstance(entry, MessagesAdded) and not has_started:
            # A branch inherits its first messages. Any other run adds only the last first message, its input.
            inherited, has_started = entry.inherited or len(added) - 1, True
            flags = [index >= inherited for index in range(len(added))]
        else:
            flags = [True] * len(added)
        known[changed], is_own[changed] = added, flags
    flags = _own_flags(known, is_own, history)
    return [message for message, is_run_message in zip(history, flags, strict=True) if is_run_message]


def _own_flags(before: Sequence[Message], is_own: Sequence[bool], after: Sequence[Any]) -> list[bool]:
    """Return a list of flags for the messages in `after`. A flag is True if the run added the message.

    `before` contains the messages before an edit, and `is_own` their flags. A message that stayed, moved or was edited
    has the same flag as before. For a new message the flag is True.
    """
    if list(before) == list(after):
        return list(is_own)
    origins = _origins(before, after)
    if len(before) == len(after):  # A message that is neither removed nor new was edited at its place.
        left = set(range(len(before))).difference(origins)
        origins = [index if origin is None and index in left else origin for index, origin in enumerate(origins)]
    return [origin is None or is_own[origin] for origin in origins]


# The input messages


def current_openings(openings: tuple[Message, ...], entries: Iterable[Entry]) -> tuple[Message, ...]:
    """Return the input messages of a run and its parents as the history contains them, with the edits of the user."""
    known: list[Message] = []
    for entry, changed, added in _changes(entries):
        if isinstance(entry, HistoryEdited):
            openings = tuple([_edited_opening(message, known[changed], added, entry.added) for message in openings])
        elif isinstance(entry, MessagesAdded) and not known and openings[0] not in added and added[entry.inherited :]:
            openings = (added[-1], *openings[1:])  # The class has changed since the run started, and so has the XML.
        known[changed] = added
    return openings


def _edited_opening(
    message: Message, before: Sequence[Message], after: Sequence[Message], added: Sequence[int]
) -> Message:
    """Return the user message that replaces an input message, or the input message if it stayed or was trimmed away.

    The user has replaced the input if its message was edited, or if a new message is directly before the message that
    followed the input. `added` contains the indexes of the new messages in `after`.
    """
    if message not in before or message in after:
        return message
    origins = [*_origins(before, after), len(before)]
    for index, new in enumerate(after):
        is_replacement = index not in added or origins[index + 1] == before.index(message) + 1
        if not is_replacement or origins[index] is not None or not _is_message(new) or new["role"] != "user":
            continue
        if str(new.get("content") or "").strip():
            return new
    return message


# The history of a run in progress

Edit = tuple[int, int, tuple[Message, ...], tuple[int, ...]]
"""An edit by user code: the last four fields of a `HistoryEdited` entry."""


class History:
    """The conversation of one run: acorn's own messages, and the list of copies that user code reads and edits.

    acorn's messages never change in place, so the journal, the requests and the branches share them. User code may
    change its list at any time, and acorn is not notified. Therefore acorn compares the user's list with its own
    messages before it uses them. While no user code has received the list, there is nothing to compare.
    """

    __slots__ = ("_known", "_lock", "messages", "needs_repair", "openings", "shown", "turn", "unchanged")

    def __init__(self, messages: Iterable[Message] = (), openings: tuple[Message, ...] = ()) -> None:
        self.messages = list(messages)
        """acorn's messages, which contain the edits that `take_moves` and `take_edits` have found."""
        self.openings = openings
        """The input messages of the run and its parents, the message of the run first, or the user's replacements."""
        self.turn: Message | None = None
        """The last response of the model, which is one of the messages unless the user removed it."""
        self.unchanged = 0
        """The number of messages at the start that have not changed since the last request."""
        self.needs_repair = True
        """Whether a message since the last request may need repair before it is sent."""
        self.shown: list[Message] | None = None
        """The user's list, or None while no user code has received it."""
        self._known: list[Message] = []
        """The items of the user's list without the user's later edits, in the order of `messages`."""
        self._lock = RLock()  # Tools in other threads may request the history while acorn adds messages.

    @property
    def current(self) -> list[Message]:
        """The messages with all edits by user code. Only acorn's code reads them, and it does not change them."""
        return self.messages if self.shown is None else self.shown

    def hand_out(self) -> list[Message]:
        """Return the list for user code, which may change it at any time."""
        if self.shown is None:
            with self._lock:
                if self.shown is None:  # Another thread may have created the list in the meantime.
                    self._known = copy_json(self.messages)
                    self.shown = list(self._known)
        return self.shown

    def replace(self, messages: object) -> None:
        """Use the list that the user assigned to `history` as the user's list."""
        if not is_json_list(messages):
            raise AcornError(
                f"`history` must be a list of messages, got `{type(messages).__name__}`. Assign a list of dicts."
            )
        self.hand_out()
        self.shown = messages

    def start(self, messages: list[Message], inherited: int = 0) -> None:
        """Replace all messages. A branch shares the first `inherited` messages with its parent."""
        self.splice(0, len(self.messages), messages)
        self.unchanged = inherited

    def splice(self, start: int, removed: int, messages: Sequence[Message]) -> None:
        """Replace `removed` messages at the index `start`, in acorn's messages and in the user's list."""
        with self._lock:
            end = start + removed
            if self.shown is not None:
                items = {id(old): self._known[start + index] for index, old in enumerate(self.messages[start:end])}
                copies = [items.get(id(message)) or copy_json(message) for message in messages]
                # The user may have added messages at the end, which the next message of acorn follows.
                first = len(self.shown) if start == len(self.messages) else start
                self.shown[first : first + removed] = copies
                self._known[start:end] = copies
            self.messages[start:end] = messages
        if start < self.unchanged:
            self.unchanged = start

    def take_moves(self) -> list[Edit]:
        """Apply the additions, removals, replacements and moves in the user's list, and return them as edits."""
        shown, known = self.shown, self._known
        if shown is None or _is_equal(shown, known):
            return []
        start = _first_difference(shown, known)
        same_at_end = _first_difference(shown[start:][::-1], known[start:][::-1])
        origins = _origins(known, shown)
        added = [index for index, origin in enumerate(origins) if origin is None and _is_message(shown[index])]
        if added:  # If a message now occurs twice, its second occurrence may be in the range that seems unchanged.
            start, same_at_end = min(start, added[0]), min(same_at_end, len(shown) - added[-1] - 1)
        end, known_end = len(shown) - same_at_end, len(known) - same_at_end
        own = {id(item): message for item, message in zip(known, self.messages, strict=True)}
        messages = [self._updated(own.get(id(item)), item) for item in shown[start:end]]
        self._known = list(shown)
        return [self._apply(start, known_end - start, messages, [index - start for index in added])]

    def take_edits(self) -> list[Edit]:
        """Apply all changes in the user's list, including changes inside messages, and return them as edits."""
        edits = self.take_moves()
        if self.shown is not None and not _is_equal(self.shown, self.messages):
            for index, (item, message) in enumerate(zip(self.shown, self.messages, strict=False)):
                updated = self._updated(message, item)
                if updated is not message:
                    edits.append(self._apply(index, 1, [updated], []))
        return edits

    def _apply(self, start: int, removed: int, messages: list[Message], added: list[int]) -> Edit:
        before = self.messages[start : start + removed]
        self.openings = tuple([_edited_opening(message, before, messages, added) for message in self.openings])
        self.messages[start : start + removed] = messages
        self.unchanged, self.needs_repair = min(self.unchanged, start), True
        return start, removed, tuple(messages), tuple(added)

    def _updated(self, message: Message | None, item: Message) -> Message:
        """Return a message of acorn, or a new message if the user changed the item of the user's list."""
        if message is not None and _is_equal(item, message):
            return message
        updated: Message = to_saved_data(item)
        if message is None or updated != message:
            if message is not None and message is self.turn:
                self.turn = updated
            return updated
        return message


def _is_equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # A user-defined `__eq__` may raise.
        return False


def _is_message(message: object) -> bool:
    """Return whether a value is a dict with a known `role`.

    If the history contains any other value, the next request raises an error.
    """
    return is_json_object(message) and message.get("role") in ROLES


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left is not right), min(len(one), len(other)))


def _origins(before: Sequence[object], after: Sequence[object]) -> list[int | None]:
    """Return for each message in `after` the index of the same message in `before`, or None if the message is new.

    A copy of a removed message is the same message. Copies of a response or a tool result are found by their tool call
    ids, even if the user edited them. Copies of other messages are found by their text.
    """
    same: dict[object, list[int]] = {}
    for index in reversed(range(len(before))):
        same.setdefault(id(before[index]), []).append(index)
    origins = [same[id(message)].pop() if same.get(id(message)) else None for message in after]
    unknown = [index for index, origin in enumerate(origins) if origin is None]
    removed = sorted(set(range(len(before))).difference(origins), reverse=True) if unknown else []
    for index in removed:
        for fingerprint in _fingerprints(before[index]):
            same.setdefault(fingerprint, []).append(index)
    for index in unknown:
        matches = [same[fingerprint].pop() for fingerprint in _fingerprints(after[index]) if same.get(fingerprint)]
        origins[index] = matches[0] if matches else None
    return origins


def _fingerprints(message: object) -> list[str]:
    """Return strings that are equal for a message and its copies: tool call ids, or else the JSON text."""
    ids = [f"call {call_id}" for call_id in call_ids(message) if call_id]
    if ids:
        return ids
    if is_json_object(message) and message.get("role") == "tool":
        return [f"result {message.get('tool_call_id')}"]
    return [to_json_text(message)]
