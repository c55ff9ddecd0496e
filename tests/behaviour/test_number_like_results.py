"""Tests of tool results like those of NumPy: a value with `tolist()` or `item()` is sent as a list or a number."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import BaseModel, ConfigDict
from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import Step, module
from acorn.testing import call as calling
from acorn.testing import finish


class Scalar:
    """A scalar with `item()`, like `numpy.float64`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return f"Scalar({self.value})"


class Array:
    """An array with `tolist()` and with an `item()` that fails, like `numpy.ndarray`."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def tolist(self) -> list[Any]:
        return list(self.values)

    def item(self) -> Any:
        raise ValueError("can only convert an array of size 1 to a Python scalar")

    def __repr__(self) -> str:
        return f"Array{self.values}"


class FailingArray:
    def tolist(self) -> list[Any]:
        raise ValueError("the memory is gone")

    def __repr__(self) -> str:
        return "FailingArray()"


@dataclasses.dataclass
class Table:
    name: str
    mean: Any


class Frame(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    rows: Any


CASES = [
    (Scalar(3.5), "3.5"),
    (Scalar(7), "7"),
    (Scalar(True), "true"),
    (Scalar(float("nan")), "null"),
    (Scalar("text"), '"text"'),
    (Array(1, 2.5), "[1,2.5]"),
    (Array(), "[]"),
    (Array([1], [2]), "[[1],[2]]"),
    ({"mean": Scalar(1.5), "rows": [Array(1, 2)]}, '{"mean":1.5,"rows":[[1,2]]}'),
    ((Scalar(1), Array(2)), "[1,[2]]"),
    (Table("t", Scalar(2)), '{"name":"t","mean":2}'),
    (Frame(rows=Array(1, Scalar(2))), '{"rows":[1,2]}'),
]


def sent(script: Script, value: Any) -> str:
    def measure() -> Any:
        """Measure."""
        return value

    class Agent(module[None, str]):
        tools = [measure]
        max_steps = 2

    model = script(calling("measure"), finish("ok"))
    Agent(model=model)()
    return str(model.requests[1].messages[-1]["content"])


@each_case(("value", "wanted"), CASES)
def test_number_like_tool_result_is_sent_as_numbers_and_lists(script: Script, value: Any, wanted: str) -> None:
    assert sent(script, value) == wanted


def test_array_whose_conversion_raises_does_not_end_the_run(script: Script) -> None:
    text = sent(script, FailingArray())
    assert "FailingArray()" in text or text.startswith("Tool error: ValueError: the memory is gone")


def test_number_like_context_is_written_as_numbers(script: Script) -> None:
    def measure() -> str:
        """Measure."""
        return "done"

    class Agent(module[None, str]):
        tools = [measure]
        max_steps = 2

        def on_step(self, step: Step) -> None:
            step.add_to_context({"mean": Scalar(1.5), "rows": Array(1, 2)})

    model = script(calling("measure"), finish("ok"))
    Agent(model=model)()
    text = model.requests[1].messages[-1]["content"]
    assert "<mean>1.5</mean>" in text
    assert "<item>1</item>" in text
    assert "Array" not in text
