"""What goes wrong, as a status and plain data: `{"error": {"type": ..., "message": ...}}`.

What our own errors say is told, since they say what to do; what code of the user's raises is not, since nobody knows
what is in it: the log has it. Pure.

What became of a run, where it is no answer.

One request and its answer, as ASGI gives them: the body in, JSON or a stream of events out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import Message, Receive, Scope, Send

from acorn import BranchError, InputError, LimitError, ModelError, ParseError, Run, StoreError, Unfinished
from acorn.models.failures import TIMED_OUT
from acorn.types import JsonObject
from acorn.web.guard import HEADERS


class WrongError(Exception):
    """A request that cannot be answered."""

    def __init__(
        self, status: int, kind: str, words: str, *, wait: float | None = None, allow: str | None = None, **more: Any
    ) -> None:
        super().__init__(words)
        self.told = ErrorReply(status, kind, words, more, wait, allow)


class ErrorReply(NamedTuple):
    """What a client is told of a failure."""

    status: int
    kind: str
    words: str
    more: JsonObject
    wait: float | None = None
    """Seconds after which it is worth another try."""
    allow: str | None = None
    """What can be done there instead."""

    @property
    def plain(self) -> JsonObject:
        return {"error": {"type": self.kind, "message": self.words, **self.more}}

    @property
    def headers(self) -> dict[str, str]:
        wait = None if self.wait is None else str(math.ceil(self.wait))
        return {name: value for name, value in (("retry-after", wait), ("allow", self.allow)) if value is not None}


def reply_for_error(error: BaseException) -> ErrorReply:
    """What a client is told of an error."""
    if isinstance(error, WrongError):
        return error.told
    cause = error
    while isinstance(cause, BranchError) and cause.__cause__ is not None:
        cause = cause.__cause__
    match cause:
        case InputError():
            return ErrorReply(422, "input", str(cause), {"problems": cause.problems})
        case ModelError():
            more = {"provider": cause.provider, "status": cause.status, "retryable": cause.retryable}
            return ErrorReply(504 if _is_late(cause) else 502, "model", str(cause), more, cause.retry_after)
        case ParseError():
            return ErrorReply(502, "parse", str(cause), {"attempts": cause.attempts})
        case LimitError():
            return ErrorReply(500, "limit", str(cause), {})
        case StoreError():
            return ErrorReply(409, "store", str(cause), {})
        case _:
            return ErrorReply(500, "internal", "The agent failed; the log of the server says of what.", {})


def is_logged(told: ErrorReply) -> bool:
    """Whether whoever runs the server must be told more than the client."""
    return told.kind == "internal"


def _is_late(error: ModelError) -> bool:
    return error.status in (408, 504) or f"({TIMED_OUT})" in str(error)


def check_finished(run: Run) -> None:
    """Refuse a run that has no answer though nothing failed."""
    if isinstance(run.output, Unfinished):
        called = ", ".join(f"`{call.name}`" for call in run.output.tool_calls)
        raise WrongError(
            500, "unfinished", f"The model called {called} instead of finishing; the agent needs `max_steps` for that."
        )


_EVENTS = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
_SAFE = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_NOTHING: Mapping[str, str] = {}


class ClientDisconnectedError(Exception):
    """The client is gone, so there is nobody to answer."""


class Exchange:
    """A request that is being answered."""

    def __init__(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        self.method, self.path = str(scope["method"]), path
        self._receive, self._send = receive, send
        self.has_begun = False
        """Whether a status has been sent: from then on a failure can only be an event."""

    async def body(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def json(self) -> Any:
        """The body as data; None where it is empty."""
        body = await self.body()
        if not body.strip():
            return None
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise WrongError(400, "body", f"The body is no JSON: {_reason(error)}.") from error

    async def gone(self) -> None:
        """Returns when the client has left."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] = _NOTHING) -> None:
        """A whole answer in JSON."""
        usual = {"content-type": "application/json", "cache-control": "no-store", "content-length": str(len(body))}
        await self._begin(status, {**usual, **headers})
        await self._send_on({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def event(self, written: bytes) -> None:
        """A piece of a stream of events."""
        if not self.has_begun:
            await self._begin(200, {**_EVENTS, "cache-control": "no-store"})
        await self._send_on({"type": "http.response.body", "body": written, "more_body": True})

    async def end(self) -> None:
        await self._send_on({"type": "http.response.body", "body": b""})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_begun = True
        written = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send_on({"type": "http.response.start", "status": status, "headers": [*written, *_SAFE]})

    async def _send_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # how some servers say that the client is gone
            raise ClientDisconnectedError from error


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8"
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number in it is too long"
