"""What stands in the brackets of a module: `module[In, Out, Deps]`.

They are read when a class is defined, also through generic classes in between, and when an instance is made with
brackets of its own, as in `Extract[Person](...)`. The first two mean the same as the attributes `initial_input` and
`final_output`; the third is what `using(deps=...)` must bring. `_module` and `_declared` call it.
"""

from __future__ import annotations

import types
import typing
from typing import Any, NamedTuple, get_args, get_origin

from typing_extensions import NoDefault, TypeVar

from acorn._formats.schema.problems import of_input
from acorn._formats.schema.shape import filled
from acorn.errors import DeclarationError, InputError
from acorn.types import JsonObject

In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)
Deps = TypeVar("Deps", default=Any)

MADE_WITH = "__orig_class__"
"""Where Python notes the brackets that an instance was made with."""
_TYPES = "_acorn_types"


class Generics(NamedTuple):
    """The three types; Any where one is left open."""

    input: Any = In
    output: Any = Out
    deps: Any = Deps

    def attributes(self) -> JsonObject:
        """The attributes that they stand for."""
        found = {"initial_input": _closed(self.input), "final_output": _closed(self.output)}
        return {attribute: kind for attribute, kind in found.items() if kind is not Any}


def read_generics(cls: type, base: type) -> None:
    """Read the brackets of a new class and set the attributes that they stand for."""
    found: Generics | None = None
    for alias in vars(cls).get("__orig_bases__", ()):
        origin = get_origin(alias)
        if isinstance(origin, type) and issubclass(origin, base):
            found = _filled_in(alias, origin)
    if found is None:  # no brackets of its own: what the bases declare is inherited like any attribute
        return
    setattr(cls, _TYPES, found)
    for attribute, kind in found.attributes().items():
        if attribute in vars(cls) and vars(cls)[attribute] != kind:
            raise DeclarationError(
                f"`{cls.__name__}` declares `{attribute}` twice, in brackets and as an attribute; keep one."
            )
        setattr(cls, attribute, kind)


def generics_of(agent: object) -> Generics:
    """The brackets of an instance: those it was made with, else those of its class."""
    alias = vars(agent).get(MADE_WITH)
    found: Generics = getattr(type(agent), _TYPES, _OPEN) if alias is None else _filled_in(alias, get_origin(alias))
    return found


def deps_type(which: Any) -> Any:
    """What the deps of an agent must be: an instance, a class, or one such as `Extract[Person]`."""
    if isinstance(which, type):
        found: Generics = getattr(which, _TYPES, _OPEN)
    else:
        origin = get_origin(which)
        found = generics_of(which) if origin is None else _filled_in(which, origin)
    return _closed(found.deps)


def check_deps(owner: str, kind: Any, deps: Any, caller: str | None = None) -> None:
    """Refuse deps of another type, as far as `isinstance` can tell. Their value may be secret, and is not shown.

    `caller` is the agent that hands them on.
    """
    if kind is Any or _fits(deps, kind):
        return
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    who = f"`{owner}`" if caller is None else f"`{owner}`, which `{caller}` starts,"
    if deps is None:
        agent = "agent" if caller is None else f"{caller}(...)"
        message = f"{who} needs `deps` of the type `{name}`: call `{agent}.using(deps=...)(...)`."
    else:
        message = f"The `deps` of {who} must be of the type `{name}`, got a `{type(deps).__name__}`."
    received = "missing" if deps is None else type(deps).__name__
    raise InputError(message, problems=[of_input("deps", name, received, message)])


def check_filled(agent: object, owner: str, *, has_input: bool, has_output: bool) -> None:
    """Refuse an agent of a generic class whose brackets were left out, or it would ask for nothing."""
    found = generics_of(agent)
    for kind, attribute, is_set in (
        (found.input, "initial_input", has_input),
        (found.output, "final_output", has_output),
    ):
        if not is_set and isinstance(kind, typing.TypeVar) and _closed(kind) is Any and kind not in _OPEN:
            raise DeclarationError(
                f"`{owner}` leaves open what its `{attribute}` is, `{kind.__name__}`: "
                f"make it with brackets, as in `{owner}[...](...)`, or set `{attribute}`."
            )


_OPEN = Generics()


def _filled_in(alias: Any, origin: Any) -> Generics:
    """The three types behind an alias such as `Judge[Text]`."""
    by_variable: dict[Any, Any] = dict(zip(origin.__parameters__, get_args(alias), strict=False))
    return Generics(*[filled(part, by_variable) for part in getattr(origin, _TYPES, _OPEN)])


def _closed(kind: Any) -> Any:
    """The type; of a variable that nobody filled in its default, and Any where it has none."""
    if not isinstance(kind, typing.TypeVar):
        return kind
    default = getattr(kind, "__default__", NoDefault)
    return Any if default is NoDefault else default


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is typing.Annotated:
        kind = get_args(kind)[0]
    origin = get_origin(kind)
    if origin is not None and origin is not types.UnionType and origin is not typing.Union:
        kind = origin
    try:
        return isinstance(value, types.NoneType if kind is None else kind)
    except TypeError:  # a protocol, a TypedDict, a literal: only a type checker can tell
        return True
