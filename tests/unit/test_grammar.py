"""Tests of grammars for the embedded model: random texts of a grammar are valid for the schema of the grammar."""

from __future__ import annotations

import json
import random
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator
from pydantic import UUID4, AnyUrl, AwareDatetime, BaseModel, Field, NaiveDatetime, RootModel, TypeAdapter
from tests.long_version import IS_LONG
from tests.unit.gbnf import Grammar
from tests.unit.random_schemas import PATTERNS, hostile, schema

from acorn._formats.schema.generate import schema_of
from acorn.models.local.grammar.build import GrammarLimits, NoValidValueError, grammar
from acorn.models.local.grammar.schema import InvalidSchemaError
from acorn.models.local.model import to_text_messages

ROUNDS = 2000 if IS_LONG else 200


def nested(depth: int) -> dict[str, Any]:
    """Lists of lists of lists."""
    made: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        made = {"type": "array", "items": made}
    return made


def written(wanted: Any, rounds: int = 40, limits: GrammarLimits | None = None) -> list[str]:
    """Return random texts that the grammar of a schema allows."""
    made = Grammar.read(grammar(wanted, limits or GrammarLimits(), is_named=False))
    return [made.write(random.Random(number)) for number in range(rounds)]


def values(wanted: Any, rounds: int = 40, limits: GrammarLimits | None = None) -> list[Any]:
    """Parse random texts of a schema and return their values, after checking that each value is valid."""
    validator = Draft202012Validator(wanted, format_checker=Draft202012Validator.FORMAT_CHECKER)
    found: list[Any] = []
    for text in written(wanted, rounds, limits):
        found.append(json.loads(text))
        problems = [error.message for error in validator.iter_errors(found[-1])]
        assert not problems, f"{text} does not fit {wanted}: {problems}"
    return found


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_text_generated_from_grammar_matches_random_schema(seed: int) -> None:
    values(schema(random.Random(seed)), rounds=10)


# Numbers within bounds


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"minimum": 0},
        {"minimum": 1, "maximum": 1},
        {"minimum": 0, "maximum": 150},
        {"minimum": -17, "maximum": 123},
        {"exclusiveMinimum": -100, "exclusiveMaximum": -9},
        {"minimum": 10, "maximum": 99},
        {"minimum": 95, "exclusiveMaximum": 106},
        {"maximum": -1},
        {"exclusiveMinimum": 0},
        {"minimum": -0.5, "maximum": 7.5},
        {"multipleOf": 5, "minimum": -20, "maximum": 60},
    ],
)
def test_integer_grammar_accepts_exactly_integers_within_bounds(bounds: dict[str, Any]) -> None:
    wanted = {"type": "integer", **bounds}
    allowed = Grammar.read(grammar(wanted, GrammarLimits(), is_named=False)).as_regex()
    validator = Draft202012Validator(wanted)
    for number in range(-130, 200):
        assert bool(allowed.fullmatch(str(number))) == validator.is_valid(number), number
    assert not allowed.fullmatch("007")
    assert not allowed.fullmatch("-0")


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"minimum": 0, "maximum": 1},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"minimum": 0.35, "maximum": 2.5},
        {"minimum": -1.25, "maximum": 0.5},
        {"minimum": -2.5, "maximum": -0.75},
        {"exclusiveMinimum": -1},
        {"minimum": 1.05, "maximum": 1.15},
    ],
)
def test_number_grammar_accepts_exactly_numbers_within_bounds(bounds: dict[str, Any]) -> None:
    wanted = {"type": "number", **bounds}
    allowed = Grammar.read(grammar(wanted, GrammarLimits(), is_named=False)).as_regex()
    validator = Draft202012Validator(wanted)
    for hundredths in range(-300, 300):
        number = Decimal(hundredths) / 100
        text = str(number)
        if text.rstrip("0").rstrip(".") not in ("-0", ""):
            assert bool(allowed.fullmatch(text)) == validator.is_valid(float(number)), text


@pytest.mark.parametrize("bounds", [{"minimum": 2, "maximum": 1}, {"exclusiveMinimum": 1, "exclusiveMaximum": 2}])
def test_integer_bounds_without_integer_between_raise_no_valid_value_error(bounds: dict[str, Any]) -> None:
    with pytest.raises(NoValidValueError):
        grammar({"type": "integer", **bounds}, GrammarLimits(), is_named=False)


@pytest.mark.parametrize(
    "bounds",
    [
        {"ge": 1e300},
        {"gt": 1e300},
        {"le": -1e300},
        {"gt": 1e300, "lt": 2e300},
        {"ge": -1e300, "le": 1e300},
        {"gt": 1e-20, "lt": 1e-19},
        {"ge": -1e-9, "le": 1e-9},
        {"le": -1e16},
        {"gt": 1.7e308},
        {"gt": 9007199254740993.0},
    ],
)
def test_number_grammar_with_extreme_bounds_generates_valid_numbers(bounds: dict[str, Any]) -> None:
    assert_read(Annotated[float, Field(**bounds)])


@pytest.mark.parametrize("bounds", [{"gt": 10**20}, {"lt": -(10**30)}, {"gt": 10**20, "lt": 10**400}])
def test_integer_grammar_with_extreme_bounds_generates_valid_integers(bounds: dict[str, Any]) -> None:
    assert_read(Annotated[int, Field(**bounds)])


@pytest.mark.parametrize("bounds", [{"exclusiveMinimum": 5e-324, "maximum": 1e-300}, {"minimum": 10**400}])
def test_number_bounds_that_grammar_cannot_reach_raise_no_valid_value_error(bounds: dict[str, float]) -> None:
    with pytest.raises(NoValidValueError):
        grammar({"type": "number", **bounds}, GrammarLimits(), is_named=False)


# Strings


@pytest.mark.parametrize("regex", PATTERNS)
@pytest.mark.parametrize("lengths", [{}, {"maxLength": 40}])
def test_generated_string_matches_pattern(regex: str, lengths: dict[str, int]) -> None:
    values({"type": "string", "pattern": regex, **lengths})


@pytest.mark.parametrize(
    ("regex", "low", "high"),
    [("^[a-z]+$", 3, 10), ("^[a-z]*$", 0, 2), (r"^\w+-\d*$", 5, 7), ("^(ab)+$", 6, 8), ("^a|b{2,9}$", 1, 5)],
)
def test_generated_string_matches_pattern_and_length_limits(regex: str, low: int, high: int) -> None:
    values({"type": "string", "pattern": regex, "minLength": low, "maxLength": high})


@pytest.mark.parametrize(
    "regex",
    [
        *(r"^\W+$", r"^[^\w]+$", r"^[^\W\d_]+$", r"^\D\W\S$", r"^[^\x00-\x7f]+$"),
        *(r"^[[:alpha:]]+$", r"^[[:^alpha:]_]+$", r"^[x[:digit:]]+$"),
        *(r"(?i)^abc$", r"^(?i:abc)$", r"(?i)^[^a]+$", r"^(?s:.)$"),
        *(r"^\p{L}+$", r"^\p{Lu}\p{Ll}*$", r"^\pL$", r"^\P{L}+$", r"^[\d\p{L}]+$"),
        *(r"^\x{41}\u{42}$", r"^\Aa\z$", r"^a++$", r"^a{1,2}+$", r"^(a*)*$"),
    ],
)
@pytest.mark.parametrize("lengths", [{}, {"min_length": 3, "max_length": 6}])
def test_generated_string_matches_pattern_in_pydantic_regex_dialect(regex: str, lengths: dict[str, Any]) -> None:
    kind = Annotated[str, Field(pattern=regex, **lengths)]
    if lengths and regex in (r"^(?s:.)$", r"^\pL$", r"^\x{41}\u{42}$", r"^\Aa\z$"):
        with pytest.raises(NoValidValueError):
            grammar(TypeAdapter(kind).json_schema(), GrammarLimits(), is_named=False)
    else:
        assert_read(kind)


@pytest.mark.parametrize(
    "regex", ["^[+--]$", "^[a&&b]$", "^[a-z&&[^aeiou]]+$", "^[a~~b]$", "^[a--b]$", "^[a[bc]]$", r"^\p{Greek}$"]
)
def test_pattern_with_unsupported_character_class_allows_any_string(regex: str) -> None:
    assert '"\\""' in grammar({"type": "string", "pattern": regex}, GrammarLimits(), is_named=False)
    assert "char" in grammar({"type": "string", "pattern": regex}, GrammarLimits(), is_named=False)


@pytest.mark.parametrize("regex", [r"^\d{3}-\d{4}$", "^a$", "^$", r"^\w+@\w+\.com$", "^a$|^b$"])
def test_pattern_that_contradicts_length_limits_raises_no_valid_value_error(regex: str) -> None:
    with pytest.raises(NoValidValueError):
        grammar({"type": "string", "pattern": regex, "minLength": 3, "maxLength": 6}, GrammarLimits(), is_named=False)


@pytest.mark.parametrize("regex", ["^a|b$", "a|^b", "ab", "ab$", "^(a(b(c)?)?)?$", "^a$|^b{2,9}$", "^[a-f]{64}$"])
def test_pattern_without_anchors_generates_strings_within_length_limits(regex: str) -> None:
    longest = 64 if "64" in regex else 6
    values({"type": "string", "pattern": regex, "minLength": 3, "maxLength": longest})


@pytest.mark.parametrize("regex", [r"^(?=a)b$", r"^(?!x)a+$", r"(a)\1", r"\bword\b", r"(?i)abc", r"\p{L}+", "(", "a**"])
def test_unsupported_pattern_allows_any_string(regex: str) -> None:
    for text in written({"type": "string", "pattern": regex, "maxLength": 5}):
        assert len(json.loads(text)) <= 5


def test_union_member_with_unsupported_pattern_is_never_generated() -> None:
    for text in written({"anyOf": [{"type": "string", "pattern": "^(?!x)a$"}, {"type": "number"}]}):
        assert isinstance(json.loads(text), int | float)


def test_strings_inside_lists_have_quarter_of_default_length_limit() -> None:
    wanted = {"type": "array", "items": {"type": "string"}}
    longest = max(len(item) for value in values(wanted, 100) for item in value)
    assert longest == GrammarLimits().string // 4


def test_declared_max_length_replaces_default_length_limit() -> None:
    assert max(len(value) for value in values({"type": "string", "maxLength": 1500})) == 1500


@pytest.mark.parametrize(("low", "high"), [(0, 1000), (0, 1001), (0, 3999), (999, 2000), (3000, 4000), (4500, 4500)])
def test_long_generated_strings_reach_exact_length_limits(low: int, high: int) -> None:
    found = {
        len(value) for value in values({"type": "string", "minLength": low, "maxLength": high}, 60 if IS_LONG else 12)
    }
    assert min(found) == low
    assert max(found) == high


# Shapes


def test_optional_fields_are_generated_in_every_combination() -> None:
    properties = {name: {"const": name} for name in "abc"}
    found = {tuple(value) for value in values({"type": "object", "properties": properties}, 300)}
    assert len(found) == 8
    found = {tuple(value) for value in values({"type": "object", "properties": properties, "required": ["b"]}, 300)}
    assert len(found) == 4


def test_unique_items_appear_at_most_once() -> None:
    wanted = {"type": "array", "items": {"enum": list("abcde")}, "uniqueItems": True, "minItems": 2, "maxItems": 3}
    assert {len(value) for value in values(wanted, 200)} == {2, 3}


@pytest.mark.parametrize(
    ("count", "low", "high"), [(60, 10, 20), (30, 0, 30), (300, 1, 8), (2000, 0, 2000), (500, 100, 200), (3, 3, 3)]
)
def test_grammar_for_many_unique_items_is_smaller_than_100_kilobytes(count: int, low: int, high: int) -> None:
    wanted = {
        "type": "array",
        "items": {"enum": [f"value {number}" for number in range(count)]},
        "uniqueItems": True,
        "minItems": low,
        "maxItems": high,
    }
    assert len(grammar(wanted, GrammarLimits(), is_named=False)) < 100_000
    values(wanted, 10)


def test_unique_items_are_generated_in_all_combinations() -> None:
    wanted = {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 1, "maxItems": 3}
    assert len({tuple(value) for value in values(wanted, 600)}) == 14


@pytest.mark.parametrize("limits", [{}, {"minProperties": 2}, {"maxProperties": 1}, {"minProperties": 3}])
def test_object_with_enumerated_key_names_has_allowed_number_of_keys(limits: dict[str, int]) -> None:
    values({"type": "object", "propertyNames": {"enum": ["a", "b", "c"]}, "additionalProperties": {}, **limits})


def test_recursive_schema_generates_finite_values() -> None:
    wanted = {
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "left": {"$ref": "#/$defs/Node"},
                    "right": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                    "more": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
                "required": ["right", "more"],
            }
        },
        "$ref": "#/$defs/Node",
    }
    values(wanted, limits=GrammarLimits(items=2))


def test_schema_without_finite_value_raises_no_valid_value_error() -> None:
    endless = {"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]}
    with pytest.raises(NoValidValueError):
        grammar(endless, GrammarLimits(), is_named=False)


def test_grammar_of_mutually_recursive_definitions_is_smaller_than_50_kilobytes() -> None:
    names = [f"N{number}" for number in range(12)]
    everything = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names] + [{"type": "null"}]}
    node = {"type": "object", "properties": {"a": everything, "b": everything}, "required": ["a", "b"]}
    assert len(grammar({"$defs": dict.fromkeys(names, node), **everything}, GrammarLimits(), is_named=False)) < 50_000


def test_grammar_of_empty_schema_generates_each_json_type() -> None:
    kinds = {type(value) for value in values({}, 200)}
    assert kinds >= {str, dict, list, bool, type(None)}


def test_grammar_of_several_tools_generates_tool_name_with_matching_arguments() -> None:
    options = {"add": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, "stop": {}}
    made = Grammar.read(grammar(options, GrammarLimits(), is_named=True))
    calls = [json.loads(made.write(random.Random(number))) for number in range(50)]
    assert {call["name"] for call in calls} == {"add", "stop"}
    assert all(set(call) == {"name", "arguments"} for call in calls)
    assert all(set(call["arguments"]) == {"x"} for call in calls if call["name"] == "add")


# Schemas of users


@pytest.mark.parametrize("seed", range(ROUNDS * 2))
def test_random_hostile_schema_raises_only_documented_errors(seed: int) -> None:
    wanted = hostile(random.Random(seed))
    try:
        made = Grammar.read(grammar(wanted, GrammarLimits(), is_named=False))
    except (NoValidValueError, InvalidSchemaError):
        return
    json.loads(made.write(random.Random(seed)))
    to_text_messages([], [{"name": "tool", "parameters": wanted}], is_small=True)


def test_schema_that_refers_to_itself_in_all_of_is_applied_once() -> None:
    part = {"type": "string", "allOf": [{"$ref": "#/$defs/a"}], "maxLength": 3}
    for text in written({"$defs": {"a": part}, "$ref": "#/$defs/a"}):
        assert len(json.loads(text)) <= 3


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "object", "propertyNames": True, "minProperties": 1},
        {"type": "object", "propertyNames": False},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1.0, "maxItems": 2.0},
        {"type": "string", "minLength": 3.0, "maxLength": 3.0},
        {"type": "array", "prefixItems": [True, False]},
        {"type": "array", "prefixItems": [{"const": 1}, False, {"const": 2}], "minItems": 1},
        {"type": "array", "prefixItems": [False, True]},
        {"type": "array", "prefixItems": [{"const": 1}], "minItems": 3},
        {"allOf": [{"minimum": 3}, {"allOf": [{"maximum": 4}]}, {"allOf": [{"type": "integer"}]}]},
        True,
    ],
)
def test_rare_schema_keywords_generate_valid_values(wanted: Any) -> None:
    values(wanted)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"properties": {"x": {"maxItems": "two"}}}, "`#/properties/x/maxItems` must be an integer of at least 0"),
        ({"maxLength": 2.5}, "but it is 2.5"),
        ({"minLength": 10**9}, "20000"),
        ({"properties": ["x"]}, "`#/properties` must be an object that maps names to schemas"),
        ({"properties": {"x": 5}}, "`#/properties/x` must be a schema, but it is 5"),
        ({"anyOf": {}}, "a list of schemas"),
        ({"required": True}, "a list of names"),
        ({"type": {"a": 1}}, "the name of a type"),
        ({"multipleOf": 0}, "greater than 0"),
        ({"minimum": float("inf")}, "a number"),
        ({"pattern": 5}, "a string"),
        ({"const": float("nan")}, "a JSON value"),
        ({"$ref": "#/parts/x", "parts": {"x": {"enum": 3}}}, "`#/parts/x/enum` must be a list of values"),
        (nested(500), "nested too deeply"),
        (None, "must be a schema"),
    ],
)
def test_invalid_schema_raises_error_with_location_in_schema(wanted: Any, words: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        grammar(wanted, GrammarLimits(), is_named=False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "array", "prefixItems": [True, False], "minItems": 2},
        {"type": "array", "prefixItems": [True], "items": False, "minItems": 2},
        {"type": "object", "propertyNames": False, "minProperties": 1},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "string", "pattern": "^a{999999999}$"},
        False,
    ],
)
def test_schema_that_no_value_satisfies_raises_no_valid_value_error(wanted: Any) -> None:
    with pytest.raises(NoValidValueError):
        grammar(wanted, GrammarLimits(), is_named=False)


@pytest.mark.parametrize("regex", ["(" * 500 + ")" * 500, "a" + "{2}" * 500, "a{5,2}", f"a{{{'9' * 5000}}}", "[z-a]"])
def test_too_complex_pattern_allows_any_string(regex: str) -> None:
    for text in written({"type": "string", "pattern": regex, "maxLength": 5}):
        assert len(json.loads(text)) <= 5


# Schemas of Pydantic


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: set[Literal["sit", "roll"]]
    bone: Dog | None = None


class Everything(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    moods: Annotated[list[Mood], Field(min_length=1, max_length=2)]
    born: date
    seen: datetime
    at: time
    lasted: timedelta
    id: UUID
    id4: UUID4
    link: AnyUrl
    four: IPv4Address
    six: IPv6Address
    net: IPv6Network
    share: Annotated[float, Field(gt=0, lt=1)]
    pair: tuple[int, str]
    many: tuple[int, ...]
    counts: dict[str, int]
    sides: dict[Literal["left", "right"], bool]
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}\d+$", max_length=6)]
    even: Annotated[int, Field(multiple_of=2)]
    raw: bytes
    whatever: Any
    maybe: int | None
    default: str = "x"


@pytest.mark.parametrize("kind", [Everything, Dog, list[Dog], int | str, dict[str, list[Cat]], None])
def test_generated_text_for_standard_types_is_accepted_by_pydantic(kind: Any) -> None:
    adapter = TypeAdapter[Any](kind)
    for text in written(adapter.json_schema(), 60):
        adapter.validate_json(text)


class Score(IntEnum):
    LOW = 1
    HIGH = 2


class Circle(BaseModel):
    shape: Literal["circle"] = "circle"
    radius: float = 1.0


class Square(BaseModel):
    shape: Literal["square"] = "square"
    inner: Shape | None = None


class RedTea(BaseModel):
    kind: Literal["tea"] = "tea"
    color: Literal["red"] = "red"


class BlackTea(BaseModel):
    kind: Literal["tea"] = "tea"
    color: Literal["black"] = "black"


class Coffee(BaseModel):
    kind: Literal["coffee"] = "coffee"


Shape = Annotated[Circle | Square, Field(discriminator="shape")]
Tea = Annotated[RedTea | BlackTea, Field(discriminator="color")]
Square.model_rebuild()


class Tree(RootModel[int | list["Tree"]]):
    pass


def assert_read(kind: Any, rounds: int = 60) -> None:
    """Check that Pydantic accepts every text of the grammar for a type as a value of this type."""
    adapter = TypeAdapter[Any](kind)
    for text in written(schema_of(adapter), rounds):
        adapter.validate_json(text)


@pytest.mark.parametrize(
    "kind",
    [
        *(Shape, list[Shape], Annotated[Tea | Coffee, Field(discriminator="kind")], Tree),
        *(NaiveDatetime, AwareDatetime, list[NaiveDatetime | None]),
        *(dict[Score, str], dict[int, str], dict[float, int], dict[bool, int], dict[Decimal, int]),
        *(dict[date, int], dict[UUID, int], dict[str, int], dict[Annotated[int, Field(ge=1, le=5)], int]),
        Annotated[dict[Score, str], Field(min_length=2)],
        set[Score],
    ],
)
def test_generated_text_for_special_types_is_accepted_by_pydantic(kind: Any) -> None:
    assert_read(kind)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_digits": 5, "decimal_places": 2},
        {"max_digits": 3},
        {"max_digits": 1},
        {"max_digits": 40},
        {"decimal_places": 0},
        {"max_digits": 4, "decimal_places": 4},
        {"ge": 0, "le": 10, "decimal_places": 2},
        {"gt": 0, "max_digits": 3},
        {"gt": Decimal("0.5"), "lt": Decimal("0.75"), "max_digits": 4, "decimal_places": 3},
        {"multiple_of": Decimal("0.25")},
        {"multiple_of": Decimal("0.25"), "decimal_places": 1, "ge": 0},
        {"strict": True},
    ],
)
def test_generated_decimal_has_declared_digits_and_bounds(limits: dict[str, Any]) -> None:
    kind: Any = Annotated[Decimal, Field(**limits)]
    assert_read(kind, 200)
    assert_read(kind | None)


def test_grammar_contains_no_duplicate_rules() -> None:
    text = grammar(Everything.model_json_schema(), GrammarLimits(), is_named=False)
    rules = [line.partition(" ::= ")[2] for line in text.splitlines()]
    assert len(rules) == len(set(rules)) or re.search(r"^root ::= r\d+$", text, re.MULTILINE)
