"""Settings that hold for all instances of a class in a context, whatever they set themselves: `MyAgent.override(...)`.

Above `using`, below what a hook sets in its step. `_module` opens the block, `_call` asks what is in force when a
run or a branch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from acorn._declared import LOCALS, checked_spec, class_of, read_spec
from acorn._spec import Spec, revise_spec


class Override(NamedTuple):
    """One block: the class that it is for, and what it sets."""

    cls: type
    values: Mapping[str, Any]


Overrides = tuple[Override, ...]
"""The blocks that the calling code is inside of, the innermost last."""

_held: ContextVar[Overrides] = ContextVar("acorn_overrides", default=())


def held() -> Overrides:
    """The blocks that the calling code is inside of."""
    return _held.get()


def check(cls: type, values: Mapping[str, Any]) -> None:
    """Judge what a block sets as if an instance had set it."""
    _revised(read_spec(cls), cls, values)


class Held:
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
    return checked_spec(revise_spec(spec, cls, values, getattr(cls, LOCALS, {}))) if values else spec
