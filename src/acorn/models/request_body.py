"""What the requests of one conversation have in common: the messages that were sent, and their JSON.

Both only grow, so a request is how far it reaches into them. Its messages are made a list when somebody wants one,
and what was written for one request is not written again for the next.

What of a request is no text: pictures, sounds and files, each with the place that it came from.

A provider may lose one without a word, or LiteLLM fetch it from wherever its URL points; an adapter refuses here,
before anything is sent, what its provider does not take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

from pydantic_core import to_json

from acorn._formats.blobs import Blob
from acorn.types import JsonObject


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


def with_common_ids(message: Mapping[str, Any]) -> JsonObject:
    """A message whose calls, or whose call, every provider takes."""
    made = dict(message)
    if calls := made.get("tool_calls"):
        made["tool_calls"] = [{**call, "id": common_id(call["id"])} for call in calls]
    if "tool_call_id" in made:
        made["tool_call_id"] = common_id(made["tool_call_id"])
    return made


def _is_common(message: Mapping[str, Any]) -> bool:
    return all(common_id(call["id"]) == call["id"] for call in message.get("tool_calls") or ())


class SentMessages:
    """Messages that were sent. Who adds to `messages` adds at the end, and changes none."""

    __slots__ = ("_ends", "_text", "_thoughtless", "kept", "lock", "media", "messages")

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self._text = bytearray()
        """The first of them as JSON, commas between."""
        self._ends: list[int] = []
        """Where each of those ends."""
        self._thoughtless = 0
        """How many of the first are known to have no thoughts in them."""
        self.kept: JsonObject = {}
        """What adapters have made of them for their next request, by the name of the form; it has a `copy`."""
        self.media: list[SentMedium] = []
        """What of them is no text."""
        self.lock = Lock()
        """For who writes: a request may be sent from several threads."""

    def copy(self) -> SentMessages:
        """The same so far, to go on by itself."""
        other = SentMessages()
        with self.lock:
            other.messages = self.messages.copy()
            other._text, other._ends = self._text.copy(), self._ends.copy()
            other.kept = {name: made.copy() for name, made in self.kept.items()}
            other.media = self.media.copy()
        return other

    def with_first(self, message: JsonObject, *, is_new: bool) -> SentMessages:
        """Another that begins with this message, instead of the first or before it."""
        other = SentMessages()
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
        sent: SentMessages,
        count: int,
        at: int = 0,
        inserted: JsonObject | None = None,
        last: JsonObject | None = None,
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

    def messages(self) -> list[JsonObject]:
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


_LINE = re.compile(r"Media (\d+) of the result of (`.*`) \(call `.*`\):", re.DOTALL)
_ELEMENT = r'<([^\s<>/]+)(?: key="([^"<>]*)")?[^<>]* media="%d"'
_KINDS = {"image_url": "image", "input_audio": "audio", "file": "file"}
_HOLDERS = {"image_url": ("image_url", "url"), "input_audio": ("input_audio", "data"), "file": ("file", "file_data")}
_WORDS = {"image": "images", "audio": "audio", "file": "files"}
_ONE = {"image": "an image", "audio": "audio", "file": "a file"}
_CLASSES = {"image": "Image", "audio": "Audio", "file": "File"}


class SentMedium(NamedTuple):
    """One part of a message that is no text."""

    kind: str
    """`image`, `audio`, `file`, or what its message calls it."""
    place: str
    """The field or the tool that it came from, for an error."""
    size: int
    """Bytes; of a URL, 0."""
    url: str | None
    """Where it is on the web, if it is not here."""


def media_of(message: Mapping[str, Any]) -> list[SentMedium]:
    """Of one message; most have none."""
    content = message.get("content")
    return _parts(content) if isinstance(content, list) else []


def _parts(content: list[Any]) -> list[SentMedium]:
    found: list[SentMedium] = []
    text, line = "", ""
    for part in content:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text":
            line = str(part.get("text") or "")
            text = text or line
        else:
            found.append(_medium(part, _place(line, text, len(found) + 1)))
    return found


def _medium(part: JsonObject, place: str) -> SentMedium:
    given = str(part.get("type"))
    holder, key = _HOLDERS.get(given, ("", ""))
    inside = part.get(holder)
    held = inside if isinstance(inside, dict) else {key: inside}
    data = held.get(key)
    if isinstance(data, Blob):
        return SentMedium(_KINDS[given], place, data.size, None)
    # A URL may stand where data or an id would, and LiteLLM would fetch it.
    url = next(filter(_is_web, (data, *map(held.get, ("url", "file_url", "file_id")))), None)
    size = Blob(data).size if isinstance(data, str) and not _is_web(data) else 0
    return SentMedium(_KINDS.get(given, given), place, size, None if size else url)


def _is_web(value: Any) -> bool:
    return isinstance(value, str) and value[:8].lower().startswith(("http://", "https://"))


def _place(line: str, text: str, number: int) -> str:
    if found := _LINE.fullmatch(line):
        return f"the result of {found[2]}"
    if found := re.search(_ELEMENT % number, text):
        return f"`{found[2] or found[1]}`"
    return "a message"


def no_text(medium: SentMedium) -> str:
    """What it is, and where."""
    return f"{_ONE.get(medium.kind, f'a part of type `{medium.kind}`')} in {medium.place}"


def no_kind(medium: SentMedium) -> str:
    """The words for a provider that takes nothing of this kind."""
    what = _WORDS.get(medium.kind, f"`{medium.kind}`")
    return f"It takes no {what}, and there is {no_text(medium)}: leave it out, or use a model that does."


def no_url(medium: SentMedium, why: str = "") -> str:
    """The words for a provider that does not read URLs of this kind."""
    made = f"acorn.{_CLASSES.get(medium.kind, 'Image')}.from_bytes(...)"
    reason = why or f"It takes no URL of {_WORDS.get(medium.kind, medium.kind)}"
    return f"{reason}, and there is one in {medium.place}: fetch it yourself, and give the data by `{made}`."
