"""A schema whose keywords are of the types that they must be, so that the rooms after this one need not ask.

Schemas come from anybody: what is written otherwise in older drafts (`items` as a list) or by other languages
(`2.0` for a count) is brought into one form, what is no schema at all is an `UnreadableError` that says where.

The definitions of a schema: what a reference points at, whether it leads back to itself, and schemas in one.

Strings of a known format, as JSON text between its quotes. A table; the builder reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from acorn.types import JsonObject

Schema = JsonObject

_DEEPEST = 60
"""Schemas within schemas. Nobody writes so many; a reader of them must end all the same."""
_MOST = 20_000
"""The longest that a string or a list may be asked to be at least: more than any answer holds."""


class UnreadableError(ValueError):
    """What should be a schema is none."""


def checked(schema: Any, path: str = "#", depth: int = 0) -> Schema | bool:
    """The schema in one form, with everything in it that may be a schema too."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        raise UnreadableError(f"`{path}` must be a schema, got {_shown(schema)}")
    if depth > _DEEPEST:
        raise UnreadableError(f"`{path}` is nested too deeply")
    made = {key: _value(key, value, f"{path}/{key}", depth) for key, value in schema.items()}
    if isinstance(made.get("items"), list):
        made["prefixItems"], made["items"] = made["items"], made.pop("additionalItems", True)
    return made


def _value(key: Any, value: Any, path: str, depth: int) -> Any:
    if key in ("items", *_SCHEMAS) and isinstance(value, list):
        return [checked(each, f"{path}/{index}", depth + 1) for index, each in enumerate(value)]
    if key in _SCHEMA:
        return checked(value, path, depth + 1)
    if key in _NAMED and isinstance(value, Mapping):
        return {str(name): checked(each, f"{path}/{name}", depth + 1) for name, each in value.items()}
    what, is_right = _WANTED.get(key, ("", _is_anything))
    if not is_right(value):
        raise UnreadableError(f"`{path}` must be {what}, got {_shown(value)}")
    return int(value) if key in _COUNTS else value


_SCHEMA = ("items", "additionalItems", "additionalProperties", "propertyNames")
_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _is_anything(value: Any) -> bool:
    return True


def _is_never(value: Any) -> bool:
    """What is right was taken before."""
    return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and isfinite(value))


def _is_count(value: Any) -> bool:
    return _is_number(value) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_least(value: Any) -> bool:
    return _is_count(value) and value <= _MOST


def _is_step(value: Any) -> bool:
    return _is_number(value) and not isinstance(value, bool) and value > 0


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and _is_json(value)


_WANTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_SCHEMAS, ("a list of schemas", _is_never)),
    **dict.fromkeys(_NAMED, ("schemas by name", _is_never)),
    **dict.fromkeys(_COUNTS, ("a whole number from 0", _is_count)),
    **dict.fromkeys(("minLength", "minItems", "minProperties"), (f"a whole number from 0 to {_MOST}", _is_least)),
    **dict.fromkeys(_BOUNDS, ("a number", _is_number)),
    "multipleOf": ("a number above 0", _is_step),
    **dict.fromkeys(("pattern", "format", "$ref"), ("a string", _is_text)),
    "required": ("a list of names", _is_texts),
    "type": ("the name of a type, or a list of them", lambda value: _is_text(value) or _is_texts(value)),
    "enum": ("a list of values", _is_list),
    "const": ("a value of JSON", _is_json),
    "uniqueItems": ("true or false", lambda value: isinstance(value, bool)),
}
"""What a keyword must be, in words and as a question."""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


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


_NARROWER: JsonObject = {
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


_HEX = "[0-9a-f]"
_MONTH_DAY = (
    '(("01" | "03" | "05" | "07" | "08" | "10" | "12") "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    ' | ("04" | "06" | "09" | "11") "-" ("0" [1-9] | [12] [0-9] | "30")'
    ' | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_DATE = f'[12] [0-9]{{3,3}} "-" {_MONTH_DAY}'
_TIME = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9]'
_OCTET = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9]? [0-9])'
_LABEL = "[a-z0-9]{1,20}"
_DOMAIN = f'{_LABEL} ("-" {_LABEL})? ("." {_LABEL})? "." [a-z]{{2,3}}'
"""The last part is a short one: names such as `.test` and `.local` are no addresses."""
_PATH = '("/" [A-Za-z0-9._-]{1,30}){0,4}'
_GROUP = f"{_HEX}{{1,4}}"


def _uuid(version: str) -> str:
    return f'{_HEX}{{8,8}} "-" {_HEX}{{4,4}} "-" {version} {_HEX}{{3,3}} "-" [89ab] {_HEX}{{3,3}} "-" {_HEX}{{12,12}}'


_ZONE = ' "Z"'
NAIVE = r"^[^Zz+]*$"
"""The pattern of times without a zone, as `_schema` writes it beside their format."""

FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f'{_DATE} "T" {_TIME}{_ZONE}',
    "duration": '("P" [1-9] [0-9]{0,2} "D" | "PT" [1-9] [0-9]{0,2} [HMS])',
    "uuid": _uuid("[1-5]"),
    **{f"uuid{number}": _uuid(f'"{number}"') for number in range(1, 9)},
    "email": f'[a-z0-9]{{1,20}} ([._-] [a-z0-9]{{1,20}})? "@" {_DOMAIN}',
    "name-email": f'[A-Z] [a-z]{{1,20}} " <" [a-z0-9]{{1,20}} "@" {_DOMAIN} ">"',
    "hostname": _DOMAIN,
    **dict.fromkeys(("uri", "url"), f'"http" "s"? "://" {_DOMAIN} {_PATH}'),
    **dict.fromkeys(
        ("ipv4", "ipvanyaddress", "ipvanyinterface", "ipv4interface"),
        f'{_OCTET} "." {_OCTET} "." {_OCTET} "." {_OCTET}',
    ),
    **dict.fromkeys(("ipv6", "ipv6interface"), " ".join([f'{_GROUP} ":"'] * 7 + [_GROUP])),
    **dict.fromkeys(("ipv4network", "ipvanynetwork"), f'{_OCTET} "." {_OCTET} "." {_OCTET} ".0/24"'),
    "ipv6network": f'{_GROUP} ":" {_GROUP} ":" {_GROUP} ":" {_GROUP} "::/64"',
    **dict.fromkeys(("base64", "base64url"), "([A-Za-z0-9]{4,4}){1,40}"),
    "json-string": '([1-9] [0-9]{0,8} | "true" | "false" | "null")',
}
"""What stands between the quotes, by the schema's `format`. All are plain ASCII, with nothing to escape."""


def without_zone(known: str) -> str:
    """The same date and time, of no zone."""
    return known.removesuffix(_ZONE)
