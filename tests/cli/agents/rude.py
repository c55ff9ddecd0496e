"""User code that a command must survive: it exits, prints, and reveals keys."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any

from pydantic import BaseModel, field_validator

from acorn import module, tool
from acorn.testing import Reply, ScriptedModel, call, finish

KEY = "hush-hush-0815"


class StrangeError(BaseException):
    pass


@tool
def leaves() -> None:
    """End the program."""
    sys.exit(0)


@tool
def parses() -> None:
    """Read arguments that are not there."""
    argparse.ArgumentParser(prog="tool").parse_args(["--nope"])


@tool
def cancels() -> None:
    """Cancel."""
    raise asyncio.CancelledError


@tool
def strange() -> None:
    """Raise what is no Exception."""
    raise StrangeError("out of this world")


@tool
def rests() -> None:
    """Rest a little."""
    time.sleep(0.05)


@tool
def starts_child() -> str:
    """Let others write."""
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    os.write(1, b"below Python\n")
    return "started"


@tool
def tells_key() -> None:
    """Fail with a key in the text."""
    raise ValueError(f"cannot use {os.environ['MY_API_KEY']}")


@tool
def page() -> str:
    """A page."""
    return "x" * 2000


class Base(module):
    """Behave badly."""

    initial_input: Any = [("text", str, "")]
    final_output: Any = str
    max_steps: int | None = 3


class Leaves(Base):
    tools = [leaves]
    model = ScriptedModel([call("leaves")])


class LeavesBeside(Base):
    """Two concurrent tools, each in its own thread."""

    tools = [leaves, rests]
    model = ScriptedModel([call("leaves") & call("rests")])


class Parses(Base):
    tools = [parses]
    model = ScriptedModel([call("parses")])


class Cancels(Base):
    tools = [cancels]
    model = ScriptedModel([call("cancels")])


class Strange(Base):
    tools = [strange]
    model = ScriptedModel([call("strange")])


class Parent(Base):
    """Its children write."""

    tools = [starts_child]
    model = ScriptedModel([call("starts_child"), finish(result="fine")])


class Late(Base):
    """A thread that prints after the run has ended."""

    model = ScriptedModel([finish(result="fine")])

    def on_finish(self, output: Any) -> None:
        threading.Timer(0.3, print, ["too late"]).start()


class ToldKey(Base):
    """A key of the environment in the text of an exception."""

    tools = [tells_key]
    model = ScriptedModel([call("tells_key"), finish(result="x")])

    def on_finish(self, output: Any) -> None:
        raise RuntimeError(f"cannot use {os.environ['MY_API_KEY']} nor sk-1234567890abcdef")


class DictKey(Base):
    """A key of the model dict in the text of an exception."""

    model = {"model": "openai/nobody-asked", "api_key": KEY}

    def system_prompt(self) -> str:
        raise RuntimeError(f"the key is {KEY}")


class Checked(BaseModel):
    size: int = 0
    name: str = ""

    @field_validator("size")
    @classmethod
    def _fits(cls, value: int) -> int:
        print("a validator prints")  # noqa: T201
        if value == 13:
            raise RuntimeError("the validator is broken")
        if value == 14:
            sys.exit(0)
        return value


class Checking(Base):
    initial_input = Checked
    model = ScriptedModel([finish(result="fine")])


class Talks(Base):
    """Text instead of an answer: corrected twice."""

    max_steps = None
    model = ScriptedModel([Reply("first"), Reply("second"), finish(result="fine")])


class Forced(Base):
    """The last answer comes after the last step."""

    max_steps = 1
    tools = [starts_child]
    model = ScriptedModel([Reply("one") & call("starts_child"), Reply("two") & finish(), finish(result="fine")])


class Wanders(Base):
    """A turn of text alone, which is a step of the loop."""

    tools = [rests]
    model = ScriptedModel(
        [Reply("let me think"), Reply("and look") & call("rests"), Reply("there") & finish(result="fine")]
    )


class Skips(Base):
    """A call beside the answer, which is not executed."""

    tools = [rests]
    model = ScriptedModel([finish(result="fine") & call("rests")])


class Many(Base):
    """Hundreds of steps."""

    max_steps = 400
    tools = [page]
    model = ScriptedModel([*(call("page") for _ in range(300)), finish(result="fine")])
