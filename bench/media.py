"""Measure the CPU time that a large image adds to a step, relative to encoding and copying its base64 text."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator

from loop import Busy
from measure import Line, cpu
from pydantic import BaseModel
from pydantic_core import to_json

from acorn import Image, Step, module, tool

SIZE = 10_000_000
STEPS = 10


class Question(BaseModel):
    question: str
    photo: Image | None = None


class Answer(BaseModel):
    answer: str


@tool(repeatable=True)
def look(place: str, depth: int = 1) -> str:
    """Look somewhere."""
    return "Nothing."


class Looker(module[Question, Answer]):
    """Look around, then answer."""

    tools = [look]
    max_steps = 1000


class Meddler(Looker):
    """The same agent with a hook that reads and changes the history."""

    def on_step(self, step: Step) -> None:
        self.history.append({"role": "user", "content": "Go on."})


def lines() -> Iterator[Line]:
    picture = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + os.urandom(SIZE))
    text = base64.b64encode(os.urandom(SIZE)).decode()

    def floor() -> None:
        """Do the unavoidable work: create one request body with the image for each step."""
        written = to_json(text)
        for _ in range(STEPS + 1):
            b"".join((b"{", written, b"}"))

    base = cpu(floor)
    for agent in (Looker, Meddler):

        def walk(photo: Image | None, agent: type[Looker] = agent) -> None:
            agent(model=Busy(STEPS))(question="Where?", photo=photo)

        without = cpu(lambda: walk(None))
        took = cpu(lambda: walk(picture)) - without
        yield Line(f"{STEPS} steps with 10 MB, {agent.__name__}", took / base, 3)
