"""By the native lane of OpenAI: a single turn and a tool loop, against a loop that a user would write on httpx."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from loop import PARAGRAPH, Looker
from measure import Line, cpu

from acorn._declared import spec_of


def opening() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tools and the first messages of a loop that is written by hand."""
    spec = spec_of(Looker())
    tools = [{"type": "function", "function": tool.schema} for tool in spec.tools]
    tools.append({"type": "function", "function": {"name": "__finish__", "parameters": spec.output.json_schema}})
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": spec.prompt.text},
        {"role": "user", "content": "<input>\n  <question>Where?</question>\n</input>"},
    ]
    return tools, messages


def by_httpx(client: httpx.Client, url: str, steps: int) -> None:
    """The same requests, results appended, arguments parsed."""
    tools, messages = opening()
    for _ in range(steps + 1):
        body = {"model": "gpt-4o", "messages": messages, "tools": tools, "temperature": 0.7, "max_tokens": 4096}
        message = client.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]
        messages.append(message)
        for made in message["tool_calls"]:
            json.loads(made["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": PARAGRAPH})


def by_acorn(url: str, steps: int) -> None:
    model = {"model": "openai/gpt-4o", "api_base": f"{url}/v1", "api_key": "sk-bench", "num_retries": 0}
    Looker(model=model, max_steps=steps, loop_guard=None)(question="Where?")


def lines() -> list[Line]:
    script = str(Path(__file__).with_name("server.py"))
    server = subprocess.Popen([sys.executable, script, "finish"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    found: list[Line] = []
    try:
        with httpx.Client() as client:
            ours: dict[int, float] = {}
            raw: dict[int, float] = {}
            for steps, limit in ((1, 0.8), (10, 0.6), (50, 0.55), (200, 0.45)):
                repeat = 15 if steps < 50 else 5
                raw[steps] = cpu(lambda s=steps: by_httpx(client, url, s), repeat=repeat) / (steps + 1)  # type: ignore[misc]
                ours[steps] = cpu(lambda s=steps: by_acorn(url, s), repeat=repeat) / (steps + 1)  # type: ignore[misc]
                name = f"a step of {steps}: {ours[steps] * 1e3:.2f} ms / raw httpx: {raw[steps] * 1e3:.2f} ms"
                found.append(Line(name, ours[steps] / raw[steps], limit))
        growth, floor = ((each[200] - each[10]) / 190 for each in (ours, raw))
        name = f"growth a step: {growth * 1e6:.1f} µs / raw httpx: {floor * 1e6:.1f} µs"
        found.append(Line(name, growth / floor, 0.25))
    finally:
        server.kill()
    return found
