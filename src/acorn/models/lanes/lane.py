"""The port of the native lanes, and what they share: the keys they know, addresses and headers, marks for a cache.

A lane says how one protocol is written and read (`openai_chat.py`, `openai_responses.py`, `anthropic_messages.py`);
`native_lane.py` asks by it.

Tools that providers run themselves: who takes which, and how what they returned goes back untouched.

An answer in which a provider has run a tool is more than text and calls; so is one with a thought between them. All of
it is kept in the assistant message, in order: Anthropic's blocks as `content_blocks`, the items of OpenAI's Responses
as `response_items`. Of what the message itself says, text and calls, the message counts: the user may have changed it.
Pure; called by the lanes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import dropwhile
from typing import Any, Protocol

from acorn.models.lanes.http import basic_of, is_address, split
from acorn.models.port import PRICES as PRICES
from acorn.models.port import Delta, ModelRequest, ModelResponse
from acorn.models.providers import Tokens
from acorn.types import JsonObject

OURS = (
    *("model", "id", "lane", "timeout", "request_timeout", "num_retries", "retry_delay", "max_retries"),
    *("temperature", "max_tokens", "max_completion_tokens"),
)
"""Keys of a model dict that are for us, whatever the lane; a request says what counts of the last line."""
THOUGHTS = ("thinking_blocks", "reasoning_items", "content_blocks", "response_items")
"""Fields of a message that only the provider who gave them can read: Anthropic's, and those of OpenAI's Responses."""
ADDRESS = ("api_base", "base_url", "api_key", "headers", "extra_headers")


def knows_keys(config: Mapping[str, Any], known: Collection[str]) -> bool:
    """Whether a lane knows all of a model dict; a timeout may be an object that httpx made."""
    timeouts = (config.get("timeout"), config.get("request_timeout"))
    return all(key in known for key in config) and all(isinstance(t, int | float | str | None) for t in timeouts)


class StreamReader(Protocol):
    """Reads the events of one streamed answer."""

    called: str
    """The names of the tools that were called, one behind the other."""
    stop_reason: str
    used: Tokens | None
    """What it used, as far as it is known."""

    def read(self, event: Any) -> Delta | None:
        """What an event brings; raises `ProviderError` where it says that something went wrong."""
        ...

    def end(self) -> Delta | None:
        """What is left to tell when the stream has ended."""
        ...


class ProviderError(Exception):
    """What a provider says went wrong in the midst of an answer, or is known to say before it is asked."""

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status


class ConnectionLostError(ProviderError):
    """The request has something in it that the provider would lose."""


class Lane(Protocol):
    """How one protocol is written and read."""

    provider: str
    name: str
    """The model's name as the provider knows it."""
    thinks: bool

    def can_force_tool(self) -> bool: ...

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        """Whether it has a place for a tool that the provider runs."""
        ...

    def address(self) -> tuple[str, dict[str, str]]:
        """Where to send, and with which headers."""
        ...

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes: ...

    def read(self, answer: Any) -> tuple[ModelResponse, Tokens | None]: ...

    def reader(self) -> StreamReader: ...


# Addresses and headers


def with_own(url: str, headers: dict[str, str], config: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """An address and headers, with those that the user has set, by name or within the address."""
    if not is_address(url):
        raise ProviderError("The `api_base` cannot be used: it must be `http://` or `https://` and a host that can be.")
    if basic := basic_of(url):
        headers["Authorization"] = basic
        address = split(url)
        url = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
    own = {**(config.get("headers") or {}), **(config.get("extra_headers") or {})}
    taken = {name.lower() for name in own}
    headers["User-Agent"] = "acorn"  # some gates let nobody in without a name
    made = {name: value for name, value in headers.items() if name.lower() not in taken} | own
    for name, value in made.items():
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            words = "it, or the `api_key` in it, must be ASCII text without line ends."
            raise ProviderError(f"The header `{name}` cannot be used: {words}")
    return url, made


# Parts of messages


def held(part: Mapping[str, Any], *keys: str) -> JsonObject:
    """What a part has in it, by one of these keys: a user may have written the part, and forgotten it."""
    kind = str(part.get("type"))
    found: Any = part.get(kind)
    found = {keys[0]: found} if isinstance(found, str) else found
    if not isinstance(found, dict) or not any(isinstance(found.get(key), str) for key in keys):
        wanted = " or ".join(f"`{key}`" for key in keys)
        raise ProviderError(f"A message has a part of type `{kind}` without {wanted} in its `{kind}`.")
    return found


# Cache marks


_MOST_MARKS = 4


def marks(request: ModelRequest) -> dict[int, JsonObject]:
    """Which messages are marked for the provider's cache, and how; a point counts from behind the system message.

    A point by a role may be that of many messages, and no provider takes more than a few marks: the first and the last
    of them reach farthest.
    """
    messages = request.messages
    before = 0
    while before < len(messages) and messages[before]["role"] in ("system", "developer"):
        before += 1
    found: dict[int, JsonObject] = {}
    for point in request.cache_points:
        mark = point.get("control") or {"type": "ephemeral"}
        index = point.get("index")
        if index is not None:
            at = index + before if index >= 0 else len(messages) + index
            if 0 <= at < len(messages):
                found[at] = mark
        else:
            found |= {at: mark for at, message in enumerate(messages) if message["role"] == point.get("role")}
    if len(found) <= _MOST_MARKS:
        return found
    first, *rest = sorted(found)
    return {at: found[at] for at in (first, *rest[1 - _MOST_MARKS :])}


def marked(message: JsonObject, mark: JsonObject) -> JsonObject:
    """A message with a mark: on the last of its parts, or on itself."""
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [*content[:-1], {**content[-1], "cache_control": mark}]}
    return {**message, "cache_control": mark}


Json = JsonObject
_DATED = re.compile(r"_\d{8}$")
_THOUGHTS = frozenset(("thinking", "redacted_thinking"))
_OURS = _THOUGHTS | {"text", "tool_use"}
BLOCKS, ITEMS = "content_blocks", "response_items"


# Who takes what: each provider has a way of its own to name its tools


def is_anthropics(tool: Mapping[str, Any]) -> bool:
    kind = str(tool.get("type") or "")
    return kind == "mcp_toolset" or bool(_DATED.search(kind))


def is_openais(tool: Mapping[str, Any]) -> bool:
    return not is_anthropics(tool)


# Anthropic


def kept_blocks(blocks: Sequence[Json]) -> list[Json] | None:
    """All blocks of an answer, where there is something among them that a message has no place for."""
    kinds = [block["type"] for block in blocks]
    behind = dropwhile(_THOUGHTS.__contains__, kinds)  # a message has its thoughts at its beginning
    if _OURS.issuperset(kinds) and _THOUGHTS.isdisjoint(behind) and not any(map(_is_cited, blocks)):
        return None
    return [{"type": "tool_use", "id": block.get("id")} if block["type"] == "tool_use" else block for block in blocks]


def _is_cited(block: Json) -> bool:
    return bool(block.get("citations"))


def sent_blocks(message: Mapping[str, Any], said: list[Json], uses: list[Json]) -> list[Json]:
    """The blocks of an earlier answer, with what the message says and calls now."""
    kept: list[Json] = message[BLOCKS]
    texts = "".join([block["text"] for block in kept if block["type"] == "text"])
    is_same = texts == (message.get("content") or "")
    calls = {use["id"]: use for use in uses}
    answered = {block.get("tool_use_id") for block in kept}
    found: list[Json] = []
    for block in kept:
        kind = block["type"]
        if kind == "text":
            if is_same and block["text"].strip():
                found.append(block)
            elif not is_same:
                found, said = [*found, *said], []
        elif kind == "tool_use":
            found += [calls.pop(block["id"])] if block["id"] in calls else []
        elif not kind.endswith("_tool_use") or block.get("id") in answered:  # one that was broken off is refused
            found.append(block)
    found += [*([] if is_same else said), *calls.values()]
    # A call that stays in the message may follow, as LiteLLM has it.
    return found if message.get("tool_calls") else _followed(found)


def blocks_of(thoughts: Sequence[Json], uses: Sequence[Json], results: Sequence[Json], text: str) -> list[Json]:
    """Blocks of which only the kinds are known, in the order that they most likely had."""
    by_use = {result.get("tool_use_id"): result for result in results}
    found: list[Json] = []
    waiting = list(thoughts)
    for use in uses:
        found += waiting[:1]
        del waiting[:1]
        found += [use, by_use[use["id"]]] if use["id"] in by_use else [use]
    return [*found, *waiting, *([{"type": "text", "text": text}] if text else [])]


# OpenAI's Responses


def kept_items(items: Sequence[Json], call_id: Callable[[Json], str | None]) -> list[Json] | None:
    """All items of an answer, where a tool of the provider's is among them."""
    if all(item["type"] in ("message", "function_call", "reasoning") for item in items):
        return None
    return [
        {"type": "function_call", "call_id": call_id(item)} if item["type"] == "function_call" else item
        for item in items
    ]


def sent_items(message: Mapping[str, Any], said: Json | None, calls: Iterable[Json], *, is_stored: bool) -> list[Json]:
    """The items of an earlier answer, with what the message says and calls now."""
    kept: list[Json] = message[ITEMS]
    parts = [part for item in kept if item["type"] == "message" for part in item.get("content") or ()]
    is_same = "".join([part.get("text") or "" for part in parts]) == (message.get("content") or "")
    left = {call["call_id"]: call for call in calls}
    found: list[Json] = []
    for item in kept:
        kind = item["type"]
        if kind == "message":
            if is_same:
                found.append(item)
            elif said is not None:
                found.append(said)
                said = None
        elif kind == "function_call":
            found += [left.pop(item["call_id"])] if item["call_id"] in left else []
        elif kind != "reasoning" or is_stored or item.get("encrypted_content"):
            found.append(item)
    if not is_same and said is not None:
        found.append(said)
    return _followed([*found, *left.values()])


def _followed(items: list[Json]) -> list[Json]:
    """Without thoughts at the end: one that nothing follows is refused."""
    while items and items[-1]["type"] in ("reasoning", *_THOUGHTS):
        items = items[:-1]
    return items
