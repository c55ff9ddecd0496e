"""The names of OpenTelemetry's conventions for generative AI, as of version 1.41, and our own beside them.

The conventions are still being developed. Whoever renames something there renames it here, and nowhere else.

What was said, in the shape of OpenTelemetry's messages: veiled, and without the data of pictures and files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from acorn._formats.json import to_json_data
from acorn._formats.redact import find_secrets, redact, redact_by_name
from acorn.journal import ModelResponded
from acorn.models.request_body import strip_signature
from acorn.types import Content, JsonObject

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

# Attributes that tell what was said
INSTRUCTIONS = "gen_ai.system_instructions"
INPUT = "gen_ai.input.messages"
OUTPUT = "gen_ai.output.messages"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"

# Totals of a run stand under names of their own, or who adds up all spans would count them twice.
TOTAL_INPUT_TOKENS = "gen_ai.aggregated_usage.input_tokens"
TOTAL_OUTPUT_TOKENS = "gen_ai.aggregated_usage.output_tokens"

# Metrics
DURATION = "gen_ai.client.operation.duration"
TOKENS = "gen_ai.client.token.usage"
TOKEN_TYPE = "gen_ai.token.type"
DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
COUNTS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

# Our own
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
"""What stands where no name is known."""

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
"""Those that are called otherwise in a model's id."""
_ROUTES = ("responses/", "converse/", "invoke/", "chat/")
"""What may stand between the provider and the model, and says how it is asked."""
_BEGINNINGS = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "claude-": "anthropic",
    "gemini-": "gcp.gemini",
}
"""Models that need no provider in their id."""


@lru_cache(maxsize=256)
def provider_and_model(name: str) -> tuple[str, str]:
    """`openai/responses/gpt-5` as `openai` and `gpt-5`."""
    name = name.partition(" (model[")[0]  # where a list has it twice
    provider, slash, model = name.partition("/")
    if not slash:
        known = next((whose for beginning, whose in _BEGINNINGS.items() if name.startswith(beginning)), OTHER)
        return known, name
    for route in _ROUTES:
        model = model.removeprefix(route)
    return _PROVIDERS.get(provider, provider), model


def finish_reason(stop_reason: str) -> str:
    """As the conventions have it: the call of a tool in the singular."""
    return "tool_call" if stop_reason == "tool_calls" else stop_reason


Part = JsonObject
_DATA = re.compile(r"(data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,)[A-Za-z0-9+/_=-]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{256,}={0,2}")
"""Nobody writes so long a word."""
_GONE = "(base64)"


class ContentWriter:
    """Writes the content of one run's spans."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._model: Any = None

    def veil_for(self, model: Any) -> None:
        """Which secrets there are: those of the model dict as it is now, and of the environment."""
        if model is not self._model or not self._secrets:
            self._model = model
            self._secrets |= find_secrets({"model": model} if isinstance(model, dict | list | tuple) else {})

    def text(self, text: str) -> str:
        """A text without secrets and base64."""
        return redact(_BASE64.sub(_GONE, _DATA.sub(rf"\g<1>{_GONE}", sendable(text))), self._secrets)

    def instructions(self, messages: Iterable[Any]) -> str | None:
        """The system message, if there is one."""
        found = [part for message in messages if _role(message) == "system" for part in self._parts(message)]
        return _json(found) if found else None

    def messages(self, messages: Iterable[Any]) -> str:
        """All others."""
        told = (message for message in messages if isinstance(message, Mapping) and _role(message) != "system")
        return _json([{"role": str(_role(message)), "parts": self._parts(message)} for message in told])

    def answer(self, entry: ModelResponded) -> str:
        """The model's turn."""
        parts: list[Part] = []
        if entry.reasoning:
            parts.append({"type": "reasoning", "content": self.text(entry.reasoning)})
        if entry.content or entry.refusal:
            parts.append({"type": "text", "content": self.text(entry.refusal or entry.content)})
        parts += [self._call(call.id, call.name, call.arguments) for call in entry.calls]
        return _json([{"role": "assistant", "parts": parts, "finish_reason": finish_reason(entry.stop_reason)}])

    def output(self, text: str) -> str:
        """The output of a run."""
        part = {"type": "text", "content": self._json_text(text)}
        return _json([{"role": "assistant", "parts": [part], "finish_reason": "stop"}])

    def arguments(self, text: str) -> str:
        """The arguments of a call, as JSON where they are."""
        return self._json_text(text)

    def result(self, content: Content) -> str:
        """What a model would read of a result."""
        return self._json_text(content) if isinstance(content, str) else _json(self._content(content))

    def _json_text(self, text: str) -> str:
        """JSON is veiled by its keys too; any other text as it is."""
        found = self._loaded(text)
        return found if isinstance(found, str) else _json(found)

    def _loaded(self, text: str) -> Any:
        if text[:1] in ("{", "["):
            try:
                return self._veiled(redact_by_name(json.loads(text)))
            except (ValueError, RecursionError):
                pass
        return self.text(text)

    def _veiled(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._veiled(item) for key, item in value.items()}
        return [self._veiled(item) for item in value] if isinstance(value, list) else value

    def _parts(self, message: Mapping[str, Any]) -> list[Part]:
        content = message.get("content")
        if message.get("role") == "tool":
            response = self._loaded(content) if isinstance(content, str) else self._content(content)
            return [{"type": "tool_call_response", "id": call_id(message.get("tool_call_id")), "response": response}]
        parts = self._content(content)
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            parts.append(self._call(call.get("id"), function.get("name"), function.get("arguments")))
        return parts

    def _content(self, content: Any) -> list[Part]:
        if isinstance(content, str):
            return [{"type": "text", "content": self.text(content)}] if content else []
        return [self._part(part) for part in content] if isinstance(content, Sequence) else []

    def _part(self, part: Any) -> Part:
        if not isinstance(part, Mapping):
            return {"type": "text", "content": self.text(str(part))}
        kind = str(part.get("type"))
        if kind == "text":
            return {"type": "text", "content": self.text(str(part.get("text") or ""))}
        inner = part.get(kind)
        source: Any = inner if isinstance(inner, Mapping) else {}
        if kind == "image_url":
            return self._media("image", str(source.get("url") or inner or ""), None)
        if kind == "input_audio":
            return _blob("audio", f"audio/{source.get('format') or 'wav'}")
        if kind == "file":
            data = str(source.get("file_data") or source.get("file_url") or "")
            return self._media("document", data, source.get("filename"))
        return {"type": self.text(kind), "content": self._veiled(redact_by_name(to_json_data(dict(part))))}

    def _media(self, modality: str, url: str, name: Any) -> Part:
        named = {"name": self.text(str(name))} if name else {}
        if url.startswith(("http://", "https://")):
            return {
                "type": "uri",
                "modality": modality,
                "uri": redact(self.text(url), find_secrets({"": url})),
                **named,
            }
        media_type = url.removeprefix("data:").partition(";")[0] if url.startswith("data:") else None
        return _blob(modality, media_type) | named

    def _call(self, id: Any, name: Any, arguments: Any) -> Part:
        given = self._loaded(arguments) if isinstance(arguments, str) else None
        return {"type": "tool_call", "id": call_id(id), "name": self.text(str(name)), "arguments": given}


def call_id(id: Any) -> str:
    """The id of a call; Gemini's carry a signature, which is for nobody else."""
    return sendable(strip_signature(str(id or ""))[:200])


def sendable(text: str) -> str:
    """The text without half surrogate pairs, of which an exporter could send nothing."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _blob(modality: str, media_type: str | None) -> Part:
    """Something that is there, without its data."""
    return {"type": "blob", "modality": modality, "mime_type": media_type, "content": ""}


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
