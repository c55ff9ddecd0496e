"""Basic grammar rules, and rules for numbers with bounds and for strings with a pattern.

The rules are GBNF text. A rule restricts a number digit by digit, so that the model can complete every allowed start of
a number to a valid number.

The schema of a `Decimal` is a union of a number and a string. The schema of the number contains the minimum and the
maximum. The pattern of the string limits the digits before and after the decimal point.

The rule of a `pattern` describes the text between the quotes of a JSON string. If a regular expression has a feature
that `read_pattern` does not support, such as lookaround, the grammar does not restrict the string by its pattern.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import Any

from acorn._formats.schema.regex import (
    ANY,
    ENDLESS,
    Alternation,
    CharacterSet,
    Concatenation,
    PatternNode,
    Repetition,
    UnsupportedPatternError,
    read_pattern,
)
from acorn.types import JsonObject


def literal(text: str) -> str:
    """Return the grammar rule that allows exactly this text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def json_literal(value: object) -> str:
    """Return the grammar rule that allows exactly this value as JSON text."""
    return literal(json.dumps(value, ensure_ascii=False))


def choice(options: Iterable[str]) -> str:
    """Return the grammar rule that allows one of several options.

    Equal options are included only once.
    """
    unique = list(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else f"({' | '.join(unique)})"


def repeat(item: str, low: int, high: int) -> str:
    """Return the grammar rule for an item that is repeated from `low` to `high` times, or "" if `high` is 0."""
    if high == 0:
        return ""
    if (low, high) == (1, 1):
        return item
    return f"{item}?" if (low, high) == (0, 1) else f"{item}{{{low},{high}}}"


def sequence(*parts: str) -> str:
    """Return the grammar rule for several parts in a row.

    Empty parts are skipped.
    """
    return " ".join(part for part in parts if part) or '""'


# Numbers

_PLACES = 6
"""The number of decimal places, unless the bounds of a schema need more."""
_MAX_PLACES = 100
"""The maximum number of decimal places."""
_LIMIT = Decimal(10) ** 15 - 1
"""The maximum number if the schema has no bounds. A double represents it exactly."""
_FAR = Decimal(10) ** 30
"""The maximum number if the bounds of the schema also allow a smaller number."""
_LARGEST = Decimal(repr(math.nextafter(math.inf, 0)))
"""The largest finite double, which also limits the digits of integers."""
_PRECISION = 1000
"""The number of digits with which this module computes."""
_MULTIPLES = 200
"""The maximum number of values for a schema with `multipleOf`."""

Range = tuple[Decimal | None, Decimal | None]
"""A minimum and a maximum number. None means no bound."""


def number(
    schema: JsonObject, *, is_whole: bool, max_places: int | None = None, within: Range = (None, None)
) -> str | None:
    """Return the grammar rule for the numbers that a schema allows and that are in the range `within`.

    Return None if no number is valid.
    """
    with localcontext(prec=_PRECISION):
        places = 0 if is_whole else _places_of(schema, _MAX_PLACES if max_places is None else max_places)
        low, high = _bounds(schema, places, within)
        if low > high:
            return None
        if step := schema.get("multipleOf"):
            return _multiples(_exact(step), low, high, places if is_whole or max_places is not None else None)
        return _between_bounds(low, high, places)


def _between_bounds(low: Decimal, high: Decimal, places: int) -> str | None:
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


def _places_of(schema: JsonObject, most: int) -> int:
    """Return how many decimal places the grammar allows for a number, at most `most`."""
    exponents = [int(_exact(bound).as_tuple().exponent) for bound in _declared_bounds(schema).values()]
    return min(most, max([_PLACES, *(1 - exponent for exponent in exponents)]))


def _bounds(schema: JsonObject, places: int, within: Range) -> tuple[Decimal, Decimal]:
    """Return the minimum and the maximum number that the schema and the range `within` allow."""
    unit = Decimal(1).scaleb(-places)
    declared = _declared_bounds(schema)
    lows = [_exact(declared["minimum"])] if "minimum" in declared else []
    highs = [_exact(declared["maximum"])] if "maximum" in declared else []
    lows += [bound for bound in within[:1] if bound is not None]
    highs += [bound for bound in within[1:] if bound is not None]
    if "exclusiveMinimum" in declared:
        lows.append(_next_after(declared["exclusiveMinimum"], unit, 1))
    if "exclusiveMaximum" in declared:
        highs.append(_next_after(declared["exclusiveMaximum"], unit, -1))
    low = max((_rounded(bound, unit, ROUND_CEILING) for bound in lows), default=None)
    high = min((_rounded(bound, unit, ROUND_FLOOR) for bound in highs), default=None)
    if low is None:
        low = -_LIMIT if high is None or high > -_LIMIT else high * 10
    if high is None:
        high = _LIMIT if low < _LIMIT else low * 10
    low = max(low, -_LARGEST if high < -_FAR else -_FAR)
    high = min(high, _LARGEST if low > _FAR else _FAR)
    return low, high


def _declared_bounds(schema: JsonObject) -> JsonObject:
    keys = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    return {key: schema[key] for key in keys if key in schema}


def _next_after(bound: Any, unit: Decimal, direction: int) -> Decimal:
    """Return the first allowed number above an exclusive minimum, or below an exclusive maximum.

    `direction` is 1 or -1. The result is not equal to the bound, even after both are rounded to floats.
    """
    nearest = _exact(bound) + direction * unit / 2
    if isinstance(bound, float):
        following = Decimal(math.nextafter(bound, direction * math.inf))
        return max(nearest, following) if direction > 0 else min(nearest, following)
    return nearest


def _rounded(value: Decimal, unit: Decimal, how: str) -> Decimal:
    if value.adjusted() > _PRECISION // 2:  # The value is larger than any number that the grammar allows.
        return value
    return (value / unit).to_integral_value(how) * unit


def _multiples(step: Decimal, low: Decimal, high: Decimal, places: int | None) -> str | None:
    first = (low / step).to_integral_value(ROUND_CEILING)
    last = (high / step).to_integral_value(ROUND_FLOOR)
    start = max(first, min(Decimal(0), last - _MULTIPLES))
    counts = range(int(start), int(min(last, start + _MULTIPLES)) + 1)
    values = [count * step for count in counts]
    fitting = [value for value in values if places is None or value.scaleb(places) % 1 == 0]
    numbers = [int(value) if value == int(value) else float(value) for value in fitting]
    return choice(map(json_literal, numbers)) if numbers else None


def _from_zero(low: Decimal, high: Decimal, places: int) -> str:
    """Return the grammar rule for the numbers from `low` to `high`.

    Both bounds must be at least 0, because the caller adds the minus sign.
    """
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
    """Return the grammar rule for the integers from `low` to `high`, without leading zeros.

    Both bounds must be at least 0, because the caller adds the minus sign.
    """
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
            parts.append(_digits(str(first), str(last)))
    if full:
        parts.append(sequence("[1-9]", repeat("[0-9]", full[0] - 1, full[-1] - 1)))
    return choice(parts)


def _digits(low: str, high: str, *, can_end: bool = False) -> str:
    """Return the grammar rule for digits that are at least `low` and at most `high`.

    `low` and `high` are strings with the same number of digits. If `can_end` is true, zeros at the end may be omitted,
    but not the first digit.
    """
    if not low.strip("0") and not high.strip("9"):
        return repeat("[0-9]", 1 if can_end else len(low), len(low))
    length = len(low) - 1
    zeros, nines = "0" * length, "9" * length

    def row(first: str, low: str, high: str) -> str:
        following = _digits(low, high, can_end=can_end)
        return sequence(first, f"({following})?" if following and can_end and not low.strip("0") else following)

    if low[0] == high[0]:
        return row(literal(low[0]), low[1:], high[1:])
    parts: list[str] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != zeros:
        parts.append(row(literal(low[0]), low[1:], nines))
        first += 1
    if high[1:] != nines:
        parts.append(row(literal(high[0]), zeros, high[1:]))
        last -= 1
    if first <= last:
        parts.append(row(f"[{first}-{last}]", zeros, nines))
    return choice(parts)


def _fraction(low: str, high: str) -> str:
    """Return the grammar rule for a decimal point and the digits after it.

    The digits must be at least `low` and at most `high`. If `low` is zero, the point and the digits are optional.
    """
    digits = sequence('"."', _digits(low, high, can_end=True))
    return f"({digits})?" if not low.strip("0") else digits


_PATTERN_OPTION = re.compile(
    r"(?P<before>0|\\d\+|\\d\{1,(?P<whole>\d+)\})"
    r"(?P<after>\(\\\.(\\d\+|\\d\{1,(?P<places>\d+)\})\)\?|\\\.\\d\{1,(?P<needed>\d+)\})?"
)
"""One option of the patterns that Pydantic creates for a `Decimal`."""
_EXACT = 15
"""The number of digits that a JSON number preserves."""


def decimal(bounds: JsonObject | bool, text: JsonObject | bool) -> list[str] | None:
    """Return the grammar rules for a `Decimal`, whose schema is a union of a number and a string.

    `bounds` is the schema of the number, and `text` is the schema of the string. The rules allow only numbers that fit
    both schemas. Return None if the two schemas do not belong to a `Decimal`.
    """
    if isinstance(bounds, bool) or isinstance(text, bool) or bounds.get("type") != "number":
        return None
    regex = str(text.get("pattern", ""))
    inner = regex.removeprefix("^-?").removesuffix("$").removeprefix("(").removesuffix(")")
    rows = [_PATTERN_OPTION.fullmatch(row) for row in (inner.split("|") if "|" in inner else [regex[3:-1]])]
    if text.get("type") != "string" or not regex.startswith("^-?") or None in rows:
        return None
    return [rule for row in rows if row for rule in _numbers(bounds, row)]


def _numbers(bounds: JsonObject, row: re.Match[str]) -> Iterator[str]:
    """Yield the grammar rules for the numbers that match one option of the string pattern of a `Decimal`."""
    whole = 0 if row["before"] == "0" else min(int(row["whole"] or _EXACT), _EXACT)
    digits = row["places"] or row["needed"]
    places = min(int(digits), _EXACT) if digits else None if row["after"] else 0
    limit = Decimal(10) ** whole - Decimal(1).scaleb(-(places or 0))
    ranges = [(-limit, limit)]
    if row["needed"]:  # The pattern does not allow a digit before the decimal point, not even a zero.
        ranges = [(Decimal(1).scaleb(-(places or 0)), limit), (-limit, -Decimal(1).scaleb(-(places or 0)))]
    for low, high in ranges if row["whole"] or row["before"] == "0" else [(None, None)]:
        rule = number(bounds, is_whole=places == 0, max_places=places, within=(low, high))
        if rule is not None:
            yield rule


# Strings with a pattern

_MAX_SHORTEST = 20_000
"""The maximum length of the shortest text that matches a pattern. No response is longer."""

Repeated = Callable[[str, int, int], str]
"""A function that returns the rule for a repeated part.

Its arguments are the rule of the part, the minimum count and the maximum count.
"""


def pattern(
    regex: str, shortest: int, longest: int, repeated: Repeated = repeat, *, is_strict: bool = True
) -> str | None:
    """Return the grammar rule for texts that match a regular expression, or None if no such text fits the lengths.

    The text should have at least `shortest` and at most `longest` characters. If `is_strict` is false, it may be
    longer. For some regular expressions, the rule also allows texts with other lengths.
    """
    options: list[PatternNode] = []
    for node, has_start, has_end in read_pattern(regex):
        least, most = _length(node)
        if most < shortest and not (has_start and has_end):
            anything = Repetition(CharacterSet(ANY), 0, ENDLESS)
            options.append(Concatenation((anything, node) if has_end else (node, anything)))
        elif most >= shortest and (least <= longest or (not is_strict and least <= _MAX_SHORTEST)):
            options.append(node)
    if not options:
        return None
    node = options[0] if len(options) == 1 else Alternation(tuple(options))
    return _render(_fit(node, shortest, max(longest, _length(node)[0])), repeated)


def _fit(node: PatternNode, shortest: int, longest: int) -> PatternNode:
    """Return a copy of a syntax tree with changed repetition counts, so that matching texts have the wanted length."""
    slack = longest
    limited = _limit(node, slack)
    while slack and _length(limited)[1] > longest:
        slack = slack * 2 // 3
        limited = _limit(node, slack)
    return _extend(limited, shortest - _length(limited)[0])


def _limit(node: PatternNode, slack: int) -> PatternNode:
    match node:
        case CharacterSet():
            return node
        case Concatenation(parts):
            return Concatenation(tuple(_limit(part, slack) for part in parts))
        case Alternation(options):
            return Alternation(tuple(_limit(option, slack) for option in options))
        case Repetition(part, low, high):
            return Repetition(_limit(part, slack), low, min(high, low + slack))


def _extend(node: PatternNode, missing: int) -> PatternNode:
    """Return a copy of a syntax tree whose shortest matching text has `missing` more characters.

    If the repetitions in the tree do not allow that length, the shortest text becomes only as long as they allow.
    """
    if missing <= 0:
        return node
    match node:
        case Repetition(part, low, high) if least := _length(part)[0]:
            more = min(high, low + -(-missing // least))
            missing -= (more - low) * least
            return replace(node, low=more, part=_extend(part, -(-missing // more) if more else 0))
        case Concatenation(parts):
            longer: list[PatternNode] = []
            for part in parts:
                longer.append(_extend(part, missing))
                missing -= _length(longer[-1])[0] - _length(part)[0]
            return Concatenation(tuple(longer))
        case Alternation(options):
            least = _length(node)[0]
            return Alternation(tuple(_extend(option, missing - _length(option)[0] + least) for option in options))
        case _:
            return node


def _length(node: PatternNode) -> tuple[int, int]:
    """Return the minimum and the maximum length of the texts that match a part of a regular expression."""
    match node:
        case CharacterSet():
            return 1, 1
        case Concatenation(parts):
            return sum(_length(part)[0] for part in parts), sum(_length(part)[1] for part in parts)
        case Alternation(options):
            return min(_length(option)[0] for option in options), max(_length(option)[1] for option in options)
        case Repetition(part, low, high):
            least, most = _length(part)
            return least * low, most * high


def _render(node: PatternNode, repeated: Repeated) -> str:
    match node:
        case CharacterSet(allowed):
            return _one_of(allowed)
        case Concatenation(parts):
            return f"({sequence(*(_render(part, repeated) for part in parts))})" if parts else '""'
        case Alternation(options):
            return choice(_render(option, repeated) for option in options)
        case Repetition(part, low, high):
            return repeated(_render(part, repeated), low, high) if high else '""'


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\f": "\\f", "\b": "\\b"}


def _one_of(allowed: frozenset[str]) -> str:
    """Return the grammar rule for one character of a set, inside a JSON string."""
    unescaped = sorted(sign for sign in allowed if sign not in _ESCAPED and ord(sign) >= 0x20 and ord(sign) != 0x7F)
    unescaped = [sign for sign in unescaped if not 0xD800 <= ord(sign) <= 0xDFFF]
    options = [f"[{''.join(map(_in_class, unescaped))}]"] if unescaped else []
    # Quotes and line breaks are omitted if other characters are possible, since a small model misuses escapes.
    if not unescaped:
        options = [literal(_ESCAPED[sign]) for sign in sorted(allowed) if sign in _ESCAPED]
    if not options:
        raise UnsupportedPatternError("The pattern requires a character that JSON text cannot contain.")
    return choice(options)


def _in_class(sign: str) -> str:
    return f"\\{sign}" if sign in "\\]" else f"\\x{ord(sign):02X}" if sign in "^-[" else sign
