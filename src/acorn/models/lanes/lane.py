"""The port of native lanes and the code that they share: keys of model dicts, headers, hosted tools, cache marks.

A lane is the path of a request to its provider. A native lane (`openai_chat.py`, `openai_responses.py`, `anthropic.py`)
writes requests and reads responses of one protocol. `native.py` sends them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Protocol

from acorn.models.lanes.http import basic_auth_of, is_http_url, split_url
from acorn.models.port import PRICE_KEYS, Delta, ModelResponse
from acorn.models.providers import TokenCounts
from acorn.models.request import ModelRequest
from acorn.types import JsonObject, JsonValue

ADDRESS_KEYS = ("api_base", "base_url", "api_key", "headers", "extra_headers")
COMMON_KEYS = (
    *("model", "id", "lane", "timeout", "request_timeout", "num_retries", "retry_delay", "max_retries"),
    *("temperature", "max_tokens", "max_completion_tokens"),
    *PRICE_KEYS,
)
"""Keys of a model dict that acorn handles itself in every lane. The request has the effective sampling settings."""
BLOCKS_KEY, ITEMS_KEY = "content_blocks", "response_items"
"""Keys of an assistant message for a response in which the provider ran a tool: Anthropic's blocks, OpenAI's items."""
REASONING_KEYS = ("thinking_blocks", "reasoning_items", BLOCKS_KEY, ITEMS_KEY)
"""Keys of an assistant message that only the provider that wrote them can read."""


def supports_keys(config: JsonObject, supported: Collection[str]) -> bool:
    """Return whether a lane supports all keys of a model dict. A timeout object of httpx is for LiteLLM."""
    timeouts = (config.get("timeout"), config.get("request_timeout"))
    return all(key in supported for key in config) and all(isinstance(t, int | float | str | None) for t in timeouts)


class StreamReader(Protocol):
    """A reader of the events of one streamed response."""

    called_names: str
    """The concatenated names of the tools that were called."""
    stop_reason: str
    used: TokenCounts | None
    """The tokens used, as soon as they are known."""

    def read(self, event: JsonObject) -> Delta | None:
        """Return the new content of an event. Raise `ProviderError` if the event reports an error."""
        ...

    def finish(self) -> Delta | None:
        """Return the remaining content after the stream has ended."""
        ...


class ProviderError(Exception):
    """An error that a provider reports within a response, or that is certain before the request is sent."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class UnsupportedContentError(ProviderError):
    """The request contains something that the provider does not support and would ignore."""


class Lane(Protocol):
    """The writer of requests and the reader of responses of one protocol."""

    provider: str
    name: str
    """The name of the model without the prefix of the provider."""
    thinks: bool

    def can_force_tool(self) -> bool: ...

    def takes_tool(self, tool: JsonObject) -> bool:
        """Return whether the provider runs a hosted tool."""
        ...

    def address(self) -> tuple[str, dict[str, str]]:
        """Return the URL and the headers."""
        ...

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes: ...

    def read(self, response: JsonObject) -> tuple[ModelResponse, TokenCounts | None]: ...

    def stream_reader(self) -> StreamReader: ...


# Addresses and headers


def apply_user_headers(url: str, headers: dict[str, str], config: JsonObject) -> tuple[str, dict[str, str]]:
    """Return the URL and the headers, with the headers of the model dict and the credentials in the URL."""
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
                f"The header `{name}` is not valid. It, or the `api_key` in it, must be ASCII text without line breaks."
            )
    return url, merged


# Parts of messages


def part_payload(part: JsonObject, *keys: str) -> JsonObject:
    """Return the object in a content part. It must have one of these keys, since a user may have written the part."""
    kind = str(part.get("type"))
    payload: JsonValue = part.get(kind)
    payload = {keys[0]: payload} if isinstance(payload, str) else payload
    if not isinstance(payload, dict) or not any(isinstance(payload.get(key), str) for key in keys):
        expected = " or ".join(f"`{key}`" for key in keys)
        raise ProviderError(f"A message has a part of type `{kind}` without {expected} in its `{kind}`.")
    return payload


# Hosted tools: the providers name their tools differently

_DATED = re.compile(r"_\d{8}$")


def is_anthropic_tool(tool: JsonObject) -> bool:
    kind = str(tool.get("type") or "")
    return kind == "mcp_toolset" or bool(_DATED.search(kind))


def is_openai_tool(tool: JsonObject) -> bool:
    return not is_anthropic_tool(tool)


def drop_trailing_reasoning(parts: list[JsonObject]) -> list[JsonObject]:
    """Return blocks or items without reasoning at the end. Providers reject reasoning that nothing follows."""
    while parts and parts[-1]["type"] in ("reasoning", "thinking", "redacted_thinking"):
        parts = parts[:-1]
    return parts


# Cache marks

_MOST_MARKS = 4


def cache_marks(request: ModelRequest) -> dict[int, JsonObject]:
    """Return the cache marks of the messages, by index. The index of a cache point starts after the system message.

    A cache point with a role may match many messages, but providers allow only a few marks. The first and the last ones
    cover the most text.
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
    if len(marks) <= _MOST_MARKS:
        return marks
    first, *others = sorted(marks)
    return {at: marks[at] for at in (first, *others[1 - _MOST_MARKS :])}


def with_cache_mark(message: JsonObject, mark: JsonObject) -> JsonObject:
    """Return a copy of a message with a cache mark on its last part, or on the message if it has no parts."""
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [*content[:-1], {**content[-1], "cache_control": mark}]}
    return {**message, "cache_control": mark}
