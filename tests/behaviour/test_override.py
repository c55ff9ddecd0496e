"""Tests of `with MyAgent.override(...)`, which changes settings of every instance of a class in the current context."""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context, copy_context
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Call
from tests.cases import each_case

from acorn import DeclarationError, ModelError, Step, module, tool
from acorn.models import Price
from acorn.testing import AnyModel, ScriptedModel, finish
from acorn.testing import call as calling


class Report(BaseModel):
    title: str


class Agent(module[Any, Report]):
    """Report."""

    model = ScriptedModel([])  # It raises when it is asked.
    temperature = 0.1


class Sub(Agent):
    temperature = 0.2


class Other(module[Any, Report]):
    """Another."""


DONE = finish(title="done")


def scripted(*replies: Any) -> ScriptedModel:
    return ScriptedModel(replies or (DONE,))


def application(agent: type[module[Any, Any]] = Agent, **settings: Any) -> Any:
    """An agent that creates another agent inside."""
    return agent(**settings)


@each_case("kind", [Agent, Sub])
def test_override_replaces_settings_of_class_of_instance_and_of_using(call: Call, kind: type[Agent]) -> None:
    model = scripted(DONE, DONE, DONE)
    ours = ScriptedModel([])
    with Agent.override(model=model, temperature=0.9):
        call(application(kind))
        call(application(kind, model=ours, temperature=0.3))
        call(application(kind).using(model=ours, temperature=0.4))
    assert [request.temperature for request in model.requests] == [0.9] * 3
    assert ours.requests == []


def test_override_applies_to_existing_instances_until_block_ends() -> None:
    agent = Agent(model=scripted(DONE), temperature=0.3)
    inside = scripted()
    with Agent.override(model=inside):
        agent()
    assert (len(inside.requests), agent.model.requests) == (1, [])
    agent()
    assert len(agent.model.requests) == 1
    with pytest.raises(KeyError), Agent.override(model=inside):
        raise KeyError
    with pytest.raises(AssertionError, match="received 2 requests"):
        agent()


def test_override_of_subclass_does_not_affect_parent_class_and_other_classes() -> None:
    own = scripted(DONE, DONE)
    with Sub.override(model=ScriptedModel([])):
        Agent(model=own)()
        Other(model=own)()
    assert len(own.requests) == 2


def test_override_of_module_base_class_affects_every_agent() -> None:
    with module.override(model=AnyModel()):
        assert isinstance(Other()(), Report)
        assert isinstance(Sub()(), Report)


def test_nested_override_replaces_only_attributes_that_it_sets() -> None:
    for outer, inner in ((Agent, Sub), (Sub, Agent), (Sub, Sub)):
        model = scripted(DONE, DONE)
        with outer.override(model=model, temperature=0.5, max_tokens=50):
            with inner.override(temperature=0.6):
                Sub()()
            Sub()()
        assert [(sent.temperature, sent.max_tokens) for sent in model.requests] == [(0.6, 50), (0.5, 50)]


def test_setting_assigned_to_step_replaces_override(call: Call) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    seen: list[float] = []

    class Stepping(Agent):
        tools = [look]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            seen.append(step.temperature)
            step.temperature = 0.8

    model = scripted(calling("look"), DONE)
    with Stepping.override(model=model, temperature=0.5):
        call(Stepping(temperature=0.3))
    assert seen == [0.5]
    assert [sent.temperature for sent in model.requests] == [0.5, 0.8]


# Nested agents


class Inner(Agent):
    """Inside."""


class Helper(Agent):
    """Help."""


class Boss(module[Any, Report]):
    """Delegate."""

    branches = {"inner": Inner}
    tools = [Helper]
    max_steps = 4

    def on_step(self, step: Step) -> None:
        if step.counter == 1:
            self.branch(Sub)

    @tool
    def by_hand(self) -> str:
        """Make an agent inside of a tool."""
        return str(Sub()().title)


@pytest.mark.every_way
def test_override_affects_branches_agent_tools_and_nested_agents(call: Call) -> None:
    model = AnyModel()
    own = ScriptedModel([])
    with Boss.override(model=own), Agent.override(model=model, temperature=0.9), Boss.override(model=model):
        call(Boss(model=own))
    of_boss = [sent for sent in model.requests if sent.temperature == 0.7]
    below = [sent for sent in model.requests if sent.temperature == 0.9]
    assert (len(of_boss), len(below)) == (
        2,
        4,
    )  # The agent tool, the agent made in a tool, the branch, the branch started from code.
    assert own.requests == []


def test_override_of_agent_tool_input_changes_tool_schema() -> None:
    model = AnyModel()
    with module.override(model=model), Helper.override(initial_input=["question"]):
        Boss(branches={})()
    definitions = {each["function"]["name"]: each["function"] for each in model.requests[0].tools}
    assert list(definitions["helper"]["parameters"]["properties"]) == ["question"]
    again = AnyModel()
    with module.override(model=again):
        Boss(branches={})()
    definitions = {each["function"]["name"]: each["function"] for each in again.requests[0].tools}
    assert not definitions["helper"]["parameters"].get("properties")


def test_override_affects_tasks_and_threads_started_in_block() -> None:
    async def arun() -> Any:
        return await asyncio.gather(Agent().acall(), asyncio.to_thread(Sub()))

    class Two(module[Any, str]):
        """Two tools at once, each in its thread."""

        max_steps = 2

        @tool
        def one(self) -> str:
            """One."""
            return f"{threading.current_thread().name} {Agent()().title}"

        @tool
        async def two(self) -> str:
            """Two."""
            return (await Sub().acall()).title

    model = AnyModel()
    with Agent.override(model=model), Two.override(model=model):
        assert len(asyncio.run(arun())) == 2
        Two()()
        asyncio.run(Two().acall())
    assert len(model.requests) == 2 + 2 * 4


def test_override_does_not_affect_call_in_contextvars_context_copied_before_override() -> None:
    context = copy_context()
    own = scripted()
    with Agent.override(model=ScriptedModel([])):
        assert context.run(Agent(model=own)) == Report(title="done")


def test_stream_created_in_override_block_uses_override_after_block_ends() -> None:
    class Quiet(Boss):
        def on_step(self, step: Step) -> None: ...

    with Quiet.override(model=AnyModel()), Agent.override(model=AnyModel()):
        chunks = Quiet(tools=[]).stream()
    assert isinstance(list(chunks)[-1].result, Report)


# Attributes that can be overridden


def test_override_replaces_model_prompt_tools_max_steps_and_output() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    model = scripted(calling("look"), finish(result="x"))
    with Agent.override(
        model=model, system_prompt=lambda: "Another prompt.", tools=[look], max_steps=2, final_output=str
    ):
        output: Any = Agent()()
    assert output == "x"
    assert model.requests[0].messages[0] == {"role": "system", "content": "Another prompt."}
    with Agent.override(model=scripted(), max_cost=1.0), pytest.raises(DeclarationError, match="cannot be enforced"):
        Agent()()
    with Agent.override(model=ScriptedModel(DONE, price=Price(0, 0)), max_cost=1.0):
        assert Agent()() == Report(title="done")


def test_override_that_adds_tool_source_opens_it_once_in_with_agent_block() -> None:
    class Source:
        opened = 0

        def open(self) -> None:
            Source.opened += 1

        def tools(self) -> list[Any]:
            return []

    with Agent.override(model=scripted(DONE, DONE), tools=[Source()]), Agent() as agent:
        agent()
        agent()
    assert Source.opened == 1


def test_override_without_arguments_has_no_effect() -> None:
    with Agent.override():
        assert Agent(model=scripted())() == Report(title="done")


def test_override_with_invalid_value_raises_error_before_block_starts() -> None:
    for wrong in ({"temperature": 3}, {"model": {"model": ""}}, {"tools": [5]}, {"max_steps": 0}):
        with pytest.raises(DeclarationError) as expected:
            Agent(**wrong)
        with pytest.raises(DeclarationError) as caught:
            Agent.override(**wrong)
        assert str(caught.value) == str(expected.value)
    with pytest.raises(TypeError, match=r"`Agent` has no setting `temprature`\. Did you mean `temperature`"):
        Agent.override(temprature=1)


def test_override_with_failing_model_raises_model_error() -> None:
    with Agent.override(model=ScriptedModel(ModelError("no"))), pytest.raises(ModelError, match="no"):
        Agent()()


def test_override_block_may_be_entered_again_and_left_in_another_task() -> None:
    block = Agent.override(temperature=0.9)
    for _ in range(2):
        with block:
            pass

    async def enter() -> None:
        block.__enter__()

    async def leave() -> None:
        block.__exit__(None, None, None)

    with asyncio.Runner() as runner:
        runner.run(enter())
        runner.run(leave(), context=Context())


def test_override_used_as_decorator_raises_type_error() -> None:
    with pytest.raises(TypeError, match="not callable"):
        Agent.override(temperature=0.9)(print)  # type: ignore[operator]
