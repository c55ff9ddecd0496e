"""The agent loop of a program without a framework, which all raw contenders share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel

from peers import async_tools, tools
from peers.tasks import PROMPT, Answer, Report, question

Message = dict[str, Any]
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "depth": {"type": "integer", "default": 1}},
    "required": ["place"],
}


def offered(name: str, about: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def finish(schema: type[BaseModel]) -> dict[str, Any]:
    return offered("__finish__", "Give the answer.", schema.model_json_schema())


TOOLS = {
    "look": offered("look", "Look somewhere.", PARAMETERS),
    "wait": offered("wait", "Wait somewhere.", PARAMETERS),
}


def body(messages: list[Message], *names: str, schema: type[BaseModel] = Answer, **more: Any) -> dict[str, Any]:
    given = [*(TOOLS[name] for name in names), finish(schema)]
    return {"model": "gpt-4o", "messages": messages, "tools": given, "temperature": 0.7, "max_tokens": 4096, **more}


def opening(number: int = 7) -> list[Message]:
    return [{"role": "system", "content": PROMPT}, {"role": "user", "content": question(number)}]


def streamed_body() -> dict[str, Any]:
    forced = {"type": "function", "function": {"name": "__finish__"}}
    return body(opening(), schema=Report, stream=True, tool_choice=forced)


def perform(call: Message) -> Message:
    function = call["function"]
    output = getattr(tools, function["name"])(**json.loads(function["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": output}


async def aperform(call: Message) -> Message:
    function = call["function"]
    output = await getattr(async_tools, function["name"])(**json.loads(function["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": output}


def answer_in(calls: list[Message]) -> Answer | None:
    function = calls[0]["function"]
    return Answer.model_validate_json(function["arguments"]) if function["name"] == "__finish__" else None


def converse(ask: Callable[[dict[str, Any]], Message], *names: str) -> Callable[[], Answer]:
    """Run one task: send a request, execute the calls, send the next request."""

    def run() -> Answer:
        messages = opening()
        asked = body(messages, *names)
        while True:
            message = ask(asked)
            messages.append(message)
            calls = message["tool_calls"]
            if found := answer_in(calls):
                return found
            if len(calls) == 1:
                messages.append(perform(calls[0]))
            else:
                with ThreadPoolExecutor(len(calls)) as pool:
                    messages.extend(pool.map(perform, calls))

    return run


def aconverse(
    ask: Callable[[dict[str, Any]], Awaitable[Message]], *names: str, number: int = 7
) -> Callable[[], Coroutine[Any, Any, Answer]]:
    async def run() -> Answer:
        messages = opening(number)
        asked = body(messages, *names)
        while True:
            message = await ask(asked)
            messages.append(message)
            calls = message["tool_calls"]
            if found := answer_in(calls):
                return found
            messages.extend(await asyncio.gather(*map(aperform, calls)))

    return run


async def all_at_once(ask: Callable[[dict[str, Any]], Awaitable[Message]], count: int) -> list[Answer]:
    return list(await asyncio.gather(*(aconverse(ask, number=at)() for at in range(count))))


def delta_in(line: str) -> str:
    """Return the answer text in one line of the stream, or "" if the line contains no text."""
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line[6:])["choices"]
    calls = choices[0]["delta"].get("tool_calls") if choices else None
    return calls[0]["function"]["arguments"] if calls else ""
