"""Tests of in-place history edits: an edit by user code is in the next request.

If no user code has access to the history, acorn neither compares nor copies it.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.behaviour.conftest import Call, Script
from tests.behaviour.looker import Answer, Looker, Message, Question, look
from tests.cases import case
from tests.provider_rules import assert_request_valid

import acorn
from acorn import Run, Step, capture, current_run, module, tool
from acorn.models import ModelRequest
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calls

EDITED = "Nothing at all."


def scribble(history: list[Message]) -> None:
    """Edit the first result in place."""
    result = next(message for message in history if message["role"] == "tool")
    result["content"] = EDITED


def steps(count: int) -> list[Any]:
    return [*(calls("look", place=f"room {number}") for number in range(count)), finish(answer="nowhere")]


def is_edited(request: ModelRequest) -> bool:
    """Check whether the edit is in a request and all forms of the request agree."""
    sent = json.loads(request.body("m"))["messages"]
    assert [message.get("content") for message in sent] == [message["content"] for message in request.messages]
    assert_request_valid(request)
    return EDITED in json.dumps(request.messages)


# Ways to receive the history


def by_step(agent: Any, step: Step) -> list[Message]:
    return step.run.history


def by_self(agent: Any, step: Step) -> list[Message]:
    history: list[Message] = agent.history
    return history


def by_current_run(agent: Any, step: Step) -> list[Message]:
    return current_run().history


def by_new_messages(agent: Any, step: Step) -> list[Message]:
    return step.run.new_messages()


def by_a_copy(agent: Any, step: Step) -> list[Message]:
    return copy.copy(step.run).history


def by_replace(agent: Any, step: Step) -> list[Message]:
    return dataclasses.replace(step.run, id="another").history


def by_getattr(agent: Any, step: Step) -> list[Message]:
    found: list[Message] = getattr(step.run, next(each.name for each in dataclasses.fields(Run) if "hist" in each.name))
    return found


def by_another_list(agent: Any, step: Step) -> list[Message]:
    agent.history = list(agent.history)
    return list(agent.history)


def in_another_thread(agent: Any, step: Step) -> list[Message]:
    found: list[list[Message]] = []
    thread = threading.Thread(target=lambda: found.append(step.run.history))
    thread.start()
    thread.join()
    return found[0]


DOORS = [
    by_step, by_self, by_current_run, by_new_messages, by_a_copy, by_replace, by_getattr, by_another_list,
    in_another_thread,
]  # fmt: skip


def edited_requests(call: Call, door: Callable[[Any, Step], list[Message]], kept_since: int) -> list[bool]:
    """Edit a message in the third step, and return which requests have the edit."""
    kept: list[Message] = []

    def edit(self: Looker, step: Step) -> None:
        if step.counter == kept_since:
            kept.extend(door(self, step))
        if step.counter == 3:
            turn = next(message for message in kept if message["role"] == "assistant")
            turn["content"] = EDITED

    model = call.scripted(steps(5))
    call.run(Looker(edit, model=model), question="Where?")
    return [is_edited(request) for request in model.requests]


@pytest.mark.every_way
def test_history_edit_in_hook_is_sent_in_next_request(call: Call) -> None:
    for door in DOORS:
        for kept_since in (3, 1):
            with case(door.__name__, kept_since):
                assert edited_requests(call, door, kept_since) == [False, False, False, True, True, True]


@pytest.mark.parametrize("door", ["self", "current run", "capture"])
def test_history_edit_in_tool_is_sent_in_next_request(call: Call, door: str) -> None:
    class Scribbler(Looker):
        """Look around, then answer."""

        @tool
        def scribble(self) -> str:
            """Change what was found."""
            doors: dict[str, Any] = {"self": self, "current run": current_run(), "capture": runs[0]}
            scribble(doors[door].history)
            return "changed"

    model = call.scripted([*steps(2)[:-1], calls("scribble"), *steps(2)])
    with capture() as runs:
        call.run(Scribbler(model=model), question="Where?")
    assert [is_edited(request) for request in model.requests] == [False, False, False, True, True, True]


@pytest.mark.every_way
def test_history_edit_by_listener_is_sent_in_next_request(call: Call) -> None:
    def hear(entry: Any) -> None:
        if isinstance(entry, acorn.journal.ToolResultsAdded) and entry.step == 3:
            scribble(runs[0].history)

    model = call.scripted(steps(5))
    with capture() as runs, acorn.listen(hear):
        call.run(Looker(model=model), question="Where?")
    is_in = [is_edited(request) for request in model.requests]
    assert is_in[:3] == [False, False, False]
    assert is_in[4:] == [
        True,
        True,
    ]  # The fourth request is built before the listener receives the results of the third step.


@pytest.mark.every_way
def test_history_edit_during_model_call_is_sent_in_following_request(call: Call) -> None:
    replies = steps(5)

    def answer(request: ModelRequest) -> Any:
        asked = len(model.requests)
        if asked == 3:
            scribble(runs[0].history)
        return replies[asked - 1]

    model = call.scripted(answer)
    with capture() as runs:
        call.run(Looker(model=model), question="Where?")
    assert [is_edited(request) for request in model.requests] == [False, False, False, True, True, True]


def test_history_edit_in_on_start_is_sent_in_first_request(call: Call) -> None:
    class Scribbler(Looker):
        """Look around, then answer."""

        def on_start(self, step: Step) -> None:
            self.history[-1]["content"] = EDITED

    model = call.scripted(steps(1))
    call.run(Scribbler(model=model), question="Where?")
    assert [is_edited(request) for request in model.requests] == [True, True]


@pytest.mark.parametrize("form", ["a list", "a record"])
def test_edit_of_prior_history_during_run_does_not_change_requests(call: Call, form: str) -> None:
    earlier = call.run(Looker(model=ScriptedModel(steps(2))), question="Where?")
    prior = earlier.history
    replies = steps(3)

    def answer(request: ModelRequest) -> Any:
        asked = len(model.requests)
        if asked == 2:
            scribble(prior)
        return replies[asked - 1]

    model = call.scripted(answer)
    call.run(Looker(model=model).using(history=prior if form == "a list" else earlier), question="And now?")
    assert not any(is_edited(request) for request in model.requests)


# Branches


class Checker(module[Any, Answer]):
    """Check what was found."""

    final_output = Answer
    tools = [look]
    max_steps = 5


class Parent(Looker):
    """Look around, have it checked, then answer."""

    branches = {"check": Checker}


@pytest.mark.edits_history
@pytest.mark.parametrize("door", ["self", "step", "the record of the parent"])
@pytest.mark.parametrize("hook", ["on_start", "on_step"])
def test_history_edit_in_branch_changes_only_branch_requests(script: Script, door: str, hook: str) -> None:
    def edit(self: Any, step: Step) -> None:
        runs_of = {"self": self, "step": step.run, "the record of the parent": runs[0].branches[0]}
        scribble(runs_of[door].history)

    class Scribbler(Checker):
        """Check what was found."""

        def on_start(self, step: Step) -> None:
            if hook == "on_start":
                edit(self, step)

        def on_step(self, step: Step) -> None:
            if hook == "on_step":
                edit(self, step)

    class Above(Parent):
        """Look around, have it checked, then answer."""

        branches = {"check": Scribbler}

    model = script(*steps(2)[:-1], calls("check"), *steps(1), *steps(1))
    with capture() as runs:
        Above(model=model)(question="Where?")
    first_of_branch = hook == "on_start"
    expected = [False, False, False, first_of_branch, True, False, False]
    assert [is_edited(request) for request in model.requests] == expected
    assert EDITED not in json.dumps(runs[0].history)
    assert EDITED not in json.dumps(runs[0].journal.entries, default=str)


@pytest.mark.edits_history
def test_history_edit_in_parent_changes_only_parent_requests(script: Script) -> None:
    class Watcher(Checker):
        """Check what was found."""

        def on_step(self, step: Step) -> None:
            scribble(runs[0].history)

    class Above(Parent):
        """Look around, have it checked, then answer."""

        branches = {"check": Watcher}

    model = script(*steps(2)[:-1], calls("check"), *steps(1), *steps(1))
    with capture() as runs:
        Above(model=model)(question="Where?")
    assert [is_edited(request) for request in model.requests] == [False, False, False, False, False, True, True]


def test_branches_and_parent_have_separate_histories(script: Script) -> None:
    model = script(*steps(2)[:-1], calls("check") & calls("check"), *steps(0), *steps(0), *steps(0))
    run = Parent(model=model).run(question="Where?")
    one, other = run.branches
    held = [{id(message) for message in each.history} for each in (run, one, other)]
    assert held[0].isdisjoint(held[1])
    assert held[0].isdisjoint(held[2])
    assert held[1].isdisjoint(held[2])
    assert one.history[:5] == other.history[:5]


# Without a reader


class Counted(int):
    """A number that counts its comparisons."""

    compared: list[int] = []

    def __eq__(self, other: object) -> bool:
        self.compared.append(1)
        return int(self) == other

    __hash__ = int.__hash__


def comparisons(agent: module[Any, Any], count: int) -> list[int]:
    """Return how often an early message was compared before each request."""
    Counted.compared = []
    found: list[int] = []
    replies = steps(count)

    def answer(request: ModelRequest) -> Any:
        found.append(len(Counted.compared))
        return replies[len(found) - 1]

    prior = [{"role": "user", "content": "Hello", "mark": Counted(5)}, {"role": "assistant", "content": "Hello."}]
    agent.using(model=ScriptedModel(answer), history=prior)(question="Where?")
    return found


class Glancing(Looker):
    """Look around, then answer."""

    def on_step(self, step: Step) -> None:
        step.add_to_context(f"{step.run.steps} steps, {step.run.usage.total_tokens} tokens.")


class Unhooked(module[Question, Answer]):
    """Look around, then answer."""

    tools = [look]
    max_steps = 300


@pytest.mark.parametrize("kind", [Unhooked, Glancing])
def test_history_that_user_code_never_read_is_not_checked_for_edits(kind: type[module[Any, Any]]) -> None:
    first, *rest = comparisons(kind(), 20)
    assert rest == [first] * 20


def test_history_that_user_code_read_is_checked_for_edits_once_per_step() -> None:
    class Taking(Looker):
        """Look around, then answer."""

        def on_step(self, step: Step) -> None:
            if step.counter == 10:
                message: Message = self.history[1]
                message["mark"] = Counted(5)

    found = comparisons(Taking(), 20)
    between = [later - earlier for earlier, later in itertools.pairwise(found)]
    assert between[:9] == [0] * 9
    assert between[10:] == [1] * 10


def test_request_contains_messages_that_were_added_before_it() -> None:
    model = ScriptedModel(steps(5))
    Looker(model=model)(question="Where?")
    assert [len(request.messages) for request in model.requests] == [2, 4, 6, 8, 10, 12]


def test_recorded_request_is_not_changed_by_later_messages(call: Call) -> None:
    replies, bodies = steps(5), list[bytes]()

    def answer(request: ModelRequest) -> Any:
        bodies.append(request.body("m"))
        return replies[len(bodies) - 1]

    model = call.scripted(answer)
    call.run(Looker(model=model), question="Where?")
    assert [request.body("m") for request in model.requests] == bodies
    copies = [copy.deepcopy(request) for request in model.requests]
    assert [json.loads(request.body("m")) for request in copies] == [json.loads(body) for body in bodies]


def test_call_id_repeated_in_twenty_responses_is_sent_as_twenty_different_ids() -> None:
    model = ScriptedModel([*(calls("look", "same", place="here") for _ in range(20)), finish(answer="nowhere")])
    Looker(model=model, loop_guard=None)(question="Where?")
    for request in model.requests:
        assert_request_valid(request)
    sent = [message["tool_calls"][0]["id"] for message in model.requests[-1].messages if message.get("tool_calls")]
    assert len(set(sent)) == len(sent) == 20
