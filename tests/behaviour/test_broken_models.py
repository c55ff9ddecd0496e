"""Tests of a user's own model that returns something wrong: the error names the model and the expected type."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cases import each_case

from acorn import AcornError, module
from acorn.models import Delta, ModelResponse


class Own:
    name = "own"

    def __init__(self, response: Any) -> None:
        self.response = response

    def can_force_tool(self, request: Any) -> bool:
        return True

    def price(self) -> None:
        return None

    def complete(self, request: Any) -> Any:
        return self.response

    async def acomplete(self, request: Any) -> Any:
        return self.response


class OwnStream(Own):
    def stream(self, request: Any) -> Any:
        yield from self.response

    async def astream(self, request: Any) -> Any:
        for delta in self.response:
            yield delta


class Agent(module[None, str]):
    """Speak."""

    max_steps = 2


WRONG: list[tuple[Any, str]] = [
    ("text", "str"),
    (None, "NoneType"),
    ({"content": "x"}, "dict"),
    (ModelResponse, "ModelResponse"),
    ([], "list"),
]
WRONG_PARTS: list[tuple[Any, str]] = [
    (ModelResponse(None, [], "stop"), "content"),  # type: ignore[arg-type]
    (ModelResponse("x", None, "stop"), "tool_calls"),  # type: ignore[arg-type]
    (ModelResponse("x", [{"name": "look"}], "stop"), "tool_calls"),  # type: ignore[list-item]
    (ModelResponse("x", [], "stop", usage=None), "usage"),  # type: ignore[arg-type]
]


def messages_of(model: Any) -> list[str]:
    agent = Agent(model=model)
    found: list[str] = []
    for call in (agent, lambda: asyncio.run(agent.acall()), lambda: list(agent.stream())):
        with pytest.raises(AcornError) as caught:
            call()
        found.append(str(caught.value))
    return found


@each_case(("response", "kind"), WRONG)
def test_model_that_returns_wrong_type_raises_error_with_its_name_and_the_type(response: Any, kind: str) -> None:
    for message in messages_of(Own(response)):
        assert "`own`" in message or "`Own`" in message
        assert "`ModelResponse`" in message
        assert kind in message


@each_case(("response", "part"), WRONG_PARTS)
def test_model_that_returns_wrong_response_part_raises_error_with_its_name_and_the_part(
    response: Any, part: str
) -> None:
    for message in messages_of(Own(response)):
        assert "`own`" in message or "`Own`" in message
        assert part in message


@each_case("deltas", [["text"], [None], [Delta(content=5)], []])  # type: ignore[arg-type]
def test_model_that_streams_wrong_type_raises_error_with_its_name(deltas: Any) -> None:
    agent: Any = Agent(model=OwnStream(deltas))
    with pytest.raises(AcornError) as caught:
        list(agent.stream())
    assert "own" in str(caught.value).lower()


class OwnSync(Own):
    def acomplete(self, request: Any) -> Any:  # A user forgot `async`.
        return self.response


@each_case("model", [OwnSync(ModelResponse("x", [], "stop")), [OwnSync(None), OwnSync(5)]])
def test_model_whose_acomplete_is_not_async_raises_error_with_its_name(model: Any) -> None:
    for way in (lambda agent: agent.acall(), _first_chunk):
        with pytest.raises(
            AcornError, match="The model `own` must return its response from an `async def acomplete`, "
        ):
            asyncio.run(way(Agent(model=model)))


async def _first_chunk(agent: Agent) -> Any:
    return [chunk async for chunk in agent.astream()]
