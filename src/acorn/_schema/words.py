"""A JSON Schema in a few words, for people and models that gave the wrong thing.

`float between 0 and 1`, `one of "red", "green"`, `list of string, at least 1 item`. Called for every
message that says what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from acorn._schema.generate import JsonSchema, resolve

_TYPES = {
    "string": "string",
    "integer": "integer",
    "number": "float",
    "boolean": "boolean (true or false)",
    "null": "null",
}
_FORMATS = {
    "date-time": "date and time in ISO 8601",
    "date": "date as YYYY-MM-DD",
    "time": "time as HH:MM:SS",
    "duration": "duration in ISO 8601",
    "uuid": "UUID",
    "uri": "URL",
    "email": "e-mail address",
    "binary": "bytes",
    "path": "path",
    "acorn-image": "image",
    "acorn-audio": "audio",
    "acorn-file": "file",
}
_DEPTH = 8
"""How deep the words follow a type into its parts."""


def in_words(node: JsonSchema, top: JsonSchema, depth: int = _DEPTH) -> str:
    """What a value of this schema must be; `top` holds the definitions. A type may hold itself."""
    if not depth or not isinstance(node, dict):  # a user's schema may be `true`
        return "value"
    if "$ref" in node:
        return in_words(resolve(node["$ref"], top), top, depth - 1)
    if "const" in node:
        return _quoted(node["const"])
    if "enum" in node:
        return "one of " + ", ".join(_quoted(value) for value in node["enum"])
    for union in ("anyOf", "oneOf"):
        if union in node:
            return " or ".join(_unique(in_words(member, top, depth - 1) for member in node[union]))
    kind = node.get("type")
    if isinstance(kind, list):
        return " or ".join(_unique(in_words({**node, "type": one}, top, depth - 1) for one in kind))
    if kind == "array":
        return _list(node, top, depth - 1)
    if kind == "object":
        return _object(node)
    if kind == "string" and node.get("format") in _FORMATS:
        return _FORMATS[node["format"]]
    return _TYPES[kind] if kind in ("boolean", "null") else _TYPES.get(str(kind), "value") + _limits(node)


def _limits(node: JsonSchema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    parts: list[str] = []
    if low is not None and high is not None:
        parts.append(f"between {_number(low)} and {_number(high)}")
    elif low is not None:
        parts.append(f"of at least {_number(low)}")
    elif high is not None:
        parts.append(f"of at most {_number(high)}")
    if "exclusiveMinimum" in node:
        parts.append(f"greater than {_number(node['exclusiveMinimum'])}")
    if "exclusiveMaximum" in node:
        parts.append(f"less than {_number(node['exclusiveMaximum'])}")
    if "multipleOf" in node:
        parts.append(f"a multiple of {_number(node['multipleOf'])}")
    if count := _count(node.get("minLength"), node.get("maxLength"), "character"):
        parts.append(f"of {count}")
    if "pattern" in node:
        parts.append(f"matching {node['pattern']}")
    return "".join(f" {part}" if at == 0 else f" and {part}" for at, part in enumerate(parts))


def _list(node: JsonSchema, top: JsonSchema, depth: int) -> str:
    if "prefixItems" in node:
        return "list of " + ", ".join(in_words(member, top, depth) for member in node["prefixItems"])
    item = node.get("items") or {}
    text = "list of " + in_words(item, top, depth) if item else "list"
    count = _count(node.get("minItems"), node.get("maxItems"), "item")
    return f"{text}, {count}" if count else text


def _object(node: JsonSchema) -> str:
    names = list(node.get("properties", {}))
    text = "object with " + ", ".join(names) if names else "object"
    count = _count(node.get("minProperties"), node.get("maxProperties"), "key")
    return f"{text}, {count}" if count else text


def _count(low: int | None, high: int | None, noun: str) -> str:
    if low is not None and low == high:
        return f"exactly {_plural(low, noun)}"
    if low is not None and high is not None:
        return f"{low} to {_plural(high, noun)}"
    if low is not None:
        return f"at least {_plural(low, noun)}"
    if high is not None:
        return f"at most {_plural(high, noun)}"
    return ""


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else str(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
