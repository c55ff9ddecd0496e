"""Tests of user-defined model objects: missing methods are reported at declaration."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases import each_case

from acorn import DeclarationError, Step, module, tool
from acorn.models import ModelRequest, ModelResponse
from acorn.testing import ScriptedModel
from acorn.testing import call as calling

PORT = ("name", "can_force_tool", "price", "complete", "acomplete")


class Whole:
    name = "whole"

    def can_force_tool(self, request: ModelRequest) -> bool:
        return False

    def price(self) -> None:
        return None

    def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse("")

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse("")


class Agent(module[Any, str]):
    """Answer."""


def without(*names: str, **more: Any) -> Any:
    """A model that lacks a method of the port."""
    parts = {name: value for name, value in vars(Whole).items() if name in PORT and name not in names}
    return type("Half", (), {**parts, **more})()


@each_case("name", PORT)
def test_model_object_without_method_raises_error_with_method_name(name: str) -> None:
    for declare in (lambda: type("Sub", (Agent,), {"model": without(name)}), lambda: Agent(model=without(name))):
        with pytest.raises(DeclarationError) as caught:
            declare()
        assert str(caught.value).endswith(f"got an object of `Half`, which lacks `{name}`.")


def test_model_object_without_several_methods_raises_error_with_all_names() -> None:
    with pytest.raises(DeclarationError, match=r"lacks `name` and `acomplete` and `can_force_tool`\.$"):
        Agent(model=without("name", "acomplete", "can_force_tool"))


def test_model_object_whose_method_is_not_callable_raises_declaration_error() -> None:
    with pytest.raises(DeclarationError, match=r"lacks `price`\.$"):
        Agent(model=without("price", price=3))


def test_model_class_instead_of_model_instance_raises_declaration_error() -> None:
    with pytest.raises(DeclarationError, match=r"got the class `Whole` instead of an instance of it\.$"):
        Agent(model=Whole)
    assert Agent(model=Whole()).model.name == "whole"


def test_step_model_object_without_method_raises_error_with_method_name() -> None:
    class Stepping(Agent):
        max_steps = 3

        @tool
        def look(self) -> str:
            """Look around."""
            return "seen"

        def on_step(self, step: Step) -> None:
            step.model = without("complete")

    with pytest.raises(DeclarationError, match=r"`Stepping\.model` must be .* lacks `complete`\.$"):
        Stepping(model=ScriptedModel([calling("look")]))()
