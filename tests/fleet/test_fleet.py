"""Tests of workers on one PostgreSQL store: they finish every submitted run, also if workers are killed or frozen."""

from __future__ import annotations

import asyncio
import json
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
from tests.commits import begin, birth, go_on, request
from tests.fleet.fleet import LEASE, Fleet, Worker
from tests.fleet.worker_agents import Deadly, Desk, Lingering, Minding, Scout
from tests.postgres_server import OwnServer
from tests.waiting import PATIENCE, comes_true

import acorn
from acorn import AcornError, ModelError, StoreError, module
from acorn._call.submit import Handle
from acorn.durable.worker import Worker as InProcess
from acorn.stores import PostgresStore
from acorn.stores.lease import this_process
from acorn.stores.open import open_store
from acorn.stores.port import QueuedRun, RunCancelledError
from acorn.testing import Failure, ScriptedModel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

torture = pytest.mark.torture


@pytest.fixture
def fleet(postgres: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(postgres, tmp_path) as made:
        yield made


def named(cls: type[module[Any, Any]], store: str) -> Any:
    """Return an agent with the name that the workers know."""
    same: Any = type(cls.__name__, (cls,), {"__module__": "worker_agents", "__qualname__": cls.__name__})
    return same(store=store)


def rows(count: int) -> list[dict[str, str]]:
    """Submit runs with tools; one in three has a branch, and one in ten needs an approval."""
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
    """Approve every request."""
    over = threading.Event()
    runs = acorn.runs(store)

    def answer() -> None:
        while not over.wait(0.05):
            for asked in runs.requests():
                runs.answer(asked.id, True)

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
    """Check that all runs finished and no committed work was repeated."""
    for name, handle in handles.items():
        result: Any = handle.result(timeout=PATIENCE)
        assert result.answer == f"{name} ok"
    assert fleet.repeated() == []
    assert set(fleet.begun("pay").values()) == {1}


def test_run_of_killed_worker_is_finished_by_other_worker(postgres: str, tmp_path: Path) -> None:
    with Fleet(postgres, tmp_path, ACORN_LEASE="1") as fleet:
        killed = fleet.start("Lingering")
        handle = named(Lingering, fleet.store).submit(question="Wait.")
        assert comes_true(lambda: fleet.begun("linger"))
        killed.send(signal.SIGKILL)
        Path(f"{fleet.log}.go").touch()
        fleet.start("Lingering")
        assert handle.result(timeout=PATIENCE).answer == "went"
        assert len([line for line in fleet.lines() if line.what == "linger"]) == 2


@torture
def test_run_received_by_frozen_worker_is_driven_by_other_worker(fleet: Fleet) -> None:
    worker = fleet.start("Desk")
    with psycopg.connect(fleet.store, autocommit=True) as connection:
        lock = "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        lock += "PERFORM pg_advisory_xact_lock(5); RETURN OLD; END $$"
        connection.execute(lock.encode())
        connection.execute(
            "CREATE TRIGGER hold BEFORE DELETE ON acorn_jobs.procrastinate_jobs FOR EACH ROW EXECUTE FUNCTION hold()"
        )
        connection.execute("SELECT pg_advisory_lock(5)")
        handle = named(Desk, fleet.store).submit(question="run-a")

        def count(condition: str) -> int:
            sql = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
            (found,) = connection.execute(sql.encode()).fetchone() or (0,)
            return int(found)

        assert comes_true(lambda: count("wait_event = 'advisory'") == 1)
        worker.send(signal.SIGSTOP)
        connection.execute("SELECT pg_advisory_unlock(5)")
        assert comes_true(lambda: jobs(fleet.store) == [])
        assert count("state = 'idle in transaction'") == 0
    assert handle.status() == "queued"
    fleet.start("Desk")
    assert handle.result(timeout=PATIENCE).answer == "run-a ok"


@torture
def test_worker_continues_after_database_outage(fleet: Fleet, postgres_server: str) -> None:
    worker = fleet.start("Desk", "Lingering")
    long = named(Lingering, fleet.store).submit(question="Wait.")
    assert comes_true(lambda: fleet.begun("linger"))
    name = fleet.store.rpartition("/")[2]
    with psycopg.connect(postgres_server, autocommit=True) as connection:

        def ask(sql: str) -> Any:
            return connection.execute(sql.encode()).fetchall()

        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        assert comes_true(lambda: _has_lost(worker))
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())
        listens = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{name}' AND query LIKE '%LISTEN acorn_new_jobs%'"
        assert comes_true(lambda: ask(listens))
    handle = named(Desk, fleet.store).using(run_id="run-a").submit(question="run-a")
    assert handle.result(timeout=PATIENCE).answer == "run-a ok"  # Next to the one in progress.
    assert long.status() == "running"
    Path(f"{fleet.log}.go").touch()
    assert long.result(timeout=PATIENCE).answer == "went"
    assert "Traceback" not in worker.said()
    assert "pool" not in worker.said()


@torture
def test_worker_without_database_exits_on_signal(tmp_path: Path) -> None:
    server = OwnServer()
    try:
        with Fleet(server.url, tmp_path) as fleet:
            idle, busy = fleet.start("Desk"), fleet.start("Lingering")
            handle = named(Lingering, fleet.store).submit(question="Wait.")
            assert comes_true(lambda: fleet.begun("linger"))
            server.crash()
            for worker in (idle, busy):
                assert comes_true(partial(_has_lost, worker))
                worker.send(signal.SIGTERM)
            for worker, under_way in ((idle, "0 runs in progress."), (busy, "1 run in progress. Another worker")):
                assert worker.ends() == 1
                assert f"does not answer. Stopped with {under_way}" in worker.said()
                assert "Traceback" not in worker.said()
            server.start()
            Path(f"{fleet.log}.go").touch()
            fleet.start("Lingering")
            assert handle.result(timeout=PATIENCE).answer == "went"  # It was not lost.
    finally:
        server.close()


def _has_lost(worker: Worker) -> bool:
    return "does not answer, and the worker tries again" in worker.said()


@torture
def test_worker_does_not_execute_run_of_unknown_class_and_of_changed_class(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    older = tmp_path / "old" / "worker_agents.py"
    older.write_text(
        "from acorn import module\nclass Desk(module):\n    'Old.'\n    initial_input = [('number', int)]\n"
        "    final_output = str\n    model = 'openai/gpt-4o'\n"
    )
    worker = fleet.start("Desk", file=older)
    scout = named(Scout, fleet.store).using(run_id="run-b").submit(question="run-b")
    desk = named(Desk, fleet.store).using(run_id="run-a").submit(question="run-a")
    assert comes_true(lambda: "no longer fits its class" in worker.said())
    assert desk.status() in ("queued", "running")
    assert scout.status() == "queued"
    fleet.start("Desk", "Scout")
    worker.send(signal.SIGTERM)
    assert scout.result(timeout=PATIENCE).answer == "run-b ok"
    assert desk.result(timeout=PATIENCE).answer == "run-a ok"
    assert "run-b" not in worker.said()


@torture
def test_worker_executes_agent_file_with_two_classes_once(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "pair.py"
    file.write_text(
        "from acorn import module\nprint('executed', flush=True)\nclass One(module):\n    'One.'\n"
        "    final_output = str\nclass Two(One):\n    'Two.'\nthree = One()\n"
    )
    worker = fleet.start("One", "Two", file=file)
    assert "`pair:One`, `pair:Two`" in worker.said()
    assert worker.said().count("executed") == 1
    refused = fleet.start("One", "three", file=file)
    assert refused.ends() == 2
    assert "error: Two agents have the class name `pair:One`" in refused.said()


def test_run_rejected_by_all_workers_is_failed_and_can_be_resumed(postgres: str) -> None:
    class Older(module[[("number", int)], str]):  # type: ignore[misc]
        """Old."""

    agent, told = named(Desk, postgres), list[Any]()
    handle = agent.using(run_id="run-a").submit(question="run-a")
    older = type("Desk", (Older,), {"__module__": "worker_agents", "__qualname__": "Desk"})

    async def work() -> None:
        store = open_store(postgres, "test")
        worker = InProcess(
            [older], store, 1, report_line=told.append, report_run=lambda *words: told.append(words), patience=0.0
        )
        working = asyncio.ensure_future(worker.run())
        assert await asyncio.to_thread(comes_true, lambda: handle.status() == "failed")
        worker.stop()
        await working

    asyncio.run(work())
    with pytest.raises(
        StoreError,
        match=r"run-a does not fit the class `worker_agents:Desk` of any worker.*`acorn resume run-a`.*`number`: Field",
    ):
        handle.result()
    assert told[-1][:3] == ("run-a", "worker_agents:Desk", "failed")
    assert agent.resume("run-a").answer == "run-a ok"


def test_run_that_calls_exit_is_failed_and_its_worker_continues(postgres: str) -> None:
    class Ending(Desk):
        def on_step(self, step: Any) -> None:
            raise SystemExit(3)

    told = list[Any]()
    ending, desk = named(Ending, postgres).submit(question="run-a"), named(Desk, postgres)

    async def work() -> None:
        agents = [type(ending._agent), type(desk)]
        worker = InProcess(
            agents,
            open_store(postgres, "test"),
            1,
            report_line=told.append,
            report_run=lambda *words: told.append(words),
        )
        working = asyncio.ensure_future(worker.run())
        assert await asyncio.to_thread(comes_true, lambda: ending.status() == "failed")
        last = await desk.asubmit(question="run-b")
        assert (await last.result(timeout=PATIENCE)).answer == "run-b ok"
        worker.stop()
        await working

    asyncio.run(work())
    with pytest.raises(AcornError, match="SystemExit: 3"):
        ending.result()
    (facts,) = acorn.runs(postgres).list(status="failed")
    assert str(facts.error).endswith("tried to exit its worker (SystemExit: 3).")
    assert any(words[0] == ending.run_id and words[2] == "failed" and words[4] == "SystemExit: 3" for words in told)


@torture
def test_batch_row_that_failed_locally_is_retried_by_worker(fleet: Fleet) -> None:
    agent, rows = named(Desk, fleet.store), [{"question": "run-a"}]
    here = agent.using(model=ScriptedModel([Failure(401)]))
    assert isinstance(here.map(rows, id="nightly").results()[0], ModelError)
    fleet.start("Desk")

    async def again() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await agent.amap(rows, id="nightly", queue=True, retry_failed=True).results()

    (output,) = asyncio.run(again())
    assert output.answer == "run-a ok"


def test_enqueue_of_existing_run_redelivers_stopped_run_but_not_failed_run(postgres: str) -> None:
    store = PostgresStore(postgres)
    for status in ("failed", "stopped"):
        begin(store, f"run-{status}", status=status, agent="worker_agents:Desk")
        begin(store, f"run-other-{status}", status=status, agent="worker_agents:Scout")
        names = (f"run-{status}", f"run-other-{status}")
        assert store.enqueue([QueuedRun(name, birth(agent="worker_agents:Desk")) for name in names], deliver=True) == []
    assert jobs(postgres) == ["run-stopped"]


def test_workers_execute_runs_in_order_of_priority_and_not_before(fleet: Fleet) -> None:
    agent = named(Desk, fleet.store)
    later = agent.using(not_before=timedelta(hours=1)).submit(question="run-later")
    for priority in (0, 5, -5, 9):
        agent.using(run_id=f"run-{priority + 10}", priority=priority).submit(question=f"run-{priority + 10}")
    agent.using(run_id="run-soon", not_before=datetime.now(UTC) + timedelta(milliseconds=200)).submit(
        question="run-soon"
    )
    fleet.start("Desk", concurrency=1)
    names = ["run-19", "run-15", "run-10", "run-5"]
    assert comes_true(lambda: ended(fleet.store, [*names, "run-soon"]) == 5)
    began = [line.key.partition(":")[0] for line in fleet.lines() if line.what == "model" and line.key.endswith(":0")]
    assert [name for name in began if name in names] == names
    assert later.status() == "queued"
    (facts,) = PostgresStore(fleet.store).fleet().agents
    assert (facts.agent, facts.queued, facts.delayed) == ("worker_agents:Desk", 0, 1)


def test_worker_health_endpoint_reports_status(fleet: Fleet) -> None:
    worker = fleet.start("Lingering", options=("--health", "127.0.0.1:0"))
    port = worker.said().partition("health on port ")[2].split()[0]

    def ask(path: str = "/health") -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    facts = {"status": "ok", "agents": ["worker_agents:Lingering"], "running": 0, "concurrency": 4}
    assert ask() == (200, facts)
    assert ask("/else")[0] == 404
    handle = named(Lingering, fleet.store).submit(question="Wait.")
    assert comes_true(lambda: fleet.begun("linger"))
    assert ask() == (200, {**facts, "running": 1})
    fleet_facts = PostgresStore(fleet.store).fleet()
    assert [(each.pid, each.concurrency, each.running) for each in fleet_facts.workers] == [(worker.pid, 4, 1)]
    worker.send(signal.SIGTERM)
    assert comes_true(lambda: ask() == (503, {**facts, "status": "stopping", "running": 1}))
    Path(f"{fleet.log}.go").touch()
    assert worker.ends() == 0
    assert handle.status() == "queued"
    assert PostgresStore(fleet.store).fleet().workers == []


def test_worker_cancels_run_on_request_and_exits_on_second_signal(fleet: Fleet) -> None:
    worker = fleet.start("Lingering")
    agent, go = named(Lingering, fleet.store), Path(f"{fleet.log}.go")
    handle = agent.submit(question="Wait.")
    assert comes_true(lambda: fleet.begun("linger"))
    handle.cancel()
    assert comes_true(lambda: handle.status() == "cancelled")
    with pytest.raises(RunCancelledError):
        handle.result()
    go.touch()
    assert comes_true(lambda: "cancelled" in worker.said())
    assert handle.status() == "cancelled"
    go.unlink()
    agent.submit(question="Wait.")
    assert comes_true(lambda: len([line for line in fleet.lines() if line.what == "linger"]) == 2)
    worker.send(signal.SIGINT)
    assert comes_true(lambda: "stopping: 1 run in progress" in worker.said())

    def strikes() -> bool:  # One that arrives immediately counts as the same.
        worker.send(signal.SIGINT)
        return worker.process.poll() is not None

    assert comes_true(strikes)
    assert worker.ends() == 130


@torture
def test_run_cancelled_during_hook_releases_worker_before_hook_ends(fleet: Fleet) -> None:
    worker = fleet.start("Minding", concurrency=1)
    agent, go = named(Minding, fleet.store), Path(f"{fleet.log}.go")
    handle = agent.using(run_id="run-a").submit(question="run-a")
    assert comes_true(lambda: fleet.begun("linger"))
    handle.cancel()
    assert comes_true(lambda: handle.status() == "cancelled")
    with pytest.raises(RunCancelledError):
        handle.result()
    assert "run-a" not in worker.said()  # It waits for the hook, which no one can end.
    go.touch()
    assert comes_true(lambda: "cancelled" in worker.said())
    other = agent.using(run_id="run-b").submit(question="run-b")
    assert other.result(timeout=PATIENCE).answer == "run-b ok"
    assert handle.status() == "cancelled"


@torture
def test_batch_rows_and_runs_with_deleted_jobs_are_finished_by_workers(fleet: Fleet) -> None:
    handles = submit(named(Desk, fleet.store), 3)
    with psycopg.connect(fleet.store, options="-c search_path=acorn_jobs") as connection:
        connection.execute("DELETE FROM acorn_jobs.procrastinate_jobs")
    fleet.start("Desk", concurrency=8)
    batch = named(Desk, fleet.store).map(
        [{"question": f"run-{at}"} for at in range(12)], queue=True, id="nightly", key=lambda row: row["question"]
    )
    assert {item.output.answer for item in batch} == {f"run-{at} ok" for at in range(12)}
    assert batch.progress.done == 12
    with people(fleet.store):
        assert comes_true(lambda: ended(fleet.store, handles) == 3)
        check(fleet, handles)


def test_run_recently_received_by_worker_is_not_requeued_as_lost(postgres: str) -> None:
    handle = named(Desk, postgres).submit(question="run-a")
    store = PostgresStore(postgres)
    with psycopg.connect(postgres, options="-c search_path=acorn_jobs", autocommit=True) as connection:
        connection.execute("UPDATE acorn.runs SET updated = now() - interval '1 hour'")
        assert store.requeue_lost(["worker_agents:Desk"], 60.0) == []
        assert store.next_delivery(["worker_agents:Scout"]) is None
        assert store.next_delivery(["worker_agents:Scout", "worker_agents:Desk"]) == handle.run_id
        assert jobs(postgres) == []
        assert store.requeue_lost(["worker_agents:Desk"], 60.0) == []  # A worker has just received it.
        connection.execute("UPDATE acorn.runs SET updated = now() - interval '1 hour'")
        assert store.requeue_lost(["worker_agents:Desk"], 60.0) == [handle.run_id]


def test_run_released_to_queue_has_exactly_one_job_also_after_failure(postgres: str) -> None:
    handle = named(Desk, postgres).submit(question="run-a")
    store = PostgresStore(postgres)

    def release() -> None:
        assert store.claim(handle.run_id, this_process())
        store.release(handle.run_id, this_process(), "queued")
        assert jobs(postgres) == [handle.run_id]

    release()
    with psycopg.connect(postgres, options="-c search_path=acorn_jobs", autocommit=True) as connection:
        connection.execute("DELETE FROM procrastinate_jobs")
    assert store.fail_undriven(handle.run_id, "It fits no worker.")
    release()
    release()


def test_answer_that_process_has_not_read_queues_run_when_it_pauses(postgres: str) -> None:
    handle = named(Desk, postgres).submit(question="run-a")
    store, run_id = PostgresStore(postgres), handle.run_id
    first, second, third = (request(name, run_id, after=at) for at, name in enumerate(("first", "second", "third")))

    def receive() -> list[Any]:
        assert store.next_delivery(["worker_agents:Desk"]) == run_id
        assert store.claim(run_id, this_process())
        return [answer.value for answer in store.answers(run_id)]

    receive()
    go_on(store, run_id, 0, status="waiting", requests=[first, second, third])
    store.answer("first", 1)
    assert receive() == [1]
    store.answer("second", 2)
    go_on(store, run_id, 1)
    go_on(store, run_id, 2, status="waiting", requests=[second, third])
    assert handle.status() == "queued"
    assert receive() == [1, 2]
    go_on(store, run_id, 3, status="waiting", requests=[third])
    assert handle.status() == "waiting"
    assert jobs(postgres) == []
    assert [each.id for each in store.requests()] == ["third"]


def test_released_run_is_queued_if_its_last_request_was_answered_during_claim(postgres: str) -> None:
    handle = named(Desk, postgres).submit(question="run-a")
    store, run_id = PostgresStore(postgres), handle.run_id
    assert store.next_delivery(["worker_agents:Desk"]) == run_id
    assert store.claim(run_id, this_process())
    go_on(store, run_id, 0, status="waiting", requests=[request("first", run_id), request("second", run_id)])

    def answer_during_claim(request_id: str) -> None:
        assert store.claim(run_id, this_process())
        store.answer(request_id, 1)
        store.release(run_id, this_process(), "waiting")

    answer_during_claim("first")
    assert (handle.status(), jobs(postgres)) == ("waiting", [])
    answer_during_claim("second")
    assert (handle.status(), jobs(postgres)) == ("queued", [run_id])


def jobs(postgres: str) -> list[str]:
    """Return the runs that are on their way to a worker."""
    with psycopg.connect(postgres) as connection:
        found = connection.execute("SELECT args->>'run_id' FROM acorn_jobs.procrastinate_jobs ORDER BY id").fetchall()
        return [run_id for (run_id,) in found]


def _is_over(worker: Worker, handle: Handle[Any]) -> bool:
    return worker.process.poll() is not None or handle.status() == "failed"


def _is_past(fleet: Fleet, handles: dict[str, Handle[Any]], goal: int) -> bool:
    return ended(fleet.store, handles) > goal


@torture
def test_run_that_kills_five_workers_is_failed(fleet: Fleet) -> None:
    handle = named(Deadly, fleet.store).submit(question="Die.")
    while handle.status() not in ("failed", "done"):
        worker = fleet.start("Deadly")
        assert comes_true(partial(_is_over, worker, handle))
    with pytest.raises(StoreError, match="five processes died"):
        handle.result()
    assert len([line for line in fleet.log.read_text().splitlines() if "die" in line]) == 5


def _finish(fleet: Fleet, handles: dict[str, Handle[Any]], seconds: float) -> float:
    """Wait until all runs are done and return the time."""
    began = time.monotonic()
    while ended(fleet.store, handles) < len(handles):
        assert time.monotonic() - began < seconds, "not all of them ended"
        time.sleep(0.1)
    return time.monotonic() - began


@torture
def test_two_hundred_runs_finish_although_database_restarts(tmp_path: Path) -> None:
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
            frozen.send(signal.SIGTERM)
            assert frozen.ends() == 0
            assert "stopped" in frozen.said()
    finally:
        server.close()


@torture
def test_runs_of_killed_worker_are_resumed_after_about_one_lease(fleet: Fleet) -> None:
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
def test_two_thousand_runs_finish_although_ten_workers_are_killed(fleet: Fleet) -> None:
    workers = [fleet.start("Desk", concurrency=32) for _ in range(3)]
    with people(fleet.store):
        handles = submit(named(Desk, fleet.store), 2000)
        for at in range(10):
            assert comes_true(partial(_is_past, fleet, handles, (at + 1) * 150))
            workers.pop(0).send(signal.SIGKILL)
            workers.append(fleet.start("Desk", concurrency=32))
        _finish(fleet, handles, 1800)
        check(fleet, handles)
