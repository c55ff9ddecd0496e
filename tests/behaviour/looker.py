"""An agent for tests of the history: it looks around, and a function may edit its history after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from acorn import Step, module, tool

Message = Any  # A message as a user may write it: any dict.
Edit = Callable[["Looker", Step], Any]


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


@tool(repeatable=True)
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


class Looker(module[Question, Answer]):
    """Look around, then answer."""

    tools = [look]
    max_steps = 300

    def __init__(self, edit: Edit | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.edit = edit

    def on_step(self, step: Step) -> None:
        if self.edit is not None:
            self.edit(self, step)
