"""Tests of the messages after the last step: the request for the final answer does not also ask for a tool call."""

from __future__ import annotations

import pytest
from tests.behaviour.conftest import Call, Script

from acorn import module


def look() -> str:
    """Look."""
    return "seen"


class Agent(module[None, str]):
    tools = [look]
    max_steps = 1


@pytest.mark.message_list
def test_text_at_last_step_is_followed_by_one_user_message(call: Call, script: Script) -> None:
    model = script("I think.", "<output><result>ok</result></output>", forces=False)
    assert call(Agent(model=model)) == "ok"
    after = model.requests[1].messages[-1:]
    roles = [message["role"] for message in model.requests[1].messages]
    assert roles[-2:] == ["assistant", "user"]
    assert "final answer now" in after[0]["content"]
    assert "call one of your tools" not in after[0]["content"]


@pytest.mark.message_list
def test_text_at_last_step_before_forced_call_does_not_ask_for_tools(call: Call, script: Script) -> None:
    from acorn.testing import finish

    model = script("I think.", finish("ok"))
    assert call(Agent(model=model)) == "ok"
    assert model.requests[1].forced_tool == "__finish__"
    assert "call one of your tools" not in str(model.requests[1].messages)


@pytest.mark.message_list
def test_text_before_last_step_asks_for_tools(call: Call, script: Script) -> None:
    from acorn.testing import finish

    model = script("I think.", finish("ok"))
    assert call(Agent(model=model, max_steps=2)) == "ok"
    assert "call one of your tools" in model.requests[1].messages[-1]["content"]
