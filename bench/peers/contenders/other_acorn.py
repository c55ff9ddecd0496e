"""The other framework named acorn, on plain LiteLLM."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import litellm
from pydantic import BaseModel

from peers import async_tools
from peers.tasks import PROMPT, Answer, question

FINISH = "__finish__"
acorn: Any = importlib.import_module("acorn")  # A type checker would resolve the import to this package.
PACKAGES = ["acorn", "litellm"]
CANNOT = {"stream": "its partials show a field only when it is whole"}
Run = Callable[[], Coroutine[Any, Any, Any]]


class Question(BaseModel):
    question: str


class Looker(acorn.Module):  # type: ignore[misc]
    system_prompt = PROMPT
    initial_input = Question
    final_output: Any = Answer
    max_steps: int | None = None

    def __init__(self, url: str, **given: Any) -> None:
        self.model = {"id": "openai/gpt-4o", "api_base": url, "api_key": "sk-bench"}
        for name, value in given.items():
            setattr(self, name, value)
        super().__init__()


def asking(made: Any, number: int = 7) -> Run:
    async def run() -> Any:
        return await made(question=question(number))

    return run


def single(url: str) -> Run:
    return asking(Looker(url))


def loop(url: str, steps: int) -> Run:
    return asking(Looker(url, tools=[acorn.tool(async_tools.look)], max_steps=steps + 1))


def parallel(url: str, calls: int) -> Run:
    # Async tools: sync tools run one after another.
    return asking(Looker(url, tools=[acorn.tool(async_tools.wait)], max_steps=2))


def many(url: str, count: int) -> Run:
    # The default client of LiteLLM opens at most 100 connections.
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=20), timeout=60)

    async def run() -> list[Any]:
        litellm.aclient_session = client
        try:
            # An instance stores its conversation, so each run needs a new instance.
            return await asyncio.gather(*(asking(Looker(url), at)() for at in range(count)))
        finally:
            litellm.aclient_session = None

    return run
