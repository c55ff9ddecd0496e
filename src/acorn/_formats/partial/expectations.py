"""What each type wants of the parser: which strings grow, what a complete value must be, what an object becomes.

`compile` makes the plan of a type, once.
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
from acorn.types import JsonObject


class Expectation:
    """A value of any kind, taken as it comes."""

    grows = True
    """Whether a string shows before it is complete."""

    def object_frame(self) -> Frame:
        return DictFrame(self)

    def array_frame(self) -> Frame:
        return ListFrame(self)

    def new_text(self) -> GrowingText:
        """A string that begins."""
        return GrowingText()

    def text(self, value: str) -> Any:
        """A complete string."""
        return value

    def scalar(self, value: Any, token: str) -> Any:
        """A complete number, boolean or null."""
        return value

    def takes(self, form: str) -> bool:
        """Whether it may be written as an `object` or an `array`."""
        return True


class UnseenExpectation(Expectation):
    """A value inside one that shows only when it is complete."""

    grows = False


ANYTHING = Expectation()
UNSEEN = UnseenExpectation()


class LeafExpectation(Expectation):
    """A type that shows only when it is complete and fits."""

    grows = False

    def __init__(self, kind: Any, config: ConfigDict | None) -> None:
        self.kind = kind
        self.config = config
        """That of the model around it."""

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(self.kind, config=self.config)
        except PydanticUserError:  # a model or a dataclass has its own
            return TypeAdapter(self.kind)

    def judge(self, json: bytes | str) -> Any:
        try:
            return self.adapter.validate_json(json, by_alias=True, by_name=True)
        except Exception:  # it does not fit, a user's validator has failed, or the type cannot stand alone
            return NOT_READY

    def judge_plain(self, value: Any) -> Any:
        try:
            json = to_json(value, inf_nan_mode="constants")
        except ValueError:  # half a surrogate pair
            return NOT_READY
        return self.judge(json)

    def judge_whole(self, value: Any) -> Any:
        """A complete container, read without a plan."""
        return self.judge_plain(value)

    def object_frame(self) -> Frame:
        return CompleteFrame(DictFrame(UNSEEN), self)

    def array_frame(self) -> Frame:
        return CompleteFrame(ListFrame(UNSEEN), self)

    def text(self, value: str) -> Any:
        return self.judge_plain(value)

    def scalar(self, value: Any, token: str) -> Any:
        kind = self.kind
        if self.config is None:
            if kind is type(value):
                return value
            if kind is float and type(value) is int:
                return float(token)
        return self.judge(token)

    def takes(self, form: str) -> bool:
        return _may_be(self.adapter.json_schema(), form)


def _may_be(schema: JsonObject, form: str) -> bool:
    if "anyOf" in schema:
        return any(_may_be(option, form) for option in schema["anyOf"])
    if "type" in schema:
        return bool(schema["type"] == form)
    return "enum" not in schema and "const" not in schema


class TextExpectation(LeafExpectation):
    """A string that shows while it grows; at the end it must fit its limits."""

    grows = True

    def text(self, value: str) -> Any:
        return value if self.kind is str and self.config is None else super().text(value)

    def takes(self, form: str) -> bool:
        return False


class ListExpectation(LeafExpectation):
    """A list."""

    def __init__(self, kind: Any, config: ConfigDict | None, item: Expectation) -> None:
        super().__init__(kind, config)
        self.item = item

    def array_frame(self) -> Frame:
        return ListFrame(self.item)

    def takes(self, form: str) -> bool:
        return form == "array"


class DictExpectation(LeafExpectation):
    """A dict."""

    def __init__(self, kind: Any, config: ConfigDict | None, item: Expectation, keys: Expectation | None) -> None:
        super().__init__(kind, config)
        self.item = item
        self.keys = keys

    def object_frame(self) -> Frame:
        return DictFrame(self.item, self.keys)

    def takes(self, form: str) -> bool:
        return form == "object"


class ModelExpectation(LeafExpectation):
    """A model: an object whose fields have plans of their own."""

    partial: type[PartialModel]
    fields: dict[str, tuple[str, Expectation]]
    """By every key the model may write: the field's own name and its aliases."""

    def object_frame(self) -> Frame:
        return ModelFrame(self.partial, self.fields, UNSEEN)

    def takes(self, form: str) -> bool:
        return form == "object"


class DataclassExpectation(ModelExpectation):
    """A dataclass: it grows like a model, and is itself once it is complete."""

    def object_frame(self) -> Frame:
        return ValidatedFrame(super().object_frame(), self)


class TypedDictExpectation(ModelExpectation):
    """A TypedDict: a dict that grows."""

    required: tuple[str, ...]

    def object_frame(self) -> Frame:
        return ValidatedFrame(TypedDictFrame(self.fields, self.required, UNSEEN), self)


class RootModelExpectation(LeafExpectation):
    """A `RootModel`: it grows like what it holds."""

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
    """A union: what comes next decides, and among models their keys do."""

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

    def text(self, value: str) -> Any:
        return value if self.is_text else super().text(value)

    def judge_whole(self, value: Any) -> Any:
        whole = self.judge_plain(value)
        if whole is not NOT_READY:
            for member in self.members:  # its models are partial, like those that were decided early
                if (
                    isinstance(member, ModelExpectation | ListExpectation | DictExpectation | RootModelExpectation)
                    and member.judge_plain(value) == whole
                ):
                    return read_value(member, value)
        return whole


class CompleteFrame:
    """A container that shows only when it is complete."""

    __slots__ = ("inner", "is_object", "leaf")
    decides = False

    def __init__(self, inner: Frame, leaf: LeafExpectation) -> None:
        self.inner = inner
        self.leaf = leaf
        self.is_object = inner.is_object

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: Any) -> None:
        self.inner.put(value)

    def close(self) -> Any:
        return self.leaf.judge_whole(self.inner.close())

    def snapshot(self, child: Any) -> Any:
        return NOT_READY


class ValidatedFrame:
    """A container that shows while it grows and, once it is complete and fits, is what its type makes of it."""

    __slots__ = ("decides", "fits", "inner", "is_object", "leaf")

    def __init__(self, inner: Frame, leaf: LeafExpectation) -> None:
        self.inner = inner
        self.leaf = leaf
        self.fits = True
        self.is_object = inner.is_object
        self.decides = inner.decides

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: Any) -> None:
        self.fits = self.fits and value is not NOT_READY
        self.inner.put(value)

    def close(self) -> Any:
        found = self.inner.close()
        if not self.fits:
            return found
        try:
            json = _WRITER.to_json(found, by_alias=False, exclude_unset=True)
        except ValueError:  # half a surrogate pair
            return found
        whole = self.leaf.judge(json)
        return found if whole is NOT_READY else whole

    def snapshot(self, child: Any) -> Any:
        return self.inner.snapshot(child)


_WRITER = SchemaSerializer(core_schema.any_schema(), {"ser_json_inf_nan": "constants"})


class UnionFrame:
    """An object that may be one of several models; it shows as soon as its keys leave only one."""

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

    def put(self, value: Any) -> None:
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
        """Whether the values so far could be those of a model's literals."""
        for key, value in self.raw.items():
            plan = model.fields.get(key, ("", ANYTHING))[1]
            if (
                isinstance(plan, LeafExpectation)
                and get_origin(plan.kind) is Literal
                and plan.judge_plain(value) is NOT_READY
            ):
                return False
        return True

    def close(self) -> Any:
        return self.choice.judge_whole(self.raw) if self.chosen is None else self.chosen.close()

    def snapshot(self, child: Any) -> Any:
        return NOT_READY if self.chosen is None else self.chosen.snapshot(child)


def put_value(frame: Frame, key: str, value: Any) -> None:
    """Hand a frame a value that was read without a plan."""
    frame.put(read_value(frame.enter(key), value))


def read_value(plan: Expectation, value: Any) -> Any:
    """A complete plain value, as the plan would have read it."""
    if isinstance(value, dict):
        frame = plan.object_frame()
        for key, item in value.items():
            put_value(frame, key, item)
        return frame.close()
    if isinstance(value, list):
        frame = plan.array_frame()
        for item in value:
            put_value(frame, "", item)
        return frame.close()
    if isinstance(value, str):
        return plan.text(value)
    return plan.scalar(value, to_json(value).decode())
