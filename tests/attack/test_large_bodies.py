"""Attacks with large request bodies on `acorn serve` and `acorn web`."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from tests.cases import case
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE
from tests.web.serve.served_agent import Clerk
from tests.web.serve.server import app, asked, post

from acorn import File, Image, module
from acorn.stores import MemoryStore
from acorn.testing import ScriptedModel, finish
from acorn.web.guard import MAX_BODY
from acorn.web.serve.app import Service

SIZE = 1_000_000 if IS_LONG else 150_000
CHAT = "/v1/chat/completions"


class Strict(BaseModel, extra="forbid"):
    question: str
    tags: list[int] = []
    names: dict[str, int | list[int]] = {}


class Sorter(module[Strict, str]):
    """Sort."""

    model = ScriptedModel(lambda request: finish("sorted"))


class Photo(BaseModel):
    photo: Image | None = None
    files: list[File] = []


class Looker(module[Photo, str]):
    """Look."""

    model = ScriptedModel(lambda request: finish("seen"))


def filled(before: str, piece: Callable[[int], str], after: str, size: int = SIZE) -> bytes:
    """Return a JSON text of about `size` bytes that repeats a piece."""
    pieces: list[str] = []
    length = number = 0
    while length < size - 200:
        pieces.append(piece(number))
        length += len(pieces[-1]) + 1
        number += 1
    return (before + ",".join(pieces) + after).encode()


def hostile_bodies() -> Iterator[tuple[str, bytes]]:
    yield "unknown keys", filled("{", lambda number: f'"{number:x}":0', "}")
    yield "wrong items", filled('{"question":"x","tags":[', lambda number: '"a"', "]}")
    yield "wrong values of union", filled('{"question":"x","names":{', lambda number: f'"{number:x}":"a"', "}}")
    yield "one long key", filled('{"', lambda number: "x", '":0}')
    yield "same key", filled("{", lambda number: '"a":0', "}")
    yield "wrong messages", filled('{"messages":[', lambda number: "1", "]}")
    yield "nested lists", b'{"question":' + b"[" * (SIZE // 2 - 50) + b"]" * (SIZE // 2 - 50) + b"}"
    yield "long number", b'{"question":' + b"9" * (SIZE - 100) + b"}"


def test_hostile_body_gets_small_response_in_bounded_time(record_property: Callable[[str, object], None]) -> None:
    agents = [Sorter(), Clerk(store=MemoryStore())]
    slowest = 0.0
    for agent in agents:
        served = app(agent)
        for name, body in hostile_bodies():
            for path in ("/run", "/stream", CHAT):
                with case(type(agent).__name__, name, path):
                    began = time.monotonic()
                    answer = post(served, path, content=body)
                    slowest = max(slowest, time.monotonic() - began)
                    assert answer.status_code in (400, 422)
                    assert len(answer.content) < 20_000
                    assert len(answer.json()["error"].get("problems", [])) <= 20
    assert slowest < PATIENCE / 4
    record_property("tried", f"hostile bodies of {SIZE:,} bytes, the slowest took {slowest:.2f} s")


def test_wrong_chat_messages_stop_validation_at_first_error() -> None:
    served = app(Clerk(store=MemoryStore()))
    part = filled('{"messages":[{"role":"user","content":[', lambda number: "{}", "]}]}", MAX_BODY)
    for body in (filled('{"messages":[', lambda number: "{}", "]}", MAX_BODY), part):
        tracemalloc.start()
        answer = post(served, CHAT, content=body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert answer.status_code == 400
        assert peak < 100 * len(body)


def test_body_above_default_limit_gets_413_before_it_is_parsed() -> None:
    served = app(Clerk(store=MemoryStore()))
    body = filled("{", lambda number: f'"{number:x}":0', "}", MAX_BODY + 500)
    assert len(body) > MAX_BODY
    for path in ("/run", "/stream", CHAT, "/runs/x/answer"):
        answer = post(served, path, content=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "body")


def test_default_limit_of_input_with_media_follows_max_media_bytes() -> None:
    class Small(Looker):
        max_media_bytes = 300_000

    class Unlimited(Looker):
        max_media_bytes = None

    limits = [Service(agent).max_body for agent in (Sorter(), Small(), Looker(), Unlimited())]
    assert limits == [1_000_000, 1_400_000, 27_666_666, 27_666_666]
    assert Service(Looker(), max_body=5_000).max_body == 5_000
    image = {"photo": "data:image/png;base64," + "iVBORw0KGgo" + "A" * 1_200_001}
    assert post(app(Looker()), "/run", image).status_code == 200
    assert post(app(Looker(), max_body=1_000_000), "/run", image).status_code == 413


def test_other_requests_are_answered_while_large_body_is_checked() -> None:
    served = app(Sorter())
    body = dict(hostile_bodies())["wrong items"]

    async def main() -> None:
        attack = [asyncio.ensure_future(asked(served, "POST", "/run", content=body)) for _ in range(4)]
        answered = 0
        while not all(task.done() for task in attack):
            assert (await asked(served, "GET", "/health")).status_code == 200
            answered += 1
            await asyncio.sleep(0.001)
        assert {task.result().status_code for task in attack} == {422}
        assert answered > 4

    asyncio.run(main())


def test_large_valid_body_is_accepted() -> None:
    tags = [number % 10 for number in range(100_000)]
    served = app(Sorter())
    assert post(served, "/run", {"question": "x", "tags": tags}).json() == "sorted"
    text = json.dumps({"question": "x" * 200_000})
    assert post(served, CHAT, {"messages": [{"role": "user", "content": text}]}).status_code == 200


def test_chunked_body_without_length_is_limited() -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b" " * 50_000

    answer: httpx.Response = post(app(Sorter()), "/run", content=pieces())
    assert answer.status_code == 413


@pytest.mark.parametrize("size", [5_000_000 if IS_LONG else 1_500_000])
def test_larger_limit_by_option_still_gets_at_most_20_problems(size: int) -> None:
    body = filled("{", lambda number: f'"{number:x}":0', "}", size)
    answer = post(app(Sorter(), max_body=size), "/run", content=body)
    assert answer.status_code == 422
    assert len(answer.json()["error"]["problems"]) == 20
    assert len(answer.content) < 20_000
