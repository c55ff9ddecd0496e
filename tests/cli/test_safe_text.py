"""Tests of the functions that clean and shorten text for a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case

from acorn.cli.text import call_text, clean, end_of, one_line, seconds_text


def test_clean_removes_terminal_codes_from_text() -> None:
    for text, cleaned in [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("a\x07b\x08c\x00", "abc"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("a\u202eb\u2066c", "abc"),
        ("half \ud800 pair", "half  pair"),
        ("\x1b", ""),
    ]:
        with case(text):
            assert clean(text) == cleaned


@given(st.text(st.characters(codec=None) | st.sampled_from("\x1b[]0;m\x07\x9b\x9c\\")))
def test_text_helpers_remove_control_characters(text: str) -> None:
    for made in (clean(text), one_line(text, 40), end_of(text, 40), call_text("f", text, 40)):
        assert not [c for c in made if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]
        made.encode()


@given(st.text(), st.integers(8, 100))
def test_text_shortened_to_limit_is_not_longer_than_limit(text: str, limit: int) -> None:
    assert len(one_line(text, limit)) <= limit
    assert len(end_of(text, limit)) <= limit
    assert "\n" not in one_line(text, limit)


def test_call_text_formats_tool_call_like_python_call() -> None:
    assert (
        call_text("search", '{"query": "a\\nb", "limit": 3, "deep": null}')
        == 'search(query="a\\nb", limit=3, deep=null)'
    )
    assert call_text("search", '{"query": "half of i') == 'search(query="half of i")'
    assert call_text("search", "no json") == "search(no json)"
    assert call_text("search", "") == "search()"


def test_seconds_text_formats_duration_with_unit() -> None:
    assert [seconds_text(each) for each in (0.004, 0.5, 3.14, 42.2, 125)] == [
        "0.00 s",
        "0.50 s",
        "3.1 s",
        "42 s",
        "2 min 5 s",
    ]
