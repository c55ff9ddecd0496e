"""Walking branches: one in place, several side by side, each like any run.

A branch that fails gives its parent an error to read; what is no failure but an end, such as Ctrl-C or
cancellation, ends the others and goes up.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from typing import Any

from acorn._drive.bridge import start_thread
from acorn._loop.asks import Child
from acorn._loop.branch import outcome
from acorn.chunk import StreamChunk
from acorn.types import ToolResult

Walk = Callable[..., Generator[StreamChunk[Any]]]
AsyncWalk = Callable[..., AsyncGenerator[StreamChunk[Any]]]
News = StreamChunk[Any] | tuple[int, ToolResult] | BaseException
"""What a branch among several tells: a chunk, its result, or an end of everything."""


def run_branches(
    children: list[Child], walk: Walk, iterates: bool
) -> Generator[StreamChunk[Any] | ToolResult, None, list[ToolResult]]:
    """From a sync run: one alone in the caller's thread, several in threads of their own.

    Gives their chunks, each result when it is there, and in the end all of them in order.
    """
    if len(children) == 1:
        result = yield from _one(children[0], walk, iterates)
        yield result
        return [result]
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    is_over = threading.Event()
    results: dict[int, ToolResult] = {}
    try:
        for at, child in enumerate(children):
            start_thread(_in_thread, at, child, walk, iterates, news, is_over)
        while len(results) < len(children):
            yield _read(news.get(), results)
    finally:
        is_over.set()
    return [results[at] for at in range(len(children))]


def _read(told: News, results: dict[int, ToolResult]) -> StreamChunk[Any] | ToolResult:
    if isinstance(told, BaseException):
        raise told
    if isinstance(told, StreamChunk):
        return told
    results[told[0]] = told[1]
    return told[1]


def _in_thread(
    at: int, child: Child, walk: Walk, iterates: bool, news: queue.SimpleQueue[News], is_over: threading.Event
) -> None:
    try:
        with closing(_one(child, walk, iterates)) as steps:
            while not is_over.is_set():
                try:
                    chunk = next(steps)
                except StopIteration as end:
                    news.put((at, end.value))
                    return
                if iterates:
                    news.put(chunk)
    except BaseException as error:
        news.put(error)


def _one(child: Child, walk: Walk, iterates: bool) -> Generator[StreamChunk[Any], None, ToolResult]:
    error: Exception | None = None
    try:
        with closing(walk(child.loop, child.loop.plan.agent, iterates=iterates)) as chunks:
            yield from chunks
    except Exception as raised:
        error = raised
    return outcome(child.call, child.loop.run, error)


async def arun_branches(
    children: list[Child], walk: AsyncWalk, iterates: bool, results: list[ToolResult]
) -> AsyncGenerator[StreamChunk[Any] | ToolResult]:
    """From an async run: a task for each; the results go into the list that is passed in."""
    news: asyncio.Queue[News] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_in_task(at, child, walk, iterates, news)) for at, child in enumerate(children)]
    found: dict[int, ToolResult] = {}
    try:
        while len(found) < len(children):
            yield _read(await news.get(), found)
            news.task_done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    results += [found[at] for at in range(len(children))]


async def _in_task(at: int, child: Child, walk: AsyncWalk, iterates: bool, news: asyncio.Queue[News]) -> None:
    error: Exception | None = None
    try:
        async with aclosing(walk(child.loop, child.loop.plan.agent, iterates=iterates)) as chunks:
            async for chunk in chunks:
                if iterates:
                    news.put_nowait(chunk)
                    await news.join()  # no further than whoever iterates wants to see
    except Exception as raised:
        error = raised
    except BaseException as end:  # told, not raised: Ctrl-C in a task would stop the event loop
        news.put_nowait(end)
        return
    news.put_nowait((at, outcome(child.call, child.loop.run, error)))
