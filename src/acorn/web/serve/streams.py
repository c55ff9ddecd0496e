"""Chunks of a run in batches, and the events of `POST /stream`.

Chunks that arrive faster than a reader needs them are merged. Each partial answer is a complete value, so sending all
of them would repeat it a thousand times. The events have the field names of `StreamChunk`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from acorn import Paused, Run, StreamChunk
from acorn._inside import record_to_json, to_json_data
from acorn.chunk import call_index_of, has_answer_part
from acorn.types import JsonObject
from acorn.web.redact import RedactedStream, ServiceRedactor
from acorn.web.serve.exchange import CodeExitError, check_finished

_MIN_INTERVAL = 1 / 30
"""Seconds between two batches."""
_HEARTBEAT = 15.0
"""Seconds after which an empty batch is yielded, so that proxies do not close the connection."""


async def in_batches(chunks: AsyncGenerator[StreamChunk]) -> AsyncGenerator[list[StreamChunk]]:
    """Yield the chunks in merged batches. Closing the generator early cancels the run."""
    pending: list[StreamChunk] = []
    news = asyncio.Event()

    async def read() -> None:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    pending.append(chunk)
                    news.set()
        except (SystemExit, KeyboardInterrupt) as error:  # In a task, either would stop the event loop.
            raise CodeExitError(f"{type(error).__name__}: {error}") from error
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
            batch, pending[:] = pending[:], []
            if batch:
                yield merge_chunks(batch)
                await asyncio.wait((task,), timeout=_MIN_INTERVAL)
        await task
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # Mark it as retrieved: it was raised above, or the reader has disconnected.


def merge_chunks(chunks: Sequence[StreamChunk]) -> list[StreamChunk]:
    """Join texts and keep the last version of each partial answer and call."""
    merged: list[StreamChunk] = []
    last: dict[str | None, int] = {}
    """By run, the index in `merged` of its last chunk."""
    for chunk in chunks:
        index = last.get(chunk.run_id)
        earlier = None if index is None else merged[index]
        kind = _kind(chunk)
        if index is None or earlier is None or kind is None or earlier.done or _kind(earlier) != kind:
            last[chunk.run_id] = len(merged)
            merged.append(chunk)
        elif kind in ("content", "reasoning"):
            text = {kind: getattr(earlier, str(kind)) + getattr(chunk, str(kind))}
            merged[index] = StreamChunk(**text, done=chunk.done, branch=chunk.branch, run_id=chunk.run_id)
        else:
            merged[index] = chunk
    return merged


def _kind(chunk: StreamChunk) -> str | int | None:
    """Return the part of the response that a chunk belongs to, or None if the chunk is complete."""
    if chunk.tool_result is not None or chunk.run is not None:
        return None
    if call_index_of(chunk) is not None:
        return call_index_of(chunk)
    return (
        "content" if chunk.content else "reasoning" if chunk.reasoning else "answer" if has_answer_part(chunk) else None
    )


class ChunkEncoder(Protocol):
    """Encodes the chunks of a run as server-sent events."""

    def encode(self, chunks: Sequence[StreamChunk]) -> bytes: ...


def encode_event(redactor: ServiceRedactor, value: object) -> bytes:
    """Encode one server-sent event."""
    return b"data: " + redactor.json(value) + b"\n\n"


class ChunkEvents:
    """Encodes chunks with the field names of `StreamChunk`."""

    def __init__(self, redactor: ServiceRedactor) -> None:
        self._redactor = redactor
        self._texts: dict[tuple[str | None, str], RedactedStream] = {}

    def encode(self, chunks: Sequence[StreamChunk]) -> bytes:
        return b"".join(encode_event(self._redactor, event) for chunk in chunks for event in self._events(chunk))

    def _events(self, chunk: StreamChunk) -> Iterator[JsonObject]:
        branch = {"branch": chunk.branch, "run_id": chunk.run_id} if chunk.branch is not None else {}
        for kind in ("content", "reasoning"):
            if text := getattr(chunk, kind):
                released = self._text(chunk, kind).add(text)
                yield from [{kind: released, **branch}] if released else []
            if not text or chunk.done:  # This text is complete.
                yield from [{kind: held, **branch}] if (held := self._text(chunk, kind).flush()) else []
        if has_answer_part(chunk):
            partial = self._redactor.partial(to_json_data(chunk.partial))
            yield {"partial": partial, "completed": list(chunk.completed), **branch}
        if chunk.tool_call is not None:
            yield {"tool_call": self._redactor.partial(chunk.tool_call), **branch}
        if chunk.tool_result is not None:
            yield {"tool_result": record_to_json(chunk.tool_result), **branch}
        if chunk.done:
            yield {"done": True, **branch}
        if chunk.run is not None:
            yield _end_event(chunk.run)

    def _text(self, chunk: StreamChunk, kind: str) -> RedactedStream:
        return self._texts.setdefault((chunk.run_id, kind), RedactedStream(self._redactor))


def _end_event(run: Run) -> JsonObject:
    """Return the last event of a run that did not fail."""
    if isinstance(run.output, Paused):
        return {"paused": paused_json(run.output)}
    check_finished(run)
    return {"result": run.output, "run": run_facts(run)}


def paused_json(output: Paused) -> JsonObject:
    """Return the open requests of a paused run and the address for their answers."""
    return {
        "run_id": output.run_id,
        "requests": [record_to_json(request) for request in output.requests],
        "answer": f"/runs/{output.run_id}/answer",
    }


def run_facts(run: Run) -> JsonObject:
    """Return the id, totals and stop reason of a run."""
    names = ("id", "model", "steps", "stop_reason", "seconds", "cost")
    return {**{name: getattr(run, name) for name in names}, "usage": record_to_json(run.usage)}
