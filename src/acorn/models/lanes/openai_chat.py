"""The lane for OpenAI's chat completions: OpenAI itself, and every server that speaks its protocol.

Our messages are OpenAI's already, so a request is the JSON that the loop has written, behind a head of settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import to_json

from acorn.models.lanes.lane import (
    ADDRESS,
    OURS,
    PRICES,
    THOUGHTS,
    ConnectionLostError,
    StreamReader,
    is_openais,
    knows_keys,
    marked,
    marks,
)
from acorn.models.lanes.native import NativeModel
from acorn.models.lanes.openai_shared import (
    Heads,
    openai_address,
    raise_if_failed,
    reasons,
    sampling,
    takes_effort,
    tokens_of,
)
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse, RawCall
from acorn.models.providers import Tokens, own_address
from acorn.models.request_body import no_url, with_common_ids
from acorn.types import JsonObject, Usage

_SETTINGS = (
    *("top_p", "top_k", "stop", "seed", "user", "store"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "parallel_tool_calls", "reasoning_effort", "tool_choice"),
)
_KNOWN = frozenset((*OURS, *PRICES, *ADDRESS, *_SETTINGS, "extra_body", "organization"))
_THOUGHTS = frozenset(THOUGHTS)
STOPS = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def knows(config: Mapping[str, Any]) -> bool:
    """Whether everything in a model dict is something that this lane knows."""
    name = str(config.get("model") or config.get("id")).removeprefix("openai/")
    if not knows_keys(config, _KNOWN) or name.startswith("responses/"):
        return False
    return "reasoning_effort" not in config or takes_effort(name)  # LiteLLM knows which models take it


def make(config: Mapping[str, Any]) -> NativeModel:
    return NativeModel(config, OpenAIChat(config))


class OpenAIChat:
    """How chat completions are written and read."""

    provider = "openai"

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.name = str(config.get("model") or config["id"]).removeprefix("openai/")
        self.thinks = config.get("reasoning_effort") not in (None, "", "none")
        self._config = config
        self._settings = {key: config[key] for key in _SETTINGS if config.get(key) is not None}
        self._settings |= config.get("extra_body") or {}
        is_new = reasons(self.name) or "max_completion_tokens" in config
        self._length = "max_completion_tokens" if is_new else "max_tokens"
        """The name by which the model knows how long an answer may be."""
        self._heads = Heads(self._settings_of)

    def can_force_tool(self) -> bool:
        return True

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        # OpenAI runs tools by its Responses alone; of other servers nobody knows.
        return is_openais(tool) and own_address(self.provider, self._config) is not None

    def address(self) -> tuple[str, dict[str, str]]:
        return openai_address(self._config, "chat/completions")

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        for medium in request.media:
            if medium.url is not None and medium.kind in ("audio", "file"):
                raise ConnectionLostError(no_url(medium))
        before = self._heads.of(request, left_out, is_stream)
        if request.tools:
            tools = request.tools_json() if request.tools_json else to_json(request.tools)
            before = b'%s,"tools":%s' % (before, tools)
        if request.sent is not None and not request.cache_points and not request.sent.has_thoughts(_THOUGHTS):
            return request.with_messages(before + b',"messages":', b"}")
        is_openai = own_address(self.provider, self._config) is None
        return b'%s,"messages":%s}' % (before, _messages(request, is_openai=is_openai))

    def _settings_of(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> JsonObject:
        made = {"model": self.name, **sampling(request, left_out, self.name, self._length)}
        made |= self._settings
        if request.forced_tool and "tool_choice" not in left_out:
            made["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        if is_stream:
            made |= {"stream": True, "stream_options": {"include_usage": True}}
        return made

    def read(self, answer: Any) -> tuple[ModelResponse, Tokens | None]:
        raise_if_failed(answer)
        choice = answer["choices"][0]
        message = choice["message"]
        usage = answer.get("usage")
        response = ModelResponse(
            content=text_of(message.get("content")),
            tool_calls=[_call(made) for made in message.get("tool_calls") or ()],
            stop_reason=STOPS.get(choice.get("finish_reason"), "stop"),
            usage=usage_of(usage),
            model=answer.get("model") or "",
            reasoning=text_of(message.get("reasoning_content") or message.get("reasoning")) or None,
            refusal=message.get("refusal"),
        )
        return response, tokens_of(response.usage) if usage else None

    def reader(self) -> StreamReader:
        return _ChatReader()


def _messages(request: ModelRequest, *, is_openai: bool) -> bytes:
    """Messages that are not sent as they are: some have marks, or the thoughts of a model."""
    messages = [_sendable(message) for message in request.messages]
    if is_openai:  # another server may have given the ids itself, and want them back as they were
        messages = list(map(with_common_ids, messages))
    for at, mark in marks(request).items():
        messages[at] = marked(messages[at], mark)
    return to_json(messages)


def _sendable(message: JsonObject) -> JsonObject:
    """Without another provider's thoughts, and without a content that is none."""
    return {
        key: value for key, value in message.items() if key not in THOUGHTS and (value is not None or key != "content")
    }


class _ChatReader:
    """Chunks to deltas."""

    def __init__(self) -> None:
        self.called = ""
        self.stop_reason = ""
        self.used: Tokens | None = None

    def read(self, event: Any) -> Delta | None:
        # A long answer has thousands of these, so nothing is looked for twice.
        if event.get("error"):
            raise_if_failed(event)
        content = reasoning = ""
        refusal = reason = None
        calls: tuple[CallDelta, ...] = ()
        if choices := event.get("choices"):
            choice = choices[0]
            delta = choice.get("delta") or {}
            if made := delta.get("tool_calls"):
                calls = tuple([_call_delta(call, at) for at, call in enumerate(made)])
                self.called += "".join([call.name for call in calls if call.name])
            if (said := delta.get("content")) is not None:
                content = text_of(said)
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                reasoning = text_of(thought)
            refusal = delta.get("refusal") or None
            if reason := choice.get("finish_reason"):
                self.stop_reason = reason = STOPS.get(reason, "stop")
        usage = None
        if raw := event.get("usage"):
            usage = usage_of(raw)
            self.used = tokens_of(usage)
        elif not (calls or content or reasoning or reason or refusal):
            return None
        return Delta(content, reasoning, calls, reason or None, usage, None, event.get("model") or "", refusal)

    def end(self) -> Delta | None:
        if self.stop_reason:
            return None
        self.stop_reason = "tool_calls" if self.called else "stop"
        return Delta(stop_reason=self.stop_reason)


# Pieces of an answer


def text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join([part.get("text") or "" for part in content if isinstance(part, dict)])
    if content is not None:
        raise TypeError("it holds something else than text")
    return ""


def _call(made: Mapping[str, Any]) -> RawCall:
    function = made["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else to_json(arguments or {}).decode()
    return RawCall(made.get("id"), function.get("name") or "", text)


def _call_delta(made: Mapping[str, Any], at: int) -> CallDelta:
    function, index = made.get("function") or {}, made.get("index")
    text = function.get("arguments") or ""
    if not isinstance(text, str):
        text = to_json(text).decode()
    return CallDelta(at if index is None else index, made.get("id"), function.get("name"), text)


def usage_of(raw: Any) -> Usage:
    if not raw:
        return Usage(requests=1)
    read, made = raw.get("prompt_tokens_details") or {}, raw.get("completion_tokens_details") or {}
    return Usage(
        int(raw.get("prompt_tokens") or 0),
        int(raw.get("completion_tokens") or 0),
        int(read.get("cached_tokens") or 0),
        int(made.get("reasoning_tokens") or 0),
        1,
        int(read.get("cache_write_tokens") or 0),
    )
