"""A table of function signatures, each with its expected JSON Schema and arguments to try.

`test_function_schemas` uses it. `@parameter` is for a function of one parameter and gives the schema of that parameter;
`@signature` gives all of `parameters`. Next to the schema are

    takes     arguments that schema and function both accept
    refuses   arguments that both refuse, and the argument that the refusal must name
    lax       arguments that the schema refuses and the function accepts: "5" for an integer
    beyond    arguments that the schema cannot refuse and the function does: an invalid date
"""

# ruff: noqa: B006, B008, RUF013, UP006, UP007, UP035, UP045 - every way to write a hint or a default is meant

import collections
import dataclasses
import datetime as dt
import enum
import functools
import inspect
import ipaddress
import json
import math
import re
import uuid
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from collections.abc import Set as AbstractSet
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Dict, Generic, List, Literal, NamedTuple, NewType, Optional, Tuple, TypeVar, Union

import annotated_types
import pydantic
from pydantic import (
    AfterValidator,
    AliasChoices,
    AnyUrl,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    HttpUrl,
    Json,
    NaiveDatetime,
    NonNegativeFloat,
    PastDate,
    PositiveInt,
    RootModel,
    SecretStr,
    StrictInt,
    StringConstraints,
    Tag,
    WithJsonSchema,
    create_model,
    validate_call,
)
from typing_extensions import NotRequired, Required, TypeAliasType, TypedDict, Unpack

from acorn import tool

Schema = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Row:
    """One signature with its expected schema and with arguments as JSON texts."""

    name: str
    function: Callable[..., Any]
    parameters: Schema
    description: str | None
    takes: list[str]
    refuses: list[tuple[str, str]]
    lax: list[str]
    beyond: list[tuple[str, str]]


ROWS: list[Row] = []


def parameter(
    schema: Schema,
    *,
    takes: Sequence[Any],
    refuses: Sequence[Any] = (),
    lax: Sequence[Any] = (),
    beyond: Sequence[Any] = (),
    required: bool = True,
    name: str = "",
    defs: Schema | None = None,
    description: str | None = None,
) -> Callable[[F], F]:
    """A row for a function of one parameter, which takes values rather than arguments.

    `name` is the model's name of the parameter, if it differs.
    """

    def add(function: F) -> F:
        key = name or next(iter(inspect.signature(function).parameters))
        whole: Schema = {"type": "object", "properties": {key: schema}}
        if required:
            whole["required"] = [key]
        if defs:
            whole["$defs"] = defs
        missing: list[Any] = [({}, key)] if required else []
        return signature(
            whole,
            takes=[{key: value} for value in takes] if required else [{}, *({key: value} for value in takes)],
            refuses=[*missing, *(({key: value}, key) for value in refuses)],
            lax=[{key: value} for value in lax],
            beyond=[({key: value}, key) for value in beyond],
            description=description,
        )(function)

    return add


def signature(
    parameters: Schema,
    *,
    takes: Sequence[dict[str, Any]],
    refuses: Sequence[tuple[Any, str]] = (),
    lax: Sequence[dict[str, Any]] = (),
    beyond: Sequence[tuple[Any, str]] = (),
    description: str | None = None,
    name: str = "",
) -> Callable[[F], F]:
    """Return a row for any callable; `name` is the name of the row if the callable has no name."""

    def add(function: F) -> F:
        ROWS.append(
            Row(
                name or function.__name__,
                function,
                parameters,
                description,
                [json.dumps(arguments) for arguments in takes],
                [(json.dumps(arguments), argument) for arguments, argument in refuses],
                [json.dumps(arguments) for arguments in lax],
                [(json.dumps(arguments), argument) for arguments, argument in beyond],
            )
        )
        return function

    return add


# Plain types.


@signature({"type": "object", "properties": {}}, takes=[{}])
def no_parameters() -> None: ...


@parameter({"type": "string"}, takes=["hello", "", "5", "é\u2028\U0001f600"], refuses=[5, 1.5, True, None, [], {}])
def a_string(text: str) -> None: ...


@parameter(
    {"type": "integer"}, takes=[5, -1, 0, 2**70, 5.0], refuses=[5.5, "five", "", None, [], {}], lax=["5", "5.0", True]
)
def an_integer(count: int) -> None: ...


@parameter({"type": "number"}, takes=[1.5, 3, -1e9], refuses=["much", "", None, [], {}], lax=["1.5", True])
def a_float(ratio: float) -> None: ...


@parameter(
    {"type": "boolean"},
    takes=[True, False],
    refuses=["maybe", 2, None, [], {}],
    lax=["true", "False", "yes", "off", "1", 0, 1.0],
)
def a_boolean(flag: bool) -> None: ...


@parameter({"type": "null"}, takes=[None], refuses=[0, "", "null", False])
def nothing_but_none(nothing: None) -> None: ...


@parameter({}, takes=[None, 1, "x", [1, {"a": None}], {"b": 1.5}])
def anything(value: Any) -> None: ...


@parameter({}, takes=[None, 1, "x", []])
def an_object(value: object) -> None: ...


@parameter({"type": "string", "format": "binary"}, takes=["abc", ""], refuses=[5, None, []])
def some_bytes(content: bytes) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "height": {"type": "number"},
            "is_member": {"type": "boolean"},
        },
        "required": ["name", "age", "height", "is_member"],
    },
    takes=[{"name": "Ada", "age": 36, "height": 1.65, "is_member": True}],
    refuses=[
        ({"name": "Ada", "age": 36, "height": 1.65}, "is_member"),
        ({"name": "Ada", "age": "old", "height": 1.65, "is_member": True}, "age"),
        ({}, "name"),
    ],
    lax=[{"name": "Ada", "age": "36", "height": "1.65", "is_member": "true"}],
    beyond=[({"name": "Ada", "age": 36, "height": 1.65, "is_member": True, "shoe": 40}, "shoe")],
)
def four_parameters(name: str, age: int, height: float, is_member: bool) -> None: ...


# None, written and unwritten.


@parameter({"anyOf": [{"type": "integer"}, {"type": "null"}]}, takes=[5, None], refuses=["x", []], lax=["5"])
def optional_but_required(count: Optional[int]) -> None: ...


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    takes=[5, None],
    refuses=["x", []],
    lax=["5"],
    required=False,
)
def none_by_default(count: int | None = None) -> None: ...


@parameter(
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": "x"}, takes=["y", None], refuses=[5], required=False
)
def optional_with_another_default(text: Optional[str] = "x") -> None: ...


@parameter({"anyOf": [{"type": "string"}, {"type": "null"}]}, takes=["y", None], refuses=[5])
def none_or_a_string(text: None | str) -> None: ...  # noqa: RUF036 - None comes last all the same


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    takes=[5, None],
    refuses=["x"],
    required=False,
)
def none_under_a_hint_without_it(count: int = None) -> None: ...  # type: ignore[assignment]


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    takes=[5, None],
    refuses=["x"],
    required=False,
)
def none_under_a_hint_in_quotes(count: "int" = None) -> None: ...  # type: ignore[assignment]


@parameter(
    {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
    takes=[["a"], [], None],
    refuses=["a", [1]],
    required=False,
)
def none_under_a_list(tags: list[str] = None) -> None: ...  # type: ignore[assignment]


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}], "default": None},
    takes=[5, "x", None],
    refuses=[[], {}],
    required=False,
)
def none_under_a_union(value: int | str = None) -> None: ...  # type: ignore[assignment]


@parameter(
    {"anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "null"}], "default": None},
    takes=["a", None],
    refuses=["c", 1],
    required=False,
)
def none_under_a_literal(choice: Literal["a", "b"] = None) -> None: ...  # type: ignore[assignment]


@parameter(
    {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
    takes=[1, None],
    refuses=[0, "x"],
    required=False,
)
def none_under_a_limit(count: Annotated[int, Field(ge=1)] = None) -> None: ...  # type: ignore[assignment]


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "How many.", "default": None},
    takes=[1, None],
    refuses=["x"],
    required=False,
)
def none_under_a_description(count: Annotated[int, Field(description="How many.")] = None) -> None: ...  # type: ignore[assignment]


def _be_even(number: int) -> int:
    if number % 2:
        raise ValueError("an even number")
    return number


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    takes=[2, None],
    refuses=["x"],
    beyond=[3],
    required=False,
)
def none_under_a_validator_that_cannot_take_it(count: Annotated[int, AfterValidator(_be_even)] = None) -> None: ...  # type: ignore[assignment]


@parameter({"default": None}, takes=[None, 1, "x"], required=False)
def none_under_any(value: Any = None) -> None: ...


@parameter({"type": "null", "default": None}, takes=[None], refuses=[1], required=False)
def none_under_none(nothing: None = None) -> None: ...


# Defaults.


@parameter({"type": "string", "default": "en"}, takes=["de"], refuses=[5, None], required=False)
def a_string_by_default(language: str = "en") -> None: ...


@parameter({"type": "string", "default": ""}, takes=["x"], refuses=[None], required=False)
def an_empty_string_by_default(text: str = "") -> None: ...


@parameter({"type": "integer", "default": 0}, takes=[5], refuses=["x", None], lax=["5"], required=False)
def zero_by_default(count: int = 0) -> None: ...


@parameter({"type": "number", "default": 0.5}, takes=[1, 0.25], refuses=["x"], required=False)
def a_float_by_default(ratio: float = 0.5) -> None: ...


@parameter({"type": "boolean", "default": False}, takes=[True], refuses=[None], required=False)
def false_by_default(flag: bool = False) -> None: ...


@parameter(
    {"type": "array", "items": {"type": "integer"}, "default": []}, takes=[[1]], refuses=[None, ["x"]], required=False
)
def an_empty_list_by_default(numbers: list[int] = []) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "integer"}, "default": {"a": 1}},
    takes=[{}, {"b": 2}],
    refuses=[{"a": "x"}],
    required=False,
)
def a_dict_by_default(counts: dict[str, int] = {"a": 1}) -> None: ...


@parameter(
    {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "integer"}],
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 2,
        "default": [3, 4],
    },
    takes=[[1, 2]],
    refuses=[[1]],
    required=False,
)
def a_tuple_by_default(size: tuple[int, int] = (3, 4)) -> None: ...


@parameter(
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "default": ["a", "b", "c"]},
    takes=[["x"], []],
    refuses=["x"],
    required=False,
)
def a_set_by_default(tags: set[str] = {"c", "a", "b"}) -> None: ...


@parameter(
    {"type": "string", "format": "date", "default": "2024-02-29"},
    takes=["2025-01-01"],
    beyond=["soon"],
    required=False,
)
def a_date_by_default(day: dt.date = dt.date(2024, 2, 29)) -> None: ...


@parameter(
    {"type": "string", "format": "date-time", "default": "2024-02-29T12:30:00"},
    takes=["2025-01-01T00:00:00Z"],
    beyond=["soon"],
    required=False,
)
def a_datetime_by_default(when: dt.datetime = dt.datetime(2024, 2, 29, 12, 30)) -> None: ...


@parameter(
    {"type": "string", "format": "duration", "default": "PT1H30M"},
    takes=["P1D"],
    refuses=[None],
    beyond=["long"],
    required=False,
)
def a_duration_by_default(pause: dt.timedelta = dt.timedelta(minutes=90)) -> None: ...


@parameter(
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^-?\d+(\.\d+)?$"}], "default": "1.50"},
    takes=[2, "2.5"],
    refuses=["much"],
    required=False,
)
def a_decimal_by_default(price: Decimal = Decimal("1.50")) -> None: ...


@parameter({"type": "string", "format": "path", "default": "index.md"}, takes=["a"], required=False)
def a_path_by_default(file: Path = Path("index.md")) -> None: ...


@parameter(
    {"type": "string", "format": "uuid", "default": "00000000-0000-0000-0000-000000000007"},
    takes=["12345678-1234-5678-1234-567812345678"],
    beyond=["seven"],
    required=False,
)
def a_uuid_by_default(key: uuid.UUID = uuid.UUID(int=7)) -> None: ...


@parameter({"type": "string", "format": "binary", "default": "abc"}, takes=["x"], required=False)
def bytes_by_default(content: bytes = b"abc") -> None: ...


@parameter({"type": "string", "format": "binary"}, takes=["x"], required=False)
def bytes_that_are_no_text_by_default(content: bytes = b"\xff\xfe") -> None: ...


@parameter({"type": "number"}, takes=[1.5], refuses=["x"], required=False)
def infinity_by_default(limit: float = math.inf) -> None: ...


@parameter({"type": "number"}, takes=[1.5], refuses=["x"], required=False)
def not_a_number_by_default(limit: float = math.nan) -> None: ...


@parameter({"type": "array", "items": {"type": "number"}}, takes=[[1.5]], refuses=["x"], required=False)
def infinity_inside_a_default(limits: list[float] = [0.0, math.inf]) -> None: ...


@parameter({}, takes=[1, None], required=False)
def a_sentinel_by_default(value: Any = object()) -> None: ...


@parameter(
    {"type": "string", "format": "password", "writeOnly": True, "default": "**********"},
    takes=["x"],
    refuses=[5],
    required=False,
)
def a_secret_by_default(password: SecretStr = SecretStr("hunter2")) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
        "required": ["query"],
    },
    takes=[{"query": "x"}, {"query": "x", "limit": 3}],
    refuses=[({"limit": 3}, "query"), ({"query": "x", "limit": None}, "limit")],
    description="Search the web for information.",
)
def search(query: str, limit: int = 10) -> list[str]:
    """Search the web for information."""
    return [query] * limit


# Containers.


@parameter({"type": "array", "items": {}}, takes=[[], [1, "x", None]], refuses=["x", {}, None])
def a_bare_list(items: list) -> None: ...  # type: ignore[type-arg]


@parameter({"type": "array", "items": {}}, takes=[[], [1, "x"]], refuses=["x", {}])
def a_list_of_anything(items: list[Any]) -> None: ...


@parameter({"type": "array", "items": {"type": "string"}}, takes=[[], ["a"]], refuses=["a", [1], [None], {"0": "a"}])
def a_list_of_strings(names: list[str]) -> None: ...


@parameter({"type": "array", "items": {"type": "integer"}}, takes=[[], [1]], refuses=[[1.5], ["x"]], lax=[["1"]])
def a_typing_list(numbers: List[int]) -> None: ...


@parameter(
    {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    takes=[[], [[]], [[1, 2.5], [3]]],
    refuses=[[1], [["x"]], "[]"],
)
def a_list_of_lists(matrix: list[list[float]]) -> None: ...


@parameter(
    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    takes=[[1, None]],
    refuses=[None, ["x"]],
)
def a_list_with_gaps(numbers: list[int | None]) -> None: ...


@parameter({"type": "object", "additionalProperties": True}, takes=[{}, {"a": [1]}], refuses=[[], "x", None])
def a_bare_dict(options: dict) -> None: ...  # type: ignore[type-arg]


@parameter({"type": "object", "additionalProperties": True}, takes=[{}, {"a": 1, "b": None}], refuses=[[]])
def a_dict_of_anything(options: dict[str, Any]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "integer"}}, takes=[{}, {"a": 1}], refuses=[{"a": "x"}, [], [1]]
)
def a_dict_of_integers(counts: dict[str, int]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "integer"}},
    takes=[{"a": 1}],
    refuses=[{"a": "x"}],
    lax=[{"a": "1"}],
)
def a_typing_dict(counts: Dict[str, int]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
    takes=[{"a": ["b"]}],
    refuses=[{"a": "b"}, {"a": [1]}],
)
def a_dict_of_lists(groups: dict[str, list[str]]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "string"}, "propertyNames": {"pattern": r"^-?\d+$"}},
    takes=[{"1": "one"}],
    refuses=[{"1": 1}, {"one": "1"}],
)
def a_dict_with_integers_as_keys(names: dict[int, str]) -> None: ...


@parameter(
    {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "propertyNames": {"enum": ["a", "b"]},
    },
    takes=[{}, {"a": 1}],
    refuses=[{"c": 1}, {"a": "x"}],
)
def a_dict_with_known_keys(counts: dict[Literal["a", "b"], int]) -> None: ...


@parameter(
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    takes=[[], [1, 2]],
    refuses=["x", ["x"], {}],
    lax=[[1, 1]],
)
def a_set(numbers: set[int]) -> None: ...


@parameter({"type": "array", "items": {}, "uniqueItems": True}, takes=[[], [1, "x"]], refuses=["x"], beyond=[[[]]])
def a_bare_set(values: set) -> None: ...  # type: ignore[type-arg]


@parameter(
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, takes=[["a"]], refuses=[[1]], lax=[["a", "a"]]
)
def a_frozenset(names: frozenset[str]) -> None: ...


@parameter(
    {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, takes=[["a"]], refuses=[[1]], lax=[["a", "a"]]
)
def an_abstract_set(names: AbstractSet[str]) -> None: ...


@parameter(
    {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "minItems": 2,
        "maxItems": 2,
    },
    takes=[[1, "a"]],
    refuses=[[1], [1, "a", "b"], ["a", 1], [], "1a"],
    lax=[["1", "a"]],
)
def a_pair(pair: tuple[int, str]) -> None: ...


@parameter(
    {
        "type": "array",
        "prefixItems": [{"type": "number"}, {"type": "number"}],
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
    },
    takes=[[1, 2.5]],
    refuses=[[1], [1, 2, 3]],
)
def a_pair_of_one_type(point: Tuple[float, float]) -> None: ...


@parameter({"type": "array", "items": {"type": "integer"}}, takes=[[], [1, 2, 3]], refuses=[["x"], "x"])
def a_tuple_of_any_length(numbers: tuple[int, ...]) -> None: ...


@parameter({"type": "array", "items": {}, "minItems": 0, "maxItems": 0}, takes=[[]], refuses=[[1], {}])
def an_empty_tuple(nothing: tuple[()]) -> None: ...


@parameter({"type": "array", "items": {}}, takes=[[], [1, "x"]], refuses=["x"])
def a_bare_tuple(values: tuple) -> None: ...  # type: ignore[type-arg]


@parameter({"type": "array", "items": {"type": "integer"}}, takes=[[], [1]], refuses=[["x"], "12"])
def a_sequence(numbers: Sequence[int]) -> None: ...


@parameter({"type": "array", "items": {"type": "integer"}}, takes=[[1]], refuses=[["x"]])
def a_mutable_sequence(numbers: MutableSequence[int]) -> None: ...


@parameter(
    {"type": "array", "items": {"type": "integer"}}, takes=[[], [1]], refuses=[["x"], "12", {"a": 1}], lax=[["1"]]
)
def an_iterable(numbers: Iterable[int]) -> None: ...


@parameter(
    {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
    takes=[["a"], None],
    refuses=["a", [1]],
    required=False,
)
def an_iterable_or_none(names: Iterable[str] | None = None) -> None: ...


@parameter({"type": "array", "items": {}, "description": "Any things."}, takes=[[1, "x"]], refuses=["x"])
def a_bare_iterable(things: Annotated[Iterable, Field(description="Any things.")]) -> None: ...  # type: ignore[type-arg]


@parameter({"type": "object", "additionalProperties": {"type": "integer"}}, takes=[{"a": 1}], refuses=[{"a": "x"}, []])
def a_mapping(counts: Mapping[str, int]) -> None: ...


@parameter({"type": "object", "additionalProperties": {"type": "integer"}}, takes=[{"a": 1}], refuses=[{"a": "x"}])
def a_mutable_mapping(counts: MutableMapping[str, int]) -> None: ...


@parameter({"type": "array", "items": {"type": "integer"}}, takes=[[], [1]], refuses=[["x"]])
def a_deque(numbers: deque[int]) -> None: ...


@parameter({"type": "object", "additionalProperties": {"type": "integer"}}, takes=[{"a": 1}], refuses=[{"a": "x"}])
def a_counter(counts: collections.Counter[str]) -> None: ...


@parameter({"type": "object", "additionalProperties": {"type": "integer"}}, takes=[{"a": 1}], refuses=[{"a": "x"}])
def an_ordered_dict(counts: OrderedDict[str, int]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
    takes=[{"a": [1]}],
    refuses=[{"a": 1}],
)
def a_defaultdict(groups: defaultdict[str, list[int]]) -> None: ...


@parameter(
    {
        "type": "object",
        "additionalProperties": {
            "type": "array",
            "items": {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"anyOf": [{"type": "number"}, {"type": "null"}]}],
                "items": {"anyOf": [{"type": "string"}, {"anyOf": [{"type": "number"}, {"type": "null"}]}]},
                "minItems": 2,
                "maxItems": 2,
            },
        },
    },
    takes=[{}, {"x": [["a", 1.5], ["b", None]]}],
    refuses=[{"x": ["a", 1.5]}, {"x": [["a"]]}, {"x": [[1, 1]]}],
)
def containers_in_containers(series: dict[str, list[tuple[str, float | None]]]) -> None: ...


# Enums and literals.


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Priority(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Unit(enum.StrEnum):
    METRE = "m"
    FOOT = "ft"


class OldUnit(str, enum.Enum):  # noqa: UP042 - the way of writing it before StrEnum
    METRE = "m"


class Odd(enum.Enum):
    """Values of several types."""

    ONE = 1
    TWO = "two"
    HALF = 0.5
    NOTHING = None


class Aliased(enum.Enum):
    GREY = "grey"
    GRAY = "grey"  # noqa: PIE796 - an alias is meant
    BLACK = "black"


class Ratio(enum.Enum):
    HALF = 0.5
    DOUBLE = 2.5


class Corner(enum.Enum):
    ORIGIN = (0, 0)
    FAR = (1, 1)


@parameter(
    {"$ref": "#/$defs/Color"},
    defs={"Color": {"enum": ["red", "green"], "type": "string"}},
    takes=["red", "green"],
    refuses=["blue", "RED", 1, None],
)
def an_enum(color: Color) -> None: ...


@parameter(
    {"$ref": "#/$defs/Color", "default": "green"},
    defs={"Color": {"enum": ["red", "green"], "type": "string"}},
    takes=["red"],
    refuses=["blue"],
    required=False,
)
def an_enum_by_default(color: Color = Color.GREEN) -> None: ...


@parameter(
    {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": None},
    defs={"Color": {"enum": ["red", "green"], "type": "string"}},
    takes=["red", None],
    refuses=["blue"],
    required=False,
)
def an_enum_or_none(color: Color | None = None) -> None: ...


@parameter(
    {"$ref": "#/$defs/Priority"},
    defs={"Priority": {"enum": [1, 2], "type": "integer"}},
    takes=[1, 2],
    refuses=[3, "LOW", None],
    lax=["1"],
)
def an_int_enum(priority: Priority) -> None: ...


@parameter(
    {"$ref": "#/$defs/Unit"}, defs={"Unit": {"enum": ["m", "ft"], "type": "string"}}, takes=["m"], refuses=["km", 1]
)
def a_str_enum(unit: Unit) -> None: ...


@parameter(
    {"$ref": "#/$defs/OldUnit"}, defs={"OldUnit": {"enum": ["m"], "type": "string"}}, takes=["m"], refuses=["km", 1]
)
def an_enum_with_one_value(unit: OldUnit) -> None: ...


@parameter(
    {"$ref": "#/$defs/Odd"},
    defs={"Odd": {"enum": [1, "two", 0.5, None], "description": "Values of several types."}},
    takes=[1, "two", 0.5, None],
    refuses=[2, "1", []],
)
def an_enum_of_several_types(value: Odd) -> None: ...


@parameter(
    {"$ref": "#/$defs/Aliased"},
    defs={"Aliased": {"enum": ["grey", "black"], "type": "string"}},
    takes=["grey", "black"],
    refuses=["gray"],
)
def an_enum_with_an_alias(shade: Aliased) -> None: ...


@parameter(
    {"$ref": "#/$defs/Ratio"}, defs={"Ratio": {"enum": [0.5, 2.5], "type": "number"}}, takes=[0.5], refuses=[1, "half"]
)
def an_enum_of_floats(ratio: Ratio) -> None: ...


@parameter(
    {"$ref": "#/$defs/Corner"},
    defs={"Corner": {"enum": [[0, 0], [1, 1]], "type": "array", "items": {}}},
    takes=[],
    refuses=[[0, 1], "ORIGIN"],
    beyond=[[0, 0]],
)
def an_enum_of_tuples(corner: Corner) -> None: ...


@parameter(
    {"type": "array", "items": {"$ref": "#/$defs/Color"}, "default": ["red"]},
    defs={"Color": {"enum": ["red", "green"], "type": "string"}},
    takes=[[], ["red", "green"]],
    refuses=[["blue"], "red"],
    required=False,
)
def a_list_of_enums(colors: list[Color] = [Color.RED]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"$ref": "#/$defs/Color"}},
    defs={"Color": {"enum": ["red", "green"], "type": "string"}},
    takes=[{}, {"red": 1}],
    refuses=[{"blue": 1}, {"red": "x"}],
)
def a_dict_with_enum_keys(counts: dict[Color, int]) -> None: ...


@parameter({"enum": ["asc", "desc"], "type": "string"}, takes=["asc"], refuses=["up", "", None, 1])
def a_literal(order: Literal["asc", "desc"]) -> None: ...


@parameter(
    {"enum": ["asc", "desc"], "type": "string", "default": "asc"}, takes=["desc"], refuses=["up"], required=False
)
def a_literal_by_default(order: Literal["asc", "desc"] = "asc") -> None: ...


@parameter({"const": "yes", "type": "string"}, takes=["yes"], refuses=["no", True])
def a_literal_of_one_value(answer: Literal["yes"]) -> None: ...


@parameter({"enum": [1, 2, 3], "type": "integer"}, takes=[1, 3], refuses=[4, "1"])
def a_literal_of_integers(level: Literal[1, 2, 3]) -> None: ...


@parameter({"enum": ["auto", 1, None]}, takes=["auto", 1, None], refuses=["1", 2, ""])
def a_literal_of_several_types(level: Literal["auto", 1, None]) -> None: ...


@parameter({"const": True, "type": "boolean"}, takes=[True], refuses=[False, "yes"])
def a_literal_true(sure: Literal[True]) -> None: ...


@parameter({"const": "m", "type": "string"}, takes=["m"], refuses=["ft"])
def a_literal_of_a_str_enum(unit: Literal[Unit.METRE]) -> None: ...


@parameter(
    {"type": "array", "items": {"enum": ["a", "b"], "type": "string"}}, takes=[[], ["a", "b"]], refuses=[["c"], "a"]
)
def a_list_of_literals(choices: list[Literal["a", "b"]]) -> None: ...


# Unions.


@parameter({"anyOf": [{"type": "integer"}, {"type": "string"}]}, takes=[1, "x"], refuses=[1.5, None, []])
def a_union(value: int | str) -> None: ...


@parameter({"anyOf": [{"type": "integer"}, {"type": "string"}]}, takes=[1, "x"], refuses=[1.5, None, []])
def a_typing_union(value: Union[int, str]) -> None: ...


@parameter(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    takes=["x", ["x"], []],
    refuses=[1, [1], {}],
)
def one_or_many(names: str | list[str]) -> None: ...


@parameter({"anyOf": [{"type": "integer"}, {"type": "number"}]}, takes=[1, 1.5], refuses=["x", None], lax=["1.5"])
def integer_or_float(value: int | float) -> None: ...


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}], "default": 3},
    takes=[1, "x", None],
    refuses=[[]],
    required=False,
)
def a_union_with_none_and_a_default(value: int | str | None = 3) -> None: ...


@parameter({"type": "integer"}, takes=[1], refuses=["x", None])
def a_union_with_something_that_json_lacks(value: int | Callable[[], int]) -> None: ...


@parameter(
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 10}]},
    takes=["abc", 10],
    refuses=["abcd", 9, None],
)
def a_union_of_limits(value: Annotated[str, Field(max_length=3)] | Annotated[int, Field(ge=10)]) -> None: ...


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


CAT: Schema = {
    "type": "object",
    "properties": {"kind": {"const": "cat", "type": "string"}, "lives": {"type": "integer"}},
    "required": ["kind", "lives"],
}
DOG: Schema = {
    "type": "object",
    "properties": {"kind": {"const": "dog", "type": "string"}, "name": {"type": "string"}},
    "required": ["kind", "name"],
}


@parameter(
    {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
    defs={"Cat": CAT, "Dog": DOG},
    takes=[{"kind": "cat", "lives": 9}, {"kind": "dog", "name": "Rex"}],
    refuses=[{"kind": "dog", "lives": 9}, {}, "cat", None],
)
def a_union_of_models(pet: Cat | Dog) -> None: ...


@parameter(
    {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
    },
    defs={"Cat": CAT, "Dog": DOG},
    takes=[{"kind": "cat", "lives": 9}, {"kind": "dog", "name": "Rex"}],
    refuses=[{"kind": "bird"}, {"kind": "cat", "name": "Tom"}, {}, {"lives": 9}, "cat"],
)
def a_discriminated_union(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...


@parameter(
    {
        "anyOf": [
            {
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
            },
            {"type": "null"},
        ],
        "default": None,
    },
    defs={"Cat": CAT, "Dog": DOG},
    takes=[{"kind": "cat", "lives": 9}, None],
    refuses=[{"kind": "bird"}, {}],
    required=False,
)
def a_discriminated_union_or_none(pet: Annotated[Cat | Dog | None, Field(discriminator="kind")] = None) -> None: ...


@parameter(
    {
        "type": "array",
        "items": {
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
        },
    },
    defs={"Cat": CAT, "Dog": DOG},
    takes=[[], [{"kind": "cat", "lives": 9}]],
    refuses=[[{"kind": "bird"}], {"kind": "cat", "lives": 9}],
)
def a_list_of_discriminated_unions(pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]) -> None: ...


def _tag_of(value: Any) -> str:
    return "text" if isinstance(value, str) else "number"


@parameter({"oneOf": [{"type": "string"}, {"type": "integer"}]}, takes=["x", 1], refuses=[1.5, None, []])
def a_union_told_apart_by_a_function(
    value: Annotated[Annotated[str, Tag("text")] | Annotated[int, Tag("number")], Discriminator(_tag_of)],
) -> None: ...


# `Field` and other annotations.


@parameter({"type": "integer", "minimum": 1, "maximum": 10}, takes=[1, 10], refuses=[0, 11, "x"], lax=["5"])
def an_integer_between_limits(count: Annotated[int, Field(ge=1, le=10)]) -> None: ...


@parameter(
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    takes=[0.5],
    refuses=[0, 1, -0.1, "x"],
    lax=["0.5"],
)
def a_float_between_open_limits(ratio: Annotated[float, Field(gt=0, lt=1)]) -> None: ...


@parameter({"type": "integer", "multipleOf": 5}, takes=[0, 5, -10], refuses=[3])
def a_multiple(minutes: Annotated[int, Field(multiple_of=5)]) -> None: ...


@parameter(
    {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
    takes=["ab", "abcd"],
    refuses=["a", "abcde", "AB"],
)
def a_string_with_a_pattern(code: Annotated[str, Field(min_length=2, max_length=4, pattern="^[a-z]+$")]) -> None: ...


@parameter(
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    takes=[[1], [1, 2]],
    refuses=[[], [1, 2, 3]],
)
def a_list_of_bounded_length(numbers: Annotated[list[int], Field(min_length=1, max_length=2)]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
    takes=[{"a": 1}],
    refuses=[{}, {"a": 1, "b": 2, "c": 3}],
)
def a_dict_of_bounded_length(counts: Annotated[dict[str, int], Field(min_length=1, max_length=2)]) -> None: ...


@parameter({"type": "array", "items": {"type": "integer", "minimum": 0}}, takes=[[0, 1]], refuses=[[-1]])
def limits_on_items(numbers: list[Annotated[int, Field(ge=0)]]) -> None: ...


@parameter({"type": "string", "description": "What to look for."}, takes=["x"], refuses=[1])
def a_described_parameter(query: Annotated[str, Field(description="What to look for.")]) -> None: ...


@parameter({"type": "string", "title": "The Query"}, takes=["x"], refuses=[1])
def a_parameter_with_a_title(query: Annotated[str, Field(title="The Query")]) -> None: ...


@parameter({"type": "string", "title": "query"}, takes=["x"], refuses=[1])
def a_parameter_whose_title_is_its_name(query: Annotated[str, Field(title="query")]) -> None: ...


@parameter({"type": "string", "examples": ["cats", "dogs"]}, takes=["x"], refuses=[1])
def a_parameter_with_examples(query: Annotated[str, Field(examples=["cats", "dogs"])]) -> None: ...


@parameter({"type": "string", "deprecated": True}, takes=["x"], refuses=[1])
def a_deprecated_parameter(query: Annotated[str, Field(deprecated=True)]) -> None: ...


@parameter({"type": "string", "x-hint": "short"}, takes=["x"], refuses=[1])
def a_parameter_with_more_in_its_schema(
    query: Annotated[str, Field(json_schema_extra={"x-hint": "short"})],
) -> None: ...


@parameter({"type": "string"}, takes=["x"], refuses=[1], name="q")
def a_parameter_with_an_alias(query: Annotated[str, Field(alias="q")]) -> None: ...


@parameter({"type": "string", "default": "x"}, takes=["x"], refuses=[1], name="q", required=False)
def a_parameter_with_a_validation_alias(query: Annotated[str, Field(validation_alias="q")] = "x") -> None: ...


@parameter({"type": "string"}, takes=["x"], refuses=[1], name="q")
def a_parameter_with_a_choice_of_aliases(
    query: Annotated[str, Field(validation_alias=AliasChoices("q", "search"))],
) -> None: ...


@parameter({"type": "integer", "default": 5}, takes=[1], refuses=["x", None], required=False)
def a_default_in_the_annotation(count: Annotated[int, Field(default=5)]) -> None: ...


@parameter({"type": "array", "items": {"type": "integer"}}, takes=[[1]], refuses=["x", None], required=False)
def a_default_factory(numbers: Annotated[list[int], Field(default_factory=list)]) -> None: ...


@parameter(
    {"type": "integer", "minimum": 1, "description": "How many.", "default": 5}, takes=[1], refuses=[0], required=False
)
def a_field_for_a_default(count: int = Field(5, ge=1, description="How many.")) -> None: ...


@parameter({"type": "integer", "description": "How many."}, takes=[1], refuses=["x"])
def a_field_without_a_default(count: int = Field(description="How many.")) -> None: ...


@parameter(
    {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, takes=[1, None], refuses=["x"], required=False
)
def a_field_with_none(count: int | None = Field(None)) -> None: ...


@parameter({"type": "integer", "minimum": 1, "description": "Outer."}, takes=[1], refuses=[0])
def two_fields(
    count: Annotated[Annotated[int, Field(ge=1, description="Inner.")], Field(description="Outer.")],
) -> None: ...


@parameter({"type": "integer"}, takes=[1], refuses=["x"])
def annotations_of_somebody_else(count: Annotated[int, "any words", 5]) -> None: ...


@parameter({"type": "integer", "minimum": 2, "maximum": 4}, takes=[3], refuses=[1, 5])
def annotated_types_limits(count: Annotated[int, annotated_types.Interval(ge=2, le=4)]) -> None: ...


@parameter({"type": "string", "minLength": 2}, takes=["ab"], refuses=["a"], beyond=[" a "])
def string_constraints(text: Annotated[str, StringConstraints(min_length=2, strip_whitespace=True)]) -> None: ...


@parameter({"type": "integer", "exclusiveMinimum": 0}, takes=[1], refuses=[0])
def a_positive_int(count: PositiveInt) -> None: ...


@parameter({"type": "number", "minimum": 0, "default": 1.0}, takes=[0, 0.5], refuses=[-1], required=False)
def a_non_negative_float(ratio: NonNegativeFloat = 1.0) -> None: ...


@parameter({"type": "integer"}, takes=[1], refuses=["1", True, 1.5])
def a_strict_integer(count: StrictInt) -> None: ...


@parameter({"type": "integer"}, takes=[2], refuses=["x"], beyond=[3])
def a_validator(count: Annotated[int, AfterValidator(_be_even)]) -> None: ...


@parameter({"type": "string"}, takes=["a"], lax=[5], refuses=[])
def a_validator_before(text: Annotated[str, BeforeValidator(str)]) -> None: ...


@parameter({"type": "string", "format": "hex"}, takes=["ff"], refuses=[[]])
def a_schema_of_the_users_own(number: Annotated[str, WithJsonSchema({"type": "string", "format": "hex"})]) -> None: ...


@parameter(
    {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"type": "array", "items": {"type": "integer"}},
    },
    takes=["[1, 2]"],
    refuses=[[1, 2], None],
    beyond=["[", '["x"]'],
)
def json_in_a_string(numbers: Json[list[int]]) -> None: ...


@parameter(
    {
        "anyOf": [
            {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"type": "array", "items": {"type": "integer"}},
            },
            {"type": "null"},
        ],
        "default": None,
    },
    takes=["[1, 2]", None],
    refuses=[[1, 2]],
    beyond=["["],
    required=False,
)
def json_in_a_string_or_none(numbers: Json[list[int]] = None) -> None: ...  # type: ignore[assignment]


# Pydantic models.


class Point(BaseModel):
    x: float
    y: float = 0.0


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    city: str = Field(description="Without the country.", min_length=1)


class Person(BaseModel):
    name: str
    addresses: list[Address] = []
    favourite: Address | None = None


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Chapter(BaseModel):
    book: "Book | None" = None


class Book(BaseModel):
    chapters: list[Chapter] = []


Chapter.model_rebuild()


class Box(BaseModel, Generic[T]):
    item: T


class Camel(BaseModel):
    first_name: str = Field(alias="firstName")
    last_name: str = Field("", validation_alias="lastName")


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    first_name: str = Field(alias="firstName")


class Numbers(RootModel[list[int]]):
    """Some numbers."""


class Word(RootModel[str]): ...


class Titled(BaseModel):
    model_config = ConfigDict(title="A Paper")
    title: str = Field(title="Its title")
    description: str = "none"


class Names(BaseModel):
    title: str
    type: int
    default: bool
    properties: list[str]
    required: str | None = None
    cls: int = 0
    model_name: str = "m"


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Painted(Point):
    color: Color = Color.RED
    when: dt.date | None = None


class Checked(BaseModel):
    low: int
    high: int

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Checked":
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class Made(BaseModel):
    tags: list[str] = Field(default_factory=list)
    _private: int = 5

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.tags)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Pydantic's, that these hide methods of BaseModel
    Shadows: Any = create_model("Shadows", json=(str, ...), copy=(int, ...), schema=(bool, False))


POINT: Schema = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
    "required": ["x"],
}
ADDRESS: Schema = {
    "type": "object",
    "description": "Where somebody lives.",
    "properties": {
        "street": {"type": "string"},
        "city": {"type": "string", "minLength": 1, "description": "Without the country."},
    },
    "required": ["street", "city"],
}
NODE: Schema = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
    },
    "required": ["value"],
}


@parameter(
    {"$ref": "#/$defs/Point"},
    defs={"Point": POINT},
    takes=[{"x": 1}, {"x": 1, "y": 2}, {"x": 1, "z": "ignored"}],
    refuses=[{}, {"x": "far"}, {"x": 1, "y": None}, 5, [1, 2], None],
    lax=[{"x": "1"}],
)
def a_model(point: Point) -> None: ...


@parameter(
    {"$ref": "#/$defs/Point", "default": {"x": 1.0, "y": 2.0}},
    defs={"Point": POINT},
    takes=[{"x": 1}],
    refuses=[None],
    required=False,
)
def a_model_by_default(point: Point = Point(x=1, y=2)) -> None: ...


@parameter(
    {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "default": None},
    defs={"Point": POINT},
    takes=[{"x": 1}, None],
    refuses=[5],
    required=False,
)
def a_model_or_none(point: Point | None = None) -> None: ...


@parameter(
    {"$ref": "#/$defs/Point", "description": "Where to go."}, defs={"Point": POINT}, takes=[{"x": 1}], refuses=[5]
)
def a_described_model(point: Annotated[Point, Field(description="Where to go.")]) -> None: ...


@parameter({"$ref": "#/$defs/Point", "title": "Point"}, defs={"Point": POINT}, takes=[{"x": 1}], refuses=[5])
def a_model_whose_title_the_user_wrote(point: Annotated[Point, Field(title="Point")]) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {"start": {"$ref": "#/$defs/Point"}, "end": {"$ref": "#/$defs/Point"}},
        "required": ["start", "end"],
        "$defs": {"Point": POINT},
    },
    takes=[{"start": {"x": 1}, "end": {"x": 2}}],
    refuses=[({"start": {"x": 1}}, "end"), ({"start": {"x": 1}, "end": {"y": 1}}, "end.x")],
)
def one_model_twice(start: Point, end: Point) -> None: ...


@parameter(
    {"$ref": "#/$defs/Address"},
    defs={"Address": ADDRESS},
    takes=[{"street": "Main", "city": "Bern"}],
    refuses=[{"street": "Main"}, {"street": "Main", "city": ""}],
)
def a_model_with_a_docstring(address: Address) -> None: ...


@parameter(
    {"$ref": "#/$defs/Person"},
    defs={
        "Address": ADDRESS,
        "Person": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "addresses": {"type": "array", "items": {"$ref": "#/$defs/Address"}, "default": []},
                "favourite": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None},
            },
            "required": ["name"],
        },
    },
    takes=[{"name": "Ada"}, {"name": "Ada", "addresses": [{"street": "Main", "city": "Bern"}]}],
    refuses=[{"name": "Ada", "addresses": [{"street": "Main"}]}, {"name": "Ada", "favourite": {}}, {"addresses": []}],
)
def models_in_a_model(person: Person) -> None: ...


@parameter(
    {"type": "array", "items": {"$ref": "#/$defs/Point"}},
    defs={"Point": POINT},
    takes=[[], [{"x": 1}]],
    refuses=[[{}], {"x": 1}],
)
def a_list_of_models(points: list[Point]) -> None: ...


@parameter(
    {"type": "object", "additionalProperties": {"$ref": "#/$defs/Point"}},
    defs={"Point": POINT},
    takes=[{}, {"a": {"x": 1}}],
    refuses=[{"a": {}}, []],
)
def a_dict_of_models(points: dict[str, Point]) -> None: ...


@parameter(
    {"$ref": "#/$defs/Node"},
    defs={"Node": NODE},
    takes=[{"value": 1}, {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]}],
    refuses=[{"value": 1, "children": [{"value": 2, "children": [{}]}]}, {"value": 1, "children": {}}],
)
def a_recursive_model(tree: Node) -> None: ...


@parameter(
    {"$ref": "#/$defs/Book"},
    defs={
        "Book": {
            "type": "object",
            "properties": {"chapters": {"type": "array", "items": {"$ref": "#/$defs/Chapter"}, "default": []}},
        },
        "Chapter": {
            "type": "object",
            "properties": {"book": {"anyOf": [{"$ref": "#/$defs/Book"}, {"type": "null"}], "default": None}},
        },
    },
    takes=[{}, {"chapters": [{"book": {"chapters": []}}]}],
    refuses=[{"chapters": [{"book": {"chapters": [5]}}]}],
)
def models_that_know_each_other(book: Book) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {"one": {"$ref": "#/$defs/Box_int_"}, "many": {"$ref": "#/$defs/Box_list_str__"}},
        "required": ["one", "many"],
        "$defs": {
            "Box_int_": {"type": "object", "properties": {"item": {"type": "integer"}}, "required": ["item"]},
            "Box_list_str__": {
                "type": "object",
                "properties": {"item": {"type": "array", "items": {"type": "string"}}},
                "required": ["item"],
            },
        },
    },
    takes=[{"one": {"item": 1}, "many": {"item": ["x"]}}],
    refuses=[
        ({"one": {"item": "x"}, "many": {"item": []}}, "one.item"),
        ({"one": {"item": 1}, "many": {}}, "many.item"),
    ],
)
def generic_models(one: Box[int], many: Box[list[str]]) -> None: ...


@parameter(
    {"$ref": "#/$defs/Camel"},
    defs={
        "Camel": {
            "type": "object",
            "properties": {"firstName": {"type": "string"}, "lastName": {"type": "string", "default": ""}},
            "required": ["firstName"],
        }
    },
    takes=[{"firstName": "Ada"}, {"firstName": "Ada", "lastName": "L."}],
    refuses=[{"first_name": "Ada"}, {"firstName": 5}],
)
def a_model_with_aliases(person: Camel) -> None: ...


@parameter(
    {"$ref": "#/$defs/ByName", "default": {"firstName": "Ada"}},
    defs={"ByName": {"type": "object", "properties": {"firstName": {"type": "string"}}, "required": ["firstName"]}},
    takes=[{"firstName": "Ada"}],
    refuses=[{}, {"firstName": 5}],
    lax=[{"first_name": "Ada"}],
    required=False,
)
def a_model_that_takes_names_and_aliases(person: ByName = ByName(firstName="Ada")) -> None: ...


@parameter(
    {"$ref": "#/$defs/Numbers"},
    defs={"Numbers": {"type": "array", "items": {"type": "integer"}, "description": "Some numbers."}},
    takes=[[], [1]],
    refuses=[["x"], {"root": [1]}],
)
def a_root_model(numbers: Numbers) -> None: ...


@parameter({"$ref": "#/$defs/Word"}, defs={"Word": {"type": "string"}}, takes=["x"], refuses=[1])
def a_root_model_of_a_string(word: Word) -> None: ...


@parameter(
    {"$ref": "#/$defs/Titled"},
    defs={
        "Titled": {
            "type": "object",
            "title": "A Paper",
            "properties": {
                "title": {"type": "string", "title": "Its title"},
                "description": {"type": "string", "default": "none"},
            },
            "required": ["title"],
        }
    },
    takes=[{"title": "x"}],
    refuses=[{}, {"title": 1}],
)
def a_model_with_titles(paper: Titled) -> None: ...


@parameter(
    {"$ref": "#/$defs/Names"},
    defs={
        "Names": {
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "type": {"type": "integer"},
                "default": {"type": "boolean"},
                "properties": {"type": "array", "items": {"type": "string"}},
                "required": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "cls": {"type": "integer", "default": 0},
                "model_name": {"type": "string", "default": "m"},
            },
            "required": ["title", "type", "default", "properties"],
        }
    },
    takes=[{"title": "t", "type": 1, "default": True, "properties": ["p"], "required": "r"}],
    refuses=[{"title": "t", "type": 1, "default": True}],
)
def a_model_with_odd_field_names(thing: Names) -> None: ...


@parameter(
    {"$ref": "#/$defs/Shadows"},
    defs={
        "Shadows": {
            "type": "object",
            "properties": {
                "json": {"type": "string"},
                "copy": {"type": "integer"},
                "schema": {"type": "boolean", "default": False},
            },
            "required": ["json", "copy"],
        }
    },
    takes=[{"json": "{}", "copy": 1}],
    refuses=[{"json": "{}"}],
)
def a_model_whose_fields_hide_methods(thing: Shadows) -> None: ...


@parameter(
    {"$ref": "#/$defs/Closed"},
    defs={
        "Closed": {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
    takes=[{"x": 1}],
    refuses=[{"x": 1, "y": 2}],
)
def a_model_that_forbids_more(thing: Closed) -> None: ...


@parameter(
    {"$ref": "#/$defs/Open"},
    defs={
        "Open": {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": True,
        }
    },
    takes=[{"x": 1, "y": [2]}],
    refuses=[{"y": 2}],
)
def a_model_that_allows_more(thing: Open) -> None: ...


@parameter(
    {"$ref": "#/$defs/Painted"},
    defs={
        "Color": {"enum": ["red", "green"], "type": "string"},
        "Painted": {
            "type": "object",
            "properties": {
                "x": {"type": "number"},
                "y": {"type": "number", "default": 0.0},
                "color": {"$ref": "#/$defs/Color", "default": "red"},
                "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None},
            },
            "required": ["x"],
        },
    },
    takes=[{"x": 1, "color": "green", "when": "2024-01-01"}],
    refuses=[{"x": 1, "color": "blue"}],
    beyond=[{"x": 1, "when": "tomorrow"}],
)
def a_model_with_a_base(point: Painted) -> None: ...


@parameter(
    {"$ref": "#/$defs/Checked"},
    defs={
        "Checked": {
            "type": "object",
            "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
            "required": ["low", "high"],
        }
    },
    takes=[{"low": 1, "high": 2}],
    refuses=[{"low": 1}],
    beyond=[{"low": 2, "high": 1}],
)
def a_model_with_a_validator(span: Checked) -> None: ...


@parameter(
    {"$ref": "#/$defs/Made"},
    defs={"Made": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}}},
    takes=[{}, {"tags": ["a"]}],
    refuses=[{"tags": "a"}],
)
def a_model_with_computed_and_private_fields(made: Made) -> None: ...


# Dataclasses, typed dicts, named tuples.


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """Something to send."""

    title: str
    size: Size
    tags: list[str] = dataclasses.field(default_factory=list)


@pydantic.dataclasses.dataclass
class Weight:
    """How heavy."""

    grams: Annotated[int, Field(gt=0)]
    schema: str = "metric"


@pydantic.dataclasses.dataclass
class Bare:
    copy: int


@dataclasses.dataclass
class Cell(Generic[T]):
    content: T


SIZE: Schema = {
    "type": "object",
    "properties": {"width": {"type": "integer"}, "height": {"type": "integer", "default": 1}},
    "required": ["width"],
}


@parameter(
    {"$ref": "#/$defs/Size"},
    defs={"Size": SIZE},
    takes=[{"width": 1}, {"width": 1, "height": 2}],
    refuses=[{}, {"width": "x"}, [1, 2], 5],
    lax=[{"width": "1"}],
)
def a_dataclass(size: Size) -> None: ...


@parameter(
    {"$ref": "#/$defs/Size", "default": {"width": 3, "height": 4}},
    defs={"Size": SIZE},
    takes=[{"width": 1}],
    refuses=[{}],
    required=False,
)
def a_dataclass_by_default(size: Size = Size(3, 4)) -> None: ...


@parameter(
    {"$ref": "#/$defs/Parcel"},
    defs={
        "Size": SIZE,
        "Parcel": {
            "type": "object",
            "description": "Something to send.",
            "properties": {
                "title": {"type": "string"},
                "size": {"$ref": "#/$defs/Size"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["title", "size"],
        },
    },
    takes=[{"title": "x", "size": {"width": 1}}],
    refuses=[{"title": "x"}, {"title": "x", "size": {}}, {"title": "x", "size": {"width": 1}, "tags": "a"}],
)
def a_dataclass_in_a_dataclass(parcel: Parcel) -> None: ...


@parameter(
    {"$ref": "#/$defs/Weight"},
    defs={
        "Weight": {
            "type": "object",
            "description": "How heavy.",
            "properties": {
                "grams": {"type": "integer", "exclusiveMinimum": 0},
                "schema": {"type": "string", "default": "metric"},
            },
            "required": ["grams"],
        }
    },
    takes=[{"grams": 1}],
    refuses=[{"grams": 0}, {}],
)
def a_pydantic_dataclass(weight: Weight) -> None: ...


@parameter(
    {"$ref": "#/$defs/Bare"},
    defs={"Bare": {"type": "object", "properties": {"copy": {"type": "integer"}}, "required": ["copy"]}},
    takes=[{"copy": 1}],
    refuses=[{}],
)
def a_pydantic_dataclass_without_a_docstring(bare: Bare) -> None: ...


@parameter(
    {"$ref": "#/$defs/Cell_int_"},
    defs={"Cell_int_": {"type": "object", "properties": {"content": {"type": "integer"}}, "required": ["content"]}},
    takes=[{"content": 1}],
    refuses=[{"content": "x"}],
)
def a_generic_dataclass(cell: Cell[int]) -> None: ...


class Movie(TypedDict):
    """A film."""

    title: str
    year: NotRequired[int]


class Filters(TypedDict, total=False):
    json: str
    copy: bool
    schema: Required[int]


class Nested(TypedDict):
    movie: Movie
    rating: Annotated[float, Field(ge=0, le=5)]


MOVIE: Schema = {
    "type": "object",
    "description": "A film.",
    "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["title"],
}


@parameter(
    {"$ref": "#/$defs/Movie"},
    defs={"Movie": MOVIE},
    takes=[{"title": "Alien"}, {"title": "Alien", "year": 1979}],
    refuses=[{}, {"title": "Alien", "year": None}, "Alien"],
)
def a_typed_dict(movie: Movie) -> None: ...


@parameter(
    {"$ref": "#/$defs/Filters"},
    defs={
        "Filters": {
            "type": "object",
            "properties": {"json": {"type": "string"}, "copy": {"type": "boolean"}, "schema": {"type": "integer"}},
            "required": ["schema"],
        }
    },
    takes=[{"schema": 1}, {"schema": 1, "json": "{}", "copy": True}],
    refuses=[{}, {"json": "{}"}, {"schema": 1, "copy": "perhaps"}],
)
def a_typed_dict_that_is_not_total(filters: Filters) -> None: ...


@parameter(
    {"$ref": "#/$defs/Nested"},
    defs={
        "Movie": MOVIE,
        "Nested": {
            "type": "object",
            "properties": {
                "movie": {"$ref": "#/$defs/Movie"},
                "rating": {"type": "number", "minimum": 0, "maximum": 5},
            },
            "required": ["movie", "rating"],
        },
    },
    takes=[{"movie": {"title": "Alien"}, "rating": 5}],
    refuses=[{"movie": {}, "rating": 5}, {"movie": {"title": "Alien"}, "rating": 6}],
)
def a_typed_dict_in_a_typed_dict(entry: Nested) -> None: ...


class Range(NamedTuple):
    low: int
    high: int


class Label(NamedTuple):
    """A word with a weight."""

    word: str
    weight: float = 1.0


@parameter(
    {"$ref": "#/$defs/Range"},
    defs={
        "Range": {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "integer"}],
            "items": {"type": "integer"},
            "minItems": 2,
            "maxItems": 2,
        }
    },
    takes=[[1, 2]],
    refuses=[[1], [1, 2, 3], ["x", 2], 5],
    lax=[{"low": 1, "high": 2}],
)
def a_named_tuple(span: Range) -> None: ...


@parameter(
    {"$ref": "#/$defs/Label"},
    defs={
        "Label": {
            "type": "array",
            "prefixItems": [{"type": "string"}, {"type": "number", "default": 1.0}],
            "items": {"anyOf": [{"type": "string"}, {"type": "number", "default": 1.0}]},
            "minItems": 1,
            "maxItems": 2,
        }
    },
    takes=[["x"], ["x", 2]],
    refuses=[[], [1], ["x", "y"]],
)
def a_named_tuple_with_a_default(label: Label) -> None: ...


# Types of the standard library and of Pydantic.


@parameter(
    {"type": "string", "format": "date-time"},
    takes=["2024-02-29T12:30:00", "2024-02-29T12:30:00+02:00", "2024-02-29 12:30"],
    refuses=[None, [], {}],
    beyond=["soon", ""],
    lax=[1700000000],
)
def a_datetime(when: dt.datetime) -> None: ...


@parameter(
    {"type": "string", "format": "date"},
    takes=["2024-02-29", "2024-02-29T00:00:00"],
    refuses=[None, []],
    beyond=["2023-02-29", "29.2.2024"],
    lax=[86400],
)
def a_date(day: dt.date) -> None: ...


@parameter(
    {"type": "string", "format": "time"},
    takes=["12:30", "12:30:15.5"],
    refuses=[None, []],
    beyond=["25:00"],
    lax=[3600],
)
def a_time(at: dt.time) -> None: ...


@parameter(
    {"type": "string", "format": "duration"},
    takes=["PT1H", "P1DT2H", "01:30:00"],
    refuses=[None, []],
    beyond=["long"],
    lax=[90, 1.5],
)
def a_timedelta(pause: dt.timedelta) -> None: ...


@parameter(
    {"type": "string", "format": "uuid"},
    takes=["12345678-1234-5678-1234-567812345678"],
    refuses=[5, None],
    beyond=["12345678"],
)
def a_uuid(key: uuid.UUID) -> None: ...


@parameter(
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^-?\d+(\.\d+)?$"}]},
    takes=[1, 1.5, "1.50"],
    refuses=[None, [], "much"],
)
def a_decimal(price: Decimal) -> None: ...


@parameter({"type": "string", "format": "path"}, takes=["a/b", "."], refuses=[5, None, []])
def a_path(file: Path) -> None: ...


@parameter(
    {"type": "string", "format": "uri", "minLength": 1},
    takes=["https://example.org/", "ftp://x"],
    refuses=["", 5],
    beyond=["x"],
)
def a_url(address: AnyUrl) -> None: ...


@parameter(
    {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083},
    takes=["https://example.org/"],
    refuses=["", "http://x/" + "a" * 2083],
    beyond=["ftp://example.org/"],
)
def an_http_url(address: HttpUrl) -> None: ...


@parameter({"type": "string", "format": "password", "writeOnly": True}, takes=["x"], refuses=[5, None])
def a_secret(password: SecretStr) -> None: ...


@parameter({"type": "string", "format": "ipv4"}, takes=["127.0.0.1"], refuses=[None, []], beyond=["127.0.0", "::1"])
def an_ip_address(host: ipaddress.IPv4Address) -> None: ...


@parameter({"type": "string", "format": "regex"}, takes=["a+"], refuses=[5], beyond=["("])
def a_pattern(pattern: re.Pattern[str]) -> None: ...


@parameter(
    {"type": "string", "format": "date-time"},
    takes=["2024-02-29T12:30:00Z"],
    refuses=[None],
    beyond=["2024-02-29T12:30:00"],
)
def an_aware_datetime(when: AwareDatetime) -> None: ...


@parameter(
    {"type": "string", "format": "date-time", "pattern": r"^[^Zz+]*$"},
    takes=["2024-02-29T12:30:00", "2024-02-29T12:30:00.5"],
    refuses=[None, "2024-02-29T12:30:00Z", "2024-02-29T12:30:00+01:00"],
    beyond=["2024-02-29T12:30:00-01:00"],
)
def a_naive_datetime(when: NaiveDatetime) -> None: ...


@parameter({"type": "string", "format": "date"}, takes=["2000-01-01"], refuses=[None], beyond=["2999-01-01"])
def a_date_in_the_past(day: PastDate) -> None: ...


@parameter({"type": "string", "format": "date"}, takes=["2020-01-01"], refuses=[None], beyond=["2019-12-31"])
def a_date_with_a_limit(day: Annotated[dt.date, Field(ge=dt.date(2020, 1, 1))]) -> None: ...


@parameter(
    {"anyOf": [{"type": "number", "minimum": 0.0}, {"type": "string", "pattern": r"^-?\d+(\.\d{1,2})?$"}]},
    takes=[0, "1.25"],
    refuses=[-1, "1.255"],
    beyond=["-1"],
)
def a_decimal_with_limits(price: Annotated[Decimal, Field(ge=0, decimal_places=2)]) -> None: ...


# Kinds of parameters.


@signature(
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 3}},
        "required": ["query"],
    },
    takes=[{"query": "x"}, {"limit": 1, "query": "x"}],
    refuses=[({}, "query")],
)
def keyword_only(*, query: str, limit: int = 3) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "integer", "default": 2},
            "c": {"type": "integer", "default": 3},
        },
        "required": ["a"],
    },
    takes=[{"a": 1}, {"a": 1, "c": 5}, {"c": 5, "b": 4, "a": 1}],
    refuses=[({}, "a"), ({"a": 1, "b": "x"}, "b")],
)
def positional_only(a: int, b: int = 2, c: int = 3, /) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {
            "first": {"type": "integer"},
            "second": {"type": "string"},
            "third": {"type": "number"},
            "fourth": {"type": "boolean", "default": True},
        },
        "required": ["first", "second", "third"],
        "additionalProperties": {"type": "string"},
    },
    takes=[
        {"first": 1, "second": "x", "third": 1.5},
        {"first": 1, "second": "x", "third": 1.5, "fourth": False, "fifth": "more"},
    ],
    refuses=[({"first": 1, "second": "x"}, "third"), ({"first": 1, "second": "x", "third": 1.5, "fifth": 5}, "fifth")],
)
def every_kind(first: int, /, second: str, *, third: float, fourth: bool = True, **rest: str) -> None: ...


@signature(
    {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}},
    takes=[{}, {"a": 1, "b": 2}],
    refuses=[({"a": "x"}, "a")],
    lax=[{"a": "1"}],
)
def only_keywords(**counts: int) -> None: ...


@signature({"type": "object", "properties": {}}, takes=[{}, {"a": 1, "b": [None]}])
def any_keywords(**options: Any) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {},
        "additionalProperties": {"$ref": "#/$defs/Point"},
        "$defs": {"Point": POINT},
    },
    takes=[{"a": {"x": 1}}],
    refuses=[({"a": {}}, "a.x")],
)
def models_as_keywords(**points: Point) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "title": {"type": "string"}, "year": {"type": "integer"}},
        "required": ["query", "title"],
    },
    takes=[{"query": "x", "title": "Alien"}, {"query": "x", "title": "Alien", "year": 1979}],
    refuses=[({"query": "x"}, "title"), ({"query": "x", "title": "Alien", "year": "x"}, "year")],
    lax=[{"query": "x", "title": "Alien", "year": "1979"}],
)
def keywords_of_a_typed_dict(query: str, **movie: Unpack[Movie]) -> None: ...


# Names that mean something elsewhere.


@signature(
    {
        "type": "object",
        "properties": {
            "self": {"type": "integer"},
            "cls": {"type": "integer"},
            "title": {"type": "string"},
            "model": {"type": "string"},
            "type": {"type": "string"},
            "default": {"type": "string"},
            "description": {"type": "string", "default": "d"},
            "properties": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
            "required": {"type": "boolean", "default": True},
        },
        "required": ["self", "cls", "title", "model", "type", "default"],
    },
    takes=[{"self": 1, "cls": 2, "title": "t", "model": "m", "type": "string", "default": "d"}],
    refuses=[({"self": 1, "cls": 2, "title": "t", "model": "m", "type": "string"}, "default")],
)
def names_of_json_schema(
    self: int,
    cls: int,
    title: str,
    model: str,
    type: str,
    default: str,
    description: str = "d",
    properties: dict[str, str] = {},
    required: bool = True,
) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {
            "_x": {"type": "integer"},
            "__y": {"type": "integer"},
            "json": {"type": "string"},
            "copy": {"type": "string"},
            "schema": {"type": "string"},
            "args": {"type": "string"},
            "kwargs": {"type": "string"},
            "arguments": {"type": "string"},
            "return_": {"type": "string"},
            "model_config": {"type": "string"},
            "größe": {"type": "string"},
        },
        "required": [
            "_x",
            "__y",
            "json",
            "copy",
            "schema",
            "args",
            "kwargs",
            "arguments",
            "return_",
            "model_config",
            "größe",
        ],
    },
    takes=[
        {
            "_x": 1,
            "__y": 2,
            "json": "",
            "copy": "",
            "schema": "",
            "args": "",
            "kwargs": "",
            "arguments": "",
            "return_": "",
            "model_config": "",
            "größe": "",
        }
    ],
    refuses=[({}, "_x")],
)
def names_of_python_and_pydantic(
    _x: int,
    __y: int,
    json: str,
    copy: str,
    schema: str,
    args: str,
    kwargs: str,
    arguments: str,
    return_: str,
    model_config: str,
    größe: str,
) -> None: ...


@parameter({"type": "string"}, takes=["x"], refuses=[1])
def a_parameter_named_title(title: str) -> None: ...


@parameter({"type": "string"}, takes=["x"], refuses=[1])
def a_positional_parameter_named_self(self: str, /) -> None: ...


# Hints in quotes.


@signature(
    {
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "names": {"type": "array", "items": {"type": "string"}},
            "point": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}], "default": None},
            "ratio": {"type": "number", "minimum": 0, "default": 1.0},
        },
        "required": ["number", "names"],
        "$defs": {"Point": POINT},
    },
    takes=[{"number": 1, "names": ["x"]}, {"number": 1, "names": [], "point": {"x": 1}, "ratio": 0}],
    refuses=[({"number": 1, "names": [], "ratio": -1}, "ratio")],
)
def hints_in_quotes(
    number: "int",
    names: "list[str]",
    point: "Point | None" = None,
    ratio: "Annotated[float, Field(ge=0)]" = 1.0,
) -> "NowhereDefined":  # type: ignore[name-defined]  # noqa: F821 - what a tool returns need not exist
    ...


@parameter(
    {"type": "array", "items": {"$ref": "#/$defs/Leaf"}},
    defs={"Leaf": {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}},
    takes=[[{"color": "red"}]],
    refuses=[[{}]],
)
def a_hint_that_comes_later(leaves: list["Leaf"]) -> None: ...


class Leaf(BaseModel):
    color: str


@parameter({"anyOf": [{"type": "integer"}, {"type": "null"}]}, takes=[1, None], refuses=["x"])
def quotes_inside_a_hint(count: Optional["int"]) -> None: ...


# Names for types.

UserId = NewType("UserId", int)
Where = NewType("Where", Point)
Tags = list[str]
Limited = Annotated[int, Field(ge=0, description="Not below zero.")]
Pairs = TypeAliasType("Pairs", list[tuple[str, int]])
Tree = TypeAliasType("Tree", "dict[str, Tree] | int")


@parameter({"type": "integer"}, takes=[1], refuses=["x"], lax=["1"])
def a_new_type(user: UserId) -> None: ...


@parameter({"$ref": "#/$defs/Point"}, defs={"Point": POINT}, takes=[{"x": 1}], refuses=[{}])
def a_new_type_of_a_model(where: Where) -> None: ...


@parameter({"type": "array", "items": {"type": "string"}}, takes=[["a"]], refuses=["a"])
def a_type_alias(tags: Tags) -> None: ...


@signature(
    {
        "type": "object",
        "properties": {
            "low": {"type": "integer", "minimum": 0, "description": "Not below zero."},
            "high": {"type": "integer", "minimum": 0, "description": "Not below zero.", "default": 9},
        },
        "required": ["low"],
    },
    takes=[{"low": 1}],
    refuses=[({"low": -1}, "low"), ({"low": 1, "high": -1}, "high")],
)
def an_alias_with_a_field(low: Limited, high: Limited = 9) -> None: ...


@parameter(
    {"$ref": "#/$defs/Pairs"},
    defs={
        "Pairs": {
            "type": "array",
            "items": {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"type": "integer"}],
                "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "minItems": 2,
                "maxItems": 2,
            },
        }
    },
    takes=[[], [["a", 1]]],
    refuses=[["a", 1], [["a"]]],
)
def a_named_alias(pairs: Pairs) -> None: ...


@parameter(
    {"$ref": "#/$defs/Tree"},
    defs={
        "Tree": {"anyOf": [{"type": "object", "additionalProperties": {"$ref": "#/$defs/Tree"}}, {"type": "integer"}]}
    },
    takes=[1, {}, {"a": {"b": 2}}],
    refuses=["x", {"a": {"b": "x"}}],
)
def a_recursive_alias(tree: Tree) -> None: ...


# Everything that can be called.


class Library:
    """A place for books."""

    @parameter({"type": "string"}, takes=["x"], refuses=[1], description="Find a book.")
    @staticmethod
    def find(title: str) -> None:
        """Find a book."""

    def lend(self, book: str, days: "int" = 14) -> None:
        """Lend a book.

        Args:
            book: Its title.
            days: How long.
        """

    @classmethod
    def open(cls, city: str) -> None:
        """Open another one."""

    lend_briefly = functools.partialmethod(lend, days=1)


LEND: Schema = {
    "type": "object",
    "properties": {
        "book": {"type": "string", "description": "Its title."},
        "days": {"type": "integer", "default": 14, "description": "How long."},
    },
    "required": ["book"],
}

signature(
    LEND,
    takes=[{"book": "x"}, {"book": "x", "days": 3}],
    refuses=[({}, "book"), ({"book": "x", "days": "x"}, "days")],
    description="Lend a book.",
    name="a_bound_method",
)(Library().lend)

signature(
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    takes=[{"city": "Bern"}],
    refuses=[({}, "city")],
    beyond=[({"city": "Bern", "cls": 1}, "cls")],
    description="Open another one.",
    name="a_class_method",
)(Library.open)

signature(
    {"type": "object", "properties": {"book": {"type": "string", "description": "Its title."}}, "required": ["book"]},
    takes=[{"book": "x"}],
    beyond=[({"book": "x", "days": 3}, "days")],
    description="Lend a book.",
    name="a_partial_method",
)(Library().lend_briefly)


def fetch(url: str, token: str, retries: int = 2, *, region: str = "eu", **headers: str) -> None:
    """Fetch a page.

    Args:
        url: Where it is.
        token: What nobody must see.
        retries: How often to try again.
    """


RETRIES: Schema = {"type": "integer", "default": 2, "description": "How often to try again."}

signature(
    {
        "type": "object",
        "properties": {
            "token": {"type": "string", "description": "What nobody must see."},
            "retries": RETRIES,
            "region": {"type": "string", "default": "eu"},
        },
        "required": ["token"],
        "additionalProperties": {"type": "string"},
    },
    takes=[{"token": "t"}, {"token": "t", "accept": "text/html"}],
    refuses=[({}, "token")],
    description="Fetch a page.",
    name="a_partial_with_a_position_filled_in",
)(functools.partial(fetch, "https://example.org"))

FETCH_FILLED: Schema = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "description": "Where it is."},
        "retries": RETRIES,
        "region": {"type": "string", "default": "eu"},
    },
    "required": ["url"],
    "additionalProperties": {"type": "string"},
}

signature(
    FETCH_FILLED,
    takes=[{"url": "u"}, {"url": "u", "retries": 0, "region": "us"}],
    refuses=[({}, "url")],
    beyond=[({"url": "u", "token": "guess"}, "token")],
    description="Fetch a page.",
    name="a_partial_with_a_keyword_filled_in",
)(functools.partial(fetch, token="s3cret"))

signature(
    {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
    takes=[{}, {"accept": "text/html"}],
    beyond=[({"token": "guess"}, "token"), ({"region": "us"}, "region")],
    description="Fetch a page.",
    name="a_partial_of_a_partial",
)(functools.partial(functools.partial(fetch, "u", token="s3cret"), retries=0, region="us"))

signature(
    FETCH_FILLED,
    takes=[{"url": "u"}],
    beyond=[({"url": "u", "token": "guess"}, "token")],
    description="Fetch a page.",
    name="a_partial_that_is_marked_twice",
)(tool(name="again")(tool(functools.partial(fetch, token="s3cret"))))

signature(
    {
        "type": "object",
        "properties": {"retries": RETRIES, "region": {"type": "string", "default": "eu"}},
        "additionalProperties": {"type": "string"},
    },
    takes=[{}, {"retries": 0}],
    beyond=[({"token": "guess"}, "token")],
    description="Fetch a page.",
    name="a_partial_that_took_the_name_of_its_function",
)(functools.update_wrapper(functools.partial(fetch, "u", token="s3cret"), fetch))


def _logged(function: F) -> F:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner  # type: ignore[return-value]


@signature(
    {
        "type": "object",
        "properties": {
            "url": {"type": "string"},
            "retries": {"type": "integer", "default": 2},
            "region": {"type": "string", "default": "eu"},
        },
        "required": ["url"],
        "additionalProperties": {"type": "string"},
    },
    takes=[{"url": "u"}],
    beyond=[({"url": "u", "token": "guess"}, "token")],
    description="Fetch by another way.",
    name="a_function_around_a_partial",
)
@functools.wraps(functools.partial(fetch, token="s3cret"), assigned=())
def a_function_around_a_partial(*args: Any, **kwargs: Any) -> None:
    """Fetch by another way."""


signature(
    {"type": "object", "properties": {"days": {"type": "integer", "default": 14, "description": "How long."}}},
    takes=[{}, {"days": 3}],
    refuses=[({"days": "x"}, "days")],
    description="Lend a book.",
    name="a_partial_of_a_method",
)(functools.partial(Library().lend, "Emma"))


@parameter({"type": "integer", "description": "How many."}, takes=[1], refuses=["x"], description="Count.")
@_logged
def a_wrapped_function(number: "int") -> None:
    """Count.

    Args:
        number: How many.
    """


@parameter({"type": "integer"}, takes=[1], refuses=["x"], description="Count.")
@_logged
@_logged
def a_function_wrapped_twice(number: int) -> None:
    """Count."""


@parameter({"type": "integer"}, takes=[1], refuses=["x"], description="Count.")
@functools.lru_cache
def a_cached_function(number: "int") -> None:
    """Count."""


@parameter({"type": "integer", "minimum": 1}, takes=[1], refuses=[0], description="Count.")
@validate_call
def a_function_that_validates_itself(number: Annotated[int, Field(ge=1)]) -> None:
    """Count."""


@parameter({"type": "integer"}, takes=[1], refuses=["x"], description="Count.")
async def an_async_function(number: int) -> int:
    """Count."""
    return number


@parameter({"type": "integer"}, takes=[1], refuses=["x"])
def a_generator_function(number: int) -> Iterator[int]:
    yield number


@parameter({"type": "integer"}, takes=[1], refuses=["x"])
async def an_async_generator_function(number: int) -> AsyncIterator[int]:
    yield number


class Converter:
    """Convert money.

    Args:
        amount: How much.
    """

    def __call__(self, amount: float, currency: "str" = "EUR") -> None: ...


signature(
    {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "description": "How much."},
            "currency": {"type": "string", "default": "EUR"},
        },
        "required": ["amount"],
    },
    takes=[{"amount": 1}],
    refuses=[({}, "amount")],
    description="Convert money.",
    name="a_callable_object",
)(Converter())


class AsyncConverter:
    """The class."""

    async def __call__(self, amount: float) -> None:
        """Convert money."""


signature(
    {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]},
    takes=[{"amount": 1}],
    refuses=[({}, "amount")],
    description="Convert money.",
    name="an_async_callable_object",
)(AsyncConverter())


class Retrying:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call until it works."""
        return self.function(*args, **kwargs)


@Retrying
def _count(number: "int") -> None:
    """Count.

    Args:
        number: How many.
    """


signature(
    {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "How many."}},
        "required": ["number"],
    },
    takes=[{"number": 1}],
    refuses=[({"number": "x"}, "number")],
    description="Count.",
    name="a_function_under_a_decorator_class",
)(_count)


def _with_another_signature(**kwargs: Any) -> None: ...


_with_another_signature.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter("number", inspect.Parameter.KEYWORD_ONLY, annotation=int)]
)
signature(
    {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    takes=[{"number": 1}],
    refuses=[({"number": "x"}, "number")],
    name="a_function_with_a_signature_of_its_own",
)(_with_another_signature)


# Docstrings.


@signature(
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "The search query"},
            "max_results": {"type": "integer", "default": 5, "description": "Maximum number of results to return"},
        },
        "required": ["query"],
    },
    takes=[{"query": "x"}],
    refuses=[({}, "query")],
    description="Search the web for information.",
)
def google_style(query: str, max_results: int = 5) -> list[str]:
    """
    Search the web for information.

    Args:
        query: The search query
        max_results: Maximum number of results to return

    Returns:
        List of search results with title, url, and snippet
    """
    return [query] * max_results


@signature(
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for: a word,\na phrase, or\na question."},
            "limit": {"type": "integer", "default": 5, "description": "How many. Defaults to 5."},
            "order": {"type": "string", "default": "asc", "description": "One of\n- asc: upwards\n- desc: downwards"},
        },
        "required": ["query"],
        "additionalProperties": {"type": "string"},
    },
    takes=[{"query": "x"}],
    description="Search.\n\nThe index is made anew each night; what is\nnewer is not found.\n\n    >>> search('x')",
)
def google_style_at_length(query: str, limit: int = 5, order: str = "asc", **more: str) -> None:
    """Search.

    The index is made anew each night; what is
    newer is not found.

        >>> search('x')

    Args:
        query (str): What to look for: a word,
            a phrase, or
            a question.
        limit (int, optional): How many. Defaults to 5.
        order: One of
            - asc: upwards
            - desc: downwards
        **more: What else.
        nothing: Is not a parameter.

    Raises:
        ValueError if the query is empty

    Note:
        query: This is not about the parameter.
    """


@signature(
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "First."},
            "b": {"type": "integer", "description": "Second."},
        },
        "required": ["a", "b"],
    },
    takes=[{"a": 1, "b": 2}],
    description="Add.",
)
def google_style_with_keyword_arguments(a: int, *, b: int) -> int:
    """Add.

    Returns:
        The sum.

    Args:
        a: First.

    Keyword Args:
        b: Second.
    """
    return a + b


@parameter({"type": "integer", "description": "How many."}, takes=[1])
def google_style_without_a_description(count: int) -> None:
    """
    Args:
        count: How many.
    """


@parameter({"type": "integer", "description": "How many."}, takes=[1])
def google_style_on_the_first_line(count: int) -> None:
    """Args:
    count: How many.
    """


@signature(
    {
        "type": "object",
        "properties": {
            "x": {"type": "number", "description": "Where it is,\nfrom the left."},
            "y": {"type": "number", "description": "Both."},
            "z": {"type": "number", "default": 0.0, "description": "Both."},
            "name": {"type": "string", "default": ""},
        },
        "required": ["x", "y"],
    },
    takes=[{"x": 1, "y": 2}],
    description="Move.\n\nFar away.",
)
def numpy_style(x: float, y: float, z: float = 0.0, name: str = "") -> None:
    """Move.

    Far away.

    Parameters
    ----------
    x : float
        Where it is,
        from the left.
    y, z : float, optional
        Both.
    name

    Returns
    -------
    None
        Nothing.
    """


@signature(
    {
        "type": "object",
        "properties": {
            "x": {"type": "number", "description": "Where it is,\nfrom the left."},
            "y": {"type": "number", "description": "How high."},
        },
        "required": ["x", "y"],
    },
    takes=[{"x": 1, "y": 2}],
    description="Move.\n\nFar away.",
)
def sphinx_style(x: float, y: float) -> None:
    """Move.

    Far away.

    :param x: Where it is,
        from the left.
    :param float y: How high.
    :type x: float
    :returns: Nothing.
    :raises ValueError: Never.
    """


@parameter({"type": "string"}, takes=["x"], description="Translate: word by word.\n\nArgs: none to speak of.")
def a_docstring_with_colons(text: str) -> None:
    """Translate: word by word.

    Args: none to speak of."""


@parameter({"type": "string", "description": "From the annotation."}, takes=["x"], description="Search.")
def a_description_in_both_places(query: Annotated[str, Field(description="From the annotation.")]) -> None:
    """Search.

    Args:
        query: From the docstring.
    """


@parameter({"type": "string", "description": "From the docstring."}, takes=["x"], name="q", description="Search.")
def a_docstring_for_an_alias(query: Annotated[str, Field(alias="q")]) -> None:
    """Search.

    Args:
        query: From the docstring.
    """


@parameter(
    {"$ref": "#/$defs/Address", "description": "Where to send it."},
    defs={"Address": ADDRESS},
    takes=[{"street": "Main", "city": "Bern"}],
    description="Send.",
)
def a_docstring_for_a_model_with_one(address: Address) -> None:
    """Send.

    :param address: Where to send it.
    """


@signature(
    {
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "Its title."},
            "year": {"type": "integer", "description": "Its year."},
        },
        "required": ["title"],
    },
    takes=[{"title": "Alien"}],
    description="Find.",
)
def a_docstring_for_keywords_of_a_typed_dict(**movie: Unpack[Movie]) -> None:
    """Find.

    Args:
        title: Its title.
        year: Its year.
    """


@parameter({"type": "string"}, takes=["x"], description="Search.")
def a_docstring_that_is_malformed(query: str) -> None:
    """Search.

    Args:
        there is no name here
    """
