"""The native lane for Anthropic's Messages API.

The lane converts messages to turns that consist of content blocks. A turn is one entry of Anthropic's message list.
Consecutive messages of the user and of tools become one turn.

Some responses do not fit into the format of an assistant message: a response with a hosted tool (a tool that Anthropic
runs itself), or a response with reasoning between other blocks. The assistant message then also stores all blocks in
their order, in its key `content_blocks`. If the text or the calls of the message differ from these blocks, acorn sends
the text and the calls of the message, since the user may have edited the message.
"""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import compress, dropwhile
from operator import eq, itemgetter
from typing import Any

from pydantic_core import from_json, to_json

from acorn.models.lanes import lane
from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.models.providers import ListedPrice, find_api_key, listed_price
from acorn.models.request import ModelRequest, portable_id
from acorn.types import Content, JsonObject, JsonValue, Message, Usage, is_json_list

_VERSION = "2023-06-01"
"""The version of the protocol, sent in the header `anthropic-version`."""
_STOP_REASONS = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
"""A dict that maps Anthropic's stop reasons to acorn's stop reasons. Every other reason becomes "stop"."""
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""A dict that maps Anthropic's error types to HTTP statuses."""


_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")
_REASONING_TYPES = frozenset(("thinking", "redacted_thinking"))
_MESSAGE_TYPES = _REASONING_TYPES | {"text", "tool_use"}
"""The block types that an assistant message can represent without `content_blocks`."""


class Anthropic(lane.Lane):
    """The lane for Anthropic's Messages API: it encodes requests and decodes responses."""

    provider = "anthropic"
    prefix = "anthropic/"
    setting_keys = ("top_p", "top_k", "thinking")
    supported_keys = frozenset((*lane.LANE_KEYS, *setting_keys, "stop", "user", "parallel_tool_calls"))

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        self.settings |= config.get("extra_body") or {}
        if stop := config.get("stop"):
            self.settings["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
        if user := config.get("user"):
            self.settings["metadata"] = {"user_id": user}

    @property
    def thinks(self) -> bool:
        thinking: JsonValue = self.config.get("thinking")
        return bool(thinking) and not (isinstance(thinking, dict) and thinking.get("type") == "disabled")

    def takes_tool(self, tool: JsonObject) -> bool:
        return lane.is_anthropic_tool(tool)

    def can_force_tool(self) -> bool:
        return not self.thinks  # Anthropic rejects a forced tool if reasoning is on.

    def url(self, base: str) -> str:
        return base if base.endswith("/v1/messages") else f"{base.removesuffix('/v1')}/v1/messages"

    def headers(self) -> dict[str, str]:
        headers = {"anthropic-version": _VERSION}
        if key := find_api_key(self.config, "ANTHROPIC_API_KEY"):
            headers["x-api-key"] = key
        elif token := find_api_key({}, "ANTHROPIC_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        return headers

    # Requests

    def request_settings(self, request: ModelRequest, left_out: Collection[str]) -> JsonObject:
        max_tokens = request.max_tokens
        if "max_tokens" in left_out and "max_tokens" not in request.declared:  # Anthropic requires `max_tokens`.
            price = listed_price(self.provider, self.name)
            max_tokens = price.max_output or max_tokens if price else max_tokens
        settings: JsonObject = {"model": self.name, "max_tokens": max_tokens}
        if "temperature" in request.declared or "temperature" not in left_out:
            settings["temperature"] = request.temperature
        if request.is_auto_cached and "cache_control" not in left_out:
            settings["cache_control"] = {"type": "ephemeral"}
        settings |= self.settings
        choice: JsonObject = {}
        if request.forced_tool and "tool_choice" not in left_out:
            choice = {"type": "tool", "name": request.forced_tool}
        if self.config.get("parallel_tool_calls") is False and request.tools:
            choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
        if choice:
            settings["tool_choice"] = choice
        return settings

    def request_content(self, request: ModelRequest) -> tuple[bytes, list[bytes], bytes]:
        messages, turns = request.messages, request.encoded(_turn_json)
        for at, mark in lane.cache_marks(request).items():
            turns[at] = _turn_json(messages[at], mark)
        count, after = 0, b"]"
        while count < len(messages) and messages[count]["role"] == "system":
            count += 1
        if system := b",".join(turn[len(_USER) : -2] for turn in turns[:count] if turn):
            after += b',"system":[%s]' % system
        if request.tools:
            after += b',"tools":' + request.tools_json(_tool_json)
        return b',"messages":[', _merge_turns(turns[count:]), after

    # Responses

    def read(self, response: JsonObject) -> ModelResponse:
        if response.get("type") == "error" or response.get("error"):
            raise lane.provider_error(response.get("error"), _STATUSES)
        blocks, reason = response["content"], response.get("stop_reason")
        if not blocks and not reason:
            raise ValueError("The response contains neither content nor a stop reason.")
        uses = [block for block in blocks if block["type"] == "tool_use"]
        usage, cost = self.usage(response.get("usage") or {})
        return ModelResponse(
            "".join([block["text"] for block in blocks if block["type"] == "text"]),
            [RawCall(use.get("id"), use["name"], to_json(use.get("input") or {}).decode()) for use in uses],
            _STOP_REASONS.get(reason or "", "stop"),
            usage,
            cost,
            model=response.get("model") or "",
            reasoning="".join([block.get("thinking") or "" for block in blocks]) or None,
            extra=_extra(blocks),
        )

    def stream_reader(self) -> lane.StreamReader:
        return _AnthropicReader(self)

    def usage(self, raw: JsonObject) -> tuple[Usage, float | None]:
        """Return the token usage in a response, and its cost if the cost cannot be computed from the usage."""
        count = lane.token_count
        cached, written = count(raw.get("cache_read_input_tokens")), count(raw.get("cache_creation_input_tokens"))
        prompt = count(raw.get("input_tokens")) + cached + written
        usage = Usage(prompt, count(raw.get("output_tokens")), cached, 0, 1, written)
        cache_creation: JsonObject = raw.get("cache_creation") or {}
        hour_tokens, price = min(written, count(cache_creation.get("ephemeral_1h_input_tokens"))), self.price()
        return usage, price.of(usage, hour_tokens) if hour_tokens and isinstance(price, ListedPrice) else None


def _extra(blocks: list[JsonObject]) -> JsonObject:
    """Return the additional keys of an assistant message: reasoning blocks and the blocks of hosted tools.

    Anthropic requires these blocks in later requests. A hosted tool is a tool that the provider runs itself.
    """
    reasoning = [block for block in blocks if block["type"] in _REASONING_TYPES]
    extra: JsonObject = {"thinking_blocks": reasoning} if reasoning else {}
    stored_blocks = blocks_to_store(blocks)
    return extra if stored_blocks is None else {**extra, lane.BLOCKS_KEY: stored_blocks}


# Conversion of messages to turns


_USER, _ASSISTANT = b'{"role":"user","content":[', b'{"role":"assistant","content":['


def _turn_json(message: Message, mark: JsonObject | None = None) -> bytes:
    """Return the JSON text of a turn with the content blocks of one message, or b"" if the message has no blocks."""
    blocks = to_json(_mark_last(_message_blocks(message), mark))[1:-1]
    # A system message within the conversation becomes a part of the user's turn.
    return b"%s%s]}" % (_ASSISTANT if message["role"] == "assistant" else _USER, blocks) if blocks else b""


def _merge_turns(turns: Sequence[bytes]) -> list[bytes]:
    """Return the JSON texts of the turns, whose commas join consecutive messages of the same speaker to one turn."""
    texts = list(filter(None, turns))
    speakers = list(map(itemgetter(len(b'{"role":"')), texts))  # The first letter of the role.
    for at in compress(range(1, len(texts)), map(eq, speakers, speakers[1:])):
        texts[at - 1] = texts[at - 1][:-2]
        texts[at] = texts[at].partition(b"[")[2]
    return texts


def _message_blocks(message: Mapping[str, Any]) -> list[JsonObject]:
    content = message.get("content")
    if message["role"] == "tool":
        output = content if isinstance(content, str) else _content_blocks(content)
        return [{"type": "tool_result", "tool_use_id": portable_id(message["tool_call_id"]), "content": output}]
    blocks = _content_blocks(content)
    if message["role"] == "assistant":
        uses = [_tool_use(call) for call in message.get("tool_calls") or ()]
        if message.get(lane.BLOCKS_KEY):
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
        return {"type": "image", "source": _source(lane.part_payload(part, "url")["url"]), **mark}
    if kind == "file":
        file = lane.part_payload(part, "file_data", "file_url", "file_id")
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


def tool_definition(tool: JsonObject) -> JsonObject:
    """Convert a tool definition in OpenAI's format to Anthropic's format. A hosted tool remains unchanged."""
    if "function" not in tool:
        return tool
    function = tool["function"]
    description = {"description": function["description"]} if function.get("description") else {}
    schema: JsonObject = function.get("parameters") or {"type": "object", "properties": {}}
    strict = {"strict": True} if function.get("strict") else {}
    return {"type": "custom", "name": function["name"], **description, "input_schema": schema, **strict}


def _tool_json(tool: JsonObject) -> bytes:
    return to_json(tool_definition(tool))


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
    stored: list[JsonObject] = message[lane.BLOCKS_KEY]
    stored_text = "".join([block["text"] for block in stored if block["type"] == "text"])
    texts = None if stored_text == (message.get("content") or "") else text_blocks
    with_result = {block.get("tool_use_id") for block in stored}
    # Anthropic would reject an empty text, and a hosted tool call without a result.
    blocks = [
        block
        for block in lane.merge_stored(stored, texts, uses, "id")
        if (block["type"] != "text" or block["text"].strip())
        and (not block["type"].endswith("_tool_use") or block.get("id") in with_result)
    ]
    # If the message is sent through LiteLLM, its calls follow the blocks.
    return blocks if message.get("tool_calls") else lane.drop_trailing_reasoning(blocks)


# Streams


class _AnthropicReader(lane.StreamReader):
    """A decoder that converts the events of one streamed response of Anthropic to deltas."""

    def __init__(self, lane: Anthropic) -> None:
        self._lane = lane
        self._model = ""
        self._usage: JsonObject = {}
        self._blocks: dict[int, JsonObject] = {}
        """A dict that maps the index of a block to the block, without the fragments that followed its start."""
        self._fragments: defaultdict[int, list[str]] = defaultdict(list)
        """A dict that maps the index of a block to the fragments of its text, its reasoning or its tool input."""
        self._call_numbers: dict[int, int] = {}
        """A dict that maps the index of a block to the number of the tool call. A hosted tool has no number."""

    def read(self, event: JsonObject) -> Delta | None:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._read_fragment(event.get("index", 0), event["delta"])
        if kind == "content_block_start":
            return self._start_block(event.get("index", 0), event["content_block"])
        if kind == "content_block_stop":
            return self._end_block(event.get("index", 0))
        if kind == "message_start":
            message = event["message"]
            self._usage.update(message.get("usage") or {})
            self._model = message.get("model") or ""
            return None
        if kind == "message_delta":
            return self._end_message(event)
        if kind == "error":
            raise lane.provider_error(event.get("error"), _STATUSES)
        return None

    def _start_block(self, index: int, block: JsonObject) -> Delta | None:
        self._blocks[index] = dict(block)
        if block["type"] == "tool_use":
            number = self._call_numbers[index] = len(self._call_numbers)
            self.called_names += block["name"]
            return Delta(calls=(CallDelta(number, block.get("id"), block["name"], ""),))
        if block.get("thinking"):
            return Delta(reasoning=block["thinking"])
        return Delta(content=block["text"]) if block["type"] == "text" and block.get("text") else None

    def _read_fragment(self, index: int, fragment: JsonObject) -> Delta | None:
        kind = fragment["type"]
        if kind == "input_json_delta":
            self._fragments[index].append(fragment["partial_json"])
            number = self._call_numbers.get(index)
            return None if number is None else Delta(calls=(CallDelta(number, arguments=fragment["partial_json"]),))
        if kind == "text_delta":
            self._fragments[index].append(fragment["text"])
            return Delta(content=fragment["text"])
        if kind == "thinking_delta":
            self._fragments[index].append(fragment["thinking"])
            return Delta(reasoning=fragment["thinking"])
        block = self._blocks.get(index, {})
        if kind == "signature_delta":
            block["signature"] = (block.get("signature") or "") + fragment["signature"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), fragment["citation"]]
        return None

    def _end_block(self, index: int) -> Delta | None:
        if index not in self._call_numbers or self._fragments[index]:
            return None
        # The start of the block contained the arguments, or the call has no arguments.
        arguments = to_json(self._blocks[index].get("input") or {}).decode()
        return Delta(calls=(CallDelta(self._call_numbers[index], arguments=arguments),))

    def _end_message(self, event: JsonObject) -> Delta:
        changes: JsonObject = event.get("delta") or {}
        usage_fields: JsonObject = event.get("usage") or {}
        self._usage.update({name: value for name, value in usage_fields.items() if value is not None})
        usage, cost = self._lane.usage(self._usage)
        delta = Delta(usage=usage, cost=cost, model=self._model)
        if reason := changes.get("stop_reason"):
            self.stop_reason = delta.stop_reason = _STOP_REASONS.get(reason, "stop")
        return delta

    def finish(self) -> Delta | None:
        blocks = [self._complete_block(index) for index in sorted(self._blocks)]
        # An interrupted reasoning block has no signature, and Anthropic would reject it in the next request.
        extra = _extra([block for block in blocks if block["type"] != "thinking" or block.get("signature")])
        return Delta(extra=extra) if extra else None

    def _complete_block(self, index: int) -> JsonObject:
        """Return a content block, as if the response had arrived without streaming."""
        block, text = self._blocks[index], "".join(self._fragments[index])
        if block["type"] in ("text", "thinking"):
            return {**block, block["type"]: (block.get(block["type"]) or "") + text}
        is_hosted = text and index not in self._call_numbers
        return {**block, "input": parse_tool_input(text)} if is_hosted else block


def parse_tool_input(text: str) -> JsonObject:
    """Return the input of a hosted tool as a dict, or {} if the JSON text is incomplete or is not an object."""
    try:
        value: JsonValue = from_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
