"""Decimal numbers: a union of a number and of a string that is one too, as `_schema` describes a `Decimal`.

The number has the bounds, the string's pattern says how many digits may come before the point and after it.
Called by the builder with each two neighbours among the options of a union.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from acorn._grammar.numbers import number

_ROW = re.compile(
    r"(?P<before>0|\\d\+|\\d\{1,(?P<whole>\d+)\})"
    r"(?P<after>\(\\\.(\\d\+|\\d\{1,(?P<places>\d+)\})\)\?|\\\.\\d\{1,(?P<needed>\d+)\})?"
)
_EXACT = 15
"""Digits that a JSON number keeps on its way."""


def decimal(bounds: Mapping[str, Any] | bool, text: Mapping[str, Any] | bool) -> list[str] | None:
    """The numbers that fit both, as JSON numbers; None where the two are something else."""
    if isinstance(bounds, bool) or isinstance(text, bool) or bounds.get("type") != "number":
        return None
    regex = str(text.get("pattern", ""))
    inner = regex.removeprefix("^-?").removesuffix("$").removeprefix("(").removesuffix(")")
    rows = [_ROW.fullmatch(row) for row in (inner.split("|") if "|" in inner else [regex[3:-1]])]
    if text.get("type") != "string" or not regex.startswith("^-?") or None in rows:
        return None
    return [made for row in rows if row for made in _numbers(bounds, row)]


def _numbers(bounds: Mapping[str, Any], row: re.Match[str]) -> Iterator[str]:
    """The numbers with as many digits as one row of the pattern has room for."""
    whole = 0 if row["before"] == "0" else min(int(row["whole"] or _EXACT), _EXACT)
    digits = row["places"] or row["needed"]
    places = min(int(digits), _EXACT) if digits else None if row["after"] else 0
    limit = Decimal(10) ** whole - Decimal(1).scaleb(-(places or 0))
    ranges = [(-limit, limit)]
    if row["needed"]:  # no digit before the point, not even that of a plain zero
        ranges = [(Decimal(1).scaleb(-(places or 0)), limit), (-limit, -Decimal(1).scaleb(-(places or 0)))]
    for low, high in ranges if row["whole"] or row["before"] == "0" else [(None, None)]:
        made = number(bounds, is_whole=places == 0, most_places=places, within=(low, high))
        if made is not None:
            yield made
