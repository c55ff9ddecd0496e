"""Modules that cannot be used, and one whose branches cannot be told apart."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from acorn import module
from acorn.models.port import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish


class Waiting(BaseModel):
    later: Later  # type: ignore[name-defined]  # noqa: F821


class NotThere(module):
    """Its input names a class that never comes."""

    model = "nobody/asked"
    initial_input = Waiting
    final_output = str


class SpoiltByInit(module):
    """Its `__init__` sets what is not allowed."""

    model = "nobody/asked"
    final_output = str

    def __init__(self, **overrides: Any) -> None:
        super().__init__(**overrides)
        self.temperature = 9


class Verdict(BaseModel):
    is_true: bool


class Check(module[None, Verdict]):
    """Check it thoroughly."""


def reply(request: ModelRequest) -> Reply:
    if "thoroughly" in request.messages[0]["content"]:
        return Reply("Checking. ") & finish(is_true=True)
    return finish(result="fine") if request.messages[-1]["role"] == "tool" else call("check") & call("check")


class Twins(module):
    """Two branches of one name at the same time."""

    final_output = str
    max_steps = 3
    branches = {"check": Check}
    model = ScriptedModel(reply)
