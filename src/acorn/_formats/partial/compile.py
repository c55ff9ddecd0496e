"""From a type to its plan: what its fields, items and choices want of the parser, compiled once."""

from __future__ import annotations

import types
import typing
from functools import lru_cache
from typing import Any, NewType, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from acorn._formats.partial.classes import (
    DICTS,
    LISTS,
    has_readable_hints,
    partial_class,
    resolve_self,
)
from acorn._formats.partial.expectations import (
    ANYTHING,
    DataclassExpectation,
    DictExpectation,
    Expectation,
    LeafExpectation,
    ListExpectation,
    ModelExpectation,
    RootModelExpectation,
    TextExpectation,
    TypedDictExpectation,
    UnionExpectation,
)
from acorn._formats.schema.shape import aliases_of, fields_of, has_fields, required_keys


@lru_cache(maxsize=512)
def expectation_of(kind: Any) -> Expectation:
    """The plan of a type."""
    return _Compiler().plan(kind)


class _Compiler:
    """Compiles one type and all it refers to; a model that refers to itself finds its own plan."""

    def __init__(self) -> None:
        self.models: dict[Any, ModelExpectation | RootModelExpectation] = {}
        self.config: ConfigDict | None = None

    def plan(self, kind: Any) -> Expectation:
        if kind in (Any, object, JsonValue):
            return ANYTHING
        if kind is str:
            return TextExpectation(str, self.config)
        if isinstance(kind, NewType):
            return self.plan(kind.__supertype__)
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        if origin is typing.Annotated:
            return self._annotated(kind, arguments[0])
        if origin in (Union, types.UnionType):
            return UnionExpectation(kind, self.config, [self.plan(member) for member in arguments])
        if origin in LISTS:
            return ListExpectation(kind, self.config, self.plan(arguments[0]) if arguments else ANYTHING)
        if origin in DICTS:
            name, value = arguments or (str, Any)
            return DictExpectation(
                kind, self.config, self.plan(value), None if name is str else LeafExpectation(name, self.config)
            )
        if isinstance(kind, type) and issubclass(kind, RootModel):
            return self._root(kind)
        if has_fields(kind) and has_readable_hints(kind):
            return self._object(kind, origin)
        return LeafExpectation(kind, self.config)

    def _annotated(self, kind: Any, inner: Any) -> Expectation:
        """Limits and validators are for complete values: the same plan, judged by the whole annotation."""
        match self.plan(inner):
            case TextExpectation():
                return TextExpectation(kind, self.config)
            case ListExpectation(item=item):
                return ListExpectation(kind, self.config, item)
            case DictExpectation(item=item, keys=keys):
                return DictExpectation(kind, self.config, item, keys)
            case UnionExpectation(members=members):
                return UnionExpectation(kind, self.config, members)
            case ModelExpectation() | RootModelExpectation() as plan:
                return plan
            case _:
                return LeafExpectation(kind, self.config)

    def _root(self, kind: type[RootModel[Any]]) -> Expectation:
        if kind in self.models:
            return self.models[kind]
        plan = self.models[kind] = RootModelExpectation(kind, None)
        plan.partial = partial_class(kind)
        outer, self.config = self.config, kind.model_config or None
        plan.inner = self.plan(_declared(kind.model_fields["root"], kind))
        plan.grows = plan.inner.grows
        self.config = outer
        return plan

    def _object(self, kind: Any, cls: Any) -> Expectation:
        if kind in self.models:
            return self.models[kind]
        plan: ModelExpectation
        outer = self.config
        if is_typeddict(cls):
            plan = typed = TypedDictExpectation(kind, outer)
            typed.required = required_keys(kind)
        else:
            plan = ModelExpectation(kind, None) if issubclass(cls, BaseModel) else DataclassExpectation(kind, outer)
            plan.partial = partial_class(kind)
        self.models[kind] = plan
        # Pydantic reads a class that says nothing of its own by what the model around it says.
        own = cls.model_config if issubclass(cls, BaseModel) else getattr(cls, "__pydantic_config__", outer)
        self.config = own or None
        fields = {name: field for name, field in fields_of(kind).items() if field.init is not False}
        plans = {name: self.plan(_declared(field, kind)) for name, field in fields.items()}
        self.config = outer
        plan.fields = {name: (name, inner) for name, inner in plans.items()}
        for name, field in fields.items():  # an alias may be the name of another field
            plan.fields.update(dict.fromkeys(aliases_of(field), (name, plans[name])))
        return plan


def _declared(field: FieldInfo, model: Any) -> Any:
    annotation = resolve_self(field.annotation, model)
    return typing.Annotated[(annotation, *field.metadata)] if field.metadata else annotation
