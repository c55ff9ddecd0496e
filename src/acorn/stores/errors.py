"""The errors that all stores raise, so that every store reports a problem with the same message."""

from __future__ import annotations

from datetime import UTC, datetime

from acorn.errors import StoreError
from acorn.stores.port import Process, RunCancelledError, RunClaimedError, Status


def run_not_found_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id!r} is not in {store}. To list its runs, use `acorn runs --store {store}`.")


def run_claimed_error(run_id: str, process: Process, heartbeat_age: float) -> RunClaimedError:
    error = RunClaimedError(
        f"Run {run_id} is driven by process {process.pid} on {process.host} (last heartbeat {heartbeat_age:.0f} s "
        f"ago). Wait for the run, or stop the process."
    )
    error.process = process
    return error


def run_exists_error(run_id: str, store: str, status: Status, driver: StoreError | None) -> StoreError:
    """Return the error for a new run with an id that is already stored.

    `driver` is the `RunClaimedError` if a live process drives the stored run. In this case, return `driver`.
    """
    if driver is not None:
        return driver
    return StoreError(f"Run {run_id} is already in {store} (status `{status}`). Resume the run, or use another id.")


def no_workers_error(store: str) -> StoreError:
    return StoreError(
        f"{store} cannot deliver runs to workers. Workers need a PostgreSQL store, such as "
        f"`store = 'postgresql://host/name'`. Without workers, call the agent in this process, or submit the run with "
        f"`using(deliver=False)` and pass its id to `acorn.durable.perform`."
    )


def taken_over_error(run_id: str, new_process: Process | None, heartbeat_age: float, status: Status) -> StoreError:
    """Return the error for a commit from a process that no longer drives the run."""
    if new_process is not None:
        return StoreError(
            f"Run {run_id} was taken over by process {new_process.pid} on {new_process.host}, because this process "
            f"sent no heartbeat for {heartbeat_age:.0f} s. This process writes nothing more to the run."
        )
    return StoreError(
        f"Run {run_id} is no longer driven by this process (its status is `{status}`). This process writes nothing "
        f"more to the run."
    )


def claim_lost_error(run_id: str) -> StoreError:
    """Return the error for a commit from a call that lost the run to a newer call in the same process."""
    return StoreError(
        f"Run {run_id} was stopped, and another call in this process resumed the run. The stopped call writes nothing "
        f"more to the run."
    )


def run_deleted_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id} is no longer in {store}. This process writes nothing more to the run.")


def unknown_run_error(run_id: str) -> StoreError:
    return StoreError(
        f"Cannot store a change of run {run_id}: it does not belong to the root run of the commit. The first change of "
        f"a run needs a header. Nothing was written."
    )


def wrong_offset_error(run_id: str, stored_entries: int, offset: int) -> StoreError:
    """Return the error for a change with new journal entries that do not start at the end of the stored journal."""
    return StoreError(
        f"Cannot store a change of run {run_id}: the stored journal has {stored_entries} entries, but the change "
        f"starts after entry {offset}. Nothing was written."
    )


def parent_missing_error(run_id: str, parent: str | None, root: str) -> StoreError:
    return StoreError(
        f"Cannot create run {run_id}: its parent {parent!r} does not belong to run {root}. Nothing was written."
    )


def branch_exists_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Cannot create branch {run_id}: a run with this id is already in {store}. Nothing was written.")


def run_cancelled_error(run_id: str) -> RunCancelledError:
    return RunCancelledError(f"Run {run_id} was cancelled. This process writes nothing more to the run.")


def branch_id_error(run_id: str, root: str) -> StoreError:
    return StoreError(f"Run {run_id} is a branch of run {root}. Use the id of run {root}.")


def too_many_crashes_text(run_id: str) -> str:
    return (
        f"Run {run_id} failed: five processes died while they executed this step. Check the step before you resume "
        f"the run."
    )


def already_finished_error(run_id: str, status: Status) -> StoreError:
    return StoreError(f"Cannot cancel run {run_id}: it is already finished (status `{status}`).")


def request_not_open_error(request_id: str, store: str) -> StoreError:
    return StoreError(f"Request {request_id!r} is not open in {store}. Its run may have withdrawn the request.")


def already_answered_error(request_id: str, at: datetime) -> StoreError:
    return StoreError(f"Request {request_id} was already answered at {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC.")


def answer_not_json_error(request_id: str, error: Exception) -> StoreError:
    return StoreError(f"The answer to request {request_id} cannot be stored as JSON ({error}). Use only JSON data.")
