"""Tests of agents in `tools`: the model calls them as tools, and each call is a separate run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.conftest import Call, Script
from tests.waiting import PATIENCE

from acorn import DeclarationError, Step, ToolConflictError, Unfinished, Usage, current_run, listen, module, tool
from acorn.journal import BranchFinished, BranchStarted, RunStarted
from acorn.models import ModelRequest, Price
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling


class Place(BaseModel):
    place: str = Field(description="Where to dig")
    depth: int = 1


class Find(BaseModel):
    what: str


class DeepDigger(module[Place, Find]):
    """Dig somewhere.

    You are a patient digger.
    """


class Boss(module[Any, str]):
    """Find it."""

    final_output = str
    tools = [DeepDigger]
    max_steps = 5


BONE = finish(what="a bone")
DONE = finish(result="found")


def names(request: ModelRequest) -> list[str]:
    return [each["function"]["name"] for each in request.tools]


def results(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def test_agent_tool_schema_is_derived_from_agent_class(call: Call, script: Script) -> None:
    model = script(DONE)
    call(Boss(model=model))
    assert names(model.requests[0]) == ["deep_digger", "__finish__"]
    function = model.requests[0].tools[0]["function"]
    assert function["description"] == "Dig somewhere."
    assert function["parameters"]["properties"] == {
        "place": {"type": "string", "description": "Where to dig"},
        "depth": {"type": "integer", "default": 1},
    }


@pytest.mark.parametrize("agent", [DeepDigger, DeepDigger()], ids=["class", "instance"])
def test_agent_tool_run_sends_agent_prompt_to_model_of_caller(call: Call, script: Script, agent: Any) -> None:
    model = script(calling("deep_digger", place="the garden"), BONE, DONE)
    run = call.run(Boss(model=model, tools=[agent]))
    assert run.output == "found"
    inner = model.requests[1]
    assert [message["role"] for message in inner.messages] == ["system", "user"]
    assert inner.messages[0]["content"] == "Dig somewhere.\n\nYou are a patient digger."
    assert "<place" in inner.messages[1]["content"]
    assert "the garden" in inner.messages[1]["content"]
    assert names(inner) == ["__finish__"]
    assert results(run.history)[0] == '{"what":"a bone"}'
    (record,) = run.branches
    assert (record.branch, record.output, record.stop_reason) == ("deep_digger", Find(what="a bone"), "finish")


def test_agent_tool_with_explicit_model_sends_requests_to_that_model(call: Call, script: Script) -> None:
    own, model = script(BONE, name="own"), script(calling("deep_digger", place="x"), DONE)
    call(Boss(model=model, tools=[DeepDigger(model=own)]))
    assert len(own.requests) == 1
    assert len(model.requests) == 2


def test_agent_tool_does_not_inherit_settings_of_caller(call: Call, script: Script) -> None:
    model = script(calling("deep_digger", place="x"), BONE, DONE)
    call(Boss(model=model, temperature=0.1, max_tokens=77))
    assert (model.requests[1].temperature, model.requests[1].max_tokens) == (0.7, 4096)


@pytest.mark.parametrize(("own", "seen"), [(None, "the caller's"), ("its own", "its own")])
def test_agent_tool_with_explicit_deps_does_not_use_deps_of_caller(
    call: Call, script: Script, own: Any, seen: str
) -> None:
    class Reader(DeepDigger):
        def system_prompt(self) -> str:
            return f"With {current_run().deps}."

    agent = Reader() if own is None else Reader().using(deps=own)
    model = script(calling("reader", place="x"), BONE, DONE)
    call(Boss(model=model, tools=[agent]).using(deps="the caller's"))
    assert model.requests[1].messages[0]["content"] == f"With {seen}."


def test_agent_tool_usage_is_added_to_caller_usage(call: Call, script: Script) -> None:
    used = [
        Reply(calls=each.calls, usage=Usage(10, 1, requests=1))
        for each in (calling("deep_digger", place="x"), BONE, DONE)
    ]
    run = call.run(Boss(model=script(*used, price=Price(0.01, 0.01))))
    assert (run.usage.input_tokens, run.usage.requests) == (30, 3)
    assert run.cost == pytest.approx(0.33)


@pytest.mark.every_way
def test_agent_tool_run_stops_at_token_limit_of_caller(call: Call, script: Script) -> None:
    @tool(repeatable=True)
    def scratch() -> str:
        """Scratch."""
        return "earth"

    class Eager(DeepDigger):
        tools = [scratch]
        max_steps = 100

    def reply(request: ModelRequest) -> Reply:
        if "patient digger" not in request.messages[0]["content"]:
            return DONE if len(request.messages) > 2 else calling("eager", place="x")
        made = BONE if request.forced_tool else calling("scratch")
        return Reply(calls=made.calls, usage=Usage(100, 10, requests=1))

    run = call.run(Boss(model=script(reply), tools=[Eager], max_total_tokens=2_000))
    assert run.branches[0].stop_reason == "limit"
    assert run.usage.total_tokens <= 2_000


def test_agent_tool_with_wrong_arguments_returns_tool_error(call: Call, script: Script) -> None:
    model = script(calling("deep_digger", plaice="x") & calling("deep_digger", place="x", depth="deep"), DONE)
    run = call.run(Boss(model=model))
    first, second = results(run.history)[:2]
    assert "`place`" in first
    assert "`depth`" in second
    assert run.branches == []


@pytest.mark.every_way
def test_agent_tool_whose_run_fails_returns_tool_error(call: Call, script: Script) -> None:
    class Stubborn(DeepDigger):
        parse_retries = 0

    model = script(calling("stubborn", place="x"), finish(), DONE)
    run = call.run(Boss(model=model, tools=[Stubborn]))
    assert results(run.history)[0].startswith("Tool error: ParseError: `Stubborn` got no valid output")
    assert run.branches[0].stop_reason == "error"
    assert run.output == "found"


def test_agent_tool_that_ends_without_output_returns_tool_error(call: Call, script: Script) -> None:
    @tool
    def scratch() -> str:
        """Scratch."""
        return "earth"

    class Hasty(DeepDigger):
        tools = [scratch]

    run = call.run(Boss(model=script(calling("hasty", place="x"), calling("scratch"), DONE), tools=[Hasty]))
    assert "Unfinished" in results(run.history)[0]
    assert isinstance(run.branches[0].output, Unfinished)


@pytest.mark.every_way
@pytest.mark.message_list
def test_agent_tools_and_function_tools_of_one_response_run_concurrently(call: Call) -> None:
    both = threading.Barrier(3)

    @tool
    def look() -> str:
        """Look."""
        both.wait(PATIENCE)
        return "nothing"

    def reply(request: ModelRequest) -> Reply:
        if request.messages[0]["content"] != "Find it.":
            both.wait(PATIENCE)
            return BONE
        again = calling("deep_digger", place="a") & calling("look") & calling("deep_digger", place="b")
        return DONE if len(request.messages) > 2 else again

    class Waiting(ScriptedModel):
        async def acomplete(self, request: ModelRequest) -> Any:
            import asyncio

            return await asyncio.to_thread(self.complete, request)

    run = call.run(Boss(model=Waiting(reply), tools=[DeepDigger, look]))
    assert results(run.history)[:3] == ['{"what":"a bone"}', "nothing", '{"what":"a bone"}']


@pytest.mark.message_list
def test_agent_tool_nested_deeper_than_max_depth_returns_tool_error(call: Call) -> None:
    class Recursive(module[Any, str]):
        """Dig deeper."""

        final_output = str
        max_steps = 3

    Recursive.tools = [Recursive]
    deepest = 0

    def reply(request: ModelRequest) -> Reply:
        nonlocal deepest
        last = request.messages[-1]
        if last["role"] == "tool":
            return finish(result=last["content"][:80])
        deepest += 1
        return calling("recursive")

    run = call.run(Recursive(model=ScriptedModel(reply), max_depth=3))
    assert deepest == 4
    assert "it would be at depth 4" in str(run.output)


def test_branch_inherits_agent_tools_of_parent(call: Call, script: Script) -> None:
    class Aside(module[Any, str]):
        """Step aside."""

        final_output = str
        max_steps = 3

    model = script(calling("aside"), calling("deep_digger", place="x"), BONE, finish(result="aside"), DONE)
    run = call.run(Boss(model=model, branches={"aside": Aside}))
    assert run.branches[0].branches[0].branch == "aside/deep_digger"
    assert run.branches[0].output == "aside"


@pytest.mark.every_way
def test_one_agent_tool_instance_called_twice_in_one_response_starts_two_runs(call: Call, script: Script) -> None:
    digger = DeepDigger()
    both = calling("deep_digger", place="a") & calling("deep_digger", place="b")
    run = call.run(Boss(model=script(both, BONE, BONE, DONE), tools=[digger]))
    assert len(run.branches) == 2
    assert len({record.id for record in run.branches}) == 2


@pytest.mark.live_objects
def test_agent_tool_added_or_removed_by_on_step_changes_tools_of_next_request(call: Call, script: Script) -> None:
    class Changing(Boss):
        tools = []

        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.add_tool(DeepDigger)
                assert step.tools == [DeepDigger]
            else:
                step.remove_tool("deep_digger")

    model = script("Hm.", calling("deep_digger", place="x"), BONE, DONE)
    call(Changing(model=model))
    assert [names(each) for each in model.requests] == [
        ["__finish__"],
        ["deep_digger", "__finish__"],
        ["__finish__"],
        ["__finish__"],
    ]


def test_tool_decorator_on_agent_sets_tool_name_and_description(call: Call, script: Script) -> None:
    @tool(name="dig", description="Dig it up.")
    class Named(DeepDigger): ...

    model = script(calling("dig", place="x"), BONE, DONE)
    call(Boss(model=model, tools=[Named]))
    assert model.requests[0].tools[0]["function"]["description"] == "Dig it up."


@pytest.mark.every_way
def test_listener_receives_agent_tool_as_child_run(call: Call, script: Script) -> None:
    heard: list[Any] = []
    with listen(heard.append):
        run = call.run(Boss(model=script(calling("deep_digger", place="x"), BONE, DONE)))
    (begun,) = [entry for entry in heard if isinstance(entry, BranchStarted)]
    (ended,) = [entry for entry in heard if isinstance(entry, BranchFinished)]
    inner = [entry for entry in heard if isinstance(entry, RunStarted)][1]
    assert begun.child_id == ended.child_id == inner.run_id == run.branches[0].id
    assert begun.call_id == inner.call_id == "call_1_0"
    assert inner.parent_id == run.id


def test_two_agent_tools_with_equal_name_raise_tool_conflict_error() -> None:
    other = type("DeepDigger", (module,), {"final_output": str})
    with pytest.raises(ToolConflictError, match="'deep_digger' of `Two` is defined twice"):
        type("Two", (module,), {"tools": [DeepDigger, other]})


def test_agent_tool_class_with_required_init_arguments_raises_declaration_error() -> None:
    class Needy(DeepDigger):
        def __init__(self, spade: str) -> None:
            super().__init__()
            self.spade = spade

    with pytest.raises(DeclarationError, match=r"`Two\.tools\[0\]` is the class `Needy`, .*'spade'.*Use an instance"):
        type("Two", (module,), {"tools": [Needy]})
    type("Two", (module,), {"tools": [Needy("steel")]})


def test_agent_tool_with_decorator_timeout_raises_error_that_suggests_max_seconds() -> None:
    timed = tool(timeout=1.0)(type("Timed", (DeepDigger,), {}))
    with pytest.raises(DeclarationError, match=r"`Two\.tools\[0\]` is the agent `Timed` with .*`max_seconds`"):
        type("Two", (module,), {"tools": [timed]})


def test_module_base_class_as_tool_raises_declaration_error() -> None:
    with pytest.raises(DeclarationError, match="base class of all modules"):
        type("Two", (module,), {"tools": [module]})


@pytest.mark.parametrize("how", ["sync", "async"])
def test_agent_tool_with_parallel_false_runs_one_call_at_a_time(how: str) -> None:
    under_way: list[int] = []
    most: list[int] = []

    @tool(parallel=False)
    class Alone(module[Place, str]):
        """Dig alone."""

        final_output = str
        model = ScriptedModel(lambda request: finish(result="gold"))

        async def on_finish(self, output: str) -> None:
            under_way.append(1)
            await asyncio.sleep(0.03)
            most.append(len(under_way))
            under_way.pop()

    two = calling("alone", place="here") & calling("alone", place="there")
    boss = Boss(tools=[Alone], model=ScriptedModel([two, finish(result="done")]))
    run = boss.run() if how == "sync" else asyncio.run(boss.arun())
    assert most == [1, 1]
    assert len(run.branches) == 2
