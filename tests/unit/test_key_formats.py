"""Tests of the detection of API keys: text that looks like a key, and text that only starts like a key."""

from __future__ import annotations

import pytest

from acorn._formats.redact import redact


@pytest.mark.parametrize(
    "text",
    [
        "sk-proj-abc123def456",
        "sk_live_51Habcdefgh",
        "xai-0123456789abcdef",
        "gsk_abcdefgh12345678",
        "hf_aBcDeFgHiJ12",
        "ghp_16C7e42F292c6912E7",
        "glpat-1234567890abcdef",
        "AIzaSyA1234567890",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_text_that_looks_like_key_is_redacted(text: str) -> None:
    assert redact(f"the key is {text}.", ()) == "the key is ***."


@pytest.mark.parametrize(
    "text", ["skimage_tools", "pk_field_name", "hf_transformers_hub", "sketching-class", "rk_solver_order"]
)
def test_ordinary_words_are_not_redacted(text: str) -> None:
    assert redact(f"there is no module {text}", ()) == f"there is no module {text}"
