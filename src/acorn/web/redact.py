"""Redaction of secrets in the data that the page and the service send.

The page redacts known secrets and every text that looks like an API key, because only people read its data. The service
redacts only known secrets in its answers, because programs process the answers further. In error messages, the service
also redacts texts that look like an API key. In a stream, a secret may be divided between chunks. Therefore text that
may be the beginning of a secret is not sent until the next chunk arrives.
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
"""The maximum number of characters of one text in a detail view."""
STREAM_LIMIT = 20_000
"""The maximum number of characters of one text in a stream."""
PREVIEW_LIMIT = 140
"""The maximum number of characters of the preview of a row."""

_MASK = "***"
_MIN_PREFIX = 4
"""The minimum number of characters that are recognized as the beginning of a secret at the end of a text."""
_PAGE_MAX_DEPTH = 100
_SERVICE_MAX_DEPTH = 200
_SEPARATORS = " \t\r\n\"',}"
_KEY_PREFIX = re.compile(r"(?:\b(?:(?:sk|pk|rk|xai|gsk|hf|ghp|glpat)[-_]|AIza|AKIA|ASIA)|(?<=[Bb]earer ))[^\s\"',}]*\Z")
"""Matches a possible incomplete key at the end of a text."""


def json_bytes(redacted: object) -> bytes:
    """Encode JSON data as bytes. The data must already be redacted.

    Lone surrogates are escaped, because UTF-8 cannot encode them.
    """
    return json.dumps(redacted, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def last_word_start(text: str) -> int:
    """Return the index at which the last word of a text starts.

    If the word `Bearer` precedes the last word, return the index of `Bearer`, because an API key may follow it.
    """
    start = max(map(text.rfind, _SEPARATORS)) + 1
    return start - 7 if text[:start].lower().endswith("bearer ") else start


def _secret_prefix_length(text: str, secrets: Iterable[str]) -> int:
    """Return the length of the text end that may be the beginning of a known secret.

    Return 0 if the text does not end with the beginning of a secret.
    """
    longest = 0
    for secret in secrets:
        for count in range(min(len(secret) - 1, len(text)), longest, -1):
            if text.endswith(secret[:count]):
                longest = count
                break
    return longest


class PageRedactor:
    """The redactor of the page.

    It redacts the secrets of the models, the secrets in the environment variables, and texts that look like an API key.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = {*secrets, *find_secrets()}
        known |= {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in known}  # Arguments of tool calls are JSON.
        self._secrets = tuple(sorted(known, key=len, reverse=True))
        # The redactor also checks this number of characters after a cut, so that no part of a secret remains.
        self._margin = max(map(len, self._secrets), default=0) + 64

    def text(self, text: str, limit: int = TEXT_LIMIT) -> str:
        """Return a text with secrets redacted, cut after `limit` characters."""
        if len(text) < 6:
            return text
        redacted = redact(text[: limit + self._margin], self._secrets)
        return redacted if len(redacted) <= limit else f"{redacted[:limit]}…"

    def data(self, value: Any, limit: int = TEXT_LIMIT, depth: int = 0) -> Any:
        """Return JSON data in which all JSON keys and values are redacted.

        Data that is nested too deep is omitted.
        """
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
        """Remove the possible beginning of a secret from the end of each text in incomplete JSON data."""
        if is_json_object(value):
            return {key: self.partial(item) for key, item in value.items()}
        if is_list_or_tuple(value):
            return [self.partial(item) for item in value]
        return self.partial_text(value) if isinstance(value, str) else value

    def partial_text(self, text: str) -> str:
        """Remove the possible beginning of a secret from the end of an incomplete text."""
        prefix, key = self.secret_prefix_length(text), _KEY_PREFIX.search(text, last_word_start(text))
        end = len(text) - (prefix if prefix >= _MIN_PREFIX else 0)
        return text[: end if key is None else min(end, key.start())]

    def secret_prefix_length(self, text: str) -> int:
        """Return the length of the text end that may be the beginning of a known secret.

        Return 0 if the text does not end with the beginning of a secret.
        """
        return _secret_prefix_length(text, self._secrets)

    def safe_cut(self, text: str, end: int) -> int:
        """Return the greatest index up to `end` at which the text can be cut without dividing a secret."""
        for secret in sorted(self._secrets, key=len):
            start = text.find(secret, max(0, end - len(secret) + 1))
            if 0 <= start < end < start + len(secret):
                return self.safe_cut(text, start)
        return end

    def json(self, value: object, limit: int = TEXT_LIMIT) -> bytes:
        """Redact JSON data, and encode the result as bytes."""
        return json_bytes(self.data(value, limit))


class ServiceRedactor:
    """The redactor of a service.

    It redacts the access keys of the service, the secrets of the models and the secrets in the environment variables.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets: Sequence[str] = tuple(sorted({*secrets, *find_secrets()}, key=len, reverse=True))
        self._escaped = tuple(json.dumps(secret, ensure_ascii=False)[1:-1] for secret in self._secrets)

    def json(self, value: object) -> bytes:
        """Redact the secrets in a value, and encode the result as JSON bytes."""
        data = to_json_data(value)
        try:
            text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except ValueError:  # NaN and infinity have no JSON form.
            return json_bytes(self.data(data))
        if any(secret in text for secret in self._escaped):
            return json_bytes(self.data(data))
        return text.encode("utf-8", "backslashreplace")

    def data(self, value: object, depth: int = 0) -> object:
        """Return JSON data in which all JSON keys and values are redacted."""
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
        """Return incomplete JSON data with secrets redacted.

        The possible beginning of a secret is removed from the end of each text.
        """
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
        """Return a text in which all known secrets are redacted."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, _MASK)
        return text

    def error_text(self, text: str) -> str:
        """Return an error message in which known secrets and texts that look like an API key are redacted."""
        return redact(text, self._secrets)

    def secret_prefix_length(self, text: str) -> int:
        """Return the length of the text end that may be the beginning of a known secret.

        Return 0 if the text does not end with the beginning of a secret.
        """
        return _secret_prefix_length(text, self._secrets)


class RedactedStream:
    """A streamed text in which secrets are redacted, even if a secret is divided between chunks.

    Text that may be the beginning of a secret is held back until more text arrives.
    """

    def __init__(self, redactor: ServiceRedactor) -> None:
        self._redactor = redactor
        self._buffer = ""

    def add(self, new_text: str) -> str:
        """Add a chunk of text, and return the redacted text that may be sent now."""
        text = self._redactor.text(self._buffer + new_text)
        end = len(text) - self._redactor.secret_prefix_length(text)
        self._buffer = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that was held back.

        Call this method at the end of the stream.
        """
        text, self._buffer = self._buffer, ""
        return text
