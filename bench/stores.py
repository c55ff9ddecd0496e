"""Measure the SQLite store: a commit relative to raw `sqlite3`, concurrent commits, and the list of many runs."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from measure import Line, cpu
from stored_steps import (
    PLAIN,
    WRITERS,
    Rows,
    at_once_over_one_by_one,
    begin,
    change,
    rows_of_a_step,
    step_over_raw,
    whole_step_over_raw,
    whole_steps,
)

from acorn.stores.lease import this_process
from acorn.stores.port import Commit
from acorn.stores.sqlite import SQLiteStore


def raw(path: Path, rows: tuple[Rows, Rows] = PLAIN) -> Callable[[], None]:
    """Insert the same rows into the same tables with `sqlite3`, in two transactions."""
    store = SQLiteStore(path)
    begin(store, "r")
    store.close()
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    since = 1

    def step() -> None:
        nonlocal since
        for entries, state in rows:
            now = time.time()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("SELECT number, process FROM runs WHERE id = ?", ("r",)).fetchone()
            connection.execute(
                "UPDATE runs SET status = ?, model = ?, steps = ?, input_tokens = ?, output_tokens = ?, "
                "cached_tokens = ?, reasoning_tokens = ?, requests = ?, cost = ?, updated = ?, seconds = ?, "
                "entry_count = ? WHERE number = 1",
                ("running", "openai/gpt-4o", since, 10, 20, 0, 0, 1, 0.25, now, 1.5, since),
            )
            connection.execute("UPDATE run_states SET state = ? WHERE run = 1", (state,))
            for entry in entries:
                connection.execute("INSERT INTO entries (root, run, entry) VALUES (1, 1, ?)", (entry,))
            connection.execute("COMMIT")
            since += 1

    return step


def growth(folder: Path) -> float:
    """Return the growth of the time of a stored step in a long run, relative to the growth without a store."""
    spent = [
        [whole_steps(store, count) for store in (None, folder / f"grows{turn}-{count}.db")]
        for turn in range(5)
        for count in (20, 800)
    ]
    few, many = spent[::2], spent[1::2]
    grown = [median(pair[at] for pair in many) / median(pair[at] for pair in few) for at in (0, 1)]
    return grown[1] / grown[0]


def listing(folder: Path) -> float:
    """Return the CPU seconds for a list of the last 50 runs, in a store with 2,000 runs and 100,000 entries."""
    store = SQLiteStore(folder / "list.db")
    born = [
        store.commit(Commit(f"r{number}", this_process(), [change(f"r{number}", 0, 50, is_birth=True, at=number)]))
        for number in range(2000)
    ]
    for future in born:
        future.result()
    with closing(sqlite3.connect(folder / "list.db")) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (100_000,)
    assert store.list()[0].id == "r1999"
    spent = cpu(store.list, repeat=20)
    rare = cpu(lambda: store.list(status=["failed"]), repeat=5)
    store.close()
    return max(spent, rare)


def lines() -> list[Line]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        floor = raw(folder / "floor.db", rows_of_a_step(folder))
        with closing(SQLiteStore(folder / "stored.db")) as stored, closing(SQLiteStore(folder / "many.db")) as many:
            step = step_over_raw(stored, raw(folder / "raw.db"), 60)
            whole = whole_step_over_raw(lambda turn: folder / f"whole{turn}.db", floor)
            at_once = at_once_over_one_by_one(many)
        return [
            Line("CPU of two commits, over raw sqlite3 writing the same rows", step, 1.7),
            Line("CPU that a store adds to a step, over raw sqlite3 in two transactions", whole, 1.7),
            Line("a stored step of 800 over one of 20, over the same without a store", growth(folder), 1.3),
            Line(f"a commit of {WRITERS} at once, over one transaction a commit", at_once, 0.25),
            Line("the last 50 of 2,000 runs with 100,000 entries, CPU", listing(folder) * 1000, 50, " ms"),
        ]
