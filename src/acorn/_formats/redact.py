"""Keeping keys out of everything that is shown: which names mean a secret, and how a text is cleaned of them."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

_NAMES = ("key", "token", "secret", "password", "credential", "authorization", "cookie", "x-auth", "signature")
_IN_ADDRESSES = ("auth", "code", "pass", "pwd", "sig")
"""Names that mean a secret in the query of an address, where the usual ones are shortened."""
_NOT_SECRET = ("max_tokens", "max_completion_tokens", "cost_per_token", "budget_tokens", "key_path")
_PLAIN_HEADERS = (
    *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "content-type", "http-referer"),
    *("openai-beta", "openai-organization", "openai-project", "user-agent", "x-title"),
)
# What keys look like, for those that nobody told us of: OpenAI, Anthropic, Google, AWS, GitHub and bearer tokens.
_SHAPES = re.compile(
    r"\b(?:(?:sk|pk|rk|xai|gsk|hf|ghp|glpat)(?:-|_(?=[-_A-Za-z]*[0-9]))|AIza|AKIA|ASIA)[-_A-Za-z0-9]{8,}"
    r"|(?<=[Bb]earer )[^\s\"',}]{6,}"
)
_HIDDEN = "***"


def is_secret_name(name: object) -> bool:
    """Whether a value of this name is not to be shown."""
    text = str(name).lower()
    return any(word in text for word in _NAMES) and not any(word in text for word in _NOT_SECRET)


def redact_by_name(value: Any) -> Any:
    """The value with what its keys call secret hidden."""
    if isinstance(value, Mapping):
        return {key: _HIDDEN if is_secret_name(key) else redact_by_name(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(redact_by_name, value))
    return value


def find_secrets(config: Mapping[str, Any]) -> set[str]:
    """Every string in a model dict, its addresses and the environment that is a secret."""
    found = set(_strings_called_secret(config))
    for value in _all_strings(config):
        if "://" in value:
            found |= _in_address(value)
    for name, value in os.environ.items():
        found |= {value} if is_secret_name(name) else set()
        found |= _in_address(value) if name.lower().endswith("_proxy") else set()
    return {secret for secret in found if len(secret) >= 6}


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets, and without anything that looks like one."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return _SHAPES.sub(_HIDDEN, text)


def _strings_called_secret(value: Any, is_secret: bool = False) -> Iterable[str]:
    if isinstance(value, str) and is_secret:
        yield value
        yield value.rpartition(" ")[2]  # without `Bearer` or `Basic`
    elif isinstance(value, Mapping):
        for key, item in value.items():
            own = _keys_of(item) if str(key).lower().endswith("headers") and isinstance(item, Mapping) else item
            yield from _strings_called_secret(own, is_secret or own is not item or is_secret_name(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings_called_secret(item, is_secret)


def _keys_of(headers: Mapping[Any, Any]) -> list[Any]:
    """Any header may be a key, whatever it is called, but for those that everybody knows."""
    return [value for name, value in headers.items() if str(name).lower() not in _PLAIN_HEADERS]


def _all_strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _all_strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _all_strings(item)


def _in_address(address: str) -> set[str]:
    try:
        parts = urlsplit(address)
        who, secret = parts.username or "", parts.password or ""
    except ValueError:
        return set()
    found = {secret, f"{who}:{secret}", b64encode(f"{unquote(who)}:{unquote(secret)}".encode()).decode()}
    found = found if secret else {who}  # alone, a name is a token
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    found |= {value for name, _, value in pairs if name in _IN_ADDRESSES or is_secret_name(name)}
    return found | {unquote(each) for each in found}
