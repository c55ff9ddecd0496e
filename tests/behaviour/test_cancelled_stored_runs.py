"""Tests of cancelling a run through its store: the process that drives the run ends it immediately."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clock import FakeClock
from tests.commits import begin
from tests.long_version import IS_LONG
from tests.waiting import AGES, PATIENCE, comes_true, waiting_for_nothing

import acorn
from acorn import Run, module, tool
from acorn._base.clock import use_clock
from acorn._drive.commit import Origin, RunCommitter
from acorn.models import Delta, ModelRequest
from acorn.stores import MemoryStore
from acorn.stores.lease import wake_heartbeat
from acorn.stores.open import open_store
from acorn.stores.port import RunCancelledError, Store
from acorn.testing import ScriptedModel, call, finish


class Scene:
    """Work that takes very long, and whether it has started."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()
        self.ended: list[str] = []

    def sleep(self) -> str:
        """Sleep."""
        self.begun.set()
        self.over.wait(AGES)
        self.ended.append("sleep")
        return "slept"

    async def doze(self) -> str:
        """Doze."""
        self.begun.set()
        try:
            await asyncio.sleep(AGES)
        except asyncio.CancelledError:
            self.ended.append("doze")
            raise
        return "dozed"

    def quick(self) -> str:
        """Be quick."""
        return "quick"


class Desk(module[[("question", str)], str]):  # type: ignore[misc]
    """Answer."""

    max_steps = 5


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.over.set()


STORES = ["memory", "sqlite", "postgres"]
EVERY_STORE = pytest.mark.parametrize("store", STORES, indirect=True)
"""For one test of each driver. The way in which a run ends does not depend on the store."""


@pytest.fixture(params=STORES if IS_LONG else ["memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "sqlite":
        return open_store(tmp_path / "runs.db", "test")
    return open_store(request.getfixturevalue("postgres"), "test")


Way = Callable[[Any], Any]


def called(agent: Any) -> Any:
    return agent(question="why?")


def acalled(agent: Any) -> Any:
    return asyncio.run(agent.acall(question="why?"))


def streamed(agent: Any) -> Any:
    return list(agent.stream(question="why?"))


def astreamed(agent: Any) -> Any:
    async def all_of_it() -> Any:
        return [chunk async for chunk in agent.astream(question="why?")]

    return asyncio.run(all_of_it())


WAYS = pytest.mark.parametrize("way", [called, acalled, streamed, astreamed])


class SlowModel(ScriptedModel):
    """A model that takes very long to answer."""

    def __init__(self, scene: Scene) -> None:
        super().__init__([finish("never")])
        self._scene = scene

    def complete(self, request: ModelRequest) -> Any:
        self._scene.sleep()
        return super().complete(request)

    async def acomplete(self, request: ModelRequest) -> Any:
        await self._scene.doze()
        return await super().acomplete(request)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        self._scene.sleep()
        yield from super().stream(request)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        await self._scene.doze()
        async for delta in super().astream(request):
            yield delta


def cancelled(agent: Any, store: Store, scene: Scene, way: Way) -> RunCancelledError:
    """Drive a run, cancel it during its long work, and return its end."""

    def cancel() -> None:
        scene.begun.wait(AGES)
        acorn.runs(store).cancel("a")

    other = threading.Thread(target=cancel)
    other.start()
    with waiting_for_nothing(), pytest.raises(RunCancelledError, match="Run a was cancelled") as caught:
        way(agent.using(run_id="a", store=store))
    other.join()
    return caught.value


def check(error: RunCancelledError, store: Store) -> Run[Any]:
    run: Run[Any] = error.run
    assert run.stop_reason == "cancelled"
    assert run.error is error
    (facts,) = acorn.runs(store).list()
    assert facts.status == "cancelled"
    kept = acorn.runs(store).get("a")
    assert kept.stop_reason == "cancelled"
    assert "Run a was cancelled" in str(kept.error)
    assert len(kept.journal.entries) == len(run.journal.entries)
    return run


@WAYS
@pytest.mark.parametrize("name", ["sleep", "doze"])
def test_cancel_through_store_during_long_tool_ends_run(store: Store, scene: Scene, way: Way, name: str) -> None:
    agent = Desk(tools=[getattr(scene, name)], model=ScriptedModel([call(name)]))
    check(cancelled(agent, store, scene, way), store)
    if name == "doze":
        assert comes_true(lambda: scene.ended == ["doze"])
    else:
        assert scene.ended == []  # The thread cannot be stopped and is abandoned.


class HeldClock(FakeClock):
    """A clock on which the time to notice a cancellation passes when a tool source closes."""

    def __init__(self) -> None:
        super().__init__()
        self.closing, self.closed = threading.Event(), threading.Event()

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        (self.closing if len(self.waits) == 1 else self.closed).wait(AGES)


@WAYS
def test_cancel_through_store_waits_for_slow_cleanup_before_run_is_stored_as_cancelled(scene: Scene, way: Way) -> None:
    clock = HeldClock()

    class Tidy:
        def tools(self) -> list[Any]:
            return [scene.doze]

        def close(self) -> None:
            clock.closing.set()
            assert comes_true(lambda: len(clock.waits) == 2)  # The store waits longer, because the run is ending.

    store = MemoryStore()
    with use_clock(clock):
        check(cancelled(Desk(tools=[Tidy()], model=ScriptedModel([call("doze")])), store, scene, way), store)
    clock.closed.set()


@WAYS
def test_cancel_through_store_during_concurrent_tools_ends_run(store: Store, scene: Scene, way: Way) -> None:
    script = [call("quick") & call("sleep") & call("doze")]
    agent = Desk(tools=[scene.quick, scene.sleep, scene.doze], model=ScriptedModel(script))
    check(cancelled(agent, store, scene, way), store)


@WAYS
def test_cancel_through_store_during_model_call_ends_run(store: Store, scene: Scene, way: Way) -> None:
    check(cancelled(Desk(model=SlowModel(scene)), store, scene, way), store)


@WAYS
def test_cancel_through_store_during_branch_ends_run(store: Store, scene: Scene, way: Way) -> None:
    inner = type("Inner", (Desk,), {"tools": [scene.sleep], "__doc__": "Look below."})
    agent = Desk(branches={"inner": inner}, model=ScriptedModel([call("inner", question="?"), call("sleep")]))
    run = check(cancelled(agent, store, scene, way), store)
    assert [each.stop_reason for each in run.branches] == ["cancelled"]


@pytest.mark.parametrize("way", [called, acalled])
def test_cancel_through_store_during_branch_started_by_branch_method_ends_run(
    store: Store, scene: Scene, way: Way
) -> None:
    class Inner(Desk):
        """Look below."""

        tools = [scene.sleep]

    class Outer(Desk):
        @tool
        def dig(self) -> str:
            """Dig."""
            return str(self.branch(Inner, question="?"))

    agent = Outer(model=ScriptedModel([call("dig"), call("sleep")]))
    check(cancelled(agent, store, scene, way), store)


@EVERY_STORE
def test_cancel_through_store_ends_partly_read_stream_and_next_read_raises_run_cancelled_error(
    store: Store, scene: Scene
) -> None:
    agent = Desk(tools=[scene.quick], model=ScriptedModel([call("quick"), finish("x")]))
    with use_clock(FakeClock()):
        chunks = agent.using(run_id="a", store=store).stream(question="why?")
        next(chunks)
    acorn.runs(store).cancel("a")
    assert comes_true(lambda: acorn.runs(store).list()[0].status == "cancelled")
    with pytest.raises(RunCancelledError):
        list(chunks)


@EVERY_STORE
def test_cancel_through_store_does_not_cancel_asyncio_task_that_awaits_run(store: Store, scene: Scene) -> None:
    agent = Desk(tools=[scene.doze], model=ScriptedModel([call("doze")])).using(run_id="a", store=store)

    async def main() -> str:
        def cancel() -> None:
            scene.begun.wait(AGES)
            acorn.runs(store).cancel("a")

        task = asyncio.ensure_future(asyncio.to_thread(cancel))
        with pytest.raises(RunCancelledError):
            await agent.acall(question="why?")
        await task
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        await asyncio.sleep(0)
        return "well"

    with waiting_for_nothing():
        assert asyncio.run(main()) == "well"


CANCEL = "import sys, acorn; acorn.runs(sys.argv[1]).cancel('a')"


@pytest.mark.parametrize(("where", "way"), [("sqlite", called), ("postgres", acalled)])
def test_cancel_through_store_from_other_process_ends_run(
    request: pytest.FixtureRequest, tmp_path: Path, scene: Scene, way: Way, where: str
) -> None:
    url = str(tmp_path / "runs.db") if where == "sqlite" else request.getfixturevalue("postgres")
    store = open_store(url, "test")
    agent = Desk(tools=[scene.sleep], model=ScriptedModel([call("sleep")]))

    def cancel() -> None:
        scene.begun.wait(AGES)
        subprocess.run([sys.executable, "-c", CANCEL, url], check=True)

    other = threading.Thread(target=cancel)
    other.start()
    with waiting_for_nothing(), pytest.raises(RunCancelledError) as caught:
        way(agent.using(run_id="a", store=store))
    other.join()
    check(caught.value, store)


def test_end_of_earlier_call_keeps_cancel_requests_of_later_call() -> None:
    store = MemoryStore()
    begin(store, "r")
    earlier, later = (RunCommitter(store, "r", Origin("desk:Desk")) for _ in range(2))
    is_cancelled = threading.Event()
    earlier.begin(threading.Event().set)
    later.begin(is_cancelled.set)
    earlier.end(None)
    store.cancel("r")
    wake_heartbeat(store)
    assert is_cancelled.wait(PATIENCE)
    later.end(None)


def test_heartbeats_continue_after_error_of_cancel_function() -> None:
    store = MemoryStore()
    begin(store, "r")
    begin(store, "s")

    def fail() -> None:
        raise RuntimeError("It cannot be cancelled.")

    failing, other = (RunCommitter(store, run_id, Origin("desk:Desk")) for run_id in ("r", "s"))
    is_cancelled = threading.Event()
    failing.begin(fail)
    other.begin(is_cancelled.set)
    store.cancel("r")
    store.cancel("s")
    assert is_cancelled.wait(PATIENCE)
    failing.end(None)
    other.end(None)
