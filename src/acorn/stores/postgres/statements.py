"""The tables of a PostgreSQL database, and the statements that differ from other databases.

The tables are in the schema `acorn`, which is the search path of every connection. The first process creates the tables
under an advisory lock, and other processes wait for the lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

from psycopg import Connection, DataError, RawCursor
from psycopg.rows import TupleRow

from acorn.errors import StoreError
from acorn.stores import port
from acorn.stores import statements as sql
from acorn.stores.statements import ADD_JOBS, APPLICATION_ID, SCHEMA_VERSION
from acorn.types import is_json_list

# Tables

_TYPES = {
    "number": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "run_key": "bigint PRIMARY KEY",
    "id": 'text COLLATE "C"',
    "time": "timestamptz",
    "bytes": "bytea",
    # The fill factor leaves free space in the pages, so that most commits write no index.
    "often_updated": " WITH (fillfactor = 70)",
    "no_number": "",
}
TABLES: tuple[str, ...] = (
    "CREATE TABLE meta (version integer NOT NULL)",
    f"INSERT INTO meta VALUES ({SCHEMA_VERSION})",
    *(table.format(**_TYPES) for table in sql.TABLES),
    """
    CREATE INDEX runs_delivered ON runs (agent, number)
    WHERE is_delivered AND status IN ('queued', 'stopped', 'running')
    """,
    # The journals. A position is never used again. The positions of a tree are in commit order, because each commit
    # locks the root.
    """
    CREATE TABLE entries (
      root bigint NOT NULL, position bigint GENERATED ALWAYS AS IDENTITY, run bigint NOT NULL, entry text NOT NULL,
      PRIMARY KEY (root, position)
    )
    """,
    # The number of the last transaction of each writer. After a lost connection, the writer compares the number with
    # its last transaction to learn whether the transaction was committed. PostgreSQL's transaction ids cannot replace
    # the number, because PostgreSQL may use an id again after a crash of the server.
    "CREATE TABLE writers (id text PRIMARY KEY, last_transaction bigint NOT NULL, written timestamptz NOT NULL)",
    # Rate limits that all processes share. The arrays contain the places that count: the times when the places expire,
    # and the numbers of their requests and tokens. Places that expire at the same time are one element. `place` and
    # `seconds` are the last answer.
    """
    CREATE TABLE rate_limits (
      key text PRIMARY KEY, expires float8[] NOT NULL, requests bigint[] NOT NULL, tokens bigint[] NOT NULL,
      place float8, seconds float8 NOT NULL
    ) WITH (fillfactor = 50)
    """,
    # Worker processes, each with the classes whose delivered runs the worker drives.
    """
    CREATE TABLE workers (
      process text PRIMARY KEY, agents text[] NOT NULL, concurrency bigint NOT NULL, started timestamptz NOT NULL
    )
    """,
)

_SELECT_TABLES = """
    SELECT to_regclass('acorn.meta') IS NOT NULL,
      (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('acorn'))
"""


def prepare(connection: Connection[TupleRow], name: str, tables: Sequence[str] = TABLES) -> None:
    """Create the tables if they do not exist.

    Raise `StoreError` if another application created the schema `acorn`, or if the tables have another version.
    """
    if _has_tables(connection, name):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", [APPLICATION_ID])
        if _has_tables(connection, name):  # Another process created the tables while this process waited for the lock.
            return
        if not _fetch_one(connection, "SELECT to_regnamespace('acorn') IS NOT NULL")[0]:
            connection.execute("CREATE SCHEMA acorn")
        connection.execute("SET LOCAL search_path = acorn")
        for statement in tables:
            connection.execute(statement.encode())


def _has_tables(connection: Connection[TupleRow], name: str) -> bool:
    has_meta, tables = _fetch_one(connection, _SELECT_TABLES)
    if not has_meta:
        if tables:
            raise StoreError(
                f"{name} has a schema `acorn` that another application created. Use another database. The schema was "
                f"not changed."
            )
        return False
    version = _fetch_one(connection, "SELECT max(version) FROM acorn.meta")[0]
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{name} has schema version {version}, but this version of acorn supports only version {SCHEMA_VERSION}. "
            f"Use the version of acorn that created it, or another database. The database was not changed."
        )
    return True


def _fetch_one(connection: Connection[TupleRow], sql: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return row


# Statements


@cache
def with_parts(statement: str, is_new: bool) -> str:
    """Add the other parts of a run to a statement that changes its row.

    A commit is one statement, because the process needs much CPU time to send a statement. The values of the parts
    follow the values of the statement: record, state and entries, and for a new run also the values of its header.
    """
    count = max(map(int, re.findall(r"\$(\d+)", statement)))
    record, state, entries, *header = (f"${count + at}" for at in range(1, 7))
    if is_new:
        parts = f"""
            header AS (INSERT INTO run_headers SELECT number, {", ".join(header)} FROM changed),
            stored AS (
              INSERT INTO run_states SELECT number, coalesce({record}, '{{}}'), coalesce({state}, '{port.NOT_STARTED}')
              FROM changed
            )
        """
    else:
        parts = f"""
            stored AS (
              UPDATE run_states SET record = coalesce({record}, record), state = coalesce({state}, state)
              FROM changed WHERE run_states.run = changed.number AND coalesce({record}, {state}) IS NOT NULL
            )
        """
    return f"""
        WITH changed AS ({statement}), {parts},
        added AS (
          INSERT INTO entries (root, run, entry)
          SELECT changed.root, changed.number, entry FROM changed, unnest({entries}::text[]) AS entry
        )
        SELECT number, root, is_watched FROM changed
    """


_INSERT_QUEUED = f"""
    WITH given AS (
      SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::bigint[], $6::text[], $7::text[],
        $8::integer[], $9::timestamptz[])
      AS given (id, agent, started, batch, item, input, overrides, priority, not_before)
    ),
    inserted AS (
      INSERT INTO runs (id, agent, status, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens,
        requests, cache_write_tokens, started, updated, seconds, batch, item, entry_count, is_delivered, priority,
        not_before)
      SELECT id, agent, 'queued', 0, 0, 0, 0, 0, 0, 0, started, clock_timestamp(), 0, batch, item, 0, $10, priority,
        not_before
      FROM given ON CONFLICT (id) DO NOTHING RETURNING number, id
    ),
    headers AS (INSERT INTO run_headers SELECT number, NULL, input, overrides FROM inserted JOIN given USING (id)),
    states AS (INSERT INTO run_states SELECT number, '{port.NOT_STARTED}', '{port.NOT_STARTED}' FROM inserted)
    SELECT id FROM inserted
"""
# Runs that are already stored, but that workers did not drive before.
_DELIVER_KNOWN = """
    UPDATE runs SET is_delivered = true FROM unnest($1::text[], $2::text[]) AS given (id, agent)
    WHERE runs.id = given.id AND runs.agent = given.agent AND root IS NULL AND NOT is_delivered
      AND status NOT IN ('done', 'cancelled')
    RETURNING runs.id, status IN ('queued', 'stopped')
"""
_DELETE_IDLE_WRITERS = """
    DELETE FROM writers WHERE id IN (
      SELECT id FROM writers WHERE written < clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED
    )
"""
_DELETE_UNUSED_LIMITS = """
    DELETE FROM rate_limits WHERE key IN (
      SELECT key FROM rate_limits WHERE extract(epoch FROM clock_timestamp()) >= ALL (expires)
      FOR UPDATE SKIP LOCKED
    )
"""
# Make commits to a run and its branches send notifications for some seconds.
WATCH = """
    UPDATE runs SET watched_until = greatest(watched_until, clock_timestamp() + make_interval(secs => $2))
    WHERE number = (SELECT coalesce(root, number) FROM runs WHERE id = $1) RETURNING number
"""


class PostgresTransaction(sql.Transaction):
    """A transaction that executes statements and collects notifications for other processes.

    The statements are pipelined: `execute` does not wait for the result, and the caller waits when it fetches the
    result. The notifications are sent after the transaction is committed.
    """

    __slots__ = ("_connection", "notifications")
    idle_rows: ClassVar[tuple[str, ...]] = (*sql.Transaction.idle_rows, _DELETE_IDLE_WRITERS, _DELETE_UNUSED_LIMITS)

    def __init__(self, connection: Connection[TupleRow]) -> None:
        self._connection = connection
        self.notifications: list[tuple[str, str]] = []
        """Pairs of a channel and a payload."""

    def control(self, sql: bytes) -> None:
        """Execute a statement such as BEGIN or SAVEPOINT, which the database must not prepare."""
        self._connection.cursor().execute(sql, prepare=False)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> RawCursor[TupleRow]:
        cursor: RawCursor[TupleRow] = self._connection.cursor()  # type: ignore[assignment]
        query = _encode(sql)
        try:
            cursor.execute(query, values)
        except (UnicodeEncodeError, DataError) as error:
            if isinstance(error, DataError) and error.sqlstate is not None:
                raise
            cursor.execute(query, _encodable(values))
        return cursor

    def store_run(
        self, statement: str, values: sql.Row, change: port.Change, header: port.RunHeader | None
    ) -> Callable[[], sql.Row | None]:
        parts: tuple[Any, ...] = (change.record, change.state, list(change.entries))
        if header is not None:
            parts += (header.branch, header.input, header.overrides)
        return self.execute(with_parts(statement, header is not None), (*values, *parts)).fetchone

    def insert_queued(self, runs: Sequence[port.QueuedRun], deliver: bool) -> list[str]:
        rows = [
            (
                run_id, header.agent, header.started, header.batch, header.item, header.input, header.overrides,
                priority, not_before,
            )
            for run_id, header, priority, not_before, _ in runs
        ]  # fmt: skip
        columns = [list(column) for column in zip(*rows, strict=True)]
        new = [run_id for (run_id,) in self.execute(_INSERT_QUEUED, [*columns, deliver]).fetchall()]
        if deliver:
            # Runs that are already stored may need a job too.
            new_ids = set(new)
            known = [queued for queued in runs if queued.run_id not in new_ids]
            values = [[queued.run_id for queued in known], [queued.header.agent for queued in known]]
            changed = self.execute(_DELIVER_KNOWN, values).fetchall() if known else []
            self.execute(ADD_JOBS, [[*new, *(run_id for run_id, needs_job in changed if needs_job)]])
        return new

    def notify(self, channel: str, payload: str) -> None:
        self.notifications.append((channel, payload))


_encode = cache(str.encode)


def _encodable(values: Sequence[Any]) -> Sequence[Any]:
    """Replace lone surrogates and NUL characters, which PostgreSQL cannot store, with their JSON escapes."""
    return [_encodable(value) if is_json_list(value) else _escape(value) for value in values]


def _escape(value: object) -> object:
    return sql.encodable([value])[0].replace("\0", "\\u0000") if isinstance(value, str) else value


# Rate limits that all processes of a database share, measured by the clock of the database

# PostgreSQL locks the row of the rate limit before it evaluates the subquery, which therefore uses only this row.
# `later` contains a place and all places that expire after it. The request waits for the last place with which these
# places leave no room.
TAKE_PLACE = """
    INSERT INTO rate_limits AS stored VALUES ($1, '{}', '{}', '{}', NULL, 0)
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


def take_place(connection: Connection[TupleRow], order: port.PlaceOrder) -> port.PlaceAnswer:
    """Grant a place under a shared rate limit, or return the seconds to wait."""
    corrections: list[Any] = [[place[at] for place in order.corrections] for at in range(3)]
    while True:
        row = PostgresTransaction(connection).execute(TAKE_PLACE, [*order[:6], *corrections]).fetchone()
        assert row is not None
        if row[0] is not None:  # Otherwise the statement has inserted the row of a new rate limit.
            return port.PlaceAnswer(*row)
