"""DSPy: `Predict` for a single turn, `ReAct` for tools. Its caches are off, because every call must be a request."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import dspy

from peers import tools
from peers.tasks import Answer, question

FINISH = "dspy"
PACKAGES = ["dspy"]
CANNOT = {"parallel": "`ReAct` calls one tool a step", "stream": "streams text of fields, no partial answers"}
MORE_REQUESTS = {"loop": 1}  # ReAct reads the answer from its trajectory in a separate request.


class Looking(dspy.Signature):  # type: ignore[misc]
    """Look around as long as you need to, then answer."""

    question: str = dspy.InputField()
    result: Answer = dspy.OutputField()


def model(url: str) -> Any:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    return dspy.LM("openai/gpt-4o", api_base=url, api_key="sk-bench", cache=False, num_retries=0)


def asking(program: Any, url: str) -> Callable[[], Answer]:
    made = model(url)

    def run() -> Answer:
        with dspy.context(lm=made, track_usage=False):
            result: Answer = program(question=question()).result
            return result

    return run


def single(url: str) -> Callable[[], Answer]:
    return asking(dspy.Predict(Looking), url)


def loop(url: str, steps: int) -> Callable[[], Answer]:
    return asking(dspy.ReAct(Looking, tools=[tools.look], max_iters=steps + 1), url)


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer]]]:
    # A model of DSPy opens at most 100 connections.
    made, program = [model(url) for _ in range(0, count, 100)], dspy.Predict(Looking)

    async def one(number: int) -> Answer:
        with dspy.context(lm=made[number // 100], track_usage=False):
            result: Answer = (await program.acall(question=question(number))).result
            return result

    async def run() -> list[Answer]:
        return await asyncio.gather(*map(one, range(count)))

    return run
