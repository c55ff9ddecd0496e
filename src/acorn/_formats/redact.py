"""Redaction of API keys and other secrets in log lines, error messages, records and displayed data.

`find_secrets` returns the secrets in settings and in the environment variables. A `Redactor` replaces these secrets in
texts, in JSON data and in a text that is still growing. `redact_by_name` replaces every value in nested data whose key
is a typical name of a secret, such as `api_key`.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any
from urllib.parse import unquote, urlsplit

from acorn.types import is_json_object, is_list_or_tuple, is_mapping

_SECRET_WORDS = ("key", "token", "secret", "password", "credential", "authorization", "cookie", "x-auth", "signature")
_SECRET_QUERY_NAMES = ("auth", "code", "pass", "pwd", "sig")
"""Names of URL query parameters that contain a secret. URLs often use such short names."""
_PUBLIC_WORDS = ("max_tokens", "max_completion_tokens", "cost_per_token", "budget_tokens", "key_path")
_PUBLIC_HEADERS = (
    *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "content-type", "http-referer"),
    *("openai-beta", "openai-organization", "openai-project", "user-agent", "x-title"),
)
# The formats of API keys from OpenAI, Anthropic, Google, AWS and GitHub, and of bearer tokens. A text may contain a key
# that is in neither the model dict nor the environment.
_KEY_FORMS = re.compile(
    r"\b(?:(?:sk|pk|rk|xai|gsk|hf|ghp|glpat)(?:-|_(?=[-_A-Za-z]*[0-9]))|AIza|AKIA|ASIA)[-_A-Za-z0-9]{8,}"
    r"|(?<=[Bb]earer )[^\s\"',}]{6,}"
)
_KEY_BEGINNING = re.compile(
    r"(?:\b(?:(?:sk|pk|rk|xai|gsk|hf|ghp|glpat)[-_]|AIza|AKIA|ASIA)|(?<=[Bb]earer ))[^\s\"',}]*\Z"
)
"""Matches a possible incomplete key at the end of a text."""
_SEPARATORS = " \t\r\n\"',}"
_MIN_LENGTH = 6
"""The minimum number of characters in a secret. A shorter value is not redacted, because it may be an ordinary word."""
_MIN_BEGINNING = 4
"""The minimum number of characters that are recognized as the beginning of a secret at the end of incomplete data."""
_MAX_DEPTH = 200
_NO_LIMIT = 10**9
_REDACTED = "***"


def is_secret_name(name: object) -> bool:
    """Return whether a setting, header or variable with this name usually contains a secret."""
    text = str(name).lower()
    return any(word in text for word in _SECRET_WORDS) and not any(word in text for word in _PUBLIC_WORDS)


def redact_by_name(value: Any) -> Any:
    """Return a copy of nested data with `***` in place of every value that has the name of a secret.

    For example, `api_key` and `password` are names of secrets.
    """
    if is_mapping(value):
        return {key: _REDACTED if is_secret_name(key) else redact_by_name(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(redact_by_name, value))
    return value


class Unpickled:
    """A value in the state of a copied object, whose pickle contains no secrets.

    `copy` keeps the value. In a pickle, `remove_secrets` removes the secrets.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type[Unpickled], tuple[Any]]:
        return Unpickled, (remove_secrets(self.value),)

    def __deepcopy__(self, memo: dict[int, Any]) -> Unpickled:
        return Unpickled(deepcopy(self.value, memo))


def remove_secrets(value: Any) -> Any:
    """Return a copy of settings, such as a model dict or the URL of a store, without secret keys and passwords."""
    if isinstance(value, str):
        return _without_password(value) if "://" in value else value
    if is_mapping(value):
        return {
            key: _public_headers(item) if str(key).lower().endswith("headers") else remove_secrets(item)
            for key, item in value.items()
            if isinstance(item, int | float) or not is_secret_name(key)  # A number such as `max_content_tokens`.
        }
    return type(value)(map(remove_secrets, value)) if type(value) in (list, tuple) else value


def _public_headers(headers: Any) -> Any:
    if not is_mapping(headers):
        return None
    return {name: value for name, value in headers.items() if str(name).lower() in _PUBLIC_HEADERS}


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
        user, host = parts.username, parts.netloc.rpartition("@")[2]
    except ValueError:
        return f"{url.partition('://')[0]}://"
    is_token = parts.password is None and not parts.scheme.startswith("postgres")
    netloc = host if is_token or not user else f"{user}@{host}"
    pairs = [pair for pair in parts.query.split("&") if not _is_secret_pair(pair)]
    return parts._replace(netloc=netloc, query="&".join(pairs)).geturl()


def _is_secret_pair(pair: str) -> bool:
    name = unquote(pair.partition("=")[0])
    return name in _SECRET_QUERY_NAMES or is_secret_name(name)


def find_secrets(settings: object = None) -> set[str]:
    """Return all secret texts in the environment variables and in settings, such as a model dict or a URL."""
    secrets: set[str] = set()
    for value, is_secret in _strings(settings):
        if is_secret:
            secrets |= {value, value.rpartition(" ")[2]}  # The secret also without a prefix such as `Bearer`.
        if "://" in value:
            secrets |= _secrets_in_url(value)
    for name, value in os.environ.items():
        if is_secret_name(name):
            secrets.add(value)
        if name.lower().endswith("_proxy"):
            secrets |= _secrets_in_url(value)
    return {secret for secret in secrets if len(secret) >= _MIN_LENGTH}


class Redactor:
    """An object that replaces secrets with `***` in texts, in JSON data and in a text that is still growing.

    It replaces the given secrets. With `finds_keys`, it also replaces every word that looks like an API key. Set
    `finds_keys` to False for data that programs process further, because such a word may be an ordinary id. `limit` is
    the maximum number of characters of each text. A longer text is cut.
    """

    def __init__(self, secrets: Iterable[str] = (), *, finds_keys: bool = True, limit: int = _NO_LIMIT) -> None:
        known = {*secrets} - {""}
        # Some texts are JSON, such as the arguments of tool calls. JSON escapes some characters of a secret.
        known |= {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in known}
        self._secrets = sorted(known, key=len, reverse=True)
        self._finds_keys = finds_keys
        self._limit = limit
        self._shortest = min(_MIN_LENGTH, *map(len, known)) if known else _MIN_LENGTH
        # The redactor also checks this number of characters after a cut, so that no part of a secret remains.
        self._margin = max(map(len, known), default=0) + 64

    def text(self, text: str, limit: int | None = None) -> str:
        """Return a text with secrets redacted, cut after `limit` characters."""
        if len(text) < self._shortest:
            return text
        limit = self._limit if limit is None else limit
        text = text[: limit + self._margin]
        for secret in self._secrets:
            text = text.replace(secret, _REDACTED)
        if self._finds_keys:
            text = _KEY_FORMS.sub(_REDACTED, text)
        return text if len(text) <= limit else f"{text[:limit]}…"

    def data(self, value: Any, limit: int | None = None) -> Any:
        """Return a copy of JSON data in which all keys and texts are redacted. Data that is nested too deep is omitted.

        The data may also contain tuples and bytes.
        """
        return self._map(value, self.text, limit, 0)

    def partial(self, value: Any, limit: int | None = None) -> Any:
        """Return a copy of incomplete JSON data with secrets redacted.

        The possible beginning of a secret is removed from the end of each text.
        """
        return self._map(value, self._incomplete_text, limit, 0)

    def split(self, text: str) -> tuple[str, str]:
        """Split a growing text into a redacted part that may be shown now, and the rest.

        The rest may be the beginning of a secret. Append the next chunk to it and split again. When the text is
        complete, redact the rest with `text`.
        """
        end = len(text) - self._beginning_length(text)
        if self._finds_keys:
            end = min(end, _last_word_start(text))
        end = self._safe_cut(text, end)
        return self.text(text[:end]), text[end:]

    def _map(self, value: Any, change: Callable[[str, int | None], str], limit: int | None, depth: int) -> Any:
        if isinstance(value, str):
            return change(value, limit)
        if depth > _MAX_DEPTH:
            return "…"
        if is_json_object(value):
            return {
                self.text(str(key), limit): self._map(item, change, limit, depth + 1) for key, item in value.items()
            }
        if is_list_or_tuple(value):
            items = [self._map(item, change, limit, depth + 1) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        return change(value.decode("utf-8", "replace"), limit).encode() if isinstance(value, bytes) else value

    def _incomplete_text(self, text: str, limit: int | None) -> str:
        text = self.text(text, limit)
        length = self._beginning_length(text)
        end = len(text) - (length if length >= _MIN_BEGINNING else 0)
        key = _KEY_BEGINNING.search(text, _last_word_start(text)) if self._finds_keys else None
        return text[: end if key is None else min(end, key.start())]

    def _beginning_length(self, text: str) -> int:
        """Return the length of the text end that may be the beginning of a known secret, or 0."""
        beginnings = (secret[:count] for secret in self._secrets for count in range(1, len(secret)))
        return max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)

    def _safe_cut(self, text: str, end: int) -> int:
        """Return the greatest index up to `end` at which the text can be cut without dividing a known secret."""
        for secret in self._secrets:
            start = text.find(secret, max(0, end - len(secret) + 1))
            if 0 <= start < end < start + len(secret):
                return self._safe_cut(text, start)
        return end


def _last_word_start(text: str) -> int:
    """Return the index at which the last word of a text starts.

    If the word before it ends with `Bearer`, return the start of that word, because an API key may follow `Bearer`.
    """
    end = len(text)
    while True:
        start = max(text.rfind(separator, 0, end) for separator in _SEPARATORS) + 1
        if text[max(0, start - 7) : start].lower() != "bearer ":
            return start
        end = start - 1


def _strings(value: object, is_secret: bool = False) -> Iterable[tuple[str, bool]]:
    """Yield each text in nested data, and whether the name of a key around it is the name of a secret."""
    if isinstance(value, str):
        yield value, is_secret
    elif is_mapping(value):
        for key, item in value.items():
            if str(key).lower().endswith("headers") and is_mapping(item):
                # A custom header may contain an API key even if its name does not suggest it.
                for name, header in item.items():
                    yield from _strings(header, str(name).lower() not in _PUBLIC_HEADERS)
            else:
                yield from _strings(item, is_secret or is_secret_name(key))
    elif is_list_or_tuple(value):
        for item in value:
            yield from _strings(item, is_secret)


def _secrets_in_url(url: str) -> set[str]:
    try:
        parts = urlsplit(url)
        user, password = parts.username or "", parts.password or ""
    except ValueError:
        return set()
    if password:
        basic = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        secrets = {password, f"{user}:{password}", basic}
    else:
        secrets = {user}  # A user name without a password is usually a token.
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    secrets |= {value for name, _, value in pairs if name in _SECRET_QUERY_NAMES or is_secret_name(name)}
    return secrets | {unquote(secret) for secret in secrets}
