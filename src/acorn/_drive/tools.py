"""Calling tools: side by side, in order, each within its time; whatever fails becomes an error to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from acorn._drive.bridge import call_async, call_sync, is_async, start_on_loop, start_thread
from acorn._loop.asks import AskTools, Invocation
from acorn.types import ToolResult


def run_tools(ask: AskTools) -> list[ToolResult]:
    """From a sync run: one call alone in the caller's thread, several in threads of their own."""
    results: list[ToolResult] = []
    for group in _groups(ask.invocations):
        if len(group) == 1 and _limit(group[0], ask.timeout) is None:
            one = group[0]
            results.append(_attempt(one, call_sync, one.tool.function, *one.args, **one.kwargs))
            continue
        futures = [_start(invocation) for invocation in group]
        results += [
            _attempt(invocation, _wait, future, _limit(invocation, ask.timeout))
            for invocation, future in zip(group, futures, strict=True)
        ]
    return results


async def arun_tools(ask: AskTools) -> list[ToolResult]:
    """From an async run: async functions on the loop, sync ones in threads."""
    results: list[ToolResult] = []
    for group in _groups(ask.invocations):
        tasks = [asyncio.ensure_future(_aattempt(invocation, ask.timeout)) for invocation in group]
        try:
            results += await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
    return results


def _groups(invocations: Sequence[Invocation]) -> Iterator[list[Invocation]]:
    """Calls that may run at the same time, in the order of the response; `parallel=False` stands alone."""
    together: list[Invocation] = []
    for invocation in invocations:
        if invocation.tool.options.parallel:
            together.append(invocation)
            continue
        if together:
            yield together
        yield [invocation]
        together = []
    if together:
        yield together


def _start(invocation: Invocation) -> Future[Any]:
    function, args, kwargs = invocation.tool.function, invocation.args, invocation.kwargs
    if is_async(function):
        return start_on_loop(function(*args, **kwargs))
    return start_thread(call_sync, function, *args, **kwargs)


def _wait(future: Future[Any], limit: float | None) -> Any:
    try:
        return future.result(limit)
    except FutureTimeoutError:
        if future.done():  # the tool's own TimeoutError
            raise
        future.cancel()
        raise _TooLongError(limit) from None


def _attempt(invocation: Invocation, act: Callable[..., Any], *args: Any, **kwargs: Any) -> ToolResult:
    call = invocation.call
    try:
        return ToolResult(call.id, call.name, act(*args, **kwargs))
    except Exception as error:
        return ToolResult(call.id, call.name, error=_words(error))


async def _aattempt(invocation: Invocation, left: float | None) -> ToolResult:
    call, limit = invocation.call, _limit(invocation, left)
    watch = asyncio.timeout(limit)
    try:
        async with watch:
            output = await call_async(invocation.tool.function, *invocation.args, **invocation.kwargs)
    except Exception as error:
        return ToolResult(call.id, call.name, error=_words(_TooLongError(limit) if watch.expired() else error))
    return ToolResult(call.id, call.name, output)


class _TooLongError(Exception):
    def __init__(self, limit: float | None) -> None:
        super().__init__(f"it took longer than {limit:g} s")


def _words(error: BaseException) -> str:
    name = "TimeoutError" if isinstance(error, _TooLongError) else type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{name}: {text}" if text else name


def _limit(invocation: Invocation, left: float | None) -> float | None:
    own = invocation.tool.options.timeout
    return own if left is None else left if own is None else min(own, left)
