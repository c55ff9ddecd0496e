"""Numbers within bounds: digit by digit, so that every prefix can still become a number that fits.

Called by the builder with what a schema says of an integer or a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from acorn._grammar.notation import choice, json_literal, literal, repeat, sequence

_PLACES = 6
"""Decimal places of a number whose bounds ask for no more."""
_MOST_PLACES = 15
_LIMIT = Decimal(10) ** 15 - 1
"""The largest number where the schema names no bound; a double still holds it exactly."""
_MULTIPLES = 200
"""How many multiples are offered of a `multipleOf`."""


def number(schema: Mapping[str, Any], *, is_whole: bool) -> str | None:
    """A number that fits a schema's bounds, or None where there is none."""
    low, high, places = _bounds(schema, is_whole)
    if low > high:
        return None
    if step := schema.get("multipleOf"):
        return _multiples(_exact(step), low, high, is_whole)
    parts: list[str] = []
    if high >= 0:
        parts.append(_from_zero(max(low, Decimal(0)), high, places))
    if low < 0:
        smallest = Decimal(1).scaleb(-places)
        if -low >= max(-high, smallest):
            parts.append(sequence('"-"', _from_zero(max(-high, smallest), -low, places)))
    return choice(parts) if parts else None


def _exact(value: Any) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _bounds(schema: Mapping[str, Any], is_whole: bool) -> tuple[Decimal, Decimal, int]:
    """The lowest and the highest number that is allowed, both included, and how many decimal places count."""
    given = {key: _exact(schema[key]) for key in _BOUNDS if _is_number(schema.get(key))}
    exponents = [int(bound.as_tuple().exponent) for bound in given.values()]
    places = 0 if is_whole else min(_MOST_PLACES, max([_PLACES, *(1 - exponent for exponent in exponents)]))
    unit = Decimal(1).scaleb(-places)
    lows = [_rounded(given[key], unit, ROUND_CEILING) for key in ("minimum", "exclusiveMinimum") if key in given]
    highs = [_rounded(given[key], unit, ROUND_FLOOR) for key in ("maximum", "exclusiveMaximum") if key in given]
    if "exclusiveMinimum" in given and lows[-1] == given["exclusiveMinimum"]:
        lows[-1] += unit
    if "exclusiveMaximum" in given and highs[-1] == given["exclusiveMaximum"]:
        highs[-1] -= unit
    low, high = max(lows, default=None), min(highs, default=None)
    if low is None:
        low = -_LIMIT if high is None or high > -_LIMIT else high * 10
    if high is None:
        high = _LIMIT if low < _LIMIT else low * 10
    return low, high, places


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rounded(value: Decimal, unit: Decimal, how: str) -> Decimal:
    bound = max(min(value, _LIMIT * _LIMIT), -_LIMIT * _LIMIT)
    return (bound / unit).to_integral_value(how) * unit


def _multiples(step: Decimal, low: Decimal, high: Decimal, is_whole: bool) -> str | None:
    first = (low / step).to_integral_value(ROUND_CEILING)
    last = (high / step).to_integral_value(ROUND_FLOOR)
    start = max(first, min(Decimal(0), last - _MULTIPLES))
    counts = range(int(start), int(min(last, start + _MULTIPLES)) + 1)
    values = [count * step for count in counts]
    known = [int(value) if value == int(value) else float(value) for value in values if not is_whole or value % 1 == 0]
    return choice(map(json_literal, known)) if known else None


def _from_zero(low: Decimal, high: Decimal, places: int) -> str:
    """From `low` to `high`, neither below zero."""
    first, last = int(low), int(high)
    if places == 0:
        return _whole(first, last)
    bottom, top = _decimals(low, places), _decimals(high, places)
    zeros, nines = "0" * places, "9" * places
    if first == last:
        return sequence(literal(str(first)), _fraction(bottom, top))
    parts = [sequence(literal(str(first)), _fraction(bottom, nines))] if bottom != zeros else []
    parts += [sequence(literal(str(last)), _fraction(zeros, top))] if top != nines else []
    inner_first, inner_last = first + (bottom != zeros), last - (top != nines)
    if inner_first <= inner_last:
        parts.append(sequence(_whole(inner_first, inner_last), _fraction(zeros, nines)))
    return choice(parts)


def _decimals(value: Decimal, places: int) -> str:
    return str(int((value - int(value)).scaleb(places))).zfill(places)


def _whole(low: int, high: int) -> str:
    """A whole number from `low` to `high`, neither below zero, without leading zeros."""
    parts: list[str] = []
    if low == 0:
        parts.append('"0"')
        low = 1
    full: list[int] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first, last = max(low, 10 ** (length - 1)), min(high, 10**length - 1)
        if first > last:
            continue
        if (first, last) == (10 ** (length - 1), 10**length - 1):
            full.append(length)
        else:
            parts.append(_between(str(first), str(last)))
    if full:
        parts.append(sequence("[1-9]", repeat("[0-9]", full[0] - 1, full[-1] - 1)))
    return choice(parts)


def _between(low: str, high: str) -> str:
    """The digits from `low` to `high`, as many as these have."""
    if not low:
        return ""
    length = len(low) - 1
    zeros, nines = "0" * length, "9" * length
    if low[0] == high[0]:
        return sequence(literal(low[0]), _between(low[1:], high[1:]))
    parts: list[str] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != zeros:
        parts.append(sequence(literal(low[0]), _between(low[1:], nines)))
        first += 1
    if high[1:] != nines:
        parts.append(sequence(literal(high[0]), _between(zeros, high[1:])))
        last -= 1
    if first <= last:
        parts.append(sequence(f"[{first}-{last}]", repeat("[0-9]", length, length)))
    return choice(parts)


def _fraction(low: str, high: str) -> str:
    """Decimal places from `low` to `high`, the point included; none where zero is among them."""
    digits = sequence('"."', _places(low, high))
    return f"({digits})?" if not low.strip("0") else digits


def _places(low: str, high: str) -> str:
    """One digit or more; those that are left out are zeros."""
    length = len(low)
    zeros, nines = "0" * (length - 1), "9" * (length - 1)
    if not low.strip("0") and not high.strip("9"):
        return repeat("[0-9]", 1, length)
    parts: list[str] = []
    first, last = int(low[0]), int(high[0])
    if first == last:
        return sequence(literal(low[0]), _more(low[1:], high[1:]))
    if low[1:].strip("0"):
        parts.append(sequence(literal(low[0]), _more(low[1:], nines)))
        first += 1
    if high[1:].strip("9"):
        parts.append(sequence(literal(high[0]), _more(zeros, high[1:])))
        last -= 1
    if first <= last:
        parts.append(sequence(f"[{first}-{last}]", _more(zeros, nines)))
    return choice(parts)


def _more(low: str, high: str) -> str:
    if not low:
        return ""
    return f"({_places(low, high)})?" if not low.strip("0") else _places(low, high)
