"""LangGraph's agent (`create_agent`), with langchain-openai."""

from __future__ import annotations

import os

os.environ["LANGSMITH_TRACING"] = "false"

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_openai import ChatOpenAI

from peers import async_tools
from peers.tasks import PROMPT, Answer, Report, Watch, question

FINISH = {"": "json", "stream": "Report"}
PACKAGES = ["langgraph", "langchain", "langchain-openai", "openai"]
Run = Callable[[], Coroutine[Any, Any, Any]]


def model(url: str) -> Any:
    return ChatOpenAI(model="gpt-4o", base_url=url, api_key="sk-bench", max_retries=0, use_responses_api=False)


def agent(url: str, *tools: Any) -> Any:
    # Use the provider's structured output: a tool for it would cost the agent one more node.
    return create_agent(model(url), list(tools), system_prompt=PROMPT, response_format=ProviderStrategy(Answer))


def asking(made: Any, number: int = 7) -> Run:
    async def run() -> Any:
        messages = {"messages": [{"role": "user", "content": question(number)}]}
        return (await made.ainvoke(messages, {"recursion_limit": 1000}))["structured_response"]

    return run


def single(url: str) -> Run:
    return asking(agent(url))


def loop(url: str, steps: int) -> Run:
    return asking(agent(url, async_tools.look))


def parallel(url: str, calls: int) -> Run:
    return asking(agent(url, async_tools.wait))


def stream(url: str, watch: Watch) -> Run:
    # With a JSON Schema, LangGraph streams dicts. The code below validates the complete answer.
    made = model(url).with_structured_output(Report.model_json_schema(), method="function_calling")

    async def run() -> Any:
        partial: dict[str, Any] = {}
        async for partial in made.astream(question()):
            watch(partial.get("name"), partial.get("items"))
        return Report.model_validate(partial)

    return run


def many(url: str, count: int) -> Run:
    made = agent(url)

    async def run() -> list[Any]:
        return await asyncio.gather(*(asking(made, at)() for at in range(count)))

    return run
