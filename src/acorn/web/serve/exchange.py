"""One HTTP request and its response, and the error responses of the service.

An error response is `{"error": {"type": ..., "message": ...}}`. Messages of acorn's own errors are sent to the client,
because they say what to do. Messages of user code may contain anything, so they are only logged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

from starlette.types import Message, Receive, Scope, Send

from acorn import BranchError, InputError, LimitError, ModelError, ParseError, Run, StoreError, Unfinished
from acorn.types import JsonObject
from acorn.web.guard import HEADERS


class ErrorReply(NamedTuple):
    """An error response."""

    status: int
    kind: str
    message: str
    details: JsonObject
    retry_after: float | None = None
    """Seconds after which the client may retry."""
    allow: str | None = None
    """The `Allow` header, if the method is rejected."""

    def to_json(self) -> JsonObject:
        return {"error": {"type": self.kind, "message": self.message, **self.details}}

    @property
    def headers(self) -> dict[str, str]:
        wait = None if self.retry_after is None else str(math.ceil(self.retry_after))
        return {name: value for name, value in (("retry-after", wait), ("allow", self.allow)) if value is not None}

    @property
    def is_logged(self) -> bool:
        """Whether the log must contain more than the client receives."""
        return self.kind == "internal"


class RejectedRequestError(Exception):
    """A request that the service cannot answer."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        retry_after: float | None = None,
        allow: str | None = None,
        **details: str,
    ) -> None:
        super().__init__(message)
        self.reply = ErrorReply(status, kind, message, details, retry_after, allow)


class ClientDisconnectedError(Exception):
    """The client disconnected before the response."""


class CodeExitError(Exception):
    """User code tried to exit the program."""


def reply_for_error(error: BaseException) -> ErrorReply:
    """Return the response for an error."""
    if isinstance(error, RejectedRequestError):
        return error.reply
    cause = error
    while isinstance(cause, BranchError) and cause.__cause__ is not None:
        cause = cause.__cause__
    match cause:
        case InputError():
            return ErrorReply(422, "input", str(cause), {"problems": cause.problems})
        case ModelError():
            details = {"provider": cause.provider, "status": cause.status, "retryable": cause.retryable}
            status = 504 if cause.timed_out or cause.status in (408, 504) else 502
            return ErrorReply(status, "model", str(cause), details, cause.retry_after)
        case ParseError():
            return ErrorReply(502, "parse", str(cause), {"attempts": cause.attempts})
        case LimitError():
            return ErrorReply(500, "limit", str(cause), {})
        case StoreError():
            return ErrorReply(409, "store", str(cause), {})
        case _:
            return ErrorReply(500, "internal", "The agent failed. The log of the server has the details.", {})


def check_finished(run: Run) -> None:
    """Raise an error if a run ended without an answer although nothing failed."""
    if isinstance(run.output, Unfinished):
        called = ", ".join(f"`{call.name}`" for call in run.output.tool_calls)
        message = f"The model called {called} instead of finishing. Set `max_steps` on the agent to allow tool calls."
        raise RejectedRequestError(500, "unfinished", message)


_EVENT_STREAM = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
_SECURITY_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_NO_HEADERS: Mapping[str, str] = {}


class Exchange:
    """A request and the response that is being sent."""

    def __init__(self, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        self.method, self.path = str(scope["method"]), path
        self._receive, self._send = receive, send
        self.has_started = False
        """Whether a status was sent. After that, an error can only be sent as an event."""

    async def _body(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def json(self) -> object:
        """Return the body as data, or None if it is empty."""
        body = await self._body()
        if not body.strip():
            return None
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            message = f"The body is not valid JSON: {_json_problem(error)}."
            raise RejectedRequestError(400, "body", message) from error

    async def wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        """Send a complete response, as JSON unless the headers say otherwise."""
        default = {"content-type": "application/json", "cache-control": "no-store", "content-length": str(len(body))}
        await self._start(status, {**default, **headers})
        await self._send_message({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def send_event(self, event: bytes) -> None:
        """Send a piece of an event stream."""
        if not self.has_started:
            await self._start(200, {**_EVENT_STREAM, "cache-control": "no-store"})
        await self._send_message({"type": "http.response.body", "body": event, "more_body": True})

    async def end(self) -> None:
        await self._send_message({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.has_started = True
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        all_headers = [*encoded, *_SECURITY_HEADERS]
        await self._send_message({"type": "http.response.start", "status": status, "headers": all_headers})

    async def _send_message(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # Some servers report a disconnect this way.
            raise ClientDisconnectedError from error


def _json_problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number is too long"
