"""Chunks as they are sent: joined where they come quicker than a reader needs them, since each partial answer is a
whole one and would be sent a thousand times.

Chunks as the events of `POST /stream`: plain data under the names that a `StreamChunk` has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from acorn import Paused, Run, StreamChunk
from acorn._inside import fields_of, request_to_json, to_json_data
from acorn.types import JsonObject
from acorn.web.serve.exchange import check_finished
from acorn.web.serve.secrets import RedactedStream, ServiceRedactor

_BETWEEN = 1 / 30
"""Seconds between two batches, at least."""
_HEARTBEAT = 15.0
"""Seconds after which an empty batch comes, so that nobody takes the stream for dead."""

Chunk = StreamChunk


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


Event = JsonObject


class Stream(Protocol):
    """How the chunks of a run are written."""

    def written(self, chunks: Sequence[Chunk]) -> bytes: ...


def event(secrets: ServiceRedactor, value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + secrets.json(value) + b"\n\n"


class ChunkStream:
    """The chunks as they are."""

    def __init__(self, secrets: ServiceRedactor) -> None:
        self._secrets = secrets
        self._texts: dict[tuple[str | None, str], RedactedStream] = {}

    def written(self, chunks: Sequence[Chunk]) -> bytes:
        return b"".join(event(self._secrets, each) for chunk in chunks for each in self._events(chunk))

    def _events(self, chunk: Chunk) -> Iterator[Event]:
        at = {"branch": chunk.branch, "run_id": chunk.run_id} if chunk.branch is not None else {}
        for kind in ("content", "reasoning"):
            if text := getattr(chunk, kind):
                shown = self._text(chunk, kind).add(text)
                yield from [{kind: shown, **at}] if shown else []
            if not text or chunk.done:  # nothing more of it comes
                yield from [{kind: rest, **at}] if (rest := self._text(chunk, kind).rest()) else []
        if chunk._answer is not None:
            partial = self._secrets.growing(to_json_data(chunk.partial))
            yield {"partial": partial, "completed": list(chunk.completed), **at}
        if chunk.tool_call is not None:
            yield {"tool_call": self._secrets.growing(chunk.tool_call), **at}
        if chunk.tool_result is not None:
            yield {"tool_result": fields_of(chunk.tool_result), **at}
        if chunk.done:
            yield {"done": True, **at}
        if chunk.run is not None:
            yield _ended(chunk.run)

    def _text(self, chunk: Chunk, kind: str) -> RedactedStream:
        return self._texts.setdefault((chunk.run_id, kind), RedactedStream(self._secrets))


def _ended(run: Run) -> Event:
    """The last event of a run that did not fail."""
    if isinstance(run.output, Paused):
        return {"paused": paused(run.output)}
    check_finished(run)
    return {"result": run.output, "run": facts_of(run)}


def paused(output: Paused) -> Event:
    """What a run waits for, and where the answer goes."""
    return {
        "run_id": output.run_id,
        "requests": [request_to_json(request) for request in output.requests],
        "answer": f"/runs/{output.run_id}/answer",
    }


def facts_of(run: Run) -> Event:
    """What a run came to, beside its output."""
    names = ("id", "model", "steps", "stop_reason", "seconds", "cost")
    return {**{name: getattr(run, name) for name in names}, "usage": fields_of(run.usage)}
