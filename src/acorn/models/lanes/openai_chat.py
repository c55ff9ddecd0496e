"""The native lane for OpenAI's Chat Completions API and for every server that implements it.

acorn's messages already have this format, so a request consists of the settings and the JSON texts of the messages. The
lane for OpenAI's Responses API shares the functions for models, settings and errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import to_json

from acorn.models.lanes import lane
from acorn.models.port import CallDelta, Delta, ModelResponse, RawCall
from acorn.models.providers import find_api_key, listed_price
from acorn.models.request import ModelRequest, SentMedium, message_json, unsupported_url, with_portable_ids
from acorn.types import JsonObject, JsonValue, Usage, is_json_object

STOP_REASONS = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}
_REASONING = re.compile(r"(?:^|/)o\d|gpt-[56](?!-chat)")
_NOT_REASONING = re.compile(r"(?:^|/|ft:)(?:chat)?gpt-[34](?!\d)")
_FIXED_TEMPERATURE = re.compile(r"(?:^|/)o\d|gpt-5(?![.\d]|-chat)")
"""The names of models whose temperature must be 1. For newer models, this depends on the reasoning effort."""
STATUSES = {
    "server_error": 500,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "vector_store_timeout": 504,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
}
"""A dict that maps the error codes in a response of OpenAI to HTTP statuses."""


def is_reasoning_model(name: str) -> bool:
    """Return True if a model name is the name of a known reasoning model of OpenAI."""
    return bool(_REASONING.search(name))


def is_non_reasoning_model(name: str) -> bool:
    """Return True if a model name is the name of a known model of OpenAI that does not reason.

    Such a model rejects messages that contain reasoning, for example the reasoning of another model.
    """
    return bool(_NOT_REASONING.search(name))


def supports_effort(name: str) -> bool:
    """Return True if a model may support the setting `reasoning_effort`.

    This is the case for known reasoning models, and for models that are not in acorn's price table.
    """
    return is_reasoning_model(name) or listed_price("openai", name) is None


def sampling_settings(request: ModelRequest, left_out: Collection[str], name: str, max_tokens_key: str) -> JsonObject:
    """Return the request settings for the temperature and for the maximum number of response tokens.

    The result does not contain a default that the model rejects. Raise `ProviderError` if the user set a temperature
    that the model does not support.
    """
    settings: JsonObject = {}
    if "temperature" in request.declared and request.temperature != 1 and _FIXED_TEMPERATURE.search(name):
        raise lane.ProviderError(
            f"The model supports only a `temperature` of 1, but it is set to {request.temperature:g}."
        )
    if "temperature" in request.declared or not ("temperature" in left_out or is_reasoning_model(name)):
        settings["temperature"] = request.temperature
    if "max_tokens" in request.declared or "max_tokens" not in left_out:
        settings[max_tokens_key] = request.max_tokens
    return settings


def organization_header(config: JsonObject) -> dict[str, str]:
    """Return the header for the organization that the user set, or {} if the user set none."""
    variables = map(os.environ.get, ("OPENAI_ORGANIZATION", "OPENAI_ORG_ID"))
    organization = config.get("organization") or next(filter(None, variables), None)
    return {"OpenAI-Organization": organization} if organization else {}


class OpenAILane(lane.Lane):
    """The part that both lanes of OpenAI have in common."""

    provider = "openai"

    def headers(self) -> dict[str, str]:
        key = find_api_key(self.config, "OPENAI_API_KEY")
        return {**({"Authorization": f"Bearer {key}"} if key else {}), **organization_header(self.config)}


class OpenAIChat(OpenAILane):
    """The lane for OpenAI's Chat Completions API: it encodes requests and decodes responses."""

    prefix = "openai/"
    setting_keys = (
        *("top_p", "top_k", "stop", "seed", "user", "store", "frequency_penalty", "presence_penalty", "logit_bias"),
        *("parallel_tool_calls", "reasoning_effort", "tool_choice"),
    )
    supported_keys = frozenset((*lane.LANE_KEYS, *setting_keys, "organization"))
    stream_settings = {"stream": True, "stream_options": {"include_usage": True}}

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        self.settings |= config.get("extra_body") or {}
        uses_new_key = is_reasoning_model(self.name) or "max_completion_tokens" in config
        self._max_tokens_key = "max_completion_tokens" if uses_new_key else "max_tokens"

    @classmethod
    def supports(cls, config: JsonObject) -> bool:
        name = cls.model_name(config)
        if not super().supports(config) or name.startswith("responses/"):
            return False
        # For other models, LiteLLM decides whether it can send `reasoning_effort`.
        return "reasoning_effort" not in config or supports_effort(name)

    def url(self, base: str) -> str:
        return f"{base}/chat/completions"

    @property
    def thinks(self) -> bool:
        return self.config.get("reasoning_effort") not in (None, "", "none")

    def takes_tool(self, tool: JsonObject) -> bool:
        # OpenAI runs hosted tools only in its Responses API. Another server may run them in chat completions.
        return lane.is_openai_tool(tool) and self.has_custom_address

    def reject_medium(self, medium: SentMedium) -> str | None:
        return unsupported_url(medium) if medium.url is not None and medium.kind in ("audio", "file") else None

    def request_content(self, request: ModelRequest) -> tuple[bytes, list[bytes], bytes]:
        # A custom server may expect the call ids that it created.
        encode = _message_json if self.has_custom_address else _portable_message_json
        messages = request.encoded(encode)
        for at, mark in lane.cache_marks(request).items():
            messages[at] = encode(_with_cache_mark(request.messages[at], mark))
        tools = b',"tools":' + request.tools_json() if request.tools else b""
        return tools + b',"messages":[', messages, b"]"

    def request_settings(self, request: ModelRequest, left_out: Collection[str]) -> JsonObject:
        settings = {"model": self.name, **sampling_settings(request, left_out, self.name, self._max_tokens_key)}
        settings |= self.settings
        if request.forced_tool and "tool_choice" not in left_out:
            settings["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        return settings

    def read(self, response: JsonObject) -> ModelResponse:
        raise_if_failed(response)
        return read_completion(response)

    def stream_reader(self) -> lane.StreamReader:
        return ChatReader()


def _message_json(message: Mapping[str, Any]) -> bytes:
    """Return the JSON text of a message without the reasoning of other providers."""
    if lane.REASONING_KEYS.isdisjoint(message):
        return message_json(message)
    return message_json({key: value for key, value in message.items() if key not in lane.REASONING_KEYS})


def _with_cache_mark(message: Mapping[str, Any], mark: JsonObject) -> JsonObject:
    """Return a copy of a message with a cache mark on the last part of its content.

    If the content is not a list of parts, the mark is on the message itself.
    """
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [*content[:-1], {**content[-1], "cache_control": mark}]}
    return {**message, "cache_control": mark}


def _portable_message_json(message: Mapping[str, Any]) -> bytes:
    return _message_json(with_portable_ids(message))


def read_completion(response: JsonObject) -> ModelResponse:
    """Convert a complete chat completion to a `ModelResponse`."""
    choice = response["choices"][0]
    message = choice["message"]
    return ModelResponse(
        content=text_of(message.get("content")),
        tool_calls=[_raw_call(call) for call in message.get("tool_calls") or ()],
        stop_reason=STOP_REASONS.get(choice.get("finish_reason"), "stop"),
        usage=usage_of(response.get("usage")),
        model=response.get("model") or "",
        reasoning=text_of(message.get("reasoning_content") or message.get("reasoning")) or None,
        refusal=message.get("refusal"),
    )


class ChatReader(lane.StreamReader):
    """A decoder that converts the chunks of one streamed chat completion to deltas."""

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
        raw_usage = event.get("usage")
        usage = usage_of(raw_usage) if raw_usage else None
        if not (raw_usage or calls or content or reasoning or reason or refusal):
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


def usage_of(raw: JsonObject | None, prompt: str = "prompt", output: str = "completion") -> Usage:
    """Return the token usage in a response. `prompt` and `output` are the first words of its keys."""
    if not raw:
        return Usage(requests=1)
    prompt_details: JsonObject = raw.get(f"{prompt}_tokens_details") or {}
    output_details: JsonObject = raw.get(f"{output}_tokens_details") or {}
    count = lane.token_count
    return Usage(
        count(raw.get(f"{prompt}_tokens")),
        count(raw.get(f"{output}_tokens")),
        count(prompt_details.get("cached_tokens")),
        count(output_details.get("reasoning_tokens")),
        1,
        count(prompt_details.get("cache_write_tokens") or prompt_details.get("cache_creation_tokens")),
    )


def raise_if_failed(response: JsonObject) -> None:
    """Raise `ProviderError` if a response contains an error although its HTTP status was a success."""
    if error := response.get("error"):
        raise lane.provider_error(error, STATUSES)
