"""What people are asked, in the tables of a store in PostgreSQL: kept with a commit, dropped where one is cancelled.

Allowances that all processes of a PostgreSQL database share, in its time.

Who drives a run of a store in PostgreSQL: processes are heard of, claim runs, and let go of them. Each is called
inside a transaction, which its `StoreError` undoes.

Whoever writes of a tree has its root for itself until the transaction ends, and takes it before anything else of the
tree: so nobody waits for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from acorn.errors import StoreError
from acorn.stores import messages, rules
from acorn.stores.lease import lease
from acorn.stores.port import Process, Status, StoredRun, WindowOrder, WindowSlice
from acorn.stores.postgres import reads as reads
from acorn.stores.postgres.connection import Transaction
from acorn.stores.postgres.queue import deliver_again
from acorn.stores.rules import share
from acorn.types import Request

_ROW = ", ".join(f"${at}" for at in range(2, 2 + len(rules.REQUEST.split(", "))))


def ask(transaction: Transaction, root: str, requests: Sequence[Request]) -> None:
    """From now on these are open, those that have an answer apart, and no others."""
    top = "(SELECT number FROM acorn.runs WHERE id = $1)"
    transaction.execute(
        f"DELETE FROM acorn.requests WHERE root = {top} AND answered IS NULL AND id <> ALL($2::text[])".encode(),
        [root, [request.id for request in requests]],
    )
    sql = f"""
        INSERT INTO acorn.requests (root, {rules.REQUEST}) VALUES ({top}, {_ROW})
        ON CONFLICT (id) DO NOTHING
    """.encode()
    for request in requests:
        transaction.execute(sql, [root, *rules.request_row(request)])
    transaction.execute(
        b"""
        UPDATE acorn.runs SET asks = (
          SELECT count(*) FROM acorn.requests WHERE requests.root = runs.number AND answered IS NULL
        ) WHERE id = $1
        """,
        [root],
    )


_LOCK = b"""
    INSERT INTO acorn.allowances VALUES ($1, clock_timestamp()) ON CONFLICT (key) DO UPDATE SET used = excluded.used
"""
_REPORT = b"""
    UPDATE acorn.slices SET requests = told.requests, tokens = told.tokens,
      until = clock_timestamp() + make_interval(secs => told.seconds)
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::float8[]) AS told (number, requests, tokens, seconds)
    WHERE slices.number = told.number
"""
_DROP = b"DELETE FROM acorn.slices WHERE key = $1 AND (until <= clock_timestamp() OR requests = 0)"
_COUNTED = b"""
    SELECT requests, tokens, extract(epoch FROM until - clock_timestamp())::float8 FROM acorn.slices
    WHERE key = $1 ORDER BY until
"""
_TAKE = b"""
    INSERT INTO acorn.slices (key, requests, tokens, until)
    VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4)) RETURNING number
"""
_FORGET = b"""
    DELETE FROM acorn.allowances WHERE key IN (
      SELECT key FROM acorn.allowances WHERE used < clock_timestamp() - interval '1 day'
        AND NOT EXISTS (SELECT FROM acorn.slices WHERE slices.key = allowances.key) FOR UPDATE SKIP LOCKED
    )
"""


def take(transaction: Transaction, order: WindowOrder) -> WindowSlice:
    transaction.execute(_LOCK, [order.key])
    if order.reports:
        transaction.execute(_REPORT, list(map(list, zip(*order.reports, strict=True))))
    transaction.execute(_DROP, [order.key])
    if not order.requests:
        return WindowSlice(0, 0, 0)
    counted: list[tuple[int, int, float]] = transaction.execute(_COUNTED, [order.key]).fetchall()
    came = share(order, counted)
    if not came.requests:
        return came
    row = transaction.execute(_TAKE, [order.key, came.requests, came.tokens, order.seconds]).fetchone()
    assert row is not None
    return came._replace(number=int(row[0]))


def forget(transaction: Transaction) -> None:
    """Allowances that nobody has used for a day."""
    transaction.execute(_FORGET)


NEWS = "acorn_news"
"""Where the numbers of roots that somebody follows are told, when there is something new."""
CANCELLED = "acorn_cancelled"
"""Where the ids of holders are told, when one of their runs is to be cancelled."""


class RunRow(NamedTuple):
    number: int
    status: Status
    holder: str | None
    is_unwanted: bool
    asks: int
    root: int | None
    silence: float
    attempts: int
    attempted: int
    is_delivered: bool
    error: str | None
    is_followed: bool


TAKE = f"""
    SELECT {", ".join(RunRow._fields[:-1])}, coalesce(followed > clock_timestamp(), false)
    FROM acorn.runs WHERE id = $1 FOR UPDATE
""".encode()


def locked(transaction: Transaction, run_id: str) -> RunRow | None:
    """A run that nobody else changes from now on."""
    row = transaction.execute(TAKE, [run_id]).fetchone()
    return None if row is None else RunRow(*row)


def tell_of(transaction: Transaction, root: RunRow) -> None:
    if root.is_followed:
        transaction.news.append((NEWS, str(root.number)))


_REGISTER = b"""
    INSERT INTO acorn.holders
    VALUES ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp() + make_interval(secs => $6))
    ON CONFLICT (id) DO UPDATE SET heard = excluded.heard, until = excluded.until
"""
TURN = b"""
    INSERT INTO acorn.writers VALUES ($1, $2, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET turn = excluded.turn, at = excluded.at
"""
_UNWANTED = b"SELECT id FROM acorn.runs WHERE holder = $1 AND is_unwanted ORDER BY number"


def register(transaction: Transaction, holder: Process, seconds: float) -> None:
    """A process is heard of, and lives for so long."""
    values = (holder.id, holder.host, holder.boot, holder.pid, holder.born, float(seconds))
    transaction.execute(_REGISTER, values)


def count_turn(transaction: Transaction, writer: str, turn: int) -> None:
    """Before anything else: who asks for the turn waits for the end of this transaction."""
    transaction.execute(TURN, [writer, turn])


def last_turn(transaction: Transaction, writer: str) -> int:
    row = transaction.execute(b"SELECT turn FROM acorn.writers WHERE id = $1 FOR UPDATE", [writer]).fetchone()
    return 0 if row is None else int(row[0])


def forget_process(transaction: Transaction) -> None:
    """Processes that hold nothing and were not heard of for a day, and who wrote nothing for so long."""
    transaction.execute(
        b"""
        DELETE FROM acorn.writers WHERE id IN (
          SELECT id FROM acorn.writers WHERE at < clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED
        )
        """
    )
    transaction.execute(
        b"""
        DELETE FROM acorn.holders WHERE id IN (
          SELECT id FROM acorn.holders WHERE until < clock_timestamp() - interval '1 day'
            AND NOT EXISTS (SELECT FROM acorn.runs WHERE holder = holders.id) FOR UPDATE SKIP LOCKED
        )
        """
    )


def beat(transaction: Transaction, holder: Process, seconds: float) -> list[str]:
    register(transaction, holder, seconds)
    return [run_id for (run_id,) in transaction.execute(_UNWANTED, [holder.id]).fetchall()]


def claim(transaction: Transaction, run_id: str, holder: Process) -> list[StoredRun] | StoreError | None:
    """An error that is returned, not raised, lets what was found out be kept."""
    run = locked(transaction, run_id)
    if run is None:
        return None
    refuse_branch(transaction, run_id, run)
    status, driver = seen(transaction, run_id, run)
    if driver is not None:
        raise driver
    kept = reads.tree(transaction, run_id)
    if status in messages.OVER:
        return kept
    silence = 0.0
    if run.status == "running":
        steps = sum(one.facts.steps for one in kept)
        attempts = run.attempts + 1 if run.attempted == steps else 1
        sql = b"UPDATE acorn.runs SET attempts = $1, attempted = $2 WHERE number = $3"
        transaction.execute(sql, [attempts, steps, run.number])
        if attempts >= messages.MOST_TAKE_OVERS:
            error = messages.too_many_crashes(run_id)
            _fail(transaction, run_id, run, error)
            return StoreError(error)
        old = reads.driver(transaction, run.holder)
        silence = old.silence if old is not None else 0.0
    register(transaction, holder, lease())
    transaction.execute(
        b"""
        UPDATE acorn.runs SET status = 'running', holder = $1, silence = $2, updated = clock_timestamp()
        WHERE number = $3
        """,
        [holder.id, silence, run.number],
    )
    tell_of(transaction, run)
    return kept


def release(transaction: Transaction, run_id: str, holder: Process, status: Status) -> None:
    run = locked(transaction, run_id)
    if run is None or run.holder != holder.id:
        return
    status = messages.with_cancelling(status, run.is_unwanted)
    rest(transaction, run_id, run, status)
    # One that had failed is to be tried again, and has no job any more; one that is given back as it was has its own,
    # and another one would bring it back at once.
    if status == "queued" and run.error is not None:
        transaction.execute(b"UPDATE acorn.runs SET error = NULL WHERE number = $1", [run.number])
        if run.is_delivered:
            deliver_again(transaction, run_id)


def rest(transaction: Transaction, run_id: str, run: RunRow, status: Status) -> None:
    """Nobody drives it any more."""
    transaction.execute(
        b"""
        UPDATE acorn.runs SET status = $1, holder = NULL, is_unwanted = false, updated = clock_timestamp()
        WHERE number = $2
        """,
        [status, run.number],
    )
    if status == "cancelled":
        ask(transaction, run_id, ())
    tell_of(transaction, run)


def give_up(transaction: Transaction, run_id: str, error: str) -> bool:
    """Fail a run that nobody drives and that is not over; whether it was one."""
    run = locked(transaction, run_id)
    if run is None or run.status not in ("queued", "stopped"):
        return False
    _fail(transaction, run_id, run, error)
    return True


def _fail(transaction: Transaction, run_id: str, run: RunRow, error: str) -> None:
    rest(transaction, run_id, run, "failed")
    transaction.execute(b"UPDATE acorn.runs SET error = $1 WHERE number = $2", [error, run.number])


def seen(transaction: Transaction, run_id: str, run: RunRow) -> tuple[Status, StoreError | None]:
    """What a run is at; and where a live process drives it, what to say of that."""
    driver = reads.driver(transaction, run.holder) if run.status == "running" else None
    is_driven = driver is not None and driver.is_alive()
    status = messages.as_seen(run.status, run.is_unwanted, lambda: is_driven)
    if driver is None or not is_driven:
        return status, None
    return status, messages.claimed_elsewhere(run_id, driver.holder, driver.silence)


def refuse_branch(transaction: Transaction, run_id: str, run: RunRow) -> None:
    if run.root is not None:
        (root,) = transaction.execute(b"SELECT id FROM acorn.runs WHERE number = $1", [run.root]).fetchone() or ("",)
        raise messages.is_branch(run_id, root)
