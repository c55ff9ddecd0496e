"""Tests of typical mistakes of new users: each raises immediately, with a helpful message that contains no secret."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Call
from tests.behaviour.schemas import Question
from tests.cases import each_case

from acorn import DeclarationError, InputError, module
from acorn.testing import ScriptedModel, finish

SECRET = {"model": "openai/gpt-4o", "api_key": "sk-secret-canary"}


class Agent(module):
    initial_input = Question
    final_output = [("answer", str)]


def test_model_dict_passed_as_input_raises_error_with_redacted_api_key() -> None:
    with pytest.raises(InputError, match=r"'api_key': '\*\*\*'") as caught:
        Agent(model=SECRET)(question=SECRET)
    assert "canary" not in str(caught.value)


@each_case("history", [SECRET, [SECRET]])
def test_model_dict_passed_as_history_raises_error_without_api_key(history: Any) -> None:
    with pytest.raises(InputError, match=r"'api_key': '\*\*\*'") as caught:
        Agent(model=SECRET).using(history=history)
    assert "canary" not in str(caught.value)


@each_case("model", [[["sk-secret-canary"]], [5, "sk-secret-canary"], b"sk-secret-canary", {"sk-secret-canary"}])
def test_api_key_passed_as_model_raises_error_without_api_key(model: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        Agent(model=model)
    assert "canary" not in str(caught.value)


def test_misspelled_attribute_whose_value_is_class_warns_with_suggestion() -> None:
    with pytest.warns(UserWarning, match="`Wrong.final_outptu` .* Did you mean `final_output`"):
        type("Wrong", (module,), {"final_outptu": Question, "__module__": __name__})


def test_misspelled_hook_name_warns_with_suggestion() -> None:
    with pytest.warns(UserWarning, match="`Wrong.on_setp` .* Did you mean `on_step`"):
        type("Wrong", (module,), {"on_setp": lambda self, step: None, "__module__": __name__})


def test_unrelated_methods_and_nested_classes_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Fine(module):
            def models(self) -> None: ...

            class Model(BaseModel):
                tools: int = 1

    assert Fine.Model().tools == 1


def test_input_field_named_self_is_accepted(call: Call) -> None:
    class Selfish(module):
        initial_input = ["self"]
        final_output = [("answer", str)]

    model = ScriptedModel([finish(answer="yes")])
    assert Selfish(model=model)(self="me").answer == "yes"
    assert "<self>me</self>" in model.requests[0].messages[0]["content"]


def test_hook_that_is_not_a_method_raises_declaration_error_before_model_call() -> None:
    model = ScriptedModel([])
    agent: Any = Agent(model=model)
    agent.on_step = "later"
    with pytest.raises(DeclarationError, match=r"`Agent.on_step` must be a method, got 'later'."):
        agent(question="?")
    assert model.requests == []


def test_wrong_role_in_prior_history_raises_error_with_index() -> None:
    class Plain(module[None, bool]):
        """Plain."""

    earlier = [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]
    with pytest.raises(InputError, match=r"`history\[1\]` of `Plain` must be a dict with a `role` of system,"):
        Plain().using(history=earlier)


@each_case("model", ["local/nope", {"model": "local/smollm2", "bogus": 1}])
def test_unknown_local_model_raises_error_with_class_and_attribute(model: object) -> None:
    class Plain(module[None, bool]):
        """Plain."""

    with pytest.raises(DeclarationError, match=r"`Plain\.model` cannot be used: `local/"):
        Plain(model=model)()
