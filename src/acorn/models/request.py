"""A request to a model, and the messages that all requests of one conversation share.

A conversation only grows, so a request stores only the number of its messages. The list of messages is created at the
first access, and each request reuses the JSON text of the previous request.

Media are the images, audio and files in the messages. A provider may ignore a medium without an error, and LiteLLM may
download a medium from any URL. Therefore an adapter rejects unsupported media before it sends a request. Its error
message names the field or the tool result that contains the medium.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeGuard

from pydantic_core import to_json

from acorn._formats.blobs import Blob
from acorn.types import JsonObject, JsonValue, Message


def message_json(message: Message) -> bytes:
    """Return the JSON text of a message.

    If `content` is None, the text does not contain the key `content`.
    """
    if message.get("content", "") is not None:
        return to_json(message)
    return to_json({key: value for key, value in message.items() if key != "content"})


_PORTABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SIGNATURE_MARK = "__thought__"


def strip_signature(call_id: str) -> str:
    """Return a tool call id without the signature of Gemini's reasoning, which LiteLLM appends to the id."""
    return call_id.partition(_SIGNATURE_MARK)[0] or call_id


def portable_id(call_id: str) -> str:
    """Return a tool call id that every provider accepts.

    If the id is too long or contains unusual characters, the result is a hash of the id.
    """
    stripped = strip_signature(call_id)
    return stripped if _PORTABLE_ID.fullmatch(stripped) else f"call_{sha256(call_id.encode()).hexdigest()[:24]}"


def with_portable_ids(message: Mapping[str, Any]) -> JsonObject:
    """Return a copy of a message with tool call ids that every provider accepts."""
    copy = dict(message)
    if calls := copy.get("tool_calls"):
        copy["tool_calls"] = [{**call, "id": portable_id(call["id"])} for call in calls]
    if "tool_call_id" in copy:
        copy["tool_call_id"] = portable_id(copy["tool_call_id"])
    return copy


def _has_portable_ids(message: Message) -> bool:
    return all(portable_id(call["id"]) == call["id"] for call in message.get("tool_calls") or ())


class AdapterCache(Protocol):
    """The interface of a cache that contains the messages of a conversation in the format of one provider.

    With this cache, an adapter encodes only the messages that are new since the previous request.
    """

    def copy(self) -> Self: ...

    def write(self, messages: list[Message], count: int, marks: Mapping[int, JsonObject]) -> bytes:
        """Return the first `count` messages as JSON text in the provider's format.

        `marks` maps the index of a message to its cache mark. The provider caches a request up to this message.
        """
        ...


class SentMessages:
    """The messages of a conversation and their JSON text, which all requests of the conversation share.

    Other code may append to `messages`, but must never change a message, because its JSON text is cached.
    """

    __slots__ = ("_checked_count", "_ends", "_text", "adapter_caches", "lock", "media", "messages")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._text = bytearray()
        """The JSON texts of the first messages, joined with commas."""
        self._ends: list[int] = []
        """The end position of each of these messages in `_text`."""
        self._checked_count = 0
        """The number of messages at the start that are known to contain no reasoning."""
        self.adapter_caches: dict[str, AdapterCache] = {}
        """A dict that maps format names to caches of the messages in the format of a provider."""
        self.media: list[SentMedium] = []
        """The images, audio and files in the messages."""
        self.lock = Lock()
        """A lock for changes of the cached texts, because several threads may send requests."""

    def copy(self) -> SentMessages:
        """Return a copy that can grow independently of this conversation."""
        other = SentMessages()
        with self.lock:
            other.messages = self.messages.copy()
            other._text, other._ends = self._text.copy(), self._ends.copy()
            other.adapter_caches = {name: cache.copy() for name, cache in self.adapter_caches.items()}
            other.media = self.media.copy()
        return other

    def with_first(self, message: Message, *, is_new: bool) -> SentMessages:
        """Return a copy of the conversation with another first message.

        If `is_new` is true, `message` is added before the first message. Otherwise it replaces the first message.
        """
        other = SentMessages()
        skipped = 0 if is_new else 1
        with self.lock:
            other.messages = [message, *self.messages[skipped:]]
            other.media = self.media.copy()
            if len(self._ends) > skipped:
                first, start = message_json(message), self._start_of(skipped)
                with memoryview(self._text) as text, text[start:] as remaining:
                    other._text = bytearray(b",").join((first, remaining))
                shift = len(first) + 1 - start
                other._ends = [len(first), *map(shift.__add__, self._ends[skipped:])]
        return other

    def has_reasoning(self, count: int, keys: frozenset[str]) -> bool:
        """Return True if the first `count` messages contain reasoning that not every provider accepts.

        A message contains reasoning if it has one of the keys in `keys`, or if a tool call id contains a signature.
        """
        while self._checked_count < count:
            message = self.messages[self._checked_count]
            if not keys.isdisjoint(message) or not _has_portable_ids(message):
                return True
            self._checked_count += 1
        return False

    def json(self, start: int, stop: int, before: bytes = b"", after: bytes = b"") -> bytes:
        """Return the JSON texts of the messages from `start` to `stop`, between the texts `before` and `after`.

        The parts are joined in one operation, because a long conversation is slow to copy.
        """
        if start == stop:
            return before + after
        with self.lock:
            self._write(stop)
            with memoryview(self._text) as text, text[self._start_of(start) : self._ends[stop - 1]] as part:
                return b"".join((before, part, after))

    def _start_of(self, at: int) -> int:
        return self._ends[at - 1] + 1 if at else 0

    def _write(self, count: int) -> None:
        text, ends = self._text, self._ends
        for message in self.messages[len(ends) : count]:
            if ends:
                text += b","
            text += message_json(message)
            ends.append(len(text))


class SentPart:
    """The messages of one request: the first messages of the conversation, and up to two extra messages.

    The conversation does not contain the extra messages: `inserted`, which is placed before the message at the index
    `insert_at`, and `last`, which is placed at the end.
    """

    __slots__ = ("count", "insert_at", "inserted", "last", "sent")

    def __init__(
        self,
        sent: SentMessages,
        count: int,
        insert_at: int = 0,
        inserted: Message | None = None,
        last: Message | None = None,
    ) -> None:
        self.sent = sent
        self.count = count
        self.insert_at = insert_at
        self.inserted = inserted
        self.last = last

    @property
    def has_extra_messages(self) -> bool:
        """True if the request contains messages that are not part of the conversation."""
        return self.inserted is not None or self.last is not None

    def __len__(self) -> int:
        return self.count + (self.inserted is not None) + (self.last is not None)

    @property
    def media(self) -> list[SentMedium]:
        """The images, audio and files in the messages."""
        if self.inserted is None:
            return self.sent.media
        return [*media_of(self.inserted), *self.sent.media]

    def messages(self) -> list[Message]:
        """Return a new list of all messages of the request, including the extra messages."""
        messages = self.sent.messages[: self.count]
        if self.inserted is not None:
            messages.insert(self.insert_at, self.inserted)
        if self.last is not None:
            messages.append(self.last)
        return messages

    def json(self, before: bytes = b"[", after: bytes = b"]") -> bytes:
        """Return the JSON text of all messages of the request, between the texts `before` and `after`."""
        sent, count, at = self.sent, self.count, self.insert_at
        if not self.has_extra_messages:
            return sent.json(0, count, before, after)
        inserted, last = [b"" if message is None else message_json(message) for message in (self.inserted, self.last)]
        pieces = (sent.json(0, at), inserted, sent.json(at, count), last)
        return b"%s%s%s" % (before, b",".join(filter(None, pieces)), after)

    def has_reasoning(self, keys: frozenset[str]) -> bool:
        """Return True if the messages of the conversation contain reasoning that not every provider accepts.

        A message contains reasoning if it has one of the keys in `keys`, or if a tool call id contains a signature.
        """
        return self.sent.has_reasoning(self.count, keys)


# The request

CachePoint = Mapping[str, Any]
"""A position in a request. The provider should cache the request up to this position."""

AUTO_CACHE: tuple[CachePoint, ...] = ({"location": "request"},)
"""The cache points of `cache = "auto"`. The provider chooses the cached messages, if it supports this."""


@dataclass(eq=False)
class ModelRequest:
    """A request to a model, in one format for all providers."""

    messages: list[Message]
    """The messages in OpenAI's format. In a request from the agent loop, the first access creates this list."""
    tools: list[JsonObject]
    """The function definitions in OpenAI's format, and the unchanged dicts of hosted tools."""
    temperature: float
    max_tokens: int
    forced_tool: str | None = None
    """The tool that the model must call, or None if the model may choose."""
    declared: frozenset[str] = frozenset()
    """The names of the settings that the user set, such as `temperature`. All other settings are defaults."""
    cache: Sequence[CachePoint] = ()
    """The cache points of the request. An index counts the messages after the system message."""
    timeout: float | None = None
    """The seconds that the run has left, or None if it has no time limit."""
    messages_json: Callable[[], bytes] | None = field(default=None, repr=False)
    """A function that returns the JSON text of the messages. None means that `messages` must be encoded."""
    tools_json: Callable[[], bytes] | None = field(default=None, repr=False)
    """A function that returns the JSON text of the tools. None means that `tools` must be encoded."""
    left_out: set[str] | None = field(default=None, repr=False)
    """The parameters that the model rejected when this request was sent before.

    A rate limiter sets it, so that each further attempt counts as a request. None means that the adapter may resend
    the request itself.
    """
    known_media: Sequence[SentMedium] | None = field(default=None, repr=False)
    """The images, audio and files in the messages, if the agent loop has already collected them, or None."""
    shared: SentPart | None = field(default=None, repr=False)
    """The messages that `messages_json` encodes."""

    @classmethod
    def of(
        cls,
        sent: SentPart,
        tools: list[JsonObject],
        temperature: float,
        max_tokens: int,
        forced_tool: str | None,
        declared: frozenset[str],
        cache: Sequence[CachePoint],
        tools_json: Callable[[], bytes],
    ) -> ModelRequest:
        """Create a request whose messages are the first messages of a conversation, without copying them.

        The requests of the agent loop are created in this way.
        """
        # `__init__` would need the list of messages, which most requests never use.
        request = cls.__new__(cls)
        request.__dict__ = {
            "tools": tools,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "forced_tool": forced_tool,
            "declared": declared,
            "cache": cache,
            "timeout": None,
            "messages_json": sent.json,
            "tools_json": tools_json,
            "left_out": None,
            "known_media": sent.media,
            "shared": sent,
        }
        return request

    if not TYPE_CHECKING:  # A type checker would otherwise accept any attribute name.

        def __getattr__(self, name: str) -> Any:
            if name != "messages" or self.sent is None:
                raise AttributeError(f"`ModelRequest` has no attribute `{name}`.")
            self.messages = messages = self.sent.messages()
            return messages

    def but(self, **changes: Any) -> ModelRequest:
        """Return a copy of the request with other values for the given fields.

        If you change `messages`, also set `messages_json` to None, because it returns the JSON text of the old
        messages.
        """
        request = type(self).__new__(type(self))
        request.__dict__ = {**vars(self), **changes}
        return request

    def __getstate__(self) -> JsonObject:
        # The JSON functions refer to objects of the run. A pickled copy works without them.
        return {**vars(self), "messages": self.messages, "messages_json": None, "tools_json": None, "shared": None}

    @property
    def sent(self) -> SentPart | None:
        """The messages as a part of a conversation, or None if the agent loop did not create this request."""
        return None if self.messages_json is None else self.shared

    @property
    def media(self) -> Sequence[SentMedium]:
        """The images, audio and files in the messages."""
        if self.known_media is None:
            return [medium for message in self.messages for medium in media_of(message)]
        return self.known_media

    @property
    def is_auto_cached(self) -> bool:
        """True if the provider chooses which messages it caches (the setting `cache = "auto"`)."""
        return bool(self.cache) and self.cache[0].get("location") == "request"

    @property
    def cache_points(self) -> Sequence[CachePoint]:
        """The cache points of the setting `cache`, if the user set them explicitly.

        A cache point selects a message, and the provider caches the request up to this message. The result is empty if
        the provider chooses the messages itself (`is_auto_cached`).
        """
        return () if self.is_auto_cached else self.cache

    @property
    def message_count(self) -> int:
        """The number of messages in the request."""
        return len(self.messages) if (sent := self.sent) is None else len(sent)

    def with_messages(self, before: bytes, after: bytes) -> bytes:
        """Return the JSON text of the messages, between the texts `before` and `after`.

        Use it to build the body of a request. The JSON text of earlier messages is cached.
        """
        if (sent := self.sent) is not None:
            return sent.json(before + b"[", b"]" + after)
        messages = self.messages_json() if self.messages_json else b"[%s]" % b",".join(map(message_json, self.messages))
        return b"%s%s%s" % (before, messages, after)

    def body(self, model: str) -> bytes:
        """Return the complete body of a request to the model with the name `model`, as JSON text in OpenAI's format."""
        tools = self.tools_json() if self.tools_json else to_json(self.tools)
        settings = _settings_json(model, self.temperature, self.max_tokens, self.forced_tool)
        return self.with_messages(b'%s,"tools":%s,"messages":' % (settings, tools), b"}")


@lru_cache(maxsize=256, typed=True)
def _settings_json(model: str, temperature: float, max_tokens: int, forced_tool: str | None) -> bytes:
    """Return the settings of a request as JSON text without the closing brace.

    The caller appends the tools and the messages. All steps of a run have the same settings, so the text is cached.
    """
    settings: JsonObject = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
    if forced_tool:
        settings["tool_choice"] = {"type": "function", "function": {"name": forced_tool}}
    return to_json(settings)[:-1]


# Media

_RESULT_LABEL = re.compile(r"Media (\d+) of the result of (`.*`) \(call `.*`\):", re.DOTALL)
_ELEMENT = r'<([^\s<>/]+)(?: key="([^"<>]*)")?[^<>]* media="%d"'
_KINDS = {"image_url": "image", "input_audio": "audio", "file": "file"}
_DATA_KEYS = {"image_url": ("image_url", "url"), "input_audio": ("input_audio", "data"), "file": ("file", "file_data")}
_PLURALS = {"image": "images", "audio": "audio", "file": "files"}
_SINGULARS = {"image": "an image", "audio": "audio", "file": "a file"}
_CLASSES = {"image": "Image", "audio": "Audio", "file": "File"}


class SentMedium(NamedTuple):
    """An image, an audio clip or a file in a message."""

    kind: str
    """The kind of the medium: `image`, `audio`, `file`, or another type from the message."""
    source: str
    """The field or tool that contains the medium, for error messages."""
    size: int
    """The size in bytes, or 0 for a URL."""
    url: str | None
    """The HTTP URL of the medium, or None if the message contains the data."""


def media_of(message: Message) -> list[SentMedium]:
    """Return a list of the media in a message."""
    content: JsonValue = message.get("content")
    return _media_in(content) if isinstance(content, list) else []


def _media_in(content: Sequence[JsonValue]) -> list[SentMedium]:
    media: list[SentMedium] = []
    first_text, last_text = "", ""
    for part in content:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text":
            last_text = str(part.get("text") or "")
            first_text = first_text or last_text
        else:
            media.append(_medium(part, _source(last_text, first_text, len(media) + 1)))
    return media


def _medium(part: JsonObject, source: str) -> SentMedium:
    part_type = str(part.get("type"))
    holder, data_key = _DATA_KEYS.get(part_type, ("", ""))
    inner: JsonValue = part.get(holder)
    fields = inner if isinstance(inner, dict) else {data_key: inner}
    data = fields.get(data_key)
    if isinstance(data, Blob):
        return SentMedium(_KINDS[part_type], source, data.size, None)
    # LiteLLM downloads a URL that is passed instead of data or an id.
    url = next(filter(_is_web_url, (data, *map(fields.get, ("url", "file_url", "file_id")))), None)
    size = Blob(data).size if isinstance(data, str) and not _is_web_url(data) else 0
    return SentMedium(_KINDS.get(part_type, part_type), source, size, None if size else url)


def _is_web_url(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value[:8].lower().startswith(("http://", "https://"))


def _source(last_text: str, first_text: str, number: int) -> str:
    if match := _RESULT_LABEL.fullmatch(last_text):
        return f"the result of {match[2]}"
    if match := re.search(_ELEMENT % number, first_text):
        return f"`{match[2] or match[1]}`"
    return "a message"


def describe_medium(medium: SentMedium) -> str:
    """Return a description of a medium for error messages, such as "an image in `photo`"."""
    return f"{_SINGULARS.get(medium.kind, f'a part of type `{medium.kind}`')} in {medium.source}"


def unsupported_kind(medium: SentMedium) -> str:
    """Return the error message for a model that does not support images, audio or files."""
    kind = _PLURALS.get(medium.kind, f"`{medium.kind}`")
    found = describe_medium(medium)
    return (
        f"The model does not support {kind}, but the request contains {found}. Remove it, or use a model that "
        f"supports it."
    )


def unsupported_url(medium: SentMedium, reason: str = "") -> str:
    """Return the error message for a model that needs the data of an image, audio clip or file instead of its URL."""
    constructor = f"acorn.{_CLASSES.get(medium.kind, 'Image')}.from_bytes(...)"
    reason = reason or f"The model does not support URLs of {_PLURALS.get(medium.kind, medium.kind)}"
    return (
        f"{reason}, but there is one in {medium.source}. Download the content of the URL yourself, and pass it as "
        f"`{constructor}`."
    )
