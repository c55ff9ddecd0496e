"""The messages of a request: the history, repaired so that every provider accepts it.

The user may change the history in any way, so acorn reads it again before each request. Results are matched with their
calls, calls without a result get a placeholder, and results without a call are left out. The user's list does not
change. acorn keeps a private copy of the history that it read last, together with the messages that were sent for it.
While the copy and the history agree, only the new messages are read. If no user code has received the history, they
agree without a comparison.
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
from acorn._history.history import user_message
from acorn._history.repair import (
    ROLES,
    SYSTEM_ROLES,
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
"""Replaces a message in the copy that cannot be compared. It is not equal to any message."""


class RequestMessages:
    """The messages that one run sends."""

    def __init__(self) -> None:
        self.reset()
        self.before: list[Message] = []
        """The copies that the last `prepare` discarded because the history had changed."""

    def reset(self) -> None:
        """Read the whole history again for the next request."""
        self._seen: list[Message] = []
        """Private copies of the history as it was read last."""
        self._sent = SentMessages()
        self._stray_ids: set[str] = set()
        """The ids of results that did not follow their call."""
        self._call_ids: set[str] = set()
        self._has_incomparable = False
        self._starts_with_user = False
        """Whether the first sent message after the system messages is a user message, as providers require."""
        self._is_known = False
        """Whether the history starts with the copies, unless user code has received and changed it."""

    def copies_of(self, history: list[Message], *, is_private: bool = False) -> list[Message]:
        """Return private copies of a history, and reuse those of the last request that are still equal."""
        copies = list(self._seen) if self._knows(history, is_private) else []
        copies += [_private_copy(message) for message in history[len(copies) :]]
        if self._has_incomparable:
            copies = [
                _private_copy(message) if copy is NOT_COMPARABLE else copy
                for message, copy in zip(history, copies, strict=True)
            ]
        return copies

    def fork(self, copies: Sequence[Message]) -> RequestMessages:
        """Return an independent copy for a branch whose history starts with these copies."""
        other = RequestMessages()
        other._seen, other._sent = list(self._seen), self._sent.copy()
        other._stray_ids, other._call_ids = set(self._stray_ids), set(self._call_ids)
        other._has_incomparable = self._has_incomparable
        other._is_known = bool(self._seen) and len(copies) >= len(self._seen) and all(map(is_, copies, self._seen))
        return other

    def change_first(self, message: Message) -> None:
        """Replace or insert the system message. A branch adds its prompt to the prompt of its parent."""
        is_known, self._is_known = self._is_known, False
        sent = self._sent.messages
        copy, readable = _read(message, 0)
        content = repair_content(readable.get("content"))
        if not sent or copy is NOT_COMPARABLE or message["role"] != "system" or content is None:
            return  # The next request reads the whole history again.
        had_system = self._seen[0] is NOT_COMPARABLE or self._seen[0]["role"] in SYSTEM_ROLES
        sent_system = sent[0]["role"] == "system"
        if had_system != sent_system:
            return
        self._seen[:had_system] = [copy]
        self._sent = self._sent.with_first(repair_text_message(readable, content), is_new=not sent_system)
        self._is_known = is_known

    def prepare(
        self,
        history: list[Message],
        openings: Sequence[Message],
        written: list[Message] | None = None,
        *,
        is_private: bool = False,
    ) -> SentPart:
        """Return the messages to send.

        `openings` are the inputs of the run and its parents, for a history that no longer holds them. `written` are
        copies of the messages that acorn added since the last request: the first messages, or a response and its
        results. `is_private` says that no user code has received the history.
        """
        self.before = []
        if written is not None and self._append_written(history, written, is_private):
            self._is_known = True
            if self._starts_with_user:  # The written messages end with a result, so nothing is missing at the end.
                return SentPart(self._sent, len(self._sent.messages))
        elif not (self._knows(history, is_private) and self._read_new(history, len(self._seen))):
            self.before = self._seen
            self.reset()
            self._read_new(history, 0)
        self._is_known = not self._has_incomparable
        return self._complete(openings)

    def _complete(self, openings: Sequence[Message]) -> SentPart:
        """Return the sent messages, with a user message at the start and a message to answer at the end."""
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
        # No provider accepts a conversation that ends with a response of the model.
        return SentPart(self._sent, count, first, inserted, user_message(REMINDER) if ends_with_response else None)

    def _append_written(self, history: list[Message], written: list[Message], is_private: bool) -> bool:
        """Append the messages that acorn wrote since the last request, if nothing else has changed.

        Nearly every step takes this path, which looks for no faults to repair.
        """
        seen = self._seen
        if is_private and (self._is_known or not seen):
            if len(history) != len(seen) + len(written):
                return False
        else:
            try:
                if history != seen + written:
                    return False
            except Exception:  # A user-defined `__eq__` may raise.
                return False
        if self._stray_ids:
            return False
        sendable = _sendable_turn(written, self._call_ids, self._position(len(seen))) if seen else _sendable(written)
        if sendable is None:
            return False
        seen += written
        self._sent.messages += sendable
        return True

    def _knows(self, history: list[Message], is_private: bool) -> bool:
        """Whether the history starts with the messages that were read last."""
        if is_private and self._is_known:
            return True
        try:
            return bool(self._seen) and history[: len(self._seen)] == self._seen
        except Exception:  # A user-defined `__eq__` may raise.
            return False

    def _position(self, index: int) -> int:
        """Return the index of a message as if there were always a system message, because a branch may insert one."""
        first = self._seen[0] if self._seen else None
        return index if isinstance(first, dict) and first["role"] in SYSTEM_ROLES else index + 1

    def _read_new(self, history: Sequence[Any], known: int) -> bool:
        """Read the messages after the first `known`. Return False if they change how earlier messages are sent."""
        pairs = [_read(message, index) for index, message in enumerate(history[known:], start=known)]
        new = [readable for _, readable in pairs]
        results, misplaced, unanswered = match_results(new)
        if known and (misplaced or not self._stray_ids.isdisjoint(unanswered)):
            return False
        self._stray_ids |= misplaced
        self._seen += [copy for copy, _ in pairs]
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
    copy, readable = _read(message, 0)
    return cast(Message, readable if copy is NOT_COMPARABLE else copy)


def _sendable(written: list[Message]) -> list[Message] | None:
    """Return the first messages of a run if they need no repair, or None."""
    for message in written:
        content = message.get("content")
        if len(message) != 2 or message["role"] not in ("system", "user"):
            return None
        if type(content) is not str or not _is_encodable(content) or not content.strip():
            return None
    return written or None


def _sendable_turn(written: list[Message], used: set[str], position: int) -> list[Message] | None:
    """Return a response and its results in the form in which they are sent, or None if they need repair."""
    turn = written[0]
    calls, content = turn.get("tool_calls"), turn.get("content")
    if not calls or len(calls) != len(written) - 1 or type(content) is not str or not _is_encodable(content):
        return None
    ids: list[str] = []
    for index, call in enumerate(calls, start=1):
        result, function, call_id = written[index], call["function"], call["id"]
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
        return written if content.strip() else [{**turn, "content": None}, *written[1:]]
    ids = unique_ids(ids, position, used)
    new_calls: list[MessageCall] = [{**call, "id": call_id} for call, call_id in zip(calls, ids, strict=True)]
    results: list[Message] = [
        {**result, "tool_call_id": call_id} for result, call_id in zip(written[1:], ids, strict=True)
    ]
    return [{**turn, "content": content if content.strip() else None, "tool_calls": new_calls}, *results]


def _is_encodable(text: str) -> bool:
    """Whether the text holds no lone surrogate, which cannot be encoded as UTF-8."""
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


def _read(message: object, index: int) -> tuple[Any, Any]:
    """Return a private copy to compare with, and the message as plain data in text that can be encoded."""
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
            copy = _copy_plain(message, _MAX_DEPTH)  # Shares the data of an image, which JSON would copy.
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
        copy = _copy_plain(message, _MAX_DEPTH)
    except TypeError:  # The message holds objects that may change in place, so it is read for every request.
        return NOT_COMPARABLE, from_json(to_json_text(message))
    return copy, replace_surrogates(copy)


def _is_all_ascii_text(message: JsonObject) -> bool:
    """Whether all keys and values are ASCII text, as in most messages."""
    for key, value in message.items():
        if type(value) is not str or type(key) is not str or not value.isascii() or not key.isascii():
            return False
    return True


def _copy_plain(value: Any, depth: int) -> Any:
    """Copy plain data. Raise `TypeError` for other values and for data that is nested too deeply."""
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
        return {key: _copy_plain(item, depth - 1) for key, item in value.items()}
    if kind is list and depth:
        return [_copy_plain(item, depth - 1) for item in value]
    raise TypeError
