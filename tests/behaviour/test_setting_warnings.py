"""Tests of assignments to settings of an instance: during a run, and with a misspelled name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import Step, module, tool
from acorn.testing import call as calling
from acorn.testing import finish


class Agent(module[None, str]):
    max_steps = 3

    @tool
    def wait(self) -> str:
        """Wait."""
        return "waited"


@each_case(("name", "value"), [("temperature", 0), ("max_tokens", 5), ("model", "openai/gpt-4o"), ("tools", [])])
def test_setting_assigned_to_self_in_hook_warns_with_name_of_step_attribute(
    script: Script, name: str, value: Any
) -> None:
    class Cold(Agent):
        def on_step(self, step: Step) -> None:
            setattr(self, name, value)

    with pytest.warns(UserWarning, match=f"`step.{name}`") as caught:
        Cold(model=script(calling("wait"), finish("ok")))()
    assert "`Cold.on_step`" in str(caught[0].message) or "`Cold`" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_setting_assigned_to_self_in_tool_warns_with_name_of_step_attribute(script: Script) -> None:
    class Cold(module[None, str]):
        max_steps = 3

        @tool
        def chill(self) -> str:
            """Chill."""
            self.temperature = 0
            return "cold"

    with pytest.warns(UserWarning, match="`step.temperature`"):
        Cold(model=script(calling("chill"), finish("ok")))()


def test_setting_without_step_attribute_assigned_in_hook_warns_that_this_run_does_not_change(script: Script) -> None:
    class Patient(Agent):
        def on_step(self, step: Step) -> None:
            self.max_steps = 9

    with pytest.warns(UserWarning, match="max_steps"):
        Patient(model=script(calling("wait"), finish("ok")))()


def test_other_attribute_assigned_to_self_in_hook_does_not_warn(script: Script) -> None:
    class Counter(Agent):
        seen = 0

        def on_step(self, step: Step) -> None:
            self.seen += 1
            self.notes = ["x"]
            self.history = self.history[:]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Counter(model=script(calling("wait"), finish("ok")))()


def test_setting_assigned_to_other_agent_in_hook_does_not_warn(script: Script) -> None:
    other = Agent()

    class Giver(Agent):
        def on_step(self, step: Step) -> None:
            other.temperature = 0

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Giver(model=script(calling("wait"), finish("ok")))()
    assert other.temperature == 0


def test_setting_assigned_outside_of_run_does_not_warn() -> None:
    agent = Agent()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.temperature = 0
        agent.using(max_steps=2).max_tokens = 5


@each_case(
    ("wrong", "right"),
    [
        ("temprature", "temperature"),
        ("max_step", "max_steps"),
        ("tool", "tools"),
        ("final_ouput", "final_output"),
        ("sytem_prompt", "system_prompt"),
    ],
)
def test_misspelled_attribute_assigned_to_instance_warns_with_suggestion(wrong: str, right: str) -> None:
    agent: Any = Agent()
    with pytest.warns(UserWarning, match=f"`Agent.{wrong}`.*`{right}`") as caught:
        setattr(agent, wrong, 1)
    assert caught[0].filename == __file__
    assert getattr(agent, wrong) == 1


def test_unrelated_attribute_assigned_to_instance_does_not_warn() -> None:
    agent: Any = Agent()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.database = 1
        agent._temprature = 1


def test_setting_of_wrong_type_assigned_to_instance_raises_at_the_next_call_with_the_name() -> None:
    agent: Any = Agent(model="openai/gpt-4o")
    agent.temperature = "hot"
    with pytest.raises(Exception, match=r"`Agent\.temperature` must be a number from 0 to 2, got 'hot'"):
        agent()
