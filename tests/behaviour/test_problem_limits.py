"""Tests of the size of validation errors: at most 20 problems, then the number of the others, and short enums."""

from __future__ import annotations

import enum
from typing import Any

import pytest
from tests.behaviour.conftest import Script

from acorn import InputError, ParseError, module, tool
from acorn.testing import call as calling
from acorn.testing import finish

Country = enum.Enum("Country", {f"C{index}": f"country-number-{index}" for index in range(250)})  # type: ignore[misc]
LONG = 4000


class Lister(module[None, Any]):
    final_output = [("countries", list[Country])]


class Counter(module[None, Any]):
    final_output = [("counts", list[int])]


def sent(model: Any) -> str:
    return str(model.requests[1].messages[-1]["content"])


def test_correction_has_at_most_20_problems_and_the_number_of_the_others(script: Script) -> None:
    model = script(finish(counts=["x"] * 20_000), finish(counts=[1]))
    Counter(model=model)()
    text = sent(model)
    assert text.count("<field") == 20
    assert "counts.0" in text
    assert "counts.19" in text
    assert "counts.20" not in text
    assert "19980" in text.replace(",", "")
    assert len(text) < LONG


def test_correction_with_20_problems_has_no_rest(script: Script) -> None:
    model = script(finish(counts=["x"] * 20), finish(counts=[1]))
    Counter(model=model)()
    assert sent(model).count("<field") == 20
    assert "more" not in sent(model)


def test_correction_with_21_problems_says_that_one_more_exists(script: Script) -> None:
    model = script(finish(counts=["x"] * 21), finish(counts=[1]))
    Counter(model=model)()
    assert sent(model).count("<field") == 20
    assert "1 more" in sent(model)


def test_correction_shortens_long_enum(script: Script) -> None:
    model = script(finish(countries=["nowhere"] * 40), finish(countries=["country-number-1"]))
    Lister(model=model)()
    text = sent(model)
    assert "country-number-0" in text
    assert "250" in text
    assert len(text) < 20 * 1000


def test_correction_lists_short_enum_in_full(script: Script) -> None:
    Small = enum.Enum("Small", {f"S{index}": f"s{index}" for index in range(8)})  # type: ignore[misc]

    class Picker(module[None, Any]):
        final_output = [("pick", Small)]

    model = script(finish(pick="nope"), finish(pick="s1"))
    Picker(model=model)()
    assert all(f'"s{index}"' in sent(model) or f"&quot;s{index}&quot;" in sent(model) for index in range(8))


def test_parse_error_message_with_many_problems_is_short(script: Script) -> None:
    with pytest.raises(ParseError) as caught:
        Lister(model=script(finish(countries=["nowhere"] * 5000)), parse_retries=0)()
    assert len(str(caught.value)) < 20 * 1000
    assert "4980" in str(caught.value).replace(",", "")


def test_input_error_message_with_many_problems_is_short() -> None:
    class Taker(module[Any, str]):
        initial_input = [("countries", list[Country])]

    with pytest.raises(InputError) as caught:
        Taker(model="openai/gpt-4o")(countries=["nowhere"] * 5000)
    assert len(str(caught.value)) < 20 * 1000
    assert "4980" in str(caught.value).replace(",", "")


def test_tool_error_with_many_problems_is_short(script: Script) -> None:
    @tool
    def visit(countries: list[Country]) -> str:
        """Visit."""
        return "done"

    class Agent(module[None, str]):
        tools = [visit]
        max_steps = 3

    model = script(calling("visit", countries=["nowhere"] * 5000), finish("ok"))
    Agent(model=model)()
    assert "4980" in sent(model).replace(",", "")
    assert len(sent(model)) < 20 * 1000
