"""A store in PostgreSQL: a commit against psycopg executing the same statements, pipelined, on the same server."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from measure import Line, cpu
from psycopg import RawCursor
from stores import PLAIN, Rows, change, rows_of_a_step, whole_steps

from acorn.stores import rows
from acorn.stores.holder import this_process
from acorn.stores.port import Commit
from acorn.stores.postgres import PostgresStore
from acorn.stores.postgres_writes import _GO_ON, _TURN

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.postgres_server import new_database, shared_server, why_absent

BATCH = 10
WRITERS = 64


def begin(store: PostgresStore, run_id: str) -> None:
    store.commit(Commit(run_id, this_process(), [change(run_id, 0, is_birth=True)])).result()


def stored(store: PostgresStore) -> Callable[[], None]:
    """A step: two commits, one after the other."""
    begin(store, "r")
    since = 1

    def step() -> None:
        nonlocal since
        for _ in range(2):
            store.commit(Commit("r", this_process(), [change("r", since)])).result()
            since += 1

    return step


def raw(
    url: str, run_id: str, step_rows: tuple[Rows, Rows] = PLAIN
) -> tuple[psycopg.Connection[Any], Callable[[], None]]:
    """The same statements, by hand: what is new is sent together, then the transaction is committed."""
    connection: psycopg.Connection[Any] = psycopg.connect(
        url, autocommit=True, cursor_factory=RawCursor, prepare_threshold=2
    )
    since, holder = 1, this_process().id

    def step() -> None:
        nonlocal since
        for entries, state in step_rows:
            with connection.pipeline():
                connection.execute("BEGIN", prepare=False)
                connection.execute(_TURN, ("raw", since))
                facts = ("running", "openai/gpt-4o", since, 10, 20, 0, 0, 1, 0, 0.25, 1.5, None, None)
                kept = (since + len(entries), None, state, entries, run_id, since, holder)
                went = connection.execute(_GO_ON, (*facts, *kept))
                assert went.fetchone() is not None
                connection.execute("COMMIT", prepare=False)
            since += len(entries)

    return connection, step


def step_over_raw(url: str) -> float:
    """Taken in turn, so that noise hits both alike."""
    assert len(rows.CHANGED.split(", ")) == 14, "the same columns"
    with closing(PostgresStore(url)) as store:
        ours = stored(store)
        begin(store, "raw")
        connection, theirs = raw(url, "raw")
        spent: list[list[float]] = [[], []]
        for _ in range(40):
            for times, act in zip(spent, (ours, theirs), strict=True):
                times.append(cpu(act, repeat=1, number=BATCH))
        connection.close()
    return median(spent[0]) / median(spent[1])


def whole_step_over_raw(url: str, folder: Path) -> float:
    """What a store adds to a step of an agent, over the same statements pipelined."""
    with closing(PostgresStore(url)) as store:
        begin(store, "floor")
        connection, theirs = raw(url, "floor", rows_of_a_step(folder))
        added: list[float] = []
        floor: list[float] = []
        for _ in range(12):
            plain, kept = whole_steps(None, 100), whole_steps(store, 100)
            added.append(kept - plain)
            floor.append(cpu(theirs, repeat=1, number=100))
        connection.close()
    return median(added) / median(floor)


def at_once_over_one_by_one(url: str) -> float:
    """Seconds of a commit where many wait at once, over those where each is a transaction."""
    with closing(PostgresStore(url)) as store:
        runs = [f"many{number}" for number in range(WRITERS)]
        for run_id in runs:
            begin(store, run_id)

        def drive(run_id: str, first: int, commits: int) -> None:
            for since in range(first, first + commits):
                store.commit(Commit(run_id, this_process(), [change(run_id, since)])).result()

        ratios: list[float] = []
        for turn in range(3):
            first = 1 + turn * 11
            start = time.perf_counter()
            for run_id in runs:
                drive(run_id, first, 1)
            alone = (time.perf_counter() - start) / WRITERS
            threads = [threading.Thread(target=drive, args=(run_id, first + 1, 10)) for run_id in runs]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            ratios.append((time.perf_counter() - start) / (WRITERS * 10) / alone)
    return min(ratios)


def lines() -> list[Line]:
    why = why_absent()
    if why is not None:
        print(f"  {why}")
        return []
    folder = Path(tempfile.mkdtemp(prefix="acorn-bench-"))
    try:
        with shared_server(folder) as server, new_database(server) as url:
            return [
                Line("CPU of two commits, over psycopg executing the same pipelined", step_over_raw(url), 2.0),
                Line("CPU that a store adds to a step, over the same", whole_step_over_raw(url, folder), 2.0),
                Line(
                    f"a commit of {WRITERS} at once, over one transaction a commit", at_once_over_one_by_one(url), None
                ),
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for line in lines():
        print(line)
