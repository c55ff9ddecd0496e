"""What is written to the tables of a store in PostgreSQL. Each is called inside a transaction, which its `StoreError`
undoes.

Whoever writes of a tree has its root for itself until the transaction ends, and takes it before anything else of the
tree: so nobody waits for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from acorn.errors import StoreError
from acorn.stores import postgres_reads as reads
from acorn.stores import rows, rules, words
from acorn.stores.holder import lease
from acorn.stores.port import Change, Commit, Holder, Kept, Queued, Status
from acorn.stores.postgres_connection import Transaction
from acorn.stores.postgres_queue import deliver_again, put_runs
from acorn.types import Request

NEWS = "acorn_news"
"""Where the numbers of roots that somebody follows are told, when there is something new."""
CANCELLED = "acorn_cancelled"
"""Where the ids of holders are told, when one of their runs is to be cancelled."""


def _marks(columns: str, first: int = 1) -> list[str]:
    return [f"${at}" for at in range(first, first + len(columns.split(", ")))]


_SETS = ", ".join(
    f"{column} = {mark}" for column, mark in zip(rows.CHANGED.split(", "), _marks(rows.CHANGED), strict=True)
)
_LAST = len(_marks(rows.CHANGED))
_KEPT = f"""
    kept AS (
      UPDATE acorn.states SET record = coalesce(${_LAST + 1}, record), state = ${_LAST + 2} FROM changed
      WHERE states.run = changed.number
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
_BORN = len(_marks(rows.BORN))
_BEAR = f"""
    WITH top AS (SELECT (SELECT number FROM acorn.runs WHERE id = $2) AS number),
    changed AS (
      INSERT INTO acorn.runs ({rows.BORN}, {rows.CHANGED}, updated, holder)
      SELECT $1, number, {", ".join([*_marks(rows.BORN)[2:], *_marks(rows.CHANGED, _BORN + 1)])}, clock_timestamp(),
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


class _Run(NamedTuple):
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


_TAKE = f"""
    SELECT {", ".join(_Run._fields[:-1])}, coalesce(followed > clock_timestamp(), false)
    FROM acorn.runs WHERE id = $1 FOR UPDATE
""".encode()
_KNOWN = b"""
    SELECT run.id, coalesce(top.id, run.id), run.length
    FROM acorn.runs run LEFT JOIN acorn.runs top ON top.number = run.root WHERE run.id = ANY($1::text[])
"""


def _run(transaction: Transaction, run_id: str) -> _Run | None:
    """A run that nobody else changes from now on."""
    row = transaction.execute(_TAKE, [run_id]).fetchone()
    return None if row is None else _Run(*row)


def _tell(transaction: Transaction, root: _Run) -> None:
    if root.is_followed:
        transaction.news.append((NEWS, str(root.number)))


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
    taken = transaction.execute(_TAKE, [commit.root])
    found = transaction.execute(_KNOWN, [rules.named(commit)])
    row = taken.fetchone()
    root = None if row is None else _Run(*row)
    is_birth = rules.is_birth(commit)
    if not is_birth:
        root = _fence(transaction, commit, root, name)
    elif root is not None:
        raise words.exists(commit.root, name, *_seen(transaction, commit.root, root))
    known = {run_id: rules.Known(top, length) for run_id, top, length in found.fetchall()}
    rules.refuse_misfits(commit, known, name)
    if is_birth:
        _register(transaction, commit.holder, lease())
    for change in commit.changes:
        _change(transaction, commit, change, root is not None and root.is_unwanted)
    for medium in sorted(commit.media):  # in one order: nobody waits for each other in a circle
        transaction.execute(_KEEP_MEDIUM, [commit.root, *medium])
    if all(change.run_id != commit.root for change in commit.changes):
        transaction.execute(b"UPDATE acorn.runs SET updated = clock_timestamp() WHERE id = $1", [commit.root])
    if commit.requests or (root is not None and root.asks):
        _ask(transaction, commit.root, commit.requests)
    if root is not None:
        if root.is_delivered and any(one.run_id == commit.root and one.status == "queued" for one in commit.changes):
            deliver_again(transaction, commit.root)
        _tell(transaction, root)


def _fence(transaction: Transaction, commit: Commit, root: _Run | None, name: str) -> _Run:
    """The root, where this holder has it and nobody wants it cancelled."""
    if root is None:
        raise words.deleted(commit.root, name)
    if root.holder != commit.holder.id:
        taker = reads.driver(transaction, root.holder)
        raise words.lost(commit.root, taker and taker.holder, root.silence, root.status)
    if root.is_unwanted and not any(words.ends(one.status) for one in commit.changes if one.run_id == commit.root):
        raise words.unwanted(commit.root)
    return root


def _change(transaction: Transaction, commit: Commit, change: Change, is_unwanted: bool) -> None:
    is_root = change.run_id == commit.root
    status = words.with_cancelling(change.status, is_unwanted and is_root)
    holds = commit.holder.id if is_root and status == "running" else None
    if change.birth is None:
        transaction.execute(_CHANGE, (*_changed(change, status), change.run_id, holds))
        return
    run_id, _, *born = rows.birth_row(change.run_id, change.birth, None)
    birth = change.birth
    values = (
        run_id, commit.root, *born, *rows.change_row(change, status), holds, birth.branch, birth.input,
        birth.overrides, "{}" if change.record is None else change.record, change.state, list(change.entries),
    )  # fmt: skip
    transaction.execute(_BEAR, values)


def _changed(change: Change, status: Status) -> tuple[Any, ...]:
    return (*rows.change_row(change, status), change.record, change.state, list(change.entries))


def _ask(transaction: Transaction, root: str, requests: Sequence[Request]) -> None:
    """From now on these are open, those that have an answer apart, and no others."""
    top = "(SELECT number FROM acorn.runs WHERE id = $1)"
    transaction.execute(
        f"DELETE FROM acorn.requests WHERE root = {top} AND answered IS NULL AND id <> ALL($2::text[])".encode(),
        [root, [request.id for request in requests]],
    )
    sql = f"""
        INSERT INTO acorn.requests (root, {rows.REQUEST}) VALUES ({top}, {", ".join(_marks(rows.REQUEST, 2))})
        ON CONFLICT (id) DO NOTHING
    """.encode()
    for request in requests:
        transaction.execute(sql, [root, *rows.request_row(request)])
    transaction.execute(
        b"""
        UPDATE acorn.runs SET asks = (
          SELECT count(*) FROM acorn.requests WHERE requests.root = runs.number AND answered IS NULL
        ) WHERE id = $1
        """,
        [root],
    )


# Who drives it

_REGISTER = b"""
    INSERT INTO acorn.holders
    VALUES ($1, $2, $3, $4, $5, clock_timestamp(), clock_timestamp() + make_interval(secs => $6))
    ON CONFLICT (id) DO UPDATE SET heard = excluded.heard, until = excluded.until
"""
_TURN = b"""
    INSERT INTO acorn.writers VALUES ($1, $2, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET turn = excluded.turn, at = excluded.at
"""
_UNWANTED = b"SELECT id FROM acorn.runs WHERE holder = $1 AND is_unwanted ORDER BY number"


def _register(transaction: Transaction, holder: Holder, seconds: float) -> None:
    """A process is heard of, and lives for so long."""
    values = (holder.id, holder.host, holder.boot, holder.pid, holder.born, float(seconds))
    transaction.execute(_REGISTER, values)


def count_turn(transaction: Transaction, writer: str, turn: int) -> None:
    """Before anything else: who asks for the turn waits for the end of this transaction."""
    transaction.execute(_TURN, [writer, turn])


def last_turn(transaction: Transaction, writer: str) -> int:
    row = transaction.execute(b"SELECT turn FROM acorn.writers WHERE id = $1 FOR UPDATE", [writer]).fetchone()
    return 0 if row is None else int(row[0])


def forget(transaction: Transaction) -> None:
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


def beat(transaction: Transaction, holder: Holder, seconds: float) -> list[str]:
    _register(transaction, holder, seconds)
    return [run_id for (run_id,) in transaction.execute(_UNWANTED, [holder.id]).fetchall()]


def claim(transaction: Transaction, run_id: str, holder: Holder) -> list[Kept] | StoreError | None:
    """An error that is returned, not raised, lets what was found out be kept."""
    run = _run(transaction, run_id)
    if run is None:
        return None
    _refuse_branch(transaction, run_id, run)
    status, driver = _seen(transaction, run_id, run)
    if driver is not None:
        raise driver
    kept = reads.tree(transaction, run_id)
    if status in words.OVER:
        return kept
    silence = 0.0
    if run.status == "running":
        steps = sum(one.facts.steps for one in kept)
        attempts = run.attempts + 1 if run.attempted == steps else 1
        sql = b"UPDATE acorn.runs SET attempts = $1, attempted = $2 WHERE number = $3"
        transaction.execute(sql, [attempts, steps, run.number])
        if attempts >= words.MOST_TAKE_OVERS:
            error = words.worn_out(run_id)
            _fail(transaction, run_id, run, error)
            return StoreError(error)
        old = reads.driver(transaction, run.holder)
        silence = old.silence if old is not None else 0.0
    _register(transaction, holder, lease())
    transaction.execute(
        b"""
        UPDATE acorn.runs SET status = 'running', holder = $1, silence = $2, updated = clock_timestamp()
        WHERE number = $3
        """,
        [holder.id, silence, run.number],
    )
    _tell(transaction, run)
    return kept


def release(transaction: Transaction, run_id: str, holder: Holder, status: Status) -> None:
    run = _run(transaction, run_id)
    if run is None or run.holder != holder.id:
        return
    status = words.with_cancelling(status, run.is_unwanted)
    _rest(transaction, run_id, run, status)
    # One that had failed is to be tried again, and has no job any more; one that is given back as it was has its own,
    # and another one would bring it back at once.
    if status == "queued" and run.error is not None:
        transaction.execute(b"UPDATE acorn.runs SET error = NULL WHERE number = $1", [run.number])
        if run.is_delivered:
            deliver_again(transaction, run_id)


def _rest(transaction: Transaction, run_id: str, run: _Run, status: Status) -> None:
    """Nobody drives it any more."""
    transaction.execute(
        b"""
        UPDATE acorn.runs SET status = $1, holder = NULL, is_unwanted = false, updated = clock_timestamp()
        WHERE number = $2
        """,
        [status, run.number],
    )
    if status == "cancelled":
        _ask(transaction, run_id, ())
    _tell(transaction, run)


def give_up(transaction: Transaction, run_id: str, error: str) -> bool:
    """Fail a run that nobody drives and that is not over; whether it was one."""
    run = _run(transaction, run_id)
    if run is None or run.status not in ("queued", "stopped"):
        return False
    _fail(transaction, run_id, run, error)
    return True


def _fail(transaction: Transaction, run_id: str, run: _Run, error: str) -> None:
    _rest(transaction, run_id, run, "failed")
    transaction.execute(b"UPDATE acorn.runs SET error = $1 WHERE number = $2", [error, run.number])


def _seen(transaction: Transaction, run_id: str, run: _Run) -> tuple[Status, StoreError | None]:
    """What a run is at; and where a live process drives it, what to say of that."""
    driver = reads.driver(transaction, run.holder) if run.status == "running" else None
    is_driven = driver is not None and driver.is_alive()
    status = words.as_seen(run.status, run.is_unwanted, lambda: is_driven)
    if driver is None or not is_driven:
        return status, None
    return status, words.held(run_id, driver.holder, driver.silence)


def _refuse_branch(transaction: Transaction, run_id: str, run: _Run) -> None:
    if run.root is not None:
        (root,) = transaction.execute(b"SELECT id FROM acorn.runs WHERE number = $1", [run.root]).fetchone() or ("",)
        raise words.is_branch(run_id, root)


# By whoever wants runs to begin elsewhere


def put(transaction: Transaction, runs: Sequence[Queued], deliver: bool) -> list[str]:
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
    sql = f"SELECT {rows.REQUEST}, answered, root FROM acorn.requests WHERE id = $1".encode()
    row = transaction.execute(sql, [request_id]).fetchone()
    if row is None:
        raise words.no_request(request_id, name)
    *first, answered, root = row
    if answered is not None:
        raise words.answered(request_id, rows.moment(answered))
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
    return rows.request(tuple(first))


def cancel(transaction: Transaction, run_id: str, name: str) -> None:
    run = _run(transaction, run_id)
    if run is None:
        raise words.no_run(run_id, name)
    _refuse_branch(transaction, run_id, run)
    status, driver = _seen(transaction, run_id, run)
    if status == "done":
        raise words.is_over(run_id, status)
    if driver is None:
        _rest(transaction, run_id, run, "cancelled")
        return
    transaction.execute(b"UPDATE acorn.runs SET is_unwanted = true WHERE number = $1", [run.number])
    transaction.news.append((CANCELLED, str(run.holder)))


def delete(transaction: Transaction, run_id: str, name: str) -> None:
    run = _run(transaction, run_id)
    if run is None:
        raise words.no_run(run_id, name)
    _refuse_branch(transaction, run_id, run)
    _, driver = _seen(transaction, run_id, run)
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
    _tell(transaction, run)


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
