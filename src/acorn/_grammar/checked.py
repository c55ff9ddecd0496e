"""A schema whose keywords are of the types that they must be, so that the rooms after this one need not ask.

Schemas come from anybody: what is written otherwise in older drafts (`items` as a list) or by other languages
(`2.0` for a count) is brought into one form, what is no schema at all is an `UnreadableError` that says where.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

Schema = Mapping[str, Any]

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
