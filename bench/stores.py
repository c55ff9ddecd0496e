"""Stores: a commit against raw `sqlite3` writing the same rows, many at once against one by one, and a long list."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from measure import Line, cpu

from acorn import module, tool
from acorn.stores.holder import this_process
from acorn.stores.port import Birth, Change, Commit, Store
from acorn.stores.sqlite import SQLiteStore
from acorn.testing import ScriptedModel, call, finish
from acorn.types import Usage

ENTRY = '{"kind": "returned", "output": "' + "x" * 500 + '"}'
STATE = '{"phase": "tools", "results": "' + "y" * 700 + '"}'
RECORD = '{"id": "r", "usage": {"input_tokens": 10}}'
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 10
WRITERS = 64


def change(run_id: str, since: int, entries: int = 1, *, is_birth: bool = False, at: int = 0) -> Change:
    birth = Birth("desk:Desk", None, None, "{}", STARTED + timedelta(seconds=at)) if is_birth else None
    return Change(
        run_id, birth, since, [ENTRY] * entries, RECORD if is_birth else None, STATE, "running", "openai/gpt-4o", since,
        Usage(10, 20, 0, 0, 1), 0.25, 1.5, None, None,
    )  # fmt: skip


def begin(store: SQLiteStore, run_id: str) -> None:
    store.commit(Commit(run_id, this_process(), [change(run_id, 0, is_birth=True)])).result()


def stored(store: SQLiteStore) -> Callable[[], None]:
    """A step: two commits, one after the other."""
    begin(store, "r")
    since = 1

    def step() -> None:
        nonlocal since
        for _ in range(2):
            store.commit(Commit("r", this_process(), [change("r", since)])).result()
            since += 1

    return step


Rows = tuple[list[str], str]
"""What one transaction writes: entries and state."""
PLAIN: tuple[Rows, Rows] = (([ENTRY], STATE), ([ENTRY], STATE))


def rows_of_a_step(folder: Path) -> tuple[Rows, Rows]:
    """What the two commits of a step of an agent write."""
    store = SQLiteStore(folder / "rows.db")
    Long(model=ScriptedModel([call("look", number=1), call("look", number=2), finish("done")]), store=store)()
    kept = store.read(store.list()[0].id)[0]
    store.close()
    kinds = [json.loads(entry)["entry"] for entry in kept.entries]
    first, second = [at for at, kind in enumerate(kinds) if kind == "ModelAsked"][:2]
    entries = list(kept.entries[first + 1 : second + 1])
    half = next(at for at, entry in enumerate(entries) if '"ToolBegun"' in entry) + 1
    return (entries[:half], kept.state), (entries[half:], kept.state)


def raw(path: Path, rows: tuple[Rows, Rows] = PLAIN) -> Callable[[], None]:
    """The same rows in the same tables, by hand, in two transactions."""
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
            connection.execute("SELECT number, holder FROM runs WHERE id = ?", ("r",)).fetchone()
            connection.execute(
                "UPDATE runs SET status = ?, model = ?, steps = ?, input_tokens = ?, output_tokens = ?, "
                "cached_tokens = ?, reasoning_tokens = ?, requests = ?, cost = ?, updated = ?, seconds = ?, "
                "length = ? WHERE number = 1",
                ("running", "openai/gpt-4o", since, 10, 20, 0, 0, 1, 0.25, now, 1.5, since),
            )
            connection.execute("UPDATE states SET state = ? WHERE run = 1", (state,))
            for entry in entries:
                connection.execute("INSERT INTO entries (root, run, entry) VALUES (1, 1, ?)", (entry,))
            connection.execute("COMMIT")
            since += 1

    return step


def step_over_raw(folder: Path) -> float:
    """Taken in turn, so that noise hits both alike."""
    store = SQLiteStore(folder / "stored.db")
    ours, theirs = stored(store), raw(folder / "raw.db")
    spent: list[list[float]] = [[], []]
    for _ in range(60):
        for times, act in zip(spent, (ours, theirs), strict=True):
            times.append(cpu(act, repeat=1, number=BATCH))
    store.close()
    # The disk makes single rounds much dearer or cheaper than others.
    return median(spent[0]) / median(spent[1])


class Long(module[None, str]):
    """Look as often as you like."""

    max_steps = 1000

    @tool(repeatable=True)
    def look(self, number: int) -> str:
        """Look."""
        return "x" * 500


def whole_steps(store: Path | Store | None, count: int) -> float:
    """CPU seconds of a step of an agent, with everything that belongs to it."""
    model = ScriptedModel([*(call("look", number=number) for number in range(count)), finish("done")])
    agent = Long(model=model, store=store)
    start = time.process_time()
    assert agent() == "done"
    return (time.process_time() - start) / count


def whole_step_over_raw(folder: Path) -> tuple[float, float]:
    """What a store adds to a step, over raw transactions; and how a stored step grows, over one that is not."""
    theirs = raw(folder / "floor.db", rows_of_a_step(folder))
    added: list[float] = []
    floor: list[float] = []
    for turn in range(12):
        plain, kept = whole_steps(None, 100), whole_steps(folder / f"whole{turn}.db", 100)
        added.append(kept - plain)
        floor.append(cpu(theirs, repeat=1, number=100))
    growth = [
        [whole_steps(store, count) for store in (None, folder / f"grows{turn}-{count}.db")]
        for turn in range(5)
        for count in (20, 800)
    ]
    few, many = growth[::2], growth[1::2]
    grown = [median(pair[at] for pair in many) / median(pair[at] for pair in few) for at in (0, 1)]
    return median(added) / median(floor), grown[1] / grown[0]


def at_once_over_one_by_one(folder: Path) -> float:
    """Seconds of a commit where many wait at once, over those where each is a transaction."""
    store = SQLiteStore(folder / "many.db")
    runs = [f"r{number}" for number in range(WRITERS)]
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
    store.close()
    return min(ratios)


def listing(folder: Path) -> float:
    """CPU seconds of the last 50 of 2,000 runs with 100,000 entries."""
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
        whole = whole_step_over_raw(folder)
        return [
            Line("CPU of two commits, over raw sqlite3 writing the same rows", step_over_raw(folder), 1.7),
            Line("CPU that a store adds to a step, over raw sqlite3 in two transactions", *whole[:1], 1.7),
            Line("a stored step of 800 over one of 20, over the same without a store", *whole[1:], 1.3),
            Line(
                f"a commit of {WRITERS} at once, over one transaction a commit", at_once_over_one_by_one(folder), 0.25
            ),
            Line("the last 50 of 2,000 runs with 100,000 entries, CPU", listing(folder) * 1000, 50, " ms"),
        ]
