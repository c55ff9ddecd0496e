"""Tests of `run.new_messages()`, which returns the messages of a run without its prior history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.behaviour.conftest import Call, Script
from tests.provider_rules import assert_complete

from acorn import Run, Step, module, tool
from acorn.testing import Failure, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.types import Message


@tool
def look() -> str:
    """Look."""
    return "seen"


class Asker(module[Any, str]):
    """Answer."""

    initial_input = ["question"]
    final_output = str
    tools = [look]
    max_steps = 4


EARLIER: list[dict[str, Any]] = [
    {"role": "user", "content": "<input>\n  <question>one</question>\n</input>"},
    {"role": "assistant", "content": "first"},
]


def roles(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def looked() -> list[Any]:
    return [calling("look", "c1"), finish(result="done")]


OWN = ["user", "assistant", "tool", "assistant", "tool"]


def test_new_messages_exclude_system_message(call: Call, script: Script) -> None:
    run = call.run(Asker(model=script(*looked())), question="two")
    assert run.new_messages() == run.history[1:]
    assert roles(run.new_messages()) == OWN


def test_new_messages_exclude_prior_history(call: Call, script: Script) -> None:
    run = call.run(Asker(model=script(*looked())).using(history=EARLIER), question="two")
    assert run.history[1:3] == EARLIER
    assert run.new_messages() == run.history[3:]
    assert all(new is old for new, old in zip(run.new_messages(), run.history[3:], strict=True))


@pytest.mark.every_way
def test_new_messages_of_successive_runs_joined_together_equal_whole_conversation(call: Call, script: Script) -> None:
    agent = Asker(model=script(finish(result="a"), finish(result="b"), finish(result="c")))
    conversation: list[Message] = []
    for question in ["one", "two", "three"]:
        run = call.run(agent.using(history=conversation), question=question)
        conversation += run.new_messages()
    assert conversation == run.history[1:]


def test_new_messages_start_at_input_of_run_although_earlier_message_is_equal(call: Call, script: Script) -> None:
    run = call.run(Asker(model=script(*looked())).using(history=EARLIER), question="one")
    assert run.history[1] == run.history[3]
    assert roles(run.new_messages()) == OWN
    assert run.new_messages()[0] is run.history[3]


def test_new_messages_without_prompt_exclude_prior_history(call: Call, script: Script) -> None:
    class Silent(Asker):
        system_prompt = ""

    run = call.run(Silent(model=script(*looked())).using(history=EARLIER), question="two")
    assert run.new_messages() == run.history[2:]


@pytest.mark.every_way
def test_new_messages_of_branch_exclude_inherited_messages(call: Call, script: Script) -> None:
    class Inner(module[Any, str]):
        """Be inner."""

        initial_input = ["point"]
        final_output = str

    class Bare(module[Any, str]):
        """Be bare."""

        final_output = str

    class Outer(Asker):
        branches = {"inner": Inner, "bare": Bare}

        def on_step(self, step: Step) -> None:
            self.branch(Bare)

    model = script(
        calling("inner", "i1", point="p"), finish(result="in"), finish(result="by hand"), finish(result="done")
    )
    run = call.run(Outer(model=model).using(history=EARLIER), question="two")
    called, by_hand = run.branches
    assert roles(called.new_messages()) == ["user", "assistant", "tool"]
    assert "<point>p</point>" in called.new_messages()[0]["content"]
    assert roles(by_hand.new_messages()) == ["assistant", "tool"]
    assert run.new_messages() == run.history[3:]


def test_new_messages_of_agent_tool_contain_its_whole_conversation(call: Call, script: Script) -> None:
    class Helper(module[Any, str]):
        """Help."""

        initial_input = ["point"]
        final_output = str

    class Outer(Asker):
        tools = [Helper]

    model = script(calling("helper", "h1", point="p"), finish(result="helped"), finish(result="done"))
    run = call.run(Outer(model=model), question="two")
    assert roles(run.branches[0].new_messages()) == ["user", "assistant", "tool"]


class Editing(Asker):
    """Answer."""

    def on_step(self, step: Step) -> None:
        self.edit(self.history)

    def edit(self, history: list[Any]) -> None:
        raise NotImplementedError


@pytest.mark.edits_history
def test_new_messages_after_trimming_exclude_prior_history(call: Call, script: Script) -> None:
    class Trimming(Editing):
        def edit(self, history: list[Any]) -> None:
            self.history = [history[0], *history[2:]]  # The earlier question is removed.

    run = call.run(Trimming(model=script(*looked())).using(history=EARLIER), question="two")
    assert run.history[1] == EARLIER[1]
    assert run.new_messages() == run.history[2:]
    assert roles(run.new_messages()) == OWN


@pytest.mark.edits_history
def test_new_messages_exclude_edited_earlier_message(call: Call, script: Script) -> None:
    class Shortening(Editing):
        def edit(self, history: list[Any]) -> None:
            history[2]["content"] = "short"
            history[3]["content"] = "a shorter question"

    run = call.run(Shortening(model=script(*looked())).using(history=EARLIER), question="two")
    assert roles(run.new_messages()) == OWN
    assert run.new_messages()[0]["content"] == "a shorter question"


@pytest.mark.edits_history
def test_new_messages_include_message_inserted_by_hook_but_not_earlier_message_moved_by_hook(
    call: Call, script: Script
) -> None:
    class Adding(Editing):
        def edit(self, history: list[Any]) -> None:
            earlier = history.pop(1)
            history[1:1] = [{"role": "user", "content": "a note"}, earlier]

    run = call.run(Adding(model=script(*looked())).using(history=EARLIER), question="two")
    assert run.history[2] == EARLIER[0]
    assert run.new_messages() == [run.history[1], *run.history[4:]]


def test_new_messages_omit_messages_deleted_from_history_after_run() -> None:
    run = Asker(model=ScriptedModel(looked())).using(history=EARLIER).run(question="two")
    new = run.new_messages()
    run.history[2]["content"] = "edited afterwards"
    run.history[5]["content"] = "seen, in other words"
    assert run.new_messages() == new
    del run.history[:4]
    assert run.new_messages() == new[1:]
    run.history[:] = []
    assert run.new_messages() == []


def test_new_messages_of_failed_run_are_returned() -> None:
    run = failed(Asker(model=ScriptedModel([calling("look", "c1"), Failure(400)])).using(history=EARLIER))
    assert run.new_messages() == run.history[3:]
    assert roles(run.new_messages()) == OWN[:3]


def test_new_messages_of_interrupted_run_contain_result_for_every_call() -> None:
    @tool
    def stumble() -> str:
        """Be interrupted."""
        raise KeyboardInterrupt

    agent = Asker(model=ScriptedModel([calling("stumble", "c1")]), tools=[stumble]).using(history=EARLIER)
    run = failed(agent)
    assert roles(run.new_messages()) == OWN[:3]
    assert_complete(run.history)


def failed(agent: Asker) -> Run[Any]:
    with pytest.raises(BaseException) as caught:
        agent.run(question="two")
    run: Run[Any] = caught.value.run  # type: ignore[attr-defined]
    return run
