"""The Agent of agno, without telemetry, storage and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAIChat

from peers import async_tools
from peers.tasks import PROMPT, Answer, question

FINISH = "json"
PACKAGES = ["agno", "openai"]
CANNOT = {"stream": "streams events and text, no partial answers"}
Run = Callable[[], Coroutine[Any, Any, Any]]


def agent(url: str, *tools: Any) -> Any:
    model = OpenAIChat(id="gpt-4o", base_url=url, api_key="sk-bench", max_retries=0)
    return Agent(model=model, instructions=PROMPT, tools=list(tools), output_schema=Answer, telemetry=False)


def asking(made: Any, number: int = 7) -> Run:
    async def run() -> Any:
        return (await made.arun(question(number))).content

    return run


def single(url: str) -> Run:
    return asking(agent(url))


def loop(url: str, steps: int) -> Run:
    return asking(agent(url, async_tools.look))


def parallel(url: str, calls: int) -> Run:
    return asking(agent(url, async_tools.wait))


def many(url: str, count: int) -> Run:
    made = agent(url)

    async def run() -> list[Any]:
        return await asyncio.gather(*(asking(made, at)() for at in range(count)))

    return run
