"""Measure queued runs: submit runs to PostgreSQL, and execute them with a worker."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from measure import Line
from stored_steps import database

from acorn import module
from acorn._call.submit import Submission
from acorn.durable import perform
from acorn.durable.worker import Worker
from acorn.models import ModelRequest
from acorn.stores import PostgresStore
from acorn.testing import Reply, ScriptedModel, call, finish

ROWS = 10_000
RUNS = 300
CALLS = 2


def reply(request: ModelRequest) -> Reply:
    turn = sum(message["role"] == "assistant" for message in request.messages)
    return call("look") if turn < CALLS else finish(answer="done")


def look() -> str:
    """Look."""
    return "seen"


class Desk(module):
    """Answer."""

    initial_input = [("question", str)]
    final_output = [("answer", str)]
    model = ScriptedModel(reply)
    max_steps = 8
    tools = [look]


Desk.__module__ = "fleet_bench"


def lines() -> list[Line]:
    with database() as url:
        return [] if url is None else measured(url)


def measured(url: str) -> list[Line]:
    store = PostgresStore(url)
    store.prepare_engine()
    agent: Any = Desk(store=store)
    submitted, _ = spent(lambda: submit(agent))
    clear(url)
    by_hand, _ = spent(lambda: [agent(question="x") for _ in range(RUNS)])
    put = [agent.using(deliver=False).submit(question="x").run_id for _ in range(RUNS)]
    by_id, _ = spent(lambda: [perform(store, each, Desk) for each in put])
    names = [agent.using(run_id=uuid.uuid4().hex).submit(question="x").run_id for _ in range(RUNS)]
    whole, seconds = spent(lambda: asyncio.run(work(store, names)))
    store.close()
    each = 1000 / RUNS
    return [
        Line(f"{ROWS:,} rows submitted, CPU", submitted, 1.0, " s"),
        Line("what `perform` adds to a run that is driven in place, CPU", (by_id - by_hand) * each, 5.0, " ms"),
        Line("a run by a worker, CPU", whole * each, None, " ms"),
        Line(f"a run by a worker, of {CALLS + 1} model calls that take no time", seconds * each, None, " ms"),
    ]


def submit(agent: Any) -> None:
    """Submit rows like `map(..., queue=True)`, but do not wait for the results."""
    submission = Submission(agent)
    for at in range(0, ROWS, 500):
        submission.put(
            [submission.new_run((), {"question": f"number {one}"}, None, None) for one in range(at, at + 500)]
        )


def spent(act: Callable[[], object]) -> tuple[float, float]:
    """Call a function and return its CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    act()
    return time.process_time() - cpu, time.perf_counter() - wall


async def work(store: PostgresStore, names: list[str]) -> None:
    left = set(names)

    def ran(run_id: str, *_: object) -> None:
        left.discard(run_id)
        if not left:
            worker.stop()

    worker = Worker([Desk], store, 16, report_line=lambda _: None, report_run=ran)
    await worker.run()


def clear(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("TRUNCATE acorn_jobs.procrastinate_jobs CASCADE")
