"""Tests of `resume` for each way in which a stored run ends, of concurrent resumes, and of streams left early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.schemas import Answer, Question
from tests.behaviour.stored import SCRIPT, STORES, Desk, NewStore, by_turn, desk, stores_in
from tests.cases import each_case
from tests.waiting import PATIENCE, waiting_for_nothing

import acorn
from acorn import LimitError, ModelError, ParseError, StoreError, Unfinished, current_run, module, tool
from acorn.models import ModelRequest
from acorn.stores import MemoryStore
from acorn.testing import Failure, Reply, ScriptedModel, call


@pytest.fixture(params=[name for name in STORES if name != "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else tmp_path / "runs.db"


@pytest.fixture
def new_store(tmp_path: Path) -> NewStore:
    return stores_in(tmp_path)


def status_of(store: Any) -> str:
    (facts,) = acorn.runs(store).list()
    return facts.status


Way = Callable[[Desk, str], Any]


def resumed(agent: Desk, run_id: str) -> Any:
    return agent.resume(run_id)


def aresumed(agent: Desk, run_id: str) -> Any:
    return asyncio.run(agent.aresume(run_id))


def streamed(agent: Desk, run_id: str) -> Any:
    return list(agent.using(run_id=run_id).stream(question="why?"))[-1].result


def astreamed(agent: Desk, run_id: str) -> Any:
    async def last() -> Any:
        return [chunk async for chunk in agent.using(run_id=run_id).astream(question="why?")][-1].result

    return asyncio.run(last())


WAYS = each_case("way", [resumed, aresumed, streamed, astreamed])


def stop() -> None:
    raise KeyboardInterrupt


@WAYS
def test_deleted_run_raises_store_error_on_resume_and_starts_again_on_call_with_run_id(
    new_store: NewStore, way: Way
) -> None:
    store = new_store()
    with pytest.raises(KeyboardInterrupt):
        desk(store, stop).using(run_id="a")(question="why?")
    acorn.runs(store).delete("a")
    if way in (resumed, aresumed):
        with pytest.raises(StoreError, match="Run 'a' is not in"):
            way(desk(store), "a")
    else:  # With its run id, it starts again.
        assert way(desk(store), "a") == Answer(answer="x")


@WAYS
def test_resume_of_cancelled_run_raises_store_error(new_store: NewStore, way: Way) -> None:
    store = new_store()
    with pytest.raises(KeyboardInterrupt):
        desk(store, stop).using(run_id="a")(question="why?")
    acorn.runs(store).cancel("a")
    with pytest.raises(StoreError, match="was cancelled"):
        way(desk(store), "a")
    assert status_of(store) == "cancelled"


@WAYS
def test_unfinished_run_returns_unfinished_on_resume(new_store: NewStore, way: Way) -> None:
    store = new_store()
    agent = desk(store, max_steps=None)
    first = agent.using(run_id="a")(question="why?")
    assert isinstance(first, Unfinished)
    again = way(desk(store, max_steps=None), "a")
    assert isinstance(again, Unfinished)
    assert again.tool_results[0].output == "seen"
    assert status_of(store) == "done"


@WAYS
def test_permanently_failed_run_raises_on_resume(new_store: NewStore, way: Way) -> None:
    store = new_store()
    agent = Desk(model=ScriptedModel([Reply("no"), Reply("no")]), store=store, parse_retries=0, max_steps=None)
    with pytest.raises((ParseError, ModelError)) as caught:
        agent.using(run_id="a")(question="why?")
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be resumed: it failed") as again:
            way(desk(store), "a")
        assert isinstance(again.value.__cause__, type(caught.value))
        assert status_of(store) == "failed"


@WAYS
def test_run_stopped_at_limit_raises_again_with_unchanged_limit(new_store: NewStore, way: Way) -> None:
    store = new_store()

    def agent(**settings: Any) -> Desk:
        return desk(store, **settings)

    with pytest.raises(LimitError):
        agent(max_total_tokens=25).using(run_id="a")(question="why?")
    before = acorn.runs(store).get("a").usage.total_tokens
    with pytest.raises(LimitError):
        way(agent(max_total_tokens=25), "a")
    assert acorn.runs(store).get("a").usage.total_tokens == before
    assert status_of(store) == "failed"
    assert way(agent(max_total_tokens=1_000_000), "a") == Answer(answer="x")


@WAYS
def test_run_with_retryable_failure_sends_request_again_on_resume(new_store: NewStore, way: Way) -> None:
    store = new_store()
    agent = Desk(model=ScriptedModel([Failure(status=503)]), store=store)
    with pytest.raises(ModelError):
        agent.using(run_id="a")(question="why?")
    with pytest.raises(ModelError):
        way(Desk(model=ScriptedModel([Failure(status=503)]), store=store), "a")
    assert way(desk(store), "a") == Answer(answer="x")


@WAYS
def test_second_call_for_run_that_is_running_in_current_process_does_not_run_it_twice(
    new_store: NewStore, way: Way
) -> None:
    store = new_store()
    began, may_end = threading.Event(), threading.Event()

    def act() -> str:
        began.set()
        assert may_end.wait(PATIENCE)
        return "seen"

    outputs: list[Any] = []
    first = threading.Thread(target=lambda: outputs.append(desk(store, act).using(run_id="a")(question="why?")))
    first.start()
    assert began.wait(PATIENCE)
    with pytest.raises(StoreError, match="is driven by process"):
        way(desk(store), "a")
    may_end.set()
    first.join(PATIENCE)
    assert outputs == [Answer(answer="x")]
    assert way(desk(store), "a") == Answer(answer="x")


@WAYS
def test_resume_of_current_run_inside_its_own_tool_raises_store_error(new_store: NewStore, way: Way) -> None:
    store = new_store()
    said: list[str] = []

    def act() -> str:
        try:
            way(desk(store), current_run().id)
        except StoreError as error:
            said.append(str(error))
        return "seen"

    assert desk(store, act)(question="why?") == Answer(answer="x")
    assert "is driven by" in said[0]


@WAYS
def test_resume_of_other_run_inside_tool_returns_output(new_store: NewStore, way: Way) -> None:
    store = new_store()
    with pytest.raises(KeyboardInterrupt):
        desk(store, stop).using(run_id="a")(question="why?")
    assert desk(store, lambda: way(desk(store), "a").answer)(question="how?") == Answer(answer="x")
    assert {facts.status for facts in acorn.runs(store).list()} == {"done"}


def test_one_run_id_called_in_many_threads_creates_one_stored_run(store: Any) -> None:
    together = threading.Barrier(8)
    looked: list[int] = []
    came: list[Any] = []

    def go() -> None:
        agent = desk(store, lambda: looked.append(1)).using(run_id="a")
        together.wait(PATIENCE)
        try:
            came.append(agent(question="why?"))
        except StoreError as error:
            came.append(error)

    threads = [threading.Thread(target=go) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert looked == [1]
    assert len(came) == 8
    for each in came:
        assert each == Answer(answer="x") or "driven by process" in str(each) or "already" in str(each)
    assert Answer(answer="x") in came
    assert len(acorn.runs(store).list()) == 1
    assert status_of(store) == "done"


def test_stream_that_is_not_iterated_does_not_claim_run(store: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        desk(store, stop).using(run_id="a")(question="why?")
    stream = desk(store).using(run_id="a").stream(question="why?")
    astream = desk(store).using(run_id="a").astream(question="why?")
    assert desk(store).resume("a") == Answer(answer="x")
    assert list(stream)[-1].result == Answer(answer="x")

    async def last() -> Any:
        return [chunk async for chunk in astream][-1].result

    assert asyncio.run(last()) == Answer(answer="x")


def test_stream_left_early_is_resumed_by_run_id(store: Any) -> None:
    looked: list[int] = []
    agent = desk(store, lambda: looked.append(1)).using(run_id="a")
    for chunk in agent.stream(question="why?"):
        if chunk.tool_result is not None:
            break
    assert status_of(store) == "stopped"
    assert acorn.runs(store).get("a").stop_reason == "cancelled"
    assert list(agent.stream(question="why?"))[-1].result == Answer(answer="x")
    assert looked == [1]


def test_async_stream_left_early_is_resumed_by_run_id(store: Any) -> None:
    looked: list[int] = []
    agent = desk(store, lambda: looked.append(1)).using(run_id="a")

    async def some() -> None:
        async for chunk in agent.astream(question="why?"):
            if chunk.tool_result is not None:
                break

    asyncio.run(some())
    assert status_of(store) == "stopped"
    assert astreamed(agent, "a") == Answer(answer="x")
    assert looked == [1]


def test_cancelled_task_leaves_run_that_is_resumable(store: Any) -> None:
    looked: list[int] = []

    class Waits(module[Question, Answer]):
        """Wait."""

        max_steps = 9

        @tool
        async def look(self) -> str:
            """Look."""
            looked.append(1)
            if len(looked) == 1:
                began.set()
                await asyncio.sleep(10 * PATIENCE)
            return "seen"

    began = asyncio.Event()
    agent = Waits(model=by_turn(*SCRIPT), store=store).using(run_id="a")

    async def cancelled() -> None:
        task = asyncio.ensure_future(agent.acall(question="why?"))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with waiting_for_nothing():
        asyncio.run(cancelled())
    assert status_of(store) == "stopped"
    assert asyncio.run(agent.acall(question="why?")) == Answer(answer="x")
    assert looked == [1, 1]


@WAYS
@each_case("limit", [{"max_seconds": 0.0001}, {"max_total_tokens": 11}])
def test_run_interrupted_during_request_resumes_within_limits(
    new_store: NewStore, way: Way, limit: dict[str, Any]
) -> None:
    store = new_store()

    def interrupted(request: ModelRequest) -> Reply:
        if len(request.messages) > 2:
            raise KeyboardInterrupt
        return call("look")

    agent = Desk(model=ScriptedModel(interrupted), store=store)
    agent.act = lambda: "seen"
    with pytest.raises(KeyboardInterrupt):
        agent.using(run_id="a")(question="why?")
    later = desk(store, **limit)
    with pytest.raises(LimitError):
        way(later, "a")
    assert not later.model.requests
    last = desk(store, max_steps=1)
    assert way(last, "a") == Answer(answer="x")
    assert [request.forced_tool for request in last.model.requests] == ["__finish__"]
