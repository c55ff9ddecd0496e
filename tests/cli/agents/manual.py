"""Agents that start branches from code: in a hook, in a tool, and concurrently."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from acorn import BranchError, Step, module, tool
from acorn.models.request import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish


class Topic(BaseModel):
    topic: str


class Verdict(BaseModel):
    topic: str
    is_true: bool


@tool
def look(topic: str) -> str:
    """Look something up. The first topic takes longer."""
    time.sleep(0.6 if topic == "alpha" else 0.3)
    return f"about {topic}"


class Review(module[Topic, Verdict]):
    """Review it."""

    tools = [look]
    max_steps = 3


class Broken(module[Topic, Verdict]):
    """Break it."""

    parse_retries = 0


def reply(request: ModelRequest) -> Reply:
    said = [str(message["content"]) for message in request.messages]
    given = [text for text in said if "<topic>" in text]
    topic = "alpha" if given and "alpha" in given[-1] else "beta"
    if "Break it." in said[0]:
        return finish(topic=topic)
    if "Review it." in said[0]:
        if said[-1] == f"about {topic}":
            return finish(topic=topic, is_true=True)
        return Reply(f"Reviewing {topic}.") & call("look", topic=topic)
    if any("looked into" in text or text == "7" for text in said):
        return finish(result="done")
    return Reply("To work.") & call("work")


class Base(module):
    """Do the work."""

    final_output: Any = str
    max_steps = 3
    model = ScriptedModel(reply)


@tool
def work() -> int:
    """Work."""
    return 7


class InHook(Base):
    tools = [work]

    def on_step(self, step: Step) -> None:
        self.branch(Review, topic="beta")


class Twice(Base):
    """One after the other."""

    tools = [work]

    def on_step(self, step: Step) -> None:
        self.branch(Review, topic="alpha")
        self.branch(Review, topic="beta")


class InTool(Base):
    @tool
    def work(self) -> str:
        """Work."""
        verdict = self.branch(Review, topic="beta")
        return f"looked into {verdict.topic}"


class SideBySide(Base):
    tools = [work]

    def on_step(self, step: Step) -> None:
        self.branch_all([(Review, {"topic": "alpha"}), (Review, {"topic": "beta"})])


class Failing(Base):
    """A failing branch that does not fail the run."""

    tools = [work]

    def on_step(self, step: Step) -> None:
        with suppress(BranchError):
            self.branch(Broken, topic="beta")
