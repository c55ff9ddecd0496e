"""Tests of hooks that look right but cannot work: each raises an error at the class that names the fix."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviour.conftest import Script

from acorn import DeclarationError, Step, module, tool
from acorn.testing import call as calling
from acorn.testing import finish


def noop() -> str:
    """Do nothing."""
    return "nothing"


def declare(**attributes: Any) -> Any:
    return type("Agent", (module,), {"__module__": __name__, "final_output": str, **attributes})


def generator(self: Any, step: Any) -> Any:
    yield step


def test_generator_as_hook_raises_declaration_error_at_class() -> None:
    for hook in ("on_step", "on_start", "on_finish", "on_stream", "on_human"):
        with pytest.raises(DeclarationError, match=rf"`Agent\.{hook}`.*yield"):
            declare(**{hook: generator})


def test_property_as_hook_raises_declaration_error_at_class() -> None:
    with pytest.raises(DeclarationError, match=r"`Agent\.on_step` must be a method"):
        declare(on_step=property(lambda self: 5))


def test_generator_as_prompt_method_raises_declaration_error_at_class() -> None:
    with pytest.raises(DeclarationError, match=r"`Agent\.system_prompt`"):
        declare(system_prompt=lambda self: (yield "x"))


def test_generator_as_tool_method_is_read_into_a_list(script: Script) -> None:
    class Agent(module[None, str]):
        max_steps = 2

        @tool
        def count(self, x: int) -> Any:
            """Count."""
            yield from range(x)

    model = script(calling("count", x=2), finish("ok"))
    Agent(model=model)()
    assert model.requests[1].messages[-1]["content"] == "[0,1]"


def test_removed_tool_result_leaves_no_call_without_a_result(script: Script) -> None:
    class Agent(module[None, str]):
        tools = [noop]
        max_steps = 2

        def on_step(self, step: Step) -> None:
            step.tool_results.clear()

    run = Agent(model=script(calling("noop"), finish("ok"))).run()
    answered = {message["tool_call_id"] for message in run.history if message["role"] == "tool"}
    called = {call["id"] for message in run.history for call in message.get("tool_calls") or []}
    assert answered == called
