"""Tests of wrong attributes and wrong arguments that a new user tries: the message names the right place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import module
from acorn.testing import finish


class Answer(BaseModel):
    answer: str


class Agent(module[None, Answer]):
    """Answer."""


class Speaker(module[None, str]):
    """Speak."""


def test_output_field_read_from_record_raises_error_that_names_the_output(script: Script) -> None:
    run: Any = Agent(model=script(finish(answer="x"))).run()
    with pytest.raises(AttributeError, match=r"`run\.output\.answer`"):
        _ = run.answer
    assert run.output.answer == "x"


@each_case("name", ["nothing", "anser", "result", "text"])
def test_unknown_attribute_of_record_raises_error_without_wrong_advice(script: Script, name: str) -> None:
    run: Any = Agent(model=script(finish(answer="x"))).run()
    with pytest.raises(AttributeError, match=f"`{name}`|'{name}'") as caught:
        getattr(run, name)
    assert f"run.output.{name}" not in str(caught.value)


def test_record_of_plain_output_names_the_output(script: Script) -> None:
    run: Any = Speaker(model=script(finish("x"))).run()
    with pytest.raises(AttributeError, match=r"`run\.output`"):
        _ = run.result


@each_case("option", ["deps", "history", "run_id", "priority", "not_before", "deliver"])
def test_option_of_using_passed_to_class_raises_type_error_that_names_using(option: str) -> None:
    build: Any = Agent
    with pytest.raises(TypeError) as caught:
        build(**{option: 1})
    assert f"`Agent().using({option}=...)`" in str(caught.value)


def test_input_passed_to_class_raises_type_error_that_names_the_call() -> None:
    class Asker(module):
        initial_input = ["question"]
        final_output = str

    build: Any = Asker
    with pytest.raises(TypeError, match=r"Asker\(\)\(question="):
        build(question="x")
