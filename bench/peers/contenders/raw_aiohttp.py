"""aiohttp and a hand-written loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from peers.contenders import by_hand
from peers.tasks import Answer, Report

FINISH = "__finish__"
PACKAGES = ["aiohttp"]
PARTIALS = False  # This program joins the deltas and parses only the complete answer.
Run = Callable[[], Coroutine[Any, Any, Answer]]


class Asking:
    """Create a session inside the loop that uses it."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/chat/completions"
        self.made: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        self.made = self.made or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self.made

    async def __call__(self, body: dict[str, Any]) -> by_hand.Message:
        async with self.session().post(self.url, json=body, raise_for_status=True) as response:
            message: by_hand.Message = (await response.json())["choices"][0]["message"]
            return message


def single(url: str) -> Run:
    return by_hand.aconverse(Asking(url))


def loop(url: str, steps: int) -> Run:
    return by_hand.aconverse(Asking(url), "look")


def parallel(url: str, calls: int) -> Run:
    return by_hand.aconverse(Asking(url), "wait")


def stream(url: str, watch: object) -> Callable[[], Coroutine[Any, Any, Report]]:
    asking = Asking(url)

    async def run() -> Report:
        async with asking.session().post(asking.url, json=by_hand.streamed_body()) as response:
            found = [by_hand.delta_in(line.decode()) async for line in response.content]
        return Report.model_validate_json("".join(found))

    return run


def many(url: str, count: int) -> Callable[[], Coroutine[Any, Any, list[Answer]]]:
    asking = Asking(url)

    async def run() -> list[Answer]:
        return await by_hand.all_at_once(asking, count)

    return run
