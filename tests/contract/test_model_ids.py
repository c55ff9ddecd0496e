"""Tests of model ids without a provider: the error suggests similar ids without importing LiteLLM."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.cases import case
from tests.contract.conftest import Wire

from acorn import ModelError, module
from acorn.models.litellm.library import is_unknown, litellm, unknown_model_message
from acorn.testing import finish

SCRIPT = """
import sys
from acorn import DeclarationError, module

class Agent(module):
    model = {model!r}
    final_output = str

try:
    Agent()()
except Exception as error:
    print(type(error).__name__, error)
print("loaded" if "litellm" in sys.modules else "not loaded")
"""


def told(model: object) -> str:
    """Return what a new process prints about a model."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(model=model)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_model_id_without_provider_raises_before_litellm_is_imported() -> None:
    words = told({"model": "gpt4", "api_key": "sk-secret"})
    assert words.startswith(
        "DeclarationError `Agent.model` cannot be used: `gpt4` does not contain a provider. Check the"
    )
    assert "Did you mean `openai/gpt-4`" in words
    assert words.endswith("\nnot loaded\n")
    assert "sk-secret" not in words


def test_error_for_misspelled_model_id_suggests_similar_id_with_provider() -> None:
    for wrong, near in [
        ("gpt4", "`openai/gpt-4`"),
        ("GPT-4o", "`openai/gpt-4o`"),
        ("claude-sonet-4-5", "`anthropic/claude-sonnet-4-5`"),
        ("mistral-large-latest", "`mistral/mistral-large-latest`"),
        ("deepseek-chat", "`deepseek/deepseek-chat`"),
    ]:
        with case(wrong, near):
            assert near in unknown_model_message(wrong)


def test_error_for_unknown_provider_suggests_similar_model_id() -> None:
    words = unknown_model_message("opnai/gpt-4o")
    assert words.startswith("`opnai/gpt-4o` has a provider that LiteLLM does not know.")
    assert "`openai/gpt-4o`" in words


def test_error_for_model_id_without_similar_id_contains_no_suggestion() -> None:
    assert "Did you mean" not in unknown_model_message("zzzzqqqq")


def test_model_ids_without_provider_that_litellm_knows_are_accepted() -> None:
    known = [name for name in litellm().model_list_set if "/" not in name]
    assert "gpt-4o" in known
    known += ["claude-newfamily-5", "ft:gpt-4o:team::id", "gpt-image-9", "anthropic.claude-next-9"]
    assert [name for name in known if is_unknown(name, {})] == []


def test_model_id_with_custom_address_is_not_checked() -> None:
    for config in [
        {"api_base": "http://localhost:1"},
        {"base_url": "http://localhost:1"},
        {"custom_llm_provider": "openai"},
    ]:
        with case(config):
            assert is_unknown("home-made", {})
            assert not is_unknown("home-made", config)


class Agent(module[None, str]):
    """Answer."""


def test_call_with_model_id_without_provider_returns_output(wire: Wire) -> None:
    wire.serve([finish(result="x")])
    bare = wire.either(openai="gpt-4o", anthropic="claude-sonnet-4-5")
    assert wire.run(Agent(model={**wire.model(), "model": bare})).output == "x"


def test_unknown_model_id_with_imported_litellm_raises_model_error_of_acorn(gpt: Wire) -> None:
    for name in ["gpt4", "deepseek-chat"]:
        with case(name):
            with pytest.raises(ModelError) as caught:
                gpt.run(Agent(model=name))
            assert str(caught.value).startswith(
                f"`{name}` failed: `{name}` does not contain a provider. Check the model id `{name}`"
            )
            assert "NOT provided" not in str(caught.value)
