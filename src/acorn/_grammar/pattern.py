"""Regular expressions as grammar: what a schema's `pattern` allows, as JSON text between its quotes.

Reads what can be said by choices, sequences and bounded repetitions. Lookaround, backreferences, word
boundaries and flags cannot: those are `UnsayableError`, and the builder does without the pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from acorn._grammar.notation import choice, literal, repeat, sequence

_ENDLESS = 10**9


class UnsayableError(ValueError):
    """A pattern that no grammar of ours expresses."""


@dataclass(frozen=True)
class _Chars:
    """One character of these."""

    allowed: frozenset[str]


@dataclass(frozen=True)
class _Row:
    parts: tuple[_Node, ...]


@dataclass(frozen=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclass(frozen=True)
class _Repeat:
    part: _Node
    low: int
    high: int


_Node = _Chars | _Row | _Choice | _Repeat

_ANY = frozenset(map(chr, range(0x20, 0x7F))) | frozenset("äöüéèàçñßøå")
"""What `.` and the complements stand for: text that any tokenizer can write."""
_DIGITS = frozenset("0123456789")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | _DIGITS
_CLASSES = {
    "d": _DIGITS,
    "D": _ANY - _DIGITS,
    "w": _WORD,
    "W": _ANY - _WORD,
    "s": frozenset(" "),
    "S": _ANY - {" "},
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}


Repeated = Callable[[str, int, int], str]
"""Writes a part that comes from so many to so many times."""


def pattern(regex: str, shortest: int, longest: int, repeated: Repeated = repeat) -> str:
    """Text that fits the whole of a regular expression and, where possible, the lengths too."""
    node = _Reader(regex).read()
    return _render(_fitted(node, shortest, longest), repeated)


class _Reader:
    """Recursive descent over the regular expression."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._at = 0

    def read(self) -> _Node:
        node = self._choice()
        if self._at < len(self._regex):
            raise UnsayableError(self._regex)
        return node

    def _peek(self, text: str) -> bool:
        return self._regex.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) * found
        return found

    def _next(self) -> str:
        if self._at >= len(self._regex):
            raise UnsayableError(self._regex)
        self._at += 1
        return self._regex[self._at - 1]

    def _choice(self) -> _Node:
        options = [self._row()]
        while self._take("|"):
            options.append(self._row())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _row(self) -> _Node:
        parts: list[_Node] = []
        while self._take("^") or self._take("\\A"):
            pass
        while self._at < len(self._regex) and not self._peek("|") and not self._peek(")"):
            if self._take("$") or self._take("\\Z") or self._take("\\z"):
                if self._at < len(self._regex) and not self._peek("|") and not self._peek(")"):
                    raise UnsayableError(self._regex)
                break
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else _Row(tuple(parts))

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
            raise UnsayableError(self._regex)
        return _Chars(frozenset(self._next()))

    def _group(self) -> _Node:
        if self._take("?P<") or (self._peek("?<") and not self._peek("?<=") and not self._peek("?<!")):
            while self._next() != ">":
                pass
        elif self._peek("?") and not self._take("?:"):
            raise UnsayableError(self._regex)
        inner = self._choice()
        if not self._take(")"):
            raise UnsayableError(self._regex)
        return inner

    def _escape(self) -> frozenset[str]:
        sign = self._next()
        if sign in _CLASSES:
            return _CLASSES[sign]
        if sign in _CONTROLS:
            return frozenset(_CONTROLS[sign])
        if sign in "xu":
            length = 2 if sign == "x" else 4
            digits, self._at = self._regex[self._at : self._at + length], self._at + length
            try:
                return frozenset(chr(int(digits, 16)))
            except ValueError:
                raise UnsayableError(self._regex) from None
        if sign.isalnum():  # \b, \B, \1, \p
            raise UnsayableError(self._regex)
        return frozenset(sign)

    def _class(self) -> frozenset[str]:
        is_negated = self._take("^")
        members: frozenset[str] = frozenset("]") if self._take("]") else frozenset()
        while not self._take("]"):
            first = self._escape() if self._take("\\") else frozenset(self._next())
            if self._peek("-") and not self._peek("-]"):
                self._take("-")
                last = self._escape() if self._take("\\") else frozenset(self._next())
                if len(first) > 1 or len(last) > 1:
                    raise UnsayableError(self._regex)
                first = frozenset(map(chr, _range(*first, *last)))
            members |= first
        return _ANY - members if is_negated else members

    def _repeated(self, part: _Node) -> _Node:
        low, high = self._count()
        if (low, high) == (1, 1):
            return part
        if not self._take("?"):  # lazy or possessive: the same texts
            self._take("+")
        return self._repeated(_Repeat(part, low, high))

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
        if not all(part == "" or part.isdecimal() for part in (low, high)) or not (low or high):
            raise UnsayableError(self._regex)
        self._at = end + 1
        return int(low or 0), int(high) if high else _ENDLESS if comma else int(low)


def _range(first: str, last: str) -> Iterator[int]:
    """The codes of a range; of a huge one the beginning is enough to write with."""
    return iter(range(ord(first), min(ord(last), ord(first) + 0x250) + 1))


# Lengths


def _fitted(node: _Node, shortest: int, longest: int) -> _Node:
    """The node with its repetitions bounded so that no text is too long, and stretched so that none is too short."""
    slack = longest
    bounded = _bounded(node, slack)
    while slack and _length(bounded)[1] > longest:
        slack = slack * 2 // 3
        bounded = _bounded(node, slack)
    return _stretched(bounded, shortest - _length(bounded)[0])


def _bounded(node: _Node, slack: int) -> _Node:
    match node:
        case _Chars():
            return node
        case _Row(parts):
            return _Row(tuple(_bounded(part, slack) for part in parts))
        case _Choice(options):
            return _Choice(tuple(_bounded(option, slack) for option in options))
        case _Repeat(part, low, high):
            return _Repeat(_bounded(part, slack), low, min(high, low + slack))


def _stretched(node: _Node, missing: int) -> _Node:
    """At least so many characters more, as far as repetitions can give them."""
    if missing <= 0:
        return node
    match node:
        case _Repeat(part, low, high) if least := _length(part)[0]:
            return replace(node, low=min(high, low + -(-missing // least)))
        case _Row(parts):
            longer: list[_Node] = []
            for part in parts:
                longer.append(_stretched(part, missing))
                missing -= _length(longer[-1])[0] - _length(part)[0]
            return _Row(tuple(longer))
        case _Choice(options):
            least = _length(node)[0]
            return _Choice(tuple(_stretched(option, missing - _length(option)[0] + least) for option in options))
        case _:
            return node


def _length(node: _Node) -> tuple[int, int]:
    """How short and how long a text can be."""
    match node:
        case _Chars():
            return 1, 1
        case _Row(parts):
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
        case _Row(parts):
            return f"({sequence(*(_render(part, repeated) for part in parts))})" if parts else '""'
        case _Choice(options):
            return choice(_render(option, repeated) for option in options)
        case _Repeat(part, low, high):
            return repeated(_render(part, repeated), low, high) if high else '""'


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\f": "\\f", "\b": "\\b"}


def _one_of(allowed: frozenset[str]) -> str:
    """A character as JSON writes it."""
    plain = sorted(sign for sign in allowed if sign not in _ESCAPED and ord(sign) >= 0x20 and ord(sign) != 0x7F)
    plain = [sign for sign in plain if not 0xD800 <= ord(sign) <= 0xDFFF]
    options = [f"[{''.join(map(_in_class, plain))}]"] if plain else []
    # Beside other characters a quote or a line end is never needed, and a small model gets lost in escapes.
    if not plain:
        options = [literal(_ESCAPED[sign]) for sign in sorted(allowed) if sign in _ESCAPED]
    if not options:
        raise UnsayableError("a character that JSON cannot hold")
    return choice(options)


def _in_class(sign: str) -> str:
    return f"\\{sign}" if sign in "\\]" else f"\\x{ord(sign):02X}" if sign in "^-[" else sign
