"""The messages of a request: a repaired copy of the history that every provider accepts.

The user may change the history in any way, so acorn checks it before each request. In the copy, each tool result
follows its call, a call without a result gets a placeholder result, and a result without a call is left out. The user's
list does not change.

To save time, acorn stores private copies of the messages in the last request. If the history still starts with equal
messages, acorn repairs only the messages after them. If no user code has received the history, acorn does not compare
the messages at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from operator import is_
from typing import Any, cast

from pydantic_core import from_json, to_json

from acorn._declare.tools.collect import FINISH
from acorn._formats.blobs import Blob
from acorn._formats.json import replace_surrogates, safe_repr, shorten, to_json_text
from acorn._history.history import ROLES, SYSTEM_ROLES, user_message
from acorn._history.repair import (
    match_results,
    repair_content,
    repair_text_message,
    repair_turn,
    unique_ids,
)
from acorn.errors import AcornError
from acorn.models.request import SentMessages, SentPart, media_of
from acorn.types import JsonObject, Message, MessageCall, is_json_object

REMINDER = f"Please go on: call one of your tools, or call `{FINISH}` with your answer."
_OMITTED = "The beginning of this conversation was left out."
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_DEPTH = 100
NOT_COMPARABLE: Any = object()
"""Stands for a message with values that cannot be compared. It is not equal to any message."""


class RequestMessages:
    """The repaired messages of one run. They are stored, so that each request repairs only new messages."""

    def __init__(self) -> None:
        self.reset()
        self.discarded_copies: list[Message] = []
        """The copies that the last call of `prepare` discarded because the user had changed the history."""

    def reset(self) -> None:
        """Remove all stored messages, so that the next request repairs the whole history again."""
        self._copies: list[Message] = []
        """Private copies of the messages that the last request processed."""
        self._sent = SentMessages()
        self._stray_ids: set[str] = set()
        """The ids of tool results that do not follow their call."""
        self._call_ids: set[str] = set()
        self._has_incomparable = False
        self._starts_with_user = False
        """Whether the first sent message after the system messages is a user message, as providers require."""
        self._starts_with_copies = False
        """Whether the history starts with the copies, if no user code has received and changed the history."""

    def copies_of(self, history: list[Message], *, is_private: bool = False) -> list[Message]:
        """Return private copies of the messages in the history.

        If a message has not changed since the last request, the stored copy is returned.
        """
        copies = list(self._copies) if self._check_starts_with_copies(history, is_private) else []
        copies += [_private_copy(message) for message in history[len(copies) :]]
        if self._has_incomparable:
            copies = [
                _private_copy(message) if copy is NOT_COMPARABLE else copy
                for message, copy in zip(history, copies, strict=True)
            ]
        return copies

    def fork(self, copies: Sequence[Message]) -> RequestMessages:
        """Return an independent copy of this object for a branch. The branch's history starts with `copies`."""
        other = RequestMessages()
        other._copies, other._sent = list(self._copies), self._sent.copy()
        other._stray_ids, other._call_ids = set(self._stray_ids), set(self._call_ids)
        other._has_incomparable = self._has_incomparable
        other._starts_with_copies = (
            bool(self._copies) and len(copies) >= len(self._copies) and all(map(is_, copies, self._copies))
        )
        return other

    def change_first(self, message: Message) -> None:
        """Replace the stored system message, or insert the message if no system message is stored.

        A branch needs this, because its system message contains the prompt of its parent and its own prompt.
        """
        is_known, self._starts_with_copies = self._starts_with_copies, False
        sent = self._sent.messages
        copy, readable = _copy_message(message, 0)
        content = repair_content(readable.get("content"))
        if not sent or copy is NOT_COMPARABLE or message["role"] != "system" or content is None:
            return  # The next request processes the whole history again.
        had_system = self._copies[0] is NOT_COMPARABLE or self._copies[0]["role"] in SYSTEM_ROLES
        sent_system = sent[0]["role"] == "system"
        if had_system != sent_system:
            return
        self._copies[:had_system] = [copy]
        self._sent = self._sent.with_first(repair_text_message(readable, content), is_new=not sent_system)
        self._starts_with_copies = is_known

    def prepare(
        self,
        history: list[Message],
        openings: Sequence[Message],
        unsent: list[Message] | None = None,
        *,
        is_private: bool = False,
    ) -> SentPart:
        """Return the repaired messages to send in the next request.

        `openings` are the input messages of the run and its parents, of which one is sent if the history has lost its
        first user message. `unsent` contains copies of the messages that acorn added since the last request: the first
        messages, or a response and its results. `is_private` is True if no user code has received the history.
        """
        self.discarded_copies = []
        if unsent is not None and self._append_unsent(history, unsent, is_private):
            self._starts_with_copies = True
            if self._starts_with_user:  # The new messages end with a tool result, so no reminder is necessary.
                return SentPart(self._sent, len(self._sent.messages))
        elif not (self._check_starts_with_copies(history, is_private) and self._repair_new(history, len(self._copies))):
            self.discarded_copies = self._copies
            self.reset()
            self._repair_new(history, 0)
        self._starts_with_copies = not self._has_incomparable
        return self._complete(openings)

    def _complete(self, openings: Sequence[Message]) -> SentPart:
        """Return the messages to send. Add a first user message or a final reminder if one is missing.

        Providers require a user message at the start, and do not accept a model response at the end.
        """
        messages = self._sent.messages
        count = last = len(messages)
        first = 0
        while first < count and messages[first]["role"] == "system":
            first += 1
        self._starts_with_user = first < count and messages[first]["role"] == "user"
        inserted = None
        if not self._starts_with_user:
            trimmed = [opening for opening in openings if opening not in messages]
            inserted = trimmed[0].copy() if trimmed else user_message(_OMITTED)
        while last > first and messages[last - 1]["role"] == "system":
            last -= 1
        ends_with_response = last > first and messages[last - 1]["role"] == "assistant"
        # Providers do not accept a conversation that ends with a response of the model.
        return SentPart(self._sent, count, first, inserted, user_message(REMINDER) if ends_with_response else None)

    def _append_unsent(self, history: list[Message], unsent: list[Message], is_private: bool) -> bool:
        """Append the messages in `unsent` without repair, and return whether this was possible.

        Return False if the history contains other changes, or if a message needs repair. Nearly every step uses this
        fast path.
        """
        seen = self._copies
        if is_private and (self._starts_with_copies or not seen):
            if len(history) != len(seen) + len(unsent):
                return False
        else:
            try:
                if history != seen + unsent:
                    return False
            except Exception:  # A user-defined `__eq__` may raise.
                return False
        if self._stray_ids:
            return False
        sendable = _sendable_turn(unsent, self._call_ids, self._position(len(seen))) if seen else _sendable(unsent)
        if sendable is None:
            return False
        seen += unsent
        self._sent.messages += sendable
        return True

    def _check_starts_with_copies(self, history: list[Message], is_private: bool) -> bool:
        """Return whether the history still starts with the messages of the last request."""
        if is_private and self._starts_with_copies:
            return True
        try:
            return bool(self._copies) and history[: len(self._copies)] == self._copies
        except Exception:  # A user-defined `__eq__` may raise.
            return False

    def _position(self, index: int) -> int:
        """Return the index that a message would have if the history started with a system message.

        New call ids contain this index. So they stay the same if a branch inserts a system message later.
        """
        first = self._copies[0] if self._copies else None
        return index if isinstance(first, dict) and first["role"] in SYSTEM_ROLES else index + 1

    def _repair_new(self, history: Sequence[Any], known: int) -> bool:
        """Repair and append the messages after the first `known` messages.

        Return False if a new message contains the result of an earlier call, because earlier messages must then be
        repaired again.
        """
        pairs = [_copy_message(message, index) for index, message in enumerate(history[known:], start=known)]
        new = [readable for _, readable in pairs]
        results, misplaced, unanswered = match_results(new)
        if known and (misplaced or not self._stray_ids.isdisjoint(unanswered)):
            return False
        self._stray_ids |= misplaced
        self._copies += [copy for copy, _ in pairs]
        self._has_incomparable = self._has_incomparable or any(copy is NOT_COMPARABLE for copy, _ in pairs)
        position, sent = self._position(known), self._sent.messages
        count = len(sent)
        for index, message in enumerate(new):
            if message["role"] == "assistant":
                sent += repair_turn(message, position + index, results.get(index, {}), self._call_ids)
            elif message["role"] != "tool" and (content := repair_content(message.get("content"))) is not None:
                sent.append(repair_text_message(message, content))
        for message in sent[count:]:
            if type(message.get("content")) is list:
                self._sent.media += media_of(message)
        return True


def _private_copy(message: object) -> Message:
    copy, readable = _copy_message(message, 0)
    return cast(Message, readable if copy is NOT_COMPARABLE else copy)


def _sendable(unsent: list[Message]) -> list[Message] | None:
    """Return the first messages of a run unchanged, or None if one of them needs repair."""
    for message in unsent:
        content = message.get("content")
        if len(message) != 2 or message["role"] not in ("system", "user"):
            return None
        if type(content) is not str or not _is_encodable(content) or not content.strip():
            return None
    return unsent or None


def _sendable_turn(unsent: list[Message], used: set[str], position: int) -> list[Message] | None:
    """Return a response and its tool results as messages to send, or None if they need repair.

    Repeated call ids are replaced.
    """
    turn = unsent[0]
    calls, content = turn.get("tool_calls"), turn.get("content")
    if not calls or len(calls) != len(unsent) - 1 or type(content) is not str or not _is_encodable(content):
        return None
    ids: list[str] = []
    for index, call in enumerate(calls, start=1):
        result, function, call_id = unsent[index], call["function"], call["id"]
        text = result["content"]
        if not (type(call_id) is type(text) is str and _is_name(function["name"])):
            return None
        if not call_id or call_id != result.get("tool_call_id"):
            return None
        if not _is_encodable(f"{call_id}{function['arguments']}{text}"):
            return None
        ids.append(call_id)
    if used.isdisjoint(ids) and (len(ids) == 1 or len(set(ids)) == len(ids)):
        used.update(ids)
        return unsent if content.strip() else [{**turn, "content": None}, *unsent[1:]]
    ids = unique_ids(ids, position, used)
    new_calls: list[MessageCall] = [{**call, "id": call_id} for call, call_id in zip(calls, ids, strict=True)]
    results: list[Message] = [
        {**result, "tool_call_id": call_id} for result, call_id in zip(unsent[1:], ids, strict=True)
    ]
    return [{**turn, "content": content if content.strip() else None, "tool_calls": new_calls}, *results]


def _is_encodable(text: str) -> bool:
    """Return True if the text can be encoded as UTF-8, which means that it contains no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=256)
def _is_name(name: object) -> bool:
    return type(name) is str and _NAME.fullmatch(name) is not None


def _copy_message(message: object, index: int) -> tuple[Any, Any]:
    """Return two copies of a message: one for later comparisons, and one that can be encoded as UTF-8 JSON.

    The first copy is `NOT_COMPARABLE` if the message contains values that are not JSON data.
    """
    if not is_json_object(message) or message.get("role") not in ROLES:
        raise AcornError(
            f"`history[{index}]` must be a dict with a `role` of {', '.join(ROLES)}, "
            f"got {shorten(safe_repr(message), 120)}."
        )
    if type(message) is dict and _is_all_ascii_text(message):
        copy = message.copy()
        return copy, copy
    if isinstance(message.get("content"), list):
        try:
            copy = _copy_json_data(message, _MAX_DEPTH)  # This shares the data of an image. JSON would copy the data.
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
        copy = _copy_json_data(message, _MAX_DEPTH)
    except TypeError:  # The message contains objects that may change in place, so every request copies it again.
        return NOT_COMPARABLE, from_json(to_json_text(message))
    return copy, replace_surrogates(copy)


def _is_all_ascii_text(message: JsonObject) -> bool:
    """Return whether all keys and values of a message are ASCII text, as in most messages."""
    for key, value in message.items():
        if type(value) is not str or type(key) is not str or not value.isascii() or not key.isascii():
            return False
    return True


def _copy_json_data(value: Any, depth: int) -> Any:
    """Return a copy of JSON data.

    Raise `TypeError` if the data contains values that are not JSON, or if it is nested too deeply.
    """
    kind = type(value)  # pyright: ignore[reportUnknownVariableType] - The value may be of any type.
    if (
        kind is str
        or kind is Blob
        or kind is int
        or kind is bool
        or value is None
        or (kind is float and math.isfinite(value))
    ):
        return value
    if kind is dict and depth and all(type(key) is str for key in value):
        return {key: _copy_json_data(item, depth - 1) for key, item in value.items()}
    if kind is list and depth:
        return [_copy_json_data(item, depth - 1) for item in value]
    raise TypeError
