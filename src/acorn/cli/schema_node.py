"""A JSON Schema as the command line needs it: the kinds of a value, its parts, and how its text is read.

`options` makes options of it, and `input` reads their texts by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from acorn._inside import MEDIA_FORMAT, JsonSchema, describe_schema, follow_refs
from acorn.types import is_json_list, is_json_object

_ALIASES = "acorn-aliases"
"""The key under which an object has the other names of its fields."""


class SchemaNode:
    """One value of a schema: a field, an item, the whole input."""

    def __init__(self, schema: JsonSchema, root: JsonSchema) -> None:
        self.schema = schema
        self.root = root
        self.members = list(_members(schema, root))
        """The schemas that the value may match; unions are expanded."""
        member_kinds = [_kinds(member) for member in self.members]
        self.kinds = {kind for kinds in member_kinds for kind in kinds} if all(member_kinds) else set[str]()
        """The JSON names of its types; empty if every value is allowed."""

    @property
    def type_text(self) -> str:
        return describe_schema(self.schema, self.root)

    @property
    def choices(self) -> list[Any] | None:
        """The values that are allowed, or None if the schema does not list them."""
        choices: list[Any] = []
        for member in self.members:
            if "const" in member:
                choices.append(member["const"])
            elif "enum" in member:
                choices += member["enum"]
            elif member.get("type") == "null":
                choices.append(None)
            else:
                return None
        return choices

    @property
    def media(self) -> list[str]:
        """The media that it may be: `image`, `audio`, `file`."""
        formats = [str(member.get("format")) for member in self.members]
        return [name.removeprefix(MEDIA_FORMAT) for name in formats if name.startswith(MEDIA_FORMAT)]

    @property
    def is_flag(self) -> bool:
        return "boolean" in self.kinds and self.kinds <= {"boolean", "null"}

    @property
    def accepts_any_text(self) -> bool:
        texts = [member for member in self.members if "string" in _kinds(member)]
        return not self.kinds or any(not member.keys() & {"format", "enum", "const"} for member in texts)

    @property
    def is_list(self) -> bool:
        return "array" in self.kinds and not self.kinds & {"object", "string"}

    @property
    def is_only_list(self) -> bool:
        return "array" in self.kinds and self.kinds <= {"array", "null"}

    @property
    def is_repeatable(self) -> bool:
        """Whether an option that is given several times makes a list."""
        return "array" in self.kinds

    @property
    def fields(self) -> dict[str, SchemaNode]:
        """The fields of an object by name; for a union, the fields of all its members."""
        schemas_by_name: dict[str, list[JsonSchema]] = {}
        for member in self.members:
            for name, schema in member.get("properties", {}).items():
                schemas = schemas_by_name.setdefault(name, [])
                if schema not in schemas:
                    schemas.append(schema)
        return {name: SchemaNode(_union(schemas), self.root) for name, schemas in schemas_by_name.items()}

    @property
    def aliases(self) -> dict[str, str]:
        """The names of the fields by their aliases."""
        return {alias: name for member in self.members for alias, name in member.get(_ALIASES, {}).items()}

    @property
    def required(self) -> set[str]:
        return {name for member in self.members for name in member.get("required", [])}

    def item(self, index: int) -> SchemaNode:
        """Return the schema of a list item."""
        for member in self.members:
            if member.get("type") == "array":
                first: Sequence[JsonSchema] = member.get("prefixItems", [])
                return SchemaNode(first[index] if index < len(first) else member.get("items") or {}, self.root)
        return SchemaNode({}, self.root)

    @property
    def extra_value(self) -> SchemaNode | None:
        """The schema of a value under any other key; None if there are no other keys."""
        for member in self.members:
            if member.get("type") == "object":
                extra = member.get("additionalProperties", "properties" not in member)
                if extra is not False:
                    return SchemaNode(extra if is_json_object(extra) else {}, self.root)
        return SchemaNode({}, self.root) if not self.kinds else None

    @property
    def definition(self) -> str | None:
        """The definition that it refers to, by which a schema that contains itself is recognized."""
        refs = [member.get("$ref") for member in (self.schema, *self.schema.get("anyOf", []))]
        return next((ref for ref in refs if ref), None)


def add_aliases(schema: JsonSchema, aliased: JsonSchema) -> JsonSchema:
    """Add the aliases of the fields to a schema, from the same schema with aliases as names."""
    with_aliases: JsonSchema = _add_aliases(schema, aliased)
    return with_aliases


def _add_aliases(schema: Any, aliased: Any) -> Any:
    if is_json_list(schema) and is_json_list(aliased) and len(schema) == len(aliased):
        return [_add_aliases(item, other) for item, other in zip(schema, aliased, strict=True)]
    if not is_json_object(schema) or not is_json_object(aliased):
        return schema
    copy = {key: _add_aliases(value, aliased.get(key)) for key, value in schema.items()}
    fields, aliased_fields = schema.get("properties"), aliased.get("properties")
    if is_json_object(fields) and is_json_object(aliased_fields) and len(fields) == len(aliased_fields):
        pairs = list(zip(fields, aliased_fields, strict=True))  # Both are in the order of the class.
        copy["properties"] = {name: _add_aliases(fields[name], aliased_fields[alias]) for name, alias in pairs}
        copy[_ALIASES] = {alias: name for name, alias in pairs if alias != name}
    return copy


def _union(schemas: list[JsonSchema]) -> JsonSchema:
    """Return the schema of a field that several members of a union have, with the texts that they share."""
    if len(schemas) == 1:
        return schemas[0]
    common = [key for key in ("description", "default", "title") if all(key in schema for schema in schemas)]
    equal = {key: schemas[0][key] for key in common if all(schema[key] == schemas[0][key] for schema in schemas)}
    return {"anyOf": schemas, **equal}


def _members(schema: JsonSchema, root: JsonSchema) -> Iterator[JsonSchema]:
    schema = follow_refs(schema, root)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            for member in schema[union]:
                yield from _members(member, root)
            return
    yield schema


def _kinds(member: JsonSchema) -> list[str]:
    kind = member.get("type")
    if kind is not None:
        return kind if is_json_list(kind) else [kind]
    values = [member["const"]] if "const" in member else member.get("enum", [])
    return list(dict.fromkeys(_kind_of(value) for value in values))


_KINDS: dict[type[object], str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
}


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value), "object")
