"""Redaction of API keys and other secrets in log lines, error messages and displayed data.

Callers combine three functions:

- `find_secrets` returns the secrets in a model dict and in the environment variables.
- `redact` replaces these secrets in a text, and also every word that looks like an API key.
- `redact_by_name` replaces every value in nested data whose key is a typical name of a secret, such as `api_key`.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from acorn.types import is_list_or_tuple, is_mapping

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
_MIN_LENGTH = 6
"""The minimum number of characters in a secret. A shorter value is not redacted, because it may be an ordinary word."""
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


def find_secrets(config: Mapping[str, object]) -> set[str]:
    """Return the set of all secret texts in a model dict, in its URLs and in the environment variables."""
    secrets = set(_strings_under_secret_names(config))
    for value in _all_strings(config):
        if "://" in value:
            secrets |= _secrets_in_url(value)
    for name, value in os.environ.items():
        if is_secret_name(name):
            secrets.add(value)
        if name.lower().endswith("_proxy"):
            secrets |= _secrets_in_url(value)
    return {secret for secret in secrets if len(secret) >= _MIN_LENGTH}


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace the given secrets, and every word that looks like an API key, with `***` in a text."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _REDACTED)
    return _KEY_FORMS.sub(_REDACTED, text)


def _strings_under_secret_names(value: object, is_secret: bool = False) -> Iterable[str]:
    if isinstance(value, str) and is_secret:
        yield value
        yield value.rpartition(" ")[2]  # The secret alone, without a prefix such as `Bearer` or `Basic`.
    elif is_mapping(value):
        for key, item in value.items():
            if str(key).lower().endswith("headers") and is_mapping(item):
                yield from _strings_under_secret_names(_private_headers(item), is_secret=True)
            else:
                yield from _strings_under_secret_names(item, is_secret or is_secret_name(key))
    elif is_list_or_tuple(value):
        for item in value:
            yield from _strings_under_secret_names(item, is_secret)


def _private_headers(headers: Mapping[str, object]) -> list[object]:
    """Return the values of all HTTP headers except well-known public headers.

    A custom header may contain an API key even if its name does not suggest it.
    """
    return [value for name, value in headers.items() if str(name).lower() not in _PUBLIC_HEADERS]


def _all_strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif is_mapping(value):
        for item in value.values():
            yield from _all_strings(item)
    elif is_list_or_tuple(value):
        for item in value:
            yield from _all_strings(item)


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
