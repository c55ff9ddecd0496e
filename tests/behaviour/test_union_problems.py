"""Tests of unions without a discriminator: an error is about the member that was meant, and about no other member."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, model_validator
from tests.behaviour.conftest import Script

from acorn import InputError, ParseError, module, tool
from acorn.testing import call as calling
from acorn.testing import finish


class Refund(BaseModel):
    kind: Literal["refund"]
    order: str
    amount: float


class Exchange(BaseModel):
    kind: Literal["exchange"]
    order: str
    article: str


class Letter(BaseModel):
    kind: Literal["letter"]
    text: str


Action = Refund | Exchange | Letter
WRONG = {"kind": "refund", "order": "A1", "amount": "much"}


class Desk(module[None, Any]):
    final_output = [("action", Action)]


def correction(model: Any) -> str:
    return str(model.requests[1].messages[-1]["content"])


def test_wrong_field_of_untagged_union_in_output_names_only_that_field(script: Script) -> None:
    model = script(finish(action=WRONG), finish(action={**WRONG, "amount": 5}))
    Desk(model=model)()
    text = correction(model)
    assert text.count("<field") == 1
    assert "action" in text
    assert "amount" in text
    assert "much" in text
    assert "exchange" not in text
    assert "letter" not in text
    assert "article" not in text


def test_missing_field_of_untagged_union_in_output_names_only_that_field(script: Script) -> None:
    model = script(finish(action={"kind": "letter"}), finish(action={"kind": "letter", "text": "hi"}))
    Desk(model=model)()
    text = correction(model)
    assert text.count("<field") == 1
    assert "text" in text
    assert "refund" not in text
    assert "amount" not in text


def test_unknown_tag_of_untagged_union_lists_all_tags_once(script: Script) -> None:
    model = script(finish(action={"kind": "burn"}), finish(action={"kind": "letter", "text": "hi"}))
    Desk(model=model)()
    text = correction(model)
    assert text.count("<field") == 1
    assert "refund" in text
    assert "exchange" in text
    assert "letter" in text
    assert "burn" in text
    assert "article" not in text
    assert "amount" not in text


def test_wrong_union_in_list_names_only_the_meant_member(script: Script) -> None:
    class Several(module[None, Any]):
        final_output = [("actions", list[Action])]

    good = {"kind": "letter", "text": "hi"}
    model = script(finish(actions=[good, WRONG]), finish(actions=[good]))
    Several(model=model)()
    text = correction(model)
    assert text.count("<field") == 1
    assert "actions.1.amount" in text


def test_wrong_union_argument_of_tool_names_only_the_meant_member(script: Script) -> None:
    @tool
    def act(action: Action) -> str:
        """Act."""
        return "done"

    class Agent(module[None, str]):
        tools = [act]
        max_steps = 3

    model = script(calling("act", action=WRONG), finish("ok"))
    Agent(model=model)()
    text = correction(model)
    assert "amount" in text
    assert "much" in text
    assert "exchange" not in text
    assert "letter" not in text
    assert "article" not in text


def test_wrong_union_in_input_names_only_the_meant_member() -> None:
    class Taker(module[Any, str]):
        initial_input = [("action", Action)]

    with pytest.raises(InputError) as caught:
        Taker(model="openai/gpt-4o")(action=WRONG)
    assert [problem["path"] for problem in caught.value.problems] == ["action.amount"]
    assert "exchange" not in str(caught.value)
    assert "letter" not in str(caught.value)


def test_parse_error_about_untagged_union_has_one_problem(script: Script) -> None:
    with pytest.raises(ParseError) as caught:
        Desk(model=script(finish(action=WRONG)), parse_retries=0)()
    assert [problem["path"] for problem in caught.value.errors] == ["action.amount"]


def test_wrong_member_of_union_of_models_without_tags_reports_the_closest_member(script: Script) -> None:
    class Person(BaseModel):
        name: str
        age: int

    class Place(BaseModel):
        street: str
        city: str

    class Either(module[None, Any]):
        final_output = [("found", Person | Place)]

    model = script(finish(found={"name": "Ann", "age": "old"}), finish(found={"name": "Ann", "age": 4}))
    Either(model=model)()
    text = correction(model)
    assert text.count("<field") == 1
    assert "age" in text
    assert "street" not in text
    assert "city" not in text


def test_field_that_several_members_share_is_described_by_the_meant_member() -> None:
    class Count(BaseModel):
        kind: Literal["count"]
        value: int

    class Label(BaseModel):
        kind: Literal["label"]
        value: list[str]

        @model_validator(mode="after")
        def check(self) -> Label:
            return self

    class Taker(module[Any, str]):
        initial_input: Any = [("item", Count | Label)]

    with pytest.raises(InputError) as caught:
        Taker(model="openai/gpt-4o")(item={"kind": "label", "value": 5})
    (problem,) = caught.value.problems
    assert problem["path"] == "item.value"
    assert problem["expected"].startswith("list of string")


def test_value_of_no_member_type_is_described_by_the_whole_union() -> None:
    class Taker(module[Any, str]):
        initial_input: Any = [("item", int | list[int])]

    with pytest.raises(InputError) as caught:
        Taker(model="openai/gpt-4o")(item={"a": 1})
    (problem,) = caught.value.problems
    assert problem["path"] == "item"
    assert problem["expected"].startswith("integer or ")
    with pytest.raises(InputError) as caught:
        Taker(model="openai/gpt-4o")(item=[1, "x"])
    assert [problem["path"] for problem in caught.value.problems] == ["item.1"]


def test_member_named_as_a_key_of_the_value_names_the_missing_field() -> None:
    class Taker(module[Any, str]):
        initial_input: Any = [("action", Action)]

    with pytest.raises(InputError) as caught:
        Taker(model="openai/gpt-4o")(action={"Letter": {"kind": "letter", "text": "hi"}})
    (problem,) = caught.value.problems
    assert problem["path"] == "action.kind"
    assert problem["expected"] == 'one of "refund", "exchange", "letter"'
    assert problem["received"] == "missing"
