"""The expectation of each type, which tells the parser how to read it.

An expectation decides whether a string is shown while it grows, how a complete value is validated, and which frame an
object or list uses. `expectation_of` in `parser.py` compiles a type to its expectation.
"""

from __future__ import annotations

import typing
from functools import cached_property
from types import NoneType
from typing import Any, Literal, get_origin

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaSerializer, core_schema, to_json

from acorn._formats.partial.classes import (
    ModelFrame,
    PartialModel,
    RootFrame,
    RootText,
)
from acorn._formats.partial.frames import NOT_READY, DictFrame, Frame, GrowingText, ListFrame, TypedDictFrame
from acorn.types import JsonObject, JsonValue


class Expectation:
    """The expectation of any value, without validation."""

    grows = True
    """Whether a string is shown before it is complete."""

    def object_frame(self) -> Frame:
        return DictFrame(self)

    def array_frame(self) -> Frame:
        return ListFrame(self)

    def new_text(self) -> GrowingText:
        """Return a new string."""
        return GrowingText()

    def text(self, value: str) -> object:
        """Return the value of a complete string."""
        return value

    def scalar(self, value: object, token: str) -> object:
        """Return the value of a complete number, boolean or null."""
        return value

    def takes(self, form: str) -> bool:
        """Return whether it may be written as an `object` or an `array`."""
        return True


class UnseenExpectation(Expectation):
    """A value inside a container that is shown only when it is complete."""

    grows = False


ANYTHING = Expectation()
UNSEEN = UnseenExpectation()


class LeafExpectation(Expectation):
    """A type that is shown only when it is complete and valid."""

    grows = False

    def __init__(self, kind: Any, config: ConfigDict | None) -> None:
        self.kind = kind
        self.config = config
        """The configuration of the model around it."""

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.kind, config=self.config)
        except PydanticUserError:  # A model or a dataclass has its own configuration.
            return TypeAdapter(self.kind)

    def validate(self, json: bytes | str) -> object:
        try:
            return self.adapter.validate_json(json, by_alias=True, by_name=True)
        except Exception:  # Invalid, a failing validator of the user, or a type that has no adapter.
            return NOT_READY

    def validate_data(self, value: object) -> object:
        try:
            json = to_json(value, inf_nan_mode="constants")
        except ValueError:  # A lone surrogate.
            return NOT_READY
        return self.validate(json)

    def validate_container(self, value: object) -> object:
        """Validate a complete container that was read without an expectation."""
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

    def takes(self, form: str) -> bool:
        return _may_be(self.adapter.json_schema(), form)


def _may_be(schema: JsonObject, form: str) -> bool:
    if "anyOf" in schema:
        return any(_may_be(option, form) for option in schema["anyOf"])
    if "type" in schema:
        return bool(schema["type"] == form)
    return "enum" not in schema and "const" not in schema


class TextExpectation(LeafExpectation):
    """A string that is shown while it grows; the complete string must be valid."""

    grows = True

    def text(self, value: str) -> object:
        return value if self.kind is str and self.config is None else super().text(value)

    def takes(self, form: str) -> bool:
        return False


class ListExpectation(LeafExpectation):
    """The expectation of a list."""

    def __init__(self, kind: Any, config: ConfigDict | None, item: Expectation) -> None:
        super().__init__(kind, config)
        self.item = item

    def array_frame(self) -> Frame:
        return ListFrame(self.item)

    def takes(self, form: str) -> bool:
        return form == "array"


class DictExpectation(LeafExpectation):
    """The expectation of a dict."""

    def __init__(self, kind: Any, config: ConfigDict | None, item: Expectation, keys: Expectation | None) -> None:
        super().__init__(kind, config)
        self.item = item
        self.keys = keys

    def object_frame(self) -> Frame:
        return DictFrame(self.item, self.keys)

    def takes(self, form: str) -> bool:
        return form == "object"


class ModelExpectation(LeafExpectation):
    """The expectation of a model, with an expectation for each field."""

    partial: type[PartialModel]
    fields: dict[str, tuple[str, Expectation]]
    """The name and expectation of a field, by each key that the language model may write: the name and the aliases."""

    def object_frame(self) -> Frame:
        return ModelFrame(self.partial, self.fields, UNSEEN)

    def takes(self, form: str) -> bool:
        return form == "object"


class DataclassExpectation(ModelExpectation):
    """The expectation of a dataclass, which grows like a model and becomes an instance when it is complete."""

    def object_frame(self) -> Frame:
        return ValidatedFrame(super().object_frame(), self)


class TypedDictExpectation(ModelExpectation):
    """The expectation of a TypedDict, which is a growing dict."""

    required: tuple[str, ...]

    def object_frame(self) -> Frame:
        return ValidatedFrame(TypedDictFrame(self.fields, self.required, UNSEEN), self)


class RootModelExpectation(LeafExpectation):
    """The expectation of a `RootModel`, which grows like its content."""

    partial: type[PartialModel]
    inner: Expectation

    def object_frame(self) -> Frame:
        return ValidatedFrame(RootFrame(self.partial, self.inner.object_frame()), self)

    def array_frame(self) -> Frame:
        return ValidatedFrame(RootFrame(self.partial, self.inner.array_frame()), self)

    def new_text(self) -> GrowingText:
        return RootText(self.partial)

    def takes(self, form: str) -> bool:
        return self.inner.takes(form)


class UnionExpectation(LeafExpectation):
    """The expectation of a union. The next token selects the member; keys select among models."""

    def __init__(self, kind: Any, config: ConfigDict | None, members: list[Expectation]) -> None:
        super().__init__(kind, config)
        self.members: list[Expectation] = []
        for member in members:
            self.members += member.members if isinstance(member, UnionExpectation) else [member]
        self.grows = any(member.grows for member in self.members)
        self.is_text = (
            config is None
            and get_origin(kind) is not typing.Annotated
            and all(isinstance(member, LeafExpectation) and member.kind in (str, NoneType) for member in self.members)
        )

    @cached_property
    def objects(self) -> list[Expectation]:
        return [member for member in self.members if member.takes("object")]

    @cached_property
    def arrays(self) -> list[Expectation]:
        return [member for member in self.members if member.takes("array")]

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
            for member in self.members:  # Its models are partial, like those of members that were selected early.
                if (
                    isinstance(member, ModelExpectation | ListExpectation | DictExpectation | RootModelExpectation)
                    and member.validate_data(value) == complete
                ):
                    return read_value(member, value)
        return complete


class CompleteFrame:
    """An open container that is shown only when it is complete."""

    __slots__ = ("inner", "is_object", "leaf")
    decides = False

    def __init__(self, inner: Frame, leaf: LeafExpectation) -> None:
        self.inner = inner
        self.leaf = leaf
        self.is_object = inner.is_object

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: object) -> None:
        self.inner.put(value)

    def close(self) -> object:
        return self.leaf.validate_container(self.inner.close())

    def snapshot(self, child: object) -> object:
        return NOT_READY


class ValidatedFrame:
    """An open container that is shown while it grows, and is validated when it is complete."""

    __slots__ = ("decides", "fits", "inner", "is_object", "leaf")

    def __init__(self, inner: Frame, leaf: LeafExpectation) -> None:
        self.inner = inner
        self.leaf = leaf
        self.fits = True
        self.is_object = inner.is_object
        self.decides = inner.decides

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: object) -> None:
        self.fits = self.fits and value is not NOT_READY
        self.inner.put(value)

    def close(self) -> object:
        partial = self.inner.close()
        if not self.fits:
            return partial
        try:
            json = _WRITER.to_json(partial, by_alias=False, exclude_unset=True)
        except ValueError:  # A lone surrogate.
            return partial
        complete = self.leaf.validate(json)
        return partial if complete is NOT_READY else complete

    def snapshot(self, child: object) -> object:
        return self.inner.snapshot(child)


_WRITER = SchemaSerializer(core_schema.any_schema(), {"ser_json_inf_nan": "constants"})


class UnionFrame:
    """An open object that may be one of several models; it is shown as soon as only one model has its keys."""

    __slots__ = ("choice", "chosen", "key", "models", "raw")
    is_object = True
    decides = True

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
        """Return whether the values so far fit the literals of a model."""
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
    """Add to a frame a value that was read without an expectation."""
    frame.put(read_value(frame.enter(key), value))


def read_value(expected: Expectation, value: JsonValue) -> object:
    """Return complete JSON data as the expectation would have read it."""
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
