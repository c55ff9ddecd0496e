"""Between the messages of chat completions, which are ours, and the items of OpenAI's Responses. Pure.

Called by `openai_responses.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from acorn.models.hosted import ITEMS, kept_items, sent_items
from acorn.models.lane import held
from acorn.models.port import RawCall
from acorn.types import Usage

_NUMBERED = re.compile(r"call_\d+")
"""Ids that begin anew with each answer, as some servers give them: there the item's own is taken."""
_FILES = ("file_id", "file_data", "file_url")
BETWEEN = "\n\n"
"""Between the parts of a summary, which are paragraphs."""


# Messages


def items_of(message: Mapping[str, Any], *, is_stored: bool) -> Iterator[dict[str, Any]]:
    """A message as items of the input."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        told = [] if content is None else _parts(content, "input_text")
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": told}
        return
    calls = message.get("tool_calls") or ()
    if role == "assistant" and message.get(ITEMS):
        said = message_of(role, content) if content else None
        yield from sent_items(message, said, map(_call_item, calls), is_stored=is_stored)
        return
    thoughts = [t for t in message.get("reasoning_items") or () if is_stored or t.get("encrypted_content")]
    ids = {call["id"] for call in calls}
    if calls or content:  # a thought that nothing follows is refused
        yield from [_thought(each) for each in thoughts if each.get("before") not in ids]
    if content or (content is not None and not calls):
        yield message_of(role, content)
    for call in calls:
        yield from [_thought(each) for each in thoughts if each.get("before") == call["id"]]
        yield _call_item(call)


def _call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    made = {"name": function["name"], "arguments": function["arguments"]}
    return {"type": "function_call", "call_id": call["id"], **made}


def message_of(role: str, content: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": _parts(content, kind)}


def _parts(content: Any, kind: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": kind, "text": content}]
    return [_part(part, kind) for part in content]


def _part(part: Mapping[str, Any], kind: str) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": kind, "text": part.get("text") or ""}
    if part.get("type") == "image_url":
        image = held(part, "url")
        return {"type": "input_image", "image_url": image["url"], "detail": image.get("detail") or "auto"}
    if part.get("type") == "file":
        file, keys = held(part, *_FILES), (*_FILES, "filename")
        return {"type": "input_file", **{key: file[key] for key in keys if key in file}}
    return {key: value for key, value in part.items() if key != "cache_control"}


def _thought(item: Mapping[str, Any]) -> dict[str, Any]:
    """A thought to send back; its text in the clear is refused, and a summary is always wanted."""
    kept = {key: item[key] for key in ("id", "encrypted_content") if item.get(key)}
    return {"type": "reasoning", "summary": item.get("summary") or [], **kept}


# Items of an answer


def extra_of(items: list[Any]) -> dict[str, Any]:
    """What of an answer must be sent back beside its text and its calls."""
    if (kept := kept_items(items, _call_id)) is not None:
        return {ITEMS: kept}
    thoughts = thoughts_of(items)
    return {"reasoning_items": thoughts} if thoughts else {}


def thoughts_of(items: list[Any]) -> list[dict[str, Any]]:
    """The thoughts of an answer; one that comes behind something else says which call it is before."""
    found: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    is_first = True
    for item in items:
        if item["type"] == "reasoning":
            keys = ("id", "type", "summary", "encrypted_content")
            waiting.append({key: item[key] for key in keys if item.get(key) is not None})
        elif item["type"] in ("message", "function_call"):
            is_call = item["type"] == "function_call"
            place = {"before": _call_id(item)} if is_call and not is_first else {}
            found += [{**each, **place} for each in waiting]
            waiting, is_first = [], False
    return found + waiting if is_first else found


def thought_text(item: Mapping[str, Any]) -> str:
    """What a model tells of its thoughts: a summary, or of an open model the thoughts themselves."""
    if item["type"] != "reasoning":
        return ""
    parts = item.get("summary") or item.get("content") or ()
    return BETWEEN.join([part["text"] for part in parts if part.get("text")])


def _call_id(item: Mapping[str, Any]) -> str | None:
    id = item.get("call_id")
    return id if id and not _NUMBERED.fullmatch(id) else item.get("id") or id


def call_of(item: Mapping[str, Any]) -> RawCall:
    return RawCall(_call_id(item), item.get("name") or "", item.get("arguments") or "")


def stop_reason(answer: Mapping[str, Any], *, has_calls: bool) -> str:
    why = (answer.get("incomplete_details") or {}).get("reason")
    if why or answer.get("status") == "incomplete":
        return "content_filter" if why == "content_filter" else "length"
    return "tool_calls" if has_calls else "stop"


def usage_of(raw: Any) -> Usage:
    if not raw:
        return Usage(requests=1)
    read, made = raw.get("input_tokens_details") or {}, raw.get("output_tokens_details") or {}
    return Usage(
        int(raw.get("input_tokens") or 0),
        int(raw.get("output_tokens") or 0),
        int(read.get("cached_tokens") or 0),
        int(made.get("reasoning_tokens") or 0),
        1,
        int(read.get("cache_write_tokens") or 0),
    )
