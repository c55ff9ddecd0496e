"""Tests of `on_start`: it runs once before the first request, and its changes apply from that request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.behaviour.conftest import Call, Script
from tests.behaviour.schemas import Question
from tests.cases import each_case

from acorn import AcornError, DeclarationError, ParseError, Step, Usage, current_run, listen, module, tool
from acorn._call.plan import new_machine, plan_for
from acorn._drive.sync_driver import drive
from acorn._drive.tree import Tree
from acorn._history.history import history_of
from acorn._machine.saved_run import load, save
from acorn.journal import Entry
from acorn.models import ModelRequest
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling
from acorn.thread import to_messages


@tool
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"nothing in {place}"


@tool
def listen_in() -> str:
    """Listen."""
    return "silence"


class Looker(module[Question, str]):
    """Look around."""

    tools = [look]
    max_steps = 3


LOOK = calling("look")
DONE = finish(result="nowhere")
SYSTEM = {"role": "system", "content": "Look around."}
INPUT = {"role": "user", "content": "<input>\n  <question>?</question>\n</input>"}


def starting(hook: Callable[[Any, Step], Any], **attributes: Any) -> Any:
    """Create a class with this `on_start`."""
    made = {"__module__": __name__, "__doc__": "Look around.", "on_start": hook, **attributes}
    return type("Starter", (Looker,), made)


def names(request: ModelRequest) -> list[str]:
    return [entry["function"]["name"] for entry in request.tools]


@pytest.mark.every_way
def test_on_start_is_called_once_before_first_model_call_with_first_messages(call: Call, script: Script) -> None:
    seen: list[Any] = []

    def hook(self: Looker, step: Step) -> Step:
        seen.append((step.counter, step.tool_calls, step.tool_results, list(self.history), len(model.requests)))
        assert (step.content, step.reasoning, step.usage, step.cost) == ("", None, Usage(), None)
        assert step.run is current_run()
        assert step.tools == [look]
        return step

    def on_step(self: Looker, step: Step) -> None:
        seen.append(step.counter)

    model = script(LOOK, LOOK, DONE)
    run = call.run(starting(hook, on_step=on_step)(model=model), question="?")
    assert seen == [(0, [], [], [SYSTEM, INPUT], 0), 1, 2]
    assert (run.output, run.steps) == ("nowhere", 2)


@pytest.mark.every_way
def test_async_on_start_is_awaited(call: Call, script: Script) -> None:
    async def hook(self: Looker, step: Step) -> None:
        step.temperature = 0.1

    model = script(DONE)
    call.run(starting(hook)(model=model), question="?")
    assert model.requests[0].temperature == 0.1


@pytest.mark.live_objects
def test_on_start_setting_changes_apply_from_first_request(call: Call, script: Script) -> None:
    other = script(LOOK, DONE)

    def hook(self: Looker, step: Step) -> None:
        step.model, step.temperature, step.max_tokens = other, 0.25, 77
        step.add_tool(listen_in)
        step.remove_tool("look")

    call.run(starting(hook)(model=script()), question="?")
    for request in other.requests:
        assert (request.temperature, request.max_tokens) == (0.25, 77)
        assert names(request) == ["listen_in", "__finish__"]


def test_on_start_removes_tools_and_branches_from_first_request(call: Call, script: Script) -> None:
    def hook(self: Looker, step: Step) -> None:
        step.remove_tool("look")
        step.remove_tool("again")

    model = script(DONE)
    call.run(starting(hook, branches={"again": Looker}, max_steps=None)(model=model), question="?")
    assert names(model.requests[0]) == ["__finish__"]
    assert model.requests[0].forced_tool == "__finish__"


@pytest.mark.edits_history
def test_on_start_history_changes_are_in_first_request(call: Call, script: Script) -> None:
    def hook(self: Looker, step: Step) -> None:
        self.history[0]["content"] = "Look well."
        self.history.insert(1, {"role": "user", "content": "Hello"})

    model = script(LOOK, DONE)
    run = call.run(starting(hook)(model=model), question="?")
    first = [{"role": "system", "content": "Look well."}, {"role": "user", "content": "Hello"}, INPUT]
    assert model.requests[0].messages == first
    assert model.requests[1].messages[:3] == first
    assert history_of(run.journal.entries) == run.history


def test_on_start_context_is_sent_after_input(call: Call, script: Script) -> None:
    def hook(self: Looker, step: Step) -> None:
        step.add_to_context("It is dark.")
        step.add_to_context({"time": "late"})

    model = script(LOOK, DONE)
    run = call.run(starting(hook)(model=model), question="?")
    said = "<context>It is dark.</context>\n<context>\n  <time>late</time>\n</context>"
    assert model.requests[0].messages == [SYSTEM, INPUT, {"role": "user", "content": said}]
    assert to_messages(run.thread) == run.history


@pytest.mark.every_way
@each_case("max_steps", [None, 3])
def test_on_start_finish_ends_run_without_model_call(call: Call, script: Script, max_steps: int | None) -> None:
    def hook(self: Looker, step: Step) -> None:
        step.finish(result="in the cellar")

    model = script()
    run = call.run(starting(hook)(model=model, max_steps=max_steps), question="?")
    assert (run.output, run.stop_reason, run.steps, run.usage.requests) == ("in the cellar", "step", 0, 0)
    assert run.history == [SYSTEM, INPUT]


def test_output_set_in_on_start_and_rejected_by_on_finish_is_sent_to_model(call: Call, script: Script) -> None:
    def hook(self: Looker, step: Step) -> None:
        step.finish(result="in the cellar")

    def on_finish(self: Looker, output: str) -> None:
        if output != "nowhere":
            raise ValueError("look again")

    model = script(DONE)
    run = call.run(starting(hook, on_finish=on_finish)(model=model), question="?")
    assert run.output == "nowhere"
    assert "look again" in model.requests[0].messages[2]["content"]


def test_on_start_finish_with_invalid_fields_raises_parse_error(call: Call, script: Script) -> None:
    def hook(self: Looker, step: Step) -> None:
        step.finish(answer=1)

    with pytest.raises(ParseError, match=r"`step\.finish` of `Starter` got an output that does not fit") as caught:
        call.run(starting(hook)(model=script()), question="?")
    assert caught.value.run.history == [SYSTEM, INPUT]


@pytest.mark.every_way
def test_on_start_exception_is_raised_unchanged(call: Call, script: Script) -> None:
    def hook(self: Looker, step: Step) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough") as caught:
        call.run(starting(hook)(model=script()), question="?")
    assert vars(caught.value)["run"].history == [SYSTEM, INPUT]


def test_on_start_with_wrong_return_value_raises_declaration_error(call: Call, script: Script) -> None:
    with pytest.raises(DeclarationError, match=r"`Starter\.on_start` must return the step or nothing, got 5\."):
        call.run(starting(lambda self, step: 5)(model=script()), question="?")


@each_case("name", ["tool_calls", "tool_results"])
def test_on_start_that_sets_tool_results_raises_acorn_error(call: Call, script: Script, name: str) -> None:
    def hook(self: Looker, step: Step) -> None:
        getattr(step, name).append("oops")

    with pytest.raises(AcornError, match=r"`Starter\.on_start` has changed `step\.tool_results` or"):
        call.run(starting(hook)(model=script()), question="?")


def test_branch_calls_on_start_of_branch_but_not_of_parent(call: Call, script: Script) -> None:
    seen: list[Any] = []

    def hook(self: Looker, step: Step) -> None:
        seen.append((type(self).__name__, step.branch, step.counter, len(self.history)))

    class Below(module[None, str]):
        """Look below."""

        on_start = hook

    class Plain(module[None, str]):
        """Look elsewhere."""

    branches = {"below": Below, "plain": Plain}
    model = script(calling("below"), DONE, calling("plain"), DONE, DONE)
    call.run(starting(hook, branches=branches)(model=model), question="?")
    assert seen == [("Starter", None, 0, 2), ("Below", "below", 0, 4)]


@pytest.mark.every_way
def test_branch_started_in_on_start_returns_output(call: Call, script: Script) -> None:
    class Below(module[None, str]):
        """Look below."""

    def hook(self: Looker, step: Step) -> None:
        step.add_to_context(self.branch(Below))

    model = script(finish(result="a mouse"), DONE)
    run = call.run(starting(hook)(model=model), question="?")
    assert [branch.branch for branch in run.branches] == ["Below"]
    assert model.requests[0].messages[1:] == [INPUT]
    assert model.requests[1].messages[2]["content"] == "<context>a mouse</context>"


@pytest.mark.every_way
def test_on_start_is_called_after_tool_sources_open(call: Call, script: Script) -> None:
    class Source:
        def tools(self) -> list[Any]:
            return [listen_in]

    def hook(self: Looker, step: Step) -> None:
        assert step.tools == [listen_in]
        step.remove_tool("listen_in")

    model = script(DONE)
    call.run(starting(hook, tools=[Source()])(model=model), question="?")
    assert names(model.requests[0]) == ["__finish__"]


def test_on_start_is_not_called_again_after_saved_run_is_loaded() -> None:
    called: list[str] = []

    def hook(self: Looker, step: Step) -> None:
        called.append("start")
        step.temperature = 0.5

    model = ScriptedModel([KeyboardInterrupt(), DONE])
    agent = starting(hook)(model=model)
    loop = new_machine(agent, (), {"question": "?"})
    with pytest.raises(KeyboardInterrupt):
        drive(Tree(loop), loop.run.id)
    again = load(plan_for(agent), json.loads(json.dumps(save(loop))))
    drive(Tree(again), again.run.id)
    assert (called, again.run.output) == (["start"], "nowhere")
    assert [request.temperature for request in model.requests] == [0.5, 0.5]


def test_on_start_without_changes_adds_no_journal_entries_and_no_chunks(script: Script) -> None:
    def entries_of(agent: Any) -> list[str]:
        heard: list[Entry] = []
        with listen(heard.append):
            agent.run(question="?")
        return [f"{type(entry).__name__} {entry.step}" for entry in heard]

    def chunks_of(agent: Any) -> list[str]:
        return [repr(vars(chunk).keys()) for chunk in agent.stream(question="?")]

    started = starting(lambda self, step: None)
    assert entries_of(started(model=script(LOOK, DONE))) == entries_of(Looker(model=script(LOOK, DONE)))
    assert chunks_of(started(model=script(LOOK, DONE))) == chunks_of(Looker(model=script(LOOK, DONE)))


def test_misspelled_on_start_warns() -> None:
    with pytest.warns(UserWarning, match="`Wrong.on_strat` is not a hook. Did you mean `on_start`"):

        class Wrong(Looker):
            def on_strat(self, step: Step) -> None: ...


def test_on_start_that_is_not_a_method_raises_declaration_error() -> None:
    with pytest.raises(DeclarationError, match=r"`Starter\.on_start` must be a method, got 5\."):
        starting(5)(model=ScriptedModel([])).run(question="?")  # type: ignore[arg-type]
