"""`perform`: claim a run, load or begin it, drive it, and let go of it. Idempotent, for engines that deliver run ids.

A run may be delivered any number of times, anywhere: what was committed is not done again, and one process at a time
drives it.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal, cast

from acorn import module
from acorn._inside import (
    QueuedRun,
    StopSignal,
    agent_name,
    describe_error,
    excerpt,
    instance_of,
    is_agent,
    stored_settings,
)
from acorn.errors import DeclarationError, StoreError
from acorn.stores import messages
from acorn.stores.lease import (
    claim_run,
    is_driven_through_other_store,
    stop_heartbeat,
    this_process,
    try_start_heartbeat,
)
from acorn.stores.open import open_store
from acorn.stores.port import RunClaimedError, Status, Store, StoredRun
from acorn.types import JsonObject

Ended = Literal["done", "waiting", "failed", "cancelled"]
"""What a run is at when nobody needs to deliver it again, unless people answer what it waits for."""
Lookup = Callable[[str], Any]
"""Finds a class or an instance by its name; None: it knows none."""
_OVER: tuple[Status, ...] = ("done", "failed", "cancelled")


class DeliverAgainError(StoreError):
    """The run is not done: another process drives it, or this one was to stop. Deliver it again."""

    is_queued: bool = False
    """Whether it stopped here, and is `queued`: the workers of its store need not be told."""


def perform(store: Any, run_id: str, agents: Any = None, *, stop: threading.Event | None = None) -> Ended:
    """Drive a run to its end, or until it waits for people, and say which; one that had ended stays as it is.

        perform("postgresql://host/name", run_id)

    The class of the run is found by its name, `module:Class`: this process has it, or Python can import it. `agents`
    says which are meant instead: a class, or an instance that has what is not kept (`deps`), or several, or a function
    that finds one by its name. A run that fails is `"failed"`, and is not tried again. Whatever is raised means that
    the run is not done: `DeliverAgainError` where another process drives it, or where `stop` was set and the run has
    stopped at its last commit; a `StoreError` where the store, or the class, is in the way.
    """
    delivery = _Delivery(store, run_id, agents, stop)
    ended = delivery.ended()
    if ended is not None:
        return ended
    with delivery:
        try:
            queued = delivery.claim()
        except _AlreadyOverError as over:
            return over.status
        try:
            queued.drive()
        except (Exception, StopSignal) as error:
            return delivery.outcome(queued, error)
        return delivery.outcome(queued, None)


async def aperform(store: Any, run_id: str, agents: Any = None, *, stop: threading.Event | None = None) -> Ended:
    """The same on the event loop."""
    delivery = _Delivery(store, run_id, agents, stop)
    ended = await asyncio.to_thread(delivery.ended)
    if ended is not None:
        return ended
    with delivery:
        try:
            queued = await QueuedRun.build(delivery.claim)
        except _AlreadyOverError as over:
            return over.status
        try:
            await queued.adrive()
        except (Exception, StopSignal) as error:
            return delivery.outcome(queued, error)
        return delivery.outcome(queued, None)


class _AlreadyOverError(Exception):
    """There is nothing to drive."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status: Ended = cast(Ended, status)


class _Delivery:
    """One run that was delivered to this process; inside the block the process holds it."""

    def __init__(self, store: Any, run_id: str, agents: Any, stop: threading.Event | None) -> None:
        self._find = _lookup(agents)
        self._run_id, self._stop = run_id, stop
        self._store: Store = open_store(store, "`store` of `perform`")

    def ended(self) -> Ended | None:
        """What the run has come to, where it is over."""
        status = self._store.statuses([self._run_id]).get(self._run_id)
        if status is None:
            raise messages.run_not_found(self._run_id, self._store.name)
        return cast(Ended, status) if status in _OVER else None

    def __enter__(self) -> None:
        if not try_start_heartbeat(self._store, self._run_id):
            raise _driven_here(self._run_id)

    def __exit__(self, *_: object) -> None:
        stop_heartbeat(self._store, self._run_id)

    def claim(self) -> QueuedRun:
        """The run, ready to be driven; it is as it was where that cannot be."""
        found = self._claimed()
        status = found[0].facts.status
        if status in ("done", "cancelled"):
            raise _AlreadyOverError(status)
        try:
            agent = self._agent(found[0])
            return QueuedRun(agent, found, self._store, self._stop)
        except BaseException:
            self._store.release(self._run_id, this_process(), "stopped" if status == "running" else status)
            raise

    def _claimed(self) -> list[StoredRun]:
        run_id, here = self._run_id, this_process()
        try:
            found = claim_run(self._store, run_id)
        except RunClaimedError as error:
            if error.process is None or error.process.id != here.id:
                raise DeliverAgainError(str(error)) from error
            if is_driven_through_other_store(self._store, run_id):
                raise _driven_here(run_id) from error
            # Nothing in this process drives it: it could not be let go of, since the store was away.
            self._store.release(run_id, here, "stopped")
            found = claim_run(self._store, run_id)
        except StoreError:
            if self._store.statuses([run_id]).get(run_id) == "failed":  # it took its last process with it
                raise _AlreadyOverError("failed") from None
            raise
        if found is None:
            raise messages.run_not_found(run_id, self._store.name)
        return list(found)

    def _agent(self, kept: StoredRun) -> Any:
        name = kept.header.agent
        which = self._find(name)
        if which is None:
            raise StoreError(
                f"The run {self._run_id} in {self._store.name} is one of `{name}`, which is not among the agents that "
                f"are driven here; it is left as it was. A class that has another name by now is found by a function: "
                f"`perform(store, run_id, lambda name: NewName)`."
            )
        return instance_of(which).using(store=self._store, **stored_settings(kept))

    def outcome(self, queued: QueuedRun, error: BaseException | None) -> Ended:
        """What the run has come to; where that is no end, or was not kept, an error."""
        status = queued.status
        if status == "cancelled":
            return status
        if queued.fatal_error is not None:
            raise queued.fatal_error
        if isinstance(error, StopSignal):
            handed = DeliverAgainError(f"The run {self._run_id} has stopped at its last commit; deliver it again.")
            handed.is_queued = True
            raise handed from None
        if error is not None and status != "failed":
            raise error
        return cast(Ended, status)


def _driven_here(run_id: str) -> DeliverAgainError:
    return DeliverAgainError(f"The run {run_id} is being driven by this process; deliver it again later.")


def _lookup(agents: Any) -> Lookup:
    """How to find an agent by its name."""
    if agents is None:
        return _by_name
    if is_agent(agents):
        agents = [agents]
    elif callable(agents):
        found: Lookup = agents
        return found
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise _no_agents(agents)
    several = list(agents)
    for each in several:
        if not is_agent(each):
            raise _no_agents(each)
    return named_agents(several).get


def named_agents(agents: Iterable[Any]) -> JsonObject:
    """Agents by what every process calls their classes, which is all that a run says of its own."""
    named: JsonObject = {}
    for each in agents:
        name = agent_name(each)
        if named.setdefault(name, each) is not each:
            raise DeclarationError(
                f"Two of the agents are `{name}`, and a run of it would be driven by either; give one of them, or two "
                f"classes with names of their own."
            )
    return named


def _by_name(name: str) -> Any:
    """The class that every process calls so: one that is here already, or that comes by an import."""
    source, _, path = name.partition(":")
    found = _known(name)
    if found is None and "<" not in path:  # one inside of a function does not come by an import
        try:
            importlib.import_module(source)
        except (Exception, SystemExit) as error:  # whatever the code there raises
            raise StoreError(
                f"`{name}`, the class of the run, is not here, and `{source}` cannot be imported "
                f"({describe_error(error)}); "
                f"import it before, or give it: `perform(store, run_id, {path})`."
            ) from error
        found = _known(name)
    return found


def _known(name: str) -> Any:
    """The class of that name that is here; of one that was defined anew, as in a notebook, the newest."""
    found: Any = None
    left: list[Any] = [module]
    for each in left:
        below = each.__subclasses__()
        left += below
        found = next((cls for cls in reversed(below) if agent_name(cls) == name), found)
    return found


def _no_agents(given: Any) -> DeclarationError:
    return DeclarationError(
        f"`agents` of `perform` must be a module class, an instance, several of them, or a function that finds one by "
        f"its name, got {excerpt(given)}."
    )
