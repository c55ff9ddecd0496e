"""Tests of declarations that cannot work: each raises an error at the class with the advice that helps, or works."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import DeclarationError, Step, module, tool
from acorn.testing import call as calling
from acorn.testing import finish


class Answer(BaseModel):
    text: str


def make_answer() -> Answer:
    raise AssertionError("acorn called a function that was set as a schema")


def declare(name: str = "Agent", /, **attributes: Any) -> Any:
    return type(name, (module,), {"__module__": __name__, **attributes})


def test_method_tool_without_self_raises_error_that_names_self() -> None:
    def square(x: int) -> int:
        """Square."""
        return x * x

    with pytest.raises(DeclarationError, match=r"`Agent` .*`square`|`square`.*`Agent`") as caught:
        declare(square=tool(square))
    assert "`self`" in str(caught.value)
    assert "@staticmethod" in str(caught.value)


def test_static_method_tool_without_self_works(script: Script) -> None:
    class Agent(module[None, str]):
        max_steps = 2

        @tool
        @staticmethod
        def square(x: int) -> int:
            """Square."""
            return x * x

    model = script(calling("square", x=3), finish("ok"))
    Agent(model=model)()
    assert model.requests[1].messages[-1]["content"] == "9"


def test_method_tool_without_any_parameter_raises_error_that_names_self() -> None:
    def now() -> str:
        """Now."""
        return "now"

    with pytest.raises(DeclarationError) as caught:
        declare(now=tool(now))
    assert "`now`" in str(caught.value)
    assert "`self`" in str(caught.value)
    assert "`Agent`" in str(caught.value)


@each_case("function", [str.upper, str.join, "".join, dict.get, list.append])
def test_builtin_method_in_tools_raises_declaration_error_with_advice(function: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(tools=[function])
    assert "tools[0]" in str(caught.value)
    assert "`Agent" in str(caught.value)
    assert "type hint" in str(caught.value)


@each_case("attribute", ["final_output", "initial_input"])
def test_function_as_schema_raises_declaration_error_without_call(attribute: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**{attribute: make_answer})
    assert f"`Agent.{attribute}`" in str(caught.value)
    assert "make_answer" in str(caught.value)


@each_case("attribute", ["final_output", "initial_input"])
def test_instance_as_schema_raises_declaration_error_that_suggests_class(attribute: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**{attribute: Answer(text="x")})
    assert f"`Agent.{attribute}`" in str(caught.value)
    assert "`Answer`" in str(caught.value)


def bare(self: Any) -> None: ...


def many(self: Any, step: Any, other: Any) -> None: ...


def keyword(self: Any, step: Any, *, other: Any) -> None: ...


def no_parameters() -> None: ...


@each_case(
    ("hook", "function"),
    [
        (hook, function)
        for hook in ("on_step", "on_finish", "on_start", "on_stream", "on_human")
        for function in (bare, many, keyword, no_parameters)
    ],
)
def test_hook_with_wrong_signature_raises_declaration_error_at_class(hook: str, function: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**{hook: function})
    assert f"`Agent.{hook}`" in str(caught.value)
    assert "self" in str(caught.value)


@each_case("hook", ["on_step", "on_finish", "on_start", "on_stream", "on_human"])
def test_hook_that_is_not_callable_raises_declaration_error_at_class(hook: str) -> None:
    with pytest.raises(DeclarationError, match=f"`Agent.{hook}` must be a method, got 'later'"):
        declare(**{hook: "later"})


@each_case("hook", ["on_step", "on_finish", "on_start", "on_stream", "on_human"])
def test_hook_with_any_workable_signature_is_accepted(hook: str) -> None:
    def extra(self: Any, value: Any, other: int = 1) -> None: ...
    def anything(self: Any, *args: Any, **kwargs: Any) -> None: ...
    def renamed(this: Any, it: Any, /) -> None: ...
    async def later(self: Any, value: Any) -> None: ...

    for function in (extra, anything, renamed, later, staticmethod(lambda value: None)):
        declare(**{hook: function})


def test_method_listed_in_tools_of_its_own_class_works_or_names_the_decorator() -> None:
    class Methods:
        def look(self, place: str) -> str:
            """Look."""
            return place

    look = Methods.look
    with pytest.raises(DeclarationError) as caught:
        declare(look=look, tools=[look])
    message = str(caught.value)
    assert "self: str" not in message
    assert "`look`" in message
    assert "@tool" in message


def test_marked_method_listed_in_tools_of_its_own_class_is_one_tool(script: Script) -> None:
    class Agent(module[None, str]):
        max_steps = 2

        @tool
        def look(self, place: str) -> str:
            """Look."""
            return f"at {place}"

        tools = [look]

    model = script(calling("look", place="sea"), finish("ok"))
    Agent(model=model)()
    assert [each["function"]["name"] for each in model.requests[0].tools] == ["look", "__finish__"]
    assert model.requests[1].messages[-1]["content"] == "at sea"


@each_case("attribute", ["final_output", "initial_input"])
@each_case("value", [[("x", "NotDefinedAnywhere")], "NotDefinedAnywhere"])
def test_forward_reference_as_schema_raises_declaration_error(attribute: str, value: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**{attribute: value})
    assert f"`Agent.{attribute}" in str(caught.value)


@each_case("attribute", ["final_output", "initial_input"])
def test_class_with_unresolved_forward_reference_as_schema_names_the_missing_name(attribute: str) -> None:
    class Waiting(BaseModel):
        other: "NotDefinedAnywhere"  # type: ignore[name-defined]  # noqa: F821, UP037

    with pytest.raises(DeclarationError) as caught:
        declare(**{attribute: Waiting})(model="openai/gpt-4o")()
    assert f"`Agent.{attribute}`" in str(caught.value)
    assert "NotDefinedAnywhere" in str(caught.value)


@each_case("attribute", ["final_output", "initial_input"])
def test_list_of_forward_reference_as_schema_names_the_missing_name(attribute: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**{attribute: list["NotDefinedAnywhere"]})(model="openai/gpt-4o")()  # type: ignore[name-defined]  # noqa: F821
    assert f"`Agent.{attribute}`" in str(caught.value)
    assert "NotDefinedAnywhere" in str(caught.value)


def test_type_local_to_function_is_resolved_for_tools_of_instance(script: Script) -> None:
    class Place(BaseModel):
        name: str

    def visit(place: Place) -> str:
        """Visit."""
        return place.name

    class Agent(module[None, str]):
        max_steps = 2

    model = script(calling("visit", place={"name": "Rome"}), finish("ok"))
    Agent(model=model, tools=[visit])()
    assert model.requests[1].messages[-1]["content"] == "Rome"


def test_type_local_to_function_is_resolved_for_tools_of_using(script: Script) -> None:
    class Place(BaseModel):
        name: str

    def visit(place: Place) -> str:
        """Visit."""
        return place.name

    class Agent(module[None, str]):
        max_steps = 2

    model = script(calling("visit", place={"name": "Rome"}), finish("ok"))
    Agent(model=model).using(tools=[visit])()
    assert model.requests[1].messages[-1]["content"] == "Rome"


def test_type_local_to_function_is_resolved_for_tool_added_by_hook(script: Script) -> None:
    class Place(BaseModel):
        name: str

    def visit(place: Place) -> str:
        """Visit."""
        return place.name

    def noop() -> str:
        """Do nothing."""
        return "nothing"

    class Agent(module[None, str]):
        max_steps = 3
        tools = [noop]

        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.add_tool(visit)

    model = script(calling("noop"), calling("visit", place={"name": "Rome"}), finish("ok"))
    Agent(model=model)()
    assert model.requests[2].messages[-1]["content"] == "Rome"


def test_type_local_to_hook_is_resolved_for_tool_added_by_hook(script: Script) -> None:
    def noop() -> str:
        """Do nothing."""
        return "nothing"

    class Agent(module[None, str]):
        max_steps = 3
        tools = [noop]

        def on_step(self, step: Step) -> None:
            class Place(BaseModel):
                name: str

            def visit(place: Place) -> str:
                """Visit."""
                return place.name

            if step.counter == 1:
                step.add_tool(visit)

    model = script(calling("noop"), calling("visit", place={"name": "Rome"}), finish("ok"))
    Agent(model=model)()
    assert model.requests[2].messages[-1]["content"] == "Rome"


class Idle(module[None, str]):
    """A class that is not defined in the function that uses it."""

    max_steps = 2


def test_type_local_to_function_is_resolved_for_tools_of_agent_from_module(script: Script) -> None:
    class Place(BaseModel):
        name: str

    def visit(place: Place) -> str:
        """Visit."""
        return place.name

    model = script(calling("visit", place={"name": "Rome"}), finish("ok"))
    Idle(model=model).using(tools=[visit])()
    assert model.requests[1].messages[-1]["content"] == "Rome"


def make_agent() -> Any:
    class Place(BaseModel):
        name: str

    def visit(place: Place) -> str:
        """Visit."""
        return place.name

    class Agent(Idle):
        def on_start(self, step: Step) -> None:
            step.add_tool(visit)

    return Agent


def test_type_local_to_function_that_returned_is_resolved_for_tool_added_by_hook(script: Script) -> None:
    model = script(calling("visit", place={"name": "Rome"}), finish("ok"))
    make_agent()(model=model)()
    assert model.requests[1].messages[-1]["content"] == "Rome"


def test_output_class_with_forward_reference_to_local_class_is_resolved(script: Script) -> None:
    class Trip(BaseModel):
        place: Place

    class Place(BaseModel):
        name: str

    class Agent(module[None, Trip]):
        """Plan a trip."""

    assert Agent(model=script(finish(place={"name": "Rome"})))().place.name == "Rome"

    class Lists(module):
        final_output = list["Place"]

    assert Lists(model=script(finish([{"name": "Rome"}])))()[0].name == "Rome"
