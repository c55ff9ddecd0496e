"""Partial classes of Pydantic classes and dataclasses, and their instances.

A partial class is a copy of a class in which all fields are optional, also in nested classes. acorn creates one partial
class for each Pydantic class or dataclass. A snapshot is a new instance of the partial class, and it shares its values
with the previous snapshot.
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
from typing import Any, ClassVar, Optional, Self, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from acorn._formats.json import is_root_class
from acorn._formats.schema.shape import fields_of, has_fields
from acorn.types import JsonObject

LISTS = (list, Sequence, MutableSequence)
DICTS = (dict, Mapping, MutableMapping)

_slots: JsonObject = dict(vars(BaseModel))
_set_dict = _slots["__dict__"].__set__
_set_fields_set = _slots["__pydantic_fields_set__"].__set__
_set_extra = _slots["__pydantic_extra__"].__set__
_set_private = _slots["__pydantic_private__"].__set__


class PartialModel(BaseModel):
    """The base class of all partial classes. A field is None until its value arrives."""

    model_config = ConfigDict(protected_namespaces=(), arbitrary_types_allowed=True)
    __acorn_complete__: ClassVar[Any]
    """The Pydantic class or dataclass that this partial class was created for."""

    def __reduce__(self) -> Any:  # `pickle` cannot import a partial class, because it is not a module attribute.
        return _restore, (self.__acorn_complete__, self.__getstate__())


_new = object.__new__


def _restore(kind: object, state: dict[Any, Any]) -> PartialModel:
    instance = _new(partial_class(kind))
    instance.__setstate__(state)
    return instance


def new_instance(
    cls: type[PartialModel], values: dict[str, Any], seen: set[str], extra: JsonObject | None
) -> PartialModel:
    """Create an instance without validation, like `model_construct` but faster."""
    instance = _new(cls)
    _set_dict(instance, values)
    _set_fields_set(instance, seen)
    _set_extra(instance, extra)
    _set_private(instance, None)
    return instance


_lock = threading.RLock()
# The process keeps one partial class for each class, because `is` and `isinstance` compare classes by identity.
_classes: dict[Any, type[PartialModel]] = {}


def has_partial(kind: object) -> bool:
    """Return True if acorn can create a partial class for a type.

    The type must be a `RootModel`, or a Pydantic class or dataclass whose type hints refer only to defined names.
    """
    cls = get_origin(kind) or kind
    if is_root_class(cls):
        return True
    return has_fields(kind) and not typing_extensions.is_typeddict(cls) and has_readable_hints(kind)


def has_readable_hints(kind: object) -> bool:
    """Return True if the type hints of a Pydantic class, dataclass or TypedDict refer only to defined names."""
    try:
        fields_of(kind)
    except NameError:
        return False
    return True


def partial_class(kind: object) -> type[PartialModel]:
    """Return the partial class of a Pydantic class or dataclass, in which every field is optional."""
    with _class_batch() as batch:
        if kind not in _classes:
            _create_partial_class(kind, batch)
    return _classes[kind]


def partial_type(kind: object) -> Any:
    """Return `kind` with a partial class in place of each Pydantic class and dataclass, for an incomplete value."""
    with _class_batch() as batch:
        return partial_class(kind) if has_partial(kind) else _partial_type(kind, batch)


@contextmanager
def _class_batch() -> Generator[dict[Any, str]]:
    """Yield an empty dict that collects the new partial classes, and connect these classes at the end.

    The dict maps each original class to the name of its partial class. The fields of a new partial class may refer to
    other new partial classes by these names. At the end of the `with` block, Pydantic replaces the names with the
    classes.
    """
    batch: dict[Any, str] = {}
    with _lock:
        yield batch
        names = {name: _classes[model] for model, name in batch.items()}
        for cls in names.values():
            cls.model_rebuild(force=True, _types_namespace=names)


# The settings in the `model_config` of a class that also apply to its partial class.
_SHARED_CONFIG = ("extra", "serialize_by_alias", "use_enum_values")


def _create_partial_class(kind: object, batch: dict[Any, str]) -> None:
    """Create the partial class of `kind`, and of all classes in its fields.

    If classes contain each other, a field refers to a partial class that does not exist yet by its name in `batch`.
    """
    cls: Any = get_origin(kind) or kind
    is_model = issubclass(cls, BaseModel)
    if is_model:
        cls.model_rebuild()  # A type hint may refer to a class that was defined later.
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
    create: Any = create_model
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Field name", category=UserWarning)
        _classes[kind] = create(
            batch[kind],
            __base__=(PartialModel, RootModel) if issubclass(cls, RootModel) else PartialModel,
            __module__=cls.__module__,
            __doc__=cls.__doc__,
            __cls_kwargs__=config,
            **fields,
        )
    _classes[kind].__acorn_complete__ = kind


def resolve_self(annotation: Any, model: Any) -> Any:
    """Replace `Self`, and Pydantic's internal reference to a generic class `Model[T]`, with the class itself.

    `annotation` is the type of a field, and `model` is the class that declares this field.
    """
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
    """Return the type hint for a field of a partial class, and create the partial classes in this type hint."""
    if has_partial(annotation):
        if annotation not in _classes and annotation not in batch:
            _create_partial_class(annotation, batch)
        partial = _classes.get(annotation) or typing.ForwardRef(batch[annotation])
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        if is_model and not issubclass(annotation, RootModel):
            return partial
        # A complete dataclass or `RootModel` is an instance of the declared class, not of the partial class.
        return Union[partial, annotation]  # noqa: UP007
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
