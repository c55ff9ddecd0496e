"""A parser for grammars that generates random texts of a grammar, like a model."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{\d+,\d+\}|[()|?]|[a-zA-Z][\w-]*|\s+')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
MOST = 2000
"""Repetitions within repetitions in one rule, as llama.cpp counts them."""
_SPICE = "aeiou XYZ019.-_/ß漢🙂'`<>&{}[],:"


@dataclass
class Grammar:
    """A parsed grammar, whose `rules` map names to lists of options; an option is a list of (part, low, high)."""

    rules: dict[str, Any]

    @classmethod
    def read(cls, text: str) -> Grammar:
        rules: dict[str, Any] = {}
        for line in text.strip().splitlines():
            name, body = line.split(" ::= ", 1)
            assert name not in rules, name
            tokens = [found.group() for found in _TOKEN.finditer(body)]
            assert "".join(tokens) == body, f"not a rule: {line}"
            rest = [token for token in tokens if not token.isspace()]
            rules[name] = _options(rest)
            assert not rest, f"not a rule: {line}"
        return cls(rules)

    def write(self, chance: random.Random) -> str:
        """Generate a random text of the grammar."""
        return self._write(self.rules["root"], chance)

    def as_regex(self) -> re.Pattern[str]:
        """Convert a small grammar to a regular expression."""
        return re.compile(self._regex(self.rules["root"]))

    def _regex(self, options: Any) -> str:
        rows = ["".join(f"(?:{self._part(part)}){{{low},{high}}}" for part, low, high in option) for option in options]
        return f"(?:{'|'.join(rows)})"

    def _part(self, part: Any) -> str:
        if isinstance(part, list):
            return self._regex(part)
        if part.startswith('"'):
            return re.escape(_unescaped(part[1:-1]))
        return part if part.startswith("[") else self._regex(self.rules[part])

    def _write(self, options: Any, chance: random.Random) -> str:
        made: list[str] = []
        for part, low, high in chance.choice(options):
            edge = chance.random()
            count = low if edge < 0.25 else high if edge > 0.75 else chance.randint(low, min(high, low + 6))
            for _ in range(count):
                if isinstance(part, list):
                    made.append(self._write(part, chance))
                elif part.startswith('"'):
                    made.append(_unescaped(part[1:-1]))
                elif part.startswith("["):
                    made.append(_one_of(part[1:-1], chance))
                else:
                    made.append(self._write(self.rules[part], chance))
        return "".join(made)


def _options(tokens: list[str]) -> list[Any]:
    options: list[Any] = [[]]
    while tokens and tokens[0] != ")":
        token = tokens.pop(0)
        if token == "|":
            options.append([])
            continue
        part: Any = token
        if token == "(":
            part = _options(tokens)
            assert tokens.pop(0) == ")"
        low = high = 1
        if tokens and tokens[0] == "?":
            tokens.pop(0)
            low = 0
        elif tokens and tokens[0].startswith("{"):
            low, high = map(int, tokens.pop(0)[1:-1].split(","))
            assert _weight(part) * high <= MOST, "more repetitions than the engine takes"
        options[-1].append((part, low, high))
    return options


def _weight(part: Any) -> int:
    if not isinstance(part, list):
        return 1
    return sum(_weight(inner) * high for option in part for inner, _, high in option)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), text)


def _one_of(text: str, chance: random.Random) -> str:
    is_negated, text = text.startswith("^"), text.removeprefix("^")
    found = re.findall(r"\\x([0-9A-F]{2})|\\(.)|(.)", text)
    signs: list[str] = []
    plain: list[bool] = []
    for code, escaped, bare in found:
        signs.append(chr(int(code, 16)) if code else _ESCAPES.get(escaped, escaped) if escaped else bare)
        plain.append(bool(bare))
    members: list[str] = []
    index = 0
    while index < len(signs):
        if index + 2 < len(signs) and plain[index + 1] and signs[index + 1] == "-":
            members += map(chr, range(ord(signs[index]), ord(signs[index + 2]) + 1))
            index += 3
        else:
            members.append(signs[index])
            index += 1
    if is_negated:
        return chance.choice([sign for sign in _SPICE if sign not in members])
    return chance.choice(members)
