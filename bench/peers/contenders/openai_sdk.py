"""The openai SDK with its own parsing into Pydantic classes, and a hand-written loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
from pydantic import BaseModel

from peers import tools
from peers.contenders.by_hand import opening
from peers.tasks import Answer, Report, Watch

FINISH = "json"
PACKAGES = ["openai"]


class Place(BaseModel):
    place: str
    depth: int


def asked_of(number: int = 7) -> Any:
    return opening(number)


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="sk-bench", max_retries=0)


def single(url: str) -> Callable[[], Answer | None]:
    asked = client(url).chat.completions

    def run() -> Answer | None:
        done = asked.parse(model="gpt-4o", messages=asked_of(), response_format=Answer)
        return done.choices[0].message.parsed

    return run


def loop(url: str, steps: int) -> Callable[[], Answer | None]:
    return converse(url, "look")


def parallel(url: str, calls: int) -> Callable[[], Answer | None]:
    return converse(url, "wait")


def converse(url: str, name: str) -> Callable[[], Answer | None]:
    asked = client(url).chat.completions
    offered = [openai.pydantic_function_tool(Place, name=name)]

    def perform(call: Any) -> dict[str, Any]:
        place = call.function.parsed_arguments
        output = getattr(tools, call.function.name)(place.place, place.depth)
        return {"role": "tool", "tool_call_id": call.id, "content": output}

    def run() -> Answer | None:
        messages: list[Any] = opening()
        while True:
            done = asked.parse(model="gpt-4o", messages=messages, tools=offered, response_format=Answer)
            message = done.choices[0].message
            if not message.tool_calls:
                return message.parsed
            messages.append(message)
            if len(message.tool_calls) == 1:
                messages.append(perform(message.tool_calls[0]))
            else:
                with ThreadPoolExecutor(len(message.tool_calls)) as pool:
                    messages.extend(pool.map(perform, message.tool_calls))

    return run


def stream(url: str, watch: Watch) -> Callable[[], Report | None]:
    asked = client(url).chat.completions

    def run() -> Report | None:
        with asked.stream(model="gpt-4o", messages=asked_of(), response_format=Report) as events:
            for event in events:
                if event.type == "content.delta":
                    partial: Any = event.parsed or {}
                    watch(partial.get("name"), partial.get("items"))
            return events.get_final_completion().choices[0].message.parsed

    return run


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer | None]]]:
    # The SDK recommends its aiohttp transport for many concurrent requests.
    made = openai.AsyncOpenAI(
        base_url=url, api_key="sk-bench", max_retries=0, http_client=openai.DefaultAioHttpClient()
    )

    async def one(number: int) -> Answer | None:
        asked = made.chat.completions
        done = await asked.parse(model="gpt-4o", messages=asked_of(number), response_format=Answer)
        return done.choices[0].message.parsed

    async def run() -> list[Answer | None]:
        return await asyncio.gather(*map(one, range(count)))

    return run
