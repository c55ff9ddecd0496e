"""The empty form of an output, which a model fills in when it cannot be made to call `__finish__`."""

from __future__ import annotations

from acorn._schema.generate import JsonSchema, resolve
from acorn._xml.decode import unlisted
from acorn._xml.encode import field_tag

_MAX_LINES = 2000
"""Beyond this the form goes no deeper: classes that all hold each other would fill books."""


def skeleton(schema: JsonSchema, root: str) -> str:
    """Nested empty elements for every field of an object schema, descriptions as attributes."""
    lines: list[str] = []
    _write(f"<{root}", f"</{root}>", schema, schema, 0, (), lines)
    return "\n".join(lines)


def _write(
    start: str,
    end: str,
    node: JsonSchema,
    top: JsonSchema,
    depth: int,
    seen: tuple[str, ...],
    lines: list[str],
) -> None:
    indent = "  " * depth
    node, seen, again = _followed(node, top, seen)
    properties = node.get("properties", {})
    values = unlisted(node)
    is_plain = not properties and node.get("type") != "array" and values is None
    if is_plain or again or len(lines) > _MAX_LINES:
        lines.append(f"{indent}{start}>{end}")
        return
    lines.append(f"{indent}{start}>")
    if node.get("type") == "array":
        for item in node.get("prefixItems") or [node.get("items") or {}]:
            _write("<item", "</item>", item, top, depth + 1, seen, lines)
    elif properties:
        for name, field in properties.items():
            tag = field_tag(name, field.get("description"), "attribute")
            _write(tag.start, tag.end, field, top, depth + 1, seen, lines)
    else:
        _write('<entry key="..."', "</entry>", values or {}, top, depth + 1, seen, lines)
    lines.append(f"{indent}{end}")


def _followed(node: JsonSchema, top: JsonSchema, seen: tuple[str, ...]) -> tuple[JsonSchema, tuple[str, ...], bool]:
    """Follow references and take a union's first member that is not null; a circle ends the form."""
    while True:
        if "$ref" in node:
            if node["$ref"] in seen:
                return node, seen, True
            seen = (*seen, node["$ref"])
            node = resolve(node["$ref"], top)
        elif members := node.get("anyOf") or node.get("oneOf"):
            node = next((member for member in members if member.get("type") != "null"), members[0])
        else:
            return node, seen, False
