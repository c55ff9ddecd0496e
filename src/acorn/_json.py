"""Any Python value as plain JSON data, whatever it holds.

Pydantic writes what it knows; what it cannot write becomes its `repr`, bad bytes become base64, and
nothing here ever raises. The XML encoder and the reports of wrong values stand on it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python

_MAX_DEPTH = 200


def to_plain(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None; fields under their own names."""
    try:
        if isinstance(value, BaseModel):
            return type(value).__pydantic_serializer__.to_python(
                value, mode="json", by_alias=False, warnings=False, fallback=safe_repr
            )
        return to_jsonable_python(value, by_alias=False, inf_nan_mode="constants", fallback=safe_repr)
    except Exception:  # bad bytes, a circle, or a user's own serializer
        return _piecewise(value, ())


def compact(value: Any) -> str:
    """The value as JSON text without blanks, non-ASCII kept."""
    return to_json(to_plain(value), inf_nan_mode="constants", fallback=safe_repr).decode()


def safe_repr(value: object) -> str:
    """`repr`, also of an object whose own `__repr__` fails."""
    try:
        return repr(value).encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__name__} without a repr>"


def shorten(text: str, limit: int = 200) -> str:
    """The text, cut with an ellipsis where it is longer than an error message can bear."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _piecewise(value: Any, inside: tuple[int, ...]) -> Any:
    """Part by part, so that one bad part does not cost its neighbours; `inside` are the containers around it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _text_of_bytes(bytes(value))
    if id(value) in inside or len(inside) >= _MAX_DEPTH:
        return safe_repr(value)
    inside = (*inside, id(value))
    if isinstance(value, BaseModel):
        items = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return {name: _piecewise(item, inside) for name, item in items.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _piecewise(getattr(value, field.name, None), inside) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): _piecewise(item, inside) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_piecewise(item, inside) for item in value]
    try:
        return to_jsonable_python(value, by_alias=False, inf_nan_mode="constants", fallback=safe_repr)
    except Exception:
        return safe_repr(value)


def _key(key: object) -> str:
    plain = _piecewise(key, ())
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return plain if isinstance(plain, str) else safe_repr(key)


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
