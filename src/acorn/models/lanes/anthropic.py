"""The native lane for Anthropic's Messages API: settings, address and responses.

`anthropic_messages.py` converts the messages of a request.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from pydantic_core import from_json, to_json

from acorn.models.lanes.anthropic_messages import blocks_to_store, encode_messages, tool_definition
from acorn.models.lanes.lane import (
    ADDRESS_KEYS,
    BLOCKS_KEY,
    COMMON_KEYS,
    ProviderError,
    StreamReader,
    UnsupportedContentError,
    apply_user_headers,
    is_anthropic_tool,
    supports_keys,
)
from acorn.models.lanes.native import NativeModel
from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.models.providers import TokenCounts, check_key, find_api_key, prices_of
from acorn.models.request import ModelRequest, unsupported_kind
from acorn.types import JsonObject, JsonValue, Usage

_ADDRESS = "https://api.anthropic.com"
_VERSION = "2023-06-01"
"""The version of the protocol, sent in the header `anthropic-version`."""
_SETTINGS = ("top_p", "top_k", "thinking")
_SUPPORTED_KEYS = frozenset(
    (
        *(*COMMON_KEYS, *ADDRESS_KEYS, *_SETTINGS),
        *("stop", "user", "parallel_tool_calls", "extra_body"),
    )
)
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


def supports(config: JsonObject) -> bool:
    """Return True if this lane supports all settings in a model dict.

    Otherwise acorn uses LiteLLM.
    """
    return supports_keys(config, _SUPPORTED_KEYS)


def create_model(config: JsonObject) -> NativeModel:
    return NativeModel(config, Anthropic(config))


class Anthropic:
    """The lane for Anthropic's Messages API: it encodes requests and decodes responses."""

    provider = "anthropic"

    def __init__(self, config: JsonObject) -> None:
        self.name = str(config.get("model") or config["id"]).removeprefix("anthropic/")
        thinking: JsonValue = config.get("thinking")
        self.thinks = bool(thinking) and not (isinstance(thinking, dict) and thinking.get("type") == "disabled")
        self._config = config
        self._settings = {key: config[key] for key in _SETTINGS if config.get(key) is not None}
        self._settings |= config.get("extra_body") or {}
        if stop := config.get("stop"):
            self._settings["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
        if user := config.get("user"):
            self._settings["metadata"] = {"user_id": user}
        self._tools: tuple[object, bytes] = (None, b"")
        """The tools of the last request and their JSON text, which the next request with the same tools uses again."""

    def takes_tool(self, tool: JsonObject) -> bool:
        return is_anthropic_tool(tool)

    def can_force_tool(self) -> bool:
        return not self.thinks  # Anthropic rejects a forced tool if reasoning is on.

    def address(self) -> tuple[str, dict[str, str]]:
        config = self._config
        variables = ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL")
        candidates = (config.get("base_url"), config.get("api_base"), *map(os.environ.get, variables))
        base = str(next(filter(None, candidates), _ADDRESS)).rstrip("/")
        url = base if base.endswith("/v1/messages") else f"{base.removesuffix('/v1')}/v1/messages"
        headers = {"Content-Type": "application/json", "anthropic-version": _VERSION}
        if key := find_api_key(config, "ANTHROPIC_API_KEY"):
            headers["x-api-key"] = key
        elif token := find_api_key({}, "ANTHROPIC_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        url, headers = apply_user_headers(url, headers, config)
        if not any(name.lower() in ("x-api-key", "authorization") for name in headers):
            check_key(str(config.get("model") or config.get("id")), self.provider, config)
        return url, headers

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        for medium in request.media:
            if medium.kind == "audio":
                raise UnsupportedContentError(unsupported_kind(medium))
        settings = to_json(self._request_settings(request, left_out, is_stream))[:-1]
        system, messages = encode_messages(request)
        parts = [settings, b'"messages":[%s]' % messages]
        if system:
            parts.append(b'"system":' + system)
        if request.tools:
            parts.append(b'"tools":' + self._tools_json(request))
        return b",".join(parts) + b"}"

    def _request_settings(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> JsonObject:
        max_tokens = request.max_tokens
        if "max_tokens" in left_out and "max_tokens" not in request.declared:  # Anthropic requires `max_tokens`.
            prices = prices_of(self.provider, self.name)
            max_tokens = prices.max_output or max_tokens if prices else max_tokens
        settings: JsonObject = {"model": self.name, "max_tokens": max_tokens}
        if "temperature" in request.declared or "temperature" not in left_out:
            settings["temperature"] = request.temperature
        if request.is_auto_cached and "cache_control" not in left_out:
            settings["cache_control"] = {"type": "ephemeral"}
        settings |= self._settings
        choice: JsonObject = {}
        if request.forced_tool and "tool_choice" not in left_out:
            choice = {"type": "tool", "name": request.forced_tool}
        if self._config.get("parallel_tool_calls") is False and request.tools:
            choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
        if choice:
            settings["tool_choice"] = choice
        if is_stream:
            settings["stream"] = True
        return settings

    def _tools_json(self, request: ModelRequest) -> bytes:
        tools, text = self._tools
        if tools is not request.tools:
            text = to_json(
                [tool_definition(tool["function"]) if "function" in tool else tool for tool in request.tools]
            )
            self._tools = (request.tools, text)
        return text

    def read(self, response: JsonObject) -> tuple[ModelResponse, TokenCounts | None]:
        if response.get("type") == "error" or response.get("error"):
            raise provider_error(response.get("error"))
        blocks, reason = response["content"], response.get("stop_reason")
        if not blocks and not reason:
            raise ValueError("The response contains neither content nor a stop reason.")
        texts: list[str] = []
        reasoning: list[JsonObject] = []
        calls: list[RawCall] = []
        for block in blocks:
            kind = block["type"]
            if kind == "text":
                texts.append(block["text"])
            elif kind == "tool_use":
                calls.append(RawCall(block.get("id"), block["name"], to_json(block.get("input") or {}).decode()))
            elif kind in ("thinking", "redacted_thinking"):
                reasoning.append(block)
        usage, used = _usage(response.get("usage") or {})
        model_response = ModelResponse(
            "".join(texts),
            calls,
            _STOP_REASONS.get(reason or "", "stop"),
            usage,
            model=response.get("model") or "",
            reasoning="".join([block.get("thinking") or "" for block in reasoning]) or None,
            extra=_extra(blocks, reasoning),
        )
        return model_response, used

    def stream_reader(self) -> StreamReader:
        return _AnthropicReader()


def _extra(blocks: list[JsonObject], reasoning: list[JsonObject]) -> JsonObject:
    """Return the additional keys of an assistant message: reasoning blocks and the blocks of hosted tools.

    Anthropic requires these blocks in later requests. A hosted tool is a tool that the provider runs itself.
    """
    extra: JsonObject = {"thinking_blocks": reasoning} if reasoning else {}
    stored_blocks = blocks_to_store(blocks)
    return extra if stored_blocks is None else {**extra, BLOCKS_KEY: stored_blocks}


class _AnthropicReader:
    """A decoder that converts the events of one streamed response of Anthropic to deltas."""

    def __init__(self) -> None:
        self.called_names = ""
        self.stop_reason = ""
        self.used: TokenCounts | None = None
        self._model = ""
        self._usage: JsonObject = {}
        self._calls: dict[int, tuple[int, JsonObject, bool]] = {}
        """A dict that maps a block index to the call number, the start of the block, and whether arguments followed."""
        self._reasoning: dict[int, JsonObject] = {}
        """A dict that maps a block index to a reasoning block."""
        self._others: dict[int, JsonObject] = {}
        """A dict that maps a block index to a text block or a hosted tool block."""
        self._fragments: dict[int, list[str]] = {}
        """A dict that maps a block index to the fragments of its text or of its hosted tool input."""

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
            return None  # After the first delta, acorn cannot retry the request. So this event returns no delta.
        if kind == "message_delta":
            return self._end_message(event)
        if kind == "error":
            raise provider_error(event.get("error"))
        return None

    def _start_block(self, index: int, block: JsonObject) -> Delta | None:
        kind = block["type"]
        if kind == "tool_use":
            number = len(self._calls)
            self._calls[index] = (number, block, False)
            self.called_names += block["name"]
            return Delta(calls=(CallDelta(number, block.get("id"), block["name"], ""),))
        if kind in ("thinking", "redacted_thinking"):
            self._reasoning[index] = dict(block)
            return Delta(reasoning=block["thinking"]) if block.get("thinking") else None
        self._others[index], self._fragments[index] = dict(block), []
        return Delta(content=block["text"]) if kind == "text" and block.get("text") else None

    def _read_fragment(self, index: int, fragment: JsonObject) -> Delta | None:
        kind = fragment["type"]
        if kind == "input_json_delta":
            if index not in self._calls:  # The fragment belongs to the input of a hosted tool.
                self._fragments.setdefault(index, []).append(fragment["partial_json"])
                return None
            number, block, _ = self._calls[index]
            self._calls[index] = (number, block, True)
            return Delta(calls=(CallDelta(number, arguments=fragment["partial_json"]),))
        if kind == "text_delta":
            self._fragments.setdefault(index, []).append(fragment["text"])
            return Delta(content=fragment["text"])
        if kind == "thinking_delta":
            reasoning = self._reasoning.setdefault(index, {"type": "thinking", "thinking": ""})
            reasoning["thinking"] = (reasoning.get("thinking") or "") + fragment["thinking"]
            return Delta(reasoning=fragment["thinking"])
        if kind == "signature_delta":
            reasoning = self._reasoning.setdefault(index, {"type": "thinking", "thinking": ""})
            reasoning["signature"] = (reasoning.get("signature") or "") + fragment["signature"]
        elif kind == "citations_delta" and index in self._others:
            block = self._others[index]
            block["citations"] = [*(block.get("citations") or ()), fragment["citation"]]
        return None

    def _end_block(self, index: int) -> Delta | None:
        call = self._calls.get(index)
        if call is None or call[2]:
            return None
        number, block, _ = call  # The start of the block contained the arguments, or the call has no arguments.
        return Delta(calls=(CallDelta(number, arguments=to_json(block.get("input") or {}).decode()),))

    def _end_message(self, event: JsonObject) -> Delta:
        changes: JsonObject = event.get("delta") or {}
        usage_fields: JsonObject = event.get("usage") or {}
        self._usage.update({name: value for name, value in usage_fields.items() if value is not None})
        usage, self.used = _usage(self._usage)
        delta = Delta(usage=usage, model=self._model)
        if reason := changes.get("stop_reason"):
            self.stop_reason = delta.stop_reason = _STOP_REASONS.get(reason, "stop")
        return delta

    def finish(self) -> Delta | None:
        # An interrupted reasoning block has no signature, and Anthropic would reject it in the next request.
        signed = {at: block for at, block in self._reasoning.items() if block.get("signature") or "data" in block}
        extra = _extra(self._all_blocks(signed), list(signed.values()))
        return Delta(extra=extra) if extra else None

    def _all_blocks(self, reasoning: dict[int, JsonObject]) -> list[JsonObject]:
        """Return a list of all content blocks, as if the response had arrived without streaming."""
        blocks = reasoning | {index: block for index, (_, block, _) in self._calls.items()}
        for index, block in self._others.items():
            text = "".join(self._fragments[index])
            if block["type"] == "text":
                blocks[index] = {**block, "text": (block.get("text") or "") + text}
            else:
                blocks[index] = {**block, "input": parse_tool_input(text)} if text else block
        return [blocks[index] for index in sorted(blocks)]


def parse_tool_input(text: str) -> JsonObject:
    """Return the input of a hosted tool as a dict, or {} if the JSON text is incomplete or is not an object."""
    try:
        value: JsonValue = from_json(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def provider_error(error: JsonValue) -> ProviderError:
    details = error if isinstance(error, dict) else {"message": error}
    message = str(details.get("message") or "The provider did not report a reason").rstrip(".")
    return ProviderError(f"{message}.", _STATUSES.get(str(details.get("type"))))


def _usage(raw: JsonObject) -> tuple[Usage, TokenCounts]:
    cached, written = int(raw.get("cache_read_input_tokens") or 0), int(raw.get("cache_creation_input_tokens") or 0)
    prompt, output = int(raw.get("input_tokens") or 0) + cached + written, int(raw.get("output_tokens") or 0)
    cache_creation: JsonObject = raw.get("cache_creation") or {}
    hour = cache_creation.get("ephemeral_1h_input_tokens") or 0
    return Usage(prompt, output, cached, 0, 1, written), TokenCounts(prompt, output, cached, written - hour, hour)
