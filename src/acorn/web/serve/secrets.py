"""Keeping the keys of the server out of what its agent says: exactly those that are known, and nothing else.

An answer is data that a program goes on with, so what merely looks like a key stays in it; an error is only read, so
there it goes. In a stream a key may come in pieces: what may be the beginning of one waits for the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from acorn._inside import find_secrets, redact, to_json_data
from acorn.web.page.wire import dumped

_HIDDEN = "***"
_TELLING = 4
"""So many letters of a key are a beginning that is not shown."""
_DEEPEST = 200


class ServiceRedactor:
    """The keys of a service, of its agent's models and of the environment."""

    def __init__(self, own: Iterable[str]) -> None:
        self._all = tuple(sorted({*own, *find_secrets({})}, key=len, reverse=True))
        self._written = tuple(json.dumps(secret, ensure_ascii=False)[1:-1] for secret in self._all)

    def json(self, value: Any) -> bytes:
        """Any value as JSON, without the secrets."""
        plain = to_json_data(value)
        try:
            text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except ValueError:  # what JSON has no word for
            return dumped(self.plain(plain))
        if any(secret in text for secret in self._written):
            return dumped(self.plain(plain))
        return text.encode("utf-8", "backslashreplace")

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Plain data without the secrets, the names of fields too."""
        if isinstance(value, str):
            return self.text(value)
        if depth > _DEEPEST:
            return "…"
        if isinstance(value, dict):
            return {self.text(str(key)): self.plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item, depth + 1) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def growing(self, value: Any) -> Any:
        """The same of what is still coming in: a text loses the beginning of a secret at its end."""
        if isinstance(value, str):
            text = self.text(value)
            kept = self.begun(text)
            return text[: len(text) - kept] if kept >= _TELLING else text
        if isinstance(value, dict):
            return {key: self.growing(item) for key, item in self.plain(value).items()}
        return [self.growing(item) for item in value] if isinstance(value, list | tuple) else self.plain(value)

    def text(self, text: str) -> str:
        for secret in self._all:
            if secret in text:
                text = text.replace(secret, _HIDDEN)
        return text

    def words(self, text: str) -> str:
        """What an error says, also without what only looks like a secret."""
        return redact(text, self._all)

    def begun(self, text: str) -> int:
        """How many letters at the end of a text may be the beginning of a secret."""
        most = 0
        for secret in self._all:
            for count in range(min(len(secret) - 1, len(text)), most, -1):
                if text.endswith(secret[:count]):
                    most = count
                    break
        return most


class RedactedStream:
    """A text that comes in pieces."""

    def __init__(self, secrets: ServiceRedactor) -> None:
        self._secrets = secrets
        self._held = ""

    def add(self, piece: str) -> str:
        """What may be shown of it by now."""
        text = self._secrets.text(self._held + piece)
        count = len(text) - self._secrets.begun(text)
        self._held = text[count:]
        return text[:count]

    def rest(self) -> str:
        """What was held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held
