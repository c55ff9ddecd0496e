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
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

from acorn._formats.schema import regex
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
_LIMIT = Decimal(10) ** 15
"""The number below which a number without bounds stays. A double represents it exactly."""
_FAR = Decimal(10) ** 30
"""The maximum number if the bounds of the schema also allow a smaller number."""
_LARGEST = Decimal(repr(math.nextafter(math.inf, 0)))
"""The largest finite double, which also limits the digits of integers."""
_PRECISION = 1000
"""The number of digits with which this module computes."""
_MULTIPLES = 200
"""The maximum number of values for a schema with `multipleOf`."""

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def number(schema: JsonObject, max_places: int = _MAX_PLACES) -> str | None:
    """Return the grammar rule for the numbers that a schema allows, or None if no number is valid.

    The numbers have at most `max_places` decimal places. For integers, this is 0.
    """
    with localcontext(prec=_PRECISION):
        exponents = [int(Decimal(str(schema[key])).as_tuple().exponent) for key in _BOUNDS if key in schema]
        places = min(max_places, max([_PLACES, *(1 - exponent for exponent in exponents)]))
        low, high = _bounds(schema, Decimal(1).scaleb(-places))
        if low > high:
            return None
        if "multipleOf" in schema:
            return _multiples(Decimal(str(schema["multipleOf"])), low, high, max_places)
        return _between(low, high, places)


def _bounds(schema: JsonObject, unit: Decimal) -> tuple[Decimal, Decimal]:
    """Return the minimum and the maximum number that the grammar allows. Both are multiples of `unit`."""
    lows = [Decimal(str(schema["minimum"]))] if "minimum" in schema else []
    highs = [Decimal(str(schema["maximum"]))] if "maximum" in schema else []
    if "exclusiveMinimum" in schema:
        lows.append(_next_after(schema["exclusiveMinimum"], unit, 1))
    if "exclusiveMaximum" in schema:
        highs.append(_next_after(schema["exclusiveMaximum"], unit, -1))
    low, high = max(lows, default=None), min(highs, default=None)
    if low is None:
        low = unit - _LIMIT if high is None or high > -_LIMIT else high * 10
    if high is None:
        high = _LIMIT - unit if low < _LIMIT else low * 10
    low = max(low, -_LARGEST if high < -_FAR else -_FAR)
    high = min(high, _LARGEST if low > _FAR else _FAR)
    return math.ceil(low / unit) * unit, math.floor(high / unit) * unit


def _next_after(bound: Any, unit: Decimal, direction: int) -> Decimal:
    """Return a number above an exclusive minimum, or below an exclusive maximum, with no allowed number between them.

    `direction` is 1 or -1. The result is not equal to the bound, even after both are rounded to floats.
    """
    nearest = Decimal(str(bound)) + direction * unit / 2
    if isinstance(bound, float):
        following = Decimal(math.nextafter(bound, direction * math.inf))
        return max(nearest, following) if direction > 0 else min(nearest, following)
    return nearest


def _multiples(step: Decimal, low: Decimal, high: Decimal, max_places: int) -> str | None:
    first, last = math.ceil(low / step), math.floor(high / step)
    start = max(first, min(0, last - _MULTIPLES))
    values = [count * step for count in range(start, min(last, start + _MULTIPLES) + 1)]
    fitting = [value for value in values if value.scaleb(max_places) % 1 == 0]
    numbers = [int(value) if value == int(value) else float(value) for value in fitting]
    return choice(map(json_literal, numbers)) if numbers else None


def _between(low: Decimal, high: Decimal, places: int) -> str:
    parts: list[str] = []
    if high >= 0:
        parts.append(_from_zero(max(low, Decimal(0)), high, places))
    smallest = max(-high, Decimal(1).scaleb(-places))
    if -low >= smallest:
        parts.append(sequence('"-"', _from_zero(smallest, -low, places)))
    return choice(parts)


def _from_zero(low: Decimal, high: Decimal, places: int) -> str:
    """Return the grammar rule for the numbers from `low` to `high`, without leading zeros.

    Both bounds must be at least 0, because the caller adds the minus sign.
    """
    parts: list[str] = []
    full: list[int] = []
    """The numbers of digits before the decimal point with which every number is allowed."""
    unit = Decimal(1).scaleb(-places)
    for length in range(len(str(int(low))), len(str(int(high))) + 1):
        first, last = Decimal(10 ** (length - 1) if length > 1 else 0), 10**length - unit
        if length > 1 and low <= first and high >= last:
            full.append(length)
        else:
            parts.append(_digits(f"{max(low, first):.{places}f}", f"{min(high, last):.{places}f}"))
    if full:
        fraction = _digits("." + "0" * places, "." + "9" * places) if places else ""
        parts.append(sequence("[1-9]", repeat("[0-9]", full[0] - 1, full[-1] - 1), fraction))
    return choice(parts)


def _digits(low: str, high: str, *, can_end: bool = False) -> str:
    """Return the grammar rule for digits that are at least `low` and at most `high`.

    `low` and `high` have the same length, and their decimal points have the same position. Zeros at the end of the
    decimal places may be omitted. If `can_end` is true, the digits are decimal places.
    """
    zeros, nines = re.sub("[0-9]", "0", low), re.sub("[0-9]", "9", low)
    if (low, high) == (zeros, nines):
        whole, _, places = low.partition(".")
        digits = repeat("[0-9]", 1 if can_end else len(whole), len(whole))
        return sequence(digits, f'("." {repeat("[0-9]", 1, len(places))})?') if places else digits
    if low[0] == ".":
        fraction = sequence('"."', _digits(low[1:], high[1:], can_end=True))
        return fraction if low.strip(".0") else f"({fraction})?"

    def row(first: str, low: str, high: str) -> str:
        following = _digits(low, high, can_end=can_end)
        return sequence(first, f"({following})?" if following and can_end and not low.strip("0") else following)

    if low[0] == high[0]:
        return row(literal(low[0]), low[1:], high[1:])
    parts: list[str] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != zeros[1:]:
        parts.append(row(literal(low[0]), low[1:], nines[1:]))
        first += 1
    if high[1:] != nines[1:]:
        parts.append(row(literal(high[0]), zeros[1:], high[1:]))
        last -= 1
    if first <= last:
        parts.append(row(f"[{first}-{last}]", zeros[1:], nines[1:]))
    return choice(parts)


_EXACT = 15
"""The number of digits that a JSON number preserves."""


def decimal(bounds: JsonObject | bool, text: JsonObject | bool) -> list[str] | None:
    """Return the grammar rules for a `Decimal`, whose schema is a union of a number and a string.

    `bounds` is the schema of the number, and `text` is the schema of the string. The rules allow only numbers that fit
    both schemas. Return None if the two schemas do not belong to a `Decimal`.
    """
    if isinstance(bounds, bool) or isinstance(text, bool):
        return None
    expression = str(text.get("pattern", ""))
    if bounds.get("type") != "number" or text.get("type") != "string" or not expression.startswith("^-?"):
        return None
    rules: list[str | None] = []
    for option in expression.removeprefix("^-?").split("|"):
        before, _, after = option.partition(r"\.")
        whole, places = _digit_limit(before), _digit_limit(after) or _EXACT if after else 0
        if whole is None:
            rules.append(number(bounds, places))
            continue
        # Without digits before the decimal point, Pydantic does not even allow a zero.
        for low, high in [(-(10**whole), 10**whole)] if whole else [(-1, 0), (0, 1)]:
            above, below = bounds.get("exclusiveMinimum", low), bounds.get("exclusiveMaximum", high)
            limits = {"exclusiveMinimum": max(low, above), "exclusiveMaximum": min(high, below)}
            rules.append(number({**bounds, **limits}, places))
    return [rule for rule in rules if rule is not None]


def _digit_limit(expression: str) -> int | None:
    """Return the maximum number of digits in a part of the pattern of a `Decimal`, such as 3 for `\\d{1,3}`.

    Return None if the part does not limit the digits.
    """
    counts = re.findall("[0-9]+", expression)
    return min(int(counts[-1]), _EXACT) if counts else None


# Strings with a pattern

_MAX_SHORTEST = 20_000
"""The maximum length of the shortest text that matches a pattern. No response is longer."""

Repeated = Callable[[str, int, int], str]
"""A function that returns the rule for a repeated part.

Its arguments are the rule of the part, the minimum count and the maximum count.
"""


def pattern(
    expression: str, shortest: int, longest: int, repeated: Repeated = repeat, *, is_strict: bool = True
) -> str | None:
    """Return the grammar rule for texts that match a regular expression, or None if no such text fits the lengths.

    The text should have at least `shortest` and at most `longest` characters. If `is_strict` is false, it may be
    longer. For some regular expressions, the rule also allows texts with other lengths.
    """
    options: list[regex.PatternNode] = []
    for node, has_start, has_end in regex.read_pattern(expression):
        least, most = _length(node)
        if most < shortest and not (has_start and has_end):
            anything = regex.Repetition(regex.CharacterSet(regex.ANY), 0, regex.ENDLESS)
            options.append(regex.Concatenation((anything, node) if has_end else (node, anything)))
        elif most >= shortest and (least <= longest or (not is_strict and least <= _MAX_SHORTEST)):
            options.append(node)
    if not options:
        return None
    node = options[0] if len(options) == 1 else regex.Alternation(tuple(options))
    return _render(_fit(node, shortest, max(longest, _length(node)[0])), repeated)


def _fit(node: regex.PatternNode, shortest: int, longest: int) -> regex.PatternNode:
    """Return a copy of a syntax tree with changed repetition counts, so that matching texts have the wanted length."""
    slack = longest
    while slack and _length(_limit(node, slack))[1] > longest:
        slack = slack * 2 // 3
    limited = _limit(node, slack)
    return _extend(limited, shortest - _length(limited)[0])


def _limit(node: regex.PatternNode, slack: int) -> regex.PatternNode:
    match node:
        case regex.CharacterSet():
            return node
        case regex.Concatenation(parts):
            return regex.Concatenation(tuple(_limit(part, slack) for part in parts))
        case regex.Alternation(options):
            return regex.Alternation(tuple(_limit(option, slack) for option in options))
        case regex.Repetition(part, low, high):
            return regex.Repetition(_limit(part, slack), low, min(high, low + slack))


def _extend(node: regex.PatternNode, missing: int) -> regex.PatternNode:
    """Return a copy of a syntax tree whose shortest matching text has `missing` more characters.

    If the repetitions in the tree do not allow that length, the shortest text becomes only as long as they allow.
    """
    if missing <= 0:
        return node
    match node:
        case regex.Repetition(part, low, high) if least := _length(part)[0]:
            more = min(high, low + -(-missing // least))
            missing -= (more - low) * least
            return replace(node, low=more, part=_extend(part, -(-missing // more) if more else 0))
        case regex.Concatenation(parts):
            longer: list[regex.PatternNode] = []
            for part in parts:
                longer.append(_extend(part, missing))
                missing -= _length(longer[-1])[0] - _length(part)[0]
            return regex.Concatenation(tuple(longer))
        case regex.Alternation(options):
            least = _length(node)[0]
            return regex.Alternation(tuple(_extend(option, missing - _length(option)[0] + least) for option in options))
        case _:
            return node


def _length(node: regex.PatternNode) -> tuple[int, int]:
    """Return the minimum and the maximum length of the texts that match a part of a regular expression."""
    match node:
        case regex.CharacterSet():
            return 1, 1
        case regex.Concatenation(parts):
            return sum(_length(part)[0] for part in parts), sum(_length(part)[1] for part in parts)
        case regex.Alternation(options):
            return min(_length(option)[0] for option in options), max(_length(option)[1] for option in options)
        case regex.Repetition(part, low, high):
            least, most = _length(part)
            return least * low, most * high


def _render(node: regex.PatternNode, repeated: Repeated) -> str:
    match node:
        case regex.CharacterSet(allowed):
            return _one_of(allowed)
        case regex.Concatenation(parts):
            return f"({sequence(*(_render(part, repeated) for part in parts))})" if parts else '""'
        case regex.Alternation(options):
            return choice(_render(option, repeated) for option in options)
        case regex.Repetition(part, low, high):
            return repeated(_render(part, repeated), low, high) if high else '""'


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\f": "\\f", "\b": "\\b"}


def _one_of(allowed: frozenset[str]) -> str:
    """Return the grammar rule for one character of a set, inside a JSON string."""
    plain = sorted(sign for sign in allowed if sign not in _ESCAPED and ord(sign) >= 0x20 and ord(sign) != 0x7F)
    plain = [sign for sign in plain if not 0xD800 <= ord(sign) <= 0xDFFF]
    # Quotes and line breaks are omitted if other characters are possible, since a small model misuses escapes.
    if plain:
        return f"[{''.join(map(_in_class, plain))}]"
    escaped = [literal(_ESCAPED[sign]) for sign in sorted(allowed) if sign in _ESCAPED]
    if not escaped:
        raise regex.UnsupportedPatternError("The pattern requires a character that JSON text cannot contain.")
    return choice(escaped)


def _in_class(sign: str) -> str:
    return f"\\{sign}" if sign in "\\]" else f"\\x{ord(sign):02X}" if sign in "^-[" else sign
