"""Our messages, which are OpenAI's, as Anthropic has them: turns put together, calls and results as blocks.

What was written for one request is kept for the next, so that a step costs what is new in it. Called by its lane.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from acorn.models.lanes.lane import BLOCKS, held, marks, sent_blocks
from acorn.models.port import ModelRequest
from acorn.models.request_body import common_id
from acorn.types import JsonObject

_TEXTS = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")


class _Written:
    """The messages of one conversation, as they were written last."""

    def __init__(self) -> None:
        self._count = 0
        self._marked: Mapping[int, Any] = {}
        self._text = bytearray()
        self._turns: list[tuple[int, int]] = []
        """Each turn: how many messages are before it, and where in the text it begins."""

    def copy(self) -> _Written:
        other = _Written()
        other._count, other._marked = self._count, self._marked
        other._text, other._turns = self._text.copy(), self._turns.copy()
        return other

    def of(self, messages: list[JsonObject], count: int, marked: Mapping[int, Any]) -> bytes:
        """The first so many messages; those that were written before are the same ones."""
        changed = [at for at in self._marked.keys() | marked.keys() if self._marked.get(at) != marked.get(at)]
        same = min([self._count if self._count <= count else 0, *changed])
        turns, text = self._turns, self._text
        while turns and turns[-1][0] >= same:
            del text[turns.pop()[1] :]
        start = 0
        if turns:  # the last of them may have grown
            start, offset = turns.pop()
            del text[offset:]
        for at, turn in _turns(messages, start, count, marked):
            turns.append((at, len(text)))
            text += b",%s" % turn if text else turn
        self._count, self._marked = count, marked
        return bytes(text)


def written(request: ModelRequest) -> tuple[bytes, bytes]:
    """The system prompt, or nothing, and the messages."""
    part, marked = request.sent, marks(request) if request.cache_points else {}
    is_shared = part is not None and not part.is_completed
    messages = part.sent.messages if part is not None and is_shared else request.messages
    first, count = 0, request.message_count
    system: list[JsonObject] = []
    while first < count and messages[first]["role"] == "system":
        system += _with_mark(_blocks(messages[first]["content"]), marked.get(first))
        first += 1
    if part is not None and is_shared:
        with part.sent.lock:
            text = part.sent.kept.setdefault("anthropic", _Written()).of(messages, count, marked)
    else:
        text = _Written().of(messages, count, marked)
    return to_json(system) if system else b"", text


def _turns(messages: list[JsonObject], start: int, count: int, marked: Mapping[int, Any]) -> list[tuple[int, bytes]]:
    """Messages from here on as turns, the user's and the model's after each other."""
    if not start:  # the prompt is sent elsewhere
        while start < count and messages[start]["role"] == "system":
            start += 1
    found: list[tuple[int, bytes]] = []
    role, begun, blocks = "", start, list[JsonObject]()
    for at in range(start, count):
        message = messages[at]
        speaker = "assistant" if message["role"] == "assistant" else "user"  # what is said in the midst, by the user
        if speaker != role:
            if blocks:
                found.append((begun, to_json({"role": role, "content": blocks})))
            role, begun, blocks = speaker, at, []
        blocks += _with_mark(_blocks_of(message), marked.get(at))
    if blocks:
        found.append((begun, to_json({"role": role, "content": blocks})))
    return found


def _blocks_of(message: Mapping[str, Any]) -> list[JsonObject]:
    content = message.get("content")
    if message["role"] == "tool":
        told = content if isinstance(content, str) else _blocks(content)
        return [{"type": "tool_result", "tool_use_id": common_id(message["tool_call_id"]), "content": told}]
    blocks = _blocks(content)
    if message["role"] == "assistant":
        uses = [_use(call) for call in message.get("tool_calls") or ()]
        if message.get(BLOCKS):
            blocks = sent_blocks(message, blocks, uses)
        else:
            blocks = [*(message.get("thinking_blocks") or ()), *blocks, *uses]
        blocks = [{**each, "id": common_id(each["id"])} if each["type"] == "tool_use" else each for each in blocks]
    return blocks


def _use(call: Mapping[str, Any]) -> JsonObject:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": from_json(function["arguments"])}


def _blocks(content: Any) -> list[JsonObject]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    # It refuses a text that is empty.
    return [block_of(part) for part in content if part.get("type") != "text" or str(part.get("text") or "").strip()]


def block_of(part: Mapping[str, Any]) -> JsonObject:
    """A part of a message as Anthropic has it."""
    kind = part.get("type")
    rest = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
    if kind == "image_url":
        return {"type": "image", "source": _source(held(part, "url")["url"]), **rest}
    if kind == "file":
        file = held(part, "file_data", "file_url", "file_id")
        name = file.get("filename")
        if url := file.get("file_data") or file.get("file_url"):
            return {"type": "document", "source": _source(url), **({"title": name} if name else {}), **rest}
    return dict(part)


def _source(url: str) -> JsonObject:
    head, comma, data = url.partition(",") if url.startswith("data:") else ("", "", "")
    media_type, is_base64 = head.removeprefix("data:").removesuffix(";base64"), head.endswith(";base64")
    if not comma or not is_base64:
        return {"type": "url", "url": url}
    if media_type.startswith("text/") or media_type in _TEXTS:  # of documents it takes PDF and plain text
        return {"type": "text", "media_type": "text/plain", "data": b64decode(data).decode("utf-8", "replace")}
    return {"type": "base64", "media_type": media_type, "data": data}


def _with_mark(blocks: list[JsonObject], mark: Any) -> list[JsonObject]:
    """Blocks with a mark on the last of them; of a result in parts, on the last of these."""
    if not blocks or not mark:
        return blocks
    last = blocks[-1]
    if last["type"] == "tool_result" and isinstance(last["content"], list):
        return [*blocks[:-1], {**last, "content": _with_mark(last["content"], mark)}]
    return [*blocks[:-1], {**last, "cache_control": mark}]


def tool_of(function: Mapping[str, Any]) -> JsonObject:
    described = {"description": function["description"]} if function.get("description") else {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    strict = {"strict": True} if function.get("strict") else {}
    return {"type": "custom", "name": function["name"], **described, "input_schema": schema, **strict}
