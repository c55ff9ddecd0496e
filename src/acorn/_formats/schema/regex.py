"""Syntax trees of the regular expressions in JSON Schemas.

The example values of `AnyModel` and the grammar of the embedded model use these trees. Python's own parser of regular
expressions reads the text. The dialects of Pydantic (the Rust crate `regex`) and of JavaScript differ from it in rare
features only, such as `\\p{L}`, which raise `UnsupportedPatternError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

_PARSER = import_module("re._parser")  # Python has no public name for the parser of the `re` module.

ENDLESS = 10**9
"""The maximum count of a repetition without a limit, such as `*`."""
MAX_LENGTH = 2000
"""The maximum length of a regular expression."""
_MAX_NODES = 10_000
"""The maximum number of parts, if each backreference counts as a copy of its group."""
_MAX_SHORT_TEXT = 32
"""The maximum length of a text that Python's `re` module matches."""
_MAX_CHOICES = 3
"""The maximum number of repetitions and options in an expression that Python's `re` module matches."""
_MAX_DEPTH = 40
"""The maximum nesting depth of groups."""
_MAX_RANGE = 0x250
"""The maximum number of characters of a range such as `a-z`. Of a larger range, only the first characters are used."""


class UnsupportedPatternError(ValueError):
    """The error for a regular expression that acorn cannot convert to a syntax tree."""


@dataclass(frozen=True)
class CharacterSet:
    """A part of a regular expression that matches one character out of a set."""

    allowed: frozenset[str]


@dataclass(frozen=True)
class Concatenation:
    """A part of a regular expression that consists of several parts in a row."""

    parts: tuple[PatternNode, ...]


@dataclass(frozen=True)
class Alternation:
    """A part of a regular expression that matches one of several options (`a|b`)."""

    options: tuple[PatternNode, ...]


@dataclass(frozen=True)
class Repetition:
    """A part of a regular expression that is repeated from `low` to `high` times."""

    part: PatternNode
    low: int
    high: int


PatternNode = CharacterSet | Concatenation | Alternation | Repetition

ANY = frozenset(map(chr, range(0x20, 0x7F))) | frozenset("äöüéèàçñßøå")
"""The characters that `.` and negated classes may match. Every tokenizer can generate these characters."""
_DIGITS = frozenset("0123456789")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | _DIGITS
_LETTERS = frozenset(sign for sign in ANY if sign.isalpha())
_CATEGORIES = {
    "CATEGORY_DIGIT": _DIGITS,
    "CATEGORY_NOT_DIGIT": ANY - _DIGITS,
    "CATEGORY_WORD": _WORD,
    "CATEGORY_NOT_WORD": ANY - _WORD - _LETTERS,
    "CATEGORY_SPACE": frozenset(" "),
    "CATEGORY_NOT_SPACE": ANY - {" "},
}
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[\^?\]?((?:\\.|[^\\\]])*)\]", re.DOTALL)
_SET_OPERATION = re.compile(r"\[|&&|--|~~|\|\|")
"""Nested classes and operations on classes, which the dialects understand in different ways."""


class PatternOption(NamedTuple):
    """One of the outermost options of a regular expression, which `|` separates."""

    node: PatternNode
    has_start: bool
    """Whether the option is anchored at the start of the text (`^`)."""
    has_end: bool
    """Whether the option is anchored at the end of the text (`$`)."""


def has_set_operation(regex: str) -> bool:
    """Return True if a regular expression contains a nested class or an operation on classes."""
    matches = _ESCAPE_OR_CLASS.finditer(regex)
    return any(match[1] and _SET_OPERATION.search(re.sub(r"\\.", "", match[1])) for match in matches)


def check_syntax(regex: object) -> bool:
    """Raise `ValueError` if a text is not a valid regular expression in Python's dialect. Do not check a long text."""
    if isinstance(regex, str) and len(regex) <= MAX_LENGTH:
        try:
            _PARSER.parse(regex)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from error
    return True


def to_python_pattern(regex: str) -> str:
    """Return a regular expression of Pydantic in Python's dialect: it uses `\\Z` for the end of the text, not `\\z`."""
    return regex.replace("\\z", "\\Z")


def read_pattern(regex: str, *, is_lenient: bool = False) -> list[PatternOption]:
    """Parse a regular expression and return its outermost options.

    The trees do not contain the anchors. Lookaround, backreferences and word boundaries raise
    `UnsupportedPatternError`. If `is_lenient` is true, the tree repeats the group of a backreference and ignores the
    other two, so the caller must check the texts that it generates.
    """
    if len(regex) > MAX_LENGTH or has_set_operation(regex):
        raise UnsupportedPatternError(regex)
    try:
        parsed = _PARSER.parse(to_python_pattern(regex))
        return _Converter(regex, is_lenient=is_lenient).options(parsed)
    except (re.error, ValueError, OverflowError, RecursionError):
        raise UnsupportedPatternError(regex) from None


def matches_short_text(regex: str, text: str) -> bool:
    """Match a regular expression that only Python supports, such as one with lookaround, against a generated text.

    Return False if the expression is not valid, or if Python could need a long time: for a long text, for nested
    repetitions or for many of them.
    """
    try:
        if len(text) > _MAX_SHORT_TEXT or _choices(_PARSER.parse(to_python_pattern(regex))) > _MAX_CHOICES:
            return False
        return re.search(to_python_pattern(regex), text) is not None
    except (re.error, OverflowError, RecursionError):
        return False


def _choices(operations: Any, *, is_repeated: bool = False) -> int:
    """Return how many parts of a regular expression multiply the number of ways to match a text."""
    count, most_in_assertion = 0, 0
    for kind, argument in operations:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT" | "BRANCH" if is_repeated:
                return _MAX_CHOICES + 1
            case "MAX_REPEAT" | "MIN_REPEAT":
                count += 1 + _choices(argument[2], is_repeated=True)
            case "BRANCH":
                count += sum(1 + _choices(option) for option in argument[1])
            case "SUBPATTERN":
                count += _choices(argument[3], is_repeated=is_repeated)
            case "ASSERT" | "ASSERT_NOT":  # Python does not try another way to match an assertion.
                most_in_assertion = max(most_in_assertion, _choices(argument[1], is_repeated=is_repeated))
            case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY" | "AT" | "GROUPREF":
                pass
            case _:
                return _MAX_CHOICES + 1
    return count + most_in_assertion


class _Converter:
    """A converter of the parsed regular expressions of the `re` module, which are lists of (operation, argument)."""

    def __init__(self, regex: str, *, is_lenient: bool) -> None:
        self._regex = regex
        self._is_lenient = is_lenient
        self._depth = 0
        self._is_caseless = False
        self._groups: dict[int, tuple[PatternNode, int]] = {}
        """A dict that maps the number of a group to its tree and the number of its parts."""
        self._count = 0
        """The number of parts so far."""

    def options(self, parsed: Any) -> list[PatternOption]:
        self._is_caseless = bool(parsed.state.flags & re.IGNORECASE)
        operations = list(parsed)
        rows = [operations]
        if operations and str(operations[-1][0]) == "BRANCH":  # The `re` module moves a common beginning before it.
            rows = [[*operations[:-1], *option] for option in operations[-1][1][1]]
        options: list[PatternOption] = []
        for row in rows:
            anchors = {str(argument) for kind, argument in row if str(kind) == "AT"}
            has_start = not anchors.isdisjoint(("AT_BEGINNING", "AT_BEGINNING_STRING"))
            has_end = not anchors.isdisjoint(("AT_END", "AT_END_STRING"))
            options.append(PatternOption(self._sequence(row), has_start, has_end))
        return options

    def _sequence(self, operations: Any) -> PatternNode:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnsupportedPatternError(self._regex)
        parts = [self._node(str(kind), argument) for kind, argument in operations]
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _node(self, kind: str, argument: Any) -> PatternNode:
        self._count += 1
        if self._count > _MAX_NODES:
            raise UnsupportedPatternError(self._regex)
        match kind:
            case "LITERAL":
                return CharacterSet(frozenset(chr(argument)))
            case "NOT_LITERAL":
                return self._character_set([("NEGATE", None), ("LITERAL", argument)])
            case "IN":
                return self._character_set(argument)
            case "ANY":
                return CharacterSet(ANY)
            case "BRANCH":
                return Alternation(tuple(self._sequence(option) for option in argument[1]))
            case "SUBPATTERN":
                group, added_flags, _, inner = argument
                self._is_caseless |= bool(added_flags & re.IGNORECASE)
                before = self._count
                node = self._sequence(inner)
                self._groups[group] = node, self._count - before
                return node
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, part = int(argument[0]), min(int(argument[1]), ENDLESS), self._sequence(argument[2])
                if isinstance(part, Repetition) and part.low < 2 and high == part.high == ENDLESS:
                    return Repetition(part.part, part.low * low, ENDLESS)  # `(a*)*` is the same as `a*`.
                return Repetition(part, low, high)
            case "AT" if self._is_lenient or "BOUNDARY" not in str(argument):
                return Concatenation(())
            case _ if not self._is_lenient:
                raise UnsupportedPatternError(self._regex)
            case "GROUPREF":
                node, count = self._groups[argument]
                self._count += count
                return node
            case _:
                return Concatenation(())

    def _character_set(self, members: list[tuple[object, Any]]) -> PatternNode:
        characters: set[str] = set()
        is_negated = str(members[0][0]) == "NEGATE"
        for kind, argument in members[1:] if is_negated else members:
            match str(kind):
                case "LITERAL":
                    characters.add(chr(argument))
                case "RANGE":
                    characters.update(map(chr, range(argument[0], min(argument[1], argument[0] + _MAX_RANGE) + 1)))
                case _:
                    characters |= _CATEGORIES[str(argument)]
                    if is_negated and str(argument) == "CATEGORY_WORD":
                        characters |= _LETTERS  # `\w` matches more letters than `_WORD` contains.
        if not is_negated:
            return CharacterSet(frozenset(characters))
        if self._is_caseless:
            characters = characters.union(*map(str.lower, characters), *map(str.upper, characters))
        return CharacterSet(ANY - characters)
