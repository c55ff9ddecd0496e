"""What a class and an instance declare, as it stands now: the spec of each, and the hooks of the user's own.

A spec is kept until an attribute changes. `_module` asks when a class is defined, `_call` when one is called;
this room knows the class `module` only by the mark that it carries.

Settings that hold for all instances of a class in a context, whatever they set themselves: `MyAgent.override(...)`.

Above `using`, below what a hook sets in its step. `_module` opens the block, `_call` asks what is in force when a
run or a branch begins.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, get_origin

from acorn._declare.agent import AgentBase, ClassSpec, DeclaredValues, InstanceSpec, call_options
from acorn._declare.generics import ORIG_CLASS, generics_of
from acorn._declare.settings import SETTINGS
from acorn._declare.spec import Spec, compile_spec, revise_spec
from acorn._declare.tools.collect import is_tool_name
from acorn._declare.tools.decorator import ToolOptions, options_of
from acorn._declare.tools.kinds import AgentTool
from acorn._formats.json import excerpt, safe_repr, shorten
from acorn._formats.schema.shape import Shapes, require_no_media
from acorn._formats.xml.encode import snake_case
from acorn.errors import DeclarationError, ToolConflictError

_UNSET: Any = object()


Branch = AgentBase | type[AgentBase]
"""A module class such as `Review` or `Extract[Person]`, or an instance of one."""


def spec_of(agent: AgentBase) -> Spec:
    """Return the current spec of an instance.

    An instance without own settings has the spec of its class. Settings of an instance, and attributes that changed
    since the class was defined, are compiled and checked like a class.
    """
    cls = type(agent)
    spec = class_spec(cls)
    # Copy the items: a run that ends in another thread may add an attribute meanwhile.
    settings = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS}
    made_with = vars(agent).get(ORIG_CLASS)
    if not settings and made_with is None:
        return spec
    values = [made_with, *settings, *settings.values()]
    cached = agent.__acorn_spec__
    if cached is None or cached.class_spec is not spec or not cached.values.is_same(values):
        if made_with is not None:
            settings = {**generics_of(agent).attributes(), **settings}
        revised = check_spec(revise_spec(spec, cls, settings, cls.__acorn_locals__))
        cached = agent.__acorn_spec__ = InstanceSpec(spec, DeclaredValues(values), revised)
    return cached.spec


def class_spec(cls: type[AgentBase]) -> Spec:
    """Return the current spec of a class."""
    values = list(map(getattr, repeat(cls), SETTINGS, repeat(_UNSET)))
    cached = cls.__acorn_class_spec__
    if cached is None or cached.cls is not cls or not cached.values.is_same(values):
        settings = dict(zip(SETTINGS, values, strict=True))
        spec = check_spec(compile_spec(cls, cls.__acorn_module__, settings, cls.__acorn_locals__))
        cached = cls.__acorn_class_spec__ = ClassSpec(cls, DeclaredValues(values), spec)
    return cached.spec


def module_docstring(which: Branch) -> str | None:
    """The nearest docstring of a module class, never that of `module` itself."""
    cls = class_of(which)
    base = cls.__acorn_module__
    docs = [vars(above).get("__doc__") for above in cls.__mro__ if issubclass(above, base) and above is not base]
    return next(filter(None, docs), None)


HOOKS = ("on_start", "on_step", "on_finish", "on_stream", "on_human")


def user_hooks(agent: AgentBase) -> dict[str, Callable[[Any], Any]]:
    """Return the hooks that the user's class or the instance defines, by name."""
    cls, attributes = type(agent), vars(agent)
    base = cls.__acorn_module__
    hooks: dict[str, Callable[[Any], Any]] = {}
    for name in HOOKS:
        if name in attributes or getattr(cls, name) is not getattr(base, name):
            hook = getattr(agent, name)
            if hook is not None and not callable(hook):
                raise DeclarationError(f"`{cls.__name__}.{name}` must be a method, got {excerpt(hook)}.")
            if hook is not None:
                hooks[name] = hook
    return hooks


def has_user_hook(which: Branch, hook: str) -> bool:
    """Whether a class or an instance has a hook of its own."""
    cls = class_of(which)
    is_own = not isinstance(which, type) and hook in getattr(which, "__dict__", {})
    return is_own or getattr(cls, hook) is not getattr(cls.__acorn_module__, hook)


# Modules that another one starts


def is_agent(which: object) -> TypeGuard[Branch]:
    """Return whether a value is a module class, possibly with type arguments, or an instance of one."""
    cls = which if isinstance(which, type) else get_origin(which) or type(which)
    return isinstance(cls, type) and issubclass(cls, AgentBase)


def class_of(which: Branch) -> type[AgentBase]:
    """Return a module class, the class of an instance, or the class behind `Extract[Person]`."""
    if isinstance(which, type):
        return which
    return get_origin(which) or type(which)


def instance_of(which: Branch) -> AgentBase:
    """Return an instance as it is, or a new instance of a class."""
    return which if isinstance(which, AgentBase) else which()


def read_spec(which: Branch) -> Spec:
    """The spec of a class or an instance as it is now."""
    return class_spec(which) if isinstance(which, type) else spec_of(instance_of(which))


def check_branch(which: Any, where: str) -> None:
    """Judge what is to be a branch; `where` names it."""
    if not is_agent(which):
        shown = shorten(safe_repr(which), 120)
        raise DeclarationError(f"{where} must be a module class or an instance of one, got {shown}.")
    cls = class_of(which)
    _check_makeable(which, where)
    if _output_of(instance_of(which) if get_origin(which) else which) in ([], (), None, type(None)):
        raise DeclarationError(
            f"{where} is `{cls.__name__}`, which has no `final_output`; a branch must return something."
        )
    if isinstance(which, AgentBase) and call_options(which).prior:
        raise DeclarationError(
            f"{where} is a `{cls.__name__}` with `using(history=...)`; a branch goes on with its parent's conversation."
        )
    _check_no_fork(which, where)


def _check_no_fork(which: Branch, where: str) -> None:
    cls = class_of(which)
    if isinstance(which, AgentBase) and call_options(which).fork is not None:
        raise DeclarationError(
            f"{where} is a `{cls.__name__}` with `using(thread=...)`; only a run of its own can be a fork, so call it."
        )


def _output_of(which: Branch) -> Any:
    """What a class or an instance gives. Not by its spec: a module may be its own branch, and is being compiled."""
    if not isinstance(which, type) and ORIG_CLASS in vars(which) and "final_output" not in vars(which):
        return generics_of(which).attributes().get("final_output")
    return getattr(which, "final_output", None)


def _check_makeable(which: Branch, where: str) -> None:
    """Whether an instance can be made of it, where it is none."""
    cls = class_of(which)
    if isinstance(which, AgentBase):
        return
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise DeclarationError(
            f"{where} is the class `{cls.__name__}`, which cannot be made without arguments ({error}); "
            f"give an instance."
        ) from error


def check_spec(spec: Spec) -> Spec:
    """A new spec whose branches were judged, and named unlike its tools."""
    tools = {tool.name: tool for tool in spec.tools}
    for name, entry in spec.branches.items():
        where = f"`{spec.owner}.branches[{name!r}]`"
        which = entry
        if isinstance(entry, dict):
            which = entry.get("module")
            if set(entry) - {"module", "description"} or not isinstance(entry.get("description"), str | None):
                raise DeclarationError(
                    f"{where} must be a module class or {{'module': Class, 'description': 'text'}}, "
                    f"got {excerpt(entry)}."
                )
        check_branch(which, where)
        if not is_tool_name(name):
            raise DeclarationError(
                f"{where} needs a name of 1 to 64 letters, digits, `_` and `-`, other than `__finish__`."
            )
        if name in tools:
            raise ToolConflictError(
                f"Tool '{name}' of `{spec.owner}` is defined twice: as {tools[name].where} and in `branches`; "
                f"rename one."
            )
    return spec


class ToolDescriptor:
    """Makes a tool of a module class or of one of its instances, whichever it is looked up on."""

    def __get__(self, instance: AgentBase | None, owner: type[AgentBase]) -> Callable[[str, str], AgentTool]:
        return partial(_agent_tool, owner if instance is None else instance, owner)


def _agent_tool(agent: Branch, cls: type[AgentBase], where: str, owner: str) -> AgentTool:
    is_class = agent is cls
    if is_class and agent is cls.__acorn_module__:
        raise DeclarationError(f"`{owner}.{where}` is the base class of all modules; give one of your own.")
    _check_makeable(agent, f"`{owner}.{where}`")
    _check_no_fork(agent, f"`{owner}.{where}`")
    options = options_of(agent) or ToolOptions()
    if options.timeout is not None:
        raise DeclarationError(
            f"`{owner}.{where}` is the agent `{cls.__name__}` with `@tool(timeout=...)`; bound it by `max_seconds` "
            f"instead."
        )
    if options.once:
        raise DeclarationError(
            f"`{owner}.{where}` is the agent `{cls.__name__}` with `@tool(once=...)` or `approval`; those are for "
            f"functions, so put them on the agent's own tools."
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
    """What a module class takes and gives, or one of its instances, whichever it is looked up on."""

    def __get__(self, instance: AgentBase | None, owner: type[AgentBase]) -> Shapes | None:
        if instance is None and owner is owner.__acorn_module__:
            return None
        spec = class_spec(owner) if instance is None else spec_of(instance)
        return Shapes(module_name(owner), spec.input, spec.output, partial(_below, spec))


def _below(spec: Spec, name: str) -> Any:
    entry = spec.branches.get(name)
    if entry is not None:
        which: Branch = entry["module"] if isinstance(entry, Mapping) else entry
        return which if isinstance(which, type) else instance_of(which)
    return next((tool.function for tool in spec.tools if isinstance(tool, AgentTool) and tool.name == name), None)


def module_name(cls: type) -> str:
    """A class as a journal names it: `package.file:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def agent_name(cls: type) -> str:
    """A class as every process calls it that runs it: the program itself, and a file, go by the name of the file."""
    name = cls.__module__
    if name == "__main__" or name.startswith("acorn_run_"):
        loaded = sys.modules.get(name)
        file, spec = getattr(loaded, "__file__", None), getattr(loaded, "__spec__", None)
        # `python -m shop.desk` is the same module as `import shop.desk`.
        name = spec.name if name == "__main__" and spec else Path(file).stem if file else name
    return f"{name}:{cls.__qualname__}"


class Override(NamedTuple):
    """One block: the class that it is for, and what it sets."""

    cls: type[AgentBase]
    values: Mapping[str, Any]


Overrides = tuple[Override, ...]
"""The blocks that the calling code is inside of, the innermost last."""

_held: ContextVar[Overrides] = ContextVar("acorn_overrides", default=())


def current_overrides() -> Overrides:
    """The blocks that the calling code is inside of."""
    return _held.get()


def check_overrides(cls: type[AgentBase], values: Mapping[str, Any]) -> None:
    """Judge what a block sets as if an instance had set it."""
    _revised(read_spec(cls), cls, values)


class OverrideBlock:
    """A block; it may be entered again, and left from another task than it was entered in."""

    def __init__(self, cls: type[AgentBase], values: Mapping[str, Any]) -> None:
        self._override = Override(cls, values)

    def __enter__(self) -> None:
        _held.set((*_held.get(), self._override))

    def __exit__(self, *_: object) -> None:
        left = list(_held.get())
        for at in reversed(range(len(left))):
            if left[at] is self._override:
                del left[at]
                break
        _held.set(tuple(left))


def spec_within(overrides: Overrides, agent: Branch) -> Spec:
    """The spec of an instance or a class as it is inside of these blocks; an inner one wins over those around it."""
    cls, spec = class_of(agent), read_spec(agent)
    for override in overrides:
        if issubclass(cls, override.cls):
            spec = _revised(spec, cls, override.values)
    return spec


def prompt_within(overrides: Overrides, agent: Any) -> Any:
    """The method that gives the prompt of an instance, where it has one."""
    for override in reversed(overrides):
        if isinstance(agent, override.cls) and "system_prompt" in override.values:
            return override.values["system_prompt"]
    return agent.system_prompt


def _revised(spec: Spec, cls: type[AgentBase], values: Mapping[str, Any]) -> Spec:
    return check_spec(revise_spec(spec, cls, values, cls.__acorn_locals__)) if values else spec
