"""Agents whose runs end in different ways, most of them without an output."""

from __future__ import annotations

from typing import Any

from acorn import module, tool
from acorn.testing import Failure, ScriptedModel, call, finish


@tool
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


class Base(module):
    """End somehow."""

    initial_input = [("text", str, "")]
    final_output: Any = [("age", int)]


class Fine(Base):
    model = ScriptedModel([finish(age=5)])


class Fails(Base):
    model = {"model": "never/asked"}

    def __init__(self, **overrides: Any) -> None:
        super().__init__(model=ScriptedModel([Failure(status=500, message="the server\nis on fire")]), **overrides)


class Invalid(Base):
    parse_retries = 0
    model = ScriptedModel([finish(age="old")])


class Raises(Base):
    model = ScriptedModel([finish(age=5)])

    def on_finish(self, output: Any) -> None:
        raise KeyError("a bug of the user's")


class SingleTurn(Base):
    tools = [search]
    model = ScriptedModel([call("search", query="x")])


class WrongCalls(Base):
    """The model calls an unknown tool, and one with unfitting arguments."""

    tools = [search]
    max_steps = 3
    model = ScriptedModel([call("serch", query="x") & call("search", limit=3), finish(age=5)])


class NoModel(Base):
    pass


class NoOutput(Base):
    final_output = []
    model = ScriptedModel([finish()])


class Text(Base):
    final_output = str
    model = ScriptedModel([finish(result="zwölf\x1b[31m\x9b \u202e\nLines")])


class NeedsMore(Base):
    def __init__(self, needed: str) -> None:
        super().__init__()


fine = Fine(model=ScriptedModel([finish(age=7)]))
