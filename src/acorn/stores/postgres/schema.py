"""The tables of the PostgreSQL store, and a function that creates and checks them.

The tables are in the schema `acorn`. The first process creates the tables under an advisory lock, and other processes
wait for the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Connection
from psycopg.rows import TupleRow

from acorn.errors import StoreError
from acorn.stores.database import APPLICATION_ID, SCHEMA_VERSION

TABLES: tuple[str, ...] = (
    "CREATE TABLE acorn.meta (version integer NOT NULL)",
    f"INSERT INTO acorn.meta VALUES ({SCHEMA_VERSION})",
    # Processes that drive runs.
    """
    CREATE TABLE acorn.processes (
      id text PRIMARY KEY, host text NOT NULL, boot text NOT NULL, pid bigint NOT NULL, process_started text NOT NULL,
      last_heartbeat timestamptz NOT NULL, lease_expires timestamptz NOT NULL
    )
    """,
    # The number of the last transaction of each writer. After a lost connection, the writer compares the number with
    # its last transaction to learn whether the transaction was committed. PostgreSQL's transaction ids cannot replace
    # the number, because PostgreSQL may use an id again after a crash of the server.
    """
    CREATE TABLE acorn.writers (id text PRIMARY KEY, last_transaction bigint NOT NULL, written timestamptz NOT NULL)
    """,
    # The facts of runs, and the process that drives each tree. `root` contains the number of the root, and is null for
    # a root. Only a root has a process. `entry_count` is the length of the journal. `open_requests` is the number of
    # open requests of the tree. `takeovers` is the number of processes that died while the tree had `takeover_steps`
    # steps. `heartbeat_age` is the age in seconds of the last heartbeat of the previous process at the last takeover.
    # Until `watched_until`, each commit sends a notification. Workers drive the runs with `is_delivered`, the highest
    # `priority` first, and no run before its `not_before`.
    # Ids sort by code point, as in Python. No index contains a column that most commits change, and the fill factor
    # leaves free space in the pages, so that most commits write no index.
    """
    CREATE TABLE acorn.runs (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE, root bigint,
      parent text, agent text NOT NULL, status text NOT NULL, model text, steps bigint NOT NULL,
      input_tokens bigint NOT NULL, output_tokens bigint NOT NULL, cached_tokens bigint NOT NULL,
      reasoning_tokens bigint NOT NULL, requests bigint NOT NULL, cache_write_tokens bigint NOT NULL,
      cost double precision, started timestamptz NOT NULL, updated timestamptz NOT NULL,
      seconds double precision NOT NULL,
      batch text, item bigint, stop_reason text, error text, entry_count bigint NOT NULL,
      process text, heartbeat_age double precision NOT NULL DEFAULT 0, takeovers integer NOT NULL DEFAULT 0,
      takeover_steps bigint NOT NULL DEFAULT -1, cancel_requested boolean NOT NULL DEFAULT false,
      open_requests bigint NOT NULL DEFAULT 0, watched_until timestamptz,
      is_delivered boolean NOT NULL DEFAULT false, priority integer NOT NULL DEFAULT 0, not_before timestamptz
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX runs_by_time ON acorn.runs (started DESC, number DESC) WHERE root IS NULL",
    "CREATE INDEX runs_by_batch ON acorn.runs (batch, item) WHERE batch IS NOT NULL",
    "CREATE INDEX runs_by_root ON acorn.runs (root) WHERE root IS NOT NULL",
    "CREATE INDEX runs_by_process ON acorn.runs (process) WHERE process IS NOT NULL",
    """
    CREATE INDEX runs_delivered ON acorn.runs (agent, number)
    WHERE is_delivered AND status IN ('queued', 'stopped', 'running')
    """,
    # JSON text that PostgreSQL does not parse. The header never changes, and the state changes with each commit. The
    # type is text, because PostgreSQL's JSON types reject some characters that a model may write.
    "CREATE TABLE acorn.run_headers (run bigint PRIMARY KEY, branch text, input text NOT NULL, overrides text)",
    """
    CREATE TABLE acorn.run_states (run bigint PRIMARY KEY, record text NOT NULL, state text NOT NULL)
    WITH (fillfactor = 70)
    """,
    # The journals. A position is never used again. The positions of a tree are in commit order, because each commit
    # locks the root.
    """
    CREATE TABLE acorn.entries (
      root bigint NOT NULL, position bigint GENERATED ALWAYS AS IDENTITY, run bigint NOT NULL, entry text NOT NULL,
      PRIMARY KEY (root, position)
    )
    """,
    # Requests for human input, with their answers. `answer_order` is the number of the answer within its tree.
    """
    CREATE TABLE acorn.requests (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL UNIQUE, root bigint NOT NULL,
      run text NOT NULL, kind text NOT NULL, question text NOT NULL, tool text NOT NULL, arguments text NOT NULL,
      branch text, choices text, asked timestamptz NOT NULL, answer text, answered timestamptz, answer_order bigint
    )
    """,
    "CREATE INDEX requests_by_root ON acorn.requests (root)",
    "CREATE INDEX requests_open ON acorn.requests (asked, number) WHERE answered IS NULL",
    # The data of images, audio clips and files. Equal data is stored once. `run_media` lists the data of each tree.
    """
    CREATE TABLE acorn.media (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sha256 text NOT NULL UNIQUE, data bytea NOT NULL
    )
    """,
    "CREATE TABLE acorn.run_media (root bigint NOT NULL, blob bigint NOT NULL, PRIMARY KEY (root, blob))",
    "CREATE INDEX run_media_by_blob ON acorn.run_media (blob)",
    # Rate limits that all processes share. The arrays contain the places that count: the times when the places expire,
    # and the numbers of their requests and tokens. Places that expire at the same time are one element. `place` and
    # `seconds` are the last answer.
    """
    CREATE TABLE acorn.rate_limits (
      key text PRIMARY KEY, expires float8[] NOT NULL, requests bigint[] NOT NULL, tokens bigint[] NOT NULL,
      place float8, seconds float8 NOT NULL
    ) WITH (fillfactor = 50)
    """,
    # Worker processes, each with the classes whose delivered runs the worker drives.
    """
    CREATE TABLE acorn.workers (
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
