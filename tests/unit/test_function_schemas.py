"""Tests of the schema of a function, and of binding the arguments of a model to its parameters.

The table of signatures is in `signatures.py`; this file contains the remaining cases.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import functools
import inspect
import json
import math
import sys
import typing
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, AliasPath, BaseModel, Field, HttpUrl, SecretStr
from pydantic_core import PydanticCustomError
from tests.cases import case
from tests.unit import signatures
from tests.unit.signatures import ROWS, Cat, Color, Dog, Label, Movie, Node, Point, Priority, Schema, Size

from acorn import DeclarationError, ToolConflictError, module, tool
from acorn._declare.tools.arguments import UnresolvedHintError
from acorn._declare.tools.collect import collect_methods, collect_tools, make_tool, merge_tools, read_docstring
from acorn._declare.tools.kinds import ArgumentError, Tool

HERE = __name__


@functools.cache
def tool_of(function: Any) -> Tool:
    return make_tool(function, "tools[0]", "Owner", {})


def schema_of(function: Any) -> Schema:
    parameters: Schema = tool_of(function).schema["parameters"]
    return parameters


def complaint(function: Any, arguments: str) -> str | None:
    """Return the error message about the arguments, or None if they are valid."""
    try:
        tool_of(function).bind(arguments)
    except ArgumentError as error:
        return str(error)
    return None


def refusal(function: Any, arguments: str) -> str:
    words = complaint(function, arguments)
    assert words is not None, arguments
    return words


def call(function: Any, arguments: str) -> Any:
    args, kwargs = tool_of(function).bind(arguments)
    result = function(*args, **kwargs)
    return asyncio.run(_wait(result)) if inspect.iscoroutine(result) else result


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


def subschemas(schema: Any) -> Iterator[Schema]:
    """Yield the schema and every schema inside it; names of properties are not keywords."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in ("items", "additionalProperties", "propertyNames", "contentSchema"):
        yield from subschemas(schema.get(keyword))
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for member in schema.get(keyword, []):
            yield from subschemas(member)
    for keyword in ("properties", "$defs"):
        for member in schema.get(keyword, {}).values():
            yield from subschemas(member)


# The table: schemas.


def test_signature_table_has_at_least_150_rows_with_unique_names() -> None:
    names = [row.name for row in ROWS]
    assert len(names) >= 150
    assert len(set(names)) == len(names)


def orders(schema: Schema) -> list[list[str]]:
    """Return the names of properties in order, for every object in a schema."""
    return sorted(list(part["properties"]) for part in subschemas(schema) if "properties" in part)


def test_schema_of_signature_lists_parameters_in_declaration_order() -> None:
    for row in ROWS:
        with case(row.name):
            made = tool_of(row.function)
            assert made.schema["parameters"] == row.parameters
            assert orders(made.schema["parameters"]) == orders(row.parameters)
            assert made.schema.get("description") == row.description
            assert made.schema is made.schema


TITLES = {
    "a_parameter_with_a_title": ["The Query"],
    "a_parameter_whose_title_is_its_name": ["query"],
    "a_model_whose_title_the_user_wrote": ["Point"],
    "a_model_with_titles": ["A Paper", "Its title"],
}


def test_schema_of_signature_is_valid_json_schema_without_generated_titles() -> None:
    for row in ROWS:
        with case(row.name):
            schema = schema_of(row.function)
            Draft202012Validator.check_schema(schema)
            assert "s3cret" not in json.dumps(schema, allow_nan=False)
            assert schema["type"] == "object"
            assert isinstance(schema["properties"], dict)
            parts = list(subschemas(schema))
            assert all("items" in part for part in parts if part.get("type") == "array")
            assert sorted(part["title"] for part in parts if "title" in part) == TITLES.get(row.name, [])
            used = {part["$ref"] for part in parts if "$ref" in part}
            assert used == {f"#/$defs/{name}" for name in schema.get("$defs", {})}


# The table: arguments.


def test_valid_arguments_are_bound_to_tool_parameters() -> None:
    for row in ROWS:
        with case(row.name):
            validator = Draft202012Validator(row.parameters)
            for text in (*row.takes, *row.lax):
                assert validator.is_valid(json.loads(text)) == (text not in row.lax), text
                args, kwargs = tool_of(row.function).bind(text)
                result = row.function(*args, **kwargs)
                if inspect.iscoroutine(result):
                    result.close()


def test_invalid_arguments_raise_error_with_argument_name() -> None:
    for row in ROWS:
        with case(row.name):
            validator = Draft202012Validator(row.parameters)
            for text, argument in (*row.refuses, *row.beyond):
                assert validator.is_valid(json.loads(text)) == ((text, argument) in row.beyond), text
                assert f"argument `{argument}" in refusal(row.function, text)


def takes_any_keyword(function: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


def test_unknown_argument_raises_error_with_known_names() -> None:
    for row in [row for row in ROWS if not takes_any_keyword(row.function)]:
        with case(row.name):
            for text in row.takes:
                words = refusal(row.function, json.dumps({**json.loads(text), "no_such_argument": 1}))
                names = ", ".join(f"`{name}`" for name in row.parameters["properties"])
                there = f"the arguments are: {names}" if names else "there are no arguments"
                assert words == f"argument `no_such_argument` does not exist ({there})"


PROBES: list[Any] = [
    None, True, False, 0, 1, -1, 1.5, "", "5", "-1.5", "true", "abc", " ", "2024-01-01", "null", "missing",
    [], [1], ["a"], [[]], [None], [1, 1], {}, {"a": 1}, {"a": "b"}, {"title": "x"},
]  # fmt: skip


def is_lax_conversion(value: Any, schema: Schema, whole: Schema) -> bool:
    """Return whether Pydantic documents that it accepts such a value (conversion table, lax, from JSON)."""
    if "$ref" in schema:
        return is_lax_conversion(value, whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole)
    if members := schema.get("anyOf") or schema.get("oneOf"):
        return any(is_lax_conversion(value, member, whole) for member in members)
    if 1 in schema.get("enum", []) or schema.get("const") == 1:
        return bool(value == 1)  # As true is to Python.
    if schema.get("type") == "integer":
        return isinstance(value, bool) or value == "5"
    if schema.get("type") == "number":
        return isinstance(value, bool) or value in ("5", "-1.5")
    if schema.get("type") == "boolean":
        return value in (0, 1, "true")
    if schema.get("format") in ("date-time", "date", "time", "duration"):
        return isinstance(value, int | float)  # seconds
    if schema.get("format") == "ipv4":
        return isinstance(value, int)
    return bool(schema.get("uniqueItems")) and value == [1, 1]


def test_json_schema_and_argument_binding_accept_same_values() -> None:
    for row in ROWS:
        with case(row.name):
            validator = Draft202012Validator(row.parameters)
            for text in row.takes[:1]:
                for name, schema in row.parameters["properties"].items():
                    for value in PROBES:
                        arguments = {**json.loads(text), name: value}
                        words = complaint(row.function, json.dumps(arguments))
                        if words is None:
                            lax = row.name == "a_validator_before" or is_lax_conversion(value, schema, row.parameters)
                            assert lax or validator.is_valid(arguments), (name, value)
                        else:
                            assert f"argument `{name}" in words
                            # Only a row that says so is stricter than its schema.
                            assert row.beyond or not validator.is_valid(arguments), (name, value)


# Further properties of schemas.


def test_tool_schema_contains_name_and_description_and_parameters() -> None:
    assert tool_of(signatures.search).schema == {
        "name": "search",
        "description": "Search the web for information.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
            "required": ["query"],
        },
    }


def test_postponed_type_hints_are_resolved() -> None:
    def plan(
        day: dt.date, points: list[Point], note: Annotated[str, Field(max_length=5)] = "", size: Size | None = None
    ) -> Missing:  # type: ignore[name-defined]  # noqa: F821 - what a tool returns is not read
        ...

    assert inspect.signature(plan).parameters["day"].annotation == "dt.date"
    assert schema_of(plan) == {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
            "note": {"type": "string", "maxLength": 5, "default": ""},
            "size": {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}], "default": None},
        },
        "required": ["day", "points"],
        "$defs": {"Point": signatures.POINT, "Size": signatures.SIZE},
    }


def test_type_hints_with_local_types_are_resolved() -> None:
    class Local(BaseModel):
        x: int

    def move(to: Local) -> None: ...

    made = make_tool(move, "tools[0]", "Owner", {"Local": Local})
    assert made.schema["parameters"]["properties"] == {"to": {"$ref": "#/$defs/Local"}}
    assert made.bind('{"to": {"x": "1"}}') == ((), {"to": Local(x=1)})


def test_local_class_is_preferred_over_module_class_in_type_hint() -> None:
    def move(to: Point) -> None: ...

    assert make_tool(move, "tools[0]", "Owner", {"Point": int}).schema["parameters"]["properties"] == {
        "to": {"type": "integer"}
    }


def test_two_classes_with_same_name_have_two_schema_definitions() -> None:
    inner = pydantic.create_model("Point", __module__="elsewhere", z=(str, ...))

    def draw(a: Any, b: Any) -> None: ...

    draw.__annotations__ = {"a": Point, "b": inner}
    schema = schema_of(draw)
    first, second = (schema["properties"][name]["$ref"].removeprefix("#/$defs/") for name in "ab")
    assert schema["$defs"] == {
        first: signatures.POINT,
        second: {"type": "object", "properties": {"z": {"type": "string"}}, "required": ["z"]},
    }


def test_class_used_in_three_parameters_has_one_schema_definition() -> None:
    def plant(trees: list[Node], favourite: Node | None, by_name: dict[str, Node]) -> None: ...

    assert schema_of(plant)["$defs"] == {"Node": signatures.NODE}


def test_schemas_of_two_tools_share_no_mutable_state() -> None:
    def first(point: Point) -> None: ...
    def second(point: Point) -> None: ...

    schema_of(first)["$defs"]["Point"]["properties"].clear()
    assert schema_of(second)["$defs"] == {"Point": signatures.POINT}


def test_parameter_with_pydantic_alias_path_is_listed_by_name() -> None:
    def pick(first: Annotated[int, Field(validation_alias=AliasPath("numbers", 0))] = 1) -> int:
        return first

    assert list(schema_of(pick)["properties"]) == ["first"]
    assert call(pick, "{}") == 1


def test_tool_with_blank_docstring_has_no_description() -> None:
    def silent() -> None:
        """ """

    assert "description" not in tool_of(silent).schema


def test_description_of_tool_decorator_replaces_only_first_part_of_docstring() -> None:
    @tool(name="look", description="Look it up.")
    def search(query: str) -> None:
        """Search.

        Args:
            query: What to look for.
        """

    assert tool_of(search).schema == {
        "name": "look",
        "description": "Look it up.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    }


class Shop:
    def __call__(self, item: str) -> None:
        """Buy."""

    def sell(self, item: str) -> None:
        """Sell."""


def test_tool_name_is_name_of_its_callable() -> None:
    renamed = functools.partial(signatures.search, limit=1)
    renamed.__name__ = "search_one"  # type: ignore[attr-defined]
    renamed.__doc__ = "Search for one."
    assert tool_of(Shop()).name == "shop"
    assert tool_of(Shop().sell).name == "sell"
    assert tool_of(functools.partial(signatures.search, limit=1)).name == "search"
    assert tool_of(renamed).name == "search_one"
    assert tool_of(renamed).schema["description"] == "Search for one."
    assert tool_of(staticmethod(signatures.search)).name == "search"


def test_schema_of_method_tool_excludes_self() -> None:
    class Counter:
        total = 5

        @tool
        def add(self, number: int, /, *, twice: bool = False) -> int:
            """Add."""
            return self.total + number * (2 if twice else 1)

        @tool
        @classmethod
        def reset(cls, to: int) -> tuple[str, int]:
            return cls.__name__, to

        @tool
        @staticmethod
        def double(number: int) -> int:
            return number * 2

    found = collect_methods(Counter, "Counter", {})
    assert [(made.name, list(made.schema["parameters"]["properties"])) for made in found] == [
        ("add", ["number", "twice"]),
        ("reset", ["to"]),
        ("double", ["number"]),
    ]
    results: list[Any] = []
    for made, text in zip(found, ['{"number": "3", "twice": true}', '{"to": "1"}', '{"number": "4"}'], strict=True):
        args, kwargs = made.bind(text)
        results.append(made.bound_to(Counter()).function(*args, **kwargs))
    assert results == [11, ("Counter", 1), 8]


# Docstrings.


def test_docstring_is_split_into_description_and_parameter_texts() -> None:
    for doc, description, parameters in [
        (None, "", {}),
        ("", "", {}),
        ("\n    One line.\n    ", "One line.", {}),
        ("One.\n\n    Two.\n\n      Indented.\n    ", "One.\n\nTwo.\n\n  Indented.", {}),
        ("A.\n\nArgs:\n    x: X.\n    y: Y.", "A.", {"x": "X.", "y": "Y."}),
        ("A.\n\nArguments:\n    x: X.", "A.", {"x": "X."}),
        ("A.\n\nParameters:\n    x: X.", "A.", {"x": "X."}),
        ("A.\n\nKeyword Args:\n    x: X.", "A.", {"x": "X."}),
        ("A.\n\nArgs:\n    x (dict[str, int], optional): X: of it.", "A.", {"x": "X: of it."}),
        ("A.\n\nArgs:\n    x:\n        X.\n    y:\n", "A.", {"x": "X."}),
        ("A.\n\nArgs:\n    x: One.\n\n        Two.\n    y: Y.", "A.", {"x": "One.\nTwo.", "y": "Y."}),
        ("A.\n\nArgs:\n\tx: X.\n\t\tMore.", "A.", {"x": "X.\nMore."}),
        ("A.\n\nArgs:\n  x: X.\n  *y: Y.\n  **z: Z.", "A.", {"x": "X.", "y": "Y.", "z": "Z."}),
        ("A.\n\nReturns:\n    x: not a parameter", "A.", {}),
        ("A.\n\nReturns:\n    B.\n\nArgs:\n    x: X.", "A.", {"x": "X."}),
        ("A.\n\nNote:\n    B.", "A.", {}),
        ("A.\n\nRaises:\n    no colon\n\nArgs:\n    x: X.", "A.", {"x": "X."}),
        ("A.\n\nArgs:\n    x: X.\n\nUsage:\n    y: not a parameter", "A.", {"x": "X."}),
        ("Args:\n        x: X.\n    ", "", {"x": "X."}),
        ("Args:\n        x: X.\n\n    Returns:\n        B.\n    ", "", {"x": "X."}),
        ("A.\n\nParameters\n----------\nx : int\n    X.\ny\n    Y.", "A.", {"x": "X.", "y": "Y."}),
        ("A.\n\nReturns\n-------\nint\n    B.\n\nOther Parameters\n----------------\nx\n    X.", "A.", {"x": "X."}),
        ("Parameters\n----------\nx : int\n    X.", "", {"x": "X."}),
        ("A.\n\n:param x: X.\n:param int y: Y.\n:returns: B.", "A.", {"x": "X.", "y": "Y."}),
        (":param x: X,\n    and more.", "", {"x": "X,\nand more."}),
        ("A.\n\n:param", "A.\n\n:param", {}),
        ("A: B.\n\nSee also: C.", "A: B.\n\nSee also: C.", {}),
    ]:
        with case(doc):
            assert read_docstring(doc) == (description, parameters)


LINES = [
    "", "Do it.", "Args:", "Keyword Args:", "    x: words", "    y (int): w", "  z", "\tq: w", "Raises:",
    "    no colon", "Parameters", "----------", "===", "x : int", "w, : ", "*", "Returns", ":param x: w", ":param: w",
    ":param",
    ":param x y z: w", ":type x:", ":raises", ":raises A B: c", ".. deprecated:: 1.0", "    (a): b", "    : b", ": ",
]  # fmt: skip


@given(st.lists(st.sampled_from(LINES), max_size=9) | st.lists(st.text(max_size=9), max_size=5))
def test_any_docstring_is_parsed_without_error(lines: list[str]) -> None:
    description, _ = read_docstring("\n".join(lines))
    assert description == description.strip()


# Binding.


BOUND: list[tuple[Any, str, Any]] = [
    (signatures.an_integer, '{"count": "5"}', 5),
    (signatures.an_integer, '{"count": 5.0}', 5),
    (signatures.an_integer, '{"count": 123456789012345678901234567890}', 123456789012345678901234567890),
    (signatures.a_float, '{"ratio": 3}', 3.0),
    (signatures.a_float, '{"ratio": "1.5"}', 1.5),
    (signatures.a_float, '{"ratio": 1e99}', 1e99),
    (signatures.a_boolean, '{"flag": "yes"}', True),
    (signatures.a_string, '{"text": "\\u00e9\\ud83d\\ude00"}', "é\U0001f600"),
    (signatures.a_string, '{"text": "first", "text": "last"}', "last"),
    (signatures.some_bytes, '{"content": "é"}', "é".encode()),
    (signatures.nothing_but_none, '{"nothing": null}', None),
    (signatures.a_union, '{"value": "5"}', "5"),
    (signatures.a_union, '{"value": 5}', 5),
    (signatures.an_enum, '{"color": "red"}', Color.RED),
    (signatures.an_int_enum, '{"priority": "2"}', Priority.HIGH),
    (signatures.a_list_of_enums, '{"colors": ["green"]}', [Color.GREEN]),
    (signatures.a_dict_with_enum_keys, '{"counts": {"red": "1"}}', {Color.RED: 1}),
    (signatures.a_dict_with_integers_as_keys, '{"names": {"1": "one"}}', {1: "one"}),
    (signatures.a_set, '{"numbers": [1, "2", 1]}', {1, 2}),
    (signatures.a_frozenset, '{"names": ["a"]}', frozenset({"a"})),
    (signatures.a_pair, '{"pair": ["1", "a"]}', (1, "a")),
    (signatures.a_tuple_of_any_length, '{"numbers": [1, 2]}', (1, 2)),
    (signatures.a_deque, '{"numbers": ["1"]}', collections.deque([1])),
    (signatures.an_iterable, '{"numbers": ["1", 2]}', [1, 2]),
    (signatures.a_sequence, '{"numbers": ["1", 2]}', [1, 2]),
    (signatures.a_mapping, '{"counts": {"a": "1"}}', {"a": 1}),
    (signatures.a_counter, '{"counts": {"a": 2}}', collections.Counter("aa")),
    (signatures.a_model, '{"point": {"x": "1"}}', Point(x=1)),
    (signatures.a_union_of_models, '{"pet": {"kind": "dog", "name": "Rex"}}', Dog(kind="dog", name="Rex")),
    (signatures.a_discriminated_union, '{"pet": {"kind": "cat", "lives": "9"}}', Cat(kind="cat", lives=9)),
    (signatures.a_recursive_model, '{"tree": {"value": 1, "children": [{"value": 2}]}}',
     Node(value=1, children=[Node(value=2)])),
    (signatures.a_dataclass, '{"size": {"width": "3"}}', Size(3, 1)),
    (signatures.a_typed_dict, '{"movie": {"title": "Alien", "extra": 1}}', {"title": "Alien"}),
    (signatures.a_named_tuple_with_a_default, '{"label": ["x"]}', Label("x", 1.0)),
    (signatures.a_datetime, '{"when": "2024-02-29T12:30:00Z"}', dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)),
    (signatures.a_date, '{"day": "2024-02-29"}', dt.date(2024, 2, 29)),
    (signatures.a_timedelta, '{"pause": "PT90M"}', dt.timedelta(minutes=90)),
    (signatures.a_uuid, '{"key": "00000000-0000-0000-0000-000000000007"}', uuid.UUID(int=7)),
    (signatures.a_decimal, '{"price": "1.50"}', Decimal("1.50")),
    (signatures.a_path, '{"file": "a/b"}', Path("a/b")),
    (signatures.an_http_url, '{"address": "https://example.org"}', HttpUrl("https://example.org/")),
    (signatures.a_secret, '{"password": "x"}', SecretStr("x")),
    (signatures.json_in_a_string, '{"numbers": "[1, 2]"}', [1, 2]),
    (signatures.a_new_type_of_a_model, '{"where": {"x": 1}}', Point(x=1)),
    (signatures.string_constraints, '{"text": "  ab "}', "ab"),
    # Defaults.
    (signatures.zero_by_default, "", 0),
    (signatures.zero_by_default, "{}", 0),
    (signatures.zero_by_default, '{"count": "7"}', 7),
    (signatures.none_under_a_hint_without_it, "{}", None),
    (signatures.none_under_a_hint_without_it, '{"count": null}', None),
    (signatures.none_under_a_validator_that_cannot_take_it, '{"count": null}', None),
    (signatures.json_in_a_string_or_none, '{"numbers": null}', None),
    (signatures.an_enum_by_default, "{}", Color.GREEN),
    (signatures.a_model_by_default, "{}", Point(x=1, y=2)),
    (signatures.a_tuple_by_default, "{}", (3, 4)),
    (signatures.infinity_by_default, "{}", math.inf),
    (signatures.a_default_in_the_annotation, "{}", 5),
    (signatures.a_default_factory, "{}", []),
    (signatures.a_field_for_a_default, "{}", 5),
    (signatures.a_secret_by_default, "{}", SecretStr("hunter2")),
    # Aliases: the function gets its own name.
    (signatures.a_parameter_with_an_alias, '{"q": "x"}', "x"),
    (signatures.a_parameter_with_an_alias, '{"query": "x"}', "x"),
    (signatures.a_parameter_with_a_choice_of_aliases, '{"search": "x"}', "x"),
]  # fmt: skip


def test_argument_is_converted_to_annotated_type() -> None:
    for function, arguments, value in BOUND:
        with case(function.__name__, arguments):
            name = next(iter(inspect.signature(function).parameters))
            args, kwargs = tool_of(function).bind(arguments)
            assert (args, kwargs) == ((), {name: value})
            assert type(kwargs[name]) is type(value)


def test_arguments_for_each_kind_of_parameter_are_passed_to_function() -> None:
    def every_kind(a: int, b: int = 2, /, c: int = 3, *, d: int = 4, **rest: int) -> tuple[Any, ...]:
        return a, b, c, d, rest

    assert call(every_kind, '{"a": "1"}') == (1, 2, 3, 4, {})
    assert call(every_kind, '{"d": 9, "b": 8, "a": 7}') == (7, 8, 3, 9, {})
    assert call(every_kind, '{"a": 1, "e": "5", "f": 6}') == (1, 2, 3, 4, {"e": 5, "f": 6})
    assert tool_of(every_kind).bind('{"a": 1, "c": 0}') == ((1, 2), {"c": 0, "d": 4})


def test_positional_only_parameter_with_alias_is_accepted() -> None:
    def shout(text: Annotated[str, Field(alias="q")], /) -> str:
        return text.upper()

    assert call(shout, '{"q": "hey"}') == "HEY"


def test_positional_only_parameter_and_extra_keyword_arguments_are_passed() -> None:
    def tag(name: str, /, **attributes: str) -> tuple[str, dict[str, str]]:
        return name, attributes

    assert call(tag, '{"name": "a", "href": "b"}') == ("a", {"href": "b"})


def test_keyword_arguments_typed_as_typed_dict_are_passed() -> None:
    def rate(stars: int, **movie: typing.Unpack[Movie]) -> tuple[int, Movie]:
        return stars, movie

    assert call(rate, '{"stars": "5", "title": "Alien", "year": "1979"}') == (5, {"title": "Alien", "year": 1979})
    assert call(rate, '{"stars": 5, "title": "Alien"}') == (5, {"title": "Alien"})


def test_functools_partial_is_called_with_bound_arguments_and_model_arguments() -> None:
    def send(key: str, to: str, *, text: str, urgent: bool = False, **more: str) -> tuple[Any, ...]:
        return key, to, text, urgent, more

    by_position = functools.partial(send, "k")
    by_keyword = functools.partial(send, key="k", urgent=True)
    both = functools.update_wrapper(functools.partial(send, "k", urgent=True), send)
    assert call(by_position, '{"to": "me", "text": "hi"}') == ("k", "me", "hi", False, {})
    assert call(by_keyword, '{"to": "me", "text": "hi", "cc": "you"}') == ("k", "me", "hi", True, {"cc": "you"})
    assert call(both, '{"to": "me", "text": "hi"}') == ("k", "me", "hi", True, {})
    assert refusal(by_keyword, '{"to": "me", "text": "hi", "key": "mine"}') == (
        "argument `key` is set by the program. Leave it out."
    )


def test_callables_of_each_kind_are_accepted_as_tools() -> None:
    class Adder:
        def __init__(self, base: int) -> None:
            self.base = base

        def __call__(self, number: int) -> int:
            return self.base + number

        async def later(self, number: int) -> int:
            return self.base + number

        @functools.cache  # noqa: B019 - one instance, one test
        def cached(self, number: int) -> int:
            return self.base + number

    adder = Adder(10)
    for function in (
        adder,
        adder.later,
        adder.cached,
        functools.partial(adder),
        pydantic.validate_call(adder.__call__),
    ):
        assert call(function, '{"number": "5"}') == 15


def test_mutable_default_of_tool_parameter_is_not_shared_between_calls() -> None:
    def collect(item: str, seen: list[str] = []) -> list[str]:  # noqa: B006 - what is tested
        return [*seen, item]

    made = tool_of(collect)
    _, first = made.bind('{"item": "a"}')
    first["seen"].append("x")
    assert made.bind('{"item": "a"}') == ((), {"item": "a", "seen": []})


def test_default_of_tool_parameter_is_passed_without_validation() -> None:
    marker = object()

    def look(where: str = typing.cast(str, marker)) -> object:
        return where

    assert call(look, "{}") is marker


def test_iterable_argument_is_validated_and_can_be_read_twice() -> None:
    def total(numbers: Iterable[int], more: typing.Iterable[int] | None = None) -> int:
        return sum(numbers) + sum(numbers) + sum(more or ())

    assert call(total, '{"numbers": [1, "2"], "more": [4]}') == 10
    assert refusal(total, '{"numbers": [1, "x"]}') == "argument `numbers.1` must be an integer, got x"


# Messages about arguments.


def even(number: int) -> int:
    if number % 2:
        raise ValueError("an even number")
    return number


def mute(number: int) -> int:
    raise ValueError


def prime(number: int) -> int:
    raise PydanticCustomError("not_prime", "{number} can be divided", {"number": number})


def wrong_numbers(
    a: Annotated[int, AfterValidator(even)] = 2,
    b: Annotated[int, AfterValidator(mute)] = 4,
    c: Annotated[int, AfterValidator(prime)] = 5,
    d: Annotated[int, Field(ge=1, le=9, multiple_of=3)] = 3,
    e: pydantic.FiniteFloat = 0.0,
) -> None: ...


def nested(
    people: list[signatures.Person], pets: dict[str, Annotated[Cat | Dog, Field(discriminator="kind")]] | None = None
) -> None: ...


WORDS: list[tuple[Any, str, str]] = [
    (signatures.search, "", "argument `query` is missing (expected a string)"),
    (signatures.search, "{}", "argument `query` is missing (expected a string)"),
    (signatures.search, '{"query": 5}', "argument `query` must be a string, got 5"),
    (signatures.search, '{"query": null}', "argument `query` must be a string, got null"),
    (signatures.search, '{"query": "x", "limit": "many"}', "argument `limit` must be an integer, got many"),
    (signatures.search, '{"query": "x", "limit": "missing"}', 'argument `limit` must be an integer, got "missing"'),
    (signatures.search, '{"query": ["x"], "limit": {"a": 1}}',
     'argument `query` must be a string, got ["x"]; argument `limit` must be an integer, got {"a":1}'),
    (signatures.search, '{"query": "x", "max": 5}',
     "argument `max` does not exist (the arguments are: `query`, `limit`)"),
    (signatures.no_parameters, '{"x": 1}', "argument `x` does not exist (there are no arguments)"),
    (signatures.a_float, '{"ratio": "half"}', "argument `ratio` must be a float, got half"),
    (signatures.a_boolean, '{"flag": "perhaps"}', "argument `flag` must be a boolean (true or false), got perhaps"),
    (signatures.none_by_default, '{"count": "x"}', "argument `count` must be an integer or null, got x"),
    (signatures.a_union, '{"value": []}', "argument `value` must be an integer or a string, got []"),
    (signatures.an_enum, '{"color": "blue"}', 'argument `color` must be one of "red", "green", got blue'),
    (signatures.a_literal_of_several_types, '{"level": 2}', 'argument `level` must be one of "auto", 1, null, got 2'),
    (signatures.a_literal_of_one_value, '{"answer": "no"}', 'argument `answer` must be "yes", got no'),
    (signatures.an_integer_between_limits, '{"count": 11}',
     "argument `count` must be an integer between 1 and 10, got 11"),
    (signatures.a_float_between_open_limits, '{"ratio": 1}',
     "argument `ratio` must be a float greater than 0 and less than 1, got 1"),
    (signatures.a_multiple, '{"minutes": 3}', "argument `minutes` must be an integer divisible by 5, got 3"),
    (signatures.a_string_with_a_pattern, '{"code": "A"}',
     "argument `code` must be a string of 2 to 4 characters and matching ^[a-z]+$, got A"),
    (signatures.a_list_of_bounded_length, '{"numbers": []}',
     "argument `numbers` must be a list of integers, 1 to 2 items, got []"),
    (signatures.a_dict_of_bounded_length, '{"counts": {}}', "argument `counts` must be an object, 1 to 2 keys, got {}"),
    (signatures.a_list_of_strings, '{"names": ["a", 5]}', "argument `names.1` must be a string, got 5"),
    (signatures.a_pair, '{"pair": [1]}', "argument `pair.1` is missing (expected a string)"),
    (signatures.a_pair, '{"pair": [1, "a", 2]}',
     'argument `pair` must be a list of an integer, a string, got [1,"a",2]'),
    (signatures.an_empty_tuple, '{"nothing": [1]}', "argument `nothing` must be a list, exactly 0 items, got [1]"),
    (signatures.a_dict_of_integers, '{"counts": {"a": "x"}}', "argument `counts.a` must be an integer, got x"),
    (signatures.a_dict_with_known_keys, '{"counts": {"c": 1}}',
     "argument `counts.c` must be under another key (Input should be 'a' or 'b'), got c"),
    (signatures.a_dict_with_integers_as_keys, '{"names": {"one": "1"}}',
     "argument `names.one` must be under another key (Input should be a valid integer, unable to parse string as an "
     "integer), got one"),
    (signatures.a_model, '{"point": {}}', "argument `point.x` is missing (expected a float)"),
    (signatures.a_model, '{"point": 5}', "argument `point` must be an object with x, y, got 5"),
    (signatures.a_dataclass, '{"size": []}', "argument `size` must be an object with width, height, got []"),
    (signatures.a_named_tuple, '{"span": 5}', "argument `span` must be a list of an integer, an integer, got 5"),
    (signatures.a_model_that_forbids_more, '{"thing": {"x": 1, "y": 2}}',
     "argument `thing.y` does not exist (the fields are: `x`)"),
    (signatures.a_model_with_a_validator, '{"span": {"low": 2, "high": 1}}',
     'argument `span` is invalid: low must not be above high (got {"low":2,"high":1})'),
    (signatures.a_recursive_model, '{"tree": {"value": 1, "children": [{"value": "x"}]}}',
     "argument `tree.children.0.value` must be an integer, got x"),
    (signatures.a_discriminated_union, '{"pet": {"kind": "bird"}}',
     "argument `pet` must be an object with kind, lives or an object with kind, name, "
     "where 'kind' is one of 'cat', 'dog', "
     'got {"kind":"bird"}'),
    (signatures.a_discriminated_union, '{"pet": {"kind": "cat"}}',
     "argument `pet.lives` is missing (expected an integer)"),
    (signatures.keywords_of_a_typed_dict, '{"query": "x"}', "argument `title` is missing (expected a string)"),
    (signatures.a_parameter_with_an_alias, '{"search": "x"}',
     "argument `q` is missing (expected a string); argument `search` does not exist (the arguments are: `q`)"),
    (signatures.a_float, '{"ratio": 1e999}', "argument `ratio` must be a finite number, got inf"),
    (signatures.a_datetime, '{"when": "soon"}', "argument `when` must be a date and time in ISO 8601, got soon"),
    (signatures.an_aware_datetime, '{"when": "2024-02-29T12:30:00"}',
     "argument `when` must be a date and time in ISO 8601 (Input should have timezone info), got 2024-02-29T12:30:00"),
    (signatures.a_date_with_a_limit, '{"day": "2019-12-31"}',
     "argument `day` must be a date as YYYY-MM-DD (Input should be greater than or equal to 2020-01-01), "
     "got 2019-12-31"),
    (signatures.a_date_in_the_past, '{"day": "2999-01-01"}',
     "argument `day` must be a date as YYYY-MM-DD (Date should be in the past), got 2999-01-01"),
    (signatures.a_uuid, '{"key": "x"}', "argument `key` must be a UUID, got x"),
    (signatures.an_http_url, '{"address": "ftp://x"}',
     "argument `address` must be a URL (URL scheme should be 'http' or 'https'), got ftp://x"),
    (signatures.a_decimal, '{"price": "much"}',
     r"argument `price` must be a float or a string matching ^-?\d+(\.\d+)?$ "
     r"(Input should be a valid decimal), got much"),
    (signatures.json_in_a_string, '{"numbers": "["}',
     "argument `numbers` must be valid JSON (EOF while parsing a list at line 1 column 1), got ["),
    (wrong_numbers, '{"a": 3}', "argument `a` is invalid: an even number (got 3)"),
    (wrong_numbers, '{"b": 3}', "argument `b` must be an integer, got 3"),
    (wrong_numbers, '{"c": 4}', "argument `c` must be an integer (4 can be divided), got 4"),
    (wrong_numbers, '{"d": 4}', "argument `d` must be an integer between 1 and 9 and divisible by 3, got 4"),
    (wrong_numbers, '{"e": NaN}', "argument `e` must be a float (Input should be a finite number), got NaN"),
    (nested, '{"people": [{"name": "Ada", "addresses": [{"street": "Main", "city": ""}]}]}',
     "argument `people.0.addresses.0.city` must be a string of at least 1 character, got "),
    (nested, '{"people": [], "pets": {"Tom": {"kind": "cat", "lives": "nine"}}}',
     "argument `pets.Tom.lives` must be an integer, got nine"),
    # Arguments that are not an object.
    (signatures.search, "5", "The arguments must be a JSON object, got 5"),
    (signatures.search, "null", "The arguments must be a JSON object, got null"),
    (signatures.search, '["x"]', 'The arguments must be a JSON object, got ["x"]'),
    (signatures.search, '"query"', 'The arguments must be a JSON object, got "query"'),
    (signatures.no_parameters, "[]", "The arguments must be a JSON object, got []"),
    (signatures.no_parameters, " [1", "The arguments must be a JSON object, got  [1"),
    (signatures.search, "[" + "1, " * 99 + "1]", "The arguments must be a JSON object, got [" + "1, " * 66 + "…"),
    (signatures.search, " ", "The arguments are not valid JSON: EOF while parsing a value at line 1 column 1"),
    (signatures.search, "query", "The arguments are not valid JSON: expected value at line 1 column 1"),
    (signatures.search, '{"query": "x"',
     "The arguments are not valid JSON: EOF while parsing an object at line 1 column 13"),
    (signatures.search, '{"query": "x",}', "The arguments are not valid JSON: trailing comma at line 1 column 15"),
    (signatures.search, '{"query": "x"} {}',
     "The arguments are not valid JSON: trailing characters at line 1 column 16"),
    (signatures.search, '{"query": "\\ud83d"}',
     "The arguments are not valid JSON: unexpected end of hex escape at line 1 column 18"),
    (signatures.search, '{"query": "\ud83d"}',
     "The arguments are not valid JSON: Input should be a valid string, unable to parse raw data as a unicode string"),
]  # fmt: skip


def test_invalid_argument_error_contains_argument_and_expected_value() -> None:
    for function, arguments, words in WORDS:
        with case(function.__name__, arguments):
            assert refusal(function, arguments) == words


def test_too_deeply_nested_json_arguments_are_rejected() -> None:
    words = refusal(signatures.anything, '{"value": ' + "[" * 5000 + "]" * 5000 + "}")
    assert words.startswith("The arguments are not valid JSON: recursion limit exceeded")


def test_argument_error_has_validation_error_as_cause() -> None:
    with pytest.raises(ArgumentError) as caught:
        tool_of(signatures.search).bind("{}")
    assert isinstance(caught.value.__cause__, pydantic.ValidationError)


def test_long_value_is_shortened_in_argument_error() -> None:
    words = refusal(signatures.an_integer, json.dumps({"count": "x" * 5000}))
    assert words == f"argument `count` must be an integer, got {'x' * 199}…"


@given(st.text(max_size=30) | st.text('{}[]":,\\ query1\ud800', max_size=30))
def test_random_text_as_arguments_raises_argument_error_with_message(text: str) -> None:
    assert complaint(signatures.search, text) != ""


# Functions that cannot be tools.


class Plain: ...


def without_a_hint(query, limit: int = 5) -> None: ...  # type: ignore[no-untyped-def]
def without_a_hint_but_a_default(query="x") -> None: ...  # type: ignore[no-untyped-def]
def with_bare_keywords(**options) -> None: ...  # type: ignore[no-untyped-def]
def with_a_star(*words: str) -> None: ...
def with_a_callback(then: Callable[[int], int]) -> None: ...
def with_a_plain_class(count: int, thing: Plain) -> None: ...
def with_plain_classes_inside(things: list[dict[str, Plain]]) -> None: ...
def with_a_class_for_a_value(kind: type[int]) -> None: ...
def with_a_value_for_a_hint(count: 5) -> None: ...  # type: ignore[valid-type]
def with_a_class_variable(count: ClassVar[int] = 5) -> None: ...  # type: ignore[misc]
def with_a_bad_pattern(text: Annotated[str, Field(pattern="(")]) -> None: ...
def with_a_bad_pattern_as_default(text: str = Field(pattern="(")) -> None: ...
def with_a_bad_limit(text: Annotated[str, Field(min_length=-1)]) -> None: ...
def with_a_bad_discriminator(value: Annotated[int | str, Field(discriminator="kind")]) -> None: ...
def with_a_failing_hint(count: 1 / 0) -> None: ...  # type: ignore[valid-type]
def __finish__(answer: str) -> None: ...  # noqa: N807


def with_broken_quotes(count: Any) -> None: ...


with_broken_quotes.__annotations__["count"] = "list[int"


@tool(name="not a name")
def badly_named() -> None: ...


@tool(name="x" * 65)
def named_at_length() -> None: ...


@tool(name="__finish__")
def renamed_to_finish() -> None: ...


def place(function: Callable[..., Any]) -> str:
    return f"(`Owner`, tools[0] (`{HERE}.{function.__qualname__}`))"


def type_error(name: str, function: Callable[..., Any], why: str) -> str:
    return (
        f"The parameter `{name}` of the tool `{function.__name__}` has a type without a JSON Schema: {why}. "
        f"Use types that JSON can represent. {place(function)}"
    )


OTHERS = "must be a function, a callable object, an agent, a source with `tools()` or a hosted tool as a dict"
NAMES = "but providers accept only 1 to 64 letters, digits, `_` and `-`. Rename it with `@tool(name=...)`."
FINISH = "but that name is reserved for the tool that ends a run. Rename it with `@tool(name=...)`."
a_lambda: Callable[[int], int] = lambda x: x  # noqa: E731 - a lambda by any name

REFUSED: list[tuple[Any, str]] = [
    (without_a_hint,
     "The parameter `query` of the tool `without_a_hint` has no type hint. Add one, as in `query: str`. "
     + place(without_a_hint)),
    (without_a_hint_but_a_default, "The parameter `query` of the tool `without_a_hint_but_a_default` has no type hint. "
     "Add one, as in `query: str`. " + place(without_a_hint_but_a_default)),
    (with_bare_keywords, "The parameter `options` of the tool `with_bare_keywords` has no type hint. "
     "Add one, as in `options: str`. " + place(with_bare_keywords)),
    (with_a_star, "The tool `with_a_star` takes `*words`, which a model cannot pass by name. Take a list instead, "
     "as in `words: list[str]`. " + place(with_a_star)),
    (with_a_callback, type_error(
        "then", with_a_callback, "Cannot generate a JsonSchema for core_schema.CallableSchema")),
    (with_a_plain_class, type_error(
        "thing", with_a_plain_class, f"Unable to generate pydantic-core schema for <class '{HERE}.Plain'>")),
    (with_plain_classes_inside, type_error(
        "things", with_plain_classes_inside, f"Unable to generate pydantic-core schema for <class '{HERE}.Plain'>")),
    (with_a_class_for_a_value, type_error(
        "kind", with_a_class_for_a_value, "Cannot generate a JsonSchema for a class")),
    (with_a_value_for_a_hint, type_error(
        "count", with_a_value_for_a_hint, "Unable to generate pydantic-core schema for 5")),
    (with_a_class_variable, type_error(
        "count", with_a_class_variable, "The annotation 'ClassVar[int]' contains the 'typing.ClassVar' type qualifier, "
        "which is invalid in the context it is defined")),
    (with_a_bad_pattern, type_error("text", with_a_bad_pattern, "error: unclosed group")),
    (with_a_bad_pattern_as_default, type_error("text", with_a_bad_pattern_as_default, "error: unclosed group")),
    (with_a_bad_limit, type_error(
        "text", with_a_bad_limit, "OverflowError: can't convert negative int to unsigned")),
    (with_a_bad_discriminator, type_error("value", with_a_bad_discriminator,
        "The core schema type 'int' is not a valid discriminated union variant")),
    (with_a_failing_hint, "Cannot read a type hint of the tool `with_a_failing_hint`: division by zero. "
     "Correct the type hint. "
     + place(with_a_failing_hint)),
    (with_broken_quotes, "Cannot read a type hint of the tool `with_broken_quotes`: Forward reference must be an "
     "expression -- got 'list[int'. Correct the type hint. " + place(with_broken_quotes)),
    (a_lambda, f"`Owner` has a tool named '<lambda>' (tools[0] (`{HERE}.<lambda>`)), {NAMES}"),
    (badly_named, f"`Owner` has a tool named 'not a name' (tools[0] (`{HERE}.badly_named`)), {NAMES}"),
    (named_at_length, f"`Owner` has a tool named '{'x' * 65}' (tools[0] (`{HERE}.named_at_length`)), {NAMES}"),
    (__finish__, f"`Owner` has a tool named `__finish__` (tools[0] (`{HERE}.__finish__`)), {FINISH}"),
    (renamed_to_finish, f"`Owner` has a tool named `__finish__` (tools[0] (`{HERE}.renamed_to_finish`)), {FINISH}"),
    (Plain, f"`Owner.tools[0]` {OTHERS}, got the class `Plain`."),
    (int, f"`Owner.tools[0]` {OTHERS}, got the class `int`."),
    (5, f"`Owner.tools[0]` {OTHERS}, got 5."),
    ("search", f"`Owner.tools[0]` {OTHERS}, got 'search'."),
    (None, f"`Owner.tools[0]` {OTHERS}, got None."),
    (len, "The parameter `obj` of the tool `len` has no type hint. Wrap the function in one with type hints. "
     "(`Owner`, tools[0] (`builtins.len`))"),
    (tool(len), "The parameter `obj` of the tool `len` has no type hint. Wrap the function in one with type hints. "
     "(`Owner`, tools[0] (`builtins.len`))"),
    (", ".join,
     "The parameter `iterable` of the tool `join` has no type hint. Wrap the function in one with type hints. "
     "(`Owner`, tools[0] (`str.join`))"),
    (print, "The tool `print` takes `*args`, which a model cannot pass by name. Take a list instead, "
     "as in `args: list[str]`. (`Owner`, tools[0] (`builtins.print`))"),
    (max, "The tool `max` has no signature that Python can read. Wrap it in a function with type hints. "
     "(`Owner`, tools[0] (`builtins.max`))"),
]  # fmt: skip


def test_unusable_tool_raises_declaration_error() -> None:
    for entry, words in REFUSED:
        with case(entry):
            with pytest.raises(DeclarationError) as caught:
                tool_of(entry)
            assert str(caught.value) == words


PLAIN_HINTS = st.recursive(
    st.sampled_from([str, int, float, bool, type(None), typing.Literal["a", "b"]]),
    lambda inner: st.one_of(
        inner.map(lambda hint: typing.cast(Any, list)[hint]),
        inner.map(lambda hint: typing.cast(Any, dict)[str, hint]),
        inner.map(lambda hint: typing.Optional[hint]),  # noqa: UP045
        st.tuples(inner, inner).map(lambda pair: typing.Union[pair]),  # noqa: UP007
    ),
    max_leaves=5,
)
PLAIN_DEFAULTS = st.just(inspect.Parameter.empty) | st.none() | st.booleans() | st.integers() | st.floats() | st.text()


@given(st.lists(st.tuples(PLAIN_HINTS, PLAIN_DEFAULTS), max_size=4), st.none() | PLAIN_HINTS)
def test_tool_schema_is_built_at_first_use_and_is_valid(parameters: list[tuple[Any, Any]], of_keywords: Any) -> None:
    def take(**arguments: Any) -> None: ...

    names = [f"p{place}" for place in range(len(parameters))]
    signature = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
        for name, (hint, default) in zip(names, parameters, strict=True)
    ]
    if of_keywords is not None:
        signature.append(inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD, annotation=of_keywords))
    typing.cast(Any, take).__signature__ = inspect.Signature(signature)
    made = make_tool(take, "tools[0]", "Owner", {})
    assert "_built" not in vars(typing.cast(Any, made).binding)
    assert list(made.schema["parameters"]["properties"]) == names
    Draft202012Validator.check_schema(made.schema["parameters"])


def test_lambda_with_name_from_tool_decorator_is_accepted() -> None:
    double = typing.cast(Any, lambda x: x * 2)
    double.__annotations__ = {"x": int}
    assert call(tool(name="double")(double), '{"x": "4"}') == 8


def test_typed_dict_of_typing_module_is_rejected_only_before_python_3_12() -> None:
    def take(old: Any) -> None: ...

    take.__annotations__["old"] = typing.cast(Any, typing.TypedDict)("Old", {"x": int})
    if sys.version_info >= (3, 12):
        assert schema_of(take)["$defs"]["Old"]["required"] == ["x"]
    else:  # Pydantic cannot read it there.
        with pytest.raises(DeclarationError, match=r"Please use `typing_extensions\.TypedDict` instead"):
            tool_of(take)


def not_yet(thing: Later) -> Later:
    return thing


def never(thing: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def not_in_the_module(thing: dt.nothing) -> None: ...  # type: ignore[name-defined]
def inside(things: list[Waiting]) -> None: ...


early = tool_of(not_yet)


class Later(BaseModel):
    x: int


class Waiting(BaseModel):
    thing: MuchLater


early_inside = tool_of(inside)


class MuchLater(BaseModel):
    y: int


def test_type_hint_with_class_defined_later_is_resolved() -> None:
    args, kwargs = early.bind('{"thing": {"x": "1"}}')
    assert not_yet(*args, **kwargs) == Later(x=1)
    assert early_inside.schema["parameters"]["$defs"]["MuchLater"] == {
        "type": "object",
        "properties": {"y": {"type": "integer"}},
        "required": ["y"],
    }


@pytest.mark.parametrize(
    ("function", "why"),
    [(never, "name 'Nowhere' is not defined"), (not_in_the_module, "module 'datetime' has no attribute 'nothing'")],
)
def test_undefined_type_hint_raises_at_first_use(function: Callable[..., Any], why: str) -> None:
    made = tool_of(function)
    with pytest.raises(UnresolvedHintError) as caught:
        made.schema  # noqa: B018 - read to see it fail
    assert isinstance(caught.value, DeclarationError)
    assert str(caught.value) == (
        f"A type hint of the tool `{function.__name__}` cannot be resolved: {why}. "
        f"Import the name at run time, or define it before the first call."
    )


def test_bound_argument_of_functools_partial_needs_no_type_hint() -> None:
    assert schema_of(functools.partial(without_a_hint, query="x"))["properties"] == {
        "limit": {"type": "integer", "default": 5}
    }


# `@tool`.


INVALID_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "`name` of the tool `options` must be a non-empty string, got ''."),
    ({"name": "  "}, "`name` of the tool `options` must be a non-empty string, got '  '."),
    ({"name": 5}, "`name` of the tool `options` must be a non-empty string, got 5."),
    ({"description": ""}, "`description` of the tool `options` must be a non-empty string, got ''."),
    ({"description": ["x"]}, "`description` of the tool `options` must be a non-empty string, got ['x']."),
    ({"timeout": 0}, "`timeout` of the tool `options` must be a number of seconds above 0, got 0."),
    ({"timeout": -1.5}, "`timeout` of the tool `options` must be a number of seconds above 0, got -1.5."),
    ({"timeout": "5"}, "`timeout` of the tool `options` must be a number of seconds above 0, got '5'."),
    ({"timeout": True}, "`timeout` of the tool `options` must be a number of seconds above 0, got True."),
    ({"timeout": math.inf}, "`timeout` of the tool `options` must be a number of seconds above 0, got inf."),
    ({"timeout": math.nan}, "`timeout` of the tool `options` must be a number of seconds above 0, got nan."),
    ({"parallel": "yes"}, "`parallel` of the tool `options` must be True or False, got 'yes'."),
    ({"parallel": None}, "`parallel` of the tool `options` must be True or False, got None."),
    ({"repeatable": 1}, "`repeatable` of the tool `options` must be True or False, got 1."),
]


def test_invalid_option_of_tool_decorator_raises_declaration_error() -> None:
    for options, words in INVALID_OPTIONS:
        with case(options):

            def function() -> None: ...

            function.__qualname__ = "options"
            with pytest.raises(DeclarationError) as caught:
                tool(**options)(function)
            assert str(caught.value) == words


def test_tool_decorator_on_non_function_raises_declaration_error() -> None:
    targets: list[Any] = [5, "search", None, ["x"]]
    for target in targets:
        with case(target):
            with pytest.raises(DeclarationError) as caught:
                tool()(target)
            assert str(caught.value) == (
                f"`@tool` must decorate a function or method, got {target!r}. "
                f"Pass options by name, as in `@tool(name='search')`."
            )


def test_tool_decorator_returns_function_unchanged() -> None:
    def double(number: int) -> int:
        return number * 2

    assert tool(double) is double
    assert double(4) == 8


def test_function_decorated_twice_defines_two_tools() -> None:
    @tool(name="first", timeout=5)
    def double(number: int) -> int:
        return number * 2

    second = tool(name="second")(double)
    assert [tool_of(entry).name for entry in (double, second)] == ["first", "second"]
    assert [tool_of(entry).options.timeout for entry in (double, second)] == [5, None]
    assert second(4) == 8


# Several tools.


def one_search(query: str) -> None: ...


@tool(name="one_search")
def another_search(query: str) -> None: ...


def test_two_tools_with_same_name_raise_error_with_both_locations() -> None:
    listed, _ = collect_tools([one_search, another_search], "Owner", {})
    with pytest.raises(ToolConflictError) as caught:
        merge_tools(listed, [], "Owner")
    assert str(caught.value) == (
        f"Tool 'one_search' of `Owner` is defined twice: as tools[0] (`{HERE}.one_search`) and as tools[1] "
        f"(`{HERE}.another_search`). Rename one with `@tool(name=...)`."
    )


def test_two_partials_of_one_function_raise_tool_conflict_error_unless_renamed() -> None:
    english = functools.partial(signatures.search, limit=1)
    german = functools.partial(signatures.search, limit=2)
    listed, _ = collect_tools([english, german], "Owner", {})
    with pytest.raises(ToolConflictError, match="Tool 'search' of `Owner` is defined twice"):
        merge_tools(listed, [], "Owner")
    listed, _ = collect_tools([english, tool(name="suche")(german)], "Owner", {})
    assert [made.name for made in merge_tools(listed, [], "Owner")] == ["search", "suche"]


def test_listed_tool_with_name_of_tool_method_raises_tool_conflict_error() -> None:
    with pytest.raises(ToolConflictError) as caught:

        class Agent(module[Any, Any]):
            tools = [one_search]

            @tool
            def one_search(self, query: str) -> None: ...

    assert str(caught.value) == "Tool 'one_search' defined in both tools attribute and as method"


def test_two_methods_with_same_tool_name_raise_tool_conflict_error() -> None:
    class Agent:
        @tool
        def search(self, query: str) -> None: ...

        @tool(name="search")
        def find(self, query: str) -> None: ...

    with pytest.raises(ToolConflictError) as caught:
        merge_tools([], collect_methods(Agent, "Agent", {}), "Agent")
    assert str(caught.value) == (
        "Tool 'search' of `Agent` is defined twice: as method `search` and as method `find`. "
        "Rename one with `@tool(name=...)`."
    )


def test_function_listed_twice_defines_one_tool() -> None:
    shop = Shop()
    listed, sources = collect_tools([one_search, shop.sell, one_search, shop.sell, shop], "Owner", {})
    assert [made.name for made in listed] == ["one_search", "sell", "shop"]
    assert sources == []


def test_same_method_of_two_instances_raises_tool_conflict_error() -> None:
    listed, _ = collect_tools([Shop().sell, Shop().sell], "Owner", {})
    with pytest.raises(ToolConflictError):
        merge_tools(listed, [], "Owner")


def test_callable_object_with_tools_method_is_tool_source() -> None:
    @dataclasses.dataclass
    class Box:
        def tools(self) -> list[Callable[..., Any]]:
            return [one_search]

        def __call__(self) -> None: ...

    box = Box()
    listed, sources = collect_tools([box, one_search, box], "Owner", {})
    assert [made.name for made in listed] == ["one_search"]
    assert sources == [box]
