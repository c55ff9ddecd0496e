"""Tests of settings that are annotated instead of assigned: `final_output: Answer`."""

import textwrap
from typing import Any

import pytest
from pydantic import BaseModel
from tests.cases import case

from acorn import DeclarationError, module, tool
from acorn._declare.settings import SETTINGS


class Answer(BaseModel):
    answer: str


@tool
def look() -> str:
    """Look."""
    return "seen"


BODIES = {
    "final_output": "final_output: Answer",
    "initial_input": "initial_input: Answer",
    "tools": "tools: [look]",
    "model": 'model: "openai/gpt-4o"',
    "temperature": "temperature: 0.2",
    "max_tokens": "max_tokens: 100",
    "max_steps": "max_steps: 5",
    "parse_retries": "parse_retries: 3",
    "branches": 'branches: {"inner": module}',
    "cache": "cache: True",
    "store": 'store: "runs.db"',
    "max_cost": "max_cost: 1.0",
    "system_prompt": 'system_prompt: "Help."',
    "loop_guard": "loop_guard: None",
    "xml_input_root": 'xml_input_root: "data"',
}


def declare(body: str, start: str = "", base: str = "module") -> Any:
    names: dict[str, Any] = {"module": module, "Answer": Answer, "look": look, "tool": tool, "Any": Any}
    text = f"{start}\nclass Shop({base}):\n    '''Help.'''\n{textwrap.indent(body, '    ')}\n"
    exec(compile(text, "shop.py", "exec", dont_inherit=True), names)
    return names["Shop"]


def test_annotated_setting_is_declaration_error() -> None:
    for start in ("", "from __future__ import annotations"):
        for name, body in BODIES.items():
            with case(start, name):
                with pytest.raises(DeclarationError) as caught:
                    declare(body, start)
                assert f"`Shop.{name}`" in str(caught.value)
                assert "is annotated, not set" in str(caught.value)
                assert f"{name} = " in str(caught.value)


def test_every_setting_is_checked() -> None:
    for name in SETTINGS:
        with case(name), pytest.raises(DeclarationError, match="is annotated, not set"):
            declare(f"{name}: Any")


def test_annotated_setting_of_subclass_is_declaration_error() -> None:
    start = "class Base(module):\n    '''Base.'''\n    final_output = Answer\n"
    with pytest.raises(DeclarationError, match="is annotated, not set"):
        declare("final_output: Answer", start, "Base")


def test_annotated_setting_of_mixin_is_declaration_error() -> None:
    start = "class Mixin:\n    max_steps: 5\n"
    with pytest.raises(DeclarationError, match="is annotated, not set"):
        declare("final_output = Answer", start, "Mixin, module")


def test_annotated_setting_of_mixin_that_module_sets_is_accepted() -> None:
    for mixin in ("Mixin", "Mixin(Protocol)", "Mixin(ABC)"):
        start = (
            f"from abc import ABC\nfrom typing import Protocol\nclass {mixin}:\n    max_steps: int\n    store: Any\n"
        )
        with case(mixin):
            assert declare("max_steps = 3\nstore = None", start, "Mixin, module").max_steps == 3


def test_annotated_setting_with_value_is_accepted() -> None:
    for body in (
        "final_output: Any = Answer",
        "tools: list[Any] = [look]",
        "max_steps: int = 5",
        "model: str = 'openai/gpt-4o'",
        "temperature: float = 0.2\nmax_tokens: int = 5",
    ):
        with case(body):
            declare(body)


def test_other_annotations_are_accepted() -> None:
    for body in ("seen: list[str]", "database: Any", "count: int = 0", "answers: Answer", "_tools: int"):
        with case(body):
            declare(body)


def test_annotation_in_method_is_accepted() -> None:
    declare("def on_finish(self, output):\n    tools: list[str] = []\n    model: str\n    return None")
