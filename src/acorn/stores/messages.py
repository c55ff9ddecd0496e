"""The errors of all stores, so that every store reports a problem with the same message."""

from __future__ import annotations

from datetime import UTC, datetime

from acorn.errors import StoreError
from acorn.stores.port import Process, RunCancelledError, RunClaimedError, Status


def run_not_found(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id!r} is not in {store}. To list its runs, use `acorn runs --store {store}`.")


def claimed_elsewhere(run_id: str, process: Process, heartbeat_age: float) -> RunClaimedError:
    error = RunClaimedError(
        f"Run {run_id} is driven by process {process.pid} on {process.host} (last heartbeat {heartbeat_age:.0f} s "
        f"ago). Wait for the run, or stop that process."
    )
    error.process = process
    return error


def run_exists(run_id: str, store: str, status: Status, driver: StoreError | None) -> StoreError:
    """A new run has an id that is in use."""
    if driver is not None:
        return driver
    return StoreError(f"Run {run_id} is already in {store} (status `{status}`). Resume it, or use another id.")


def no_workers(store: str) -> StoreError:
    return StoreError(
        f"{store} cannot deliver runs to workers. Workers need a PostgreSQL store, such as "
        f"`store = 'postgresql://host/name'`. Call the agent here, or submit the run with `using(deliver=False)` and "
        f"pass its id to `acorn.durable.perform`."
    )


def taken_over(run_id: str, new_process: Process | None, heartbeat_age: float, status: Status) -> StoreError:
    """A process commits to a run that it no longer drives."""
    if new_process is not None:
        return StoreError(
            f"Run {run_id} was taken over by process {new_process.pid} on {new_process.host}, because this process "
            f"sent no heartbeat for {heartbeat_age:.0f} s. This process writes nothing more to the run."
        )
    return StoreError(
        f"Run {run_id} is no longer driven by this process (its status is `{status}`). This process writes nothing "
        f"more to the run."
    )


def claim_lost(run_id: str) -> StoreError:
    """Another call in this process drives the run."""
    return StoreError(
        f"Run {run_id} was stopped here, and another call in this process resumed it. The stopped call writes nothing "
        f"more to the run."
    )


def run_deleted(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id} is no longer in {store}. This process writes nothing more to the run.")


def unknown_run(run_id: str) -> StoreError:
    return StoreError(
        f"Cannot store a change of run {run_id}: the run is not part of the tree. Its first change needs a header. "
        f"Nothing was written."
    )


def wrong_offset(run_id: str, stored_entries: int, offset: int) -> StoreError:
    """A change does not start where the stored journal ends."""
    return StoreError(
        f"Cannot store a change of run {run_id}: its journal has {stored_entries} entries, but the change starts "
        f"after {offset}. Nothing was written."
    )


def parent_missing(run_id: str, parent: str | None, root: str) -> StoreError:
    return StoreError(
        f"Cannot create run {run_id}: its parent {parent!r} does not belong to run {root}. Nothing was written."
    )


def branch_exists(run_id: str, store: str) -> StoreError:
    return StoreError(f"Cannot create branch {run_id}: it is already in {store}. Nothing was written.")


def cancelled_by_request(run_id: str) -> RunCancelledError:
    return RunCancelledError(f"Run {run_id} was cancelled. This process writes nothing more to the run.")


def is_branch(run_id: str, root: str) -> StoreError:
    return StoreError(f"Run {run_id} is a branch of run {root}. Use the id of that run.")


def too_many_crashes(run_id: str) -> str:
    return (
        f"Run {run_id} failed: five processes died while they executed this step. Check the step before you resume "
        f"the run."
    )


def already_finished(run_id: str, status: Status) -> StoreError:
    return StoreError(f"Cannot cancel run {run_id}: it is already finished (status `{status}`).")


def request_not_open(request_id: str, store: str) -> StoreError:
    return StoreError(f"Request {request_id!r} is not open in {store}. Its run may have withdrawn it.")


def already_answered(request_id: str, at: datetime) -> StoreError:
    return StoreError(f"Request {request_id} was already answered at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC.")


def answer_not_json(request_id: str, error: Exception) -> StoreError:
    return StoreError(f"The answer to request {request_id} cannot be stored as JSON ({error}). Use only JSON data.")
