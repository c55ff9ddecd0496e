"""A JSON Schema as the command line sees it: what a value may be, what it consists of, how its text is read.

`arguments` makes options of it, `input` reads their texts by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from acorn._inside import JsonSchema, describe_schema, follow_refs, media_kind

_ALIASES = "acorn-aliases"
"""Where an object keeps the other names of its fields."""


class Node:
    """One value of a schema: a field, an item, the whole input."""

    def __init__(self, schema: JsonSchema, top: JsonSchema) -> None:
        self.schema = schema
        self.top = top
        self.members = list(_members(schema, top))
        """What it may be, unions laid open."""
        kinds = [_kinds(member) for member in self.members]
        self.kinds = {kind for found in kinds for kind in found} if all(kinds) else set[str]()
        """JSON's names of its types; empty where anything goes."""

    @property
    def words(self) -> str:
        return describe_schema(self.schema, self.top)

    @property
    def choices(self) -> list[Any] | None:
        """The values it is restricted to, None where it is not."""
        found: list[Any] = []
        for member in self.members:
            if "const" in member:
                found.append(member["const"])
            elif "enum" in member:
                found += member["enum"]
            elif member.get("type") == "null":
                found.append(None)
            else:
                return None
        return found

    @property
    def media(self) -> list[str]:
        """Which of `image`, `audio` and `file` it may be."""
        return [kind for member in self.members if (kind := media_kind(member)) is not None]

    @property
    def is_flag(self) -> bool:
        return "boolean" in self.kinds and self.kinds <= {"boolean", "null"}

    @property
    def takes_text(self) -> bool:
        """Whether any text at all may be meant."""
        texts = [member for member in self.members if "string" in _kinds(member)]
        return not self.kinds or any(not member.keys() & {"format", "enum", "const"} for member in texts)

    @property
    def is_list(self) -> bool:
        return "array" in self.kinds and not self.kinds & {"object", "string"}

    @property
    def is_only_list(self) -> bool:
        return "array" in self.kinds and self.kinds <= {"array", "null"}

    @property
    def takes_several(self) -> bool:
        """Whether repetition makes a list."""
        return "array" in self.kinds

    @property
    def fields(self) -> dict[str, Node]:
        """Its parts by name, where it is an object with known ones; of a union those of all."""
        parts: dict[str, list[JsonSchema]] = {}
        for member in self.members:
            for name, schema in member.get("properties", {}).items():
                known = parts.setdefault(name, [])
                if schema not in known:
                    known.append(schema)
        return {name: Node(_either(schemas), self.top) for name, schemas in parts.items()}

    @property
    def aliases(self) -> dict[str, str]:
        """Other names of its parts."""
        return {alias: name for member in self.members for alias, name in member.get(_ALIASES, {}).items()}

    @property
    def required(self) -> set[str]:
        return {name for member in self.members for name in member.get("required", [])}

    def item(self, at: int) -> Node:
        """What stands in a list at an index."""
        for member in self.members:
            if member.get("type") == "array":
                first: Sequence[JsonSchema] = member.get("prefixItems", [])
                return Node(first[at] if at < len(first) else member.get("items") or {}, self.top)
        return Node({}, self.top)

    @property
    def entry(self) -> Node | None:
        """What stands under a key of one's own choice; None where there are no such keys."""
        for member in self.members:
            if member.get("type") == "object":
                extra = member.get("additionalProperties", "properties" not in member)
                if extra is not False:
                    return Node(extra if isinstance(extra, dict) else {}, self.top)
        return Node({}, self.top) if not self.kinds else None

    @property
    def name(self) -> str | None:
        """The definition it points to, to notice a schema that contains itself."""
        found = [member.get("$ref") for member in (self.schema, *self.schema.get("anyOf", []))]
        return next((ref for ref in found if ref), None)


def with_aliases(named: JsonSchema, aliased: JsonSchema) -> JsonSchema:
    """A schema of fields' own names that knows their aliases, from the same schema with these."""
    made: Any = _paired(named, aliased)
    found: JsonSchema = made
    return found


def _paired(named: Any, aliased: Any) -> Any:
    if isinstance(named, list) and isinstance(aliased, list) and len(named) == len(aliased):
        return [_paired(one, other) for one, other in zip(named, aliased, strict=True)]
    if not isinstance(named, dict) or not isinstance(aliased, dict):
        return named
    made = {key: _paired(value, aliased.get(key)) for key, value in named.items()}
    fields, others = named.get("properties"), aliased.get("properties")
    if isinstance(fields, dict) and isinstance(others, dict) and len(fields) == len(others):
        pairs = list(zip(fields, others, strict=True))  # both in the order of the class
        made["properties"] = {name: _paired(fields[name], others[other]) for name, other in pairs}
        made[_ALIASES] = {other: name for name, other in pairs if other != name}
    return made


def _either(schemas: list[JsonSchema]) -> JsonSchema:
    """What a part may be that several members of a union have; what they all say of it is kept."""
    if len(schemas) == 1:
        return schemas[0]
    said = [key for key in ("description", "default", "title") if all(key in schema for schema in schemas)]
    same = {key: schemas[0][key] for key in said if all(schema[key] == schemas[0][key] for schema in schemas)}
    return {"anyOf": schemas, **same}


def _members(schema: JsonSchema, top: JsonSchema) -> Iterator[JsonSchema]:
    schema = follow_refs(schema, top)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            for member in schema[union]:
                yield from _members(member, top)
            return
    yield schema


def _kinds(member: JsonSchema) -> list[str]:
    kind = member.get("type")
    if kind is not None:
        return kind if isinstance(kind, list) else [kind]
    values = [member["const"]] if "const" in member else member.get("enum", [])
    return list(dict.fromkeys(_kind_of(value) for value in values))


def _kind_of(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}
    return kinds.get(type(value), "object")
