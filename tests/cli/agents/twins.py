"""Two concurrent branches of one name, each with its own tool and branch."""

from __future__ import annotations

import time

from pydantic import BaseModel

from acorn import module, tool
from acorn.models.request import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish


class Topic(BaseModel):
    topic: str


@tool
def look(topic: str) -> str:
    """Look something up. The first topic takes longer."""
    time.sleep(0.3 if topic == "alpha" else 0.1)
    return f"about {topic}"


class Deep(module[Topic, str]):
    """Go deeper."""


class Check(module[Topic, str]):
    """Check it."""

    tools = [look]
    branches = {"deep": Deep}
    max_steps = 4


def reply(request: ModelRequest) -> Reply:
    said = [str(message["content"]) for message in request.messages]
    given = [text for text in said if "<topic>" in text]
    topic = "alpha" if given and "alpha" in given[-1] else "beta"
    if "Go deeper." in said[0]:
        return finish(result=f"deep {topic}")
    if "Check it." in said[0]:
        if f"deep {topic}" in said[-1]:
            return finish(result=f"checked {topic}")
        if f"about {topic}" in said[-1]:
            return call("deep", topic=topic)
        return Reply(f"Checking {topic}.") & call("look", topic=topic)
    if request.messages[-1]["role"] == "tool":
        return finish(result="done")
    return call("check", topic="alpha") & call("check", topic="beta")


class Twins(module):
    """Ask twice."""

    final_output = str
    max_steps = 3
    branches = {"check": Check}
    model = ScriptedModel(reply)
