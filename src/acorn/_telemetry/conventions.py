"""The span and attribute names of the OpenTelemetry conventions for generative AI (version 1.41), and their data.

The conventions are still in development. If they change, only this file must change.

`ContentWriter` formats messages as OpenTelemetry specifies. It redacts secrets and omits the data of images and files.
`Meters` records the duration and the tokens of model requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeIs

from acorn._formats.json import to_json_data
from acorn._formats.redact import Redactor, find_secrets, redact_by_name
from acorn.journal import ModelResponded
from acorn.models.request import strip_signature
from acorn.types import (
    Content,
    JsonObject,
    Usage,
    is_mapping,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

# Spans
INVOKE_AGENT = "invoke_agent"
CHAT = "chat"
EXECUTE_TOOL = "execute_tool"

# Attributes
OPERATION = "gen_ai.operation.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
TEMPERATURE = "gen_ai.request.temperature"
MAX_TOKENS = "gen_ai.request.max_tokens"
ANSWERED_BY = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
CALL = "gen_ai.tool.call.id"
ERROR = "error.type"
STATUS = "http.response.status_code"

# Attributes with message content
INSTRUCTIONS = "gen_ai.system_instructions"
INPUT = "gen_ai.input.messages"
OUTPUT = "gen_ai.output.messages"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"

# The totals of a run have separate names. Otherwise, a sum over all spans would count the tokens twice.
TOTAL_INPUT_TOKENS = "gen_ai.aggregated_usage.input_tokens"
TOTAL_OUTPUT_TOKENS = "gen_ai.aggregated_usage.output_tokens"

# Metrics
DURATION = "gen_ai.client.operation.duration"
TOKENS = "gen_ai.client.token.usage"
TOKEN_TYPE = "gen_ai.token.type"
DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

# Names of acorn
RUN = "acorn.run.id"
BRANCH = "acorn.branch"
STOP_REASON = "acorn.stop_reason"
COST = "acorn.cost"
RETRY = "acorn.retry"
WAIT = "acorn.wait"
FALLBACK = "acorn.fallback"
FAILED = "acorn.failed"
TO = "acorn.to"
NOT_CALLED = "acorn.not_called"
HUMAN_ASKED = "acorn.human_asked"
HUMAN_ANSWERED = "acorn.human_answered"
REQUEST = "acorn.request.id"

OTHER = "_OTHER"
"""The value of an attribute if the real value is unknown."""

_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "cohere_chat": "cohere",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "vertex_ai_beta": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""A dict that maps the prefix of a model id to the provider name of the conventions, if the names differ."""
_ROUTES = ("responses/", "converse/", "invoke/", "chat/")
"""The segments of a model id that select an API. They are between the provider and the model."""
_MODEL_PREFIXES = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude-": "anthropic",
    "gemini-": "gcp.gemini",
}
"""A dict that maps the start of a model name to its provider, for model ids without a provider."""


@lru_cache(maxsize=256)
def provider_and_model(name: str) -> tuple[str, str]:
    """Split a model id into provider and model, such as `openai/responses/gpt-5` into `openai` and `gpt-5`."""
    name = name.partition(" (model[")[0]  # A model that a list contains twice has this suffix.
    provider, slash, model = name.partition("/")
    if not slash:
        provider = next((owner for prefix, owner in _MODEL_PREFIXES.items() if name.startswith(prefix)), OTHER)
        return provider, name
    for route in _ROUTES:
        model = model.removeprefix(route)
    return _PROVIDERS.get(provider, provider), model


def finish_reason(stop_reason: str) -> str:
    """Convert a stop reason to the spelling of the OpenTelemetry conventions: `tool_calls` becomes `tool_call`."""
    return "tool_call" if stop_reason == "tool_calls" else stop_reason


Part = JsonObject
_DATA = re.compile(r"(data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,)[A-Za-z0-9+/_=-]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{256,}={0,2}")
"""Matches text that must be base64 data, because no natural word has 256 characters."""
_OMITTED = "(base64)"


class _SpanRedactor(Redactor):
    """A redactor that also removes base64 data and lone surrogates."""

    def text(self, text: str, limit: int | None = None) -> str:
        return super().text(_BASE64.sub(_OMITTED, _DATA.sub(rf"\g<1>{_OMITTED}", sendable(text))), limit)


class ContentWriter:
    """A formatter that converts messages to the text of span attributes, and redacts secrets in this text."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._redactor = _SpanRedactor()
        self._model: object = None

    def use_secrets_of(self, model: object) -> None:
        """Redact the secrets in the settings of a model, and in environment variables, from now on."""
        if model is not self._model or not self._secrets:
            self._model = model
            self._secrets |= find_secrets(model)
            self._redactor = _SpanRedactor(self._secrets)

    def text(self, text: str) -> str:
        """Remove secrets and base64 data from a text, and return the text."""
        return self._redactor.text(text)

    def instructions(self, messages: Iterable[object]) -> str | None:
        """Convert the system messages to JSON text, or return None without system messages."""
        parts = [
            part
            for message in messages
            if is_mapping(message) and message.get("role") == "system"
            for part in self._parts(message)
        ]
        return _json(parts) if parts else None

    def messages(self, messages: Iterable[object]) -> str:
        """Convert all messages except system messages to JSON text."""
        others = (message for message in messages if is_mapping(message) and message.get("role") != "system")
        return _json([{"role": str(message.get("role")), "parts": self._parts(message)} for message in others])

    def response(self, entry: ModelResponded) -> str:
        """Convert a response of the model to JSON text."""
        parts: list[Part] = []
        if entry.reasoning:
            parts.append({"type": "reasoning", "content": self.text(entry.reasoning)})
        if entry.content or entry.refusal:
            parts.append({"type": "text", "content": self.text(entry.refusal or entry.content)})
        parts += [self._call(call.id, call.name, call.arguments) for call in entry.calls]
        return _json([{"role": "assistant", "parts": parts, "finish_reason": finish_reason(entry.stop_reason)}])

    def output(self, text: str) -> str:
        """Convert the output of a run to JSON text."""
        part = {"type": "text", "content": self._json_text(text)}
        return _json([{"role": "assistant", "parts": [part], "finish_reason": "stop"}])

    def arguments(self, text: str) -> str:
        """Return the arguments of a tool call with secrets redacted."""
        return self._json_text(text)

    def result(self, content: Content) -> str:
        """Return the result of a tool call with secrets redacted."""
        return self._json_text(content) if isinstance(content, str) else _json(self._content(content))

    def _json_text(self, text: str) -> str:
        """Redact the secrets in a text, and return the text.

        If the text is JSON, the function also redacts values whose JSON keys are names of secrets, such as `password`.
        """
        data = self._load(text)
        return data if isinstance(data, str) else _json(data)

    def _load(self, text: str) -> object:
        if text[:1] in ("{", "["):
            try:
                return self._redactor.data(redact_by_name(json.loads(text)))
            except (ValueError, RecursionError):
                pass
        return self.text(text)

    def _parts(self, message: Mapping[str, Any]) -> list[Part]:
        content = message.get("content")
        if message.get("role") == "tool":
            response = self._load(content) if isinstance(content, str) else self._content(content)
            return [{"type": "tool_call_response", "id": call_id(message.get("tool_call_id")), "response": response}]
        parts = self._content(content)
        for call in message.get("tool_calls") or ():
            function: JsonObject = call.get("function") or {}
            parts.append(self._call(call.get("id"), function.get("name"), function.get("arguments")))
        return parts

    def _content(self, content: object) -> list[Part]:
        if isinstance(content, str):
            return [{"type": "text", "content": self.text(content)}] if content else []
        return [self._part(part) for part in content] if _is_sequence(content) else []

    def _part(self, part: object) -> Part:
        if not is_mapping(part):
            return {"type": "text", "content": self.text(str(part))}
        kind = str(part.get("type"))
        if kind == "text":
            return {"type": "text", "content": self.text(str(part.get("text") or ""))}
        inner = part.get(kind)
        source: Mapping[str, Any] = inner if is_mapping(inner) else {}
        if kind == "image_url":
            return self._media("image", str(source.get("url") or inner or ""), None)
        if kind == "input_audio":
            return _blob("audio", f"audio/{source.get('format') or 'wav'}")
        if kind == "file":
            data = str(source.get("file_data") or source.get("file_url") or "")
            return self._media("document", data, source.get("filename"))
        return {"type": self.text(kind), "content": self._redactor.data(redact_by_name(to_json_data(dict(part))))}

    def _media(self, modality: str, url: str, name: object) -> Part:
        names = {"name": self.text(str(name))} if name else {}
        if url.startswith(("http://", "https://")):
            return {
                "type": "uri",
                "modality": modality,
                "uri": Redactor(find_secrets(url)).text(self.text(url)),
                **names,
            }
        media_type = url.removeprefix("data:").partition(";")[0] if url.startswith("data:") else None
        return _blob(modality, media_type) | names

    def _call(self, id: object, name: object, arguments: object) -> Part:
        data = self._load(arguments) if isinstance(arguments, str) else None
        return {"type": "tool_call", "id": call_id(id), "name": self.text(str(name)), "arguments": data}


def call_id(id: object) -> str:
    """Return the id of a tool call, without the signature that models of Gemini append to the id."""
    return sendable(strip_signature(str(id or ""))[:200])


def sendable(text: str) -> str:
    """Replace lone surrogates in a text, because exporters of OpenTelemetry cannot encode them as UTF-8."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _blob(modality: str, media_type: str | None) -> Part:
    """Return a message part that describes an image, audio or file without its data."""
    return {"type": "blob", "modality": modality, "mime_type": media_type, "content": ""}


def _is_sequence(value: object) -> TypeIs[Sequence[object]]:
    return isinstance(value, Sequence)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# All runs share the tracer and the metrics of a provider.


class _ProviderKey:
    """A cache key that compares OpenTelemetry providers by identity, because some providers are not hashable."""

    __slots__ = ("provider",)

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ProviderKey) and other.provider is self.provider

    def __hash__(self) -> int:
        return id(self.provider)


def tracer_of(provider: TracerProvider) -> Tracer:
    """Return the tracer of an OpenTelemetry tracer provider. All runs share this tracer."""
    return _tracer_of(_ProviderKey(provider))


@lru_cache(maxsize=1)
def _tracer_of(key: _ProviderKey) -> Tracer:
    tracer: Tracer = key.provider.get_tracer("acorn")
    return tracer


class Meters:
    """A recorder of two metrics of model requests: the duration and the number of tokens.

    It records nothing if the program has no OpenTelemetry meter provider.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = None if provider is None else provider.get_meter("acorn")
        if meter is None:
            self._duration = self._tokens = None
            return
        description = "The duration of a model request."
        buckets: Any = {"explicit_bucket_boundaries_advisory": DURATIONS}
        self._duration = meter.create_histogram(DURATION, "s", description, **buckets)
        description = "The number of tokens of a model request."
        buckets = {"explicit_bucket_boundaries_advisory": COUNTS}
        self._tokens = meter.create_histogram(TOKENS, "{token}", description, **buckets)

    def record(self, attributes: JsonObject, seconds: float, usage: Usage | None) -> None:
        """Record the metrics of a model request that has ended. `usage` is None if the request failed."""
        if self._duration is not None:
            self._duration.record(seconds, attributes)
        if self._tokens is not None and usage is not None:
            self._tokens.record(usage.input_tokens, {**attributes, TOKEN_TYPE: "input"})
            self._tokens.record(usage.output_tokens, {**attributes, TOKEN_TYPE: "output"})


def meters_of(provider: MeterProvider | None) -> Meters:
    """Return the `Meters` object for an OpenTelemetry meter provider. All runs share this object."""
    return _meters_of(_ProviderKey(provider))


@lru_cache(maxsize=1)
def _meters_of(key: _ProviderKey) -> Meters:
    return Meters(key.provider)
