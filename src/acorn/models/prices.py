"""What a token costs, for the native lanes: a small table beside this file, read when somebody first asks.

`make prices` writes the table from LiteLLM's; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import from_json

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
def _table() -> dict[str, dict[str, dict[str, Any]]]:
    table: dict[str, dict[str, dict[str, Any]]] = from_json(Path(__file__).with_name("prices.json").read_bytes())
    return table
