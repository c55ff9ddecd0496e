"""The tasks and their correct results. The server and every contender read them from here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

MARK = "~seen~"
"""Stands once in each tool result: the server counts it, so it knows how much of the conversation it was sent."""

PARAGRAPH = f"{MARK} " + "The quick brown fox jumps over the lazy dog. " * 4
PROMPT = "Look around as long as you need to, then answer."
PIECE = 24
"""Characters of a streamed delta."""

PAUSE = 0.05
"""Seconds that a tool of the parallel work takes."""

WORKS = {
    "import": "import, agent declared",
    "first": "import to first answer",
    "many200": "200 runs at once",
    "single": "single turn",
    "loop10": "loop of 10 tools",
    "loop50": "loop of 50 tools",
    "loop200": "loop of 200 tools",
    "parallel20": "20 tools of 50 ms",
    "stream2": "2 KB of partials",
    "stream20": "20 KB of partials",
    "stream100": "100 KB of partials",
}
"""In the order in which they run: what counts peak memory comes first."""


class Answer(BaseModel):
    answer: str
    confidence: float


class Item(BaseModel):
    title: str
    body: str
    score: float
    tags: list[str]


class Report(BaseModel):
    name: str
    items: list[Item]


def kind_of(work: str) -> tuple[str, int]:
    """`loop10` is `("loop", 10)`."""
    kind = work.rstrip("0123456789")
    return {"first": "single", "page": "loop"}.get(kind, kind), int(work[len(kind) :] or 0)


def served(work: str) -> str:
    """Return the task by which the server knows a task: `page3` is answered like `loop3`."""
    return work.replace("page", "loop")


def question(number: int = 7) -> str:
    return f"Where is number {number}?"


def answer(number: int = 7) -> dict[str, Any]:
    """Return the server's answer to a question, so that mixed-up runs are detected."""
    return {"answer": f"number {number} is behind the tree", "confidence": 0.75}


def report(size: int) -> str:
    """Return nested data as JSON, of about that many thousand characters."""
    items = [
        {"title": f"Item {at}", "body": "Some words about it. " * 5, "score": at / 4, "tags": ["red", "round"]}
        for at in range(size * 1000 // 180)
    ]
    return json.dumps({"name": "report", "items": items})


def pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def requests_of(work: str) -> int:
    """Return the number of requests of a run."""
    kind, number = kind_of(work)
    return {"loop": number + 1, "parallel": 2, "many": number}.get(kind, 1)


class Watch:
    """Read a partial answer like a program that shows it: a small field, and the number of items."""

    def __init__(self) -> None:
        self.lengths: set[int] = set()

    def __call__(self, name: str | None, items: Sequence[object] | None) -> None:
        assert name is None or "report".startswith(name)
        self.lengths.add(len(items or ()))
