"""Random JSON schemas, as people and Pydantic write them."""

from __future__ import annotations

import random
from typing import Any

KEYWORDS = (
    *("type", "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
    *("maxProperties", "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "additionalItems"),
    *("minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("multipleOf", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "$ref", "$defs", "definitions"),
    *(
        "discriminator",
        "title",
        "description",
        "default",
        "examples",
        "nullable",
        "$id",
        "$anchor",
        "dependentRequired",
    ),
)
VALUES: tuple[Any, ...] = (
    *(True, False, None, 0, 1, 2.0, 2.5, -1, 10**9, 1e308, -1e-308, float("nan"), float("inf"), 10**400, "", "x", "#"),
    *(
        "object",
        "array",
        "string",
        "integer",
        "number",
        "boolean",
        "null",
        "date",
        "uuid",
        "^a+$",
        "(?!x)",
        "[",
        "(a|b)*",
    ),
    *(
        "#/$defs/a",
        "#/$defs/b",
        "#/properties/x",
        "#/anyOf/0",
        "#/anyOf/x",
        "#/type/0",
        "http://a.example/b",
        "#a",
        "\ud800",
    ),
    *(
        [],
        {},
        [1, 2],
        ["x", "y"],
        ["string", "null"],
        [None],
        [[]],
        {"x": 1},
        {"x": {}},
        {"propertyName": "x"},
        b"bytes",
    ),
)
"""Right in one place and wrong in another."""

NAMES = ("name", "age", "title", "tags", "items", "city", "note", "kind", "size", "größe", 'a "b"', "type")


def schema(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return a random schema for the parameters of a tool."""
    made = _object(chance, depth)
    made["$defs"] = {
        "Color": {"enum": ["red", "green", "blue"], "type": "string"},
        "Point": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
        "Tree": {
            "type": "object",
            "properties": {
                "label": {"type": "string", "maxLength": 12},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "maxItems": 2},
                "next": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}], "default": None},
            },
            "required": ["label"],
        },
    }
    return made


def hostile(chance: random.Random, depth: int = 4) -> Any:
    """Return an unreasonable schema: keywords of all kinds together, with values of all kinds."""
    if depth == 0 or chance.random() < 0.1:
        return chance.choice((True, False, {}, {"type": "null"}) if chance.random() < 0.9 else VALUES)
    made: dict[str, Any] = {}
    for key in chance.sample(KEYWORDS, chance.randint(0, 4)):
        made[key] = _right(chance, key, depth) if chance.random() < 0.97 else hostile(chance, depth - 1)
    if depth == 4:
        made["$defs"] = {name: hostile(chance, 3) for name in "ab"}
    return made


def _right(chance: random.Random, key: str, depth: int) -> Any:
    """Return a random value whose type fits the keyword."""
    if key in ("properties", "patternProperties", "$defs", "definitions"):
        return {name: hostile(chance, depth - 1) for name in chance.sample("xyab", 2)}
    if key in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        return [hostile(chance, depth - 1) for _ in range(chance.randint(1, 2))]
    if key in ("additionalProperties", "propertyNames", "not"):
        return hostile(chance, depth - 1)
    if key.startswith(("min", "max", "exclusive", "multiple")):
        return chance.choice((0, 1, 2.0, 3, 7))
    if key in ("enum", "required", "examples"):
        return chance.choice((["x"], ["x", "y"], []))
    rest = {
        "type": ("object", "array", "string", "number", ["string", "null"]),
        "$ref": ("#", "#/$defs/a", "#/$defs/b"),
    }
    return chance.choice(rest.get(key, VALUES))


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(NAMES, chance.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: value(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
        **({"additionalProperties": False} if chance.random() < 0.5 else {}),
    }


def value(chance: random.Random, depth: int) -> dict[str, Any]:
    plain = (_string, _integer, _number, _enum, _format, _pattern, _reference, _flag)
    nested = (_array, _union, _tuple, _dict, _unique, lambda chance, depth: _object(chance, depth))
    chosen = chance.choice((*plain, *nested) if depth > 0 else plain)
    made: dict[str, Any] = chosen(chance, depth)
    if chance.random() < 0.2 and "$ref" not in made:
        made["description"] = "whatever fits"
    return made


def _string(chance: random.Random, depth: int) -> dict[str, Any]:
    low = chance.choice((0, 0, 1, 3))
    return {"type": "string", "minLength": low, "maxLength": low + chance.choice((0, 1, 10, 30))}


def _integer(chance: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "integer"}
    low = chance.choice((-1000, -17, -1, 0, 1, 9, 18, 99, 12345))
    if chance.random() < 0.7:
        made[chance.choice(("minimum", "exclusiveMinimum"))] = low
    if chance.random() < 0.7:
        made[chance.choice(("maximum", "exclusiveMaximum"))] = low + chance.choice((2, 9, 100, 5_000_000))
    if chance.random() < 0.1:
        made["multipleOf"] = chance.choice((1, 2))
    return made


def _number(chance: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "number"}
    low = chance.choice((-273.15, -1.5, -0.001, 0, 0.0, 0.25, 1, 99.99, 1e6))
    if chance.random() < 0.7:
        made[chance.choice(("minimum", "exclusiveMinimum"))] = low
    if chance.random() < 0.7:
        made[chance.choice(("maximum", "exclusiveMaximum"))] = low + chance.choice((0.01, 1, 0.75, 1000))
    if not made.keys() & {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"} and chance.random() < 0.3:
        made["multipleOf"] = chance.choice((0.5, 0.25, 3))
    return made


def _enum(chance: random.Random, depth: int) -> dict[str, Any]:
    return chance.choice(
        (
            {"enum": ["low", "high"], "type": "string"},
            {"enum": [1, 2, 3]},
            {"enum": ['say "hi"', "back\\slash", "line\nend", "é"]},
            {"const": "fixed"},
            {"const": None},
            {"enum": [None, True, 0.5, "x"]},
        )
    ).copy()


def _format(chance: random.Random, depth: int) -> dict[str, Any]:
    known = ("date", "date-time", "time", "uuid", "email", "ipv4", "ipv6", "uri", "duration", "hostname")
    return {"type": "string", "format": chance.choice(known)}


PATTERNS = (
    r"^[A-Z]{2}-\d{3,5}$",
    r"^(foo|bar)+$",
    r"[a-f0-9]{8}",
    r"^\+?[1-9]\d{1,14}$",
    r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$",
    r"^#(?:[0-9a-fA-F]{3}){1,2}$",
    r'^"quoted"\\$',
    r"^\w+( \w+)*$",
    r"^$|^yes$",
    r"^.{2,4}$",
    r"^(?P<year>\d{4})/[01]\d$",
    r"^[\w.-]+[^\]\[-]$",
)


def _pattern(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "pattern": chance.choice(PATTERNS)}


def _reference(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{chance.choice(('Color', 'Point', 'Tree'))}"}


def _flag(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"type": chance.choice(("boolean", "null"))}


def _array(chance: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array", "items": value(chance, depth - 1)}
    if chance.random() < 0.5:
        made["minItems"] = chance.choice((0, 1, 2))
    if chance.random() < 0.5:
        made["maxItems"] = chance.choice((2, 3))
    return made


def _union(chance: random.Random, depth: int) -> dict[str, Any]:
    options = [value(chance, depth - 1) for _ in range(chance.choice((2, 3)))]
    return {"anyOf": options} if chance.random() < 0.8 else {"type": ["string", "integer", "null"]}


def _tuple(chance: random.Random, depth: int) -> dict[str, Any]:
    first = [value(chance, depth - 1) for _ in range(chance.choice((1, 2)))]
    return {"type": "array", "prefixItems": first, "minItems": len(first), "maxItems": len(first)}


def _dict(chance: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "additionalProperties": value(chance, depth - 1)}
    if chance.random() < 0.3:
        made["propertyNames"] = {"enum": ["left", "right"]}
    elif chance.random() < 0.3:
        made = {"type": "object", "patternProperties": {"^[a-z]{1,8}$": value(chance, depth - 1)}}
    return made


def _unique(chance: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c", 4]}}
    if chance.random() < 0.5:
        made["minItems"] = chance.choice((1, 2, 4))
    return made
