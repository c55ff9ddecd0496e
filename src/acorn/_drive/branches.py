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


def run_branches(
    children: list[Child], walk: Walk, iterates: bool
) -> Generator[StreamChunk[Any], None, list[ToolResult]]:
    """From a sync run: one alone in the caller's thread, several in threads of their own."""
    if len(children) == 1:
        return [(yield from _one(children[0], walk, iterates))]
    chunks: queue.SimpleQueue[StreamChunk[Any] | None] = queue.SimpleQueue()
    is_over = threading.Event()
    futures = [start_thread(_in_thread, child, walk, iterates, chunks, is_over) for child in children]
    try:
        for _ in children:  # each puts a None when it has ended
            while (chunk := chunks.get()) is not None:
                yield chunk
        return [future.result() for future in futures]
    finally:
        is_over.set()


def _in_thread(
    child: Child,
    walk: Walk,
    iterates: bool,
    chunks: queue.SimpleQueue[StreamChunk[Any] | None],
    is_over: threading.Event,
) -> ToolResult:
    try:
        steps = _one(child, walk, iterates)
        with closing(steps):
            while not is_over.is_set():
                try:
                    chunk = next(steps)
                except StopIteration as end:
                    result: ToolResult = end.value
                    return result
                if iterates:
                    chunks.put(chunk)
        return ToolResult(child.call.id, child.call.name, error="Cancelled")
    finally:
        chunks.put(None)


def _one(child: Child, walk: Walk, iterates: bool) -> Generator[StreamChunk[Any], None, ToolResult]:
    error: Exception | None = None
    try:
        for chunk in walk(child.loop, child.loop.plan.agent, iterates=iterates):
            yield chunk
    except Exception as raised:
        error = raised
    return outcome(child.call, child.loop.run, error)


async def arun_branches(
    children: list[Child], walk: AsyncWalk, iterates: bool, results: list[ToolResult]
) -> AsyncGenerator[StreamChunk[Any]]:
    """From an async run: a task for each; the results go into the list that is passed in."""
    chunks: asyncio.Queue[StreamChunk[Any] | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_in_task(child, walk, iterates, chunks)) for child in children]
    try:
        for _ in children:
            while (chunk := await chunks.get()) is not None:
                yield chunk
        results += await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _in_task(
    child: Child, walk: AsyncWalk, iterates: bool, chunks: asyncio.Queue[StreamChunk[Any] | None]
) -> ToolResult:
    error: Exception | None = None
    try:
        async with aclosing(walk(child.loop, child.loop.plan.agent, iterates=iterates)) as steps:
            async for chunk in steps:
                if iterates:
                    chunks.put_nowait(chunk)
    except Exception as raised:
        error = raised
    finally:
        chunks.put_nowait(None)
    return outcome(child.call, child.loop.run, error)
