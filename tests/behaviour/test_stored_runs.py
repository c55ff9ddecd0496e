"""Tests of stored runs: run ids, interruption, resume, stored outputs, and access through `acorn.runs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.schemas import Answer, Question
from tests.behaviour.stored import ALL_STORES, STORES
from tests.cases import each_case

import acorn
from acorn import DeclarationError, Run, Step, StoreError, current_run, module, tool
from acorn.journal import RunFinished, RunStarted
from acorn.models import ModelRequest
from acorn.stores import MemoryStore, PostgresStore
from acorn.testing import Reply, ScriptedModel, call, finish


class Inner(module[Question, Answer]):
    """Look closer."""

    max_steps = 5


class Desk(module[Question, Answer]):
    """Answer the question."""

    max_steps = 10
    branches = {"inner": Inner}

    seen: list[str]
    """What was done, by whichever instance."""

    @tool
    def look(self, what: str) -> str:
        """Look something up."""
        self.seen.append(what)
        if what == "trouble" and self.seen.count(what) == 1:
            raise KeyboardInterrupt
        return f"seen {what}"

    def on_step(self, step: Step) -> None:
        if step.branch is None:
            self.seen.append(f"step {step.counter}")


SCRIPT = [
    call("look", what="a") & call("look", what="b"),
    call("look", what="trouble"),
    call("inner", question="deeper?"),
    finish(answer="done"),
]
INSIDE = [call("look", what="inside"), finish(answer="deep")]


def by_turn(request: ModelRequest) -> Reply:
    """The script as a function of the conversation, so that any process can continue it."""
    turns = sum(message["role"] == "assistant" for message in request.messages)
    is_inside = any("deeper?" in str(message["content"]) for message in request.messages if message["role"] == "user")
    reply: Reply = INSIDE[turns - 3] if is_inside else SCRIPT[turns]
    return reply


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "postgres":
        with closing(PostgresStore(request.getfixturevalue("postgres"))) as made:
            yield made
    else:
        yield MemoryStore() if request.param == "memory" else tmp_path / "runs.db"


def desk(store: Any, seen: list[str], **settings: Any) -> Desk:
    agent = Desk(model=ScriptedModel(by_turn), store=store, **settings)
    agent.seen = seen
    return agent


Way = Callable[[Desk, dict[str, Any]], Any]


def called(agent: Desk, given: dict[str, Any]) -> Any:
    return agent(**given)


def awaited(agent: Desk, given: dict[str, Any]) -> Any:
    return asyncio.run(agent.acall(**given))


def streamed(agent: Desk, given: dict[str, Any]) -> Any:
    return list(agent.stream(**given))[-1].result


def astreamed(agent: Desk, given: dict[str, Any]) -> Any:
    async def last() -> Any:
        return [chunk async for chunk in agent.astream(**given)][-1].result

    return asyncio.run(last())


WAYS = [called, awaited, streamed, astreamed]
ALL = ["a", "b", "step 1", "trouble", "trouble", "step 2", "inside", "step 3"]


@pytest.mark.parametrize("store", ALL_STORES, indirect=True)
@each_case("way", WAYS)
def test_interrupted_run_with_run_id_resumes_at_last_commit(store: Any, way: Way) -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        way(desk(store, seen).using(run_id="order-17"), {"question": "why?"})
    (facts,) = acorn.runs(store).list()
    assert (facts.id, facts.status, facts.steps) == ("order-17", "stopped", 2)

    output = way(desk(store, seen).using(run_id="order-17"), {"question": "why?"})
    assert output == Answer(answer="done")
    assert sorted(seen) == sorted(ALL)
    (facts,) = acorn.runs(store).list()
    assert (facts.status, facts.steps, facts.agent.rpartition(":")[2]) == ("done", 3, "Desk")
    assert facts.usage.requests == 6
    acorn.runs(store).delete("order-17")


@each_case("way", WAYS)
def test_finished_run_with_run_id_returns_stored_output(store: Any, way: Way) -> None:
    agent = Desk(model=ScriptedModel([finish(answer="once")]), store=store).using(run_id=way.__name__)
    assert way(agent, {"question": "why?"}) == way(agent, {"question": "why?"}) == Answer(answer="once")
    assert agent.resume(way.__name__) == Answer(answer="once")


def test_output_replaced_by_on_finish_is_returned_on_resume(store: Any) -> None:
    class Adding(module[Question, Answer]):
        """Answer."""

        def on_finish(self, output: Answer) -> Any:
            return {"answer": output.answer, "by": "a clerk"}

    agent = Adding(model=ScriptedModel([finish(answer="once")]), store=store).using(run_id="a")
    given: Any = agent(question="why?")
    assert given == {"answer": "once", "by": "a clerk"}
    assert agent.resume("a") == given


def test_run_id_with_other_input_or_class_raises_store_error(store: Any) -> None:
    class Other(module[Question, Answer]):
        """Other."""

    agent = Desk(model=ScriptedModel([finish(answer="once")]), store=store).using(run_id="a")
    agent(question="why?")
    with pytest.raises(StoreError, match="started with another input"):
        agent(question="how?")
    with pytest.raises(StoreError, match=r"belongs to `.*Desk`, not to `.*Other`"):
        Other(model=ScriptedModel([]), store=store).using(run_id="a")(question="why?")
    assert agent(question="why?") == Answer(answer="once")


def test_run_without_run_id_is_resumed_by_generated_id(store: Any) -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        desk(store, seen)(question="why?")
    run: Run[Any] = caught.value.run  # type: ignore[attr-defined]
    assert desk(store, seen).resume(run.id) == Answer(answer="done")
    assert asyncio.run(desk(store, seen).aresume(run.id)) == Answer(answer="done")
    assert sorted(seen) == sorted(ALL)


def test_resumed_run_record_contains_all_entries(store: Any) -> None:
    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt) as caught:
        desk(store, seen)(question="why?")
    first: Run[Any] = caught.value.run  # type: ignore[attr-defined]
    agent = desk(store, seen)
    agent.resume(first.id)
    run = agent.last
    assert run is not None
    assert (run.id, run.steps, run.stop_reason, run.usage.requests) == (first.id, 3, "finish", 6)
    assert run.started == first.started
    assert run.seconds > first.seconds
    kept = acorn.runs(store).get(first.id)
    assert kept.history == run.history
    assert [branch.id for branch in kept.branches] == [branch.id for branch in run.branches]
    assert kept.output == {"answer": "done"}
    entries = list(acorn.runs(store).follow(first.id))
    assert isinstance(entries[0], RunStarted)
    assert isinstance(entries[-1], RunFinished)
    assert len(entries) == len(run.journal.entries) + len(run.branches[0].journal.entries)


def test_resume_of_unknown_run_raises_store_error(store: Any) -> None:
    agent = Desk(model=ScriptedModel([]), store=store)
    with pytest.raises(StoreError, match="Run 'x' is not in"):
        agent.resume("x")
    with pytest.raises(DeclarationError, match="has no store"):
        Desk(model=ScriptedModel([])).resume("x")
    with pytest.raises(DeclarationError, match="has no store"):
        Desk(model=ScriptedModel([])).using(run_id="x")(question="why?")
    with pytest.raises(DeclarationError, match="`run_id`"):
        agent.using(run_id="")
    Desk(model=ScriptedModel([finish(answer="x")]), store=store).using(run_id="y")(question="?")
    with pytest.raises(StoreError, match="does not wait for an answer"):
        agent.resume("y", answer=True)


def test_run_cancelled_through_store_ends_and_cannot_be_resumed(store: Any) -> None:
    class Slow(module[Question, Answer]):
        """Slow."""

        max_steps = 5

        @tool
        def look(self) -> str:
            """Look."""
            acorn.runs(store).cancel(current_run().id)
            return "seen"

    agent = Slow(model=ScriptedModel([call("look"), finish(answer="x")]), store=store)
    with pytest.raises(StoreError, match="cancelled") as caught:
        agent(question="why?")
    assert caught.value.run.stop_reason == "cancelled"
    (facts,) = acorn.runs(store).list(status="cancelled")
    with pytest.raises(StoreError, match="was cancelled"):
        agent.resume(facts.id)
    acorn.runs(store).delete(facts.id)
    assert not acorn.runs(store).list()


def test_branch_is_stored_below_its_top_level_run(store: Any) -> None:
    agent = desk(store, ["trouble"])
    agent(question="why?")
    (facts,) = acorn.runs(store).list()
    record = acorn.runs(store).get(facts.id)
    (branch,) = record.branches
    assert branch.branch == "inner"
    assert branch.output == {"answer": "deep"}
