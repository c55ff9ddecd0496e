"""The errors that all stores raise, so that every store reports a problem with the same message."""

from __future__ import annotations

from acorn.errors import StoreError
from acorn.stores.port import Process, RunCancelledError, RunClaimedError


def run_not_found_error(run_id: str, store: str) -> StoreError:
    return StoreError(f"Run {run_id!r} is not in {store}. To list its runs, use `acorn runs --store {store}`.")


def run_claimed_error(run_id: str, process: Process, heartbeat_age: float) -> RunClaimedError:
    error = RunClaimedError(
        f"Run {run_id} is driven by process {process.pid} on {process.host} (last heartbeat {heartbeat_age:.0f} s "
        f"ago). Wait for the run, or stop the process."
    )
    error.process = process
    return error


def claim_lost_error(run_id: str) -> StoreError:
    """Return the error for a commit from a call that lost the run to a newer call in the same process."""
    return StoreError(
        f"Run {run_id} was stopped, and another call in this process resumed the run. The stopped call writes nothing "
        f"more to the run."
    )


def run_cancelled_error(run_id: str) -> RunCancelledError:
    return RunCancelledError(f"Run {run_id} was cancelled. This process writes nothing more to the run.")
