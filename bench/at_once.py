"""Measure 200 concurrent runs on the native OpenAI lane, relative to the same requests with httpx and aiohttp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
from lanes import model, opening, server
from loop import PARAGRAPH, Answer, Question, look
from measure import Line, in_turn, peak_of_script

from acorn import module, tool

RUNS = 200
STEPS = 3
BODY: dict[str, Any] = {"model": "gpt-4o", "temperature": 0.7, "max_tokens": 4096}


async def by_hand(post: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
    """Run the agent loop that a user would write without a framework."""
    tools, messages = opening()
    for _ in range(STEPS + 1):
        message = (await post({**BODY, "messages": messages, "tools": tools}))["choices"][0]["message"]
        messages.append(message)
        for made in message["tool_calls"]:
            json.loads(made["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": PARAGRAPH})


async def by_httpx(url: str) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:

        async def post(body: dict[str, Any]) -> Any:
            return (await client.post(f"{url}/v1/chat/completions", json=body)).json()

        await asyncio.gather(*(by_hand(post) for _ in range(RUNS)))


async def by_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def post(body: dict[str, Any]) -> Any:
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                return await response.json()

        await asyncio.gather(*(by_hand(post) for _ in range(RUNS)))


@tool(name="look", repeatable=True)
async def alook(place: str, depth: int = 1) -> str:
    """Look somewhere."""
    return PARAGRAPH


class AsyncLooker(module[Question, Answer]):
    """Look around, then answer."""

    tools = [alook]
    max_steps = STEPS
    loop_guard = None


class ThreadedLooker(AsyncLooker):
    """Look around, then answer."""

    tools = [look]


async def by_acorn(url: str, kind: type[AsyncLooker] = AsyncLooker) -> None:
    agent = kind(model=model(url))
    await asyncio.gather(*(agent.acall(question="Where?") for _ in range(RUNS)))


ALONE = """
import asyncio
from acorn import module, tool
from pydantic import BaseModel

class Question(BaseModel):
    question: str

class Answer(BaseModel):
    answer: str

@tool(repeatable=True)
async def look(place: str) -> str:
    return {paragraph!r}

class Looker(module[Question, Answer]):
    "Look around, then answer."
    tools = [look]
    max_steps = {steps}
    loop_guard = None

async def main():
    agent = Looker(model={model!r})
    await asyncio.gather(*(agent.acall(question="Where?") for _ in range({runs})))

asyncio.run(main())
"""


def peak(url: str) -> float:
    """Return the peak memory of a process that only runs these agents, in megabytes."""
    return peak_of_script(ALONE.format(paragraph=PARAGRAPH, steps=STEPS, runs=RUNS, model=model(url)))


def lines() -> list[Line]:
    with server("finish") as url:
        spent = in_turn(
            {
                "httpx": lambda: asyncio.run(by_httpx(url)),
                "aiohttp": lambda: asyncio.run(by_aiohttp(url)),
                "ours": lambda: asyncio.run(by_acorn(url)),
                "threads": lambda: asyncio.run(by_acorn(url, ThreadedLooker)),
            },
            repeat=3,
        )
        size = peak(url)
    requests = RUNS * (STEPS + 1)
    ours, threads, raw, floor = (spent[name] / requests * 1e3 for name in ("ours", "threads", "httpx", "aiohttp"))
    return [
        Line(f"a step of {RUNS} runs: {ours:.2f} ms / raw httpx: {raw:.2f} ms", ours / raw, 0.25),
        Line(f"a step of {RUNS} runs: {ours:.2f} ms / raw aiohttp: {floor:.2f} ms", ours / floor, 2.5),
        Line("the same with a tool that blocks, each call in a thread / raw aiohttp", threads / floor, None),
        Line(f"peak of a process with {RUNS} runs at once", size, 60, " MB"),
    ]
