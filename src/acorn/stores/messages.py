"""What stores say when they refuse, in the same words whichever store it is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from acorn.errors import StoreError
from acorn.stores.port import Process, RunCancelledError, RunClaimedError, Status

OVER: tuple[Status, ...] = ("done", "cancelled")
"""A run that is at one of these is not driven again."""
MOST_TAKE_OVERS = 5
"""A run whose drivers died so often at one step is given up."""


def no_run(run_id: str, store: str) -> StoreError:
    return StoreError(f"There is no run {run_id!r} in {store}; `acorn runs --store {store}` lists what there is.")


def claimed_elsewhere(run_id: str, holder: Process, silence: float) -> RunClaimedError:
    error = RunClaimedError(
        f"The run {run_id} is being driven by process {holder.pid} on {holder.host} (last heard of {silence:.0f} s "
        f"ago); wait for it, or stop that process."
    )
    error.holder = holder
    return error


def exists(run_id: str, store: str, status: Status, driver: StoreError | None) -> StoreError:
    """A run was to begin under an id that is in use."""
    if driver is not None:
        return driver
    return StoreError(f"The run {run_id} is in {store} already (it is `{status}`); go on with it, or take another id.")


def no_engine(store: str) -> StoreError:
    return StoreError(
        f"{store} has no workers that could drive a run: those need a PostgreSQL store, as in "
        f"`store = 'postgresql://host/name'`. Call the agent here, or put the run by `using(deliver=False)` and hand "
        f"its id to `acorn.durable.perform` yourself."
    )


def lost(run_id: str, taker: Process | None, silence: float, status: Status) -> StoreError:
    """Whoever commits does not hold the run any more."""
    if taker is not None:
        return StoreError(
            f"The run {run_id} was taken over by process {taker.pid} on {taker.host} while this process was silent "
            f"for {silence:.0f} s; nothing more is written from here."
        )
    return StoreError(
        f"The run {run_id} is not driven by this process any more (it is `{status}` by now); nothing more is written "
        f"from here."
    )


def claim_lost(run_id: str) -> StoreError:
    """Something else in this process holds it by now."""
    return StoreError(
        f"The run {run_id} was stopped here, and another call in this process goes on with it; nothing more is written "
        f"from here."
    )


def deleted(run_id: str, store: str) -> StoreError:
    return StoreError(f"The run {run_id} is not in {store} any more; nothing more is written from here.")


def store_incomplete(run_id: str, kept: int | None, since: int) -> StoreError:
    """A change does not go on where the last one ended."""
    if kept is None:
        return StoreError(f"The run {run_id} is not part of the tree that is written; it has to be born first.")
    return StoreError(
        f"The journal of the run {run_id} has {kept} entries, and what was to be added begins behind {since}; nothing "
        f"was written."
    )


def parent_missing(run_id: str, parent: str | None, root: str) -> StoreError:
    return StoreError(
        f"The run {run_id} cannot be born below {parent!r}, which is not part of the tree of {root}; nothing was "
        f"written."
    )


def created_twice(run_id: str, store: str) -> StoreError:
    return StoreError(f"The branch {run_id} is in {store} already; nothing was written.")


def cancelled_by_request(run_id: str) -> RunCancelledError:
    return RunCancelledError(f"The run {run_id} was cancelled; nothing more is written from here.")


def is_branch(run_id: str, root: str) -> StoreError:
    return StoreError(f"The run {run_id} is a branch of {root}; use that id.")


def too_many_crashes(run_id: str) -> str:
    return (
        f"The run {run_id} took five processes with it: each died while it drove this step. Look at what the step "
        f"does before you resume the run."
    )


def is_over(run_id: str, status: Status) -> StoreError:
    return StoreError(f"The run {run_id} is over (`{status}`); there is nothing to cancel.")


def no_request(request_id: str, store: str) -> StoreError:
    return StoreError(f"There is no open request {request_id!r} in {store}; it may have been withdrawn.")


def answered(request_id: str, at: datetime) -> StoreError:
    return StoreError(f"The request {request_id} was answered already, at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC.")


def not_plain(request_id: str, error: Exception) -> StoreError:
    return StoreError(f"The answer to the request {request_id} is not plain data ({error}); give what JSON can hold.")


def ends(status: Status) -> bool:
    """Whether a run that somebody wants cancelled may still come to this."""
    return status in ("done", "failed", "cancelled", "stopped")


def with_cancelling(status: Status, is_wanted: bool) -> Status:
    """What a run that is let go of is at, where somebody may have wanted it cancelled."""
    return "cancelled" if is_wanted and status not in ("done", "failed") else status


def is_named(agent: str, wanted: str) -> bool:
    """Whether a class, `module:qualname`, is the one that somebody names, with or without its module."""
    return agent == wanted or agent.endswith((f":{wanted}", f".{wanted}"))


def as_seen(status: Status, is_wanted: bool, is_driven: Callable[[], bool]) -> Status:
    """What a run is at: one that says `running` and that nobody drives was stopped."""
    if status != "running" or is_driven():
        return status
    return "cancelled" if is_wanted else "stopped"
