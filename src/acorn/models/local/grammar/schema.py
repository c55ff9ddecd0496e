"""JSON schemas for the grammar: uniform notation, references and string formats.

A schema may come from any program. `normalize` converts the notation of older JSON Schema drafts (such as `items` as a
list) and of other programming languages (such as `2.0` for a count). If a part of a schema is not valid, `normalize`
raises `InvalidSchemaError` with the path of that part. The other modules of this folder therefore do not check the
types of keywords.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match  # pyright: ignore[reportUnknownVariableType]

from acorn._formats.json import shorten
from acorn._formats.schema.generate import find_target
from acorn.types import JsonObject, JsonValue, is_json_list, is_mapping

Schema = JsonObject

_METASCHEMA: Any = Draft202012Validator(Draft202012Validator.META_SCHEMA)
_MAX_MINIMUM = 20_000
"""The maximum value of `minLength` and `minItems`. No response is longer."""


class InvalidSchemaError(ValueError):
    """The error for a value that should be a JSON schema but is not a valid one."""


def normalize(schema: JsonValue, path: str = "#") -> Schema | bool:
    """Check a schema and its subschemas, and return them in a uniform notation.

    `path` is the path of the schema, such as `#/properties/name`, which error messages contain.
    """
    try:
        normal: Schema | bool = _normalize(schema)
        problem = cast(Any, best_match)(_METASCHEMA.iter_errors(normal))
    except RecursionError as error:
        raise InvalidSchemaError(f"the schema `{path}` is nested too deeply") from error
    if problem is not None:
        place = "/".join([path, *map(str, problem.absolute_path)])
        raise InvalidSchemaError(f"`{place}` is not valid in a schema: {shorten(problem.message)}")
    return normal


def _normalize(schema: Any) -> Any:
    if not is_mapping(schema):
        return schema
    # In older drafts, the exclusive bounds are booleans.
    kept = {key: value for key, value in schema.items() if key not in _EXCLUSIVE or not isinstance(value, bool)}
    normal = {str(key): _value(key, value) for key, value in kept.items()}
    if is_json_list(normal.get("items")):
        normal["prefixItems"], normal["items"] = normal["items"], normal.pop("additionalItems", True)
    return normal


def _value(key: str, value: Any) -> Any:
    if key in _SCHEMA and is_json_list(value):
        return list(map(_normalize, value))
    if key in _SCHEMA:
        return _normalize(value)
    if key in _NAMED and is_mapping(value):
        return {str(name): _normalize(item) for name, item in value.items()}
    if key not in _COUNTS or not isinstance(value, int | float) or value != int(value):
        return value
    if key.startswith("min") and value > _MAX_MINIMUM:
        raise InvalidSchemaError(f"`{key}` is {value}, but a response has at most {_MAX_MINIMUM}")
    return int(value)


_SCHEMA = (
    *("items", "additionalItems", "additionalProperties", "propertyNames"),
    *("anyOf", "oneOf", "allOf", "prefixItems"),
)
"""Keywords whose value is a schema or a list of schemas."""
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value is a dict that maps names to schemas."""
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


NOTES = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("discriminator", "$defs"),
}
"""The keywords that do not affect which values are valid."""


_DEFINITION = re.compile(r"#(/(\$defs|definitions)/[^/]*)?")
"""Matches a reference to the root schema or to one of its definitions."""


class Definitions:
    """The definitions of a root schema, with methods that resolve references and combine schemas."""

    def __init__(self, root: Schema | bool) -> None:
        self._root = root
        self._targets: dict[str, Schema | bool] = {}
        self._recursive: dict[str, bool] = {}

    def target(self, reference: str) -> Schema | bool:
        """Return the schema to which a `$ref` points.

        If that schema does not exist, return an empty schema, which allows every value.
        """
        if reference not in self._targets:
            target: Any = find_target(reference, self._root)
            # The check of the root schema includes its definitions, but not other parts of the schema.
            is_checked = _DEFINITION.fullmatch(reference)
            self._targets[reference] = target if is_checked else normalize(target, reference)
        return self._targets[reference]

    def is_recursive(self, reference: str) -> bool:
        """Return True if the schema to which a `$ref` points contains the same `$ref`, directly or indirectly."""
        if reference not in self._recursive:
            seen: set[str] = set()
            pending = {reference}
            while pending:
                pending |= set(_references(self.target(pending.pop()))) - seen
                seen |= pending
            self._recursive[reference] = reference in seen
        return self._recursive[reference]

    def combine(self, one: Schema, other: Schema | bool, followed: set[str] | None = None) -> Schema | bool:
        """Return one schema that contains the keywords of both schemas.

        If both schemas have the same keyword, the result has the stricter limit, or else the value of the second
        schema. `followed` contains the references that were already resolved, so that a recursive schema does not cause
        an endless loop.
        """
        if isinstance(other, bool):
            return one if other else False
        if not one:
            return other
        if "$ref" in other:
            followed = set() if followed is None else followed
            reference, siblings = other["$ref"], {key: value for key, value in other.items() if key != "$ref"}
            combined = self.combine(one, siblings, followed)
            if isinstance(combined, bool) or reference in followed:
                return combined
            followed.add(reference)
            return self.combine(combined, self.target(reference), followed)
        merged = {**one, **other}
        for key, merge in _MERGES.items():
            if key in one and key in other:
                merged[key] = merge(one[key], other[key])
        return merged

    def add_shared(self, shared: Schema, option: Schema | bool) -> Schema | bool:
        """Return an option of a union, together with the keywords that apply to all options.

        If the option is a `$ref`, the result still contains the `$ref`, so that the grammar can detect recursion.
        """
        if isinstance(option, bool) or "$ref" not in option or not shared:
            return self.combine(shared, option)
        combined = self.combine(shared, {key: value for key, value in option.items() if key != "$ref"})
        return combined if isinstance(combined, bool) else {**combined, "$ref": option["$ref"]}

    def merge_all_of(self, schema: Schema) -> Schema | bool:
        """Return a schema without `allOf` that contains the keywords of all schemas in `allOf`."""
        combined: Schema | bool = schema
        followed: set[str] = set()
        while not isinstance(combined, bool) and "allOf" in combined:
            parts = combined["allOf"]
            combined = {key: value for key, value in combined.items() if key != "allOf"}
            for part in parts:
                combined = combined if isinstance(combined, bool) else self.combine(combined, part, followed)
        return combined


_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("allOf", "required"), operator.add),
    "properties": lambda one, other: {**one, **other},
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


def _references(schema: object) -> Iterator[str]:
    """Yield every `$ref` in a schema and its subschemas."""
    if is_mapping(schema):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for key, inner in schema.items():
            if key not in ("default", "examples", "const", "enum", "$defs"):
                yield from _references(inner)
    elif is_json_list(schema):
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
"""The rule for a domain name. Its last part has at most 3 letters, since `.test` and `.local` are not valid."""
_IPV4 = f'{_OCTET} "." {_OCTET} "." {_OCTET} "." {_OCTET}'
_PATH = '("/" [A-Za-z0-9._-]{1,30}){0,4}'
_GROUP = f"{_HEX}{{1,4}}"


def _uuid(version: str) -> str:
    return f'{_HEX}{{8,8}} "-" {_HEX}{{4,4}} "-" {version} {_HEX}{{3,3}} "-" [89ab] {_HEX}{{3,3}} "-" {_HEX}{{12,12}}'


ZONE = ' "Z"'
"""The end of the rules for times: the time zone."""

FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{ZONE}",
    "date-time": f'{_DATE} "T" {_TIME}{ZONE}',
    "duration": '("P" [1-9] [0-9]{0,2} "D" | "PT" [1-9] [0-9]{0,2} [HMS])',
    "uuid": _uuid("[1-5]"),
    **{f"uuid{number}": _uuid(f'"{number}"') for number in range(1, 9)},
    "email": f'[a-z0-9]{{1,20}} ([._-] [a-z0-9]{{1,20}})? "@" {_DOMAIN}',
    "name-email": f'[A-Z] [a-z]{{1,20}} " <" [a-z0-9]{{1,20}} "@" {_DOMAIN} ">"',
    "hostname": _DOMAIN,
    **dict.fromkeys(("uri", "url"), f'"http" "s"? "://" {_DOMAIN} {_PATH}'),
    **dict.fromkeys(("ipv4", "ipvanyaddress", "ipvanyinterface", "ipv4interface"), _IPV4),
    **dict.fromkeys(("ipv6", "ipv6interface"), " ".join([f'{_GROUP} ":"'] * 7 + [_GROUP])),
    **dict.fromkeys(("ipv4network", "ipvanynetwork"), f'{_OCTET} "." {_OCTET} "." {_OCTET} ".0/24"'),
    "ipv6network": f'{_GROUP} ":" {_GROUP} ":" {_GROUP} ":" {_GROUP} "::/64"',
    **dict.fromkeys(("base64", "base64url"), "([A-Za-z0-9]{4,4}){1,40}"),
    "json-string": '([1-9] [0-9]{0,8} | "true" | "false" | "null")',
}
"""A dict that maps a `format` to the rule for the text between the quotes.

Each rule allows only ASCII characters that JSON does not escape.
"""
