"""The OpenAI Agents SDK on chat completions, without tracing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

from peers import async_tools
from peers.tasks import PROMPT, Answer, question

FINISH = "json"
PACKAGES = ["openai-agents", "openai"]
CANNOT = {"stream": "streams events and text, no partial answers"}
CONFIG = RunConfig(tracing_disabled=True)
Run = Callable[[], Coroutine[Any, Any, Any]]


def agent(url: str, *tools: Any) -> Any:
    client = AsyncOpenAI(base_url=url, api_key="sk-bench", max_retries=0)
    model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=client)
    offered = [function_tool(each) for each in tools]
    return Agent(name="Looker", instructions=PROMPT, model=model, tools=offered, output_type=Answer)


def asking(made: Any, number: int = 7) -> Run:
    async def run() -> Any:
        return (await Runner.run(made, question(number), max_turns=1000, run_config=CONFIG)).final_output

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
