"""What a fleet costs: putting runs into PostgreSQL, delivering them, and how many a worker drives.

    ACORN_BENCH_STORE=postgresql://host/name python bench/fleet.py

The database must be one that may be filled. CPU is that of this process; ratios and CPU mean more than milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import procrastinate
import psycopg

from acorn import module
from acorn._queueing import Intake
from acorn.durable import perform
from acorn.durable.work import Worker
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


def main() -> None:
    url = os.environ.get("ACORN_BENCH_STORE")
    if not url:
        sys.exit("set ACORN_BENCH_STORE to the URL of a database that may be filled")
    store = PostgresStore(url)
    store.prepare_engine()
    agent: Any = Desk(store=store)
    say(f"{ROWS:,} rows submitted", lambda: submit(agent), 1, "s", 1.0)
    clear(store)
    by_hand = say("a run driven in place", lambda: [agent(question="x") for _ in range(RUNS)], RUNS, "ms", 1000.0)
    put = [agent.using(deliver=False).submit(question="x").run_id for _ in range(RUNS)]
    by_id = say("the same by `perform`", lambda: [perform(Desk, each, store=store) for each in put], RUNS, "ms", 1000.0)
    engine = say("a job of the engine that does nothing", lambda: asyncio.run(bare(store)), RUNS, "ms", 1000.0)
    names = [agent.using(run_id=uuid.uuid4().hex).submit(question="x").run_id for _ in range(RUNS)]
    began = time.monotonic()
    whole = say("a run by a worker", lambda: asyncio.run(work(store, names)), RUNS, "ms", 1000.0)
    seconds = time.monotonic() - began
    print(
        f"`perform` over driving in place: {by_id - by_hand:.2f} ms; a worker over the engine: {whole - engine:.2f} ms"
    )
    print(f"{RUNS / seconds * 60:,.0f} runs a minute and worker, of {CALLS + 1} model calls that take no time")


def submit(agent: Any) -> None:
    """As `map(..., queue=True)` does, without waiting for what becomes of them."""
    intake = Intake(agent)
    for at in range(0, ROWS, 500):
        intake.put([intake.run((), {"question": f"number {one}"}, None, None) for one in range(at, at + 500)])


def say(what: str, act: Callable[[], Any], share: int, unit: str, scale: float) -> float:
    cpu, wall = time.process_time(), time.perf_counter()
    act()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{what:<40} {cpu / share * scale:8.2f} {unit} CPU {wall / share * scale:8.2f} {unit}", flush=True)
    return cpu / share * scale


async def bare(store: PostgresStore) -> None:
    """The engine alone."""
    connector = procrastinate.PsycopgConnector(kwargs=store.engine_parameters(), min_size=1, max_size=3)
    app = procrastinate.App(connector=connector)

    @app.task(name="nothing", queue="nothing")
    async def nothing(run_id: str) -> None:
        pass

    async with app.open_async():
        jobs: list[Any] = [{"run_id": str(at)} for at in range(RUNS)]
        await nothing.batch_defer_async(*jobs)
        await app.run_worker_async(
            queues=["nothing"], concurrency=16, wait=False, install_signal_handlers=False, delete_jobs="always"
        )


async def work(store: PostgresStore, names: list[str]) -> None:
    left = set(names)

    def ran(run_id: str, *_: object) -> None:
        left.discard(run_id)
        if not left:
            worker.stop()

    worker = Worker([Desk], store, 16, say=lambda _: None, ran=ran)
    await worker.run()


def clear(store: PostgresStore) -> None:
    with psycopg.connect(**store.engine_parameters()) as connection:
        connection.execute("TRUNCATE procrastinate_jobs CASCADE")


if __name__ == "__main__":
    main()
