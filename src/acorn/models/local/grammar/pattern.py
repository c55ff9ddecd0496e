"""Conversion of a regular expression to a grammar rule, for the `pattern` keyword of a JSON schema.

The rule describes the text between the quotes of a JSON string. This module supports choices, sequences and repetitions
in Pydantic's dialect of regular expressions. Lookaround, backreferences, word boundaries, nested classes and script
names raise `UnsupportedPatternError`. The grammar then does not restrict the string by its pattern.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace

from acorn.models.local.grammar.numbers import choice, literal, repeat, sequence

_ENDLESS = 10**9
"""The maximum count of a repetition without a limit, such as `*`."""
_MAX_DEPTH, _MAX_QUANTIFIERS = 40, 4
"""The maximum nesting depth of groups, and the maximum number of quantifiers after one part."""
_MAX_RANGE = 0x250
"""The maximum number of characters of a range such as `a-z`. Of a larger range, only the first characters are used."""
_MAX_SHORTEST = 20_000
"""The maximum length of the shortest text that matches a pattern. No response is longer."""


class UnsupportedPatternError(ValueError):
    """The error for a regular expression that cannot be converted to a grammar rule."""


@dataclass(frozen=True)
class _Chars:
    """A part of a regular expression that matches one character out of a set."""

    allowed: frozenset[str]


@dataclass(frozen=True)
class _Sequence:
    """A part of a regular expression that consists of several parts in a row."""

    parts: tuple[_Node, ...]


@dataclass(frozen=True)
class _Choice:
    """A part of a regular expression that matches one of several options (`a|b`)."""

    options: tuple[_Node, ...]


@dataclass(frozen=True)
class _Repeat:
    """A part of a regular expression that is repeated from `low` to `high` times."""

    part: _Node
    low: int
    high: int


_Node = _Chars | _Sequence | _Choice | _Repeat

_ANY = frozenset(map(chr, range(0x20, 0x7F))) | frozenset("äöüéèàçñßøå")
"""The characters that `.` and negated classes may match. Every tokenizer can generate these characters."""
_DIGITS = frozenset("0123456789")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | _DIGITS
_LETTERS = frozenset(sign for sign in _ANY if sign.isalpha())
_CLASSES = {
    "d": _DIGITS,
    "D": _ANY - _DIGITS,
    "w": _WORD,
    "W": _ANY - _WORD - _LETTERS,
    "s": frozenset(" "),
    "S": _ANY - {" "},
}
_ASCII = frozenset(map(chr, range(0x21, 0x7F)))
_NAMED = {
    "alpha": _WORD - _DIGITS - {"_"},
    "alnum": _WORD - {"_"},
    "digit": _DIGITS,
    "upper": frozenset(sign for sign in _WORD if sign.isupper()),
    "lower": frozenset(sign for sign in _WORD if sign.islower()),
    "punct": _ASCII - _WORD | {"_"},
    "space": frozenset(" "),
    "blank": frozenset(" "),
    "graph": _ASCII,
    "print": _ASCII | {" "},
    "word": _WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}
"""A dict that maps the names of classes such as `[:alpha:]`, which occur in another class, to their characters."""
_FLAGS = re.compile(r"\?([imsuU]+)(:|\))")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}


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
    options: list[_Node] = []
    for node, has_start, has_end in _PatternReader(regex).read():
        least, most = _length(node)
        if most < shortest and not (has_start and has_end):
            anything = _Repeat(_Chars(_ANY), 0, _ENDLESS)
            options.append(_Sequence((anything, node) if has_end else (node, anything)))
        elif most >= shortest and (least <= longest or (not is_strict and least <= _MAX_SHORTEST)):
            options.append(node)
    if not options:
        return None
    node = options[0] if len(options) == 1 else _Choice(tuple(options))
    return _render(_fit(node, shortest, max(longest, _length(node)[0])), repeated)


class _PatternReader:
    """A recursive descent parser that converts a regular expression to a syntax tree."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._at = 0
        self._depth = 0
        self._is_caseless = False
        self._has_start = False
        self._has_end = False

    def read(self) -> list[tuple[_Node, bool, bool]]:
        """Parse the regular expression, and return its top-level options, which `|` separates.

        Each item is a tuple: the option, True if it is anchored at the start (`^`), and True if it is anchored at the
        end (`$`).
        """
        options: list[tuple[_Node, bool, bool]] = []
        while not options or self._take("|"):
            self._has_start = self._has_end = False
            options.append((self._row(), self._has_start, self._has_end))
        if self._at < len(self._regex):
            raise UnsupportedPatternError(self._regex)
        return options

    def _peek(self, text: str) -> bool:
        return self._regex.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        is_next = self._peek(text)
        self._at += len(text) * is_next
        return is_next

    def _next(self) -> str:
        if self._at >= len(self._regex):
            raise UnsupportedPatternError(self._regex)
        self._at += 1
        return self._regex[self._at - 1]

    def _choice(self) -> _Node:
        options = [self._row()]
        while self._take("|"):
            options.append(self._row())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _row(self) -> _Node:
        parts: list[_Node] = []
        while (is_flag := self._flags()) or self._take("^") or self._take("\\A"):
            self._has_start |= not is_flag
        while not self._is_at_end():
            if self._take("$") or self._take("\\Z") or self._take("\\z"):
                self._has_end = True
                if not self._is_at_end() and not any(map(self._peek, ("$", "\\Z", "\\z"))):
                    raise UnsupportedPatternError(self._regex)
                continue
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _is_at_end(self) -> bool:
        """Return True at the end of an option: before `|`, before `)`, or at the end of the regular expression."""
        return self._at >= len(self._regex) or self._peek("|") or self._peek(")")

    def _flags(self) -> bool:
        """Parse flags such as `(?i)`, and return True if there are flags at the current position.

        The parser ignores all flags except `i` (ignore case), which it uses only for negated character classes.
        """
        match = _FLAGS.match(self._regex, self._at + 1) if self._peek("(?") else None
        if match is None or match[2] == ":":
            return False
        self._is_caseless |= "i" in match[1]
        self._at = match.end()
        return True

    def _atom(self) -> _Node:
        if self._take("("):
            return self._group()
        if self._take("["):
            return _Chars(self._class())
        if self._take("."):
            return _Chars(_ANY)
        if self._take("\\"):
            return _Chars(self._escape())
        if self._peek("^") or self._peek("*") or self._peek("+") or self._peek("?"):
            raise UnsupportedPatternError(self._regex)
        return _Chars(frozenset(self._next()))

    def _group(self) -> _Node:
        if self._take("?P<") or (self._peek("?<") and not self._peek("?<=") and not self._peek("?<!")):
            while self._next() != ">":
                pass
        elif (match := _FLAGS.match(self._regex, self._at)) and match[2] == ":":
            self._is_caseless |= "i" in match[1]
            self._at = match.end()
        elif self._peek("?") and not self._take("?:"):
            raise UnsupportedPatternError(self._regex)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnsupportedPatternError(self._regex)
        inner = self._choice()
        if not self._take(")"):
            raise UnsupportedPatternError(self._regex)
        self._depth -= 1
        return inner

    def _escape(self) -> frozenset[str]:
        sign = self._next()
        if sign in _CLASSES:
            return _CLASSES[sign]
        if sign in _CONTROLS:
            return frozenset(_CONTROLS[sign])
        if sign in "xuU":
            return frozenset(self._code({"x": 2, "u": 4, "U": 8}[sign]))
        if sign in "pP":
            members = self._category(self._enclosed() or self._next())
            return _ANY - members if sign == "P" else members
        if sign.isalnum():  # The grammar supports neither word boundaries (`\b`) nor backreferences (`\1`).
            raise UnsupportedPatternError(self._regex)
        return frozenset(sign)

    def _enclosed(self) -> str:
        """Parse and return the text between two braces, or return "" if the next character is not `{`."""
        if not self._take("{"):
            return ""
        start, end = self._at, self._regex.find("}", self._at)
        if end <= start:
            raise UnsupportedPatternError(self._regex)
        self._at = end + 1
        return self._regex[start:end]

    def _code(self, length: int) -> str:
        """Parse the hexadecimal code of an escape such as `\\x41`, and return the character."""
        digits = self._enclosed()
        if not digits:
            digits, self._at = self._regex[self._at : self._at + length], self._at + length
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            raise UnsupportedPatternError(self._regex) from None

    def _category(self, name: str) -> frozenset[str]:
        """Return the characters in a Unicode category.

        `name` is the short name, such as `Lu` for uppercase letters.
        """
        members = frozenset(sign for sign in _ANY if unicodedata.category(sign).startswith(name))
        if not members or len(name) > 2:
            raise UnsupportedPatternError(self._regex)
        return members

    def _class(self) -> frozenset[str]:
        is_negated = self._take("^")
        members: frozenset[str] = frozenset("]") if self._take("]") else frozenset()
        has_words = False
        while not self._take("]"):
            has_words |= self._peek("\\w")
            if any(map(self._peek, ("&&", "--", "~~"))):  # The grammar does not support set operations on classes.
                raise UnsupportedPatternError(self._regex)
            first = self._member()
            if self._peek("-") and not self._peek("-]") and not self._peek("--"):
                self._take("-")
                last = self._member()
                if len(first) != 1 or len(last) != 1:
                    raise UnsupportedPatternError(self._regex)
                start, end = ord(*first), ord(*last)
                first = frozenset(map(chr, range(start, min(end, start + _MAX_RANGE) + 1)))
            members |= first
        if not is_negated:
            return members
        excluded = members | _LETTERS if has_words else members  # `\\w` matches more letters than `_WORD` contains.
        if self._is_caseless:
            excluded = excluded.union(*map(str.lower, excluded), *map(str.upper, excluded))
        return _ANY - excluded

    def _member(self) -> frozenset[str]:
        if self._take("\\"):
            return self._escape()
        if self._take("[:"):
            name, end = self._regex[self._at :].partition(":]")[:2]
            self._at += len(name + end)
            if name.removeprefix("^") not in _NAMED or not end:
                raise UnsupportedPatternError(self._regex)
            return _ANY - _NAMED[name[1:]] if name.startswith("^") else _NAMED[name]
        if self._peek("["):
            raise UnsupportedPatternError(self._regex)
        return frozenset(self._next())

    def _repeated(self, part: _Node, stacked: int = 0) -> _Node:
        low, high = self._count()
        if (low, high) == (1, 1):
            return part
        if stacked > _MAX_QUANTIFIERS:
            raise UnsupportedPatternError(self._regex)
        self._take("?")  # A lazy repetition matches the same texts as a greedy repetition.
        if isinstance(part, _Repeat) and part.low < 2 and high == part.high == _ENDLESS:
            return self._repeated(replace(part, low=part.low * low), stacked + 1)
        return self._repeated(_Repeat(part, low, high), stacked + 1)

    def _count(self) -> tuple[int, int]:
        if self._take("*"):
            return 0, _ENDLESS
        if self._take("+"):
            return 1, _ENDLESS
        if self._take("?"):
            return 0, 1
        end = self._regex.find("}", self._at)
        if not self._peek("{") or end < 0:
            return 1, 1
        low, comma, high = self._regex[self._at + 1 : end].partition(",")
        if not all(part == "" or (part.isdecimal() and len(part) < 10) for part in (low, high)) or not (low or high):
            raise UnsupportedPatternError(self._regex)
        self._at = end + 1
        least, most = int(low or 0), int(high) if high else _ENDLESS if comma else int(low)
        if least > most:
            raise UnsupportedPatternError(self._regex)
        return least, most


# Lengths


def _fit(node: _Node, shortest: int, longest: int) -> _Node:
    """Return a copy of a syntax tree with changed repetition counts, so that matching texts have the wanted length."""
    slack = longest
    limited = _limit(node, slack)
    while slack and _length(limited)[1] > longest:
        slack = slack * 2 // 3
        limited = _limit(node, slack)
    return _extend(limited, shortest - _length(limited)[0])


def _limit(node: _Node, slack: int) -> _Node:
    match node:
        case _Chars():
            return node
        case _Sequence(parts):
            return _Sequence(tuple(_limit(part, slack) for part in parts))
        case _Choice(options):
            return _Choice(tuple(_limit(option, slack) for option in options))
        case _Repeat(part, low, high):
            return _Repeat(_limit(part, slack), low, min(high, low + slack))


def _extend(node: _Node, missing: int) -> _Node:
    """Return a copy of a syntax tree whose shortest matching text has `missing` more characters.

    If the repetitions in the tree do not allow that length, the shortest text becomes only as long as they allow.
    """
    if missing <= 0:
        return node
    match node:
        case _Repeat(part, low, high) if least := _length(part)[0]:
            more = min(high, low + -(-missing // least))
            missing -= (more - low) * least
            return replace(node, low=more, part=_extend(part, -(-missing // more) if more else 0))
        case _Sequence(parts):
            longer: list[_Node] = []
            for part in parts:
                longer.append(_extend(part, missing))
                missing -= _length(longer[-1])[0] - _length(part)[0]
            return _Sequence(tuple(longer))
        case _Choice(options):
            least = _length(node)[0]
            return _Choice(tuple(_extend(option, missing - _length(option)[0] + least) for option in options))
        case _:
            return node


def _length(node: _Node) -> tuple[int, int]:
    """Return the minimum and the maximum length of the texts that match a part of a regular expression."""
    match node:
        case _Chars():
            return 1, 1
        case _Sequence(parts):
            return sum(_length(part)[0] for part in parts), sum(_length(part)[1] for part in parts)
        case _Choice(options):
            return min(_length(option)[0] for option in options), max(_length(option)[1] for option in options)
        case _Repeat(part, low, high):
            least, most = _length(part)
            return least * low, most * high


# Rendering


def _render(node: _Node, repeated: Repeated) -> str:
    match node:
        case _Chars(allowed):
            return _one_of(allowed)
        case _Sequence(parts):
            return f"({sequence(*(_render(part, repeated) for part in parts))})" if parts else '""'
        case _Choice(options):
            return choice(_render(option, repeated) for option in options)
        case _Repeat(part, low, high):
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
