"""The run queue of the PostgreSQL store: its job engine, the statements of workers, and the state of the fleet.

The job engine is Procrastinate. Its tables are in the schema `acorn_jobs` of the same database. A delivered run is a
run that workers must drive. When the status of a delivered run becomes `queued`, the same transaction adds a job for
the run. A job only delivers the id of the run to one worker, and is then deleted. The tables of the store decide which
runs workers must drive: if a run was delivered but no process drives it, a worker adds a new job after a lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from acorn.errors import StoreError
from acorn.stores.statements import APPLICATION_ID, JOB_CHANNEL, JOBS_SCHEMA

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.rows import TupleRow

_TASK = "acorn.perform"
"""The name of the task in the jobs of the engine."""
_MAX_QUEUE_NAME = 128
"""The maximum number of characters in the name of a queue, which is the name of the agent class."""


# The job engine

_OWN_OBJECTS = f"""
    CREATE TABLE applied (name text PRIMARY KEY);
    CREATE INDEX jobs_by_run ON procrastinate_jobs ((args->>'run_id'));
    CREATE FUNCTION queue_of(agent text) RETURNS text LANGUAGE sql IMMUTABLE
      RETURN CASE WHEN length(agent) <= {_MAX_QUEUE_NAME} THEN agent ELSE md5(agent) END;
    CREATE FUNCTION deliver(ids text[]) RETURNS void LANGUAGE plpgsql SET search_path = {JOBS_SCHEMA} AS $$
    BEGIN
      PERFORM procrastinate_defer_jobs_v1(array_agg(ROW(
        queue_of(agent), '{_TASK}', priority, NULL, NULL, jsonb_build_object('run_id', id), not_before
      )::procrastinate_job_to_defer_v1 ORDER BY number))
      FROM acorn.runs WHERE id = ANY(ids) AND is_delivered HAVING count(*) > 0;
      PERFORM pg_notify('{JOB_CHANNEL}', '');
    END $$;
    CREATE FUNCTION next_delivery(agents text[]) RETURNS text LANGUAGE plpgsql SET search_path = {JOBS_SCHEMA} AS $$
    DECLARE job procrastinate_jobs;
    BEGIN
      SELECT * INTO job FROM procrastinate_fetch_job_v2(ARRAY(SELECT queue_of(unnest(agents))), NULL);
      IF job.id IS NULL THEN
        RETURN NULL;
      END IF;
      PERFORM procrastinate_finish_job_v1(job.id, 'succeeded', true);
      UPDATE acorn.runs SET updated = clock_timestamp() WHERE id = job.args->>'run_id';
      RETURN job.args->>'run_id';
    END $$;
"""


def prepare_engine(connection: Connection[TupleRow], name: str) -> None:
    """Create the tables of the job engine, or migrate existing tables to the version of the installed engine."""
    engine = find_spec("procrastinate")  # Importing the engine would be slow.
    sql_files = None if engine is None or engine.origin is None else Path(engine.origin).parent / "sql"
    migrations = {path.name for path in (sql_files / "migrations").glob("*.sql")} if sql_files else set[str]()
    applied = _applied_migrations(connection)
    if applied is not None and migrations <= applied:
        return
    if sql_files is None:
        raise StoreError(
            f"The workers of {name} need the extra `fleet`. Install it: pip install 'acorn-agents[fleet]'."
        )
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock($1)", [APPLICATION_ID])
        # `IF NOT EXISTS` would need the permission to create a schema even if the schema exists.
        if connection.execute("SELECT to_regnamespace($1)", [JOBS_SCHEMA]).fetchone() == (None,):
            connection.execute(f"CREATE SCHEMA {JOBS_SCHEMA}".encode())
        connection.execute(f"SET LOCAL search_path = {JOBS_SCHEMA}".encode())
        applied = _applied_migrations(connection)  # Another process may have created the tables in the meantime.
        new = sorted(migrations - (applied or set()))
        if applied is None:
            connection.execute((sql_files / "schema.sql").read_bytes())
            connection.execute(_OWN_OBJECTS.encode())
        else:
            for migration in new:
                connection.execute((sql_files / "migrations" / migration).read_bytes())
        connection.execute("INSERT INTO applied SELECT unnest($1::text[])", [new])


def _applied_migrations(connection: Connection[TupleRow]) -> set[str] | None:
    """Return the names of the engine migrations that the database has applied.

    Return None if the database does not contain the tables of the engine.
    """
    if connection.execute("SELECT to_regclass($1)", [f"{JOBS_SCHEMA}.applied"]).fetchone() == (None,):
        return None
    return {name for (name,) in connection.execute(f"SELECT name FROM {JOBS_SCHEMA}.applied".encode()).fetchall()}


# Workers


def next_delivery(connection: Connection[TupleRow], agents: Sequence[str]) -> str | None:
    """Return the id of the next delivered run of some agent classes, and delete its job."""
    statement = f"SELECT {JOBS_SCHEMA}.next_delivery($1::text[])".encode()
    run_id: str | None
    (run_id,) = connection.execute(statement, [list(agents)]).fetchone() or (None,)
    return run_id


LOCK_QUEUE = f"SELECT pg_try_advisory_xact_lock({APPLICATION_ID + 1})"
# Runs that no live process drives and that have no job. Runs that changed or were delivered in the last seconds are
# skipped, because a worker may be about to claim them.
LOST_RUNS = f"""
    SELECT id FROM runs
    WHERE is_delivered AND status IN ('queued', 'stopped', 'running') AND agent = ANY($1::text[])
      AND coalesce(not_before, '-infinity') < clock_timestamp()
      AND CASE WHEN status = 'running'
        THEN NOT EXISTS (
          SELECT FROM processes WHERE processes.id = runs.process AND lease_expires > clock_timestamp()
        )
        ELSE updated < clock_timestamp() - make_interval(secs => $2) END
      AND NOT EXISTS (
        SELECT FROM {JOBS_SCHEMA}.procrastinate_jobs job WHERE args->>'run_id' = runs.id AND job.status = 'todo'
      )
    LIMIT 1000
"""
REGISTER_WORKER = """
    INSERT INTO workers VALUES ($1, $2::text[], $3, clock_timestamp())
    ON CONFLICT (process) DO UPDATE SET agents = excluded.agents, concurrency = excluded.concurrency
"""


# The state of the fleet


class WorkerFacts(NamedTuple):
    """The description of a live worker process: its host, its agent classes and its number of runs."""

    host: str
    pid: int
    agents: Sequence[str]
    concurrency: int
    """The maximum number of runs that the worker drives at the same time."""
    running: int
    started: datetime


class AgentFacts(NamedTuple):
    """The numbers of runs of one agent class that are queued, running, waiting, done and failed."""

    agent: str
    queued: int
    """Runs that could start now."""
    delayed: int
    """Queued runs whose `not_before` is in the future."""
    running: int
    waiting: int
    """Runs that wait for human input."""
    oldest: float | None
    """The seconds for which the oldest of the `queued` runs has waited. None if no run is queued."""
    done: int
    """Runs that finished in the last minute."""
    failed: int
    """Runs that failed in the last hour."""


class FleetFacts(NamedTuple):
    """The live workers of a store, and the numbers of runs of each agent class."""

    workers: Sequence[WorkerFacts]
    agents: Sequence[AgentFacts]


LIVE_WORKERS = """
    SELECT host, pid, agents, concurrency, (SELECT count(*) FROM runs WHERE runs.process = workers.process),
      workers.started
    FROM workers JOIN processes ON processes.id = workers.process
    WHERE lease_expires > clock_timestamp() ORDER BY workers.started, host, pid
"""
RUNS_BY_AGENT = """
    WITH due AS (
      SELECT *, coalesce(not_before, '-infinity') <= clock_timestamp() AS is_due FROM runs
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
