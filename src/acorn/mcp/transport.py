"""The transports (the ways to exchange messages) to an MCP server: a process with pipes, or HTTP.

For processes, acorn has its own transport, except on Windows, where it uses the transport of the MCP SDK. The transport
of the SDK passes every message through two streams and two tasks, which takes a quarter of the time of a tool call.
acorn's transport uses callbacks of the event loop, and limits the memory that a server can fill.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import anyio
import httpx2
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, jsonrpc_message_adapter

from acorn.mcp.address import ServerAddress, ServerLog
from acorn.types import is_json_object

Streams = tuple[Any, Any]
"""The stream from a server and the stream to the server, in the order of the SDK."""

SESSION_LOST = "Session terminated"
"""The SDK's error message if the server does not recognize the session."""

_MAX_ERRORS = 1000
"""The number of error messages that `ErrorRedactor` stores. acorn has already reported older messages."""
_PLACEHOLDER = re.compile(r"error \d+ of the server")


class ErrorRedactor:
    """A store for the error messages of a server, which replaces them with placeholders before the SDK sees them.

    The SDK writes error messages to its own telemetry spans, in which acorn cannot redact API keys. acorn restores the
    original message when it reports the error.
    """

    def __init__(self) -> None:
        self._messages: dict[str, str] = {}
        self._count = 0

    def hide(self, item: SessionMessage) -> SessionMessage:
        """If the message is a JSON-RPC error, replace its error text with a placeholder. Return the message."""
        if isinstance(item.message, JSONRPCError):
            self._count += 1
            placeholder = f"error {self._count} of the server"
            self._messages[placeholder] = item.message.error.message
            self._messages.pop(f"error {self._count - _MAX_ERRORS} of the server", None)
            item.message.error.message = placeholder
        return item

    def restore(self, text: str) -> str:
        """Replace the placeholders in a text with the original error messages."""
        return _PLACEHOLDER.sub(lambda match: self._messages.get(match[0], match[0]), text)


_MAX_MESSAGE = 100_000_000
"""The maximum size of a message in bytes. A server that never ends its line would fill the memory."""
_MAX_PENDING = 1000
"""The maximum number of unread messages. A server that writes more messages must wait."""
_IGNORED_METHODS = ("notifications/message", "notifications/resources/updated")
"""The notifications that acorn drops. acorn does not need them, and the SDK would start a task for each."""
_RESPONSE_ID = re.compile(
    rb'\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,15}|"[\w-]{1,80}")\s*,\s*"(?:result|error)"'
)
_EXIT_TIMEOUT = 2.0
"""The seconds in which a server may exit after its input is closed, and again after SIGTERM."""
_FAST_EXIT_TIMEOUT = 0.5
"""The shorter exit timeout for a server that failed, because the caller waits for the error."""


class Watcher(Protocol):
    """The interface of an object that is notified of transport events, because the SDK does not report these events."""

    @property
    def error_redactor(self) -> ErrorRedactor: ...

    def on_lost(self, reason: str | None = None) -> None:
        """Handle the end of the connection: the server will send no more messages."""

    def on_invalid_message(self) -> None:
        """Handle output of the server that is not an MCP message."""

    def on_http_status(self, status: int) -> None:
        """Handle the status code of an HTTP response."""


@asynccontextmanager
async def start_process(
    command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, log: ServerLog, watcher: Watcher
) -> AsyncGenerator[tuple[MessageStream, MessageStream]]:
    """Start a server process and yield the stream from the process and the stream to it.

    At the end of the `with` block, the function stops the process and its child processes.
    """
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
    """A stream of messages from and to a server process, with the methods that the SDK expects from a stream."""

    last_context = None
    """An attribute that the SDK reads for every message."""

    def __init__(self, server: _ServerProcess) -> None:
        self._server = server
        self._error_redactor = server.watcher.error_redactor

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
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                self._server.watcher.on_invalid_message()
                request_id = _request_id(line)
                if request_id is None:
                    continue
                message = _error_response(request_id)  # Without a response, the call would wait for its timeout.
            if not isinstance(message, JSONRPCNotification) or message.method not in _IGNORED_METHODS:
                return self._error_redactor.hide(SessionMessage(message))

    async def receive(self) -> SessionMessage:
        try:
            return await self.__anext__()
        except StopAsyncIteration as error:
            raise anyio.EndOfStream from error

    async def send(self, item: SessionMessage) -> None:
        if not self._server.is_writable:
            raise anyio.BrokenResourceError
        await self._server.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def aclose(self) -> None:
        """Do nothing, because `start_process` stops the process after both streams are closed."""

    async def __aenter__(self) -> MessageStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def _error_response(request_id: int | str) -> JSONRPCError:
    error = ErrorData(code=INTERNAL_ERROR, message="the answer of the server is not an MCP message")
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)


def _request_id(line: bytes) -> int | str | None:
    """Return the id of the request that an invalid response answers, or None if the line is not a response."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        match = _RESPONSE_ID.match(line)
        message = None if match is None else {"result": None, "id": json.loads(match[1])}
    if not is_json_object(message) or message.keys().isdisjoint(("result", "error")):
        return None
    request_id = message.get("id")
    return request_id if isinstance(request_id, int | str) and not isinstance(request_id, bool) else None


class _ServerProcess(asyncio.SubprocessProtocol):
    """A running server process, with a queue of output lines that acorn has not read yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> None:
        self.watcher = watcher
        self._loop = loop
        self._lines: deque[bytes] = deque()
        self._partial_line: list[bytes] = []
        """The received fragments of an unfinished line."""
        self._size = 0
        self._has_ended = False
        self._line_arrived: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        """A future that resolves when the server has read its input, or None if writers need not wait."""
        self._is_paused = False
        self._exited: asyncio.Future[None] = loop.create_future()

    # From the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process = transport
        # The classes of these transports depend on the event loop.
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
        self._end()  # A server that closed only its input has ended too, because it cannot receive a request.

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
        if self._line_arrived is not None and not self._line_arrived.done():
            self._line_arrived.set_result(None)

    async def next_line(self) -> bytes | None:
        """Wait for the next output line of the server and return it, or return None after the last line."""
        while not self._lines:
            if self._has_ended:
                return None
            self._resume_reading()
            self._line_arrived = self._loop.create_future()
            await self._line_arrived
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
            await asyncio.shield(self._drained)  # Several writers may wait for the same future.

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # The end

    async def stop(self, seconds: float) -> None:
        """Stop the process as MCP specifies: close its input, then send SIGTERM, then SIGKILL."""
        self._has_ended = True
        self._resume_reading()  # A server that is blocked in a write cannot notice the end of its input.
        self._input.close()
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if await self._wait_for_exit(seconds):
                    return
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.get_pid(), number)
            await self._wait_for_exit(seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                self._process.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), signal.SIGTERM)  # Child processes may still run.
            atexit.unregister(self._terminate_at_exit)

    def _terminate_at_exit(self) -> None:
        """Send SIGTERM to the server if the program exits without stopping it, for example after Ctrl-C."""
        if self._owner == os.getpid() and not self._exited.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), signal.SIGTERM)

    async def _wait_for_exit(self, seconds: float) -> bool:
        return bool((await asyncio.wait({self._exited}, timeout=seconds))[0])


@asynccontextmanager
async def open_transport(
    address: ServerAddress, log: ServerLog | None, watcher: Watcher, timeout: float
) -> AsyncGenerator[Streams]:
    """Connect to a server, and yield the stream from the server and the stream to it.

    The function reports lost connections and invalid messages to the watcher.
    """
    if address.is_web:
        lost_requests: set[object] = set()
        async with _open_http(address, watcher, timeout, lost_requests) as (reading, writing):
            yield _WatchedStream(reading, watcher, lost_requests), writing
        return
    assert log is not None
    if os.name == "posix":
        env = get_default_environment() | dict(address.env or {})
        async with start_process(address.target, address.args, env, address.cwd, log, watcher) as streams:
            yield streams
    else:
        async with _open_sdk_stdio(address, log) as (reading, writing):
            yield _WatchedStream(reading, watcher), writing


@asynccontextmanager
async def _open_sdk_stdio(address: ServerAddress, log: ServerLog) -> AsyncGenerator[Streams]:
    """Start the server process with the transport of the SDK, which supports the commands and processes of Windows."""
    env = None if address.env is None else dict(address.env)
    server = StdioServerParameters(command=address.target, args=list(address.args), env=env, cwd=address.cwd)
    try:
        async with stdio_client(server, errlog=log.file) as streams:
            log.close_writer()
            yield streams
    finally:
        log.close_writer()


@asynccontextmanager
async def _open_http(
    address: ServerAddress, watcher: Watcher, connect_timeout: float, lost_requests: set[object]
) -> AsyncGenerator[Streams]:
    async def on_response(response: httpx2.Response) -> None:
        watcher.on_http_status(response.status_code)
        request = response.request
        # In MCP, status 404 for a request with a session id means that the server has lost the session.
        if response.status_code == 404 and request.method == "POST" and "mcp-session-id" in request.headers:
            lost_requests.add(json.loads(request.content).get("id"))

    # A read timeout is not necessary, because `CallTimeouts` limits the time without a result or progress.
    timeout = httpx2.Timeout(min(connect_timeout, 30.0), read=None)
    hooks = {"response": [on_response]}
    headers = dict(address.headers or {})
    async with (
        httpx2.AsyncClient(headers=headers, auth=address.auth, event_hooks=hooks, timeout=timeout) as client,
        streamable_http_client(address.target, http_client=client) as streams,
    ):
        yield streams


class _WatchedStream:
    """A wrapper around a stream of the SDK that reports the end of the stream and invalid messages to a watcher."""

    def __init__(self, inner: Any, watcher: Watcher, lost_requests: Collection[object] = ()) -> None:
        self._inner = inner
        self._watcher = watcher
        self._lost_requests = lost_requests
        """The ids of the requests whose session the server has lost. Servers use different messages for this error."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        return await self._receive(self._inner.__anext__())

    async def receive(self) -> Any:
        return await self._receive(self._inner.receive())

    async def _receive(self, pending: Awaitable[Any]) -> Any:
        try:
            item = await pending
        except BaseException:
            self._watcher.on_lost()
            raise
        if isinstance(item, Exception):
            self._watcher.on_invalid_message()
            return item
        if self._lost_requests and getattr(item.message, "id", None) in self._lost_requests:
            item.message.error.message = SESSION_LOST
        return self._watcher.error_redactor.hide(item)

    async def __aenter__(self) -> _WatchedStream:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.__aexit__(*error)
