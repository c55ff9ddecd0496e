"""Tests of the allowed LiteLLM versions, and of tool calls with the installed version."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from tests.contract.conftest import Wire

from acorn import module, tool
from acorn.testing import call, finish

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALLOWED = next(
    requirement for requirement in map(Requirement, PROJECT["dependencies"]) if requirement.name == "litellm"
).specifier


def test_only_usable_litellm_releases_are_allowed() -> None:
    compromised = ["1.82.7", "1.82.8"]
    without_tool_calls = ["1.106.0", "1.106.1", "1.106.2", "1.106.99", "1.106.2.post1"]
    outside_range = ["2.0.0", "1.83.9", "1.0.0"]
    for number in (*compromised, *without_tool_calls, *outside_range):
        assert not ALLOWED.contains(number), number
    for number in ["1.84.0", "1.84.1", "1.105.3", "1.107.0", "1.108.4"]:
        assert ALLOWED.contains(number), number


def test_installed_litellm_is_in_range() -> None:
    assert ALLOWED.contains(version("litellm"))


@tool
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


class Adder(module):
    """You add numbers."""

    final_output = int
    tools = [add]
    max_steps = 2


def test_installed_litellm_returns_tool_calls(wire: Wire) -> None:
    wire.serve([call("add", left=2, right=3), finish(result=5)])
    assert wire.call(Adder(model=wire.model())) == 5
    assert len(wire.bodies()[0]["tools"]) == 2
