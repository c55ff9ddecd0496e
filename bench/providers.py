"""Measure a step through LiteLLM relative to a hand-written loop, and its growth relative to raw httpx."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from lanes import opening
from loop import PARAGRAPH, Looker
from measure import Line, cpu

from acorn.models.litellm.library import litellm


def model(url: str) -> dict[str, Any]:
    asked = {"model": "openai/gpt-4o", "api_base": f"{url}/v1", "api_key": "sk-bench", "num_retries": 0}
    return {**asked, "lane": "litellm"}


def by_hand(url: str, steps: int) -> None:
    """Run a hand-written loop on LiteLLM that sends the same requests, appends results and parses arguments."""
    tools, messages = opening()
    for _ in range(steps + 1):
        reply = litellm().completion(
            model="openai/gpt-4o",
            api_base=f"{url}/v1",
            api_key="sk-bench",
            messages=messages,
            tools=tools,
            temperature=0.7,
            max_tokens=4096,
            max_retries=0,
            _skip_mcp_handler=True,
            timeout=httpx.Timeout(600, connect=10),
        )
        message = reply.choices[0].message
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [c.model_dump() for c in message.tool_calls]}
        )
        for made in message.tool_calls:
            json.loads(made.function.arguments)
            messages.append({"role": "tool", "tool_call_id": made.id, "content": PARAGRAPH})


def by_httpx(client: httpx.Client, url: str, steps: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": PARAGRAPH}]
    for number in range(steps + 1):
        reply = client.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": messages}).json()
        messages.append(reply["choices"][0]["message"])
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": PARAGRAPH})


def by_acorn(url: str, steps: int) -> None:
    agent = Looker(model=model(url), max_steps=steps, loop_guard=None)
    agent.using()(question="Where?")


def lines() -> list[Line]:
    script = str(Path(__file__).with_name("server.py"))
    server = subprocess.Popen([sys.executable, script, "finish"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    found: list[Line] = []
    try:
        by_acorn(url, 1)
        by_hand(url, 1)
        ours: dict[int, float] = {}
        for steps in (1, 10, 50, 200):
            repeat = 5 if steps < 50 else 2
            hand = cpu(lambda s=steps: by_hand(url, s), repeat=repeat) / (steps + 1)  # type: ignore[misc]
            ours[steps] = cpu(lambda s=steps: by_acorn(url, s), repeat=repeat) / (steps + 1)  # type: ignore[misc]
            name = f"a step of {steps}: {ours[steps] * 1e3:.2f} ms / by hand on LiteLLM: {hand * 1e3:.2f} ms"
            found.append(Line(name, ours[steps] / hand, 1.15))
        with httpx.Client() as client:
            raw = {steps: cpu(lambda s=steps: by_httpx(client, url, s), repeat=3) / (steps + 1) for steps in (10, 200)}  # type: ignore[misc]
        growth = (ours[200] - ours[10]) / 190
        floor = (raw[200] - raw[10]) / 190
        found.append(Line(f"growth a step: {growth * 1e6:.1f} µs / raw httpx: {floor * 1e6:.1f} µs", growth / floor, 2))
    finally:
        server.kill()
    return found
