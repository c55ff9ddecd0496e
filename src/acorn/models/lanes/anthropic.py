"""The lane for Anthropic's messages: settings, addresses and answers; `anthropic_turns.py` writes the conversation."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from acorn.models.lanes.anthropic_messages import tool_of, written
from acorn.models.lanes.lane import (
    ADDRESS,
    BLOCKS,
    OURS,
    PRICES,
    ConnectionLostError,
    ProviderError,
    StreamReader,
    is_anthropics,
    kept_blocks,
    knows_keys,
    with_own,
)
from acorn.models.lanes.native import NativeModel
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse, RawCall
from acorn.models.providers import Tokens, check_key, key_of, prices_of
from acorn.models.request_body import no_kind
from acorn.types import JsonObject, Usage

_ADDRESS = "https://api.anthropic.com"
_VERSION = "2023-06-01"
_SETTINGS = ("top_p", "top_k", "thinking")
_KNOWN = frozenset(
    (
        *(*OURS, *PRICES, *ADDRESS, *_SETTINGS),
        *("stop", "user", "parallel_tool_calls", "extra_body"),
    )
)
_STOPS = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_STATUS = {
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


def knows(config: Mapping[str, Any]) -> bool:
    """Whether everything in a model dict is something that this lane knows."""
    return knows_keys(config, _KNOWN)


def make(config: Mapping[str, Any]) -> NativeModel:
    return NativeModel(config, Anthropic(config))


class Anthropic:
    """How messages are written and read."""

    provider = "anthropic"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name = str(config.get("model") or config["id"]).removeprefix("anthropic/")
        thinking = config.get("thinking")
        self.thinks = bool(thinking) and not (isinstance(thinking, dict) and thinking.get("type") == "disabled")
        self._config = config
        self._settings = {key: config[key] for key in _SETTINGS if config.get(key) is not None}
        self._settings |= config.get("extra_body") or {}
        if stop := config.get("stop"):
            self._settings["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
        if user := config.get("user"):
            self._settings["metadata"] = {"user_id": user}
        self._tools: tuple[object, bytes] = (None, b"")

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        return is_anthropics(tool)

    def can_force_tool(self) -> bool:
        return not self.thinks  # it takes no forced choice while it thinks

    def address(self) -> tuple[str, dict[str, str]]:
        config = self._config
        names = ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL")
        known = (config.get("base_url"), config.get("api_base"), *map(os.environ.get, names))
        base = str(next(filter(None, known), _ADDRESS)).rstrip("/")
        url = base if base.endswith("/v1/messages") else f"{base.removesuffix('/v1')}/v1/messages"
        headers = {"Content-Type": "application/json", "anthropic-version": _VERSION}
        if key := key_of(config, "ANTHROPIC_API_KEY"):
            headers["x-api-key"] = key
        elif token := key_of({}, "ANTHROPIC_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        url, headers = with_own(url, headers, config)
        if not any(name.lower() in ("x-api-key", "authorization") for name in headers):
            check_key(str(config.get("model") or config.get("id")), self.provider, config)
        return url, headers

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        for medium in request.media:
            if medium.kind == "audio":
                raise ConnectionLostError(no_kind(medium))
        head = to_json(self._settings_of(request, left_out, is_stream))[:-1]
        system, messages = written(request)
        parts = [head, b'"messages":[%s]' % messages]
        if system:
            parts.append(b'"system":' + system)
        if request.tools:
            parts.append(b'"tools":' + self._tools_of(request))
        return b",".join(parts) + b"}"

    def _settings_of(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> JsonObject:
        length = request.max_tokens
        if "max_tokens" in left_out and "max_tokens" not in request.declared:  # something must be said
            known = prices_of(self.provider, self.name)
            length = known.longest or length if known else length
        made: JsonObject = {"model": self.name, "max_tokens": length}
        if "temperature" in request.declared or "temperature" not in left_out:
            made["temperature"] = request.temperature
        if request.is_auto_cached and "cache_control" not in left_out:
            made["cache_control"] = {"type": "ephemeral"}
        made |= self._settings
        choice: JsonObject = {}
        if request.forced_tool and "tool_choice" not in left_out:
            choice = {"type": "tool", "name": request.forced_tool}
        if self._config.get("parallel_tool_calls") is False and request.tools:
            choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
        if choice:
            made["tool_choice"] = choice
        if is_stream:
            made["stream"] = True
        return made

    def _tools_of(self, request: ModelRequest) -> bytes:
        known, written = self._tools
        if known is not request.tools:
            written = to_json([tool_of(each["function"]) if "function" in each else each for each in request.tools])
            self._tools = (request.tools, written)
        return written

    def read(self, answer: Any) -> tuple[ModelResponse, Tokens | None]:
        if answer.get("type") == "error" or answer.get("error"):
            raise provider_error(answer.get("error"))
        blocks, reason = answer["content"], answer.get("stop_reason")
        if not blocks and not reason:
            raise ValueError("there is nothing in it")
        texts: list[str] = []
        thoughts: list[JsonObject] = []
        calls: list[RawCall] = []
        for block in blocks:
            kind = block["type"]
            if kind == "text":
                texts.append(block["text"])
            elif kind == "tool_use":
                calls.append(RawCall(block.get("id"), block["name"], to_json(block.get("input") or {}).decode()))
            elif kind in ("thinking", "redacted_thinking"):
                thoughts.append(block)
        usage, used = _usage(answer.get("usage") or {})
        response = ModelResponse(
            "".join(texts),
            calls,
            _STOPS.get(reason, "stop"),
            usage,
            model=answer.get("model") or "",
            reasoning="".join([block.get("thinking") or "" for block in thoughts]) or None,
            extra=_extra(blocks, thoughts),
        )
        return response, used

    def reader(self) -> StreamReader:
        return _AnthropicReader()


def _extra(blocks: list[JsonObject], thoughts: list[JsonObject]) -> JsonObject:
    """What of an answer must be sent back beside its text and its calls."""
    found: JsonObject = {"thinking_blocks": thoughts} if thoughts else {}
    kept = kept_blocks(blocks)
    return found if kept is None else {**found, BLOCKS: kept}


class _AnthropicReader:
    """Events to deltas."""

    def __init__(self) -> None:
        self.called = ""
        self.stop_reason = ""
        self.used: Tokens | None = None
        self._model = ""
        self._usage: JsonObject = {}
        self._calls: dict[int, tuple[int, JsonObject, bool]] = {}
        """By the index of its block: which call it is, what the block began with, and whether more of it came."""
        self._thoughts: dict[int, JsonObject] = {}
        self._others: dict[int, JsonObject] = {}
        """Blocks of text, and of what the provider has run."""
        self._pieces: dict[int, list[str]] = {}
        """What has come of their text, or of what they were called with."""

    def read(self, event: Any) -> Delta | None:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._read_piece(event.get("index", 0), event["delta"])
        if kind == "content_block_start":
            return self._begin(event.get("index", 0), event["content_block"])
        if kind == "content_block_stop":
            return self._end_block(event.get("index", 0))
        if kind == "message_start":
            message = event["message"]
            self._usage.update(message.get("usage") or {})
            self._model = message.get("model") or ""
            return None  # nothing of the answer yet
        if kind == "message_delta":
            return self._end_message(event)
        if kind == "error":
            raise provider_error(event.get("error"))
        return None

    def _begin(self, index: int, block: Any) -> Delta | None:
        kind = block["type"]
        if kind == "tool_use":
            number = len(self._calls)
            self._calls[index] = (number, block, False)
            self.called += block["name"]
            return Delta(calls=(CallDelta(number, block.get("id"), block["name"], ""),))
        if kind in ("thinking", "redacted_thinking"):
            self._thoughts[index] = dict(block)
            return Delta(reasoning=block["thinking"]) if block.get("thinking") else None
        self._others[index], self._pieces[index] = dict(block), []
        return Delta(content=block["text"]) if kind == "text" and block.get("text") else None

    def _read_piece(self, index: int, piece: Any) -> Delta | None:
        kind = piece["type"]
        if kind == "input_json_delta":
            if index not in self._calls:  # of a tool that the provider runs itself
                self._pieces.setdefault(index, []).append(piece["partial_json"])
                return None
            number, block, _ = self._calls[index]
            self._calls[index] = (number, block, True)
            return Delta(calls=(CallDelta(number, arguments=piece["partial_json"]),))
        if kind == "text_delta":
            self._pieces.setdefault(index, []).append(piece["text"])
            return Delta(content=piece["text"])
        if kind == "thinking_delta":
            thought = self._thoughts.setdefault(index, {"type": "thinking", "thinking": ""})
            thought["thinking"] = (thought.get("thinking") or "") + piece["thinking"]
            return Delta(reasoning=piece["thinking"])
        if kind == "signature_delta":
            thought = self._thoughts.setdefault(index, {"type": "thinking", "thinking": ""})
            thought["signature"] = (thought.get("signature") or "") + piece["signature"]
        elif kind == "citations_delta" and index in self._others:
            block = self._others[index]
            block["citations"] = [*(block.get("citations") or ()), piece["citation"]]
        return None

    def _end_block(self, index: Any) -> Delta | None:
        known = self._calls.get(index)
        if known is None or known[2]:
            return None
        number, block, _ = known  # it came in one piece, or without arguments
        return Delta(calls=(CallDelta(number, arguments=to_json(block.get("input") or {}).decode()),))

    def _end_message(self, event: Any) -> Delta:
        delta = event.get("delta") or {}
        self._usage.update({name: value for name, value in (event.get("usage") or {}).items() if value is not None})
        usage, self.used = _usage(self._usage)
        found = Delta(usage=usage, model=self._model)
        if reason := delta.get("stop_reason"):
            self.stop_reason = found.stop_reason = _STOPS.get(reason, "stop")
        return found

    def end(self) -> Delta | None:
        # One that was broken off has no signature, and is refused.
        kept = {at: each for at, each in self._thoughts.items() if each.get("signature") or "data" in each}
        extra = _extra(self._blocks(kept), list(kept.values()))
        return Delta(extra=extra) if extra else None

    def _blocks(self, thoughts: dict[int, JsonObject]) -> list[JsonObject]:
        """All of them, as they would have come in one piece."""
        found = thoughts | {index: block for index, (_, block, _) in self._calls.items()}
        for index, block in self._others.items():
            came = "".join(self._pieces[index])
            if block["type"] == "text":
                found[index] = {**block, "text": (block.get("text") or "") + came}
            else:
                found[index] = {**block, "input": json_object(came)} if came else block
        return [found[index] for index in sorted(found)]


def json_object(text: str) -> JsonObject:
    """What a tool of the provider's was called with, which may have been broken off."""
    try:
        found = from_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def provider_error(error: Any) -> ProviderError:
    held = error if isinstance(error, dict) else {"message": error}
    words = str(held.get("message") or "it failed").rstrip(".")
    return ProviderError(f"{words}.", _STATUS.get(str(held.get("type"))))


def _usage(raw: Mapping[str, Any]) -> tuple[Usage, Tokens]:
    read, written = int(raw.get("cache_read_input_tokens") or 0), int(raw.get("cache_creation_input_tokens") or 0)
    whole, made = int(raw.get("input_tokens") or 0) + read + written, int(raw.get("output_tokens") or 0)
    hour = (raw.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
    return Usage(whole, made, read, 0, 1, written), Tokens(whole, made, read, written - hour, hour)
