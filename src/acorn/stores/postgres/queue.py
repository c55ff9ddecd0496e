"""Runs of a PostgreSQL store that begin elsewhere: put in bulk, handed to the engine, and found where it lost them.

The engine is Procrastinate, in a schema of its own beside the store's. A run that is `queued` and is to be delivered
gets its job in the transaction that makes it so. What the engine loses, by whatever accident, is delivered anew: the
store is the book.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import md5
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from acorn.errors import StoreError
from acorn.stores.port import NOT_BEGUN, Process, QueuedRun
from acorn.stores.postgres.connection import Transaction
from acorn.stores.sqlite.connection import APPLICATION_ID

if TYPE_CHECKING:
    from psycopg import Connection

SCHEMA = "acorn_jobs"
"""Where the tables of the engine are."""
TASK = "acorn.perform"
"""What the engine calls the driving of a run."""
_LONGEST = 128
"""Characters in the name of a queue."""

# The runs

_PUT = f"""
    WITH given AS (
      SELECT * FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::bigint[], $6::text[], $7::text[],
        $8::integer[], $9::timestamptz[])
      AS given (id, agent, started, batch, item, input, overrides, priority, not_before)
    ),
    born AS (
      INSERT INTO acorn.runs (id, agent, status, steps, input_tokens, output_tokens, cached_tokens, reasoning_tokens,
        requests, cache_write_tokens, started, updated, seconds, batch, item, length, is_delivered, priority,
        not_before)
      SELECT id, agent, 'queued', 0, 0, 0, 0, 0, 0, 0, started, clock_timestamp(), 0, batch, item, 0, $10, priority,
        not_before
      FROM given ON CONFLICT (id) DO NOTHING RETURNING number, id
    ),
    births AS (
      INSERT INTO acorn.births SELECT number, NULL, input, overrides FROM born JOIN given USING (id)
    ),
    states AS (INSERT INTO acorn.states SELECT number, '{NOT_BEGUN}', '{NOT_BEGUN}' FROM born)
    SELECT id FROM born
""".encode()
_DELIVER = f"SELECT {SCHEMA}.deliver($1::text[])".encode()


# What was begun or put without workers is theirs from now on.
_HAND_OVER = b"""
    UPDATE acorn.runs SET is_delivered = true FROM unnest($1::text[], $2::text[]) AS given (id, agent)
    WHERE runs.id = given.id AND runs.agent = given.agent AND root IS NULL AND NOT is_delivered
      AND status NOT IN ('done', 'cancelled')
    RETURNING runs.id, status IN ('queued', 'stopped')
"""


def put_runs(transaction: Transaction, runs: Sequence[QueuedRun], deliver: bool) -> list[str]:
    """The ids of those that were not known."""
    once = list({one.run_id: one for one in reversed(runs)}.values())[::-1]
    births = [one.birth for one in once]
    values = [
        [one.run_id for one in once], [one.agent for one in births], [one.started for one in births],
        [one.batch for one in births], [one.item for one in births], [one.input for one in births],
        [one.overrides for one in births], [one.priority for one in once], [one.not_before for one in once], deliver,
    ]  # fmt: skip
    new = [run_id for (run_id,) in transaction.execute(_PUT, values).fetchall()]
    if deliver:
        known = [one for one in once if one.run_id not in set(new)] if len(new) < len(once) else []
        transaction.execute(_DELIVER, [[*new, *_hand_over(transaction, known)]])
    return new


def _hand_over(transaction: Transaction, known: Sequence[QueuedRun]) -> list[str]:
    """Those that somebody has to be told of."""
    if not known:
        return []
    values = [[one.run_id for one in known], [one.birth.agent for one in known]]
    return [run_id for run_id, rests in transaction.execute(_HAND_OVER, values).fetchall() if rests]


def deliver_again(transaction: Transaction, run_id: str) -> None:
    """A run of the engine's has become `queued`."""
    transaction.execute(_DELIVER, [[run_id]])


# The engine

_OURS = f"""
    CREATE TABLE applied (name text PRIMARY KEY);
    CREATE INDEX jobs_by_run ON procrastinate_jobs ((args->>'run_id'));
    CREATE FUNCTION queue_of(agent text) RETURNS text LANGUAGE sql IMMUTABLE
      RETURN CASE WHEN length(agent) <= {_LONGEST} THEN agent ELSE md5(agent) END;
    CREATE FUNCTION deliver(ids text[]) RETURNS void LANGUAGE plpgsql SET search_path = {SCHEMA} AS $$
    BEGIN
      PERFORM procrastinate_defer_jobs_v1(array_agg(ROW(
        queue_of(agent), '{TASK}', priority, NULL, NULL, jsonb_build_object('run_id', id), not_before
      )::procrastinate_job_to_defer_v1 ORDER BY number))
      FROM acorn.runs WHERE id = ANY(ids) AND is_delivered HAVING count(*) > 0;
    END $$;
"""


def prepare_engine(connection: Connection[Any], name: str) -> None:
    """Make the tables of the engine, or bring them to what is installed, where that is needed."""
    installed = _installed()
    if _is_ready(connection, installed):
        return
    if installed is None:
        raise StoreError(f"The workers of {name} need the extra `fleet`: pip install 'acorn-agents[fleet]'.")
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", [APPLICATION_ID])
        # Asked first: who may not make one is refused by `IF NOT EXISTS` too.
        if connection.execute("SELECT to_regnamespace($1)", [SCHEMA]).fetchone() == (None,):
            connection.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        connection.execute(f"SET LOCAL search_path = {SCHEMA}".encode())
        if _applied(connection) is None:
            connection.execute((installed / "schema.sql").read_bytes())
            connection.execute(_OURS.encode())
            new = sorted(_migrations(installed))
        else:
            new = sorted(_migrations(installed) - (_applied(connection) or set()))
            for each in new:
                connection.execute((installed / "migrations" / each).read_bytes())
        connection.execute("INSERT INTO applied SELECT unnest($1::text[])", [new])


def _is_ready(connection: Connection[Any], installed: Path | None) -> bool:
    applied = _applied(connection)
    return applied is not None and (installed is None or _migrations(installed) <= applied)


def _applied(connection: Connection[Any]) -> set[str] | None:
    """The migrations of the engine that this database knows; None: it knows no engine."""
    (found,) = connection.execute("SELECT to_regclass($1)", [f"{SCHEMA}.applied"]).fetchone() or (None,)
    if found is None:
        return None
    return {name for (name,) in connection.execute(f"SELECT name FROM {SCHEMA}.applied".encode()).fetchall()}


def _installed() -> Path | None:
    """Where the SQL of the engine is; it need not be loaded for that."""
    found = find_spec("procrastinate")
    return None if found is None or found.origin is None else Path(found.origin).parent / "sql"


def _migrations(installed: Path) -> set[str]:
    return {path.name for path in (installed / "migrations").glob("*.sql")}


# The workers

_LOST = f"""
    SELECT id FROM acorn.runs
    WHERE is_delivered AND status IN ('queued', 'stopped', 'running') AND agent = ANY($1::text[])
      AND coalesce(not_before, '-infinity') < clock_timestamp()
      AND CASE WHEN status = 'running'
        THEN NOT EXISTS (SELECT FROM acorn.holders WHERE holders.id = runs.holder AND until > clock_timestamp())
        ELSE updated < clock_timestamp() - make_interval(secs => $2) END
      AND NOT EXISTS (
        SELECT FROM {SCHEMA}.procrastinate_jobs job WHERE args->>'run_id' = runs.id AND (
          job.status = 'todo' OR runs.status <> 'running' AND EXISTS (
            SELECT FROM {SCHEMA}.procrastinate_events
            WHERE job_id = job.id AND type = 'started' AND at > clock_timestamp() - make_interval(secs => $2)
          )
        )
      )
    LIMIT 1000
""".encode()
_WORK = b"""
    INSERT INTO acorn.workers VALUES ($1, $2::text[], $3, clock_timestamp())
    ON CONFLICT (holder) DO UPDATE SET agents = excluded.agents, places = excluded.places
"""


def find_lost(transaction: Transaction, agents: Sequence[str], seconds: float) -> list[str]:
    """Deliver anew the runs of these classes that nobody drives, and that no job will bring to anybody.

    One worker at a time looks. A run that rests is left alone for so long, and so is one whose job a worker has just
    got: somebody may be about to claim it.
    """
    sql = b"SELECT pg_try_advisory_xact_lock($1)"
    (is_first,) = transaction.execute(sql, [APPLICATION_ID + 1]).fetchone() or (False,)
    if not is_first:
        return []
    found = [run_id for (run_id,) in transaction.execute(_LOST, [list(agents), float(seconds)]).fetchall()]
    if found:
        transaction.execute(_DELIVER, [found])
    return found


def begin_work(transaction: Transaction, holder: Process, agents: Sequence[str], places: int) -> None:
    transaction.execute(b"DELETE FROM acorn.workers WHERE holder NOT IN (SELECT id FROM acorn.holders)")
    transaction.execute(_WORK, [holder.id, list(agents), places])


def end_work(transaction: Transaction, holder: Process) -> None:
    transaction.execute(b"DELETE FROM acorn.workers WHERE holder = $1", [holder.id])


# The fleet, at a glance


class WorkerFacts(NamedTuple):
    """A worker that lives."""

    host: str
    pid: int
    agents: Sequence[str]
    places: int
    """How many runs it drives at a time."""
    running: int
    since: datetime


class AgentFacts(NamedTuple):
    """The runs of one class."""

    agent: str
    queued: int
    """Those that could begin."""
    delayed: int
    """Those whose time has not come."""
    running: int
    waiting: int
    """For people."""
    oldest: float | None
    """Seconds that the one which could begin longest has waited."""
    done: int
    """In the last minute."""
    failed: int
    """In the last hour."""


class FleetFacts(NamedTuple):
    """The workers of a store, and what they have to do."""

    workers: Sequence[WorkerFacts]
    agents: Sequence[AgentFacts]


_WORKERS = b"""
    SELECT host, pid, agents, places, (SELECT count(*) FROM acorn.runs WHERE runs.holder = workers.holder), since
    FROM acorn.workers JOIN acorn.holders ON holders.id = workers.holder
    WHERE until > clock_timestamp() ORDER BY since, host, pid
"""
_AGENTS = b"""
    WITH due AS (
      SELECT *, coalesce(not_before, '-infinity') <= clock_timestamp() AS is_due FROM acorn.runs
      WHERE root IS NULL AND is_delivered
    )
    SELECT agent, count(*) FILTER (WHERE status = 'queued' AND is_due),
      count(*) FILTER (WHERE status = 'queued' AND NOT is_due),
      count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'waiting'),
      extract(epoch FROM clock_timestamp() - min(greatest(started, not_before))
        FILTER (WHERE status = 'queued' AND is_due))::float8,
      count(*) FILTER (WHERE status = 'done' AND updated > clock_timestamp() - interval '1 minute'),
      count(*) FILTER (WHERE status = 'failed' AND updated > clock_timestamp() - interval '1 hour')
    FROM due WHERE status NOT IN ('done', 'failed', 'cancelled') OR updated > clock_timestamp() - interval '1 hour'
    GROUP BY agent ORDER BY agent
"""


def fleet(transaction: Transaction) -> FleetFacts:
    workers = [WorkerFacts(*row) for row in transaction.execute(_WORKERS).fetchall()]
    return FleetFacts(workers, [AgentFacts(*row) for row in transaction.execute(_AGENTS).fetchall()])


def queue_of(agent: str) -> str:
    """The name of the queue of a class, as `queue_of` in the database gives it."""
    return agent if len(agent) <= _LONGEST else md5(agent.encode(), usedforsecurity=False).hexdigest()
