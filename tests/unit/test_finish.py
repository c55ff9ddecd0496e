"""Tests of the functions that check an answer of the model: the parsed output and the error messages."""

from __future__ import annotations

import math

import pytest
from pydantic import BaseModel, ConfigDict, Field

from acorn import ParseError
from acorn._formats.schema.shape import Shape
from acorn._machine.finish import judge_arguments, judge_fields, judge_xml, no_answer, out_of_retries


class Person(BaseModel):
    name: str
    age: float = Field(alias="Age")


class Nothing(BaseModel):
    pass


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


PERSON = Shape(Person)
WHOLE = "<output><name>Ada</name><age>36</age></output>"


def test_truncated_finish_arguments_are_reported_as_cut_off() -> None:
    cut = judge_arguments(PERSON, '{"name": "Ad', 7)
    assert cut.was_cut
    assert "cut off at the limit of 7 tokens" in cut.user_message
    assert "cut off" in cut.document
    assert not judge_arguments(PERSON, '{"name": "Ad').was_cut
    wrong = judge_arguments(PERSON, '{"name": 1, "Age": 2}', 7)  # They had arrived completely.
    assert not wrong.was_cut
    assert "cut off" not in wrong.user_message


def test_missing_arguments_are_parsed_as_empty_object() -> None:
    assert judge_arguments(Shape(Nothing), "").instance == Nothing()


def test_truncated_xml_answer_after_complete_answer_is_reported_as_cut_off() -> None:
    assert judge_xml(PERSON, WHOLE, "output", 7).instance == Person(name="Ada", Age=36)
    for half in ("<output><name>Ada</name>", f"{WHOLE} No: <output><name>Eve</name><age>3", "Let me think"):
        verdict = judge_xml(PERSON, half, "output", 7)
        assert verdict.instance is None
        assert verdict.was_cut


def test_xml_answer_with_field_names_and_with_aliases_is_accepted() -> None:
    for tag in ("age", "Age"):
        text = f"<output><name>Ada</name><{tag}>36</{tag}></output>"
        assert judge_xml(PERSON, text, "output").instance == Person(name="Ada", Age=36)


def test_nan_in_xml_answer_is_accepted_for_float_field() -> None:
    found = judge_xml(PERSON, WHOLE.replace("36", "nan"), "output").instance
    assert isinstance(found, Person)
    assert math.isnan(found.age)


def test_each_invalid_field_passed_to_finish_is_reported_once() -> None:
    with pytest.raises(ParseError) as caught:
        judge_fields(PERSON, {"name": 1, "size": 2, "age": 3.0}, "Agent")
    assert [problem["path"] for problem in caught.value.errors] == ["size", "name"]
    assert "the fields are: `name`, `age`" in str(caught.value)
    with pytest.raises(ParseError) as caught:
        judge_fields(Shape(Closed), {"name": "a", "size": 2}, "Agent")
    assert [problem["path"] for problem in caught.value.errors] == ["size"]
    assert judge_fields(Shape(Open), {"name": "a", "more": 1}, "Agent") == Open(name="a", more=1)  # type: ignore[call-arg]
    assert judge_fields(PERSON, {"name": "a", "age": 1.0}, "Agent") == Person(name="a", Age=1.0)


def test_missing_finish_call_is_reported_to_model() -> None:
    missing, cut = (no_answer("text", cut_at) for cut_at in (None, 7))
    assert "did not call `__finish__`" in missing.user_message
    assert not missing.was_cut
    assert "cut off at the limit of 7 tokens" in cut.user_message
    assert cut.was_cut


def test_parse_error_after_retries_contains_advice() -> None:
    cut = judge_arguments(PERSON, '{"name": "Ad', 7)
    assert "Raise `max_tokens`, or ask for less." in str(out_of_retries(cut, "Agent", "m", 1))
    wrong = judge_arguments(PERSON, "{}")
    error = out_of_retries(wrong, "Agent", "m", 2)
    assert "in 2 attempts" in str(error)
    assert "Raise `parse_retries`" in str(error)
    assert (error.raw_output, error.attempts, len(error.errors)) == ("{}", 2, 2)
