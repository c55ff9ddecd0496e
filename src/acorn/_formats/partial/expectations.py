"""Expectations: objects that know the declared type of a JSON value and control its parsing.

An expectation determines whether snapshots contain an incomplete string, how a complete value is validated, and which
frame stores an incomplete object or list. `expectation_of` in `parser.py` creates the expectation for a type.
"""

from __future__ import annotations

import typing
from functools import cached_property
from types import NoneType
from typing import Any, Literal, get_origin

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaSerializer, core_schema, to_json

from acorn._formats.partial.classes import ModelFrame, PartialModel, RootFrame, RootText
from acorn._formats.partial.frames import (
    NOT_READY,
    DictFrame,
    Frame,
    GrowingText,
    ListFrame,
    TypedDictFrame,
    WrapperFrame,
)
from acorn.types import JsonObject, JsonValue


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


class UnseenExpectation(Expectation):
    """The expectation for a value inside an object or list that snapshots omit until it is complete."""

    grows = False


ANYTHING = Expectation()
UNSEEN = UnseenExpectation()


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

    def validate_data(self, value: object) -> object:
        try:
            json = to_json(value, inf_nan_mode="constants")
        except ValueError:  # The value contains a lone surrogate, which UTF-8 cannot encode.
            return NOT_READY
        return self.validate(json)

    def validate_container(self, value: object) -> object:
        """Validate the plain JSON data of a complete object or list, and return the value or `NOT_READY`."""
        return self.validate_data(value)

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
    """The expectation for a Pydantic class, with one expectation for each field."""

    json_type = "object"

    partial: type[PartialModel]
    fields: dict[str, tuple[str, Expectation]]
    """A dict that maps each accepted JSON key to a field name and its expectation. The accepted keys are the name and
    the aliases of each field."""

    def object_frame(self) -> Frame:
        return ModelFrame(self.partial, self.fields, UNSEEN)


class DataclassExpectation(ModelExpectation):
    """The expectation for a dataclass.

    Snapshots contain a partial instance until the object is complete, and then an instance of the dataclass.
    """

    def object_frame(self) -> Frame:
        return ValidatedFrame(super().object_frame(), self)


class TypedDictExpectation(ModelExpectation):
    """The expectation for a TypedDict. Snapshots contain a dict with the values that have arrived."""

    required: tuple[str, ...]

    def object_frame(self) -> Frame:
        return ValidatedFrame(TypedDictFrame(self.fields, self.required, UNSEEN), self)


class RootModelExpectation(LeafExpectation):
    """The expectation for a `RootModel`. Snapshots contain partial instances with the content that has arrived."""

    partial: type[PartialModel]
    inner: Expectation

    def object_frame(self) -> Frame:
        return ValidatedFrame(RootFrame(self.partial, self.inner.object_frame()), self)

    def array_frame(self) -> Frame:
        return ValidatedFrame(RootFrame(self.partial, self.inner.array_frame()), self)

    def new_text(self) -> GrowingText:
        return RootText(self.partial)

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

    def validate_container(self, value: Any) -> object:
        complete = self.validate_data(value)
        if complete is not NOT_READY:
            # Convert the value by the matching member, so that it contains partial instances as in other unions.
            for member in self.members:
                if (
                    isinstance(member, ModelExpectation | ListExpectation | DictExpectation | RootModelExpectation)
                    and member.validate_data(value) == complete
                ):
                    return convert_value(member, value)
        return complete


class CompleteFrame(WrapperFrame):
    """A frame (the state of an incomplete object or list) that snapshots omit until it is complete."""

    __slots__ = ("leaf",)

    def __init__(self, inner: Frame, leaf: LeafExpectation) -> None:
        super().__init__(inner)
        self.leaf = leaf

    def close(self) -> object:
        return self.leaf.validate_container(self.inner.close())

    def snapshot(self, child: object) -> object:
        return NOT_READY


class ValidatedFrame(WrapperFrame):
    """A frame (the state of an incomplete object or list) that snapshots contain, and that is validated at its end."""

    __slots__ = ("fits", "leaf")

    def __init__(self, inner: Frame, leaf: LeafExpectation) -> None:
        super().__init__(inner)
        self.leaf = leaf
        self.fits = True

    def put(self, value: object) -> None:
        self.fits = self.fits and value is not NOT_READY
        self.inner.put(value)

    def close(self) -> object:
        partial = self.inner.close()
        if not self.fits:
            return partial
        try:
            json = _SERIALIZER.to_json(partial, by_alias=False, exclude_unset=True)
        except ValueError:  # The value contains a lone surrogate, which UTF-8 cannot encode.
            return partial
        complete = self.leaf.validate(json)
        return partial if complete is NOT_READY else complete

    def snapshot(self, child: object) -> object:
        return self.inner.snapshot(child)


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
        return self.choice.validate_container(self.raw) if self.chosen is None else self.chosen.close()

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
