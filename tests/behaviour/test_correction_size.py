"""Tests of the size of corrections: acorn reports at most 20 problems and shortens long lists of values."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, create_model
from tests.behaviour.small_programs import read_after
from tests.cases import case
from tests.raw_model import RawModel

from acorn import InputError, ParseError, module
from acorn.models.port import ModelResponse, RawCall
from acorn.testing import ScriptedModel, call

Country: Any = enum.Enum("Country", {f"c{at}": f"country number {at}" for at in range(250)})  # type: ignore[misc]


class Row(BaseModel):
    at: int
    name: str


class Answer(BaseModel):
    tags: list[str] = []
    rows: list[Row] = []
    countries: list[Country] = []


WRONG: dict[str, tuple[Any, int]] = {
    "20,000 wrong items": ({"tags": [1] * 20_000}, 19_980),
    "40 wrong items of a large enum": ({"countries": ["x"] * 40}, 20),
    "wrong rows": ({"rows": [{"at": "x", "name": 1}] * 50}, 80),
    "missing fields": ({"rows": [{}] * 50}, 80),
    "21 wrong items": ({"tags": [1] * 21}, 1),
    "a huge wrong value": ({"tags": "x" * 100_000}, 0),
    "one wrong item of a large enum": ({"countries": ["x"]}, 0),
    "20 wrong items": ({"tags": [1] * 20}, 0),
}


class Agent(module[Any, Answer]):
    """Answer."""

    initial_input: Any = []


def finishing(data: Any) -> ModelResponse:
    return ModelResponse("", [RawCall("a", "__finish__", json.dumps(data))], "tool_calls")


def test_correction_reports_at_most_20_problems_and_the_number_of_the_others() -> None:
    for name, (data, others) in WRONG.items():
        with case(name):
            model = RawModel([finishing(data), finishing({})])
            assert Agent(model=model)() == Answer()
            text = str(model.requests[1].messages[-1]["content"])
            assert text.count("<field ") <= 20
            assert (text.count("<field ") == 20) == (others > 0 or "20" in name.split()[0])
            assert not others or str(others) in text.replace(",", "")
            assert len(text) < (10_000 if others or "20" in name else 1500)


def test_long_names_and_texts_in_problems_are_shortened() -> None:
    def refuse(value: str) -> str:
        raise ValueError("no " * 20_000)

    fields: Any = {f"field_{index}": (int, ...) for index in range(400)}
    wide: Any = create_model("Wide", **fields)
    Long = enum.Enum("Long", {"first": "q" * 9000})
    for name, kind, value in (
        ("message", list[Annotated[str, AfterValidator(refuse)]], ["x"] * 30),
        ("enum", list[Long], ["x"] * 30),
        ("pattern", list[Annotated[str, Field(pattern="a" * 9000)]], ["x"] * 30),
        ("key", dict[str, int], {f"{index}" * 9000: "x" for index in range(30)}),
        ("object", list[wide], ["x"] * 30),
    ):
        with case(name):
            model = ScriptedModel([call("__finish__", result=value), call("__finish__", result=value)])
            with pytest.raises(ParseError) as caught:
                module(model=model, final_output=kind, parse_retries=1)()
            assert len(str(model.requests[1].messages[-1]["content"])) < 50_000
            assert len(str(caught.value)) < 50_000


def test_errors_report_at_most_20_problems() -> None:
    for name, (data, _) in WRONG.items():
        with case(name):
            with pytest.raises(ParseError) as caught:
                Agent(model=RawModel([finishing(data)]), parse_retries=0)()
            assert len(str(caught.value)) < 10_000
            model = RawModel([])
            with pytest.raises(InputError) as wrong:
                Agent(model=model, initial_input=Answer)(**data)
            assert len(str(wrong.value)) < 10_000


def test_tool_error_reports_at_most_20_problems() -> None:
    def save(tags: list[str] = [], rows: list[Row] = [], countries: list[Country] = []) -> str:  # noqa: B006
        """Save."""
        return "saved"

    for name, (data, _) in WRONG.items():
        with case(name):
            (text,) = read_after(call("save", **data), save)
            assert text.startswith("Tool error: ")
            assert len(text) < 10_000
