"""Tests of module declarations: accepted values, their meaning, and the error messages for invalid values."""

import ast
import dataclasses
import enum
import functools
import importlib.util
import itertools
import math
import sys
import traceback
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, cast

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel
from tests.cases import case
from typing_extensions import TypedDict

from acorn import AcornError, DeclarationError, Module, ToolConflictError, module, tool
from acorn._declare.spec import Prompt, read_prompt_file
from acorn._declare.spec_cache import spec_of
from acorn._declare.tools.kinds import Tool
from acorn.testing import ScriptedModel, finish

Agent = module[Any, Any]
AgentClass = type[module[Any, Any]]


class Text(BaseModel):
    text: str = Field(description="The text to judge")


class Verdict(BaseModel):
    sentiment: Literal["positive", "negative"]
    score: float = 0.5


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Place:
    x: int
    y: int = 0


class Point(TypedDict):
    x: int


class Numbers(RootModel[list[int]]):
    pass


class Opaque:
    """A type that Pydantic does not know."""


@tool
def search(query: str) -> str:
    """Search the web."""
    return query


@tool
def calculate(expression: str) -> float:
    """Evaluate an expression."""
    return float(expression)


def declare(name: str = "Agent", /, *bases: type, **attributes: Any) -> AgentClass:
    """Create a module class at run time, so that no type checker sees its errors."""
    return cast(AgentClass, type(name, bases or (module,), {"__module__": __name__, **attributes}))


def names(agent: AgentClass | Agent) -> list[str]:
    return [tool.name for tool in spec_of(agent() if isinstance(agent, type) else agent).tools]


def prompt(agent: AgentClass | Agent) -> Prompt:
    return spec_of(agent() if isinstance(agent, type) else agent).prompt


def refusal(act: Callable[..., object], *args: Any, **attributes: Any) -> str:
    """Call the function, which must raise `DeclarationError`, and return the message."""
    with pytest.raises(DeclarationError) as caught:
        act(*args, **attributes)
    return str(caught.value)


# Defaults, as the API reference lists them

CLASS_ATTRIBUTES = r"""
| `model` | `str \| dict` | required | LiteLLM model identifier or config dict |
| `temperature` | `float` | `0.7` | Sampling temperature (0-2) |
| `max_tokens` | `int` | `4096` | Maximum tokens in response |
| `max_steps` | `int \| None` | `None` | Maximum agentic loop iterations. `None` = single-turn. |
| `parse_retries` | `int` | `2` | Retries on output validation failure |
| `initial_input` | `BaseModel \| list` | `[]` | Input schema |
| `final_output` | `BaseModel \| list` | `[]` | Output schema |
| `tools` | `list[Callable]` | `[]` | Available tools |
| `branches` | `dict` | `{}` | Branch module registry |
| `cache` | `list[dict]` | `[]` | Provider cache configuration |
| `xml_include_descriptions` | `bool` | `True` | Include field descriptions |
| `xml_description_format` | `str` | `"attribute"` | `"attribute"` (description="...") or `"comment"` (<!-- ... -->) |
| `xml_input_root` | `str` | `"input"` | Root element for input |
| `xml_output_root` | `str` | `"output"` | Root element for output |
| `xml_context_root` | `str` | `"context"` | Root element for context |
"""

DEFAULTS = [
    (cells[1].strip(" `"), None if "required" in cells[3] else ast.literal_eval(cells[3].strip(" `")))
    for cells in (line.replace(r"\|", "/").split("|") for line in CLASS_ATTRIBUTES.strip().splitlines())
]


BESIDES = [
    ("xml_include_none", False),
    ("max_total_tokens", None),
    ("max_cost", None),
    ("max_seconds", None),
    ("loop_guard", "notice"),
]


def test_setting_without_declared_value_has_default() -> None:
    for attribute, default in DEFAULTS + BESIDES:
        with case(attribute, default):
            agent = declare()
            assert getattr(agent, attribute) == default
            assert getattr(agent(), attribute) == default
            assert attribute not in spec_of(agent()).declared


def test_module_without_attributes_compiles_to_default_settings() -> None:
    spec = spec_of(declare()())
    assert (spec.owner, spec.declared) == ("Agent", frozenset())
    assert (spec.model, spec.temperature, spec.max_tokens) == (None, 0.7, 4096)
    assert (spec.max_steps, spec.parse_retries) == (None, 2)
    assert (spec.prompt.text, spec.prompt.file, spec.prompt.is_method) == ("", None, False)
    assert spec.input.is_empty
    assert spec.output.is_empty
    assert (spec.tools, spec.sources, spec.branches, spec.cache) == ((), (), {}, ())
    assert (spec.xml.descriptions, spec.xml.description_format, spec.xml.include_none) == (True, "attribute", False)
    assert (spec.xml_input_root, spec.xml_output_root, spec.xml_context_root) == ("input", "output", "context")


def test_capitalized_module_name_is_alias_of_module_class() -> None:
    assert Module is module


def test_setting_declared_with_its_default_value_is_listed_as_declared() -> None:
    assert spec_of(declare(temperature=0.7)()).declared == {"temperature"}
    assert spec_of(declare("Child", declare(temperature=0.7), max_steps=3)()).declared == {"temperature", "max_steps"}
    assert spec_of(declare()(max_tokens=4096)).declared == {"max_tokens"}


def test_mixin_listed_after_module_in_base_classes_does_not_change_settings() -> None:
    class Mixin:
        temperature = 0.1

    assert spec_of(declare("Ahead", Mixin, module)()).temperature == 0.1
    assert spec_of(declare("Ahead", Mixin, module)()).declared == {"temperature"}
    assert spec_of(declare("Behind", module, Mixin)()).temperature == 0.7
    assert spec_of(declare("Behind", module, Mixin)()).declared == set()


# Valid values at the limits

RIGHT: dict[str, list[Any]] = {
    "model": [
        "openai/gpt-4o",
        {"model": "openai/gpt-4o"},
        {"id": "openai/gpt-4o"},
        {"model": "openai/gpt-4o", "api_key": "k", "base_url": "http://localhost", "timeout": 5},
        {"model": "openai/gpt-4o", "num_retries": 0, "retry_delay": 0},
        {"model": "openai/gpt-4o", "num_retries": 5, "retry_delay": 0.25},
        None,
    ],
    "temperature": [0, 2, 0.0, 2.0],
    "max_tokens": [1],
    "max_steps": [1, None],
    "parse_retries": [0],
    "max_total_tokens": [1],
    "max_cost": [0.01],
    "max_seconds": [0.5],
    "loop_guard": ["force", None],
    "xml_include_descriptions": [False],
    "xml_include_none": [True],
    "xml_description_format": ["comment"],
    "xml_input_root": ["question"],
    "xml_output_root": ["_answer-1.0"],
    "xml_context_root": ["größe"],
}


def test_setting_with_valid_value_is_stored_unchanged() -> None:
    for attribute, values in RIGHT.items():
        for value in values:
            with case(attribute, value):
                assert getattr(spec_of(declare(**{attribute: value})()), attribute) is value
                assert getattr(spec_of(declare()(**{attribute: value})), attribute) is value


# Invalid values and their messages

MODEL = (
    "a model id such as 'openai/gpt-4o' or 'local/smollm2', a dict with 'model' and LiteLLM arguments "
    "('num_retries' a count, 'retry_delay' in seconds; not 'messages', 'tools' or 'stream'), "
    "or an object of the model port, or a list of these, of which the next is used if one fails"
)
CACHE = (
    "'auto', True, or at most 4 points such as {'location': 'message', 'role': 'system'} or "
    "{'location': 'message', 'index': 0}"
)
TEMPERATURE = "a number from 0 to 2"
POSITIVE = "a whole number of at least 1"
STEPS = "a whole number of at least 1, or None for a single turn"
COUNT = "a whole number of at least 0"
FLAG = "True or False"
ROOT = "the name of an XML element"
PROMPT = "a string, a Path or a method"
SCHEMA = (
    "a BaseModel class, a list of fields (`'name'`, `('name', type)` or `('name', type, default)`), "
    "a dict of fields (`{'name': type}`), a type that Pydantic can validate, or [] for none"
)
FIELD = "`'name'`, `('name', type)` or `('name', type, default)`"
IDENTIFIER = ", but a field name must be a Python identifier that does not begin with `_`. Rename the field."

WRONG: list[tuple[str, str, list[Any]]] = [
    (
        "model",
        MODEL,
        [
            {"model": "openai/gpt-4o", "messages": []},
            {"model": "openai/gpt-4o", "stream": True},
            "",
            " ",
            5,
            b"openai/gpt-4o",
            True,
            {},
            {"model": ""},
            {"model": 5},
            {"api_key": "k"},
            {"model": "m", "num_retries": -1},
            {"model": "m", "num_retries": True},
            {"model": "m", "num_retries": "2"},
            {"retry_delay": -0.5, "model": "m"},
            {"model": "m", "retry_delay": math.inf},
        ],
    ),
    ("temperature", TEMPERATURE, [-0.1, 2.1, "0.7", None, True, math.nan, math.inf, [0.7]]),
    ("max_tokens", POSITIVE, [0, -1, 4096.0, "4096", None, True]),
    ("max_steps", STEPS, [0, -3, 1.5, "10", False, math.inf]),
    ("parse_retries", COUNT, [-1, 1.0, "2", None, True]),
    ("system_prompt", PROMPT, [5, None, b"text", ["text"], str]),
    ("tools", "a list of functions such as [search]", [None, "search", {"search": 1}, set()]),
    ("branches", "a dict of names and modules", [None, [], "check"]),
    (
        "cache",
        CACHE,
        [
            None,
            1,
            "system",
            "Auto",
            ["system"],
            {},
            [{}],
            {"location": "message", "index": 0},
            [{"location": "message"}],
            [{"location": "tool", "index": 0}],
            [{"location": "message", "role": "robot"}],
            [{"location": "message", "role": ["user"]}],
            [{"location": "message", "index": "0"}],
            [{"location": "message", "index": 0, "control": "1h"}],
            [{"location": "message", "index": 0, "ttl": 5}],
        ],
    ),
    ("max_total_tokens", "a whole number of at least 1, or None", [0, 1000.0]),
    ("max_cost", "a number of dollars above 0, or None", [0, "$5"]),
    ("max_seconds", "a number of seconds above 0, or None", [-1, math.inf]),
    ("loop_guard", "'notice', 'force' or None", ["warn", True]),
    ("xml_include_descriptions", FLAG, [None, 1]),
    ("xml_include_none", FLAG, ["yes", 0]),
    ("xml_description_format", "'attribute' or 'comment'", ["Comment", "", None, ["comment"]]),
    ("xml_input_root", ROOT, ["", "my input", "1st", "a:b", None]),
    ("xml_output_root", ROOT, ["<output>", 5]),
    ("xml_context_root", ROOT, ["a/b"]),
    ("initial_input", SCHEMA, [5, True, ..., {"question"}]),
    ("final_output", SCHEMA, [1.5]),
]


def _on_the_class(attribute: str, value: Any) -> object:
    return declare(**{attribute: value})


def _on_the_instance(attribute: str, value: Any) -> object:
    return declare()(**{attribute: value})


def _by_using(attribute: str, value: Any) -> object:
    return declare()().using(**{attribute: value})


def _on_the_instance_later(attribute: str, value: Any) -> object:
    agent = declare()()
    setattr(agent, attribute, value)
    return spec_of(agent)


def _on_the_class_later(attribute: str, value: Any) -> object:
    agent = declare()
    setattr(agent, attribute, value)
    return spec_of(agent())


WAYS = [_on_the_class, _on_the_instance, _by_using, _on_the_instance_later, _on_the_class_later]


def shown(attribute: str, value: Any) -> str:
    """Return a value as the error message shows it: a model dict may have a key in it."""
    is_model = attribute == "model" and isinstance(value, dict)
    return f"a dict with the keys {', '.join(sorted(value)) or '(none)'}" if is_model else repr(value)


def test_setting_with_invalid_value_raises_error_with_allowed_and_received_value() -> None:
    for attribute, allowed, values in WRONG:
        for value, way in itertools.product(values, WAYS):
            with case(attribute, value, way.__name__):
                words = refusal(way, attribute, value)
                assert words == f"`Agent.{attribute}` must be {allowed}, got {shown(attribute, value)}."


def test_declaration_error_describes_unusual_values() -> None:
    assert refusal(declare, temperature=10**400).startswith(
        "`Agent.temperature` must be a number from 0 to 2, got 1000"
    )
    assert "`Agent.temperature` must be a number" in refusal(declare, temperature=property(lambda self: 1))
    words = refusal(declare, temperature="x" * 5000)
    assert words.startswith("`Agent.temperature` must be a number from 0 to 2, got 'xxx")
    assert words.endswith("x….")
    assert len(words) < 200


def test_declaration_error_contains_class_name_and_attribute() -> None:
    assert refusal(declare, "Researcher", temperature=3).startswith("`Researcher.temperature` must be ")
    parent = declare("Parent")
    assert refusal(declare, "Child", parent, max_steps=0).startswith("`Child.max_steps` must be ")


def test_declaration_error_is_raised_for_value_with_failing_repr() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    words = refusal(declare, temperature=Broken())
    assert words == "`Agent.temperature` must be a number from 0 to 2, got <Broken without a repr>."


# Similar names

NEAR = [
    ("max_step", "max_steps"),
    ("maxsteps", "max_steps"),
    ("max_token", "max_tokens"),
    ("temprature", "temperature"),
    ("temperatur", "temperature"),
    ("system_promt", "system_prompt"),
    ("initial_inputs", "initial_input"),
    ("final_ouptut", "final_output"),
    ("tool", "tools"),
    ("toools", "tools"),
    ("branchs", "branches"),
    ("cach", "cache"),
    ("models", "model"),
    ("parse_retrys", "parse_retries"),
    ("xml_include_description", "xml_include_descriptions"),
    ("xml_inputroot", "xml_input_root"),
]


def test_similar_attribute_name_warns_with_suggestion() -> None:
    for written, meant in NEAR:
        with case(written, meant):
            with pytest.warns(UserWarning, match="Did you mean") as caught:
                declare(**{written: 5})
            assert [str(warning.message) for warning in caught] == [
                f"`Agent.{written}` is not a setting. Did you mean `{meant}`?"
            ]


def test_similar_name_warning_has_filename_of_class_and_is_not_repeated_for_subclass() -> None:
    with pytest.warns(UserWarning, match="Did you mean") as caught:

        class Agent(module):
            max_step = 5

    assert caught[0].filename == __file__
    assert Agent.max_step == 5

    with pytest.warns(UserWarning, match="Did you mean `max_steps`"):
        parent = declare("Parent", max_step=5)
    declare("Child", parent)


def test_attribute_with_unrelated_or_private_name_does_not_warn() -> None:
    for name in [
        "name",
        "limit",
        "database",
        "steps_taken",
        "max_rows",
        "prompt_version",
        "input",
        "output",
        "retries",
        "_max_step",
    ]:
        with case(name), warnings.catch_warnings():
            warnings.simplefilter("error")
            declare(**{name: 5})


def test_methods_properties_and_inner_classes_do_not_warn() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        class Agent(module):
            maxsteps: int

            def tool(self) -> None: ...

            @property
            def models(self) -> list[str]:
                return []

            @functools.cached_property
            def toools(self) -> list[str]:
                return []

            @staticmethod
            def caches() -> None: ...

            @classmethod
            def cach(cls) -> None: ...

            class Model: ...

    assert [str(warning.message) for warning in caught] == []
    assert names(Agent) == []


# Overrides on one instance


class Painter(module):
    """Paint."""

    model = "openai/gpt-4o"
    temperature = 0.5
    tools = [search]


def test_instance_settings_override_class_settings() -> None:
    spec = spec_of(Painter(temperature=0.2, max_steps=3, model={"id": "m"}, tools=[calculate], final_output=str))
    assert (spec.temperature, spec.max_steps, spec.model) == (0.2, 3, {"id": "m"})
    assert [tool.name for tool in spec.tools] == ["calculate"]
    assert spec.output.wrapped
    assert spec.prompt.text == "Paint."
    assert spec_of(Painter()).temperature == 0.5
    assert names(Painter) == ["search"]


def test_spec_is_compiled_once_for_class_and_once_for_instance_with_own_settings() -> None:
    assert spec_of(Painter()) is spec_of(Painter())
    agent = Painter(temperature=0.2)
    assert spec_of(agent) is spec_of(agent)


def test_every_setting_is_accepted_as_init_argument() -> None:
    everything: dict[str, Any] = {
        "model": "m",
        "temperature": 1,
        "max_tokens": 5,
        "max_steps": 5,
        "parse_retries": 5,
        "system_prompt": "Hello",
        "initial_input": Text,
        "final_output": Verdict,
        "tools": [calculate],
        "branches": {"check": declare("Check", final_output=str)},
        "cache": True,
        "max_total_tokens": 5,
        "max_cost": 5,
        "max_seconds": 5,
        "loop_guard": None,
        "xml_include_descriptions": False,
        "xml_include_none": True,
        "xml_description_format": "comment",
        "xml_input_root": "question",
        "xml_output_root": "answer",
        "xml_context_root": "facts",
    }
    spec = spec_of(module(**everything))
    assert spec.declared == set(everything)
    assert (spec.input.schema, spec.output.schema) == (Text, Verdict)
    assert {name for name, _ in DEFAULTS + BESIDES} <= set(everything)


def test_unknown_setting_raises_type_error() -> None:
    for name, words in [
        ("depth", "`Painter` has no setting `depth`."),
        ("__acorn_spec__", "`Painter` has no setting `__acorn_spec__`."),
        ("temprature", "`Painter` has no setting `temprature`. Did you mean `temperature`?"),
        ("max_step", "`Painter` has no setting `max_step`. Did you mean `max_steps`?"),
    ]:
        with case(name, words):
            for act in (Painter, Painter().using):
                with pytest.raises(TypeError) as caught:
                    act(**{name: 5})
                assert str(caught.value).startswith(words)
                assert "Its settings are: `model`, " in str(caught.value)


def test_input_passed_to_init_raises_type_error_that_suggests_passing_it_to_call() -> None:
    class Asked(module[Text, Verdict]):
        """Judge."""

    words = "`text` is an input of `Asked`, not a setting. Pass it to the call: `Asked()(text=...)`."
    for act in (Asked, Asked().using, Asked.override):
        with pytest.raises(TypeError) as caught:
            act(text="a")
        assert str(caught.value) == words


def test_positional_setting_raises_type_error() -> None:
    with pytest.raises(TypeError):
        cast(Any, Painter)("openai/gpt-4o")


def test_user_init_without_super_call_leaves_class_settings_and_using_unchanged() -> None:
    class Agent(module):
        temperature = 0.5

        def __init__(self, name: str) -> None:
            self.name = name

    assert spec_of(Agent("a")).temperature == 0.5
    assert Agent("a").using(temperature=1).name == "a"
    assert spec_of(Agent("a").using(temperature=1)).temperature == 1


def test_user_init_with_super_call_applies_overrides() -> None:
    class Agent(module):
        def __init__(self, name: str, **overrides: Any) -> None:
            super().__init__(**overrides)
            self.name = name

    assert spec_of(Agent("a", temperature=0.2)).temperature == 0.2
    assert spec_of(Agent("a")).temperature == 0.7
    with pytest.raises(DeclarationError, match=r"`Agent\.max_steps`"):
        Agent("a", max_steps=0)
    with pytest.raises(TypeError, match="`depth`"):
        Agent("a", depth=0)


def test_settings_assigned_to_self_in_user_init_replace_class_settings() -> None:
    class Agent(module):
        """From the docstring."""

        def __init__(self, text: str) -> None:
            self.system_prompt = text
            self.temperature = 0.1
            self.tools = [search]
            self.final_output = ["answer"]

    spec = spec_of(Agent("From init."))
    assert (spec.prompt.text, spec.temperature) == ("From init.", 0.1)
    assert [tool.name for tool in spec.tools] == ["search"]
    assert list(spec.output.schema.model_fields) == ["answer"]
    assert spec.declared == {"system_prompt", "temperature", "tools", "final_output"}


def test_dataclass_module_has_docstring_prompt() -> None:
    @dataclasses.dataclass
    class Agent(module):
        """Help."""

        name: str = "a"

    assert spec_of(Agent(name="b")).prompt.text == "Help."


def test_frozen_dataclass_module_is_accepted() -> None:
    @dataclasses.dataclass(frozen=True)
    class Agent(module):
        """Help."""

        name: str = "a"
        final_output = str

    agent = Agent(name="b")
    with Agent.override(model=ScriptedModel([finish(result="done"), finish(result="done")])):
        assert agent.using(deps=1)() == "done"
        assert agent() == "done"
    assert agent.last is not None


def test_bound_method_in_tools_of_instance_has_schema_without_self() -> None:
    class Agent(module):
        def __init__(self) -> None:
            self.tools = [self.look]

        def look(self, where: str) -> str:
            """Look around."""
            return where

    (look,) = spec_of(Agent()).tools
    assert look.schema == {
        "name": "look",
        "description": "Look around.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
    }


# using


def test_using_returns_copy_and_does_not_change_original() -> None:
    agent = Painter(temperature=0.2)
    before = spec_of(agent)
    other = agent.using(temperature=1.0, max_steps=4)
    assert type(other) is Painter
    assert other is not agent
    assert (spec_of(other).temperature, spec_of(other).max_steps) == (1.0, 4)
    assert spec_of(agent) is before
    assert (agent.temperature, agent.max_steps) == (0.2, None)


def test_using_copy_has_earlier_settings_and_user_attributes() -> None:
    agent = Painter(temperature=0.2)
    vars(agent)["colors"] = ["red"]
    third = agent.using(max_steps=4).using(max_tokens=7)
    spec = spec_of(third)
    assert (spec.temperature, spec.max_steps, spec.max_tokens) == (0.2, 4, 7)
    assert vars(third)["colors"] is vars(agent)["colors"]


def test_using_without_arguments_returns_equal_copy() -> None:
    agent = Painter(temperature=0.2)
    other = agent.using()
    assert other is not agent
    assert spec_of(other).temperature == 0.2


def test_using_does_not_call_user_init() -> None:
    calls: list[str] = []

    class Agent(module):
        def __init__(self, name: str) -> None:
            calls.append(name)

    assert spec_of(Agent("a").using(temperature=0.1)).temperature == 0.1
    assert calls == ["a"]


def test_using_with_branch_that_has_name_of_tool_raises_tool_conflict_error() -> None:
    check = declare("Check", final_output=str)
    with pytest.raises(ToolConflictError, match="Tool 'search' of `Painter`"):
        Painter().using(branches={"search": check})


# Changes after the definition


def test_class_attribute_changed_after_instantiation_changes_spec() -> None:
    agent = declare(temperature=0.5)
    instance = agent()
    assert spec_of(instance).temperature == 0.5
    cast(Any, agent).temperature = 1.0
    assert spec_of(instance).temperature == 1.0
    cast(Any, agent).temperature = 5
    assert refusal(spec_of, instance) == "`Agent.temperature` must be a number from 0 to 2, got 5."
    cast(Any, agent).temperature = 0.25
    assert spec_of(instance).temperature == 0.25


def test_class_attribute_deleted_after_declaration_is_reset_to_default() -> None:
    agent = declare(temperature=0.5)
    del cast(Any, agent).temperature
    assert spec_of(agent()).temperature == 0.7
    assert spec_of(agent()).declared == set()


def test_parent_class_attribute_change_changes_spec_of_subclass_instances() -> None:
    parent = declare("Parent", temperature=0.5)
    child = declare("Child", parent)
    instance = child(max_steps=3)
    assert spec_of(instance).temperature == 0.5
    cast(Any, parent).temperature = 0.1
    assert spec_of(instance).temperature == 0.1
    assert spec_of(instance).max_steps == 3


def test_instance_attribute_change_changes_spec() -> None:
    agent = Painter(temperature=0.2)
    agent.temperature = 0.3
    assert spec_of(agent).temperature == 0.3
    del agent.temperature
    assert spec_of(agent).temperature == 0.5


def test_tool_list_edited_in_place_changes_compiled_tools() -> None:
    agent = declare(tools=[search])
    instance, own = agent(), agent(tools=[search])
    assert names(instance) == names(own) == ["search"]
    cast(Any, agent.tools).append(calculate)
    assert names(instance) == ["search", "calculate"]
    assert names(own) == ["search"]
    cast(Any, own.tools).insert(0, calculate)
    assert names(own) == ["calculate", "search"]
    cast(Any, agent.tools).append(5)
    assert refusal(spec_of, instance).startswith("`Agent.tools[2]` must be a function")


def test_in_place_edits_of_field_list_branches_dict_and_model_dict_change_compiled_spec() -> None:
    agent = declare(initial_input=["a"], branches={}, model={"model": "m"})
    instance = agent()
    before = spec_of(instance)
    agent.initial_input.append(("b", int))
    cast(Any, agent.branches)["check"] = declare("Check", final_output=str)
    agent.model["num_retries"] = 4
    after = spec_of(instance)
    assert list(after.input.schema.model_fields) == ["a", "b"]
    assert list(after.branches) == ["check"]
    assert after is not before
    agent.model["num_retries"] = -1
    assert refusal(spec_of, instance).startswith("`Agent.model` must be ")
    agent.model = ["m", {"model": "n"}]
    before = spec_of(instance)
    agent.model.append("o")
    assert spec_of(instance) is not before
    agent.model[1]["num_retries"] = -1
    assert refusal(spec_of, instance).startswith("`Agent.model[1]` must be ")


def test_parent_prompt_changed_after_declaration_changes_prompt() -> None:
    parent = declare("Parent", system_prompt="one")
    agent = declare("Child", parent)()
    assert prompt(agent).text == "one"
    cast(Any, parent).system_prompt = "two"
    assert prompt(agent).text == "two"


# module[In, Out]


def test_type_arguments_declare_input_and_output_schema() -> None:
    class Sentiment(module[Text, Verdict]):
        """Classify the sentiment of the text."""

    spec = spec_of(Sentiment())
    assert (spec.input.schema, spec.output.schema) == (Text, Verdict)
    assert (Sentiment.initial_input, Sentiment.final_output) == (Text, Verdict)
    assert spec.prompt.text == "Classify the sentiment of the text."
    assert spec.declared == {"initial_input", "final_output"}


def test_plain_types_as_type_arguments_are_wrapped_in_one_field() -> None:
    class Splitter(module[str, list[str]]):
        pass

    spec = spec_of(Splitter())
    assert (spec.input.wrapped, spec.output.wrapped) == ("input", "result")
    assert spec.output.schema.model_fields["result"].annotation == list[str]


def test_type_argument_none_declares_no_schema() -> None:
    class Dice(module[None, int]):
        pass

    class Log(module[Text, None]):
        pass

    assert spec_of(Dice()).input.is_empty
    assert not spec_of(Dice()).output.is_empty
    assert spec_of(Log()).output.is_empty


def test_type_argument_any_does_not_replace_schema_declared_as_attribute() -> None:
    class Half(module[Any, Verdict]):
        initial_input = ["text"]

    spec = spec_of(Half())
    assert list(spec.input.schema.model_fields) == ["text"]
    assert spec.output.schema is Verdict


def test_single_type_argument_declares_input_schema() -> None:
    class Half(module[Text]):
        final_output = Verdict

    assert (spec_of(Half()).input.schema, spec_of(Half()).output.schema) == (Text, Verdict)


def test_four_type_arguments_raise_type_error() -> None:
    with pytest.raises(TypeError, match="Too many arguments"):
        cast(Any, module)[Text, Verdict, str, int]


T = TypeVar("T")
U = TypeVar("U")


def test_type_arguments_of_generic_parent_class_declare_schemas_of_subclass() -> None:
    class Judge(module[T, Verdict], Generic[T]):
        """Judge."""

    class TextJudge(Judge[Text]):
        pass

    class Sterner(TextJudge):
        temperature = 0

    for judge in (TextJudge(), Sterner()):
        spec = spec_of(judge)
        assert (spec.input.schema, spec.output.schema) == (Text, Verdict)
        assert spec.prompt.text == "Judge."
    assert spec_of(Judge()).input.is_empty
    assert spec_of(Judge()).output.schema is Verdict


def test_type_arguments_in_swapped_order_are_matched_by_type_variable() -> None:
    class Swapped(module[U, T], Generic[T, U]):
        pass

    class Partly(Swapped[Verdict, U]):
        pass

    class Whole(Partly[Text]):
        pass

    spec = spec_of(Whole())
    assert (spec.input.schema, spec.output.schema) == (Text, Verdict)


def test_type_argument_replaces_type_variable_inside_nested_type() -> None:
    class Sorter(module[list[T], dict[str, T]], Generic[T]):
        pass

    class NumberSorter(Sorter[int]):
        pass

    spec = spec_of(NumberSorter())
    assert spec.input.schema.model_fields["input"].annotation == list[int]
    assert spec.output.schema.model_fields["result"].annotation == dict[str, int]


def test_type_argument_that_contradicts_attribute_raises_declaration_error() -> None:
    def twice() -> None:
        class Sentiment(module[Text, Verdict]):
            initial_input = Verdict

    assert refusal(twice) == "`Sentiment` declares `initial_input` twice, in brackets and as an attribute. Keep one."


def test_type_arguments_that_equal_attribute_are_accepted() -> None:
    class Sentiment(module[Text, list[str]]):
        initial_input = Text
        final_output = list[str]

    assert spec_of(Sentiment()).input.schema is Text


def test_subclass_type_arguments_replace_parent_type_arguments() -> None:
    class Sentiment(module[Text, Verdict]):
        pass

    class Reversed(Sentiment, module[Verdict, Text]):
        pass

    spec = spec_of(Reversed())
    assert (spec.input.schema, spec.output.schema) == (Verdict, Text)


def test_subclass_attribute_replaces_parent_type_argument() -> None:
    class Sentiment(module[Text, Verdict]):
        pass

    class Short(Sentiment):
        final_output = str

    assert spec_of(Short()).input.schema is Text
    assert spec_of(Short()).output.wrapped


def test_mixin_attribute_before_class_in_bases_replaces_type_argument() -> None:
    class Sentiment(module[Text, Verdict]):
        pass

    class Plain:
        final_output = str

    assert spec_of(declare("Short", Plain, Sentiment)()).output.wrapped


def test_final_output_assigned_later_to_class_with_type_arguments_changes_subclasses() -> None:
    class Sentiment(module[Text, Verdict]):
        pass

    class Child(Sentiment):
        pass

    Sentiment.final_output = str
    assert spec_of(Child()).output.wrapped


def test_instance_attribute_replaces_type_argument() -> None:
    class Sentiment(module[Text, Verdict]):
        pass

    assert spec_of(Sentiment(final_output=str)).output.wrapped


def test_quoted_type_argument_raises_declaration_error() -> None:
    def forward() -> None:
        class Sentiment(module["Text", "Verdict"]):
            pass

    assert refusal(forward).startswith("`Sentiment.initial_input` must be ")


# Schemas, in all forms


def fields_of(declared: Any) -> dict[str, tuple[Any, bool, Any]]:
    """Return name, type, requirement and default of each field."""
    fields = spec_of(declare(initial_input=declared)()).input.schema.model_fields
    return {
        name: (field.annotation, field.is_required(), field.get_default(call_default_factory=True, validated_data={}))
        for name, field in fields.items()
        if not field.is_required()
    } | {name: (field.annotation, True, None) for name, field in fields.items() if field.is_required()}


LISTS: list[tuple[Any, dict[str, tuple[Any, bool, Any]]]] = [
    (["question"], {"question": (str, True, None)}),
    (("question",), {"question": (str, True, None)}),
    ([("question",)], {"question": (str, True, None)}),
    ([("n", int)], {"n": (int, True, None)}),
    ([("n", int, 5)], {"n": (int, False, 5)}),
    ([("n", int, ...)], {"n": (int, True, None)}),
    ([("n", int | None, None)], {"n": (int | None, False, None)}),
    ([("n", int, Field(description="How many"))], {"n": (int, True, None)}),
    ([("n", int, Field(default=5, ge=1))], {"n": (int, False, 5)}),
    ([("tags", list[str], Field(default_factory=list))], {"tags": (list[str], False, [])}),
    ([("text", Text)], {"text": (Text, True, None)}),
    ([("color", Color, Color.RED)], {"color": (Color, False, Color.RED)}),
    (["a", ("b", int), ("c", float, 0.5)], {"a": (str, True, None), "b": (int, True, None), "c": (float, False, 0.5)}),
    (["class", "größe"], {"class": (str, True, None), "größe": (str, True, None)}),
]


def test_field_list_is_converted_to_schema() -> None:
    for declared, expected in LISTS:
        with case(declared, expected):
            assert fields_of(declared) == expected
            assert not spec_of(declare(initial_input=declared)()).input.wrapped


def test_field_list_schema_contains_fields_in_order_with_descriptions_and_limits() -> None:
    declared = ["z", ("n", int, Field(description="How many", ge=1)), ("a", str, "x")]
    assert spec_of(declare(final_output=declared)()).output.json_schema == {
        "type": "object",
        "properties": {
            "z": {"type": "string"},
            "n": {"type": "integer", "description": "How many", "minimum": 1},
            "a": {"type": "string", "default": "x"},
        },
        "required": ["z", "n"],
    }


def test_invalid_field_list_raises_error_with_index_and_received_value() -> None:
    for declared, place, words in [
        ([5], "[0]", f"must be {FIELD}, got 5."),
        ([None], "[0]", f"must be {FIELD}, got None."),
        ([...], "[0]", f"must be {FIELD}, got Ellipsis."),
        ([str], "[0]", f"must be {FIELD}, got <class 'str'>."),
        ((str, int), "[0]", f"must be {FIELD}, got <class 'str'>."),
        ([()], "[0]", f"must be {FIELD}, got ()."),
        ([["n", int]], "[0]", f"must be {FIELD}, got ['n', <class 'int'>]."),
        ([{"n": int}], "[0]", f"must be {FIELD}, got {{'n': <class 'int'>}}."),
        ([(5, int)], "[0]", f"must be {FIELD}, got (5, <class 'int'>)."),
        (["a", ("n", int, 1, 2)], "[1]", f"must be {FIELD}, got ('n', <class 'int'>, 1, 2)."),
        (["a", "1st"], "[1]", f"has the field name '1st'{IDENTIFIER}"),
        (["my field"], "[0]", f"has the field name 'my field'{IDENTIFIER}"),
        (["_private"], "[0]", f"has the field name '_private'{IDENTIFIER}"),
        ([("", int)], "[0]", f"has the field name ''{IDENTIFIER}"),
        (["a", "a"], "", "contains the field `a` twice. Remove or rename one of the two fields."),
        (["a", "b", ("a", int)], "", "contains the field `a` twice. Remove or rename one of the two fields."),
    ]:
        for attribute in ["initial_input", "final_output"]:
            with case(attribute, declared, place, words):
                assert refusal(declare, **{attribute: declared}) == f"`Agent.{attribute}{place}` {words}"


def test_field_with_invalid_type_raises_error_with_field_index_and_type() -> None:
    for kind in [5, {"a": int}, Field(description="How many"), ...]:
        for attribute in ["initial_input", "final_output"]:
            with case(attribute, kind):
                words = refusal(declare, **{attribute: ["a", ("n", kind)]})
                assert words.startswith(f"`Agent.{attribute}[1]` must be ")
                assert words.endswith(f"got {kind!r}.")


def test_text_instead_of_type_raises_error_with_advice() -> None:
    advice = "Write the type without quotes, and define or import it before `Agent`."
    for attribute in ["initial_input", "final_output"]:
        assert refusal(declare, **{attribute: ["a", ("n", "int")]}) == (
            f"`Agent.{attribute}[1]` must be a type, got the text 'int'. {advice}"
        )
        assert refusal(declare, **{attribute: "question"}) == (
            f"`Agent.{attribute}` must be a type, got the text 'question'. {advice} "
            f"For a text field of this name, write `['question']`."
        )


def test_schema_type_unsupported_by_pydantic_raises_declaration_error() -> None:
    for declared in [Opaque, Opaque(), [("o", Opaque)], list[Opaque], Generic, type("Meta", (type,), {})]:
        for attribute in ["initial_input", "final_output"]:
            with case(attribute, declared):
                words = refusal(declare, **{attribute: declared})
                assert words.startswith(
                    (f"`Agent.{attribute}` has a type that Pydantic cannot use: ", f"`Agent.{attribute}` cannot be ")
                )


def test_schema_type_without_json_schema_raises_declaration_error() -> None:
    for declared in [Callable[[int], int], type, [("f", Callable[..., Any])]]:
        for attribute in ["initial_input", "final_output"]:
            with case(attribute, declared):
                words = refusal(declare, **{attribute: declared})
                assert words.startswith(f"`Agent.{attribute}` cannot be described in JSON Schema: ")
                assert words.endswith("Use types that JSON can represent.")


def test_pydantic_base_model_itself_as_schema_raises_declaration_error() -> None:
    assert refusal(declare, initial_input=BaseModel).startswith("`Agent.initial_input` ")


def test_field_that_pydantic_ignores_raises_declaration_error() -> None:
    for declared in [["model_config"], [("total", cast(Any, ClassVar)[int])]]:
        with case(declared):
            assert refusal(declare, initial_input=declared).startswith("`Agent.initial_input")


ODD_NAMES = ["title", "self", "model", "type", "default", "description", "copy", "json", "schema"]


def test_field_with_name_of_pydantic_attribute_is_accepted() -> None:
    for name in ODD_NAMES:
        with case(name):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                spec = spec_of(declare(initial_input=[name], final_output=[(name, int, 5)])())
            assert spec.input.json_schema == {
                "type": "object",
                "properties": {name: {"type": "string"}},
                "required": [name],
            }
            assert spec.output.json_schema["properties"] == {name: {"type": "integer", "default": 5}}
            assert spec.input.from_call("Agent", (), {name: "a"}).__dict__ == {name: "a"}


def test_several_fields_with_names_of_pydantic_attributes_are_accepted_in_one_schema() -> None:
    spec = spec_of(declare(initial_input=ODD_NAMES)())
    assert list(spec.input.json_schema["properties"]) == ODD_NAMES


def test_plain_type_schema_wraps_value_in_field_input_or_result() -> None:
    for declared, schema in [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (bool, {"type": "boolean"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Annotated[int, Field(gt=0)], {"type": "integer", "exclusiveMinimum": 0}),
        (Annotated[str, Field(description="A name")], {"type": "string", "description": "A name"}),
    ]:
        with case(declared, schema):
            for attribute, side, name in (("initial_input", "input", "input"), ("final_output", "output", "result")):
                shape = getattr(spec_of(declare(**{attribute: declared})()), side)
                assert shape.wrapped == name
                assert shape.json_schema == {"type": "object", "properties": {name: schema}, "required": [name]}


def test_plain_type_output_is_returned_unwrapped() -> None:
    for declared, given, expected in [
        (str, "a", "a"),
        (list[str], ["a"], ["a"]),
        (Place, {"x": 1}, Place(1)),
        (Point, {"x": 1}, {"x": 1}),
        (Text | Verdict, {"text": "a"}, Text(text="a")),
        (int | None, None, None),
        (Color, "red", Color.RED),
        (Numbers, [1, 2], Numbers([1, 2])),
        (Annotated[int, Field(gt=0)], 1, 1),
    ]:
        with case(declared, given, expected):
            shape = spec_of(declare(final_output=declared)()).output
            assert shape.unwrap(shape.schema.model_validate({"result": given})) == expected


def test_typed_dict_of_typing_module_is_accepted_since_python_3_12_and_rejected_before() -> None:
    Plain = typing.TypedDict("Plain", {"x": int})  # noqa: UP013
    try:
        assert spec_of(declare(final_output=Plain)()).output.wrapped
    except DeclarationError as error:
        assert sys.version_info < (3, 12)
        assert "typing_extensions.TypedDict" in str(error)  # noqa: PT017


def test_output_schema_returns_model_instance_and_empty_schema_returns_none() -> None:
    shape = spec_of(declare(final_output=Verdict)()).output
    verdict = Verdict(sentiment="positive")
    assert not shape.wrapped
    assert shape.unwrap(verdict) is verdict
    empty = spec_of(declare(final_output=[])()).output
    assert empty.unwrap(empty.schema()) is None


def test_empty_list_and_none_as_schema_declare_empty_schema() -> None:
    for nothing in (list[Any](), None, (), type(None)):
        with case(nothing):
            spec = spec_of(declare(initial_input=nothing, final_output=nothing)())
            for shape in (spec.input, spec.output):
                assert shape.is_empty
                assert not shape.wrapped
                assert shape.json_schema == {"type": "object", "properties": {}}


def test_schema_with_forward_reference_to_later_class_is_accepted() -> None:
    space: dict[str, Any] = {"BaseModel": BaseModel, "module": module, "__name__": "later"}
    exec("class Book(BaseModel):\n    pages: list['Page']\n\nclass Agent(module):\n    initial_input = Book", space)
    exec("class Page(BaseModel):\n    number: int", space)
    space["Book"].model_rebuild(_types_namespace=space)
    assert spec_of(space["Agent"]()).input.json_schema["properties"]["pages"]["type"] == "array"


def test_recursive_schema_is_accepted() -> None:
    class Tree(BaseModel):
        name: str
        children: list["Tree"] = []

    assert spec_of(declare(final_output=Tree)()).output.json_schema["type"] == "object"


# The system prompt


def test_docstring_and_prompt_string_are_dedented() -> None:
    class Agent(module):
        """
        You are a helpful assistant.

          - Be concise
        """

    assert prompt(Agent).text == "You are a helpful assistant.\n\n  - Be concise"
    agent = declare(
        system_prompt="""
        You are a helpful assistant.

          - Be concise
        """
    )
    assert prompt(agent).text == "You are a helpful assistant.\n\n  - Be concise"


def test_nearest_inherited_docstring_is_used_as_prompt() -> None:
    parent = declare("Parent", __doc__="Parent.")
    assert prompt(declare("Child", parent)).text == "Parent."
    assert prompt(declare("Child", parent, __doc__="Child.")).text == "Child."
    assert prompt(declare("Grandchild", declare("Child", parent, __doc__="Child."))).text == "Child."


def test_system_prompt_of_distant_base_class_replaces_nearer_docstrings() -> None:
    grandparent = declare("Grandparent", system_prompt="Explicit.")
    parent = declare("Parent", grandparent, __doc__="Parent.")
    assert prompt(declare("Child", parent, __doc__="Child.")).text == "Explicit."
    assert prompt(declare("Child", parent, __doc__="Child.", system_prompt="Nearest.")).text == "Nearest."


def test_system_prompt_of_mixin_is_used_as_prompt() -> None:
    class Mixin:
        system_prompt = "Mixed in."

    assert prompt(declare("Ahead", Mixin, module, __doc__="Doc.")).text == "Mixed in."
    assert prompt(declare("Behind", module, Mixin, __doc__="Doc.")).text == "Mixed in."


def test_docstring_of_mixin_or_module_class_is_not_used_as_prompt() -> None:
    class Mixin:
        """About the mixin."""

    assert prompt(declare("Ahead", Mixin, module)).text == ""
    assert prompt(declare("Behind", module, Mixin)).text == ""
    parent = declare("Parent", __doc__="Parent.")
    assert prompt(declare("Child", Mixin, parent)).text == "Parent."
    assert module.__doc__
    assert prompt(declare()).text == ""
    assert prompt(module()).text == ""


def test_empty_system_prompt_replaces_docstring_and_inherited_prompt() -> None:
    assert prompt(declare(__doc__="Doc.", system_prompt="")).text == ""
    parent = declare("Parent", __doc__="Parent.", system_prompt="Explicit.")
    assert prompt(declare("Child", parent, system_prompt="")).text == ""
    assert prompt(declare("Grandchild", declare("Child", parent, system_prompt=""), __doc__="Doc.")).text == ""
    assert prompt(declare(__doc__="Doc.")(system_prompt="")).text == ""


def test_prompt_method_is_called_per_run() -> None:
    class Agent(module):
        """Not this."""

        def system_prompt(self) -> str:
            return "dynamic"

    class Async(module):
        async def system_prompt(self) -> str:
            return "dynamic"

    class Child(Async):
        """Nor this."""

    for agent in (Agent, Async, Child):
        assert (prompt(agent).is_method, prompt(agent).text, prompt(agent).file) == (True, "", None)


def _with_default(self: object, language: str = "en") -> str:
    return language


def _with_anything(self: object, *args: object, **kwargs: object) -> str:
    return ""


def _alone(self: object) -> str:
    return ""


def _none() -> str:
    return ""


def _two(self: object, step: object) -> str:
    return ""


def _keyword(self: object, *, language: str) -> str:
    return language


def _anything(*args: object) -> str:
    return ""


def test_prompt_method_callable_with_self_alone_is_accepted() -> None:
    methods: tuple[Any, ...] = (
        _alone,
        _with_default,
        _with_anything,
        _anything,
        staticmethod(_none),
        classmethod(_alone),
    )
    for method in (*methods, lambda self: "text"):
        with case(method):
            assert prompt(declare(system_prompt=method)).is_method


def wrong_prompt(parameters: str, takes: str) -> str:
    given = f"`{takes}`" if takes else "no arguments"
    return (
        f"`Agent.system_prompt` has the parameters `({parameters})`, but acorn calls it with {given}. "
        f"Write `def system_prompt({takes})`."
    )


def test_prompt_method_with_wrong_number_of_parameters_raises_declaration_error() -> None:
    for method, words in [
        (_none, wrong_prompt("", "self")),
        (_two, wrong_prompt("self, step", "self")),
        (lambda: "text", wrong_prompt("", "self")),
        (staticmethod(_alone), wrong_prompt("self", "")),
        (classmethod(_two), wrong_prompt("self, step", "self")),
    ]:
        with case(method, words):
            assert refusal(declare, system_prompt=method) == words


def test_prompt_method_with_required_keyword_parameter_raises_declaration_error() -> None:
    assert refusal(declare, system_prompt=_keyword) == wrong_prompt("self, language", "self")


class Greeting:
    """A callable object, which Python does not bind to the instance."""

    def __call__(self) -> str:
        return "Hello"


class Wanting:
    def __call__(self, agent: object) -> str:
        return "Hello"


def test_callable_object_as_prompt_must_be_callable_without_arguments() -> None:
    assert prompt(declare(system_prompt=Greeting())).is_method
    assert refusal(declare, system_prompt=Wanting()) == wrong_prompt("agent", "")


def test_system_prompt_of_instance_may_be_text_file_or_function(tmp_path: Path) -> None:
    agent = declare(__doc__="Doc.", system_prompt=_alone)
    file = tmp_path / "prompt.md"
    file.write_text("From a file.")
    assert prompt(agent(system_prompt="  Text.")).text == "Text."
    assert prompt(agent(system_prompt=file)).file == file
    assert prompt(agent(system_prompt=_none)).is_method
    assert prompt(agent()).is_method
    assert refusal(agent, system_prompt=_alone) == wrong_prompt("self", "")


# A prompt in a file


def load(file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a file as a Python module, like a user's program."""
    found = importlib.util.spec_from_file_location(file.stem, file)
    assert found is not None
    assert found.loader is not None
    loaded = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, file.stem, loaded)
    found.loader.exec_module(loaded)
    return loaded


PROGRAM = """
from pathlib import Path
from acorn import module

class Researcher(module):
    system_prompt = Path("prompts/researcher.md")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a directory with a program; the working directory is another one."""
    there = tmp_path / "package"
    (there / "prompts").mkdir(parents=True)
    (there / "acorn_test_researcher.py").write_text(PROGRAM)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return there


def test_relative_prompt_file_is_found_next_to_class_file(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "prompts" / "researcher.md").write_text("beside")
    loaded = load(package / "acorn_test_researcher.py", monkeypatch)
    found = prompt(loaded.Researcher).file
    assert found is not None
    assert found.samefile(package / "prompts" / "researcher.md")
    assert read_prompt_file(found, "Researcher") == "beside"


def test_relative_prompt_file_is_found_in_working_directory_first(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "prompts" / "researcher.md").write_text("beside")
    Path("prompts").mkdir()
    Path("prompts/researcher.md").write_text("here")
    loaded = load(package / "acorn_test_researcher.py", monkeypatch)
    found = prompt(loaded.Researcher).file
    assert found is not None
    assert read_prompt_file(found, "Researcher") == "here"
    monkeypatch.chdir(package)
    assert read_prompt_file(found, "Researcher") == "here"


def test_inherited_prompt_file_is_found_next_to_declaring_class(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "prompts" / "researcher.md").write_text("beside")
    loaded = load(package / "acorn_test_researcher.py", monkeypatch)
    child = declare("Child", loaded.Researcher)
    found = prompt(child).file
    assert found is not None
    assert found.samefile(package / "prompts" / "researcher.md")


def test_missing_prompt_file_error_contains_searched_directories(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = refusal(load, package / "acorn_test_researcher.py", monkeypatch)
    assert words == (
        "`Researcher.system_prompt` is the path of the file `prompts/researcher.md`, which does not exist in "
        f"{Path.cwd() / 'prompts'} and {package.resolve() / 'prompts'}. "
        "Correct the path, or create the file."
    )


def test_missing_absolute_prompt_file_or_directory_raises_error_with_path(tmp_path: Path) -> None:
    for path in (tmp_path / "none.md", tmp_path):
        assert refusal(declare, system_prompt=path) == (
            f"`Agent.system_prompt` is the path of the file `{path}`, which does not exist in {path.parent}. "
            f"Correct the path, or create the file."
        )


def test_prompt_file_that_is_not_utf8_raises_declaration_error(tmp_path: Path) -> None:
    file = tmp_path / "latin.md"
    file.write_bytes("größe".encode("latin-1"))
    words = refusal(declare, system_prompt=file)
    assert words == (
        f"`Agent.system_prompt` cannot be read from `{file}` as UTF-8: "
        "'utf-8' codec can't decode byte 0xf6 in position 2: invalid start byte. "
        "Use a readable file in UTF-8."
    )


def test_prompt_file_text_is_sent_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    text = "\n   Größe\r\n\ttabs\n\n"
    file.write_bytes(text.encode())
    found = prompt(declare(system_prompt=file))
    assert (found.text, found.file, found.is_method) == ("", file, False)
    assert read_prompt_file(file, "Agent") == text


def test_prompt_file_deleted_after_declaration_raises_error_with_path(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("text")
    declare(system_prompt=file)
    file.unlink()
    words = refusal(read_prompt_file, file, "Agent")
    assert words.startswith(f"`Agent.system_prompt` cannot be read from `{file}`")


# Tools and inheritance


class Base(module):
    @tool
    def first(self, x: int) -> int:
        """First."""
        return x

    @tool(name="second_tool", timeout=5)
    def second(self, x: int) -> int:
        """Second."""
        return x


def by_name(agent: AgentClass, name: str) -> Tool:
    return next(tool for tool in spec_of(agent()).tools if tool.name == name)


def test_method_tools_of_base_class_are_listed_before_subclass_tools() -> None:
    class Child(Base):
        @tool
        def third(self, x: int) -> int:
            """Third."""
            return x

    assert names(Base) == ["first", "second_tool"]
    assert names(Child) == ["first", "second_tool", "third"]


def test_tools_of_attribute_precede_method_tools_and_replace_parent_tool_list() -> None:
    assert names(declare("Child", Base, tools=[search, calculate])) == ["search", "calculate", "first", "second_tool"]
    parent = declare("Parent", tools=[search])
    assert names(declare("Child", parent)) == ["search"]
    assert names(declare("Child", parent, tools=[calculate])) == ["calculate"]
    assert names(declare("Child", parent, tools=[])) == []


def test_mixin_method_tools_are_included() -> None:
    class Mixin:
        @tool
        def mixed(self, x: int) -> int:
            """Mixed in."""
            return x

    assert sorted(names(declare("Ahead", Mixin, Base))) == ["first", "mixed", "second_tool"]
    assert sorted(names(declare("Behind", Base, Mixin))) == ["first", "mixed", "second_tool"]


def test_decorated_override_replaces_method_tool() -> None:
    class Child(Base):
        @tool(name="uno")
        def first(self, x: int) -> int:
            """Uno."""
            return x

        @tool
        def second(self, x: int) -> int:
            """Again."""
            return x

    assert names(Child) == ["uno", "second"]
    assert by_name(Child, "uno").schema["description"] == "Uno."
    assert by_name(Child, "second").options.timeout is None


def test_undecorated_override_of_method_tool_inherits_tool_options() -> None:
    class Child(Base):
        def second(self, x: int, y: str = "") -> int:
            """Better."""
            return x

    assert names(Child) == ["first", "second_tool"]
    better = by_name(Child, "second_tool")
    assert better.schema["description"] == "Better."
    assert list(better.schema["parameters"]["properties"]) == ["x", "y"]
    assert better.options.timeout == 5


def test_override_of_method_tool_without_type_hints_raises_declaration_error() -> None:
    def no_hints(self: Any, x):  # type: ignore[no-untyped-def]
        """No hints."""

    words = refusal(declare, "Child", Base, first=no_hints)
    assert words == (
        "The parameter `x` of the tool `first` has no type hint. Add one, as in `x: str`. (`Child`, method `first`)"
    )


def test_subclass_attribute_that_is_not_a_method_removes_inherited_method_tool_of_that_name() -> None:
    for value in [None, 5, property(lambda self: 1)]:
        with case(value):
            child = declare("Child", Base, first=value)
            assert names(child) == ["second_tool"]
            assert names(declare("Grandchild", child)) == ["second_tool"]


def test_removed_tool_stays_removed_if_subclass_defines_plain_method_of_same_name() -> None:
    child = declare("Child", Base, first=None)

    def first(self: Any, x: int) -> int:
        """First."""
        return x

    assert names(declare("Grandchild", child, first=first)) == ["second_tool"]
    assert "first" in names(declare("Grandchild", child, first=tool(first)))


def test_static_methods_class_methods_and_instance_methods_are_accepted_as_tools() -> None:
    class Agent(module):
        @tool
        async def waiting(self, x: int) -> int:
            return x

        @staticmethod
        @tool
        def static(x: int) -> int:
            return x

        @tool
        @staticmethod
        def also_static(x: int) -> int:
            return x

        @classmethod
        @tool
        def of_class(cls, x: int) -> int:
            return x

    assert names(Agent) == ["waiting", "static", "also_static", "of_class"]
    for one in spec_of(Agent()).tools:
        assert one.schema["parameters"] == {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "required": ["x"],
        }


def test_method_with_lru_cache_decorator_is_accepted_as_tool() -> None:
    class Agent(module[Any, Any]):
        @tool
        @functools.lru_cache  # noqa: B019 - as users do
        def double(self, x: int) -> int:
            """Double a number."""
            return 2 * x

        @tool
        @functools.lru_cache(maxsize=5)  # noqa: B019
        def name(self) -> str:
            return type(self).__name__

    agent = Agent()
    double, name = (each.bound_to(agent) for each in spec_of(agent).tools)
    assert double.schema["parameters"]["properties"] == {"x": {"type": "integer"}}
    assert double.schema["description"] == "Double a number."
    positional, named = double.bind('{"x": 4}')
    assert double.function(*positional, **named) == 8
    assert name.function() == "Agent"


def test_function_or_method_tool_listed_twice_is_included_once() -> None:
    assert names(declare(tools=[search, search])) == ["search"]

    def ask(self: Any, x: int) -> int:
        """Ask."""
        return x

    marked = tool(ask)
    assert names(declare(ask=marked, tools=[marked])) == ["ask"]


def _another() -> Any:
    @tool(name="search")
    def look(query: str) -> str:
        """Look."""
        return query

    return look


def _method(self: Any, query: str) -> str:
    """Search."""
    return query


def _finish(self: Any, answer: str) -> str:
    return answer


def _star(*words: str) -> str:
    return " ".join(words)


def _untyped(query, limit: int = 5):  # type: ignore[no-untyped-def]
    return query


def _strange(callback: Callable[[int], int]) -> str:
    return ""


HERE = __name__

TOOLS: list[tuple[dict[str, Any], type[DeclarationError], str]] = [
    (
        {"tools": [search], "search": tool(_method)},
        ToolConflictError,
        "Tool 'search' defined in both tools attribute and as method",
    ),
    (
        {"tools": [search, _another()]},
        ToolConflictError,
        f"Tool 'search' of `Agent` is defined twice: as tools[0] (`{HERE}.search`) and as tools[1] "
        f"(`{HERE}._another.<locals>.look`). Rename one with `@tool(name=...)`.",
    ),
    (
        {"one": tool(name="same")(lambda self: 1), "two": tool(name="same")(lambda self: 1)},
        ToolConflictError,
        "Tool 'same' of `Agent` is defined twice: as method `one` and as method `two`. "
        "Rename one with `@tool(name=...)`.",
    ),
    (
        {"__finish__": tool(_finish)},
        DeclarationError,
        "`Agent` has a tool named `__finish__` (method `__finish__`), but that name is reserved for the tool that "
        "ends a run. Rename it with `@tool(name=...)`.",
    ),
    (
        {"tools": [tool(name="__finish__")(_star)]},
        DeclarationError,
        f"`Agent` has a tool named `__finish__` (tools[0] (`{HERE}._star`)), but that name is reserved for the tool "
        "that ends a run. Rename it with `@tool(name=...)`.",
    ),
    (
        {"tools": [search, _untyped]},
        DeclarationError,
        "The parameter `query` of the tool `_untyped` has no type hint. Add one, as in `query: str`. "
        f"(`Agent`, tools[1] (`{HERE}._untyped`))",
    ),
    (
        {"tools": [functools.partial(_star)]},
        DeclarationError,
        "The tool `_star` takes `*words`, which a model cannot pass by name. Take a list instead, "
        f"as in `words: list[str]`. (`Agent`, tools[0] (`{HERE}._star`))",
    ),
    (
        {"tools": [lambda: 1]},
        DeclarationError,
        f"`Agent` has a tool named '<lambda>' (tools[0] (`{HERE}.<lambda>`)), but providers accept only 1 to 64 "
        "letters, digits, `_` and `-`. Rename it with `@tool(name=...)`.",
    ),
    (
        {"tools": [5]},
        DeclarationError,
        "`Agent.tools[0]` must be a function, a callable object, an agent, a source with `tools()` or a "
        "hosted tool as a dict, got 5.",
    ),
    (
        {"tools": [search, "calculate"]},
        DeclarationError,
        "`Agent.tools[1]` must be a function, a callable object, an agent, a source with `tools()` or a "
        "hosted tool as a dict, got 'calculate'.",
    ),
    (
        {"tools": [Opaque]},
        DeclarationError,
        "`Agent.tools[0]` must be a function, a callable object, an agent, a source with `tools()` or a "
        "hosted tool as a dict, got the class `Opaque`.",
    ),
]


def test_invalid_tools_raise_declaration_error_with_exact_message() -> None:
    for attributes, kind, words in TOOLS:
        with case(attributes, kind, words):
            with pytest.raises(DeclarationError) as caught:
                declare(**attributes)
            assert type(caught.value) is kind
            assert str(caught.value) == words


def test_tool_parameter_without_json_schema_raises_error_with_parameter_name() -> None:
    words = refusal(declare, tools=[_strange])
    assert words.startswith("The parameter `callback` of the tool `_strange` has a type without a JSON Schema")
    assert words.endswith(f"(`Agent`, tools[0] (`{HERE}._strange`))")


def test_instance_tool_with_name_of_method_tool_raises_tool_conflict_error() -> None:
    class Agent(module):
        @tool
        def search(self, query: str) -> str:
            return query

    with pytest.raises(ToolConflictError, match=r"^Tool 'search' defined in both tools attribute and as method$"):
        Agent(tools=[search])


LOCAL = """
from __future__ import annotations
from acorn import module, tool
from pydantic import BaseModel

def make():
    class Spot(BaseModel):
        x: int

    class Agent(module):
        @tool
        def plot(self, spot: Spot) -> str:
            \"\"\"Plot.\"\"\"
            return ""

    return Agent
"""


def _local() -> AgentClass:
    space: dict[str, Any] = {"__name__": "acorn_test_local"}
    exec(LOCAL, space)
    return cast(AgentClass, space["make"]())


def test_tool_type_hint_with_class_local_to_function_is_resolved() -> None:
    agent = _local()
    changed = _local()
    cast(Any, changed).temperature = 1
    for kind in (agent, changed, declare("Child", _local())):
        assert list(by_name(kind, "plot").schema["parameters"]["properties"]) == ["spot"]
    for one in spec_of(agent(tools=[search])).tools:
        assert one.schema["parameters"]["properties"]


# Cache points

SYSTEM = {"location": "message", "role": "system"}
INPUT = {"location": "message", "index": 0}


def test_every_valid_form_of_cache_setting_is_converted_to_cache_points() -> None:
    for declared, compiled in [
        ([], ()),
        (False, ()),
        (True, (SYSTEM, INPUT)),
        ("auto", ({"location": "request"},)),
        ([SYSTEM], (SYSTEM,)),
        ((SYSTEM, INPUT), (SYSTEM, INPUT)),
        ([{"location": "message", "index": -1}], ({"location": "message", "index": -1},)),
        ([{**SYSTEM, "index": 0}], ({**SYSTEM, "index": 0},)),
        ([{**SYSTEM, "control": {"ttl": "1h"}}], ({**SYSTEM, "control": {"ttl": "1h"}},)),
        ([INPUT] * 4, (INPUT,) * 4),
        (
            [{"location": "message", "role": role} for role in ("user", "assistant", "tool")],
            tuple({"location": "message", "role": role} for role in ("user", "assistant", "tool")),
        ),
    ]:
        with case(declared, compiled):
            assert spec_of(declare(cache=declared)()).cache == compiled
            assert spec_of(declare()(cache=declared)).cache == compiled


def test_cache_setting_with_five_messages_or_boolean_index_raises_declaration_error() -> None:
    for wrong in ([INPUT] * 5, [{"location": "message", "index": True}]):
        assert refusal(declare, cache=wrong).startswith(f"`Agent.cache` must be {CACHE}, got [")


# Branches


class FactChecker(module):
    """Verify claims."""

    final_output = Verdict


def test_branches_declared_as_class_or_as_dict_with_description_are_stored_in_spec() -> None:
    agent = declare(branches={"check": FactChecker, "check-2": {"module": FactChecker, "description": "Check twice"}})
    assert spec_of(agent()).branches == {
        "check": FactChecker,
        "check-2": {"module": FactChecker, "description": "Check twice"},
    }


def test_branch_with_final_output_of_each_kind_is_accepted() -> None:
    for output in [str, ["answer"], Verdict, int | None, Place]:
        with case(output):
            check = declare("Check", final_output=output)
            assert spec_of(declare(branches={"check": check})()).branches == {"check": check}


def test_branch_with_inherited_output_and_branch_with_output_type_argument_are_accepted() -> None:
    class Bracketed(module[None, Verdict]):
        pass

    class Inherited(FactChecker):
        pass

    assert list(spec_of(declare(branches={"a": Bracketed, "b": Inherited})()).branches) == ["a", "b"]


def test_agent_class_declared_as_branch_of_itself_is_accepted() -> None:
    agent = declare(final_output=str, branches={})
    cast(Any, agent.branches)["again"] = agent
    assert spec_of(agent()).branches == {"again": agent}


BRANCH_NAME = "must have a name of 1 to 64 letters, digits, `_` and `-`, other than `__finish__`."
BRANCH_DICT = "must be a module class or {'module': Class, 'description': 'text'}, got "


def test_invalid_branch_declaration_raises_error_with_branch_name_and_received_value() -> None:
    for name, entry, words in [
        ("check", str, "must be a module class or an instance of one, got <class 'str'>."),
        ("check", None, "must be a module class or an instance of one, got None."),
        ("check", "FactChecker", "must be a module class or an instance of one, got 'FactChecker'."),
        ("check", Verdict, f"must be a module class or an instance of one, got {Verdict!r}."),
        ("check", {}, "must be a module class or an instance of one, got None."),
        ("check", {"description": "Check"}, "must be a module class or an instance of one, got None."),
        ("check", {"module": str}, "must be a module class or an instance of one, got <class 'str'>."),
        (
            "check",
            {"module": FactChecker, "description": 5},
            f"{BRANCH_DICT}{{'module': {FactChecker!r}, 'description': 5}}.",
        ),
        (
            "check",
            {"module": FactChecker, "max_steps": 5},
            f"{BRANCH_DICT}{{'module': {FactChecker!r}, 'max_steps': 5}}.",
        ),
        ("", FactChecker, BRANCH_NAME),
        ("fact check", FactChecker, BRANCH_NAME),
        ("fact.check", FactChecker, BRANCH_NAME),
        ("prüfen", FactChecker, BRANCH_NAME),
        ("x" * 65, FactChecker, BRANCH_NAME),
        ("__finish__", FactChecker, BRANCH_NAME),
        (5, FactChecker, BRANCH_NAME),
        (None, FactChecker, BRANCH_NAME),
    ]:
        with case(name, entry, words):
            for act in (declare, declare()):
                assert refusal(act, branches={name: entry}) == f"`Agent.branches[{name!r}]` {words}"


def test_branch_without_final_output_raises_declaration_error() -> None:
    for output in (list[Any](), None, (), type(None)):
        with case(output):
            silent = declare("Silent", final_output=output)
            for entry in (silent, {"module": silent, "description": "Check"}):
                assert refusal(declare, branches={"check": entry}) == (
                    "`Agent.branches['check']` is `Silent`, which has no `final_output`. "
                    "Set it, because a branch must return a value."
                )


def test_module_base_class_as_branch_raises_declaration_error() -> None:
    assert "which has no `final_output`" in refusal(declare, branches={"check": module})


def test_branch_with_name_of_tool_raises_tool_conflict_error() -> None:
    with pytest.raises(ToolConflictError) as caught:
        declare(tools=[search], branches={"search": FactChecker})
    assert str(caught.value) == (
        f"Tool 'search' of `Agent` is defined twice: as tools[0] (`{HERE}.search`) and in `branches`. Rename one."
    )
    with pytest.raises(ToolConflictError) as caught:
        declare("Child", Base, branches={"first": FactChecker})
    assert str(caught.value) == (
        "Tool 'first' of `Child` is defined twice: as method `first` and in `branches`. Rename one."
    )


def test_instance_tool_with_name_of_branch_raises_tool_conflict_error() -> None:
    with pytest.raises(ToolConflictError, match="in `branches`"):
        declare(branches={"search": FactChecker})(tools=[search])


# Secrets

CANARY = "sk-canary-0123456789"
SECRET = {"api_key": CANARY, "model": "openai/gpt-4o"}


def everything_said(error: BaseException) -> str:
    """Return the text of an error, its causes and their tracebacks."""
    return f"{error!r} {error} {error.args} {''.join(traceback.format_exception(error))}"


def test_api_key_is_not_in_repr_of_agent_or_spec() -> None:
    class Agent(module):
        """Help."""

        model = SECRET

        @tool
        def look(self, x: int) -> int:
            return x

    bare, own = Agent(), declare()(model=SECRET, temperature=0.1)
    for agent in (bare, own, bare.using(max_steps=3), own.using(max_steps=3)):
        for shown in (repr(agent), str(agent), f"{agent}", repr(spec_of(agent)), str(spec_of(agent))):
            assert CANARY not in shown
        assert "model='openai/gpt-4o'" in repr(agent)


def test_agent_repr_contains_model() -> None:
    for model, shown in [
        ("openai/gpt-4o", "<Agent model='openai/gpt-4o'>"),
        ({"model": "m", "api_key": CANARY}, "<Agent model='m'>"),
        ({"id": "m", "api_key": CANARY}, "<Agent model='m'>"),
        (None, "<Agent no model>"),
    ]:
        with case(model, shown):
            assert repr(declare(model=model)()) == shown


def test_agent_repr_with_invalid_model_does_not_contain_api_key() -> None:
    for model in [[SECRET], (SECRET,), {"model": SECRET}, MappingProxyType(SECRET), {CANARY}]:
        with case(model):
            agent = declare()()
            agent.model = model
            assert CANARY not in repr(agent)


LEAKS: list[dict[str, Any]] = [
    {"model": {"api_key": CANARY}},
    {"model": {**SECRET, "model": ""}},
    {"model": {**SECRET, "model": 5}},
    {"model": {**SECRET, "num_retries": -1}},
    {"model": {**SECRET, "retry_delay": "1"}},
    {"model": {"model": SECRET}},
    {"model": SECRET, "temperature": 5},
    {"model": SECRET, "max_steps": 0},
    {"model": SECRET, "tools": [5]},
    {"model": SECRET, "tools": [search], "search": tool(_method)},
    {"model": SECRET, "initial_input": [5]},
    {"model": SECRET, "final_output": Opaque},
    {"model": SECRET, "cache": "x"},
    {"model": SECRET, "system_prompt": Path("no/such/file.md")},
    {"model": SECRET, "system_prompt": _two},
    {"model": SECRET, "branches": {"check": str}},
    {"branches": {"check": declare("Silent", model=SECRET)}},
    {"branches": {"check": declare("Check", model=SECRET)()}},
    {"model": [{"api_key": CANARY}]},
    {"model": ({"api_key": CANARY},)},
    {"model": MappingProxyType({"api_key": CANARY})},
    {"model": [{**SECRET, "num_retries": -1}, SECRET]},
    {"branches": {"check": {"model": SECRET, "module": FactChecker}}},
    {"temperature": SECRET},
    {"tools": SECRET},
    {"tools": [SECRET]},
    {"cache": [SECRET]},
    {"initial_input": SECRET},
    {"initial_input": [SECRET]},
    {"system_prompt": SECRET},
    {"xml_input_root": SECRET},
]


def test_api_key_is_not_in_declaration_error() -> None:
    agent: Any = declare()
    for attributes in LEAKS:
        for act in (declare,) if "search" in attributes else (declare, agent, agent().using):
            with case(attributes, act):
                with pytest.raises(AcornError) as caught:
                    act(**attributes)
                assert CANARY not in everything_said(caught.value)


def test_api_key_is_not_in_unknown_setting_error_or_misspelled_attribute_warning() -> None:
    with pytest.raises(TypeError) as caught:
        declare(model=SECRET)(api_key=CANARY)
    assert CANARY not in str(caught.value)
    with pytest.warns(UserWarning, match="Did you mean `model`") as warned:
        declare(modell=SECRET)
    assert CANARY not in str(warned[0].message)


def test_bound_arguments_of_functools_partial_tool_are_not_in_schema_or_error() -> None:
    def fetch(url: str, token: str) -> str:
        """Fetch."""
        return url

    agent = declare(tools=[functools.partial(fetch, token=CANARY)])
    assert CANARY not in repr(spec_of(agent()))
    assert CANARY not in repr(by_name(agent, "fetch").schema)
    words = refusal(declare, tools=[functools.partial(cast(Any, _untyped), limit=CANARY)])
    assert CANARY not in words


# Patterns that Pydantic's core cannot compile

LOOKAHEAD = r"^(?=.*\d)\w+$"


class Late(BaseModel):
    """A class that Pydantic builds at first use."""

    model_config = ConfigDict(defer_build=True)
    code: str = Field(pattern=LOOKAHEAD)


def test_regex_pattern_that_pydantic_cannot_compile_raises_error_at_declaration() -> None:
    for declared, field in [
        ([("text", str), ("code", str, Field(pattern=LOOKAHEAD))], "the field `code` of "),
        ([("codes", list[Annotated[str, Field(pattern=LOOKAHEAD)]])], "the field `codes` of "),
        ([("code", Annotated[str, Field(pattern=r"(a)\1")])], "the field `code` of "),
        (Annotated[str, Field(pattern=LOOKAHEAD)], ""),
        (Late, "the field `code` of "),
    ]:
        for attribute in ["initial_input", "final_output"]:
            with case(attribute, declared, field):
                other = {"initial_input": [("text", str)], "final_output": [("answer", str)]}
                words = refusal(declare, **{"model": "x/y", "__doc__": "Judge.", **other, attribute: declared})
                assert f"the pattern of {field}`Agent.{attribute}`" in words
                assert "not supported" in words
                assert "python-re" in words


def test_regex_pattern_with_lookahead_and_python_regex_engine_validates_output() -> None:
    class Strong(BaseModel):
        model_config = ConfigDict(regex_engine="python-re")
        code: str = Field(pattern=LOOKAHEAD)

    agent = declare(
        model=ScriptedModel([finish(code="abc"), finish(code="abc1")]), __doc__="Invent.", final_output=Strong
    )
    assert agent()() == Strong(code="abc1")
