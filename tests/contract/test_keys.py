"""Tests of missing API keys: they are reported before any request and before heavy packages are imported."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.cases import case
from tests.loopback import Loopback

from acorn import ModelError, module
from acorn.models.providers import _PROVIDERS, check_key
from acorn.testing import finish

Json = dict[str, Any]
NEEDS = [
    ("openai/gpt-4o", "OPENAI_API_KEY", "openai"),
    ("openai/responses/gpt-5", "OPENAI_API_KEY", "openai"),
    ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY", "anthropic"),
    ("gemini/gemini-2.5-pro", "GEMINI_API_KEY", "gemini"),
    ("groq/llama-3.3-70b-versatile", "GROQ_API_KEY", "groq"),
    ("mistral/mistral-large-latest", "MISTRAL_API_KEY", "mistral"),
    ("openrouter/openai/gpt-4o", "OPENROUTER_API_KEY", "openrouter"),
    ("gpt-4o", "OPENAI_API_KEY", "openai"),
]


class Plain(module):
    """You answer."""

    final_output = str


class Bounded(Plain):
    max_cost = 1.0
    max_steps = 3


class Looping(Plain):
    max_steps = 3


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in _PROVIDERS.values():
        for name in (*known.keys, *known.address_variables):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("agent", [Plain, Looping, Bounded])
@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_missing_api_key_error_contains_variable_name(lane: str, agent: Any) -> None:
    for name, variable, provider in NEEDS:
        with case(name, variable, provider):
            model = {"model": name, "lane": lane}
            for act in (Plain.__call__, lambda each: asyncio.run(each.acall()), lambda each: list(each.stream())):
                with pytest.raises(ModelError) as caught:
                    act(agent(model=model))
                assert str(caught.value).startswith(f"`{variable}` is not set, but `{name}` needs it")
                assert (caught.value.provider, caught.value.status, caught.value.retryable) == (provider, None, False)


def test_missing_api_key_check_imports_no_heavy_packages() -> None:
    names = ["openai/gpt-4o", "groq/llama-3.3-70b-versatile", "gpt-4o"]
    code = f"""
import sys
from acorn import ModelError, module
class Plain(module):
    "You answer."
    final_output = str
    max_cost = 1.0
for name in {names}:
    for steps in (3, None):
        try:
            Plain(model=name, max_steps=steps)()
        except ModelError as error:
            print(error)
print([heavy for heavy in ("litellm", "openai", "httpx", "aiohttp") if heavy in sys.modules])
"""
    known = {name for each in _PROVIDERS.values() for name in each.keys + each.address_variables}
    environment = {key: value for key, value in os.environ.items() if key not in known}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    *said, loaded = done.stdout.strip().splitlines()
    assert len(said) == 2 * len(names)
    for at, line in enumerate(said):
        assert "needs it" in line
        assert names[at // 2] in line
    assert loaded == "[]"


GIVEN: dict[str, Json] = {
    "a key": {"api_key": "k"},
    "a header": {"extra_headers": {"Authorization": "Bearer k"}},
    "an address": {"api_base": "http://127.0.0.1:9/v1"},
    "an address by its other name": {"base_url": "http://127.0.0.1:9/v1"},
}


def test_credential_in_model_dict_passes_api_key_check() -> None:
    for given in GIVEN:
        for provider in _PROVIDERS:
            with case(given, provider):
                check_key(f"{provider}/m", provider, GIVEN[given])
                with pytest.raises(ModelError):
                    check_key(f"{provider}/m", provider, {})


def test_each_api_key_variable_of_provider_passes_api_key_check(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in _PROVIDERS:
        with case(provider):
            for name in (*_PROVIDERS[provider].keys, *_PROVIDERS[provider].address_variables):
                with monkeypatch.context() as patch:
                    patch.setenv(name, "http://127.0.0.1:9")
                    check_key(f"{provider}/m", provider, {})


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_api_key_of_only_whitespace_is_reported_as_missing(lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable, provider in NEEDS:
        with case(name, variable, provider):
            monkeypatch.setenv(variable, " ")
            for given in ({}, {"api_key": " \n"}):
                with pytest.raises(ModelError, match=f"`{variable}` is not set, but `{name}` needs it"):
                    Plain(model={"model": name, "lane": lane, **given})()


def test_official_address_given_in_model_dict_still_requires_api_key() -> None:
    with pytest.raises(ModelError, match="`OPENAI_API_KEY` is not set"):
        Plain(model={"model": "openai/gpt-4o", "base_url": "https://api.openai.com/v1/"})()


@pytest.mark.parametrize("where", ["dict", "environment"])
@pytest.mark.parametrize("spoken", ["openai", "responses", "anthropic"])
def test_custom_server_without_api_key_is_called_without_credentials(
    spoken: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Loopback([finish(result="done")]) as server:
        model = getattr(server, spoken)()
        base = model.pop("api_base")
        del model["api_key"]
        if where == "dict":
            model["base_url"] = base
        else:
            monkeypatch.setenv("ANTHROPIC_BASE_URL" if spoken == "anthropic" else "OPENAI_BASE_URL", base)
        assert Plain(model=model)() == "done"
        assert not {"authorization", "x-api-key"} & server.requests[0].headers.keys()


def test_anthropic_auth_token_variable_is_sent_as_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "t")
    with Loopback([finish(result="done")] * 2) as server:
        for lane in ("native", "litellm"):
            model = server.anthropic(lane=lane)
            del model["api_key"]
            assert Plain(model=model)() == "done"
        assert [request.headers.get("authorization") for request in server.requests] == ["Bearer t"] * 2


def test_missing_api_key_of_provider_unknown_to_acorn_is_left_to_litellm() -> None:
    with pytest.raises(ModelError) as caught:
        Plain(model={"model": "replicate/meta/m", "num_retries": 0})()
    assert "is not set, but" not in str(caught.value)


def test_missing_api_key_of_unused_fallback_model_is_ignored() -> None:
    with Loopback([finish(result="done")]) as server:
        assert Plain(model=[server.openai(), "anthropic/claude-sonnet-4-5", "groq/llama-3.3-70b-versatile"])() == "done"
    assert "sk-test" not in json.dumps(server.bodies())
