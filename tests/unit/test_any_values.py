"""Values that `AnyModel` finds fit the schemas they were found for."""

from __future__ import annotations

import random

import jsonschema
import pytest
from tests.unit.random_schemas import schema

from acorn._formats.schema.example_texts import fits_pattern, texts_for
from acorn._formats.schema.example_values import value_for


@pytest.mark.parametrize("seed", range(0, 300, 20))
def test_values_fit_schemas_at_random_and_are_the_same_each_time(seed: int) -> None:
    for number in range(seed, seed + 20):
        made = schema(random.Random(number))
        found = value_for(made, "tool")
        jsonschema.Draft202012Validator(made).validate(found)
        assert value_for(made, "tool") == found


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{3}-\d{2}$",
        r"^(?:a|b(?:c|d))+$",
        r"^[^\s@]+@[^\s@]+\.[a-z]{2,}$",
        r"^#[0-9a-fA-F]{6}$",
        r"^.{3,5}$",
        r"^[\w.-]*x$",
        r"(\d)\1",
        r"^$",
        r"\S",
        r"^[é-ü]+$",
    ],
)
def test_patterns_are_read_backwards(pattern: str) -> None:
    text = next(texts_for(pattern, 0, None))
    assert fits_pattern(pattern, text)


def test_a_pattern_that_python_cannot_read_gives_nothing() -> None:
    assert list(texts_for(r"\p{Greek}+", 0, None)) == []
    assert list(texts_for(r"^a\b\d$", 0, None)) == []


def test_there_are_enough_plain_texts_that_differ() -> None:
    assert len(set(texts_for(None, 2, 2))) >= 50
    assert [len(text) for text in texts_for(None, 9, 9)] == [9] * 100
