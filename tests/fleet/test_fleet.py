"""Workers on one PostgreSQL finish everything that was submitted, whatever happens to some of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fleet.crew import Deadly, Desk, Lingering, Scout
from tests.fleet.fleet import LEASE, Fleet, Worker
from tests.patience import PATIENCE, comes_true
from tests.postgres_server import OwnServer

import acorn
from acorn import StoreError, module
from acorn._handle import Handle
from acorn.stores import PostgresStore
from acorn.stores.open import open_store
from acorn.stores.port import RunCancelledError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

TORTURE = os.environ.get("ACORN_TORTURE") == "1"
torture = pytest.mark.skipif(not TORTURE, reason="takes minutes: ACORN_TORTURE=1")


@pytest.fixture
def fleet(postgres: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(postgres, tmp_path) as made:
        yield made


def named(cls: type[module[Any, Any]], store: str) -> Any:
    """An agent by the name that the workers know it by."""
    same: Any = type(cls.__name__, (cls,), {"__module__": "crew", "__qualname__": cls.__name__})
    return same(store=store)


def rows(count: int) -> list[dict[str, str]]:
    """Runs with tools; one in three has a branch, and one in ten needs an approval."""
    return [
        {"question": f"run-{at:05d} {'dig' if at % 3 == 0 else ''} {'pay' if at % 10 == 0 else ''}"}
        for at in range(count)
    ]


def submit(agent: Any, count: int) -> dict[str, Handle[Any]]:
    found = {}
    for row in rows(count):
        name = row["question"].partition(" ")[0]
        found[name] = agent.using(run_id=name).submit(**row)
    return found


@contextmanager
def people(store: str) -> Iterator[None]:
    """Somebody who says yes to everything."""
    over = threading.Event()
    runs = acorn.runs(store)

    def answer() -> None:
        while not over.wait(0.05):
            for request in runs.requests():
                runs.answer(request.id, True)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ended(store: str, names: Any, status: str = "done") -> int:
    found = open_store(store, "test").statuses(list(names))
    return sum(each == status for each in found.values())


def check(fleet: Fleet, handles: dict[str, Handle[Any]]) -> None:
    """All came to their ends, and nothing that was committed was done again."""
    for name, handle in handles.items():
        result: Any = handle.result(timeout=PATIENCE)
        assert result.answer == f"{name} ok"
    assert fleet.repeated() == []
    assert set(fleet.begun("pay").values()) == {1}


def test_a_fleet_finishes_everything_though_one_is_killed_one_stopped_and_one_frozen(fleet: Fleet) -> None:
    killed, stopped, frozen = (fleet.start("Desk") for _ in range(3))
    with people(fleet.store):
        handles = submit(named(Desk, fleet.store), 30)
        assert comes_true(lambda: len(fleet.lines()) > 30)
        frozen.send(signal.SIGSTOP)
        assert comes_true(lambda: len(fleet.lines()) > 60)
        killed.send(signal.SIGKILL)
        fleet.start("Desk")
        assert comes_true(lambda: len(fleet.lines()) > 75)
        stopped.send(signal.SIGTERM)
        assert stopped.ends() == 0
        assert comes_true(lambda: ended(fleet.store, handles) == 30)
        frozen.send(signal.SIGCONT)
        check(fleet, handles)
    frozen.send(signal.SIGTERM)
    assert frozen.ends() == 0
    assert "stopped" in frozen.said()


def test_a_worker_leaves_runs_of_classes_that_it_does_not_know_alone(fleet: Fleet) -> None:
    desk = named(Desk, fleet.store).using(run_id="run-a").submit(question="run-a")
    scout = named(Scout, fleet.store).using(run_id="run-b").submit(question="run-b")
    fleet.start("Scout")
    assert scout.result(timeout=PATIENCE).answer == "run-b ok"
    assert desk.status() == "queued"
    fleet.start("Desk")
    assert desk.result(timeout=PATIENCE).answer == "run-a ok"


def test_a_worker_with_an_older_class_leaves_what_does_not_fit_to_others(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    older = tmp_path / "old" / "crew.py"
    older.write_text(
        "from acorn import module\nclass Desk(module):\n    'Old.'\n    initial_input = [('number', int)]\n"
        "    final_output = str\n    model = 'openai/gpt-4o'\n"
    )
    worker = fleet.start("Desk", file=older)
    handle = named(Desk, fleet.store).using(run_id="run-a").submit(question="run-a")
    assert comes_true(lambda: "does not fit its class any more" in worker.said())
    assert handle.status() in ("queued", "running")
    fleet.start("Desk")
    worker.send(signal.SIGTERM)
    assert handle.result(timeout=PATIENCE).answer == "run-a ok"


def test_the_sooner_comes_first_and_the_later_waits(fleet: Fleet) -> None:
    agent = named(Desk, fleet.store)
    later = agent.using(not_before=timedelta(hours=1)).submit(question="run-later")
    for priority in (0, 5, -5, 9):
        agent.using(run_id=f"run-{priority + 10}", priority=priority).submit(question=f"run-{priority + 10}")
    agent.using(run_id="run-soon", not_before=datetime.now(UTC) + timedelta(seconds=1)).submit(question="run-soon")
    fleet.start("Desk", concurrency=1)
    names = ["run-19", "run-15", "run-10", "run-5"]
    assert comes_true(lambda: ended(fleet.store, [*names, "run-soon"]) == 5)
    began = [line.key.partition(":")[0] for line in fleet.lines() if line.what == "model" and line.key.endswith(":0")]
    assert [name for name in began if name in names] == names
    assert later.status() == "queued"
    (facts,) = PostgresStore(fleet.store).fleet().agents
    assert (facts.agent, facts.queued, facts.delayed) == ("crew:Desk", 0, 1)


def test_a_run_is_cancelled_from_another_process_while_it_does_something(fleet: Fleet) -> None:
    worker = fleet.start("Lingering")
    handle = named(Lingering, fleet.store).submit(question="Wait.")
    assert comes_true(lambda: fleet.begun("linger"))
    handle.cancel()
    assert comes_true(lambda: handle.status() == "cancelled")
    with pytest.raises(RunCancelledError):
        handle.result()
    Path(f"{fleet.log}.go").touch()
    assert comes_true(lambda: "cancelled" in worker.said())
    assert handle.status() == "cancelled"


def test_a_worker_says_how_it_is(fleet: Fleet) -> None:
    worker = fleet.start("Lingering", options=("--health", "127.0.0.1:0"))
    port = worker.said().partition("health on port ")[2].split()[0]

    def ask(path: str = "/health") -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    facts = {"status": "ok", "agents": ["crew:Lingering"], "running": 0, "concurrency": 4}
    assert ask() == (200, facts)
    assert ask("/else")[0] == 404
    handle = named(Lingering, fleet.store).submit(question="Wait.")
    assert comes_true(lambda: fleet.begun("linger"))
    assert ask() == (200, {**facts, "running": 1})
    fleet_facts = PostgresStore(fleet.store).fleet()
    assert [(each.pid, each.places, each.running) for each in fleet_facts.workers] == [(worker.pid, 4, 1)]
    worker.send(signal.SIGTERM)
    assert comes_true(lambda: ask() == (503, {**facts, "status": "stopping", "running": 1}))
    Path(f"{fleet.log}.go").touch()
    assert worker.ends() == 0
    assert handle.status() == "queued"
    assert PostgresStore(fleet.store).fleet().workers == []
    fleet.start("Lingering")
    assert handle.result(timeout=PATIENCE).answer == "went"
    assert len(fleet.begun("linger")) == 1


def test_a_second_signal_ends_a_worker_at_once(fleet: Fleet) -> None:
    worker = fleet.start("Lingering")
    named(Lingering, fleet.store).submit(question="Wait.")
    assert comes_true(lambda: fleet.begun("linger"))
    worker.send(signal.SIGINT)
    assert comes_true(lambda: "stopping: 1 run under way" in worker.said())

    def strikes() -> bool:  # one that comes at once counts as the same
        worker.send(signal.SIGINT)
        return worker.process.poll() is not None

    assert comes_true(strikes)
    assert worker.ends() == 130


def test_rows_in_bulk_go_through_a_fleet(fleet: Fleet) -> None:
    fleet.start("Desk", concurrency=8)
    batch = named(Desk, fleet.store).map(
        [{"question": f"run-{at}"} for at in range(12)], queue=True, id="nightly", key=lambda row: row["question"]
    )
    assert {item.output.answer for item in batch} == {f"run-{at} ok" for at in range(12)}
    assert batch.progress.done == 12


def test_what_the_engine_loses_is_delivered_anew(fleet: Fleet) -> None:
    handles = submit(named(Desk, fleet.store), 3)
    with psycopg.connect(fleet.store, options="-c search_path=acorn_jobs") as connection:
        connection.execute("DELETE FROM acorn_jobs.procrastinate_jobs")
    fleet.start("Desk")
    with people(fleet.store):
        check(fleet, handles)


def _is_over(worker: Worker, handle: Handle[Any]) -> bool:
    return worker.process.poll() is not None or handle.status() == "failed"


def _is_past(fleet: Fleet, handles: dict[str, Handle[Any]], goal: int) -> bool:
    return ended(fleet.store, handles) > goal


@torture
def test_a_run_that_takes_five_processes_with_it_is_failed(fleet: Fleet) -> None:
    handle = named(Deadly, fleet.store).submit(question="Die.")
    while handle.status() not in ("failed", "done"):
        worker = fleet.start("Deadly")
        assert comes_true(partial(_is_over, worker, handle))
    with pytest.raises(StoreError, match="took five processes with it"):
        handle.result()
    assert len([line for line in fleet.log.read_text().splitlines() if "die" in line]) == 5


def _finish(fleet: Fleet, handles: dict[str, Handle[Any]], seconds: float) -> float:
    """When all are done; the time that took."""
    began = time.monotonic()
    while ended(fleet.store, handles) < len(handles):
        assert time.monotonic() - began < seconds, "not all of them ended"
        time.sleep(0.1)
    return time.monotonic() - began


@torture
def test_a_large_fleet_though_its_database_is_restarted(tmp_path: Path) -> None:
    server = OwnServer()
    try:
        with Fleet(server.url, tmp_path) as fleet, people(server.url):
            killed, stopped, frozen = (fleet.start("Desk", concurrency=16) for _ in range(3))
            handles = submit(named(Desk, fleet.store), 200)
            assert comes_true(lambda: ended(fleet.store, handles) > 30)
            frozen.send(signal.SIGSTOP)
            killed.send(signal.SIGKILL)
            for _ in range(2):
                fleet.start("Desk", concurrency=16)
            assert comes_true(lambda: ended(fleet.store, handles) > 60)
            server.crash()
            server.start()
            stopped.send(signal.SIGTERM)
            assert stopped.ends() == 0
            frozen.send(signal.SIGCONT)
            _finish(fleet, handles, 600)
            check(fleet, handles)
    finally:
        server.close()


@torture
def test_recovery_takes_a_lease_and_a_little(fleet: Fleet) -> None:
    worker, other = fleet.start("Lingering", concurrency=8), fleet.start("Desk")
    handles = [named(Lingering, fleet.store).submit(question="Wait.") for _ in range(8)]
    assert comes_true(lambda: len([line for line in fleet.lines() if line.what == "linger"]) == 8)
    other.send(signal.SIGTERM)
    fleet.start("Lingering", concurrency=8)
    worker.send(signal.SIGKILL)
    killed = time.monotonic()
    assert comes_true(lambda: len([line for line in fleet.lines() if line.what == "linger"]) == 16)
    assert time.monotonic() - killed < LEASE + 5
    Path(f"{fleet.log}.go").touch()
    assert all(handle.result(timeout=PATIENCE).answer == "went" for handle in handles)


@torture
def test_thousands_of_runs_and_ten_kills(fleet: Fleet) -> None:
    workers = [fleet.start("Desk", concurrency=32) for _ in range(3)]
    with people(fleet.store):
        handles = submit(named(Desk, fleet.store), 2000)
        for at in range(10):
            assert comes_true(partial(_is_past, fleet, handles, (at + 1) * 150))
            workers.pop(0).send(signal.SIGKILL)
            workers.append(fleet.start("Desk", concurrency=32))
        _finish(fleet, handles, 1800)
        check(fleet, handles)
