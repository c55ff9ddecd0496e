"""The cache of the current specs of classes and instances, the hooks that users define, and override blocks.

A spec is cached until an attribute changes. `_module` compiles it when a class is defined, and `_call` uses it when an
agent is called.

`MyAgent.override(...)` sets values for all instances of a class in a context. They replace the values of the instances.
An override has a higher priority than `using`, and a lower priority than a hook that changes its step. It applies to
the runs and branches that start inside the block.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache, partial
from itertools import repeat
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, get_origin

from typing_extensions import Format, get_annotations

from acorn._declare.generics import ORIG_CLASS, deps_type, generics_of
from acorn._declare.module_base import CALL_OPTIONS, AgentBase, CachedSpec, set_private
from acorn._declare.settings import MODEL_OPTIONS, SETTINGS, STEP_SETTINGS
from acorn._declare.spec import Spec, check_method, compile_spec, find_docstring, revise_spec
from acorn._declare.tools.collect import is_tool_name
from acorn._declare.tools.decorator import ToolOptions, options_of
from acorn._declare.tools.kinds import AgentTool
from acorn._formats.json import excerpt, safe_repr, shorten
from acorn._formats.schema.shape import Shapes, require_no_media
from acorn._formats.xml.encode import snake_case
from acorn.errors import DeclarationError, ToolConflictError
from acorn.record import run_of
from acorn.types import is_json_list, is_json_object, is_mapping

_UNSET = object()
_SETTING_NAMES = tuple(SETTINGS)


Branch = AgentBase | type[AgentBase]
"""A module class such as `Review` or `Extract[Person]`, or an instance of a module class."""


def spec_of(agent: AgentBase) -> Spec:
    """Return the current spec of an instance.

    If an attribute was set on the instance, or changed on its class after the definition, compile a new spec with
    the same checks. Otherwise return the spec that was compiled when the class was defined.
    """
    cls = type(agent)
    spec = class_spec(cls)
    # Copy the dict first, because a run that ends in another thread may add an attribute at the same time.
    settings = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS}
    alias = vars(agent).get(ORIG_CLASS)
    if not settings and alias is None:
        return spec
    values = [alias, *settings, *settings.values()]
    cached = agent.__acorn_spec__
    if cached is None or not _is_current(cached, spec, values):
        if alias is not None:
            settings = {**generics_of(agent).attributes(), **settings}
        revised = check_spec(revise_spec(spec, cls, settings))
        if alias is not None:
            revised = replace(revised, deps_type=deps_type(agent))
        cached = _cached_spec(spec, values, revised)
        set_private(agent, "__acorn_spec__", cached)
    return cached.spec


def class_spec(cls: type[AgentBase]) -> Spec:
    """Return the current spec of a class."""
    values = list(map(getattr, repeat(cls), SETTINGS, repeat(_UNSET)))
    cached = cls.__acorn_class_spec__
    if cached is None or not _is_current(cached, cls, values):
        settings = dict(zip(SETTINGS, values, strict=True))
        spec = check_spec(compile_spec(cls, cls.__acorn_module__, settings, cls.__acorn_locals__))
        cached = cls.__acorn_class_spec__ = _cached_spec(cls, values, spec)
    return cached.spec


def _is_current(cached: CachedSpec, source: object, values: list[Any]) -> bool:
    """Return whether the values of a cached spec are still the same objects, and their content has not changed."""
    return (
        cached.source is source
        and len(values) == len(cached.values)
        and all(map(is_, values, cached.values))
        and cached.containers == cached.contents
    )


def _cached_spec(source: object, values: list[Any], spec: Spec) -> CachedSpec:
    containers = [value for value in values if is_json_list(value) or is_json_object(value)]
    contents: list[Any] = [
        value.copy() if isinstance(value, dict) else [entry.copy() if type(entry) is dict else entry for entry in value]
        for value in containers
    ]
    return CachedSpec(source, values, containers, contents, spec)


def module_docstring(which: Branch) -> str | None:
    """Return the docstring of the nearest base class that has one. Ignore the docstring of `module` itself."""
    cls = class_of(which)
    return find_docstring(cls, cls.__acorn_module__)


HOOKS = {"on_start": "step", "on_step": "step", "on_finish": "output", "on_stream": "chunk", "on_human": "request"}
"""A dict that maps the names of the hooks to the names of their parameters."""
METHOD_NAMES = (*HOOKS, "system_prompt")
_OTHER_HOOKS = {
    "on_begin": "on_start",
    "on_tool_end": "on_step",
    "on_step_end": "on_step",
    "on_end": "on_finish",
    "on_output": "on_finish",
    "on_chunk": "on_stream",
    "on_token": "on_stream",
    "on_approval": "on_human",
}
"""A dict that maps the names of hooks in other frameworks to hooks with the same purpose."""


def user_hooks(agent: AgentBase) -> dict[str, Any]:
    """Return a dict that maps hook names to the hooks that the user defined on a class or an instance."""
    cls, attributes = type(agent), vars(agent)
    base = cls.__acorn_module__
    hooks: dict[str, Any] = {}
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


# Names of settings and hooks


def check_setting_name(cls: type[AgentBase], name: str) -> None:
    """Raise `TypeError` if a keyword argument of `cls(...)` is not a setting."""
    if name not in SETTINGS and name in class_spec(cls).input.call_fields:
        call = f"{cls.__name__}()({name}=...)"
        raise TypeError(f"`{name}` is an input of `{cls.__name__}`, not a setting. Pass it to the call: `{call}`.")
    if name in CALL_OPTIONS:
        call = f"{cls.__name__}().using({name}=...)"
        raise TypeError(f"`{name}` is an option of a call of `{cls.__name__}`, not a setting. Use `{call}`.")
    if name in HOOKS:
        raise TypeError(f"`{cls.__name__}` has no setting `{name}`. It is a hook: define it as a method of a subclass.")
    if name in MODEL_OPTIONS:
        fix = f"model={{'model': ..., '{name}': ...}}"
        raise TypeError(f"`{cls.__name__}` has no setting `{name}`. Put it into the model dict: `{fix}`.")
    if name not in SETTINGS:
        settings = ", ".join(f"`{setting}`" for setting in SETTINGS)
        raise TypeError(
            f"`{cls.__name__}` has no setting `{name}`.{_hint(name, _SETTING_NAMES)} Its settings are: {settings}."
        )


_warned_about_docstrings: list[str] = []
"""The name of the first class that was defined without docstrings, because of `python -OO`."""


def check_class_body(cls: type[AgentBase]) -> None:
    """Check the names and the hooks of a new class, and of its base classes that are not modules.

    A name that looks like a misspelled setting or hook causes a warning.
    """
    base = cls.__acorn_module__
    if sys.flags.optimize >= 2 and not _warned_about_docstrings:
        _warned_about_docstrings.append(cls.__name__)
        message = (
            f"`python -OO` removes docstrings, so the prompt of `{cls.__name__}` and the descriptions of tools may be "
            f"missing. Use `python -O`, or set `system_prompt` and `@tool(description=...)`."
        )
        warnings.warn(message, UserWarning, stacklevel=3)
    subclasses = cls.__mro__[: cls.__mro__.index(base)]
    owners: list[type] = [cls, *[parent for parent in cls.__mro__ if not issubclass(parent, AgentBase)]]
    for owner in owners:
        attributes = vars(owner)
        for name in (*attributes, *get_annotations(owner, format=Format.FORWARDREF)):
            if name.startswith("_") or (not hasattr(base, name) and name not in SETTINGS):
                continue
            is_tool = options_of(attributes.get(name)) is not None
            if is_tool and name in SETTINGS and getattr(attributes[name], "__name__", name) != name:
                continue  # As in `tools = search`, which the rule of the setting reports.
            if is_tool or (name not in SETTINGS and name not in HOOKS):
                advice = f" and set the name for the model with `@tool(name={name!r})`" if is_tool else ""
                raise DeclarationError(
                    f"`{owner.__name__}.{name}` has the name of an attribute that every module has. Rename it{advice}."
                )
            # A base class that is not a module may annotate a setting, such as a protocol, if the module sets it.
            setters = [owner] if owner is cls else [owner, *subclasses]
            if not any(name in vars(setter) for setter in setters):
                raise DeclarationError(
                    f"`{owner.__name__}.{name}` is annotated, not set. Write `{name} = ...` instead of `{name}: ...`."
                )
    for name, parameter in HOOKS.items():
        hook = inspect.getattr_static(cls, name)
        if hook is not None and hook is not vars(base)[name]:
            check_method(hook, cls, name, "a method", parameter)
    for name, value in vars(cls).items():
        is_nested = isinstance(value, type) and value.__qualname__.startswith(f"{cls.__qualname__}.")
        if not is_nested:
            _warn_if_misspelled(cls, name, value, 2)


def warn_about_assignment(agent: AgentBase, name: str, value: object) -> None:
    """Warn about an assignment to an instance that has another effect than the user expects."""
    cls = type(agent)
    if name not in SETTINGS:
        if name not in vars(agent) and not hasattr(cls, name):
            _warn_if_misspelled(cls, name, value, 1)  # More instance attributes than class attributes are user data.
    elif run_of(agent) is not None:
        fix = f"Set `step.{name}` in a hook" if name in STEP_SETTINGS else "Set it before the run"
        message = (
            f"`{name}` of `{cls.__name__}` was set during a run. This changes later runs, but not this one. {fix}."
        )
        warnings.warn(message, UserWarning, stacklevel=3)


def _warn_if_misspelled(cls: type, name: str, value: object, edits: int) -> None:
    is_method = not isinstance(value, type) and hasattr(value, "__get__")
    if name.startswith("_") or name in SETTINGS or name in METHOD_NAMES:
        return
    hint = _hint(name, METHOD_NAMES if is_method else _SETTING_NAMES, edits)
    if is_method and name in _OTHER_HOOKS:
        hint = f" Did you mean `{_OTHER_HOOKS[name]}`?"
    if hint:
        kind = "hook" if is_method else "setting"
        # This stack level makes the warning point to the `class` statement or the assignment.
        warnings.warn(f"`{cls.__name__}.{name}` is not a {kind}.{hint}", UserWarning, stacklevel=4)


@lru_cache(maxsize=1024)
def _hint(name: str, known_names: tuple[str, ...], edits: int = 2) -> str:
    similar = next((known for known in known_names if _is_similar(name, known, edits)), None)
    return f" Did you mean `{similar}`?" if similar else ""


def _is_similar(name: str, other: str, edits: int) -> bool:
    """Return True if at most `edits` changed, added or removed letters turn one name into the other."""
    if edits < 0:
        return False
    if not name or not other:
        return len(name) + len(other) <= edits
    if name[0] == other[0]:
        return _is_similar(name[1:], other[1:], edits)
    remaining = [(name[1:], other[1:]), (name[1:], other), (name, other[1:])]
    return any(_is_similar(rest, other_rest, edits - 1) for rest, other_rest in remaining)


# Modules that are branches or tools of other modules


def is_agent(which: object) -> TypeGuard[Branch]:
    """Return whether a value is an agent class (possibly with type arguments), or an instance of one."""
    cls = which if isinstance(which, type) else get_origin(which) or type(which)
    return isinstance(cls, type) and issubclass(cls, AgentBase)


def class_of(which: Branch) -> type[AgentBase]:
    """Return the agent class of an instance or an alias such as `Extract[Person]`. Return a class unchanged."""
    if isinstance(which, type):
        return which
    return get_origin(which) or type(which)


def instance_of(which: Branch) -> AgentBase:
    """Return a new instance if the value is an agent class. Return an instance unchanged."""
    return which if isinstance(which, AgentBase) else which()


def read_spec(which: Branch) -> Spec:
    """Return the current spec of a class or an instance."""
    return class_spec(which) if isinstance(which, type) else spec_of(instance_of(which))


def check_branch(which: object, where: str) -> None:
    """Raise `DeclarationError` if a value cannot be used as a branch.

    `where` describes the setting that contains the value, for the error message.
    """
    if not is_agent(which):
        text = shorten(safe_repr(which), 120)
        raise DeclarationError(f"{where} must be a module class or an instance of one, got {text}.")
    cls = class_of(which)
    _check_instantiable(which, where)
    if _output_of(instance_of(which) if get_origin(which) else which) in ([], (), None, type(None)):
        raise DeclarationError(
            f"{where} is `{cls.__name__}`, which has no `final_output`. Set it, because a branch must return a value."
        )
    if isinstance(which, AgentBase) and which.__acorn_call_options__.prior:
        raise DeclarationError(
            f"{where} is a `{cls.__name__}` with `using(history=...)`, but a branch continues the conversation of its "
            f"parent. Remove `history`."
        )
    _check_no_fork(which, where)


def _check_no_fork(which: Branch, where: str) -> None:
    if isinstance(which, AgentBase) and which.__acorn_call_options__.fork is not None:
        raise DeclarationError(
            f"{where} is a `{type(which).__name__}` with `using(thread=...)`, but only a separate run can be a fork. "
            f"Call the agent instead."
        )


def _output_of(which: Branch) -> Any:
    """Return the declared output of an agent without compiling its spec.

    An agent may be its own branch, so its spec may not exist yet.
    """
    if not isinstance(which, type) and ORIG_CLASS in vars(which) and "final_output" not in vars(which):
        return generics_of(which).attributes().get("final_output")
    return getattr(which, "final_output", None)


def _check_instantiable(which: Branch, where: str) -> None:
    """Raise `DeclarationError` if a value is a class that cannot be instantiated without arguments."""
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
    """Return the spec.

    Raise `DeclarationError` if a branch is invalid or has the same name as a tool.
    """
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
    """A descriptor that creates a tool from a module class or from an instance of a module class."""

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
        lambda: require_no_media(read_spec(agent).input.parameters, whose),
    )


class ShapesDescriptor:
    """A descriptor that returns the input and output schemas of an agent class or of its instance."""

    def __get__(self, instance: AgentBase | None, owner: type[AgentBase]) -> Shapes | None:
        if instance is None and owner is owner.__acorn_module__:
            return None
        spec = class_spec(owner) if instance is None else spec_of(instance)
        return Shapes(spec.module, spec.input, spec.output, partial(_find_child, spec))


def _find_child(spec: Spec, name: str) -> object:
    """Return the branch or the agent tool with this name: a class, an instance, or None if there is none."""
    entry = spec.branches.get(name)
    if entry is not None:
        which: Branch = entry["module"] if is_mapping(entry) else entry
        return which if isinstance(which, type) else instance_of(which)
    return next((tool.function for tool in spec.tools if isinstance(tool, AgentTool) and tool.name == name), None)


def agent_name(cls: type) -> str:
    """Return a name of a class that is the same in every process, even if the class is defined in a script."""
    name = cls.__module__
    if name == "__main__" or name.startswith("acorn_run_"):
        loaded = sys.modules.get(name)
        file, spec = getattr(loaded, "__file__", None), getattr(loaded, "__spec__", None)
        # `python -m shop.desk` executes the same module as `import shop.desk`.
        name = spec.name if name == "__main__" and spec else Path(file).stem if file else name
    return f"{name}:{cls.__qualname__}"


class Override(NamedTuple):
    """One `with Agent.override(...)` block: the agent class, and a dict of the values that the block sets."""

    cls: type[AgentBase]
    values: Mapping[str, Any]


Overrides = tuple[Override, ...]
"""The active override blocks, from the outermost to the innermost."""

active_overrides: ContextVar[Overrides] = ContextVar("acorn_overrides", default=())
"""The `with Agent.override(...)` blocks that are active in the current `contextvars` context."""


class OverrideBlock:
    """The context manager that `Agent.override(...)` returns.

    It can be used several times. A block may end in another asyncio task than the task in which it started.
    """

    def __init__(self, cls: type[AgentBase], values: Mapping[str, Any]) -> None:
        for name in values:
            check_setting_name(cls, name)
        _revise(class_spec(cls), cls, values)  # This raises an error if a value is invalid.
        self._override = Override(cls, values)

    def __enter__(self) -> None:
        active_overrides.set((*active_overrides.get(), self._override))

    def __exit__(self, *_: object) -> None:
        active = list(active_overrides.get())
        for index in reversed(range(len(active))):
            if active[index] is self._override:
                del active[index]
                break
        active_overrides.set(tuple(active))


def spec_within(overrides: Overrides, agent: Branch) -> Spec:
    """Return the spec of an agent with the values of the `with Agent.override(...)` blocks around the call.

    If nested blocks set the same value, the inner block has priority.
    """
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
    return check_spec(revise_spec(spec, cls, values)) if values else spec
