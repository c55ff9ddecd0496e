"""One request and its answer, as ASGI gives them: the body in, JSON or a stream of events out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from acorn.web.guard import HEADERS
from acorn.web.serving.failures import WrongError

_EVENTS = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
_SAFE = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_NOTHING: Mapping[str, str] = {}


class LeftError(Exception):
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
                raise LeftError
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
            raise LeftError from error


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8"
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number in it is too long"
