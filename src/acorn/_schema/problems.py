"""What is wrong with a value, field by field: where, what was expected, what came.

Turns Pydantic's errors into a list that models and people can act on. The error document of `_xml`, the
message of `InputError` and the tool errors of `_tools.bind` are three ways to print it.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypedDict

from pydantic import ValidationError
from pydantic_core import ErrorDetails, core_schema

from acorn._json import compact, excerpt, shorten
from acorn._schema.generate import JsonSchema, followed
from acorn._schema.words import in_words

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


def public(found: Sequence[Problem]) -> list[dict[str, Any]]:
    """The problems as `ParseError.errors` tells them."""
    return [{key: wrong[key] for key in ("path", "expected", "received")} for wrong in found]


def of_input(path: str, expected: str, received: str, message: str) -> dict[str, str]:
    """One problem as `InputError.problems` tells it."""
    return {"path": path, "expected": expected, "received": received, "message": message}


def problems(error: ValidationError, schema: JsonSchema, received: Any) -> list[Problem]:
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
        return f"{in_words(node, schema)}, {_tags(detail)}"
    return f"{in_words(node, schema)} ({detail['msg']})" if _is_unsaid(detail) else in_words(node, schema)


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
    return shown(detail["input"])


def shown(value: Any) -> str:
    """A value that came, as a model reads it back."""
    # In quotes, a model's own word "missing" is not taken for the lack of one.
    return shorten(value if isinstance(value, str) and value != _MISSING else compact(value))


def _at(path: Sequence[int | str], schema: JsonSchema) -> JsonSchema | None:
    """The part of the schema that governs a path, the first fitting member of a union included."""
    return _descend(schema, list(path), schema)


def _descend(node: JsonSchema, path: list[int | str], top: JsonSchema) -> JsonSchema | None:
    node = followed(node, top)
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
