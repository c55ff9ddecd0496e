"""The current spec of a class or an instance, the hooks that users define, and overrides.

A spec is cached until an attribute changes. `_module` reads it when a class is defined, `_call` when an agent is
called.

`MyAgent.override(...)` sets values for all instances of a class in a context, whatever the instances set themselves.
An override has a higher priority than `using` and a lower one than a hook that changes its step. It applies to the
runs and branches that start inside the block.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, get_origin

from acorn._declare.generics import ORIG_CLASS, deps_type, generics_of
from acorn._declare.module_base import AgentBase, ClassSpec, DeclaredValues, InstanceSpec, set_private
from acorn._declare.settings import SETTINGS
from acorn._declare.spec import Spec, compile_spec, revise_spec
from acorn._declare.tools.collect import is_tool_name
from acorn._declare.tools.decorator import ToolOptions, options_of
from acorn._declare.tools.kinds import AgentTool
from acorn._formats.json import excerpt, safe_repr, shorten
from acorn._formats.schema.shape import Shapes, require_no_media
from acorn._formats.xml.encode import snake_case
from acorn.errors import DeclarationError, ToolConflictError
from acorn.types import JsonObject, is_json_list, is_json_object, is_mapping

_UNSET = object()


Branch = AgentBase | type[AgentBase]
"""A module class such as `Review` or `Extract[Person]`, or an instance of one."""


def spec_of(agent: AgentBase) -> Spec:
    """Return the current spec of an instance.

    An attribute that was set on the instance, or changed on its class after the definition, leads to a new spec,
    checked by the same rules. Otherwise it is the spec that was compiled when the class was defined.
    """
    cls = type(agent)
    spec = class_spec(cls)
    # Copy the dict first: a run that ends in another thread stores its record in it.
    settings = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS}
    alias = vars(agent).get(ORIG_CLASS)
    if not settings and alias is None:
        return spec
    values = [alias, *settings, *settings.values()]
    cached = agent.__acorn_spec__
    if cached is None or cached.class_spec is not spec or not _is_same(cached.values, values):
        if alias is not None:
            settings = {**generics_of(agent).attributes(), **settings}
        revised = check_spec(revise_spec(spec, cls, settings, cls.__acorn_locals__))
        if alias is not None:
            revised = replace(revised, deps_type=deps_type(agent))
        cached = InstanceSpec(spec, _declared(values), revised)
        set_private(agent, "__acorn_spec__", cached)
    return cached.spec


def class_spec(cls: type[AgentBase]) -> Spec:
    """Return the current spec of a class."""
    values = list(map(getattr, repeat(cls), SETTINGS, repeat(_UNSET)))
    cached = cls.__acorn_class_spec__
    if cached is None or cached.cls is not cls or not _is_same(cached.values, values):
        settings = dict(zip(SETTINGS, values, strict=True))
        spec = check_spec(compile_spec(cls, cls.__acorn_module__, settings, cls.__acorn_locals__))
        cached = cls.__acorn_class_spec__ = ClassSpec(cls, _declared(values), spec)
    return cached.spec


def _declared(values: list[Any]) -> DeclaredValues:
    """Return the values with copies of the lists and dicts among them."""
    contents = [(value, _content(value)) for value in values if is_json_list(value) or is_json_object(value)]
    return DeclaredValues(values, contents)


def _is_same(declared: DeclaredValues, values: list[Any]) -> bool:
    """Return whether these are the same objects, with the same content."""
    return (
        len(values) == len(declared.values)
        and all(map(is_, values, declared.values))
        and all(_content(value) == content for value, content in declared.contents)
    )


def _content(value: list[Any] | JsonObject) -> list[Any]:
    if isinstance(value, dict):
        return list(value.items())
    return [entry.copy() if type(entry) is dict else entry for entry in value]


def module_docstring(which: Branch) -> str | None:
    """Return the nearest docstring of a module class, but never the one of `module` itself."""
    cls = class_of(which)
    base = cls.__acorn_module__
    docs = [vars(parent).get("__doc__") for parent in cls.__mro__ if issubclass(parent, base) and parent is not base]
    return next(filter(None, docs), None)


HOOKS = ("on_start", "on_step", "on_finish", "on_stream", "on_human")


def user_hooks(agent: AgentBase) -> dict[str, Callable[[Any], Any]]:
    """Return the hooks that the user defined on a class or an instance, by name."""
    cls, attributes = type(agent), vars(agent)
    base = cls.__acorn_module__
    hooks: dict[str, Callable[[Any], Any]] = {}
    for name in HOOKS:
        if name in attributes or getattr(cls, name) is not getattr(base, name):
            method = getattr(agent, name)
            if method is not None and not callable(method):
                raise DeclarationError(f"`{cls.__name__}.{name}` must be a method, got {excerpt(method)}.")
            if method is not None:
                hooks[name] = method
    return hooks


def has_user_hook(which: Branch, hook: str) -> bool:
    """Return whether the user defined a hook on a class or an instance."""
    cls = class_of(which)
    is_on_instance = not isinstance(which, type) and hook in getattr(which, "__dict__", {})
    return is_on_instance or getattr(cls, hook) is not getattr(cls.__acorn_module__, hook)


# Modules that other modules start, as branches or tools.


def is_agent(which: object) -> TypeGuard[Branch]:
    """Return whether a value is a module class, possibly with type arguments, or an instance of one."""
    cls = which if isinstance(which, type) else get_origin(which) or type(which)
    return isinstance(cls, type) and issubclass(cls, AgentBase)


def class_of(which: Branch) -> type[AgentBase]:
    """Return the class of an instance, of an alias such as `Extract[Person]`, or the class itself."""
    if isinstance(which, type):
        return which
    return get_origin(which) or type(which)


def instance_of(which: Branch) -> AgentBase:
    """Return a new instance of a class, or the instance itself."""
    return which if isinstance(which, AgentBase) else which()


def read_spec(which: Branch) -> Spec:
    """Return the current spec of a class or an instance."""
    return class_spec(which) if isinstance(which, type) else spec_of(instance_of(which))


def check_branch(which: object, where: str) -> None:
    """Raise `DeclarationError` if a value cannot be a branch; `where` names it in the message."""
    if not is_agent(which):
        text = shorten(safe_repr(which), 120)
        raise DeclarationError(f"{where} must be a module class or an instance of one, got {text}.")
    cls = class_of(which)
    _check_instantiable(which, where)
    if _output_of(instance_of(which) if get_origin(which) else which) in ([], (), None, type(None)):
        raise DeclarationError(
            f"{where} is `{cls.__name__}`, which has no `final_output`. A branch must return a value."
        )
    if isinstance(which, AgentBase) and which.__acorn_call_options__.prior:
        raise DeclarationError(
            f"{where} is a `{cls.__name__}` with `using(history=...)`, but a branch continues the conversation of its "
            f"parent. Remove `history`."
        )
    _check_no_fork(which, where)


def _check_no_fork(which: Branch, where: str) -> None:
    cls = class_of(which)
    if isinstance(which, AgentBase) and which.__acorn_call_options__.fork is not None:
        raise DeclarationError(
            f"{where} is a `{cls.__name__}` with `using(thread=...)`, but only a separate run can be a fork. Call the "
            f"agent instead."
        )


def _output_of(which: Branch) -> Any:
    """Return the declared output without the spec: a module may be its own branch, and is just being compiled."""
    if not isinstance(which, type) and ORIG_CLASS in vars(which) and "final_output" not in vars(which):
        return generics_of(which).attributes().get("final_output")
    return getattr(which, "final_output", None)


def _check_instantiable(which: Branch, where: str) -> None:
    """Raise `DeclarationError` if a class cannot be instantiated without arguments."""
    cls = class_of(which)
    if isinstance(which, AgentBase):
        return
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise DeclarationError(
            f"{where} is the class `{cls.__name__}`, which cannot be instantiated without arguments ({error}). "
            f"Use an instance."
        ) from error


def check_spec(spec: Spec) -> Spec:
    """Return the spec, or raise if a branch is invalid or has the name of a tool."""
    tools = {tool.name: tool for tool in spec.tools}
    for name, entry in spec.branches.items():
        where = f"`{spec.owner}.branches[{name!r}]`"
        which = entry
        if is_json_object(entry):
            which = entry.get("module")
            if set(entry) - {"module", "description"} or not isinstance(entry.get("description"), str | None):
                raise DeclarationError(
                    f"{where} must be a module class or {{'module': Class, 'description': 'text'}}, "
                    f"got {excerpt(entry)}."
                )
        check_branch(which, where)
        if not is_tool_name(name):
            raise DeclarationError(
                f"{where} must have a name of 1 to 64 letters, digits, `_` and `-`, other than `__finish__`."
            )
        if name in tools:
            raise ToolConflictError(
                f"Tool '{name}' of `{spec.owner}` is defined twice: as {tools[name].where} and in `branches`. "
                f"Rename one."
            )
    return spec


class ToolDescriptor:
    """Descriptor that turns a module class, or an instance of one, into a tool."""

    def __get__(self, instance: AgentBase | None, owner: type[AgentBase]) -> Callable[[str, str], AgentTool]:
        return partial(_agent_tool, owner if instance is None else instance, owner)


def _agent_tool(agent: Branch, cls: type[AgentBase], where: str, owner: str) -> AgentTool:
    if agent is cls and agent is cls.__acorn_module__:
        raise DeclarationError(f"`{owner}.{where}` is the base class of all modules. Use a subclass.")
    _check_instantiable(agent, f"`{owner}.{where}`")
    _check_no_fork(agent, f"`{owner}.{where}`")
    options = options_of(agent) or ToolOptions()
    if options.timeout is not None:
        raise DeclarationError(
            f"`{owner}.{where}` is the agent `{cls.__name__}` with `@tool(timeout=...)`. Set `max_seconds` on "
            f"the agent instead."
        )
    if options.once:
        raise DeclarationError(
            f"`{owner}.{where}` is the agent `{cls.__name__}` with `@tool(once=...)` or `approval`, which apply "
            f"only to functions. Set them on the tools of the agent."
        )
    whose = f"The input of `{cls.__name__}`, which is a tool of `{owner}`,"
    return AgentTool(
        options.name or snake_case(cls.__name__),
        agent,
        options,
        f"{where} (`{cls.__module__}.{cls.__qualname__}`)",
        module_docstring(cls),
        lambda: require_no_media(read_spec(agent).input.json_schema, whose),
    )


class ShapesDescriptor:
    """Descriptor for the input and output shapes of a module class or of an instance of one."""

    def __get__(self, instance: AgentBase | None, owner: type[AgentBase]) -> Shapes | None:
        if instance is None and owner is owner.__acorn_module__:
            return None
        spec = class_spec(owner) if instance is None else spec_of(instance)
        return Shapes(module_name(owner), spec.input, spec.output, partial(_find_child, spec))


def _find_child(spec: Spec, name: str) -> object:
    """Return the class or instance that is the branch or agent tool of this name, or None."""
    entry = spec.branches.get(name)
    if entry is not None:
        which: Branch = entry["module"] if is_mapping(entry) else entry
        return which if isinstance(which, type) else instance_of(which)
    return next((tool.function for tool in spec.tools if isinstance(tool, AgentTool) and tool.name == name), None)


def module_name(cls: type) -> str:
    """Return the name of a class in a journal: `package.file:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def agent_name(cls: type) -> str:
    """Return a name of a class that is the same in every process, also for scripts and files."""
    name = cls.__module__
    if name == "__main__" or name.startswith("acorn_run_"):
        loaded = sys.modules.get(name)
        file, spec = getattr(loaded, "__file__", None), getattr(loaded, "__spec__", None)
        # `python -m shop.desk` is the same module as `import shop.desk`.
        name = spec.name if name == "__main__" and spec else Path(file).stem if file else name
    return f"{name}:{cls.__qualname__}"


class Override(NamedTuple):
    """The class that an override block applies to, and the values that it sets."""

    cls: type[AgentBase]
    values: Mapping[str, Any]


Overrides = tuple[Override, ...]
"""The override blocks that are active, the innermost last."""

_overrides: ContextVar[Overrides] = ContextVar("acorn_overrides", default=())


def current_overrides() -> Overrides:
    """Return the override blocks that the calling code is in."""
    return _overrides.get()


def check_overrides(cls: type[AgentBase], values: Mapping[str, Any]) -> None:
    """Check the values of an override block by the rules for instances."""
    _revise(read_spec(cls), cls, values)


class OverrideBlock:
    """Context manager of an override. It is reusable, and may exit in another task than the one that entered it."""

    def __init__(self, cls: type[AgentBase], values: Mapping[str, Any]) -> None:
        self._override = Override(cls, values)

    def __enter__(self) -> None:
        _overrides.set((*_overrides.get(), self._override))

    def __exit__(self, *_: object) -> None:
        active = list(_overrides.get())
        for index in reversed(range(len(active))):
            if active[index] is self._override:
                del active[index]
                break
        _overrides.set(tuple(active))


def spec_within(overrides: Overrides, agent: Branch) -> Spec:
    """Return the spec of an instance or a class inside override blocks; an inner block wins over an outer one."""
    cls, spec = class_of(agent), read_spec(agent)
    for override in overrides:
        if issubclass(cls, override.cls):
            spec = _revise(spec, cls, override.values)
    return spec


def prompt_within(overrides: Overrides, agent: Any) -> Any:
    """Return the prompt method of an instance inside override blocks."""
    for override in reversed(overrides):
        if isinstance(agent, override.cls) and "system_prompt" in override.values:
            return override.values["system_prompt"]
    return agent.system_prompt


def _revise(spec: Spec, cls: type[AgentBase], values: Mapping[str, Any]) -> Spec:
    return check_spec(revise_spec(spec, cls, values, cls.__acorn_locals__)) if values else spec
