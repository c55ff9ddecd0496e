"""The base class of `module`, with the private state of module classes and their instances.

`module` derives from `AgentBase`. The layers below `module` cannot import `module`, so they use this class instead. The
attributes are named `__acorn_*__` so that they never collide with the attributes of a user's class. They have
defaults on the class so that a subclass may define `__init__` without calling `super().__init__()`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from acorn._declare.spec import Spec
from acorn.record import Run
from acorn.types import Message

if TYPE_CHECKING:
    import asyncio

    Place = asyncio.Task[object] | threading.Thread
    """An asyncio task or a thread that executes code."""


class BatchItem(NamedTuple):
    """The id of a batch, and the index of a run in this batch."""

    batch: str
    row: int


@dataclass(frozen=True, eq=False)
class CallOptions:
    """The options that `using` sets for the next call of an instance."""

    prior: Sequence[Message] = ()
    """The messages of an earlier conversation that the run continues."""
    deps: Any = None
    run_id: str | None = None
    """The id of the next run in its store."""
    item: BatchItem | None = None
    priority: int = 0
    """The priority of a queued run."""
    not_before: datetime | timedelta | float | None = None
    """The earliest start of a queued run: a time, or a delay. A number is a delay in seconds."""
    deliver: bool = True
    """Whether the workers of the store drive a queued run. If not, another queue delivers it."""
    owner: str | None = None
    """The digest of the access key of the client that starts the run."""
    fork: Any = None
    """The `Fork` object of `_machine/fork.py` if the next run is a fork of another run."""


CALL_OPTIONS = frozenset({"history", "deps", "run_id", "thread", "before", "priority", "not_before", "deliver"})
"""The keyword arguments of `using` that are not settings."""


class CachedSpec(NamedTuple):
    """A compiled spec, and the attribute values from which it was compiled, which show later changes."""

    source: object
    """The class of a class spec, or the class spec of an instance spec."""
    values: list[Any]
    containers: list[Any]
    """The lists and dicts among the values."""
    contents: list[Any]
    """Copies of the containers."""
    spec: Spec


class LastRuns:
    """A dict that maps each asyncio task and OS thread to the last run of one instance there."""

    __slots__ = ("_limit", "_runs")

    def __init__(self) -> None:
        self._runs: WeakKeyDictionary[Place, Run] = WeakKeyDictionary()
        self._limit = 8
        """The number of entries above which `remember` removes the entries of finished tasks and threads."""

    def remember(self, places: tuple[Place, ...], run: Run) -> None:
        for place in places:
            self._runs[place] = run
        if len(self._runs) > self._limit:
            self._remove_finished()

    def find(self, places: tuple[Place, ...]) -> Run | None:
        return next((run for run in map(self._runs.get, places) if run is not None), None)

    def _remove_finished(self) -> None:
        """Remove the runs of finished asyncio tasks and OS threads.

        Weak references are not sufficient, because the traceback of a failed run may refer to its task forever.
        """
        for reference in self._runs.keyrefs():
            place = reference()
            if place is not None and _is_finished(place):
                self._runs.pop(place, None)
        self._limit = 2 * len(self._runs) + 8


class OpenAgentSources(Protocol):
    """The interface of an object that contains the open tool sources of an instance.

    `_drive/sources.py` implements the interface.
    """

    def for_copy(self) -> OpenAgentSources: ...


class AgentBase:
    """The base class of `module`, which stores the private state of module classes and their instances."""

    system_prompt: Any
    """The system prompt setting, which has no default. `module` documents this attribute."""
    __acorn_module__: ClassVar[type[AgentBase]]
    """The class `module` itself."""
    __acorn_locals__: ClassVar[Mapping[str, object]] = {}
    """The local variables that the type hints of a class may use, if the class is defined inside a function."""
    __acorn_class_spec__: ClassVar[CachedSpec | None] = None
    """The cached spec of a class. A subclass inherits this attribute, but the entry contains its class."""
    __acorn_spec__: CachedSpec | None = None
    """The cached spec of an instance that sets attributes."""
    __acorn_call_options__: CallOptions = CallOptions()
    """The options of the next call of an instance."""
    __acorn_last_runs__: LastRuns | None = None
    __acorn_open_sources__: OpenAgentSources | None = None


NOT_COPIED = ("__acorn_spec__", "__acorn_last_runs__", "__acorn_open_sources__")
"""The attributes of an instance that copies and pickles do not contain."""


def set_call_options(agent: AgentBase, options: CallOptions) -> None:
    """Replace the options for the next call of an instance."""
    set_private(agent, "__acorn_call_options__", options)


def set_private(agent: AgentBase, name: str, value: object) -> None:
    """Set a private attribute of an instance, even if its class forbids assignment, such as a frozen dataclass."""
    object.__setattr__(agent, name, value)


# The last run of an instance


def last_run(agent: AgentBase) -> Run | None:
    """Return the last run of an instance in the current asyncio task, or else in the current OS thread."""
    last_runs = agent.__acorn_last_runs__
    return None if last_runs is None else last_runs.find(current_places())


def remember_run(run: Run, agent: AgentBase, places: tuple[Place, ...]) -> None:
    """Store a run as the last run of an instance in the tasks and OS threads in `places`."""
    last_runs = agent.__acorn_last_runs__
    if last_runs is None:
        last_runs = vars(agent).setdefault("__acorn_last_runs__", LastRuns())  # Another thread may do the same.
    last_runs.remember(places, run)


def current_places() -> tuple[Place, ...]:
    """Return a tuple of the current asyncio task, if there is one, and the current OS thread."""
    thread = threading.current_thread()
    if "asyncio" in sys.modules:
        with suppress(RuntimeError):
            task = sys.modules["asyncio"].current_task()
            if task is not None:
                return task, thread
    return (thread,)


def _is_finished(place: Place) -> bool:
    return not place.is_alive() if isinstance(place, threading.Thread) else place.done()
