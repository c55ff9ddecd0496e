"""From a signature to a schema and a validator, and from a model's arguments to a call.

A signature is read once. Pydantic sees it as keyword arguments only, whatever the kinds of the parameters,
because a model names every argument it gives.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import from_json

from acorn._json import shorten
from acorn._schema.generate import JsonSchema, schema_of
from acorn._schema.problems import problems
from acorn.errors import DeclarationError

_P = inspect.Parameter


class ArgumentError(Exception):
    """The model's arguments do not fit; the words are for the model."""


class UnresolvedError(DeclarationError):
    """A type hint names something that does not exist, or not yet."""


@dataclass(frozen=True, eq=False)
class Binding:
    """How the arguments of one function are described and checked."""

    schema: JsonSchema
    validator: TypeAdapter[Any]
    positional: tuple[str, ...]
    """Parameters that can only be passed by position."""

    def bind(self, arguments: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments from JSON text, converted by the type hints."""
        try:
            named: dict[str, Any] = self.validator.validate_json(arguments or "{}")
        except ValidationError as error:
            raise ArgumentError(self._complaint(error, arguments)) from error
        return tuple(named.pop(name) for name in self.positional if name in named), named

    def _complaint(self, error: ValidationError, arguments: str) -> str:
        try:
            received = from_json(arguments)
        except (ValueError, UnicodeEncodeError):
            return f"The arguments are not valid JSON: {shorten(error.errors(include_url=False)[0]['msg'])}"
        if not isinstance(received, dict):
            return f"The arguments must be a JSON object, got {shorten(arguments)}"
        parts = [
            f"argument `{problem['path']}` is missing, expected {problem['expected']}"
            if problem["received"] == "missing"
            else f"argument `{problem['path']}`: expected {problem['expected']}, got {problem['received']}"
            for problem in problems(error, self.schema, received)
        ]
        return "; ".join(parts)


def binding_of(
    function: Callable[..., Any],
    label: str,
    *,
    descriptions: Mapping[str, str],
    drop_first: bool = False,
    local_names: Mapping[str, Any] | None = None,
) -> Binding:
    """Read a function's signature; `drop_first` leaves out the `self` of an unbound method."""
    parameters = _parameters(function, label, drop_first)
    hints = _hints(function, parameters, label, local_names or {})
    shim = _shim(parameters, hints)
    try:
        validator: TypeAdapter[Any] = TypeAdapter(typing.cast(Any, shim))
        schema = schema_of(validator)
    except PydanticUndefinedAnnotation as error:
        raise _unresolved(label, error) from error
    except PydanticUserError as error:
        if error.code == "class-not-fully-defined":
            raise _unresolved(label, error) from error
        culprit = _culprit(parameters, hints)
        raise DeclarationError(
            f"The parameter {culprit} of the tool `{label}` has a type that a model cannot be asked for: "
            f"{shorten(str(error.message).splitlines()[0])} Use types that JSON can carry."
        ) from error
    for name, words in descriptions.items():
        if name in schema["properties"]:
            schema["properties"][name].setdefault("description", words)
    return Binding(schema, validator, tuple(p.name for p in parameters if p.kind is _P.POSITIONAL_ONLY))


def _parameters(function: Callable[..., Any], label: str, drop_first: bool) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"The tool `{label}` has no signature that Python can read; wrap it in a function with type hints."
        ) from error
    parameters = list(signature.parameters.values())
    if drop_first:
        parameters = parameters[1:]
    # What a partial has filled in is the user's, and may be a secret: the model neither sees nor sets it.
    filled = _filled_in(function)
    parameters = [parameter for parameter in parameters if parameter.name not in filled]
    for parameter in parameters:
        if parameter.kind is _P.VAR_POSITIONAL:
            raise DeclarationError(
                f"The tool `{label}` takes `*{parameter.name}`, which a model cannot pass by name; "
                f"take a list instead, as in `{parameter.name}: list[str]`."
            )
        if parameter.annotation is _P.empty:
            raise DeclarationError(
                f"The parameter `{parameter.name}` of the tool `{label}` has no type hint; "
                f"add one, as in `{parameter.name}: str`."
            )
    return parameters


def _filled_in(function: object) -> set[str]:
    return set(function.keywords) if isinstance(function, functools.partial) else set()


def _hints(
    function: Callable[..., Any],
    parameters: list[inspect.Parameter],
    label: str,
    local_names: Mapping[str, Any],
) -> dict[str, Any]:
    """The annotations as types; the return type stays unread, for it may not exist at run time."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    inner = inspect.unwrap(inner)
    space: dict[str, Any] = {**local_names, **getattr(inner, "__globals__", {})}
    holder = typing.cast(Any, type("hints", (), {"__annotations__": {p.name: p.annotation for p in parameters}}))
    try:
        hints = typing.get_type_hints(holder, globalns=space, localns=dict(local_names), include_extras=True)
    except NameError as error:
        raise _unresolved(label, error) from error
    except (TypeError, SyntaxError) as error:
        raise DeclarationError(f"A type hint of the tool `{label}` cannot be read: {error}.") from error
    for parameter in parameters:
        if parameter.default is None:  # `limit: int = None` says in all but name that None is welcome
            hints[parameter.name] = _optional(hints[parameter.name])
    return hints


def _optional(hint: Any) -> Any:
    if typing.get_origin(hint) is typing.Annotated:
        inner, *extra = typing.get_args(hint)
        return typing.Annotated[(typing.Optional[inner], *extra)]  # noqa: UP045 - built at run time
    return typing.Optional[hint]  # noqa: UP045 - `|` does not take every form a hint can have


def _unresolved(label: str, error: Exception) -> UnresolvedError:
    return UnresolvedError(
        f"A type hint of the tool `{label}` names something that cannot be found: {error}. "
        f"Import it at run time, or define it before the first call."
    )


def _shim(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> Callable[..., Any]:
    """A function that gives back what it is called with, under the tool's signature."""

    def collect(**arguments: Any) -> dict[str, Any]:
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


def _culprit(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> str:
    """The first parameter that Pydantic cannot describe by itself."""
    for parameter in parameters:
        try:
            schema_of(TypeAdapter(hints[parameter.name]))
        except PydanticUserError:
            return f"`{parameter.name}`"
    return "list"
