"""Conversion of messages to Anthropic's format: turns that consist of content blocks.

A turn is one entry of Anthropic's message list. Consecutive messages of the user and of tools become one turn. A
request reuses the encoded turns of the previous request, so that each step encodes only its new messages.

Some responses do not fit into the format of an assistant message: a response with a hosted tool (a tool that Anthropic
runs itself), or a response with reasoning between other blocks. The assistant message then also stores all blocks in
their order, in its key `content_blocks`. If the text or the calls of the message differ from these blocks, acorn sends
the text and the calls of the message, since the user may have edited the message.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from typing import Any

from pydantic_core import from_json, to_json

from acorn.models.lanes.lane import BLOCKS_KEY, cache_marks, drop_trailing_reasoning, part_payload
from acorn.models.request import AdapterCache, ModelRequest, portable_id
from acorn.types import Content, JsonObject, Message, is_json_list

_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")
_REASONING_TYPES = frozenset(("thinking", "redacted_thinking"))
_MESSAGE_TYPES = _REASONING_TYPES | {"text", "tool_use"}
"""The block types that an assistant message can represent without `content_blocks`."""


class _EncodedTurns:
    """A cache of the JSON text of the turns of one conversation.

    Each request adds its new turns.
    """

    def __init__(self) -> None:
        self._count = 0
        self._marks: Mapping[int, JsonObject] = {}
        self._text = bytearray()
        self._turns: list[tuple[int, int]] = []
        """A list with the index of the first message and the position in the text for each turn."""

    def copy(self) -> _EncodedTurns:
        other = _EncodedTurns()
        other._count, other._marks = self._count, self._marks
        other._text, other._turns = self._text.copy(), self._turns.copy()
        return other

    def write(self, messages: list[Message], count: int, marks: Mapping[int, JsonObject]) -> bytes:
        """Return the JSON text of the first `count` messages, and encode only the messages that are new.

        The messages that were passed to an earlier call must not have changed. `marks` maps message indexes to cache
        marks.
        """
        changed = [at for at in self._marks.keys() | marks.keys() if self._marks.get(at) != marks.get(at)]
        unchanged = min([self._count if self._count <= count else 0, *changed])
        turns, text = self._turns, self._text
        while turns and turns[-1][0] >= unchanged:
            del text[turns.pop()[1] :]
        start = 0
        if turns:  # A new message may belong to the last turn.
            start, offset = turns.pop()
            del text[offset:]
        for at, turn in _encode_turns(messages, start, count, marks):
            turns.append((at, len(text)))
            text += b",%s" % turn if text else turn
        self._count, self._marks = count, marks
        return bytes(text)


def encode_messages(request: ModelRequest) -> tuple[bytes, bytes]:
    """Return the JSON text of the system prompt and the JSON text of all other messages.

    The first text is empty if the request has no system prompt.
    """
    sent_part, marks = request.sent, cache_marks(request) if request.cache_points else {}
    is_shared = sent_part is not None and not sent_part.has_extra_messages
    messages = sent_part.sent.messages if sent_part is not None and is_shared else request.messages
    first, count = 0, request.message_count
    system: list[JsonObject] = []
    while first < count and messages[first]["role"] == "system":
        system += _mark_last(_content_blocks(messages[first]["content"]), marks.get(first))
        first += 1
    if sent_part is not None and is_shared:
        with sent_part.sent.lock:
            cache: AdapterCache = sent_part.sent.adapter_caches.setdefault("anthropic", _EncodedTurns())
            text = cache.write(messages, count, marks)
    else:
        text = _EncodedTurns().write(messages, count, marks)
    return to_json(system) if system else b"", text


def _encode_turns(
    messages: list[Message], start: int, count: int, marks: Mapping[int, JsonObject]
) -> list[tuple[int, bytes]]:
    """Return the turns from message `start` on.

    Each item is the index of the first message and the JSON text. The turns alternate between the user and the model.
    """
    if not start:  # The system prompt is sent separately.
        while start < count and messages[start]["role"] == "system":
            start += 1
    turns: list[tuple[int, bytes]] = []
    role, turn_start, blocks = "", start, list[JsonObject]()
    for at in range(start, count):
        message = messages[at]
        # A system message within the conversation becomes a part of the user's turn.
        speaker = "assistant" if message["role"] == "assistant" else "user"
        if speaker != role:
            if blocks:
                turns.append((turn_start, to_json({"role": role, "content": blocks})))
            role, turn_start, blocks = speaker, at, []
        blocks += _mark_last(_message_blocks(message), marks.get(at))
    if blocks:
        turns.append((turn_start, to_json({"role": role, "content": blocks})))
    return turns


def _message_blocks(message: Mapping[str, Any]) -> list[JsonObject]:
    content = message.get("content")
    if message["role"] == "tool":
        output = content if isinstance(content, str) else _content_blocks(content)
        return [{"type": "tool_result", "tool_use_id": portable_id(message["tool_call_id"]), "content": output}]
    blocks = _content_blocks(content)
    if message["role"] == "assistant":
        uses = [_tool_use(call) for call in message.get("tool_calls") or ()]
        if message.get(BLOCKS_KEY):
            blocks = blocks_to_send(message, blocks, uses)
        else:
            blocks = [*(message.get("thinking_blocks") or ()), *blocks, *uses]
        blocks = [
            {**block, "id": portable_id(block["id"])} if block["type"] == "tool_use" else block for block in blocks
        ]
    return blocks


def _tool_use(call: JsonObject) -> JsonObject:
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": from_json(function["arguments"])}


def _content_blocks(content: Content | None) -> list[JsonObject]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    # Anthropic rejects empty text blocks.
    return [to_block(part) for part in content if part.get("type") != "text" or str(part.get("text") or "").strip()]


def to_block(part: JsonObject) -> JsonObject:
    """Convert one part of a message, such as an image, to a content block in Anthropic's format."""
    kind = part.get("type")
    mark = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
    if kind == "image_url":
        return {"type": "image", "source": _source(part_payload(part, "url")["url"]), **mark}
    if kind == "file":
        file = part_payload(part, "file_data", "file_url", "file_id")
        name = file.get("filename")
        if url := file.get("file_data") or file.get("file_url"):
            return {"type": "document", "source": _source(url), **({"title": name} if name else {}), **mark}
    return dict(part)


def _source(url: str) -> JsonObject:
    head, comma, data = url.partition(",") if url.startswith("data:") else ("", "", "")
    media_type, is_base64 = head.removeprefix("data:").removesuffix(";base64"), head.endswith(";base64")
    if not comma or not is_base64:
        return {"type": "url", "url": url}
    if media_type.startswith("text/") or media_type in _TEXT_TYPES:  # Anthropic accepts only PDF and plain text.
        return {"type": "text", "media_type": "text/plain", "data": b64decode(data).decode("utf-8", "replace")}
    return {"type": "base64", "media_type": media_type, "data": data}


def _mark_last(blocks: list[JsonObject], mark: JsonObject | None) -> list[JsonObject]:
    """Return the blocks with a cache mark on the last block.

    Anthropic caches a request up to this mark. If the last block is a tool result that consists of blocks, the mark is
    on the last block of the tool result.
    """
    if not blocks or not mark:
        return blocks
    last = blocks[-1]
    if last["type"] == "tool_result" and is_json_list(content := last["content"]):
        return [*blocks[:-1], {**last, "content": _mark_last(content, mark)}]
    return [*blocks[:-1], {**last, "cache_control": mark}]


def tool_definition(function: JsonObject) -> JsonObject:
    """Convert a function definition in OpenAI's format to a tool definition in Anthropic's format."""
    description = {"description": function["description"]} if function.get("description") else {}
    schema: JsonObject = function.get("parameters") or {"type": "object", "properties": {}}
    strict = {"strict": True} if function.get("strict") else {}
    return {"type": "custom", "name": function["name"], **description, "input_schema": schema, **strict}


# Responses with hosted tools


def blocks_to_store(blocks: Sequence[JsonObject]) -> list[JsonObject] | None:
    """Return the blocks of a response for the message key `content_blocks`.

    Return None if an assistant message can represent the response without this key.
    """
    kinds = [block["type"] for block in blocks]
    # An assistant message can represent reasoning only at the start of a response.
    after_reasoning = dropwhile(_REASONING_TYPES.__contains__, kinds)
    has_citations = any(block.get("citations") for block in blocks)
    if _MESSAGE_TYPES.issuperset(kinds) and _REASONING_TYPES.isdisjoint(after_reasoning) and not has_citations:
        return None
    return [{"type": "tool_use", "id": block.get("id")} if block["type"] == "tool_use" else block for block in blocks]


def blocks_to_send(
    message: Mapping[str, Any], text_blocks: list[JsonObject], uses: list[JsonObject]
) -> list[JsonObject]:
    """Return the content blocks for an assistant message that has the key `content_blocks`.

    The result contains the stored blocks, but with the current text and the current tool calls of the message, because
    the user may have edited them.
    """
    stored: list[JsonObject] = message[BLOCKS_KEY]
    stored_text = "".join([block["text"] for block in stored if block["type"] == "text"])
    is_same_text = stored_text == (message.get("content") or "")
    calls = {use["id"]: use for use in uses}
    with_result = {block.get("tool_use_id") for block in stored}
    blocks: list[JsonObject] = []
    for block in stored:
        kind = block["type"]
        if kind == "text":
            if is_same_text and block["text"].strip():
                blocks.append(block)
            elif not is_same_text:
                blocks, text_blocks = [*blocks, *text_blocks], []
        elif kind == "tool_use":
            blocks += [calls.pop(block["id"])] if block["id"] in calls else []
        elif not kind.endswith("_tool_use") or block.get("id") in with_result:
            blocks.append(block)  # Anthropic would reject a hosted tool call without a result.
    blocks += [*([] if is_same_text else text_blocks), *calls.values()]
    # If the message is sent through LiteLLM, its calls follow the blocks.
    return blocks if message.get("tool_calls") else drop_trailing_reasoning(blocks)


def guess_blocks(
    reasoning: Sequence[JsonObject], uses: Sequence[JsonObject], results: Sequence[JsonObject], text: str
) -> list[JsonObject]:
    """Return the blocks of a response in their most likely order.

    The real order is unknown because LiteLLM returns the reasoning, the tool uses and the results in separate lists.
    """
    result_by_use = {result.get("tool_use_id"): result for result in results}
    blocks: list[JsonObject] = []
    remaining = list(reasoning)
    for use in uses:
        blocks += remaining[:1]
        del remaining[:1]
        blocks += [use, result_by_use[use["id"]]] if use["id"] in result_by_use else [use]
    return [*blocks, *remaining, *([{"type": "text", "text": text}] if text else [])]
