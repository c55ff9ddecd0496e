"""Tests of many processes on one store: each makes progress, one drives a run, and a replaced process cannot commit."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.commits import begin, birth, change, elsewhere, go_on
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE, comes_true

from acorn import StoreError
from acorn.stores.lease import claim_run, shared_claim, start_heartbeat, stop_heartbeat, this_process
from acorn.stores.port import Commit, Store
from acorn.stores.postgres import PostgresStore
from acorn.stores.sqlite import SQLiteStore

ROOT = Path(__file__).parents[2]


class Child:
    """A process that performs commands on the store."""

    def __init__(self, path: str, **environment: str) -> None:
        places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "store_child.py"), path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": places, **environment},
        )  # fmt: skip

    def tell(self, *words: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def do(self, *words: Any) -> Any:
        self.tell(*words)
        return self.hear()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(params=["sqlite", "postgres"])
def path(request: pytest.FixtureRequest) -> str:
    """A file, or a URL."""
    if request.param == "postgres":
        return str(request.getfixturevalue("cleared_postgres"))
    return str(request.getfixturevalue("tmp_path") / "runs.db")


@pytest.fixture
def store(path: str) -> Iterator[Store]:
    made = PostgresStore(path) if "://" in path else SQLiteStore(path)
    yield made
    made.close()


@pytest.fixture
def start(path: str) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def new(**environment: str) -> Child:
        children.append(Child(path, **environment))
        return children[-1]

    yield new
    for child in children:
        child.end()


def test_several_processes_commit_to_one_store_and_only_one_of_them_can_claim_run(
    store: Store, start: Callable[..., Child]
) -> None:
    children = [start() for _ in range(8 if IS_LONG else 3)]
    for child in children:
        child.tell("work", 12, 10 if IS_LONG else 0)
    done = [child.hear() for child in children]
    assert all(isinstance(count, int) for count in done), done
    if IS_LONG:
        assert min(done) * 3 >= statistics.median(done), done
    for child, count in zip(children, done, strict=True):
        (kept,) = store.read(f"run-{child.process.pid}")
        assert list(kept.entries) == [str(number) for number in range(count)]
    for number in range(10):
        begin(store, f"r{number}", status="waiting")
        for child in children:
            child.tell("claim", f"r{number}")
        answers = [child.hear() for child in children]
        winners = [answer for answer in answers if answer == ["waiting"]]
        losers = [answer for answer in answers if isinstance(answer, dict)]
        assert (len(winners), len(losers)) == (1, len(children) - 1)
        winner = children[answers.index(winners[0])]
        assert all(f"is driven by process {winner.process.pid} on" in loser["error"] for loser in losers)


def test_run_of_killed_process_is_claimed_immediately(store: Store, start: Callable[..., Child]) -> None:
    child = start(ACORN_LEASE="100000")
    child.do("begin", "r")
    child.do("go on", "r", 1)
    with pytest.raises(StoreError, match=f"driven by process {child.process.pid}"):
        store.claim("r", this_process())
    child.process.kill()
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # A zombie process.
    assert [facts.status for facts in store.list()] == ["stopped"]
    kept = store.claim("r", this_process())
    assert kept is not None
    assert list(kept[0].entries) == ["0", "1"]
    go_on(store, "r", 2)


def test_commit_of_frozen_process_is_rejected_after_its_run_was_claimed(
    store: Store, start: Callable[..., Child]
) -> None:
    child = start(ACORN_LEASE="0.2")
    child.do("begin", "r")
    child.do("begin", "kept")
    child.process.send_signal(signal.SIGSTOP)
    assert comes_true(lambda: store.follow("r")[0] == "stopped")
    assert store.claim("r", this_process())
    child.process.send_signal(signal.SIGCONT)
    answer = child.do("go on", "r", 1)
    assert f"r was taken over by process {this_process().pid} on" in answer["error"]
    assert "because this process sent no heartbeat for" in answer["error"]
    assert child.do("go on", "kept", 1) == child.process.pid  # It was not claimed.
    go_on(store, "r", 1)
    assert list(store.read("r")[0].entries) == ["0", "1"]


def test_process_that_executes_run_renews_its_lease(store: Store, start: Callable[..., Child]) -> None:
    child = start(ACORN_LEASE="0.4")
    child.do("begin", "r")
    child.do("hold", "r")
    (before,) = heard(store)
    assert comes_true(lambda: heard(store) > [before])
    assert comes_true(lambda: child.do("status", "r") == "running")


def heard(store: Store, holder: str = "%") -> list[Any]:
    """Return the last heartbeat of processes, by any clock."""
    if isinstance(store, PostgresStore):
        sql = "SELECT last_heartbeat FROM processes WHERE id LIKE $1"
        return [when for (when,) in store.transact(lambda transaction: transaction.execute(sql, [holder]).fetchall())]
    assert isinstance(store, SQLiteStore)
    sql_of_file = "SELECT last_heartbeat FROM processes WHERE id LIKE ?"
    found = store._read_connection.use(
        lambda: store._read_connection.connect().execute(sql_of_file, (holder,)).fetchall()
    )
    return [when for (when,) in found]


# A forked child


def forked(act: Callable[[], object]) -> int:
    """Run a function in a forked child and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_forked_child_process_is_distinct_process_for_store(store: Store) -> None:
    here = this_process()
    begin(store, "parent")
    store.list()

    def in_child() -> None:
        assert this_process() != here
        assert this_process().pid == os.getpid()
        begin(store, "child")
        go_on(store, "child", 1)
        with pytest.raises(StoreError, match=f"driven by process {here.pid}"):
            store.claim("parent", this_process())
        store.close()

    assert forked(in_child) == 0
    go_on(store, "parent", 1)
    assert [facts.status for facts in store.list()] == ["stopped", "running"]
    assert list(store.read("child")[0].entries) == ["0", "1"]


def test_forked_child_process_can_claim_while_parent_claims(store: Store) -> None:
    begin(store, "r", status="waiting")
    seat = shared_claim(store, "r")
    with seat.lock:

        def in_child() -> None:
            signal.alarm(int(PATIENCE))
            assert claim_run(store, "r") is not None

        assert forked(in_child) == 0


def test_forked_child_process_commits_after_parent_closed_store(store: Store, path: str) -> None:
    """Check that a child has its own locks: closing it does not discard the log."""
    begin(store, "parent")
    store.list()
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        begin(store, "child")
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        for since in range(1, 20):
            go_on(store, "child", since)
        os._exit(0)
    os.read(ready[0], 1)
    store.close()
    if isinstance(store, SQLiteStore):
        assert Path(f"{path}-wal").exists()
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for end in (*ready, *go):
        os.close(end)
    assert len(store.read("child")[0].entries) == 20


def test_forks_during_commits_do_not_lose_commits(store: Store) -> None:
    def drive(run_id: str) -> None:
        begin(store, run_id)
        for since in range(1, 30):
            go_on(store, run_id, since)

    threads = [threading.Thread(target=drive, args=(f"r{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    codes: list[int] = []
    while any(thread.is_alive() for thread in threads):
        codes.append(forked(lambda: begin(store, f"child-{os.getpid()}")))
    assert set(codes) <= {0}
    for number in range(6):
        assert len(store.read(f"r{number}")[0].entries) == 30
    assert len(store.list(limit=None)) == 6 + len(codes)


def test_forked_child_process_renews_its_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_LEASE", "0.4")
    begin(store, "r")
    start_heartbeat(store, "r")

    def in_child() -> None:
        begin(store, "child")
        start_heartbeat(store, "child")
        (before,) = heard(store, this_process().id)
        assert comes_true(lambda: heard(store, this_process().id) > [before])

    assert forked(in_child) == 0
    stop_heartbeat(store, "r")


# The end of a process

ENDING = """
import sys
from tests.commits import begin, change
from acorn.stores.lease import start_heartbeat, this_process
from acorn.stores.port import Commit
from acorn.stores.open import open_store
store = open_store(sys.argv[1], "the child")
begin(store, "r")
start_heartbeat(store, "r")
store.list()
for since in range(1, 300):
    store.commit(Commit("r", this_process(), [change("r", [str(since)], since=since)]))
"""


def test_commits_started_before_process_exit_are_written(store: Store, path: str) -> None:
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", ENDING, str(path)],
        env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    if isinstance(store, SQLiteStore):
        assert [entry.name for entry in Path(path).parent.iterdir()] == ["runs.db"]
    assert len(store.read("r")[0].entries) == 300


def test_run_of_process_on_other_machine_is_claimable_after_lease_expires(store: Store) -> None:
    begin(store, "r", elsewhere())
    with pytest.raises(StoreError, match="driven by process 812 on host-a"):
        store.claim("r", this_process())
    store.renew_lease(elsewhere(), 0)
    assert store.claim("r", this_process())
    late = store.commit(Commit("r", elsewhere(), [change("b", [], born=birth("r"))]))
    with pytest.raises(StoreError, match="taken over"):
        late.result()
