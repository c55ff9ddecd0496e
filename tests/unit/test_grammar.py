"""Tests of grammars for the embedded model: random texts of a grammar are valid for the schema of the grammar."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from jsonschema import Draft202012Validator
from pydantic import UUID4, AnyUrl, AwareDatetime, BaseModel, Field, NaiveDatetime, RootModel, TypeAdapter
from tests.cases import case
from tests.long_version import IS_LONG
from tests.unit.gbnf import Grammar
from tests.unit.random_schemas import PATTERNS, hostile, schema

from acorn._formats.schema.generate import schema_of
from acorn.models.local.grammar.build import GrammarLimits, NoValidValueError, grammar
from acorn.models.local.grammar.schema import InvalidSchemaError
from acorn.models.local.model import to_text_messages

ROUNDS = 2000 if IS_LONG else 200


def build(wanted: Any, limits: GrammarLimits | None = None) -> str:
    """Return the grammar for the arguments of one tool."""
    return grammar({"tool": wanted}, limits or GrammarLimits())


def written(wanted: Any, rounds: int = 40, limits: GrammarLimits | None = None) -> list[str]:
    """Return random texts that the grammar of a schema allows."""
    made = Grammar.read(build(wanted, limits))
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


def check_values(*schemas: Any) -> None:
    """Check the random values of several schemas."""
    for wanted in schemas:
        with case(wanted):
            values(wanted)


def test_text_generated_from_grammar_matches_random_schema() -> None:
    for seed in range(ROUNDS):
        with case(seed):
            values(schema(random.Random(seed)), rounds=10)


# Numbers within bounds


def test_integer_grammar_accepts_exactly_integers_within_bounds() -> None:
    for bounds in (
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
    ):
        wanted = {"type": "integer", **bounds}
        allowed = Grammar.read(build(wanted)).as_regex()
        validator = Draft202012Validator(wanted)
        for number in range(-130, 200):
            with case(bounds, number):
                assert bool(allowed.fullmatch(str(number))) == validator.is_valid(number)
        assert not allowed.fullmatch("007")
        assert not allowed.fullmatch("-0")


def test_number_grammar_accepts_exactly_numbers_within_bounds() -> None:
    for bounds in (
        {},
        {"minimum": 0, "maximum": 1},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"minimum": 0.35, "maximum": 2.5},
        {"minimum": -1.25, "maximum": 0.5},
        {"minimum": -2.5, "maximum": -0.75},
        {"exclusiveMinimum": -1},
        {"minimum": 1.05, "maximum": 1.15},
    ):
        wanted = {"type": "number", **bounds}
        allowed = Grammar.read(build(wanted)).as_regex()
        validator = Draft202012Validator(wanted)
        for hundredths in range(-300, 300):
            text = str(Decimal(hundredths) / 100)
            if text.rstrip("0").rstrip(".") not in ("-0", ""):
                with case(bounds, text):
                    assert bool(allowed.fullmatch(text)) == validator.is_valid(float(text))


def test_number_grammar_with_extreme_bounds_generates_valid_numbers() -> None:
    extreme: tuple[dict[str, Any], ...] = (
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
    )
    for bounds in extreme:
        assert_read(Annotated[float, Field(**bounds)])
    assert_read(Annotated[int, Field(gt=10**20)])
    assert_read(Annotated[int, Field(lt=-(10**30))])
    assert_read(Annotated[int, Field(gt=10**20, lt=10**400)])


# Strings


def test_generated_string_matches_pattern_and_length_limits() -> None:
    strings: list[tuple[str, dict[str, int]]] = [
        (regex, lengths) for regex in PATTERNS for lengths in ({}, {"maxLength": 40})
    ]
    strings += [
        ("^[a-z]+$", {"minLength": 3, "maxLength": 10}),
        ("^[a-z]*$", {"minLength": 0, "maxLength": 2}),
        (r"^\w+-\d*$", {"minLength": 5, "maxLength": 7}),
        ("^(ab)+$", {"minLength": 6, "maxLength": 8}),
        ("^a|b{2,9}$", {"minLength": 1, "maxLength": 5}),
        ("^[a-f]{64}$", {"minLength": 3, "maxLength": 64}),
    ]
    for regex in ("^a|b$", "a|^b", "ab", "ab$", "^(a(b(c)?)?)?$", "^a$|^b{2,9}$"):
        strings.append((regex, {"minLength": 3, "maxLength": 6}))
    check_values(*({"type": "string", "pattern": regex, **lengths} for regex, lengths in strings))


def test_generated_string_matches_pattern_in_pydantic_regex_dialect() -> None:
    for regex in (
        *(r"^\W+$", r"^[^\w]+$", r"^[^\W\d_]+$", r"^\D\W\S$", r"^[^\x00-\x7f]+$"),
        *(r"(?i)^abc$", r"^(?i:abc)$", r"(?i)^[^a]+$", r"^(?s:.)$"),
        *(r"^\x41\u0042$", r"^\Aa\z$", r"^(a*)*$", r"(?i)abc"),
    ):
        assert_read(Annotated[str, Field(pattern=regex)])
        if regex not in (r"^(?s:.)$", r"^\x41\u0042$", r"^\Aa\z$"):
            assert_read(Annotated[str, Field(pattern=regex, min_length=3, max_length=6)])


def test_pattern_that_grammar_cannot_express_allows_any_string() -> None:
    for regex in (
        *(r"^(?=a)b$", r"^(?!x)a+$", r"(a)\1", r"\bword\b", "("),
        *("^[+--]$", "^[a&&b]$", "^[a-z&&[^aeiou]]+$", "^[a~~b]$", "^[a--b]$", "^[a[bc]]$", r"^\p{Greek}$"),
        *(r"^[[:alpha:]]+$", r"^[x[:digit:]]+$", r"^\pL$", r"^[\d\p{L}]+$", r"^\x{41}$", "^a++$", "a**"),
        *("(" * 500 + ")" * 500, "a" + "{2}" * 500, "a{5,2}", f"a{{{'9' * 5000}}}", "[z-a]"),
    ):
        with case(regex):
            assert build({"type": "string", "pattern": regex}) == build({"type": "string"})


def test_union_member_with_unsupported_pattern_is_never_generated() -> None:
    for text in written({"anyOf": [{"type": "string", "pattern": "^(?!x)a$"}, {"type": "number"}]}):
        assert isinstance(json.loads(text), int | float)


def test_strings_inside_lists_have_quarter_of_default_length_limit() -> None:
    wanted = {"type": "array", "items": {"type": "string"}}
    longest = max(len(item) for value in values(wanted, 100) for item in value)
    assert longest == GrammarLimits().string // 4


def test_long_generated_strings_reach_exact_length_limits() -> None:
    for low, high in ((0, 1000), (0, 1001), (0, 3999), (999, 2000), (3000, 4000), (4500, 4500)):
        with case(low, high):
            rounds = 60 if IS_LONG else 12
            found = {len(value) for value in values({"type": "string", "minLength": low, "maxLength": high}, rounds)}
            assert (min(found), max(found)) == (low, high)


# Shapes


def test_optional_fields_are_generated_in_every_combination() -> None:
    properties = {name: {"const": name} for name in "abc"}
    found = {tuple(value) for value in values({"type": "object", "properties": properties}, 300)}
    assert len(found) == 8
    found = {tuple(value) for value in values({"type": "object", "properties": properties, "required": ["b"]}, 300)}
    assert len(found) == 4


def test_unique_items_are_generated_in_all_combinations() -> None:
    wanted = {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 1, "maxItems": 3}
    assert len({tuple(value) for value in values(wanted, 600)}) == 14


def test_grammar_for_many_unique_items_is_smaller_than_100_kilobytes() -> None:
    for count, low, high in ((60, 10, 20), (30, 0, 30), (300, 1, 8), (2000, 0, 2000), (500, 100, 200), (3, 3, 3)):
        names = [f"value {number}" for number in range(count)]
        wanted = {"type": "array", "items": {"enum": names}, "uniqueItems": True, "minItems": low, "maxItems": high}
        with case(count, low, high):
            assert len(build(wanted)) < 100_000
            values(wanted, 10)


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


def test_grammar_of_mutually_recursive_definitions_is_smaller_than_50_kilobytes() -> None:
    names = [f"N{number}" for number in range(12)]
    everything = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names] + [{"type": "null"}]}
    node = {"type": "object", "properties": {"a": everything, "b": everything}, "required": ["a", "b"]}
    assert len(build({"$defs": dict.fromkeys(names, node), **everything})) < 50_000


def test_grammar_of_empty_schema_generates_each_json_type() -> None:
    kinds = {type(value) for value in values({}, 200)}
    assert kinds >= {str, dict, list, bool, type(None)}


def test_grammar_of_several_tools_generates_tool_name_with_matching_arguments() -> None:
    options = {"add": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, "stop": {}}
    made = Grammar.read(grammar(options, GrammarLimits()))
    calls = [json.loads(made.write(random.Random(number)) + "}") for number in range(50)]
    assert {call["name"] for call in calls} == {"add", "stop"}
    assert all(set(call) == {"name", "arguments"} for call in calls)
    assert all(set(call["arguments"]) == {"x"} for call in calls if call["name"] == "add")


# Schemas of users


def test_random_hostile_schema_raises_only_documented_errors() -> None:
    for seed in range(ROUNDS * 2):
        wanted = hostile(random.Random(seed))
        with case(seed), suppress(NoValidValueError, InvalidSchemaError):
            json.loads(Grammar.read(build(wanted)).write(random.Random(seed)))
            to_text_messages([], [{"name": "tool", "parameters": wanted}], is_small=True)


def test_schema_that_refers_to_itself_in_all_of_is_applied_once() -> None:
    part = {"type": "string", "allOf": [{"$ref": "#/$defs/a"}], "maxLength": 3}
    for text in written({"$defs": {"a": part}, "$ref": "#/$defs/a"}):
        assert len(json.loads(text)) <= 3


def test_rare_schema_keywords_generate_valid_values() -> None:
    named = {"type": "object", "propertyNames": {"enum": ["a", "b", "c"]}, "additionalProperties": {}}
    check_values(
        named,
        {**named, "minProperties": 2},
        {**named, "maxProperties": 1},
        {**named, "minProperties": 3},
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
    )


def test_invalid_schema_raises_error_with_location_in_schema() -> None:
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(500):
        nested = {"type": "array", "items": nested}
    problems: tuple[tuple[Any, str], ...] = (
        (
            {"properties": {"x": {"maxItems": "two"}}},
            "`#/properties/x/maxItems` is not valid in a schema: 'two' is not",
        ),
        ({"maxLength": 2.5}, "`#/maxLength` is not valid in a schema: 2.5 is not of type 'integer'"),
        ({"minLength": 10**9}, "20000"),
        ({"properties": ["x"]}, "`#/properties` is not valid in a schema: ['x'] is not of type 'object'"),
        ({"properties": {"x": 5}}, "`#/properties/x` is not valid in a schema: 5 is not of type"),
        ({"anyOf": {}}, "`#/anyOf` is not valid in a schema: {} is not of type 'array'"),
        ({"required": True}, "`#/required` is not valid in a schema: True is not of type 'array'"),
        ({"type": {"a": 1}}, "`#/type` is not valid in a schema"),
        ({"multipleOf": 0}, "`#/multipleOf` is not valid in a schema: 0 is less than or equal to the minimum of 0"),
        ({"minimum": float("inf")}, "is not valid JSON"),
        ({"pattern": 5}, "`#/pattern` is not valid in a schema: 5 is not of type 'string'"),
        ({"const": float("nan")}, "is not valid JSON"),
        (
            {"$ref": "#/parts/x", "parts": {"x": {"enum": 3}}},
            "`#/parts/x/enum` is not valid in a schema: 3 is not",
        ),
        (nested, "nested too deeply"),
        (None, "`#` is not valid in a schema: None is not of type"),
    )
    for wanted, words in problems:
        with case(words), pytest.raises(InvalidSchemaError, match=re.escape(words)):
            build(wanted)


def test_schema_that_no_value_satisfies_raises_no_valid_value_error() -> None:
    patterns = (r"^\d{3}-\d{4}$", "^a$", "^$", r"^\w+@\w+\.com$", "^a$|^b$", r"^\x41\u0042$", r"^\Aa\z$")
    schemas: tuple[Any, ...] = (
        *({"type": "string", "pattern": regex, "minLength": 3, "maxLength": 6} for regex in patterns),
        {"type": "string", "pattern": "^a{999999999}$"},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "number", "exclusiveMinimum": 5e-324, "maximum": 1e-300},
        {"type": "number", "minimum": 10**400},
        {"type": "array", "prefixItems": [True, False], "minItems": 2},
        {"type": "array", "prefixItems": [True], "items": False, "minItems": 2},
        {"type": "object", "propertyNames": False, "minProperties": 1},
        {"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        False,
    )
    for wanted in schemas:
        with case(wanted), pytest.raises(NoValidValueError):
            build(wanted)


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
        with case(kind, text):
            adapter.validate_json(text)


def test_generated_text_for_type_is_accepted_by_pydantic() -> None:
    for kind in (
        *(Everything, Dog, list[Dog], int | str, dict[str, list[Cat]], None),
        *(Shape, list[Shape], Annotated[Tea | Coffee, Field(discriminator="kind")], Tree),
        *(NaiveDatetime, AwareDatetime, list[NaiveDatetime | None]),
        *(dict[Score, str], dict[int, str], dict[float, int], dict[bool, int], dict[Decimal, int]),
        *(dict[date, int], dict[UUID, int], dict[str, int], dict[Annotated[int, Field(ge=1, le=5)], int]),
        Annotated[dict[Score, str], Field(min_length=2)],
        set[Score],
    ):
        assert_read(kind)


def test_generated_decimal_has_declared_digits_and_bounds() -> None:
    declared: tuple[dict[str, Any], ...] = (
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
    )
    for limits in declared:
        kind: Any = Annotated[Decimal, Field(**limits)]
        assert_read(kind, 200)
        assert_read(kind | None)


def test_grammar_contains_no_duplicate_rules() -> None:
    text = build(Everything.model_json_schema())
    rules = [line.partition(" ::= ")[2] for line in text.splitlines()]
    assert len(rules) == len(set(rules)) or re.search(r"^root ::= r\d+$", text, re.MULTILINE)
