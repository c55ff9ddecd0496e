"""Tests of example values: they match the schemas that they are generated for."""

from __future__ import annotations

import random
import re

import jsonschema
from tests.cases import case
from tests.unit.random_schemas import schema

from acorn._formats.schema.examples import example_texts, example_value


def test_example_values_match_random_schemas_and_are_reproducible() -> None:
    for seed in range(0, 300, 20):
        with case(seed):
            for number in range(seed, seed + 20):
                made = schema(random.Random(number))
                found = example_value(made, "tool")
                jsonschema.Draft202012Validator(made).validate(found)
                assert example_value(made, "tool") == found


def test_example_texts_match_patterns() -> None:
    for pattern in [
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
    ]:
        with case(pattern):
            text = next(example_texts(pattern, 0, None))
            assert re.search(pattern, text)


def test_example_texts_for_unsupported_pattern_returns_no_text() -> None:
    assert list(example_texts(r"\p{Greek}+", 0, None)) == []
    assert list(example_texts(r"^a\b\d$", 0, None)) == []


def test_example_texts_returns_at_least_fifty_different_texts() -> None:
    assert len(set(example_texts(None, 2, 2))) >= 50
    assert [len(text) for text in example_texts(None, 9, 9)] == [9] * 100
