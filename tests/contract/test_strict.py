"""Tests of strict schemas: when acorn sends them, and its reaction if a provider rejects them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.cases import case
from tests.contract.conftest import Wire
from tests.loopback import Fault, Loopback

from acorn import DeclarationError, ModelError, Step, module, tool
from acorn._formats.schema.generate import close_objects, is_strict
from acorn.models.port import takes_strict
from acorn.models.request import ModelRequest
from acorn.models.resolve import resolve
from acorn.testing import Reply, ScriptedModel, call, finish

Json = dict[str, Any]
REFUSED = "Invalid schema for function '__finish__': In context=('properties', 'answer'), 'format' is not permitted."


class Tight(BaseModel):
    model_config = ConfigDict(extra="forbid")
    answer: str
    kind: Literal["a", "b"] | None


class Loose(BaseModel):
    answer: str
    kind: str = "a"


WRONG: Any = "yes"
RIGHT: Json = {"answer": "x", "kind": "a"}


class Answering(module):
    """You answer."""

    final_output: Any = Tight
    max_steps = 4

    @tool
    def look(self, place: str) -> str:
        """Look somewhere."""
        return f"nothing at {place}"


class Casual(Answering):
    final_output = Loose


def flags(body: Json) -> dict[str, Any]:
    """Return the strictness of each tool."""
    found: dict[str, Any] = {}
    for each in body["tools"]:
        function = each.get("function", each)
        found[function["name"]] = function.get("strict")
    return found


# By default


@pytest.fixture
def azure(litellm_is_loaded: None) -> Iterator[Loopback]:
    with Loopback([call("look", place="here"), finish(**RIGHT)] * 2) as server:
        yield server


def azure_model(server: Loopback, **extra: Any) -> Json:
    given = {"api_key": "k", "api_version": "2025-04-01-preview", "num_retries": 0}
    return {"model": "azure/gpt-4o", "api_base": server.url, **given, **extra}


def test_schema_that_meets_strict_rules_is_sent_as_strict_to_azure(azure: Loopback) -> None:
    assert Answering(model=azure_model(azure))() == Tight(**RIGHT)
    assert [flags(body) for body in azure.bodies()] == [{"look": None, "__finish__": True}] * 2
    assert len({json.dumps(body["tools"]) for body in azure.bodies()}) == 1


def test_schema_is_not_sent_as_strict_if_incompatible_or_strict_is_false(azure: Loopback) -> None:
    Casual(model=azure_model(azure))()
    Answering(model=azure_model(azure), strict=False)()
    assert [flags(body) for body in azure.bodies()] == [{"look": None, "__finish__": None}] * 4


def test_schema_is_not_sent_as_strict_to_custom_server_address(wire: Wire) -> None:
    wire.serve([call("look", place="here"), finish(**RIGHT)])
    assert wire.call(Answering(model=wire.model())) == Tight(**RIGHT)
    said = False if wire.is_responses else None
    assert [flags(body) for body in wire.server.bodies()] == [{"look": said, "__finish__": said}] * 2


def test_takes_strict_returns_true_only_for_models_known_to_support_strict() -> None:
    rows: list[tuple[Any, bool]] = [
        ("openai/gpt-4o", True),
        ("openai/responses/gpt-5", True),
        ({"model": "openai/gpt-4o", "base_url": "https://api.openai.com/v1"}, True),
        ({"model": "openai/gpt-4o", "base_url": "https://example.org/v1"}, False),
        ({"model": "openai/gpt-4o", "api_base": "https://example.org/v1"}, False),
        ({"model": "openai/gpt-4o", "lane": "litellm"}, True),
        ({"model": "openai/gpt-4o", "lane": "litellm", "api_base": "https://example.org/v1"}, False),
        ({"model": "azure/gpt-4o", "api_base": "https://example.org"}, True),
        ("gpt-4o", True),
        ("anthropic/claude-sonnet-4-5", False),
        ("gemini/gemini-2.5-pro", False),
        ("mistral/mistral-large-latest", False),
        (["openai/gpt-4o", "openai/gpt-4.1"], True),
        (["openai/gpt-4o", "anthropic/claude-sonnet-4-5"], False),
    ]
    for config, expected in rows:
        with case(config, expected):
            assert takes_strict(resolve(config, "Test")) is expected


def test_takes_strict_returns_false_for_custom_address_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://example.org/v1")
    assert not takes_strict(resolve("openai/gpt-4o", "Test"))
    assert not takes_strict(resolve({"model": "openai/gpt-4o", "lane": "litellm"}, "Test"))


def test_model_set_by_hook_without_strict_support_is_sent_no_strict(azure: Loopback) -> None:
    class Changing(Answering):
        def on_step(self, step: Step) -> None:
            step.model = azure.openai()

    assert Changing(model=azure_model(azure))() == Tight(**RIGHT)
    assert [flags(body)["__finish__"] for body in azure.bodies()] == [True, None]


# On request


@pytest.mark.parametrize("streams", [False, True])
def test_strict_setting_true_is_sent_in_each_protocol(wire: Wire, streams: bool) -> None:
    @tool(strict=True)
    def search(query: str) -> str:
        """Search."""
        return "nothing"

    class Strict(Casual):
        tools = [search]
        strict = True

    wire.serve([call("search", query="x"), finish(**RIGHT)])
    agent = Strict(model=wire.model())
    if streams:
        assert list(agent.stream())[-1].result == Loose(**RIGHT)
    else:
        assert wire.call(agent) == Loose(**RIGHT)
    said = False if wire.is_responses else None
    expected = {"search": True, "look": said, "__finish__": True}
    assert [flags(body) for body in wire.server.bodies()] == [expected] * 2
    for each in wire.server.bodies()[0]["tools"]:
        function = each.get("function", each)
        schema = function.get("parameters") or function["input_schema"]
        assert schema.get("additionalProperties") is (False if function.get("strict") else None)


def test_strict_true_is_sent_for_agents_used_as_tools_and_tools_with_given_schema() -> None:
    given = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}

    @tool(schema=given, strict=True)
    def raw(**arguments: Any) -> str:
        """Raw."""
        return ""

    @tool(strict=True)
    class Helper(module):
        """Help."""

        initial_input = ["question"]
        final_output = str

    model = ScriptedModel([finish(**RIGHT)])
    Casual(model=model, tools=[raw, Helper])()
    functions = {each["function"]["name"]: each["function"] for each in model.requests[0].tools}
    assert functions["raw"] == {"name": "raw", "description": "Raw.", "parameters": given, "strict": True}
    assert functions["helper"]["strict"] is True
    assert functions["helper"]["parameters"]["additionalProperties"] is False


def test_strict_setting_accepts_bool_in_using_and_rejects_other_values() -> None:
    model = ScriptedModel([finish(**RIGHT)] * 2)
    Casual(model=model).using(strict=True)()
    Casual(model=model, strict=None)()
    assert [request.tools[-1]["function"].get("strict") for request in model.requests] == [True, None]
    wrongs: list[Any] = ["yes", 1, []]
    for wrong in wrongs:
        with pytest.raises(DeclarationError, match=r"`Casual\.strict` must be True, False, or None"):
            Casual(strict=wrong)
    with pytest.raises(DeclarationError, match=r"`strict` of the tool `.*f` must be True or False, got 'yes'"):

        @tool(strict=WRONG)
        def f() -> None: ...


def test_branch_does_not_inherit_strict_setting_of_parent() -> None:
    class Checking(module):
        """Check it."""

        final_output = str
        max_steps = 2

    class Parent(Casual):
        strict = True
        branches = {"check": Checking}

    model = ScriptedModel([call("check"), finish(result="fine"), finish(**RIGHT)])
    Parent(model=model)()
    assert [request.tools[-1]["function"].get("strict") for request in model.requests] == [True, None, True]


# Refused


def request(*, declared: frozenset[str] = frozenset()) -> ModelRequest:
    parameters = close_objects(Tight.model_json_schema())
    tools = [{"type": "function", "function": {"name": "__finish__", "parameters": parameters, "strict": True}}]
    return ModelRequest([{"role": "user", "content": "Why?"}], tools, 0.7, 100, declared=declared)


def test_default_strict_rejected_by_server_is_omitted_in_later_requests(gpt: Wire) -> None:
    for words in [REFUSED, "Unknown parameter: 'tools[0].function.strict'."]:
        with case(words):
            gpt.serve([Fault(status=400, message=words), *[finish(**RIGHT)] * 3])
            model = resolve(gpt.model(num_retries=0), "Test")
            for _ in range(2):
                assert model.complete(request()).tool_calls[0].name == "__finish__"
            other = request()
            other.tools[0]["function"]["description"] = "Another one, of which nobody knows yet."
            model.complete(other)
            said = False if gpt.is_responses else None
            assert [flags(body)["__finish__"] for body in gpt.server.bodies()] == [True, said, said, True]


def test_default_strict_rejected_by_azure_is_omitted_in_later_runs(litellm_is_loaded: None) -> None:
    script: list[Any] = [
        Fault(status=400, message=REFUSED),
        call("look", place="here"),
        finish(**RIGHT),
        finish(**RIGHT),
    ]
    with Loopback(script) as server:
        agent = Answering(model=azure_model(server))
        assert [agent(), agent()] == [Tight(**RIGHT)] * 2
    assert [flags(body)["__finish__"] for body in server.bodies()] == [True, None, None, None]


def test_strict_set_by_user_and_rejected_by_server_raises_model_error(wire: Wire) -> None:
    wire.serve(lambda request: Fault(status=400, message=REFUSED))
    error = wire.fails(Casual(model=wire.model(), strict=True))
    assert "The model does not support the `strict` that was set. Change or remove it." in str(error)
    assert (error.status, wire.count()) == (400, 1)


def test_strict_set_on_tool_and_rejected_by_server_raises_model_error(wire: Wire) -> None:
    @tool(strict=True)
    def search(query: str = "x") -> str:
        """Search."""
        return "nothing"

    wire.serve(lambda request: Fault(status=400, message=REFUSED.replace("__finish__", "search")))
    error = wire.fails(Casual(model=wire.model(), tools=[search]))
    assert "`strict` that was set" in str(error)
    assert wire.count() == 1


def test_error_400_with_word_restricted_is_not_treated_as_rejected_strict(gpt: Wire) -> None:
    gpt.serve(lambda request: Fault(status=400, message="The model is restricted to members."))
    with pytest.raises(ModelError):
        resolve(gpt.model(num_retries=0), "Test").complete(request())
    assert gpt.count() == 1


# Strict schemas


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    at: str = Field(pattern="^a")


class Nested(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner
    many: list[Inner]
    either: Inner | None
    number: int = Field(ge=0, le=9)


class Described(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner = Field(description="A word beside a reference")


class Mapped(BaseModel):
    model_config = ConfigDict(extra="forbid")
    words: dict[str, int]


class Anything(BaseModel):
    model_config = ConfigDict(extra="forbid")
    what: Any


class Short(BaseModel):
    model_config = ConfigDict(extra="forbid")
    what: str = Field(max_length=3)


class Pair(BaseModel):
    model_config = ConfigDict(extra="forbid")
    both: tuple[int, str]


def test_default_strict_is_sent_only_for_schemas_that_meet_strict_rules() -> None:
    rows: list[tuple[type[BaseModel], bool]] = [
        (Tight, True),
        (Nested, True),
        (Loose, False),
        (Described, False),
        (Mapped, False),
        (Anything, False),
        (Short, False),
        (Pair, False),
    ]
    for schema, expected in rows:
        with case(schema, expected):
            model = ScriptedModel([Reply("no")])
            model.takes_strict = True  # type: ignore[attr-defined]

            class Asking(module):
                final_output = schema
                parse_retries = 0

            with pytest.raises(Exception, match="Asking"):
                Asking(model=model)()
            function = model.requests[0].tools[-1]["function"]
            assert function.get("strict", False) is expected
            assert not expected or is_strict(function["parameters"])


def test_is_strict_returns_false_for_schema_deeper_than_ten_levels() -> None:
    deep: Json = {"type": "string"}
    for _ in range(11):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"], "additionalProperties": False}
    assert not is_strict(deep)
    assert is_strict(deep["properties"]["a"])
    assert not is_strict({"anyOf": [deep]})
    assert not is_strict(
        {"type": "object", "properties": {"a": True}, "required": ["a"], "additionalProperties": False}
    )
