"""What breaks a JSON Schema, in the words that a model reads of every tool.

The errors are those of the package `jsonschema`, which names the keyword that failed; `problems` does the same for
Pydantic's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from acorn._json import compact, shorten
from acorn._schema.generate import JsonSchema
from acorn._schema.words import in_words

_SAID = {
    *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties", "maxProperties"),
}
"""Keywords that the words for a schema tell."""


def complaints(errors: Iterable[Any], top: JsonSchema) -> Iterator[str]:
    """What is wrong, each with its place, what was expected and what came."""
    for error in errors:
        path = [str(part) for part in error.absolute_path]
        match error.validator:
            case "required":
                for name in required(error.schema):
                    if name not in error.instance:
                        expected = in_words(error.schema.get("properties", {}).get(name, {}), top)
                        yield f"argument `{'.'.join([*path, name])}` is missing, expected {expected}"
            case "additionalProperties" if error.validator_value is False:
                for name in _unknown(error.instance, error.schema):
                    yield no_such(path, name, error.instance, error.schema)
            case "anyOf" | "oneOf" if error.context:
                yield from _of_union(error, top)
            case _:
                yield _wrong(error, _expected(error, top))


def required(schema: JsonSchema) -> list[str]:
    """The properties that must be there."""
    found = schema.get("required")
    return found if isinstance(found, list) else []  # in Draft 3 it is a word of each property


def _wrong(error: Any, expected: str) -> str:
    path = ".".join(map(str, error.absolute_path))
    where = f"argument `{path}`" if path else "The arguments"
    return f"{where}: expected {expected}, got {_got(error.instance)}"


def _got(value: Any) -> str:
    """What came, as JSON: nothing is converted here, so that "5" must not look like 5."""
    return shorten(compact(value))


def _expected(error: Any, top: JsonSchema) -> str:
    if error.schema is False:
        return "no such value"
    # What stands behind these has errors of its own.
    aside = {"$ref", "anyOf", "oneOf"} - {error.validator}
    words = in_words({key: value for key, value in error.schema.items() if key not in aside}, top)
    if error.validator not in _SAID or words == "value":
        words = f"{words} ({shorten(error.message)})"
    *around, keyword = [None, None, *error.absolute_schema_path][-3:-1]
    return f"another key ({words})" if keyword == "propertyNames" and around != ["properties"] else words


def no_such(path: list[str], name: str, instance: JsonSchema, schema: JsonSchema) -> str:
    """The words for a property that is not to be there."""
    there = ", ".join(schema.get("properties", {})) or "none"
    where, got = ".".join([*path, name]), _got(instance[name])
    return f"argument `{where}`: expected no such field; there are {there}, got {got}"


def _unknown(instance: JsonSchema, schema: JsonSchema) -> list[str]:
    patterns = schema.get("patternProperties", {})
    return [
        name
        for name in instance
        if name not in schema.get("properties", {}) and not any(re.search(pattern, name) for pattern in patterns)
    ]


def _of_union(error: Any, top: JsonSchema) -> Iterator[str]:
    """What is wrong with the member that the value was meant for, where it can be known; else what all of them want."""
    members: dict[Any, list[Any]] = {}
    for inner in error.context:
        members.setdefault(inner.relative_schema_path[0], []).append(inner)
    if meant := _meant(list(members.values())):
        yield from complaints(meant, top)
    elif (words := in_words({error.validator: error.validator_value}, top)) != "value":
        yield _wrong(error, words)
    else:  # members that differ in what they require, say
        yield " or ".join(dict.fromkeys("; ".join(complaints(found, top)) for found in members.values()))


def _meant(members: list[list[Any]]) -> list[Any]:
    """The errors of the only member that does not want another type, or another tag."""
    for is_other in (_is_other_type, _is_other_tag):
        members = [found for found in members if not any(map(is_other, found))]
        if len(members) == 1:
            return members[0]
    return []


def _is_other_type(error: Any) -> bool:
    return error.validator == "type" and not error.relative_path


def _is_other_tag(error: Any) -> bool:
    return error.validator in ("const", "enum") and len(error.relative_path) <= 1
