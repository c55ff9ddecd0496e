"""Tests of inputs that are not Pydantic classes: plain types, dataclasses, TypedDicts and dicts of fields."""

from __future__ import annotations

import asyncio
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.small_programs import WAYS, tool_results
from tests.cases import each_case
from typing_extensions import TypedDict

from acorn import DeclarationError, InputError, Step, module, tool
from acorn.testing import ScriptedModel, call, finish


def declare(declared: object, **attributes: object) -> type[module[Any, Any]]:
    body = {"initial_input": declared, "final_output": str, "__module__": __name__, **attributes}
    return type("Agent", (module,), body)


def sent(declared: object, *args: object, **kwargs: object) -> str:
    """Return the user message of an agent with this input type."""
    model = ScriptedModel([finish("done")])
    settings = kwargs.pop("settings", {})
    assert isinstance(settings, dict)
    assert declare(declared, **settings)(model=model)(*args, **kwargs) == "done"
    return str(model.requests[0].messages[-1]["content"])


@dataclass
class Place:
    city: str
    tags: list[str] = field(default_factory=list)


class Point(TypedDict):
    x: int


@each_case(
    ("declared", "value", "text"),
    [
        (str, "hi", "<input>hi</input>"),
        (str, "<b> & 'c'", "<input>&lt;b&gt; &amp; 'c'</input>"),
        (str, "", "<input />"),
        (int, 5, "<input>5</input>"),
        (int | None, None, "<input />"),
        (list[int], [1, 2], "<input>\n  <item>1</item>\n  <item>2</item>\n</input>"),
        (list[int], [], "<input />"),
        (dict[str, int], {"a": 1}, "<input>\n  <a>1</a>\n</input>"),
        (list[Place], [Place("Oslo")], "<input>\n  <place>\n    <city>Oslo</city>\n    <tags />\n  </place>\n</input>"),
        (Annotated[str, Field(description="A name")], "Ann", '<input description="A name">Ann</input>'),
        (float, float("nan"), "<input>NaN</input>"),
    ],
)
def test_plain_input_is_content_of_root_element(declared: object, value: object, text: str) -> None:
    assert sent(declared, value) == sent(declared, input=value) == text


def test_description_of_plain_input_as_comment_precedes_root_element() -> None:
    declared = Annotated[str, Field(description="A name")]
    text = sent(declared, "Ann", settings={"xml_description_format": "comment"})
    assert text == "<!-- A name -->\n<input>Ann</input>"


@each_case("way", ["run", "stream", "arun"])
def test_agent_with_plain_input_as_tool_has_parameter_input(way: str) -> None:
    model = ScriptedModel([call("inner", input="hi"), finish("inside"), finish("done")])

    class Inner(module[str, str]):
        """Answer."""

    class Outer(module[None, str]):
        tools = [Inner]
        max_steps = 3

    agent = Outer(model=model)
    ways: dict[str, Any] = {
        "run": agent.run,
        "arun": lambda: asyncio.run(agent.arun()),
        "stream": lambda: WAYS["streamed"](agent),
    }
    assert tool_results(ways[way]()) == ["inside"]
    assert model.requests[0].tools[0]["function"]["parameters"]["properties"] == {"input": {"type": "string"}}
    assert model.requests[1].messages[-1]["content"] == "<input>hi</input>"


@each_case(("declared", "instance"), [(Place, Place("Oslo")), (Point, {"x": 1})])
def test_dataclass_or_typed_dict_input_is_accepted_by_fields_or_as_instance(declared: Any, instance: Any) -> None:
    fields = dict(instance if isinstance(instance, dict) else vars(instance))
    assert sent(declared, **fields) == sent(declared, instance) == sent(declared, fields)


@dataclass
class Scaled:
    x: int
    factor: InitVar[int] = 1

    def __post_init__(self, factor: int) -> None:
        self.x *= factor


@each_case("declared", [Scaled, Annotated[Scaled, Field(description="A number")]])
def test_annotated_dataclass_with_init_variable_is_accepted_by_fields(declared: Any) -> None:
    assert "<x>6</x>" in sent(declared, x=2, factor=3)
    with pytest.raises(InputError, match="`scale` is not an input"):
        sent(declared, x=2, scale=3)


def test_dataclass_input_by_fields_is_instance_with_defaults() -> None:
    run = declare(Place)(model=ScriptedModel([finish("done")])).run(city="Oslo")
    given: Any = run.input
    assert given.input == Place("Oslo")


@each_case(
    ("arguments", "message"),
    [
        ({}, "`city` is missing (expected a string). It takes `city`, `tags`."),
        ({"city": 5}, "`city` must be a string, got 5. It takes `city`, `tags`."),
        ({"city": "a", "tags": [1]}, "`tags.0` must be a string, got 1. It takes `city`, `tags`."),
        ({"city": "a", "town": "b"}, "`town` is not an input. It takes `city`, `tags`."),
    ],
)
def test_wrong_fields_of_dataclass_input_raise_error_with_their_paths(arguments: Any, message: str) -> None:
    agent = declare(Place)(model=ScriptedModel([]))
    for positional, named in (((), arguments), ((arguments,), {})):
        with pytest.raises(InputError) as caught:
            agent(*positional, **named)
        assert str(caught.value) == f"Wrong input for `Agent`: {message}"


def test_agent_or_branch_with_dataclass_input_has_its_fields_as_parameters() -> None:
    class Find(module[Place, str]):
        """Find a place."""

    for settings in ({"tools": [Find]}, {"branches": {"find": Find}}):
        model = ScriptedModel([call("find", city="Oslo"), finish("found"), finish("done")])
        run = declare(None, max_steps=3, **settings)(model=model).run()
        assert tool_results(run) == ["found"]
        parameters = model.requests[0].tools[0]["function"]["parameters"]
        assert (list(parameters["properties"]), parameters["required"]) == (["city", "tags"], ["city"])
        assert model.requests[1].messages[-1]["content"] == "<input>\n  <city>Oslo</city>\n  <tags />\n</input>"


def test_branch_call_from_code_takes_fields_of_dataclass() -> None:
    class Find(module[Place, str]):
        """Find a place."""

    class Outer(module[None, str]):
        max_steps = 3

        @tool
        def look(self) -> str:
            """Look."""
            return self.branch(Find, city="Oslo")

    model = ScriptedModel([call("look"), finish("found"), finish("done")])
    assert tool_results(Outer(model=model).run()) == ["found"]


def test_recursive_dataclass_input_of_agent_tool_keeps_its_definition() -> None:
    model = ScriptedModel([call("walk", name="a", kids=[{"name": "b"}]), finish("walked"), finish("done")])

    class Walk(module[Tree, str]):
        """Walk."""

    run = declare(None, max_steps=3, tools=[Walk])(model=model).run()
    assert tool_results(run) == ["walked"]
    parameters = model.requests[0].tools[0]["function"]["parameters"]
    assert parameters["properties"]["kids"]["items"] == {"$ref": "#/$defs/Tree"}
    assert "Tree" in parameters["$defs"]


@dataclass
class Tree:
    name: str
    kids: list[Tree] = field(default_factory=list)


def test_batch_row_is_fields_of_dataclass_or_instance() -> None:
    agent = declare(Place)(model=ScriptedModel(lambda request: finish("done")))
    assert agent.map([{"city": "Oslo"}, Place("Rome")]).results() == ["done", "done"]


@each_case(("declared", "arguments"), [(str, ("hi",)), (Place, (Place("Oslo"),)), (Point, ({"x": 1},))])
def test_stored_run_with_plain_input_is_resumed_and_forked(declared: Any, arguments: Any, tmp_path: Any) -> None:
    def hold(q: str) -> str:
        """Look."""
        raise KeyboardInterrupt

    def look(q: str) -> str:
        """Look."""
        return q

    replies = [call("look", q="a"), finish("done")]
    settings = {"max_steps": 3, "store": str(tmp_path / f"{declared.__name__}.db")}
    first = declare(declared, tools=[tool(name="look")(hold)], **settings)
    with pytest.raises(KeyboardInterrupt):
        first(model=ScriptedModel(replies, by_turn=True)).using(run_id="one")(*arguments)
    agent = declare(declared, tools=[look], **settings)(model=ScriptedModel(replies, by_turn=True))
    run = agent.using(run_id="one").run(*arguments)
    assert run.output == "done"
    forked = agent.using(thread=run.thread, before=2).run()
    assert forked.output == "done"
    assert forked.history[0] == run.history[0]


def test_dict_of_fields_declares_input_and_output() -> None:
    class Classify(module):
        """Classify."""

        initial_input = {"text": str, "limit": (int, 3), "note": (str, Field(default="", description="A note"))}
        final_output = {"label": str, "scores": list[float]}

    model = ScriptedModel([finish(label="good", scores=[0.5])])
    output = Classify(model=model)(text="Fine.")
    assert (output.label, output.scores) == ("good", [0.5])
    assert model.requests[0].messages[-1]["content"] == (
        '<input>\n  <text>Fine.</text>\n  <limit>3</limit>\n  <note description="A note" />\n</input>'
    )


def test_empty_dict_of_fields_declares_no_input() -> None:
    assert sent({}) == "<input />"


@each_case(
    ("declared", "message"),
    [
        ({"a": 5}, "`Agent.final_output['a']` must be "),
        ({"a b": str}, "`Agent.final_output['a b']` has the field name 'a b'"),
        ({5: str}, "`Agent.final_output[5]` must be "),
        ({"a": (str, 1, 2)}, "`Agent.final_output['a']` must be "),
        ({"a": "str"}, "`Agent.final_output['a']` must be a type, got the text 'str'"),
    ],
)
def test_wrong_dict_of_fields_raises_declaration_error(declared: object, message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(None, final_output=declared)
    assert str(caught.value).startswith(message)


def test_step_of_run_with_plain_input_has_input() -> None:
    class Keep(module[str, str]):
        """Keep."""

        def on_start(self, step: Step) -> None:
            given: Any = step.run.input
            inputs.append(given.input)

    inputs: list[str] = []
    Keep(model=ScriptedModel([finish("done")]))("hi")
    assert inputs == ["hi"]


def test_non_finite_number_in_dataclass_input_of_agent_tool_is_tool_error() -> None:
    class Pay(module[Amount, str]):
        """Pay."""

    model = ScriptedModel([call("pay", amount=float("nan")), finish("done")])
    run = declare(None, max_steps=3, tools=[Pay])(model=model).run()
    assert "argument `amount` must be a finite number" in tool_results(run)[0]


@dataclass
class Amount:
    amount: float


class Boxed(BaseModel):
    input: str


def test_model_class_with_field_input_is_not_plain() -> None:
    assert sent(Boxed, input="hi") == "<input>\n  <input>hi</input>\n</input>"
