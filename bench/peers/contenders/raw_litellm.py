"""LiteLLM and a hand-written loop, without its retries and callbacks."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Without this variable, LiteLLM would download a price list.

from collections.abc import Callable, Coroutine
from typing import Any

import litellm

from peers.contenders import by_hand
from peers.tasks import Answer, Report

FINISH = "__finish__"
PACKAGES = ["litellm"]
PARTIALS = False  # This program joins the deltas and parses only the complete answer.
litellm.telemetry = False
litellm.suppress_debug_info = True


def given(url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "model": "openai/gpt-4o", "api_base": url, "api_key": "sk-bench", "num_retries": 0}


def asking(url: str) -> Callable[[dict[str, Any]], by_hand.Message]:
    def ask(body: dict[str, Any]) -> by_hand.Message:
        response: Any = litellm.completion(**given(url, body))
        message: by_hand.Message = response.choices[0].message.model_dump(exclude_none=True)
        return message

    return ask


def single(url: str) -> Callable[[], Answer]:
    return by_hand.converse(asking(url))


def loop(url: str, steps: int) -> Callable[[], Answer]:
    return by_hand.converse(asking(url), "look")


def parallel(url: str, calls: int) -> Callable[[], Answer]:
    return by_hand.converse(asking(url), "wait")


def stream(url: str, watch: object) -> Callable[[], Report]:
    def run() -> Report:
        found: list[str] = []
        chunks: Any = litellm.completion(**given(url, by_hand.streamed_body()))
        for chunk in chunks:
            calls = chunk.choices[0].delta.tool_calls
            found.append((calls[0].function.arguments or "") if calls else "")
        return Report.model_validate_json("".join(found))

    return run


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer]]]:
    async def ask(body: dict[str, Any]) -> by_hand.Message:
        response: Any = await litellm.acompletion(**given(url, body))
        message: by_hand.Message = response.choices[0].message.model_dump(exclude_none=True)
        return message

    async def run() -> list[Answer]:
        return await by_hand.all_at_once(ask, count)

    return run
