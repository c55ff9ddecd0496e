"""Measure a single turn and a tool loop on the native OpenAI lane, relative to a hand-written httpx loop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from loop import PARAGRAPH, Answer, Looker, Question
from measure import Line, in_turn

from acorn import module
from acorn._declare.spec_cache import spec_of


@cache
def _described() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    spec = spec_of(Looker())
    tools = [{"type": "function", "function": tool.schema} for tool in spec.tools]
    tools.append({"type": "function", "function": {"name": "__finish__", "parameters": spec.output.json_schema}})
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": spec.prompt.text},
        {"role": "user", "content": "<input>\n  <question>Where?</question>\n</input>"},
    ]
    return tools, messages


def opening() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the tools and the first messages for a hand-written loop."""
    tools, messages = _described()
    return tools, messages.copy()


def by_httpx(client: httpx.Client, url: str, steps: int) -> None:
    """Run a hand-written loop that sends the same requests, appends tool results and parses arguments."""
    tools, messages = opening()
    for _ in range(steps + 1):
        body = {"model": "gpt-4o", "messages": messages, "tools": tools, "temperature": 0.7, "max_tokens": 4096}
        message = client.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]
        messages.append(message)
        for made in message["tool_calls"]:
            json.loads(made["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": PARAGRAPH})


TURNS = 20
"""The number of single turns in one measurement. One turn is too short for the clock."""


class Answerer(module[Question, Answer]):
    """Look around, then answer."""


@contextmanager
def server(*words: str) -> Generator[str]:
    """Start the server in a separate process and yield its address."""
    script = str(Path(__file__).with_name("server.py"))
    process = subprocess.Popen([sys.executable, script, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def model(url: str) -> dict[str, Any]:
    return {"model": "openai/gpt-4o", "api_base": f"{url}/v1", "api_key": "sk-bench", "num_retries": 0}


def by_acorn(url: str, steps: int) -> None:
    Looker(model=model(url), max_steps=steps, loop_guard=None)(question="Where?")


def single_by_httpx(client: httpx.Client, url: str) -> None:
    """Send single requests without a framework, and validate each response."""
    tools, messages = opening()
    body = {
        "model": "gpt-4o",
        "messages": messages,
        "tools": tools[-1:],
        "tool_choice": {"type": "function", "function": {"name": "__finish__"}},
        "temperature": 0.7,
        "max_tokens": 4096,
    }
    for _ in range(TURNS):
        message = client.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]
        Answer.model_validate_json(message["tool_calls"][0]["function"]["arguments"])


def lines() -> list[Line]:
    found: list[Line] = []
    with server("finish") as url, httpx.Client() as client:
        answerer = Answerer(model=model(url))
        acts: dict[str, Callable[[], object]] = {
            "single raw": lambda: single_by_httpx(client, url),
            "single ours": lambda: [answerer(question="Where?") for _ in range(TURNS)],
        }
        for steps in (1, 10, 50, 200):
            acts[f"{steps} raw"] = lambda s=steps: by_httpx(client, url, s)  # type: ignore[misc]
            acts[f"{steps} ours"] = lambda s=steps: by_acorn(url, s)  # type: ignore[misc]
        spent = in_turn(acts, repeat=9)
        ours, raw = spent["single ours"] / TURNS, spent["single raw"] / TURNS
        found.append(Line(f"a single turn: {ours * 1e3:.2f} ms / raw httpx: {raw * 1e3:.2f} ms", ours / raw, 0.8))
        for steps, limit in ((1, 0.8), (10, 0.6), (50, 0.55), (200, 0.45)):
            ours, raw = spent[f"{steps} ours"] / (steps + 1), spent[f"{steps} raw"] / (steps + 1)
            name = f"a step of {steps}: {ours * 1e3:.2f} ms / raw httpx: {raw * 1e3:.2f} ms"
            found.append(Line(name, ours / raw, limit))
    growth, floor = ((spent[f"200 {who}"] / 201 - spent[f"10 {who}"] / 11) / 190 for who in ("ours", "raw"))
    name = f"growth a step: {growth * 1e6:.1f} µs / raw httpx: {floor * 1e6:.1f} µs"
    found.append(Line(name, growth / floor, 0.25))
    return found
