"""Tests of the precedence of `temperature` and `max_tokens`: the value that was set closest to the request is sent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases import case
from tests.contract.conftest import Wire

from acorn import DeclarationError, Step, module, tool
from acorn._machine.state import settings_from_json, settings_to_json
from acorn.testing import call, finish

NAMES = {"temperature": (0.1, 0.2, 0.3), "max_tokens": (11, 22, 33)}


@tool
def look() -> str:
    """Look around."""
    return "seen"


class Agent(module[Any, str]):
    """Answer."""


@pytest.fixture(params=list(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sent(wire: Wire, name: str) -> list[Any]:
    return [body.get(name) for body in wire.bodies()]


def single(wire: Wire) -> dict[str, Any]:
    wire.serve(lambda _: finish(result="x"))
    return wire.model()


def declare(base: type[module[Any, Any]] = Agent, /, **attributes: Any) -> Any:
    return type("Sub", (base,), attributes)


# Precedence of levels


def test_setting_passed_to_using_replaces_setting_in_model_dict(gpt: Wire, name: str) -> None:
    one, two, three = NAMES[name]
    model = {**single(gpt), name: one}
    of_class = declare(model=model)
    gpt.run(of_class())
    gpt.run(of_class().using(**{name: two}))
    gpt.run(Agent(model=model).using(**{name: two}))
    gpt.run(Agent(model=model).using(**{name: two}).using(**{name: three}))
    assert sent(gpt, name) == [one, two, two, three]
    assert model[name] == one


def test_setting_of_instance_replaces_setting_in_model_dict_of_class(gpt: Wire, name: str) -> None:
    one, two, _ = NAMES[name]
    gpt.run(declare(model={**single(gpt), name: one})(**{name: two}))
    agent = declare(model={**gpt.model(), name: one})()
    setattr(agent, name, two)
    gpt.run(agent)
    assert sent(gpt, name) == [two, two]


def test_setting_in_later_model_dict_replaces_attribute_set_earlier(gpt: Wire, name: str) -> None:
    one, two, three = NAMES[name]
    model = {**single(gpt), name: two}
    of_class = declare(**{name: one})
    gpt.run(of_class(model=model))
    gpt.run(of_class().using(model=model))
    gpt.run(of_class(**{name: three}).using(model=model))
    gpt.run(Agent(**{name: three}).using(model=model))
    gpt.run(Agent().using(**{name: three}).using(model=model))
    assert sent(gpt, name) == [two] * 5


def test_setting_in_model_dict_is_dropped_if_model_is_replaced(gpt: Wire, name: str) -> None:
    one, two, _ = NAMES[name]
    plain = single(gpt)
    agent = declare(model={**plain, name: one})
    gpt.run(agent(model=plain))
    gpt.run(agent().using(model=plain))
    gpt.run(declare(**{name: two})(model={**plain, name: one}).using(model=plain))
    default = {"temperature": 0.7, "max_tokens": 4096}[name]
    assert sent(gpt, name) == [default, default, two]


def test_setting_declared_in_most_derived_class_is_sent(gpt: Wire, name: str) -> None:
    one, two, _ = NAMES[name]
    model = {**single(gpt), name: one}
    with_dict, with_value = declare(model=model), declare(**{name: two})
    gpt.run(declare(with_dict, **{name: two})())
    gpt.run(declare(with_value, model=model)())
    gpt.run(declare(declare(with_value, model=model))())
    gpt.run(declare(declare(with_dict, **{name: two}))())
    assert sent(gpt, name) == [two, one, one, two]


@pytest.mark.chat
def test_max_completion_tokens_in_model_dict_has_same_precedence_as_max_tokens(gpt: Wire) -> None:
    model = {**single(gpt), "max_completion_tokens": 77}
    gpt.run(Agent(model=model, temperature=0.1))
    gpt.run(declare(model=model)(max_tokens=5))
    gpt.run(declare(max_tokens=5)(model=model))
    assert sent(gpt, "max_completion_tokens") == [77, None, 77]
    assert sent(gpt, "max_tokens") == [None, 5, None]
    with pytest.raises(DeclarationError, match=r"`Agent\.model\['max_tokens'\]` and `Agent\.model\['max_comp"):
        Agent(model={**model, "max_tokens": 5})


def test_setting_from_override_replaces_using_and_setting_from_step_replaces_override(gpt: Wire, name: str) -> None:
    one, two, three = NAMES[name]
    model = {**single(gpt), name: one}
    with Agent.override(**{name: two}):
        gpt.run(declare(model=model)())
        gpt.run(Agent().using(model=model))
        with Agent.override(model=model):
            gpt.run(Agent(**{name: three}))
    with Agent.override(model=model):
        gpt.run(Agent(**{name: three}))
        gpt.run(Agent().using(**{name: three}))
        with Agent.override(**{name: two}):
            gpt.run(Agent())
    assert sent(gpt, name) == [two, two, one, one, one, two]
    agent = stepping(gpt, setting(**{name: three}))
    with Agent.override(**{name: two}):
        gpt.run(agent)
    assert sent(gpt, name) == [two, three]


# Twice in one place


def test_setting_given_as_attribute_and_in_model_dict_raises_declaration_error(name: str) -> None:
    one, two, _ = NAMES[name]
    both: dict[str, Any] = {"model": {"model": "openai/gpt-4o", name: one}, name: two}
    words = rf"`{{}}\.{name}` and `{{}}\.model\['{name}'\]` set the same value\. Remove one"
    with pytest.raises(DeclarationError, match=words.format("Sub", "Sub")):
        declare(**both)
    with pytest.raises(DeclarationError, match=words.format("Agent", "Agent")):
        Agent(**both)
    with pytest.raises(DeclarationError, match=words.format("Agent", "Agent")):
        Agent().using(**both)
    with pytest.raises(DeclarationError, match=words.format("Agent", "Agent")):
        Agent.override(**both)


def test_invalid_setting_in_model_dict_raises_same_error_as_attribute() -> None:
    rows: list[tuple[str, Any, str]] = [
        ("temperature", 3, "a number from 0 to 2, got 3"),
        ("temperature", None, "a number from 0 to 2, got None"),
        ("max_tokens", 0, "a whole number of at least 1, got 0"),
        ("max_completion_tokens", "9", "a whole number of at least 1, got '9'"),
    ]
    for key, value, words in rows:
        with case(key, value, words):
            with pytest.raises(DeclarationError) as caught:
                Agent(model={"model": "openai/gpt-4o", key: value})
            assert str(caught.value) == f"`Agent.model['{key}']` must be {words}."


# Steps


class Stepping(Agent):
    tools = [look]
    max_steps = 5
    loop_guard: str | None = None

    def on_step(self, step: Step) -> None:
        self.seen.append((step.temperature, step.max_tokens))
        act = self.acts.pop(0)
        if act is not None:
            act(step)

    seen: list[Any]
    acts: list[Any]


def stepping(wire: Wire, *acts: Any, **settings: Any) -> Stepping:
    """Return an agent whose steps do these things one after the other and that then answers."""
    left = [*[call("look")] * len(acts), finish(result="x")]
    wire.serve(left)
    given = {key: settings.pop(key) for key in ("temperature", "max_tokens") if key in settings}
    agent = Stepping(model={**wire.model(), **settings}, **given)
    agent.seen, agent.acts = [], list(acts)
    return agent


def setting(**values: Any) -> Any:
    def act(step: Step) -> None:
        for name, value in values.items():
            setattr(step, name, value)

    return act


def test_setting_changed_on_step_replaces_setting_in_model_dict(gpt: Wire) -> None:
    def read(step: Step) -> None:
        step.temperature = 0.2
        assert step.temperature == 0.2

    agent = stepping(gpt, None, read, None)
    agent.model = {**agent.model, "temperature": 0.1, "max_tokens": 11}
    gpt.run(agent)
    assert agent.seen == [(0.1, 11), (0.1, 11), (0.2, 11)]
    assert sent(gpt, "temperature") == [0.1, 0.1, 0.2, 0.2]
    assert sent(gpt, "max_tokens") == [11] * 4


def test_model_dict_assigned_to_step_replaces_earlier_settings(gpt: Wire) -> None:
    def change(step: Step) -> None:
        step.model = {**gpt.model(), "temperature": 0.3}
        assert step.temperature == 0.3

    def back(step: Step) -> None:
        step.model = gpt.model()
        assert step.temperature == 0.2

    agent = stepping(gpt, setting(temperature=0.1), change, setting(temperature=0.4), change, back, temperature=0.2)
    gpt.run(agent)
    assert sent(gpt, "temperature") == [0.2, 0.1, 0.3, 0.4, 0.3, 0.2]


def test_model_dict_edited_on_step_changes_only_edited_settings(gpt: Wire) -> None:
    def change(step: Step) -> None:
        step.model["timeout"] = 50
        assert step.temperature == 0.1

    def other(step: Step) -> None:
        step.model["temperature"] = 0.5
        assert step.temperature == 0.5

    def more(step: Step) -> None:
        step.model["top_p"] = 0.9
        step.temperature = 0.6

    agent = stepping(gpt, setting(temperature=0.1), change, other, more)
    agent.model = {**agent.model, "temperature": 0.3, "max_tokens": 11}
    gpt.run(agent)
    assert sent(gpt, "temperature") == [0.3, 0.1, 0.1, 0.5, 0.6]
    assert sent(gpt, "max_tokens") == [11] * 5


def test_setting_given_on_step_and_in_step_model_dict_raises_declaration_error(gpt: Wire, name: str) -> None:
    one, two, _ = NAMES[name]

    def in_place(step: Step) -> None:
        step.model[name] = one
        setattr(step, name, two)

    model = {"model": "openai/gpt-4o", name: one}
    for act in (setting(**{"model": model, name: two}), setting(**{name: two, "model": model}), in_place):
        agent = stepping(gpt, act)
        with pytest.raises(DeclarationError, match=rf"`step\.{name}` and `step\.model\['{name}'\]` set the same value"):
            gpt.run(agent)


def test_invalid_setting_in_model_dict_of_step_raises_declaration_error(gpt: Wire) -> None:
    def change(step: Step) -> None:
        step.model["temperature"] = 9

    with pytest.raises(DeclarationError, match=r"`Stepping\.model\['temperature'\]` must be a number"):
        gpt.run(stepping(gpt, change))


# Branches


class Inner(Agent):
    """A branch."""


def branching(wire: Wire, inner: type[module[Any, Any]], act: Any = None, **settings: Any) -> list[dict[str, Any]]:
    """Return the request of a branch that starts in the second step."""
    wire.serve([call("look"), call("inner"), finish(result="in"), finish(result="out")])
    own = {key: settings.pop(key) for key in ("temperature", "max_tokens") if key in settings}

    class Outer(Stepping):
        branches = {"inner": inner}

    agent = Outer(model={**wire.model(), **settings.pop("dict", {})}, **own)
    agent.seen, agent.acts = [], [act, None]
    wire.run(agent)
    return [wire.bodies()[2], wire.bodies()[3]]


def test_branch_inherits_settings_that_branch_class_does_not_declare(gpt: Wire, name: str) -> None:
    one, two, three = NAMES[name]
    branch, parent = branching(gpt, Inner, dict={name: one})
    assert (branch[name], parent[name]) == (one, one)
    branch, parent = branching(gpt, declare(Inner, **{name: two}), dict={name: one})
    assert (branch[name], parent[name]) == (two, one)
    branch, parent = branching(gpt, Inner, setting(**{name: three}), dict={name: one})
    assert (branch[name], parent[name]) == (three, three)
    branch, parent = branching(gpt, declare(Inner, **{name: two}), setting(**{name: three}), dict={name: one})
    assert (branch[name], parent[name]) == (two, three)


def test_branch_class_with_model_uses_settings_of_its_own_model_dict(gpt: Wire, name: str) -> None:
    one, two, three = NAMES[name]

    def own(**extra: Any) -> Any:
        inner = declare(Inner)

        def act(step: Step) -> None:
            inner.model = {**gpt.model(), **extra}

        return inner, act

    inner, act = own(**{name: two})
    branch, parent = branching(gpt, inner, act, **{name: one})
    assert (branch[name], parent[name]) == (two, one)
    inner, act = own()
    branch, parent = branching(gpt, inner, act, **{name: three})
    assert (branch[name], parent[name]) == (three, three)


def test_settings_of_agent_used_as_tool_replace_model_dict_settings_of_caller(gpt: Wire, name: str) -> None:
    one, two, _ = NAMES[name]
    for own, expected in (({}, one), ({name: two}, two)):
        gpt.serve([call("inner"), finish(result="in"), finish(result="out")])
        outer = declare(max_steps=3, tools=[type("Inner", (Agent,), own)])
        gpt.run(outer(model={**gpt.model(), name: one}))
        assert sent(gpt, name) == [one, expected, one]


def test_model_dict_assigned_to_step_is_saved_without_api_key() -> None:
    given = {"model": "openai/gpt-4o", "temperature": 0.3, "max_completion_tokens": 9, "api_key": "sk-secret"}
    kept = {"model": "openai/gpt-4o", "temperature": 0.3, "max_completion_tokens": 9}
    assert settings_from_json(settings_to_json({"model": given})) == {"model": kept}
