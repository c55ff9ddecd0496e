"""Data and functions that the tests of stored runs share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from tests.long_version import IS_LONG

from acorn.models import ModelRequest
from acorn.stores import MemoryStore
from acorn.testing import Reply, ScriptedModel

ALL_STORES = ["memory", "sqlite", "postgres"]
STORES = ALL_STORES if IS_LONG else ["sqlite"]
"""The stores of a test whose subject is the same in all stores; the contract tests compare the stores."""

NewStore = Callable[[], Any]


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


def by_turn(*script: Reply) -> ScriptedModel:
    """Return a model that selects its reply by the conversation, so that any process can continue a run with it."""

    def answer(request: ModelRequest) -> Reply:
        reply: Reply = script[sum(message["role"] == "assistant" for message in request.messages)]
        return reply

    return ScriptedModel(answer)


def stores_in(folder: Path) -> NewStore:
    """Return a function that makes new stores: in turn, one in memory and one in a file."""
    numbers = itertools.count()

    def make() -> Any:
        number = next(numbers)
        return folder / f"runs-{number}.db" if number % 2 else MemoryStore()

    return make
