"""The tables of a store in PostgreSQL, as the steps that lead from one version to the next. Forward only.

They stand in a schema of their own, `acorn`. Whoever comes first makes them, under a lock that the others wait for. A
step that was released never changes: databases that it made are out there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import Connection

from acorn.errors import StoreError
from acorn.stores.sqlite.connection import APPLICATION_ID, Migration

FIRST: Migration = (
    "CREATE TABLE acorn.meta (version integer NOT NULL)",
    "INSERT INTO acorn.meta VALUES (0)",
    # A process that drives runs.
    """
    CREATE TABLE acorn.holders (
      id text PRIMARY KEY, host text NOT NULL, boot text NOT NULL, pid bigint NOT NULL, born text NOT NULL,
      heard timestamptz NOT NULL, until timestamptz NOT NULL
    )
    """,
    # Who writes, and the number of its last transaction: so it finds out whether one was kept whose end it never heard.
    # The number that PostgreSQL gives a transaction may be given to another one after a crash.
    "CREATE TABLE acorn.writers (id text PRIMARY KEY, turn bigint NOT NULL, at timestamptz NOT NULL)",
    # What a list shows of a run, and who drives it. `root` is the number of the run that a branch belongs to, and
    # null for a run of its own: only that one has a holder. `length` counts the entries of its journal, `asks` the
    # open requests of the whole tree. `attempts` counts holders that died while the tree had made `attempted` steps.
    # Until `followed`, somebody wants to hear of each commit. Ids are in the order of their code points, as Python's.
    # What changes with a commit is in no index, and pages have room for it, so that no index has to be written.
    """
    CREATE TABLE acorn.runs (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE, root bigint,
      parent text, agent text NOT NULL, status text NOT NULL, model text, steps bigint NOT NULL,
      input_tokens bigint NOT NULL, output_tokens bigint NOT NULL, cached_tokens bigint NOT NULL,
      reasoning_tokens bigint NOT NULL, requests bigint NOT NULL, cache_write_tokens bigint NOT NULL,
      cost double precision, started timestamptz NOT NULL, updated timestamptz NOT NULL,
      seconds double precision NOT NULL,
      batch text, item bigint, stop_reason text, error text, length bigint NOT NULL,
      holder text, silence double precision NOT NULL DEFAULT 0, attempts integer NOT NULL DEFAULT 0,
      attempted bigint NOT NULL DEFAULT -1, is_unwanted boolean NOT NULL DEFAULT false,
      asks bigint NOT NULL DEFAULT 0, followed timestamptz
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX runs_by_time ON acorn.runs (started DESC, number DESC) WHERE root IS NULL",
    "CREATE INDEX runs_by_batch ON acorn.runs (batch, item) WHERE batch IS NOT NULL",
    "CREATE INDEX runs_by_root ON acorn.runs (root) WHERE root IS NOT NULL",
    "CREATE INDEX runs_by_holder ON acorn.runs (holder) WHERE holder IS NOT NULL",
    # What never changes of a run, and what changes with each commit: JSON that only acorn reads. It is text, as a
    # JSON of PostgreSQL refuses some of what a model may write.
    "CREATE TABLE acorn.births (run bigint PRIMARY KEY, branch text, input text NOT NULL, overrides text)",
    """
    CREATE TABLE acorn.states (run bigint PRIMARY KEY, record text NOT NULL, state text NOT NULL)
    WITH (fillfactor = 70)
    """,
    # The journals. A position is never given twice; those of a tree are in the order of its commits, as each of them
    # has the root for itself.
    """
    CREATE TABLE acorn.entries (
      root bigint NOT NULL, position bigint GENERATED ALWAYS AS IDENTITY, run bigint NOT NULL, entry text NOT NULL,
      PRIMARY KEY (root, position)
    )
    """,
    # What people are asked, and what they answered; `turn` is the order of the answers of a tree.
    """
    CREATE TABLE acorn.requests (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL UNIQUE, root bigint NOT NULL,
      run text NOT NULL, kind text NOT NULL, question text NOT NULL, tool text NOT NULL, arguments text NOT NULL,
      branch text, choices text, asked timestamptz NOT NULL, answer text, answered timestamptz, turn bigint
    )
    """,
    "CREATE INDEX requests_by_root ON acorn.requests (root)",
    # The data of pictures and files, once however many runs have them, and which trees have them.
    """
    CREATE TABLE acorn.media (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sha256 text NOT NULL UNIQUE, data bytea NOT NULL
    )
    """,
    "CREATE TABLE acorn.media_of_runs (root bigint NOT NULL, medium bigint NOT NULL, PRIMARY KEY (root, medium))",
    "CREATE INDEX media_by_medium ON acorn.media_of_runs (medium)",
    "CREATE INDEX requests_open ON acorn.requests (asked, number) WHERE answered IS NULL",
    # What the processes share: allowances, and the parts of each that count until their time is up. Whoever takes one
    # has the allowance for itself.
    "CREATE TABLE acorn.allowances (key text PRIMARY KEY, used timestamptz NOT NULL)",
    """
    CREATE TABLE acorn.slices (
      number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, requests bigint NOT NULL,
      tokens bigint NOT NULL, until timestamptz NOT NULL
    )
    """,
    "CREATE INDEX slices_by_key ON acorn.slices (key, until)",
)

SECOND: Migration = (
    # A run that is `delivered` is one of the workers', who begin it not before its time, and in the order of priority.
    """
    ALTER TABLE acorn.runs ADD is_delivered boolean NOT NULL DEFAULT false, ADD priority integer NOT NULL DEFAULT 0,
      ADD not_before timestamptz
    """,
    """
    CREATE INDEX runs_delivered ON acorn.runs (agent, number)
    WHERE is_delivered AND status IN ('queued', 'stopped', 'running')
    """,
    # A process that drives what is delivered.
    """
    CREATE TABLE acorn.workers (
      holder text PRIMARY KEY, agents text[] NOT NULL, places bigint NOT NULL, since timestamptz NOT NULL
    )
    """,
)

MIGRATIONS: tuple[Migration, ...] = (FIRST, SECOND)
"""The first makes version 1 of nothing, the next version 2 of that."""

_FOUND = """
    SELECT to_regclass('acorn.meta') IS NOT NULL,
      (SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('acorn'))
"""


def prepare(connection: Connection[Any], name: str, migrations: Sequence[Migration]) -> None:
    """Make the tables, or bring them to the newest version, where that is needed; refuse what is newer, or not ours."""
    if _version(connection, name, len(migrations)) == len(migrations):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", [APPLICATION_ID])
        version = _version(connection, name, len(migrations))  # somebody else may have been first
        if version == 0 and not _one(connection, "SELECT to_regnamespace('acorn') IS NOT NULL")[0]:
            connection.execute("CREATE SCHEMA acorn")
        for migration in migrations[version:]:
            for statement in migration:
                connection.execute(statement.encode())
        if version < len(migrations):
            connection.execute("UPDATE acorn.meta SET version = $1", [len(migrations)])


def _version(connection: Connection[Any], name: str, newest: int) -> int:
    has_meta, tables = _one(connection, _FOUND)
    if not has_meta:
        if tables:
            raise StoreError(f"{name} has a schema `acorn` that is not of acorn; it was not touched.")
        return 0
    version = int(_one(connection, "SELECT max(version) FROM acorn.meta")[0] or 0)
    if version > newest:
        raise StoreError(
            f"{name} has schema {version}, and this acorn knows up to {newest}; upgrade acorn. The database was not "
            f"touched."
        )
    return version


def _one(connection: Connection[Any], sql: str) -> Any:
    return connection.execute(sql.encode()).fetchone()
