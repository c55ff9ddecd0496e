"""An agent whose model answers by the conversation, so that a fork of its runs continues."""

from __future__ import annotations

from pydantic import BaseModel

from acorn import ask_human, module, tool
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish


def reply(request: ModelRequest) -> Reply:
    turns = sum(message["role"] == "assistant" for message in request.messages)
    results = [str(message["content"]) for message in request.messages if message["role"] == "tool"]
    if turns < 2:
        return call("look", _id=f"look-{turns}", at=f"place {turns}")
    if turns == 2:
        return call("count", _id="count-0")
    return finish(report=f"{request.messages[0]['content']} {'; '.join(results)}")


class Where(BaseModel):
    region: str


class Report(BaseModel):
    report: str


@tool
def count() -> int:
    """Count."""
    return 3


class Scout(module[Where, Report]):
    """Look around."""

    model = ScriptedModel(reply)
    max_steps = 6
    tools = [count, ask_human]
    store = None

    @tool
    def look(self, at: str) -> str:
        """Look somewhere."""
        return f"seen {at}"

    def on_human(self, request: object) -> str:
        return "nobody"
