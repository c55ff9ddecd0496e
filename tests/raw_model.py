"""A model that returns exact responses with their ids, while `ScriptedModel` repairs its replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import to_json

from acorn.models import ModelRequest, ModelResponse, RawCall


class RawModel:
    """Responses in order, or made by a function of the request."""

    name = "raw"

    def __init__(
        self, responses: Sequence[ModelResponse] | Callable[[ModelRequest], ModelResponse], *, forces: bool = True
    ) -> None:
        self.requests: list[ModelRequest] = []
        self.forces = forces
        self._make = responses if callable(responses) else lambda _: responses[len(self.requests) - 1]

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self.forces

    def price(self) -> None:
        return None

    def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        return self._make(request)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return self.complete(request)


def calling(*calls: tuple[Any, str, str], content: str = "", **fields: Any) -> ModelResponse:
    """Return a response with calls, each an id, a name and the text of its arguments."""
    return ModelResponse(content, [RawCall(*call) for call in calls], "tool_calls", **fields)


def finishing(**fields: Any) -> ModelResponse:
    """Return a response that finishes."""
    return calling(("the_end", "__finish__", to_json(fields).decode()))
