"""Redaction of secrets in the data that the page and the service send.

The page redacts known secrets and everything that looks like a key, because people only read its data. The service
redacts exactly the known secrets in answers, because programs process them further; in error messages it redacts
like the page. In a stream, a secret may arrive in pieces, so the possible beginning of a secret is held back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from acorn._inside import find_secrets, redact, to_json_data
from acorn.types import is_json_object, is_list_or_tuple

TEXT_LIMIT = 200_000
"""Characters of one text in a detail view."""

_MASK = "***"
_MIN_PREFIX = 4
"""A text that ends with this many characters of a secret, or more, is cut before them."""
_PAGE_MAX_DEPTH = 100
_SERVICE_MAX_DEPTH = 200
_SEPARATORS = " \t\r\n\"',}"
_KEY_PREFIX = re.compile(r"(?:\b(?:(?:sk|pk|rk|xai|gsk|hf|ghp|glpat)[-_]|AIza|AKIA|ASIA)|(?<=[Bb]earer ))[^\s\"',}]*\Z")
"""The end of a text that starts like a key and may continue."""


def json_bytes(redacted: object) -> bytes:
    """Encode redacted data as JSON. Lone surrogates are escaped."""
    return json.dumps(redacted, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def last_word_start(text: str) -> int:
    """Return where the last word of a text starts. A preceding `Bearer` is part of the word."""
    start = max(map(text.rfind, _SEPARATORS)) + 1
    return start - 7 if text[:start].lower().endswith("bearer ") else start


def _secret_prefix_length(text: str, secrets: Iterable[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of a known secret."""
    longest = 0
    for secret in secrets:
        for count in range(min(len(secret) - 1, len(text)), longest, -1):
            if text.endswith(secret[:count]):
                longest = count
                break
    return longest


class PageRedactor:
    """Redacts the secrets of the models and the environment, and everything that looks like a key."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {*secrets, *find_secrets()}
        known |= {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in known}  # as in the arguments of a call
        self._secrets = tuple(sorted(known, key=len, reverse=True))
        # Cut a text only after redaction of this many characters more, so that no half of a secret is left.
        self._margin = max(map(len, self._secrets), default=0) + 64

    def text(self, text: str, limit: int = TEXT_LIMIT) -> str:
        """Return a text without secrets, cut after `limit` characters."""
        if len(text) < 6:
            return text
        redacted = redact(text[: limit + self._margin], self._secrets)
        return redacted if len(redacted) <= limit else f"{redacted[:limit]}…"

    def data(self, value: Any, limit: int = TEXT_LIMIT, depth: int = 0) -> Any:
        """Redact JSON data, including the names of fields. Data that is nested too deep is omitted."""
        kind: object = value.__class__
        if kind is str:
            return self.text(value, limit)
        if depth > _PAGE_MAX_DEPTH:
            return "…"
        if kind is dict:
            return {self.text(str(key), limit): self.data(item, limit, depth + 1) for key, item in value.items()}
        if kind is list or kind is tuple:
            return [self.data(item, limit, depth + 1) for item in value]
        if kind is float and not math.isfinite(value):
            return str(value)
        return value

    def partial(self, value: object) -> object:
        """Remove the possible beginning of a secret from the end of each text in data that is still growing."""
        if is_json_object(value):
            return {key: self.partial(item) for key, item in value.items()}
        if is_list_or_tuple(value):
            return [self.partial(item) for item in value]
        return self.partial_text(value) if isinstance(value, str) else value

    def partial_text(self, text: str) -> str:
        """Remove the possible beginning of a secret from the end of a growing text."""
        prefix, key = self.secret_prefix_length(text), _KEY_PREFIX.search(text, last_word_start(text))
        end = len(text) - (prefix if prefix >= _MIN_PREFIX else 0)
        return text[: end if key is None else min(end, key.start())]

    def secret_prefix_length(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of a known secret."""
        return _secret_prefix_length(text, self._secrets)

    def safe_cut(self, text: str, end: int) -> int:
        """Return where to cut a text so that the cut at `end` does not divide a secret."""
        for secret in sorted(self._secrets, key=len):
            start = text.find(secret, max(0, end - len(secret) + 1))
            if 0 <= start < end < start + len(secret):
                return self.safe_cut(text, start)
        return end

    def json(self, value: object, limit: int = TEXT_LIMIT) -> bytes:
        """Redact JSON data and encode it."""
        return json_bytes(self.data(value, limit))


class ServiceRedactor:
    """Redacts the keys of a service, of its agent's models and of the environment."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets: Sequence[str] = tuple(sorted({*secrets, *find_secrets()}, key=len, reverse=True))
        self._escaped = tuple(json.dumps(secret, ensure_ascii=False)[1:-1] for secret in self._secrets)

    def json(self, value: object) -> bytes:
        """Encode any value as JSON without the secrets."""
        data = to_json_data(value)
        try:
            text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except ValueError:  # NaN and infinity have no JSON form.
            return json_bytes(self.data(data))
        if any(secret in text for secret in self._escaped):
            return json_bytes(self.data(data))
        return text.encode("utf-8", "backslashreplace")

    def data(self, value: object, depth: int = 0) -> object:
        """Redact JSON data, including the names of fields."""
        if isinstance(value, str):
            return self.text(value)
        if depth > _SERVICE_MAX_DEPTH:
            return "…"
        if is_json_object(value):
            return {self.text(str(key)): self.data(item, depth + 1) for key, item in value.items()}
        if is_list_or_tuple(value):
            return [self.data(item, depth + 1) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def partial(self, value: object) -> object:
        """Redact data that is still growing, including the beginning of a secret at the end of a text."""
        if isinstance(value, str):
            text = self.text(value)
            prefix = self.secret_prefix_length(text)
            return text[: len(text) - prefix] if prefix >= _MIN_PREFIX else text
        if is_json_object(value):
            redacted = self.data(value)
            assert is_json_object(redacted)
            return {key: self.partial(item) for key, item in redacted.items()}
        return [self.partial(item) for item in value] if is_list_or_tuple(value) else self.data(value)

    def text(self, text: str) -> str:
        """Return a text without the known secrets."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, _MASK)
        return text

    def error_text(self, text: str) -> str:
        """Return an error message without secrets and without everything that looks like one."""
        return redact(text, self._secrets)

    def secret_prefix_length(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of a secret."""
        return _secret_prefix_length(text, self._secrets)


class RedactedStream:
    """A text that arrives in pieces and is redacted piece by piece."""

    def __init__(self, redactor: ServiceRedactor) -> None:
        self._redactor = redactor
        self._buffer = ""

    def add(self, piece: str) -> str:
        """Add a piece and return the text that may be sent now."""
        text = self._redactor.text(self._buffer + piece)
        end = len(text) - self._redactor.secret_prefix_length(text)
        self._buffer = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the stream."""
        text, self._buffer = self._buffer, ""
        return text
