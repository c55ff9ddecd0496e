"""The tasks and their correct results, which the server and all contenders share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

MARK = "~seen~"
"""A text that each tool result contains once. The server counts it to find the number of tool results in a request."""

PARAGRAPH = f"{MARK} " + "The quick brown fox jumps over the lazy dog. " * 4
PROMPT = "Look around as long as you need to, then answer."
PIECE = 24
"""The number of characters in a streamed delta."""

PAUSE = 0.05
"""The duration of a tool call in the task with parallel tools, in seconds."""

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
"""A dict that maps tasks to titles, in the order of execution. The tasks that measure peak memory are first."""


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
    """Split the name of a task into its kind and its number: `loop10` becomes `("loop", 10)`."""
    kind = work.rstrip("0123456789")
    return {"first": "single", "page": "loop"}.get(kind, kind), int(work[len(kind) :] or 0)


def served(work: str) -> str:
    """Return the task name that the server expects; for example, the server answers `page3` like `loop3`."""
    return work.replace("page", "loop")


def question(number: int = 7) -> str:
    return f"Where is number {number}?"


def answer(number: int = 7) -> dict[str, Any]:
    """Return the server's answer to a question, which differs for each number so that mixed-up runs are detected."""
    return {"answer": f"number {number} is behind the tree", "confidence": 0.75}


def report(size: int) -> str:
    """Return nested data as JSON text of about `size` thousand characters."""
    items = [
        {"title": f"Item {at}", "body": "Some words about it. " * 5, "score": at / 4, "tags": ["red", "round"]}
        for at in range(size * 1000 // 180)
    ]
    return json.dumps({"name": "report", "items": items})


def pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def requests_of(work: str) -> int:
    """Return the number of requests that one run of a task sends."""
    kind, number = kind_of(work)
    return {"loop": number + 1, "parallel": 2, "many": number}.get(kind, 1)


class Watch:
    """A reader of partial answers that simulates a user interface: it accesses a small field and counts the items."""

    def __init__(self) -> None:
        self.lengths: set[int] = set()

    def __call__(self, name: str | None, items: Sequence[object] | None) -> None:
        assert name is None or "report".startswith(name)
        self.lengths.add(len(items or ()))
