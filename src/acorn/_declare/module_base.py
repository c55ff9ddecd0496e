"""The base of `module`: the private state of module classes and their instances.

`module` derives from `AgentBase`. The layers below `module` cannot import it, so they use this class instead. The
attributes are named `__acorn_*__` so that they never collide with the attributes of a user's class, and have
defaults on the class so that a subclass may define `__init__` without calling `super().__init__()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, NamedTuple, Protocol

from acorn._declare.spec import Spec
from acorn._record.last_run import LastRuns
from acorn.types import JsonObject


class Queueing(NamedTuple):
    """How the workers of a store should treat a submitted run."""

    priority: int = 0
    not_before: datetime | timedelta | float | None = None
    """The earliest start: a time, or a delay (in seconds if it is a number)."""
    deliver: bool = True
    """Whether the workers of the store should drive the run."""


class BatchItem(NamedTuple):
    """The position of a run in a batch."""

    batch: str
    at: int


@dataclass(frozen=True, eq=False)
class CallOptions:
    """The options of the next call, as set by `using`."""

    prior: Sequence[JsonObject] = ()
    """The messages of an earlier conversation."""
    deps: Any = None
    run_id: str | None = None
    """The id of the next run in its store."""
    item: BatchItem | None = None
    queueing: Queueing | None = None
    fork: Any = None
    """The part of another run that the next run starts with: a `Fork` of `_machine/fork.py`."""


class DeclaredValues(NamedTuple):
    """The values that a spec was compiled from, to detect later changes."""

    values: list[Any]
    contents: list[tuple[list[Any] | JsonObject, list[Any]]]
    """The lists and dicts among the values, each with a copy of its content."""


class ClassSpec(NamedTuple):
    """The cached spec of a class, with the values it was compiled from."""

    cls: type
    values: DeclaredValues
    spec: Spec


class InstanceSpec(NamedTuple):
    """The cached spec of an instance, with the spec of its class and the values it was compiled from."""

    class_spec: Spec
    values: DeclaredValues
    spec: Spec


class OpenAgentSources(Protocol):
    """The tool sources that an instance keeps open, as defined in `_drive/sources.py`."""

    def for_copy(self) -> OpenAgentSources: ...


class AgentBase:
    """The private state of module classes and their instances."""

    system_prompt: Any
    """The prompt setting, which has no default. `module` documents it."""
    __acorn_module__: ClassVar[type[AgentBase]]
    """The class `module` itself."""
    __acorn_locals__: ClassVar[Mapping[str, object]] = {}
    """Local names that the type hints of a class may use, if the class is defined inside a function."""
    __acorn_class_spec__: ClassVar[ClassSpec | None] = None
    """The cached spec of a class. A subclass inherits it, so the entry names its class."""
    __acorn_spec__: InstanceSpec | None = None
    """The cached spec of an instance that sets attributes."""
    __acorn_call_options__: CallOptions = CallOptions()
    """The options of the next call of an instance."""
    __acorn_last_runs__: LastRuns | None = None
    __acorn_open_sources__: OpenAgentSources | None = None


NOT_COPIED = ("__acorn_spec__", "__acorn_last_runs__", "__acorn_open_sources__")
"""Attributes of an instance that copies and pickles do not take over."""


def set_call_options(agent: AgentBase, options: CallOptions) -> None:
    """Replace the options of the next call of an instance."""
    set_private(agent, "__acorn_call_options__", options)


def set_private(agent: AgentBase, name: str, value: object) -> None:
    """Set private state of an instance, also if its class refuses assignment, such as a frozen dataclass."""
    object.__setattr__(agent, name, value)
