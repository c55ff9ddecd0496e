"""Messages that anybody may have written, as every provider takes them: results behind their calls, ids that come once.

Pure, and knows nothing of what was sent before: `wire_history.py` asks for what is new.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from acorn._formats.json import to_json_text
from acorn._history.messages import NO_RESULT, fresh_ids, sent_result, tool, user
from acorn.record import Message
from acorn.types import JsonObject

SYSTEM = ("system", "developer")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64


def match_results(tail: Sequence[Message]) -> tuple[dict[int, dict[int, Message]], set[str], set[str]]:
    """For each assistant message, which of its calls is answered by which tool message.

    A result belongs to the nearest call of its id before it, or else to one behind it that nothing answers.
    Also the ids of results that do not stand behind their call, and those of calls without a result.
    """
    open_slots: dict[str, list[tuple[int, int]]] = {}
    answers: dict[int, dict[int, Message]] = {}
    lost: list[Message] = []
    for index, message in enumerate(tail):
        if message["role"] == "assistant":
            for slot, call in enumerate(_calls_of(message)):
                open_slots.setdefault(_id_of(call, "id"), []).append((index, slot))
        elif message["role"] == "tool" and not _answer(message, open_slots, answers):
            lost.append(message)
    for message in lost:
        _answer(message, open_slots, answers)
    ids = {_id_of(message, "tool_call_id") for message in lost}
    return answers, ids, {call_id for call_id, slots in open_slots.items() if slots}


def _answer(
    message: Message, open_slots: dict[str, list[tuple[int, int]]], answers: dict[int, dict[int, Message]]
) -> bool:
    slots = open_slots.get(_id_of(message, "tool_call_id"))
    if not slots:
        return False
    nearest = max(at for at, _ in slots)
    slot = next(slot for slot in slots if slot[0] == nearest)
    slots.remove(slot)
    answers.setdefault(slot[0], {})[slot[1]] = message
    return True


def _calls_of(message: Message) -> list[Any]:
    calls: Any = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _id_of(holder: Any, key: str) -> str:
    """An id as text; '' where there is none."""
    return str(holder.get(key) or "") if isinstance(holder, dict) else ""


def content_text(message: Message, content: Any) -> Message:
    """A message of the user's or the system's."""
    role = "system" if message["role"] in SYSTEM else message["role"]
    misplaced = message.keys() & {"tool_calls", "tool_call_id"}
    if role == message["role"] and content is message["content"] and not misplaced:
        return message
    return {**_without(message, *misplaced), "role": role, "content": content}


def turn_of(message: Message, index: int, answers: dict[int, Message], used: set[str]) -> list[Message]:
    """An assistant message, the results of its calls and what of them is no text; no id comes twice."""
    calls, content = _calls_of(message), content_of(message.get("content"))
    if not calls:
        return [] if content is None else [{**_without(message, "tool_calls", "tool_call_id"), "content": content}]
    ids = fresh_ids([_id_of(call, "id") for call in calls], index, used)
    made = list(map(_call, calls, ids))
    sent = [{**_without(message, "tool_call_id"), "content": content, "tool_calls": made}]
    beside: list[Any] = []
    for slot, call_id in enumerate(ids):
        found = answers.get(slot)
        if found is None:
            sent.append(tool(call_id, NO_RESULT))
        else:
            text = found.get("content")
            whole = text if isinstance(text, str) else content_of(text) or ""
            content, others = sent_result(whole, made[slot]["function"]["name"], call_id)
            sent.append({**_without(found, "name", "tool_calls"), "tool_call_id": call_id, "content": content})
            beside += others
    return [*sent, user(beside)] if beside else sent


def _call(call: Any, call_id: str) -> JsonObject:
    """A call in OpenAI's form, whichever form it had, its arguments a JSON object."""
    source: JsonObject = call if isinstance(call, dict) else {}
    function: Any = source.get("function")
    holder: JsonObject = function if isinstance(function, dict) else source
    # Models make up names such as `functions.search`, which no provider takes back.
    name = _NOT_IN_A_NAME.sub("_", str(holder.get("name") or "unknown"))[:_LONGEST_NAME]
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": _object_text(holder.get("arguments"))},
    }


def _object_text(arguments: Any) -> str:
    if isinstance(arguments, dict):
        return to_json_text(arguments)
    if not isinstance(arguments, str):
        return "{}"
    try:
        return arguments if isinstance(from_json(arguments, allow_inf_nan=False), dict) else "{}"
    except ValueError:
        return "{}"


def content_of(content: Any) -> str | list[Any] | None:
    """Text, or content parts as they are; None where there is nothing in it."""
    if isinstance(content, str):
        return content if content.strip() else None
    if isinstance(content, list):
        if all(isinstance(part, dict) for part in content):
            return content or None
        parts = [part if isinstance(part, dict) else content_of(part) for part in content]
        return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts if part] or None
    return None if content is None else to_json_text(content)


def _without(message: Message, *keys: str) -> Message:
    return {key: value for key, value in message.items() if key not in keys}
