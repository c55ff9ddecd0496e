"""The partial class of a model or a dataclass, and the frames that fill it.

There is one Pydantic class for each model, with all fields optional and nested models partial as well. A snapshot is a
new instance that shares the values of the last one. If the field that is being written is long, its key is not in the
`__dict__` of the instance. It is filled in when it is read: through the attribute, or through `__dict__`, which
`model_dump`, `==`, `repr` and copying use.
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

from acorn._formats.json import is_root_class
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
    """A model that is being written: every field has a value or None."""

    model_config = ConfigDict(protected_namespaces=(), arbitrary_types_allowed=True)
    __slots__ = ("__acorn_open__",)
    __acorn_complete__: ClassVar[Any]
    """The complete model or dataclass."""

    def __reduce__(self) -> Any:  # No module has the class under its name.
        return _restore, (self.__acorn_complete__, self.__getstate__())

    def __getattr__(self, name: str) -> Any:
        _fill(self, name)
        values = _get_dict(self)
        if name in values:  # Filled in just now, or by another thread.
            return values[name]
        return super().__getattr__(name)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    if not TYPE_CHECKING:  # Type checkers see the usual `__dict__`.

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
    """Fill in the pending field, if it is the requested one."""
    try:
        pending = _get_open(instance)
    except AttributeError:  # Created by Pydantic, not by a frame.
        return
    if pending is None or (name is not None and pending[0] != name):
        return
    values = _get_dict(instance)
    values[pending[0]] = pending[1].value()
    # Use the order of the fields, as in a dump.
    _set_dict(instance, {field: values[field] for field in type(instance).__pydantic_fields__})
    _set_open(instance, None)


def _restore(kind: object, state: dict[Any, Any]) -> PartialModel:
    instance = _new(partial_class(kind))
    instance.__setstate__(state)
    return instance


class ModelFrame:
    """An open model."""

    __slots__ = ("cls", "done", "extra", "fields", "key", "name", "other", "seen", "values")
    is_object = True
    decides = False

    def __init__(self, cls: type[PartialModel], fields: Mapping[str, tuple[str, object]], other: Any) -> None:
        self.cls = cls
        self.fields = fields
        self.other = other
        """The expectation of unknown keys."""
        self.name: str | None = None
        self.key = ""
        self.seen: set[str] = set()
        """The fields that are shown. A new set after each change, because snapshots keep the old one."""
        self.done: tuple[str, ...] = ()
        """The fields whose values are complete."""
        self.values: dict[str, Any] = dict.fromkeys(cls.__pydantic_fields__)
        self.extra: JsonObject | None = {} if cls.model_config.get("extra") == "allow" else None

    def enter(self, key: str) -> Any:
        field = self.fields.get(key)
        if field is None:  # An unknown key: read its value, but do not show it.
            self.name, self.key = None, key
            return self.other
        self.name = field[0]
        if self.name in self.done:  # Written twice: the last value counts.
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
        return self._instance(self.values, None)

    def snapshot(self, child: object) -> object:
        values, name = self.values.copy(), self.name
        if name is None or child is NOT_READY:
            return self._instance(values, None)
        if name not in self.seen:
            self.seen = self.seen | {name}
        if isinstance(child, LazyValue):
            if name not in _METHODS:
                del values[name]
                return self._instance(values, (name, child))
            child = child.value()  # If it were omitted, a field named `copy` would read as the method.
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
    # The same as `model_construct`, but faster.
    instance = _new(cls)
    _set_dict(instance, values)
    _set_fields_set(instance, seen)
    _set_extra(instance, extra)
    _set_private(instance, None)
    _set_open(instance, pending)
    return instance


def wrap_root(cls: type[PartialModel], root: object) -> Any:
    """Return the partial instance of a `RootModel` with its current content."""
    if root is NOT_READY:
        return NOT_READY
    if isinstance(root, LazyValue):
        return _instance(cls, {}, {"root"}, None, ("root", root))
    return _instance(cls, {"root": root}, {"root"}, None, None)


class RootFrame:
    """An open object or list that is the content of a `RootModel`."""

    __slots__ = ("cls", "decides", "inner", "is_object")

    def __init__(self, cls: type[PartialModel], inner: Frame) -> None:
        self.cls = cls
        self.inner = inner
        self.is_object = inner.is_object
        self.decides = inner.decides

    def enter(self, key: str) -> Any:
        return self.inner.enter(key)

    def put(self, value: object) -> None:
        self.inner.put(value)

    def close(self) -> object:
        return wrap_root(self.cls, self.inner.close())

    def snapshot(self, child: object) -> object:
        return wrap_root(self.cls, self.inner.snapshot(child))


class RootText(GrowingText):
    """An open string that is the content of a `RootModel`."""

    __slots__ = ("cls",)

    def __init__(self, cls: type[PartialModel]) -> None:
        super().__init__()
        self.cls = cls

    def snapshot(self) -> object:
        return wrap_root(self.cls, super().snapshot())


_lock = threading.RLock()
# One partial class for each model during the whole process, because types are compared by identity.
_classes: dict[Any, type[PartialModel]] = {}


def has_partial(kind: object) -> bool:
    """Return whether a type is a model, a `RootModel` or a dataclass with readable type hints."""
    cls = get_origin(kind) or kind
    if is_root_class(cls):
        return True
    return has_fields(kind) and not typing_extensions.is_typeddict(cls) and has_readable_hints(kind)


def has_readable_hints(kind: object) -> bool:
    """Return whether the type hints of a class with fields can be resolved."""
    try:
        fields_of(kind)
    except NameError:
        return False
    return True


def partial_class(kind: object) -> type[PartialModel]:
    """Return the class with every field optional and nested models partial."""
    with _batch() as batch:
        if kind not in _classes:
            _declare(kind, batch)
    return _classes[kind]


def partial_type(kind: object) -> Any:
    """Return the type of a value while it is being written, with partial classes in place of models."""
    with _batch() as batch:
        if has_partial(kind):
            return partial_class(kind)
        return _partial_type(kind, batch)


@contextmanager
def _batch() -> Generator[dict[Any, str]]:
    """Collect new classes with the names by which they refer to each other, and resolve these at the end."""
    batch: dict[Any, str] = {}
    with _lock:
        yield batch
        names = {name: _classes[model] for model, name in batch.items()}
        for cls in names.values():
            cls.model_rebuild(force=True, _types_namespace=names)


# The settings of a model that also apply to its partial class.
_SHARED_CONFIG = ("extra", "serialize_by_alias", "use_enum_values")


def _declare(kind: object, batch: dict[Any, str]) -> None:
    """Create the class of a model and of the models in it; a class in progress is referred to by name."""
    cls: Any = get_origin(kind) or kind
    is_model = issubclass(cls, BaseModel)
    if is_model:
        cls.model_rebuild()  # It may refer to a class that was defined later.
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
        key: value for key, value in declared.items() if key in _SHARED_CONFIG or key.startswith("ser_json")
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
    _classes[kind].__acorn_complete__ = kind


def resolve_self(annotation: Any, model: Any) -> Any:
    """Return the type of a field, with the model in place of `Self` or of Pydantic's reference for `Model[T]`."""
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
    """Return the type of a field while it is being written."""
    if has_partial(annotation):
        if annotation not in _classes and annotation not in batch:
            _declare(annotation, batch)
        part = _classes.get(annotation) or typing.ForwardRef(batch[annotation])
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if is_model and not issubclass(annotation, RootModel):
            return part
        return Union[part, annotation]  # The latter once it is complete.  # noqa: UP007
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
