"""acorn on its native OpenAI lane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from acorn import module
from peers import tools
from peers.tasks import PROMPT, Answer, Report, Watch, question

FINISH = "__finish__"
PACKAGES = ["acorn-agents"]
LANE: dict[str, Any] = {}


class Looker(module):
    system_prompt = PROMPT
    initial_input = ["question"]
    final_output: Any = Answer


class Reporter(Looker):
    final_output = Report


def model(url: str) -> dict[str, Any]:
    return {"model": "openai/gpt-4o", "api_base": url, "api_key": "sk-bench", "num_retries": 0, **LANE}


def single(url: str) -> Callable[[], Answer]:
    agent = Looker(model=model(url))
    return lambda: agent(question=question())


def loop(url: str, steps: int) -> Callable[[], Answer]:
    agent = Looker(model=model(url), tools=[tools.look], max_steps=steps + 1)
    return lambda: agent(question=question())


def parallel(url: str, calls: int) -> Callable[[], Answer]:
    agent = Looker(model=model(url), tools=[tools.wait], max_steps=2)
    return lambda: agent(question=question())


def stream(url: str, watch: Watch) -> Callable[[], Report]:
    agent = Reporter(model=model(url))

    def run() -> Report:
        for chunk in agent.stream(question=question()):
            if chunk.partial is not None:
                watch(chunk.partial.name, chunk.partial.items)
            result = chunk.result
        assert isinstance(result, Report)
        return result

    return run


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer]]]:
    agent = Looker(model=model(url))

    async def run() -> list[Answer]:
        return list(await asyncio.gather(*(agent.acall(question=question(at)) for at in range(count))))

    return run
