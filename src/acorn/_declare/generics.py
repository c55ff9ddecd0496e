"""The type arguments of a module: `module[Input, Output, Deps]`.

acorn evaluates them when a class is defined, also through generic base classes, and when an instance is created with
type arguments, as in `Extract[Person](...)`. The first two arguments set the attributes `initial_input` and
`final_output`. The third argument is the type of the object that `using(deps=...)` must receive.
"""

from __future__ import annotations

import sys
import types
import typing
from typing import Any, NamedTuple, get_args, get_origin

from typing_extensions import NoDefault, TypeVar

from acorn._formats.schema.problems import input_problem
from acorn._formats.schema.shape import substitute_type_variables
from acorn.errors import DeclarationError, InputError
from acorn.types import JsonObject

In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)
Deps = TypeVar("Deps", default=Any)

ORIG_CLASS = "__orig_class__"
"""The attribute of an instance in which Python stores its generic alias, such as `Extract[Person]`."""
_GENERICS = "_acorn_types"


class Generics(NamedTuple):
    """The three type arguments of an agent class: input, output and deps.

    An argument is a type variable if the user has not replaced the variable with a type yet.
    """

    input: Any = In
    output: Any = Out
    deps: Any = Deps

    def attributes(self) -> JsonObject:
        """Return a dict that maps `initial_input` and `final_output` to the types in the brackets."""
        attributes = {"initial_input": _resolve(self.input), "final_output": _resolve(self.output)}
        return {attribute: kind for attribute, kind in attributes.items() if kind is not Any}


def set_type_arguments(cls: type, base: type) -> None:
    """Set `initial_input` and `final_output` of a new class to the types in its brackets."""
    generics: Generics | None = None
    for alias in vars(cls).get("__orig_bases__", ()):
        origin = get_origin(alias)
        if isinstance(origin, type) and issubclass(origin, base):
            generics = _substitute(alias, origin)
    if generics is None:  # Without type arguments, the class inherits `initial_input` and `final_output` as usual.
        return
    setattr(cls, _GENERICS, generics)
    for attribute, kind in generics.attributes().items():
        if attribute in vars(cls) and vars(cls)[attribute] != kind:
            raise DeclarationError(
                f"`{cls.__name__}` declares `{attribute}` twice, in brackets and as an attribute. Keep one."
            )
        setattr(cls, attribute, kind)


def generics_of(agent: object) -> Generics:
    """Return the type arguments of an instance, or the type arguments of its class if the instance has none."""
    alias = vars(agent).get(ORIG_CLASS)
    generics: Generics = (
        getattr(type(agent), _GENERICS, _OPEN) if alias is None else _substitute(alias, get_origin(alias))
    )
    return generics


def deps_type(which: object) -> Any:
    """Return the declared type of `deps` for an instance, a class, or an alias such as `Extract[Person]`."""
    if isinstance(which, type):
        generics: Generics = getattr(which, _GENERICS, _OPEN)
    else:
        origin = get_origin(which)
        generics = generics_of(which) if origin is None else _substitute(which, origin)
    return _resolve(generics.deps)


def local_types(cls: type) -> dict[str, object]:
    """Return a dict that maps local variable names to types, for type hints of a class that a function defines.

    Only `module.__init_subclass__` may call this function, because the function inspects the call stack.
    """
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # Documented by Python, and faster than `inspect`.
    while frame.f_globals.get("__name__") != cls.__module__ and frame.f_back is not None:
        frame = frame.f_back
    if frame.f_locals is frame.f_globals:
        return {}
    return {
        name: value
        for name, value in frame.f_locals.items()
        if isinstance(value, type) or get_origin(value) is not None
    }


def check_deps(owner: str, kind: Any, deps: object, caller: str | None = None) -> None:
    """Raise `InputError` if `deps` is not an instance of the declared type.

    The message does not contain `deps`, because it may be secret. `caller` is the agent that passes `deps` to a branch.
    """
    if kind is Any or _is_instance(deps, kind):
        return
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    who = f"`{owner}`" if caller is None else f"`{owner}`, which `{caller}` starts,"
    if deps is None:
        agent = "agent" if caller is None else f"{caller}(...)"
        message = f"{who} needs `deps` of the type `{name}`. Call `{agent}.using(deps=...)(...)`."
    else:
        message = f"The `deps` of {who} must be of the type `{name}`, got a `{type(deps).__name__}`."
    received = "missing" if deps is None else type(deps).__name__
    raise InputError(message, problems=[input_problem("deps", name, received, message)])


def check_type_arguments(agent: object, owner: str, *, has_input: bool, has_output: bool) -> None:
    """Raise `DeclarationError` if the input or output of an agent is still a type variable."""
    generics = generics_of(agent)
    for kind, attribute, is_set in (
        (generics.input, "initial_input", has_input),
        (generics.output, "final_output", has_output),
    ):
        if not is_set and isinstance(kind, typing.TypeVar) and _resolve(kind) is Any and kind not in _OPEN:
            raise DeclarationError(
                f"The `{attribute}` of `{owner}` is the open type variable `{kind.__name__}`. "
                f"Create the agent with brackets, as in `{owner}[...](...)`, or set `{attribute}`."
            )


_OPEN = Generics()


def _substitute(alias: object, origin: Any) -> Generics:
    """Return the type arguments of a generic alias such as `Judge[Text]`."""
    by_variable: dict[object, object] = dict(zip(origin.__parameters__, get_args(alias), strict=False))
    return Generics(*[substitute_type_variables(part, by_variable) for part in getattr(origin, _GENERICS, _OPEN)])


def _resolve(kind: object) -> Any:
    """Return the default of a type variable, or `Any` if it has no default. Return any other type unchanged."""
    if not isinstance(kind, typing.TypeVar):
        return kind
    default = getattr(kind, "__default__", NoDefault)
    return Any if default is NoDefault else default


def _is_instance(value: object, kind: Any) -> bool:
    if get_origin(kind) is typing.Annotated:
        kind = get_args(kind)[0]
    origin = get_origin(kind)
    if origin is not None and origin is not types.UnionType and origin is not typing.Union:
        kind = origin
    try:
        return isinstance(value, types.NoneType if kind is None else kind)
    except TypeError:  # Only a type checker can check a protocol, a TypedDict or a literal.
        return True
