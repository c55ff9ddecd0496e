"""Tools that providers run themselves: who takes which, and how what they returned goes back untouched.

An answer in which a provider has run a tool is more than text and calls; so is one with a thought between them. All of
it is kept in the assistant message, in order: Anthropic's blocks as `content_blocks`, the items of OpenAI's Responses
as `response_items`. Of what the message itself says, text and calls, the message counts: the user may have changed it.
Pure; called by the lanes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import dropwhile
from typing import Any

Json = dict[str, Any]
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
