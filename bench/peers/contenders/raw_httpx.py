"""httpx and a hand-written loop: the baseline for all others."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from peers.contenders import by_hand
from peers.tasks import Answer, Report

FINISH = "__finish__"
PACKAGES = ["httpx"]
PARTIALS = False  # This program joins the deltas and parses only the complete answer.


def asking(url: str) -> Callable[[dict[str, Any]], by_hand.Message]:
    client = httpx.Client()

    def ask(body: dict[str, Any]) -> by_hand.Message:
        response = client.post(f"{url}/chat/completions", json=body)
        response.raise_for_status()
        message: by_hand.Message = response.json()["choices"][0]["message"]
        return message

    return ask


def single(url: str) -> Callable[[], Answer]:
    return by_hand.converse(asking(url))


def loop(url: str, steps: int) -> Callable[[], Answer]:
    return by_hand.converse(asking(url), "look")


def parallel(url: str, calls: int) -> Callable[[], Answer]:
    return by_hand.converse(asking(url), "wait")


def stream(url: str, watch: object) -> Callable[[], Report]:
    client = httpx.Client()

    def run() -> Report:
        with client.stream("POST", f"{url}/chat/completions", json=by_hand.streamed_body()) as response:
            return Report.model_validate_json("".join(map(by_hand.delta_in, response.iter_lines())))

    return run


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer]]]:
    # For each request, the pool checks every idle connection, so few connections are much faster.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    client = httpx.AsyncClient(limits=limits, timeout=60)

    async def ask(body: dict[str, Any]) -> by_hand.Message:
        response = await client.post(f"{url}/chat/completions", json=body)
        response.raise_for_status()
        message: by_hand.Message = response.json()["choices"][0]["message"]
        return message

    async def run() -> list[Answer]:
        return await by_hand.all_at_once(ask, count)

    return run
