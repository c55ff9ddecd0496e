"""Chunks as they are sent: joined where they come quicker than a reader needs them, since each partial answer is a
whole one and would be sent a thousand times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from acorn import StreamChunk

_BETWEEN = 1 / 30
"""Seconds between two batches, at least."""
_HEARTBEAT = 15.0
"""Seconds after which an empty batch comes, so that nobody takes the stream for dead."""

Chunk = StreamChunk[Any]


class CodeEndedError(Exception):
    """Code of the user's wanted to end the program, which is not its to end."""


async def in_batches(chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[list[Chunk]]:
    """The chunks, as many at a time as have come; leaving early ends the run."""
    pending: list[Chunk] = []
    news = asyncio.Event()

    async def read() -> None:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    pending.append(chunk)
                    news.set()
        except (SystemExit, KeyboardInterrupt) as error:  # in a task, either would stop the event loop
            raise CodeEndedError(f"{type(error).__name__}: {error}") from error
        finally:
            news.set()

    task = asyncio.ensure_future(read())
    try:
        while not task.done() or pending:
            try:
                async with asyncio.timeout(_HEARTBEAT):
                    await news.wait()
            except TimeoutError:
                yield []
                continue
            news.clear()
            came, pending[:] = pending[:], []
            if came:
                yield joined(came)
                await asyncio.wait((task,), timeout=_BETWEEN)
        await task
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # it was told, or nobody is there to be told


def joined(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same in fewer: text put together, and the newest of a partial answer or a call."""
    made: list[Chunk] = []
    last: dict[str | None, int] = {}
    """By run, where in `made` its last chunk stands."""
    for chunk in chunks:
        at = last.get(chunk.run_id)
        earlier = None if at is None else made[at]
        kind = _kind(chunk)
        if at is None or earlier is None or kind is None or earlier.done or _kind(earlier) != kind:
            last[chunk.run_id] = len(made)
            made.append(chunk)
        elif kind in ("content", "reasoning"):
            text = {kind: getattr(earlier, str(kind)) + getattr(chunk, str(kind))}
            made[at] = StreamChunk(**text, done=chunk.done, branch=chunk.branch, run_id=chunk.run_id)
        else:
            made[at] = chunk
    return made


def _kind(chunk: Chunk) -> str | int | None:
    """What a chunk is a piece of; None where it stands for itself."""
    if chunk.tool_result is not None or chunk.run is not None:
        return None
    if chunk._call is not None:
        return chunk._call[0]
    return "content" if chunk.content else "reasoning" if chunk.reasoning else "answer" if chunk._answer else None
