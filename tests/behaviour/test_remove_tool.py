"""Tests of `step.remove_tool`: a second removal is harmless, and an unknown name raises an error with the names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviour.conftest import Script

from acorn import InputError, Step, module
from acorn.testing import call as calling
from acorn.testing import finish


def look(place: str) -> str:
    """Look."""
    return place


def wait() -> str:
    """Wait."""
    return "waited"


class Sub(module[None, str]):
    """Think deeper."""


def run_with(script: Script, on_step: Any, *replies: Any) -> Any:
    class Agent(module[None, str]):
        tools = [look, wait]
        branches = {"deeper": Sub}
        max_steps = 4

    Agent.on_step = on_step  # type: ignore[method-assign]
    model = script(*replies)
    Agent(model=model)()
    return model


def offered(model: Any, index: int) -> list[str]:
    return [tool["function"]["name"] for tool in model.requests[index].tools]


def test_tool_removed_in_each_of_two_steps_is_removed_once(script: Script) -> None:
    def on_step(self: Any, step: Step) -> None:
        step.remove_tool("look")

    model = run_with(script, on_step, calling("wait"), calling("wait"), finish("ok"))
    assert "look" not in offered(model, 1)
    assert "look" not in offered(model, 2)


def test_tool_removed_twice_in_one_step_is_removed_once(script: Script) -> None:
    def on_step(self: Any, step: Step) -> None:
        step.remove_tool("look")
        step.remove_tool("look")

    model = run_with(script, on_step, calling("wait"), finish("ok"))
    assert "look" not in offered(model, 1)
    assert "wait" in offered(model, 1)


def test_branch_removed_twice_is_removed_once(script: Script) -> None:
    def on_step(self: Any, step: Step) -> None:
        step.remove_tool("deeper")
        step.remove_tool("deeper")

    model = run_with(script, on_step, calling("wait"), calling("wait"), finish("ok"))
    assert "deeper" not in offered(model, 1)
    assert "deeper" not in offered(model, 2)


def test_added_tool_removed_twice_is_removed_once(script: Script) -> None:
    def extra() -> str:
        """Do more."""
        return "more"

    def on_step(self: Any, step: Step) -> None:
        if step.counter == 1:
            step.add_tool(extra)
        step.remove_tool("extra")

    model = run_with(script, on_step, calling("wait"), calling("wait"), finish("ok"))
    assert "extra" not in offered(model, 1)
    assert "extra" not in offered(model, 2)


@pytest.mark.parametrize("name", ["lok", "search", ""])
def test_removal_of_name_that_never_existed_raises_input_error_with_names(script: Script, name: str) -> None:
    def on_step(self: Any, step: Step) -> None:
        step.remove_tool(name)

    with pytest.raises(InputError) as caught:
        run_with(script, on_step, calling("wait"))
    message = str(caught.value)
    assert f"`{name}`" in message
    assert "`look`" in message
    assert "`wait`" in message
    assert "`deeper`" in message


def test_removal_by_function_raises_input_error_that_asks_for_the_name(script: Script) -> None:
    def on_step(self: Any, step: Step) -> None:
        step.remove_tool(look)  # type: ignore[arg-type]

    with pytest.raises(InputError, match=r"[`'\"]look[`'\"]"):
        run_with(script, on_step, calling("wait"))
