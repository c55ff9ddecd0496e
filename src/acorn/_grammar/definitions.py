"""The definitions of a schema: what a reference points at, whether it leads back to itself, and schemas in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

NOTES = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("discriminator", "$defs"),
}
"""What of a schema says nothing of validity."""


class Definitions:
    """What the references within one schema mean."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._recursive: dict[str, bool] = {}

    def target(self, reference: str) -> Schema:
        """What a reference points at; anything goes where it points nowhere."""
        found: Any = self._root
        for part in filter(None, reference.lstrip("#").split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found.get(name, {})
        return found if isinstance(found, Mapping) else {}

    def is_recursive(self, reference: str) -> bool:
        """Whether a reference leads back to itself."""
        if reference not in self._recursive:
            self._recursive[reference] = self._leads_back(reference)
        return self._recursive[reference]

    def _leads_back(self, reference: str) -> bool:
        seen: set[str] = set()
        ahead = list(_references(self.target(reference)))
        while ahead:
            here = ahead.pop()
            if here == reference:
                return True
            if here not in seen:
                seen.add(here)
                ahead += _references(self.target(here))
        return False

    def both(self, one: Schema, other: Schema | bool) -> Schema | bool:
        """A schema that says what both say; where they speak of the same, the narrower or the second."""
        if isinstance(other, bool):
            return one if other else False
        if not one:
            return other
        if "$ref" in other:
            rest = {key: value for key, value in other.items() if key != "$ref"}
            return self.both({**one, **rest}, self.target(other["$ref"]))
        made = {**one, **other}
        if "properties" in one and "properties" in other:
            made["properties"] = {**one["properties"], **other["properties"]}
        if "required" in one and "required" in other:
            made["required"] = [*one["required"], *other["required"]]
        for key, choose in _NARROWER.items():
            if key in one and key in other:
                made[key] = choose(one[key], other[key])
        return made

    def beside(self, shared: Schema, option: Schema | bool) -> Schema | bool:
        """An option with what it shares with others. A reference stays one, so that recursion is noticed."""
        if isinstance(option, bool) or "$ref" not in option or not shared:
            return self.both(shared, option)
        rest = self.both(shared, {key: value for key, value in option.items() if key != "$ref"})
        return rest if isinstance(rest, bool) else {**rest, "$ref": option["$ref"]}

    def merged(self, schema: Schema) -> Schema | bool:
        """A schema without its `allOf`."""
        made: Schema | bool = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            if isinstance(made, bool):
                return made
            made = self.both(made, part)
        return made


_NARROWER: dict[str, Any] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


def _references(schema: Any) -> Iterator[str]:
    """Every `$ref` within a schema."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for key, inner in schema.items():
            if key not in ("default", "examples", "const", "enum", "$defs"):
                yield from _references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)
