"""Tests of response bodies that are nested too deep for a JSON parser."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from tests.cases import case
from tests.loopback import EVENTS, Fault, Loopback

from acorn import ModelError, module


class Agent(module[Any, str]):
    """Answer."""

    initial_input: Any = []


def test_response_nested_too_deep_is_model_error() -> None:
    texts = [
        *("[" * 100_000, '{"a":' * 100_000, '{"choices": ' + "[" * 50_000 + "]" * 50_000 + "}"),
        *('{"error": ' + "[" * depth + "]" * depth + "}" for depth in (300, 900)),
    ]
    for text, is_streamed, status in itertools.product(texts, (False, True), (200, 400)):
        body = f"data: {text}\n\n" if is_streamed else text
        fault = Fault(status=status, body=body.encode(), content_type=EVENTS if is_streamed else "application/json")
        with Loopback([fault] * 8) as server:
            # LiteLLM needs seconds for some texts.
            by_litellm: list[Any] = [partial(server.openai, lane="litellm")] if "choices" in text else []
            for lane in (server.openai, server.anthropic, server.responses, *by_litellm):
                agent = Agent(model=lane(num_retries=0))
                with case(text[:20], is_streamed, status, lane), pytest.raises(ModelError):
                    list(agent.stream()) if is_streamed else agent()
