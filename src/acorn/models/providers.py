"""Tables of the providers: API keys, addresses and model prices.

The table of API keys covers the most used providers, so that acorn reports a missing key before it sends a request.
LiteLLM checks the keys of all other providers. `prices.json` contains the prices of the models of the native lanes, and
acorn loads it on first use. `make prices` generates the file from LiteLLM's price table, and a test compares both.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json

from acorn.errors import ModelError
from acorn.models.port import Price
from acorn.types import JsonObject, Usage


class _Provider(NamedTuple):
    """A row of the provider table: the environment variables and the default address of one provider."""

    keys: tuple[str, ...]
    """The environment variables that may contain the API key. An error message mentions only the first variable."""
    address_variables: tuple[str, ...] = ()
    """The environment variables that may contain a custom address."""
    address: str = ""
    """The default address of the provider, or "" if the provider has no native lane."""


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
_CREDENTIAL_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_IDS_WITHOUT_PROVIDER = {"openai": re.compile(r"gpt-\d|o\d|chatgpt-"), "anthropic": re.compile(r"claude-")}
_NO_PROVIDER = _Provider(())


def provider_in_id(name: str) -> str:
    """Return the provider that a model id names, such as `openai` for `openai/gpt-4o`, or "" if it is unknown.

    For a model id without a prefix, the provider is known only if the id begins like a model of OpenAI or Anthropic.
    """
    if "/" in name:
        return name.partition("/")[0]
    return next((provider for provider, ids in _IDS_WITHOUT_PROVIDER.items() if ids.match(name)), "")


def address_of(provider: str, config: JsonObject) -> str:
    """Return the server address in the model dict, or else in an environment variable, or else the default address."""
    row = _PROVIDERS.get(provider, _NO_PROVIDER)
    address = config.get("base_url") or config.get("api_base")
    if not address:
        address = next(filter(None, map(os.environ.get, row.address_variables)), row.address)
    return str(address).rstrip("/")


def custom_address(provider: str, config: JsonObject) -> str | None:
    """Return the server address that the user set in the model dict or in an environment variable.

    Return None if requests go to the default address of the provider.
    """
    address = address_of(provider, config)
    return None if address == _PROVIDERS.get(provider, _NO_PROVIDER).address else address


def find_api_key(config: JsonObject, *variables: str) -> str | None:
    """Return the API key in the model dict, or else in one of the environment variables.

    Return None if none is set.
    """
    candidates = (config.get("api_key"), *map(os.environ.get, variables))
    return next((str(candidate) for candidate in candidates if candidate and str(candidate).strip()), None)


def check_key(name: str, provider: str, config: JsonObject) -> None:
    """Raise `ModelError` if the API key for a provider is missing.

    No API key is needed if the user set a custom address or a header with credentials. Providers that are not in
    acorn's table are not checked.
    """
    row = _PROVIDERS.get(provider)
    if row is None or find_api_key(config, *row.keys):
        return
    headers: JsonObject = {**(config.get("headers") or {}), **(config.get("extra_headers") or {})}
    if any(str(header).lower() in _CREDENTIAL_HEADERS for header in headers) or custom_address(provider, config):
        return
    raise ModelError(
        f"`{row.keys[0]}` is not set, but `{name}` needs it. Set it in the environment, "
        "or set `api_key` in the model dict.",
        provider=provider,
    )


@dataclass(frozen=True)
class ListedPrice(Price):
    """The price of a model in acorn's price table."""

    written_hour: float | None = None
    """The price of an input token that the provider adds to its cache for one hour."""
    long_prompt: JsonObject | None = None
    """The prices that replace these prices if a prompt has more tokens than its key `tokens`."""
    max_output: int | None = None
    """The maximum tokens of a response."""

    def of(self, usage: Usage, hour_tokens: int = 0) -> float:
        """Return the cost in dollars of the tokens in `usage`, `hour_tokens` of which were cached for one hour."""
        if self.long_prompt is not None and usage.input_tokens > self.long_prompt["tokens"]:
            prices = {name: value for name, value in self.long_prompt.items() if name != "tokens"}
            return replace(self, **prices, long_prompt=None).of(usage, hour_tokens)
        dollars = super().of(usage)
        if self.written is not None and self.written_hour is not None:
            dollars += hour_tokens * (self.written_hour - self.written)
        return dollars


@lru_cache(maxsize=256)
def listed_price(provider: str, name: str) -> ListedPrice | None:
    """Return the price of a model, or None if acorn's price table does not contain the model."""
    row = _price_table().get(provider, {}).get(name)
    return None if row is None else ListedPrice(**row)


@lru_cache(maxsize=1)
def _price_table() -> dict[str, dict[str, JsonObject]]:
    table: dict[str, dict[str, JsonObject]] = from_json(Path(__file__).with_name("prices.json").read_bytes())
    return table
