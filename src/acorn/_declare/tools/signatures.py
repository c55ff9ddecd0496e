"""What a docstring says of a tool: its description, and a line for each parameter.

Google, NumPy and Sphinx styles are understood. The description is all the text before the first section.

From a signature to a schema and a validator, and from a model's arguments to a call.

A signature is read once. Pydantic sees it as keyword arguments only, whatever the kinds of the parameters,
because a model names every argument it gives.
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
_OF_PARAMETERS = ("Args", "Arguments", "Parameters", "Params", "Keyword Args", "Keyword Arguments", "Other Parameters")
_NUMPY = re.compile(r"^[A-Z][A-Za-z ]*\n(?:-{3,}|={3,})[ \t]*$", re.MULTILINE)
_SPHINX = re.compile(
    r"^:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?|ytype|var|ivar|cvar|vartype|except|exception)\b[^:\n]*:",
    re.MULTILINE,
)


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """The description, and the words about each parameter."""
    text = _clean(doc) if doc else ""
    starts = {style: found.start() for style, found in _sections(text) if found}
    if not starts:
        return text.strip(), {}
    style = min(starts, key=lambda style: starts[style])
    return text[: starts[style]].strip(), _parameters(text[starts[style] :], style)


def _clean(doc: str) -> str:
    """Without the indent of the source, but with that of a section which begins on the first line."""
    text = inspect.cleandoc(doc)
    first, _, rest = text.partition("\n")
    if _GOOGLE.match(first) and not rest[:1].isspace():
        return first + "\n" + textwrap.indent(rest, "    ")
    return text


def _sections(text: str) -> list[tuple[str, re.Match[str] | None]]:
    return [
        ("google", _GOOGLE.search(text)),
        ("numpy", _NUMPY.search(text)),
        ("sphinx", _SPHINX.search(text)),
    ]


def _parameters(text: str, style: str) -> dict[str, str]:
    from docstring_parser import google, numpydoc, rest

    # No other section of a Google docstring is read, so that a malformed one costs nothing.
    sections = [google.Section(title, "param", google.SectionType.MULTIPLE) for title in _OF_PARAMETERS]
    parsers = {
        "google": google.GoogleParser(sections).parse,
        "numpy": numpydoc.parse,
        "sphinx": rest.parse,
    }
    try:
        # The parsers take away the common indent of all but the first line, which must not be a section's title.
        parsed = parsers[style](f"_\n\n{text}")
    except Exception:  # the parser's; a malformed section costs its descriptions, never the tool
        return {}
    found: dict[str, str] = {}
    for parameter in parsed.params:
        words = (parameter.description or "").strip()
        for name in parameter.arg_name.split(","):
            if words:
                found[name.strip().lstrip("*")] = words
    return found


_P = inspect.Parameter
_PLAIN = (str, int, float, bool, types.NoneType)


class UnresolvedHintError(DeclarationError):
    """A type hint names something that does not exist, or not yet."""


@dataclass(frozen=True, eq=False)
class SignatureBinding:
    """How the arguments of one function are described and checked by its type hints."""

    build: Callable[[], tuple[JsonSchema, TypeAdapter[Any]]]
    """Makes the schema and the validator; called once, when one of them is needed."""
    positional: tuple[str, ...]
    """Parameters that can only be passed by position."""
    injected: tuple[str, ...] = ()
    """Parameters annotated `acorn.Run`, which receive the run."""
    filled: frozenset[str] = frozenset()
    """Keywords that a partial or the run fills in, which `**kwargs` would let the model set."""

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
        """Positional and keyword arguments from JSON text, converted by the type hints."""
        arguments = arguments or "{}"
        if arguments.lstrip().startswith("["):  # which Pydantic would take for positional arguments
            raise ArgumentError(not_an_object(arguments))
        try:
            named: JsonObject = self._validate(arguments)
        except ValidationError as error:
            raise ArgumentError(self._complaint(error, arguments)) from error
        if self.filled and (taken := self.filled & named.keys()):
            raise ArgumentError(f"argument `{min(taken)}` is filled in already and cannot be set")
        if self.injected:
            named.update(dict.fromkeys(self.injected, run))
        if not self.positional:
            return (), named
        return tuple([named.pop(name) for name in self.positional if name in named]), named

    def _complaint(self, error: ValidationError, arguments: str) -> str:
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
    """The words for arguments that are JSON, but no object."""
    return f"The arguments must be a JSON object, got {shorten(arguments)}"


def signature_binding(
    function: Callable[..., Any],
    label: str,
    *,
    descriptions: Callable[[], Mapping[str, str]],
    drop_first: bool = False,
    local_names: Mapping[str, Any] | None = None,
) -> SignatureBinding:
    """Read a function's signature; `drop_first` leaves out the `self` of an unbound method."""
    plain = unwrap_decorators(function)
    # What a partial has filled in is the user's, and may be a secret: the model neither sees nor sets it.
    filled = frozenset(plain.keywords if isinstance(plain, functools.partial) else ())
    parameters = [p for p in parameters_of(plain, label, drop_first) if p.name not in filled]
    _check(parameters, label, inspect.isbuiltin(getattr(plain, "func", plain)))
    hints = read_hints(plain, parameters, label, local_names or {})
    positional = tuple(p.name for p in parameters if p.kind is _P.POSITIONAL_ONLY)
    injected = tuple(p.name for p in parameters if is_run_hint(hints[p.name]))
    parameters = [p for p in parameters if p.name not in injected]
    build = functools.partial(_build, parameters, hints, label, descriptions)
    binding = SignatureBinding(build, positional, injected, filled | frozenset(injected))
    if not all(_is_sure(hints[p.name], p.default) for p in parameters):
        binding.schema  # noqa: B018 - a type that a model cannot be asked for is refused as it is declared
    return binding


def _build(
    parameters: list[inspect.Parameter],
    hints: JsonObject,
    label: str,
    descriptions: Callable[[], Mapping[str, str]],
) -> tuple[JsonSchema, TypeAdapter[Any]]:
    try:
        validator: TypeAdapter[Any] = TypeAdapter(_shim(parameters, hints))
        schema = schema_of(validator)
    except NameError as error:
        raise _unresolved(label, error) from error
    except Exception as error:  # a type may be of anybody's making
        if isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined":
            raise _unresolved(label, error) from error
        raise DeclarationError(
            f"The parameter {_culprit(parameters, hints)} of the tool `{label}` has a type that a model cannot be "
            f"asked for: {_reason(error)}. Use types that JSON can carry."
        ) from error
    require_no_media(schema, f"What the tool `{label}` is called with")
    # The schema has a property for each parameter, in order, under its alias if it has one.
    keys = dict(zip((p.name for p in parameters), schema["properties"], strict=False))
    for name, words in descriptions().items():
        if (key := keys.get(name, name)) in schema["properties"]:
            schema["properties"][key].setdefault("description", words)
    return schema, validator


def _is_sure(hint: Any, default: Any) -> bool:
    """Whether Pydantic certainly takes such a parameter, so that it need not be asked when the class is defined."""
    return _is_plain(hint) and (default is _P.empty or type(default) in _PLAIN)


def _is_plain(hint: Any) -> bool:
    """Whether it is made of what JSON itself has."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType, list):
        return all(map(_is_plain, inner))
    if origin is dict:
        return inner[0] is str and _is_plain(inner[1])
    if origin is typing.Literal:
        return all(type(value) is str for value in inner)
    return any(hint is kind for kind in _PLAIN)


def unwrap_decorators(function: Any) -> Any:
    """The function below its decorators, where partials on the way become one.

    Python would read the signature of what a partial is named after, and show what an inner one fills in.
    """
    if isinstance(function, functools.partial):
        return functools.partial(unwrap_decorators(function.func), *function.args, **function.keywords)
    about: JsonObject = {} if inspect.ismethod(function) else getattr(function, "__dict__", {})
    if "__wrapped__" in about and "__signature__" not in about:
        return unwrap_decorators(about["__wrapped__"])
    return function


def parameters_of(function: Callable[..., Any], label: str, drop_first: bool) -> list[inspect.Parameter]:
    """What a function takes; `drop_first` leaves out the `self` of an unbound method."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise DeclarationError(
            f"The tool `{label}` has no signature that Python can read; wrap it in a function with type hints."
        ) from error
    parameters = list(signature.parameters.values())
    return parameters[1:] if drop_first else parameters


def _check(parameters: list[inspect.Parameter], label: str, is_builtin: bool) -> None:
    for parameter in parameters:
        name = parameter.name
        if parameter.kind is _P.VAR_POSITIONAL:
            raise DeclarationError(
                f"The tool `{label}` takes `*{name}`, which a model cannot pass by name; "
                f"take a list instead, as in `{name}: list[str]`."
            )
        if parameter.annotation is _P.empty:
            remedy = "wrap the function in one with type hints" if is_builtin else f"add one, as in `{name}: str`"
            raise DeclarationError(f"The parameter `{name}` of the tool `{label}` has no type hint; {remedy}.")


def read_hints(
    function: Callable[..., Any],
    parameters: list[inspect.Parameter],
    label: str,
    local_names: Mapping[str, Any],
) -> JsonObject:
    """The annotations as types; the return type stays unread, for it may not exist at run time."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    inner = inspect.unwrap(inner)
    space: JsonObject = {**local_names, **getattr(inner, "__globals__", {})}
    holder = typing.cast(Any, type("hints", (), {"__annotations__": {p.name: p.annotation for p in parameters}}))
    try:
        hints = typing.get_type_hints(holder, globalns=space, localns=dict(local_names), include_extras=True)
    except (NameError, AttributeError) as error:
        raise _unresolved(label, error) from error
    except Exception as error:  # a hint in quotes may say anything
        raise DeclarationError(f"A type hint of the tool `{label}` cannot be read: {error}.") from error
    for parameter in parameters:
        if parameter.default is None:  # `limit: int = None` says in all but name that None is welcome
            hints[parameter.name] = _optional(hints[parameter.name])
    return {name: _eager(hint) for name, hint in hints.items()}


def is_run_hint(hint: Any) -> bool:
    """Whether it is `Run`, `Run[...]` or either of them or None."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return is_run_hint(inner[0])
    if origin in (typing.Union, types.UnionType):
        return all(member is types.NoneType or is_run_hint(member) for member in inner)
    return (origin or hint) is Run


def _optional(hint: Any) -> Any:
    if hint is Any:
        return hint
    if typing.get_origin(hint) is not typing.Annotated:
        return typing.Optional[hint]  # noqa: UP045 - `|` does not take every form a hint can have
    inner, *extra = typing.get_args(hint)
    # A validator is not to meet None; what `Field` says is about the parameter, None or not.
    fields = [word for word in extra if isinstance(word, FieldInfo)]
    others = [word for word in extra if not isinstance(word, FieldInfo)]
    inner = typing.Optional[typing.Annotated[(inner, *others)] if others else inner]  # noqa: UP045
    return typing.Annotated[(inner, *fields)] if fields else inner


def _eager(hint: Any) -> Any:
    """`Iterable[int]` as `list[int]`: Pydantic would check its items only while the function runs."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Iterable or origin is Iterable:
        return typing.cast(Any, list)[inner[0]] if inner else list
    if origin is typing.Annotated:
        return typing.Annotated[(_eager(inner[0]), *inner[1:])]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_eager(member) for member in inner)]  # noqa: UP007
    return hint


def _unresolved(label: str, error: Exception) -> UnresolvedHintError:
    return UnresolvedHintError(
        f"A type hint of the tool `{label}` names something that cannot be found: {error}. "
        f"Import it at run time, or define it before the first call."
    )


def _shim(parameters: list[inspect.Parameter], hints: JsonObject) -> Any:
    """A function that gives back what it is called with, under the tool's signature."""

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


def _culprit(parameters: list[inspect.Parameter], hints: JsonObject) -> str:
    """The first parameter that Pydantic cannot describe by itself."""
    for parameter in parameters:
        try:
            schema_of(TypeAdapter(_shim([parameter], hints)))
        except Exception:  # as above
            return f"`{parameter.name}`"
    return "list"


def _reason(error: Exception) -> str:
    """Pydantic's first sentence (the next ones advise on models), or the last line of a nested error."""
    if isinstance(error, PydanticUserError):
        return error.message.splitlines()[0].split(". ")[0].rstrip(".")
    lines = str(error).splitlines() or [type(error).__name__]
    return shorten(lines[-1].strip().rstrip("."))
