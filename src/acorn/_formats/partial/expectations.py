"""Expectations and frames, which control the parsing of JSON values and create snapshots of incomplete values.

An expectation knows the declared type of a JSON value. It determines whether snapshots contain an incomplete string,
how a complete value is validated, and which frame stores an incomplete object or list. `expectation_of` in `parser.py`
creates the expectation for a type.

A frame represents a JSON object or list whose end has not arrived. The frame stores the complete items in a container
that only grows. A snapshot of the container is a copy, which shares the complete items.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import NoneType
from typing import Any, Literal, Protocol, get_origin

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaSerializer, core_schema, to_json

from acorn._formats.partial.classes import PartialModel, new_instance
from acorn.types import JsonObject, JsonValue

NOT_READY: Any = object()
"""The sentinel for a value that snapshots omit, such as an incomplete number or a value that fails validation."""


class GrowingText:
    """A string to which the parser appends pieces of text.

    Appending does not copy the string, because no other object refers to it.
    """

    __slots__ = ("text", "wrap")

    def __init__(self, wrap: Callable[[object], object] | None = None) -> None:
        self.text = ""
        self.wrap = wrap
        """A function that converts the text of a snapshot, or None if the snapshot is the text."""

    def add(self, piece: str) -> None:
        text = self.text
        self.text = ""  # Python appends in place only if the string has a single reference.
        text += piece
        self.text = text

    def snapshot(self) -> object:
        return self.text if self.wrap is None else self.wrap(self.text)


class Frame(Protocol):
    """The interface of frames. A frame stores an incomplete JSON object or list, and the parser adds values to it."""

    __slots__ = ()
    is_object: bool = True
    key_changes_snapshot: bool = False
    """Whether a new key may change the snapshot before the value of this key arrives."""

    def enter(self, key: str) -> Any:
        """Prepare the frame for the value of a JSON key, and return the expectation for this value.

        For a list, `key` is "".
        """

    def put(self, value: object) -> None:
        """Store the value for which `enter` was called. The value is `NOT_READY` if it failed validation."""

    def close(self) -> object:
        """Return the final value of the object or list after its end has arrived."""

    def snapshot(self, child: object) -> object:
        """Return the current value of the object or list. `child` is a snapshot of its last, incomplete value."""


class ListFrame(Frame):
    """A frame (the state of an incomplete JSON list) with one expectation for all items."""

    __slots__ = ("item", "items")
    is_object = False

    def __init__(self, item: Any) -> None:
        self.item = item
        self.items: list[object] = []

    def enter(self, key: str) -> Any:
        return self.item

    def put(self, value: object) -> None:
        self.items.append(None if value is NOT_READY else value)

    def close(self) -> object:
        return self.items

    def snapshot(self, child: object) -> object:
        return self.items.copy() if child is NOT_READY else [*self.items, child]


class DictFrame(Frame):
    """A frame (the state of an incomplete JSON object) for a dict, with one expectation for all values."""

    __slots__ = ("item", "items", "key", "keys")

    def __init__(self, item: Any, keys: Any = None) -> None:
        self.item = item
        self.keys = keys
        """The expectation for the keys, or None if the keys are strings without validation."""
        self.items: dict[Any, object] = {}
        self.key: Any = NOT_READY

    def enter(self, key: str) -> Any:
        self.key = key if self.keys is None else self.keys.text(key)
        return self.item

    def put(self, value: object) -> None:
        key, self.key = self.key, NOT_READY
        if key is not NOT_READY:
            self.items[key] = None if value is NOT_READY else value

    def close(self) -> object:
        return self.items

    def snapshot(self, child: object) -> object:
        if self.key is NOT_READY or child is NOT_READY:
            return self.items.copy()
        return {**self.items, self.key: child}


class TypedDictFrame(DictFrame):
    """A frame (the state of an incomplete JSON object) for a TypedDict.

    In snapshots, a required key has the value None until its value arrives.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, tuple[str, object]], required: Iterable[str]) -> None:
        super().__init__(UNSEEN)
        self.fields = fields
        self.items.update(dict.fromkeys(required))

    def enter(self, key: str) -> Any:
        self.key, expectation = self.fields.get(key, (NOT_READY, self.item))
        return expectation


class ModelFrame(Frame):
    """A frame (the state of an incomplete JSON object) that creates instances of a partial class."""

    __slots__ = ("cls", "done", "extra", "fields", "key", "name", "seen", "values")

    def __init__(self, cls: type[PartialModel], fields: Mapping[str, tuple[str, object]]) -> None:
        self.cls = cls
        self.fields = fields
        self.name: str | None = None
        self.key = ""
        self.seen: set[str] = set()
        """The names of the fields that have a value. Snapshots share this set, so each change creates a new set."""
        self.done: tuple[str, ...] = ()
        """The names of the fields whose values are complete."""
        self.values: dict[str, Any] = dict.fromkeys(cls.__pydantic_fields__)
        self.extra: JsonObject | None = {} if cls.model_config.get("extra") == "allow" else None

    def enter(self, key: str) -> Any:
        field = self.fields.get(key)
        if field is None:  # The parser must also parse the value of an unknown key, but snapshots omit this value.
            self.name, self.key = None, key
            return UNSEEN
        self.name = field[0]
        if self.name in self.done:  # The JSON text repeats the key. The last value of a key applies.
            self.done = tuple(name for name in self.done if name != self.name)
        return field[1]

    def put(self, value: object) -> None:
        if self.name is not None:
            self.values[self.name] = None if value is NOT_READY else value
            self.seen = self.seen | {self.name}
            self.done = (*self.done, self.name)
        elif self.extra is not None:
            self.extra = {**self.extra, self.key: value}
        self.name = None

    def close(self) -> object:
        return new_instance(self.cls, self.values, self.seen, self.extra)

    def snapshot(self, child: object) -> object:
        values, name = self.values.copy(), self.name
        if name is not None and child is not NOT_READY:
            if name not in self.seen:
                self.seen = self.seen | {name}
            values[name] = child
        return new_instance(self.cls, values, self.seen, self.extra)


# Expectations.


class Expectation:
    """The base class of expectations, which accepts any JSON value without validation."""

    grows = True
    """Whether snapshots contain a string before it is complete."""

    def object_frame(self) -> Frame:
        return DictFrame(self)

    def array_frame(self) -> Frame:
        return ListFrame(self)

    def new_text(self) -> GrowingText:
        """Return a new, empty `GrowingText`, to which the parser appends the pieces of a JSON string."""
        return GrowingText()

    def text(self, value: str) -> object:
        """Validate a complete string and return the validated value, or `NOT_READY` if the string is invalid."""
        return value

    def scalar(self, value: object, token: str) -> object:
        """Validate a number, boolean or null and return the validated value, or `NOT_READY` if it is invalid."""
        return value

    def accepts(self, json_type: str) -> bool:
        """Return True if a JSON object (`json_type` is `object`) or a JSON list (`array`) can be valid."""
        return True


ANYTHING = Expectation()
UNSEEN = Expectation()
"""The expectation for a value inside an object or list that snapshots omit until it is complete."""
UNSEEN.grows = False


class LeafExpectation(Expectation):
    """The expectation for a type of which snapshots contain only complete and valid values, such as a number."""

    grows = False
    json_type: str | None = None
    """The only JSON type of valid values, or None if the JSON Schema of the type must be read."""

    def __init__(self, kind: Any, config: ConfigDict | None) -> None:
        self.kind = kind
        self.config = config
        """The `model_config` of the class that contains the value, or None."""

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.kind, config=self.config)
        except PydanticUserError:  # Pydantic rejects `config` for a class that has its own configuration.
            return TypeAdapter(self.kind)

    def validate(self, json: bytes | str) -> object:
        try:
            return self.adapter.validate_json(json, by_alias=True, by_name=True)
        except Exception:  # The value is invalid, a user's validator raised, or Pydantic does not support the type.
            return NOT_READY

    def validate_data(self, value: Any) -> object:
        """Validate complete JSON data, and return the value or `NOT_READY`."""
        try:
            json = to_json(value, inf_nan_mode="constants")
        except ValueError:  # The value contains a lone surrogate, which UTF-8 cannot encode.
            return NOT_READY
        return self.validate(json)

    def wrap(self, value: object) -> Any:
        """Convert the current content of an object or list to a snapshot."""
        return value

    def object_frame(self) -> Frame:
        return CompleteFrame(DictFrame(UNSEEN), self)

    def array_frame(self) -> Frame:
        return CompleteFrame(ListFrame(UNSEEN), self)

    def text(self, value: str) -> object:
        return self.validate_data(value)

    def scalar(self, value: object, token: str) -> object:
        kind = self.kind
        if self.config is None:
            if kind is type(value):
                return value
            if kind is float and type(value) is int:
                return float(token)
        return self.validate(token)

    def accepts(self, json_type: str) -> bool:
        schema = self.adapter.json_schema() if self.json_type is None else {"type": self.json_type}
        return _may_have_type(schema, json_type)


def _may_have_type(schema: JsonObject, json_type: str) -> bool:
    if "anyOf" in schema:
        return any(_may_have_type(option, json_type) for option in schema["anyOf"])
    if "type" in schema:
        return bool(schema["type"] == json_type)
    return "enum" not in schema and "const" not in schema


class TextExpectation(LeafExpectation):
    """The expectation for a string. Snapshots contain the incomplete string, and the complete string is validated."""

    grows = True
    json_type = "string"

    def text(self, value: str) -> object:
        return value if self.kind is str and self.config is None else super().text(value)


class ListExpectation(LeafExpectation):
    """The expectation for a list, with one expectation for all items."""

    json_type = "array"

    def __init__(self, kind: Any, config: ConfigDict | None, item: Expectation) -> None:
        super().__init__(kind, config)
        self.item = item

    def array_frame(self) -> Frame:
        return ListFrame(self.item)


class DictExpectation(LeafExpectation):
    """The expectation for a dict, with one expectation for all values and optionally one for all keys."""

    json_type = "object"

    def __init__(self, kind: Any, config: ConfigDict | None, item: Expectation, keys: Expectation | None) -> None:
        super().__init__(kind, config)
        self.item = item
        self.keys = keys

    def object_frame(self) -> Frame:
        return DictFrame(self.item, self.keys)


class ModelExpectation(LeafExpectation):
    """The expectation for a Pydantic class, dataclass or TypedDict, with one expectation for each field.

    Snapshots contain a partial instance, also after the end of the object. For a dataclass, they contain an instance of
    the dataclass after the end of the object. For a TypedDict, they contain a dict.
    """

    json_type = "object"

    partial: type[PartialModel] | None = None
    """The partial class, or None for a TypedDict."""
    required: tuple[str, ...] = ()
    """The required keys of a TypedDict."""
    is_validated = True
    """Whether the complete object is validated. The partial instance of a Pydantic class is not."""
    fields: dict[str, tuple[str, Expectation]]
    """A dict that maps each accepted JSON key to a field name and its expectation. The accepted keys are the name and
    the aliases of each field."""

    def object_frame(self) -> Frame:
        if self.partial is None:
            return ValidatedFrame(TypedDictFrame(self.fields, self.required), self)
        frame = ModelFrame(self.partial, self.fields)
        return ValidatedFrame(frame, self) if self.is_validated else frame


class RootModelExpectation(LeafExpectation):
    """The expectation for a `RootModel`. Snapshots contain partial instances with the content that has arrived."""

    partial: type[PartialModel]
    inner: Expectation

    def object_frame(self) -> Frame:
        return ValidatedFrame(self.inner.object_frame(), self)

    def array_frame(self) -> Frame:
        return ValidatedFrame(self.inner.array_frame(), self)

    def new_text(self) -> GrowingText:
        return GrowingText(self.wrap)

    def wrap(self, value: object) -> Any:
        if value is NOT_READY:
            return NOT_READY
        return new_instance(self.partial, {"root": value}, {"root"}, None)

    def accepts(self, json_type: str) -> bool:
        return self.inner.accepts(json_type)


class UnionExpectation(LeafExpectation):
    """The expectation for a union, which chooses the type of the value while the value arrives.

    The first character of the value distinguishes strings, lists and objects. The keys of an object distinguish
    classes.
    """

    def __init__(self, kind: Any, config: ConfigDict | None, members: list[Expectation]) -> None:
        super().__init__(kind, config)
        self.members: list[Expectation] = []
        for member in members:
            self.members += member.members if isinstance(member, UnionExpectation) else [member]
        self.grows = any(member.grows for member in self.members)

    @cached_property
    def is_text(self) -> bool:
        """Whether every string is valid."""
        if self.config is not None or get_origin(self.kind) is typing.Annotated:
            return False
        return all(isinstance(member, LeafExpectation) and member.kind in (str, NoneType) for member in self.members)

    @cached_property
    def objects(self) -> list[Expectation]:
        return [member for member in self.members if member.accepts("object")]

    @cached_property
    def arrays(self) -> list[Expectation]:
        return [member for member in self.members if member.accepts("array")]

    def object_frame(self) -> Frame:
        if len(self.objects) == 1:
            return self.objects[0].object_frame()
        models = [member for member in self.objects if isinstance(member, ModelExpectation)]
        return UnionFrame(models, self) if models and len(models) == len(self.objects) else super().object_frame()

    def array_frame(self) -> Frame:
        return self.arrays[0].array_frame() if len(self.arrays) == 1 else super().array_frame()

    def new_text(self) -> GrowingText:
        growing = [member for member in self.members if member.grows]
        return growing[0].new_text() if len(growing) == 1 else GrowingText()

    def text(self, value: str) -> object:
        return value if self.is_text else super().text(value)

    def validate_data(self, value: Any) -> object:
        complete = super().validate_data(value)
        if complete is not NOT_READY and not isinstance(value, str):
            # Convert the value by the matching member, so that it contains partial instances as in other unions.
            for member in self.members:
                if (
                    isinstance(member, ModelExpectation | ListExpectation | DictExpectation | RootModelExpectation)
                    and member.validate_data(value) == complete
                ):
                    return convert_value(member, value)
        return complete


class ValidatedFrame(Frame):
    """A frame that stores the values of an object or list in another frame, and that validates them at the end."""

    __slots__ = ("fits", "inner", "is_object", "key_changes_snapshot", "leaf")

    def __init__(self, inner: Frame, leaf: LeafExpectation) -> None:
        self.inner = inner
        self.leaf = leaf
        self.is_object = inner.is_object
        self.key_changes_snapshot = inner.key_changes_snapshot
        self.fits = True

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: object) -> None:
        self.fits = self.fits and value is not NOT_READY
        self.inner.put(value)

    def close(self) -> object:
        partial = self.leaf.wrap(self.inner.close())
        if not self.fits:
            return partial
        try:
            json = _SERIALIZER.to_json(partial, by_alias=False, exclude_unset=True)
        except ValueError:  # The value contains a lone surrogate, which UTF-8 cannot encode.
            return partial
        complete = self.leaf.validate(json)
        return partial if complete is NOT_READY else complete

    def snapshot(self, child: object) -> object:
        return self.leaf.wrap(self.inner.snapshot(child))


class CompleteFrame(ValidatedFrame):
    """A frame (the state of an incomplete object or list) that snapshots omit until it is complete."""

    __slots__ = ()

    def close(self) -> object:
        return self.leaf.validate_data(self.inner.close())

    def snapshot(self, child: object) -> object:
        return NOT_READY


_SERIALIZER = SchemaSerializer(core_schema.any_schema(), {"ser_json_inf_nan": "constants"})


class UnionFrame(Frame):
    """A frame (the state of an incomplete object) for a union of classes, which chooses the class by the keys.

    Snapshots omit the object until its keys, and its values for `Literal` fields, fit only one class.
    """

    __slots__ = ("choice", "chosen", "key", "models", "raw")
    key_changes_snapshot = True

    def __init__(self, models: list[ModelExpectation], choice: UnionExpectation) -> None:
        self.models = models
        self.choice = choice
        self.raw: JsonObject = {}
        self.key = ""
        self.chosen: Frame | None = None

    def enter(self, key: str) -> Any:
        self.key = key
        self._narrow([*self.raw, key])
        return UNSEEN if self.chosen is None else self.chosen.enter(key)

    def put(self, value: object) -> None:
        if self.chosen is not None:
            self.chosen.put(value)
            return
        self.raw[self.key] = value
        self._narrow(list(self.raw))

    def _narrow(self, keys: list[str]) -> None:
        if self.chosen is not None:
            return
        known = [key for key in keys if any(key in model.fields for model in self.models)]
        fitting = [model for model in self.models if all(key in model.fields for key in known) and self._agrees(model)]
        if len(fitting) != 1:
            return
        self.chosen = fitting[0].object_frame()
        for key, value in self.raw.items():
            put_value(self.chosen, key, value)

    def _agrees(self, model: ModelExpectation) -> bool:
        """Return True if the values that have arrived fit the `Literal` fields of this class."""
        for key, value in self.raw.items():
            expected = model.fields.get(key, ("", ANYTHING))[1]
            if (
                isinstance(expected, LeafExpectation)
                and get_origin(expected.kind) is Literal
                and expected.validate_data(value) is NOT_READY
            ):
                return False
        return True

    def close(self) -> object:
        return self.choice.validate_data(self.raw) if self.chosen is None else self.chosen.close()

    def snapshot(self, child: object) -> object:
        return NOT_READY if self.chosen is None else self.chosen.snapshot(child)


def put_value(frame: Frame, key: str, value: JsonValue) -> None:
    """Convert complete JSON data to the type that the frame expects for `key`, and store the result in the frame."""
    frame.put(convert_value(frame.enter(key), value))


def convert_value(expected: Expectation, value: JsonValue) -> object:
    """Convert complete JSON data by an expectation, with the same result as parsing the JSON text."""
    if isinstance(value, dict):
        frame = expected.object_frame()
        for key, item in value.items():
            put_value(frame, key, item)
        return frame.close()
    if isinstance(value, list):
        frame = expected.array_frame()
        for item in value:
            put_value(frame, "", item)
        return frame.close()
    if isinstance(value, str):
        return expected.text(value)
    return expected.scalar(value, to_json(value).decode())
