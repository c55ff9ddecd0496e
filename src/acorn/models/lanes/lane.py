"""The interface of native lanes, and code that several lanes share.

A lane is the path of a request to its provider. A native lane (`openai_chat.py`, `openai_responses.py`, `anthropic.py`)
encodes the requests and decodes the responses of one protocol. `native.py` sends the requests.

The shared code handles the keys of model dicts, headers, hosted tools (tools that the provider runs itself) and cache
marks (which tell the provider to cache a request up to the marked message).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from acorn.models.lanes.http import basic_auth_of, is_http_url, split_url
from acorn.models.port import PRICE_KEYS, Delta, ModelResponse
from acorn.models.providers import TokenCounts
from acorn.models.request import ModelRequest
from acorn.types import JsonObject, JsonValue

ADDRESS_KEYS = ("api_base", "base_url", "api_key", "headers", "extra_headers")
"""Model dict keys that set the address and the credentials."""
COMMON_KEYS = (
    *("model", "id", "lane", "timeout", "request_timeout", "num_retries", "retry_delay", "max_retries"),
    *("temperature", "max_tokens", "max_completion_tokens"),
    *PRICE_KEYS,
)
"""Model dict keys that acorn handles itself for every lane. The `ModelRequest` contains the sampling settings."""
BLOCKS_KEY, ITEMS_KEY = "content_blocks", "response_items"
"""Keys of an assistant message that contain the complete response of a provider that ran a hosted tool.

`content_blocks` contains Anthropic's blocks, and `response_items` contains OpenAI's items.
"""
REASONING_KEYS = ("thinking_blocks", "reasoning_items", BLOCKS_KEY, ITEMS_KEY)
"""Keys of an assistant message whose values only the provider that created them can read."""


def supports_keys(config: JsonObject, supported: Collection[str]) -> bool:
    """Return True if a native lane supports all keys of a model dict and the types of its timeouts.

    Otherwise acorn uses LiteLLM. For example, only LiteLLM supports a timeout that is an httpx object.
    """
    timeouts = (config.get("timeout"), config.get("request_timeout"))
    return all(key in supported for key in config) and all(isinstance(t, int | float | str | None) for t in timeouts)


class StreamReader(Protocol):
    """The interface of a decoder that converts the events of one streamed response to deltas."""

    called_names: str
    """The names of the called tools, joined without a separator."""
    stop_reason: str
    """The reason why the model stopped, or "" before the event that contains it."""
    used: TokenCounts | None
    """The token counts of the request, or None before the event that contains them."""

    def read(self, event: JsonObject) -> Delta | None:
        """Convert an event to a delta, or return None if the event contains nothing new for the response.

        Raise `ProviderError` if the event reports an error.
        """
        ...

    def finish(self) -> Delta | None:
        """Return a last delta after the end of the stream, or None if all content was already returned."""
        ...


class ProviderError(Exception):
    """An error that a provider reports in a response, or that acorn detects before it sends a request."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class UnsupportedContentError(ProviderError):
    """The error for a request that contains something, such as audio, that the provider does not support."""


class Lane(Protocol):
    """The interface of a native lane, which encodes the requests and decodes the responses of one protocol."""

    provider: str
    name: str
    """The model name without the provider prefix."""
    thinks: bool
    """Whether the settings of the model turn on reasoning."""

    def can_force_tool(self) -> bool:
        """Return True if a request of this protocol may force the model to call one specific tool."""
        ...

    def takes_tool(self, tool: JsonObject) -> bool:
        """Return True if the provider supports a hosted tool, which the provider runs itself."""
        ...

    def address(self) -> tuple[str, dict[str, str]]:
        """Return the URL and the HTTP headers for requests to this provider."""
        ...

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        """Encode a request as JSON.

        The body does not contain the settings in `left_out`, which the model rejected.
        """
        ...

    def read(self, response: JsonObject) -> tuple[ModelResponse, TokenCounts | None]:
        """Decode the JSON body of a complete response, and return the response and its token counts.

        Raise `ProviderError` if the body reports an error. The token counts are None if the body does not contain them.
        """
        ...

    def stream_reader(self) -> StreamReader:
        """Create a decoder for the events of one streamed response."""
        ...


# Addresses and headers


def apply_user_headers(url: str, headers: dict[str, str], config: JsonObject) -> tuple[str, dict[str, str]]:
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


def with_cache_mark(message: Mapping[str, Any], mark: JsonObject) -> JsonObject:
    """Return a copy of a message with a cache mark on the last part of its content.

    If the content is not a list of parts, the mark is on the message itself.
    """
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [*content[:-1], {**content[-1], "cache_control": mark}]}
    return {**message, "cache_control": mark}
