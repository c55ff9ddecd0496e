"""Repair of messages: each tool result follows its call, ids are unique, and every provider accepts the content.

`request_messages.py` calls these functions when it prepares a request. They have no side effects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

from pydantic_core import from_json

from acorn._formats.json import to_json_text
from acorn._history.history import SYSTEM_ROLES, call_ids, tool_message, user_message
from acorn.models.request import strip_signature
from acorn.types import Content, JsonObject, JsonValue, Message, MessageCall, is_json_object

NO_RESULT = "There is no result of this call."
_RESULT_FOLLOWS = "The result follows in a user message."
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME_LENGTH = 64

Slot = tuple[int, int]
"""The index of an assistant message, and the index of a tool call in this message."""


# Repair of the messages of a request


def match_results(messages: Sequence[Message]) -> tuple[dict[int, dict[int, Message]], set[str], set[str]]:
    """Find the tool call that each tool result in the messages answers.

    A result answers the nearest earlier call with its id, or else a later call that has no result. Return three values.
    The first is a dict that maps the index of each assistant message to its results: a dict that maps call indexes to
    tool messages. The second is the set of ids of results that come before their call or have no call. The third is the
    set of ids of calls without a result.
    """
    open_slots: dict[str, list[Slot]] = {}
    results: dict[int, dict[int, Message]] = {}
    misplaced: list[Message] = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            for slot, call in enumerate(_calls_of(message)):
                open_slots.setdefault(id_of(call, "id"), []).append((index, slot))
        elif message["role"] == "tool" and not _match(message, open_slots, results):
            misplaced.append(message)
    for message in misplaced:
        _match(message, open_slots, results)
    ids = {id_of(message, "tool_call_id") for message in misplaced}
    return results, ids, {call_id for call_id, slots in open_slots.items() if slots}


def _match(message: Message, open_slots: dict[str, list[Slot]], results: dict[int, dict[int, Message]]) -> bool:
    slots = open_slots.get(id_of(message, "tool_call_id"))
    if not slots:
        return False
    nearest = slots[-1][0]
    slot = next(slot for slot in slots if slot[0] == nearest)
    slots.remove(slot)
    results.setdefault(nearest, {})[slot[1]] = message
    return True


def _calls_of(message: Message) -> list[Any]:
    calls: JsonValue = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def id_of(holder: object, key: str) -> str:
    """Return the value of the id field `key` in a message or call as text, or "" if the id is missing."""
    return str(holder.get(key) or "") if is_json_object(holder) else ""


def repair_text_message(message: Message, content: Content) -> Message:
    """Return a user or system message with the given content, without keys that only other roles may have."""
    role = "system" if message["role"] in SYSTEM_ROLES else message["role"]
    misplaced = message.keys() & {"tool_calls", "tool_call_id"}
    if role == message["role"] and content is message["content"] and not misplaced:
        return message
    return _copy_with_changes(message, misplaced, role=role, content=content)


def repair_turn(message: Message, index: int, results: dict[int, Message], used: set[str]) -> list[Message]:
    """Return the repaired messages for one response: the assistant message and the results of its calls.

    If results contain media, a user message with the media follows. `used` is the set of call ids in earlier messages.
    Ids that are missing or already used are replaced, and the ids of this response are added to `used`.
    """
    calls, content = _calls_of(message), repair_content(message.get("content"))
    if not calls:
        return [] if content is None else [_copy_with_changes(message, ("tool_calls", "tool_call_id"), content=content)]
    ids = unique_ids([id_of(call, "id") for call in calls], f"call_{index}", used)
    repaired_calls = list(map(_repair_call, calls, ids))
    messages = [_copy_with_changes(message, ("tool_call_id",), content=content, tool_calls=repaired_calls)]
    media_parts: list[JsonObject] = []
    for slot, call_id in enumerate(ids):
        result = results.get(slot)
        if result is None:
            messages.append(tool_message(call_id, NO_RESULT))
        else:
            text = result.get("content")
            result_content = text if isinstance(text, str) else repair_content(text) or ""
            name = repaired_calls[slot]["function"]["name"]
            content, parts = split_media(result_content, name, call_id)
            messages.append(_copy_with_changes(result, ("name", "tool_calls"), tool_call_id=call_id, content=content))
            media_parts += parts
    return [*messages, user_message(media_parts)] if media_parts else messages


def split_media(content: Content, name: str, call_id: str) -> tuple[Content, list[JsonObject]]:
    """Split the content of a tool result into its text and its media parts.

    OpenAI's protocol allows only text in tool messages. The media parts are sent in a user message after the results,
    and a line of text before each media part states the tool call that returned it.
    """
    if isinstance(content, str) or not (others := [part for part in content if part.get("type") != "text"]):
        return content, []
    texts = [part for part in content if part.get("type") == "text"]
    is_one_text = len(texts) == 1 and texts[0].keys() == {"type", "text"} and isinstance(texts[0]["text"], str)
    labelled: list[JsonObject] = []
    for number, part in enumerate(others, start=1):
        label = f"Media {number} of the result of `{name}` (call `{strip_signature(call_id)}`):"
        labelled += [{"type": "text", "text": label}, part]
    return (texts[0]["text"] if is_one_text else texts or _RESULT_FOLLOWS), labelled


def _repair_call(call: JsonValue, call_id: str) -> MessageCall:
    """Return a tool call in OpenAI's format. Replace arguments that are not a JSON object with an empty object."""
    source = call if isinstance(call, dict) else {}
    function: JsonValue = source.get("function")
    holder = function if isinstance(function, dict) else source
    # Models invent names such as `functions.search`, which no provider accepts in a later request.
    name = _NOT_IN_A_NAME.sub("_", str(holder.get("name") or "unknown"))[:_MAX_NAME_LENGTH]
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": _object_json(holder.get("arguments"))},
    }


def _object_json(arguments: JsonValue) -> str:
    if isinstance(arguments, dict):
        return to_json_text(arguments)
    if not isinstance(arguments, str):
        return "{}"
    try:
        return arguments if isinstance(from_json(arguments, allow_inf_nan=False), dict) else "{}"
    except ValueError:
        return "{}"


def repair_content(content: JsonValue) -> Content | None:
    """Return message content as text or as a list of content parts, or None if the content is empty."""
    if isinstance(content, str):
        return content if content.strip() else None
    if isinstance(content, list):
        if all(isinstance(part, dict) for part in content):
            return content or None
        parts: list[Any] = [part if isinstance(part, dict) else repair_content(part) for part in content]
        return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts if part] or None
    return None if content is None else to_json_text(content)


def _copy_with_changes(message: Message, removed: Collection[str], **changes: Any) -> Message:
    """Return a copy of a message without the keys in `removed` and with the new values in `changes`."""
    kept = {key: value for key, value in message.items() if key not in removed}
    return cast(Message, {**kept, **changes})


def unique_ids(ids: Sequence[str], prefix: str, used: set[str]) -> list[str]:
    """Return the tool call ids of one message. Replace each missing or repeated id with a new id after `prefix`.

    `used` is the set of ids in earlier messages. The function adds the returned ids to this set.
    """
    unique: list[str] = []
    for slot, call_id in enumerate(ids):
        number = slot
        while not call_id or call_id in used:
            call_id, number = f"{prefix}_{number}", number + len(ids)
        used.add(call_id)
        unique.append(call_id)
    return unique


# Calls without a result in a history


def open_calls(history: Sequence[object]) -> list[tuple[int, list[str]]]:
    """Return pairs of the index of an assistant message and the ids of its tool calls that have no result."""
    open_messages: list[tuple[int, list[str]]] = []
    unanswered: list[str] = []
    for index, message in enumerate(history):
        if is_json_object(message) and message.get("role") == "assistant":
            unanswered = call_ids(message)
            open_messages.append((index, unanswered))
        elif (answered := _answered_id(message)) in unanswered:
            unanswered.remove(answered)  # If several calls share an id, the first call gets the result.
    return [(index, ids) for index, ids in open_messages if ids]


def missing_results(history: Sequence[object], content: str) -> Iterator[tuple[int, list[Message]]]:
    """Yield an index and tool messages with the text `content` for each response with calls that have no result.

    The last index comes first, so that the caller can insert the messages immediately.
    """
    for index, ids in reversed(open_calls(history)):
        end = index + 1
        while end < len(history) and _answered_id(history[end]) is not None:
            end += 1
        yield end, [tool_message(call_id, content) for call_id in ids]


def _answered_id(message: object) -> str | None:
    """Return the id of the call that a tool message answers, or None for any other message."""
    return id_of(message, "tool_call_id") if is_json_object(message) and message.get("role") == "tool" else None
