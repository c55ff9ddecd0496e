"""Small programs with many types of inputs and outputs: called, sent, answered, streamed, and through the XML fallback.

Each row of the tables is a program: a type, a value, and its JSON form. A row runs in every way in which the value
travels, so the value must arrive unchanged.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypeVar, Union
from uuid import UUID

import pytest
from annotated_types import Ge, Len
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    BaseModel,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    NonNegativeInt,
    PositiveInt,
    RootModel,
    SecretStr,
    StringConstraints,
    Tag,
    TypeAdapter,
    computed_field,
    field_validator,
    model_validator,
)
from tests.behaviour.small_programs import read_result
from tests.cases import case
from typing_extensions import TypedDict

from acorn import InputError, ParseError, Run, module
from acorn.testing import ScriptedModel, call, finish

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True)
class Line:
    start: Point
    end: Point
    tags: list[str] = dataclasses.field(default_factory=list)


class Movie(TypedDict):
    name: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Bird(BaseModel):
    wings: int


class Fish(BaseModel):
    fins: int


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Linked(BaseModel):
    value: int
    next: Optional["Linked"] = None


class Box(BaseModel, Generic[T]):
    content: T


class Names(RootModel[list[str]]):
    pass


class Scores(RootModel[dict[str, int]]):
    pass


class Amount(RootModel[Decimal]):
    pass


class Aliased(BaseModel):
    first_name: str = Field(alias="firstName")


class Choices(BaseModel):
    first: str = Field(validation_alias=AliasChoices("first", "one"))


class Camel(BaseModel):
    model_config = ConfigDict(populate_by_name=True, alias_generator=lambda name: name.title().replace("_", ""))
    home_town: str


class Upper(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def upper(cls, value: str) -> str:
        return value.upper()


class Range(BaseModel):
    low: int
    high: int

    @model_validator(mode="after")
    def ordered(self) -> Any:
        if self.low > self.high:
            raise ValueError("low must not be greater than high")
        return self


class Area(BaseModel):
    width: int
    height: int

    @computed_field
    def area(self) -> int:
        return self.width * self.height


class Defaults(BaseModel):
    name: str
    tags: list[str] = Field(default_factory=lambda: ["new"])
    count: int = 3
    note: str | None = None


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    count: int


class Odd(BaseModel):
    """A schema whose fields have the names of acorn's own words."""

    result: str
    input: str
    self: str
    model: str
    output: str
    item: str
    title: str


class Wide(BaseModel):
    values: dict[Color, list[tuple[int, str | None]]]
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]
    maybe: Optional[dict[str, Optional[Point]]] = None  # noqa: UP045


Even = Annotated[int, AfterValidator(lambda value: value if value % 2 == 0 else 1 // 0)]
UserId = NewType("UserId", int)


def _tag(value: Any) -> str:
    return "wings" if "wings" in (value if isinstance(value, dict) else value.__dict__) else "fins"


Tagged = Annotated[
    Union[Annotated[Bird, Tag("wings")], Annotated[Fish, Tag("fins")]],  # noqa: UP007
    Discriminator(_tag),
]

MOMENT = datetime(2024, 2, 29, 13, 5, 6, tzinfo=UTC)
KEY = UUID("12345678-1234-5678-1234-567812345678")

VALUES: dict[str, tuple[Any, Any]] = {
    "str": (str, "hi"),
    "empty str": (str, ""),
    "str with markup": (str, '<b>&amp; "it\'s" ]]> <!-- x -->'),
    "str with lines": (str, "one\n\n  two\n\tthree"),
    "str with an emoji": (str, "acorn 🌰 é 中"),
    "int": (int, 7),
    "negative int": (int, -7),
    "large int": (int, 10**30),
    "float": (float, 0.1),
    "small float": (float, 1e-300),
    "bool True": (bool, True),
    "bool False": (bool, False),
    "Decimal": (Decimal, Decimal("12.340")),
    "bytes": (bytes, b"abc"),
    "date": (date, date(2024, 2, 29)),
    "datetime with zone": (datetime, MOMENT),
    "datetime without zone": (datetime, datetime(2024, 2, 29, 13, 5)),
    "time": (time, time(13, 5, 6)),
    "timedelta": (timedelta, timedelta(days=1, seconds=5)),
    "UUID": (UUID, KEY),
    "Path": (Path, Path("a/b.txt")),
    "IPv4Address": (IPv4Address, IPv4Address("10.0.0.1")),
    "IPv6Address": (IPv6Address, IPv6Address("::1")),
    "IPv4Network": (IPv4Network, IPv4Network("10.0.0.0/8")),
    "AnyUrl": (AnyUrl, AnyUrl("https://example.com/a?b=1&c=2")),
    "Enum": (Color, Color.BLUE),
    "IntEnum": (Level, Level.HIGH),
    "StrEnum": (Word, Word.NO),
    "Flag": (Right, Right.WRITE),
    "combined IntFlag": (Bits, Bits.A | Bits.B),
    "Literal": (Literal["a", "b"], "b"),
    "Literal of several types": (Literal["a", 2, True], 2),
    "Optional with value": (Optional[int], 5),  # noqa: UP045
    "union of scalars, int": (int | str, 5),
    "union of scalars, str": (int | str, "five"),
    "union of schemas": (Bird | Fish, Fish(fins=2)),
    "tagged union": (Annotated[Cat | Dog, Field(discriminator="kind")], Dog(name="Rex")),
    "union with a function as discriminator": (Tagged, Bird(wings=2)),
    "union of list and str": (list[str] | str, ["a", "b"]),
    "union of schema and None": (Bird | None, Bird(wings=2)),
    "list": (list[int], [1, 2, 3]),
    "empty list": (list[int], []),
    "list of one": (list[str], ["a"]),
    "list of lists": (list[list[int]], [[1], [2, 3]]),
    "list with an empty list": (list[list[int]], [[], [1]]),
    "list of optional": (list[Optional[int]], [1, 2]),  # noqa: UP045
    "list of schemas": (list[Bird], [Bird(wings=1), Bird(wings=2)]),
    "list of dataclasses": (list[Point], [Point(1, 2), Point(3)]),
    "set": (set[int], {1, 2}),
    "frozenset": (frozenset[str], frozenset({"a"})),
    "tuple": (tuple[int, str], (1, "a")),
    "tuple of any length": (tuple[int, ...], (1, 2, 3)),
    "dict": (dict[str, int], {"a": 1, "b": 2}),
    "empty dict": (dict[str, int], {}),
    "dict with strange keys": (dict[str, int], {"a b": 1, "1": 2, "<": 3, "é": 4}),
    "dict of lists": (dict[str, list[int]], {"a": [1, 2]}),
    "dict with int keys": (dict[int, str], {1: "a"}),
    "dict with enum keys": (dict[Color, int], {Color.RED: 1}),
    "Sequence": (Sequence[int], [1, 2]),
    "Mapping": (Mapping[str, int], {"a": 1}),
    "dataclass": (Point, Point(1, 2)),
    "nested dataclass": (Line, Line(Point(1), Point(2, 3), ["a"])),
    "TypedDict": (Movie, {"name": "Up", "year": 2009}),
    "TypedDict without optional key": (Movie, {"name": "Up"}),
    "NamedTuple": (Pair, Pair(1, "x")),
    "schema": (Bird, Bird(wings=2)),
    "recursive schema": (Tree, Tree(value=1, children=[Tree(value=2), Tree(value=3, children=[Tree(value=4)])])),
    "linked schema": (Linked, Linked(value=1, next=Linked(value=2))),
    "generic schema": (Box[int], Box[int](content=5)),
    "generic schema of schemas": (Box[list[Bird]], Box[list[Bird]](content=[Bird(wings=2)])),
    "RootModel of a list": (Names, Names(["a", "b"])),
    "RootModel of a dict": (Scores, Scores({"a": 1})),
    "RootModel of a Decimal": (Amount, Amount(Decimal("1.50"))),
    "list of RootModels": (list[Names], [Names(["a"]), Names([])]),
    "alias": (Aliased, Aliased(firstName="Ann")),
    "list of aliases": (list[Aliased], [Aliased(firstName="Ann")]),
    "alias choices": (Choices, Choices(first="Ann")),
    "alias generator": (Camel, Camel(home_town="Ulm")),
    "validator that changes": (Upper, Upper(name="ANN")),
    "model validator": (Range, Range(low=1, high=2)),
    "computed field": (Area, Area(width=2, height=3)),
    "defaults": (Defaults, Defaults(name="a")),
    "frozen schema": (Frozen, Frozen(name="a")),
    "schema with extra fields": (Loose, Loose(name="a")),
    "strict schema": (Strict, Strict(count=3)),
    "fields with the names of acorn": (
        Odd,
        Odd(result="a", input="b", self="c", model="d", output="e", item="f", title="g"),
    ),
    "wide schema": (
        Wide,
        Wide(values={Color.RED: [(1, None), (2, "b")]}, pets=[Cat(), Dog(name="Rex")], maybe={"a": Point(1)}),
    ),
    "Annotated bounds": (Annotated[int, Field(ge=1, le=10)], 5),
    "Annotated length": (Annotated[list[int], Len(1, 3)], [1, 2]),
    "Annotated pattern": (Annotated[str, StringConstraints(pattern=r"^[a-z]+$")], "abc"),
    "annotated-types": (Annotated[int, Ge(0)], 0),
    "PositiveInt": (PositiveInt, 3),
    "NonNegativeInt": (NonNegativeInt, 0),
    "NewType": (UserId, UserId(5)),
    "ByteSize": (ByteSize, ByteSize(1024)),
    "Any, text": (Any, "x"),
    "Any, data": (Any, {"a": [1, None, True]}),
    "dict without types": (dict, {"a": 1}),
    "list without types": (list, [1, "a"]),
}


def _agent(name: str, kind: Any, *replies: Any, **settings: Any) -> Any:
    """Return an agent that takes a value of a type in a field, and answers with one."""

    class Taker(module):
        """Take it."""

        initial_input = [("value", kind)]
        final_output = [("value", kind)]

    return Taker(model=ScriptedModel(list(replies)), **settings)


def _json(kind: Any, value: Any, **options: Any) -> Any:
    return json.loads(TypeAdapter(kind).dump_json(value, **{"by_alias": False, "round_trip": True, **options}))


def test_value_of_type_is_answered_in_a_field() -> None:
    for name, (kind, value) in VALUES.items():
        with case(name):
            agent = _agent(name, kind, call("__finish__", value=_json(kind, value)))
            output = agent(value=value)
            assert output.value == value
            assert type(output.value) is type(value)


def test_value_of_type_is_answered_as_plain_output() -> None:
    for name, (kind, value) in VALUES.items():

        class Plain(module):
            """Answer."""

            initial_input: Any = []
            final_output = kind

        with case(name):
            sent = _json(kind, value)
            is_schema = isinstance(kind, type) and issubclass(kind, BaseModel) and not issubclass(kind, RootModel)
            reply = call("__finish__", **sent) if is_schema else finish(sent)
            model = ScriptedModel([reply])
            output = Plain(model=model)()
            assert output == value or output == getattr(value, "root", ...)


def test_value_of_type_is_streamed() -> None:
    for name, (kind, value) in VALUES.items():
        with case(name):
            agent = _agent(name, kind, call("__finish__", value=_json(kind, value)))
            chunks = list(agent.stream(value=value))
            assert chunks[-1].result.value == value
            for chunk in chunks[:-1]:
                getattr(chunk.partial, "value", None)


def test_value_of_type_is_sent_in_input_as_its_json_form() -> None:
    for name in ("int", "Decimal", "bytes", "date", "datetime with zone", "UUID", "Path", "IPv4Address", "Enum"):
        with case(name):
            kind, value = VALUES[name]
            agent = _agent(name, kind, call("__finish__", value=_json(kind, value)))
            agent(value=value)
            text = str(agent.model.requests[0].messages[-1]["content"])
            shown = _json(kind, value)
            assert f"<value>{shown}</value>" in text


def test_record_of_type_is_the_same_after_json() -> None:
    for name, (kind, value) in VALUES.items():
        with case(name):
            agent = _agent(name, kind, call("__finish__", value=_json(kind, value)))
            run = agent.run(value=value)
            again: Any = Run.from_json(run.to_json(), type(agent))
            assert again.output.value == value
            assert again.input.value == value


def test_value_of_type_arrives_in_tool_and_comes_back() -> None:
    for name, (kind, value) in VALUES.items():
        seen: list[Any] = []

        def take(value: kind) -> Any:  # type: ignore[valid-type]
            """Take it."""
            seen.append(value)  # noqa: B023
            return value

        with case(name):
            read = read_result(take, value=_json(kind, value, by_alias=True))
            assert not read.startswith("Tool error"), read
            assert seen == [value]
            assert type(seen[0]) is type(value)
            assert read == value if isinstance(value, str) else json.loads(read) == _json(kind, value, round_trip=False)


def test_value_of_type_arrives_through_xml_fallback() -> None:
    """The model answers in the form in which acorn writes an input."""
    for name, (kind, value) in VALUES.items():
        if name in XML_CANNOT:
            continue
        with case(name):
            sender = _agent(name, kind, call("__finish__", value=_json(kind, value)))
            sender(value=value)
            text = str(sender.model.requests[0].messages[-1]["content"])
            answer = re.sub(r"^<input>|</input>$", lambda found: found.group().replace("input", "output"), text)
            model = ScriptedModel([call("look"), "Hm.", f"Here it is:\n\n```xml\n{answer}\n```"], forces=False)

            def look() -> str:
                """Look."""
                return "seen"

            agent = _agent(name, kind)
            made = agent.using(model=model, tools=[look], max_steps=1)
            assert made(value=value).value == value


XML_CANNOT = {
    "combined IntFlag",  # See `test_flags_in_xml_answers.py`.
    "str with lines",  # Surrounding whitespace of texts is trimmed, and inner lines stay; see `test_xml_roundtrip`.
    "Any, data",  # XML has no types.
    "dict without types",
    "list without types",
}

WRONG: dict[str, tuple[Any, Any]] = {
    "int": (int, "seven"),
    "int with fraction": (int, 1.5),
    "float": (float, "much"),
    "bool": (bool, "perhaps"),
    "Decimal": (Decimal, "1.2.3"),
    "date": (date, "2023-02-29"),
    "datetime": (datetime, "yesterday"),
    "time": (time, "25:00"),
    "UUID": (UUID, "12"),
    "IPv4Address": (IPv4Address, "10.0.0.256"),
    "AnyUrl": (AnyUrl, "not a url"),
    "Enum": (Color, "green"),
    "IntEnum": (Level, 3),
    "Literal": (Literal["a", "b"], "c"),
    "list": (list[int], "1"),
    "item of a list": (list[int], [1, "x"]),
    "tuple too short": (tuple[int, str], [1]),
    "tuple too long": (tuple[int, str], [1, "a", 2]),
    "dict": (dict[str, int], [1]),
    "value of a dict": (dict[str, int], {"a": "x"}),
    "dataclass": (Point, {"y": 1}),
    "TypedDict": (Movie, {"year": 1}),
    "schema": (Bird, {"wings": "many"}),
    "tagged union": (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cow"}),
    "member of tagged union": (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "dog"}),
    "bounds": (Annotated[int, Field(ge=1, le=10)], 11),
    "length": (Annotated[list[int], Len(1, 3)], []),
    "pattern": (Annotated[str, StringConstraints(pattern=r"^[a-z]+$")], "ABC"),
    "model validator": (Range, {"low": 2, "high": 1}),
    "extra field of strict schema": (Strict, {"count": 1, "more": 2}),
    "text for strict int": (Strict, {"count": "1"}),
    "None": (int, None),
    "recursive schema": (Tree, {"value": 1, "children": [{"value": "x"}]}),
    "NaN": (int, float("nan")),
    "RootModel": (Names, [1, {}]),
}


def test_wrong_value_of_type_is_input_error_that_names_the_field() -> None:
    for name, (kind, value) in WRONG.items():
        with case(name):
            agent = _agent(name, kind)
            with pytest.raises(InputError, match="value") as caught:
                agent(value=value)
            assert agent.model.requests == []
            assert len(str(caught.value)) < 2000


def test_wrong_answer_of_type_is_corrected_by_model() -> None:
    for name, (kind, value) in WRONG.items():
        with case(name):

            class Answering(module):
                """Answer."""

                initial_input: Any = []
                final_output = [("value", kind)]
                parse_retries = 1

            raw = json.dumps({"value": value})
            wrong = call("__finish__")
            wrong.calls[0].arguments = raw
            model = ScriptedModel([wrong, wrong])
            with pytest.raises(ParseError) as caught:
                Answering(model=model)()
            message = str(model.requests[1].messages[-1]["content"])
            assert '<error type="validation">' in message
            assert 'name="value' in message or "value" in message
            assert len(message) < 4000
            assert caught.value.attempts == 2


def test_secret_of_input_is_not_sent() -> None:
    agent = _agent("secret", SecretStr, call("__finish__", value="x"))
    run = agent.run(value="sk-very-secret")
    assert "sk-very-secret" not in str(agent.model.requests[0].messages)
    assert run.input.value.get_secret_value() == "sk-very-secret"
    assert "sk-very-secret" not in str(run)


def test_json_type_is_answered_as_text() -> None:
    output = _agent("json", Json[list[int]], call("__finish__", value="[1, 2]"))(value="[1]")
    assert output.value == [1, 2]


def test_type_that_pydantic_cannot_validate_is_declaration_error() -> None:
    from acorn import DeclarationError

    class Foreign:
        pass

    for kind in (Foreign, list[Foreign], dict[str, Foreign], Foreign | None):
        for where in ("initial_input", "final_output"):
            with case(kind, where), pytest.raises(DeclarationError, match=where):
                type("Broken", (module,), {"__module__": __name__, "__doc__": "x", where: [("value", kind)]})


def test_defaults_and_optional_fields_may_be_left_out_by_model() -> None:
    output = _agent("x", Defaults, call("__finish__", value={"name": "a"}))(value={"name": "b"})
    assert output.value == Defaults(name="a")
    assert output.value.tags == ["new"]


def test_field_default_is_used_for_missing_output_field() -> None:
    class Answering(module):
        """Answer."""

        initial_input: Any = []
        final_output = [
            ("a", int, 5),
            ("b", list[int], Field(default_factory=list)),
            ("c", Optional[str], None),  # noqa: UP045
            "d",
        ]

    output: Any = Answering(model=ScriptedModel([call("__finish__", d="x")]))()
    assert (output.a, output.b, output.c, output.d) == (5, [], None, "x")
