"""The native lane for OpenAI's Chat Completions API and for every server that implements it.

acorn's messages already have this format. A request therefore consists of the settings and the JSON text of the
messages that the agent loop has already encoded.
"""

from __future__ import annotations

from collections.abc import Collection

from pydantic_core import to_json

from acorn.models.lanes.lane import (
    ADDRESS_KEYS,
    COMMON_KEYS,
    REASONING_KEYS,
    StreamReader,
    UnsupportedContentError,
    cache_marks,
    is_openai_tool,
    supports_keys,
    with_cache_mark,
)
from acorn.models.lanes.native import NativeModel
from acorn.models.lanes.openai_shared import (
    SettingsCache,
    is_reasoning_model,
    openai_address,
    raise_if_failed,
    sampling_settings,
    supports_effort,
    token_counts,
)
from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.models.providers import TokenCounts, custom_address
from acorn.models.request import ModelRequest, unsupported_url, with_portable_ids
from acorn.types import JsonObject, JsonValue, Message, Usage, is_json_object

_SETTINGS = (
    *("top_p", "top_k", "stop", "seed", "user", "store"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "parallel_tool_calls", "reasoning_effort", "tool_choice"),
)
_SUPPORTED_KEYS = frozenset((*COMMON_KEYS, *ADDRESS_KEYS, *_SETTINGS, "extra_body", "organization"))
_REASONING_KEYS = frozenset(REASONING_KEYS)
STOP_REASONS = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def supports(config: JsonObject) -> bool:
    """Return True if this lane supports all settings in a model dict.

    Otherwise acorn uses LiteLLM.
    """
    name = str(config.get("model") or config.get("id")).removeprefix("openai/")
    if not supports_keys(config, _SUPPORTED_KEYS) or name.startswith("responses/"):
        return False
    # For other models, LiteLLM decides whether it can send `reasoning_effort`.
    return "reasoning_effort" not in config or supports_effort(name)


def create_model(config: JsonObject) -> NativeModel:
    return NativeModel(config, OpenAIChat(config))


class OpenAIChat:
    """The lane for OpenAI's Chat Completions API: it encodes requests and decodes responses."""

    provider = "openai"

    def __init__(self, config: JsonObject) -> None:
        self.name = str(config.get("model") or config["id"]).removeprefix("openai/")
        self.thinks = config.get("reasoning_effort") not in (None, "", "none")
        self._config = config
        self._settings = {key: config[key] for key in _SETTINGS if config.get(key) is not None}
        self._settings |= config.get("extra_body") or {}
        uses_new_key = is_reasoning_model(self.name) or "max_completion_tokens" in config
        self._max_tokens_key = "max_completion_tokens" if uses_new_key else "max_tokens"
        self._settings_cache = SettingsCache(self._request_settings)

    def can_force_tool(self) -> bool:
        return True

    def takes_tool(self, tool: JsonObject) -> bool:
        # OpenAI runs hosted tools only in its Responses API. Another server may run them in chat completions.
        return is_openai_tool(tool) and custom_address(self.provider, self._config) is not None

    def address(self) -> tuple[str, dict[str, str]]:
        return openai_address(self._config, "chat/completions")

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        for medium in request.media:
            if medium.url is not None and medium.kind in ("audio", "file"):
                raise UnsupportedContentError(unsupported_url(medium))
        before = self._settings_cache.get(request, left_out, is_stream)
        if request.tools:
            tools = request.tools_json() if request.tools_json else to_json(request.tools)
            before = b'%s,"tools":%s' % (before, tools)
        if request.sent is not None and not request.cache_points and not request.sent.has_reasoning(_REASONING_KEYS):
            return request.with_messages(before + b',"messages":', b"}")
        is_openai = custom_address(self.provider, self._config) is None
        return b'%s,"messages":%s}' % (before, _messages_json(request, is_openai=is_openai))

    def _request_settings(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> JsonObject:
        settings = {"model": self.name, **sampling_settings(request, left_out, self.name, self._max_tokens_key)}
        settings |= self._settings
        if request.forced_tool and "tool_choice" not in left_out:
            settings["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        if is_stream:
            settings |= {"stream": True, "stream_options": {"include_usage": True}}
        return settings

    def read(self, response: JsonObject) -> tuple[ModelResponse, TokenCounts | None]:
        raise_if_failed(response)
        choice = response["choices"][0]
        message = choice["message"]
        usage = response.get("usage")
        model_response = ModelResponse(
            content=text_of(message.get("content")),
            tool_calls=[_raw_call(call) for call in message.get("tool_calls") or ()],
            stop_reason=STOP_REASONS.get(choice.get("finish_reason"), "stop"),
            usage=usage_of(usage),
            model=response.get("model") or "",
            reasoning=text_of(message.get("reasoning_content") or message.get("reasoning")) or None,
            refusal=message.get("refusal"),
        )
        return model_response, token_counts(model_response.usage) if usage else None

    def stream_reader(self) -> StreamReader:
        return _ChatReader()


def _messages_json(request: ModelRequest, *, is_openai: bool) -> bytes:
    """Return the JSON text of the messages with cache marks and without the reasoning of other providers.

    Requests that need neither change use the JSON text that the agent loop has already created.
    """
    messages = [_without_reasoning(message) for message in request.messages]
    if is_openai:  # Another server may expect the call ids that it created.
        messages = list(map(with_portable_ids, messages))
    for at, mark in cache_marks(request).items():
        messages[at] = with_cache_mark(messages[at], mark)
    return to_json(messages)


def _without_reasoning(message: Message) -> JsonObject:
    """Return a copy of a message without the keys that contain reasoning, and without a `content` of None."""
    return {
        key: value
        for key, value in message.items()
        if key not in REASONING_KEYS and (value is not None or key != "content")
    }


class _ChatReader:
    """A decoder that converts the chunks of one streamed chat completion to deltas."""

    def __init__(self) -> None:
        self.called_names = ""
        self.stop_reason = ""
        self.used: TokenCounts | None = None

    def read(self, event: JsonObject) -> Delta | None:
        # A long response has thousands of chunks, so this method looks up each key only once.
        if event.get("error"):
            raise_if_failed(event)
        content = reasoning = ""
        refusal = reason = None
        calls: tuple[CallDelta, ...] = ()
        if choices := event.get("choices"):
            choice = choices[0]
            delta: JsonObject = choice.get("delta") or {}
            if raw_calls := delta.get("tool_calls"):
                calls = tuple([_call_delta(call, at) for at, call in enumerate(raw_calls)])
                self.called_names += "".join([call.name for call in calls if call.name])
            if (raw_content := delta.get("content")) is not None:
                content = text_of(raw_content)
            if raw_reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
                reasoning = text_of(raw_reasoning)
            refusal = delta.get("refusal") or None
            if reason := choice.get("finish_reason"):
                self.stop_reason = reason = STOP_REASONS.get(reason, "stop")
        usage = None
        if raw_usage := event.get("usage"):
            usage = usage_of(raw_usage)
            self.used = token_counts(usage)
        elif not (calls or content or reasoning or reason or refusal):
            return None
        return Delta(content, reasoning, calls, reason or None, usage, None, event.get("model") or "", refusal)

    def finish(self) -> Delta | None:
        if self.stop_reason:
            return None
        self.stop_reason = "tool_calls" if self.called_names else "stop"
        return Delta(stop_reason=self.stop_reason)


# Parts of a response


def text_of(content: JsonValue) -> str:
    """Return the text in a `content` value, which is a string or a list of parts.

    Return "" if the value is None.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join([part.get("text") or "" for part in content if is_json_object(part)])
    if content is not None:
        raise TypeError(f"The `content` of a response must be a string or a list of parts, but it is {content!r:.100}.")
    return ""


def _raw_call(call: JsonObject) -> RawCall:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else to_json(arguments or {}).decode()
    return RawCall(call.get("id"), function.get("name") or "", text)


def _call_delta(call: JsonObject, at: int) -> CallDelta:
    function: JsonObject = call.get("function") or {}
    index = call.get("index")
    text = function.get("arguments") or ""
    if not isinstance(text, str):
        text = to_json(text).decode()
    return CallDelta(at if index is None else index, call.get("id"), function.get("name"), text)


def usage_of(raw: JsonObject | None) -> Usage:
    if not raw:
        return Usage(requests=1)
    prompt_details: JsonObject = raw.get("prompt_tokens_details") or {}
    output_details: JsonObject = raw.get("completion_tokens_details") or {}
    return Usage(
        int(raw.get("prompt_tokens") or 0),
        int(raw.get("completion_tokens") or 0),
        int(prompt_details.get("cached_tokens") or 0),
        int(output_details.get("reasoning_tokens") or 0),
        1,
        int(prompt_details.get("cache_write_tokens") or 0),
    )
