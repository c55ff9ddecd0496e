"""Tests of `AnyModel`, which calls each tool of an agent once and then returns a valid, reproducible answer."""

from __future__ import annotations

import asyncio
import copy
import datetime
import decimal
import enum
import ipaddress
import pathlib
import pickle
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, Json, RootModel, StringConstraints
from tests.behaviour.conftest import Call
from tests.cases import case
from typing_extensions import TypedDict

from acorn import AcornError, Run, Unfinished, module, tool
from acorn.journal import ModelResponded
from acorn.testing import AnyModel, ScriptedModel


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=7, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Node(BaseModel):
    value: int
    children: list[Node]


class Linked(BaseModel):
    value: int
    next: Linked | None


class Left(BaseModel):
    right: Right | None


class Right(BaseModel):
    left: Left


class Cats(RootModel[list[Cat]]):
    pass


class Expression(RootModel["list[Expression] | int"]):
    pass


@dataclass
class Point:
    x: int
    y: float


class Pair(NamedTuple):
    a: int
    b: str


class Typed(TypedDict):
    a: int
    b: NotRequired[str]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    count: int
    share: float
    text: str


class Nested(BaseModel):
    inner: dict[str, list[Point | None]]
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    where: Annotated[str, Field(alias="whereAbouts")]


Text = Annotated[str, StringConstraints(min_length=3, max_length=5)]

KINDS: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "None": None | int,
    "bytes": bytes,
    "any": Any,
    "object": object,
    "enum": Color,
    "int enum": Level,
    "literal": Literal["a", 3],
    "union": int | str,
    "optional": Optional[Cat],  # noqa: UP045
    "discriminator": Annotated[Cat | Dog, Field(discriminator="kind")],
    "model": Cat,
    "strict model": Strict,
    "nested": Nested,
    "recursive list": Node,
    "recursive option": Linked,
    "recursive both": Left,
    "recursive other": Right,
    "recursive root": Expression,
    "dataclass": Point,
    "named tuple": Pair,
    "typed dict": Typed,
    "root model": Cats,
    "ge": Annotated[int, Field(ge=10)],
    "gt": Annotated[int, Field(gt=10)],
    "lt": Annotated[int, Field(lt=-10)],
    "between": Annotated[int, Field(gt=6, lt=8)],
    "multiple": Annotated[int, Field(multiple_of=7, ge=50)],
    "multiple above": Annotated[int, Field(multiple_of=1000, gt=1, lt=5000)],
    "float between": Annotated[float, Field(gt=0.1, lt=0.2)],
    "float share": Annotated[float, Field(gt=0, lt=1)],
    "float multiple": Annotated[float, Field(multiple_of=0.25, gt=1)],
    "float low": Annotated[float, Field(le=-1e9)],
    "float large": Annotated[float, Field(ge=1e12)],
    "decimal": decimal.Decimal,
    "decimal digits": Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)],
    "decimal places only": Annotated[decimal.Decimal, Field(max_digits=2, decimal_places=2)],
    "decimal bounds": Annotated[decimal.Decimal, Field(gt=5, lt=6, decimal_places=2)],
    "lengths": Text,
    "one letter": Annotated[str, StringConstraints(max_length=1)],
    "long": Annotated[str, StringConstraints(min_length=200)],
    "pattern": Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}-\d{4}$")],
    "pattern alternatives": Annotated[str, StringConstraints(pattern=r"^(red|green|dark (blue|grey))$")],
    "pattern unanchored": Annotated[str, StringConstraints(pattern=r"\d+", min_length=12)],
    "pattern classes": Annotated[str, StringConstraints(pattern=r"^\w+\s\S+\W[^a-z0-9]\D$")],
    "pattern long": Annotated[str, StringConstraints(pattern=r"^[a-z]+$", min_length=30, max_length=40)],
    "pattern slug": Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$")],
    "pattern version": Annotated[str, StringConstraints(pattern=r"^v?\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?$")],
    "date": datetime.date,
    "datetime": datetime.datetime,
    "aware": pydantic.AwareDatetime,
    "naive": pydantic.NaiveDatetime,
    "past": pydantic.PastDate,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "uuid": uuid.UUID,
    "uuid1": pydantic.UUID1,
    "uuid3": pydantic.UUID3,
    "uuid4": pydantic.UUID4,
    "uuid5": pydantic.UUID5,
    "url": pydantic.AnyUrl,
    "http url": pydantic.HttpUrl,
    "postgres": pydantic.PostgresDsn,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipv4 network": ipaddress.IPv4Network,
    "ipv6 network": ipaddress.IPv6Network,
    "ipv4 interface": ipaddress.IPv4Interface,
    "ipv6 interface": ipaddress.IPv6Interface,
    "any ip": pydantic.IPvAnyAddress,
    "any network": pydantic.IPvAnyNetwork,
    "path": pathlib.Path,
    "file": pydantic.FilePath,
    "directory": pydantic.DirectoryPath,
    "new path": pydantic.NewPath,
    "json": Annotated[list[int], Json],
    "json any": Annotated[Any, Json],
    "base64": pydantic.Base64Bytes,
    "base64 url": pydantic.Base64UrlStr,
    "secret": pydantic.SecretStr,
    "byte size": pydantic.ByteSize,
    "re": re.Pattern,
    "list": list[int],
    "list of models": list[Cat],
    "list lengths": Annotated[list[Text], Field(min_length=2, max_length=3)],
    "empty list": Annotated[list[int], Field(max_length=0)],
    "set": set[int],
    "set of many": Annotated[set[int], Field(min_length=5)],
    "set of words": Annotated[set[str], Field(min_length=4)],
    "set of colors": Annotated[set[Color], Field(min_length=2)],
    "frozen set": Annotated[frozenset[tuple[int, str]], Field(min_length=1)],
    "tuple": tuple[int, str, bool],
    "tuple of many": tuple[int, ...],
    "dict": dict[str, int],
    "dict of numbers": Annotated[dict[int, float], Field(min_length=2)],
    "dict of colors": Annotated[dict[Color, int], Field(min_length=2)],
    "dict of patterns": Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^k\d$")], int], Field(min_length=2, max_length=3)
    ],
    "dict of dates": Annotated[dict[datetime.date, int], Field(min_length=1)],
    "mapping": Mapping[str, list[dict[str, int]]],
    "examples": Annotated[str, Field(examples=["as shown"]), pydantic.AfterValidator(lambda x: {"as shown": x}[x])],
}


def generate(declared: Any) -> None:
    """Let `AnyModel` generate a tool argument and an output of a type."""
    given: list[Any] = []

    def use(value: Any) -> str:
        """Use a value."""
        given.append(value)
        return "used"

    use.__annotations__["value"] = declared
    agent = type("Agent", (module,), {"final_output": declared, "tools": [use], "max_steps": 3})
    run: Run[Any] = agent(model=AnyModel()).run()
    results = [message["content"] for message in run.history if message["role"] == "tool"]
    assert results == ["used", "Finished."]
    assert len(given) == 1
    assert (run.steps, run.stop_reason) == (1, "finish")


def test_any_model_generates_valid_values_for_every_pydantic_type() -> None:
    for kind, declared in KINDS.items():
        with case(kind):
            generate(declared)


# Calls


class Report(BaseModel):
    title: str
    score: int = Field(ge=1, le=10)


@tool
def look(place: str, deep: bool = False) -> str:
    """Look somewhere."""
    return f"seen {place}"


@tool
def add(a: int, b: int) -> int:
    """Add numbers."""
    return a + b


class Inner(module[Any, Report]):
    """Write a report."""

    @tool
    def weigh(self, grams: int) -> int:
        """Weigh."""
        return grams


class Outer(module[Any, Report]):
    """Write a report of reports."""

    tools = [look, add]
    branches = {"inner": Inner, "again": {"module": Inner, "description": "Once more."}}
    max_steps = 5


def called(run: Run[Any]) -> list[str]:
    """Return what a run called, without what it inherited."""
    own = [entry for entry in run.journal.entries if isinstance(entry, ModelResponded)]
    return [made.name for entry in own for made in entry.calls]


@pytest.mark.every_way
def test_any_model_calls_each_tool_and_branch_once(call: Call) -> None:
    model = AnyModel()
    run = call.run(Outer(model=model))
    assert isinstance(run.output, Report)
    assert called(run) == ["look", "add", "inner", "again", "__finish__"]
    assert [called(branch) for branch in run.branches] == [["weigh", "__finish__"]] * 2
    assert len(model.requests) == 6
    assert not [message for message in run.history if "Tool error" in str(message.get("content"))]


def test_any_model_returns_equal_answers_in_two_runs(call: Call) -> None:
    one, two = call.run(Outer(model=AnyModel())), call.run(Outer(model=AnyModel()))
    assert one.history == two.history
    assert one.output == two.output


def test_any_model_in_single_turn_run_returns_unfinished_with_tools_and_output_without_tools(call: Call) -> None:
    model = AnyModel()
    assert isinstance(call(Inner(model=model, tools=[], final_output=Report, initial_input=str), "x"), Unfinished)
    assert call(module(model=AnyModel(), final_output=Report)) == Report(title="text", score=1)


def test_any_model_stream_yields_partials() -> None:
    def read(chunks: list[Any]) -> Any:
        assert len(chunks) > 5
        assert any(chunk.partial is not None for chunk in chunks)
        return chunks[-1].result

    async def main() -> list[Any]:
        return [chunk async for chunk in Outer(model=AnyModel()).astream()]

    assert read(list(Outer(model=AnyModel()).stream())) == read(asyncio.run(main()))


def test_any_model_run_that_reaches_max_steps_is_forced_to_finish(call: Call) -> None:
    run = call.run(Outer(model=AnyModel(), max_steps=1, max_cost=0.01, max_total_tokens=100_000))
    assert (run.stop_reason, run.cost) == ("forced", 0.0)
    assert called(run) == ["look", "add", "inner", "again", "__finish__"]


def test_any_model_calls_tools_again_in_continued_conversation() -> None:
    agent = Outer(model=AnyModel(), branches={})
    first = agent.run()
    assert called(agent.using(history=first).run()) == ["look", "add", "__finish__"]


def test_any_model_calls_tools_of_agent_tool_inside_its_run(call: Call) -> None:
    class Boss(module[Any, str]):
        """Delegate."""

        tools = [Inner, look]
        max_steps = 3

    run = call.run(Boss(model=AnyModel(), tools=[type("Inner", (Inner,), {"max_steps": 2}), look]))
    assert called(run) == ["inner", "look", "__finish__"]
    assert called(run.branches[0]) == ["weigh", "__finish__"]


def test_any_model_generates_valid_arguments_for_tool_with_json_schema(call: Call) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": ["integer", "null"]}, "kind": {"allOf": [{"$ref": "#/definitions/kind"}]}},
        "required": ["n", "kind"],
        "definitions": {"kind": {"enum": ["x"]}},
    }
    given: list[Any] = []

    @tool(schema=schema)
    def send(**arguments: Any) -> str:
        """Send."""
        given.append(arguments)
        return "sent"

    call(module(model=AnyModel(), tools=[send], max_steps=2, final_output=str))
    assert given == [{"n": 1, "kind": "x"}]


# Limits


class Impossible(BaseModel):
    fine: int
    inner: list[Unfillable] = Field(min_length=1)


class Unfillable(BaseModel):
    code: str = Field(pattern=r"^a\b\d$")


class Endless(BaseModel):
    again: Endless


def test_any_model_without_valid_value_raises_error_with_field_name(call: Call) -> None:
    for declared, field in [
        (Impossible, r"inner\[\]\.code"),
        (Endless, r"again\.again"),
        (Annotated[int, Field(gt=5, lt=6)], "result"),
        (Annotated[set[bool], Field(min_length=3)], "result"),
    ]:
        with (
            case(declared, field),
            pytest.raises(AcornError, match=rf"^`AnyModel` cannot generate a value for `{field}` of `__finish__`: no"),
        ):
            call(module(model=AnyModel(), final_output=declared))


def test_any_model_returns_valid_output_in_deep_copied_agent_and_in_pickled_agent() -> None:
    agent = Outer(model=AnyModel())
    for made in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert isinstance(made(), Report)


def test_any_model_records_requests() -> None:
    model = AnyModel(name="mine")
    Outer(model=model)()
    assert isinstance(model, ScriptedModel)
    assert {request.declared >= {"model"} for request in model.requests} == {True}
    assert model.name == "mine"
    model.done()
