"""What is written to the tables of a store in PostgreSQL: commits, runs that begin elsewhere, and what others want of
them. Each is called inside a transaction, which its `StoreError` undoes; `postgres_driving.py` says in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from acorn.stores import messages, rules
from acorn.stores.lease import lease
from acorn.stores.port import NOT_BEGUN, Change, Commit, QueuedRun, Status
from acorn.stores.postgres import reads as reads
from acorn.stores.postgres.claims import (
    CANCELLED,
    NEWS,
    TAKE,
    RunRow,
    ask,
    locked,
    refuse_branch,
    register,
    rest,
    seen,
    tell_of,
)
from acorn.stores.postgres.connection import Transaction
from acorn.stores.postgres.queue import deliver_again, put_runs
from acorn.types import Request


def _marks(columns: str, first: int = 1) -> list[str]:
    return [f"${at}" for at in range(first, first + len(columns.split(", ")))]


_SETS = ", ".join(
    f"{column} = {mark}" for column, mark in zip(rules.CHANGED.split(", "), _marks(rules.CHANGED), strict=True)
)
_LAST = len(_marks(rules.CHANGED))
_KEPT = f"""
    kept AS (
      UPDATE acorn.states SET record = coalesce(${_LAST + 1}, record), state = coalesce(${_LAST + 2}, state)
      FROM changed WHERE states.run = changed.number AND coalesce(${_LAST + 1}, ${_LAST + 2}) IS NOT NULL
    ),
    added AS (
      INSERT INTO acorn.entries (root, run, entry)
      SELECT changed.root, changed.number, entry FROM changed, unnest(${_LAST + 3}::text[]) AS entry
    )
"""
# A root that nothing stands against has something new. The holder stays who it is: no index is written.
_GO_ON = f"""
    WITH changed AS (
      UPDATE acorn.runs SET {_SETS}, updated = clock_timestamp()
      WHERE id = ${_LAST + 4} AND length = ${_LAST + 5} AND holder = ${_LAST + 6} AND root IS NULL AND NOT is_unwanted
        AND asks = 0
      RETURNING number, number AS root, followed
    ), {_KEPT}
    SELECT number, followed > clock_timestamp() FROM changed
""".encode()
_CHANGE = f"""
    WITH changed AS (
      UPDATE acorn.runs SET {_SETS}, updated = clock_timestamp(), holder = ${_LAST + 5}, is_unwanted = false
      WHERE id = ${_LAST + 4} RETURNING number, coalesce(root, number) AS root
    ), {_KEPT}
    SELECT
""".encode()
_BORN = len(_marks(rules.BORN))
_BEAR = f"""
    WITH top AS (SELECT (SELECT number FROM acorn.runs WHERE id = $2) AS number),
    changed AS (
      INSERT INTO acorn.runs ({rules.BORN}, {rules.CHANGED}, updated, holder)
      SELECT $1, number, {", ".join([*_marks(rules.BORN)[2:], *_marks(rules.CHANGED, _BORN + 1)])}, clock_timestamp(),
        ${_BORN + _LAST + 1}
      FROM top RETURNING number, coalesce(root, number) AS root
    ),
    born AS (
      INSERT INTO acorn.births SELECT number, ${_BORN + _LAST + 2}, ${_BORN + _LAST + 3}, ${_BORN + _LAST + 4}
      FROM changed
    ),
    kept AS (INSERT INTO acorn.states SELECT number, ${_BORN + _LAST + 5}, ${_BORN + _LAST + 6} FROM changed),
    added AS (
      INSERT INTO acorn.entries (root, run, entry)
      SELECT changed.root, number, entry FROM changed, unnest(${_BORN + _LAST + 7}::text[]) AS entry
    )
    SELECT
""".encode()


# Who deletes the last run that had it waits, and sees that there is one more.
_KEEP_MEDIUM = b"""
    WITH kept AS (
      INSERT INTO acorn.media (sha256, data) VALUES ($2, $3)
      ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING number
    )
    INSERT INTO acorn.media_of_runs
    SELECT runs.number, kept.number FROM acorn.runs, kept WHERE id = $1 ON CONFLICT DO NOTHING
"""


_KNOWN = b"""
    SELECT run.id, coalesce(top.id, run.id), run.length
    FROM acorn.runs run LEFT JOIN acorn.runs top ON top.number = run.root WHERE run.id = ANY($1::text[])
"""


# A commit


def send(transaction: Transaction, commit: Commit) -> Callable[[], bool] | None:
    """Most commits are one statement, which can be sent before anything is known; then ask whether that was all.

    None: this is no such commit.
    """
    if len(commit.changes) != 1 or commit.requests or commit.media:
        return None
    (change,) = commit.changes
    if change.birth is not None or change.run_id != commit.root or change.status != "running":
        return None
    values = (*_changed(change, "running"), change.run_id, change.since, commit.holder.id)
    sent = transaction.execute(_GO_ON, values)

    def was_all() -> bool:
        row = sent.fetchone()
        if row is not None and row[1]:
            transaction.news.append((NEWS, str(row[0])))
        return row is not None

    return was_all


def commit(transaction: Transaction, commit: Commit, name: str) -> None:
    taken = transaction.execute(TAKE, [commit.root])
    found = transaction.execute(_KNOWN, [rules.run_named(commit)])
    row = taken.fetchone()
    root = None if row is None else RunRow(*row)
    is_birth = rules.is_new_run(commit)
    if not is_birth:
        root = _fence(transaction, commit, root, name)
    elif root is not None:
        raise messages.exists(commit.root, name, *seen(transaction, commit.root, root))
    known = {run_id: rules.KnownRun(top, length) for run_id, top, length in found.fetchall()}
    rules.refuse_misfits(commit, known, name)
    if is_birth:
        register(transaction, commit.holder, lease())
    for change in commit.changes:
        _change(transaction, commit, change, root is not None and root.is_unwanted)
    for medium in sorted(commit.media):  # in one order: nobody waits for each other in a circle
        transaction.execute(_KEEP_MEDIUM, [commit.root, *medium])
    if all(change.run_id != commit.root for change in commit.changes):
        transaction.execute(b"UPDATE acorn.runs SET updated = clock_timestamp() WHERE id = $1", [commit.root])
    if commit.requests or (root is not None and root.asks):
        ask(transaction, commit.root, commit.requests)
    if root is not None:
        if root.is_delivered and any(one.run_id == commit.root and one.status == "queued" for one in commit.changes):
            deliver_again(transaction, commit.root)
        tell_of(transaction, root)


def _fence(transaction: Transaction, commit: Commit, root: RunRow | None, name: str) -> RunRow:
    """The root, where this holder has it and nobody wants it cancelled."""
    if root is None:
        raise messages.deleted(commit.root, name)
    if root.holder != commit.holder.id:
        taker = reads.driver(transaction, root.holder)
        raise messages.lost(commit.root, taker and taker.holder, root.silence, root.status)
    if root.is_unwanted and not any(messages.ends(one.status) for one in commit.changes if one.run_id == commit.root):
        raise messages.cancelled_by_request(commit.root)
    return root


def _change(transaction: Transaction, commit: Commit, change: Change, is_unwanted: bool) -> None:
    is_root = change.run_id == commit.root
    status = messages.with_cancelling(change.status, is_unwanted and is_root)
    holds = commit.holder.id if is_root and status == "running" else None
    if change.birth is None:
        transaction.execute(_CHANGE, (*_changed(change, status), change.run_id, holds))
        return
    run_id, _, *born = rules.header_row(change.run_id, change.birth, None)
    birth = change.birth
    values = (
        run_id, commit.root, *born, *rules.change_row(change, status), holds, birth.branch, birth.input,
        birth.overrides, "{}" if change.record is None else change.record,
        NOT_BEGUN if change.state is None else change.state, list(change.entries),
    )  # fmt: skip
    transaction.execute(_BEAR, values)


def _changed(change: Change, status: Status) -> tuple[Any, ...]:
    return (*rules.change_row(change, status), change.record, change.state, list(change.entries))


# By whoever wants runs to begin elsewhere


def put(transaction: Transaction, runs: Sequence[QueuedRun], deliver: bool) -> list[str]:
    new = put_runs(transaction, runs, deliver)
    if any(one.media for one in runs):
        born = set(new)
        kept = [(medium, one.run_id) for one in runs if one.run_id in born for medium in one.media]
        for medium, run_id in sorted(kept):  # in one order, as those of commits
            transaction.execute(_KEEP_MEDIUM, [run_id, *medium])
    return new


# By whoever looks on


_ANSWERED = b"""
    UPDATE acorn.runs SET asks = asks - 1, updated = clock_timestamp(),
      status = CASE WHEN is_delivered AND status = 'waiting' THEN 'queued' ELSE status END
    WHERE number = $1 RETURNING id, is_delivered AND status = 'queued'
"""


def answer(transaction: Transaction, request_id: str, text: str, name: str) -> Request:
    transaction.execute(
        b"""
        SELECT FROM acorn.runs WHERE number = (SELECT root FROM acorn.requests WHERE id = $1) FOR UPDATE
        """,
        [request_id],
    )
    sql = f"SELECT {rules.REQUEST}, answered, root FROM acorn.requests WHERE id = $1".encode()
    row = transaction.execute(sql, [request_id]).fetchone()
    if row is None:
        raise messages.no_request(request_id, name)
    *first, answered, root = row
    if answered is not None:
        raise messages.answered(request_id, rules.moment(answered))
    transaction.execute(
        b"""
        UPDATE acorn.requests SET answer = $1, answered = clock_timestamp(),
          turn = (SELECT coalesce(max(turn), 0) + 1 FROM acorn.requests WHERE root = $2) WHERE id = $3
        """,
        [text, root, request_id],
    )
    row = transaction.execute(_ANSWERED, [root]).fetchone()
    if row is not None and row[1]:
        deliver_again(transaction, row[0])
    return rules.request(tuple(first))


def cancel(transaction: Transaction, run_id: str, name: str) -> None:
    run = locked(transaction, run_id)
    if run is None:
        raise messages.no_run(run_id, name)
    refuse_branch(transaction, run_id, run)
    status, driver = seen(transaction, run_id, run)
    if status == "done":
        raise messages.is_over(run_id, status)
    if driver is None:
        rest(transaction, run_id, run, "cancelled")
        return
    transaction.execute(b"UPDATE acorn.runs SET is_unwanted = true WHERE number = $1", [run.number])
    transaction.news.append((CANCELLED, str(run.holder)))


def delete(transaction: Transaction, run_id: str, name: str) -> None:
    run = locked(transaction, run_id)
    if run is None:
        raise messages.no_run(run_id, name)
    refuse_branch(transaction, run_id, run)
    _, driver = seen(transaction, run_id, run)
    if driver is not None:
        raise driver
    for table in ("births", "states"):
        sql = f"""
            DELETE FROM acorn.{table} WHERE run IN (SELECT number FROM acorn.runs WHERE number = $1 OR root = $1)
        """
        transaction.execute(sql.encode(), [run.number])
    for table in ("entries", "requests"):
        transaction.execute(f"DELETE FROM acorn.{table} WHERE root = $1".encode(), [run.number])
    _forget_media(transaction, run.number)
    transaction.execute(b"DELETE FROM acorn.runs WHERE number = $1 OR root = $1", [run.number])
    tell_of(transaction, run)


def _forget_media(transaction: Transaction, root: int) -> None:
    """What no other tree has."""
    had = b"SELECT medium FROM acorn.media_of_runs WHERE root = $1 ORDER BY medium"
    media = [medium for (medium,) in transaction.execute(had, [root]).fetchall()]
    if not media:
        return
    transaction.execute(b"SELECT FROM acorn.media WHERE number = ANY($1::bigint[]) ORDER BY sha256 FOR UPDATE", [media])
    transaction.execute(b"DELETE FROM acorn.media_of_runs WHERE root = $1", [root])
    transaction.execute(
        b"""
        DELETE FROM acorn.media WHERE number = ANY($1::bigint[])
          AND NOT EXISTS (SELECT FROM acorn.media_of_runs WHERE medium = media.number)
        """,
        [media],
    )


def watch(transaction: Transaction, run_id: str, seconds: float) -> int | None:
    """For so long somebody wants to hear of what is new in the tree of a run; its number, None where there is none."""
    row = transaction.execute(
        b"""
        UPDATE acorn.runs SET followed = greatest(followed, clock_timestamp() + make_interval(secs => $2))
        WHERE number = (SELECT coalesce(root, number) FROM acorn.runs WHERE id = $1) RETURNING number
        """,
        [run_id, seconds],
    ).fetchone()
    return None if row is None else int(row[0])


def tell(transaction: Transaction, news: Iterable[tuple[str, str]]) -> None:
    """In a transaction of its own: one that tells and writes would have to wait for all others that do."""
    told = list(dict.fromkeys(news))
    if told:
        sql = b"SELECT pg_notify(channel, word) FROM unnest($1::text[], $2::text[]) AS told (channel, word)"
        transaction.execute(sql, [[channel for channel, _ in told], [word for _, word in told]])
