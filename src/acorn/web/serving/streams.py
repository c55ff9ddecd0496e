"""Chunks as the events of `POST /stream`: plain data under the names that a `StreamChunk` has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from acorn import Paused, Run
from acorn._json import to_plain
from acorn._record_json import fields_of, written_request
from acorn.web.serving.batches import Chunk
from acorn.web.serving.known_secrets import ComingText, KnownSecrets
from acorn.web.serving.outcomes import check_finished

Event = dict[str, Any]


class Stream(Protocol):
    """How the chunks of a run are written."""

    def written(self, chunks: Sequence[Chunk]) -> bytes: ...


def event(secrets: KnownSecrets, value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + secrets.json(value) + b"\n\n"


class ChunkStream:
    """The chunks as they are."""

    def __init__(self, secrets: KnownSecrets) -> None:
        self._secrets = secrets
        self._texts: dict[tuple[str | None, str], ComingText] = {}

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
            partial = self._secrets.growing(to_plain(chunk.partial))
            yield {"partial": partial, "completed": list(chunk.completed), **at}
        if chunk.tool_call is not None:
            yield {"tool_call": self._secrets.growing(chunk.tool_call), **at}
        if chunk.tool_result is not None:
            yield {"tool_result": fields_of(chunk.tool_result), **at}
        if chunk.done:
            yield {"done": True, **at}
        if chunk.run is not None:
            yield _ended(chunk.run)

    def _text(self, chunk: Chunk, kind: str) -> ComingText:
        return self._texts.setdefault((chunk.run_id, kind), ComingText(self._secrets))


def _ended(run: Run[Any]) -> Event:
    """The last event of a run that did not fail."""
    if isinstance(run.output, Paused):
        return {"paused": paused(run.output)}
    check_finished(run)
    return {"result": run.output, "run": facts_of(run)}


def paused(output: Paused) -> Event:
    """What a run waits for, and where the answer goes."""
    return {
        "run_id": output.run_id,
        "requests": [written_request(request) for request in output.requests],
        "answer": f"/runs/{output.run_id}/answer",
    }


def facts_of(run: Run[Any]) -> Event:
    """What a run came to, beside its output."""
    names = ("id", "model", "steps", "stop_reason", "seconds", "cost")
    return {**{name: getattr(run, name) for name in names}, "usage": fields_of(run.usage)}
