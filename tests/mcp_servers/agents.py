"""Modules that tests serve to MCP clients."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from acorn import ModelError, ask_human, current_run, module, tool
from acorn.testing import ScriptedModel, call, finish

print("a file that prints while it is imported")  # noqa: T201


class Question(BaseModel):
    question: str = Field(description="What to answer")
    depth: int = 1


class Answer(BaseModel):
    answer: str
    depth: int


@tool
def look(what: str) -> str:
    """Look it up."""
    print("a tool that prints")  # noqa: T201
    os.system("echo a child that prints")
    return f"{what}, looked up, {sys.stdin.readline()!r} read"


class DeepThought(module[Question, Answer]):
    """Answer questions.

    This part is not for clients.
    """

    tools = [look]
    max_steps = 3
    model = ScriptedModel(
        lambda request: (
            finish(answer=request.messages[-1]["content"], depth=3)
            if request.messages[-1]["role"] == "tool"
            else call("look", what="it")
        )
    )


class Shout(module[str, str]):
    """Say it loudly."""

    model = ScriptedModel(lambda request: finish("LOUD"))


class Failing(module[str, str]):
    """Never works."""

    model = ScriptedModel(lambda request: ModelError("the provider is down, key sk-abcdef1234567890abcdef"))


class Raising(module[str, str]):
    """Never works either."""

    model = ScriptedModel(lambda request: finish("x"))

    def on_finish(self, output: str) -> Any:
        raise KeyError("a fault of the user's")


class Waiting(module[str, str]):
    """Ask a person first."""

    tools = [ask_human]
    max_steps = 3
    store = str(Path(os.environ.get("ACORN_TEST_FOLDER", ".")) / "runs.db")
    model = ScriptedModel(lambda request: call("ask_human", question="Shall I?"))


class Nothing(module[None, None]):
    """Do something, silently."""

    model = ScriptedModel(lambda request: finish())


@tool
async def hang() -> None:
    """Take for ever."""
    diary = Path(os.environ["ACORN_TEST_FOLDER"]) / "diary.txt"
    diary.write_text("begun")
    try:
        await asyncio.sleep(10_000)
    finally:
        diary.write_text(f"ended in step {current_run().step}")


class Slow(module[str, str]):
    """Take for ever."""

    tools = [hang]
    max_steps = 3
    model = ScriptedModel(lambda request: call("hang"))


class Family(BaseModel):
    full_name: str = Field(alias="fullName")
    children: list[Family] = []


class Ancestry(module[str, Family]):
    """Write who is whose child."""

    model = ScriptedModel(lambda request: finish(fullName="Ada", children=[{"fullName": "Byron"}]))


class Rounding(module[str, float]):
    """Divide by nothing."""

    model = ScriptedModel(lambda request: finish(1.0))

    def on_finish(self, output: float) -> Any:
        return math.nan


class Rewriting(module[str, Answer]):
    """Answer in words after all."""

    model = ScriptedModel(lambda request: finish(answer="it", depth=1))

    def on_finish(self, output: Answer) -> Any:
        return f"In a word: {output.answer}"


class Halving(module[str, str]):
    """Give half a character, as of a file name that is no UTF-8."""

    model = ScriptedModel(lambda request: finish("x"))

    def on_finish(self, output: str) -> str:
        return "a\ud800b"
