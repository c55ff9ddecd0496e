"""Tests of errors about messages that a hook adds: the index is the one that the hook used."""

from __future__ import annotations

from typing import Any

import pytest
from tests.behaviour.conftest import Call
from tests.cases import each_case

from acorn import AcornError, Step, module
from acorn.testing import ScriptedModel
from acorn.testing import call as calling


def noop() -> str:
    """Do nothing."""
    return "nothing"


@each_case("wrong", [{"role": "robot", "content": "x"}, "text", 5, None, {"content": "x"}, ["a"]])
@each_case("position", [0, 1, 2, 3, "end"])
@each_case("calls", [1, 3])
def test_wrong_message_in_history_raises_error_with_index_of_hook(
    call: Call, wrong: Any, position: Any, calls: int
) -> None:
    used: list[int] = []

    class Agent(module[None, str]):
        """Speak."""

        tools = [noop]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            index = len(self.history) if position == "end" else position
            self.history.insert(index, wrong)
            used.append(index)

    reply = calling("noop")
    for _ in range(calls - 1):
        reply = reply & calling("noop")
    with pytest.raises(AcornError) as caught:
        call(Agent(model=ScriptedModel([reply])))
    assert f"`history[{used[0]}]`" in str(caught.value)
