"""Tests of paused runs in a store: another process answers the request later, and the run resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.stored import ALL_STORES, STORES
from tests.cases import each_case

import acorn
from acorn import InputError, Paused, StoreError, ask_human, module, tool
from acorn.models import ModelRequest
from acorn.stores import MemoryStore, PostgresStore
from acorn.stores.port import StoredAnswer
from acorn.testing import Reply, ScriptedModel, call, finish


class Order(BaseModel):
    order: str


class Inner(module[Order, str]):
    """Ask about the order."""

    max_steps = 5


class Desk(module[Order, str]):
    """Refund the order."""

    max_steps = 10
    tools = [ask_human]
    branches = {"inner": Inner}
    refunded: list[float]

    @tool(approval=True)
    def refund(self, amount: float) -> str:
        """Pay it back."""
        self.refunded.append(amount)
        return f"{amount} refunded"

    @tool
    def look(self) -> str:
        """Look at the order."""
        return "a blue one"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "postgres":
        with closing(PostgresStore(request.getfixturevalue("postgres"))) as made:
            yield made
    else:
        yield MemoryStore() if request.param == "memory" else tmp_path / "runs.db"


def desk(store: Any, script: list[Reply], inside: list[Reply] | None = None) -> Desk:
    """Return an agent as a new process would make it: its model answers by the state of the conversation."""

    def answer(request: ModelRequest) -> Reply:
        said = [message["role"] for message in request.messages]
        inner = [at for at, message in enumerate(request.messages) if "inside" in str(message["content"])]
        if inside is not None and inner:
            return inside[said[inner[0] :].count("assistant")]
        return script[said.count("assistant")]

    agent = Desk(model=ScriptedModel(answer), store=store)
    agent.refunded = []
    return agent


ASKS = [call("refund", amount=20.0) & call("look"), finish("done")]


@pytest.mark.parametrize("store", ALL_STORES, indirect=True)
def test_approval_passed_to_runs_answer_is_used_on_resume(store: Any) -> None:
    paused: Any = desk(store, ASKS)(order="17")
    assert isinstance(paused, Paused)
    assert not paused
    (facts,) = acorn.runs(store).list(status="waiting")
    assert facts.id == paused.run_id
    (request,) = acorn.runs(store).requests()
    assert request == paused.request
    assert (request.kind, request.tool, request.arguments) == ("approval", "refund", {"amount": 20.0})

    acorn.runs(store).answer(request.id, True)
    assert not acorn.runs(store).requests()
    again = desk(store, ASKS)
    assert again.resume(paused.run_id) == "done"
    assert again.refunded == [20.0]
    assert acorn.runs(store).list()[0].status == "done"


@each_case(
    ("answer", "refunded", "read"),
    [
        (True, [20.0], "20.0 refunded"),
        (False, [], "did not approve"),
        (acorn.deny("too much"), [], "too much"),
        ({"approved": True, "arguments": {"amount": 5}}, [5.0], "5.0 refunded"),
    ],
)
def test_approval_rejection_and_edited_arguments_are_applied_on_resume(
    store: Any, answer: Any, refunded: list[float], read: str
) -> None:
    paused: Any = desk(store, ASKS)(order="17")
    agent = desk(store, ASKS)
    assert asyncio.run(agent.aresume(paused.run_id, answer=answer)) == "done"
    assert agent.refunded == refunded
    assert agent.last is not None
    results = [message["content"] for message in agent.last.history if message["role"] == "tool"]
    assert any(read in result for result in results)


@each_case("answer", [None, 7, "too much", {"approved": True, "arguments": {"amount": "x"}}])
def test_invalid_answer_raises_input_error_and_human_input_request_stays_unanswered(store: Any, answer: Any) -> None:
    paused: Any = desk(store, ASKS)(order="17")
    with pytest.raises(InputError):
        desk(store, ASKS).resume(paused.run_id, answer=answer)
    assert [each.id for each in acorn.runs(store).requests()] == [paused.request.id]
    assert desk(store, ASKS).resume(paused.run_id, answer=True) == "done"


@each_case("answer", [None, 7, "too much", {"approved": 1, "arguments": {}}])
def test_invalid_answer_passed_to_runs_answer_raises_input_error(store: Any, answer: Any) -> None:
    paused: Any = desk(store, ASKS)(order="17")
    with pytest.raises(InputError, match="request"):
        acorn.runs(store).answer(paused.request.id, answer)
    acorn.runs(store).answer(paused.request.id, True)
    assert desk(store, ASKS).resume(paused.run_id) == "done"


def test_approved_arguments_of_wrong_type_are_reported_to_model_as_tool_error(store: Any) -> None:
    paused: Any = desk(store, ASKS)(order="17")
    acorn.runs(store).answer(paused.request.id, {"approved": True, "arguments": {"amount": "much"}})
    agent = desk(store, ASKS)
    assert agent.resume(paused.run_id) == "done"
    assert agent.refunded == []


def test_several_human_input_requests_answered_one_by_one_resume_run(store: Any) -> None:
    script = [call("ask_human", question="Which?") & call("ask_human", question="Why?"), finish("done")]
    paused: Any = desk(store, script)(order="17")
    one, two = paused.requests
    with pytest.raises(StoreError, match="waits for 2 answers"):
        desk(store, script).resume(paused.run_id, answer="the blue one")
    still: Any = desk(store, script).resume(paused.run_id, answers={one.id: "the blue one"})
    assert [each.id for each in still.requests] == [two.id]
    assert [each.id for each in acorn.runs(store).requests()] == [two.id]
    with pytest.raises(StoreError, match="already answered"):
        desk(store, script).resume(paused.run_id, answers={one.id: "the red one"})
    agent = desk(store, script)
    assert agent.resume(paused.run_id, answer=["because"]) == "done"
    assert agent.last is not None
    results = [message["content"] for message in agent.last.history if message["role"] == "tool"]
    assert results[:2] == ["the blue one", '["because"]']


def test_answer_that_arrives_after_resumed_run_read_answers_is_used_on_next_resume() -> None:
    class AnsweredLate(MemoryStore):
        late: dict[str, Any]

        def answers(self, run_id: str) -> Sequence[StoredAnswer]:
            answers = super().answers(run_id)
            while self.late:
                self.answer(*self.late.popitem())
            return answers

    store = AnsweredLate()
    store.late = {}
    script = [call("ask_human", question="Which?") & call("ask_human", question="Why?"), finish("done")]
    paused: Any = desk(store, script)(order="17")
    one, two = paused.requests
    store.late = {two.id: "because"}
    still: Any = desk(store, script).resume(paused.run_id, answers={one.id: "the blue one"})
    assert [each.id for each in still.requests] == [two.id]
    assert desk(store, script).resume(paused.run_id) == "done"


def test_human_input_request_of_branch_is_answered_on_resume(store: Any) -> None:
    script = [call("inner", order="inside"), finish("done")]
    inside = [call("ask_human", question="Which?"), finish("deep")]
    paused: Any = desk(store, script, inside)(order="17")
    assert paused.request.branch == "inner"
    assert paused.request.run_id != paused.run_id
    agent = desk(store, script, inside)
    assert agent.resume(paused.run_id, answer="that one") == "done"
    assert agent.last is not None
    assert agent.last.branches[0].output == "deep"


def test_run_with_run_id_is_paused_and_resumed_by_run_id(store: Any) -> None:
    agent = desk(store, ASKS).using(run_id="order-17")
    paused: Any = agent(order="17")
    assert paused.run_id == "order-17"
    assert isinstance(agent(order="17"), Paused), "nobody has answered yet"
    acorn.runs(store).answer(paused.request.id, True)
    assert agent(order="17") == "done"
    chunks = list(agent.stream(order="17"))
    assert [chunk.result for chunk in chunks] == ["done"]


def test_output_of_resumed_run_is_none_until_run_ends(store: Any) -> None:
    class Looker(module[Order, str]):
        """Look."""

        max_steps = 5

        @tool(approval=True)
        def look(self) -> str:
            """Look."""
            outputs.append(acorn.runs(store).get(acorn.current_run().id).output)
            return "seen"

    outputs: list[Any] = []
    paused: Any = Looker(model=ScriptedModel([call("look")]), store=store)(order="17")
    assert isinstance(acorn.runs(store).get(paused.run_id).output, Paused)
    assert Looker(model=ScriptedModel([finish("done")]), store=store).resume(paused.run_id, answer=True) == "done"
    assert outputs == [None]


def test_stream_of_paused_run_ends_with_paused_result(store: Any) -> None:
    agent = desk(store, ASKS)
    last = list(agent.stream(order="17"))[-1]
    assert isinstance(last.result, Paused)
    assert last.run is not None
    assert last.run.stop_reason == "paused"
    acorn.runs(store).answer(last.result.request.id, False)
    chunks = list(agent.using(run_id=last.run.id).stream(order="17"))
    assert chunks[-1].result == "done"
