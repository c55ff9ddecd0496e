"""What is really sent: the history, made valid for every provider, at the cost of what is new.

The user may do anything to the history. Before each request it is read afresh: results find their calls,
calls without a result get a placeholder, strays stay behind, and the user's own list is left alone. What
was sent before is kept beside a private copy of the history it came from; while the two agree, only the
new end is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from acorn._json import safe_repr, shorten, to_text, whole_text
from acorn._loop.messages import NO_RESULT, REMINDER, tool, user
from acorn.errors import AcornError
from acorn.record import Message

_ROLES = ("system", "developer", "user", "assistant", "tool")


class Outbox:
    """The sent side of one run's conversation."""

    def __init__(self) -> None:
        self._seen: list[Message] = []
        self._sent: list[Message] = []
        self._pieces: list[bytes] = []

    def prepare(self, history: list[Message], opening: Message) -> tuple[list[Message], Callable[[], bytes]]:
        """The messages to send, and their JSON on demand; `opening` is the input, should it have been trimmed."""
        known = len(self._seen)
        if not known or history[:known] != self._seen or not self._add(history[known:]):
            self._seen, self._sent, self._pieces = [], [], []
            self._add(history)
        self._put_back(opening)
        messages = list(self._sent)
        if messages[-1]["role"] == "assistant":  # no provider takes a conversation that ends with the model's turn
            messages.append(user(REMINDER))
        return messages, self._writer(messages)

    def _add(self, tail: list[Message]) -> bool:
        """Take in new messages; False where one of them is a result for a call that was sent already."""
        answers, strays = _match(tail)
        if strays and self._seen:
            return False
        offset = len(self._seen)
        for index, message in enumerate(tail):
            copy = _copy(message)
            self._seen.append(copy)
            role = copy["role"]
            if role == "assistant":
                self._sent += _turn(copy, offset + index, answers.get(index, {}))
            elif role != "tool" and not _is_blank(copy.get("content")):
                self._sent.append(copy)
        return True

    def _put_back(self, opening: Message) -> None:
        """The first message behind the system's must be a user's."""
        first = next((at for at, message in enumerate(self._sent) if message["role"] not in _ROLES[:2]), None)
        if first is None or self._sent[first]["role"] != "user":
            self._sent.insert(len(self._sent) if first is None else first, _copy(opening))
            self._pieces = []

    def _writer(self, messages: list[Message]) -> Callable[[], bytes]:
        pieces = self._pieces  # grows together with `_sent`; a new start makes a new list

        def write() -> bytes:
            for message in messages[len(pieces) : len(messages)]:
                pieces.append(to_json(message, fallback=safe_repr))
            return b"[%s]" % b",".join(pieces[: len(messages)])

        return write


def _match(history: Sequence[Any]) -> tuple[dict[int, dict[int, Message]], bool]:
    """For each assistant message, which of its calls is answered by which tool message; and if any is left over.

    A result belongs to the nearest call of its id before it, or else to one behind it that nothing answers.
    """
    open_slots: dict[str, list[tuple[int, int]]] = {}
    answers: dict[int, dict[int, Message]] = {}
    strays: list[Message] = []
    for index, message in enumerate(history):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise AcornError(
                f"`history[{index}]` must be a dict with a `role` of {', '.join(_ROLES)}, "
                f"got {shorten(safe_repr(message), 120)}."
            )
        role = message["role"]
        if role == "assistant":
            for slot, call_id in enumerate(_identify(message)[1]):
                open_slots.setdefault(call_id, []).append((index, slot))
        elif role == "tool" and not _answer(message, open_slots, answers):
            strays.append(message)
    for message in strays:
        _answer(message, open_slots, answers)
    return answers, bool(strays)


def _answer(
    message: Message, open_slots: dict[str, list[tuple[int, int]]], answers: dict[int, dict[int, Message]]
) -> bool:
    slots = open_slots.get(str(message.get("tool_call_id") or ""))
    if not slots:
        return False
    nearest = max(at for at, _ in slots)
    slot = next(slot for slot in slots if slot[0] == nearest)
    slots.remove(slot)
    answers.setdefault(slot[0], {})[slot[1]] = message
    return True


def _identify(message: Message) -> tuple[list[Any], list[str]]:
    """The calls of a message, and the id each was given ('' where it has none)."""
    calls: Any = message.get("tool_calls") if message.get("role") == "assistant" else None
    if not isinstance(calls, list | tuple):
        return [], []
    return list(calls), [str(call.get("id") or "") if isinstance(call, dict) else "" for call in calls]


def _turn(message: Message, index: int, answers: dict[int, Message]) -> list[Message]:
    """An assistant message and the results of its calls."""
    calls, ids = _identify(message)
    if not calls:
        if _is_blank(message.get("content")):
            return []
        return [{key: value for key, value in message.items() if key != "tool_calls"}]
    turn = dict(message)
    if _is_blank(turn.get("content")):
        turn["content"] = None
    used: set[str] = set()
    turn["tool_calls"] = []
    sent = [turn]
    for slot, (call, call_id) in enumerate(zip(calls, ids, strict=True)):
        if not call_id or call_id in used:
            call_id = f"call_{index}_{slot}"
        used.add(call_id)
        turn["tool_calls"].append(_call(call, call_id))
        found = answers.get(slot)
        content = NO_RESULT if found is None else found.get("content")
        if not isinstance(content, str | list):
            content = "" if content is None else to_text(content)
        extra = {} if found is None else {key: value for key, value in found.items() if key != "name"}
        sent.append(_copy({**extra, **tool(call_id, ""), "content": content}))
    return sent


def _call(call: Any, call_id: str) -> dict[str, Any]:
    """A call in OpenAI's form, whichever form it had, its arguments a JSON object."""
    source: dict[str, Any] = call if isinstance(call, dict) else {}
    function: Any = source.get("function")
    holder: dict[str, Any] = function if isinstance(function, dict) else source
    name = whole_text(str(holder.get("name") or "unknown"))
    return {
        "id": whole_text(call_id),
        "type": "function",
        "function": {"name": name, "arguments": _object_text(holder.get("arguments"))},
    }


def _object_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            if isinstance(from_json(arguments), dict):
                return arguments
        except (ValueError, UnicodeEncodeError):
            pass
        return "{}"
    return to_text(arguments) if isinstance(arguments, dict) else "{}"


def _is_blank(content: Any) -> bool:
    return content is None or (isinstance(content, str) and not content.strip()) or content == []


def _copy(value: Any) -> Any:
    """A copy that nobody else holds, with text that can be encoded."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else whole_text(value)
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    if kind is list:
        return [_copy(item) for item in value]
    return value
