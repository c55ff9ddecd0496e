"""What `rate_limit` and `max_concurrency` say, checked, and the class that they are counted by.

The class whose attribute it is: subclasses that inherit a limit share it. What an instance, `using` or `override` sets
is counted by the class of the instance, and by its value. `_spec` reads it, `models/throttle.py` keeps to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from acorn._json import excerpt
from acorn.errors import DeclarationError

Limit = TypeVar("Limit")
_KEYS = ("requests", "tokens", "per", "shared")


@dataclass(frozen=True)
class RateLimit:
    """So much in any window of so many seconds; None is no limit."""

    requests: int | None
    tokens: int | None
    per: float = 60.0
    shared: bool = False
    """Whether all machines that use one store count together, and not each process for itself."""


class Counted(NamedTuple, Generic[Limit]):
    """A limit, and the class whose requests it counts."""

    limit: Limit
    of: type


def read_rate_limit(value: Any, owner: str) -> RateLimit | None:
    """A `rate_limit` as a user declares it."""
    if value is None:
        return None
    where = f"`{owner}.rate_limit"
    if not isinstance(value, Mapping):
        raise DeclarationError(
            f"{where}` must be a dict such as {{'requests': 60, 'tokens': 100_000, 'per': 60}}, or None, "
            f"got {excerpt(value)}."
        )
    if unknown := [key for key in value if key not in _KEYS]:
        raise DeclarationError(
            f"{where}` has the key {excerpt(unknown[0])}; it takes 'requests', 'tokens', 'per' (seconds) and 'shared'."
        )
    for key in ("requests", "tokens"):
        if key in value and not _is_count(value[key]):
            raise DeclarationError(
                f"{where}[{key!r}]` must be a whole number of at least 1, got {excerpt(value[key])}."
            )
    if "requests" not in value and "tokens" not in value:
        raise DeclarationError(f"{where}` must say how many 'requests' or 'tokens', or both, got {excerpt(value)}.")
    if not _is_seconds(value.get("per", 60)):
        raise DeclarationError(f"{where}['per']` must be seconds above 0, got {excerpt(value['per'])}.")
    if not isinstance(value.get("shared", False), bool):
        raise DeclarationError(f"{where}['shared']` must be True or False, got {excerpt(value['shared'])}.")
    per = float(value.get("per", 60))
    return RateLimit(value.get("requests"), value.get("tokens"), per, value.get("shared", False))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
