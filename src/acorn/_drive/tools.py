"""Calling one tool: whatever fails becomes an error to read."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterable, Callable
from typing import Any

from acorn._drive.bridge import PLAIN, awaited, call_async, is_async
from acorn._json import words_of
from acorn._loop.asks import AskTool
from acorn.types import ToolResult


def attempt(ask: AskTool) -> ToolResult:
    """Call it from sync code."""
    began, call = time.monotonic(), ask.call
    try:
        output = ask.tool.function(*ask.args, **ask.kwargs)
        if type(output) not in PLAIN:
            output = awaited(_items(output))
    except Exception as error:
        return _failed(ask, error, began)
    return ToolResult(call.id, call.name, output, None, time.monotonic() - began)


async def aattempt(ask: AskTool) -> ToolResult:
    """Call it from async code, within its time."""
    began, call, function = time.monotonic(), ask.call, ask.tool.function
    watch = asyncio.timeout(None if ask.seconds == math.inf else ask.seconds)
    try:
        async with watch:
            called = (function,) if is_async(function) else (_drained, function)
            output = await call_async(*called, *ask.args, **ask.kwargs)
    except Exception as error:
        return too_long(ask, time.monotonic() - began) if watch.expired() else _failed(ask, error, began)
    return ToolResult(call.id, call.name, output, None, time.monotonic() - began)


def too_long(ask: AskTool, seconds: float) -> ToolResult:
    """What a call that is out of time comes to."""
    error = f"TimeoutError: it took longer than {ask.seconds:g} s"
    return ToolResult(ask.call.id, ask.call.name, error=error, seconds=seconds)


def _drained(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return _items(function(*args, **kwargs))


def _items(returned: Any) -> Any:
    """Of a generator its items: its body runs here and now, and its errors are the tool's."""
    if type(returned) in PLAIN:
        return returned
    if inspect.isasyncgen(returned):
        return _collected(returned)
    return list(returned) if inspect.isgenerator(returned) else returned


async def _collected(items: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in items]


def _failed(ask: AskTool, error: BaseException, began: float) -> ToolResult:
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # Python lets none out of a coroutine
    return ToolResult(ask.call.id, ask.call.name, error=words_of(error), seconds=time.monotonic() - began)
