"""Whether a JSON Schema is one that OpenAI takes as a strict one, word by word as it stands.

A strict schema names every property as required, closes every object, and keeps to a few keywords. What need not be
given would have to be, so nothing is rewritten here but for closing an object, which loses nothing.
"""

from __future__ import annotations

from typing import Any

from acorn._schema.generate import JsonSchema

_WORDS = frozenset(
    (
        *("type", "description", "title", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_DEEPEST = 10
_MOST_PROPERTIES = 5000


def is_strict(schema: JsonSchema) -> bool:
    """Whether it can be sent as a strict one, unchanged."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return False
    nodes = list(_nodes(schema, 0))
    count = sum(len(node.get("properties", ())) for node, _ in nodes)
    deepest = max(depth for _, depth in nodes)
    return count <= _MOST_PROPERTIES and deepest <= _DEEPEST and all(_fits(node) for node, _ in nodes)


def closed(schema: JsonSchema) -> JsonSchema:
    """The same, where objects that do not speak of further properties forbid them."""
    made = dict(schema)
    for key in ("properties", "$defs"):
        if isinstance(made.get(key), dict):
            made[key] = {name: _closed(inner) for name, inner in made[key].items()}
    if isinstance(made.get("anyOf"), list):
        made["anyOf"] = [_closed(inner) for inner in made["anyOf"]]
    if "items" in made:
        made["items"] = _closed(made["items"])
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def _closed(inner: Any) -> Any:
    return closed(inner) if isinstance(inner, dict) else inner


def _nodes(schema: JsonSchema, depth: int) -> list[tuple[JsonSchema, int]]:
    """The schema and all within it, each with how many objects are around it."""
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    below = depth + (schema.get("type") == "object")
    found = [(schema, below)]
    for each in inner:
        found += _nodes(each if isinstance(each, dict) else {"not": each}, below)
    return found


def _fits(node: JsonSchema) -> bool:
    if not node.keys() <= _WORDS or node.get("format", "date") not in _FORMATS:
        return False
    if "$ref" in node:
        return node.keys() <= {"$ref", "$defs"}
    kind = node.get("type")
    if kind == "object":
        names = node.get("properties", {}).keys()
        return node.get("additionalProperties") is False and names == set(node.get("required", ()))
    if kind == "array":
        return bool(node.get("items"))
    return kind is not None or not {"anyOf", "enum", "const"}.isdisjoint(node)
