"""Measurements that the benchmarks of all stores share.

They measure a step of two commits, many concurrent commits, and the time that a store adds to an agent step. Each
measurement has a hand-written baseline.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from measure import cpu

from acorn import module, tool
from acorn.stores.lease import this_process
from acorn.stores.port import Change, Commit, RunHeader, Store
from acorn.stores.sqlite import SQLiteStore
from acorn.testing import ScriptedModel, call, finish
from acorn.types import Usage

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.postgres_server import new_database, shared_server, why_absent

ENTRY = '{"kind": "returned", "output": "' + "x" * 500 + '"}'
STATE = '{"phase": "tools", "results": "' + "y" * 700 + '"}'
RECORD = '{"id": "r", "usage": {"input_tokens": 10}}'
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
BATCH = 10
WRITERS = 64
Rows = tuple[list[str], str]
"""The rows that one transaction writes: a list of journal entries, and the state of the run."""
PLAIN: tuple[Rows, Rows] = (([ENTRY], STATE), ([ENTRY], STATE))


@contextmanager
def database() -> Iterator[str | None]:
    """Yield the URL of an empty database; if PostgreSQL is not available, print the reason and yield None."""
    why = why_absent()
    if why is not None:
        print(f"  {why}")
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="acorn-bench-"))
    try:
        with shared_server(folder) as server, new_database(server) as url:
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def change(run_id: str, since: int, entries: int = 1, *, is_birth: bool = False, at: int = 0) -> Change:
    birth = RunHeader("desk:Desk", None, None, "{}", STARTED + timedelta(seconds=at)) if is_birth else None
    return Change(
        run_id, birth, since, [ENTRY] * entries, RECORD if is_birth else None, STATE, "running", "openai/gpt-4o", since,
        Usage(10, 20, 0, 0, 1), 0.25, 1.5, None, None,
    )  # fmt: skip


def begin(store: Store, run_id: str) -> None:
    store.commit(Commit(run_id, this_process(), [change(run_id, 0, is_birth=True)])).result()


def step_over_raw(store: Store, theirs: Callable[[], object], rounds: int) -> float:
    """Return the ratio of the CPU time of two consecutive commits to the CPU time of a baseline."""
    begin(store, "r")
    since = 1

    def ours() -> None:
        nonlocal since
        for _ in range(2):
            store.commit(Commit("r", this_process(), [change("r", since)])).result()
            since += 1

    spent: list[list[float]] = [[], []]
    for _ in range(rounds):
        for times, act in zip(spent, (ours, theirs), strict=True):
            times.append(cpu(act, repeat=1, number=BATCH))
    # Use the median, because the disk makes some rounds much slower or faster than other rounds.
    return median(spent[0]) / median(spent[1])


class Long(module[None, str]):
    """Look as often as you like."""

    max_steps = 1000

    @tool(repeatable=True)
    def look(self, number: int) -> str:
        """Look."""
        return "x" * 500


def rows_of_a_step(folder: Path) -> tuple[Rows, Rows]:
    """Return the rows that the two commits of an agent step write."""
    store = SQLiteStore(folder / "rows.db")
    Long(model=ScriptedModel([call("look", number=1), call("look", number=2), finish("done")]), store=store)()
    kept = store.read(store.list()[0].id)[0]
    store.close()
    kinds = [json.loads(entry)["entry"] for entry in kept.entries]
    first, second = [at for at, kind in enumerate(kinds) if kind == "ModelRequested"][:2]
    entries = list(kept.entries[first + 1 : second + 1])
    half = next(at for at, entry in enumerate(entries) if '"ToolStarted"' in entry) + 1
    return (entries[:half], kept.state), (entries[half:], kept.state)


def whole_steps(store: Path | Store | None, count: int) -> float:
    """Return the CPU seconds of one agent step, as the mean of `count` steps."""
    model = ScriptedModel([*(call("look", number=number) for number in range(count)), finish("done")])
    agent = Long(model=model, store=store)
    start = time.process_time()
    assert agent() == "done"
    return (time.process_time() - start) / count


def whole_step_over_raw(stores: Callable[[int], Path | Store], theirs: Callable[[], object]) -> float:
    """Return the ratio of the CPU time that a store adds to a step to the CPU time of a baseline with the same rows.

    `stores` creates one store for each round.
    """
    added: list[float] = []
    floor: list[float] = []
    for turn in range(12):
        plain, kept = whole_steps(None, 100), whole_steps(stores(turn), 100)
        added.append(kept - plain)
        floor.append(cpu(theirs, repeat=1, number=100))
    return median(added) / median(floor)


def at_once_over_one_by_one(store: Store) -> float:
    """Return the ratio of the seconds of a commit with many concurrent writers to the seconds with one writer."""
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
