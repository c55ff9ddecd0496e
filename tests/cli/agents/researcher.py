"""An agent whose run contains text, tool calls, a branch and a corrected answer."""

from __future__ import annotations

import time

from pydantic import BaseModel, Field

from acorn import module, tool
from acorn.models.port import Price
from acorn.testing import Reply, ScriptedModel, call, finish


class Question(BaseModel):
    question: str = Field(description="The question to answer")


class Answer(BaseModel):
    answer: str
    confidence: float = Field(ge=0, le=1)


class Verdict(BaseModel):
    is_true: bool
    evidence: list[str]


@tool
def search(query: str, limit: int = 2) -> list[str]:
    """Search the encyclopedia."""
    print("a tool that prints")  # noqa: T201
    time.sleep(0.2)
    return [f"{query}: an article"] * limit


@tool
def broken() -> None:
    """It never works."""
    raise ValueError("x must be positive")


class FactChecker(module[None, Verdict]):
    """Verify the claims."""

    max_steps = 3


class Researcher(module[Question, Answer]):
    """You are a research assistant."""

    max_steps = 5
    tools = [search, broken]
    branches = {"fact_check": FactChecker}
    model = ScriptedModel(
        [
            Reply("Let me [bold]look[/bold] that \x1b[31mup\x1b[0m.\x07")
            & call("search", query="Python")
            & call("broken"),
            call("fact_check"),
            call("search", query="Guido"),
            finish(is_true=True, evidence=["Guido: an article"]),
            finish(answer="Guido van Rossum", confidence="very"),
            finish(answer="Guido van Rossum", confidence=0.9),
        ],
        name="scripted",
        price=Price(1e-6, 2e-6),
        chunk_size=5,
    )
