"""A family of small programs: class bodies with mixins, inheritance, slots, `__init__` and mistakes."""

from __future__ import annotations

import abc
import copy
import dataclasses
import enum
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pytest
from pydantic import BaseModel, Field
from tests.behaviour.conftest import Script
from tests.cases import case

from acorn import DeclarationError, module, tool
from acorn.testing import call as calling
from acorn.testing import finish

T = TypeVar("T")


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


class Base(module[Question, Answer]):
    """Answer the question."""


class Mixin:
    temperature = 0.1


class ToolMixin:
    @tool
    def mixed(self) -> str:
        """Mix."""
        return "mixed"


class Abstract(module[Question, Answer], abc.ABC):
    """Answer."""


class HasName(Protocol):
    label: str


class WithInit(Base):
    def __init__(self, label: str) -> None:
        super().__init__(temperature=0.2)
        self.label = label


class WithoutSuper(Base):
    def __init__(self, label: str) -> None:
        self.label = label


class WithSlots(Base):
    __slots__ = ("label",)


class WithProperty(Base):
    @property
    def label(self) -> str:
        return "label"


class WithClassVar(Base):
    label: ClassVar[str] = "label"
    count: int = 3
    unset: int


class WithInner(Base):
    class Config:
        model = "x"

    class Inner(BaseModel):
        question: str


class WithCall(Base):
    def ask(self, question: str) -> Any:
        return self(question=question)


class WithRepr(Base):
    def __repr__(self) -> str:
        return "repr"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class WithGetattr(Base):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class WithSetattr(Base):
    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


class WithNew(Base):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls)


class WithSubclassHook(Base):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()
        cls.registered = True  # type: ignore[attr-defined]


class Registered(WithSubclassHook, name="x"):
    pass


class Generalized(module[Question, T], Generic[T]):
    """Answer."""


class Specialized(Generalized[Answer]):
    pass


@dataclasses.dataclass
class AsDataclass(Base):
    label: str = "label"


class WithLoop(Base):
    for _index in range(2):
        pass
    names = [name for name in ("a", "b")]  # noqa: C416


class WithLambda(Base):
    score = lambda self: 1  # noqa: E731


class WithPrivate(Base):
    _max_step = 5
    __hidden = 1


class WithEnum(Base):
    class Kind(enum.Enum):
        A = 1


class Late(Base):
    pass


Late.temperature = 0.3

BODIES: list[tuple[str, Any]] = [
    ("mixin before", type("Agent", (Mixin, Base), {})),
    ("mixin after", type("Agent", (Base, Mixin), {})),
    ("tool mixin", type("Agent", (ToolMixin, Base), {})),
    ("abstract base", Abstract),
    ("init with super", lambda **settings: WithInit("x").using(**settings)),
    ("init without super", lambda **settings: WithoutSuper("x").using(**settings)),
    ("slots", WithSlots),
    ("property", WithProperty),
    ("class variables", WithClassVar),
    ("inner classes", WithInner),
    ("own method that calls", WithCall),
    ("own repr, eq and hash", WithRepr),
    ("own getattr", WithGetattr),
    ("own setattr", WithSetattr),
    ("own new", WithNew),
    ("own init_subclass", Registered),
    ("generic subclass", Specialized),
    ("generic with brackets", Generalized[Answer]),
    ("dataclass", lambda **settings: AsDataclass().using(**settings)),
    ("loop in the body", WithLoop),
    ("lambda in the body", WithLambda),
    ("private names", WithPrivate),
    ("enum in the body", WithEnum),
    ("setting assigned to the class", Late),
    ("deep inheritance", type("C", (type("B", (type("A", (Base,), {}),), {}),), {})),
    ("diamond", type("D", (type("L", (Base,), {}), type("R", (Base,), {"temperature": 0.1})), {})),
    ("copy", lambda **settings: copy.copy(Base(**settings))),
    ("deep copy of a copy", lambda **settings: copy.copy(Base().using(**settings))),
    ("pickled", lambda **settings: pickle.loads(pickle.dumps(Base())).using(**settings)),
    ("class with brackets at the call", module[Question, Answer]),
]


def test_class_body_of_each_kind_declares_a_working_agent(script: Script) -> None:
    for name, build in BODIES:
        with case(name):
            model = script(finish(answer="ok"))
            assert build(model=model)(question="?") == Answer(answer="ok")
            assert "<question>?</question>" in model.requests[0].messages[-1]["content"]


def test_values_of_mixins_and_bases_follow_the_mro(script: Script) -> None:
    for bases, wanted in [
        ((Mixin, Base), 0.1),
        ((Base, Mixin), 0.7),
        ((type("L", (Base,), {}), type("R", (Base,), {"temperature": 0.3})), 0.3),
    ]:
        with case(bases):
            model = script(finish(answer="ok"))
            type("Agent", bases, {"__module__": __name__})(model=model)(question="?")
            assert model.requests[0].temperature == wanted


def test_method_tool_of_mixin_is_called(script: Script) -> None:
    agent = type("Agent", (ToolMixin, Base), {"__module__": __name__, "max_steps": 2})
    model = script(calling("mixed"), finish(answer="ok"))
    agent(model=model)(question="?")
    assert model.requests[1].messages[-1]["content"] == "mixed"


def declare(**attributes: Any) -> Any:
    return type("Agent", (module,), {"__module__": __name__, **attributes})


def ways_to_set(settings: dict[str, Any]) -> list[tuple[str, Callable[[], Any]]]:
    """Return the ways to change the settings of an agent, each with its name."""
    return [
        ("instance", lambda: declare()(**settings)),
        ("using", lambda: declare()().using(**settings)),
        ("override", lambda: declare().override(**settings).__enter__()),
    ]


BAD: list[tuple[str, dict[str, Any], list[str]]] = [
    ("temperature as text", {"temperature": "0.5"}, [r"`Agent\.temperature`", "number from 0 to 2", "'0.5'"]),
    ("temperature as bool", {"temperature": True}, [r"`Agent\.temperature`", "True"]),
    ("temperature too high", {"temperature": 2.1}, [r"`Agent\.temperature`", "0 to 2", r"2\.1"]),
    ("temperature as None", {"temperature": None}, [r"`Agent\.temperature`", "None"]),
    ("temperature as a method", {"temperature": lambda self: 1}, [r"`Agent\.temperature`"]),
    ("temperature as a property", {"temperature": property(lambda self: 1)}, [r"`Agent\.temperature`"]),
    ("temperature as a tuple by a comma", {"temperature": (0.5,)}, [r"`Agent\.temperature`", r"\(0\.5,\)"]),
    ("max_tokens as float", {"max_tokens": 100.5}, [r"`Agent\.max_tokens`", "whole number", r"100\.5"]),
    ("max_tokens of zero", {"max_tokens": 0}, [r"`Agent\.max_tokens`", "at least 1", "0"]),
    ("max_steps of zero", {"max_steps": 0}, [r"`Agent\.max_steps`", "at least 1", "None"]),
    ("max_steps as text", {"max_steps": "5"}, [r"`Agent\.max_steps`", "'5'"]),
    ("parse_retries below zero", {"parse_retries": -1}, [r"`Agent\.parse_retries`", "-1"]),
    ("model as a number", {"model": 4}, [r"`Agent\.model`", "model id", "4"]),
    ("model as an empty string", {"model": ""}, [r"`Agent\.model`", "''"]),
    ("model dict without a model", {"model": {"api_key": "k"}}, [r"`Agent\.model`", "'model'"]),
    ("model list that is empty", {"model": []}, [r"`Agent\.model`", "list"]),
    ("model with messages", {"model": {"model": "x", "messages": []}}, [r"`Agent\.model`", "'messages'"]),
    (
        "setting in two places",
        {"model": {"model": "x", "temperature": 1}, "temperature": 1},
        [r"`Agent\.temperature`", "same value"],
    ),
    ("prompt as a number", {"system_prompt": 5}, [r"`Agent\.system_prompt`", "string", "Path", "5"]),
    ("prompt as a list", {"system_prompt": ["a"]}, [r"`Agent\.system_prompt`"]),
    ("prompt method without self", {"system_prompt": lambda: "x"}, [r"`Agent\.system_prompt`", "`self`"]),
    ("output as text", {"final_output": "str"}, [r"`Agent\.final_output`", "'str'"]),
    ("output as a number", {"final_output": 5}, [r"`Agent\.final_output`", "5"]),
    ("field without a name", {"final_output": [(str,)]}, [r"`Agent\.final_output\[0\]`"]),
    ("field of four parts", {"final_output": [("a", str, 1, 2)]}, [r"`Agent\.final_output\[0\]`"]),
    ("field twice", {"final_output": ["a", "a"]}, [r"`Agent\.final_output`", "`a` twice"]),
    ("field with a dash", {"final_output": ["a-b"]}, [r"`Agent\.final_output\[0\]`", "'a-b'", "identifier"]),
    ("private field", {"final_output": ["_a"]}, [r"`Agent\.final_output\[0\]`", "'_a'"]),
    ("field type as text", {"final_output": [("a", "str")]}, [r"`Agent\.final_output\[0\]`", "'str'"]),
    ("field as a list", {"final_output": [["a", str]]}, [r"`Agent\.final_output\[0\]`"]),
    ("Field as the type", {"final_output": [("a", Field(description="x"))]}, [r"`Agent\.final_output\[0\]`"]),
    ("BaseModel itself", {"final_output": BaseModel}, [r"`Agent\.final_output`", "`BaseModel` itself"]),
    ("branches as a list", {"branches": [Base]}, [r"`Agent\.branches`", "dict"]),
    (
        "branch without an output",
        {"branches": {"a": type("Sub", (module,), {})}},
        [r"`Agent\.branches\['a'\]`|`a`", "final_output"],
    ),
    ("branch that is no module", {"branches": {"a": Answer}}, ["a", "Answer"]),
    ("cache as text", {"cache": "yes"}, [r"`Agent\.cache`", "'yes'"]),
    ("cache point without a place", {"cache": [{"role": "system"}]}, [r"`Agent\.cache`"]),
    (
        "description format",
        {"xml_description_format": "attr"},
        [r"`Agent\.xml_description_format`", "'attribute'", "'comment'", "'attr'"],
    ),
    ("flag as text", {"xml_include_none": "yes"}, [r"`Agent\.xml_include_none`", "True or False", "'yes'"]),
    ("root that is no name", {"xml_input_root": "my input"}, [r"`Agent\.xml_input_root`", "'my input'"]),
    ("rate limit as a number", {"rate_limit": 60}, [r"`Agent\.rate_limit`", "60"]),
    (
        "rate limit with an unknown key",
        {"rate_limit": {"request": 60}},
        [r"`Agent\.rate_limit`", "'request'", "'requests'"],
    ),
    ("concurrency of zero", {"max_concurrency": 0}, [r"`Agent\.max_concurrency`", "0"]),
    ("cost of zero", {"max_cost": 0}, [r"`Agent\.max_cost`", "dollars"]),
    ("seconds below zero", {"max_seconds": -1}, [r"`Agent\.max_seconds`", "-1"]),
    ("total tokens as text", {"max_total_tokens": "1000"}, [r"`Agent\.max_total_tokens`", "'1000'"]),
    ("loop guard", {"loop_guard": "stop"}, [r"`Agent\.loop_guard`", "'notice'", "'force'", "'stop'"]),
    ("history format", {"history_format": "xml"}, [r"`Agent\.history_format`", "'messages'", "'thread'", "'xml'"]),
    ("store as a number", {"store": 5}, [r"`Agent\.store`", "5"]),
    ("compact_at as a share", {"compact_at": 0.8}, [r"`Agent\.compact_at`", r"0\.8"]),
    ("depth of zero", {"max_depth": 0}, [r"`Agent\.max_depth`", "0"]),
]


def test_setting_with_wrong_value_raises_declaration_error_at_class_with_place_and_rule() -> None:
    for name, attributes, words in BAD:
        with case(name):
            with pytest.raises(DeclarationError) as caught:
                declare(**attributes)
            for pattern in words:
                caught.match(pattern)


def test_setting_with_wrong_value_raises_the_same_error_on_instance_using_and_override() -> None:
    for name, attributes, words in BAD:
        if "lambda" in repr(attributes) or "property" in repr(attributes):
            continue
        for way, act in ways_to_set(attributes):
            with case(name, way):
                with pytest.raises(DeclarationError) as caught:
                    act()
                for pattern in words:
                    caught.match(pattern)


MISSPELLED = [
    ("temprature", "temperature"),
    ("max_step", "max_steps"),
    ("tool", "tools"),
    ("model_", "model"),
    ("final_outputs", "final_output"),
    ("intial_input", "initial_input"),
    ("on_setp", "on_step"),
    ("on_finsh", "on_finish"),
    ("maxsteps", "max_steps"),
    ("system_promt", "system_prompt"),
]


def test_misspelled_setting_of_class_warns_with_suggestion() -> None:
    for wrong, right in MISSPELLED:
        with case(wrong), pytest.warns(UserWarning, match=rf"`Agent\.{wrong}`.*`{right}`"):
            declare(**{wrong: (lambda self, step: None) if wrong.startswith("on_") else 1})


def test_misspelled_setting_passed_to_class_using_or_override_raises_type_error_with_suggestion() -> None:
    for wrong, right in MISSPELLED:
        if right.startswith("on_"):
            continue
        for way, act in ways_to_set({wrong: 1}):
            with case(wrong, way), pytest.raises(TypeError, match=rf"`{wrong}`.*`{right}`"):
                act()
