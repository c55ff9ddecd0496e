"""A support desk that asks before it pays, a chatty agent, and a slow one."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from acorn import ask_human, module, tool
from acorn.models import ModelRequest
from acorn.testing import Failure, Reply, ScriptedModel, call, finish


def turns(request: ModelRequest) -> int:
    """Return how often the model has answered since the last input."""
    roles = [message["role"] for message in request.messages]
    return roles[::-1].index("user")


def refund_it(request: ModelRequest) -> Reply:
    said = [message for message in request.messages if message["role"] == "assistant"]
    return [call("refund", amount=20.0) & call("look"), finish("settled")][len(said)]


class Desk(module[str, str]):
    """Refund the order."""

    model = ScriptedModel(refund_it)
    max_steps = 5

    @tool(approval=True)
    def refund(self, amount: float) -> str:
        """Pay it back."""
        if log := os.environ.get("DESK_LOG"):
            with Path(log).open("a", encoding="utf-8") as file:
                file.write(f"{amount}\n")
        return f"{amount} paid"

    @tool
    def look(self) -> str:
        """Look at the order."""
        return "a blue one"


def ask(request: ModelRequest) -> Reply:
    said = [message for message in request.messages if message["role"] == "assistant"]
    answers = [message["content"] for message in request.messages if message["role"] == "tool"]
    return [call("ask_human", question="Which colour?"), finish(" ".join(answers))][len(said)]


class Curious(module[str, str]):
    """Ask."""

    model = ScriptedModel(ask)
    max_steps = 5
    tools = [ask_human]


def echo(request: ModelRequest) -> Reply | Failure:
    text = request.messages[-1]["content"].partition("<input>")[2].partition("</input>")[0]
    if text == "bad":
        return Failure(status=400)
    return finish(f"{text} ({sum(message['role'] == 'user' for message in request.messages)})")


class Echo(module[str, str]):
    """Echo."""

    model = ScriptedModel(echo)


@dataclass
class Order:
    text: str
    limit: int = 3


class Orders(module[Order, str]):
    """Echo an order."""

    model = ScriptedModel(echo)


def wait_long(request: ModelRequest) -> Reply:
    said = [message for message in request.messages if message["role"] == "assistant"]
    return [call("wait"), finish("awake")][len(said)]


class Slow(module[str, str]):
    """Wait."""

    model = ScriptedModel(wait_long)
    max_steps = 3

    @tool
    def wait(self) -> str:
        """Wait until the file is there."""
        Path(os.environ["SLOW_BUSY"]).touch()
        while not Path(os.environ["SLOW_GO"]).exists():
            time.sleep(0.01)
        return "waited"


class Counting(module[int, int]):
    """Count."""

    model = ScriptedModel([])
