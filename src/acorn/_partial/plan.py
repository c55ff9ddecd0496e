"""What each type wants of the parser: which strings grow, what a complete value must be, what an object becomes.

A plan is compiled once for each type. The partial classes are made here too: one Pydantic class for each
model, all fields optional, nested models partial as well.
"""

from __future__ import annotations

import threading
import types
import typing
import warnings
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, Optional, Union, get_args, get_origin

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError, create_model
from pydantic_core import to_json

from acorn._partial.frames import HIDDEN, DictFrame, Frame, ListFrame, settled
from acorn._partial.model import ModelFrame, PartialModel
from acorn._schema.shape import aliases_of

_LISTS = (list, Sequence, MutableSequence)
_DICTS = (dict, Mapping, MutableMapping)


class Plan:
    """A value of any kind, taken as it comes."""

    grows = True
    """Whether a string shows before it is complete."""

    def object_frame(self) -> Frame:
        return DictFrame(self)

    def array_frame(self) -> Frame:
        return ListFrame(self)

    def text(self, value: str) -> Any:
        """A complete string."""
        return value

    def scalar(self, value: Any, token: str) -> Any:
        """A complete number, boolean or null."""
        return value


ANYTHING = Plan()


class Leaf(Plan):
    """A type that shows only when it is complete and fits."""

    grows = False

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.kind)

    def judge(self, json: bytes | str) -> Any:
        try:
            return self.adapter.validate_json(json)
        except (ValidationError, ValueError):
            return HIDDEN

    def object_frame(self) -> Frame:
        return Whole(DictFrame(ANYTHING), self)

    def array_frame(self) -> Frame:
        return Whole(ListFrame(ANYTHING), self)

    def text(self, value: str) -> Any:
        return self.judge(to_json(value))

    def scalar(self, value: Any, token: str) -> Any:
        kind = self.kind
        if kind is type(value) or (kind is float and type(value) is int):
            return float(value) if kind is float else value
        return self.judge(token)


class Words(Leaf):
    """A string that shows while it grows; at the end it must fit its limits."""

    grows = True

    def text(self, value: str) -> Any:
        return value if self.kind is str else super().text(value)


class Items(Leaf):
    """A list."""

    def __init__(self, kind: Any, item: Plan) -> None:
        super().__init__(kind)
        self.item = item

    def array_frame(self) -> Frame:
        return ListFrame(self.item)


class Entries(Leaf):
    """A dict with text keys."""

    def __init__(self, kind: Any, item: Plan) -> None:
        super().__init__(kind)
        self.item = item

    def object_frame(self) -> Frame:
        return DictFrame(self.item)


class Fields(Leaf):
    """A model: an object whose fields have plans of their own."""

    partial: type[PartialModel]
    fields: dict[str, tuple[str, Plan]]
    """By every key the model may write: the field's own name and its aliases."""

    def object_frame(self) -> Frame:
        return ModelFrame(self.partial, self.fields, ANYTHING)


class Choice(Leaf):
    """A union: what comes next decides, and among models their keys do."""

    def __init__(self, kind: Any, members: list[Plan]) -> None:
        super().__init__(kind)
        self.members = members
        self.grows = any(member.grows for member in members)
        self.objects = [member for member in members if isinstance(member, Fields | Entries)]
        self.arrays = [member for member in members if isinstance(member, Items)]

    def object_frame(self) -> Frame:
        if len(self.objects) == 1:
            return self.objects[0].object_frame()
        models = [member for member in self.objects if isinstance(member, Fields)]
        return Undecided(models, self) if models and len(models) == len(self.objects) else super().object_frame()

    def array_frame(self) -> Frame:
        return self.arrays[0].array_frame() if len(self.arrays) == 1 else super().array_frame()

    def text(self, value: str) -> Any:
        return value if any(member.grows for member in self.members) else super().text(value)


class Whole:
    """A container that shows only when it is complete."""

    __slots__ = ("inner", "is_object", "leaf")

    def __init__(self, inner: Frame, leaf: Leaf) -> None:
        self.inner = inner
        self.leaf = leaf
        self.is_object = inner.is_object

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: Any) -> None:
        self.inner.put(value)

    def close(self) -> Any:
        return self.leaf.judge(to_json(self.inner.close(), inf_nan_mode="constants"))

    def snapshot(self, child: Any) -> Any:
        return HIDDEN


class Undecided:
    """An object that may be one of several models; it shows as soon as its keys leave only one."""

    __slots__ = ("choice", "chosen", "key", "models", "raw")
    is_object = True

    def __init__(self, models: list[Fields], choice: Leaf) -> None:
        self.models = models
        self.choice = choice
        self.raw: dict[str, Any] = {}
        self.key = ""
        self.chosen: Frame | None = None

    def enter(self, key: str) -> Any:
        self.key = key
        self._narrow([*self.raw, key])
        return ANYTHING if self.chosen is None else self.chosen.enter(key)

    def put(self, value: Any) -> None:
        if self.chosen is not None:
            self.chosen.put(value)
            return
        self.raw[self.key] = value
        self._narrow(list(self.raw))

    def _narrow(self, keys: list[str]) -> None:
        if self.chosen is not None:
            return
        fitting = [model for model in self.models if all(key in model.fields for key in keys) and self._agrees(model)]
        if len(fitting) != 1:
            return
        self.chosen = fitting[0].object_frame()
        for key, value in self.raw.items():
            put_whole(self.chosen, key, value)

    def _agrees(self, model: Fields) -> bool:
        """Whether the values so far could be those of a model's literals."""
        for key, value in self.raw.items():
            plan = model.fields[key][1]
            is_literal = isinstance(plan, Leaf) and get_origin(plan.kind) is Literal
            if is_literal and plan.judge(to_json(value)) is HIDDEN:  # type: ignore[attr-defined]
                return False
        return True

    def close(self) -> Any:
        if self.chosen is not None:
            return self.chosen.close()
        whole = self.choice.judge(to_json(self.raw, inf_nan_mode="constants"))
        for model in self.models:
            if isinstance(whole, model.kind):
                frame = model.object_frame()
                for key, value in self.raw.items():
                    put_whole(frame, key, value)
                return frame.close()
        return HIDDEN

    def snapshot(self, child: Any) -> Any:
        return HIDDEN if self.chosen is None else self.chosen.snapshot(child)


def put_whole(frame: Frame, key: str, value: Any) -> None:
    """Hand a frame a value that was read without a plan."""
    frame.put(by_plan(frame.enter(key), value))


def by_plan(plan: Plan, value: Any) -> Any:
    """A complete plain value, as the plan would have read it."""
    value = settled(value)
    if isinstance(value, dict):
        frame = plan.object_frame()
        for key, item in value.items():
            put_whole(frame, key, item)
        return frame.close()
    if isinstance(value, list):
        frame = plan.array_frame()
        for item in value:
            put_whole(frame, "", item)
        return frame.close()
    if isinstance(value, str):
        return plan.text(value)
    return plan.scalar(value, to_json(value).decode())


@lru_cache(maxsize=512)
def plan_of(kind: Any) -> Plan:
    """The plan of a type."""
    return _Compiler().plan(kind)


class _Compiler:
    """Compiles one type and all it refers to; a model that refers to itself finds its own plan."""

    def __init__(self) -> None:
        self.models: dict[type, Fields] = {}

    def plan(self, kind: Any) -> Plan:
        if kind is Any or kind is object:
            return ANYTHING
        if kind is str:
            return Words(str)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is typing.Annotated:
            return self._annotated(kind, arguments[0])
        if origin in (Union, types.UnionType):
            return Choice(kind, [self.plan(member) for member in arguments])
        if origin in _LISTS and len(arguments) == 1:
            return Items(kind, self.plan(arguments[0]))
        if origin in _DICTS and len(arguments) == 2 and arguments[0] is str:
            return Entries(kind, self.plan(arguments[1]))
        if kind is list:
            return Items(kind, ANYTHING)
        if kind is dict:
            return Entries(kind, ANYTHING)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel):
            return self._model(kind)
        return Leaf(kind)

    def _annotated(self, kind: Any, inner: Any) -> Plan:
        plan = self.plan(inner)
        if isinstance(plan, Words):
            return Words(kind)  # limits are checked when it is complete
        return plan if isinstance(plan, Items | Entries | Fields | Choice) else Leaf(kind)

    def _model(self, kind: type[BaseModel]) -> Fields:
        if kind in self.models:
            return self.models[kind]
        plan = self.models[kind] = Fields(kind)
        plan.partial = partial_class(kind)
        plan.fields = {}
        for name, field in kind.model_fields.items():
            annotation: Any = field.annotation
            declared = typing.Annotated[(annotation, *field.metadata)] if field.metadata else annotation
            inner = self.plan(declared)
            for key in (name, *aliases_of(field)):
                plan.fields[key] = (name, inner)
        return plan


_lock = threading.RLock()
# One partial class for each model for as long as the process lives: they are types, and compared as such.
_classes: dict[type[BaseModel], type[PartialModel]] = {}


def partial_class(kind: type[BaseModel]) -> type[PartialModel]:
    """The model with every field optional, nested models partial too."""
    with _lock:
        if kind not in _classes:
            batch: dict[type[BaseModel], str] = {}
            _declare(kind, batch)
            _complete(batch)
        return _classes[kind]


def partial_type(kind: Any) -> Any:
    """Any type while it is being written: a partial class for a model, lists and dicts of them, itself otherwise."""
    with _lock:
        batch: dict[type[BaseModel], str] = {}
        found = _partial_type(kind, batch)
        _complete(batch)
        return found


def _complete(batch: dict[type[BaseModel], str]) -> None:
    """Resolve the names by which the new classes refer to each other."""
    names = {name: _classes[model] for model, name in batch.items()}
    for cls in names.values():
        cls.model_rebuild(force=True, _types_namespace=names)


def _declare(kind: type[BaseModel], batch: dict[type[BaseModel], str]) -> None:
    """Make the class of a model and those inside it; one that is still being made is referred to by name."""
    taken = set(batch.values())
    name = f"Partial{kind.__name__}".replace("[", "_").replace("]", "_").replace(", ", "_")
    batch[kind] = name if name not in taken else f"{name}{len(batch)}"
    fields: dict[str, Any] = {
        field: (Optional[_partial_type(info.annotation, batch)], None)  # noqa: UP045 - built at run time
        for field, info in kind.model_fields.items()
    }
    make: Any = create_model
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Field name", category=UserWarning)
        _classes[kind] = make(
            batch[kind], __base__=PartialModel, __module__=kind.__module__, __doc__=kind.__doc__, **fields
        )


def _partial_type(annotation: Any, batch: dict[type[BaseModel], str]) -> Any:
    """The type of a field while it is being written."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not issubclass(annotation, RootModel):
        if annotation not in _classes and annotation not in batch:
            _declare(annotation, batch)
        return _classes.get(annotation) or typing.ForwardRef(batch[annotation])
    origin, arguments = get_origin(annotation), get_args(annotation)
    inner = tuple(_partial_type(argument, batch) for argument in arguments)
    if origin in (Union, types.UnionType):
        return Union[inner]  # noqa: UP007 - built at run time
    if origin in _LISTS and inner:
        return list[inner[0]]  # type: ignore[valid-type]
    if origin in _DICTS and inner:
        return dict[inner]  # type: ignore[valid-type, misc]
    return annotation
