"""Tests of tools with an explicit JSON Schema: requests, argument checks and rejections."""

import asyncio
import copy
import functools
import json
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.conftest import Call, Script
from tests.cases import each_case

from acorn import DeclarationError, Run, Step, ToolConflictError, module, tool
from acorn.models import RawCall
from acorn.testing import Reply, finish
from acorn.testing import call as calling

if TYPE_CHECKING:
    from decimal import Decimal

Schema = dict[str, Any]

BOOKING: Schema = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "guest": {"$ref": "#/$defs/Guest"},
        "rooms": {"type": "array", "items": {"enum": ["single", "double"]}, "maxItems": 3},
    },
    "required": ["city", "nights"],
    "$defs": {
        "Guest": {
            "type": "object",
            "title": "A guest",
            "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"], "minimum": 0}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}


class Worker(module[Any, str]):
    """Use the tools."""

    final_output = str
    max_steps = 5


def raw(name: str, arguments: str) -> Reply:
    """Return a call whose arguments are sent unchanged."""
    return Reply(calls=[RawCall(None, name, arguments)])


def read(run: Run[Any]) -> list[str]:
    """Return what the model read of its tools, without the answer to `__finish__`."""
    return [message["content"] for message in run.history if message["role"] == "tool"][:-1]


def use(call: Call, script: Script, tools: list[Any], reply: Reply, **settings: Any) -> list[str]:
    """Let the model call some tools once, and return what it reads."""
    return read(call.run(Worker(model=script(reply, finish(result="done")), tools=tools, **settings)))


def fields(*names: str, **more: Any) -> Schema:
    """Return the schema of an object with these required strings."""
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": [*names], **more}


def keeping(schema: Any, got: list[Any], **options: Any) -> Callable[..., str]:
    """Return a tool `keep` with a schema that records its arguments."""

    @tool(schema=schema, name="keep", **options)
    def keep(**arguments: Any) -> str:
        """Keep something."""
        got.append(arguments)
        return "kept"

    return keep


def complaint(script: Script, schema: Schema, arguments: Any) -> str:
    """Return what the model reads of unfitting arguments; the function is not called."""
    got: list[Any] = []
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    (told,) = read(Worker(model=script(raw("keep", text), finish(result="done")), tools=[keeping(schema, got)]).run())
    assert got == []
    assert told.startswith("Tool error: ")
    return told.removeprefix("Tool error: ")


# Requests


def test_tool_json_schema_is_sent_unchanged(call: Call, script: Script) -> None:
    model = script(finish(result="done"))
    before = copy.deepcopy(BOOKING)
    call(Worker(model=model, tools=[keeping(BOOKING, [])]))
    sent = model.requests[0].tools[0]["function"]
    assert sent == {"name": "keep", "description": "Keep something.", "parameters": before}
    assert list(sent["parameters"]["properties"]) == list(before["properties"])
    assert before == BOOKING


@each_case(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": True}},
        {"type": "object", "title": "Kept", "examples": [{"$ref": "nowhere"}], "properties": {"$ref": {"const": 1}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {"a": {}}},
        {"$schema": "http://json-schema.org/draft-03/schema#", "type": "object", "required": True},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/a%20b~1c"}}, "definitions": {"a b/c": {}}},
        {"type": "object", "properties": {"a": {"$ref": "#tail"}}, "$defs": {"b": {"$anchor": "tail"}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"$id": "https://x.test/a", "type": "object", "properties": {"a": {"$ref": "/a#/$defs/b"}}, "$defs": {"b": {}}},
    ],
)
def test_tool_json_schema_of_each_valid_object_form_is_accepted(script: Script, schema: Schema) -> None:
    got: list[Any] = []
    model = script(calling("keep"), finish(result="done"))
    assert read(Worker(model=model, tools=[keeping(schema, got)]).run()) == ["kept"]
    assert model.requests[0].tools[0]["function"]["parameters"] == schema
    assert got == [{}]


def test_tool_json_schema_is_copied_at_declaration(call: Call, script: Script) -> None:
    mine = fields("a")
    keep = keeping(mine, [])
    mine["properties"]["a"]["type"] = "integer"
    mine["required"].append("b")
    model = script(calling("keep", a="x"), finish(result="done"))
    assert read(call.run(Worker(model=model, tools=[keep]))) == ["kept"]
    assert model.requests[0].tools[0]["function"]["parameters"] == fields("a")


def test_schema_tool_description_is_taken_from_decorator_or_docstring(script: Script) -> None:
    @tool(schema=fields("a"))
    def documented(a: Any) -> None:
        """Say it.

        Args:
            a: Not for the schema, which is complete.
        """

    @tool(schema=fields("a"))
    def silent(a: Any) -> None: ...

    model = script(finish(result="done"))
    Worker(model=model, tools=[documented, silent, keeping(fields("a"), [], description="Other words.")])()
    sent = [entry["function"] for entry in model.requests[0].tools[:-1]]
    assert [entry.get("description") for entry in sent] == ["Say it.", None, "Other words."]
    assert all(entry["parameters"] == fields("a") for entry in sent)


def test_jsonschema_package_is_imported_only_when_schema_tool_is_declared() -> None:
    script = """
import sys
from acorn import module, tool
def plain(a: int) -> int: ...
class A(module): tools = [plain]
before = "jsonschema" in sys.modules
@tool(schema={"type": "object"})
def f(**arguments): ...
class C(module): tools = [f]
print(before, "jsonschema" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


# Calls


def test_schema_tool_receives_arguments_unchanged(call: Call, script: Script) -> None:
    got: list[Any] = []
    given: dict[str, Any] = {
        "city": "Rome",
        "nights": 2,
        "guest": {"name": "Ann", "age": None},
        "rooms": ["single"],
        "more": [1.5],
    }
    assert use(call, script, [keeping(BOOKING, got)], calling("keep", **given)) == ["kept"]
    assert got == [given]
    assert type(got[0]["nights"]) is int


def test_schema_tool_function_without_type_hints_receives_arguments_and_defaults(call: Call, script: Script) -> None:
    got: list[Any] = []

    @tool(schema=BOOKING)
    def book(city, nights, *, guest=None, rooms=("double",)):  # type: ignore[no-untyped-def]
        got.append((city, nights, guest, rooms))

    assert use(call, script, [book], calling("book", city="Rome", nights=2)) == ["null"]
    assert got == [("Rome", 2, None, ("double",))]


def test_schema_tool_type_hints_are_ignored(call: Call, script: Script) -> None:
    @tool(schema=fields("a"))
    def show(a: "Decimal") -> str:
        return repr(a)

    assert use(call, script, [show], calling("show", a="5")) == ["'5'"]


def test_schema_tool_run_parameter_receives_run(call: Call, script: Script) -> None:
    got: list[Any] = []

    @tool(schema=fields("a"))
    def named(a, run: Run[Any], *, same: Run[Any] | None = None):  # type: ignore[no-untyped-def]
        got.append((a, run, same))

    @tool(schema=fields("a"), parallel=False)
    def loose(*, run: Run, **arguments: Any) -> None:
        got.append((arguments, run))

    model = script(calling("named", a="x") & calling("loose", a="y"), finish(result="done"))
    run = call.run(Worker(model=model, tools=[named, loose]))
    assert got == [("x", run, run), ({"a": "y"}, run)]


def test_model_argument_for_run_parameter_or_bound_partial_parameter_returns_tool_error(
    call: Call, script: Script
) -> None:
    @tool(schema=fields("a"))
    def loose(run: Run, **arguments: Any) -> None:
        raise AssertionError("not called")

    def fetch(key: str, **arguments: Any) -> str:
        return f"{key} {arguments}"

    keyed = tool(schema=fields("a"), name="keyed")(functools.partial(fetch, key="secret"))

    @tool(schema={**fields("a"), "additionalProperties": False})
    def named(a: str, run: Run) -> None:
        raise AssertionError("not called")

    reply = calling("loose", a="x", run=1) & calling("named", run=1)
    reply &= calling("keyed", a="x", key="mine") & calling("keyed", a="x")
    assert use(call, script, [loose, named, keyed], reply) == [
        "Tool error: argument `run` is set by the program. Leave it out.",
        "Tool error: argument `run` is set by the program. Leave it out.",
        "Tool error: argument `key` is set by the program. Leave it out.",
        "secret {'a': 'x'}",
    ]


class Shouter:
    """Shouts."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __call__(self, a: Any, b: Any = "") -> str:
        return f"{a}{b}{self.mark}"

    def method(self, **arguments: Any) -> str:
        return f"{arguments}{self.mark}"


class Everything(Worker):
    """All kinds of methods."""

    mark = "!"

    @tool(schema=fields("a"))
    def method(self, a):  # type: ignore[no-untyped-def]
        return f"{a}{self.mark}"

    @tool(schema=fields("a"))
    async def amethod(self, **arguments: Any) -> str:
        await asyncio.sleep(0)
        return f"{arguments['a']}{self.mark}"

    @tool(schema=fields("a"))
    @staticmethod
    def static(a, run: Run):  # type: ignore[no-untyped-def]
        return f"{a}{run.steps}"

    @tool(schema=fields("a"))
    @classmethod
    def of_class(cls, a):  # type: ignore[no-untyped-def]
        return f"{a}{cls.mark}"


def test_schema_tool_declared_as_instance_static_or_class_method_is_called(call: Call, script: Script) -> None:
    names = ("method", "amethod", "static", "of_class")
    reply = functools.reduce(lambda one, other: one & other, [calling(name, a="x") for name in names])
    model = script(reply, finish(result="done"))
    agent = Everything(model=model)
    agent.mark = "?"
    assert read(call.run(agent)) == ["x?", "x?", "x1", "x!"]
    assert [entry["function"]["parameters"] for entry in model.requests[0].tools[:-1]] == [fields("a")] * 4


def test_schema_tool_override_without_decorator_inherits_schema(call: Call, script: Script) -> None:
    class Other(Everything):
        def method(self, a, b="b"):  # type: ignore[no-untyped-def]
            return f"{a}{b}"

    assert read(call.run(Other(model=script(calling("method", a="x"), finish(result="done"))))) == ["xb"]


@pytest.mark.every_way
def test_schema_tool_made_from_partial_callable_object_or_bound_method_is_called(call: Call, script: Script) -> None:
    partial = tool(schema=fields("a"), name="partial")(functools.partial(Shouter("!"), b="-"))
    object_ = tool(schema=fields("a"))(Shouter("?"))
    bound = tool(schema=fields("a"), name="bound")(Shouter(".").method)
    reply = calling("partial", a="x") & calling("shouter", a="x") & calling("bound", a="x")
    assert use(call, script, [partial, object_, bound], reply) == ["x-!", "x?", "{'a': 'x'}."]


@pytest.mark.every_way
def test_schema_tool_timeout_and_parallel_options_are_applied(call: Call, script: Script) -> None:
    under_way, most = 0, 0
    lock = threading.Lock()

    @tool(schema=fields("a"), timeout=0.05)
    async def slow(**arguments: Any) -> None:
        await asyncio.sleep(20)

    @tool(schema=fields("a"), parallel=False)
    async def alone(**arguments: Any) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        await asyncio.sleep(0.01)
        with lock:
            under_way -= 1

    reply = calling("slow", a="x") & calling("alone", a="x") & calling("alone", a="y")
    first, *rest = use(call, script, [slow, alone], reply)
    assert first == "Tool error: TimeoutError: the tool did not return within its time limit of 0.05 s"
    assert rest == ["null", "null"]
    assert most == 1


def test_schema_tool_added_by_hook_is_called(call: Call, script: Script) -> None:
    got: list[Any] = []

    class Adding(Worker):
        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.add_tool(keeping(fields("a"), got))

    model = script(calling("nothing"), calling("keep", a="x"), finish(result="done"))
    call(Adding(model=model))
    assert got == [{"a": "x"}]


def test_schema_tool_listed_by_tool_source_is_called_with_validated_arguments(call: Call, script: Script) -> None:
    got: list[Any] = []

    class Server:
        def tools(self) -> list[Any]:
            return [keeping(BOOKING, got)]

    reply = calling("keep", city="Rome", nights=0) & calling("keep", city="Rome", nights=1)
    first, second = use(call, script, [Server()], reply)
    assert first == "Tool error: argument `nights` must be an integer between 1 and 30, got 0"
    assert second == "kept"
    assert got == [{"city": "Rome", "nights": 1}]


# Unfitting arguments


@each_case(
    ("arguments", "words"),
    [
        ({"city": "Rome"}, "argument `nights` is missing (expected an integer between 1 and 30)"),
        ({"nights": 1, "city": 5}, "argument `city` must be a string of at least 2 characters, got 5"),
        ({"nights": "5", "city": "Rome"}, 'argument `nights` must be an integer between 1 and 30, got "5"'),
        ({"nights": 1.5, "city": "Rome"}, "argument `nights` must be an integer between 1 and 30, got 1.5"),
        ({"nights": True, "city": "Rome"}, "argument `nights` must be an integer between 1 and 30, got true"),
        ({"nights": 31, "city": "Rome"}, "argument `nights` must be an integer between 1 and 30, got 31"),
        ({"nights": None, "city": "R"}, 'must be a string of at least 2 characters, got "R"; argument `nights`'),
        ({"nights": 1, "city": "Rome", "guest": {}}, "argument `guest.name` is missing (expected a string)"),
        (
            {"nights": 1, "city": "Rome", "guest": {"name": "A", "age": "x"}},
            'argument `guest.age` must be an integer of at least 0 or null, got "x"',
        ),
        (
            {"nights": 1, "city": "Rome", "guest": {"name": "A", "pet": "cat"}},
            "argument `guest.pet` does not exist (the fields are: `name`, `age`)",
        ),
        (
            {"nights": 1, "city": "Rome", "rooms": ["single", "suite"]},
            'argument `rooms.1` must be one of "single", "double", got "suite"',
        ),
        (
            {"nights": 1, "city": "Rome", "rooms": ["single"] * 4},
            'argument `rooms` must be a list of values from "single", "double", at most 3 items, got ["single",',
        ),
    ],
)
def test_schema_tool_invalid_argument_is_reported_with_path(script: Script, arguments: Any, words: str) -> None:
    assert words in complaint(script, BOOKING, arguments)


def test_schema_tool_call_with_wrong_arguments_returns_tool_error_with_each_problem(call: Call, script: Script) -> None:
    got: list[Any] = []
    reply = calling("keep", nights="two", guest={"age": 3}) & calling("keep", city="Rome", nights=2)
    first, second = use(call, script, [keeping(BOOKING, got)], reply)
    assert first == (
        'Tool error: argument `nights` must be an integer between 1 and 30, got "two"; '
        "argument `guest.name` is missing (expected a string); "
        "argument `city` is missing (expected a string of at least 2 characters)"
    )
    assert second == "kept"
    assert got == [{"city": "Rome", "nights": 2}]


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "barks": {"type": "boolean"}}, "required": ["kind"]}


@each_case(
    ("schema", "value", "words"),
    [
        ({"anyOf": [CAT, {"type": "null"}]}, {"kind": "cat", "lives": "x"}, '`a.lives` must be an integer, got "x"'),
        ({"anyOf": [CAT, {"type": "null"}]}, {"kind": "cow"}, '`a.kind` must be "cat", got "cow"'),
        ({"anyOf": [CAT, {"type": "null"}]}, 5, "`a` must be an object with kind, lives or null, got 5"),
        ({"oneOf": [CAT, DOG]}, {"kind": "dog", "barks": 1}, "`a.barks` must be a boolean (true or false), got 1"),
        (
            {"oneOf": [CAT, DOG]},
            {"kind": "cow"},
            "`a` must be an object with kind, lives or an object with kind, barks",
        ),
        (
            {"oneOf": [{"minimum": 1}, {"minimum": 2}]},
            3,
            "`a` must be a value of at least 1 or a value of at least 2 (3",
        ),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, 2, "`a` must be a value of at least 3, got 2"),
        ({"$ref": "#/$defs/Up", "maximum": 5}, 6, "`a` must be a value of at most 5, got 6"),
        ({"not": {"type": "string"}}, "x", "`a` must be a value ('x' should not be valid under"),
        ({"type": "array", "uniqueItems": True}, [1, 1], "`a` must be a list ([1, 1] has non-unique elements)"),
        (
            {"type": "object", "propertyNames": {"pattern": "^x"}},
            {"y": 1},
            "`a` must be under another key (a value matching",
        ),
        (
            {"properties": {"propertyNames": {"type": "string"}}},
            {"propertyNames": 1},
            "`a.propertyNames` must be a str",
        ),
        ({"properties": {"b": False}}, {"b": 1}, "must not contain this value: 1"),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": False},
            {"x1": 1, "y": 2},
            "`a.y` does not exist",
        ),
        ({"additionalProperties": {"type": "string"}}, {"k": 1}, "`a.k` must be a string, got 1"),
        ({"minProperties": 2}, {"k": 1}, "`a` must be a value ({'k': 1} does not have enough properties)"),
        ({"enum": ["x", 1, None]}, "y", '`a` must be one of "x", 1, null, got "y"'),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["x", 1], "`a` must be a value (Expected at most 1 it"),
        (
            {"if": {"type": "string"}, "then": {"minLength": 3}},
            "x",
            '`a` must be a value of at least 3 characters, got "x"',
        ),
        ({"type": "string", "pattern": "^[a-z]+$"}, "A", '`a` must be a string matching ^[a-z]+$, got "A"'),
    ],
)
def test_schema_tool_error_contains_expected_value(script: Script, schema: Schema, value: Any, words: str) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "$defs": {"Up": {"minimum": 1}}}
    assert words in complaint(script, whole, {"a": value})


@each_case(
    ("schema", "arguments", "words"),
    [
        ({"type": "object", "minProperties": 1}, {}, "The arguments must be an object, at least 1 key, got {}"),
        (
            {"type": "object", "additionalProperties": False},
            {"a": 1},
            "argument `a` does not exist (there are no arguments)",
        ),
        (
            {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            "argument `a` is missing (expected a value) or argument `b` is missing (expected a value)",
        ),
    ],
)
def test_schema_tool_error_about_whole_arguments_object_contains_no_argument_name(
    script: Script, schema: Schema, arguments: Any, words: str
) -> None:
    assert words in complaint(script, schema, arguments)


def test_schema_tool_call_with_unknown_argument_returns_tool_error(call: Call, script: Script) -> None:
    @tool(schema=fields("a"))
    def keep(a: Any) -> None:
        raise AssertionError("not called")

    assert use(call, script, [keep], calling("keep", a="x", b=1)) == [
        "Tool error: argument `b` does not exist (the arguments are: `a`)"
    ]


@each_case(
    ("arguments", "words"),
    [
        ('{"city": "Rome"', "The arguments are not valid JSON: EOF"),
        ("Rome", "The arguments are not valid JSON"),
        ('{"nights": NaN}', "The arguments are not valid JSON"),
        ('{"city": "\ud800"}', "The arguments are not valid JSON"),
        ('["Rome"]', 'The arguments must be a JSON object, got ["Rome"]'),
        ('"Rome"', "The arguments must be a JSON object"),
        ("null", "The arguments must be a JSON object"),
        ("", "argument `city` is missing"),
    ],
)
def test_schema_tool_arguments_that_are_not_object_return_tool_error(
    script: Script, arguments: str, words: str
) -> None:
    assert words in complaint(script, BOOKING, arguments)


def deep(levels: int) -> Schema:
    """Return a nested object schema with references and a number at the innermost level."""
    names = [f"Level{level}" for level in range(levels)]
    definitions: dict[str, Any] = {
        name: {"type": "object", "properties": {"next": {"$ref": f"#/$defs/{inner}"}}, "required": ["next"]}
        for name, inner in zip(names, [*names[1:], "Bottom"], strict=True)
    }
    definitions["Bottom"] = {"type": "integer"}
    return {"type": "object", "properties": {"top": {"$ref": "#/$defs/Level0"}}, "$defs": definitions}


def nested(levels: int, bottom: Any) -> Any:
    return bottom if levels == 0 else {"next": nested(levels - 1, bottom)}


def test_deeply_nested_tool_json_schema_validates_arguments(script: Script) -> None:
    got: list[Any] = []
    model = script(calling("keep", top=nested(10, 5)), finish(result="done"))
    assert read(Worker(model=model, tools=[keeping(deep(10), got)]).run()) == ["kept"]
    assert got == [{"top": nested(10, 5)}]
    path = ".".join(["top", *["next"] * 10])
    assert complaint(script, deep(10), {"top": nested(10, "x")}) == f'argument `{path}` must be an integer, got "x"'


def test_recursive_tool_json_schema_validates_arguments(script: Script) -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}}
    assert complaint(script, tree, {"next": {"next": {"value": "x"}}}) == (
        'argument `next.next.value` must be an integer, got "x"'
    )
    winding = {"type": "object", "properties": {"next": {"allOf": [{"anyOf": [{"allOf": [{"$ref": "#"}]}]}]}}}
    assert "Cannot check the arguments: RecursionError" in complaint(script, winding, nested(190, {}))


# Rejected declarations


def refused(entry: Any) -> str:
    with pytest.raises(DeclarationError) as caught:
        type("Booker", (Worker,), {"tools": [entry]})
    return str(caught.value)


@each_case(
    ("schema", "words"),
    [
        ("string", "must be a dict with a JSON Schema, got 'string'"),
        ([("type", "object")], "must be a dict"),
        (True, "must be a dict with a JSON Schema, got True"),
        ({}, "must describe an object, as in {'type': 'object', 'properties': {...}}, got {}"),
        ({"type": "string"}, "must describe an object, as in {'type': 'object', 'properties': {...}}, got 'string'"),
        ({"type": ["object", "null"]}, "must describe an object"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, "must describe an object"),
        (
            {"type": "object", "properties": []},
            "is not a valid JSON Schema at `properties`: [] is not of type 'object'",
        ),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "at `properties.a.type`: 'text' is not valid"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "at `properties.a.pattern`"),
        ({"type": "object", "required": "a"}, "is not a valid JSON Schema at `required`"),
        ({"type": "object", "properties": {"a": {"default": {1, 2}}}}, "must be JSON data"),
        ({"type": "object", "properties": {"a": {"default": math.nan}}}, "must be JSON data"),
        ({"type": "object", "properties": {"a": {"default": threading.Lock()}}}, "must be JSON data"),
        ({"type": "object", "$schema": "https://x.test/mine"}, "which is not a known draft of JSON Schema"),
        ({"type": "object", "$schema": 7}, "which is not a known draft of JSON Schema"),
    ],
)
def test_unusable_tool_json_schema_raises_declaration_error(schema: Any, words: str) -> None:
    message = refused(keeping(schema, []))
    assert words in message
    assert message.startswith("`schema` of the tool `keep`")
    assert "`Booker`, tools[0]" in message


def test_tool_json_schema_that_contains_itself_raises_declaration_error() -> None:
    circle: Schema = {"type": "object"}
    circle["properties"] = {"a": circle}
    assert "must be JSON data" in refused(keeping(circle, []))


@each_case(
    "reference",
    [
        "#/$defs/Nobody",
        "#nobody",
        "other.json",
        "https://x.test/schema.json",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/passwd",
        "#/properties/b/items",
    ],
)
@each_case("keyword", ["$ref", "$dynamicRef"])
def test_tool_json_schema_with_remote_reference_is_rejected_without_network_request(
    reference: str, keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any, **__: Any) -> Any:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    schema = {"type": "object", "properties": {"a": {"items": {"anyOf": [{keyword: reference}, {"type": "null"}]}}}}
    message = refused(keeping(schema, []))
    assert f"`schema` of the tool `keep` refers to `{reference}`, which is not in it" in message
    assert "`Booker`, tools[0]" in message


def test_tool_schema_with_dangling_reference_returns_tool_error(script: Script) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/x-parts/a"}},
        "x-parts": {"a": {"$ref": "https://x.test/schema.json"}},
    }
    assert "https://x.test/schema.json" in complaint(script, schema, {"a": 1})


def by_position(a: Any, /) -> None: ...
def by_stars(*a: Any) -> None: ...
def other_name(b: Any = 1) -> None: ...
def needs_more(a: Any, b: Any) -> None: ...
def nothing() -> None: ...
def keyed(a: Any, **rest: Any) -> None: ...


@each_case(
    ("function", "words"),
    [
        (by_position, "takes `a` by position"),
        (by_stars, "takes `*a` by position"),
        (other_name, "cannot be called with `a`, which is in its schema"),
        (nothing, "cannot be called with `a`, which is in its schema"),
        (needs_more, "The parameter `b` of the tool `needs_more` has no default"),
        (functools.partial(keyed, a=1), "has the property `a`, which the partial already sets"),
    ],
)
def test_function_that_does_not_accept_schema_properties_raises_declaration_error(function: Any, words: str) -> None:
    message = refused(tool(schema=fields("a"))(functools.partial(function)))
    assert words in message
    assert "`Booker`, tools[0]" in message


def test_function_that_requires_optional_schema_property_raises_declaration_error() -> None:
    optional = {**fields("a"), "required": []}
    assert "cannot be called with `a`" in refused(tool(schema=optional)(functools.partial(nothing)))
    needing = tool(schema=optional, name="needing")(functools.partial(needs_more, b=1))
    assert "The parameter `a` of the tool `needing` has no default, but its schema does not require it" in refused(
        needing
    )


def test_function_parameter_that_schema_requires_through_all_of_is_accepted(call: Call, script: Script) -> None:
    @tool(schema={**fields("a", "b"), "required": ["a"], "allOf": [{"required": ["b"]}]})
    def both(a: Any, b: Any) -> str:
        return f"{a}{b}"

    assert use(call, script, [both], calling("both", a="x", b="y")) == ["xy"]


def test_method_that_does_not_accept_schema_properties_raises_error_with_class_name() -> None:
    with pytest.raises(
        DeclarationError, match=r"The tool `book` cannot be called with `a`.*\(`Hotel`, method `book`\)"
    ):

        class Hotel(Worker):
            @tool(schema=fields("a"))
            def book(self, city: str = "") -> None: ...


def test_schema_tool_type_hint_that_is_undefined_at_declaration_is_resolved_at_call(call: Call, script: Script) -> None:
    @tool(schema=fields("a"))
    def early(a: Any, run: "Late") -> str:  # type: ignore[name-defined]  # noqa: F821
        return f"{a}{run.steps}"

    agent = Worker(tools=[early])
    early.__globals__["Late"] = Run
    try:
        agent.model = script(calling("early", a="x"), finish(result="done"))
        assert read(call.run(agent)) == ["x1"]
    finally:
        del early.__globals__["Late"]


def test_schema_tool_named_like_function_tool_raises_tool_conflict_error() -> None:
    def keep(a: int) -> int:
        return a

    with pytest.raises(ToolConflictError, match="'keep'"):
        Worker(tools=[keep, keeping(fields("a"), [])])
