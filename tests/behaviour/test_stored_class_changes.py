"""Tests of classes that change between two processes: compatible runs resume, and other runs raise and stay stored."""

from __future__ import annotations

from pathlib import Path
from types import new_class
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.schemas import Answer, Question
from tests.behaviour.stored import STORES, by_turn

import acorn
from acorn import StoreError, module, tool
from acorn.models import ModelRequest
from acorn.stores import MemoryStore
from acorn.testing import Reply, ScriptedModel, call, finish


@pytest.fixture(params=[name for name in STORES if name != "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return MemoryStore() if request.param == "memory" else tmp_path / "runs.db"


def declared(given: Any = Question, output: Any = Answer, **members: Any) -> Any:
    """The class `Desk` in some version of a program."""
    body = {"__doc__": "Answer.", "__qualname__": "Desk", "__module__": __name__, "max_steps": 9, **members}
    return new_class("Desk", (module[given, output],), exec_body=lambda names: names.update(body))


@tool
def fails() -> str:
    """Fail."""
    raise KeyboardInterrupt


def interrupted(store: Any, script: list[Reply], **members: Any) -> str:
    agent = declared(**members)(model=by_turn(*script), store=store)
    with pytest.raises(KeyboardInterrupt) as caught:
        agent(question="why?")
    run_id: str = caught.value.run.id  # type: ignore[attr-defined]
    return run_id


CALLS = [call("fails"), finish(answer="x")]


def test_resumed_run_whose_tool_was_removed_reports_missing_tool_to_model(store: Any) -> None:
    run_id = interrupted(store, CALLS, tools=[fails])
    agent = declared()(model=by_turn(*CALLS), store=store)
    assert agent.resume(run_id) == Answer(answer="x")
    results = [message["content"] for message in agent.last.history if message["role"] == "tool"]
    assert "fails" in results[0]
    assert "no tool" in results[0].lower()


def test_resumed_run_whose_branch_was_removed_raises_store_error_and_stays_resumable(store: Any) -> None:
    class Inner(module[Question, Answer]):
        """Inside."""

        max_steps = 3
        tools = [fails]

    script = [call("inner", question="deep"), call("fails"), finish(answer="x")]
    run_id = interrupted(store, script, branches={"inner": Inner})
    with pytest.raises(StoreError, match=r"branch `inner` .* no longer declared on `Desk`"):
        declared()(model=by_turn(*script), store=store).resume(run_id)
    assert [each.status for each in acorn.runs(store).list()] in (["stopped"], ["failed"])

    class Mended(module[Question, Answer]):
        """Inside."""

        __qualname__ = Inner.__qualname__
        max_steps = 3

    agent = declared(branches={"inner": Mended})(model=by_turn(*script), store=store)
    assert agent.resume(run_id) == Answer(answer="x")


def test_resumed_run_accepts_new_input_field_with_default(store: Any) -> None:
    class More(Question):
        tone: str = "kind"

    run_id = interrupted(store, CALLS, tools=[fails])
    agent = declared(given=More)(model=by_turn(*CALLS), store=store)
    assert agent.resume(run_id) == Answer(answer="x")
    assert agent.last.input == More(question="why?")


def test_run_id_call_accepts_new_input_field_with_default(store: Any) -> None:
    class More(Question):
        tone: str = "kind"

    agent = declared(tools=[fails])(model=by_turn(*CALLS), store=store)
    with pytest.raises(KeyboardInterrupt):
        agent.using(run_id="a")(question="why?")
    later = declared(given=More)(model=by_turn(*CALLS), store=store).using(run_id="a")
    with pytest.raises(StoreError, match="another input"):
        later(question="why?", tone="rude")
    assert later(question="why?") == Answer(answer="x")


def test_resumed_run_with_new_required_input_field_raises_error_with_field_name(store: Any) -> None:
    class More(Question):
        tone: str

    run_id = interrupted(store, CALLS, tools=[fails])
    with pytest.raises(StoreError, match="tone"):
        declared(given=More)(model=by_turn(*CALLS), store=store).resume(run_id)
    assert declared()(model=by_turn(*CALLS), store=store).resume(run_id) == Answer(answer="x")


def test_resumed_run_ignores_removed_input_field_unless_schema_forbids_extra_fields(store: Any) -> None:
    class More(Question):
        tone: str = "kind"

    class Strict(BaseModel, extra="forbid"):
        question: str

    run_id = interrupted(store, CALLS, given=More, tools=[fails])
    with pytest.raises(StoreError, match="tone"):
        declared(given=Strict)(model=by_turn(*CALLS), store=store).resume(run_id)
    assert declared()(model=by_turn(*CALLS), store=store).resume(run_id) == Answer(answer="x")


def test_stored_output_that_class_rejects_raises_store_error(store: Any) -> None:
    class Other(BaseModel):
        verdict: str

    agent = declared()(model=by_turn(finish(answer="x")), store=store).using(run_id="a")
    agent(question="why?")
    with pytest.raises(StoreError, match="verdict"):
        declared(output=Other)(model=by_turn(), store=store).resume("a")
    assert agent.resume("a") == Answer(answer="x")


def test_resumed_run_of_class_with_removed_hooks_finishes(store: Any) -> None:
    class Hooked:
        def on_step(self, step: Any) -> None:
            raise KeyboardInterrupt

        def on_finish(self, output: Any) -> None:
            raise KeyboardInterrupt

        def on_start(self, step: Any) -> None:
            raise KeyboardInterrupt

        def system_prompt(self) -> str:
            raise KeyboardInterrupt

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    script = [call("look"), finish(answer="x")]
    for name in ("on_step", "on_finish", "on_start", "system_prompt"):
        run_id = interrupted(store, script, tools=[look], **{name: getattr(Hooked, name)})
        agent = declared(tools=[look])(model=by_turn(*script), store=store)
        assert agent.resume(run_id) == Answer(answer="x"), name
        assert agent.last.steps == 1


def test_resumed_run_of_class_with_new_hooks_calls_hooks(store: Any) -> None:
    seen: list[int] = []
    script = [call("fails"), call("fails"), finish(answer="x")]

    @tool(name="fails")
    def works() -> str:
        """Work."""
        return "done"

    def on_step(self: Any, step: Any) -> None:
        seen.append(step.counter)

    run_id = interrupted(store, script, tools=[fails])
    agent = declared(tools=[works], on_step=on_step)(model=by_turn(*script), store=store)
    assert agent.resume(run_id) == Answer(answer="x")
    assert seen == [1, 2]


def test_resumed_run_beyond_lower_max_steps_is_forced_to_finish(store: Any) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    script = [call("look"), call("look"), call("look"), call("fails"), finish(answer="x")]
    run_id = interrupted(store, script, tools=[look, fails])
    model = by_turn(*script)
    agent = declared(max_steps=2)(model=model, store=store)
    assert agent.resume(run_id) == Answer(answer="x")
    assert agent.last.stop_reason == "forced"
    assert len(model.requests) == 1


def test_resumed_run_of_renamed_class_raises_error_with_both_names(store: Any) -> None:
    class Office(module[Question, Answer]):
        """Other."""

    run_id = interrupted(store, CALLS, tools=[fails])
    with pytest.raises(StoreError, match=r"belongs to `.*:Desk`, not to `.*Office`"):
        Office(model=by_turn(*CALLS), store=store).resume(run_id)
    assert declared()(model=by_turn(*CALLS), store=store).resume(run_id) == Answer(answer="x")


def test_resumed_run_whose_tool_starts_different_branch_than_before_finishes(store: Any) -> None:
    class Inner(module[Question, Answer]):
        """Inside."""

        max_steps = 3
        tools = [fails]

    wanted: list[str] = []

    def branching(self: Any, what: str) -> str:
        """Dig."""
        wanted.append(f"{what} {len(wanted)}")
        return self.branch(Inner, question=wanted[-1]).answer  # type: ignore[no-any-return]

    def answer(request: ModelRequest) -> Reply:
        said = [message["role"] for message in request.messages]
        users = [str(message["content"]) for message in request.messages if message["role"] == "user"]
        if any("deep" in each for each in users):
            return call("fails") if any("deep 0" in each for each in users) else finish(answer="found")
        return [call("branching", what="deep"), finish(answer="x")][said.count("assistant")]

    desk = declared(branching=tool(branching))
    with pytest.raises(KeyboardInterrupt) as caught:
        desk(model=ScriptedModel(answer), store=store)(question="why?")
    agent = desk(model=ScriptedModel(answer), store=store)
    assert agent.resume(caught.value.run.id) == Answer(answer="x")  # type: ignore[attr-defined]
    assert wanted == ["deep 0", "deep 1"]
    record = acorn.runs(store).get(agent.last.id)
    assert [branch.stop_reason for branch in record.branches][-1] == "finish"
    assert [branch.output for branch in record.branches] == [None, {"answer": "found"}]
    assert record.history == agent.last.history
    assert [branch.id for branch in record.branches] == [branch.id for branch in agent.last.branches]
