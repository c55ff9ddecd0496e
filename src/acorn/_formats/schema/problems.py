"""A JSON Schema in a few words, for people and models that gave the wrong thing.

`float between 0 and 1`, `one of "red", "green"`, `list of string, at least 1 item`. Called for every
message that says what was expected.

What is wrong with a value, field by field: where, what was expected, what came.

Turns Pydantic's errors into a list that models and people can act on. The error document of `_xml`, the
message of `InputError` and the tool errors of `_tools.bind` are three ways to print it.

What breaks a JSON Schema, in the words that a model reads of every tool.

The errors are those of the package `jsonschema`, which names the keyword that failed; `problems` does the same for
Pydantic's.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, TypedDict

from pydantic import ValidationError
from pydantic_core import ErrorDetails, core_schema

from acorn._formats.json import excerpt, shorten, to_compact_json
from acorn._formats.schema.generate import JsonSchema, follow_refs, resolve_ref
from acorn.types import JsonObject

_TYPES = {
    "string": "string",
    "integer": "integer",
    "number": "float",
    "boolean": "boolean (true or false)",
    "null": "null",
}
_FORMATS = {
    "date-time": "date and time in ISO 8601",
    "date": "date as YYYY-MM-DD",
    "time": "time as HH:MM:SS",
    "duration": "duration in ISO 8601",
    "uuid": "UUID",
    "uri": "URL",
    "email": "e-mail address",
    "binary": "bytes",
    "path": "path",
    "acorn-image": "image",
    "acorn-audio": "audio",
    "acorn-file": "file",
}
_DEPTH = 8
"""How deep the words follow a type into its parts."""


def describe_schema(node: JsonSchema, top: JsonSchema, depth: int = _DEPTH) -> str:
    """What a value of this schema must be; `top` holds the definitions. A type may hold itself."""
    if not depth or not isinstance(node, dict):  # a user's schema may be `true`
        return "value"
    if "$ref" in node:
        return describe_schema(resolve_ref(node["$ref"], top), top, depth - 1)
    if "const" in node:
        return _quoted(node["const"])
    if "enum" in node:
        return "one of " + ", ".join(_quoted(value) for value in node["enum"])
    for union in ("anyOf", "oneOf"):
        if union in node:
            return " or ".join(_unique(describe_schema(member, top, depth - 1) for member in node[union]))
    kind = node.get("type")
    if isinstance(kind, list):
        return " or ".join(_unique(describe_schema({**node, "type": one}, top, depth - 1) for one in kind))
    if kind == "array":
        return _list(node, top, depth - 1)
    if kind == "object":
        return _object(node)
    if kind == "string" and node.get("format") in _FORMATS:
        return _FORMATS[node["format"]]
    return _TYPES[kind] if kind in ("boolean", "null") else _TYPES.get(str(kind), "value") + _limits(node)


def _limits(node: JsonSchema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    parts: list[str] = []
    if low is not None and high is not None:
        parts.append(f"between {_number(low)} and {_number(high)}")
    elif low is not None:
        parts.append(f"of at least {_number(low)}")
    elif high is not None:
        parts.append(f"of at most {_number(high)}")
    if "exclusiveMinimum" in node:
        parts.append(f"greater than {_number(node['exclusiveMinimum'])}")
    if "exclusiveMaximum" in node:
        parts.append(f"less than {_number(node['exclusiveMaximum'])}")
    if "multipleOf" in node:
        parts.append(f"a multiple of {_number(node['multipleOf'])}")
    if count := _count(node.get("minLength"), node.get("maxLength"), "character"):
        parts.append(f"of {count}")
    if "pattern" in node:
        parts.append(f"matching {node['pattern']}")
    return "".join(f" {part}" if at == 0 else f" and {part}" for at, part in enumerate(parts))


def _list(node: JsonSchema, top: JsonSchema, depth: int) -> str:
    if "prefixItems" in node:
        return "list of " + ", ".join(describe_schema(member, top, depth) for member in node["prefixItems"])
    item = node.get("items") or {}
    text = "list of " + describe_schema(item, top, depth) if item else "list"
    count = _count(node.get("minItems"), node.get("maxItems"), "item")
    return f"{text}, {count}" if count else text


def _object(node: JsonSchema) -> str:
    names = list(node.get("properties", {}))
    text = "object with " + ", ".join(names) if names else "object"
    count = _count(node.get("minProperties"), node.get("maxProperties"), "key")
    return f"{text}, {count}" if count else text


def _count(low: int | None, high: int | None, noun: str) -> str:
    if low is not None and low == high:
        return f"exactly {_plural(low, noun)}"
    if low is not None and high is not None:
        return f"{low} to {_plural(high, noun)}"
    if low is not None:
        return f"at least {_plural(low, noun)}"
    if high is not None:
        return f"at most {_plural(high, noun)}"
    return ""


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else str(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


_MISSING = "missing"
_UNSAID = (
    "bytes_too_",
    "date_future",
    "date_past",
    "datetime_future",
    "datetime_past",
    "decimal_",
    "finite_number",
    "timezone_",
    "url_scheme",
    "uuid_version",
)


class Problem(TypedDict):
    """One wrong field."""

    path: str
    """Dotted, `sources.0.title`; empty for the value as a whole."""
    expected: str
    received: str
    excerpt: str
    """The value as Python shows it, for callers in Python."""
    ruled: bool
    """Whether `expected` is a user's own sentence about the value."""


def public_problems(found: Sequence[Problem]) -> list[JsonObject]:
    """The problems as `ParseError.errors` tells them."""
    return [{key: wrong[key] for key in ("path", "expected", "received")} for wrong in found]


def input_problem(path: str, expected: str, received: str, message: str) -> dict[str, str]:
    """One problem as `InputError.problems` tells it."""
    return {"path": path, "expected": expected, "received": received, "message": message}


def find_problems(error: ValidationError, schema: JsonSchema, received: Any) -> list[Problem]:
    """One problem a field, in the order Pydantic found them."""
    found: dict[str, Problem] = {}
    for detail in error.errors(include_url=False):
        path = _path(detail, received)
        dotted = ".".join(str(part) for part in path)
        # The members of a union each complain of the same field; the schema's words name them all.
        found.setdefault(
            dotted,
            Problem(
                path=dotted,
                expected=_expected(detail, path, schema),
                received=_received(detail),
                excerpt=excerpt(detail["input"], 200),
                ruled=bool(_rule(detail)),
            ),
        )
    return list(found.values())


def _path(detail: ErrorDetails, received: Any) -> list[int | str]:
    """The location without the names of union members and validators that Pydantic puts into it."""
    location = list(detail["loc"])
    path: list[int | str] = []
    here: Any = received
    for part in location:
        keys: Any = range(len(here)) if isinstance(here, list | tuple) else here if isinstance(here, dict) else ()
        if part in keys:
            here = typing.cast(Any, here)[part]
            path.append(part)
    if _is_missing(detail) and location:
        path.append(location[-1])
    return path


def _is_missing(detail: ErrorDetails) -> bool:
    return detail["type"].startswith("missing")


def _expected(detail: ErrorDetails, path: Sequence[int | str], schema: JsonSchema) -> str:
    kind = detail["type"]
    if rule := _rule(detail):
        return rule
    if kind == "json_invalid":
        return f"valid JSON ({detail['msg'].removeprefix('Invalid JSON: ')})"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _at(path[:-1], schema)
        return f"no such field; there {_are(list((known or {}).get('properties', {})))}"
    if detail["loc"][-1:] == ("[key]",):
        return f"another key ({detail['msg']})"
    node = _at(path, schema)
    if node is None:
        return detail["msg"]
    if kind == "union_tag_invalid":
        return f"{describe_schema(node, schema)}, {_tags(detail)}"
    return f"{describe_schema(node, schema)} ({detail['msg']})" if _is_unsaid(detail) else describe_schema(node, schema)


def _rule(detail: ErrorDetails) -> str:
    """What a user's validator said, if it said anything."""
    is_user = detail["type"] in ("value_error", "assertion_error")
    return str(detail.get("ctx", {}).get("error", "")) if is_user else ""


def _tags(detail: ErrorDetails) -> str:
    ctx = detail.get("ctx", {})
    return f"where {ctx.get('discriminator')} is one of {ctx.get('expected_tags')}"


def _is_unsaid(detail: ErrorDetails) -> bool:
    """Whether it breaks a rule that JSON Schema has no word for, so that the value looks like what was expected."""
    kind = detail["type"]
    if kind.startswith(("greater_than", "less_than")):
        # Of numbers the schema has the limits, of dates and durations it has not.
        return not all(isinstance(limit, int | float | Decimal) for limit in detail.get("ctx", {}).values())
    return kind.startswith(_UNSAID) or kind not in typing.get_args(core_schema.ErrorType)


def _are(names: list[str]) -> str:
    return "are " + ", ".join(names) if names else "are none"


def _received(detail: ErrorDetails) -> str:
    if _is_missing(detail):
        return _MISSING
    return show_value(detail["input"])


def show_value(value: Any) -> str:
    """A value that came, as a model reads it back."""
    # In quotes, a model's own word "missing" is not taken for the lack of one.
    return shorten(value if isinstance(value, str) and value != _MISSING else to_compact_json(value))


def _at(path: Sequence[int | str], schema: JsonSchema) -> JsonSchema | None:
    """The part of the schema that governs a path, the first fitting member of a union included."""
    return _descend(schema, list(path), schema)


def _descend(node: JsonSchema, path: list[int | str], top: JsonSchema) -> JsonSchema | None:
    node = follow_refs(node, top)
    if not path:
        return node
    for union in ("anyOf", "oneOf", "allOf"):
        for member in node.get(union, []):
            if (found := _descend(member, path, top)) is not None:
                return found
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        prefix = node.get("prefixItems", [])
        inner = prefix[step] if step < len(prefix) else node.get("items")
    else:
        inner = node.get("properties", {}).get(step, node.get("additionalProperties"))
    return _descend(inner, rest, top) if isinstance(inner, dict) else None


_SAID = {
    *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "minProperties", "maxProperties"),
}
"""Keywords that the words for a schema tell."""


def describe_errors(errors: Iterable[Any], top: JsonSchema) -> Iterator[str]:
    """What is wrong, each with its place, what was expected and what came."""
    for error in errors:
        path = [str(part) for part in error.absolute_path]
        match error.validator:
            case "required":
                for name in required_properties(error.schema):
                    if name not in error.instance:
                        expected = describe_schema(error.schema.get("properties", {}).get(name, {}), top)
                        yield f"argument `{'.'.join([*path, name])}` is missing, expected {expected}"
            case "additionalProperties" if error.validator_value is False:
                for name in _unknown(error.instance, error.schema):
                    yield unknown_property(path, name, error.instance, error.schema)
            case "anyOf" | "oneOf" if error.context:
                yield from _of_union(error, top)
            case _:
                yield _wrong(error, _expected_by(error, top))


def required_properties(schema: JsonSchema) -> list[str]:
    """The properties that must be there."""
    found = schema.get("required")
    return found if isinstance(found, list) else []  # in Draft 3 it is a word of each property


def _wrong(error: Any, expected: str) -> str:
    path = ".".join(map(str, error.absolute_path))
    where = f"argument `{path}`" if path else "The arguments"
    return f"{where}: expected {expected}, got {_got(error.instance)}"


def _got(value: Any) -> str:
    """What came, as JSON: nothing is converted here, so that "5" must not look like 5."""
    return shorten(to_compact_json(value))


def _expected_by(error: Any, top: JsonSchema) -> str:
    if error.schema is False:
        return "no such value"
    # What stands behind these has errors of its own.
    aside = {"$ref", "anyOf", "oneOf"} - {error.validator}
    words = describe_schema({key: value for key, value in error.schema.items() if key not in aside}, top)
    if error.validator not in _SAID or words == "value":
        words = f"{words} ({shorten(error.message)})"
    *around, keyword = [None, None, *error.absolute_schema_path][-3:-1]
    return f"another key ({words})" if keyword == "propertyNames" and around != ["properties"] else words


def unknown_property(path: list[str], name: str, instance: JsonSchema, schema: JsonSchema) -> str:
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
        yield from describe_errors(meant, top)
    elif (words := describe_schema({error.validator: error.validator_value}, top)) != "value":
        yield _wrong(error, words)
    else:  # members that differ in what they require, say
        yield " or ".join(dict.fromkeys("; ".join(describe_errors(found, top)) for found in members.values()))


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
