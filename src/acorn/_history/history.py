"""From the journal of a run to its history, and whose each message of it is.

The loop writes both books with the messages made here; a record reads the one back from the other.

The history of one run, and whether anybody but the run has it.

The history is also the user's, who may change anything in it and tells nobody. As long as nobody was handed it,
nothing in it can have changed, and there is nothing to compare. `record.py` hands it out; the loop writes in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from threading import RLock
from typing import Any

from acorn._formats.json import copy_json, to_compact_json
from acorn.journal import (
    CalledTool,
    Compacted,
    Entry,
    HistoryEdited,
    Message,
    MessagesAdded,
    ModelResponded,
    ToolResultsAdded,
)
from acorn.types import Content, JsonObject


def user(content: Content) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str, calls: Sequence[CalledTool], extra: Mapping[str, Any]) -> Message:
    """The model's turn, its arguments to the letter."""
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    if extra:
        message.update(extra)
    return message


def tool(call_id: str, content: Content) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def call_ids(message: Any) -> list[str]:
    """The ids of the calls in an assistant message, whoever wrote it."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return []
    calls: Any = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return []
    return [str(call.get("id") or "") if isinstance(call, dict) else "" for call in calls]


def history_of(entries: Iterable[Entry]) -> list[Message]:
    """The history that a journal tells of, in messages of its own."""
    history: list[Message] = []
    for entry in entries:
        change = change_of(entry, len(history))
        if change is not None:
            where, removed, made = change
            history[where : where + removed] = made
    return history


def change_of(entry: Entry, length: int) -> tuple[int, int, list[Message]] | None:
    """What an entry does to a history of this length: where, how many messages go, and which come, as new dicts."""
    match entry:
        case MessagesAdded():
            return (length if entry.where is None else entry.where), 0, copy_json(list(entry.messages))
        case ModelResponded() if entry.refusal is None:
            return length, 0, [assistant(entry.content, entry.calls, copy_json(entry.extra))]
        case ToolResultsAdded():
            made = (
                [] if entry.where is None else [tool(each.call_id, copy_json(each.content)) for each in entry.results]
            )
            made += [] if entry.context is None else [user(copy_json(entry.context))]
            return (length if entry.where is None else entry.where), 0, made
        case HistoryEdited() | Compacted():
            return entry.where, entry.removed, copy_json(list(entry.messages))
        case _:
            return None


def steps_of(entries: Iterable[Entry]) -> list[int]:
    """For each message of the history that a journal tells of, the step that it entered in; 0 is before the first."""
    steps: list[int] = []
    for entry in entries:
        change = change_of(entry, len(steps))
        if change is not None:
            where, removed, made = change
            steps[where : where + removed] = [entry.step] * len(made)
    return steps


# Whose each message is


def own_messages(history: Any, entries: Iterable[Entry]) -> list[Message]:
    """What is in a history of the run that has this journal: not its prompt, nor what it began with."""
    if not isinstance(history, list):  # the user may have put anything there
        return []
    known: list[Message] = []
    owned: list[bool] = []
    has_begun = False
    for entry in entries:
        change = change_of(entry, len(known))
        if change is None:
            continue
        where, removed, made = change
        behind = where + removed
        if isinstance(entry, HistoryEdited | Compacted):
            found = _owned(known[where:behind], owned[where:behind], made)
        elif isinstance(entry, MessagesAdded) and not has_begun:
            # A branch has the first ones from its parent; what else a run begins with stands before its input.
            before, has_begun = entry.inherited or len(made) - 1, True
            found = [at >= before for at in range(len(made))]
        else:
            found = [True] * len(made)
        known[where:behind], owned[where:behind] = made, found
    return [message for message, is_own in zip(history, _owned(known, owned, history), strict=True) if is_own]


def _owned(before: Sequence[Any], owned: Sequence[bool], after: Sequence[Any]) -> list[bool]:
    """Whose the messages of a changed history are: those that stayed, moved or were edited keep what they were."""
    if list(before) == list(after):
        return list(owned)
    texts, new = [to_compact_json(message) for message in before], [to_compact_json(message) for message in after]
    found: list[bool | None] = [None] * len(after)
    left: list[int] = []
    strangers: list[int] = []
    for kind, a, behind_a, b, behind_b in SequenceMatcher(None, texts, new, autojunk=False).get_opcodes():
        if kind == "equal":
            found[b:behind_b] = owned[a:behind_a]
        else:
            left += range(a, behind_a)
            strangers += range(b, behind_b)
        if kind == "replace" and behind_a - a == behind_b - b:  # edited, each in its place
            found[b:behind_b] = owned[a:behind_a]
    for at in strangers:
        if found[at] is None:
            same = [other for other in left if texts[other] == new[at] or _is_copy(before[other], after[at])]
            found[at] = owned[same[0]] if same else True
            left = [other for other in left if other not in same[:1]]
    return [bool(is_own) for is_own in found]


def _is_copy(message: Any, other: Any) -> bool:
    """Whether two messages are the same turn or the same result, though one was edited."""
    ids = set(call_ids(message)) - {""}
    if ids:
        return not ids.isdisjoint(call_ids(other))
    if not (isinstance(message, dict) and isinstance(other, dict) and message.get("role") == other.get("role")):
        return False
    return message["role"] == "tool" and message.get("tool_call_id") == other.get("tool_call_id")


class HistoryOwnership:
    """The messages of one run; `messages` is for the loop, and `hand_out` for everybody else."""

    __slots__ = ("_borrowed", "messages", "noted")

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.noted: list[JsonObject] | None = None
        """What the messages are if nobody else has written in them; None while nobody else has them."""
        self._borrowed = 0
        """How many of the first messages are another's, who keeps them as they are."""

    @property
    def is_ours(self) -> bool:
        """Whether nobody else has it."""
        return self.noted is None

    def begin(self, messages: list[JsonObject], borrowed: int = 0) -> None:
        """Other messages; so many of the first are copied only when somebody wants to have them."""
        was_out = self.noted is not None
        self.messages, self._borrowed, self.noted = messages, borrowed, None
        if was_out:
            self.hand_out()

    def hand_out(self) -> list[JsonObject]:
        """The messages for somebody who may keep and change them."""
        if self.noted is None:
            with _lock.handing_out:
                self._hand_out()
        return self.messages

    def _hand_out(self) -> None:
        if self.noted is None:  # no other thread was quicker
            count, self._borrowed = self._borrowed, 0
            if count:
                self.messages[:count] = [copy_json(message) for message in self.messages[:count]]
            self.noted = list(self.messages)

    def replace(self, messages: Any) -> None:
        """What somebody else puts in their place: a list of messages, or whatever it is."""
        self.hand_out()
        self.messages = messages

    def put(self, at: int, made: Sequence[JsonObject]) -> None:
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
