"""The definitions of a schema: what a reference points at, whether it leads back to itself, and schemas in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acorn._grammar.checked import Schema, checked

NOTES = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("discriminator", "$defs"),
}
"""What of a schema says nothing of validity."""


class Definitions:
    """What the references within one schema mean."""

    def __init__(self, root: Schema | bool) -> None:
        self._root = root
        self._targets: dict[str, Schema | bool] = {}
        self._recursive: dict[str, bool] = {}

    def target(self, reference: str) -> Schema | bool:
        """What a reference points at; anything goes where it points nowhere."""
        if reference not in self._targets:
            found: Any = self._root
            for part in filter(None, reference.lstrip("#").split("/")):
                found = _member(found, part.replace("~1", "/").replace("~0", "~"))
            self._targets[reference] = checked(found, reference)
        return self._targets[reference]

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

    def both(self, one: Schema, other: Schema | bool, taken: set[str] | None = None) -> Schema | bool:
        """A schema that says what both say; where they speak of the same, the narrower or the second.

        The references that were followed are `taken`: one that comes again has nothing to add.
        """
        if isinstance(other, bool):
            return one if other else False
        if not one:
            return other
        if "$ref" in other:
            taken = set() if taken is None else taken
            reference, rest = other["$ref"], {key: value for key, value in other.items() if key != "$ref"}
            here = self.both(one, rest, taken)
            if isinstance(here, bool) or reference in taken:
                return here
            taken.add(reference)
            return self.both(here, self.target(reference), taken)
        made = {**one, **other}
        if "allOf" in one and "allOf" in other:
            made["allOf"] = [*one["allOf"], *other["allOf"]]
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
        """A schema without its `allOf`, and without those of its parts."""
        made: Schema | bool = schema
        taken: set[str] = set()
        while not isinstance(made, bool) and "allOf" in made:
            parts = made["allOf"]
            made = {key: value for key, value in made.items() if key != "allOf"}
            for part in parts:
                made = made if isinstance(made, bool) else self.both(made, part, taken)
        return made


_NARROWER: dict[str, Any] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


def _member(found: Any, name: str) -> Any:
    if isinstance(found, Mapping):
        return found.get(name, {})
    is_index = isinstance(found, list) and name.isdecimal() and len(name) < 6 and int(name) < len(found)
    return found[int(name)] if is_index else {}


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
