"""The data of spans in the format of the OpenTelemetry conventions for generative AI (version 1.41), and the metrics.

`ContentWriter` formats messages as OpenTelemetry specifies. It redacts secrets and omits the data of images and files.
`Instruments` records the duration and the tokens of model requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from opentelemetry.metrics import MeterProvider, NoOpMeterProvider
from opentelemetry.trace import TracerProvider

from acorn._formats.json import replace_surrogates, to_compact_json, to_json_data
from acorn._formats.redact import Redactor, find_secrets, redact_by_name
from acorn.journal import ModelResponded
from acorn.models.providers import provider_in_id
from acorn.models.request import strip_signature
from acorn.types import Content, JsonObject, Usage, is_list_or_tuple, is_mapping

DURATION = "gen_ai.client.operation.duration"
TOKENS = "gen_ai.client.token.usage"
DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

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


@lru_cache(maxsize=256)
def provider_and_model(name: str) -> tuple[str, str]:
    """Split a model id into provider and model, such as `openai/responses/gpt-5` into `openai` and `gpt-5`."""
    name = name.partition(" (model[")[0]  # A model that a list contains twice has this suffix.
    provider, slash, model = name.partition("/")
    if not slash:
        return provider_in_id(name) or OTHER, name
    for route in _ROUTES:
        model = model.removeprefix(route)
    return _PROVIDERS.get(provider, provider), model


def finish_reason(stop_reason: str) -> str:
    """Convert a stop reason to the spelling of the OpenTelemetry conventions: `tool_calls` becomes `tool_call`."""
    return "tool_call" if stop_reason == "tool_calls" else stop_reason


def usage_attributes(usage: Usage) -> JsonObject:
    """Return the attributes for the tokens of a response, without details that the provider did not report."""
    details = {
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        "acorn.usage.is_estimated": usage.is_estimated,
    }
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        **{name: count for name, count in details.items() if count},
    }


Part = JsonObject
_DATA = re.compile(r"(data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,)[A-Za-z0-9+/_=-]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{256,}={0,2}")
"""Matches text that must be base64 data, because no natural word has 256 characters."""
_OMITTED = "(base64)"


class _SpanRedactor(Redactor):
    """A redactor that also removes base64 data, and lone surrogates, which exporters cannot encode as UTF-8."""

    def text(self, text: str, limit: int | None = None) -> str:
        return super().text(_BASE64.sub(_OMITTED, _DATA.sub(rf"\g<1>{_OMITTED}", replace_surrogates(text))), limit)


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
        return to_compact_json(parts) if parts else None

    def messages(self, messages: Iterable[object]) -> str:
        """Convert all messages except system messages to JSON text."""
        others = (message for message in messages if is_mapping(message) and message.get("role") != "system")
        return to_compact_json(
            [{"role": str(message.get("role")), "parts": self._parts(message)} for message in others]
        )

    def response(self, entry: ModelResponded) -> str:
        """Convert a response of the model to JSON text."""
        parts: list[Part] = []
        if entry.reasoning:
            parts.append({"type": "reasoning", "content": self.text(entry.reasoning)})
        if entry.content or entry.refusal:
            parts.append({"type": "text", "content": self.text(entry.refusal or entry.content)})
        parts += [self._call(call.id, call.name, call.arguments) for call in entry.calls]
        return to_compact_json(
            [{"role": "assistant", "parts": parts, "finish_reason": finish_reason(entry.stop_reason)}]
        )

    def output(self, text: str) -> str:
        """Convert the output of a run to JSON text."""
        part = {"type": "text", "content": self.json_text(text)}
        return to_compact_json([{"role": "assistant", "parts": [part], "finish_reason": "stop"}])

    def result(self, content: Content) -> str:
        """Return the result of a tool call with secrets redacted."""
        return self.json_text(content) if isinstance(content, str) else to_compact_json(self._content(content))

    def json_text(self, text: str) -> str:
        """Redact the secrets in a text, and return the text.

        If the text is JSON, the function also redacts values whose JSON keys are names of secrets, such as `password`.
        """
        data = self._load(text)
        return data if isinstance(data, str) else to_compact_json(data)

    def _load(self, text: str) -> object:
        if text[:1] in ("{", "["):
            # `parse_json` rejects half characters and deep nesting, so secrets next to them would stay in the text.
            with suppress(ValueError, RecursionError):
                return self._redactor.data(redact_by_name(json.loads(text)))
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
        return [self._part(part) for part in content] if is_list_or_tuple(content) else []

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
            uri = Redactor(find_secrets(url)).text(self.text(url))
            return {"type": "uri", "modality": modality, "uri": uri, **names}
        media_type = url.removeprefix("data:").partition(";")[0] if url.startswith("data:") else None
        return _blob(modality, media_type) | names

    def _call(self, id: object, name: object, arguments: object) -> Part:
        data = self._load(arguments) if isinstance(arguments, str) else None
        return {"type": "tool_call", "id": call_id(id), "name": self.text(str(name)), "arguments": data}


def call_id(id: object) -> str:
    """Return the id of a tool call, without the signature that models of Gemini append to the id."""
    return str(replace_surrogates(strip_signature(str(id or ""))[:200]))


def _blob(modality: str, media_type: str | None) -> Part:
    """Return a message part that describes an image, audio or file without its data."""
    return {"type": "blob", "modality": modality, "mime_type": media_type, "content": ""}


class Instruments:
    """The tracer for spans, and two metrics of model requests: the duration and the number of tokens.

    It records no metrics if the program has no OpenTelemetry meter provider.
    """

    def __init__(self, tracer_provider: TracerProvider, meter_provider: MeterProvider | None) -> None:
        self.tracer_provider, self.meter_provider = tracer_provider, meter_provider
        self.tracer = tracer_provider.get_tracer("acorn")
        meter = (meter_provider or NoOpMeterProvider()).get_meter("acorn")
        self._duration = meter.create_histogram(
            DURATION, "s", "The duration of a model request.", explicit_bucket_boundaries_advisory=DURATIONS
        )
        self._tokens = meter.create_histogram(
            TOKENS, "{token}", "The number of tokens of a model request.", explicit_bucket_boundaries_advisory=COUNTS
        )

    def record(self, attributes: JsonObject, seconds: float, usage: Usage | None) -> None:
        """Record the metrics of a model request that has ended. `usage` is None if the request failed."""
        self._duration.record(seconds, attributes)
        if usage is not None:
            self._tokens.record(usage.input_tokens, {**attributes, "gen_ai.token.type": "input"})
            self._tokens.record(usage.output_tokens, {**attributes, "gen_ai.token.type": "output"})


_last: Instruments | None = None


def instruments_of(tracer_provider: TracerProvider, meter_provider: MeterProvider | None) -> Instruments:
    """Return the tracer and the metrics of OpenTelemetry providers, which all runs share.

    The providers are compared by identity, because some providers are not hashable.
    """
    global _last
    known = _last
    if known is None or known.tracer_provider is not tracer_provider or known.meter_provider is not meter_provider:
        known = _last = Instruments(tracer_provider, meter_provider)
    return known
