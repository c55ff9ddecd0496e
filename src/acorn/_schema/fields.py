"""The fields of a class that is written as an object: a model, a dataclass of either kind, a TypedDict.

Pydantic keeps them ready for its own classes only; here they are the same for all. The encoder reads their
descriptions, the partial classes their types.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from copy import copy
from typing import Any, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo


def has_fields(kind: Any) -> bool:
    """Whether it is a class with fields, perhaps with types in brackets."""
    cls = get_origin(kind) or kind
    if not isinstance(cls, type) or issubclass(cls, RootModel):
        return False
    return issubclass(cls, BaseModel) or dataclasses.is_dataclass(cls) or typing_extensions.is_typeddict(cls)


def fields_of(kind: Any) -> dict[str, FieldInfo]:
    """The fields by their names; a `NameError` where a type hint names something that is not there."""
    cls: Any = get_origin(kind) or kind
    if issubclass(cls, BaseModel):
        return dict(cls.model_fields)
    by_variable = dict(zip(getattr(cls, "__parameters__", ()), get_args(kind), strict=False))
    if known := getattr(cls, "__pydantic_fields__", None):
        return {name: _changed(field, by_variable) for name, field in known.items()}
    hints = typing_extensions.get_type_hints(cls, include_extras=True)
    if typing_extensions.is_typeddict(cls):
        return {name: FieldInfo.from_annotation(filled(hint, by_variable)) for name, hint in hints.items()}
    return {
        field.name: FieldInfo.from_annotated_attribute(
            filled(hints[field.name], by_variable), field.default if isinstance(field.default, FieldInfo) else field
        )
        for field in dataclasses.fields(cls)
    }


def required_keys(kind: Any) -> tuple[str, ...]:
    """The keys that a TypedDict must have."""
    cls: Any = get_origin(kind) or kind
    hints = typing_extensions.get_type_hints(cls, include_extras=True)
    # In quotes, `NotRequired` is not seen by the class itself.
    return tuple(name for name, hint in hints.items() if _is_required(hint, name in cls.__required_keys__))


def _is_required(hint: Any, default: bool) -> bool:
    origin = get_origin(hint)
    if origin in (typing.Annotated, typing_extensions.ReadOnly):
        return _is_required(get_args(hint)[0], default)
    return origin is typing_extensions.Required or (default and origin is not typing_extensions.NotRequired)


def _changed(field: FieldInfo, by_variable: Mapping[Any, Any]) -> FieldInfo:
    if not by_variable:
        return field
    made = copy(field)
    made.annotation = filled(field.annotation, by_variable)
    return made


def filled(kind: Any, by_variable: Mapping[Any, Any]) -> Any:
    """A type whose type variables, inside another type too, are filled in."""
    if isinstance(kind, typing.TypeVar):
        return by_variable.get(kind, kind)
    inner = getattr(kind, "__parameters__", ())
    return kind[tuple(by_variable.get(variable, variable) for variable in inner)] if inner and by_variable else kind
