"""Texts for the formats of JSON Schema, and for patterns, as far as they can be read backwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

_FORMS = import_module("re._parser")  # what Python itself reads patterns with; a name of its own it does not have
_LETTERS = "a1A_ -.@/é234567890bcdefBCDEF"
_CLASSES = {"DIGIT": "1", "NOT_DIGIT": "a", "SPACE": " ", "NOT_SPACE": "a", "WORD": "a", "NOT_WORD": "-"}

FORMATS: dict[str, tuple[str, ...]] = {
    "date": ("2024-01-31", "2999-01-31"),
    "date-time": ("2024-01-31T12:00:00Z", "2024-01-31T12:00:00", "2999-01-31T12:00:00Z"),
    "time": ("12:00:00Z", "12:00:00"),
    "duration": ("PT1H", "PT2H"),
    "email": ("user@example.com", "other@example.com"),
    "idn-email": ("user@example.com",),
    "name-email": ("User <user@example.com>",),
    "uri": ("https://example.com/", "https://example.com/other"),
    "uri-reference": ("/path",),
    "multi-host-uri": ("postgresql://user:word@localhost:5432/app",),
    "hostname": ("example.com",),
    "ipv4": ("127.0.0.1", "127.0.0.2"),
    "ipv6": ("::1", "::2"),
    "ipv4network": ("192.0.2.0/24",),
    "ipv6network": ("2001:db8::/32",),
    "ipv4interface": ("192.0.2.1/24",),
    "ipv6interface": ("2001:db8::1/32",),
    "ipvanyaddress": ("127.0.0.1",),
    "ipvanyinterface": ("192.0.2.1/24",),
    "ipvanynetwork": ("192.0.2.0/24",),
    "path": ("text",),
    "file-path": (__file__,),
    "directory-path": (".",),
    "new-path": ("no-such-file",),
    "regex": ("a",),
    "color": ("red", "blue"),
    "json-string": ("{}",),
    "base64": ("YWJj",),
    "base64url": ("YWJj",),
    "uuid": ("12345678-1234-4234-9234-123456789abc", "22345678-1234-4234-9234-123456789abc"),
    **{f"uuid{version}": (f"12345678-1234-{version}234-9234-123456789abc",) for version in range(1, 9)},
}


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether a text holds what a pattern asks for; one that Python cannot read is not judged."""
    try:
        return re.search(_in_python(pattern), text) is not None
    except re.error:
        return True


def example_texts(pattern: str | None, low: int, high: int | None) -> Iterator[str]:
    """Texts of a length that a pattern takes, plain ones first; none where it cannot be read backwards."""
    found: list[str] = []
    for text in _plain(low, high) if pattern is None else _from_pattern(pattern, low):
        is_long_enough = len(text) >= low and (high is None or len(text) <= high)
        if is_long_enough and text not in found and (pattern is None or matches_pattern(pattern, text)):
            found.append(text)
            yield text


def _plain(low: int, high: int | None) -> Iterator[str]:
    for number in range(100):
        text = "text" + (str(number) if number else "")
        text = text.ljust(low, "x")
        yield text if high is None or len(text) <= high else _short(number, high)


def _short(number: int, length: int) -> str:
    """The same for where little room is."""
    digits = [chr(ord("a") + number // 26**power % 26) for power in range(min(length, 3))]
    return "".join(reversed(digits)).rjust(length, "a")[:length]


def _from_pattern(pattern: str, low: int) -> Iterator[str]:
    try:
        parsed = _FORMS.parse(_in_python(pattern))
    except (re.error, OverflowError):
        return
    more = [0, 1, 2, 3, *([low] if low > 3 else [])]
    for extra, choice, letter in product(more, range(4), range(len(_LETTERS))):
        text = _PatternWriter(extra, choice, letter).write(parsed)
        yield text
        if len(text) < low:
            yield text + "a" * (low - len(text))
            yield "a" * (low - len(text)) + text


def _in_python(pattern: str) -> str:
    return pattern.replace("\\z", "\\Z")  # the one end of a text that Pydantic spells otherwise


class _PatternWriter:
    """One text that a parsed pattern takes: so many repetitions more than needed, this option, that letter."""

    def __init__(self, extra: int, choice: int, letter: int) -> None:
        self._extra = extra
        self._choice = choice
        self._letters = _LETTERS[letter:] + _LETTERS[:letter]
        self._groups: dict[int, str] = {}

    def write(self, parsed: Any) -> str:
        return "".join(self._part(str(kind), argument) for kind, argument in parsed)

    def _part(self, kind: str, argument: Any) -> str:
        match kind:
            case "LITERAL":
                return chr(argument)
            case "NOT_LITERAL":
                return next(letter for letter in self._letters if letter != chr(argument))
            case "ANY":
                return self._letters[0]
            case "IN":
                return self._one_of(argument)
            case "BRANCH":
                options = argument[1]
                return self.write(options[self._choice % len(options)])
            case "SUBPATTERN":
                text = self.write(argument[-1])
                if argument[0] is not None:
                    self._groups[argument[0]] = text
                return text
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, inner = argument
                return "".join(self.write(inner) for _ in range(min(int(most), int(least) + self._extra)))
            case "ATOMIC_GROUP":
                return self.write(argument)
            case "GROUPREF":
                return self._groups.get(argument, "")
            case _:  # ends, and what looks around: the whole text is checked in the end
                return ""

    def _one_of(self, members: Any) -> str:
        is_other = any(str(kind) == "NEGATE" for kind, _ in members)
        signs = [*self._letters, *map(chr, range(33, 127))] if is_other else self._named(members)
        for sign in signs:
            if any(_holds(str(kind), argument, sign) for kind, argument in members) != is_other:
                return sign
        return self._letters[0]

    def _named(self, members: Any) -> list[str]:
        """The letters at hand that are among the members, else those that they begin with."""
        begins: list[str] = []
        for kind, argument in members:
            if str(kind) == "LITERAL":
                begins.append(chr(argument))
            elif str(kind) == "RANGE":
                begins.append(chr(argument[0]))
            elif str(kind) == "CATEGORY":
                begins.append(_CLASSES.get(str(argument).removeprefix("CATEGORY_").removeprefix("UNI_"), "a"))
        return [*self._letters, *begins]


def _holds(kind: str, argument: Any, sign: str) -> bool:
    if kind == "LITERAL":
        return bool(ord(sign) == argument)
    if kind == "RANGE":
        return bool(argument[0] <= ord(sign) <= argument[1])
    if kind == "CATEGORY":
        name = str(argument).removeprefix("CATEGORY_").removeprefix("UNI_")
        is_not, name = name.startswith("NOT_"), name.removeprefix("NOT_")
        return {"DIGIT": sign.isdigit(), "SPACE": sign.isspace()}.get(name, sign.isalnum() or sign == "_") != is_not
    return False
