"""The lane for OpenAI's chat completions: OpenAI itself, and every server that speaks its protocol.

Our messages are OpenAI's already, so a request is the JSON that the loop has written, behind a head of settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import to_json

from acorn.models.lane import ADDRESS, OURS, PRICES, THOUGHTS, StreamReader, knows_keys, marked, marks
from acorn.models.native_lane import NativeModel
from acorn.models.openai import Heads, openai_address, raise_if_failed, reasons, sampling, takes_effort, tokens_of
from acorn.models.port import CallDelta, Delta, ModelRequest, ModelResponse, RawCall
from acorn.models.prices import Tokens
from acorn.types import Usage

_SETTINGS = (
    *("top_p", "top_k", "stop", "seed", "user", "store"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "parallel_tool_calls", "reasoning_effort", "tool_choice"),
)
_KNOWN = frozenset((*OURS, *PRICES, *ADDRESS, *_SETTINGS, "extra_body", "organization"))
_THOUGHTS = tuple([b'"%s":' % name.encode() for name in THOUGHTS])
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

    def address(self) -> tuple[str, dict[str, str]]:
        return openai_address(self._config, "chat/completions")

    def body(self, request: ModelRequest, left_out: Collection[str], *, is_stream: bool) -> bytes:
        tools = request.tools_json() if request.tools_json else to_json(request.tools)
        messages = self._messages(request)
        head = self._heads.of(request, left_out, is_stream)
        if not request.tools:
            return b'%s,"messages":%s}' % (head, messages)
        return b'%s,"tools":%s,"messages":%s}' % (head, tools, messages)

    def _settings_of(self, request: ModelRequest, left_out: Collection[str], is_stream: bool) -> dict[str, Any]:
        made = {"model": self.name, **sampling(request, left_out, self.name, self._length)}
        made |= self._settings
        if request.forced_tool and "tool_choice" not in left_out:
            made["tool_choice"] = {"type": "function", "function": {"name": request.forced_tool}}
        if is_stream:
            made |= {"stream": True, "stream_options": {"include_usage": True}}
        return made

    def _messages(self, request: ModelRequest) -> bytes:
        if request.messages_json is not None and not request.cache:
            written = request.messages_json()
            if not any(sign in written for sign in _THOUGHTS):
                return written
        messages = [_sendable(message) for message in request.messages]
        for at, mark in marks(request).items():
            messages[at] = marked(messages[at], mark)
        return to_json(messages)

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
        return _Reader()


def _sendable(message: dict[str, Any]) -> dict[str, Any]:
    """Without another provider's thoughts, and without a content that is none."""
    return {
        key: value for key, value in message.items() if key not in THOUGHTS and (value is not None or key != "content")
    }


class _Reader:
    """Chunks to deltas."""

    def __init__(self) -> None:
        self.called = ""
        self.stop_reason = ""
        self.used: Tokens | None = None

    def read(self, event: Any) -> Delta | None:
        raise_if_failed(event)
        choices, usage = event.get("choices"), event.get("usage")
        found = Delta(model=event.get("model") or "")
        if usage:
            found.usage = usage_of(usage)
            self.used = tokens_of(found.usage)
        if choices:
            self._read_choice(choices[0], found)
        has_news = found.content or found.reasoning or found.calls or found.stop_reason or usage or found.refusal
        return found if has_news else None

    def _read_choice(self, choice: Any, found: Delta) -> None:
        delta = choice.get("delta") or {}
        found.content = text_of(delta.get("content"))
        found.reasoning = text_of(delta.get("reasoning_content") or delta.get("reasoning"))
        found.refusal = delta.get("refusal") or None
        if calls := delta.get("tool_calls"):
            found.calls = tuple([_call_delta(call, at) for at, call in enumerate(calls)])
            self.called += "".join([call.name for call in found.calls if call.name])
        if reason := choice.get("finish_reason"):
            self.stop_reason = found.stop_reason = STOPS.get(reason, "stop")

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
    function = made.get("function") or {}
    arguments = function.get("arguments") or ""
    text = arguments if isinstance(arguments, str) else to_json(arguments).decode()
    index = made.get("index")
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
    )
