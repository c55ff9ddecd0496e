"""Measure the start of a branch in a long conversation, relative to one ordinary step."""

from __future__ import annotations

import time
from typing import Any

from measure import Line
from pydantic import BaseModel

from acorn import Step, Usage, module, tool
from acorn._call.plan import plan_for
from acorn._drive.tree import current_machine
from acorn._machine.asks import AskModel
from acorn.models import ModelRequest, ModelResponse, RawCall
from acorn.record import current_call_site

PARAGRAPH = "The quick brown fox jumps over the lazy dog. " * 4
LENGTH = 400
"""The number of messages in the history at the time of the measurement."""


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


@tool(repeatable=True)
def look(place: str, depth: int = 1) -> str:
    """Look somewhere."""
    return PARAGRAPH


class Checker(module[Any, Answer]):
    """Check what was found."""

    final_output = Answer


class Looker(module[Question, Answer]):
    """Look around, then answer."""

    tools = [look]
    branches = {"check": Checker}
    max_steps = 1000


class Beginner(Looker):
    """The same agent, which also starts branches without running them when the history has `LENGTH` messages."""

    def on_step(self, step: Step) -> Step:
        if len(step.run.history) == LENGTH + 1:
            start = time.process_time()
            begin()
            FIRST.append(time.process_time() - start)
            BEGUN.append(min(begin() for _ in range(15)))
        return step


class Busy:
    """A model that encodes each request like an adapter, and records the CPU time between requests."""

    name = "busy"

    def __init__(self) -> None:
        self.asked = 0
        self.at = 0.0
        self.steps: list[float] = []

    def can_force_tool(self, request: ModelRequest) -> bool:
        return True

    def price(self) -> None:
        return None

    def complete(self, request: ModelRequest) -> ModelResponse:
        request.body("busy")
        if LENGTH + 2 < len(request.messages) < LENGTH + 40:
            self.steps.append(time.process_time() - self.at)
        self.asked += 1
        self.at = time.process_time()
        if len(request.messages) > LENGTH + 40:
            return ModelResponse(tool_calls=[RawCall("f", "__finish__", '{"answer":"done"}')], usage=Usage(1, 1))
        made = RawCall(f"call_{self.asked}", "look", '{"place":"behind the tree","depth":2}')
        return ModelResponse(tool_calls=[made], usage=Usage(10, 10))

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return self.complete(request)


FIRST: list[float] = []
"""The CPU seconds for the first branch of each run, including the creation of the branch instance."""
BEGUN: list[float] = []


def begin() -> float:
    """Start a branch, encode its first request, and return the CPU seconds."""
    place, parent, plan = current_call_site(), current_machine(), plan_for(Checker())
    assert place is not None
    assert parent is not None
    given = plan.spec.input.from_call("check", (), {})
    start = time.process_time()
    context = parent.branches.new_context("check", given, place.next_branch_id(), 0.0, has_input=False)
    child = parent.branch(context, plan)
    child.start(0.0)
    (ask,) = child.asks(0.0)
    assert isinstance(ask, AskModel)
    assert len(ask.request.messages) == LENGTH + 2
    ask.request.body("busy")
    return time.process_time() - start


def lines() -> list[Line]:
    steps: list[float] = []
    FIRST.clear()
    BEGUN.clear()
    for _ in range(9):
        model = Busy()
        Looker(model=model)(question="Where?")
        steps.append(min(model.steps))
        Beginner(model=Busy())(question="Where?")
    step, begun, first = min(steps), min(BEGUN), min(FIRST)
    name = f"beginning a branch of {LENGTH} messages: {begun * 1e6:.0f} µs / a step: {step * 1e6:.0f} µs"
    return [
        Line(name, begun / step, 3),
        Line("the first branch of a run, its instance included / a step", first / step, None),
    ]
