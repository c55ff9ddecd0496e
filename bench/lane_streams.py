"""Measure streamed answers on the native OpenAI lane, with a partial answer for each delta, relative to httpx."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
from lanes import model, server
from measure import Line, in_turn
from pydantic import BaseModel

from acorn import StreamChunk, module

SMALL, LARGE = 25_000, 100_000


class Item(BaseModel):
    title: str
    body: str
    score: float
    tags: list[str]


class Report(BaseModel):
    name: str
    items: list[Item]


class Reporter(module[Any, Report]):
    """Report."""

    final_output = Report
    read = "name"

    def on_stream(self, chunk: StreamChunk[Report]) -> None:
        getattr(chunk.partial, self.read, None)


class Lister(Reporter):
    """Report."""

    read = "items"


def by_httpx(client: httpx.Client, url: str) -> None:
    """Read the lines of a stream, join the deltas and validate the complete answer, without a framework."""
    messages = [{"role": "system", "content": "Report."}, {"role": "user", "content": "<input></input>"}]
    tool = {"type": "function", "function": {"name": "__finish__", "parameters": Report.model_json_schema()}}
    body = {"model": "gpt-4o", "messages": messages, "tools": [tool], "stream": True}
    pieces: list[str] = []
    with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line[6:])["choices"]:
                calls = choice["delta"].get("tool_calls") or ()
                pieces.extend(made["function"]["arguments"] for made in calls)
    Report.model_validate_json("".join(pieces))


def measured(client: httpx.Client, small: str, large: str, repeat: int) -> dict[str, float]:
    acts: dict[str, Callable[[], object]] = {"raw": lambda: by_httpx(client, large)}
    for name, url in (("small", small), ("large", large)):
        reporter, lister = Reporter(model=model(url)), Lister(model=model(url))
        acts[f"name {name}"] = lambda agent=reporter: agent()  # type: ignore[misc]
        acts[f"items {name}"] = lambda agent=lister: agent()  # type: ignore[misc]
    return in_turn(acts, repeat=repeat)


def lines() -> list[Line]:
    found: list[Line] = []
    for pace, repeat in (("", 7), ("paced", 2)):
        where = ", one at a time" if pace else ""
        with (
            server("stream", str(SMALL), pace) as small,
            server("stream", str(LARGE), pace) as large,
            httpx.Client() as client,
        ):
            spent = measured(client, small, large, repeat)
        for read, limit, steepest in (("name", 1.1, 1.1), ("items", 1.3, 1.15)):
            ours, what = spent[f"{read} large"], "a small field" if read == "name" else "the growing field"
            name = f"100 KB, {what} read{where}: {ours * 1e3:.0f} ms / raw httpx: {spent['raw'] * 1e3:.0f} ms"
            found.append(Line(name, ours / spent["raw"], limit))
            exponent = math.log(ours / spent[f"{read} small"]) / math.log(LARGE / SMALL)
            found.append(Line(f"exponent, {what} read{where}", exponent, steepest, ""))
    return found
