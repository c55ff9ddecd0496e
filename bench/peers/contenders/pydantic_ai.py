"""pydantic-ai on OpenAI's chat completions, async as it is designed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from typing_extensions import TypedDict

from peers import async_tools
from peers.tasks import PROMPT, Answer, Report, Watch, question

FINISH = "final_result"
PACKAGES = ["pydantic-ai-slim", "openai"]
UNLIMITED = UsageLimits(request_limit=None)


class PartialItem(TypedDict, total=False):
    title: str
    body: str
    score: float
    tags: list[str]


class PartialReport(TypedDict, total=False):
    """The streamed type, a TypedDict as in the documentation; a class yields nothing while an item is incomplete."""

    name: str
    items: list[PartialItem]


Run = Callable[[], Coroutine[Any, Any, Any]]


def agent(url: str, *tools: Any, output: Any = Answer) -> Any:
    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=url, api_key="sk-bench"))
    # Async tools: each sync tool would run in a thread.
    return Agent(model, instructions=PROMPT, output_type=output, tools=tools)


def asking(made: Any) -> Run:
    async def run() -> Any:
        return (await made.run(question(), usage_limits=UNLIMITED)).output

    return run


def single(url: str) -> Run:
    return asking(agent(url))


def loop(url: str, steps: int) -> Run:
    return asking(agent(url, async_tools.look))


def parallel(url: str, calls: int) -> Run:
    return asking(agent(url, async_tools.wait))


def stream(url: str, watch: Watch) -> Run:
    made = agent(url, output=PartialReport)

    async def run() -> Any:
        async with made.run_stream(question()) as result:
            async for partial in result.stream_output(debounce_by=None):
                watch(partial.get("name"), partial.get("items"))
            return Report.model_validate(await result.get_output())

    return run


def many(url: str, count: int) -> Run:
    made = agent(url)

    async def run() -> list[Any]:
        done = await asyncio.gather(*(made.run(question(at)) for at in range(count)))
        return [each.output for each in done]

    return run
