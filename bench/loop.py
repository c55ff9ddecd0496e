"""Measure acorn's part of a step relative to a raw HTTP round trip, and measure concurrent tools."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from measure import Line, cpu
from pydantic import BaseModel

from acorn import Step, Usage, module, tool
from acorn.models import ModelRequest, ModelResponse, RawCall
from acorn.stores import MemoryStore
from acorn.testing import Reply, ScriptedModel, call, finish

PARAGRAPH = "The quick brown fox jumps over the lazy dog. " * 4


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


@tool(repeatable=True)
def look(place: str, depth: int = 1) -> str:
    """Look somewhere."""
    return PARAGRAPH


class Looker(module[Question, Answer]):
    """Look around, then answer."""

    tools = [look]
    max_steps = 1000

    def on_step(self, step: Step) -> Step:
        return step


class Busy:
    """A model that does the work of an adapter: it encodes the request body and parses a response."""

    name = "busy"

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def can_force_tool(self, request: ModelRequest) -> bool:
        return True

    def price(self) -> None:
        return None

    def complete(self, request: ModelRequest) -> ModelResponse:
        request.body("busy")
        asked = (
            len(request.messages) // 2
        )  # A step adds two messages, and the prompt and the input are the first two messages.
        if asked > self.steps:
            return ModelResponse(tool_calls=[RawCall("f", "__finish__", '{"answer":"done"}')], usage=Usage(1, 1))
        made = RawCall(f"call_{asked}", "look", '{"place":"behind the tree","depth":2}')
        return ModelResponse(tool_calls=[made], usage=Usage(10, 10))

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return self.complete(request)


def per_step(steps: int) -> float:
    agent = Looker(model=Busy(steps))
    return cpu(lambda: agent(question="Where?"), repeat=30 if steps < 50 else 10) / (steps + 1)


def round_trip(client: httpx.Client, url: str) -> float:
    body = {"model": "m", "messages": [{"role": "user", "content": PARAGRAPH}], "tools": []}
    return cpu(lambda: client.post(url, json=body).json(), repeat=7, number=100)


def sleepers(count: int, *, is_async: bool) -> type[module[Any, Any]]:
    def make(number: int) -> Any:
        async def anap() -> str:
            await asyncio.sleep(0.05)
            return "rested"

        def nap() -> str:
            time.sleep(0.05)
            return "rested"

        return tool(name=f"nap_{number}")(anap if is_async else nap)

    return type(
        "Sleeper", (module,), {"tools": [make(n) for n in range(count)], "max_steps": 2, "final_output": Answer}
    )


def naps(count: int) -> list[Any]:
    every = Reply()
    for number in range(count):
        every = every & call(f"nap_{number}")
    return [every, finish(answer="awake")]


def wall(act: Any, repeat: int = 5) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
    return best


def bare_threads() -> None:
    threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def bare_gather() -> None:
    await asyncio.gather(*(asyncio.sleep(0.05) for _ in range(20)))


def per_call(calls: int, *, is_async: bool, store: Any = None) -> float:
    """Return the CPU seconds of one tool call in a response with many tool calls."""
    model = ScriptedModel(lambda request: finish(answer="done") if len(request.messages) > 3 else looks(calls))
    agent = Looker(model=model, store=store)
    act = (lambda: asyncio.run(agent.acall(question="Where?"))) if is_async else (lambda: agent(question="Where?"))
    return cpu(act, repeat=5) / calls


def looks(count: int) -> Reply:
    every = Reply()
    for number in range(count):
        every = every & call("look", f"c{number}", place="behind the tree", depth=number)
    return every


def lines() -> list[Line]:
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("server.py"))], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1/chat/completions"
    try:
        with httpx.Client() as client:
            floor = round_trip(client, url)
            found = [Line("raw httpx round trip", floor * 1e6, None, "µs")]
            for steps, limit in ((10, 0.15), (200, 0.25)):
                share = per_step(steps)
                found.append(
                    Line(f"a step of {steps}, body included: {share * 1e6:.0f} µs / round trip", share / floor, limit)
                )
    finally:
        server.kill()
    threads, gathered = wall(bare_threads), wall(lambda: asyncio.run(bare_gather()))
    blocking, awaiting = sleepers(20, is_async=False), sleepers(20, is_async=True)
    both = wall(lambda: blocking(model=ScriptedModel(naps(20)))())
    found.append(Line("twenty sync tools of 50 ms / bare threads, wall time", both / threads, 1.15))
    both = wall(lambda: asyncio.run(awaiting(model=ScriptedModel(naps(20))).acall()))
    found.append(Line("twenty async tools of 50 ms / bare gather, wall time", both / gathered, 1.15))
    for way in ("sync", "async"):
        for name, store in (("", None), (", kept", MemoryStore())):
            few, many = (per_call(count, is_async=way == "async", store=store) for count in (10, 1000))
            found.append(Line(f"one of 1,000 calls in a response / one of 10, {way}{name}", many / few, 1.3))
    return found
