"""instructor with the openai SDK and its default mode for OpenAI, which uses a tool call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import instructor
from openai import AsyncOpenAI, OpenAI

from peers.contenders.by_hand import opening
from peers.tasks import Answer, Report, Watch

FINISH = {"": "Answer", "stream": "PartialReport"}
PACKAGES = ["instructor", "openai"]
CANNOT = {"loop": "no tool loop", "parallel": "no tool loop"}


def single(url: str) -> Callable[[], Answer]:
    made: Any = instructor.from_openai(OpenAI(base_url=url, api_key="sk-bench", max_retries=0))
    asked = made.chat.completions
    return lambda: asked.create(model="gpt-4o", messages=opening(), response_model=Answer, max_retries=0)


def stream(url: str, watch: Watch) -> Callable[[], Report]:
    made: Any = instructor.from_openai(OpenAI(base_url=url, api_key="sk-bench", max_retries=0))

    def run() -> Report:
        asked = made.chat.completions
        partial: Any = None
        for partial in asked.create_partial(model="gpt-4o", messages=opening(), response_model=Report, max_retries=0):
            watch(partial.name, partial.items)
        return Report.model_validate(partial.model_dump())

    return run


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer]]]:
    client = AsyncOpenAI(base_url=url, api_key="sk-bench", max_retries=0)
    asked: Any = instructor.from_openai(client).chat.completions

    async def run() -> list[Answer]:
        runs = [
            asked.create(model="gpt-4o", messages=opening(at), response_model=Answer, max_retries=0)
            for at in range(count)
        ]
        return list(await asyncio.gather(*runs))

    return run
