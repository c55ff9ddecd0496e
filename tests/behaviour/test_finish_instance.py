"""Tests of `step.finish` with one instance of the output, and with wrong arguments."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import ParseError, Step, module
from acorn.testing import call as calling


class Answer(BaseModel):
    answer: str
    sure: bool = True


class Other(BaseModel):
    answer: str


def noop() -> str:
    """Do nothing."""
    return "nothing"


def end_with(script: Script, kind: Any, *args: Any, **fields: Any) -> Any:
    class Agent(module):
        final_output = kind
        tools = [noop]
        max_steps = 3

        def on_step(self, step: Step) -> None:
            step.finish(*args, **fields)

    return Agent(model=script(calling("noop"))).run()


@each_case(
    ("kind", "value"),
    [
        (Answer, Answer(answer="x", sure=False)),
        (str, "x"),
        (int, 7),
        (list[int], [1, 2]),
        (list[Answer], [Answer(answer="x")]),
        (Answer | Other, Other(answer="x")),
    ],
)
def test_step_finish_takes_one_instance_of_the_output(script: Script, kind: Any, value: Any) -> None:
    run = end_with(script, kind, value)
    assert run.output == value
    assert type(run.output) is type(value)
    assert run.stop_reason == "step"


def test_step_finish_takes_fields_and_result(script: Script) -> None:
    assert end_with(script, Answer, answer="x").output == Answer(answer="x")
    assert end_with(script, int, result=7).output == 7


@each_case("value", [Other(answer="x"), {"answer": 5}, "x", None])
def test_step_finish_with_other_value_raises_parse_error(script: Script, value: Any) -> None:
    with pytest.raises(ParseError, match=r"`step\.finish` of `Agent`"):
        end_with(script, Answer, value)


def test_step_finish_with_value_and_fields_raises_error_that_names_both(script: Script) -> None:
    with pytest.raises((TypeError, ParseError), match="`answer`"):
        end_with(script, Answer, Answer(answer="x"), answer="y")


def test_step_finish_with_two_values_raises_error(script: Script) -> None:
    with pytest.raises((TypeError, ParseError), match="finish"):
        end_with(script, Answer, Answer(answer="x"), Answer(answer="y"))


def test_step_finish_with_changed_invalid_instance_raises_parse_error(script: Script) -> None:
    wrong = Answer(answer="x")
    wrong.answer = 5  # type: ignore[assignment]
    with pytest.raises(ParseError, match="`answer`"):
        end_with(script, Answer, wrong)


class Sourced(Answer):
    source: str = "a book"


def test_step_finish_takes_instance_of_subclass(script: Script) -> None:
    assert end_with(script, Answer, Sourced(answer="x")).output == Sourced(answer="x")
    wrong = Sourced.model_construct(answer=5)
    with pytest.raises(ParseError, match="`answer` must be a string"):
        end_with(script, Answer, wrong)
