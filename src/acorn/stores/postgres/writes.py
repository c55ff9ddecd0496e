"""SQL statements of the PostgreSQL store that write commits, queued runs, answers, cancel requests and rate limits.

The writer calls each function inside a transaction. If a function raises `StoreError`, its writes are undone.
`claims.py` describes the order in which transactions lock rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from acorn.stores import rules
from acorn.stores.lease import lease_seconds
from acorn.stores.port import NOT_STARTED, Change, Commit, PlaceAnswer, PlaceOrder, QueuedRun, Status
from acorn.stores.postgres import reads
from acorn.stores.postgres.claims import (
    CANCEL_CHANNEL,
    CHANGE_CHANNEL,
    LOCK_RUN,
    RunRow,
    lock_run,
    notify_watchers,
    refuse_branch,
    set_lease,
    set_open_requests,
    set_status,
    status_and_driver,
)
from acorn.stores.postgres.connection import Transaction
from acorn.stores.postgres.queue import deliver_again, insert_queued
from acorn.types import Request


def _parameters(columns: str, first: int = 1) -> list[str]:
    return [f"${at}" for at in range(first, first + len(columns.split(", ")))]


# The parameters of the update statements start with `_change_values`.
_SET_CHANGE = ", ".join(
    f"{column} = {parameter}"
    for column, parameter in zip(
        rules.CHANGE_COLUMNS.split(", "), _parameters(rules.CHANGE_COLUMNS), strict=True
    )
)  # fmt: skip
_LAST = len(_parameters(rules.CHANGE_COLUMNS))
_STORE_STATE = f"""
    stored AS (
      UPDATE acorn.run_states SET record = coalesce(${_LAST + 1}, record), state = coalesce(${_LAST + 2}, state)
      FROM changed WHERE run_states.run = changed.number AND coalesce(${_LAST + 1}, ${_LAST + 2}) IS NOT NULL
    ),
    added AS (
      INSERT INTO acorn.entries (root, run, entry)
      SELECT changed.root, changed.number, entry FROM changed, unnest(${_LAST + 3}::text[]) AS entry
    )
"""
# The statement of the most common commit, which adds entries to a running root without a cancel request. The statement
# does not set the process, which does not change, so that PostgreSQL writes no index.
UPDATE_RUNNING_ROOT = f"""
    WITH changed AS (
      UPDATE acorn.runs SET {_SET_CHANGE}, updated = clock_timestamp()
      WHERE id = ${_LAST + 4} AND entry_count = ${_LAST + 5} AND process = ${_LAST + 6} AND root IS NULL
        AND NOT cancel_requested AND open_requests = 0
      RETURNING number, number AS root, watched_until
    ), {_STORE_STATE}
    SELECT number, watched_until > clock_timestamp() FROM changed
""".encode()
_UPDATE_RUN = f"""
    WITH changed AS (
      UPDATE acorn.runs SET {_SET_CHANGE}, updated = clock_timestamp(), process = ${_LAST + 5}, cancel_requested = false
      WHERE id = ${_LAST + 4} RETURNING number, coalesce(root, number) AS root
    ), {_STORE_STATE}
    SELECT
""".encode()
_HEADER = len(_parameters(rules.HEADER_COLUMNS))
_HEADER_VALUES = _parameters(rules.HEADER_COLUMNS)[2:]
_CHANGE_VALUES = _parameters(rules.CHANGE_COLUMNS, _HEADER + 1)
_INSERT_RUN = f"""
    WITH top AS (SELECT (SELECT number FROM acorn.runs WHERE id = $2) AS number),
    changed AS (
      INSERT INTO acorn.runs ({rules.HEADER_COLUMNS}, {rules.CHANGE_COLUMNS}, updated, process)
      SELECT $1, number, {", ".join([*_HEADER_VALUES, *_CHANGE_VALUES])}, clock_timestamp(), ${_HEADER + _LAST + 1}
      FROM top RETURNING number, coalesce(root, number) AS root
    ),
    header AS (
      INSERT INTO acorn.run_headers
      SELECT number, ${_HEADER + _LAST + 2}, ${_HEADER + _LAST + 3}, ${_HEADER + _LAST + 4} FROM changed
    ),
    stored AS (INSERT INTO acorn.run_states SELECT number, ${_HEADER + _LAST + 5}, ${_HEADER + _LAST + 6} FROM changed),
    added AS (
      INSERT INTO acorn.entries (root, run, entry)
      SELECT changed.root, number, entry FROM changed, unnest(${_HEADER + _LAST + 7}::text[]) AS entry
    )
    SELECT
""".encode()
# `DO UPDATE` locks the row of stored data. A transaction that deletes the last run with this data then waits, and finds
# the new run.
_STORE_MEDIA = b"""
    WITH stored AS (
      INSERT INTO acorn.media (sha256, data) VALUES ($2, $3)
      ON CONFLICT (sha256) DO UPDATE SET sha256 = excluded.sha256 RETURNING number
    )
    INSERT INTO acorn.run_media
    SELECT runs.number, stored.number FROM acorn.runs, stored WHERE id = $1 ON CONFLICT DO NOTHING
"""
_KNOWN_RUNS = b"""
    SELECT run.id, coalesce(top.id, run.id), run.entry_count
    FROM acorn.runs run LEFT JOIN acorn.runs top ON top.number = run.root WHERE run.id = ANY($1::text[])
"""


# Commits


def send_simple_commit(transaction: Transaction, commit: Commit) -> Callable[[], bool] | None:
    """Send the single statement of the most common kind of commit, and do not wait for its result.

    Return a function that waits for the result and returns True if the statement stored the commit. Return None and
    send nothing if the commit needs more than one statement.
    """
    if len(commit.changes) != 1 or commit.requests or commit.media:
        return None
    (change,) = commit.changes
    if change.header is not None or change.run_id != commit.root or change.status != "running":
        return None
    values = (*_change_values(change, "running"), change.run_id, change.offset, commit.process.id)
    cursor = transaction.execute(UPDATE_RUNNING_ROOT, values)

    def was_stored() -> bool:
        row = cursor.fetchone()
        if row is not None and row[1]:
            transaction.notifications.append((CHANGE_CHANNEL, str(row[0])))
        return row is not None

    return was_stored


def commit(transaction: Transaction, commit: Commit, name: str) -> None:
    # Send both statements before the first result is read.
    locked = transaction.execute(LOCK_RUN, [commit.root])
    known = transaction.execute(_KNOWN_RUNS, [rules.runs_of_commit(commit)])
    row = locked.fetchone()
    root = None if row is None else RunRow(*row)
    is_new = rules.creates_root(commit)
    if not is_new:
        root = _check_claim(transaction, commit, root, name)
    elif root is not None:
        raise rules.run_exists_error(commit.root, name, *status_and_driver(transaction, commit.root, root))
    known_runs = {run_id: rules.KnownRun(top, entry_count) for run_id, top, entry_count in known.fetchall()}
    rules.check_commit(commit, known_runs, name)
    if is_new:
        set_lease(transaction, commit.process, lease_seconds())
    for change in commit.changes:
        _store_change(transaction, commit, change, root is not None and root.cancel_requested)
    for blob in sorted(commit.media):  # Lock rows in a fixed order to prevent deadlocks.
        transaction.execute(_STORE_MEDIA, [commit.root, *blob])
    if all(change.run_id != commit.root for change in commit.changes):
        transaction.execute(b"UPDATE acorn.runs SET updated = clock_timestamp() WHERE id = $1", [commit.root])
    if commit.requests or (root is not None and root.open_requests):
        set_open_requests(transaction, commit.root, commit.requests)
    if root is not None:
        is_queued = any(change.run_id == commit.root and change.status == "queued" for change in commit.changes)
        if root.is_delivered and is_queued:
            deliver_again(transaction, commit.root)
        notify_watchers(transaction, root)


def _check_claim(transaction: Transaction, commit: Commit, root: RunRow | None, name: str) -> RunRow:
    """Check that a commit may write to its root run, and return the row of the root run.

    Raise `StoreError` if the process of the commit no longer drives the root run, if the root run has a cancel request,
    or if it was deleted.
    """
    if root is None:
        raise rules.run_deleted_error(commit.root, name)
    if root.process != commit.process.id:
        new_process = reads.read_process(transaction, root.process)
        raise rules.taken_over_error(commit.root, new_process and new_process.process, root.heartbeat_age, root.status)
    if root.cancel_requested and not rules.ends_root(commit):
        raise rules.run_cancelled_error(commit.root)
    return root


def _store_change(transaction: Transaction, commit: Commit, change: Change, cancel_requested: bool) -> None:
    is_root = change.run_id == commit.root
    status = rules.status_after_cancel(change.status) if cancel_requested and is_root else change.status
    process_id = commit.process.id if is_root and status == "running" else None
    header = change.header
    if header is None:
        transaction.execute(_UPDATE_RUN, (*_change_values(change, status), change.run_id, process_id))
        return
    values = (
        change.run_id, commit.root, header.parent, header.agent, header.started, header.batch, header.item,
        *_fact_values(change, status), process_id, header.branch, header.input, header.overrides,
        "{}" if change.record is None else change.record,
        NOT_STARTED if change.state is None else change.state, list(change.entries),
    )  # fmt: skip
    transaction.execute(_INSERT_RUN, values)


def _change_values(change: Change, status: Status) -> tuple[Any, ...]:
    return (*_fact_values(change, status), change.record, change.state, list(change.entries))


def _fact_values(change: Change, status: Status) -> tuple[Any, ...]:
    """Return the new values of a changed run, in the order of the columns `rules.CHANGE_COLUMNS`."""
    return (status, *rules.change_values(change), change.offset + len(change.entries))


# Called by processes that submit runs for other processes


def enqueue(transaction: Transaction, runs: Sequence[QueuedRun], deliver: bool) -> list[str]:
    new = insert_queued(transaction, runs, deliver)
    if any(queued.media for queued in runs):
        new_ids = set(new)
        blobs = [(blob, queued.run_id) for queued in runs if queued.run_id in new_ids for blob in queued.media]
        for blob, run_id in sorted(blobs):  # Lock rows in the same order as commits do.
            transaction.execute(_STORE_MEDIA, [run_id, *blob])
    return new


# Called by processes that inspect runs

_COUNT_ANSWER = b"""
    UPDATE acorn.runs SET open_requests = open_requests - 1, updated = clock_timestamp(),
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
    sql = f"SELECT {rules.REQUEST_COLUMNS}, answered, root FROM acorn.requests WHERE id = $1".encode()
    row = transaction.execute(sql, [request_id]).fetchone()
    if row is None:
        raise rules.request_not_open_error(request_id, name)
    *request_row, answered, root = row
    if answered is not None:
        raise rules.already_answered_error(request_id, rules.to_datetime(answered))
    transaction.execute(
        b"""
        UPDATE acorn.requests SET answer = $1, answered = clock_timestamp(),
          answer_order = (SELECT coalesce(max(answer_order), 0) + 1 FROM acorn.requests WHERE root = $2) WHERE id = $3
        """,
        [text, root, request_id],
    )
    row = transaction.execute(_COUNT_ANSWER, [root]).fetchone()
    if row is not None and row[1]:
        deliver_again(transaction, row[0])
    return rules.to_request(tuple(request_row))


def cancel(transaction: Transaction, run_id: str, name: str) -> None:
    run = lock_run(transaction, run_id)
    if run is None:
        raise rules.run_not_found_error(run_id, name)
    refuse_branch(transaction, run_id, run)
    status, driver = status_and_driver(transaction, run_id, run)
    if status == "done":
        raise rules.already_finished_error(run_id, status)
    if driver is None:
        set_status(transaction, run_id, run, "cancelled")
        return
    transaction.execute(b"UPDATE acorn.runs SET cancel_requested = true WHERE number = $1", [run.number])
    transaction.notifications.append((CANCEL_CHANNEL, str(run.process)))


def delete(transaction: Transaction, run_id: str, name: str) -> None:
    run = lock_run(transaction, run_id)
    if run is None:
        raise rules.run_not_found_error(run_id, name)
    refuse_branch(transaction, run_id, run)
    _, driver = status_and_driver(transaction, run_id, run)
    if driver is not None:
        raise driver
    for table in ("run_headers", "run_states"):
        sql = f"""
            DELETE FROM acorn.{table} WHERE run IN (SELECT number FROM acorn.runs WHERE number = $1 OR root = $1)
        """
        transaction.execute(sql.encode(), [run.number])
    for table in ("entries", "requests"):
        transaction.execute(f"DELETE FROM acorn.{table} WHERE root = $1".encode(), [run.number])
    _delete_media(transaction, run.number)
    transaction.execute(b"DELETE FROM acorn.runs WHERE number = $1 OR root = $1", [run.number])
    notify_watchers(transaction, run)


def _delete_media(transaction: Transaction, root: int) -> None:
    """Delete the media of a root run and its branches, except media that another root run also uses."""
    sql = b"SELECT blob FROM acorn.run_media WHERE root = $1 ORDER BY blob"
    blobs = [blob for (blob,) in transaction.execute(sql, [root]).fetchall()]
    if not blobs:
        return
    transaction.execute(b"SELECT FROM acorn.media WHERE number = ANY($1::bigint[]) ORDER BY sha256 FOR UPDATE", [blobs])
    transaction.execute(b"DELETE FROM acorn.run_media WHERE root = $1", [root])
    transaction.execute(
        b"""
        DELETE FROM acorn.media WHERE number = ANY($1::bigint[])
          AND NOT EXISTS (SELECT FROM acorn.run_media WHERE blob = media.number)
        """,
        [blobs],
    )


def watch(transaction: Transaction, run_id: str, seconds: float) -> int | None:
    """Make commits to a run and its branches send notifications for some seconds.

    Return the row number of the root run, which identifies the notifications. Return None if the run does not exist.
    """
    row = transaction.execute(
        b"""
        UPDATE acorn.runs SET watched_until = greatest(watched_until, clock_timestamp() + make_interval(secs => $2))
        WHERE number = (SELECT coalesce(root, number) FROM acorn.runs WHERE id = $1) RETURNING number
        """,
        [run_id, seconds],
    ).fetchone()
    return None if row is None else int(row[0])


# Rate limits that all processes of a database share, measured by the clock of the database

# PostgreSQL locks the row of the rate limit before it evaluates the subquery, which therefore uses only this row.
# `later` contains a place and all places that expire after it. The request waits for the last place with which these
# places leave no room.
TAKE_PLACE = b"""
    INSERT INTO acorn.rate_limits AS stored VALUES ($1, '{}', '{}', '{}', NULL, 0)
    ON CONFLICT (key) DO UPDATE SET (expires, requests, tokens, place, seconds) = (
      WITH clock AS (SELECT extract(epoch FROM clock_timestamp())::float8 AS now),
      counted AS (
        SELECT expires, sum(requests)::bigint AS requests, sum(tokens)::bigint AS tokens FROM clock, (
          SELECT * FROM unnest(stored.expires, stored.requests, stored.tokens)
          UNION ALL SELECT * FROM unnest($7::float8[], $8::bigint[], $9::bigint[])
        ) AS place (expires, requests, tokens)
        WHERE expires > now GROUP BY expires HAVING sum(requests) > 0
      ),
      answer AS (
        SELECT ceil((max(now) + $5) / $6) * $6 AS place,
          coalesce(max(expires) FILTER (WHERE requests >= $2 OR tokens + $4 > $3) - max(now), 0) AS seconds
        FROM clock LEFT JOIN (
          SELECT expires, sum(requests) OVER later AS requests, sum(tokens) OVER later AS tokens
          FROM counted WINDOW later AS (ORDER BY expires DESC)
        ) AS sums ON true
      ),
      updated AS (
        SELECT expires, sum(requests)::bigint AS requests, sum(tokens)::bigint AS tokens FROM (
          SELECT * FROM counted UNION ALL SELECT place, 1, $4 FROM answer WHERE seconds = 0 AND $4 IS NOT NULL
        ) AS place GROUP BY expires
      )
      SELECT coalesce(array_agg(expires), '{}'), coalesce(array_agg(requests), '{}'), coalesce(array_agg(tokens), '{}'),
        (SELECT place FROM answer), (SELECT seconds FROM answer)
      FROM updated
    )
    RETURNING place, seconds
"""
_DELETE_UNUSED_LIMITS = b"""
    DELETE FROM acorn.rate_limits WHERE key IN (
      SELECT key FROM acorn.rate_limits WHERE extract(epoch FROM clock_timestamp()) >= ALL (expires)
      FOR UPDATE SKIP LOCKED
    )
"""


def take_place(transaction: Transaction, order: PlaceOrder) -> PlaceAnswer:
    """Grant a place under a shared rate limit, or return the seconds to wait."""
    corrections: list[Any] = [[place[at] for place in order.corrections] for at in range(3)]
    while True:
        row = transaction.execute(TAKE_PLACE, [*order[:6], *corrections]).fetchone()
        assert row is not None
        if row[0] is not None:  # Otherwise the statement has inserted the row of a new rate limit.
            return PlaceAnswer(*row)


def delete_unused_limits(transaction: Transaction) -> None:
    """Delete rate limits under which no request counts now."""
    transaction.execute(_DELETE_UNUSED_LIMITS)
