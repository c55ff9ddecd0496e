"""What must be there before a provider can be asked: the key it needs, and whether somebody else is asked in its place.

A small table of the providers that are used most, so that a missing key is told at once; of the others LiteLLM knows.

What a token costs, for the native lanes: a small table beside this file, read when somebody first asks.

`make prices` writes the table from LiteLLM's; a test compares the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from acorn.errors import ModelError
from acorn.types import JsonObject


class _Provider(NamedTuple):
    keys: tuple[str, ...]
    """Variables, any of which holds the key; the first is named where none is set."""
    addresses: tuple[str, ...] = ()
    """Variables that name another address."""
    home: str = ""
    """The address of the provider itself, where a native lane speaks to it."""


_PROVIDERS = {
    "openai": _Provider(("OPENAI_API_KEY",), ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "https://api.openai.com/v1"),
    "anthropic": _Provider(
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"),
        "https://api.anthropic.com",
    ),
    "gemini": _Provider(("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("GEMINI_API_BASE",)),
    "mistral": _Provider(("MISTRAL_API_KEY", "MISTRAL_AZURE_API_KEY"), ("MISTRAL_API_BASE", "MISTRAL_AZURE_API_BASE")),
    "groq": _Provider(("GROQ_API_KEY",), ("GROQ_API_BASE",)),
    "deepseek": _Provider(("DEEPSEEK_API_KEY",), ("DEEPSEEK_API_BASE",)),
    "xai": _Provider(("XAI_API_KEY",), ("XAI_API_BASE",)),
    "openrouter": _Provider(("OPENROUTER_API_KEY", "OR_API_KEY"), ("OPENROUTER_API_BASE",)),
    "together_ai": _Provider(
        ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_AI_TOKEN"),
        ("TOGETHER_AI_API_BASE",),
    ),
    "cohere": _Provider(("COHERE_API_KEY", "CO_API_KEY"), ("COHERE_API_BASE",)),
    "cohere_chat": _Provider(("COHERE_API_KEY", "CO_API_KEY"), ("COHERE_API_BASE",)),
    "perplexity": _Provider(("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"), ("PERPLEXITY_API_BASE",)),
    "cerebras": _Provider(("CEREBRAS_API_KEY",), ("CEREBRAS_API_BASE",)),
}
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_BARE = {"openai": re.compile(r"gpt-\d|o\d|chatgpt-"), "anthropic": re.compile(r"claude-")}
_OWN = ("base_url", "api_base")


def provider_by_name(name: str) -> str:
    """The provider of a model id; of one that names none, of the table's where it is certain, else ""."""
    if "/" in name:
        return name.partition("/")[0]
    return next((provider for provider, ids in _BARE.items() if ids.match(name)), "")


def own_address(provider: str, config: Mapping[str, Any]) -> str | None:
    """The address that the user has given, in the dict or in the environment; None for that of the provider itself."""
    known = _PROVIDERS.get(provider, _Provider(()))
    found = (*(config.get(name) for name in _OWN), *map(os.environ.get, known.addresses))
    given = next((str(each).rstrip("/") for each in found if each), None)
    return None if given is not None and given == known.home else given


def key_of(config: Mapping[str, Any], *variables: str) -> str | None:
    """The key that the user has given, in the dict or in a variable; blanks are none."""
    found = (config.get("api_key"), *map(os.environ.get, variables))
    return next((str(each) for each in found if each and str(each).strip()), None)


def check_key(name: str, provider: str, config: Mapping[str, Any]) -> None:
    """Raise where a provider of the table would be asked without a key."""
    known = _PROVIDERS.get(provider)
    if known is None or key_of(config, *known.keys):
        return
    headers = {**(config.get("headers") or {}), **(config.get("extra_headers") or {})}
    if any(str(header).lower() in _CREDENTIALS for header in headers) or own_address(provider, config):
        return
    raise ModelError(
        f"{known.keys[0]} is not set; {name} needs it. Set it in the environment, or give `api_key` in the model dict.",
        provider=provider,
    )


_MILLION = 1_000_000


@dataclass(frozen=True)
class Tokens:
    """What a request used, as its price depends on it."""

    input: int
    """All of the prompt, what was cached included."""
    output: int
    cached: int = 0
    """Read from a cache."""
    written: int = 0
    """Written to a cache."""
    written_hour: int = 0
    """Written to a cache that holds for an hour."""


@dataclass(frozen=True)
class Prices:
    """Dollars a million tokens; what is not said costs as input does."""

    input: float
    output: float
    cached: float | None = None
    written: float | None = None
    written_hour: float | None = None
    beyond: Mapping[str, Any] | None = field(default=None, hash=False)
    """Other prices, for prompts of more than `tokens`."""
    longest: int | None = None
    """Tokens of the longest answer."""

    def of(self, used: Tokens) -> float:
        """Dollars."""
        if self.beyond is not None and used.input > self.beyond["tokens"]:
            dear = {name: value for name, value in self.beyond.items() if name != "tokens"}
            return replace(self, **dear, beyond=None).of(used)
        fresh = used.input - used.cached - used.written - used.written_hour
        written = self.input if self.written is None else self.written
        dollars = (
            fresh * self.input
            + used.cached * (self.input if self.cached is None else self.cached)
            + used.written * written
            + used.written_hour * (written if self.written_hour is None else self.written_hour)
            + used.output * self.output
        )
        return dollars / _MILLION


@lru_cache(maxsize=256)
def prices_of(provider: str, name: str) -> Prices | None:
    """The prices of a model; None where nobody knows them."""
    known = _table().get(provider, {}).get(name)
    return None if known is None else Prices(**known)


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, JsonObject]]:
    table: dict[str, dict[str, JsonObject]] = from_json(Path(__file__).with_name("prices.json").read_bytes())
    return table
