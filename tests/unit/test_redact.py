"""Tests of the redactor: secrets, text that looks like a key, and texts that are still growing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case

from acorn._formats.redact import Redactor


def test_text_that_looks_like_key_is_redacted() -> None:
    for text in [
        "sk-proj-abc123def456",
        "sk_live_51Habcdefgh",
        "xai-0123456789abcdef",
        "gsk_abcdefgh12345678",
        "hf_aBcDeFgHiJ12",
        "ghp_16C7e42F292c6912E7",
        "glpat-1234567890abcdef",
        "AIzaSyA1234567890",
        "AKIAIOSFODNN7EXAMPLE",
    ]:
        with case(text):
            assert Redactor().text(f"the key is {text}.") == "the key is ***."


def test_ordinary_words_are_not_redacted() -> None:
    for text in ["skimage_tools", "pk_field_name", "hf_transformers_hub", "sketching-class", "rk_solver_order"]:
        with case(text):
            assert Redactor().text(f"there is no module {text}") == f"there is no module {text}"


KNOWN = ["canary-in-the-mine", "mine-field", "two words"]


@given(
    st.lists(st.sampled_from([*KNOWN, "canary", "the mine", "sk-ABCDEFGH12345678", " ", "a "])),
    st.lists(st.integers(1, 9), max_size=40),
)
def test_growing_text_in_chunks_is_redacted_like_complete_text(parts: list[str], sizes: list[int]) -> None:
    text, redactor = "".join(parts), Redactor(KNOWN, finds_keys=False)
    shown, rest, start = "", "", 0
    for size in sizes:
        released, rest = redactor.split(rest + text[start : start + size])
        shown, start = shown + released, start + size
    assert shown + redactor.text(rest + text[start:]) == redactor.text(text)


def test_redactor_keeps_types_of_values_that_errors_contain() -> None:
    redactor = Redactor(["canary-in-the-mine"])
    value = ("canary-in-the-mine", [b"x canary-in-the-mine", 1.5], {"canary-in-the-mine": None})
    assert redactor.data(value) == ("***", [b"x ***", 1.5], {"***": None})
