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
    required: bool | None = None,
    name: str = "",
    defs: Schema | None = None,
    description: str | None = None,
) -> Callable[[F], F]:
    """Add a row for a function of one parameter; the values to try are values of this parameter.

    The parameter is required unless its schema has a default. `name` is the model's name of the parameter, if it
    differs.
    """
    is_required = "default" not in schema if required is None else required

    def add(function: F) -> F:
        key = name or next(iter(inspect.signature(function).parameters))
        whole = record({key: schema}, *([] if is_required else [key])) | ({"$defs": defs} if defs else {})
        missing: list[Any] = [({}, key)] if is_required else []
        return signature(
            whole,
            takes=[{key: value} for value in takes] if is_required else [{}, *({key: value} for value in takes)],
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


# The parts of the expected schemas.

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def tuple_of(*members: Schema) -> Schema:
    items = members[0] if all(member == members[0] for member in members) else any_of(*members)
    return array(items) | {"prefixItems": list(members), "minItems": len(members), "maxItems": len(members)}


def mapping(values: Schema | bool) -> Schema:
    return {"type": "object", "additionalProperties": values}


def record(properties: Schema, *optional: str) -> Schema:
    """Return the schema of an object; properties are required unless they have a default or are listed."""
    required = [name for name, schema in properties.items() if "default" not in schema and name not in optional]
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def any_of(*members: Schema) -> Schema:
    return {"anyOf": list(members)}


def or_none(schema: Schema) -> Schema:
    """Return the schema of a parameter that is None by default."""
    return any_of(schema, NULL) | {"default": None}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


# Plain types.


@signature(record({}), takes=[{}])
def no_parameters() -> None: ...
@parameter(STRING, takes=["hello", "", "5", "é\u2028\U0001f600"], refuses=[5, 1.5, True, None, [], {}])
def a_string(text: str) -> None: ...
@parameter(INTEGER, takes=[5, -1, 0, 2**70, 5.0], refuses=[5.5, "five", "", None, [], {}], lax=["5", "5.0", True])
def an_integer(count: int) -> None: ...
@parameter(NUMBER, takes=[1.5, 3, -1e9], refuses=["much", "", None, [], {}], lax=["1.5", True])
def a_float(ratio: float) -> None: ...
@parameter(
    BOOLEAN, takes=[True, False], refuses=["maybe", 2, None, [], {}], lax=["true", "False", "yes", "off", "1", 0, 1.0]
)
def a_boolean(flag: bool) -> None: ...
@parameter(NULL, takes=[None], refuses=[0, "", "null", False])
def nothing_but_none(nothing: None) -> None: ...
@parameter({}, takes=[None, 1, "x", [1, {"a": None}], {"b": 1.5}])
def anything(value: Any) -> None: ...
@parameter({}, takes=[None, 1, "x", []])
def an_object(value: object) -> None: ...
@parameter(STRING | {"format": "binary"}, takes=["abc", ""], refuses=[5, None, []])
def some_bytes(content: bytes) -> None: ...
@signature(
    record({"name": STRING, "age": INTEGER, "height": NUMBER, "is_member": BOOLEAN}),
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


@parameter(any_of(INTEGER, NULL), takes=[5, None], refuses=["x", []], lax=["5"])
def optional_but_required(count: Optional[int]) -> None: ...
@parameter(or_none(INTEGER), takes=[5, None], refuses=["x", []], lax=["5"])
def none_by_default(count: int | None = None) -> None: ...
@parameter(any_of(STRING, NULL) | {"default": "x"}, takes=["y", None], refuses=[5])
def optional_with_another_default(text: Optional[str] = "x") -> None: ...
@parameter(any_of(STRING, NULL), takes=["y", None], refuses=[5])
def none_or_a_string(text: None | str) -> None: ...  # noqa: RUF036 - None comes last all the same
@parameter(or_none(INTEGER), takes=[5, None], refuses=["x"])
def none_under_a_hint_without_it(count: int = None) -> None: ...  # type: ignore[assignment]
@parameter(or_none(INTEGER), takes=[5, None], refuses=["x"])
def none_under_a_hint_in_quotes(count: "int" = None) -> None: ...  # type: ignore[assignment]
@parameter(or_none(array(STRING)), takes=[["a"], [], None], refuses=["a", [1]])
def none_under_a_list(tags: list[str] = None) -> None: ...  # type: ignore[assignment]
@parameter(any_of(INTEGER, STRING, NULL) | {"default": None}, takes=[5, "x", None], refuses=[[], {}])
def none_under_a_union(value: int | str = None) -> None: ...  # type: ignore[assignment]
@parameter(or_none(STRING | {"enum": ["a", "b"]}), takes=["a", None], refuses=["c", 1])
def none_under_a_literal(choice: Literal["a", "b"] = None) -> None: ...  # type: ignore[assignment]
@parameter(or_none(INTEGER | {"minimum": 1}), takes=[1, None], refuses=[0, "x"])
def none_under_a_limit(count: Annotated[int, Field(ge=1)] = None) -> None: ...  # type: ignore[assignment]
@parameter(or_none(INTEGER) | {"description": "How many."}, takes=[1, None], refuses=["x"])
def none_under_a_description(count: Annotated[int, Field(description="How many.")] = None) -> None: ...  # type: ignore[assignment]


def _be_even(number: int) -> int:
    if number % 2:
        raise ValueError("an even number")
    return number


@parameter(or_none(INTEGER), takes=[2, None], refuses=["x"], beyond=[3])
def none_under_a_validator_that_cannot_take_it(count: Annotated[int, AfterValidator(_be_even)] = None) -> None: ...  # type: ignore[assignment]
@parameter({"default": None}, takes=[None, 1, "x"])
def none_under_any(value: Any = None) -> None: ...
@parameter(NULL | {"default": None}, takes=[None], refuses=[1])
def none_under_none(nothing: None = None) -> None: ...


# Defaults.


@parameter(STRING | {"default": "en"}, takes=["de"], refuses=[5, None])
def a_string_by_default(language: str = "en") -> None: ...
@parameter(STRING | {"default": ""}, takes=["x"], refuses=[None])
def an_empty_string_by_default(text: str = "") -> None: ...
@parameter(INTEGER | {"default": 0}, takes=[5], refuses=["x", None], lax=["5"])
def zero_by_default(count: int = 0) -> None: ...
@parameter(NUMBER | {"default": 0.5}, takes=[1, 0.25], refuses=["x"])
def a_float_by_default(ratio: float = 0.5) -> None: ...
@parameter(BOOLEAN | {"default": False}, takes=[True], refuses=[None])
def false_by_default(flag: bool = False) -> None: ...
@parameter(array(INTEGER) | {"default": []}, takes=[[1]], refuses=[None, ["x"]])
def an_empty_list_by_default(numbers: list[int] = []) -> None: ...
@parameter(mapping(INTEGER) | {"default": {"a": 1}}, takes=[{}, {"b": 2}], refuses=[{"a": "x"}])
def a_dict_by_default(counts: dict[str, int] = {"a": 1}) -> None: ...
@parameter(tuple_of(INTEGER, INTEGER) | {"default": [3, 4]}, takes=[[1, 2]], refuses=[[1]])
def a_tuple_by_default(size: tuple[int, int] = (3, 4)) -> None: ...
@parameter(array(STRING) | {"uniqueItems": True, "default": ["a", "b", "c"]}, takes=[["x"], []], refuses=["x"])
def a_set_by_default(tags: set[str] = {"c", "a", "b"}) -> None: ...
@parameter(STRING | {"format": "date", "default": "2024-02-29"}, takes=["2025-01-01"], beyond=["soon"])
def a_date_by_default(day: dt.date = dt.date(2024, 2, 29)) -> None: ...
@parameter(
    STRING | {"format": "date-time", "default": "2024-02-29T12:30:00"}, takes=["2025-01-01T00:00:00Z"], beyond=["soon"]
)
def a_datetime_by_default(when: dt.datetime = dt.datetime(2024, 2, 29, 12, 30)) -> None: ...
@parameter(STRING | {"format": "duration", "default": "PT1H30M"}, takes=["P1D"], refuses=[None], beyond=["long"])
def a_duration_by_default(pause: dt.timedelta = dt.timedelta(minutes=90)) -> None: ...
@parameter(
    any_of(NUMBER, STRING | {"pattern": r"^-?\d+(\.\d+)?$"}) | {"default": "1.50"}, takes=[2, "2.5"], refuses=["much"]
)
def a_decimal_by_default(price: Decimal = Decimal("1.50")) -> None: ...
@parameter(STRING | {"format": "path", "default": "index.md"}, takes=["a"])
def a_path_by_default(file: Path = Path("index.md")) -> None: ...
@parameter(
    STRING | {"format": "uuid", "default": "00000000-0000-0000-0000-000000000007"},
    takes=["12345678-1234-5678-1234-567812345678"],
    beyond=["seven"],
)
def a_uuid_by_default(key: uuid.UUID = uuid.UUID(int=7)) -> None: ...
@parameter(STRING | {"format": "binary", "default": "abc"}, takes=["x"])
def bytes_by_default(content: bytes = b"abc") -> None: ...
@parameter(STRING | {"format": "binary"}, takes=["x"], required=False)
def bytes_that_are_no_text_by_default(content: bytes = b"\xff\xfe") -> None: ...
@parameter(NUMBER, takes=[1.5], refuses=["x"], required=False)
def infinity_by_default(limit: float = math.inf) -> None: ...
@parameter(NUMBER, takes=[1.5], refuses=["x"], required=False)
def not_a_number_by_default(limit: float = math.nan) -> None: ...
@parameter(array(NUMBER), takes=[[1.5]], refuses=["x"], required=False)
def infinity_inside_a_default(limits: list[float] = [0.0, math.inf]) -> None: ...
@parameter({}, takes=[1, None], required=False)
def a_sentinel_by_default(value: Any = object()) -> None: ...
@parameter(STRING | {"format": "password", "writeOnly": True, "default": "**********"}, takes=["x"], refuses=[5])
def a_secret_by_default(password: SecretStr = SecretStr("hunter2")) -> None: ...
@signature(
    record({"query": STRING, "limit": INTEGER | {"default": 10}}),
    takes=[{"query": "x"}, {"query": "x", "limit": 3}],
    refuses=[({"limit": 3}, "query"), ({"query": "x", "limit": None}, "limit")],
    description="Search the web for information.",
)
def search(query: str, limit: int = 10) -> list[str]:
    """Search the web for information."""
    return [query] * limit


# Containers.


@parameter(array({}), takes=[[], [1, "x", None]], refuses=["x", {}, None])
def a_bare_list(items: list) -> None: ...  # type: ignore[type-arg]
@parameter(array({}), takes=[[], [1, "x"]], refuses=["x", {}])
def a_list_of_anything(items: list[Any]) -> None: ...
@parameter(array(STRING), takes=[[], ["a"]], refuses=["a", [1], [None], {"0": "a"}])
def a_list_of_strings(names: list[str]) -> None: ...
@parameter(array(INTEGER), takes=[[], [1]], refuses=[[1.5], ["x"]], lax=[["1"]])
def a_typing_list(numbers: List[int]) -> None: ...
@parameter(array(array(NUMBER)), takes=[[], [[]], [[1, 2.5], [3]]], refuses=[[1], [["x"]], "[]"])
def a_list_of_lists(matrix: list[list[float]]) -> None: ...
@parameter(array(any_of(INTEGER, NULL)), takes=[[1, None]], refuses=[None, ["x"]])
def a_list_with_gaps(numbers: list[int | None]) -> None: ...
@parameter(mapping(True), takes=[{}, {"a": [1]}], refuses=[[], "x", None])
def a_bare_dict(options: dict) -> None: ...  # type: ignore[type-arg]
@parameter(mapping(True), takes=[{}, {"a": 1, "b": None}], refuses=[[]])
def a_dict_of_anything(options: dict[str, Any]) -> None: ...
@parameter(mapping(INTEGER), takes=[{}, {"a": 1}], refuses=[{"a": "x"}, [], [1]])
def a_dict_of_integers(counts: dict[str, int]) -> None: ...
@parameter(mapping(INTEGER), takes=[{"a": 1}], refuses=[{"a": "x"}], lax=[{"a": "1"}])
def a_typing_dict(counts: Dict[str, int]) -> None: ...
@parameter(mapping(array(STRING)), takes=[{"a": ["b"]}], refuses=[{"a": "b"}, {"a": [1]}])
def a_dict_of_lists(groups: dict[str, list[str]]) -> None: ...
@parameter(
    mapping(STRING) | {"propertyNames": {"pattern": r"^-?\d+$"}}, takes=[{"1": "one"}], refuses=[{"1": 1}, {"one": "1"}]
)
def a_dict_with_integers_as_keys(names: dict[int, str]) -> None: ...
@parameter(mapping(STRING) | {"propertyNames": {"pattern": r"^\d+$"}}, takes=[{"0": "none"}], refuses=[{"-1": "one"}])
def a_dict_with_natural_numbers_as_keys(names: dict[Annotated[int, Field(gt=-1)], str]) -> None: ...
@parameter(
    mapping(INTEGER) | {"propertyNames": {"enum": ["a", "b"]}}, takes=[{}, {"a": 1}], refuses=[{"c": 1}, {"a": "x"}]
)
def a_dict_with_known_keys(counts: dict[Literal["a", "b"], int]) -> None: ...
@parameter(array(INTEGER) | {"uniqueItems": True}, takes=[[], [1, 2]], refuses=["x", ["x"], {}], lax=[[1, 1]])
def a_set(numbers: set[int]) -> None: ...
@parameter(array({}) | {"uniqueItems": True}, takes=[[], [1, "x"]], refuses=["x"], beyond=[[[]]])
def a_bare_set(values: set) -> None: ...  # type: ignore[type-arg]
@parameter(array(STRING) | {"uniqueItems": True}, takes=[["a"]], refuses=[[1]], lax=[["a", "a"]])
def a_frozenset(names: frozenset[str]) -> None: ...
@parameter(array(STRING) | {"uniqueItems": True}, takes=[["a"]], refuses=[[1]], lax=[["a", "a"]])
def an_abstract_set(names: AbstractSet[str]) -> None: ...
@parameter(
    tuple_of(INTEGER, STRING), takes=[[1, "a"]], refuses=[[1], [1, "a", "b"], ["a", 1], [], "1a"], lax=[["1", "a"]]
)
def a_pair(pair: tuple[int, str]) -> None: ...
@parameter(tuple_of(NUMBER, NUMBER), takes=[[1, 2.5]], refuses=[[1], [1, 2, 3]])
def a_pair_of_one_type(point: Tuple[float, float]) -> None: ...
@parameter(array(INTEGER), takes=[[], [1, 2, 3]], refuses=[["x"], "x"])
def a_tuple_of_any_length(numbers: tuple[int, ...]) -> None: ...
@parameter(array({}) | {"minItems": 0, "maxItems": 0}, takes=[[]], refuses=[[1], {}])
def an_empty_tuple(nothing: tuple[()]) -> None: ...
@parameter(array({}), takes=[[], [1, "x"]], refuses=["x"])
def a_bare_tuple(values: tuple) -> None: ...  # type: ignore[type-arg]
@parameter(array(INTEGER), takes=[[], [1]], refuses=[["x"], "12"])
def a_sequence(numbers: Sequence[int]) -> None: ...
@parameter(array(INTEGER), takes=[[1]], refuses=[["x"]])
def a_mutable_sequence(numbers: MutableSequence[int]) -> None: ...
@parameter(array(INTEGER), takes=[[], [1]], refuses=[["x"], "12", {"a": 1}], lax=[["1"]])
def an_iterable(numbers: Iterable[int]) -> None: ...
@parameter(or_none(array(STRING)), takes=[["a"], None], refuses=["a", [1]])
def an_iterable_or_none(names: Iterable[str] | None = None) -> None: ...
@parameter(array({}) | {"description": "Any things."}, takes=[[1, "x"]], refuses=["x"])
def a_bare_iterable(things: Annotated[Iterable, Field(description="Any things.")]) -> None: ...  # type: ignore[type-arg]
@parameter(mapping(INTEGER), takes=[{"a": 1}], refuses=[{"a": "x"}, []])
def a_mapping(counts: Mapping[str, int]) -> None: ...
@parameter(mapping(INTEGER), takes=[{"a": 1}], refuses=[{"a": "x"}])
def a_mutable_mapping(counts: MutableMapping[str, int]) -> None: ...
@parameter(array(INTEGER), takes=[[], [1]], refuses=[["x"]])
def a_deque(numbers: deque[int]) -> None: ...
@parameter(mapping(INTEGER), takes=[{"a": 1}], refuses=[{"a": "x"}])
def a_counter(counts: collections.Counter[str]) -> None: ...
@parameter(mapping(INTEGER), takes=[{"a": 1}], refuses=[{"a": "x"}])
def an_ordered_dict(counts: OrderedDict[str, int]) -> None: ...
@parameter(mapping(array(INTEGER)), takes=[{"a": [1]}], refuses=[{"a": 1}])
def a_defaultdict(groups: defaultdict[str, list[int]]) -> None: ...
@parameter(
    mapping(array(tuple_of(STRING, any_of(NUMBER, NULL)))),
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


COLOR: Schema = STRING | {"enum": ["red", "green"]}


@parameter(ref("Color"), defs={"Color": COLOR}, takes=["red", "green"], refuses=["blue", "RED", 1, None])
def an_enum(color: Color) -> None: ...
@parameter(ref("Color") | {"default": "green"}, defs={"Color": COLOR}, takes=["red"], refuses=["blue"])
def an_enum_by_default(color: Color = Color.GREEN) -> None: ...
@parameter(or_none(ref("Color")), defs={"Color": COLOR}, takes=["red", None], refuses=["blue"])
def an_enum_or_none(color: Color | None = None) -> None: ...
@parameter(
    ref("Priority"), defs={"Priority": INTEGER | {"enum": [1, 2]}}, takes=[1, 2], refuses=[3, "LOW", None], lax=["1"]
)
def an_int_enum(priority: Priority) -> None: ...
@parameter(ref("Unit"), defs={"Unit": STRING | {"enum": ["m", "ft"]}}, takes=["m"], refuses=["km", 1])
def a_str_enum(unit: Unit) -> None: ...
@parameter(ref("OldUnit"), defs={"OldUnit": STRING | {"enum": ["m"]}}, takes=["m"], refuses=["km", 1])
def an_enum_with_one_value(unit: OldUnit) -> None: ...
@parameter(
    ref("Odd"),
    defs={"Odd": {"enum": [1, "two", 0.5, None], "description": "Values of several types."}},
    takes=[1, "two", 0.5, None],
    refuses=[2, "1", []],
)
def an_enum_of_several_types(value: Odd) -> None: ...
@parameter(
    ref("Aliased"), defs={"Aliased": STRING | {"enum": ["grey", "black"]}}, takes=["grey", "black"], refuses=["gray"]
)
def an_enum_with_an_alias(shade: Aliased) -> None: ...
@parameter(ref("Ratio"), defs={"Ratio": NUMBER | {"enum": [0.5, 2.5]}}, takes=[0.5], refuses=[1, "half"])
def an_enum_of_floats(ratio: Ratio) -> None: ...
@parameter(
    ref("Corner"),
    defs={"Corner": array({}) | {"enum": [[0, 0], [1, 1]]}},
    takes=[],
    refuses=[[0, 1], "ORIGIN"],
    beyond=[[0, 0]],
)
def an_enum_of_tuples(corner: Corner) -> None: ...
@parameter(
    array(ref("Color")) | {"default": ["red"]},
    defs={"Color": COLOR},
    takes=[[], ["red", "green"]],
    refuses=[["blue"], "red"],
)
def a_list_of_enums(colors: list[Color] = [Color.RED]) -> None: ...
@parameter(
    mapping(INTEGER) | {"propertyNames": ref("Color")},
    defs={"Color": COLOR},
    takes=[{}, {"red": 1}],
    refuses=[{"blue": 1}, {"red": "x"}],
)
def a_dict_with_enum_keys(counts: dict[Color, int]) -> None: ...
@parameter(STRING | {"enum": ["asc", "desc"]}, takes=["asc"], refuses=["up", "", None, 1])
def a_literal(order: Literal["asc", "desc"]) -> None: ...
@parameter(STRING | {"enum": ["asc", "desc"], "default": "asc"}, takes=["desc"], refuses=["up"])
def a_literal_by_default(order: Literal["asc", "desc"] = "asc") -> None: ...
@parameter(STRING | {"const": "yes"}, takes=["yes"], refuses=["no", True])
def a_literal_of_one_value(answer: Literal["yes"]) -> None: ...
@parameter(INTEGER | {"enum": [1, 2, 3]}, takes=[1, 3], refuses=[4, "1"])
def a_literal_of_integers(level: Literal[1, 2, 3]) -> None: ...
@parameter({"enum": ["auto", 1, None]}, takes=["auto", 1, None], refuses=["1", 2, ""])
def a_literal_of_several_types(level: Literal["auto", 1, None]) -> None: ...
@parameter(BOOLEAN | {"const": True}, takes=[True], refuses=[False, "yes"])
def a_literal_true(sure: Literal[True]) -> None: ...
@parameter(STRING | {"const": "m"}, takes=["m"], refuses=["ft"])
def a_literal_of_a_str_enum(unit: Literal[Unit.METRE]) -> None: ...
@parameter(array(STRING | {"enum": ["a", "b"]}), takes=[[], ["a", "b"]], refuses=[["c"], "a"])
def a_list_of_literals(choices: list[Literal["a", "b"]]) -> None: ...


# Unions.


@parameter(any_of(INTEGER, STRING), takes=[1, "x"], refuses=[1.5, None, []])
def a_union(value: int | str) -> None: ...
@parameter(any_of(INTEGER, STRING), takes=[1, "x"], refuses=[1.5, None, []])
def a_typing_union(value: Union[int, str]) -> None: ...
@parameter(any_of(STRING, array(STRING)), takes=["x", ["x"], []], refuses=[1, [1], {}])
def one_or_many(names: str | list[str]) -> None: ...
@parameter(any_of(INTEGER, NUMBER), takes=[1, 1.5], refuses=["x", None], lax=["1.5"])
def integer_or_float(value: int | float) -> None: ...
@parameter(any_of(INTEGER, STRING, NULL) | {"default": 3}, takes=[1, "x", None], refuses=[[]])
def a_union_with_none_and_a_default(value: int | str | None = 3) -> None: ...
@parameter(INTEGER, takes=[1], refuses=["x", None])
def a_union_with_something_that_json_lacks(value: int | Callable[[], int]) -> None: ...
@parameter(any_of(STRING | {"maxLength": 3}, INTEGER | {"minimum": 10}), takes=["abc", 10], refuses=["abcd", 9, None])
def a_union_of_limits(value: Annotated[str, Field(max_length=3)] | Annotated[int, Field(ge=10)]) -> None: ...


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


CAT: Schema = record({"kind": STRING | {"const": "cat"}, "lives": INTEGER})
DOG: Schema = record({"kind": STRING | {"const": "dog"}, "name": STRING})


PET: Schema = {
    "oneOf": [ref("Cat"), ref("Dog")],
    "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
}
PETS: Schema = {"Cat": CAT, "Dog": DOG}


@parameter(
    any_of(ref("Cat"), ref("Dog")),
    defs=PETS,
    takes=[{"kind": "cat", "lives": 9}, {"kind": "dog", "name": "Rex"}],
    refuses=[{"kind": "dog", "lives": 9}, {}, "cat", None],
)
def a_union_of_models(pet: Cat | Dog) -> None: ...
@parameter(
    PET,
    defs=PETS,
    takes=[{"kind": "cat", "lives": 9}, {"kind": "dog", "name": "Rex"}],
    refuses=[{"kind": "bird"}, {"kind": "cat", "name": "Tom"}, {}, {"lives": 9}, "cat"],
)
def a_discriminated_union(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...
@parameter(or_none(PET), defs=PETS, takes=[{"kind": "cat", "lives": 9}, None], refuses=[{"kind": "bird"}, {}])
def a_discriminated_union_or_none(pet: Annotated[Cat | Dog | None, Field(discriminator="kind")] = None) -> None: ...
@parameter(
    array(PET),
    defs=PETS,
    takes=[[], [{"kind": "cat", "lives": 9}]],
    refuses=[[{"kind": "bird"}], {"kind": "cat", "lives": 9}],
)
def a_list_of_discriminated_unions(pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]) -> None: ...


def _tag_of(value: Any) -> str:
    return "text" if isinstance(value, str) else "number"


@parameter({"oneOf": [STRING, INTEGER]}, takes=["x", 1], refuses=[1.5, None, []])
def a_union_told_apart_by_a_function(
    value: Annotated[Annotated[str, Tag("text")] | Annotated[int, Tag("number")], Discriminator(_tag_of)],
) -> None: ...


# `Field` and other annotations.


@parameter(INTEGER | {"minimum": 1, "maximum": 10}, takes=[1, 10], refuses=[0, 11, "x"], lax=["5"])
def an_integer_between_limits(count: Annotated[int, Field(ge=1, le=10)]) -> None: ...
@parameter(NUMBER | {"exclusiveMinimum": 0, "exclusiveMaximum": 1}, takes=[0.5], refuses=[0, 1, -0.1, "x"], lax=["0.5"])
def a_float_between_open_limits(ratio: Annotated[float, Field(gt=0, lt=1)]) -> None: ...
@parameter(INTEGER | {"multipleOf": 5}, takes=[0, 5, -10], refuses=[3])
def a_multiple(minutes: Annotated[int, Field(multiple_of=5)]) -> None: ...
@parameter(
    STRING | {"minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"}, takes=["ab", "abcd"], refuses=["a", "abcde", "AB"]
)
def a_string_with_a_pattern(code: Annotated[str, Field(min_length=2, max_length=4, pattern="^[a-z]+$")]) -> None: ...
@parameter(array(INTEGER) | {"minItems": 1, "maxItems": 2}, takes=[[1], [1, 2]], refuses=[[], [1, 2, 3]])
def a_list_of_bounded_length(numbers: Annotated[list[int], Field(min_length=1, max_length=2)]) -> None: ...
@parameter(
    mapping(INTEGER) | {"minProperties": 1, "maxProperties": 2},
    takes=[{"a": 1}],
    refuses=[{}, {"a": 1, "b": 2, "c": 3}],
)
def a_dict_of_bounded_length(counts: Annotated[dict[str, int], Field(min_length=1, max_length=2)]) -> None: ...
@parameter(array(INTEGER | {"minimum": 0}), takes=[[0, 1]], refuses=[[-1]])
def limits_on_items(numbers: list[Annotated[int, Field(ge=0)]]) -> None: ...
@parameter(STRING | {"description": "What to look for."}, takes=["x"], refuses=[1])
def a_described_parameter(query: Annotated[str, Field(description="What to look for.")]) -> None: ...
@parameter(STRING | {"title": "The Query"}, takes=["x"], refuses=[1])
def a_parameter_with_a_title(query: Annotated[str, Field(title="The Query")]) -> None: ...
@parameter(STRING | {"title": "query"}, takes=["x"], refuses=[1])
def a_parameter_whose_title_is_its_name(query: Annotated[str, Field(title="query")]) -> None: ...
@parameter(STRING | {"examples": ["cats", "dogs"]}, takes=["x"], refuses=[1])
def a_parameter_with_examples(query: Annotated[str, Field(examples=["cats", "dogs"])]) -> None: ...
@parameter(STRING | {"deprecated": True}, takes=["x"], refuses=[1])
def a_deprecated_parameter(query: Annotated[str, Field(deprecated=True)]) -> None: ...
@parameter(STRING | {"x-hint": "short"}, takes=["x"], refuses=[1])
def a_parameter_with_more_in_its_schema(
    query: Annotated[str, Field(json_schema_extra={"x-hint": "short"})],
) -> None: ...
@parameter(STRING, takes=["x"], refuses=[1], name="q")
def a_parameter_with_an_alias(query: Annotated[str, Field(alias="q")]) -> None: ...
@parameter(STRING | {"default": "x"}, takes=["x"], refuses=[1], name="q")
def a_parameter_with_a_validation_alias(query: Annotated[str, Field(validation_alias="q")] = "x") -> None: ...
@parameter(STRING, takes=["x"], refuses=[1], name="q")
def a_parameter_with_a_choice_of_aliases(
    query: Annotated[str, Field(validation_alias=AliasChoices("q", "search"))],
) -> None: ...
@parameter(INTEGER | {"default": 5}, takes=[1], refuses=["x", None])
def a_default_in_the_annotation(count: Annotated[int, Field(default=5)]) -> None: ...
@parameter(array(INTEGER), takes=[[1]], refuses=["x", None], required=False)
def a_default_factory(numbers: Annotated[list[int], Field(default_factory=list)]) -> None: ...
@parameter(INTEGER | {"minimum": 1, "description": "How many.", "default": 5}, takes=[1], refuses=[0])
def a_field_for_a_default(count: int = Field(5, ge=1, description="How many.")) -> None: ...
@parameter(INTEGER | {"description": "How many."}, takes=[1], refuses=["x"])
def a_field_without_a_default(count: int = Field(description="How many.")) -> None: ...
@parameter(or_none(INTEGER), takes=[1, None], refuses=["x"])
def a_field_with_none(count: int | None = Field(None)) -> None: ...
@parameter(INTEGER | {"minimum": 1, "description": "Outer."}, takes=[1], refuses=[0])
def two_fields(
    count: Annotated[Annotated[int, Field(ge=1, description="Inner.")], Field(description="Outer.")],
) -> None: ...
@parameter(INTEGER, takes=[1], refuses=["x"])
def annotations_of_somebody_else(count: Annotated[int, "any words", 5]) -> None: ...
@parameter(INTEGER | {"minimum": 2, "maximum": 4}, takes=[3], refuses=[1, 5])
def annotated_types_limits(count: Annotated[int, annotated_types.Interval(ge=2, le=4)]) -> None: ...
@parameter(STRING | {"minLength": 2}, takes=["ab"], refuses=["a"], beyond=[" a "])
def string_constraints(text: Annotated[str, StringConstraints(min_length=2, strip_whitespace=True)]) -> None: ...
@parameter(INTEGER | {"exclusiveMinimum": 0}, takes=[1], refuses=[0])
def a_positive_int(count: PositiveInt) -> None: ...
@parameter(NUMBER | {"minimum": 0, "default": 1.0}, takes=[0, 0.5], refuses=[-1])
def a_non_negative_float(ratio: NonNegativeFloat = 1.0) -> None: ...
@parameter(INTEGER, takes=[1], refuses=["1", True, 1.5])
def a_strict_integer(count: StrictInt) -> None: ...
@parameter(INTEGER, takes=[2], refuses=["x"], beyond=[3])
def a_validator(count: Annotated[int, AfterValidator(_be_even)]) -> None: ...
@parameter(STRING, takes=["a"], lax=[5], refuses=[])
def a_validator_before(text: Annotated[str, BeforeValidator(str)]) -> None: ...
@parameter(STRING | {"format": "hex"}, takes=["ff"], refuses=[[]])
def a_schema_of_the_users_own(number: Annotated[str, WithJsonSchema({"type": "string", "format": "hex"})]) -> None: ...
@parameter(
    STRING | {"contentMediaType": "application/json", "contentSchema": array(INTEGER)},
    takes=["[1, 2]"],
    refuses=[[1, 2], None],
    beyond=["[", '["x"]'],
)
def json_in_a_string(numbers: Json[list[int]]) -> None: ...
@parameter(
    or_none(STRING | {"contentMediaType": "application/json", "contentSchema": array(INTEGER)}),
    takes=["[1, 2]", None],
    refuses=[[1, 2]],
    beyond=["["],
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


POINT: Schema = record({"x": NUMBER, "y": NUMBER | {"default": 0.0}})
ADDRESS: Schema = record(
    {"street": STRING, "city": STRING | {"minLength": 1, "description": "Without the country."}}
) | {"description": "Where somebody lives."}
NODE: Schema = record({"value": INTEGER, "children": array(ref("Node")) | {"default": []}})


@parameter(
    ref("Point"),
    defs={"Point": POINT},
    takes=[{"x": 1}, {"x": 1, "y": 2}, {"x": 1, "z": "ignored"}],
    refuses=[{}, {"x": "far"}, {"x": 1, "y": None}, 5, [1, 2], None],
    lax=[{"x": "1"}],
)
def a_model(point: Point) -> None: ...
@parameter(ref("Point") | {"default": {"x": 1.0, "y": 2.0}}, defs={"Point": POINT}, takes=[{"x": 1}], refuses=[None])
def a_model_by_default(point: Point = Point(x=1, y=2)) -> None: ...
@parameter(or_none(ref("Point")), defs={"Point": POINT}, takes=[{"x": 1}, None], refuses=[5])
def a_model_or_none(point: Point | None = None) -> None: ...
@parameter(ref("Point") | {"description": "Where to go."}, defs={"Point": POINT}, takes=[{"x": 1}], refuses=[5])
def a_described_model(point: Annotated[Point, Field(description="Where to go.")]) -> None: ...
@parameter(ref("Point") | {"title": "Point"}, defs={"Point": POINT}, takes=[{"x": 1}], refuses=[5])
def a_model_whose_title_the_user_wrote(point: Annotated[Point, Field(title="Point")]) -> None: ...
@signature(
    record({"start": ref("Point"), "end": ref("Point")}) | {"$defs": {"Point": POINT}},
    takes=[{"start": {"x": 1}, "end": {"x": 2}}],
    refuses=[({"start": {"x": 1}}, "end"), ({"start": {"x": 1}, "end": {"y": 1}}, "end.x")],
)
def one_model_twice(start: Point, end: Point) -> None: ...
@parameter(
    ref("Address"),
    defs={"Address": ADDRESS},
    takes=[{"street": "Main", "city": "Bern"}],
    refuses=[{"street": "Main"}, {"street": "Main", "city": ""}],
)
def a_model_with_a_docstring(address: Address) -> None: ...
@parameter(
    ref("Person"),
    defs={
        "Address": ADDRESS,
        "Person": record(
            {"name": STRING, "addresses": array(ref("Address")) | {"default": []}, "favourite": or_none(ref("Address"))}
        ),
    },
    takes=[{"name": "Ada"}, {"name": "Ada", "addresses": [{"street": "Main", "city": "Bern"}]}],
    refuses=[{"name": "Ada", "addresses": [{"street": "Main"}]}, {"name": "Ada", "favourite": {}}, {"addresses": []}],
)
def models_in_a_model(person: Person) -> None: ...
@parameter(array(ref("Point")), defs={"Point": POINT}, takes=[[], [{"x": 1}]], refuses=[[{}], {"x": 1}])
def a_list_of_models(points: list[Point]) -> None: ...
@parameter(mapping(ref("Point")), defs={"Point": POINT}, takes=[{}, {"a": {"x": 1}}], refuses=[{"a": {}}, []])
def a_dict_of_models(points: dict[str, Point]) -> None: ...
@parameter(
    ref("Node"),
    defs={"Node": NODE},
    takes=[{"value": 1}, {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]}],
    refuses=[{"value": 1, "children": [{"value": 2, "children": [{}]}]}, {"value": 1, "children": {}}],
)
def a_recursive_model(tree: Node) -> None: ...
@parameter(
    ref("Book"),
    defs={
        "Book": record({"chapters": array(ref("Chapter")) | {"default": []}}),
        "Chapter": record({"book": or_none(ref("Book"))}),
    },
    takes=[{}, {"chapters": [{"book": {"chapters": []}}]}],
    refuses=[{"chapters": [{"book": {"chapters": [5]}}]}],
)
def models_that_know_each_other(book: Book) -> None: ...
@signature(
    record({"one": ref("Box_int_"), "many": ref("Box_list_str__")})
    | {"$defs": {"Box_int_": record({"item": INTEGER}), "Box_list_str__": record({"item": array(STRING)})}},
    takes=[{"one": {"item": 1}, "many": {"item": ["x"]}}],
    refuses=[
        ({"one": {"item": "x"}, "many": {"item": []}}, "one.item"),
        ({"one": {"item": 1}, "many": {}}, "many.item"),
    ],
)
def generic_models(one: Box[int], many: Box[list[str]]) -> None: ...
@parameter(
    ref("Camel"),
    defs={"Camel": record({"firstName": STRING, "lastName": STRING | {"default": ""}})},
    takes=[{"firstName": "Ada"}, {"firstName": "Ada", "lastName": "L."}],
    refuses=[{}, {"firstName": 5}],
    lax=[{"first_name": "Ada"}],
)
def a_model_with_aliases(person: Camel) -> None: ...
@parameter(
    ref("ByName") | {"default": {"firstName": "Ada"}},
    defs={"ByName": record({"firstName": STRING})},
    takes=[{"firstName": "Ada"}],
    refuses=[{}, {"firstName": 5}],
    lax=[{"first_name": "Ada"}],
)
def a_model_that_takes_names_and_aliases(person: ByName = ByName(firstName="Ada")) -> None: ...
@parameter(
    ref("Numbers"),
    defs={"Numbers": array(INTEGER) | {"description": "Some numbers."}},
    takes=[[], [1]],
    refuses=[["x"], {"root": [1]}],
)
def a_root_model(numbers: Numbers) -> None: ...
@parameter(ref("Word"), defs={"Word": STRING}, takes=["x"], refuses=[1])
def a_root_model_of_a_string(word: Word) -> None: ...
@parameter(
    ref("Titled"),
    defs={
        "Titled": record({"title": STRING | {"title": "Its title"}, "description": STRING | {"default": "none"}})
        | {"title": "A Paper"}
    },
    takes=[{"title": "x"}],
    refuses=[{}, {"title": 1}],
)
def a_model_with_titles(paper: Titled) -> None: ...
@parameter(
    ref("Names"),
    defs={
        "Names": record(
            {
                "title": STRING,
                "type": INTEGER,
                "default": BOOLEAN,
                "properties": array(STRING),
                "required": or_none(STRING),
                "cls": INTEGER | {"default": 0},
                "model_name": STRING | {"default": "m"},
            }
        )
    },
    takes=[{"title": "t", "type": 1, "default": True, "properties": ["p"], "required": "r"}],
    refuses=[{"title": "t", "type": 1, "default": True}],
)
def a_model_with_odd_field_names(thing: Names) -> None: ...
@parameter(
    ref("Shadows"),
    defs={"Shadows": record({"json": STRING, "copy": INTEGER, "schema": BOOLEAN | {"default": False}})},
    takes=[{"json": "{}", "copy": 1}],
    refuses=[{"json": "{}"}],
)
def a_model_whose_fields_hide_methods(thing: Shadows) -> None: ...
@parameter(
    ref("Closed"),
    defs={"Closed": record({"x": INTEGER}) | {"additionalProperties": False}},
    takes=[{"x": 1}],
    refuses=[{"x": 1, "y": 2}],
)
def a_model_that_forbids_more(thing: Closed) -> None: ...
@parameter(
    ref("Open"),
    defs={"Open": record({"x": INTEGER}) | {"additionalProperties": True}},
    takes=[{"x": 1, "y": [2]}],
    refuses=[{"y": 2}],
)
def a_model_that_allows_more(thing: Open) -> None: ...
@parameter(
    ref("Painted"),
    defs={
        "Color": COLOR,
        "Painted": record(
            {
                "x": NUMBER,
                "y": NUMBER | {"default": 0.0},
                "color": ref("Color") | {"default": "red"},
                "when": or_none(STRING | {"format": "date"}),
            }
        ),
    },
    takes=[{"x": 1, "color": "green", "when": "2024-01-01"}],
    refuses=[{"x": 1, "color": "blue"}],
    beyond=[{"x": 1, "when": "tomorrow"}],
)
def a_model_with_a_base(point: Painted) -> None: ...
@parameter(
    ref("Checked"),
    defs={"Checked": record({"low": INTEGER, "high": INTEGER})},
    takes=[{"low": 1, "high": 2}],
    refuses=[{"low": 1}],
    beyond=[{"low": 2, "high": 1}],
)
def a_model_with_a_validator(span: Checked) -> None: ...
@parameter(
    ref("Made"),
    defs={"Made": record({"tags": array(STRING)}, "tags")},
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


SIZE: Schema = record({"width": INTEGER, "height": INTEGER | {"default": 1}})


@parameter(
    ref("Size"),
    defs={"Size": SIZE},
    takes=[{"width": 1}, {"width": 1, "height": 2}],
    refuses=[{}, {"width": "x"}, [1, 2], 5],
    lax=[{"width": "1"}],
)
def a_dataclass(size: Size) -> None: ...
@parameter(
    ref("Size") | {"default": {"width": 3, "height": 4}}, defs={"Size": SIZE}, takes=[{"width": 1}], refuses=[{}]
)
def a_dataclass_by_default(size: Size = Size(3, 4)) -> None: ...
@parameter(
    ref("Parcel"),
    defs={
        "Size": SIZE,
        "Parcel": record({"title": STRING, "size": ref("Size"), "tags": array(STRING)}, "tags")
        | {"description": "Something to send."},
    },
    takes=[{"title": "x", "size": {"width": 1}}],
    refuses=[{"title": "x"}, {"title": "x", "size": {}}, {"title": "x", "size": {"width": 1}, "tags": "a"}],
)
def a_dataclass_in_a_dataclass(parcel: Parcel) -> None: ...
@parameter(
    ref("Weight"),
    defs={
        "Weight": record({"grams": INTEGER | {"exclusiveMinimum": 0}, "schema": STRING | {"default": "metric"}})
        | {"description": "How heavy."}
    },
    takes=[{"grams": 1}],
    refuses=[{"grams": 0}, {}],
)
def a_pydantic_dataclass(weight: Weight) -> None: ...
@parameter(ref("Bare"), defs={"Bare": record({"copy": INTEGER})}, takes=[{"copy": 1}], refuses=[{}])
def a_pydantic_dataclass_without_a_docstring(bare: Bare) -> None: ...
@parameter(
    ref("Cell_int_"),
    defs={"Cell_int_": record({"content": INTEGER})},
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


MOVIE: Schema = record({"title": STRING, "year": INTEGER}, "year") | {"description": "A film."}


@parameter(
    ref("Movie"),
    defs={"Movie": MOVIE},
    takes=[{"title": "Alien"}, {"title": "Alien", "year": 1979}],
    refuses=[{}, {"title": "Alien", "year": None}, "Alien"],
)
def a_typed_dict(movie: Movie) -> None: ...
@parameter(
    ref("Filters"),
    defs={"Filters": record({"json": STRING, "copy": BOOLEAN, "schema": INTEGER}, "json", "copy")},
    takes=[{"schema": 1}, {"schema": 1, "json": "{}", "copy": True}],
    refuses=[{}, {"json": "{}"}, {"schema": 1, "copy": "perhaps"}],
)
def a_typed_dict_that_is_not_total(filters: Filters) -> None: ...
@parameter(
    ref("Nested"),
    defs={"Movie": MOVIE, "Nested": record({"movie": ref("Movie"), "rating": NUMBER | {"minimum": 0, "maximum": 5}})},
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
    ref("Range"),
    defs={"Range": tuple_of(INTEGER, INTEGER)},
    takes=[[1, 2]],
    refuses=[[1], [1, 2, 3], ["x", 2], 5],
    lax=[{"low": 1, "high": 2}],
)
def a_named_tuple(span: Range) -> None: ...
@parameter(
    ref("Label"),
    defs={
        "Label": array(any_of(STRING, NUMBER | {"default": 1.0}))
        | {"prefixItems": [STRING, NUMBER | {"default": 1.0}], "minItems": 1, "maxItems": 2}
    },
    takes=[["x"], ["x", 2]],
    refuses=[[], [1], ["x", "y"]],
)
def a_named_tuple_with_a_default(label: Label) -> None: ...


# Types of the standard library and of Pydantic.


@parameter(
    STRING | {"format": "date-time"},
    takes=["2024-02-29T12:30:00", "2024-02-29T12:30:00+02:00", "2024-02-29 12:30"],
    refuses=[None, [], {}],
    beyond=["soon", ""],
    lax=[1700000000],
)
def a_datetime(when: dt.datetime) -> None: ...
@parameter(
    STRING | {"format": "date"},
    takes=["2024-02-29", "2024-02-29T00:00:00"],
    refuses=[None, []],
    beyond=["2023-02-29", "29.2.2024"],
    lax=[86400],
)
def a_date(day: dt.date) -> None: ...
@parameter(STRING | {"format": "time"}, takes=["12:30", "12:30:15.5"], refuses=[None, []], beyond=["25:00"], lax=[3600])
def a_time(at: dt.time) -> None: ...
@parameter(
    STRING | {"format": "duration"},
    takes=["PT1H", "P1DT2H", "01:30:00"],
    refuses=[None, []],
    beyond=["long"],
    lax=[90, 1.5],
)
def a_timedelta(pause: dt.timedelta) -> None: ...
@parameter(
    STRING | {"format": "uuid"}, takes=["12345678-1234-5678-1234-567812345678"], refuses=[5, None], beyond=["12345678"]
)
def a_uuid(key: uuid.UUID) -> None: ...
@parameter(any_of(NUMBER, STRING | {"pattern": r"^-?\d+(\.\d+)?$"}), takes=[1, 1.5, "1.50"], refuses=[None, [], "much"])
def a_decimal(price: Decimal) -> None: ...
@parameter(STRING | {"format": "path"}, takes=["a/b", "."], refuses=[5, None, []])
def a_path(file: Path) -> None: ...
@parameter(
    STRING | {"format": "uri", "minLength": 1}, takes=["https://example.org/", "ftp://x"], refuses=["", 5], beyond=["x"]
)
def a_url(address: AnyUrl) -> None: ...
@parameter(
    STRING | {"format": "uri", "minLength": 1, "maxLength": 2083},
    takes=["https://example.org/"],
    refuses=["", "http://x/" + "a" * 2083],
    beyond=["ftp://example.org/"],
)
def an_http_url(address: HttpUrl) -> None: ...
@parameter(STRING | {"format": "password", "writeOnly": True}, takes=["x"], refuses=[5, None])
def a_secret(password: SecretStr) -> None: ...
@parameter(STRING | {"format": "ipv4"}, takes=["127.0.0.1"], refuses=[None, []], beyond=["127.0.0", "::1"])
def an_ip_address(host: ipaddress.IPv4Address) -> None: ...
@parameter(STRING | {"format": "regex"}, takes=["a+"], refuses=[5], beyond=["("])
def a_pattern(pattern: re.Pattern[str]) -> None: ...
@parameter(
    STRING | {"format": "date-time"}, takes=["2024-02-29T12:30:00Z"], refuses=[None], beyond=["2024-02-29T12:30:00"]
)
def an_aware_datetime(when: AwareDatetime) -> None: ...
@parameter(
    STRING | {"format": "date-time", "pattern": r"^[^Zz+]*$"},
    takes=["2024-02-29T12:30:00", "2024-02-29T12:30:00.5"],
    refuses=[None, "2024-02-29T12:30:00Z", "2024-02-29T12:30:00+01:00"],
    beyond=["2024-02-29T12:30:00-01:00"],
)
def a_naive_datetime(when: NaiveDatetime) -> None: ...
@parameter(STRING | {"format": "date"}, takes=["2000-01-01"], refuses=[None], beyond=["2999-01-01"])
def a_date_in_the_past(day: PastDate) -> None: ...
@parameter(STRING | {"format": "date"}, takes=["2020-01-01"], refuses=[None], beyond=["2019-12-31"])
def a_date_with_a_limit(day: Annotated[dt.date, Field(ge=dt.date(2020, 1, 1))]) -> None: ...
@parameter(
    any_of(NUMBER | {"minimum": 0.0}, STRING | {"pattern": r"^-?\d+(\.\d{1,2})?$"}),
    takes=[0, "1.25"],
    refuses=[-1, "1.255"],
    beyond=["-1"],
)
def a_decimal_with_limits(price: Annotated[Decimal, Field(ge=0, decimal_places=2)]) -> None: ...


# Kinds of parameters.


@signature(
    record({"query": STRING, "limit": INTEGER | {"default": 3}}),
    takes=[{"query": "x"}, {"limit": 1, "query": "x"}],
    refuses=[({}, "query")],
)
def keyword_only(*, query: str, limit: int = 3) -> None: ...
@signature(
    record({"a": INTEGER, "b": INTEGER | {"default": 2}, "c": INTEGER | {"default": 3}}),
    takes=[{"a": 1}, {"a": 1, "c": 5}, {"c": 5, "b": 4, "a": 1}],
    refuses=[({}, "a"), ({"a": 1, "b": "x"}, "b")],
)
def positional_only(a: int, b: int = 2, c: int = 3, /) -> None: ...
@signature(
    record({"first": INTEGER, "second": STRING, "third": NUMBER, "fourth": BOOLEAN | {"default": True}})
    | {"additionalProperties": STRING},
    takes=[
        {"first": 1, "second": "x", "third": 1.5},
        {"first": 1, "second": "x", "third": 1.5, "fourth": False, "fifth": "more"},
    ],
    refuses=[({"first": 1, "second": "x"}, "third"), ({"first": 1, "second": "x", "third": 1.5, "fifth": 5}, "fifth")],
)
def every_kind(first: int, /, second: str, *, third: float, fourth: bool = True, **rest: str) -> None: ...
@signature(
    record({}) | {"additionalProperties": INTEGER},
    takes=[{}, {"a": 1, "b": 2}],
    refuses=[({"a": "x"}, "a")],
    lax=[{"a": "1"}],
)
def only_keywords(**counts: int) -> None: ...
@signature(record({}), takes=[{}, {"a": 1, "b": [None]}])
def any_keywords(**options: Any) -> None: ...
@signature(
    record({}) | {"additionalProperties": ref("Point"), "$defs": {"Point": POINT}},
    takes=[{"a": {"x": 1}}],
    refuses=[({"a": {}}, "a.x")],
)
def models_as_keywords(**points: Point) -> None: ...
@signature(
    record({"query": STRING, "title": STRING, "year": INTEGER}, "year"),
    takes=[{"query": "x", "title": "Alien"}, {"query": "x", "title": "Alien", "year": 1979}],
    refuses=[({"query": "x"}, "title"), ({"query": "x", "title": "Alien", "year": "x"}, "year")],
    lax=[{"query": "x", "title": "Alien", "year": "1979"}],
)
def keywords_of_a_typed_dict(query: str, **movie: Unpack[Movie]) -> None: ...


# Names that mean something elsewhere.


@signature(
    record(
        {
            "self": INTEGER,
            "cls": INTEGER,
            "title": STRING,
            "model": STRING,
            "type": STRING,
            "default": STRING,
            "description": STRING | {"default": "d"},
            "properties": mapping(STRING) | {"default": {}},
            "required": BOOLEAN | {"default": True},
        }
    ),
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
    record(
        {
            "_x": INTEGER,
            "__y": INTEGER,
            "json": STRING,
            "copy": STRING,
            "schema": STRING,
            "args": STRING,
            "kwargs": STRING,
            "arguments": STRING,
            "return_": STRING,
            "model_config": STRING,
            "größe": STRING,
        }
    ),
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
@parameter(STRING, takes=["x"], refuses=[1])
def a_parameter_named_title(title: str) -> None: ...
@parameter(STRING, takes=["x"], refuses=[1])
def a_positional_parameter_named_self(self: str, /) -> None: ...


# Hints in quotes.


@signature(
    record(
        {
            "number": INTEGER,
            "names": array(STRING),
            "point": or_none(ref("Point")),
            "ratio": NUMBER | {"minimum": 0, "default": 1.0},
        }
    )
    | {"$defs": {"Point": POINT}},
    takes=[{"number": 1, "names": ["x"]}, {"number": 1, "names": [], "point": {"x": 1}, "ratio": 0}],
    refuses=[({"number": 1, "names": [], "ratio": -1}, "ratio")],
)
def hints_in_quotes(
    number: "int", names: "list[str]", point: "Point | None" = None, ratio: "Annotated[float, Field(ge=0)]" = 1.0
) -> "NowhereDefined":  # type: ignore[name-defined]  # noqa: F821 - what a tool returns need not exist
    ...


@parameter(array(ref("Leaf")), defs={"Leaf": record({"color": STRING})}, takes=[[{"color": "red"}]], refuses=[[{}]])
def a_hint_that_comes_later(leaves: list["Leaf"]) -> None: ...


class Leaf(BaseModel):
    color: str


@parameter(any_of(INTEGER, NULL), takes=[1, None], refuses=["x"])
def quotes_inside_a_hint(count: Optional["int"]) -> None: ...


# Names for types.

UserId = NewType("UserId", int)
Where = NewType("Where", Point)
Tags = list[str]
Limited = Annotated[int, Field(ge=0, description="Not below zero.")]
Pairs = TypeAliasType("Pairs", list[tuple[str, int]])
Tree = TypeAliasType("Tree", "dict[str, Tree] | int")


@parameter(INTEGER, takes=[1], refuses=["x"], lax=["1"])
def a_new_type(user: UserId) -> None: ...
@parameter(ref("Point"), defs={"Point": POINT}, takes=[{"x": 1}], refuses=[{}])
def a_new_type_of_a_model(where: Where) -> None: ...
@parameter(array(STRING), takes=[["a"]], refuses=["a"])
def a_type_alias(tags: Tags) -> None: ...
@signature(
    record(
        {
            "low": INTEGER | {"minimum": 0, "description": "Not below zero."},
            "high": INTEGER | {"minimum": 0, "description": "Not below zero.", "default": 9},
        }
    ),
    takes=[{"low": 1}],
    refuses=[({"low": -1}, "low"), ({"low": 1, "high": -1}, "high")],
)
def an_alias_with_a_field(low: Limited, high: Limited = 9) -> None: ...
@parameter(
    ref("Pairs"), defs={"Pairs": array(tuple_of(STRING, INTEGER))}, takes=[[], [["a", 1]]], refuses=[["a", 1], [["a"]]]
)
def a_named_alias(pairs: Pairs) -> None: ...
@parameter(
    ref("Tree"),
    defs={"Tree": any_of(mapping(ref("Tree")), INTEGER)},
    takes=[1, {}, {"a": {"b": 2}}],
    refuses=["x", {"a": {"b": "x"}}],
)
def a_recursive_alias(tree: Tree) -> None: ...


# Everything that can be called.


class Library:
    """A place for books."""

    @parameter(STRING, takes=["x"], refuses=[1], description="Find a book.")
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


LEND: Schema = record(
    {"book": STRING | {"description": "Its title."}, "days": INTEGER | {"default": 14, "description": "How long."}}
)

signature(
    LEND,
    takes=[{"book": "x"}, {"book": "x", "days": 3}],
    refuses=[({}, "book"), ({"book": "x", "days": "x"}, "days")],
    description="Lend a book.",
    name="a_bound_method",
)(Library().lend)

signature(
    record({"city": STRING}),
    takes=[{"city": "Bern"}],
    refuses=[({}, "city")],
    beyond=[({"city": "Bern", "cls": 1}, "cls")],
    description="Open another one.",
    name="a_class_method",
)(Library.open)

signature(
    record({"book": STRING | {"description": "Its title."}}),
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


RETRIES: Schema = INTEGER | {"default": 2, "description": "How often to try again."}

signature(
    record(
        {
            "token": STRING | {"description": "What nobody must see."},
            "retries": RETRIES,
            "region": STRING | {"default": "eu"},
        }
    )
    | {"additionalProperties": STRING},
    takes=[{"token": "t"}, {"token": "t", "accept": "text/html"}],
    refuses=[({}, "token")],
    description="Fetch a page.",
    name="a_partial_with_a_position_filled_in",
)(functools.partial(fetch, "https://example.org"))

FETCH_FILLED: Schema = record(
    {"url": STRING | {"description": "Where it is."}, "retries": RETRIES, "region": STRING | {"default": "eu"}}
) | {"additionalProperties": STRING}

signature(
    FETCH_FILLED,
    takes=[{"url": "u"}, {"url": "u", "retries": 0, "region": "us"}],
    refuses=[({}, "url")],
    beyond=[({"url": "u", "token": "guess"}, "token")],
    description="Fetch a page.",
    name="a_partial_with_a_keyword_filled_in",
)(functools.partial(fetch, token="s3cret"))

signature(
    record({}) | {"additionalProperties": STRING},
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
    record({"retries": RETRIES, "region": STRING | {"default": "eu"}}) | {"additionalProperties": STRING},
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
    record({"url": STRING, "retries": INTEGER | {"default": 2}, "region": STRING | {"default": "eu"}})
    | {"additionalProperties": STRING},
    takes=[{"url": "u"}],
    beyond=[({"url": "u", "token": "guess"}, "token")],
    description="Fetch by another way.",
    name="a_function_around_a_partial",
)
@functools.wraps(functools.partial(fetch, token="s3cret"), assigned=())
def a_function_around_a_partial(*args: Any, **kwargs: Any) -> None:
    """Fetch by another way."""


signature(
    record({"days": INTEGER | {"default": 14, "description": "How long."}}),
    takes=[{}, {"days": 3}],
    refuses=[({"days": "x"}, "days")],
    description="Lend a book.",
    name="a_partial_of_a_method",
)(functools.partial(Library().lend, "Emma"))


@parameter(INTEGER | {"description": "How many."}, takes=[1], refuses=["x"], description="Count.")
@_logged
def a_wrapped_function(number: "int") -> None:
    """Count.

    Args:
        number: How many.
    """


@parameter(INTEGER, takes=[1], refuses=["x"], description="Count.")
@_logged
@_logged
def a_function_wrapped_twice(number: int) -> None:
    """Count."""


@parameter(INTEGER, takes=[1], refuses=["x"], description="Count.")
@functools.lru_cache
def a_cached_function(number: "int") -> None:
    """Count."""


@parameter(INTEGER | {"minimum": 1}, takes=[1], refuses=[0], description="Count.")
@validate_call
def a_function_that_validates_itself(number: Annotated[int, Field(ge=1)]) -> None:
    """Count."""


@parameter(INTEGER, takes=[1], refuses=["x"], description="Count.")
async def an_async_function(number: int) -> int:
    """Count."""
    return number


@parameter(INTEGER, takes=[1], refuses=["x"])
def a_generator_function(number: int) -> Iterator[int]:
    yield number


@parameter(INTEGER, takes=[1], refuses=["x"])
async def an_async_generator_function(number: int) -> AsyncIterator[int]:
    yield number


class Converter:
    """Convert money.

    Args:
        amount: How much.
    """

    def __call__(self, amount: float, currency: "str" = "EUR") -> None: ...


signature(
    record({"amount": NUMBER | {"description": "How much."}, "currency": STRING | {"default": "EUR"}}),
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
    record({"amount": NUMBER}),
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
    record({"number": INTEGER | {"description": "How many."}}),
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
    record({"number": INTEGER}),
    takes=[{"number": 1}],
    refuses=[({"number": "x"}, "number")],
    name="a_function_with_a_signature_of_its_own",
)(_with_another_signature)


# Docstrings.


@signature(
    record(
        {
            "query": STRING | {"description": "The search query"},
            "max_results": INTEGER | {"default": 5, "description": "Maximum number of results to return"},
        }
    ),
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
    record(
        {
            "query": STRING | {"description": "What to look for: a word,\na phrase, or\na question."},
            "limit": INTEGER | {"default": 5, "description": "How many. Defaults to 5."},
            "order": STRING | {"default": "asc", "description": "One of\n- asc: upwards\n- desc: downwards"},
        }
    )
    | {"additionalProperties": STRING},
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
    record({"a": INTEGER | {"description": "First."}, "b": INTEGER | {"description": "Second."}}),
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


@parameter(INTEGER | {"description": "How many."}, takes=[1])
def google_style_without_a_description(count: int) -> None:
    """
    Args:
        count: How many.
    """


@parameter(INTEGER | {"description": "How many."}, takes=[1])
def google_style_on_the_first_line(count: int) -> None:
    """Args:
    count: How many.
    """


@signature(
    record(
        {
            "x": NUMBER | {"description": "Where it is,\nfrom the left."},
            "y": NUMBER | {"description": "Both."},
            "z": NUMBER | {"default": 0.0, "description": "Both."},
            "name": STRING | {"default": ""},
        }
    ),
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
    record({"x": NUMBER | {"description": "Where it is,\nfrom the left."}, "y": NUMBER | {"description": "How high."}}),
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


@parameter(STRING, takes=["x"], description="Translate: word by word.\n\nArgs: none to speak of.")
def a_docstring_with_colons(text: str) -> None:
    """Translate: word by word.

    Args: none to speak of."""


@parameter(STRING | {"description": "From the annotation."}, takes=["x"], description="Search.")
def a_description_in_both_places(query: Annotated[str, Field(description="From the annotation.")]) -> None:
    """Search.

    Args:
        query: From the docstring.
    """


@parameter(STRING | {"description": "From the docstring."}, takes=["x"], name="q", description="Search.")
def a_docstring_for_an_alias(query: Annotated[str, Field(alias="q")]) -> None:
    """Search.

    Args:
        query: From the docstring.
    """


@parameter(
    ref("Address") | {"description": "Where to send it."},
    defs={"Address": ADDRESS},
    takes=[{"street": "Main", "city": "Bern"}],
    description="Send.",
)
def a_docstring_for_a_model_with_one(address: Address) -> None:
    """Send.

    :param address: Where to send it.
    """


@signature(
    record({"title": STRING | {"description": "Its title."}, "year": INTEGER | {"description": "Its year."}}, "year"),
    takes=[{"title": "Alien"}],
    description="Find.",
)
def a_docstring_for_keywords_of_a_typed_dict(**movie: Unpack[Movie]) -> None:
    """Find.

    Args:
        title: Its title.
        year: Its year.
    """


@parameter(STRING, takes=["x"], description="Search.")
def a_docstring_that_is_malformed(query: str) -> None:
    """Search.

    Args:
        there is no name here
    """
