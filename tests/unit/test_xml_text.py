"""Tests of the fast XML escape functions, compared with a slow escape of each character."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable

import pytest
from tests.long_version import IS_LONG

from acorn._formats.xml.encode import escape_attribute, escape_comment, escape_text, escape_xml

MARKS = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
QUOTE = {'"': "&quot;"}
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
WAYS: dict[Callable[[str], str], dict[str, str]] = {
    escape_text: {**MARKS, "\r": "&#13;"},
    escape_attribute: {**MARKS, **QUOTE, "\r": "&#13;", "\n": "&#10;", "\t": "&#9;"},
    escape_xml: {**MARKS, **QUOTE, "'": "&apos;"},
}
ways = pytest.mark.parametrize("escape", WAYS, ids=lambda way: way.__name__)


def letter_by_letter(text: str, references: dict[str, str]) -> str:
    return "".join(references.get(letter, FORBIDDEN.sub("\ufffd", letter)) for letter in text)


@ways
def test_fast_xml_escape_of_each_code_point_equals_reference_escape(escape: Callable[[str], str]) -> None:
    codes = [*range(0x3000), *range(0xD700, 0xE100), *range(0xFD00, 0x10100), *range(0x10100, sys.maxunicode + 1, 97)]
    every = [chr(code) for code in (range(sys.maxunicode + 1) if IS_LONG else [*codes, sys.maxunicode])]
    assert list(map(escape, every)) == [letter_by_letter(letter, WAYS[escape]) for letter in every]
    assert escape("".join(every)) == letter_by_letter("".join(every), WAYS[escape])


@ways
def test_fast_xml_escape_of_random_texts_equals_reference_escape(escape: Callable[[str], str]) -> None:
    random.seed(7)
    pieces = [
        *"&<>\"'\r\n\t\x00\x1f\x7f\x85\xa0\u2028\ud800\udc00\ufffd\ufffe\uffff -",
        "&amp;",
        "&#13;",
        "word",
        "漢",
        "\U0001f600",
    ]
    for _ in range(5_000):
        text = "".join(random.choices(pieces, k=random.randrange(12)))
        assert escape(text) == letter_by_letter(text, WAYS[escape])


def test_escaped_xml_comment_contains_no_double_hyphen() -> None:
    random.seed(7)
    old = re.compile(f"-(?=-)|\r|{FORBIDDEN.pattern}")
    for _ in range(5_000):
        text = "".join(random.choices("--- a\r\n\x00\ud800", k=random.randrange(12)))
        expected = old.sub(lambda found: {"-": "- ", "\r": "\n"}.get(found[0], "\ufffd"), text)
        assert escape_comment(text) == expected
