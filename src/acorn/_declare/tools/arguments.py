"""The arguments of tools: their schema, and the validation of the arguments that a model passes.

Most tools have type hints. acorn builds the schema and the validator of the arguments from the signature once. Pydantic
receives only keyword arguments, also for positional parameters, because a model passes every argument by name.

A tool with an explicit JSON Schema needs no type hints. acorn sends the schema to the model unchanged, and passes the
model's arguments to the function unchanged. The package `jsonschema` checks the arguments. It is imported when the
first such tool is declared. acorn never downloads a schema, so a reference to another document is an error in the
declaration.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
import types
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import from_json

from acorn._declare.tools.decorator import is_partial
from acorn._declare.tools.kinds import ArgumentError, Arguments
from acorn._formats.json import ATOMS, describe_error, excerpt, read_iterators, shorten
from acorn._formats.schema import problems
from acorn._formats.schema.generate import JsonSchema, schema_of
from acorn._formats.schema.shape import eager_type, require_no_media
from acorn.errors import DeclarationError
from acorn.record import Run
from acorn.types import JsonObject, is_json_object

_P = inspect.Parameter
_JSON_TYPES = (str, int, float, bool, types.NoneType)
_BY_NAME = (_P.POSITIONAL_OR_KEYWORD, _P.KEYWORD_ONLY)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_CONDITIONS = {"$ref", "allOf", "anyOf", "oneOf", "if", "dependentRequired", "dependentSchemas", "dependencies"}
"""The schema keywords, apart from `required`, that may make a property required."""
_FINITE = ATOMS - {float}
_INFINITE = [
    re.compile(pattern) for pattern in (r"nan(?![a-z])", r"inf(inity)?(?![a-z])", r"e\+?\d{3}", r"\d{200}", r"\\u")
]
"""Patterns, one of which is in every JSON text with NaN or an infinite number, also as text, in lower case. `\\u` may
escape a letter of them. Each pattern starts with a literal if possible, because the search is then much faster."""
_Reader = Callable[[str], JsonObject]
"""A function that returns the named arguments from JSON text, or raises `ArgumentError`."""


class UnresolvedHintError(DeclarationError):
    """The error for a type hint with a name that does not exist, or does not exist yet."""


@dataclass(frozen=True, eq=False)
class Binding:
    """The connection of a tool to its function: it describes and validates the arguments."""

    build: Callable[[], tuple[JsonSchema, _Reader]]
    """A function that builds the schema and the reader. It is called once, when they are needed."""
    injected: tuple[str, ...]
    """The parameters that are annotated `acorn.Run` and receive the run."""
    positional: tuple[str, ...] = ()
    """The parameters that can only be passed by position."""

    @cached_property
    def _built(self) -> tuple[JsonSchema, _Reader]:
        return self.build()

    @property
    def schema(self) -> JsonSchema:
        return self._built[0]

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """Return the validated positional and keyword arguments from JSON text."""
        named = self._built[1](arguments or "{}")
        if self.injected:
            named.update(dict.fromkeys(self.injected, run))
        if not self.positional:
            return (), named
        return tuple([named.pop(name) for name in self.positional if name in named]), named

    def named(self, args: tuple[Any, ...], kwargs: JsonObject) -> JsonObject:
        """Return all arguments of a call by name, but without the run."""
        named = dict(zip(self.positional, args, strict=False))
        return named | {name: value for name, value in kwargs.items() if name not in self.injected}


def _check_filled(named: JsonObject, filled: frozenset[str]) -> None:
    """Raise `ArgumentError` if the model passes a keyword that a partial or the run sets already."""
    if taken := filled & named.keys():
        raise ArgumentError(f"argument `{min(taken)}` is set by the program. Leave it out.")


def check_finite(arguments: str, named: JsonObject, defaults: JsonObject) -> None:
    """Raise `ArgumentError` if a model passes NaN or Infinity, for which a check such as `amount > 100` is wrong.

    `arguments` is the JSON text, and `named` its validated arguments: `"NaN"` may have become a number.
    """
    text = arguments.lower()
    if not any(pattern.search(text) for pattern in _INFINITE):
        return
    given = {name: value for name, value in named.items() if value is not defaults.get(name, _P.empty)}
    for value in (from_json(arguments), given):
        for path, part in _find_infinite(value, ()):
            raise ArgumentError(f"argument `{'.'.join(map(str, path))}` must be a finite number, got {part}")


def _find_infinite(value: Any, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], object]]:
    """Yield the path and the value of each number in a value that is NaN or infinite and not a default."""
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, float | Decimal):
        if not Decimal(value).is_finite():
            yield path, value
    elif isinstance(value, BaseModel):
        parts = [(name, getattr(value, name)) for name in value.model_fields_set]
    elif is_dataclass(value):
        parts = [(f.name, part) for f in fields(value) if (part := getattr(value, f.name, None)) is not f.default]
    elif isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        parts = [pair for key, part in items for pair in ((key, key), (key, part))]
    elif isinstance(value, list | tuple | Set | deque):
        parts = enumerate(cast(Iterable[object], value))
    for key, part in parts:
        yield from _find_infinite(part, (*path, key))


def _not_an_object(arguments: str) -> str:
    """Return the error message for the model if the arguments are valid JSON but not an object."""
    return f"The arguments must be a JSON object, got {shorten(arguments)}"


# Tools with type hints.


def signature_binding(
    descriptions: Callable[[], Mapping[str, str]],
    function: Callable[..., Any],
    label: str,
    drop_first: bool,
    local_names: Mapping[str, object],
) -> Binding:
    """Return the binding of a function with type hints.

    `descriptions` returns the descriptions of the parameters. `drop_first` omits the `self` of an unbound method.
    """
    inner, filled, parameters = _read_signature(function, label, drop_first)
    routine = getattr(inner, "func", inner)
    _check_parameters(parameters, label, inspect.isbuiltin(routine) or inspect.ismethoddescriptor(routine))
    hints = _read_hints(inner, parameters, label, local_names)
    positional = tuple(p.name for p in parameters if p.kind is _P.POSITIONAL_ONLY)
    injected = tuple(p.name for p in parameters if _is_run_hint(hints[p.name]))
    parameters = [p for p in parameters if p.name not in injected]
    build = functools.partial(_build, parameters, hints, label, descriptions, filled | frozenset(injected))
    binding = Binding(build, injected, positional)
    if not all(_is_simple_parameter(hints[p.name], p.default) for p in parameters):
        binding.schema  # noqa: B018 - Raise the error of a type without a JSON Schema when the class is defined.
    return binding


def _build(
    parameters: list[inspect.Parameter],
    hints: JsonObject,
    label: str,
    descriptions: Callable[[], Mapping[str, str]],
    filled: frozenset[str],
) -> tuple[JsonSchema, _Reader]:
    try:
        validator: TypeAdapter[Any] = TypeAdapter(_make_collector(parameters, hints))
        schema = schema_of(validator)
    except NameError as error:
        raise _unresolved_hint(label, error) from error
    except Exception as error:  # A user-defined type may raise any error.
        if isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined":
            raise _unresolved_hint(label, error) from error
        raise DeclarationError(
            f"The parameter {_invalid_parameter(parameters, hints)} of the tool `{label}` has a type without a JSON "
            f"Schema: {_reason(error)}. Use types that JSON can represent."
        ) from error
    require_no_media(schema, f"The input of the tool `{label}`")
    # The schema has a property for each parameter, in the same order. Its name is the alias, if there is one.
    keys = dict(zip((p.name for p in parameters), schema["properties"], strict=False))
    for name, description in descriptions().items():
        if (key := keys.get(name, name)) in schema["properties"]:
            schema["properties"][key].setdefault("description", description)
    # The approved arguments of a call have the names of the parameters.
    validate = functools.partial(validator.validator.validate_json, by_alias=True, by_name=True)
    defaults = {p.name: p.default.default if isinstance(p.default, FieldInfo) else p.default for p in parameters}
    return schema, functools.partial(_read_by_types, schema, validate, filled, defaults)


def _read_by_types(
    schema: JsonSchema,
    validate: Callable[[str], JsonObject],
    filled: frozenset[str],
    defaults: JsonObject,
    arguments: str,
) -> JsonObject:
    """Return the named arguments from JSON text, converted by the type hints."""
    if arguments[:1] != "{" and arguments.lstrip().startswith(
        "["
    ):  # Pydantic would accept a list as positional arguments.
        raise ArgumentError(_not_an_object(arguments))
    try:
        named = validate(arguments)
        kinds = set(map(type, named.values()))
        if not kinds <= ATOMS:
            named = read_iterators(named)
    except ValidationError as error:
        raise ArgumentError(_describe(error, schema, arguments)) from error
    if filled:  # A function with `**kwargs` accepts any keyword.
        _check_filled(named, filled)
    if not kinds <= _FINITE:
        check_finite(arguments, named, defaults)
    return named


def _describe(error: ValidationError, schema: JsonSchema, arguments: str) -> str:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        if first["type"] == "arguments_type":
            return _not_an_object(arguments)
        return f"The arguments are not valid JSON: {shorten(first['msg'].removeprefix('Invalid JSON: '))}"
    texts = [
        problems.describe_problem(problem, f"argument `{problem['path']}`", problem["received"])
        for problem in problems.find_problems(error, schema, from_json(arguments))
    ]
    return problems.join_problems(texts)


def _is_simple_parameter(hint: object, default: object) -> bool:
    """Return whether Pydantic certainly supports a parameter, so that its schema can be built later."""
    return _is_json_type(hint) and (default is _P.empty or type(default) in _JSON_TYPES)


def _is_json_type(hint: object) -> bool:
    """Return whether a type hint contains only JSON types, such as `dict[str, int]`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType, list):
        return all(map(_is_json_type, inner))
    if origin is dict:
        return inner[0] is str and _is_json_type(inner[1])
    if origin is typing.Literal:
        return all(type(value) is str for value in inner)
    return any(hint is kind for kind in _JSON_TYPES)


def _unwrap_decorators(function: Any) -> Any:
    """Return the function inside its decorators, with nested partials combined into one partial.

    Otherwise `inspect.signature` would follow `__wrapped__` of a partial, and would include arguments that an inner
    partial already sets.
    """
    if isinstance(function, functools.partial):
        return functools.partial(_unwrap_decorators(function.func), *function.args, **function.keywords)
    attributes: JsonObject = {} if inspect.ismethod(function) else getattr(function, "__dict__", {})
    if "__wrapped__" in attributes and "__signature__" not in attributes:
        return _unwrap_decorators(attributes["__wrapped__"])
    return function


def _read_signature(
    function: Callable[..., Any], label: str, drop_first: bool
) -> tuple[Any, frozenset[str], list[inspect.Parameter]]:
    """Return the function inside its decorators, the keywords that a partial sets, and the other parameters.

    The schema does not contain the arguments of a partial, because they may be secret. `drop_first` omits the `self`
    of an unbound method.
    """
    inner = _unwrap_decorators(function)
    filled = frozenset(inner.keywords if is_partial(inner) else ())
    try:
        parameters = list(inspect.signature(inner).parameters.values())
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"The tool `{label}` has no signature that Python can read. Wrap it in a function with type hints."
        ) from error
    if drop_first:
        _check_self(parameters[:1], label)
        drop_first = parameters[0].kind is not _P.VAR_POSITIONAL  # In `def f(*args)`, `args` receives the agent too.
    return inner, filled, [p for p in parameters[drop_first:] if p.name not in filled]


def _check_self(first: list[inspect.Parameter], label: str) -> None:
    """Raise `DeclarationError` if the first parameter of a method cannot be the one that receives the agent."""
    kind = first[0].kind if first else _P.KEYWORD_ONLY
    is_argument = kind in (_P.KEYWORD_ONLY, _P.VAR_KEYWORD)
    if kind in (_P.POSITIONAL_ONLY, _P.POSITIONAL_OR_KEYWORD):
        is_argument = first[0].annotation is not _P.empty and first[0].name not in ("self", "cls")
    if is_argument:
        raise DeclarationError(
            f"The method `{label}` has no parameter `self`, which receives the agent. Add it as the first parameter, "
            f"or put `@staticmethod` below `@tool`."
        )


def _check_parameters(parameters: list[inspect.Parameter], label: str, is_builtin: bool) -> None:
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is _P.VAR_POSITIONAL:
            raise DeclarationError(
                f"The tool `{label}` takes `*{name}`, which a model cannot pass by name. "
                f"Take a list instead, as in `{name}: list[str]`."
            )
        if parameter.annotation is _P.empty:
            fix = "Wrap the function in one with type hints" if is_builtin else f"Add one, as in `{name}: str`"
            if name == "self" and not is_builtin:
                fix = f"If `{label}` is a method, mark it with `@tool` in its class instead of listing it in `tools`"
            raise DeclarationError(f"The parameter `{name}` of the tool `{label}` has no type hint. {fix}.")


def _read_hints(
    function: Callable[..., Any], parameters: list[inspect.Parameter], label: str, local_names: Mapping[str, object]
) -> JsonObject:
    """Return a dict that maps parameter names to their types.

    The return type is not evaluated, because its name may not exist at run time.
    """
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    inner = inspect.unwrap(inner)
    local_names = {**local_names, **_enclosing_names(inner)}
    global_names: JsonObject = {**local_names, **getattr(inner, "__globals__", {})}
    annotated = typing.cast(Any, type("hints", (), {"__annotations__": {p.name: p.annotation for p in parameters}}))
    try:
        hints = typing.get_type_hints(annotated, globalns=global_names, localns=dict(local_names), include_extras=True)
    except (NameError, AttributeError) as error:
        raise _unresolved_hint(label, error) from error
    except Exception as error:  # A type hint in quotes may contain any expression.
        raise DeclarationError(
            f"Cannot read a type hint of the tool `{label}`: {error}. Correct the type hint."
        ) from error
    for parameter in parameters:
        if parameter.default is None:  # `limit: int = None` means an optional parameter.
            hints[parameter.name] = _make_optional(hints[parameter.name])
    return {name: eager_type(hint) for name, hint in hints.items()}


def _enclosing_names(function: Any) -> JsonObject:
    """Return the variables of the functions in which a function was defined, if these functions are still running."""
    names: JsonObject = {}
    path, file = getattr(function, "__qualname__", ""), getattr(function, "__code__", None)
    frame: types.FrameType | None = sys._getframe()  # pyright: ignore[reportPrivateUsage] - Documented by Python.
    while frame is not None and file is not None and "<locals>" in path:
        code = frame.f_code
        if code.co_filename == file.co_filename and path.startswith(f"{code.co_qualname}.<locals>."):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _is_run_hint(hint: object) -> bool:
    """Return whether a type hint is `Run` or `Run[...]`, or one of them in an optional type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _is_run_hint(inner[0])
    if origin in (typing.Union, types.UnionType):
        return all(member is types.NoneType or _is_run_hint(member) for member in inner)
    return (origin or hint) is Run


def _make_optional(hint: Any) -> Any:
    if hint is Any:
        return hint
    if typing.get_origin(hint) is not typing.Annotated:
        return typing.Optional[hint]  # noqa: UP045 - `|` does not support every form of a type hint
    inner, *extra = typing.get_args(hint)
    # The validators must not receive None, but the constraints of a `Field` also describe an optional parameter.
    fields = [metadata for metadata in extra if isinstance(metadata, FieldInfo)]
    others = [metadata for metadata in extra if not isinstance(metadata, FieldInfo)]
    inner = typing.Optional[typing.Annotated[(inner, *others)] if others else inner]  # noqa: UP045
    return typing.Annotated[(inner, *fields)] if fields else inner


def _unresolved_hint(label: str, error: Exception) -> UnresolvedHintError:
    return UnresolvedHintError(
        f"A type hint of the tool `{label}` cannot be resolved: {error}. "
        f"Import the name at run time, or define it before the first call."
    )


def _make_collector(parameters: list[inspect.Parameter], hints: JsonObject) -> Any:
    """Return a function that has the signature of the tool and returns its arguments."""

    def collect(**arguments: Any) -> JsonObject:
        return arguments

    signature = [
        parameter.replace(
            kind=parameter.kind if parameter.kind is _P.VAR_KEYWORD else _P.KEYWORD_ONLY,
            annotation=hints[parameter.name],
        )
        for parameter in parameters
    ]
    collect.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
    typing.cast(Any, collect).__signature__ = inspect.Signature(signature)
    return collect


def _invalid_parameter(parameters: list[inspect.Parameter], hints: JsonObject) -> str:
    """Return the name of the first parameter whose type has no JSON Schema."""
    for parameter in parameters:
        try:
            schema_of(TypeAdapter(_make_collector([parameter], hints)))
        except Exception:  # A user-defined type may raise any error.
            return f"`{parameter.name}`"
    return "list"


def _reason(error: Exception) -> str:
    """Return the first sentence of a Pydantic message, or the last line of another error.

    The other sentences of Pydantic are about its model classes.
    """
    if isinstance(error, PydanticUserError):
        return error.message.splitlines()[0].split(". ")[0].rstrip(".")
    lines = str(error).splitlines() or [type(error).__name__]
    return shorten(lines[-1].strip().rstrip("."))


# Tools with an explicit JSON Schema.


def schema_binding(
    schema: Any,
    function: Callable[..., Any],
    label: str,
    drop_first: bool,
    local_names: Mapping[str, object],
    *,
    fills_defaults: bool,
) -> Binding:
    """Return the binding of a function with an explicit schema, after a check that they fit together.

    `drop_first` omits the `self` of a method. `fills_defaults` passes every default of the function and of the schema
    explicitly, so that a person who approves a call sees it.
    """
    validator = _make_validator(schema, label)
    inner, filled, parameters = _read_signature(function, label, drop_first)
    named = [*schema.get("properties", {}), *problems.required_properties(schema)]
    others = [p for p in parameters if p.name not in named and p.annotation is not _P.empty]
    hints = _read_hints(inner, others, label, local_names)  # The schema replaces the type hints of the arguments.
    injected = tuple(p.name for p in others if p.kind in _BY_NAME and _is_run_hint(hints[p.name]))
    if taken := [name for name in named if name in filled]:
        raise DeclarationError(
            f"The schema of the tool `{label}` has the property `{taken[0]}`, which the partial already sets. "
            f"Remove it from one of them."
        )
    known = _check_call(schema, [p for p in parameters if p.name not in injected], label)
    defaults: JsonObject = {}
    if fills_defaults:
        for name, part in schema.get("properties", {}).items():
            if is_json_object(part) and "default" in part and validator.evolve(schema=part).is_valid(part["default"]):
                defaults[name] = part["default"]
        by_name = [p for p in parameters if p.kind in _BY_NAME and p.name not in injected]
        defaults |= {p.name: p.default for p in by_name if p.default is not _P.empty}
    read = functools.partial(_read_by_schema, schema, validator, known, filled | frozenset(injected), defaults)
    return Binding(lambda: (schema, read), injected)


def _read_by_schema(
    schema: JsonSchema,
    validator: Any,
    known: frozenset[str] | None,
    filled: frozenset[str],
    defaults: JsonObject,
    arguments: str,
) -> JsonObject:
    """Return the named arguments and `defaults` from JSON text without conversion, so that "5" does not become 5.

    `known` contains the keywords that the function accepts, or None if it accepts any keyword.
    """
    try:
        # NaN is not valid JSON, and a schema cannot describe it.
        received = from_json(arguments, allow_inf_nan=False)
    except (ValueError, TypeError) as error:  # A lone surrogate raises a TypeError.
        raise ArgumentError(f"The arguments are not valid JSON: {shorten(str(error))}") from error
    if not is_json_object(received):
        raise ArgumentError(_not_an_object(arguments))
    _check_filled(received, filled)
    check_finite(arguments, received, {})
    try:
        errors = dict.fromkeys(problems.describe_errors(validator.iter_errors(received), schema))
    except Exception as error:  # The user's schema may raise any error, and deeply nested arguments too.
        raise ArgumentError(
            f"Cannot check the arguments: {shorten(describe_error(error))}. Call again with others."
        ) from error
    if known is not None:  # A schema that allows other properties does not report them.
        unknown = [name for name in received if name not in known]
        errors |= dict.fromkeys(problems.describe_unknown_property([], name, schema) for name in unknown)
    if errors:
        raise ArgumentError(problems.join_problems([*errors]))
    return {**defaults, **received}


def _make_validator(schema: object, label: str) -> Any:
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    whose = f"`schema` of the tool `{label}`"
    if not is_json_object(schema):
        raise DeclarationError(f"{whose} must be a dict with a JSON Schema, got {excerpt(schema)}.")
    validator_class = _check_draft(schema, whose)
    if schema.get("type", "object") != "object" or not {"type", "properties"} & schema.keys():
        raise DeclarationError(
            f"{whose} must describe an object, as in {{'type': 'object', 'properties': {{...}}}}, "
            f"got {excerpt(schema.get('type', schema))}."
        )
    # Use an empty registry, because the default registry of `jsonschema` downloads unknown references.
    registry: Registry[Any] = Registry()
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    for reference in _unresolved_references(root, registry.resolver_with_root(root)):
        raise DeclarationError(
            f"{whose} refers to `{shorten(reference)}`, which is not in it. acorn fetches nothing: put the "
            f"definition under `$defs` and refer to it as `#/$defs/...`."
        )
    return validator_class(schema, registry=registry)


def _check_draft(schema: JsonSchema, whose: str) -> Any:
    """Return the validator class for the JSON Schema draft of a schema.

    Raise an error if the schema is invalid.
    """
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    dialect = schema.get("$schema")
    validator_class: Any = Draft202012Validator if dialect is None else None
    if isinstance(dialect, str):
        validator_class = cast(Any, validator_for)(schema, default=None)
    if validator_class is None:
        raise DeclarationError(
            f"{whose} has the `$schema` {excerpt(dialect)}, which is not a known draft of JSON Schema. "
            f"Remove it to use Draft 2020-12."
        )
    try:
        json.dumps(schema, allow_nan=False)
        validator_class.check_schema(schema)
    except SchemaError as error:
        where = f" at `{'.'.join(map(str, error.absolute_path))}`" if error.absolute_path else ""
        raise DeclarationError(
            f"{whose} is not a valid JSON Schema{where}: {shorten(error.message)}. Correct the schema."
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{whose} must be JSON data: {shorten(str(error))}.") from error
    return validator_class


def _unresolved_references(resource: Any, resolver: Any) -> Iterator[str]:
    """Yield the references to other documents, and the references to missing definitions in this document."""
    contents = resource.contents
    for keyword in _REFERENCES:
        if isinstance(contents, dict) and keyword in contents:
            try:
                resolver.lookup(contents[keyword])
            except Exception:  # The package `referencing` raises errors of several classes.
                yield contents[keyword]
    for inner in resource.subresources():
        yield from _unresolved_references(inner, resolver.in_subresource(inner))


def _check_call(schema: JsonSchema, parameters: Sequence[inspect.Parameter], label: str) -> frozenset[str] | None:
    """Return the keywords that the function accepts, or None if it accepts any keyword.

    Raise `DeclarationError` if the function does not accept all arguments that the schema allows.
    """
    for parameter in parameters:
        is_needed = parameter.kind is _P.POSITIONAL_ONLY and parameter.default is _P.empty
        if is_needed or parameter.kind is _P.VAR_POSITIONAL:
            stars = "" if is_needed else "*"
            raise DeclarationError(
                f"The tool `{label}` takes `{stars}{parameter.name}` by position, but the arguments of a schema are "
                f"passed by name. Take `**arguments`, or parameters with the names of the properties."
            )
    required = problems.required_properties(schema)
    by_name = {p.name: p for p in parameters if p.kind in _BY_NAME}
    takes_any = any(p.kind is _P.VAR_KEYWORD for p in parameters)
    for name in () if takes_any else (*schema.get("properties", {}), *required):
        if name not in by_name:
            raise DeclarationError(
                f"The tool `{label}` cannot be called with `{name}`, which is in its schema. "
                f"Take a parameter of that name, or `**arguments`."
            )
    has_conditions = bool(_CONDITIONS & schema.keys())
    for name, parameter in by_name.items():
        if not has_conditions and parameter.default is _P.empty and name not in required:
            raise DeclarationError(
                f"The parameter `{name}` of the tool `{label}` has no default, but its schema does not "
                f"require it. Add a default, or list it in `required`."
            )
    return None if takes_any else frozenset(by_name)
