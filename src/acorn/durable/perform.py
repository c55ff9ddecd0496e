"""The function `perform`, which drives a run that a job engine delivers to this process.

`perform` is idempotent. A job engine may deliver a run any number of times to any process: acorn does not repeat
committed work, and only one process at a time drives the run.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Literal, cast

from acorn import module
from acorn._inside import StopSignal, agent_name, describe_error, excerpt, is_agent
from acorn._inside.runs import ClaimedRun, build_in_thread
from acorn.errors import DeclarationError, StoreError
from acorn.stores import lease
from acorn.stores.open import open_store
from acorn.stores.port import RunClaimedError, Status, Store, StoredRun, run_not_found_error
from acorn.types import JsonObject

Ended = Literal["done", "waiting", "failed", "cancelled"]
"""The status of a run that the job engine need not deliver again.

A `waiting` run must be delivered again after a user has answered its request.
"""
Lookup = Callable[[str], Any]
"""A function that accepts a class name and returns the agent, or None if the agent is unknown."""
_ENDED: tuple[Status, ...] = ("done", "failed", "cancelled")


class DeliverAgainError(StoreError):
    """The run has not ended, so the job engine must deliver the run again.

    This error is raised if another process drives the run, or if the run stopped because `stop` was set.
    """

    is_queued: bool = False
    """Whether the run stopped in this process and is `queued`. The workers of its store then receive the run again."""


def perform(store: Any, run_id: str, agents: Any = None, *, stop: threading.Event | None = None) -> Ended:
    """Drive a run until it ends or waits for human input, and return its status.

        perform("postgresql://host/name", run_id)

    If the run has already ended, `perform` only returns its status.

    A stored run contains the name of its agent class (`module:Class`). By default, `perform` uses this class and
    imports its module if necessary. To use other agents, set `agents` to a class, an instance (with settings that are
    not stored, such as `deps`), a list of classes and instances, or a function that accepts a name and returns a class
    or an instance.

    If the run fails, `perform` returns `"failed"` and does not try the run again. If `perform` raises an exception, the
    run has not ended. It raises `DeliverAgainError` if another process drives the run, or if `stop` was set and the run
    stopped at its last commit. It raises `StoreError` if there is a problem with the store or the agent class.
    """
    delivery = _Delivery(store, run_id, agents, stop)
    try:
        delivery.check_status()
        with delivery:
            run = delivery.claim()
            with delivery.outcome(run):
                run.drive()
            return cast(Ended, run.status)
    except _AlreadyEndedError as ended:
        return ended.status


async def aperform(store: Any, run_id: str, agents: Any = None, *, stop: threading.Event | None = None) -> Ended:
    """Drive a run on the event loop until it ends or waits for human input, and return its status.

    See `perform`.
    """
    delivery = _Delivery(store, run_id, agents, stop)
    try:
        await asyncio.to_thread(delivery.check_status)
        with delivery:
            run = await build_in_thread(delivery.claim)
            with delivery.outcome(run):
                await run.adrive()
            return cast(Ended, run.status)
    except _AlreadyEndedError as ended:
        return ended.status


class _AlreadyEndedError(Exception):
    """An internal signal that a run has already ended. It contains the status of the run."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status: Ended = cast(Ended, status)


class _Delivery:
    """One run that a job engine has delivered to this process.

    Inside the `with` block of this object, this process sends heartbeats for the run.
    """

    def __init__(self, store: Any, run_id: str, agents: Any, stop: threading.Event | None) -> None:
        self._find = _agent_lookup(agents)
        self._run_id, self._stop = run_id, stop
        self._store: Store = open_store(store, "`store` of `perform`")

    def check_status(self) -> None:
        """Raise `_AlreadyEndedError` if the run has ended."""
        status = self._store.statuses([self._run_id]).get(self._run_id)
        if status is None:
            raise run_not_found_error(self._run_id, self._store.name)
        if status in _ENDED:
            raise _AlreadyEndedError(status)

    def __enter__(self) -> None:
        if not lease.start_heartbeat(self._store, self._run_id, is_exclusive=True):
            raise _already_driven_error(self._run_id)

    def __exit__(self, *_: object) -> None:
        lease.stop_heartbeat(self._store, self._run_id)

    def claim(self) -> ClaimedRun:
        """Claim the run and load it.

        If the run cannot be loaded, release the claim and set the status that the run had before.
        """
        tree = self._claim_tree()
        status = tree[0].facts.status
        if status in ("done", "cancelled"):
            raise _AlreadyEndedError(status)
        try:
            agent = self._agent(tree[0])
            return ClaimedRun(agent, tree, self._store, self._stop)
        except BaseException:
            self._store.release(self._run_id, lease.this_process(), "stopped" if status == "running" else status)
            raise

    def _claim_tree(self) -> list[StoredRun]:
        run_id, here = self._run_id, lease.this_process()
        try:
            tree = lease.claim_run(self._store, run_id)
        except RunClaimedError as error:
            if error.process is None or error.process.id != here.id:
                raise DeliverAgainError(str(error)) from error
            if lease.is_driven_through_other_store(self._store, run_id):
                raise _already_driven_error(run_id) from error
            # No call in this process drives the run. An earlier call could not release the run, because the store was
            # unreachable.
            self._store.release(run_id, here, "stopped")
            tree = lease.claim_run(self._store, run_id)
        except StoreError:
            if self._store.statuses([run_id]).get(run_id) == "failed":  # The claim was the fifth takeover at one step.
                raise _AlreadyEndedError("failed") from None
            raise
        if tree is None:
            raise run_not_found_error(run_id, self._store.name)
        return list(tree)

    def _agent(self, stored: StoredRun) -> Any:
        name = stored.header.agent
        agent = self._find(name)
        if agent is None:
            raise StoreError(
                f"Cannot drive run {self._run_id} in {self._store.name}: its class `{name}` is not among the agents of "
                f"this process. The run was not changed. If the class was renamed, pass a function: "
                f"`perform(store, run_id, lambda name: NewName)`."
            )
        return agent

    @contextmanager
    def outcome(self, run: ClaimedRun) -> Generator[None]:
        """Ignore the error of a run that is driven in the `with` block if the run has ended.

        Raise an error if the run has not ended, or if its result could not be stored.
        """
        error: BaseException | None = None
        try:
            yield
        except (Exception, StopSignal) as caught:
            error = caught
        if run.status == "cancelled":
            return
        if run.fatal_error is not None:
            raise run.fatal_error
        if isinstance(error, StopSignal):
            stopped = DeliverAgainError(f"Run {self._run_id} stopped at its last commit. Deliver it again.")
            stopped.is_queued = True
            raise stopped from None
        if error is not None and run.status != "failed":
            raise error


def _already_driven_error(run_id: str) -> DeliverAgainError:
    return DeliverAgainError(f"Run {run_id} is already driven by this process. Deliver it again later.")


def _agent_lookup(agents: Any) -> Lookup:
    """Return a function that finds the agent for a class name. `agents` is the argument of `perform`."""
    if agents is None:
        return _find_class
    if callable(agents) and not is_agent(agents):
        lookup: Lookup = agents
        return lookup
    if is_agent(agents) or isinstance(agents, str) or not isinstance(agents, Iterable):
        agents = [agents]
    listed: list[Any] = [*agents]
    for agent in listed:
        if not is_agent(agent):
            raise DeclarationError(
                f"`agents` of `perform` must be a module class, an instance, a list of classes and instances, or a "
                f"function that accepts a class name and returns an agent, got {excerpt(agent)}."
            )
    return agents_by_name(listed).get


def agents_by_name(agents: Iterable[Any]) -> JsonObject:
    """Return a dict that maps the class name of each agent (`module:Class`) to the agent."""
    by_name: JsonObject = {}
    for agent in agents:
        name = agent_name(agent)
        if by_name.setdefault(name, agent) is not agent:
            raise DeclarationError(
                f"Two agents have the class name `{name}`, so the agent for a run of this class is ambiguous. Pass "
                f"only one of these agents, or rename one of the classes."
            )
    return by_name


def _find_class(name: str) -> Any:
    """Return the class with the name `module:Class`.

    If the class is not loaded, import its module. Return None if the module does not contain the class.
    """
    source, _, path = name.partition(":")
    agent_class = _loaded_class(name)
    if agent_class is None and "<" not in path:  # Python cannot import a class that is defined inside a function.
        try:
            importlib.import_module(source)
        except (Exception, SystemExit) as error:  # User code may raise anything.
            raise StoreError(
                f"Cannot find `{name}`, the class of the run: `{source}` cannot be imported ({describe_error(error)}). "
                f"Import the module before, or pass the class: `perform(store, run_id, {path})`."
            ) from error
        agent_class = _loaded_class(name)
    return agent_class


def _loaded_class(name: str) -> Any:
    """Return the loaded class with the name `module:Class`, or None if no such class is loaded.

    If the class was defined several times, as in a notebook, return the newest class.
    """
    newest: Any = None
    pending: list[Any] = [module]
    for base in pending:
        subclasses = base.__subclasses__()
        pending += subclasses
        newest = next((cls for cls in reversed(subclasses) if agent_name(cls) == name), newest)
    return newest
