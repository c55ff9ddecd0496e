"""Any Python value as plain JSON data, whatever it holds.

Pydantic writes what it knows; what it cannot write becomes its `repr`, bad bytes become base64, and
nothing here ever raises. The XML encoder and the reports of wrong values stand on it.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, RootModel
from pydantic_core import to_json, to_jsonable_python

from acorn._formats.redact import redact, redact_by_name
from acorn.types import JsonObject

_MAX_DEPTH = 150
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{8,}")
"""What Python shows of an object that says nothing of itself."""
_Foreign = Callable[[object], Any]
"""How a part that Pydantic does not know is written."""


def to_json_data(value: Any, strangers: list[object] | None = None) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None; fields under their own names.

    What shows nothing of itself but where it lies in memory is added to `strangers`.
    """
    if strangers is None:
        return _plain(value, (), _foreign)
    known = strangers

    def foreign(part: object) -> Any:
        if _ADDRESS.search(safe_repr(part)):
            known.append(part)
        return _foreign(part)

    return _plain(value, (), foreign)


def find_path(part: object, value: Any, inside: tuple[int, ...] = ()) -> str | None:
    """Where in a value this very part stands, `items.0.name`; "" for the value itself, None where it is not found."""
    if value is part:
        return ""
    if id(value) in inside or len(inside) > _MAX_DEPTH:
        return None
    for key, item in _members(value):
        rest = "" if key is part else find_path(part, item, (*inside, id(value)))
        if rest is not None:
            name = f"<{type(key).__name__}>" if key is part else str(key)
            return f"{name}.{rest}" if rest else name
    return None


def _members(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, RootModel):
        return [("root", value.root)]  # pyright: ignore[reportUnknownMemberType]
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return field_values(value).items()
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(items_of(value) or ())


def to_compact_json(value: Any) -> str:
    """The value as JSON text without blanks, non-ASCII kept."""
    return _written(to_json_data(value), "constants")


def to_json_text(value: Any) -> str:
    """The value as JSON text the way Pydantic writes it; NaN is null."""
    try:
        if isinstance(value, BaseModel):
            serializer = type(value).__pydantic_serializer__
            return serializer.to_json(value, warnings=False, fallback=_foreign).decode()
        return to_json(value, by_alias=False, inf_nan_mode="null", fallback=_foreign).decode()
    except Exception:  # bad bytes, a lone surrogate, a circle, or a user's own serializer
        return _written(to_json_data(value), "null")


def copy_json(value: Any) -> Any:
    """Plain data whose dicts and lists nobody else holds; other objects as they are."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    return [copy_json(item) for item in value] if isinstance(value, list) else value


def replace_surrogates(value: Any) -> Any:
    """Plain data whose every string can be encoded: a lone surrogate becomes U+FFFD."""
    if isinstance(value, str):
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_surrogates(item) for item in value]
    return value


def safe_repr(value: object) -> str:
    """`repr`, also of an object whose own `__repr__` fails."""
    try:
        return repr(value).encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__name__} without a repr>"


def shorten(text: str, limit: int = 200) -> str:
    """The text, cut with an ellipsis where it is longer than an error message can bear."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def field_values(value: Any) -> Mapping[str, Any]:
    """The fields of a model or dataclass instance, as far as they are set, with the objects they hold."""
    if isinstance(value, BaseModel):
        extra = getattr(value, "__pydantic_extra__", None)
        return {**value.__dict__, **extra} if extra else value.__dict__
    return {field.name: getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)}


def items_of(value: Any) -> list[Any] | None:
    """What a list, tuple, set or deque holds, passing by a subclass's own code as Pydantic does."""
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
    return next((list(kind.__iter__(value)) for kind in kinds if isinstance(value, kind)), None)


def _plain(value: Any, inside: tuple[int, ...], foreign: _Foreign) -> Any:
    """Pydantic's word, or part by part where it has none; `inside` are the containers around the value."""
    try:
        if inside and isinstance(value, Iterator):
            return safe_repr(value)  # the first attempt, on the whole, has used it up
        if isinstance(value, BaseModel):
            return _dump(value, foreign)
        return to_jsonable_python(value, by_alias=False, inf_nan_mode="constants", fallback=foreign)
    except Exception:  # bad bytes, a circle, or a user's own serializer
        if id(value) in inside or len(inside) >= _MAX_DEPTH:
            return safe_repr(value)
    try:
        return _parts(value, (*inside, id(value)), foreign)
    except Exception:  # a user's own container or property
        return safe_repr(value)


def _parts(value: Any, inside: tuple[int, ...], foreign: _Foreign) -> Any:
    """One bad part does not cost its neighbours."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return _plain(value.value, inside, foreign)
    if isinstance(value, RootModel):
        return _plain(value.root, inside, foreign)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return _fields(value, inside, foreign)
    if isinstance(value, Mapping):
        pairs = dict.items(value) if isinstance(value, dict) else value.items()
        return {_key(key, foreign): _plain(item, inside, foreign) for key, item in pairs}
    items = items_of(value)
    return foreign(value) if items is None else [_plain(item, inside, foreign) for item in items]


def _fields(value: Any, inside: tuple[int, ...], foreign: _Foreign) -> JsonObject:
    """Each field as its class writes it, or by itself; excluded ones stay out either way."""
    described: Mapping[str, Any] = getattr(type(value), "__pydantic_fields__", {})
    plain: JsonObject = {}
    for name, item in list(field_values(value).items()):
        if getattr(described.get(name), "exclude", False):
            continue
        try:
            plain.update(_dump(value, foreign, {name}))
        except Exception:  # this is the bad one, or the class is no schema
            plain[name] = _plain(item, inside, foreign)
    return plain


def _dump(value: Any, foreign: _Foreign, only: set[str] | None = None) -> Any:
    kind: Any = type(value)
    return kind.__pydantic_serializer__.to_python(
        value, mode="json", by_alias=False, warnings=False, include=only, fallback=foreign
    )


def _foreign(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else safe_repr(value)


def _key(key: object, foreign: _Foreign) -> str:
    if isinstance(key, str):
        return str.__str__(key)  # also half a surrogate pair, which Pydantic refuses
    try:
        return str(next(iter(to_jsonable_python({key: None}, fallback=foreign))))
    except Exception:
        return base64.b64encode(key).decode() if isinstance(key, bytes) else str(foreign(key))


def _written(plain: Any, inf_nan_mode: Literal["constants", "null"]) -> str:
    try:
        return to_json(plain, inf_nan_mode=inf_nan_mode).decode()
    except ValueError:  # half a surrogate pair, or deeper than the serializer goes
        return to_json(replace_surrogates(_shallow(plain, _MAX_DEPTH)), inf_nan_mode=inf_nan_mode).decode()


def _shallow(plain: Any, left: int) -> Any:
    if not isinstance(plain, dict | list):
        return plain
    if not left:
        return safe_repr(plain)
    if isinstance(plain, dict):
        return {key: _shallow(item, left - 1) for key, item in plain.items()}
    return [_shallow(item, left - 1) for item in plain]


def excerpt(value: object, limit: int = 120) -> str:
    """A wrong value for a message, without what may be a secret in a dict that strayed."""
    try:
        return shorten(redact(safe_repr(redact_by_name(value)), ()), limit)
    except Exception:  # a circle, or a user's own mapping
        return f"<{type(value).__name__}>"


def describe_error(error: BaseException) -> str:
    """An exception in one line: `ValueError: x must be positive`."""
    try:
        text = str(error)
    except Exception:  # a user's own `__str__`
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
