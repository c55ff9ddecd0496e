"""Calling tools: side by side, in order, each within its time; whatever fails becomes an error to read."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from typing import Any

from acorn._drive.bridge import call_async, call_sync, is_async, start_on_loop, start_thread
from acorn._loop.asks import AskTools, Invocation
from acorn.types import ToolResult

Place = Callable[[], AbstractContextManager[None]]
"""Makes what begins in it part of the run; nothing may be yielded inside, since whoever iterates is not."""


def run_tools(ask: AskTools, place: Place) -> Generator[ToolResult, None, list[ToolResult]]:
    """From a sync run: one call alone in the caller's thread, several in threads of their own.

    Gives each result when it is there, and in the end all of them in order.
    """
    began = time.monotonic()
    results: list[ToolResult] = []
    for group in _groups(ask.invocations):
        limits = [_limit(invocation, ask.timeout, began) for invocation in group]
        if limits == [math.inf]:
            with place():
                results.append(_attempt(group[0]))
            yield results[-1]
        else:
            results += yield from _together(group, limits, place)
    return results


async def arun_tools(ask: AskTools, place: Place, results: list[ToolResult]) -> AsyncGenerator[ToolResult]:
    """From an async run: async functions on the loop, sync ones in threads; all go in order into the list."""
    began = time.monotonic()
    for group in _groups(ask.invocations):
        with place():
            tasks = [
                asyncio.ensure_future(_fenced(_aattempt(invocation, _limit(invocation, ask.timeout, began))))
                for invocation in group
            ]
        try:
            left = set(tasks)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task in done:
                        yield task.result()
        except BaseException as error:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(error, _EscapeError):
                raise error.escaped from None
            raise
        results += [task.result() for task in tasks]


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


def _limit(invocation: Invocation, run_has: float | None, began: float) -> float:
    """Seconds for a call that begins now: its own, within what the run had left when the first began."""
    own = invocation.tool.options.timeout or math.inf
    return own if run_has is None else max(0.0, min(own, began + run_has - time.monotonic()))


def _together(
    group: list[Invocation], limits: list[float], place: Place
) -> Generator[ToolResult, None, list[ToolResult]]:
    """Side by side, each until its time is up; what no tool error may hide ends the wait at once."""
    began = time.monotonic()
    futures: list[Future[ToolResult]] = []
    results: dict[int, ToolResult] = {}
    try:
        with place():
            for invocation in group:
                _start(invocation, futures)
        while len(results) < len(group):
            left = [at for at in range(len(group)) if at not in results]
            limit = min(limits[at] for at in left)
            seconds = None if limit == math.inf else max(0.0, began + limit - time.monotonic())
            done, _ = wait([futures[at] for at in left], seconds, FIRST_COMPLETED)
            for at in left:
                if futures[at] in done:
                    results[at] = futures[at].result()
                elif not done and limits[at] <= limit:
                    results[at] = _failed(group[at], _TooLongError(limits[at]))
                    results[at].seconds = time.monotonic() - began
                if at in results:
                    yield results[at]
    finally:
        for future in futures:
            future.cancel()
    return [results[at] for at in range(len(group))]


def _start(invocation: Invocation, futures: list[Future[ToolResult]]) -> None:
    if is_async(invocation.tool.function):
        futures.append(Future())  # first of all, so that an interrupt finds it
        start_on_loop(_aattempt(invocation, math.inf), futures[-1])
    else:
        futures.append(start_thread(_attempt, invocation))


def _attempt(invocation: Invocation) -> ToolResult:
    began = time.monotonic()
    try:
        output = call_sync(_drained, invocation.tool.function, *invocation.args, **invocation.kwargs)
    except Exception as error:
        invocation.result = _failed(invocation, error)
    else:
        invocation.result = ToolResult(invocation.call.id, invocation.call.name, output)
    invocation.result.seconds = time.monotonic() - began
    return invocation.result


async def _aattempt(invocation: Invocation, limit: float) -> ToolResult:
    began, function = time.monotonic(), invocation.tool.function
    watch = asyncio.timeout(None if limit == math.inf else limit)
    try:
        async with watch:
            called = (function,) if is_async(function) else (_drained, function)
            output = await call_async(*called, *invocation.args, **invocation.kwargs)
    except Exception as error:
        invocation.result = _failed(invocation, _TooLongError(limit) if watch.expired() else error)
    else:
        invocation.result = ToolResult(invocation.call.id, invocation.call.name, output)
    invocation.result.seconds = time.monotonic() - began
    return invocation.result


def _drained(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Of a generator its items: its body runs here and now, and its errors are the tool's."""
    returned = function(*args, **kwargs)
    if inspect.isasyncgen(returned):
        return _collected(returned)
    return list(returned) if inspect.isgenerator(returned) else returned


async def _collected(items: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in items]


def _failed(invocation: Invocation, error: BaseException) -> ToolResult:
    try:
        text = str(error)
    except Exception:
        text = ""
    if text == "coroutine raised StopIteration" and isinstance(error.__cause__, StopIteration):
        return _failed(invocation, error.__cause__)  # Python lets none out of a coroutine
    name = "TimeoutError" if isinstance(error, _TooLongError) else type(error).__name__
    return ToolResult(invocation.call.id, invocation.call.name, error=f"{name}: {text}" if text else name)


class _TooLongError(Exception):
    def __init__(self, limit: float) -> None:
        super().__init__(f"it took longer than {limit:g} s")


class _EscapeError(Exception):
    def __init__(self, escaped: BaseException) -> None:
        super().__init__()
        self.escaped = escaped


async def _fenced(attempt: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    """These two would stop the event loop from inside a task of its own, before the run can end in order."""
    try:
        return await attempt
    except (KeyboardInterrupt, SystemExit) as error:
        raise _EscapeError(error) from None
