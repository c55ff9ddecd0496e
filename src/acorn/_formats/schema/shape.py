"""The fields of a class that is written as an object: a model, a dataclass of either kind, a TypedDict.

Pydantic keeps them ready for its own classes only; here they are the same for all. The encoder reads their
descriptions, the partial classes their types.

Where in a schema a picture, a sound or a file is asked for, which no model can write.

A declared input or output: one Pydantic class, however the user wrote it.

A `BaseModel` class stands for itself; a list of fields becomes a class; any other type travels in one
field named `result`; `[]` and `None` mean that there is nothing. `_spec` makes shapes, the loop checks
values against them.
"""

from __future__ import annotations

import dataclasses
import re
import typing
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ForwardRef, NamedTuple, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError, to_json

from acorn._formats.json import excerpt, shorten
from acorn._formats.schema.generate import JsonSchema, schema_of
from acorn._formats.schema.problems import Problem, find_problems, input_problem
from acorn.errors import DeclarationError, InputError


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
        return {
            name: FieldInfo.from_annotation(substitute_type_variables(hint, by_variable))
            for name, hint in hints.items()
        }
    return {
        field.name: FieldInfo.from_annotated_attribute(
            substitute_type_variables(hints[field.name], by_variable),
            field.default if isinstance(field.default, FieldInfo) else field,
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
    made.annotation = substitute_type_variables(field.annotation, by_variable)
    return made


def substitute_type_variables(kind: Any, by_variable: Mapping[Any, Any]) -> Any:
    """A type whose type variables, inside another type too, are filled in."""
    if isinstance(kind, typing.TypeVar):
        return by_variable.get(kind, kind)
    inner = getattr(kind, "__parameters__", ())
    return kind[tuple(by_variable.get(variable, variable) for variable in inner)] if inner and by_variable else kind


MEDIA_FORMAT = "acorn-"
"""How the `format` of such a value begins: `acorn-image`."""


def find_media(schema: JsonSchema) -> tuple[str, str] | None:
    """The first field that is one, `pages.photo`, and what it is, `image`; None where there is none."""
    return _found(schema, schema, (), frozenset())


def require_no_media(schema: JsonSchema, whose: str) -> JsonSchema:
    """The schema of what a model is to write; `whose` names it in an error."""
    if (found := find_media(schema)) is None:
        return schema
    path, kind = found
    what = {"image": "an image", "file": "a file"}.get(kind, kind)
    field = f", and `{path}` is {what}" if path else f", and it is {what}"
    raise DeclarationError(
        f"{whose} is written by the model, which cannot make an image, audio or a file{field}. Take a text that says "
        f"which is meant, a name or a URL, and give the model images by the input and by what tools return."
    )


def _found(node: Any, top: JsonSchema, path: tuple[str, ...], seen: frozenset[str]) -> tuple[str, str] | None:
    if isinstance(node, list):
        return next(filter(None, (_found(each, top, path, seen) for each in node)), None)
    if not isinstance(node, dict):
        return None
    if isinstance(kind := node.get("format"), str) and kind.startswith(MEDIA_FORMAT):
        return ".".join(path), kind.removeprefix(MEDIA_FORMAT)
    if isinstance(ref := node.get("$ref"), str) and ref not in seen:
        name = ref.rpartition("/")[2]
        return _found((top.get("$defs") or {}).get(name), top, path, seen | {ref})
    for name, inner in (node.get("properties") or {}).items():
        if (found := _found(inner, top, (*path, name), seen)) is not None:
            return found
    inside = [node.get(key) for key in ("anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalProperties")]
    return _found(inside, top, path, seen)


RESULT = "result"
"""The field that carries a value which is no model."""

_FORMS = (
    "a BaseModel class, a list of fields (`'name'`, `('name', type)` or `('name', type, default)`), "
    "a type that Pydantic can validate, or [] for none"
)


@dataclass(frozen=True, eq=False)
class Shape:
    """What a module takes or gives."""

    schema: type[BaseModel]
    wrapped: bool = False
    """The declared type is no model and travels in `result`."""

    @cached_property
    def json_schema(self) -> JsonSchema:
        """As a provider sees it: aliases where the user gave them."""
        return schema_of(self.schema)

    @cached_property
    def xml_schema(self) -> JsonSchema:
        """As XML is written and read: every field under its own name."""
        return schema_of(self.schema, by_alias=False)

    @property
    def is_empty(self) -> bool:
        return not self.schema.model_fields and not self.allows_extra

    @property
    def allows_extra(self) -> bool:
        return self.schema.model_config.get("extra") == "allow"

    def unwrap(self, instance: BaseModel) -> Any:
        """The value as the user declared it."""
        if self.wrapped:
            return instance.__dict__[RESULT]
        return None if self.is_empty else instance

    def revive(self, plain: Any) -> Any:
        """The value from plain data; the data itself where it is something else."""
        whole = {RESULT: plain} if self.wrapped else plain
        try:
            text = to_json(whole, inf_nan_mode="constants")
            return self.unwrap(self.schema.model_validate_json(text, by_alias=True, by_name=True))
        except (ValidationError, ValueError):
            return plain

    def from_call(
        self, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Collection[str] = ()
    ) -> BaseModel:
        """The instance that a call's arguments stand for; `InputError` names every wrong one.

        `options` are no arguments, but may be taken for some: `using` takes them.
        """
        if args:
            return self._from_positional(owner, args, kwargs)
        unknown = {
            name: _option(name) if name in options else f"`{name}` is not an input"
            for name in kwargs
            if name not in self._accepted and not self.allows_extra
        }
        try:
            instance = self.schema.model_validate(kwargs, by_alias=True, by_name=True)
        except ValidationError as error:
            found = find_problems(error, self._call_schema, kwargs)
            wrong = [problem for problem in found if problem["path"] not in unknown]
            raise self._complaint(owner, wrong, unknown, kwargs) from error
        except PydanticUserError as error:
            raise DeclarationError(
                f"The input of `{owner}` names a class that does not exist yet: {shorten(error.message)}"
            ) from error
        if unknown:
            raise self._complaint(owner, [], unknown, kwargs)
        return instance

    def _from_positional(self, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseModel:
        if len(args) == 1 and not kwargs:
            if self.wrapped:
                return self.from_call(owner, (), {RESULT: args[0]})
            if isinstance(args[0], self.schema) and not self.is_empty:
                return args[0]
        takes = (
            f"one value or `{RESULT}=...`"
            if self.wrapped
            else "no arguments"
            if self.is_empty
            else f"keyword arguments, such as `{next(iter(self.schema.model_fields), 'name')}=...`, or one "
            f"`{self.schema.__name__}` instance"
        )
        kinds = ", ".join(f"`{type(arg).__name__}`" for arg in args)
        also = f" and keyword arguments {_names(kwargs)}" if kwargs else ""
        message = f"`{owner}` takes {takes}; it was given the positional {kinds}{also}."
        raise InputError(message, problems=[input_problem("", takes, excerpt(args), message)])

    @cached_property
    def _call_schema(self) -> JsonSchema:
        """Every field under each of its names, for the words about a wrong one."""
        named = self.xml_schema["properties"]
        aliases = {
            alias: named[name] for name, field in self.schema.model_fields.items() for alias in aliases_of(field)
        }
        return {**self.json_schema, "properties": {**aliases, **self.json_schema["properties"], **named}}

    @cached_property
    def _accepted(self) -> frozenset[str]:
        """The names a caller may use: every field's own, and its aliases."""
        names = set(self.schema.model_fields)
        for field in self.schema.model_fields.values():
            names.update(aliases_of(field))
        return frozenset(names)

    def _complaint(
        self, owner: str, wrong: list[Problem], unknown: Mapping[str, str], given: Mapping[str, Any]
    ) -> InputError:
        takes = _names(self.schema.model_fields) if self.schema.model_fields else "no arguments"
        found = [_public(problem) for problem in wrong]
        found += [
            input_problem(name, "no such input", excerpt(given[name], 200), words) for name, words in unknown.items()
        ]
        words = "; ".join(each["message"] for each in found)
        return InputError(f"Wrong input for `{owner}`: {words}. It takes {takes}.", problems=found)


def _public(problem: Problem) -> dict[str, str]:
    is_missing = problem["received"] == "missing" and bool(problem["path"])
    received = "missing" if is_missing else problem["excerpt"]
    return input_problem(problem["path"], problem["expected"], received, _part(problem))


def _option(name: str) -> str:
    return f"`{name}` is not an input, but an option: `agent.using({name}=...)(...)`"


class Shapes(NamedTuple):
    """What a module takes and gives, to read the records of its runs by."""

    module: str
    """The class, `package.file:Class`."""
    input: Shape
    output: Shape
    below: Callable[[str], Any]
    """The class, or instance, that is a branch or a tool of this name; None where there is none."""


SHAPES = "__acorn_shapes__"
"""Where a module class has them."""


def _part(problem: Problem) -> str:
    path = problem["path"] or "input"
    if problem["received"] == "missing" and problem["path"]:
        return f"`{path}` is missing (expected {problem['expected']})"
    if problem["ruled"]:
        return f"`{path}` is refused: {problem['expected']} (got {problem['excerpt']})"
    return f"`{path}` must be {problem['expected']}, got {problem['excerpt']}"


class EmptySchema(BaseModel):
    pass


_NOTHING = Shape(EmptySchema)


def shape_of(declared: Any, owner: str, attribute: str) -> Shape:
    """Compile what a user declared; `owner` and `attribute` name it in errors."""
    if declared is BaseModel:
        raise DeclarationError(f"`{owner}.{attribute}` must be {_FORMS}, got `BaseModel` itself, which has no fields.")
    if isinstance(declared, type) and issubclass(declared, BaseModel) and not issubclass(declared, RootModel):
        shape = Shape(declared)
    elif declared is None or declared is type(None) or declared == []:
        return _NOTHING
    elif isinstance(declared, list | tuple):
        shape = Shape(_make_from_list(declared, owner, attribute))
    else:
        fields = {RESULT: (_type(declared, owner, attribute), ...)}
        shape = Shape(_make(f"{owner}{_suffix(attribute)}", fields, owner, attribute), wrapped=True)
    _probe(shape, owner, attribute)
    return shape


def _probe(shape: Shape, owner: str, attribute: str) -> None:
    """Fail now where the type cannot be told to a model; wait where it names a class yet to come."""
    try:
        schema = shape.json_schema  # computed once and kept
        if attribute.startswith("final"):
            require_no_media(schema, f"`{owner}.{attribute}`")
        if not shape.schema.__pydantic_complete__:  # put off by its own configuration, or it waits for a class
            shape.schema.model_rebuild(raise_errors=False)
    except SchemaError as error:
        raise _uncompiled(error, owner, attribute) from error
    except (PydanticUndefinedAnnotation, NameError):
        return
    except PydanticUserError as error:
        if error.code == "class-not-fully-defined":
            return
        raise DeclarationError(
            f"`{owner}.{attribute}` cannot be described in JSON Schema: {shorten(error.message)} "
            f"Use types that JSON can represent."
        ) from error


def _make_from_list(declared: Sequence[Any], owner: str, attribute: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for index, entry in enumerate(declared):
        name, definition = _field(entry, owner, f"{attribute}[{index}]")
        if name in fields:
            raise DeclarationError(f"`{owner}.{attribute}` names the field `{name}` twice; keep one.")
        fields[name] = definition
    return _make(f"{owner}{_suffix(attribute)}", fields, owner, attribute)


def _field(entry: Any, owner: str, where: str) -> tuple[str, tuple[Any, Any]]:
    parts = (entry,) if isinstance(entry, str) else entry
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 3 or not isinstance(parts[0], str):
        raise DeclarationError(
            f"`{owner}.{where}` must be `'name'`, `('name', type)` or `('name', type, default)`, "
            f"got {excerpt(entry, 200)}."
        )
    name = parts[0]
    if not name.isidentifier() or name.startswith("_"):
        raise DeclarationError(
            f"`{owner}.{where}` is named {name!r}; a field needs a Python name that does not begin with `_`."
        )
    kind = _type(parts[1], owner, where) if len(parts) > 1 else str
    return name, (kind, parts[2] if len(parts) == 3 else ...)


def _type(declared: Any, owner: str, where: str) -> Any:
    # A list or tuple of values, a string, a number: certainly no types, and Pydantic's words would puzzle.
    if (
        isinstance(declared, str | ForwardRef | bytes | int | float | dict | set | BaseModel | FieldInfo)
        or declared is ...
    ):
        raise DeclarationError(f"`{owner}.{where}` must be {_FORMS}, got {excerpt(declared, 200)}.")
    return declared


def _make(name: str, fields: dict[str, Any], owner: str, attribute: str) -> type[BaseModel]:
    try:
        with warnings.catch_warnings():
            # A field may be called `copy` or `json`; Pydantic warns that it hides a method of BaseModel.
            warnings.filterwarnings("ignore", message="Field name", category=UserWarning)
            made: type[BaseModel] = create_model(
                name,
                __config__=ConfigDict(protected_namespaces=(), extra="ignore"),
                __module__=__name__,
                **fields,
            )
            if lost := set(fields) - set(made.model_fields):
                raise ValueError(f"{', '.join(sorted(lost))} cannot be a field")
            return made
    except SchemaError as error:
        raise _uncompiled(error, owner, attribute) from error
    except (PydanticUserError, TypeError, NameError, ValueError, AttributeError) as error:
        raise DeclarationError(
            f"`{owner}.{attribute}` must be {_FORMS}; Pydantic says: {shorten(str(error).splitlines()[0])}"
        ) from error


def _uncompiled(error: SchemaError, owner: str, attribute: str) -> DeclarationError:
    """Of what Pydantic's core says on many lines, the field and the reason."""
    text = str(error)
    field = ".".join(name for name in re.findall(r'Field "(.*)":', text) if name != RESULT)
    where = f"the field `{field}` of `{owner}.{attribute}`" if field else f"`{owner}.{attribute}`"
    reason = shorten(text.splitlines()[-1].strip().removeprefix("error: ").rstrip("."))
    if "regex parse error" not in text:
        return DeclarationError(f"Pydantic cannot check {where}: {reason}.")
    return DeclarationError(
        f"Pydantic cannot compile the pattern of {where}: {reason}. Write it without lookaround and backreferences, "
        f"check the value in a validator, or declare a `BaseModel` class with "
        f"`model_config = ConfigDict(regex_engine='python-re')`."
    )


def aliases_of(field: FieldInfo) -> list[str]:
    alias = field.validation_alias if field.validation_alias is not None else field.alias
    if isinstance(alias, str):
        return [alias]
    choices = getattr(alias, "choices", [alias] if alias is not None else [])
    return [choice if isinstance(choice, str) else str(choice.path[0]) for choice in choices]


def _suffix(attribute: str) -> str:
    return "Input" if attribute.startswith("initial") else "Output"


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
