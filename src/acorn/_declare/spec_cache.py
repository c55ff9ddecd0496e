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
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple, get_origin

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
from acorn.types import JsonObject

BASE = "_acorn_base"
"""Where `module` says that it is the class all others derive from; nobody else sets it."""
LOCAL_NAMES = "_acorn_locals"
"""What the type hints of a class may name beside its globals."""
SPEC_CACHE = "_acorn_spec"
"""Where a class or an instance keeps its spec."""
CALL_OPTIONS = "_acorn_brought"
"""Where an instance keeps what it was brought."""
OPEN_SOURCES = "_acorn_open"
"""The sources that an instance keeps open."""
_UNSET: Any = object()


class Queueing(NamedTuple):
    """How a run that begins elsewhere gets there."""

    priority: int = 0
    not_before: Any = None
    """A moment, or how long to wait."""
    deliver: bool = True
    """Whether the workers of the store are to drive it."""


class BatchItem(NamedTuple):
    """Which item of which batch a run is."""

    batch: str
    at: int


@dataclass(frozen=True, eq=False)
class CallOptions:
    """What `using` brought along for the next call."""

    prior: Sequence[JsonObject] = ()
    """An earlier conversation."""
    deps: Any = None
    run_id: str | None = None
    """What the next run is called in its store."""
    item: BatchItem | None = None
    queueing: Queueing | None = None
    fork: Any = None
    """What the next run keeps of another, as `_loop/fork.py` has it."""


_NOTHING = CallOptions()

Branch = Any
"""A module class, or an instance of one."""


def call_options(agent: object) -> CallOptions:
    """What an instance brings to its next call."""
    found: CallOptions = vars(agent).get(CALL_OPTIONS, _NOTHING)
    return found


def base_of(cls: type) -> type:
    """The class `module` that a module class derives from."""
    found: type = getattr(cls, BASE)
    return found


def spec_of(agent: object) -> Spec:
    """The spec of an instance as it is now.

    An attribute that was set on the instance, or changed on its class after the definition, gives a new
    spec, checked the same way; otherwise it is the one made when the class was defined.
    """
    cls = type(agent)
    spec = class_spec(cls)
    # A run that ends in another thread leaves its record in the same dict.
    own = {name: value for name, value in list(vars(agent).items()) if name in SETTINGS}
    made_with = vars(agent).get(ORIG_CLASS)
    if not own and made_with is None:
        return spec
    values = [made_with, *own, *own.values()]
    kept: tuple[Spec, _Seen, Spec] | None = vars(agent).get(SPEC_CACHE)
    if kept is None or kept[0] is not spec or not kept[1].is_same(values):
        if made_with is not None:
            own = {**generics_of(agent).attributes(), **own}
        kept = (spec, _Seen(values), check_spec(revise_spec(spec, cls, own, getattr(cls, LOCAL_NAMES, {}))))
        vars(agent)[SPEC_CACHE] = kept
    return kept[2]


def class_spec(cls: type) -> Spec:
    """The spec of a class as it is now."""
    values = list(map(getattr, repeat(cls), SETTINGS, repeat(_UNSET)))
    kept: tuple[_Seen, Spec] | None = vars(cls).get(SPEC_CACHE)
    if kept is None or not kept[0].is_same(values):
        named = dict(zip(SETTINGS, values, strict=True))
        kept = (_Seen(values), check_spec(compile_spec(cls, base_of(cls), named, getattr(cls, LOCAL_NAMES, {}))))
        setattr(cls, SPEC_CACHE, kept)
    return kept[1]


def module_docstring(which: Branch) -> str | None:
    """The nearest docstring of a module class, never that of `module` itself."""
    cls = class_of(which)
    base = base_of(cls)
    docs = [vars(above).get("__doc__") for above in cls.__mro__ if issubclass(above, base) and above is not base]
    return next(filter(None, docs), None)


def user_hook(agent: object, hook: str) -> Any:
    """The hook where the user has one."""
    cls = type(agent)
    is_ours = getattr(cls, hook) is getattr(base_of(cls), hook) and hook not in vars(agent)
    found = None if is_ours else getattr(agent, hook)
    if found is not None and not callable(found):
        raise DeclarationError(f"`{cls.__name__}.{hook}` must be a method, got {excerpt(found)}.")
    return found


def has_user_hook(which: Branch, hook: str) -> bool:
    """Whether a class or an instance has a hook of its own."""
    cls = class_of(which)
    is_own = not isinstance(which, type) and hook in getattr(which, "__dict__", {})
    return is_own or getattr(cls, hook) is not getattr(base_of(cls), hook)


# Modules that another one starts


def class_of(which: Branch) -> type:
    """The class that is meant, or that an instance is of."""
    if isinstance(which, type):
        return which
    origin: Any = get_origin(which)  # of `Extract[Person]`
    return type(which) if origin is None else origin


def instance_of(which: Branch) -> Any:
    """A new instance of a class; an instance is itself."""
    return which if isinstance(which, base_of(class_of(which))) else which()


def read_spec(which: Branch) -> Spec:
    """The spec of a class or an instance as it is now."""
    return class_spec(which) if isinstance(which, type) else spec_of(instance_of(which))


def check_branch(which: Any, where: str) -> None:
    """Judge what is to be a branch; `where` names it."""
    cls = class_of(which)
    if not hasattr(cls, BASE):
        shown = shorten(safe_repr(which), 120)
        raise DeclarationError(f"{where} must be a module class or an instance of one, got {shown}.")
    _check_makeable(which, where)
    if _output_of(instance_of(which) if get_origin(which) else which) in ([], (), None, type(None)):
        raise DeclarationError(
            f"{where} is `{cls.__name__}`, which has no `final_output`; a branch must return something."
        )
    if isinstance(which, base_of(cls)) and call_options(which).prior:
        raise DeclarationError(
            f"{where} is a `{cls.__name__}` with `using(history=...)`; a branch goes on with its parent's conversation."
        )
    _check_no_fork(which, where)


def _check_no_fork(which: Branch, where: str) -> None:
    cls = class_of(which)
    if isinstance(which, base_of(cls)) and call_options(which).fork is not None:
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
    if isinstance(which, base_of(cls)):
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

    def __get__(self, instance: Any, owner: type) -> Callable[[str, str], AgentTool]:
        return partial(_agent_tool, owner if instance is None else instance, owner)


def _agent_tool(agent: Any, cls: type, where: str, owner: str) -> AgentTool:
    is_class = agent is cls
    if is_class and agent is base_of(cls):
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

    def __get__(self, instance: Any, owner: type) -> Shapes | None:
        if instance is None and owner is base_of(owner):
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
    if isinstance(value, dict):
        return list(value.items())
    return [dict(each) if type(each) is dict else each for each in value]


class Override(NamedTuple):
    """One block: the class that it is for, and what it sets."""

    cls: type
    values: Mapping[str, Any]


Overrides = tuple[Override, ...]
"""The blocks that the calling code is inside of, the innermost last."""

_held: ContextVar[Overrides] = ContextVar("acorn_overrides", default=())


def current_overrides() -> Overrides:
    """The blocks that the calling code is inside of."""
    return _held.get()


def check_overrides(cls: type, values: Mapping[str, Any]) -> None:
    """Judge what a block sets as if an instance had set it."""
    _revised(read_spec(cls), cls, values)


class OverrideBlock:
    """A block; it may be entered again, and left from another task than it was entered in."""

    def __init__(self, cls: type, values: Mapping[str, Any]) -> None:
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


def spec_within(overrides: Overrides, agent: Any) -> Spec:
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


def _revised(spec: Spec, cls: type, values: Mapping[str, Any]) -> Spec:
    return check_spec(revise_spec(spec, cls, values, getattr(cls, LOCAL_NAMES, {}))) if values else spec
