"""Conversion of any Python value to JSON data, to JSON text and to message content.

Pydantic serializes the types that it supports. Values like those of NumPy become lists and numbers, an object of
another type becomes its `repr`, and bytes that are not valid UTF-8 become base64. If a user's serializer raises an
exception, acorn must not send the value that the serializer should have changed. A strict conversion, for a message,
raises this exception. Other conversions, for views and error messages, never raise: a text describes the exception.

Message content is a text, or a text with content parts. A `ContentPart` is a value, such as an image, that a user
passes in an input or returns from a tool. The message text contains a placeholder for the content part, and the content
part itself follows the text:

    <photo media="1" kind="image" />             in the XML of an input
    {"photo": {"media": 1, "kind": "image"}}     in the JSON of a tool result

A `PartCollector` is the `context` of a conversion. The serializer of each content part adds the part to it. The
serializer of a user may dump a nested value itself, with `value.model_dump()` and without the context. Therefore a
`ContextVar` also contains the collector during the conversion.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain, islice
from operator import is_
from traceback import format_exception
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, cast

from pydantic import BaseModel, GetCoreSchemaHandler, RootModel, SerializationInfo, TypeAdapter, ValidationError
from pydantic_core import (
    InitErrorDetails,
    PydanticCustomError,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    core_schema,
    from_json,
    to_json,
    to_jsonable_python,
)
from typing_extensions import TypeIs

from acorn._formats.redact import Redactor, redact_by_name
from acorn.types import Content, JsonObject, JsonValue, is_json_list, is_json_object, is_list_or_tuple, is_mapping

T = TypeVar("T")

_MAX_DEPTH = 150
_MAX_TRACEBACK = 10_000
ATOMS = frozenset((type(None), str, int, float, bool, bytes))
"""The types of most values, which contain no iterators."""
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_KEY_REDACTOR = Redactor()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{8,}")
"""The memory address in the default `repr` of an object."""

active_collector: ContextVar[object] = ContextVar("acorn_collector", default=None)
"""The collector of the current conversion, for serializers that a user's serializer calls without the context."""


def collector_of(info: SerializationInfo) -> object:
    """Return the `PartCollector` or `BlobCollector` of the current conversion, or None if there is no collector."""
    return active_collector.get() if info.context is None else info.context


class _Options(TypedDict):
    """The arguments of Pydantic's serializers that are the same for a value and all its parts."""

    fallback: Callable[[Any], object]
    """A function that converts a value whose type Pydantic cannot serialize."""
    context: object
    """The collector that serializers of content parts and blobs receive, or None."""


def to_json_data(
    value: object, unserializable: list[object] | None = None, context: object = None, *, is_strict: bool = False
) -> Any:
    """Convert a value to JSON data: dicts, lists, strings, numbers, booleans and None.

    The dict keys are the Python names of the fields, not their aliases. `unserializable` is an optional list. The
    function appends each object that it can only represent as a memory address, such as `<object at 0x7f...>`, to this
    list. `context` is a `PartCollector` or a `BlobCollector`. With `is_strict`, the function raises the exception of a
    serializer.
    """

    def fallback(part: object) -> object:
        converted = _fallback(part)
        if unserializable is not None and isinstance(converted, str) and _ADDRESS.search(converted):
            unserializable.append(part)
        return converted

    options: _Options = {"fallback": _fallback if unserializable is None else fallback, "context": context}
    token = active_collector.set(context)
    try:
        return _convert(value, (), options)
    except Exception as error:
        if is_strict:
            raise
        return f"<{type(value).__name__}: {describe_error(error)}>"
    finally:
        active_collector.reset(token)


def without_addresses(text: str) -> str:
    """Return a text without the memory addresses in the default `repr` of objects."""
    return _ADDRESS.sub("", text)


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


def to_json_text(value: object, context: PartCollector | None = None, *, is_strict: bool = False) -> str:
    """Convert a value to the JSON text that Pydantic produces, with null in place of NaN and infinity.

    The function adds the content parts in the value to `context`, and writes their placeholders. With `is_strict`, it
    raises the exception of a serializer.
    """
    options: _Options = {"fallback": _fallback, "context": context}
    token = active_collector.set(context)
    try:
        if isinstance(value, BaseModel):
            return type(value).__pydantic_serializer__.to_json(value, warnings=False, **options).decode()
        return to_json(value, by_alias=False, inf_nan_mode="null", **options).decode()
    except Exception:  # The value has invalid bytes, a lone surrogate or a circular reference, or a serializer raised.
        pass
    finally:
        active_collector.reset(token)
    return _write(to_json_data(value, context=context, is_strict=is_strict), "null")


def read_iterators(value: T) -> T:
    """Return the value with a list in place of each iterator in it, so that it can be converted more than once.

    The fields of objects change in place. Pydantic validates the items of an `Iterable` only now. Its error for a wrong
    item contains the location of the item in the value.
    """
    has_none = type(value) in ATOMS or not _has_iterators(value)
    return value if has_none else cast(T, _read_iterators(value, (), ()))


def _has_iterators(value: object) -> bool:
    """Return whether a value contains an iterator.

    The function looks at all items of one nesting level at a time, which is fast for large values.
    """
    items: Iterable[object] = [value]
    seen: set[int] = set()
    for _ in range(_MAX_DEPTH):
        others = [item for item in items if type(item) not in ATOMS]
        containers = dict(zip(map(id, others), others, strict=True))
        for key in seen.intersection(containers):
            del containers[key]
        kinds = set(map(type, containers.values()))
        if not kinds or any(issubclass(kind, Iterator) for kind in kinds):
            return bool(kinds)
        groups: dict[type, list[Any]] = {kind: [] for kind in kinds}
        if len(kinds) == 1:  # Large values usually contain many rows of the same type.
            groups[kinds.pop()] += containers.values()
        else:
            for container in containers.values():
                groups[type(container)].append(container)
        items = chain.from_iterable(_items_in(kind, group) for kind, group in groups.items())
        seen.update(containers)
    return False


def _items_in(kind: Any, group: list[Any]) -> Iterable[object]:
    """Return the items in a group of containers of the same type."""
    if issubclass(kind, dict):
        return chain.from_iterable(map(dict[Any, Any].values, group))
    if issubclass(kind, BaseModel) or is_dataclass(kind):
        return chain.from_iterable([field_values(value).values() for value in group])
    base = next((base for base in _SEQUENCES if issubclass(kind, base)), None)
    return () if base is None else chain.from_iterable(map(base.__iter__, group))


def _read_iterators(value: Any, path: tuple[str | int, ...], parents: tuple[int, ...]) -> Any:
    if type(value) in ATOMS or id(value) in parents or len(parents) > _MAX_DEPTH:
        return value
    parents = (*parents, id(value))
    if isinstance(value, Iterator):
        try:
            items = list(cast(Iterator[object], value))
        except ValidationError as error:
            raise _at_path(error, path) from error
        return [_read_iterators(item, (*path, index), parents) for index, item in enumerate(items)]
    if isinstance(value, dict):
        before = cast(dict[object, object], value)
        if ATOMS.issuperset(map(type, before.values())):
            return before
        after = {key: _read_iterators(item, (*path, str(key)), parents) for key, item in before.items()}
        return before if all(map(is_, after.values(), before.values())) else after
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        extra: object = getattr(value, "__pydantic_extra__", None)
        for name, item in list(field_values(value).items()):
            if (read := _read_iterators(item, (*path, name), parents)) is item:
                continue
            if is_json_object(extra) and name in extra:
                extra[name] = read
            else:
                object.__setattr__(value, name, read)
        return value
    items = items_of(value) or []
    if ATOMS.issuperset(map(type, items)):
        return value
    read = [_read_iterators(item, (*path, index), parents) for index, item in enumerate(items)]
    if all(map(is_, read, items)):
        return value
    if not isinstance(value, tuple):
        return read
    make: Callable[[list[Any]], object] = getattr(cast(Any, value), "_make", tuple)  # A named tuple keeps its type.
    return make(read)


def _at_path(error: ValidationError, path: tuple[str | int, ...]) -> ValidationError:
    """Return a copy of a validation error whose locations start with `path`."""
    details: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError(cast(Any, detail["type"]), cast(Any, detail["msg"]), detail.get("ctx")),
            "loc": (*path, *detail["loc"]),
            "input": detail["input"],
        }
        for detail in error.errors(include_url=False)
    ]
    return ValidationError.from_exception_data(error.title, details)


def parse_json(text: str) -> Any:
    """Parse a JSON text and return its data, or return the text itself if it is invalid or nested too deep."""
    try:
        return from_json(text)
    except ValueError:
        return text


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
    return text if is_encodable(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_encodable(text: str) -> bool:
    """Return True if the text can be encoded as UTF-8, which means that it contains no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    return next((list(kind.__iter__(value)) for kind in _SEQUENCES if isinstance(value, kind)), None)


def _convert(value: object, parents: tuple[int, ...], options: _Options) -> Any:
    """Convert a value to JSON data with Pydantic, or convert its items separately if Pydantic fails.

    `parents` contains the `id()` of every container around the value, so that the function detects circular references.
    """
    if parents and issubclass(type(value), Iterator):
        # An iterator can be read only once, and the conversion of the outermost value has already read it.
        return safe_repr(value)
    try:
        if isinstance(value, BaseModel):
            return _dump(value, options)
        return to_jsonable_python(value, by_alias=False, inf_nan_mode="constants", **options)
    except Exception as error:  # Pydantic fails for invalid bytes and for circular references.
        if error.__cause__ is not None:  # A user's serializer raised.
            raise
        if id(value) in parents:
            return _describe_circle(value)
        if len(parents) >= _MAX_DEPTH:
            return safe_repr(value)
    return _convert_parts(value, (*parents, id(value)), options)


def _describe_circle(value: object) -> str:
    """Return a text for a value that contains itself. Its `repr` may contain fields that its serializer changes."""
    if isinstance(value, dict | list):
        return "{...}" if isinstance(value, dict) else "[...]"
    return f"{type(value).__name__}(...)"


def is_root_model(value: object) -> TypeIs[RootModel[Any]]:
    """Return whether a value is an instance of a `RootModel`."""
    return isinstance(value, RootModel)


def is_root_class(kind: object) -> TypeIs[type[RootModel[Any]]]:
    """Return whether a type is a subclass of `RootModel`."""
    return isinstance(kind, type) and issubclass(kind, RootModel)


def _convert_parts(value: object, parents: tuple[int, ...], options: _Options) -> object:
    """Convert each item of a container separately, so that an item that fails does not affect the other items."""
    try:
        value.__class__  # noqa: B018 - A proxy may raise here, and then `isinstance` raises too.
    except Exception:
        return safe_repr(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return _convert(value.value, parents, options)
    if is_root_model(value):
        _require_cause(value.root, options)
        return _convert(value.root, parents, options)
    if isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type)):
        return _convert_fields(value, parents, options)
    if is_mapping(value):
        try:
            pairs = list(dict[str, Any].items(value) if is_json_object(value) else value.items())
        except Exception:  # A user's class may raise.
            return safe_repr(value)
        return {_convert_key(key, options): _convert(item, parents, options) for key, item in pairs}
    items = items_of(value)
    if items is not None:
        return [_convert(item, parents, options) for item in items]
    if hasattr(type(value), "__pydantic_serializer__"):
        return _dump(value, options)  # This raises the exception of the serializer again.
    converted = options["fallback"](value)
    return converted if isinstance(converted, str) else _convert(converted, parents, options)


def _convert_fields(value: object, parents: tuple[int, ...], options: _Options) -> JsonObject:
    """Convert the fields of an object to JSON data, except the fields that its class excludes.

    The function serializes each field separately with the serializer of the class. If Pydantic has no JSON form for the
    value of a field, `_convert` converts this value instead.
    """
    infos: Mapping[str, object] = getattr(type(value), "__pydantic_fields__", {})
    decorators = getattr(type(value), "__pydantic_decorators__", None)
    computed = {name: getattr(value, name) for name in getattr(decorators, "computed_fields", ())}
    converted: JsonObject = {}
    for name, item in [*field_values(value).items(), *computed.items()]:
        if getattr(infos.get(name), "exclude", False):
            continue
        if decorators is not None:
            try:
                converted.update(_dump(value, options, {name}))
                continue
            except Exception as error:
                if error.__cause__ is not None:
                    raise
            _require_cause(item, options)
        converted[name] = _convert(item, parents, options)
    return converted


def _require_cause(value: object, options: _Options) -> None:
    """Raise an error if Pydantic can convert a value without the serializer of its class.

    In this case, the serializer returned a value without a JSON form. acorn must not send the original value instead.
    """
    try:
        to_jsonable_python(value, by_alias=False, **options)
    except Exception:
        return
    raise ValueError("a serializer returned a value that has no JSON form")


def _dump(value: object, options: _Options, only: set[str] | None = None) -> Any:
    kind: Any = type(value)
    return kind.__pydantic_serializer__.to_python(
        value, mode="json", by_alias=False, warnings=False, include=only, **options
    )


def failing_field(instance: BaseModel) -> str:
    """Return the name of the first field whose serializer raises, or "" if there is no such field."""
    kind = type(instance)
    for name in (*kind.model_fields, *kind.model_computed_fields):
        try:
            _dump(instance, {"fallback": _fallback, "context": None}, {name})
        except UnicodeError:  # The field contains invalid bytes, and acorn converts them.
            pass
        except Exception:
            return name
    return ""


def _fallback(value: object) -> object:
    """Convert a value of a type that Pydantic cannot serialize."""
    with suppress(Exception):  # A user's class may raise any exception, even in `isinstance`.
        if is_mapping(value):
            return dict(value)
        if issubclass(type(value), range | KeysView | ValuesView | ItemsView):
            return list(cast(Iterable[object], value))
    kind = type(value)
    for name in ("tolist", "item"):  # The methods of the arrays and the scalars of NumPy.
        with suppress(Exception):
            converted: object = getattr(kind, name)(value)
            if type(converted) is not kind:
                return converted
    return safe_repr(value)


def _convert_key(key: object, options: _Options) -> str:
    if isinstance(key, str):
        return str.__str__(key)  # Pydantic would reject a key with a lone surrogate.
    try:
        return str(next(iter(to_jsonable_python({key: None}, **options))))
    except Exception:
        return base64.b64encode(key).decode() if isinstance(key, bytes) else str(options["fallback"](key))


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


def first_items(value: object, limit: int, depth: int = 5) -> object:
    """Return a value without the items of large dicts and lists that a text of `limit` characters cannot contain."""
    if depth and is_json_object(value) and type(value) is dict:
        return {key: first_items(item, limit, depth - 1) for key, item in islice(value.items(), limit)}
    if depth and is_json_list(value) and type(value) is list:
        return [first_items(item, limit, depth - 1) for item in value[:limit]]
    return value


def excerpt(value: object, limit: int = 120) -> str:
    """Return a short `repr` of a wrong value for an error message, with secrets redacted."""
    try:
        return shorten(_KEY_REDACTOR.text(safe_repr(redact_by_name(first_items(value, limit)))), limit)
    except Exception:  # The value has a circular reference, or a user's mapping class raised.
        return f"<{type(value).__name__}>"


def describe_traceback(error: BaseException) -> str:
    """Return the traceback of an exception of user code, without the frames of acorn that called the code."""
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("acorn."):
        trace = trace.tb_next
    text = "".join(format_exception(type(error), error, trace)).rstrip()
    return text if len(text) <= _MAX_TRACEBACK else f"…{text[-_MAX_TRACEBACK:]}"


def describe_error(error: BaseException) -> str:
    """Return the class name and the message of an exception, such as `ValueError: x must be positive`."""
    try:
        text = str(error)
    except Exception:  # A user-defined `__str__` may raise.
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# Message content with content parts.

PLACEHOLDER_KEY = "media"
"""The key of a placeholder whose value is the number of the content part."""


def _serialize(part: ContentPart, info: SerializationInfo) -> object:
    """Return the placeholder of a content part if the context is a `PartCollector`, and otherwise its JSON data."""
    kind: Any = type(part)
    collector = collector_of(info)
    if isinstance(collector, PartCollector):
        return collector.placeholder(part)
    return _adapter(kind).dump_python(part, mode="json", context=info.context)


@lru_cache(maxsize=64)
def _adapter(kind: type[ContentPart]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class ContentPart:
    """The base class of images, audio and files, which a request sends in addition to the message text.

    A subclass is a dataclass, a Pydantic class (`class Photo(ContentPart, BaseModel)`), or a class that defines its own
    Pydantic core schema with `part_schema`. Runs are saved as JSON, so a subclass must be able to validate the JSON
    that it serializes to.
    """

    __slots__ = ()

    # Pydantic uses this serializer for values without a declared type, such as a tool result.
    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(
            serialization=core_schema.plain_serializer_function_ser_schema(_serialize, info_arg=True, when_used="json")
        )
    )

    def __acorn_part__(self) -> JsonObject:
        """Return the content part as a new dict, in the message format of OpenAI."""
        raise NotImplementedError

    def __acorn_label__(self) -> dict[str, str]:
        """Return the attributes of the placeholder, such as `{"kind": "image"}`. Each dict key must be an XML name."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return part_schema(cls, handler(source))


def part_schema(kind: type[ContentPart], schema: core_schema.CoreSchema) -> core_schema.CoreSchema:
    """Return a copy of a Pydantic core schema that serializes content parts as placeholders inside messages.

    `kind` is the subclass of `ContentPart` that `schema` describes. The copy validates values like `schema`, and
    outside of messages it also serializes them like `schema`.
    """

    def serialize(part: object, handler: Callable[[object], object], info: SerializationInfo) -> object:
        if not isinstance(part, kind):  # Pydantic calls the serializers of a union in turn until one does not raise.
            raise PydanticSerializationUnexpectedValue(f"The value is not an instance of `{kind.__name__}`.")
        collector = collector_of(info)
        return collector.placeholder(part) if isinstance(collector, PartCollector) else handler(part)

    changed: Any = dict(schema)
    # A `ref` may occur only once in a schema.
    inner: Any = {key: value for key, value in schema.items() if key != "ref"} if "serialization" in schema else None
    changed["serialization"] = core_schema.wrap_serializer_function_ser_schema(
        serialize, schema=inner, info_arg=True, when_used="json"
    )
    result: core_schema.CoreSchema = changed
    return result


class PartCollector:
    """A serialization context that collects and numbers the content parts of serialized values."""

    __slots__ = ("_key", "parts")

    def __init__(self, key: str = PLACEHOLDER_KEY) -> None:
        self.parts: list[tuple[JsonObject, dict[str, str]]] = []
        """A list of (content part in the format of OpenAI, placeholder attributes), in the order of appearance."""
        self._key = key

    def placeholder(self, part: ContentPart) -> JsonObject:
        """Collect a content part and return the placeholder for the message text.

        If a content part occurs several times, all its placeholders have the same number, and the request contains it
        once.
        """
        label = part.__acorn_label__()
        entry = (part.__acorn_part__(), label)
        if entry not in self.parts:
            self.parts.append(entry)
        return {self._key: self.parts.index(entry) + 1, **label}

    def content(self, text: str) -> Content:
        """Return message content: only the text, or a list with the text and the collected content parts."""
        if not self.parts:
            return text
        return [{"type": "text", "text": text}, *(part for part, _ in self.parts)]


def to_content(value: object) -> Content:
    """Convert a value to message content: the JSON text of the value, followed by its content parts.

    Do not pass a string, because its JSON text has quotes. The function raises the exceptions of serializers.
    """
    collector = PartCollector()
    return collector.content(to_json_text(value, collector, is_strict=True))


def text_of(content: object) -> str:
    """Return the text in message content, without images, audio and files."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if is_json_list(content):
        texts = [part.get("text") if is_mapping(part) else part for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return to_json_text(content)


# Values with content parts in a saved run.


@dataclass(frozen=True)
class SavedPart(ContentPart):
    """A content part that was loaded from a saved tool result.

    A saved run does not contain the original class of the content part, so this class represents all of them.
    """

    part: JsonObject
    label: dict[str, str]

    def __acorn_part__(self) -> JsonObject:
        return deepcopy(self.part)

    def __acorn_label__(self) -> dict[str, str]:
        return self.label


def save_parts(value: object) -> tuple[str, JsonObject | None]:
    """Return a tuple of the JSON text of a value, and the data that `restore_parts` needs to restore its content parts.

    The second item of the tuple is None if the value has no content parts.
    """
    collector = PartCollector()
    text = to_json_text(value, collector)
    if not collector.parts:
        return text, None
    key = f"__{PLACEHOLDER_KEY}__"
    while key in text:  # No text in a tool result may look like a placeholder.
        key += "_"
    collector = PartCollector(key)
    return to_json_text(value, collector), {"mark": key, "found": collector.parts}


def restore_parts(data: JsonValue, saved: Mapping[str, Any]) -> Any:
    """Return a copy of JSON data with content parts in place of their placeholders; the reverse of `save_parts`.

    If acorn sends the restored value to a model again, the message has the same text as before.
    """
    return _restore(data, saved["mark"], [SavedPart(*entry) for entry in saved["found"]])


def _restore(data: JsonValue, key: str, parts: list[SavedPart]) -> object:
    if isinstance(data, dict):
        if key in data:
            number: int = data[key]
            return parts[number - 1]
        return {name: _restore(item, key, parts) for name, item in data.items()}
    return [_restore(item, key, parts) for item in data] if isinstance(data, list) else data
