"""Tests of the detection of API keys: text that looks like a key, and text that only starts like a key."""

from __future__ import annotations

from tests.cases import case

from acorn._formats.redact import redact


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
            assert redact(f"the key is {text}.", ()) == "the key is ***."


def test_ordinary_words_are_not_redacted() -> None:
    for text in ["skimage_tools", "pk_field_name", "hf_transformers_hub", "sketching-class", "rk_solver_order"]:
        with case(text):
            assert redact(f"there is no module {text}", ()) == f"there is no module {text}"
