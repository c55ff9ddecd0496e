"""Tests of aliases: a field is accepted by its name and by its alias, alone, in lists, in dicts and in tools."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field
from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import Step, module
from acorn.testing import call as calling
from acorn.testing import finish


class Renamed(BaseModel):
    how: float = Field(alias="howSure")


class Both(BaseModel):
    one: Renamed
    many: list[Renamed]
    named: dict[str, Renamed]


NAMES = ["how", "howSure"]
WANTED = Both.model_validate({"one": {"howSure": 1}, "many": [{"howSure": 1}], "named": {"a": {"howSure": 1}}})


@each_case("name", NAMES)
def test_name_and_alias_are_accepted_in_finish_arguments(script: Script, name: str) -> None:
    class Agent(module[None, Both]):
        """Answer."""

    value = {name: 1}
    assert Agent(model=script(finish(one=value, many=[value], named={"a": value})))() == WANTED


@each_case("name", NAMES)
def test_name_and_alias_are_accepted_in_xml_answer(script: Script, name: str) -> None:
    class Agent(module[None, Both]):
        """Answer."""

    one = f"<{name}>1</{name}>"
    reply = f"<output><one>{one}</one><many><item>{one}</item></many><named><a>{one}</a></named></output>"
    assert Agent(model=script("Hm.", reply, forces=False))() == WANTED


@each_case("name", NAMES)
def test_name_and_alias_are_accepted_in_plain_list_output(script: Script, name: str) -> None:
    class Agent(module[None, list[Renamed]]):
        """Answer."""

    assert Agent(model=script(finish([{name: 1}])))() == [Renamed(howSure=1)]


@each_case("name", NAMES)
def test_name_and_alias_are_accepted_in_tool_arguments(script: Script, name: str) -> None:
    def rate(one: Renamed, many: list[Renamed], named: dict[str, Renamed]) -> str:
        """Rate."""
        return f"{one.how} {many[0].how} {named['a'].how}"

    class Agent(module[None, str]):
        tools = [rate]
        max_steps = 2

    value = {name: 1}
    model = script(calling("rate", one=value, many=[value], named={"a": value}), finish("ok"))
    Agent(model=model)()
    assert model.requests[1].messages[-1]["content"] == "1.0 1.0 1.0"


@each_case("name", NAMES)
def test_name_and_alias_are_accepted_in_input(script: Script, name: str) -> None:
    class Agent(module[Both, str]):
        """Read."""

    model = script(finish("ok"))
    agent: Any = Agent(model=model)
    value = {name: 1}
    assert agent.run(one=value, many=[value], named={"a": value}).input == WANTED
    assert "howSure" not in model.requests[0].messages[0]["content"]


def test_tool_result_writes_the_same_names_alone_and_in_lists(script: Script) -> None:
    value = Renamed(howSure=1)

    def one() -> Any:
        """One."""
        return value

    def many() -> Any:
        """Many."""
        return [value]

    def named() -> Any:
        """Named."""
        return {"a": value}

    class Agent(module[None, str]):
        tools = [one, many, named]
        max_steps = 2

    model = script(calling("one") & calling("many") & calling("named"), finish("ok"))
    Agent(model=model)()
    alone, listed, under = [message["content"] for message in model.requests[1].messages[-3:]]
    assert listed == f"[{alone}]"
    assert under == f'{{"a":{alone}}}'


def test_context_writes_the_same_names_alone_and_in_lists(script: Script) -> None:
    def noop() -> str:
        """Do nothing."""
        return "nothing"

    class Agent(module[None, str]):
        tools = [noop]
        max_steps = 2

        def on_step(self, step: Step) -> None:
            value = Renamed(howSure=1)
            step.add_to_context({"one": value, "many": [value], "named": {"a": value}})
            step.add_to_context(value)
            step.add_to_context([value])

    model = script(calling("noop"), finish("ok"))
    Agent(model=model)()
    text = model.requests[1].messages[-1]["content"]
    assert text.count("<how>1.0</how>") == 5
    assert "howSure" not in text
