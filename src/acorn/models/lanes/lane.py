"""The base classes of native lanes, and code that several lanes share.

A lane is the path of a request to its provider. A native lane (`openai_chat.py`, `openai_responses.py`, `anthropic.py`)
encodes the requests and decodes the responses of one protocol. `native.py` sends the requests.

The shared code handles the keys of model dicts, headers, hosted tools (tools that the provider runs itself) and cache
marks (which tell the provider to cache a request up to the marked message).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic_core import to_json

from acorn.models.lanes.http import basic_auth_of, is_http_url, split_url
from acorn.models.port import PRICE_KEYS, Delta, ModelResponse, Price, price_in
from acorn.models.providers import address_of, check_key, custom_address, listed_price
from acorn.models.request import ModelRequest, SentMedium, unsupported_kind
from acorn.types import JsonObject, JsonValue

COMMON_KEYS = (
    *("model", "id", "lane", "timeout", "request_timeout", "num_retries", "retry_delay", "max_retries"),
    *("max_response_bytes", "temperature", "max_tokens", "max_completion_tokens"),
    *PRICE_KEYS,
)
"""Model dict keys that acorn handles itself for every lane. The `ModelRequest` contains the sampling settings."""
LANE_KEYS = (*COMMON_KEYS, "api_base", "base_url", "api_key", "headers", "extra_headers", "extra_body")
"""Model dict keys that every native lane supports."""
BLOCKS_KEY, ITEMS_KEY = "content_blocks", "response_items"
"""Keys of an assistant message that contain the complete response of a provider that ran a hosted tool.

`content_blocks` contains Anthropic's blocks, and `response_items` contains OpenAI's items.
"""
REASONING_KEYS = frozenset(("thinking_blocks", "reasoning_items", BLOCKS_KEY, ITEMS_KEY))
"""Keys of an assistant message whose values only the provider that created them can read."""


class StreamReader(ABC):
    """The base class of decoders that convert the events of one streamed response to deltas."""

    called_names: str = ""
    """The names of the called tools, joined without a separator."""
    stop_reason = ""
    """The reason why the model stopped, or "" before the event that contains it."""

    @abstractmethod
    def read(self, event: JsonObject) -> Delta | None:
        """Convert an event to a delta, or return None if the event contains nothing new for the response.

        Raise `ProviderError` if the event reports an error.
        """

    def finish(self) -> Delta | None:
        """Return a last delta after the end of the stream, or None if all content was already returned."""
        return None


class ProviderError(Exception):
    """An error that a provider reports in a response, or that acorn detects before it sends a request."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def provider_error(error: JsonValue, statuses: Mapping[str, int]) -> ProviderError:
    """Convert the value of `error` in a response. `statuses` maps the error codes of the provider to HTTP statuses."""
    details = error if isinstance(error, dict) else {"message": error}
    message = str(details.get("message") or error or "The provider did not report a reason").rstrip(".")
    codes = [str(details.get(key)) for key in ("code", "type")]
    found = [int(code) if code.isdecimal() and len(code) == 3 else statuses.get(code, 0) for code in codes]
    return ProviderError(f"{message}.", next((status for status in found if 400 <= status < 600), None))


class UnsupportedContentError(ProviderError):
    """The error for a request that contains something, such as audio, that the provider does not support."""


class Lane(ABC):
    """The base class of native lanes, which encode the requests and decode the responses of one protocol."""

    provider: ClassVar[str]
    prefix: ClassVar[str]
    """The start of the model ids of this lane."""
    setting_keys: ClassVar[tuple[str, ...]]
    """The model dict keys that acorn copies to the request."""
    supported_keys: ClassVar[frozenset[str]]
    """All model dict keys that this lane supports."""
    stream_settings: ClassVar[JsonObject] = {"stream": True}
    """The fields of a request that ask for a stream."""

    def __init__(self, config: JsonObject) -> None:
        self.config = config
        self.name = self.model_name(config)
        """The model name without the provider prefix."""
        self.settings: JsonObject = {key: config[key] for key in self.setting_keys if config.get(key) is not None}
        self._price = price_in(config)
        """The price that the user set in the model dict, or None."""

    @classmethod
    def model_name(cls, config: JsonObject) -> str:
        return str(config.get("model") or config["id"]).removeprefix(cls.prefix)

    @classmethod
    def supports(cls, config: JsonObject) -> bool:
        """Return True if this lane supports all keys of a model dict and the types of its timeouts.

        Otherwise acorn uses LiteLLM. For example, only LiteLLM supports a timeout that is an httpx object.
        """
        timeouts = (config.get("timeout"), config.get("request_timeout"))
        return cls.supported_keys.issuperset(config) and all(isinstance(t, int | float | str | None) for t in timeouts)

    @property
    @abstractmethod
    def thinks(self) -> bool:
        """Whether the settings of the model turn on reasoning."""

    def price(self) -> Price | None:
        """Return the price in the model dict or in acorn's price table, or None if the price is unknown."""
        return self._price or listed_price(self.provider, self.name)

    def can_force_tool(self) -> bool:
        """Return True if a request of this protocol may force the model to call one specific tool."""
        return True

    @abstractmethod
    def takes_tool(self, tool: JsonObject) -> bool:
        """Return True if the provider supports a hosted tool, which the provider runs itself."""

    @property
    def has_custom_address(self) -> bool:
        return custom_address(self.provider, self.config) is not None

    def address(self) -> tuple[str, dict[str, str]]:
        """Return the URL and the HTTP headers for requests to this provider.

        They are taken from the model dict, or else from environment variables. Raise `ModelError` if the API key is
        missing.
        """
        url = self.url(address_of(self.provider, self.config))
        headers = {"Content-Type": "application/json", **self.headers()}
        url, headers = _apply_user_headers(url, headers, self.config)
        check_key(str(self.config.get("model") or self.config["id"]), self.provider, self.config)
        return url, headers

    @abstractmethod
    def url(self, base: str) -> str:
        """Return the URL for requests. `base` is the address of the server."""

    @abstractmethod
    def headers(self) -> dict[str, str]:
        """Return the headers of this protocol, with the credentials."""

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        """Encode a request as JSON.

        The body does not contain the settings in `left_out`, which the model rejected.
        """
        for medium in request.media:
            if message := self.reject_medium(medium):
                raise UnsupportedContentError(message)
        fields = self.request_settings(request, left_out)
        if is_stream:
            fields |= self.stream_settings
        settings = to_json(fields)[:-1]
        before, messages, after = self.request_content(request)
        if not messages:
            return b"%s%s%s}" % (settings, before, after)
        # Only one operation copies the messages, because a long conversation is slow to copy.
        messages[0] = b"%s%s%s" % (settings, before, messages[0])
        messages[-1] = b"%s%s}" % (messages[-1], after)
        return b",".join(messages)

    def reject_medium(self, medium: SentMedium) -> str | None:
        """Return an error message if the provider does not support a medium in this request."""
        return unsupported_kind(medium) if medium.kind == "audio" else None

    @abstractmethod
    def request_settings(self, request: ModelRequest, left_out: Collection[str]) -> JsonObject:
        """Return all fields of a request except the messages, the tools and `stream_settings`."""

    @abstractmethod
    def request_content(self, request: ModelRequest) -> tuple[bytes, list[bytes], bytes]:
        """Return the JSON texts of the messages and tools: the text before the messages, each message, the text after.

        The first text begins with a comma.
        """

    @abstractmethod
    def read(self, response: JsonObject) -> ModelResponse:
        """Decode the JSON body of a complete response.

        Raise `ProviderError` if the body reports an error.
        """

    @abstractmethod
    def stream_reader(self) -> StreamReader:
        """Create a decoder for the events of one streamed response."""


# Addresses and headers


def _apply_user_headers(url: str, headers: dict[str, str], config: JsonObject) -> tuple[str, dict[str, str]]:
    """Return the URL without its user name and password, and all headers of a request.

    The user name and password become the header `Authorization`. Headers in the model dict override acorn's headers.
    """
    if not is_http_url(url):
        raise ProviderError("The `api_base` is not valid. It must be an `http://` or `https://` URL with a valid host.")
    if basic_auth := basic_auth_of(url):
        headers["Authorization"] = basic_auth
        address = split_url(url)
        url = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    user_headers: JsonObject = {**(config.get("headers") or {}), **(config.get("extra_headers") or {})}
    overridden = {name.lower() for name in user_headers}
    headers["User-Agent"] = "acorn"  # Some gateways reject requests without a `User-Agent`.
    merged: JsonObject = {
        name: value for name, value in headers.items() if name.lower() not in overridden
    } | user_headers
    for name, value in merged.items():
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise ProviderError(
                f"The header `{name}` is not valid. Its value, or the `api_key` that the value contains, must be ASCII "
                f"text without line breaks. Check `headers` and `api_key` in the model dict."
            )
    return url, merged


# Parts of messages


def part_payload(part: JsonObject, *keys: str) -> JsonObject:
    """Return the inner object of a message part, such as the value of its key `image_url`.

    Raise `ProviderError` if the inner object has none of the given keys, because a user may have written an invalid
    part.
    """
    kind = str(part.get("type"))
    payload: JsonValue = part.get(kind)
    payload = {keys[0]: payload} if isinstance(payload, str) else payload
    if not isinstance(payload, dict) or not any(isinstance(payload.get(key), str) for key in keys):
        expected = " or ".join(f"`{key}`" for key in keys)
        raise ProviderError(
            f"A message contains a part of type `{kind}`, but the value of its key `{kind}` has no {expected}. "
            f"Add the missing key to the message."
        )
    return payload


# Token usage

_MAX_TOKENS = 10**9
"""The maximum number of tokens of one kind in a response. A hostile server may report any number."""


def token_count(value: Any) -> int:
    """Return a number of tokens in a response, limited to the range that is possible.

    A negative number would lower the total that the limits of a run count. Raise `ValueError` if the value is not a
    number.
    """
    number = float(value or 0)
    return 0 if number != number else int(max(0.0, min(number, _MAX_TOKENS)))


# Hosted tools

_DATED = re.compile(r"_\d{8}$")
"""The end of Anthropic's tool types, such as `web_search_20250305`."""


def is_anthropic_tool(tool: JsonObject) -> bool:
    kind = str(tool.get("type") or "")
    return kind == "mcp_toolset" or bool(_DATED.search(kind))


def is_openai_tool(tool: JsonObject) -> bool:
    return not is_anthropic_tool(tool)


def drop_trailing_reasoning(parts: list[JsonObject]) -> list[JsonObject]:
    """Return a list of Anthropic blocks or OpenAI items without the reasoning at its end.

    Providers reject a message that ends with reasoning.
    """
    while parts and parts[-1]["type"] in ("reasoning", "thinking", "redacted_thinking"):
        parts = parts[:-1]
    return parts


def merge_stored(
    stored: Sequence[JsonObject], texts: list[JsonObject] | None, calls: Iterable[JsonObject], call_key: str
) -> list[JsonObject]:
    """Return the stored blocks or items of a response, but with the current text and tool calls of the message.

    The user may have edited the message. `texts` contains its text, or is None if the text is still the stored text.
    `call_key` is the key that contains the id of a call.
    """
    new_calls = {call[call_key]: call for call in calls}
    merged: list[JsonObject] = []
    for part in stored:
        if part["type"] in ("text", "message") and texts is not None:
            merged, texts = [*merged, *texts], []
        elif part["type"] in ("tool_use", "function_call"):
            merged += [new_calls.pop(part[call_key])] if part[call_key] in new_calls else []
        else:
            merged.append(part)
    return [*merged, *(texts or ()), *new_calls.values()]


# Cache marks

_MAX_MARKS = 4
"""The maximum number of cache marks in a request that providers allow."""


def cache_marks(request: ModelRequest) -> dict[int, JsonObject]:
    """Return a dict that maps the index of a message to its cache mark (the value of `cache_control`).

    The dict is computed from the cache points in the settings, each of which selects messages by index or by role. The
    `index` of a cache point does not count the system messages at the start. A role may match many messages, but
    providers allow only a few marks. In this case the dict contains the first mark and the last marks, so that the
    longest part of the conversation is cached.
    """
    if not request.cache_points:
        return {}
    messages = request.messages
    offset = 0
    while offset < len(messages) and messages[offset]["role"] in ("system", "developer"):
        offset += 1
    marks: dict[int, JsonObject] = {}
    for point in request.cache_points:
        mark = point.get("control") or {"type": "ephemeral"}
        index = point.get("index")
        if index is not None:
            at = index + offset if index >= 0 else len(messages) + index
            if 0 <= at < len(messages):
                marks[at] = mark
        else:
            marks |= {at: mark for at, message in enumerate(messages) if message["role"] == point.get("role")}
    if len(marks) <= _MAX_MARKS:
        return marks
    first, *others = sorted(marks)
    return {at: marks[at] for at in (first, *others[1 - _MAX_MARKS :])}
