"""Tests of failing stores: the run ends with a `StoreError`, no call hangs, and the run resumes later."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.schemas import Answer, Question
from tests.cases import each_case
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE, comes_true, waiting_for_nothing

import acorn
from acorn import ModelError, Step, StoreError, module, tool
from acorn.models import ModelRequest
from acorn.stores import MemoryStore
from acorn.stores.port import Commit, PendingCommit, Process, StoredRun
from acorn.testing import Failure, Reply, ScriptedModel, call, finish


class Brittle(MemoryStore):
    """A store that accepts a number of commits and then fails in a given way."""

    def __init__(self, most: int, error: Exception, *, at_once: bool) -> None:
        super().__init__()
        self.most, self._error, self._at_once = most, error, at_once
        self.tried = 0

    def commit(self, commit: Commit) -> PendingCommit:
        self.tried += 1
        if self.tried <= self.most:
            return super().commit(commit)
        if self._at_once:
            raise self._error
        future: Future[None] = Future()
        future.set_exception(self._error)
        return future


class Inner(module[Question, Answer]):
    """Inside."""

    max_steps = 5


class Desk(module[Question, Answer]):
    """Answer."""

    max_steps = 9
    branches = {"inner": Inner}

    @tool
    def look(self) -> str:
        """Look."""
        return "seen"

    @tool
    def dig(self) -> str:
        """Dig."""
        try:
            return self.branch(Inner, question="deep").answer
        except Exception as error:
            return f"nothing: {error}"

    @tool
    def dig_all(self) -> str:
        """Dig."""
        found = self.branch_all([(Inner, {"question": "deep"}), (Inner, {"question": "deep"})])
        return str(found)


def model(*script: Reply | Failure) -> ScriptedModel:
    def answer(request: ModelRequest) -> Reply | Failure:
        said = [message["role"] for message in request.messages]
        deep = [at for at, each in enumerate(request.messages) if each["role"] == "user" and "deep" in str(each)]
        if deep:
            inside: Reply = [call("look"), finish(answer="found")][said[deep[0] :].count("assistant")]
            return inside
        reply: Reply | Failure = script[said.count("assistant")]
        return reply

    return ScriptedModel(answer)


SCRIPT = [
    call("look"),
    call("look") & call("look"),
    call("inner", question="deep"),
    call("dig"),
    call("dig_all") & call("look"),
    finish(answer="x"),
]

Way = Callable[[Desk], Any]


def called(agent: Desk) -> Any:
    return agent.using(run_id="a")(question="why?")


def awaited(agent: Desk) -> Any:
    return asyncio.run(agent.using(run_id="a").acall(question="why?"))


def streamed(agent: Desk) -> Any:
    return list(agent.using(run_id="a").stream(question="why?"))[-1].result


def astreamed(agent: Desk) -> Any:
    async def last() -> Any:
        return [chunk async for chunk in agent.using(run_id="a").astream(question="why?")][-1].result

    return asyncio.run(last())


EVERY_WAY: list[Way] = [called, awaited, streamed, astreamed]
EVERY_ERROR: list[type[Exception]] = [StoreError, RuntimeError]


def outcome(way: Way, agent: Desk) -> Any:
    try:
        return way(agent)
    except Exception as error:
        return error


@pytest.mark.parametrize(
    ("way", "kind", "at_once"),
    [
        (way, kind, at_once)
        for number, way in enumerate(EVERY_WAY)
        for at, kind in enumerate(EVERY_ERROR)
        for at_once in (True, False)
        if IS_LONG or (number % 2, number // 2) == (at, (at + at_once) % 2)  # Each way once.
    ],
)
def test_store_failure_at_any_commit_raises_error_and_run_is_resumable(
    way: Way, kind: type[Exception], at_once: bool
) -> None:
    most = 0
    while True:
        error = kind("The disk is full.")
        store = Brittle(most, error, at_once=at_once)
        with waiting_for_nothing():
            came = outcome(way, Desk(model=model(*SCRIPT), store=store))
        if came == Answer(answer="x"):
            break
        assert isinstance(came, StoreError)
        assert "The disk is full" in str(came)
        assert error in (came, came.__cause__)
        assert came.run is not None
        assert (came.run.id, came.run.stop_reason) == ("a", "error")
        assert store.tried <= most + 3, "nothing is tried once it is known that something could not be kept"
        store.most = 10**9
        assert [each.status for each in acorn.runs(store).list()] in ([], ["stopped"])
        assert way(Desk(model=model(*SCRIPT), store=store)) == Answer(answer="x"), most
        most += 1
    assert most > 15


@each_case("way", [called, awaited])
def test_store_failure_at_end_of_last_branch_raises_error_with_record_of_top_level_run(way: Way) -> None:
    error = StoreError("The disk is full.")
    at_its_end, held = threading.Event(), Future[None]()

    class Full(MemoryStore):
        def commit(self, commit: Commit) -> PendingCommit:
            if any(change.run_id != "a" and change.status == "done" for change in commit.changes):
                at_its_end.set()
                return held
            if not at_its_end.is_set():
                return super().commit(commit)
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed

    class Waiting(Desk):
        """Answer."""

        @tool
        def late(self) -> str:
            """Wait until the end of the branch is about to be kept."""
            assert at_its_end.wait(PATIENCE)
            return "late"

    before = set(threading.enumerate())
    came = outcome(way, Waiting(model=model(call("dig") & call("late")), store=Full()))
    assert came is error
    assert came.run.id == "a"
    held.set_exception(error)
    started = [each for each in threading.enumerate() if each not in before and each.name != "acorn-heartbeat"]
    assert comes_true(lambda: not any(each.is_alive() for each in started))
    assert came.run.id == "a"


def test_store_failure_in_batch_is_error_of_affected_items() -> None:
    store = Brittle(3, StoreError("The disk is full."), at_once=False)
    agent = Desk(model=model(finish(answer="x")), store=store)
    came = agent.map([{"question": "a"}, {"question": "b"}, {"question": "c"}], concurrency=1).results()
    assert came[0] == Answer(answer="x")
    assert all(isinstance(each, StoreError) for each in came[1:])

    async def all_of_them() -> list[Any]:
        return await agent.amap([{"question": "a"}, {"question": "b"}], concurrency=1).results()

    assert all(isinstance(each, StoreError) for each in asyncio.run(all_of_them()))


def test_full_disk_raises_store_error_and_file_is_intact(tmp_path: Path) -> None:
    program = """
        import resource, signal
        from acorn import StoreError, module, runs, tool
        from acorn.testing import ScriptedModel, call, finish

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        class Desk(module[int, str]):
            "Answer."
            max_steps = 50
            @tool
            def look(self) -> str:
                "Look."
                return "a" * 100_000

        def answer(request):
            turns = sum(each["role"] == "assistant" for each in request.messages)
            return call("look") if turns < 20 else finish("x")

        agent = Desk(model=ScriptedModel(answer), store="runs.db").using(run_id="a")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
        try:
            agent(1)
        except StoreError as error:
            print(type(error).__name__, error.run.id, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        (facts,) = runs("runs.db").list()
        print(facts.status, 0 < facts.steps < 20)
        print(agent(1))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *said, status, output = done.stdout.splitlines()
    assert said[0].startswith("StoreError a ")
    assert "Check that the disk is not full" in "".join(said)
    assert (status, output) == ("stopped True", "x")


def test_slow_commit_of_one_run_does_not_block_other_runs() -> None:
    class Slow(MemoryStore):
        def commit(self, commit: Commit) -> PendingCommit:
            later: Future[None] = Future()

            def act() -> None:
                assert may_go_on.wait(PATIENCE)
                super(Slow, self).commit(commit)
                later.set_result(None)

            threading.Thread(target=act).start()
            return later

    may_go_on = threading.Event()

    async def both() -> Any:
        task = asyncio.ensure_future(Desk(model=model(finish(answer="x")), store=Slow()).acall(question="why?"))
        for _ in range(10):
            await asyncio.sleep(0)
        may_go_on.set()
        return await task

    assert asyncio.run(both()) == Answer(answer="x")


def test_task_cancelled_during_commit_leaves_resumable_run() -> None:
    class Slow(MemoryStore):
        """A store that writes commits later, in the order of the calls, as the interface `Store` demands."""

        count = 0

        def commit(self, commit: Commit) -> PendingCommit:
            self.count += 1
            return writer.submit(self._write, commit, self.count)

        def _write(self, commit: Commit, number: int) -> None:
            if number == 2:
                began.set()
                assert may_go_on.wait(PATIENCE)
            super().commit(commit).result()

    began, may_go_on = threading.Event(), threading.Event()
    store, writer = Slow(), ThreadPoolExecutor(1)
    agent = Desk(model=model(*SCRIPT), store=store).using(run_id="a")

    async def cancelled() -> None:
        task = asyncio.ensure_future(agent.acall(question="why?"))
        await asyncio.to_thread(began.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert acorn.runs(store).list()[0].status == "stopped"
    assert asyncio.run(agent.acall(question="why?")) == Answer(answer="x")
    writer.shutdown()


def test_store_failure_in_claim_of_already_cancelled_task_is_ignored() -> None:
    class Failing(MemoryStore):
        def claim(self, run_id: str, holder: Process, *, retry: bool = False) -> Any:
            began.set()
            assert may_go_on.wait(PATIENCE)
            raise StoreError("Away.")

    began, may_go_on = threading.Event(), threading.Event()
    told: list[Any] = []

    async def cancelled() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        agent = Desk(model=model(), store=Failing()).using(run_id="a")
        task = asyncio.ensure_future(agent.acall(question="why?"))
        assert await asyncio.to_thread(began.wait, PATIENCE)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()

    asyncio.run(cancelled())
    assert told == []


@each_case("error", [None, StoreError("Away."), RuntimeError("Away.")])
def test_claim_is_renewed_during_slow_hook(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    monkeypatch.setenv("ACORN_LEASE", "0.02")

    class Beating(MemoryStore):
        beats = 0

        def renew_lease(self, holder: Process, seconds: float) -> Sequence[str]:
            self.beats += 1
            if error is not None and self.beats == 1:
                raise error
            return super().renew_lease(holder, seconds)

    class Hooked(Desk):
        """Answer."""

        def on_step(self, step: Step) -> None:
            if not is_resumed:
                raise KeyboardInterrupt
            already = store.beats
            assert comes_true(lambda: store.beats > already + 2)

    store, is_resumed = Beating(), False
    with pytest.raises(KeyboardInterrupt):
        Hooked(model=model(call("look"), finish(answer="x")), store=store).using(run_id="a")(question="why?")
    is_resumed = True
    assert Hooked(model=model(call("look"), finish(answer="x")), store=store).resume("a") == Answer(answer="x")


def test_unreadable_stored_run_raises_store_error_and_is_deletable(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    agent = Desk(model=model(Failure(status=503)), store=file).using(run_id="a")
    with pytest.raises(ModelError):
        agent(question="why?")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE run_states SET state = '{}'")
    with pytest.raises(StoreError, match=r"Cannot read run a in .*runs.db"):
        agent.resume("a")
    with pytest.raises(StoreError, match=r"Cannot read run a in .*runs.db"):
        agent(question="why?")
    (facts,) = acorn.runs(file).list()
    assert facts.status == "failed"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE run_states SET record = 'x'")
    with pytest.raises(StoreError, match=r"Cannot read run a in .*runs.db"):
        acorn.runs(file).get("a")
    acorn.runs(file).delete("a")


@each_case(
    ("way", "is_impatient"),
    [("aresume", False), ("aresume", True), ("acall", True), ("astream", True), ("amap", False), ("amap", True)],
)
def test_task_cancelled_during_claim_releases_run(way: str, is_impatient: bool) -> None:
    class Slow(MemoryStore):
        def claim(self, run_id: str, holder: Process, *, retry: bool = False) -> Sequence[StoredRun] | None:
            if not is_slow:
                return super().claim(run_id, holder, retry=retry)
            began.set()
            assert may_go_on.wait(PATIENCE)
            try:
                return super().claim(run_id, holder, retry=retry)
            finally:
                has_claimed.set()

    began, may_go_on, has_claimed = threading.Event(), threading.Event(), threading.Event()
    store, is_slow = Slow(), False
    desk = Desk(model=model(Failure(status=503)), store=store)
    agent = desk.using(run_id="a")
    (first,) = desk.map([{"question": "why?"}], id="b").results()
    assert isinstance(first, ModelError)
    with pytest.raises(ModelError):
        agent(question="why?")
    is_slow = True

    async def go() -> None:
        match way:
            case "aresume":
                await agent.aresume("a")
            case "acall":
                await agent.acall(question="why?")
            case "astream":
                async for _ in agent.astream(question="why?"):
                    pass
            case _:
                await desk.amap([{"question": "why?"}], id="b", retry_failed=True).results()

    async def cancelled() -> None:
        task = asyncio.ensure_future(go())
        await asyncio.to_thread(began.wait, PATIENCE)
        task.cancel()
        while is_impatient and not task.done():  # The task cannot wait for the claim if it is cancelled again.
            await asyncio.sleep(0)
            task.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_impatient or has_claimed.is_set()
        await asyncio.to_thread(has_claimed.wait, PATIENCE)

    asyncio.run(cancelled())
    assert comes_true(lambda: [each.status for each in acorn.runs(store).list()] == ["failed", "failed"])
