"""Agents with slow runs, for tests that watch or interrupt a run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from acorn import module, tool
from acorn.models.port import Delta
from acorn.models.request import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish


class Dripping(ScriptedModel):
    """A model that pauses between pieces."""

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        for delta in super().stream(request):
            time.sleep(0.07)
            yield delta


class Person(BaseModel):
    name: str
    words: list[str]
    age: int


@tool
def look(place: str) -> str:
    """Look somewhere."""
    time.sleep(0.4)
    return f"nothing in {place}"


class Checker(module[None, Person]):
    """Check it."""


class Watched(module):
    """Answer slowly."""

    initial_input = ["text"]
    final_output = Person
    max_steps = 4
    tools = [look]
    branches = {"check": Checker}
    model = Dripping(
        [
            Reply("Let me think about it for a while.") & call("look", place="the drawer"),
            call("check"),
            finish(name="Inner", words=["x"], age=1),
            finish(name="Augusta Ada King, Countess of Lovelace, born Byron", words=["poetical", "science"], age=36),
        ],
        chunk_size=12,
    )


class Stuck(module):
    """Do a step, and then wait for very long."""

    initial_input = ["text"]
    final_output = Person
    max_steps = 4
    tools = [look]
    model = ScriptedModel([call("look", place="the drawer"), Reply("never", delay=240)])


@tool
def sleep() -> None:
    """Create the file that the test waits for, and sleep for very long."""
    Path(os.environ["SLOW_BUSY"]).touch()
    time.sleep(240)


class Asleep(Stuck):
    """Two concurrent tools that take very long."""

    tools = [sleep]
    model = ScriptedModel([call("sleep") & call("sleep")])
