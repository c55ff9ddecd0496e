"""The responses of the service: JSON bodies, event streams and errors.

An error response is `{"error": {"type": ..., "message": ...}}`. The client receives the messages of acorn's own errors,
because they describe a fix. Messages of user code may contain secrets, so they appear only in the log.

If chunks arrive faster than the stream can send them, the stream merges them. Each partial answer contains everything
that has arrived so far, so sending all partial answers would repeat the same content many times. The events have the
field names of `StreamChunk`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, ParamSpec, TypeVar

from starlette.requests import Request

from acorn import Paused, Run, StreamChunk, Unfinished, errors
from acorn._inside import Redactor, record_to_json, to_json_data, to_json_text
from acorn.chunk import call_index_of, has_answer_part
from acorn.types import JsonObject

_MIN_INTERVAL = 1 / 30
"""The minimum number of seconds between two batches of chunks."""
_HEARTBEAT = 15.0
"""The number of seconds after which an empty batch is yielded, so that proxies do not close the connection."""

_LARGE_BODY = 50_000
"""The number of bytes from which a request body is processed in a thread, so that other requests need not wait."""

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

# Errors


class ErrorReply(NamedTuple):
    """The status, body and headers of an error response."""

    status: int
    kind: str
    message: str
    details: JsonObject = {}
    headers: Mapping[str, str] = {}


def _retry_header(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"retry-after": str(math.ceil(seconds))}


class RejectedRequestError(Exception):
    """A request cannot be processed.

    The exception contains the error response for the client.
    """

    def __init__(
        self, status: int, kind: str, message: str, *, retry_after: float | None = None, **details: str
    ) -> None:
        super().__init__(message)
        self.reply = ErrorReply(status, kind, message, details, _retry_header(retry_after))


class CodeExitError(Exception):
    """User code raised `SystemExit` or `KeyboardInterrupt`.

    This exception replaces them, because they would stop the server.
    """


def reply_for_error(error: BaseException) -> ErrorReply:
    """Return the error response that the client receives for an exception."""
    if isinstance(error, RejectedRequestError):
        return error.reply
    cause = error
    while isinstance(cause, errors.BranchError) and cause.__cause__ is not None:
        cause = cause.__cause__
    match cause:
        case errors.InputError():
            return ErrorReply(422, "input", str(cause), {"problems": cause.problems})
        case errors.ModelError():
            details = {"provider": cause.provider, "status": cause.status, "retryable": cause.retryable}
            status = 504 if cause.timed_out or cause.status in (408, 504) else 502
            return ErrorReply(status, "model", str(cause), details, _retry_header(cause.retry_after))
        case errors.ParseError():
            return ErrorReply(502, "parse", str(cause), {"attempts": cause.attempts})
        case errors.LimitError():
            return ErrorReply(500, "limit", str(cause))
        case errors.StoreError():
            return ErrorReply(409, "store", str(cause))
        case _:
            return ErrorReply(500, "internal", "The agent failed. The log of the server contains the details.")


def check_finished(run: Run) -> None:
    """Raise `RejectedRequestError` if a run has no answer: it is paused, or it ended after a tool call."""
    if isinstance(run.output, Paused):
        # The question and its arguments are for the person who answers. The user of a chat must not see them.
        message = (
            f"Run {run.id} is paused until a person answers a request for human input. A person with an approver key "
            f"can answer it at `{answer_path(run.id)}`. Do not send this message again."
        )
        raise RejectedRequestError(403, "paused", message, code="paused", run_id=run.id)
    if isinstance(run.output, Unfinished):
        called = ", ".join(f"`{call.name}`" for call in run.output.tool_calls)
        message = f"The model called {called} instead of finishing. Set `max_steps` on the agent to allow tool calls."
        raise RejectedRequestError(500, "unfinished", message)


# Requests


async def with_body(
    request: Request,
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Call a function that processes the body of a request, in a thread if the body is large."""
    if len(await request.body()) < _LARGE_BODY:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def read_json(request: Request) -> object:
    """Parse the body of a request as JSON and return the value.

    Return None if the body is empty.
    """
    return await with_body(request, _parse_json, await request.body())


def _parse_json(body: bytes) -> object:
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        message = f"The body is not valid JSON: {_json_problem(error)}."
        raise RejectedRequestError(400, "body", message) from error


def _json_problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number is too long"


# Event streams


class ChunkBatches:
    """A reader of the chunks of a run. It runs in its own task and collects chunks until the next batch is sent."""

    def __init__(self, chunks: AsyncGenerator[StreamChunk]) -> None:
        self._chunks = chunks
        self._pending: list[StreamChunk] = []
        self._new_chunks = asyncio.Event()
        self._is_first = True
        self._task = asyncio.ensure_future(without_exit(self._read()))

    async def _read(self) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self._pending.append(chunk)
                    self._new_chunks.set()
        finally:
            self._new_chunks.set()

    async def next(self) -> list[StreamChunk] | None:
        """Return a list of merged chunks, or None at the end of the run.

        The list is empty if no chunk has arrived for some time, so that the caller can send a heartbeat.
        """
        if not self._is_first:
            await asyncio.wait((self._task,), timeout=_MIN_INTERVAL)
        self._is_first = False
        while not self._pending and not self._task.done():
            self._new_chunks.clear()
            try:
                async with asyncio.timeout(_HEARTBEAT):
                    await self._new_chunks.wait()
            except TimeoutError:
                return []
        if not self._pending:
            await self._task
            return None
        batch, self._pending = self._pending, []
        return merge_chunks(batch)

    async def close(self) -> None:
        """Cancel the run if it has not ended, and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # Mark the exception as retrieved, because the client may have disconnected.


async def without_exit(work: Awaitable[Result]) -> Result:
    """Await the work. Raise `CodeExitError` instead of an exception that would stop the event loop in a task."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise CodeExitError(f"{type(error).__name__}: {error}") from error


def merge_chunks(chunks: Sequence[StreamChunk]) -> list[StreamChunk]:
    """Merge consecutive chunks of the same run.

    Texts are joined. Of each partial answer and each tool call, only the last version remains.
    """
    merged: list[StreamChunk] = []
    last: dict[str | None, tuple[int, str | int | None]] = {}
    """Maps a run id to the index in `merged` and the merge key of the last chunk of the run."""
    for chunk in chunks:
        key = _merge_key(chunk)
        index, last_key = last.get(chunk.run_id, (0, None))
        if key is None or key != last_key:
            index = len(merged)
            merged.append(chunk)
        elif key in ("content", "reasoning"):
            text = {key: getattr(merged[index], str(key)) + getattr(chunk, str(key))}
            merged[index] = StreamChunk(**text, done=chunk.done, branch=chunk.branch, run_id=chunk.run_id)
        else:
            merged[index] = chunk
        last[chunk.run_id] = index, None if chunk.done else key
    return merged


def _merge_key(chunk: StreamChunk) -> str | int | None:
    """Return a value that is equal for chunks that can be merged.

    It is the kind of the chunk, or the index of its tool call. Return None if the chunk must not be merged.
    """
    if chunk.tool_result is not None or chunk.run is not None:
        return None
    if call_index_of(chunk) is not None:
        return call_index_of(chunk)
    return (
        "content" if chunk.content else "reasoning" if chunk.reasoning else "answer" if has_answer_part(chunk) else None
    )


def encode_json(redactor: Redactor, value: object) -> bytes:
    """Redact the secrets in a value, and encode the value as JSON."""
    return to_json_text(redactor.data(to_json_data(value))).encode()


def encode_event(redactor: Redactor, value: object) -> bytes:
    """Redact the secrets in a value, and encode the value as one server-sent event."""
    return b"data: " + encode_json(redactor, value) + b"\n\n"


class ChunkEvents:
    """The encoder for the endpoint `POST /stream`.

    Its events have the field names of `StreamChunk`. The page receives the same events.
    """

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self._held_back: dict[tuple[str | None, str], str] = {}
        """Maps the run id and the kind of a growing text to its end, which may be the beginning of a secret."""

    def encode(self, chunks: Sequence[StreamChunk]) -> bytes:
        return b"".join(encode_event(self.redactor, event) for chunk in chunks for event in self.events(chunk))

    def events(self, chunk: StreamChunk) -> Iterator[JsonObject]:
        """Yield one event for each part of a chunk. The last word of a text is held back until the response ends."""
        branch = {"branch": chunk.branch, "run_id": chunk.run_id} if chunk.branch is not None else {}
        is_complete = chunk.done or _merge_key(chunk) is None
        for kind in ("content", "reasoning"):
            text = self._held_back.pop((chunk.run_id, kind), "") + (getattr(chunk, kind) or "")
            if is_complete:
                text = self.redactor.text(text)
            else:
                text, self._held_back[chunk.run_id, kind] = self.redactor.split(text)
            if text:
                yield {kind: text, **branch}
        if has_answer_part(chunk):
            partial = self.redactor.partial(to_json_data(chunk.partial))
            yield {"partial": partial, "completed": list(chunk.completed), **branch}
        if chunk.tool_call is not None:
            yield {"tool_call": self.redactor.partial(chunk.tool_call), **branch}
        if chunk.tool_result is not None:
            yield {"tool_result": record_to_json(chunk.tool_result), **branch}
        if chunk.done:
            yield {"done": True, **branch}
        if chunk.run is not None:
            yield _end_event(chunk.run)


def _end_event(run: Run) -> JsonObject:
    """Return the last event of a stream.

    It contains the result of the run. If the run waits for human input, it contains the unanswered requests instead.
    """
    if isinstance(run.output, Paused):
        return {"paused": paused_json(run.output)}
    check_finished(run)
    facts: JsonObject = {
        name: getattr(run, name) for name in ("id", "model", "steps", "stop_reason", "seconds", "cost")
    }
    return {"result": run.output, "run": {**facts, "usage": record_to_json(run.usage)}}


def paused_json(output: Paused) -> JsonObject:
    """Return the unanswered requests of a paused run, and the URL path to which the client sends the answers."""
    return {
        "run_id": output.run_id,
        "requests": [record_to_json(request) for request in output.requests],
        "answer": answer_path(output.run_id),
    }


def answer_path(run_id: str | None) -> str:
    return f"/runs/{run_id}/answer"
