"""What is really sent: the history, made valid for every provider, at the cost of what is new.

The user may do anything to the history. Before each request it is read afresh: results find their calls,
calls without a result get a placeholder, strays stay behind, and the user's own list is left alone. What
was sent before is kept beside a private copy of the history it came from; while the two agree, only the
new end is looked at. While nobody but the run has the history, they agree without a look.

A conversation sent as one document: the system message, and one user message that holds the `<thread>`.

For `history_format = "thread"`. What goes in is what would have been sent, repaired as for any provider, so
edits of the history hold here as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from operator import is_
from typing import Any

from pydantic_core import from_json, to_json

from acorn._formats.blobs import Blob
from acorn._formats.json import replace_surrogates, safe_repr, shorten, to_json_text
from acorn._history.messages import OMITTED, REMINDER, fresh_ids, user
from acorn._history.repair import SYSTEM, content_of, content_text, match_results, turn_of
from acorn.errors import AcornError
from acorn.models.request_body import SentMessages, SentPart, media_of
from acorn.record import Message
from acorn.thread.messages import events_of
from acorn.thread.xml import Names, document, lines_of

ROLES = (*SYSTEM, "user", "assistant", "tool")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DEEPEST = 100
ODD: Any = object()
"""Stands in the copy for a message that cannot be compared; it equals nothing."""


class RequestMessages:
    """The sent side of one run's conversation."""

    def __init__(self) -> None:
        self._begin()
        self.before: list[Message] = []
        """What the last `prepare` had copies of, if it found something changed."""

    def _begin(self) -> None:
        self._seen: list[Message] = []
        self._sent = SentMessages()
        self._strays: set[str] = set()
        self._ids: set[str] = set()
        self._is_odd = False
        self._is_whole = False
        """Whether what was sent begins with a user message, as it must."""
        self._is_known = False
        """Whether the history begins with what was seen, unless somebody else has it and has changed it."""

    def forget(self) -> None:
        """The history is another from here on, and everybody knows."""
        self._begin()

    def copies_of(self, history: list[Message], *, is_ours: bool = False) -> list[Message]:
        """Private copies of a history, those from the last request where they still say the same."""
        known = list(self._seen) if self._knows(history, is_ours) else []
        known += [_private(message) for message in history[len(known) :]]
        if self._is_odd:
            known = [_private(message) if copy is ODD else copy for message, copy in zip(history, known, strict=True)]
        return known

    def fork(self, copies: Sequence[Message]) -> RequestMessages:
        """The same for a branch, which goes on from here by itself; its history begins as these copies do."""
        other = RequestMessages()
        other._seen, other._sent = list(self._seen), self._sent.copy()
        other._strays, other._ids, other._is_odd = set(self._strays), set(self._ids), self._is_odd
        other._is_known = bool(self._seen) and len(copies) >= len(self._seen) and all(map(is_, copies, self._seen))
        return other

    def change_first(self, message: Message) -> None:
        """The system message is another or new, and the rest is not: a branch puts its prompt below its parent's."""
        is_known, self._is_known = self._is_known, False
        sent = self._sent.messages
        copy, clean = _take(message, 0)
        content = content_of(clean.get("content"))
        if not sent or copy is ODD or message["role"] != "system" or content is None:
            return  # it will be read anew
        was_there = self._seen[0] is ODD or self._seen[0]["role"] in SYSTEM
        was_sent = sent[0]["role"] == "system"
        if was_there != was_sent:
            return
        self._seen[:was_there] = [copy]
        self._sent = self._sent.with_first(content_text(clean, content), is_new=not was_sent)
        self._is_known = is_known

    def prepare(
        self,
        history: list[Message],
        openings: Sequence[Message],
        written: list[Message] | None = None,
        *,
        is_ours: bool = False,
    ) -> SentPart:
        """The messages to send; `openings` are inputs, should they have been trimmed.

        `written` are copies for us to keep, of what acorn put into the history: the first messages, or the last turn
        and its results. A history that is ours is one that nobody else has.
        """
        self.before = []
        if written is not None and self._goes_on(history, written, is_ours):
            self._is_known = True
            if self._is_whole:  # and it ends with a result
                return SentPart(self._sent, len(self._sent.messages))
        elif not (self._knows(history, is_ours) and self._add(history, len(self._seen))):
            self.before = self._seen
            self._begin()
            self._add(history, 0)
        self._is_known = not self._is_odd
        return self._completed(openings)

    def _completed(self, openings: Sequence[Message]) -> SentPart:
        """What was sent and is new, with a user message at its beginning and something to answer at its end."""
        messages = self._sent.messages
        count = last = len(messages)
        first = 0
        while first < count and messages[first]["role"] == "system":
            first += 1
        self._is_whole = first < count and messages[first]["role"] == "user"
        inserted = None
        if not self._is_whole:
            trimmed = [opening for opening in openings if opening not in messages]
            inserted = dict(trimmed[0]) if trimmed else user(OMITTED)
        while last > first and messages[last - 1]["role"] == "system":
            last -= 1
        is_turn = last > first and messages[last - 1]["role"] == "assistant"
        # No provider takes a conversation that ends with the model's turn.
        return SentPart(self._sent, count, first, inserted, user(REMINDER) if is_turn else None)

    def _goes_on(self, history: list[Message], written: list[Message], is_ours: bool) -> bool:
        """Take in what was written since the last time, if nothing else has changed.

        Nearly every step ends like this, and what needs no repair is not searched for faults.
        """
        seen = self._seen
        if is_ours and (self._is_known or not seen):
            if len(history) != len(seen) + len(written):
                return False
        else:
            try:
                if history != seen + written:
                    return False
            except Exception:  # somebody's own `==`
                return False
        if self._strays:
            return False
        sendable = _sendable(written, self._ids, self._place(len(seen))) if seen else _opening(written)
        if sendable is None:
            return False
        seen += written
        self._sent.messages += sendable
        return True

    def _knows(self, history: list[Message], is_ours: bool) -> bool:
        """Whether the history begins with what was seen last time."""
        if is_ours and self._is_known:
            return True
        try:
            return bool(self._seen) and history[: len(self._seen)] == self._seen
        except Exception:  # somebody's own `==`
            return False

    def _place(self, at: int) -> int:
        """Where a message stands, counted as if there always were a system message: a branch may put one before."""
        first = self._seen[0] if self._seen else None
        return at if isinstance(first, dict) and first["role"] in SYSTEM else at + 1

    def _add(self, history: Sequence[Any], known: int) -> bool:
        """Take in what is new; False where that changes what was sent for the rest."""
        taken = [_take(message, at) for at, message in enumerate(history[known:], start=known)]
        tail = [clean for _, clean in taken]
        answers, lost, unanswered = match_results(tail)
        if known and (lost or not self._strays.isdisjoint(unanswered)):
            return False
        self._strays |= lost
        self._seen += [copy for copy, _ in taken]
        self._is_odd = self._is_odd or any(copy is ODD for copy, _ in taken)
        place, sent = self._place(known), self._sent.messages
        before = len(sent)
        for at, message in enumerate(tail):
            if message["role"] == "assistant":
                sent += turn_of(message, place + at, answers.get(at, {}), self._ids)
            elif message["role"] != "tool" and (content := content_of(message.get("content"))) is not None:
                sent.append(content_text(message, content))
        for message in sent[before:]:
            if type(message.get("content")) is list:
                self._sent.media += media_of(message)
        return True


def _private(message: Any) -> Any:
    copied, plain = _take(message, 0)
    return plain if copied is ODD else copied


def _opening(written: list[Message]) -> list[Message] | None:
    """The first messages of a run, if they can be sent as they are."""
    for message in written:
        content = message.get("content")
        if len(message) != 2 or message["role"] not in ("system", "user"):
            return None
        if type(content) is not str or not _is_encodable(content) or not content.strip():
            return None
    return written or None


def _sendable(written: list[Message], used: set[str], place: int) -> list[Message] | None:
    """A turn and its results as acorn wrote them, as they are sent; None where they need a closer look."""
    turn = written[0]
    calls, content = turn.get("tool_calls"), turn.get("content")
    if not calls or len(calls) != len(written) - 1 or type(content) is not str or not _is_encodable(content):
        return None
    ids: list[str] = []
    for at, call in enumerate(calls, start=1):
        result, function, call_id = written[at], call["function"], call["id"]
        text = result["content"]
        if not (type(call_id) is type(text) is str and _is_name(function["name"])):
            return None
        if not call_id or call_id != result["tool_call_id"]:
            return None
        if not _is_encodable(f"{call_id}{function['arguments']}{text}"):
            return None
        ids.append(call_id)
    if used.isdisjoint(ids) and (len(ids) == 1 or len(set(ids)) == len(ids)):
        used.update(ids)
        return written if content.strip() else [{**turn, "content": None}, *written[1:]]
    ids = fresh_ids(ids, place, used)
    made = [{**call, "id": call_id} for call, call_id in zip(calls, ids, strict=True)]
    results = [{**result, "tool_call_id": call_id} for result, call_id in zip(written[1:], ids, strict=True)]
    return [{**turn, "content": content if content.strip() else None, "tool_calls": made}, *results]


def _is_encodable(text: str) -> bool:
    """Whether there is no half of a surrogate pair in it, which nobody can encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=256)
def _is_name(name: Any) -> bool:
    return type(name) is str and _NAME.fullmatch(name) is not None


def _take(message: Any, index: int) -> tuple[Message, Message]:
    """A private copy to compare with, and the message as plain data in text that can be encoded."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise AcornError(
            f"`history[{index}]` must be a dict with a `role` of {', '.join(ROLES)}, "
            f"got {shorten(safe_repr(message), 120)}."
        )
    if type(message) is dict and _is_all_text(message):
        copy = message.copy()
        return copy, copy
    if isinstance(message.get("content"), list):
        try:
            copy = _copy(message, _DEEPEST)  # the data of a picture is shared, which JSON would copy
            return copy, replace_surrogates(copy)
        except TypeError:
            pass
    try:
        copy = from_json(to_json(message, inf_nan_mode="null"))
        if copy == message:
            return copy, copy
    except ValueError:
        pass
    try:
        copy = _copy(message, _DEEPEST)
    except TypeError:  # not plain data; it may be of a kind that is changed in place, so it is read each time
        return ODD, from_json(to_json_text(message))
    return copy, replace_surrogates(copy)


def _is_all_text(message: Message) -> bool:
    """Whether there is nothing but text in it: most messages are like that."""
    for key, value in message.items():
        if type(value) is not str or type(key) is not str or not value.isascii() or not key.isascii():
            return False
    return True


def _copy(value: Any, left: int) -> Any:
    """As `copied`, but a TypeError for what is not plain data, or too deep: such a message is sent another way."""
    kind = type(value)
    if (
        kind is str
        or kind is Blob
        or kind is int
        or kind is bool
        or value is None
        or (kind is float and math.isfinite(value))
    ):
        return value
    if kind is dict and left and all(type(key) is str for key in value):
        return {key: _copy(item, left - 1) for key, item in value.items()}
    if kind is list and left:
        return [_copy(item, left - 1) for item in value]
    raise TypeError


class ThreadMessage:
    """The document of one run; what was written for an earlier request is not written again."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._written: list[Message] = []
        self._lines: list[str] = []
        self._parts: list[Any] = []
        self._names: Names = {}
        self._iteration = 0

    def wrap(self, messages: list[Message]) -> list[Message]:
        """The messages to send instead of these."""
        head = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
        rest = messages[head:]
        if not _begins_with(rest, self._written):
            self._begin()
        for message in rest[len(self._written) :]:
            self._iteration += message["role"] == "assistant"
            self._parts += _other_parts(message, len(self._lines))
            self._lines += lines_of(events_of(message, self._iteration), len(self._lines), self._names)
        self._written = rest
        text = document(self._lines)
        content: Any = [{"type": "text", "text": text}, *self._parts] if self._parts else text
        return [*messages[:head], {"role": "user", "content": content}]


def _begins_with(messages: list[Message], known: list[Message]) -> bool:
    """Whether these are the very messages, and perhaps more: a message that was sent is never changed."""
    return len(messages) >= len(known) and all(one is other for one, other in zip(messages, known, strict=False))


def _other_parts(message: Message, event: int) -> list[Any]:
    """Pictures and other parts that no XML can hold; they follow the document, each behind a line that says whose."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    found: list[Any] = []
    for number, part in enumerate((part for part in content if not isinstance(part.get("text"), str)), start=1):
        found += [{"type": "text", "text": f"Media {number} of event {event}:"}, part]
    return found
