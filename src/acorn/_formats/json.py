"""Conversion of any Python value to JSON data and JSON text.

Pydantic serializes the types that it supports. An object of another type becomes its `repr`, and bytes that are not
valid UTF-8 become base64. The conversion functions never raise an exception. The XML encoder calls these functions, and
the error messages about wrong values use them.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, RootModel
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypeIs

from acorn._formats.redact import Redactor, redact_by_name
from acorn.types import JsonObject, JsonValue, is_json_object, is_list_or_tuple, is_mapping

T = TypeVar("T")

_MAX_DEPTH = 150
_KEY_REDACTOR = Redactor()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{8,}")
"""The memory address in the default `repr` of an object."""
_Fallback = Callable[[object], object]
"""A function that converts a value whose type Pydantic cannot serialize."""


def to_json_data(value: object, unserializable: list[object] | None = None) -> Any:
    """Convert a value to JSON data: dicts, lists, strings, numbers, booleans and None.

    The dict keys are the Python names of the fields, not their aliases. `unserializable` is an optional list. The
    function appends each object that it can only represent as a memory address, such as `<object at 0x7f...>`, to this
    list.
    """
    if unserializable is None:
        return _convert(value, (), _fallback)
    collected = unserializable

    def fallback(part: object) -> object:
        if _ADDRESS.search(safe_repr(part)):
            collected.append(part)
        return _fallback(part)

    return _convert(value, (), fallback)


def find_path(part: object, value: object, parents: tuple[int, ...] = ()) -> str | None:
    """Return the path from `value` to the object `part` inside `value`, such as `items.0.name`.

    The path is "" if `part` is `value` itself. The function returns None if `value` does not contain `part`.
    """
    if value is part:
        return ""
    if id(value) in parents or len(parents) > _MAX_DEPTH:
        return None
    for key, item in _members(value):
        inner = "" if key is part else find_path(part, item, (*parents, id(value)))
        if inner is not None:
            name = f"<{type(key).__name__}>" if key is part else str(key)
            return f"{name}.{inner}" if inner else name
    return None


def _members(value: object) -> Iterable[tuple[object, object]]:
    if is_root_model(value):
        return [("root", value.root)]
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return field_values(value).items()
    if is_mapping(value):
        return value.items()
    return enumerate(items_of(value) or ())


def to_compact_json(value: object) -> str:
    """Convert a value to JSON text without whitespace and without escapes for non-ASCII characters."""
    return _write(to_json_data(value), "constants")


def to_json_text(value: object) -> str:
    """Convert a value to the JSON text that Pydantic produces, with null in place of NaN and infinity."""
    try:
        if isinstance(value, BaseModel):
            serializer = type(value).__pydantic_serializer__
            return serializer.to_json(value, warnings=False, fallback=_fallback).decode()
        return to_json(value, by_alias=False, inf_nan_mode="null", fallback=_fallback).decode()
    except Exception:  # The value has invalid bytes, a lone surrogate or a circular reference, or a serializer raised.
        return _write(to_json_data(value), "null")


def copy_json(value: T) -> T:
    """Return a copy of JSON data with new dicts and lists. Strings and other values are not copied."""
    data = cast(JsonValue, value)
    if isinstance(data, dict):
        data = {key: item if type(item) is str else copy_json(item) for key, item in data.items()}
    elif isinstance(data, list):
        data = [copy_json(item) for item in data]
    return cast(T, data)


def map_json(data: Any, change: Callable[[str], object]) -> Any:
    """Return a copy of JSON data in which `change` has replaced every string, also the keys of objects."""
    if isinstance(data, str):
        return change(data)
    if is_json_object(data):
        return {change(key): map_json(item, change) for key, item in data.items()}
    return [map_json(item, change) for item in data] if is_list_or_tuple(data) else data


def replace_surrogates(value: Any) -> Any:
    """Replace each lone surrogate in JSON data with U+FFFD, so that every string can be encoded as UTF-8."""
    return map_json(value, _replace_surrogates)


def _replace_surrogates(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Collector:
    """The base class of collectors, which receive certain objects while Pydantic serializes the values around them.

    `active` is a context variable that contains the current collector. The serializers of the objects read it.
    """

    __slots__ = ()
    active: ClassVar[ContextVar[Any]]

    def collect(self, serialize: Callable[[], T]) -> T:
        """Call `serialize`, collect the objects that it serializes, and return its result."""
        return copy_context().run(self._activate, serialize)

    def _activate(self, serialize: Callable[[], T]) -> T:
        self.active.set(self)  # Only in the copied context, so that nothing must be reset.
        return serialize()


def field_values(value: Any) -> Mapping[str, Any]:
    """Return a dict that maps field names to values, for an instance of a Pydantic class or of a dataclass.

    The dict has no entry for a field that has no value yet. The values are the original objects, not copies.
    """
    if isinstance(value, BaseModel):
        extra = getattr(value, "__pydantic_extra__", None)
        return {**value.__dict__, **extra} if extra else value.__dict__
    return {field.name: getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)}


def items_of(value: object) -> list[Any] | None:
    """Return the items of a list, tuple, set or deque as a list, or None if the value has another type.

    If a subclass overrides `__iter__`, the function ignores this override, because Pydantic ignores it too.
    """
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
    return next((list(kind.__iter__(value)) for kind in kinds if isinstance(value, kind)), None)


def _convert(value: object, parents: tuple[int, ...], fallback: _Fallback) -> Any:
    """Convert a value to JSON data with Pydantic, or convert its items separately if Pydantic fails.

    `parents` contains the `id()` of every container around the value, so that the function detects circular references.
    """
    try:
        if parents and _is_iterator(value):
            # An iterator can be read only once, and the conversion of the outermost value has already read it.
            return safe_repr(value)
        if isinstance(value, BaseModel):
            return _dump(value, fallback)
        return to_jsonable_python(value, by_alias=False, inf_nan_mode="constants", fallback=fallback)
    except Exception:  # Pydantic fails for invalid bytes and for circular references. A user's serializer may raise.
        if id(value) in parents or len(parents) >= _MAX_DEPTH:
            return safe_repr(value)
    try:
        return _convert_parts(value, (*parents, id(value)), fallback)
    except Exception:  # A user's container class or property may raise.
        return safe_repr(value)


def is_root_model(value: object) -> TypeIs[RootModel[Any]]:
    """Return whether a value is an instance of a `RootModel`."""
    return isinstance(value, RootModel)


def is_root_class(kind: object) -> TypeIs[type[RootModel[Any]]]:
    """Return whether a type is a subclass of `RootModel`."""
    return isinstance(kind, type) and issubclass(kind, RootModel)


def _is_iterator(value: object) -> TypeIs[Iterator[Any]]:
    return isinstance(value, Iterator)


def _convert_parts(value: object, parents: tuple[int, ...], fallback: _Fallback) -> object:
    """Convert each item of a container separately, so that an item that fails does not affect the other items."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return _convert(value.value, parents, fallback)
    if is_root_model(value):
        return _convert(value.root, parents, fallback)
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return _convert_fields(value, parents, fallback)
    if is_mapping(value):
        pairs = dict[str, Any].items(value) if is_json_object(value) else value.items()
        return {_convert_key(key, fallback): _convert(item, parents, fallback) for key, item in pairs}
    items = items_of(value)
    return fallback(value) if items is None else [_convert(item, parents, fallback) for item in items]


def _convert_fields(value: object, parents: tuple[int, ...], fallback: _Fallback) -> JsonObject:
    """Convert the fields of an object to JSON data, except the fields that its class excludes.

    The function serializes each field separately with the serializer of the class. If the serializer fails for a field,
    `_convert` converts the value of this field instead.
    """
    infos: Mapping[str, object] = getattr(type(value), "__pydantic_fields__", {})
    converted: JsonObject = {}
    for name, item in list(field_values(value).items()):
        if getattr(infos.get(name), "exclude", False):
            continue
        try:
            converted.update(_dump(value, fallback, {name}))
        except Exception:  # The serializer of the field raised, or the class is not a Pydantic class.
            converted[name] = _convert(item, parents, fallback)
    return converted


def _dump(value: object, fallback: _Fallback, only: set[str] | None = None) -> Any:
    kind: Any = type(value)
    return kind.__pydantic_serializer__.to_python(
        value, mode="json", by_alias=False, warnings=False, include=only, fallback=fallback
    )


def _fallback(value: object) -> object:
    return dict(value) if is_mapping(value) else safe_repr(value)


def _convert_key(key: object, fallback: _Fallback) -> str:
    if isinstance(key, str):
        return str.__str__(key)  # Pydantic would reject a key with a lone surrogate.
    try:
        return str(next(iter(to_jsonable_python({key: None}, fallback=fallback))))
    except Exception:
        return base64.b64encode(key).decode() if isinstance(key, bytes) else str(fallback(key))


def _write(data: JsonValue, inf_nan_mode: Literal["constants", "null"]) -> str:
    try:
        return to_json(data, inf_nan_mode=inf_nan_mode).decode()
    except ValueError:  # The data has a lone surrogate or more nesting levels than the serializer supports.
        return to_json(replace_surrogates(_limit_depth(data, _MAX_DEPTH)), inf_nan_mode=inf_nan_mode).decode()


def _limit_depth(data: JsonValue, levels: int) -> object:
    if not isinstance(data, dict | list):
        return data
    if not levels:
        return safe_repr(data)
    if isinstance(data, dict):
        return {key: _limit_depth(item, levels - 1) for key, item in data.items()}
    return [_limit_depth(item, levels - 1) for item in data]


# Short texts for values and exceptions in error messages.


def safe_repr(value: object) -> str:
    """Return the `repr` of an object, or a short description of the object if its `__repr__` raises."""
    try:
        return repr(value).encode("utf-8", "replace").decode()
    except Exception:
        return f"<{type(value).__name__} without a repr>"


def shorten(text: str, limit: int = 200) -> str:
    """Return the text with at most `limit` characters; a text that is cut ends with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def excerpt(value: object, limit: int = 120) -> str:
    """Return a short `repr` of a wrong value for an error message, with secrets redacted."""
    try:
        return shorten(_KEY_REDACTOR.text(safe_repr(redact_by_name(value))), limit)
    except Exception:  # The value has a circular reference, or a user's mapping class raised.
        return f"<{type(value).__name__}>"


def describe_error(error: BaseException) -> str:
    """Return the class name and the message of an exception, such as `ValueError: x must be positive`."""
    try:
        text = str(error)
    except Exception:  # A user-defined `__str__` may raise.
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
