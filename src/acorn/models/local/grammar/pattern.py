"""Conversion of a regular expression to a grammar rule, for the `pattern` keyword of a JSON schema.

The rule describes the text between the quotes of a JSON string. If a regular expression has a feature that
`read_pattern` does not support, such as lookaround, the grammar does not restrict the string by its pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
from acorn.models.local.grammar.numbers import choice, literal, repeat, sequence

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


# Lengths


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


# Rendering


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
