"""The partial class of a model or a dataclass, and the frames that fill it.

One Pydantic class for each, all fields optional, nested ones partial as well. A snapshot is a new
instance that shares the values of the last one. Where the field that is being written is long, its key is
left out of the instance's dict and filled in when somebody looks: at the attribute, or at the whole, as
`model_dump`, `==`, `repr` and copying do through `__dict__`.
"""

from __future__ import annotations

import operator
import re
import threading
import types
import typing
import warnings
from collections.abc import Generator, Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Self, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from acorn._formats.partial.frames import NOT_READY, Frame, GrowingText, LazyValue
from acorn._formats.schema.shape import fields_of, has_fields
from acorn.types import JsonObject

LISTS = (list, Sequence, MutableSequence)
DICTS = (dict, Mapping, MutableMapping)

_slots: JsonObject = dict(vars(BaseModel))
_dict = _slots["__dict__"]
_fields_set, _extra, _private = (
    _slots[name] for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class PartialModel(BaseModel):
    """A model in the middle of being written: every field is there, or None."""

    model_config = ConfigDict(protected_namespaces=(), arbitrary_types_allowed=True)
    __slots__ = ("__acorn_open__",)
    __acorn_whole__: ClassVar[Any]
    """The model or dataclass it is a part of."""

    def __reduce__(self) -> Any:  # no module has the class under its name
        return _restored, (self.__acorn_whole__, self.__getstate__())

    def __getattr__(self, name: str) -> Any:
        _fill(self, name)
        values = _get_dict(self)
        if name in values:  # made just now, or by another thread
            return values[name]
        return super().__getattr__(name)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    if not TYPE_CHECKING:  # to a checker `__dict__` is what it always is

        @property
        def __dict__(self) -> JsonObject:
            _fill(self)
            return _dict.__get__(self)

        @__dict__.setter
        def __dict__(self, value: JsonObject) -> None:
            _dict.__set__(self, value)
            _open.__set__(self, None)


_open: Any = vars(PartialModel)["__acorn_open__"]
_METHODS = frozenset(dir(PartialModel))
_new = object.__new__
_get_dict, _get_open = _dict.__get__, _open.__get__
_set_dict, _set_open = _dict.__set__, _open.__set__
_set_fields_set, _set_extra, _set_private = _fields_set.__set__, _extra.__set__, _private.__set__


def _fill(instance: PartialModel, name: str | None = None) -> None:
    """Make the field that was left out, if it is the one that is asked for."""
    try:
        pending = _get_open(instance)
    except AttributeError:  # made by Pydantic itself, not by a frame
        return
    if pending is None or (name is not None and pending[0] != name):
        return
    values = _get_dict(instance)
    values[pending[0]] = pending[1].value()
    # In the order of the fields, as a dump shows them.
    _set_dict(instance, {field: values[field] for field in type(instance).__pydantic_fields__})
    _set_open(instance, None)


def _restored(kind: Any, state: dict[Any, Any]) -> PartialModel:
    instance = _new(partial_class(kind))
    instance.__setstate__(state)
    return instance


class ModelFrame:
    """A model that is open."""

    __slots__ = ("cls", "done", "extra", "fields", "key", "name", "other", "seen", "values")
    is_object = True
    decides = False

    def __init__(self, cls: type[PartialModel], fields: dict[str, tuple[str, Any]], other: Any) -> None:
        self.cls = cls
        self.fields = fields
        self.other = other
        """The plan of what no field has a name for."""
        self.name: str | None = None
        self.key = ""
        self.seen: set[str] = set()
        """The fields that have begun to show; a new set each time, for the snapshots keep theirs."""
        self.done: tuple[str, ...] = ()
        """The fields whose values are complete."""
        self.values: dict[str, Any] = dict.fromkeys(cls.__pydantic_fields__)
        self.extra: JsonObject | None = {} if cls.model_config.get("extra") == "allow" else None

    def enter(self, key: str) -> Any:
        found = self.fields.get(key)
        if found is None:  # a key that the model does not have: read it, show nothing
            self.name, self.key = None, key
            return self.other
        self.name = found[0]
        if self.name in self.done:  # written twice: the last one counts
            self.done = tuple(name for name in self.done if name != self.name)
        return found[1]

    def put(self, value: Any) -> None:
        if self.name is not None:
            self.values[self.name] = None if value is NOT_READY else value
            self.seen = self.seen | {self.name}
            self.done = (*self.done, self.name)
        elif self.extra is not None:
            self.extra = {**self.extra, self.key: value}
        self.name = None

    def close(self) -> Any:
        return self._instance(self.values, None)

    def snapshot(self, child: Any) -> Any:
        values, name = self.values.copy(), self.name
        if name is None or child is NOT_READY:
            return self._instance(values, None)
        if name not in self.seen:
            self.seen = self.seen | {name}
        if isinstance(child, LazyValue):
            if name not in _METHODS:
                del values[name]
                return self._instance(values, (name, child))
            child = child.value()  # left out, a field called `copy` would read as the method
        values[name] = child
        return self._instance(values, None)

    def _instance(self, values: dict[str, Any], pending: tuple[str, LazyValue] | None) -> PartialModel:
        return _instance(self.cls, values, self.seen, self.extra, pending)


def _instance(
    cls: type[PartialModel],
    values: dict[str, Any],
    seen: set[str],
    extra: JsonObject | None,
    pending: tuple[str, LazyValue] | None,
) -> PartialModel:
    # What `model_construct` does, without its cost.
    instance = _new(cls)
    _set_dict(instance, values)
    _set_fields_set(instance, seen)
    _set_extra(instance, extra)
    _set_private(instance, None)
    _set_open(instance, pending)
    return instance


def wrap_root(cls: type[PartialModel], root: Any) -> Any:
    """The partial instance of a `RootModel` around what it holds so far."""
    if root is NOT_READY:
        return NOT_READY
    if isinstance(root, LazyValue):
        return _instance(cls, {}, {"root"}, None, ("root", root))
    return _instance(cls, {"root": root}, {"root"}, None, None)


class RootFrame:
    """An open object or list that is all a `RootModel` holds."""

    __slots__ = ("cls", "decides", "inner", "is_object")

    def __init__(self, cls: type[PartialModel], inner: Frame) -> None:
        self.cls = cls
        self.inner = inner
        self.is_object = inner.is_object
        self.decides = inner.decides

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: Any) -> None:
        self.inner.put(value)

    def close(self) -> Any:
        return wrap_root(self.cls, self.inner.close())

    def snapshot(self, child: Any) -> Any:
        return wrap_root(self.cls, self.inner.snapshot(child))


class RootText(GrowingText):
    """An open string that is all a `RootModel` holds."""

    __slots__ = ("cls",)

    def __init__(self, cls: type[PartialModel]) -> None:
        super().__init__()
        self.cls = cls

    def snapshot(self) -> Any:
        return wrap_root(self.cls, super().snapshot())


_lock = threading.RLock()
# One partial class for each model for as long as the process lives: they are types, and compared as such.
_classes: dict[Any, type[PartialModel]] = {}


def has_partial(kind: Any) -> bool:
    """Whether it is a model, a `RootModel` or a dataclass, with type hints that can be read."""
    cls = get_origin(kind) or kind
    if isinstance(cls, type) and issubclass(cls, RootModel):
        return True
    return has_fields(kind) and not typing_extensions.is_typeddict(cls) and has_readable_hints(kind)


def has_readable_hints(kind: Any) -> bool:
    """Whether the type hints of a class with fields name what there is."""
    try:
        fields_of(kind)
    except NameError:
        return False
    return True


def partial_class(kind: Any) -> type[PartialModel]:
    """The class with every field optional, nested ones partial too."""
    with _batch() as batch:
        if kind not in _classes:
            _declare(kind, batch)
    return _classes[kind]


def partial_type(kind: Any) -> Any:
    """Any type while it is being written: a partial class for a model, lists and dicts of them, itself otherwise."""
    with _batch() as batch:
        if has_partial(kind):
            return partial_class(kind)
        return _partial_type(kind, batch)


@contextmanager
def _batch() -> Generator[dict[Any, str]]:
    """New classes and the names by which they refer to each other, resolved at the end."""
    batch: dict[Any, str] = {}
    with _lock:
        yield batch
        names = {name: _classes[model] for model, name in batch.items()}
        for cls in names.values():
            cls.model_rebuild(force=True, _types_namespace=names)


# What a model says about being written holds for its partial class as well.
_KEPT = ("extra", "serialize_by_alias", "use_enum_values")


def _declare(kind: Any, batch: dict[Any, str]) -> None:
    """Make the class of a model and those inside it; one that is still being made is referred to by name."""
    cls: Any = get_origin(kind) or kind
    is_model = issubclass(cls, BaseModel)
    if is_model:
        cls.model_rebuild()  # it may have named a class that came later
    name = re.sub(r"\W+", "_", f"Partial{cls.__name__}")
    batch[kind] = f"{name}{len(batch)}" if name in batch.values() else name
    fields: dict[str, Any] = {
        field: (
            Optional[_partial_type(resolve_self(info.annotation, kind), batch)],  # noqa: UP045 - built at run time
            Field(
                default=None,
                description=info.description,
                serialization_alias=info.serialization_alias,
                exclude=info.exclude,
                repr=info.repr,
            ),
        )
        for field, info in fields_of(kind).items()
        if info.init is not False
    }
    declared: Any = cls.model_config if is_model else getattr(cls, "__pydantic_config__", {})
    config: dict[str, Any] = {
        key: value for key, value in declared.items() if key in _KEPT or key.startswith("ser_json")
    }
    if config.get("extra") != "allow":
        config.pop("extra", None)
    make: Any = create_model
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Field name", category=UserWarning)
        _classes[kind] = make(
            batch[kind],
            __base__=(PartialModel, RootModel) if issubclass(cls, RootModel) else PartialModel,
            __module__=cls.__module__,
            __doc__=cls.__doc__,
            __cls_kwargs__=config,
            **fields,
        )
    _classes[kind].__acorn_whole__ = kind


def resolve_self(annotation: Any, model: Any) -> Any:
    """The type of a field, with the model itself where it is called `Self`, or by Pydantic's name for `Model[T]`."""
    origin = getattr(model, "__pydantic_generic_metadata__", {}).get("origin")
    if annotation is Self or f":{id(origin)}[" in str(getattr(annotation, "type_ref", "")):
        return model
    arguments = get_args(annotation)
    inner = tuple(resolve_self(argument, model) for argument in arguments)
    if all(map(operator.is_, inner, arguments)):
        return annotation
    outer = get_origin(annotation)
    if outer is typing.Annotated:
        return typing.Annotated[inner]
    return Union[inner] if outer is types.UnionType else outer[inner]  # noqa: UP007 - built at run time


def _partial_type(annotation: Any, batch: dict[Any, str]) -> Any:
    """The type of a field while it is being written."""
    if has_partial(annotation):
        if annotation not in _classes and annotation not in batch:
            _declare(annotation, batch)
        part = _classes.get(annotation) or typing.ForwardRef(batch[annotation])
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if is_model and not issubclass(annotation, RootModel):
            return part
        return Union[part, annotation]  # the latter once it is complete  # noqa: UP007
    if typing_extensions.is_typeddict(get_origin(annotation) or annotation):
        return Union[annotation, JsonObject]  # noqa: UP007
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        inner = _partial_type(arguments[0], batch)
        return annotation if inner is arguments[0] else inner
    inner = tuple(_partial_type(argument, batch) for argument in arguments)
    if origin in (Union, types.UnionType):
        return Union[inner]  # noqa: UP007 - built at run time
    if origin in LISTS and inner:
        return list[inner[0]]  # type: ignore[valid-type]
    if origin in DICTS and inner:
        return dict[inner]  # type: ignore[valid-type, misc]
    return annotation
