"""The ToolCallingAgent of smolagents, without output; the result of `final_answer` is validated by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from peers import tools
from peers.tasks import PROMPT, Answer, question

FINISH = "final_answer"
PACKAGES = ["smolagents", "openai"]
CANNOT = {"stream": "no typed output, so no partial answers"}


def agent(url: str, *offered: Any) -> Any:
    model = OpenAIModel("gpt-4o", api_base=url, api_key="sk-bench", client_kwargs={"max_retries": 0})
    made = [tool(each) for each in offered]
    return ToolCallingAgent(
        tools=made, model=model, instructions=PROMPT, verbosity_level=LogLevel.OFF, max_steps=1000, max_tool_threads=20
    )


def asking(made: Any, number: int = 7) -> Callable[[], Answer]:
    return lambda: Answer.model_validate(made.run(question(number)))


def single(url: str) -> Callable[[], Answer]:
    return asking(agent(url))


def loop(url: str, steps: int) -> Callable[[], Answer]:
    return asking(agent(url, tools.look))


def parallel(url: str, calls: int) -> Callable[[], Answer]:
    return asking(agent(url, tools.wait))


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer]]]:
    # smolagents has no async calls and recommends threads. An agent stores its run, so each run needs a new agent.
    made = [agent(url) for _ in range(count)]
    pool = ThreadPoolExecutor(count)

    async def run() -> list[Answer]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(pool, asking(made[at], at)) for at in range(count)))

    return run
