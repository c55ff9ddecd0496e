"""SQL statements of the PostgreSQL store that change claims, leases and unanswered requests for human input.

The writer calls each function inside a transaction. If a function raises `StoreError`, its writes are undone. A
transaction that writes to a run first locks the table row of its root run, and keeps this lock until the transaction
ends. This fixed order prevents deadlocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from acorn.errors import StoreError
from acorn.stores import rules
from acorn.stores.lease import lease_seconds
from acorn.stores.port import Process, Status, StoredRun
from acorn.stores.postgres import reads
from acorn.stores.postgres.connection import Transaction
from acorn.stores.postgres.queue import deliver_again
from acorn.types import Request

CHANGE_CHANNEL = "acorn_changes"
"""The channel of notifications that a watched tree changed. The payload is the number of the root."""
CANCEL_CHANNEL = "acorn_cancel_requests"
"""The channel of notifications about cancel requests. The payload is the id of the process that drives the run."""


# Runs


class RunRow(NamedTuple):
    """The columns of a run that the write functions check before they change the run."""

    number: int
    status: Status
    process: str | None
    cancel_requested: bool
    open_requests: int
    root: int | None
    heartbeat_age: float
    takeovers: int
    takeover_steps: int
    is_delivered: bool
    error: str | None
    is_watched: bool


LOCK_RUN = f"""
    SELECT {", ".join(RunRow._fields[:-1])}, coalesce(watched_until > clock_timestamp(), false)
    FROM acorn.runs WHERE id = $1 FOR UPDATE
""".encode()


def lock_run(transaction: Transaction, run_id: str) -> RunRow | None:
    """Lock the table row of a run until the end of the transaction, and return the row.

    Return None if the run does not exist.
    """
    row = transaction.execute(LOCK_RUN, [run_id]).fetchone()
    return None if row is None else RunRow(*row)


def notify_watchers(transaction: Transaction, root: RunRow) -> None:
    """Send a notification that a root run or one of its branches changed, if a process watches the root run."""
    if root.is_watched:
        transaction.notifications.append((CHANGE_CHANNEL, str(root.number)))


def status_and_driver(transaction: Transaction, run_id: str, run: RunRow) -> tuple[Status, StoreError | None]:
    """Return the reported status of a run and an error.

    The error is a `RunClaimedError` if a live process drives the run, and None otherwise.
    """
    driver = reads.read_process(transaction, run.process) if run.status == "running" else None
    is_driven = driver is not None and driver.is_alive()
    status = rules.visible_status(run.status, run.cancel_requested, is_driven)
    if driver is None or not is_driven:
        return status, None
    return status, rules.run_claimed_error(run_id, driver.process, driver.heartbeat_age)


def refuse_branch(transaction: Transaction, run_id: str, run: RunRow) -> None:
    """Raise `StoreError` if a run is a branch, because only root runs can be claimed, cancelled and deleted."""
    if run.root is not None:
        (root,) = transaction.execute(b"SELECT id FROM acorn.runs WHERE number = $1", [run.root]).fetchone() or ("",)
        raise rules.branch_id_error(run_id, root)


# Claims


def claim(transaction: Transaction, run_id: str, process: Process) -> list[StoredRun] | StoreError | None:
    """Claim a root run for a process, and return the run and all its branches.

    Return None if the run does not exist. If the run fails because too many processes have died while they drove it,
    return the error instead of raising it, because an exception would undo the status `failed`.
    """
    run = lock_run(transaction, run_id)
    if run is None:
        return None
    refuse_branch(transaction, run_id, run)
    status, driver = status_and_driver(transaction, run_id, run)
    if driver is not None:
        raise driver
    tree = reads.tree(transaction, run_id)
    if status in rules.FINAL_STATUSES:
        return tree
    heartbeat_age = 0.0
    if run.status == "running":
        steps = sum(member.facts.steps for member in tree)
        takeovers = run.takeovers + 1 if run.takeover_steps == steps else 1
        sql = b"UPDATE acorn.runs SET takeovers = $1, takeover_steps = $2 WHERE number = $3"
        transaction.execute(sql, [takeovers, steps, run.number])
        if takeovers >= rules.MAX_TAKEOVERS:
            error = rules.too_many_crashes_text(run_id)
            _fail(transaction, run_id, run, error)
            return StoreError(error)
        previous = reads.read_process(transaction, run.process)
        heartbeat_age = previous.heartbeat_age if previous is not None else 0.0
    set_lease(transaction, process, lease_seconds())
    transaction.execute(
        b"""
        UPDATE acorn.runs SET status = 'running', process = $1, heartbeat_age = $2, updated = clock_timestamp()
        WHERE number = $3
        """,
        [process.id, heartbeat_age, run.number],
    )
    notify_watchers(transaction, run)
    return tree


def release(transaction: Transaction, run_id: str, process: Process, status: Status) -> None:
    run = lock_run(transaction, run_id)
    if run is None or run.process != process.id:
        return
    if run.cancel_requested:
        status = rules.status_after_cancel(status)
    set_status(transaction, run_id, run, status)
    # A failed run that is tried again has lost its job and needs a new job. A run without an error still has its job,
    # and a second job would deliver the run again immediately.
    if status == "queued" and run.error is not None:
        transaction.execute(b"UPDATE acorn.runs SET error = NULL WHERE number = $1", [run.number])
        if run.is_delivered:
            deliver_again(transaction, run_id)


def set_status(transaction: Transaction, run_id: str, run: RunRow, status: Status) -> None:
    """Set the status of a root run and remove the claim of its process."""
    transaction.execute(
        b"""
        UPDATE acorn.runs SET status = $1, process = NULL, cancel_requested = false, updated = clock_timestamp()
        WHERE number = $2
        """,
        [status, run.number],
    )
    if status == "cancelled":
        set_open_requests(transaction, run_id, ())
    notify_watchers(transaction, run)


def fail_undriven(transaction: Transaction, run_id: str, error: str) -> bool:
    """Set the status of a `queued` or `stopped` run to `failed` and return True.

    If the run has another status or does not exist, change nothing and return False.
    """
    run = lock_run(transaction, run_id)
    if run is None or run.status not in ("queued", "stopped"):
        return False
    _fail(transaction, run_id, run, error)
    return True


def _fail(transaction: Transaction, run_id: str, run: RunRow, error: str) -> None:
    set_status(transaction, run_id, run, "failed")
    transaction.execute(b"UPDATE acorn.runs SET error = $1 WHERE number = $2", [error, run.number])


# Open requests

_INSERT_VALUES = ", ".join(f"${at}" for at in range(2, 2 + len(rules.REQUEST_COLUMNS.split(", "))))


def set_open_requests(transaction: Transaction, root: str, requests: Sequence[Request]) -> None:
    """Replace the unanswered requests for human input of a root run and its branches.

    Answered requests remain unchanged.
    """
    root_number = "(SELECT number FROM acorn.runs WHERE id = $1)"
    transaction.execute(
        f"""
        DELETE FROM acorn.requests WHERE root = {root_number} AND answered IS NULL AND id <> ALL($2::text[])
        """.encode(),
        [root, [request.id for request in requests]],
    )
    sql = f"""
        INSERT INTO acorn.requests (root, {rules.REQUEST_COLUMNS}) VALUES ({root_number}, {_INSERT_VALUES})
        ON CONFLICT (id) DO NOTHING
    """.encode()
    for request in requests:
        transaction.execute(sql, [root, *rules.request_row(request)])
    transaction.execute(
        b"""
        UPDATE acorn.runs SET open_requests = (
          SELECT count(*) FROM acorn.requests WHERE requests.root = runs.number AND answered IS NULL
        ) WHERE id = $1
        """,
        [root],
    )


# Leases of processes

_SET_LEASE = b"""
    INSERT INTO acorn.processes
    VALUES ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp() + make_interval(secs => $6))
    ON CONFLICT (id) DO UPDATE SET last_heartbeat = excluded.last_heartbeat, lease_expires = excluded.lease_expires
"""
_CANCEL_REQUESTED = b"SELECT id FROM acorn.runs WHERE process = $1 AND cancel_requested ORDER BY number"


def set_lease(transaction: Transaction, process: Process, seconds: float) -> None:
    """Store the heartbeat of a process and extend its lease by some seconds."""
    values = (process.id, process.host, process.boot, process.pid, process.started, float(seconds))
    transaction.execute(_SET_LEASE, values)


def renew_lease(transaction: Transaction, process: Process, seconds: float) -> list[str]:
    set_lease(transaction, process, seconds)
    return [run_id for (run_id,) in transaction.execute(_CANCEL_REQUESTED, [process.id]).fetchall()]


def delete_idle_processes(transaction: Transaction) -> None:
    """Delete the rows of processes and writers that have not been active for a day.

    Processes that still drive runs are not deleted.
    """
    transaction.execute(
        b"""
        DELETE FROM acorn.writers WHERE id IN (
          SELECT id FROM acorn.writers WHERE written < clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED
        )
        """
    )
    transaction.execute(
        b"""
        DELETE FROM acorn.processes WHERE id IN (
          SELECT id FROM acorn.processes WHERE lease_expires < clock_timestamp() - interval '1 day'
            AND NOT EXISTS (SELECT FROM acorn.runs WHERE process = processes.id) FOR UPDATE SKIP LOCKED
        )
        """
    )
