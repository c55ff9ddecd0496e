"""Hostile providers on loopback, and every way to send a request to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.loopback import Answer, Loopback, Request

from acorn import ModelError, Run, module


class Hostile(Loopback):
    """A server that answers every request with raw bytes, piece by piece, until the client closes the connection."""

    def __init__(self, pieces: Callable[[Request], Iterable[bytes]], pause: float = 0.0) -> None:
        super().__init__(lambda request: b"")
        self._pieces, self._pause = pieces, pause

    def _send(self, connection: Any, request: Request, answer: Answer) -> bool:
        for piece in self._pieces(request):
            connection.sendall(piece)
            if self._pause:
                self._ended.wait(self._pause)
            if not self._open:
                break
        return False


class Agent(module[str, str]):
    """Answer."""

    max_steps = 2


class Lane(NamedTuple):
    """One way to send a request: the lane with its protocol, and how the agent is called."""

    name: str
    is_stream: bool
    is_async: bool

    def run(self, server: Loopback, **options: Any) -> Run[Any]:
        """Run an agent whose model is the server."""
        agent = Agent(model=_MODELS[self.name](server, **{"num_retries": 0, **options}))
        if self.is_async:
            return asyncio.run(self._arun(agent))
        if not self.is_stream:
            return agent.run("x")
        run = [chunk.run for chunk in agent.stream("x")][-1]
        assert run is not None
        return run

    async def _arun(self, agent: Agent) -> Run[Any]:
        if not self.is_stream:
            return await agent.arun("x")
        run = [chunk.run async for chunk in agent.astream("x")][-1]
        assert run is not None
        return run

    def fails(self, server: Loopback, **options: Any) -> ModelError:
        """Return the error of a run that must fail at the server."""
        with pytest.raises(ModelError) as caught:
            self.run(server, **options)
        return caught.value


_MODELS: dict[str, Callable[..., dict[str, Any]]] = {
    "openai": lambda server, **options: server.openai(lane="native", **options),
    "responses": lambda server, **options: server.responses(lane="native", **options),
    "anthropic": lambda server, **options: server.anthropic(lane="native", **options),
    "litellm-openai": lambda server, **options: server.openai(lane="litellm", **options),
    "litellm-anthropic": lambda server, **options: server.anthropic(lane="litellm", **options),
}


def each_lane(*, is_stream: tuple[bool, ...] = (False, True), turn: int | None = None) -> Iterator[Lane]:
    """Yield every way to send a request, and add its name to an error.

    With `turn`, yield some of them, which differ between the turns. The long version yields all.
    """
    lanes = [Lane(*values) for values in product(_MODELS, is_stream, (False, True))]
    if turn is not None and not IS_LONG:
        lanes = lanes[turn % 4 :: 4] if turn // 4 % 2 else lanes[3 - turn % 4 :: 4]
    for lane in lanes:
        with case(lane):
            yield lane
