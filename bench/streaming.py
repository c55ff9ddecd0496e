"""Measure partial answers in deltas of 8 characters, relative to a parser that parses each prefix again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

from measure import Line, cpu
from pydantic import BaseModel, create_model
from pydantic_core import from_json

from acorn._formats.partial.parser import PushParser, expectation_of
from acorn._formats.schema.shape import shape_of
from acorn.chunk import Streamer
from acorn.models.assemble import Assembly
from acorn.models.port import CallDelta, Delta

SIZE = 8


class Item(BaseModel):
    title: str
    body: str
    score: float
    tags: list[str]


class Nested(BaseModel):
    name: str
    items: list[Item]


class Long(BaseModel):
    name: str
    text: str


class Numbers(BaseModel):
    name: str
    numbers: list[int]


Flat: Any = create_model("Flat", **{f"field_{number}": (str, ...) for number in range(20)})  # type: ignore[call-overload]


def flat(size: int) -> str:
    return json.dumps({f"field_{number}": "lorem ipsum " * (size // 20 // 12) for number in range(20)})


def nested(size: int) -> str:
    item = {"title": "A title", "body": "Some words about it. " * 5, "score": 0.75, "tags": ["a", "b"]}
    return json.dumps({"name": "report", "items": [item] * max(1, size // len(json.dumps(item)))})


def long(size: int) -> str:
    return json.dumps({"name": "essay", "text": "lorem ipsum " * (size // 12)})


def numbers(size: int) -> str:
    return json.dumps({"name": "sequence", "numbers": list(range(10_000, 10_000 + size // 7))})


def read_all(kind: Any, text: str, look: Callable[[Any], Any]) -> float:
    deltas = [text[at : at + SIZE] for at in range(0, len(text), SIZE)]
    best = math.inf
    for _ in range(3):
        parser = PushParser(expectation_of(kind))
        feed, value = parser.feed, parser.value
        start = time.process_time()
        for delta in deltas:
            feed(delta)
            look(value())
        best = min(best, time.process_time() - start)
    return best


def parse_each_prefix(text: str) -> float:
    start = time.process_time()
    for at in range(SIZE, len(text) + SIZE, SIZE):
        from_json(text[:at], allow_partial="trailing-strings")
    return time.process_time() - start


def exponent(kind: Any, make: Callable[[int], str], look: Callable[[Any], Any]) -> float:
    small, large = make(8_000), make(512_000)
    ratio = read_all(kind, large, look) / read_all(kind, small, look)
    return math.log(ratio) / math.log(len(large) / len(small))


def unread() -> float:
    """Measure a streamed answer whose partial answers are not accessed, relative to joining the deltas."""
    text = long(100_000)
    deltas = [Delta(calls=(CallDelta(0, "call_1", "__finish__"),))]
    deltas += [Delta(calls=(CallDelta(0, arguments=text[at : at + SIZE]),)) for at in range(0, len(text), SIZE)]
    shape = shape_of(Long, "Bench", "final_output")

    def assemble() -> None:
        assembly = Assembly()
        for delta in deltas:
            assembly.add(delta)
        assembly.response()

    def stream() -> None:
        streamer = Streamer(shape)
        for delta in deltas:
            for _ in streamer.add(delta):
                pass
        streamer.end()

    return cpu(stream, repeat=9) / cpu(assemble, repeat=9)


def field(name: str) -> Callable[[Any], Any]:
    return lambda partial: getattr(partial, name, None)


def lines() -> list[Line]:
    small = "exponent, one small field read"
    found = [
        Line(f"{small}, 20 flat strings", exponent(Flat, flat, field("field_0")), 1.10, ""),
        Line(f"{small}, a list of models", exponent(Nested, nested, field("name")), 1.25, ""),
        Line(f"{small}, one long string", exponent(Long, long, field("name")), 1.10, ""),
        Line("exponent, the growing string read", exponent(Long, long, field("text")), 1.15, ""),
        Line("exponent, the growing list of models read", exponent(Nested, nested, field("items")), 1.25, ""),
    ]
    for name, kind, make, read, limit in (
        ("nested 100 KB, a small field read", Nested, nested, "name", 1 / 20),
        ("nested 100 KB, the growing list read", Nested, nested, "items", 1 / 12),
        ("flat 100 KB", Flat, flat, "field_0", 1 / 3),
        ("a list of ints of 100 KB", Numbers, numbers, "name", 1 / 3),
        ("one long string of 100 KB", Long, long, "name", 1 / 3),
    ):
        text = make(100_000)
        found.append(
            Line(
                f"{name} / from_json of each prefix", read_all(kind, text, field(read)) / parse_each_prefix(text), limit
            )
        )
    found.append(Line("a stream without access to partial answers / joining its deltas", unread(), 1.3))
    return found
