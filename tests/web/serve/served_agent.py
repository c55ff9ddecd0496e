"""A served agent whose model does what the question says. It logs its runs to `TRACES`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from tests.waiting import AGES

from acorn import module, tool
from acorn.models import ModelRequest
from acorn.testing import Failure, Reply, ScriptedModel, call, finish

CANARIES = [f"canary-{at:02}-of-the-environment" for at in range(30)]
"""Secrets, which a server has as `CANARY_00_TOKEN` and so on."""
ENVIRONMENT = {f"CANARY_{at:02}_TOKEN": canary for at, canary in enumerate(CANARIES)}


def leave_word(name: str) -> None:
    Path(os.environ["TRACES"], name).touch()


class Question(BaseModel):
    question: str = Field(description="What to answer")
    limit: int = Field(5, ge=1, le=20)


class Answer(BaseModel):
    answer: str
    confidence: float = 1.0


@tool
async def wait(name: str) -> str:
    """Take ages."""
    leave_word(f"{name}.begun")
    try:
        await asyncio.sleep(AGES)
    except asyncio.CancelledError:
        leave_word(f"{name}.cancelled")
        raise
    return "waited"


@tool
async def hold(name: str) -> str:
    """Wait until the test says so."""
    leave_word(f"{name}.begun")
    while not Path(os.environ["TRACES"], f"{name}.go").exists():
        await asyncio.sleep(0.005)
    return "held"


@tool
def leave() -> str:
    """End the program."""
    sys.exit(3)


@tool(approval=True)
def refund(amount: float) -> str:
    """Pay money back."""
    return f"{amount} paid back"


def said(request: ModelRequest) -> tuple[str, int]:
    """Return the question of the last input, and the number of turns since it."""
    turns = 0
    for message in reversed(request.messages):
        content = str(message["content"])
        if message["role"] == "user" and "<question" in content:
            return content.partition("<question")[2].partition(">")[2].partition("</question>")[0].strip(), turns
        turns += message["role"] == "assistant"
    return "", turns


def reply(request: ModelRequest) -> Reply | Failure:
    question, turn = said(request)
    word, _, rest = question.partition(" ")
    if turn:
        result = str(request.messages[-1]["content"])
        return finish(answer=result if word in ("refund", "hold") else question)
    acts: dict[str, Reply | Failure] = {
        "wait": Reply("I wait.") & call("wait", name=rest),
        "hold": call("hold", name=rest),
        "leave": call("leave"),
        "refund": call("refund", amount=200.0),
        "fail": Failure(
            status=int(rest) if rest.isdigit() else 400, message=f"no, said {CANARIES[0]} and {CANARIES[1]}"
        ),
        "lost": Failure(message="gone"),
        "never": Reply(calls=call("__finish__", confidence="high").calls),
        "leak": Reply(" ".join(CANARIES), reasoning=" ".join(CANARIES)) & finish(answer=" ".join(CANARIES)),
        "history": finish(answer="|".join(f"{each['role']}: {each['content']}" for each in request.messages[:-1])),
    }
    return acts.get(word) or finish(answer=question)


class Clerk(module[Question, Answer]):
    """Answer the question."""

    model = ScriptedModel(reply, name="scripted/clerk", chunk_size=5)
    tools = [wait, hold, leave, refund]
    max_steps = 3
    parse_retries = 0

    def on_finish(self, output: Answer) -> Any:
        if output.answer.startswith("boom"):
            raise RuntimeError(f"it broke over {CANARIES[2]} in /secret/place.py")


class Echo(module[str, str]):
    """Say it again."""

    model = ScriptedModel(
        lambda request: finish(str(request.messages[-1]["content"]).partition("<input>")[2].partition("</input>")[0]),
        chunk_size=3,
    )


class Flood(module[str, str]):
    """Write more than the buffers of a connection can hold, and then wait."""

    model = ScriptedModel(lambda request: Reply("x" * 12_000_000) & call("wait", name="flood"), chunk_size=1_000_000)
    tools = [wait]
    max_steps = 2


class Greeter(module[[], str]):  # type: ignore[valid-type]
    """Greet."""

    model = ScriptedModel(lambda request: finish("hello"))
