"""What the requests of one conversation have in common: the messages that were sent, and their JSON.

Both only grow, so a request is how far it reaches into them. Its messages are made a list when somebody wants one,
and what was written for one request is not written again for the next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from threading import Lock
from typing import Any

from pydantic_core import to_json

from acorn.models.sent_media import SentMedium, media_of


def message_json(message: Mapping[str, Any]) -> bytes:
    """A message as JSON; a turn without words says nothing of its content, rather than null."""
    if message.get("content", "") is not None:
        return to_json(message)
    return to_json({key: value for key, value in message.items() if key != "content"})


_COMMON_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SIGNED = "__thought__"


def unsigned_id(call_id: str) -> str:
    """The id of a call to read: in one of Gemini's, LiteLLM puts the signature of a thought behind it."""
    return call_id.partition(_SIGNED)[0] or call_id


def common_id(call_id: str) -> str:
    """The id of a call as every provider takes it: that of another one may be too long, or have odd letters in it."""
    plain = unsigned_id(call_id)
    return plain if _COMMON_ID.fullmatch(plain) else f"call_{sha256(call_id.encode()).hexdigest()[:24]}"


def with_common_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls, or whose call, every provider takes."""
    made = dict(message)
    if calls := made.get("tool_calls"):
        made["tool_calls"] = [{**call, "id": common_id(call["id"])} for call in calls]
    if "tool_call_id" in made:
        made["tool_call_id"] = common_id(made["tool_call_id"])
    return made


def _is_common(message: Mapping[str, Any]) -> bool:
    return all(common_id(call["id"]) == call["id"] for call in message.get("tool_calls") or ())


class Sent:
    """Messages that were sent. Who adds to `messages` adds at the end, and changes none."""

    __slots__ = ("_ends", "_text", "_thoughtless", "kept", "lock", "media", "messages")

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._text = bytearray()
        """The first of them as JSON, commas between."""
        self._ends: list[int] = []
        """Where each of those ends."""
        self._thoughtless = 0
        """How many of the first are known to have no thoughts in them."""
        self.kept: dict[str, Any] = {}
        """What adapters have made of them for their next request, by the name of the form; it has a `copy`."""
        self.media: list[SentMedium] = []
        """What of them is no text."""
        self.lock = Lock()
        """For who writes: a request may be sent from several threads."""

    def copy(self) -> Sent:
        """The same so far, to go on by itself."""
        other = Sent()
        with self.lock:
            other.messages = self.messages.copy()
            other._text, other._ends = self._text.copy(), self._ends.copy()
            other.kept = {name: made.copy() for name, made in self.kept.items()}
            other.media = self.media.copy()
        return other

    def with_first(self, message: dict[str, Any], *, is_new: bool) -> Sent:
        """Another that begins with this message, instead of the first or before it."""
        other = Sent()
        after = 0 if is_new else 1
        with self.lock:
            other.messages = [message, *self.messages[after:]]
            other.media = self.media.copy()
            if len(self._ends) > after:
                first, begin = message_json(message), self._begin(after)
                with memoryview(self._text) as text, text[begin:] as rest:
                    other._text = bytearray(b",").join((first, rest))
                moved = len(first) + 1 - begin
                other._ends = [len(first), *map(moved.__add__, self._ends[after:])]
        return other

    def has_thoughts(self, count: int, names: frozenset[str]) -> bool:
        """Whether there are thoughts of a model in the first so many: by these names, or in the ids of calls."""
        while self._thoughtless < count:
            message = self.messages[self._thoughtless]
            if not names.isdisjoint(message) or not _is_common(message):
                return True
            self._thoughtless += 1
        return False

    def json(self, first: int, behind: int, before: bytes = b"", after: bytes = b"") -> bytes:
        """The JSON of the messages from one to another between two texts, copied once."""
        if first == behind:
            return before + after
        with self.lock:
            self._write(behind)
            with memoryview(self._text) as text, text[self._begin(first) : self._ends[behind - 1]] as part:
                return b"".join((before, part, after))

    def _begin(self, at: int) -> int:
        return self._ends[at - 1] + 1 if at else 0

    def _write(self, count: int) -> None:
        text, ends = self._text, self._ends
        for message in self.messages[len(ends) : count]:
            if ends:
                text += b","
            text += message_json(message)
            ends.append(len(text))


class SentPart:
    """The messages of one request: the first so many that were sent, and what is said in this request alone.

    That is one message before the one at `at`, and one at the end, where they are needed.
    """

    __slots__ = ("at", "count", "inserted", "last", "sent")

    def __init__(
        self,
        sent: Sent,
        count: int,
        at: int = 0,
        inserted: dict[str, Any] | None = None,
        last: dict[str, Any] | None = None,
    ) -> None:
        self.sent = sent
        self.count = count
        self.at = at
        self.inserted = inserted
        self.last = last

    @property
    def is_completed(self) -> bool:
        """Whether something is said in this request alone."""
        return self.inserted is not None or self.last is not None

    def __len__(self) -> int:
        return self.count + (self.inserted is not None) + (self.last is not None)

    @property
    def media(self) -> list[SentMedium]:
        """What of them is no text."""
        if self.inserted is None:
            return self.sent.media
        return [*media_of(self.inserted), *self.sent.media]

    def messages(self) -> list[dict[str, Any]]:
        """They all, in a new list."""
        made = self.sent.messages[: self.count]
        if self.inserted is not None:
            made.insert(self.at, self.inserted)
        if self.last is not None:
            made.append(self.last)
        return made

    def json(self, before: bytes = b"[", after: bytes = b"]") -> bytes:
        """Their JSON between two texts."""
        sent, count, at = self.sent, self.count, self.at
        if not self.is_completed:
            return sent.json(0, count, before, after)
        own = [b"" if message is None else message_json(message) for message in (self.inserted, self.last)]
        pieces = (sent.json(0, at), own[0], sent.json(at, count), own[1])
        return b"%s%s%s" % (before, b",".join(filter(None, pieces)), after)

    def has_thoughts(self, names: frozenset[str]) -> bool:
        """Whether there are thoughts of a model in them: by these names, or in the ids of calls."""
        return self.sent.has_thoughts(self.count, names)
