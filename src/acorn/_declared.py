"""What a class and an instance declare, as it stands now: the spec of each, and the hooks of the user's own.

A spec is kept until an attribute changes. `_module` asks when a class is defined, `_call` when one is called;
this room knows the class `module` only by the mark that it carries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from itertools import repeat
from operator import is_
from typing import Any

from acorn._json import told
from acorn._schema.shape import Shapes
from acorn._spec import SETTINGS, Spec, compile_spec, revise_spec
from acorn._tools.agent import AgentTool
from acorn._tools.declare import ToolOptions, options_of
from acorn._xml.encode import snake_case
from acorn.errors import DeclarationError

BASE = "_acorn_base"
"""Where `module` says that it is the class all others derive from; nobody else sets it."""
LOCALS = "_acorn_locals"
"""What the type hints of a class may name beside its globals."""
KEPT = "_acorn_spec"
"""Where a class or an instance keeps its spec."""
BROUGHT = "_acorn_brought"
"""What `using` brought along for the next call."""
OPEN = "_acorn_open"
"""The sources that an instance keeps open."""
_UNSET: Any = object()


def base_of(cls: type) -> type:
    """The class `module` that a module class derives from."""
    found: type = getattr(cls, BASE)
    return found


def is_module_class(value: object) -> bool:
    """Whether it is `module` or derives from it."""
    return isinstance(value, type) and hasattr(value, BASE)


def spec_of(agent: object) -> Spec:
    """The spec of an instance as it is now.

    An attribute that was set on the instance, or changed on its class after the definition, gives a new
    spec, checked the same way; otherwise it is the one made when the class was defined.
    """
    cls = type(agent)
    spec = class_spec(cls)
    # A run that ends in another thread leaves its record in the same dict.
    own = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS}
    if not own:
        return spec
    values = [*own, *own.values()]
    kept: tuple[Spec, _Seen, Spec] | None = vars(agent).get(KEPT)
    if kept is None or kept[0] is not spec or not kept[1].is_same(values):
        kept = (spec, _Seen(values), revise_spec(spec, cls, base_of(cls), own, getattr(cls, LOCALS, {})))
        vars(agent)[KEPT] = kept
    return kept[2]


def class_spec(cls: type) -> Spec:
    """The spec of a class as it is now."""
    values = list(map(getattr, repeat(cls), SETTINGS, repeat(_UNSET)))
    kept: tuple[_Seen, Spec] | None = vars(cls).get(KEPT)
    if kept is None or not kept[0].is_same(values):
        named = dict(zip(SETTINGS, values, strict=True))
        kept = (_Seen(values), compile_spec(cls, base_of(cls), named, getattr(cls, LOCALS, {})))
        setattr(cls, KEPT, kept)
    return kept[1]


def docstring_of(cls: type) -> str | None:
    """The nearest docstring of a module class, never that of `module` itself."""
    base = base_of(cls)
    docs = [vars(above).get("__doc__") for above in cls.__mro__ if issubclass(above, base) and above is not base]
    return next(filter(None, docs), None)


def own_hook(agent: object, hook: str) -> Any:
    """The hook where the user has one."""
    cls = type(agent)
    is_ours = getattr(cls, hook) is getattr(base_of(cls), hook) and hook not in vars(agent)
    found = None if is_ours else getattr(agent, hook)
    if found is not None and not callable(found):
        raise DeclarationError(f"`{cls.__name__}.{hook}` must be a method, got {told(found)}.")
    return found


class AsTool:
    """Makes a tool of a module class or of one of its instances, whichever it is looked up on."""

    def __get__(self, instance: Any, owner: type) -> Callable[[str, str], AgentTool]:
        return partial(_agent_tool, owner if instance is None else instance, owner)


def _agent_tool(agent: Any, cls: type, place: str, owner: str) -> AgentTool:
    is_class = agent is cls
    if is_class and agent is base_of(cls):
        raise DeclarationError(f"`{owner}.{place}` is the base class of all modules; give one of your own.")
    if is_class:
        try:
            inspect.signature(cls).bind()
        except TypeError as error:
            raise DeclarationError(
                f"`{owner}.{place}` is the class `{cls.__name__}`, which cannot be made without arguments ({error}); "
                f"give an instance."
            ) from error
    options = options_of(agent) or ToolOptions()
    if options.timeout is not None:
        raise DeclarationError(
            f"`{owner}.{place}` is the agent `{cls.__name__}` with `@tool(timeout=...)`; bound it by `max_seconds` "
            f"instead."
        )
    read = partial(class_spec, cls) if is_class else partial(spec_of, agent)
    return AgentTool(
        options.name or snake_case(cls.__name__),
        agent,
        options,
        f"{place} (`{cls.__module__}.{cls.__qualname__}`)",
        docstring_of(cls),
        lambda: read().input.json_schema,
    )


class AsShapes:
    """What a module class takes and gives, or one of its instances, whichever it is looked up on."""

    def __get__(self, instance: Any, owner: type) -> Shapes | None:
        if instance is None and owner is base_of(owner):
            return None
        spec = class_spec(owner) if instance is None else spec_of(instance)
        return Shapes(module_name(owner), spec.input, spec.output, partial(_below, spec))


def _below(spec: Spec, name: str) -> Any:
    entry = spec.branches.get(name)
    if entry is not None:
        return entry["module"] if isinstance(entry, Mapping) else entry
    return next((tool.function for tool in spec.tools if isinstance(tool, AgentTool) and tool.name == name), None)


def module_name(cls: type) -> str:
    """A class as a journal names it: `package.file:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


class _Seen:
    """The values that a spec was made from: the very objects, and what the lists and dicts among them held."""

    __slots__ = ("held", "values")

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.held = [(value, _content(value)) for value in values if isinstance(value, list | dict)]

    def is_same(self, values: list[Any]) -> bool:
        return (
            len(values) == len(self.values)
            and all(map(is_, values, self.values))
            and all(_content(value) == content for value, content in self.held)
        )


def _content(value: list[Any] | dict[Any, Any]) -> list[Any]:
    return list(value) if isinstance(value, list) else list(value.items())
