"""A request to a model, and the messages that all requests of one conversation share.

A conversation only grows, so each request reuses the JSON texts of the messages of the previous request.

Media are the images, audio and files in the messages. A provider may ignore a medium without an error, and LiteLLM may
download a medium from any URL. Therefore an adapter rejects unsupported media before it sends a request. Its error
message names the field or the tool result that contains the medium.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple, TypeGuard, TypeVar

from pydantic_core import to_json

from acorn._formats.blobs import Blob
from acorn.types import JsonObject, JsonValue, Message

T = TypeVar("T")


def message_json(message: Mapping[str, Any]) -> bytes:
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


@dataclass(slots=True, eq=False)
class SentMessages:
    """The messages of a conversation, which all its requests share, and encoded forms of each message.

    Other code may append to `messages`, but must never change a message, because its encoded forms are cached.
    """

    messages: list[Message] = field(default_factory=list[Message])
    media: list[SentMedium] = field(default_factory=list["SentMedium"])
    """The images, audio and files in the messages."""
    _encoded: dict[Callable[[Message], Any], list[Any]] = field(default_factory=dict[Any, Any])
    """A dict that maps a function to its results for the first messages."""
    _sums: dict[Callable[[Message], int], list[int]] = field(default_factory=dict[Any, Any])
    """A dict that maps a function to the sums of its results for the first 0, 1, 2, ... messages."""
    _lock: Lock = field(default_factory=Lock)
    """A lock for changes of the cached results, because several threads may send requests."""

    def copy(self, first: Message | None = None, *, replaced: int = 0) -> SentMessages:
        """Return a copy that can grow independently of this conversation.

        If `first` is given, it replaces the first `replaced` messages.
        """
        new = [] if first is None else [first]
        with self._lock:
            encoded = {encode: [*map(encode, new), *results[replaced:]] for encode, results in self._encoded.items()}
            return SentMessages(new + self.messages[replaced:], self.media.copy(), encoded)

    def encoded(self, encode: Callable[[Message], T], count: int) -> list[T]:
        """Return the results of `encode` for the first `count` messages.

        The results are cached, so that each request of the conversation encodes only its new messages.
        """
        with self._lock:
            results = self._encoded.setdefault(encode, [])
            results += map(encode, self.messages[len(results) : count])
            return results[:count]

    def total(self, measure: Callable[[Message], int], count: int) -> int:
        """Return the sum of `measure` over the first `count` messages. The time does not depend on `count`."""
        with self._lock:
            sums = self._sums.setdefault(measure, [0])
            for message in self.messages[len(sums) - 1 : count]:
                sums.append(sums[-1] + measure(message))
            return sums[count]


class SentPart(list[Message]):
    """The messages of one request: those of a conversation, and up to two extra messages.

    The conversation does not contain the extra messages: `inserted`, which is placed before the message at the index
    `insert_at`, and `last`, which is placed at the end. The list is empty until `filled` copies the messages into it.
    """

    __slots__ = ("_count", "_insert_at", "_inserted", "_last", "_sent", "length")

    def __init__(
        self, sent: SentMessages, insert_at: int = 0, inserted: Message | None = None, last: Message | None = None
    ) -> None:
        super().__init__()
        self._sent, self._count = sent, len(sent.messages)
        self._insert_at, self._inserted, self._last = insert_at, inserted, last
        self.length = self._count + (inserted is not None) + (last is not None)

    def filled(self) -> list[Message]:
        """Return this list, after its first call has copied the messages into it."""
        if not self:
            self[:] = self._with_extra(self._sent.messages[: self._count], lambda message: message)
        return self

    def __reduce__(self) -> tuple[type[list[Message]], tuple[list[Message]]]:
        return (list, (list(self.filled()),))  # A pickled request does not need the conversation.

    @property
    def media(self) -> list[SentMedium]:
        """The images, audio and files in the messages."""
        if self._inserted is None:
            return self._sent.media
        return [*media_of(self._inserted), *self._sent.media]

    def encoded(self, encode: Callable[[Message], T]) -> list[T]:
        return self._with_extra(self._sent.encoded(encode, self._count), encode)

    def total(self, measure: Callable[[Message], int]) -> int:
        return sum(self._with_extra([], measure)) + self._sent.total(measure, self._count)

    def _with_extra(self, results: list[T], encode: Callable[[Message], T]) -> list[T]:
        if self._inserted is not None:
            results.insert(self._insert_at, encode(self._inserted))
        if self._last is not None:
            results.append(encode(self._last))
        return results


class ToolDefinitions(list[JsonObject]):
    """The tool definitions of a request. Requests with the same tools share this list and its encoded form."""

    def __init__(self, definitions: Iterable[JsonObject]) -> None:
        super().__init__(definitions)
        self._encoded: dict[Callable[[JsonObject], bytes], bytes] = {}
        """A dict that maps a function to its joined results for all definitions."""

    def __reduce__(self) -> tuple[type[list[JsonObject]], tuple[list[JsonObject]]]:
        return (list, (list(self),))

    def encoded(self, encode: Callable[[JsonObject], bytes]) -> bytes:
        if (text := self._encoded.get(encode)) is None:
            text = self._encoded[encode] = b",".join(map(encode, self))
        return text


# The request

CachePoint = Mapping[str, Any]
"""A position in a request. The provider should cache the request up to this position."""

AUTO_CACHE: tuple[CachePoint, ...] = ({"location": "request"},)
"""The cache points of `cache = "auto"`. The provider chooses the cached messages, if it supports this."""


@dataclass(eq=False)
class ModelRequest:
    """A request to a model, in one format for all providers.

    Never change its lists. Use `dataclasses.replace` to create another request.
    """

    messages: list[Message]
    """The messages in OpenAI's format."""
    message_count: int = field(init=False, repr=False)
    """The number of messages."""
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
    known_media: Sequence[SentMedium] | None = field(default=None, repr=False)
    """The images, audio and files in the messages, if the agent loop has already collected them, or None."""
    left_out: set[str] | None = field(default=None, repr=False)
    """The parameters that the model rejected when this request was sent before.

    A rate limiter sets it, so that each further attempt counts as a request. None means that the adapter may resend
    the request itself.
    """

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

    def encoded(self, encode: Callable[[Message], T]) -> list[T]:
        """Return the result of `encode` for each message.

        The results are cached by the function `encode`, so that a conversation encodes each message only once.
        """
        messages: list[Message] = self.__dict__["messages"]
        return messages.encoded(encode) if isinstance(messages, SentPart) else list(map(encode, messages))

    def total(self, measure: Callable[[Message], int]) -> int:
        """Return the sum of `measure` over the messages. A conversation measures each message only once."""
        messages: list[Message] = self.__dict__["messages"]
        return messages.total(measure) if isinstance(messages, SentPart) else sum(map(measure, messages))

    def messages_json(self) -> bytes:
        """Return the JSON text of the messages in OpenAI's format."""
        return self._with_messages(b"[", b"]")

    def _with_messages(self, before: bytes, after: bytes) -> bytes:
        """Return the JSON texts of the messages between two other texts, and copy each text only once."""
        texts = self.encoded(message_json)
        pieces = [before, *[b","] * (2 * len(texts))]
        pieces[1::2] = texts
        pieces[max(1, len(pieces) - 1) :] = [after]  # It replaces the last comma.
        return b"".join(pieces)

    def tools_json(self, encode: Callable[[JsonObject], bytes] = to_json) -> bytes:
        """Return the JSON text of the tools. `encode` returns the JSON text of one tool."""
        tools = self.tools
        text = tools.encoded(encode) if isinstance(tools, ToolDefinitions) else b",".join(map(encode, tools))
        return b"[%s]" % text

    def body(self, model: str) -> bytes:
        """Return the complete body of a request to the model with the name `model`, as JSON text in OpenAI's format."""
        settings: JsonObject = {"model": model, "temperature": self.temperature, "max_tokens": self.max_tokens}
        if self.forced_tool:
            settings["tool_choice"] = {"type": "function", "function": {"name": self.forced_tool}}
        before = b'%s,"tools":%s,"messages":[' % (to_json(settings)[:-1], self.tools_json())
        return self._with_messages(before, b"]}")


def _set_messages(request: ModelRequest, messages: list[Message]) -> None:
    request.__dict__["messages"] = messages
    request.message_count = messages.length if isinstance(messages, SentPart) else len(messages)


def _read_messages(request: ModelRequest) -> list[Message]:
    messages: list[Message] = request.__dict__["messages"]
    return messages.filled() if isinstance(messages, SentPart) else messages


# The native lanes read only the encoded messages. A copy of the list for each request would make long runs slow, and
# large if the model keeps its requests.
setattr(ModelRequest, "messages", property(_read_messages, _set_messages))  # noqa: B010


# Media

_RESULT_LABEL = re.compile(r"Media (\d+) of the result of (`.*`) \(call `.*`\):", re.DOTALL)
_ELEMENT = r'<([^\s<>/]+)(?: key="([^"<>]*)")?[^<>]* media="%d"'
_KINDS = {"image_url": "image", "input_audio": "audio", "file": "file"}
_DATA_KEYS = {"image_url": "url", "input_audio": "data", "file": "file_data"}
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
    data_key = _DATA_KEYS.get(part_type, "")
    inner: JsonValue = part.get(part_type) if data_key else None
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
