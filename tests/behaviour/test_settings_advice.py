"""Tests of settings that are passed by position, and of a store that is not set: acorn names the class and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from acorn import DeclarationError, module
from acorn.testing import ScriptedModel


class Poet(module[None, str]):
    """Write a poem."""


def declare(**attributes: Any) -> Any:
    return type("Agent", (module,), {"__module__": __name__, **attributes})


def test_positional_setting_raises_type_error_that_names_class_and_keyword() -> None:
    with pytest.raises(TypeError, match=r"`Agent`.*keyword"):
        declare()("openai/gpt-4o")


def test_submit_without_store_raises_declaration_error_about_store_first() -> None:
    with pytest.raises(DeclarationError, match="`Poet` has no store"):
        Poet(model=ScriptedModel([])).submit()
