"""Data and functions that the tests of stored runs share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.behaviour.schemas import Answer, Question
from tests.long_version import IS_LONG

from acorn import module, tool
from acorn.models import ModelRequest
from acorn.stores import MemoryStore
from acorn.testing import Reply, ScriptedModel, call, finish

ALL_STORES = ["memory", "sqlite", "postgres"]
STORES = ALL_STORES if IS_LONG else ["sqlite"]
"""The stores of a test whose subject is the same in all stores; the contract tests compare the stores."""

NewStore = Callable[[], Any]


class Desk(module[Question, Answer]):
    """Answer."""

    max_steps = 9
    act: Callable[[], Any]

    @tool
    def look(self) -> Any:
        """Look."""
        return self.act()


def by_turn(*script: Reply) -> ScriptedModel:
    """Return a model that selects its reply by the conversation, so that any process can continue a run with it."""

    def answer(request: ModelRequest) -> Reply:
        reply: Reply = script[sum(message["role"] == "assistant" for message in request.messages)]
        return reply

    return ScriptedModel(answer)


SCRIPT = (call("look"), finish(answer="x"))


def desk(store: Any, act: Callable[[], Any] = lambda: "seen", *script: Reply, **settings: Any) -> Desk:
    """Return an agent as a new process would make it. Its tool `look` calls `act`."""
    agent = Desk(model=by_turn(*(script or SCRIPT)), store=store, **settings)
    agent.act = act
    return agent


def interrupting() -> Callable[[], str]:
    """Return a function that raises `KeyboardInterrupt` at its first call."""
    calls = itertools.count()

    def act() -> str:
        if next(calls) == 0:
            raise KeyboardInterrupt
        return "seen"

    return act


def stores_in(folder: Path) -> NewStore:
    """Return a function that makes new stores: in turn, one in memory and one in a file."""
    numbers = itertools.count()

    def make() -> Any:
        number = next(numbers)
        return folder / f"runs-{number}.db" if number % 2 else MemoryStore()

    return make
