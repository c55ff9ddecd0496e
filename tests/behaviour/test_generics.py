"""Tests of the type arguments of an agent instance and of the `deps` of a call."""

import copy
import pickle
import types
from typing import Annotated, Any, Generic, Protocol, TypeVar

import pytest
import typing_extensions
from pydantic import BaseModel
from tests.behaviour.conftest import Call, Script
from tests.cases import case

from acorn import DeclarationError, InputError, Run, Step, module, tool
from acorn._declare.spec_cache import spec_of
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling

T = TypeVar("T")


class Person(BaseModel):
    name: str


class Place(BaseModel):
    city: str


class Extract(module[str, T], Generic[T]):
    """Extract it from the text."""


ANN = {"name": "Ann"}


def test_generic_agent_class_with_type_argument_returns_output_of_that_type(call: Call, script: Script) -> None:
    model = script(finish(**ANN))
    agent = Extract[Person](model=model)
    assert call(agent, "Ann came.") == Person(name="Ann")
    assert model.requests[0].messages[1]["content"] == "<input>Ann came.</input>"


def test_call_of_generic_agent_without_output_type_argument_raises_error_that_suggests_brackets(call: Call) -> None:
    with pytest.raises(DeclarationError) as caught:
        call(Extract(model=ScriptedModel([])), "Ann came.")
    assert str(caught.value) == (
        "The `final_output` of `Extract` is the open type variable `T`. "
        "Create the agent with brackets, as in `Extract[...](...)`, or set `final_output`."
    )


def test_generic_agent_without_type_argument_uses_final_output_attribute(call: Call, script: Script) -> None:
    class People(Extract[T], Generic[T]):
        final_output = Person

    assert call(Extract(model=script(finish(**ANN)), final_output=Person), "Ann came.") == Person(name="Ann")
    assert call(People(model=script(finish(**ANN))), "Ann came.") == Person(name="Ann")


def test_call_of_generic_agent_without_input_type_argument_raises_declaration_error(call: Call) -> None:
    class Judge(module[T, str], Generic[T]):
        """Judge it."""

    with pytest.raises(DeclarationError, match="The `initial_input` of `Judge` is the open type variable `T`"):
        call(Judge(model=ScriptedModel([])), "Ann came.")


def test_module_itself_with_type_arguments_returns_output_of_that_type(call: Call, script: Script) -> None:
    agent = module[str, Person](model=script(finish(**ANN)), system_prompt="Extract.")
    assert call(agent, "Ann came.") == Person(name="Ann")


def test_type_argument_of_generic_instance_replaces_type_variable_in_nested_type() -> None:
    class Listed(module[str, list[T]], Generic[T]):
        pass

    agent = Listed[int]()
    assert spec_of(agent).output.schema.model_fields["result"].annotation == list[int]
    assert spec_of(agent) is spec_of(agent)
    assert spec_of(Listed[str]()).output.schema.model_fields["result"].annotation == list[str]


def test_copied_instance_has_type_arguments_of_original() -> None:
    agent = Extract[Person](temperature=0)
    for other in (agent.using(max_steps=3), copy.copy(agent), pickle.loads(pickle.dumps(agent))):
        assert spec_of(other).output.schema is Person
    assert spec_of(agent.using(final_output=int)).output.wrapped


def test_default_of_type_variable_is_used_as_type_argument() -> None:
    D = typing_extensions.TypeVar("D", default=Person)

    class Defaulted(module[str, D], Generic[D]):
        pass

    assert spec_of(Defaulted()).output.schema is Person
    assert spec_of(Defaulted[Place]()).output.schema is Place


@pytest.mark.parametrize("entry", [Extract[Person], Extract[Person]()])
def test_generic_agent_declared_as_branch_or_as_tool_returns_output_of_its_type(
    call: Call, script: Script, entry: Any
) -> None:
    class Main(module[Any, str]):
        max_steps = 3

    for how in ({"branches": {"extract": entry}}, {"tools": [entry]}):
        model = script(calling("extract", input="Ann came."), finish(**ANN), finish(result="done"))
        run = call.run(Main(model=model, **how))
        assert run.branches[0].output == Person(name="Ann")


# Deps


class Database:
    def __init__(self, name: str = "db") -> None:
        self.name = name


class Cached(Database):
    pass


class Asking(module[None, str, Database]):
    """Ask the database."""

    max_steps = 3

    def system_prompt(self) -> str:
        return f"Ask {self.deps.name}."

    @tool
    def by_self(self) -> str:
        return self.deps.name

    @tool
    def by_run(self, run: Run[str, Database]) -> str:
        return run.deps.name

    def on_step(self, step: Step[Database]) -> None:
        step.add_to_context(step.deps.name)


@pytest.mark.every_way
def test_deps_are_available_in_tools_hooks_and_prompt_method(call: Call, script: Script) -> None:
    model = script(calling("by_self") & calling("by_run"), finish(result="done"))
    agent = Asking(model=model).using(deps=Cached("mine"))
    run = call.run(agent)
    assert run.deps.name == agent.deps.name == "mine"
    system, _, _, first, second, context = model.requests[1].messages
    assert system["content"] == "Ask mine."
    assert (first["content"], second["content"]) == ("mine", "mine")
    assert context["content"] == "<context>mine</context>"


def test_using_with_deps_of_wrong_type_raises_input_error() -> None:
    with pytest.raises(InputError) as caught:
        Asking().using(deps="db")  # type: ignore[arg-type]
    assert str(caught.value) == "The `deps` of `Asking` must be of the type `Database`, got a `str`."


def test_call_without_required_deps_raises_input_error_before_model_call(call: Call) -> None:
    model = ScriptedModel([])
    with pytest.raises(InputError) as caught:
        call(Asking(model=model))
    assert str(caught.value) == ("`Asking` needs `deps` of the type `Database`. Call `agent.using(deps=...)(...)`.")
    assert model.requests == []


class HasName(Protocol):
    name: str


def test_deps_type_is_checked_with_isinstance() -> None:
    rows: list[Any] = [
        (Any, 5, True),
        (int | None, None, True),
        (int | None, 5, True),
        (int | None, "5", False),
        (dict[str, int], {}, True),
        (dict[str, int], [], False),
        (None, None, True),
        (None, 5, False),
        (HasName, 5, True),
    ]
    untyped: Any = module
    for kind, deps, fits in rows:
        agent_class: Any = types.new_class("Agent", (untyped[Any, Any, kind],))
        for agent in (agent_class(), untyped[Any, Any, kind]()):
            with case(kind, deps):
                if fits:
                    assert agent.using(deps=deps).deps == deps
                else:
                    with pytest.raises(InputError, match="must be of the type"):
                        agent.using(deps=deps)


def test_using_with_deps_of_wrong_type_for_generic_parent_class_raises_input_error() -> None:
    class Middle(module[str, T, Database], Generic[T]):
        pass

    class Own(Middle[Person]):
        pass

    for agent in (Own(), Middle[Person]()):
        with pytest.raises(InputError, match="must be of the type `Database`"):
            agent.using(deps=5)  # type: ignore[arg-type]


def test_branch_receives_deps_of_parent(call: Call, script: Script) -> None:
    class Parent(module[Any, str]):
        max_steps = 3
        branches = {"ask": Asking}

    model = script(calling("ask"), finish(result="branch"), finish(result="done"))
    assert call.run(Parent(model=model).using(deps=Database())).branches[0].deps.name == "db"


@pytest.mark.parametrize("how", ["branches", "tools", "nested"])
def test_deps_of_wrong_type_for_branch_or_agent_tool_raise_input_error_before_model_call(call: Call, how: str) -> None:
    class Between(module[Any, str]):
        branches = {"ask": Asking}

    below = {"branches": {"ask": Asking}} if how == "branches" else {"tools": [Asking if how == "tools" else Between]}
    caller = "Between" if how == "nested" else "Parent"
    kind: Any = type("Parent", (module,), {"final_output": str, "max_steps": 3, **below})
    model = ScriptedModel([])
    with pytest.raises(InputError) as caught:
        call.run(kind(model=model).using(deps="postgres://me:secret@db"))
    assert str(caught.value) == (
        f"The `deps` of `Asking`, which `{caller}` starts, must be of the type `Database`, got a `str`."
    )
    with pytest.raises(InputError, match=rf"which `{caller}` starts, needs `deps`.*`{caller}\(...\).using\(deps="):
        call.run(kind(model=model))
    assert model.requests == []


def test_deps_for_annotated_deps_type_are_accepted(call: Call) -> None:
    class Noted(module[None, str, Annotated[Database, "noted"]]):
        pass

    assert call(Noted(model=ScriptedModel([finish(result="x")])).using(deps=Database())) == "x"
