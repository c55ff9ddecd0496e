"""The arguments of tools that have type hints and a docstring.

The docstring contains the description of a tool, which is all text before the first section, and a line for each
parameter. The Google, NumPy and Sphinx styles are supported.

acorn builds the schema and the validator of the arguments from the signature once. Pydantic receives only keyword
arguments, also for positional parameters, because a model passes every argument by name.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import from_json

from acorn._declare.tools.decorator import is_partial
from acorn._declare.tools.kinds import ArgumentError, Arguments
from acorn._formats.json import shorten
from acorn._formats.schema.generate import JsonSchema, schema_of
from acorn._formats.schema.problems import find_problems
from acorn._formats.schema.shape import require_no_media
from acorn.errors import DeclarationError
from acorn.record import Run
from acorn.types import JsonObject

_GOOGLE = re.compile(
    r"^(?:Args|Arguments|Parameters|Params|Attributes|Returns?|Yields?|Raises|Exceptions|Except|Examples?|Notes?|"
    r"Warnings?|Warns|See Also|References|Todo|Keyword Args|Keyword Arguments|Other Parameters|Methods)\s*:[ \t]*$",
    re.MULTILINE,
)
_PARAMETER_SECTIONS = (
    "Args",
    "Arguments",
    "Parameters",
    "Params",
    "Keyword Args",
    "Keyword Arguments",
    "Other Parameters",
)
_NUMPY = re.compile(r"^[A-Z][A-Za-z ]*\n(?:-{3,}|={3,})[ \t]*$", re.MULTILINE)
_SPHINX = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?|ytype|var|ivar|cvar|vartype|except|exception)\b[^:\n]*:",
    re.MULTILINE,
)


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return the description of a tool, and a dict that maps parameter names to their descriptions."""
    text = _clean(doc) if doc else ""
    starts = {style: match.start() for style, match in _first_sections(text) if match}
    if not starts:
        return text.strip(), {}
    style = min(starts, key=lambda style: starts[style])
    return text[: starts[style]].strip(), _read_parameters(text[starts[style] :], style)


def _clean(doc: str) -> str:
    """Return a docstring without its indentation, but preserve the indentation of a section on the first line."""
    text = inspect.cleandoc(doc)
    first_line, _, body = text.partition("\n")
    if _GOOGLE.match(first_line) and not body[:1].isspace():
        return first_line + "\n" + textwrap.indent(body, "    ")
    return text


def _first_sections(text: str) -> list[tuple[str, re.Match[str] | None]]:
    return [
        ("google", _GOOGLE.search(text)),
        ("numpy", _NUMPY.search(text)),
        ("sphinx", _SPHINX.search(text)),
    ]


def _read_parameters(text: str, style: str) -> dict[str, str]:
    from docstring_parser import google, numpydoc, rest

    # Parse only the parameter sections of a Google docstring, so that errors in other sections do not matter.
    sections = [google.Section(title, "param", google.SectionType.MULTIPLE) for title in _PARAMETER_SECTIONS]
    parsers = {
        "google": google.GoogleParser(sections).parse,
        "numpy": numpydoc.parse,
        "sphinx": rest.parse,
    }
    try:
        # The parsers remove the indentation of all lines except the first line, so it must not be a section title.
        parsed = parsers[style](f"_\n\n{text}")
    except Exception:  # The descriptions of a malformed section are lost, but the tool still works.
        return {}
    descriptions: dict[str, str] = {}
    for parameter in parsed.params:
        description = (parameter.description or "").strip()
        for name in parameter.arg_name.split(","):
            if description:
                descriptions[name.strip().lstrip("*")] = description
    return descriptions


_P = inspect.Parameter
_JSON_TYPES = (str, int, float, bool, types.NoneType)


class UnresolvedHintError(DeclarationError):
    """The error for a type hint with a name that does not exist, or does not exist yet."""


@dataclass(frozen=True, eq=False)
class SignatureBinding:
    """The binding of a function with type hints, which describes and validates its arguments."""

    build: Callable[[], tuple[JsonSchema, TypeAdapter[Any]]]
    """A function that builds the schema and the validator. It is called once, when they are needed."""
    positional: tuple[str, ...]
    """The parameters that can only be passed by position."""
    injected: tuple[str, ...] = ()
    """The parameters that are annotated `acorn.Run` and receive the run."""
    filled: frozenset[str] = frozenset()
    """The keywords that a partial or the run sets. The model must not set them, even with `**kwargs`."""

    @cached_property
    def _built(self) -> tuple[JsonSchema, TypeAdapter[Any]]:
        return self.build()

    @property
    def schema(self) -> JsonSchema:
        return self._built[0]

    @cached_property
    def _validate(self) -> Callable[[str], Any]:
        return self._built[1].validator.validate_json

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """Return the positional and keyword arguments from JSON text, converted by the type hints."""
        arguments = arguments or "{}"
        if arguments.lstrip().startswith("["):  # Pydantic would accept a list as positional arguments.
            raise ArgumentError(not_an_object(arguments))
        try:
            named: JsonObject = self._validate(arguments)
        except ValidationError as error:
            raise ArgumentError(self._describe(error, arguments)) from error
        if self.filled and (taken := self.filled & named.keys()):
            raise ArgumentError(f"argument `{min(taken)}` is filled in already and cannot be set")
        if self.injected:
            named.update(dict.fromkeys(self.injected, run))
        if not self.positional:
            return (), named
        return tuple([named.pop(name) for name in self.positional if name in named]), named

    def _describe(self, error: ValidationError, arguments: str) -> str:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:
            if first["type"] == "arguments_type":
                return not_an_object(arguments)
            return f"The arguments are not valid JSON: {shorten(first['msg'].removeprefix('Invalid JSON: '))}"
        received = from_json(arguments)
        parts = [
            f"argument `{problem['path']}` is missing, expected {problem['expected']}"
            if problem["received"] == "missing"
            else f"argument `{problem['path']}`: expected {problem['expected']}, got {problem['received']}"
            for problem in find_problems(error, self.schema, received)
        ]
        return "; ".join(parts)


def not_an_object(arguments: str) -> str:
    """Return the error message for the model if the arguments are valid JSON but not an object."""
    return f"The arguments must be a JSON object, got {shorten(arguments)}"


def signature_binding(
    function: Callable[..., Any],
    label: str,
    *,
    descriptions: Callable[[], Mapping[str, str]],
    drop_first: bool = False,
    local_names: Mapping[str, object] | None = None,
) -> SignatureBinding:
    """Return the binding of a function with type hints.

    `drop_first` omits the `self` of an unbound method.
    """
    inner = unwrap_decorators(function)
    # The schema does not contain the arguments of a partial, because they may be secret.
    filled = frozenset(inner.keywords if is_partial(inner) else ())
    parameters = [p for p in parameters_of(inner, label, drop_first) if p.name not in filled]
    _check_parameters(parameters, label, inspect.isbuiltin(getattr(inner, "func", inner)))
    hints = read_hints(inner, parameters, label, local_names or {})
    positional = tuple(p.name for p in parameters if p.kind is _P.POSITIONAL_ONLY)
    injected = tuple(p.name for p in parameters if is_run_hint(hints[p.name]))
    parameters = [p for p in parameters if p.name not in injected]
    build = functools.partial(_build, parameters, hints, label, descriptions)
    binding = SignatureBinding(build, positional, injected, filled | frozenset(injected))
    if not all(_is_simple_parameter(hints[p.name], p.default) for p in parameters):
        binding.schema  # noqa: B018 - Raise the error of a type without a JSON Schema when the class is defined.
    return binding


def _build(
    parameters: list[inspect.Parameter],
    hints: JsonObject,
    label: str,
    descriptions: Callable[[], Mapping[str, str]],
) -> tuple[JsonSchema, TypeAdapter[Any]]:
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
    return schema, validator


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


def unwrap_decorators(function: Any) -> Any:
    """Return the function inside its decorators, with nested partials combined into one partial.

    Otherwise `inspect.signature` would follow `__wrapped__` of a partial, and would include arguments that an inner
    partial already sets.
    """
    if isinstance(function, functools.partial):
        return functools.partial(unwrap_decorators(function.func), *function.args, **function.keywords)
    attributes: JsonObject = {} if inspect.ismethod(function) else getattr(function, "__dict__", {})
    if "__wrapped__" in attributes and "__signature__" not in attributes:
        return unwrap_decorators(attributes["__wrapped__"])
    return function


def parameters_of(function: Callable[..., Any], label: str, drop_first: bool) -> list[inspect.Parameter]:
    """Return the parameters of a function.

    `drop_first` omits the `self` of an unbound method.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"The tool `{label}` has no signature that Python can read. Wrap it in a function with type hints."
        ) from error
    parameters = list(signature.parameters.values())
    return parameters[1:] if drop_first else parameters


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
            raise DeclarationError(f"The parameter `{name}` of the tool `{label}` has no type hint. {fix}.")


def read_hints(
    function: Callable[..., Any],
    parameters: list[inspect.Parameter],
    label: str,
    local_names: Mapping[str, object],
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
    global_names: JsonObject = {**local_names, **getattr(inner, "__globals__", {})}
    annotated = typing.cast(Any, type("hints", (), {"__annotations__": {p.name: p.annotation for p in parameters}}))
    try:
        hints = typing.get_type_hints(annotated, globalns=global_names, localns=dict(local_names), include_extras=True)
    except (NameError, AttributeError) as error:
        raise _unresolved_hint(label, error) from error
    except Exception as error:  # A type hint in quotes may contain any expression.
        raise DeclarationError(f"A type hint of the tool `{label}` cannot be read: {error}.") from error
    for parameter in parameters:
        if parameter.default is None:  # `limit: int = None` means an optional parameter.
            hints[parameter.name] = _make_optional(hints[parameter.name])
    return {name: _make_eager(hint) for name, hint in hints.items()}


def is_run_hint(hint: object) -> bool:
    """Return whether a type hint is `Run` or `Run[...]`, or one of them in an optional type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return is_run_hint(inner[0])
    if origin in (typing.Union, types.UnionType):
        return all(member is types.NoneType or is_run_hint(member) for member in inner)
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


def _make_eager(hint: Any) -> Any:
    """Return a type hint with `list[int]` instead of `Iterable[int]`.

    Pydantic would validate the items of an iterable only while the function runs.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Iterable or origin is Iterable:
        return typing.cast(Any, list)[inner[0]] if inner else list
    if origin is typing.Annotated:
        return typing.Annotated[(_make_eager(inner[0]), *inner[1:])]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_make_eager(member) for member in inner)]  # noqa: UP007
    return hint


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
