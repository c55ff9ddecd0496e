"""What was said, in the shape of OpenTelemetry's messages: veiled, and without the data of pictures and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acorn._json import to_plain
from acorn._secrets import redact, secrets_in, without_secrets
from acorn._telemetry.names import finish_reason
from acorn.journal import ModelAnswered
from acorn.models.sent import unsigned_id
from acorn.types import Content

Part = dict[str, Any]
_DATA = re.compile(r"(data:[\w.+-]+/[\w.+-]+(?:;[\w.=+-]+)*;base64,)[A-Za-z0-9+/_=-]+")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{256,}={0,2}")
"""Nobody writes so long a word."""
_GONE = "(base64)"


class Writer:
    """Writes the content of one run's spans."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._model: Any = None

    def veil_for(self, model: Any) -> None:
        """Which secrets there are: those of the model dict as it is now, and of the environment."""
        if model is not self._model or not self._secrets:
            self._model = model
            self._secrets |= secrets_in({"model": model} if isinstance(model, dict | list | tuple) else {})

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

    def answer(self, entry: ModelAnswered) -> str:
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
                return self._veiled(without_secrets(json.loads(text)))
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
        return {"type": self.text(kind), "content": self._veiled(without_secrets(to_plain(dict(part))))}

    def _media(self, modality: str, url: str, name: Any) -> Part:
        named = {"name": self.text(str(name))} if name else {}
        if url.startswith(("http://", "https://")):
            return {"type": "uri", "modality": modality, "uri": redact(self.text(url), secrets_in({"": url})), **named}
        media_type = url.removeprefix("data:").partition(";")[0] if url.startswith("data:") else None
        return _blob(modality, media_type) | named

    def _call(self, id: Any, name: Any, arguments: Any) -> Part:
        given = self._loaded(arguments) if isinstance(arguments, str) else None
        return {"type": "tool_call", "id": call_id(id), "name": self.text(str(name)), "arguments": given}


def call_id(id: Any) -> str:
    """The id of a call; Gemini's carry a signature, which is for nobody else."""
    return sendable(unsigned_id(str(id or ""))[:200])


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
