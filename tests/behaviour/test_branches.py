"""Tests of branches: child runs that inherit the conversation, the tools and the settings of their parent."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.conftest import Call, Script
from tests.cases import case
from tests.clock import FakeClock
from tests.provider_rules import assert_complete, assert_request_valid
from tests.waiting import PATIENCE, comes_true

from acorn import (
    AcornError,
    BranchError,
    DeclarationError,
    InputError,
    LimitError,
    ParseError,
    Run,
    Step,
    StreamChunk,
    ToolConflictError,
    ToolResult,
    Unfinished,
    Usage,
    capture,
    current_run,
    module,
    tool,
)
from acorn._base.clock import current_clock, use_clock
from acorn._base.interrupts import StopSignal
from acorn.models import Delta, ModelRequest, ModelResponse, Price
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling

BEGUN = "The branch `check` has begun."
NOT_YET = "This call has not returned yet."


class Question(BaseModel):
    question: str


class Verdict(BaseModel):
    is_true: bool
    why: str = ""


class Claim(BaseModel):
    claim: str = Field(description="What to check")
    depth: int = 1


@tool
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"nothing in {place}"


@tool
def boom() -> str:
    """Fail."""
    raise ValueError("no")


class Checker(module[Any, Verdict]):
    """Check the claim.

    Be thorough.
    """

    final_output = Verdict


class Asked(Checker):
    """Check what you are given."""

    initial_input = Claim


class Main(module[Question, str]):
    """Answer the question."""

    tools = [look, boom]
    branches = {"check": Checker}
    max_steps = 6


TRUE = finish(is_true=True, why="so")
DONE = finish(result="yes")
SYSTEM = "Answer the question."
BOTH = "Answer the question.\n\nCheck the claim.\n\nBe thorough."


def asks(request: ModelRequest) -> str:
    """Return the sender of a request: the last paragraph of its prompt."""
    return str(request.messages[0]["content"]).rsplit("\n\n", 1)[-1]


def by_asker(**scripts: list[Any]) -> Callable[[ModelRequest], Any]:
    """Choose replies by sender, in any order; the first word of the last paragraph is the name."""
    lock = threading.Lock()

    def reply(request: ModelRequest) -> Any:
        with lock:
            return scripts[asks(request).split()[0].strip(".").lower()].pop(0)

    return reply


def names(request: ModelRequest) -> list[str]:
    return [each["function"]["name"] for each in request.tools]


def schema(request: ModelRequest, name: str) -> dict[str, Any]:
    return next(each["function"] for each in request.tools if each["function"]["name"] == name)


def told(run: Run[Any]) -> list[str]:
    return [message["content"] for message in run.history if message["role"] == "tool"]


def branch_of(kind: type[module[Any, Any]] = Checker, **attributes: Any) -> type[module[Any, Any]]:
    """A variety of a class."""
    made = {"__module__": __name__, "__doc__": kind.__doc__, **attributes}
    return cast("type[module[Any, Any]]", type(kind.__name__, (kind,), made))


def run_main(call: Call, model: Any, kind: type[module[Any, Any]] = Main, **settings: Any) -> Run[Any]:
    return call.run(kind(model=model, **settings), question="Is it?")


# Declaring


@pytest.mark.every_way
def test_branch_of_same_class_as_parent_runs_recursively(call: Call, script: Script) -> None:
    class Digger(module[Any, str]):
        """Dig."""

        final_output = str
        max_steps = 3

    Digger.branches = {"deeper": Digger}
    model = script(
        calling("deeper"), calling("deeper"), finish(result="rock"), finish(result="sand"), finish(result="soil")
    )
    run = call.run(Digger(model=model))
    assert run.output == "soil"
    assert run.branches[0].output == "sand"
    assert run.branches[0].branches[0].output == "rock"
    assert model.requests[2].messages[0]["content"] == "Dig.\n\nDig.\n\nDig."


@pytest.mark.parametrize(("limit", "begun"), [(None, 5), (1, 1), (2, 2)])
def test_branch_beyond_max_depth_returns_tool_error(call: Call, script: Script, limit: int | None, begun: int) -> None:
    class Digger(module[Any, str]):
        """Dig."""

        final_output = str
        max_steps = 3

    Digger.branches = {"deeper": Digger}
    replies = [*[calling("deeper")] * (begun + 1), *[finish(result="rock")] * (begun + 1)]
    agent = Digger(model=script(*replies)) if limit is None else Digger(model=script(*replies), max_depth=limit)
    run = call.run(agent)
    depth = 0
    while run.branches:
        (run,), depth = run.branches, depth + 1
    assert depth == begun
    assert told(run)[-2] == (
        f"Tool error: BranchError: Cannot start branch `deeper`: it would be at depth {begun + 1}, "
        f"and `max_depth` of `Digger` is {begun}. Finish without it, or raise `max_depth`."
    )


def test_branch_max_depth_lowers_but_never_raises_parent_limit(call: Call, script: Script) -> None:
    inner = branch_of(__doc__="Inner.", branches={"check": Checker}, max_steps=2, max_depth=1)
    outer = branch_of(__doc__="Outer.", branches={"inner": inner}, max_steps=2, max_depth=9)
    model = script(calling("outer"), calling("inner"), calling("check"), TRUE, TRUE, TRUE, DONE)
    assert run_main(call, model, branches={"outer": outer}).output == "yes"
    model = script(calling("outer"), calling("inner"), TRUE, DONE)
    run = run_main(call, model, branches={"outer": outer}, max_depth=1)
    assert "BranchError: Cannot start branch `inner`: it would be at depth 2," in told(run.branches[0])[1]


def test_branch_without_input_is_offered_as_tool_without_parameters(call: Call, script: Script) -> None:
    model = script(DONE)
    run_main(call, model)
    assert schema(model.requests[0], "check") == {
        "name": "check",
        "description": "Check the claim.",
        "parameters": {"type": "object", "properties": {}},
    }
    assert names(model.requests[0]) == ["look", "boom", "check", "__finish__"]


def test_branch_tool_description_is_declared_text_or_inherited_docstring(call: Call, script: Script) -> None:
    class Heir(Checker):
        pass

    class Silent(module[Any, str]):
        final_output = str

    model = script(DONE)
    given = {"module": Checker, "description": "Check it twice"}
    run_main(call, model, branches={"given": given, "heir": Heir, "silent": Silent})
    assert schema(model.requests[0], "given")["description"] == "Check it twice"
    assert schema(model.requests[0], "heir")["description"] == "Check the claim."
    assert "description" not in schema(model.requests[0], "silent")


def test_branch_tool_with_input_has_input_fields_as_parameters(call: Call, script: Script) -> None:
    model = script(DONE)
    run_main(call, model, branches={"check": Asked})
    assert schema(model.requests[0], "check")["parameters"] == {
        "type": "object",
        "properties": {
            "claim": {"type": "string", "description": "What to check"},
            "depth": {"type": "integer", "default": 1},
        },
        "required": ["claim"],
    }


def test_tool_added_by_on_step_with_name_of_branch_raises_tool_conflict_error(call: Call, script: Script) -> None:
    def check() -> str:
        return ""

    class Adder(Main):
        def on_step(self, step: Step) -> None:
            with pytest.raises(ToolConflictError, match="Tool 'check' already exists"):
                step.add_tool(check)
            step.tools = [check]

    with pytest.raises(ToolConflictError, match="Tool 'check' of `Adder` has the name of one of its `branches`"):
        run_main(call, script(calling("look")), Adder)


# Start of a branch


@pytest.mark.every_way
def test_branch_request_contains_parent_history_and_placeholder_result_for_branch_call(
    call: Call, script: Script
) -> None:
    model = script(calling("look"), Reply("Hm.") & calling("check"), TRUE, DONE)
    run = run_main(call, model)
    parents = model.requests[1].messages
    assert model.requests[2].messages == [
        {"role": "system", "content": BOTH},
        *parents[1:],
        {
            "role": "assistant",
            "content": "Hm.",
            "tool_calls": [{"id": "call_2_0", "type": "function", "function": {"name": "check", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_2_0", "content": BEGUN},
    ]
    assert parents[0] == {"role": "system", "content": SYSTEM}
    assert run.output == "yes"


def assert_same_bytes(parent: ModelRequest, child: ModelRequest) -> None:
    """Check that a branch sends its parent's messages unchanged after its own system message, and then more."""
    before, after = parent.messages_json(), child.messages_json()
    before, after = (text[text.index(b'{"role":"user"') :] for text in (before, after))
    assert after.startswith(before[:-1])
    assert len(after) > len(before)


@pytest.mark.parametrize("prompt", [SYSTEM, ""])
@pytest.mark.parametrize("with_input", [False, True])
@pytest.mark.message_list
def test_branch_request_prefix_is_byte_identical_to_parent_request(
    call: Call, script: Script, prompt: str, with_input: bool
) -> None:
    # The same id repeats, so that the parent sends other ids than it stores.
    looks = [Reply("Hm. ü") & calling("look", _id="same", place="🌳"), calling("look", _id="same", place="a\u2028b")]
    begin = calling("check", _id="same", claim="it") if with_input else calling("check", _id="same")
    model = script(*looks, begin, calling("look", _id="same"), TRUE, DONE)
    branch = {"check": Asked if with_input else Checker}
    run_main(call, model, system_prompt=prompt, branches=branch)
    assert_same_bytes(model.requests[2], model.requests[3])
    assert_same_bytes(model.requests[3], model.requests[4])
    assert_same_bytes(model.requests[2], model.requests[5])


@pytest.mark.message_list
def test_branch_request_uses_trimmed_history_of_parent(call: Call) -> None:
    class Trimmer(Main):
        def on_step(self, step: Step) -> None:
            if step.counter == 2:  # The input and the result of the first call are removed.
                del self.history[1]
                del self.history[2]

    model = call.scripted([calling("look"), calling("look"), calling("check", claim="it"), TRUE, DONE])
    run_main(call, model, Trimmer, branches={"check": Asked})
    sent = [message["role"] for message in model.requests[2].messages]
    assert sent == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert_same_bytes(model.requests[2], model.requests[3])
    for request in model.requests:
        assert_request_valid(request)


@pytest.mark.message_list
@pytest.mark.edits_history
def test_branch_request_omits_tool_result_whose_call_is_missing_in_parent_history(call: Call) -> None:
    stray = {"role": "tool", "tool_call_id": "x", "content": "stray"}
    made = {"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}

    class Late(Checker):
        """Check the claim."""

        tools = [look]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            unanswered: Any = {"role": "assistant", "content": "", "tool_calls": [made]}
            self.history.append(unanswered)

    class Early(Main):
        branches = {"check": Late}

        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                self.history.append(cast(Any, stray))

    model = call.scripted([calling("look"), calling("check"), calling("look", place="there"), TRUE, DONE])
    run_main(call, model, Early)
    assert all(message.get("tool_call_id") != "x" for request in model.requests[:3] for message in request.messages)
    turn, result = model.requests[3].messages[-2:]
    assert (turn["tool_calls"], result) == ([made], stray)


def test_branch_system_message_contains_only_parent_prompt_or_branch_prompt_if_other_is_empty(
    call: Call, script: Script
) -> None:
    model = script(calling("check"), TRUE, DONE)
    run_main(call, model, system_prompt="")
    assert model.requests[0].messages[0]["role"] == "user"
    assert model.requests[1].messages[0] == {"role": "system", "content": "Check the claim.\n\nBe thorough."}
    model = script(calling("check"), TRUE, DONE)
    run_main(call, model, branches={"check": branch_of(system_prompt="")})
    assert model.requests[1].messages[0] == {"role": "system", "content": SYSTEM}


@pytest.mark.every_way
@pytest.mark.edits_history
def test_branch_prompt_is_appended_as_content_part_if_parent_system_message_has_content_parts(
    call: Call, script: Script
) -> None:
    class Parts(Main):
        def on_step(self, step: Step) -> None:
            self.history[0]["content"] = [{"type": "text", "text": "Parts."}]

    def system_prompt(self: Any) -> str:
        return f"Check for {current_run().deps}."

    model = script(calling("look"), calling("check"), TRUE, DONE)
    agent = Parts(model=model, branches={"check": branch_of(system_prompt=system_prompt)}).using(deps="Ann")
    call.run(agent, question="Is it?")
    assert model.requests[2].messages[0]["content"] == [
        {"type": "text", "text": "Parts."},
        {"type": "text", "text": "\n\nCheck for Ann."},
    ]


@pytest.mark.every_way
def test_branch_input_is_sent_as_xml_user_message(call: Call, script: Script) -> None:
    model = script(calling("check", claim="a < b", depth="2"), TRUE, DONE)
    run = run_main(call, model, branches={"check": Asked})
    begun, given = model.requests[1].messages[-2:]
    assert begun == {"role": "tool", "tool_call_id": "call_1_0", "content": BEGUN}
    assert given == {
        "role": "user",
        "content": '<input>\n  <claim description="What to check">a &lt; b</claim>\n  <depth>2</depth>\n</input>',
    }
    assert run.branches[0].input == Claim(claim="a < b", depth=2)


def test_branch_with_wrong_arguments_returns_tool_error(call: Call, script: Script) -> None:
    for reply, error in [
        (calling("check"), "InputError: Wrong input for `check`: "),
        (calling("check", claim="x", depth="deep"), "InputError: Wrong input for `check`: `depth`"),
        (calling("check", claim="x", other=1), "`other` is not an input"),
        (Reply(calls=[*calling("check").calls]), "`claim`"),
    ]:
        with case(reply, error):
            run = run_main(call, script(reply, DONE), branches={"check": Asked})
            assert told(run)[0].startswith("Tool error: InputError: ")
            assert error in told(run)[0]
            assert run.branches == []


def test_branch_with_non_object_arguments_returns_tool_error(call: Call, script: Script) -> None:
    for raw, stop, error in [
        ('{"claim": "x', None, "InputError: The arguments are not valid JSON: "),
        ("[1]", None, "InputError: The arguments must be a JSON object, got [1]"),
        ('{"claim": "x', "length", "The response was cut off at the token limit"),
    ]:
        with case(raw, stop, error):
            reply = calling("check")
            reply.calls[0].arguments, reply.stop_reason = raw, stop
            run = run_main(call, script(reply, DONE), branches={"check": Asked})
            assert told(run)[0].startswith(f"Tool error: {error}")


def test_branch_input_of_plain_type_is_sent_in_input_element(call: Call, script: Script) -> None:
    model = script(calling("check", input="it"), TRUE, DONE)
    run_main(call, model, branches={"check": branch_of(initial_input=str)})
    assert model.requests[1].messages[-1]["content"] == "<input>it</input>"


# Tools


def test_branch_has_tools_of_branch_and_parent_but_not_branches_of_parent(call: Call, script: Script) -> None:
    def dig() -> str:
        return "earth"

    inner = branch_of(__doc__="Inner.")
    checker = branch_of(tools=[dig], branches={"inner": inner}, max_steps=3)
    model = script(calling("check"), calling("dig") & calling("look"), TRUE, DONE)
    run = run_main(call, model, branches={"check": checker, "other": inner})
    assert sorted(names(model.requests[1])) == ["__finish__", "boom", "dig", "inner", "look"]
    assert schema(model.requests[1], "__finish__")["parameters"]["required"] == ["is_true"]
    assert told(run.branches[0])[-3:-1] == ["earth", "nothing in here"]


def test_branch_tool_replaces_parent_tool_of_equal_name(call: Call, script: Script) -> None:
    @tool(name="look")
    def other(far: int) -> str:
        """Look far."""
        return f"{far} miles"

    checker = branch_of(tools=[other], max_steps=3)
    model = script(calling("check"), calling("look", far=3), TRUE, calling("look"), DONE)
    run = run_main(call, model, branches={"check": checker})
    assert schema(model.requests[1], "look")["description"] == "Look far."
    assert told(run.branches[0])[-2] == "3 miles"
    assert told(run)[1] == "nothing in here"


def test_nested_branch_replaces_parent_tool_of_equal_name(call: Call, script: Script) -> None:
    checker = branch_of(branches={"look": branch_of(__doc__="Inner.")}, max_steps=3)
    model = script(calling("check"), calling("look"), TRUE, TRUE, DONE)
    run = run_main(call, model, branches={"check": checker})
    assert run.branches[0].branches[0].output == Verdict(is_true=True, why="so")


@pytest.mark.every_way
def test_branch_tool_from_tool_source_replaces_parent_tool_of_equal_name(call: Call, script: Script) -> None:
    happened: list[str] = []

    class Source:
        def open(self) -> None:
            happened.append("open")

        def close(self) -> None:
            happened.append("close")

        def tools(self) -> list[Any]:
            def look() -> str:
                return "from the source"

            return [look]

    model = script(calling("check"), calling("look"), TRUE, DONE)
    run = run_main(call, model, branches={"check": branch_of(tools=[Source()], max_steps=2)})
    assert told(run.branches[0])[-2] == "from the source"
    assert happened == ["open", "close"]


@pytest.mark.live_objects
def test_branch_inherits_parent_tools_as_changed_by_on_step(call: Call, script: Script) -> None:
    def dig() -> str:
        return "earth"

    class Changer(Main):
        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.add_tool(dig)
                step.remove_tool("boom")

    model = script(calling("look"), calling("check"), TRUE, DONE)
    run_main(call, model, Changer)
    assert names(model.requests[2]) == ["look", "dig", "__finish__"]


@pytest.mark.every_way
def test_parent_method_tool_called_in_branch_is_bound_to_parent(call: Call, script: Script) -> None:
    seen: list[Any] = []

    class Owner(Main):
        @tool
        def mine(self, again: bool = False) -> str:
            """Mine."""
            seen.append((self, len(self.history), current_run()))
            return "mine"

    model = script(calling("check"), calling("mine"), TRUE, DONE)
    agent = Owner(model=model, branches={"check": branch_of(max_steps=2)})
    run = call.run(agent, question="Is it?")
    ((owner, length, inside),) = seen
    assert owner is agent
    assert length == 3  # The parent's history does not have its results yet.
    assert inside is run.branches[0]


@pytest.mark.every_way
def test_remove_tool_with_branch_name_removes_branch(call: Call, script: Script) -> None:
    class Once(Main):
        def on_step(self, step: Step) -> None:
            assert step.tools == [look, boom]
            if step.counter == 1:
                step.remove_tool("check")
                assert step.tools == [look, boom]
                step.remove_tool("check")
            if step.counter == 2:
                step.remove_tool("check")

    model = script(calling("check"), TRUE, calling("check"), calling("look"), DONE)
    run = run_main(call, model, Once)
    assert "check" in names(model.requests[0])
    assert all("check" not in names(request) for request in model.requests[2:])
    unknown = "Tool error: There is no tool `check`. There are: `look`, `boom`, `__finish__`."
    assert told(run)[1] == unknown
    assert len(run.branches) == 1


def test_remove_tool_error_lists_branches(call: Call, script: Script) -> None:
    class Wrong(Main):
        def on_step(self, step: Step) -> None:
            step.remove_tool("chek")

    with pytest.raises(
        InputError,
        match=r"There is no tool `chek` to remove\. The tools are: `look`, `boom`, `check`",
    ):
        run_main(call, script(calling("look")), Wrong)


@pytest.mark.live_objects
def test_tool_with_name_of_removed_branch_is_added(call: Call, script: Script) -> None:
    def check() -> str:
        """Check by hand."""
        return "checked"

    class Replacing(Main):
        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.remove_tool("check")
                step.add_tool(check)

    model = script(calling("look"), calling("check"), DONE)
    run = run_main(call, model, Replacing)
    assert schema(model.requests[1], "check")["description"] == "Check by hand."
    assert (told(run)[1], run.branches) == ("checked", [])


def test_run_at_max_steps_whose_only_branch_was_removed_is_forced_to_finish(call: Call, script: Script) -> None:
    class Alone(Main):
        """Answer the question."""

        def on_step(self, step: Step) -> None:
            step.remove_tool("check")

    model = script(calling("check"), TRUE, DONE)
    run = run_main(call, model, Alone, tools=[], max_steps=1)
    assert names(model.requests[2]) == ["__finish__"]
    assert run.stop_reason == "forced"


# Settings


INHERITED: dict[str, tuple[Any, Any]] = {
    "temperature": (0.25, 0.5),
    "max_tokens": (100, 200),
    "cache": ([{"location": "message", "role": "system"}], True),
}


def test_branch_setting_is_inherited_from_parent_unless_branch_declares_it(call: Call, script: Script) -> None:
    for name in INHERITED:
        with case(name):
            above, own = INHERITED[name]
            for declared, expected in (({}, above), ({name: own}, own)):
                model = script(calling("check"), TRUE, DONE)
                run_main(call, model, branches={"check": branch_of(**declared)}, **{name: above})
                sent = getattr(model.requests[1], name)
                plain = [{"location": "message", "role": "system"}, {"location": "message", "index": 0}]
                assert (list(sent) if name == "cache" else sent) == (plain if expected is True else expected)
                assert name == "cache" or name in model.requests[1].declared


def test_branch_request_does_not_mark_undeclared_settings_as_declared(call: Call, script: Script) -> None:
    model = script(calling("check"), TRUE, DONE)
    run_main(call, model)
    assert not model.requests[1].declared & {"temperature", "max_tokens"}


@pytest.mark.every_way
@pytest.mark.live_objects
def test_branch_inherits_settings_changed_by_on_step(call: Call, script: Script) -> None:
    other = script(calling("check"), TRUE, calling("check"), TRUE, DONE, name="other")

    class Changer(Main):
        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.model, step.temperature, step.max_tokens = other, 0.125, 77

    run_main(call, script(calling("look")), Changer)
    assert [(r.temperature, r.max_tokens) for r in other.requests] == [(0.125, 77)] * 5
    assert {"temperature", "max_tokens"} <= other.requests[1].declared
    other = script(calling("check"), calling("check"), DONE, name="other")
    own = script(TRUE, TRUE, name="own")
    run_main(call, script(calling("look")), Changer, branches={"check": branch_of(model=own, temperature=1.5)})
    assert [(r.temperature, r.max_tokens) for r in own.requests] == [(1.5, 77)] * 2


def test_branch_inherits_max_steps_and_parse_retries(call: Call, script: Script) -> None:
    model = script(calling("check"), calling("look"), TRUE, DONE)
    run = run_main(call, model, max_steps=1)
    assert run.branches[0].stop_reason == "forced"
    assert (run.branches[0].steps, run.output) == (1, "yes")
    wrong = finish(is_true="perhaps")
    run = run_main(call, script(calling("check"), wrong, DONE), parse_retries=0)
    assert told(run)[0].startswith("Tool error: ParseError: `Checker` got no valid output")
    branches = {"check": branch_of(parse_retries=1, max_steps=2)}
    model = script(calling("check"), wrong, calling("look"), calling("look"), TRUE, DONE)
    run = run_main(call, model, parse_retries=0, max_steps=1, branches=branches)
    assert run.branches[0].steps == 2
    assert run.branches[0].output == Verdict(is_true=True, why="so")


def test_branch_inherits_xml_options(call: Call, script: Script) -> None:
    class Contexts(Asked):
        """Check with context."""

        def on_step(self, step: Step) -> None:
            step.add_to_context("more")

    options: dict[str, Any] = {
        "xml_input_root": "given",
        "xml_include_descriptions": False,
        "xml_context_root": "extra",
    }
    model = script(calling("check", claim="x"), calling("look"), TRUE, DONE)
    run_main(call, model, branches={"check": branch_of(Contexts, xml_context_root="own")}, **options)
    assert model.requests[1].messages[-1]["content"] == "<given>\n  <claim>x</claim>\n  <depth>1</depth>\n</given>"
    assert model.requests[2].messages[-1]["content"] == "<own>more</own>"
    model = script(
        calling("check", claim="x"), calling("look"), "<told><is_true>true</is_true></told>", DONE, forces=False
    )
    run = run_main(call, model, branches={"check": branch_of(Asked, max_steps=1)}, xml_output_root="told")
    assert run.branches[0].output == Verdict(is_true=True)


@pytest.mark.every_way
def test_branch_inherits_deps(call: Call, script: Script) -> None:
    seen: list[Any] = []

    def peek() -> None:
        seen.append(current_run().deps)

    model = script(calling("check"), calling("peek"), TRUE, DONE)
    agent = Main(model=model, branches={"check": branch_of(tools=[peek], max_steps=2)}).using(deps="mine")
    run = call.run(agent, question="Is it?")
    assert seen == ["mine"]
    assert run.branches[0].deps == "mine"


# Results


def test_branch_result_is_output_instance_and_is_sent_to_parent_as_json(call: Call, script: Script) -> None:
    seen: list[ToolResult] = []

    class Watcher(Main):
        def on_step(self, step: Step) -> None:
            seen.extend(step.tool_results)

    model = script(calling("check"), TRUE, DONE)
    run = run_main(call, model, Watcher)
    assert seen == [ToolResult("call_1_0", "check", Verdict(is_true=True, why="so"))]
    assert [message["role"] for message in run.history] == [
        "system", "user", "assistant", "tool", "assistant", "tool",
    ]  # fmt: skip
    assert run.history[0]["content"] == SYSTEM
    assert told(run)[0] == '{"is_true":true,"why":"so"}'
    assert model.requests[2].messages[3]["content"] == told(run)[0]
    assert "Check the claim" not in json.dumps(run.history)
    assert BEGUN not in json.dumps(run.history)


@pytest.mark.every_way
def test_branch_called_three_times_in_one_run_runs_three_times(call: Call, script: Script) -> None:
    twice = calling("check", claim="a") & calling("check", claim="b")

    def reply(request: ModelRequest) -> Any:
        if asks(request) == SYSTEM:
            return [twice, calling("check", claim="c"), DONE][sum(m["role"] == "assistant" for m in request.messages)]
        claim = request.messages[-1]["content"]
        return finish(is_true=True, why=claim[claim.index("</claim>") - 1])

    run = run_main(call, script(reply), branches={"check": Asked})
    assert [json.loads(text)["why"] for text in told(run)[:3]] == ["a", "b", "c"]
    assert [branch.input.model_dump()["claim"] for branch in run.branches] == ["a", "b", "c"]


@pytest.mark.every_way
def test_branches_start_after_tools_of_same_response_and_receive_their_results(call: Call, script: Script) -> None:
    order: list[str] = []

    def slow() -> str:
        time.sleep(0.02)
        order.append("slow")
        return "slowly"

    class Noting(Checker):
        """Check."""

        def system_prompt(self) -> str:
            order.append("branch")
            return "Check."

    reply = calling("check") & calling("slow") & calling("boom") & calling("nothing")
    model = script(reply, TRUE, DONE)
    run = run_main(call, model, branches={"check": Noting}, tools=[slow, boom])
    assert order == ["slow", "branch"]
    pending = [message["content"] for message in model.requests[1].messages if message["role"] == "tool"]
    assert pending[:3] == [BEGUN, "slowly", "Tool error: ValueError: no"]
    assert pending[3].startswith("Tool error: There is no tool `nothing`. There are: `slow`, `boom`, `check`")
    assert told(run)[:3] == ['{"is_true":true,"why":"so"}', *pending[1:3]]


@pytest.mark.every_way
def test_branches_nested_three_levels_deep_return_outputs(call: Call, script: Script) -> None:
    paths: list[str | None] = []

    class Inner(Checker):
        """Inner."""

        max_steps = 2

        def on_step(self, step: Step) -> None:
            paths.append(step.branch)

    class Middle(Inner):
        """Middle."""

        branches = {"inner": Inner}

    class Outer(Inner):
        """Outer."""

        branches = {"middle": Middle}

    class Top(Main):
        """Top."""

        branches = {"outer": Outer}

        def on_step(self, step: Step) -> None:
            paths.append(step.branch)

    model = script(
        calling("outer"), calling("middle"), calling("inner"), calling("look"), TRUE, TRUE, TRUE, DONE,
    )  # fmt: skip
    run = run_main(call, model, Top)
    assert paths == ["outer/middle/inner", "outer/middle", "outer", None]
    assert model.requests[3].messages[0]["content"] == "Top.\n\nOuter.\n\nMiddle.\n\nInner."
    begun = [message["content"] for message in model.requests[3].messages if message["role"] == "tool"]
    assert begun == [f"The branch `{name}` has begun." for name in ("outer", "middle", "inner")]
    assert run.usage.requests == 8
    assert [len(run.branches), len(run.branches[0].branches), len(run.branches[0].branches[0].branches)] == [1, 1, 1]


@pytest.mark.every_way
def test_branches_of_one_response_run_concurrently(call: Call, script: Script) -> None:
    """Wait for the other two."""
    barrier = threading.Barrier(3)
    met = asyncio.Event()
    waiting: list[int] = []

    def meet() -> str:
        barrier.wait(PATIENCE)
        return "met"

    async def ameet() -> str:
        waiting.append(1)
        if len(waiting) == 3:
            met.set()
        await asyncio.wait_for(met.wait(), PATIENCE)
        return "met"

    kinds = {name: branch_of(__doc__=f"{name}.", max_steps=3) for name in ("one", "two", "three")}
    scripts = {name: [calling("meet"), finish(is_true=True, why=name)] for name in kinds}
    together = calling("one") & calling("two") & calling("three")
    for meeting in (meet, ameet) if call.way == "async" else (meet,):
        found = tool(name="meet")(meeting)
        model = script(by_asker(answer=[together, DONE], **copy.deepcopy(scripts)))
        run = run_main(call, model, branches=kinds, tools=[found])
        assert [json.loads(text)["why"] for text in told(run)[:3]] == ["one", "two", "three"]
        assert [branch.output for branch in run.branches] == [Verdict(is_true=True, why=name) for name in kinds]
        assert run.usage.requests == 8


@pytest.mark.every_way
def test_failing_branch_does_not_affect_sibling_branches(call: Call, script: Script) -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    class Hooked(Checker):
        """Hooked."""

        max_steps = 2

        def on_step(self, step: Step) -> None:
            raise OddError

    class Unmakeable(Checker):
        """Unmakeable."""

        def __init__(self) -> None:
            raise TypeError("not today")

    kinds = {
        "well": branch_of(__doc__="Well."),
        "hooked": Hooked,
        "parse": branch_of(__doc__="Parse.", parse_retries=0),
        "model": branch_of(__doc__="Model."),
        "unmakeable": Unmakeable,
    }
    together = Reply()
    for name in kinds:
        together = together & calling(name)
    scripts: dict[str, list[Any]] = {
        "well": [TRUE],
        "hooked": [calling("look")],
        "parse": [finish()],
        "model": [Failure(400)],
    }
    run = run_main(call, script(by_asker(answer=[together, DONE], **scripts)), branches=kinds)
    results = told(run)[:5]
    assert results[0] == '{"is_true":true,"why":"so"}'
    assert results[1] == "Tool error: OddError"
    assert results[2].startswith("Tool error: ParseError: `Checker` got no valid output from `scripted` in 1 attempt")
    assert results[3].startswith("Tool error: ModelError: `scripted` failed (HTTP 400)")
    assert results[4].startswith("Tool error: TypeError: ")
    assert run.output == "yes"
    assert [type(branch.error) for branch in run.branches[1:3]] == [OddError, ParseError]
    assert [branch.stop_reason for branch in run.branches] == ["finish", "error", "error", "error"]


def test_branch_at_max_steps_is_forced_to_finish(call: Call, script: Script) -> None:
    model = script(calling("check"), calling("look"), calling("look"), TRUE, DONE)
    run = run_main(call, model, branches={"check": branch_of(max_steps=2)})
    assert model.requests[3].forced_tool == "__finish__"
    assert run.branches[0].stop_reason == "forced"
    assert (run.steps, run.stop_reason) == (1, "finish")


@pytest.mark.every_way
def test_branch_that_ends_without_output_returns_tool_error(call: Call, script: Script) -> None:
    model = script(calling("check"), calling("look"), DONE)
    run = run_main(call, model, branches={"check": branch_of(max_steps=None)})
    assert told(run)[0] == (
        "Tool error: Unfinished: The branch `check` called a tool and ended without an answer. Set `max_steps` on it."
    )
    assert isinstance(run.branches[0].output, Unfinished)


def test_single_turn_run_that_calls_branch_returns_unfinished_with_branch_output(call: Call, script: Script) -> None:
    run = run_main(call, script(calling("check"), TRUE), max_steps=None, branches={"check": branch_of(max_steps=1)})
    assert isinstance(run.output, Unfinished)
    assert run.output.tool_results[0].output == Verdict(is_true=True, why="so")


@pytest.mark.live_objects
@pytest.mark.edits_history
def test_branch_history_edits_do_not_change_parent_history(call: Call, script: Script) -> None:
    class Vandal(Checker):
        """Vandal."""

        max_steps = 2

        def on_step(self, step: Step) -> None:
            messages: list[Any] = self.history
            for message in messages:
                message["content"] = "gone"
                for made in message.get("tool_calls", []):
                    made["function"]["arguments"] = '{"gone": true}'
                message.setdefault("parts", []).append("gone")
            self.history[:] = self.history[:2]

    class Parts(Main):
        def on_step(self, step: Step) -> None:
            message: Any = self.history[1]
            message.setdefault("parts", [threading.Lock()])

    for kind in (Main, Parts):
        model = script(calling("look"), calling("check"), calling("look"), TRUE, DONE)
        run = run_main(call, model, kind, branches={"check": Vandal})
        assert "gone" not in str(run.history)
        assert model.requests[4].messages[: len(model.requests[1].messages)] == model.requests[1].messages


def test_concurrent_runs_in_threads_have_separate_branches(script: Script) -> None:
    def reply(request: ModelRequest) -> Any:
        question = request.messages[1]["content"]
        is_child = asks(request) != SYSTEM
        if is_child:
            return finish(is_true=True, why=question)
        return calling("check") & calling("check") if request.messages[-1]["role"] == "user" else DONE

    agent = Main(model=script(reply))
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda number: agent.run(question=f"Q{number}."), range(24)))
    for number, run in enumerate(runs):
        assert [branch.output for branch in run.branches] == [Verdict(is_true=True, why=run.history[1]["content"])] * 2
        assert f"Q{number}." in run.history[1]["content"]
        assert run.usage.requests == 4


# Branches started from code


@pytest.mark.every_way
def test_branch_method_called_in_on_step_sends_edited_results_and_adds_no_messages_to_parent(
    call: Call, script: Script
) -> None:
    class Reviewed(Main):
        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = "changed"
            step.temperature = 0.125
            review = self.branch(Asked, claim="it")
            assert review == Verdict(is_true=True, why="so")
            self.history.append({"role": "user", "content": f"Review complete: {review.model_dump_json()}"})

    model = script(calling("look") & calling("boom"), TRUE, DONE)
    run = run_main(call, model, Reviewed)
    sent = model.requests[1].messages
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [message["content"] for message in sent[3:5]] == ["changed", "Tool error: ValueError: no"]
    assert model.requests[1].temperature == 0.125
    assert model.requests[2].messages[-1]["content"] == 'Review complete: {"is_true":true,"why":"so"}'
    assert (run.branches[0].stop_reason, run.usage.requests) == ("finish", 3)
    assert [message["role"] for message in run.history[:6]] == ["system", "user", "assistant", "tool", "tool", "user"]


def test_step_branch_in_branch_started_by_branch_method_is_class_name(call: Call, script: Script) -> None:
    paths: list[str | None] = []

    class Inner(Checker):
        """Inner."""

        max_steps = 2

        def on_step(self, step: Step) -> None:
            paths.append(step.branch)

    class Outer(Main):
        def on_step(self, step: Step) -> None:
            paths.append(step.branch)
            self.branch(Inner)

    run_main(call, script(calling("look"), calling("look"), TRUE, DONE), Outer)
    assert paths == [None, "Inner"]


@pytest.mark.every_way
def test_branch_method_called_in_tool_sends_results_of_finished_sibling_calls(call: Call, script: Script) -> None:
    class Deep(Main):
        @tool(parallel=False)
        def deep(self, number: int) -> str:
            """Go deep."""
            return self.branch(Asked, claim=str(number)).why

    both = calling("look") & calling("deep", number=1) & calling("deep", number=2) & calling("nothing")
    model = script(both, finish(is_true=True, why="first"), finish(is_true=True, why="second"), DONE)
    run = run_main(call, model, Deep)
    pending = [[m["content"] for m in request.messages if m["role"] == "tool"] for request in model.requests[1:3]]
    assert pending[0][:3] == ["nothing in here", NOT_YET, NOT_YET]
    assert pending[1][:3] == ["nothing in here", "first", NOT_YET]
    assert pending[0][3].startswith("Tool error: There is no tool `nothing`")
    assert told(run)[1:3] == ["first", "second"]


@pytest.mark.every_way
def test_branch_method_called_in_two_concurrent_tools_returns_output_to_each_tool(call: Call, script: Script) -> None:
    barrier = threading.Barrier(2)

    class Deep(Main):
        @tool
        def deep(self, number: int) -> str:
            """Go deep."""
            barrier.wait(PATIENCE)
            return self.branch(Asked, claim=str(number)).why

    def reply(request: ModelRequest) -> Any:
        if asks(request) != SYSTEM:
            return finish(is_true=True, why="2" if ">2<" in request.messages[-1]["content"] else "1")
        is_first = request.messages[-1]["role"] == "user"
        return calling("deep", number=1) & calling("deep", number=2) if is_first else DONE

    run = run_main(call, script(reply), Deep)
    assert told(run)[:2] == ["1", "2"]
    assert (len(run.branches), run.usage.requests) == (2, 4)


@pytest.mark.every_way
def test_abranch_method_called_in_async_hook_and_async_tool_returns_output(call: Call, script: Script) -> None:
    class Deep(Main):
        @tool
        async def deep(self) -> str:
            """Go deep."""
            return (await self.abranch(Checker)).why

        async def on_step(self, step: Step) -> None:  # type: ignore[override]
            step.tool_results[0].output += (await self.abranch(Asked, claim="x")).why

    run = run_main(call, script(calling("deep"), TRUE, TRUE, DONE), Deep)
    assert told(run)[0] == "soso"
    assert run.usage.requests == 4


@pytest.mark.every_way
def test_branch_method_called_in_on_finish_and_in_prompt_method_returns_output(call: Call, script: Script) -> None:
    class Prompted(Main):
        def system_prompt(self) -> str:
            return f"Prompt {self.branch(branch_of(system_prompt='')).why}"

        def on_finish(self, output: str) -> str:
            return f"{output} {self.branch(Checker).why}"

    model = script(TRUE, DONE, TRUE)
    run = run_main(call, model, Prompted)
    assert run.output == "yes so"
    assert model.requests[0].messages == [
        {"role": "user", "content": "<input>\n  <question>Is it?</question>\n</input>"}
    ]
    assert model.requests[2].messages[-1] == {"role": "tool", "tool_call_id": "call_2_0", "content": NOT_YET}


@pytest.mark.every_way
def test_branch_all_runs_branches_concurrently_and_returns_failures_in_order(call: Call, script: Script) -> None:
    barrier = threading.Barrier(2)
    found: list[Any] = []

    def meet() -> None:
        barrier.wait(PATIENCE)

    one, two = (branch_of(__doc__=f"{name}.", max_steps=2) for name in ("One", "Two"))
    bad = branch_of(__doc__="Bad.", parse_retries=0)

    class All(Main):
        def on_step(self, step: Step) -> None:
            found.extend(self.branch_all([(one, {}), (bad, {}), (two, {}), (Asked, {"wrong": 1})]))

    scripts = {
        "answer": [calling("look"), DONE],
        "one": [calling("meet"), finish(is_true=True, why="one")],
        "two": [calling("meet"), finish(is_true=True, why="two")],
        "bad": [finish()],
    }
    run = run_main(call, script(by_asker(**scripts)), All, tools=[look, meet])
    assert [found[0].why, found[2].why] == ["one", "two"]
    assert isinstance(found[1], BranchError)
    assert isinstance(found[1].__cause__, ParseError)
    assert isinstance(found[3], BranchError)
    assert isinstance(found[3].__cause__, InputError)
    assert (len(run.branches), run.usage.requests) == (3, 7)


@pytest.mark.every_way
def test_branch_all_limits_concurrency(call: Call, script: Script) -> None:
    under_way: list[int] = []
    most: list[int] = []

    def busy() -> None:
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.01)
        under_way.pop()

    kind = branch_of(__doc__="Busy.", max_steps=2)

    class All(Main):
        def on_step(self, step: Step) -> None:
            assert self.branch_all([], concurrency=1) == []
            assert len(self.branch_all([(kind, {})] * 5, concurrency=2)) == 5

    scripts = {"answer": [calling("look"), DONE], "busy": [calling("busy")] * 5 + [TRUE] * 5}
    lock = threading.Lock()

    def reply(request: ModelRequest) -> Any:
        if asks(request) == "Busy.":
            return TRUE if request.messages[-1]["content"] == "null" else calling("busy")
        with lock:
            return scripts["answer"].pop(0)

    run_main(call, script(reply), All, tools=[look, busy])
    assert max(most) <= 2
    assert len(most) == 5


@pytest.mark.every_way
def test_branch_method_whose_branch_fails_raises_branch_error_with_cause(call: Call, script: Script) -> None:
    caught: list[BranchError] = []

    class Risky(Main):
        def on_step(self, step: Step) -> None:
            for kind, given in ((branch_of(parse_retries=0), {}), (branch_of(max_steps=None), {}), (Asked, {"a": 1})):
                with pytest.raises(BranchError) as raised:
                    self.branch(kind, **given)
                caught.append(raised.value)

    run = run_main(call, script(calling("look"), finish(), calling("look"), DONE), Risky)
    first, second, third = caught
    assert isinstance(first.__cause__, ParseError)
    assert str(first) == f"The branch `Checker` failed: ParseError: {first.__cause__}"
    assert first.__cause__.run is run.branches[0]
    assert "ended without an answer. Set `max_steps` on it" in str(second)
    assert isinstance(third.__cause__, InputError)
    assert (run.output, run.usage.requests, len(run.branches)) == ("yes", 4, 2)


@pytest.mark.every_way
def test_branch_error_that_hook_does_not_catch_ends_run(call: Call, script: Script) -> None:
    class Risky(Main):
        def on_step(self, step: Step) -> None:
            self.branch(branch_of(parse_retries=0))

    with pytest.raises(BranchError) as raised:
        run_main(call, script(calling("look"), finish()), Risky)
    run: Any = raised.value.run
    assert (run.stop_reason, run.usage.requests) == ("error", 2)
    assert isinstance(run.branches[0].error, ParseError)


def test_branch_method_called_deeper_than_max_depth_raises_branch_error(call: Call, script: Script) -> None:
    class Digger(Main):
        max_depth = 2

        def on_step(self, step: Step) -> None:
            self.branch(Digger, question="Deeper?")

    model = script(calling("look"), calling("look"), calling("look"))
    with pytest.raises(
        BranchError, match="Cannot start branch `Digger`: it would be at depth 3, and `max_depth` of `Digger` is 2"
    ):
        run_main(call, model, Digger)


def test_branch_method_called_outside_run_raises_acorn_error() -> None:
    agent = Main(model=ScriptedModel([]))
    with pytest.raises(AcornError, match=r"cannot start a branch\. Call `self\.branch\(\.\.\.\)`"):
        agent.branch(Checker)
    with pytest.raises(AcornError, match="cannot start a branch"):
        asyncio.run(agent.abranch(Checker))
    with pytest.raises(AcornError, match="cannot start a branch"):
        agent.branch_all([(Checker, {})])


def test_branch_method_of_instance_that_has_no_run_raises_acorn_error(call: Call, script: Script) -> None:
    class Helper(Checker):
        """Help."""

    class Mixed(Main):
        def on_step(self, step: Step) -> None:
            with pytest.raises(AcornError, match=r"This `Helper` has no run .* of another instance, a `Mixed`"):
                Helper().branch(Checker)
            with pytest.raises(AcornError, match="This `Mixed` has no run to branch from"):
                Mixed().branch_all([(Checker, {})])

    run = run_main(call, script(calling("look"), DONE), Mixed)
    assert run.branches == []


class Lender(Main):
    """Answer the question."""

    branches = {"check": branch_of(max_steps=2)}

    @tool
    def ask(self) -> str:
        """Ask somebody."""
        return self.branch(Asked, claim="It is.").why


def test_parent_method_tool_called_in_branch_records_its_branch_below_parent(call: Call, script: Script) -> None:
    model = script(calling("check"), calling("ask"), TRUE, TRUE, DONE)
    run = run_main(call, model, Lender)
    assert [branch.branch for branch in run.branches] == ["check", "Asked"]
    assert run.branches[0].branches == []
    assert told(run.branches[0])[1] == "so"
    sent = model.requests[2].messages
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]
    assert sent[0]["content"] == f"{SYSTEM}\n\nCheck what you are given."
    assert sent[3]["content"] == NOT_YET
    assert run.usage.requests == 5


@pytest.mark.every_way
def test_parent_tool_that_starts_branch_is_callable_by_two_concurrent_branches(call: Call, script: Script) -> None:
    scripts = by_asker(
        answer=[calling("check") & calling("check"), DONE],
        be=[calling("ask"), calling("ask"), TRUE, TRUE],
        check=[TRUE, TRUE],
    )
    run = run_main(call, script(scripts), Lender)
    assert sorted(str(branch.branch) for branch in run.branches) == ["Asked", "Asked", "check", "check"]
    assert len({branch.id for branch in run.branches}) == 4


def test_branch_started_by_parent_tool_inside_branch_counts_against_max_depth(call: Call, script: Script) -> None:
    scripts = by_asker(answer=[calling("check"), DONE], be=[calling("ask"), TRUE], check=[calling("ask"), TRUE])
    run = run_main(call, script(scripts), Lender, max_depth=2)
    (asked,) = [branch for branch in run.branches if branch.branch == "Asked"]
    assert "Cannot start branch `Asked`: it would be at depth 3" in told(asked)[-2]


class Empty(module[Any, Any]):
    """Nothing."""


def test_branch_method_with_non_module_or_with_class_without_output_raises_declaration_error(
    call: Call, script: Script
) -> None:
    class Wrong(Main):
        def on_step(self, step: Step) -> None:
            for kind in (str, "Checker"):
                with pytest.raises(DeclarationError, match="A branch must be a module class or an instance of one"):
                    self.branch(cast(Any, kind))
            with pytest.raises(DeclarationError, match="`Empty`, which has no `final_output`"):
                self.branch(Empty)

    run_main(call, script(calling("look"), DONE), Wrong)


PAIRS = (
    r"`branches\[1\]` of `branch_all` must be a pair of an agent class and a dict of its inputs, such as "
    r"`\(Review, \{\}\)`, got"
)
COUNT = "`concurrency` of `branch_all` must be a whole number of at least 1, or None for all at once, got"


class All(Main):
    """Answer the question."""

    def __init__(self, branches: Any, concurrency: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.arguments = (branches, concurrency)

    def on_step(self, step: Step) -> None:
        branches, concurrency = self.arguments
        self.branch_all(branches, concurrency=concurrency)


def test_branch_all_with_invalid_argument_raises_declaration_error_before_any_branch_starts(script: Script) -> None:
    rows: list[Any] = [
        ([(Checker, {}), Checker], None, f"{PAIRS} .*Checker"),
        ([(Checker, {}), (Checker,)], None, PAIRS),
        ([(Checker, {}), (Checker, None)], None, PAIRS),
        ([(Checker, {}), "no"], None, f"{PAIRS} 'no'"),
        (
            [(Checker, {}), (str, {})],
            None,
            r"`branches\[1\]\[0\]` of `branch_all` must be a module class or an instance of one, got .*str",
        ),
        ([(Checker, {}), (Empty, {})], None, "`Empty`, which has no `final_output`"),
        (Checker, None, "`branch_all` needs a list of pairs, each with an agent class and a dict of its inputs, got"),
        ([(Checker, {})], 0, f"{COUNT} 0"),
        ([(Checker, {})], -1, f"{COUNT} -1"),
        ([(Checker, {})], 1.5, f"{COUNT} 1.5"),
        ([(Checker, {})], True, f"{COUNT} True"),
        ([], 0, COUNT),
    ]
    for branches, concurrency, words in rows:
        with case(words):
            with pytest.raises(DeclarationError, match=words) as caught:
                All(branches, concurrency, model=script(calling("look")))(question="Is it?")
            assert caught.value.run.branches == []


class Named(Checker):
    """Check for somebody."""

    def __init__(self, name: str, **overrides: Any) -> None:
        super().__init__(**overrides)
        self.name = name

    def on_finish(self, output: Verdict) -> Verdict:
        return Verdict(is_true=output.is_true, why=self.name)


def test_declared_branch_class_with_required_init_arguments_raises_declaration_error() -> None:
    words = (
        "`Main2.branches['check']` is the class `Named`, which cannot be instantiated without arguments "
        "(missing a required argument: 'name'). Use an instance."
    )
    for entry in (Named, {"module": Named, "description": "Check"}):
        with pytest.raises(DeclarationError) as caught:
            type("Main2", (Main,), {"branches": {"check": entry}})
        assert str(caught.value) == words


def test_branch_method_with_class_with_required_init_arguments_raises_declaration_error(
    call: Call, script: Script
) -> None:
    class Hooked(Main):
        def on_step(self, step: Step) -> None:
            with pytest.raises(DeclarationError, match="cannot be instantiated without arguments"):
                self.branch(Named)

    run_main(call, script(calling("look"), DONE), Hooked)


def test_branch_declared_as_instance_uses_instance_settings(call: Call, script: Script) -> None:
    ours = script(calling("check"), DONE)
    theirs = call.scripted([TRUE])
    branches = {"check": {"module": Named("Ann", model=theirs, temperature=0.1), "description": "Ask Ann"}}
    run = run_main(call, ours, branches=branches)
    assert json.loads(told(run)[0]) == {"is_true": True, "why": "Ann"}
    assert theirs.requests[0].temperature == 0.1
    described = next(each["function"] for each in ours.requests[0].tools if each["function"]["name"] == "check")
    assert described["description"] == "Ask Ann"


def test_branch_method_called_with_instance_uses_settings_of_instance(call: Call, script: Script) -> None:
    found: list[Any] = []

    class Hooked(Main):
        def on_step(self, step: Step) -> None:
            found.append(self.branch(Named("Ann", temperature=0.1)).why)
            found.extend(each.why for each in self.branch_all([(Named("Bob"), {})]))

    model = script(calling("look"), TRUE, TRUE, DONE)
    run = run_main(call, model, Hooked)
    assert found == ["Ann", "Bob"]
    assert [request.temperature for request in model.requests] == [0.7, 0.1, 0.7, 0.7]
    assert [branch.branch for branch in run.branches] == ["Named", "Named"]


def test_branch_declared_as_instance_with_history_raises_declaration_error() -> None:
    agent = Checker().using(history=[{"role": "user", "content": "before"}])
    with pytest.raises(DeclarationError, match="a branch continues the conversation of its parent"):
        Main(branches={"check": agent})


def test_agent_called_inside_tool_is_not_recorded_as_branch(call: Call, script: Script) -> None:
    model = script(calling("ask"), TRUE, DONE)

    def ask() -> str:
        return Checker(model=model)().why

    run = run_main(call, model, tools=[ask], branches={})
    assert run.branches == []
    assert len(model.requests[1].messages) == 2


# Records and limits


@pytest.mark.every_way
def test_branch_records_are_nested_and_usage_is_summed(call: Call, script: Script) -> None:
    def used(reply: Reply, given: int) -> Reply:
        return reply & Reply(usage=Usage(given, 1, 1, 1, 1))

    inner = branch_of(__doc__="Inner.")
    outer = branch_of(__doc__="Outer.", branches={"inner": inner}, max_steps=2)
    model = script(
        used(calling("outer"), 1), used(calling("inner"), 10), used(TRUE, 100), used(TRUE, 1000), used(DONE, 10000),
        price=Price(1.0, 0.0),
    )  # fmt: skip
    with capture() as runs:
        run = run_main(call, model, branches={"outer": outer})
    assert runs == [run, run.branches[0], run.branches[0].branches[0]]
    assert [each.usage.input_tokens for each in runs] == [11111, 1110, 100]
    assert [each.cost for each in runs] == [11111, 1110, 100]
    assert [each.usage.requests for each in runs] == [5, 3, 1]
    assert run.usage == Usage(11111, 5, 5, 5, 5)
    assert len({each.id for each in runs}) == 3
    for each in runs:
        assert each.stop_reason == "finish"
        assert each.started is not None
        assert each.seconds > 0
        assert_complete(each.history)


def test_capture_block_collects_records_of_concurrent_branches(call: Call, script: Script) -> None:
    model = script(calling("check") & calling("check"), TRUE, TRUE, DONE)
    with capture() as runs:
        run = run_main(call, model)
    assert runs[0] is run
    assert {id(each) for each in runs[1:]} == {id(each) for each in run.branches}


def weighty(reply: Reply, tokens: int) -> Reply:
    return reply & Reply(usage=Usage(tokens, 0, requests=1))


@pytest.mark.every_way
def test_branch_tokens_count_against_parent_token_limit_and_parent_is_forced_to_finish(
    call: Call, script: Script
) -> None:
    looks = [weighty(calling("look"), 100) for _ in range(3)]
    model = script(weighty(calling("check"), 100), *looks, weighty(TRUE, 100), weighty(DONE, 100))
    run = run_main(call, model, max_total_tokens=750, branches={"check": branch_of(max_steps=50)})
    assert run.branches[0].stop_reason == "limit"
    assert model.requests[-2].forced_tool == "__finish__"
    assert run.output == "yes"
    assert run.usage.total_tokens == 600


def test_branch_that_exhausts_budget_fails_and_parent_still_answers(call: Call, script: Script) -> None:
    for limit, own, whose in ((850, None, "`Main`'s"), (None, 450, "its")):
        model = script(weighty(calling("check"), 100), weighty(calling("look"), 500), weighty(DONE, 100))
        branches = {"check": branch_of(max_total_tokens=own)}
        run = run_main(call, model, max_total_tokens=limit, branches=branches)
        assert told(run)[0].startswith(
            f"Tool error: LimitError: `Checker` has no room left under {whose} `max_total_tokens` for an answer"
        )
        assert isinstance(run.branches[0].error, LimitError)
        assert (run.output, run.stop_reason) == ("yes", "limit" if limit else "finish")


def test_branch_cost_is_added_to_parent_cost(call: Call, script: Script) -> None:
    looks = [weighty(calling("look"), 100) for _ in range(3)]
    model = script(
        weighty(calling("check"), 100), *looks, weighty(TRUE, 100), weighty(DONE, 100), price=Price(0.01, 0.01)
    )
    run = run_main(call, model, max_cost=7.5, branches={"check": branch_of(max_steps=50)})
    assert run.branches[0].stop_reason == "limit"
    assert run.cost == pytest.approx(6.0)
    free = script(name="free")
    run = run_main(
        call,
        script(weighty(calling("check"), 100), weighty(DONE, 100), price=Price(0.01, 0.01)),
        max_cost=7.5,
        branches={"check": branch_of(model=free)},
    )
    assert "DeclarationError: `Main.max_cost` cannot be enforced: the prices of `free` are unknown" in told(run)[0]


@pytest.mark.every_way
def test_branch_limit_counts_only_branch_usage(call: Call, script: Script) -> None:
    hungry, other = (branch_of(__doc__=f"{name}.", max_steps=50) for name in ("Hungry", "Other"))
    small = branch_of(__doc__="Small.", max_steps=50, max_total_tokens=400)
    gate = threading.Event()

    def wait() -> None:
        assert gate.wait(PATIENCE)

    def go() -> None:
        gate.set()

    scripts = {
        "answer": [weighty(calling("hungry") & calling("small"), 1000), weighty(DONE, 1000)],
        "hungry": [weighty(calling("look"), 5000), weighty(calling("go"), 5000), weighty(TRUE, 10)],
        "small": [weighty(calling("wait"), 100), weighty(calling("look"), 100), weighty(TRUE, 100)],
    }
    model = script(by_asker(**scripts))
    kinds = {"hungry": hungry, "small": small, "other": other}
    run = run_main(call, model, branches=kinds, tools=[look, wait, go])
    assert [branch.stop_reason for branch in run.branches] == ["finish", "limit"]
    assert run.branches[1].usage.total_tokens == 300
    assert run.usage.total_tokens == 12310


@pytest.mark.every_way
def test_branch_duration_counts_against_parent_max_seconds(call: Call, script: Script) -> None:
    class Slow(Main):
        def on_step(self, step: Step) -> None:
            current_clock().sleep(0.25)
            with pytest.raises(BranchError) as raised:
                self.branch(Checker)
            assert isinstance(raised.value.__cause__, LimitError)

    slow = Reply(delay=10) & TRUE
    with use_clock(FakeClock()):
        run = run_main(call, script(calling("check"), slow, DONE), max_seconds=4)
        assert run.seconds < 4
        assert "LimitError: `Checker` used up its `max_seconds`" in told(run)[0]
        assert (run.output, run.stop_reason) == ("yes", "limit")
        run = run_main(call, script(calling("look"), slow, DONE), Slow, max_seconds=4)
        assert 0.25 < run.seconds < 4
        assert run.output == "yes"


# Streaming


class Listening(Main):
    """Answer the question."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.chunks: list[StreamChunk[Any]] = []

    def on_stream(self, chunk: StreamChunk[Any]) -> None:
        self.chunks.append(chunk)


SYNC_AND_ASYNC = pytest.mark.parametrize("call", ["sync", "async"], indirect=True)


def chunks_of(call: Call, agent: module[Any, Any]) -> list[StreamChunk[Any]]:
    if call.way != "async":
        return list(agent.stream(question="Is it?"))

    async def main() -> list[StreamChunk[Any]]:
        return [chunk async for chunk in agent.astream(question="Is it?")]

    return asyncio.run(main())


@pytest.mark.every_way
def test_branch_chunks_are_passed_only_to_on_stream_of_branch(call: Call, script: Script) -> None:
    heard: list[StreamChunk[Any]] = []

    class Loud(Checker):
        """Loud."""

        def on_stream(self, chunk: StreamChunk[Verdict]) -> None:
            heard.append(chunk)

    agent = Listening(model=script(calling("check"), Reply("Let me see.") & TRUE, DONE), branches={"check": Loud})
    call.run(agent, question="Is it?")
    assert "".join(chunk.content or "" for chunk in heard) == "Let me see."
    assert {chunk.branch for chunk in heard} == {"check"}
    assert heard[-1].done
    assert heard[-1].partial is not None
    assert heard[-1].partial.model_dump() == {"is_true": True, "why": "so"}
    assert all(chunk.branch is None and chunk.content is None for chunk in agent.chunks)
    assert sum(chunk.done for chunk in agent.chunks) == 2
    results = [chunk.tool_result for chunk in agent.chunks if chunk.tool_result]
    assert results == [ToolResult("call_1_0", "check", Verdict(is_true=True, why="so"))]


@pytest.mark.every_way
@SYNC_AND_ASYNC
def test_stream_yields_branch_chunks_with_path(call: Call, script: Script) -> None:
    inner = branch_of(__doc__="Inner.")
    outer = branch_of(__doc__="Outer.", branches={"inner": inner}, max_steps=2)
    model = script(calling("outer"), calling("inner"), Reply("In.") & TRUE, Reply("Out.") & TRUE, Reply("Top.") & DONE)
    agent = Listening(model=model, branches={"outer": outer})
    chunks = chunks_of(call, agent)
    said = [(chunk.branch, chunk.content) for chunk in chunks if chunk.content]
    assert said == [("outer/inner", "In."), ("outer", "Out."), (None, "Top.")]
    assert [chunk.branch for chunk in chunks if chunk.done] == [None, "outer", "outer/inner", "outer", None]
    assert [chunk.branch for chunk in chunks if chunk.tool_result] == ["outer", None]
    assert {chunk.branch for chunk in agent.chunks} == {None}
    last = chunks[-1]
    assert last.result == "yes"
    assert last.run is not None
    assert (last.done, last.branch, last.run.usage.requests) == (False, None, 5)
    partials = [chunk.partial for chunk in chunks if chunk.branch == "outer/inner" and chunk.partial]
    assert partials[-1].model_dump() == {"is_true": True, "why": "so"}


@pytest.mark.every_way
@SYNC_AND_ASYNC
def test_concurrent_branches_stream_complete_text_per_branch(call: Call, script: Script) -> None:
    kinds = {name: branch_of(__doc__=f"{name}.") for name in ("one", "two")}
    scripts = {name: [Reply(f"I am {name}, and I say so.") & TRUE] for name in kinds}
    model = script(by_asker(answer=[calling("one") & calling("two"), DONE], **scripts))
    chunks = chunks_of(call, Main(model=model, branches=kinds))
    for name in kinds:
        said = "".join(chunk.content or "" for chunk in chunks if chunk.branch == name)
        assert said == f"I am {name}, and I say so."
        assert sum(chunk.done for chunk in chunks if chunk.branch == name) == 1
    assert sum(chunk.tool_result is not None for chunk in chunks) == 2


# Early end


class Gate(ScriptedModel):
    """A model that blocks the branches until it is opened and reports how many have arrived."""

    def __init__(self, replies: Any, wanted: int) -> None:
        super().__init__(replies)
        self.reached = threading.Semaphore(0)
        self.wanted = wanted
        self.open = threading.Event()
        self.cancelled: list[str] = []

    def all_there(self) -> bool:
        return all(self.reached.acquire(timeout=PATIENCE) for _ in range(self.wanted))

    def complete(self, request: ModelRequest) -> ModelResponse:
        if asks(request) != SYSTEM:
            self.reached.release()
            assert self.open.wait(PATIENCE)
        return super().complete(request)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        if asks(request) != SYSTEM:
            self.reached.release()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                self.cancelled.append(asks(request))
                raise
        return await super().acomplete(request)


@pytest.mark.parametrize("count", [1, 3])
def test_cancelling_parent_cancels_branches(count: int) -> None:
    together = Reply()
    for _ in range(count):
        together = together & calling("check")
    model = Gate([calling("look") & together], count)

    async def main() -> Run[Any]:
        with capture() as runs:
            task = asyncio.ensure_future(Main(model=model).acall(question="Is it?"))
            assert await asyncio.to_thread(model.all_there)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(runs) == count + 1
        return runs[0]

    run = asyncio.run(main())
    assert len(model.cancelled) == count
    assert [branch.stop_reason for branch in run.branches] == ["cancelled"] * count
    assert run.stop_reason == "cancelled"
    assert told(run) == ["nothing in here", *["This call was not completed: the run was stopped."] * count]
    for each in (run, *run.branches):
        assert_complete(each.history)


def test_cancelling_parent_ends_branch_started_in_sync_hook() -> None:
    class Hooked(Main):
        def on_step(self, step: Step) -> None:
            self.branch(branch_of(max_steps=9))

    model = Gate([calling("look"), calling("look"), calling("look")], 1)
    runs: list[Run[Any]] = []

    async def main() -> None:
        with capture() as captured:
            task = asyncio.ensure_future(Hooked(model=model).acall(question="Is it?"))
            assert await asyncio.to_thread(model.all_there)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        runs.extend(captured)

    asyncio.run(main())
    model.open.set()
    assert comes_true(lambda: runs[1].stop_reason == "cancelled")
    assert isinstance(runs[1].error, StopSignal)
    assert comes_true(lambda: len(model.requests) == 2)


@pytest.mark.every_way
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_or_system_exit_in_branch_ends_sibling_branches(
    call: Call, kind: type[BaseException]
) -> None:
    gate = threading.Event()

    def stop() -> None:
        raise kind

    def wait() -> None:
        gate.wait(PATIENCE)

    kinds = {name: branch_of(__doc__=f"{name}.", max_steps=5) for name in ("one", "two")}
    scripts = {"one": [calling("wait"), calling("look"), TRUE], "two": [calling("stop")]}
    model = ScriptedModel(by_asker(answer=[calling("one") & calling("two")], **scripts))
    agent = Main(model=model, branches=kinds, tools=[look, stop, wait])
    with capture() as runs, pytest.raises(kind) as raised:
        call.run(agent, question="Is it?")
    gate.set()
    (run,) = (each for each in runs if each.branches)
    assert raised.value.run is run  # type: ignore[attr-defined]
    assert run.stop_reason == "cancelled"
    assert comes_true(lambda: [branch.stop_reason for branch in run.branches] == ["cancelled", "cancelled"])
    assert sum(asks(request) == "one." for request in model.requests) <= 2
    for each in runs:
        assert_complete(each.history)


class Dripping(ScriptedModel):
    """Report whether a stream was closed before its end."""

    closed = 0

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        try:
            yield from super().stream(request)
        except GeneratorExit:
            self.closed += 1
            raise

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        try:
            async for delta in super().astream(request):
                await asyncio.sleep(0)
                yield delta
        except (GeneratorExit, asyncio.CancelledError):
            self.closed += 1
            raise


@pytest.mark.every_way
@SYNC_AND_ASYNC
@pytest.mark.parametrize("count", [1, 2])
def test_leaving_stream_early_ends_branches(call: Call, count: int) -> None:
    together = calling("check") if count == 1 else calling("check") & calling("check")

    def reply(request: ModelRequest) -> Any:
        return together if asks(request) == SYSTEM else Reply("x" * 100_000) & TRUE

    model = Dripping(reply, chunk_size=1)
    agent = Main(model=model)

    def leave() -> None:
        stream = agent.stream(question="Is it?")
        assert next(chunk for chunk in stream if chunk.branch).content == "x"
        stream.close()

    async def aleave() -> None:
        stream = agent.astream(question="Is it?")
        async for chunk in stream:
            if chunk.branch:
                break
        await stream.aclose()

    with capture() as runs:
        if call.way == "async":
            asyncio.run(aleave())
        else:
            leave()
    assert comes_true(lambda: model.closed == count)
    assert comes_true(lambda: [run.stop_reason for run in runs] == ["cancelled"] * (count + 1))
    assert len(model.requests) == count + 1
    for run in runs:
        assert_complete(run.history)


# A branch that fails while part of it is running


@pytest.mark.every_way
@pytest.mark.message_list
def test_failing_agent_tool_cancels_its_branches_but_not_sibling_tool_calls(call: Call) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    @tool
    def slow() -> str:
        """Take long."""
        begun.release()
        assert go_on.wait(PATIENCE)
        return "slow"

    @tool
    def quick() -> str:
        """Wait for the slow ones to begin."""
        assert begun.acquire(timeout=PATIENCE)
        assert begun.acquire(timeout=PATIENCE)
        return "quick"

    class Inner(module[Any, str]):
        """Inner."""

        final_output = str
        tools = [slow]
        max_steps = 3

    class Failing(module[Any, str]):
        """Failing."""

        final_output = str
        tools = [slow, quick, Inner]
        max_steps = 3

        def on_stream(self, chunk: Any) -> None:
            if chunk.tool_result is not None:
                raise RuntimeError("enough")

    def reply(request: ModelRequest) -> Reply:
        prompt, is_first = str(request.messages[0]["content"]), len(request.messages) < 3
        if prompt.startswith("Inner"):
            return calling("slow")
        if "Failing" in prompt:
            return calling("slow") & calling("quick") & calling("inner")
        if is_first:
            return calling("failing") & calling("look")
        go_on.set()
        return DONE

    model = ScriptedModel(reply)
    run = call.run(Main(model=model, tools=[look, Failing], branches={}), question="Is it?")
    assert run.output == "yes"
    assert told(run)[0] == "Tool error: RuntimeError: enough"
    failing = run.branches[0]
    assert (failing.stop_reason, failing.branches[0].stop_reason) == ("error", "cancelled")
    for record in (run, failing, failing.branches[0]):
        assert_complete(record.history)
