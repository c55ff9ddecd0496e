"""Shapes: a shape is the declared input or output of a module, converted to one Pydantic class.

acorn uses a declared `BaseModel` class directly, and creates a class from a declared list or dict of fields. For any
other type, acorn creates a class with one field, named `input` or `result`. `[]` and `None` declare an empty input or
output. acorn creates the shapes when it creates the class of a module, and validates the inputs and outputs of runs
with them.

This file also returns the fields of classes that serialize as JSON objects (Pydantic classes, dataclasses and
TypedDicts). It rejects output schemas with images, audio or files, because a model cannot generate them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ForwardRef, NamedTuple, cast, get_args, get_origin

import typing_extensions
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError, to_json
from typing_extensions import TypeIs

from acorn._formats.json import excerpt, is_root_class, read_iterators, shorten
from acorn._formats.schema.generate import JsonSchema, schema_of
from acorn._formats.schema.problems import (
    MAX_PROBLEMS,
    Problem,
    describe_problem,
    find_problems,
    input_problem,
    join_problems,
    quote_names,
)
from acorn.errors import DeclarationError, InputError
from acorn.types import JsonObject, is_class, is_json_list, is_json_object, is_list_or_tuple, is_mapping


def has_fields(kind: object) -> bool:
    """Return True for a Pydantic class, a dataclass or a TypedDict, also with type arguments such as `Box[int]`."""
    cls = get_origin(kind) or kind
    if not is_class(cls) or is_root_class(cls):
        return False
    return issubclass(cls, BaseModel) or dataclasses.is_dataclass(cls) or typing_extensions.is_typeddict(cls)


def fields_of(kind: object) -> dict[str, FieldInfo]:
    """Return a dict that maps the field names of a Pydantic class, dataclass or TypedDict to Pydantic field objects.

    The function raises `NameError` if a type hint of the class refers to an undefined name.
    """
    cls: Any = get_origin(kind) or kind
    if issubclass(cls, BaseModel):
        return dict(cls.model_fields)
    by_variable = dict(zip(getattr(cls, "__parameters__", ()), get_args(kind), strict=False))
    if known := getattr(cls, "__pydantic_fields__", None):
        return {name: _substitute(field, by_variable) for name, field in known.items()}
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


def required_keys(kind: object) -> tuple[str, ...]:
    """Return the names of the required keys of a TypedDict."""
    cls: Any = get_origin(kind) or kind
    hints = typing_extensions.get_type_hints(cls, include_extras=True)
    # `__required_keys__` ignores a `NotRequired` in a quoted type hint, so check the resolved type hints as well.
    return tuple(name for name, hint in hints.items() if _is_required(hint, name in cls.__required_keys__))


def _is_required(hint: object, default: bool) -> bool:
    origin = get_origin(hint)
    if origin in (typing.Annotated, typing_extensions.ReadOnly):
        return _is_required(get_args(hint)[0], default)
    return origin is typing_extensions.Required or (default and origin is not typing_extensions.NotRequired)


def _substitute(field: FieldInfo, by_variable: Mapping[Any, Any]) -> FieldInfo:
    if not by_variable:
        return field
    changed = copy(field)
    changed.annotation = substitute_type_variables(field.annotation, by_variable)
    return changed


def substitute_type_variables(kind: Any, by_variable: Mapping[Any, Any]) -> Any:
    """Replace the type variables in a type. `by_variable` maps each type variable to its replacement."""
    if isinstance(kind, typing.TypeVar):
        return by_variable.get(kind, kind)
    inner = getattr(kind, "__parameters__", ())
    return kind[tuple(by_variable.get(variable, variable) for variable in inner)] if inner and by_variable else kind


MEDIA_FORMAT = "acorn-"
"""The prefix of the schema keyword `format` for images, audio and files, such as `acorn-image`."""


def require_no_media(schema: JsonSchema, subject: str) -> JsonSchema:
    """Return the schema unchanged, or raise `DeclarationError` if it contains an image, audio or a file.

    The check is for values that a model generates: outputs and tool arguments. `subject` is the first words of the
    error message, such as "The input of the tool `search`".
    """
    if (media := _find_media(schema, schema, (), frozenset())) is None:
        return schema
    path, kind = media
    noun = {"image": "an image", "file": "a file"}.get(kind, kind)
    problem = f"contains {noun} in `{path}`" if path else f"is {noun}"
    raise DeclarationError(
        f"{subject} {problem}, but the model generates this value, and a model cannot generate images, audio or files. "
        f"Use a text such as a file name or a URL instead. A model can receive images in the input and in tool results."
    )


def _find_media(node: object, top: JsonSchema, path: tuple[str, ...], seen: frozenset[str]) -> tuple[str, str] | None:
    """Return the path and the kind of the first image, audio or file in a schema, such as `pages.photo` and `image`."""
    if is_json_list(node):
        return next(filter(None, (_find_media(member, top, path, seen) for member in node)), None)
    if not is_json_object(node):
        return None
    if isinstance(kind := node.get("format"), str) and kind.startswith(MEDIA_FORMAT):
        return ".".join(path), kind.removeprefix(MEDIA_FORMAT)
    if isinstance(ref := node.get("$ref"), str) and ref not in seen:
        definitions: JsonObject = top.get("$defs") or {}
        return _find_media(definitions.get(ref.rpartition("/")[2]), top, path, seen | {ref})
    properties: JsonObject = node.get("properties") or {}
    for name, inner in properties.items():
        if (media := _find_media(inner, top, (*path, name), seen)) is not None:
            return media
    inner_nodes = [node.get(key) for key in ("anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalProperties")]
    return _find_media(inner_nodes, top, path, seen)


INPUT, RESULT = "input", "result"
"""The names of the only field in a class that acorn creates for a declared type such as `int`, as input or output."""

_FORMS = (
    "a BaseModel class, a list of fields (`'name'`, `('name', type)` or `('name', type, default)`), "
    "a dict of fields (`{'name': type}`), a type that Pydantic can validate, or [] for none"
)


@dataclass(frozen=True, eq=False)
class Shape:
    """The declared input or output of a module, converted to a Pydantic class that validates values."""

    schema: type[BaseModel]
    wrapped: str = ""
    """The name of the field of `schema` that contains the value, if the declared type is not a Pydantic class."""
    takes_fields: bool = False
    """Whether a caller passes the fields of the wrapped type, because it is a dataclass or a TypedDict."""
    where: str = ""
    """The declaring class and attribute for error messages, such as `Agent.final_output`."""

    @cached_property
    def json_schema(self) -> JsonSchema:
        """The JSON Schema in requests to providers. Its property names are the aliases of the fields."""
        try:
            return schema_of(self.schema)
        except PydanticUserError as error:
            if error.code != "class-not-fully-defined":
                raise
            raise self._undefined_class(error) from error

    def _undefined_class(self, error: PydanticUserError) -> DeclarationError:
        owner = self.where.split(".")[0]
        return DeclarationError(
            f"`{self.where}` refers to a class that is not defined: {shorten(error.message)} Define or import the "
            f"class before `{owner}`."
        )

    @cached_property
    def xml_schema(self) -> JsonSchema:
        """The JSON Schema for reading and writing XML. Its property names are the field names, not the aliases."""
        return schema_of(self.schema, by_alias=False)

    @property
    def output_schema(self) -> JsonSchema:
        """The JSON Schema of serialized outputs. Its property names are the field names, not the aliases."""
        return schema_of(self.schema, by_alias=False, mode="serialization")

    @cached_property
    def parameters(self) -> JsonSchema:
        """The JSON Schema of the arguments of a call by a model: `json_schema`, or the schema of a dataclass."""
        if not self.takes_fields:
            return self.json_schema
        definitions: JsonObject = self.json_schema.get("$defs", {})
        node: JsonSchema = self.json_schema["properties"][self.wrapped]
        parameters = {**node, **definitions[node["$ref"].rpartition("/")[2]]} if "$ref" in node else dict(node)
        parameters.pop("$ref", None)
        return {**parameters, "$defs": definitions} if "#/$defs/" in to_json(parameters).decode() else parameters

    @cached_property
    def is_empty(self) -> bool:
        return not self.schema.model_fields and not self.allows_extra

    @cached_property
    def allows_extra(self) -> bool:
        return self.schema.model_config.get("extra") == "allow"

    @cached_property
    def has_media(self) -> bool:
        """Whether a value may contain an image, audio or a file."""
        return _find_media(self.json_schema, self.json_schema, (), frozenset()) is not None

    def unwrap(self, instance: BaseModel) -> Any:
        """Convert an instance of `schema` to a value of the declared type.

        The result is the instance itself, the value of its only field, or None for an empty declaration.
        """
        if self.wrapped:
            return instance.__dict__[self.wrapped]
        return None if self.is_empty else instance

    def restore(self, data: Any) -> Any:
        """Convert saved JSON data to a value of the declared type, or return the data unchanged if validation fails."""
        values = {self.wrapped: data} if self.wrapped else data
        try:
            text = to_json(values, inf_nan_mode="constants")
            return self.unwrap(read_iterators(self.schema.model_validate_json(text, by_alias=True, by_name=True)))
        except (ValidationError, ValueError):
            return data

    def from_call(
        self, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Collection[str] = ()
    ) -> BaseModel:
        """Validate the arguments of a call and return an instance of `schema`.

        The function raises `InputError` with a list of all wrong arguments. `options` contains the names of the options
        of `using`, so that the error can correct a user who passes an option as an argument. `owner` is the agent name
        in error messages.
        """
        if args:
            return self._from_positional(owner, args, kwargs)
        if self.takes_fields:
            return self._validate(owner, {self.wrapped: kwargs}, options, f"{self.wrapped}.")
        return self._validate(owner, kwargs, options)

    def from_values(self, owner: str, values: JsonObject) -> BaseModel:
        """Validate the values of the fields of `schema`, as `from_call` does, and return an instance of `schema`."""
        return self._validate(owner, values)

    def unknown_values(self, values: JsonObject) -> JsonObject:
        """Return the values that the input does not declare, by their paths."""
        unknown = {} if self.allows_extra else {n: v for n, v in values.items() if n not in self.accepted_names}
        fields = values.get(self.wrapped)
        if self.takes_fields and is_json_object(fields) and not self.parameters.get("additionalProperties", False):
            unknown |= {f"{self.wrapped}.{n}": v for n, v in fields.items() if n not in self.call_names}
        return unknown

    def _validate(self, owner: str, values: JsonObject, options: Collection[str] = (), prefix: str = "") -> BaseModel:
        """Return an instance of `schema`. The paths in an error do not contain the prefix."""
        unknown = self.unknown_values(values)
        try:
            instance = read_iterators(self.schema.model_validate(values, by_alias=True, by_name=True))
        except ValidationError as error:
            wrong = find_problems(error, self.call_schema, values, unknown)
            raise self._input_error(owner, wrong, unknown, options, prefix) from error
        except PydanticUserError as error:
            raise self._undefined_class(error) from error
        if unknown:
            raise self._input_error(owner, [], unknown, options, prefix)
        return instance

    def _from_positional(self, owner: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BaseModel:
        if len(args) == 1 and not kwargs:
            if self.takes_fields and is_json_object(args[0]):
                return self.from_call(owner, (), args[0])
            if self.wrapped:
                return self.from_values(owner, {self.wrapped: args[0]})
            if isinstance(args[0], self.schema) and not self.is_empty:
                try:
                    return read_iterators(args[0])
                except ValidationError as error:
                    raise self._input_error(owner, find_problems(error, self.call_schema, {}), {}) from error
        takes = (
            f"one value or `{self.wrapped}=...`"
            if self.wrapped and not self.takes_fields
            else "no arguments"
            if self.is_empty
            else f"keyword arguments, such as `{next(iter(self.call_fields), 'name')}=...`, or one "
            f"`{self._class_name}` instance"
        )
        kinds = ", ".join(f"`{type(arg).__name__}`" for arg in args)
        also = f" and keyword arguments {quote_names(kwargs)}" if kwargs else ""
        message = f"`{owner}` takes {takes}, but got the positional {kinds}{also}."
        raise InputError(message, problems=[input_problem("", takes, excerpt(args), message)])

    @cached_property
    def call_schema(self) -> JsonSchema:
        """The JSON Schema for errors about arguments, with a property for each field name and for each alias."""
        by_name = self.xml_schema["properties"]
        aliases = {alias: by_name[name] for alias, name in self.names_by_alias.items()}
        return {**self.json_schema, "properties": {**aliases, **self.json_schema["properties"], **by_name}}

    @property
    def _class_name(self) -> str:
        kind: Any = self.schema.model_fields[self.wrapped].annotation if self.wrapped else self.schema
        return getattr(kind, "__name__", str(kind))

    @cached_property
    def call_fields(self) -> Mapping[str, FieldInfo]:
        """The fields that a caller passes as keyword arguments."""
        if not self.takes_fields:
            return self.schema.model_fields
        _ = self.json_schema  # Raises a `DeclarationError` if a type hint refers to an undefined class.
        return fields_of(self.schema.model_fields[self.wrapped].annotation)

    @cached_property
    def call_names(self) -> frozenset[str]:
        """The names and the aliases of all arguments of a call."""
        if not self.takes_fields:
            return self.accepted_names
        names = {name for key, field in self.call_fields.items() for name in (key, *aliases_of(field))}
        # The properties also contain the init-only variables of a dataclass.
        return frozenset(names.union(self.parameters.get("properties", ())))

    @cached_property
    def accepted_names(self) -> frozenset[str]:
        """The names and the aliases of all fields of `schema`."""
        return frozenset((*self.schema.model_fields, *self.names_by_alias))

    @cached_property
    def names_by_alias(self) -> dict[str, str]:
        """A dict that maps aliases to field names. If two fields share an alias, the first field applies."""
        names: dict[str, str] = {}
        for name, field in self.schema.model_fields.items():
            for alias in aliases_of(field):
                names.setdefault(alias, name)
        return names

    def _input_error(
        self,
        owner: str,
        wrong: list[Problem],
        unknown: Mapping[str, object],
        options: Collection[str] = (),
        prefix: str = "",
    ) -> InputError:
        takes = quote_names(self.call_fields) if self.call_fields else "no arguments"
        problems: list[dict[str, str]] = []
        for problem in wrong[:MAX_PROBLEMS]:
            path = "" if f"{problem['path']}." == prefix else problem["path"].removeprefix(prefix)
            problems.append(_public_problem({**problem, "path": path}))
        for path, value in islice(unknown.items(), MAX_PROBLEMS - len(problems)):
            name = path.removeprefix(prefix)
            message = _describe_unknown(name, options)
            problems.append(input_problem(shorten(name), "no such input", excerpt(value, 200), message))
        messages = join_problems([problem["message"] for problem in problems], len(wrong) + len(unknown))
        text = f"Wrong input for `{owner}`: {messages}. It takes {takes}."
        return InputError(text, problems=problems)


def _public_problem(problem: Problem) -> dict[str, str]:
    is_missing = problem["received"] == "missing" and bool(problem["path"])
    received = "missing" if is_missing else problem["excerpt"]
    path = shorten(problem["path"])
    message = describe_problem(problem, f"`{path or 'input'}`", problem["excerpt"])
    return input_problem(path, problem["expected"], received, message)


def _describe_unknown(name: str, options: Collection[str]) -> str:
    is_option = f", but an option: `agent.using({name}=...)(...)`" if name in options else ""
    return f"`{shorten(name)}` is not an input{is_option}"


class Shapes(NamedTuple):
    """The input shape and the output shape of a module, which acorn uses to load saved runs of the module."""

    module: str
    """The name of the module class in the form `package.file:Class`."""
    input: Shape
    output: Shape
    find_child: Callable[[str], Any]
    """A function that receives the name of a branch or agent tool and returns its class or instance, or None."""


SHAPES = "__acorn_shapes__"
"""The name of the module class attribute that contains a `Shapes` object."""


class EmptySchema(BaseModel):
    # No docstring: Pydantic would send it to the model as the description of the schema.
    pass


_EMPTY = Shape(EmptySchema)


def shape_of(
    declared: object, owner: str, attribute: str, find_names: Callable[[], Mapping[str, object]] = dict
) -> Shape:
    """Convert a declared input or output to a shape.

    `owner` (the class name) and `attribute` (such as `initial_input`) are for error messages. `find_names` returns the
    names that a type hint in quotes may use.
    """
    if declared is BaseModel:
        raise DeclarationError(f"`{owner}.{attribute}` must be {_FORMS}, got `BaseModel` itself, which has no fields.")
    if is_class(declared) and issubclass(declared, BaseModel) and not is_root_class(declared):
        shape = Shape(declared, where=f"{owner}.{attribute}")
    elif declared is None or declared is type(None) or declared in ([], {}):
        return _EMPTY
    elif is_list_or_tuple(declared):
        shape = Shape(_class_from_list(declared, owner, attribute), where=f"{owner}.{attribute}")
    elif is_mapping(declared):
        shape = Shape(_class_from_dict(declared, owner, attribute), where=f"{owner}.{attribute}")
    else:
        is_input = attribute.startswith("initial")
        name = INPUT if is_input else RESULT
        created = _create_class({name: (_check_type(declared, owner, attribute), ...)}, owner, attribute)
        takes_fields = is_input and has_fields(created.model_fields[name].annotation)
        shape = Shape(created, name, takes_fields, where=f"{owner}.{attribute}")
    _check_shape(shape, owner, attribute, find_names)
    return shape


def _check_shape(shape: Shape, owner: str, attribute: str, find_names: Callable[[], Mapping[str, object]]) -> None:
    """Raise `DeclarationError` if the shape cannot be described in JSON Schema, or if an output contains media.

    The check is skipped if a type hint refers to a class that is not defined yet.
    """
    try:
        # Pydantic defers a class because of its configuration, or because a type hint refers to an undefined class.
        if not shape.schema.__pydantic_complete__:
            shape.schema.model_rebuild(raise_errors=False, _types_namespace=find_names())
            if not shape.schema.__pydantic_complete__:
                return
        schema = shape.json_schema
        if attribute.startswith("final"):
            require_no_media(schema, f"`{owner}.{attribute}`")
    except SchemaError as error:
        raise _compile_error(error, owner, attribute) from error
    except (PydanticUndefinedAnnotation, NameError):
        return
    except PydanticUserError as error:
        raise DeclarationError(
            f"`{owner}.{attribute}` cannot be described in JSON Schema: {shorten(error.message)} "
            f"Use types that JSON can represent."
        ) from error


def _class_from_list(declared: Sequence[object], owner: str, attribute: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for index, entry in enumerate(declared):
        name, definition = _read_field(entry, owner, f"{attribute}[{index}]")
        if name in fields:
            raise DeclarationError(
                f"`{owner}.{attribute}` contains the field `{name}` twice. Remove or rename one of the two fields."
            )
        fields[name] = definition
    return _create_class(fields, owner, attribute)


def _class_from_dict(declared: Mapping[Any, object], owner: str, attribute: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for key, definition in declared.items():
        parts = definition if _is_tuple(definition) else (definition,)
        name, fields[name] = _read_field((key, *parts), owner, f"{attribute}[{key!r}]")
    return _create_class(fields, owner, attribute)


def _is_tuple(value: object) -> TypeIs[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _read_field(entry: object, owner: str, where: str) -> tuple[str, tuple[Any, Any]]:
    parts: object = (entry,) if isinstance(entry, str) else entry
    if not _is_tuple(parts) or not 1 <= len(parts) <= 3 or not isinstance(parts[0], str):
        raise DeclarationError(
            f"`{owner}.{where}` must be `'name'`, `('name', type)` or `('name', type, default)`, "
            f"got {excerpt(entry, 200)}."
        )
    name = parts[0]
    if not name.isidentifier() or name.startswith("_"):
        raise DeclarationError(
            f"`{owner}.{where}` has the field name {name!r}, but a field name must be a Python identifier that does "
            f"not begin with `_`. Rename the field."
        )
    kind = _check_type(parts[1], owner, where) if len(parts) > 1 else str
    default: Any = parts[2] if len(parts) == 3 else ...
    if isinstance(default, str) and kind is not str and not _accepts(kind, default):
        raise DeclarationError(
            f"`{owner}.{where}` has the default {excerpt(default, 200)}, which does not fit its type. "
            f"For a description, write `Field(description=...)`."
        )
    return name, (kind, default)


def _accepts(kind: Any, value: object) -> bool:
    """Return whether a type accepts a value. Return True if the type cannot be used yet."""
    try:
        TypeAdapter[Any](kind).validate_python(value)
    except ValidationError:
        return False
    except Exception:  # A custom type may raise any exception. The class of the fields reports it.
        return True
    return True


_NOT_TYPES: tuple[type[Any], ...] = (bytes, int, float, dict, set, FieldInfo, functools.partial)
"""Classes whose instances cannot be types. Pydantic's own error messages about such instances are confusing."""


def _check_type(declared: Any, owner: str, where: str) -> Any:
    if isinstance(declared, str | ForwardRef):
        name = declared if isinstance(declared, str) else declared.__forward_arg__
        hint = "" if "[" in where else f" For a text field of this name, write `[{excerpt(name, 200)}]`."
        raise DeclarationError(
            f"`{owner}.{where}` must be a type, got the text {excerpt(name, 200)}. Write the type without quotes, and "
            f"define or import it before `{owner}`.{hint}"
        )
    if isinstance(declared, _NOT_TYPES) or inspect.isroutine(declared) or declared is ...:
        forms = "a type that Pydantic can validate, such as `str`" if "[" in where else _FORMS
        raise DeclarationError(f"`{owner}.{where}` must be {forms}, got {excerpt(declared, 200)}.")
    if has_fields(declared.__class__):
        name = declared.__class__.__name__
        raise DeclarationError(f"`{owner}.{where}` is an instance of `{name}`. Use the class `{name}` itself.")
    return eager_type(declared)


def eager_type(kind: Any) -> Any:
    """Return a type with `list[int]` instead of `Iterable[int]`, also in the arguments of other types.

    Pydantic validates the items of an iterable only when they are read. In the classes of users, `read_iterators` reads
    them immediately.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if (origin or kind) in (Iterable, Iterator, Generator):
        return cast(Any, list)[eager_type(inner[0])] if inner else list
    if origin is typing.Annotated:
        return typing.Annotated[(eager_type(inner[0]), *inner[1:])]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(eager_type, inner))]  # noqa: UP007
    is_container = origin in (list, dict, tuple, set, frozenset) and inner
    return cast(Any, origin)[tuple(map(eager_type, inner))] if is_container else kind


def _create_class(fields: dict[str, Any], owner: str, attribute: str) -> type[BaseModel]:
    suffix = "Input" if attribute.startswith("initial") else "Output"
    try:
        with warnings.catch_warnings():
            # Pydantic warns about fields such as `copy` or `json`, which hide a method of BaseModel.
            warnings.filterwarnings("ignore", message="Field name", category=UserWarning)
            created: type[BaseModel] = create_model(
                f"{owner}{suffix}",
                __config__=ConfigDict(protected_namespaces=(), extra="ignore"),
                __module__=__name__,
                **fields,
            )
    except SchemaError as error:
        raise _compile_error(error, owner, attribute) from error
    except (PydanticUserError, TypeError, NameError, ValueError, AttributeError) as error:
        reason = shorten(str(error).splitlines()[0].partition(" Set `arbitrary_types_allowed")[0])
        raise DeclarationError(
            f"`{owner}.{attribute}` has a type that Pydantic cannot use: {reason} Use {_FORMS}."
        ) from error
    if missing := set(fields) - set(created.model_fields):
        raise DeclarationError(
            f"`{owner}.{attribute}` declares {quote_names(sorted(missing))}, which Pydantic does not accept as a "
            f"field. Use another name or another type."
        )
    return created


def _compile_error(error: SchemaError, owner: str, attribute: str) -> DeclarationError:
    """Return a `DeclarationError` with the field name and the reason, extracted from a long Pydantic error."""
    text = str(error)
    field = ".".join(name for name in re.findall(r'Field "(.*)":', text) if name not in (INPUT, RESULT))
    where = f"the field `{field}` of `{owner}.{attribute}`" if field else f"`{owner}.{attribute}`"
    reason = shorten(text.splitlines()[-1].strip().removeprefix("error: ").rstrip("."))
    if "regex parse error" not in text:
        return DeclarationError(f"Pydantic cannot compile the type of {where}: {reason}. Use another type.")
    return DeclarationError(
        f"Pydantic cannot compile the pattern of {where}: {reason}. Use a pattern without lookaround and "
        f"backreferences, check the value in a validator, or declare a `BaseModel` class with "
        f"`model_config = ConfigDict(regex_engine='python-re')`."
    )


def aliases_of(field: FieldInfo) -> list[str]:
    """Return the aliases that Pydantic accepts for a field when it validates data."""
    alias = field.validation_alias if field.validation_alias is not None else field.alias
    if isinstance(alias, str):
        return [alias]
    choices = getattr(alias, "choices", [alias] if alias is not None else [])
    return [choice if isinstance(choice, str) else str(choice.path[0]) for choice in choices]
