"""A server as a process: MCP messages, one per line, on its standard input and output.

The SDK has such a transport, too, and acorn uses it on Windows. There, every message passes through two streams and two
tasks, which is a quarter of the cost of a call. Here, callbacks of the event loop do the work and limit the memory that
a server can fill.

The standard error of a server goes to the logger `acorn.mcp` at DEBUG, never to the terminal. Its last lines are kept
for error messages.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import re
import signal
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from acorn.mcp.tools import Redact, clean, truncate

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCMessage

_MAX_ERRORS = 1000
"""Error messages that are kept. Older ones have been reported."""
_PLACEHOLDER = re.compile(r"error \d+ of the server")


class ErrorRedactor:
    """Hides the messages of a server's errors from the SDK.

    The SDK writes them to its own spans, where keys would not be redacted. It sees a placeholder instead, and acorn
    restores the message when it reports the error.
    """

    def __init__(self) -> None:
        from mcp_types import JSONRPCError

        self._error_type = JSONRPCError
        self._messages: dict[str, str] = {}
        self._count = 0

    def hide(self, item: SessionMessage) -> SessionMessage:
        """Replace the message of an error by a placeholder."""
        if isinstance(item.message, self._error_type):
            self._count += 1
            placeholder = f"error {self._count} of the server"
            self._messages[placeholder] = item.message.error.message
            self._messages.pop(f"error {self._count - _MAX_ERRORS} of the server", None)
            item.message.error.message = placeholder
        return item

    def restore(self, text: str) -> str:
        """Replace the placeholders in a text by the messages of the server."""
        return _PLACEHOLDER.sub(lambda match: self._messages.get(match[0], match[0]), text)


_logger = logging.getLogger("acorn.mcp")
_MAX_LINES = 20
_MAX_LINE = 1000


class ServerLog:
    """The standard error of a server process, read by a thread."""

    def __init__(self, server: str, redact: Redact) -> None:
        reading, writing = os.pipe()
        self.file = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close_writer`
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._server = server
        self._redact = redact
        self._thread = threading.Thread(target=self._read, args=(reading,), name="acorn-mcp-stderr", daemon=True)
        self._thread.start()

    def _read(self, descriptor: int) -> None:
        with open(descriptor, encoding="utf-8", errors="replace") as pipe:
            while line := pipe.readline(_MAX_LINE * 10):
                text = truncate(clean(line).rstrip(), _MAX_LINE)
                if text:
                    self._lines.append(text)
                    if _logger.isEnabledFor(logging.DEBUG):
                        _logger.debug("%s: %s", self._server, self._redact(text))

    def close_writer(self) -> None:
        """Close our end of the pipe, after the server has its copy or could not start."""
        self.file.close()

    async def last_lines(self, seconds: float) -> list[str]:
        """Return the last lines. For a dead server, wait at most `seconds` for the rest of its output."""
        if seconds and self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, seconds)
        return list(self._lines)


_MAX_MESSAGE = 100_000_000
"""Bytes. A server that never ends its line would fill the memory."""
_MAX_PENDING = 1000
"""Messages that were not read yet. A server that writes more has to wait."""
_IGNORED_METHODS = ("notifications/message", "notifications/resources/updated")
"""Notifications without a listener. Each would cost the SDK a task."""
_RESPONSE_ID = re.compile(
    rb'\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,15}|"[\w-]{1,80}")\s*,\s*"(?:result|error)"'
)
_EXIT_TIMEOUT = 2.0
"""Seconds in which a server may exit after its input is closed, and again after SIGTERM."""
_FAST_EXIT_TIMEOUT = 0.5
"""The same for a server that failed, because the caller waits for the error."""


class Watcher(Protocol):
    """Receives the events of a transport that the SDK does not report."""

    @property
    def error_redactor(self) -> ErrorRedactor: ...

    def on_lost(self, reason: str | None = None) -> None:
        """The server will send nothing more."""

    def on_invalid_message(self) -> None:
        """The server wrote a line that is not a message."""

    def on_http_status(self, status: int) -> None:
        """The server answered a request over HTTP."""


@asynccontextmanager
async def start_process(
    command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, log: ServerLog, watcher: Watcher
) -> AsyncGenerator[tuple[MessageStream, MessageStream]]:
    """Start a server and yield its message streams. At the end, stop the server and its child processes."""
    import anyio

    loop = asyncio.get_running_loop()
    try:
        _, server = await loop.subprocess_exec(
            lambda: _ServerProcess(loop, watcher), command, *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log.file,
            env=dict(env), cwd=cwd, start_new_session=True,
        )  # fmt: skip
    finally:
        log.close_writer()
    messages = MessageStream(server)
    exit_timeout = _FAST_EXIT_TIMEOUT
    try:
        yield messages, messages
        exit_timeout = _EXIT_TIMEOUT
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop(exit_timeout)


class MessageStream:
    """The message streams of a server, with the interface that the SDK expects."""

    last_context = None
    """The SDK reads this attribute for every message."""

    def __init__(self, server: _ServerProcess) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, jsonrpc_message_adapter

        self._server = server
        self._error_redactor = server.watcher.error_redactor
        self._read = jsonrpc_message_adapter.validate_json
        self._wrap = SessionMessage
        self._notification_type = JSONRPCNotification

        def error_response(request_id: int | str) -> JSONRPCMessage:
            error = ErrorData(code=INTERNAL_ERROR, message="the answer of the server is no message of MCP")
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)

        self._error_response = error_response

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> SessionMessage:
        while True:
            line = await self._server.next_line()
            if line is None:
                raise StopAsyncIteration
            if not line.strip():
                continue
            try:
                message = self._read(line, by_name=False)
            except ValueError:
                self._server.watcher.on_invalid_message()
                request_id = _request_id(line)
                if request_id is None:
                    continue
                message = self._error_response(request_id)  # Otherwise the call would wait for its timeout.
            if not isinstance(message, self._notification_type) or message.method not in _IGNORED_METHODS:
                return self._error_redactor.hide(self._wrap(message))

    async def receive(self) -> SessionMessage:
        import anyio

        try:
            return await self.__anext__()
        except StopAsyncIteration as error:
            raise anyio.EndOfStream from error

    async def send(self, item: SessionMessage) -> None:
        import anyio

        if not self._server.is_writable:
            raise anyio.BrokenResourceError
        await self._server.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def aclose(self) -> None:
        """Do nothing. `start_process` stops the process after both streams are closed."""

    async def __aenter__(self) -> MessageStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def _request_id(line: bytes) -> int | str | None:
    """Return the id of the request that an invalid message answers."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        match = _RESPONSE_ID.match(line)
        message = None if match is None else {"result": None, "id": json.loads(match[1])}
    if not isinstance(message, dict) or message.keys().isdisjoint(("result", "error")):
        return None
    request_id = message.get("id")
    return request_id if isinstance(request_id, int | str) and not isinstance(request_id, bool) else None


class _ServerProcess(asyncio.SubprocessProtocol):
    """The process and the lines that were not read yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> None:
        self.watcher = watcher
        self._loop = loop
        self._lines: deque[bytes] = deque()
        self._partial_line: list[bytes] = []
        """The pieces of an unfinished line."""
        self._size = 0
        self._has_ended = False
        self._news: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        """Resolved when the server has read its input, or None."""
        self._is_paused = False
        self._exited: asyncio.Future[None] = loop.create_future()

    # From the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process = transport
        # The event loop decides about the classes of these transports.
        self._input: Any = transport.get_pipe_transport(0)
        self._output: Any = transport.get_pipe_transport(1)
        self._owner = os.getpid()
        atexit.register(self._terminate_at_exit)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._has_ended:
            return
        first, *lines = data.split(b"\n")
        self._partial_line.append(first)
        self._size += len(first)
        if lines:
            self._lines.append(b"".join(self._partial_line))
            self._lines.extend(lines[:-1])
            self._partial_line, self._size = [lines[-1]], len(lines[-1])
            if len(self._lines) > _MAX_PENDING and not self._is_paused:
                self._is_paused = True
                self._output.pause_reading()
            self._wake()
        elif self._size > _MAX_MESSAGE:
            self._end(f"the server wrote a message of more than {_MAX_MESSAGE} bytes")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._end()  # Also if only its input was closed, because it could not receive a request.

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)

    def _end(self, reason: str | None = None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._partial_line = []
            self.watcher.on_lost(reason)
            self._wake()
            self.resume_writing()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def next_line(self) -> bytes | None:
        """Return the next line, or None at the end."""
        while not self._lines:
            if self._has_ended:
                return None
            self._resume_reading()
            self._news = self._loop.create_future()
            await self._news
        return self._lines.popleft()

    def _resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._output.resume_reading()

    # To the server

    @property
    def is_writable(self) -> bool:
        return not self._has_ended and not self._input.is_closing()

    async def write(self, data: bytes) -> None:
        self._input.write(data)
        if self._drained is not None:
            await asyncio.shield(self._drained)  # Several writers may wait for it.

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # The end

    async def stop(self, seconds: float) -> None:
        """Stop the process as the protocol says: close its input, then send SIGTERM, then SIGKILL."""
        self._has_ended = True
        self._resume_reading()  # A server that is blocked in a write cannot notice the end of its input.
        self._input.close()
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if await self._has_exited(seconds):
                    return
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.get_pid(), number)
            await self._has_exited(seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                self._process.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), signal.SIGTERM)  # for child processes that are still running
            atexit.unregister(self._terminate_at_exit)

    def _terminate_at_exit(self) -> None:
        """Terminate the server if the program exits first, as after Ctrl-C."""
        if self._owner == os.getpid() and not self._exited.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), signal.SIGTERM)

    async def _has_exited(self, seconds: float) -> bool:
        return bool((await asyncio.wait({self._exited}, timeout=seconds))[0])
