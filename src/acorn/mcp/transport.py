"""The transports (the ways to exchange messages) to an MCP server: a process with pipes, or HTTP.

HTTP uses the transport of the MCP SDK. For processes, acorn has its own transport. The transport of the SDK passes
every message through two streams and two tasks, which makes a tool call 1.5 times as expensive. It leaves child
processes of a server behind, and does not limit the memory that a server can fill.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import re
import shutil
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
from mcp import MCPError
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, jsonrpc_message_adapter

from acorn.mcp.address import ServerAddress
from acorn.mcp.tools import clean, truncate
from acorn.types import is_json_object

SESSION_LOST = "Session terminated"
"""The SDK's error message if the server does not recognize the session."""

_logger = logging.getLogger("acorn.mcp")
_MAX_MESSAGE = 100_000_000
"""The maximum size of a message in bytes. A server that never ends its line would fill the memory."""
_MAX_LOG_LINES = 20
"""The number of lines from standard error that are stored for error messages."""
_MAX_LOG_LINE = 1000
"""The maximum length of a stored log line, in characters."""
_EXIT_TIMEOUT = 2.0
"""The seconds in which a server may exit after its input is closed, and again after SIGTERM."""
_FAST_EXIT_TIMEOUT = 0.5
"""The shorter exit timeout for a server that failed, because the caller waits for the error."""
_IGNORED_METHODS = ("notifications/message", "notifications/resources/updated")
"""The notifications that acorn drops. acorn does not need them, and the SDK would start a task for each."""
_RESPONSE_ID = re.compile(
    rb'\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,15}|"[\w-]{1,80}")\s*,\s*"(?:result|error)"'
)

Streams = tuple[Any, Any]
"""The stream from a server and the stream to the server, in the order of the SDK."""


@dataclass(eq=False)
class TransportState:
    """The state of a connection that its transport sets, because the SDK does not report it."""

    has_ended: bool = False
    """Whether the server will send no more messages."""
    end_reason: str | None = None
    """The reason why acorn ended the connection, or None."""
    has_invalid_output: bool = False
    """Whether a server process wrote lines to its standard output that are not MCP messages."""
    http_status: int = 0
    """The status of the last HTTP response, or 0."""
    log_lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=_MAX_LOG_LINES))
    """The last lines of the standard error of a server process."""
    log_reader: asyncio.Task[None] | None = None
    """The task that reads the standard error of a server process. It ends when the server has closed it."""


def open_transport(
    address: ServerAddress, state: TransportState, timeout: float
) -> AbstractAsyncContextManager[Streams]:
    """Return a context manager that connects to a server and yields the stream from the server and the stream to it."""
    return _connect(address, state, timeout) if address.is_web else _start_process(address, state)


# Error messages of a server
#
# The SDK writes error messages to its own telemetry spans, in which acorn cannot redact API keys. Therefore acorn moves
# the message of an error response to the error data before the SDK receives the response.

_MESSAGE_KEY = "acorn.message"


def _hide_message(error: ErrorData) -> None:
    data = error.data if is_json_object(error.data) else {}
    error.data = {**data, _MESSAGE_KEY: error.message}
    error.message = "The server reported an error"


def error_message(error: BaseException) -> str:
    """Return the message of an exception. For an error response, return the message that the server sent."""
    data = error.data if isinstance(error, MCPError) else None
    return str(data[_MESSAGE_KEY] if is_json_object(data) and _MESSAGE_KEY in data else error)


class _MessageStream:
    """The messages of a server, with the methods that the SDK expects from a stream."""

    def __init__(self, messages: AsyncIterator[Any], state: TransportState, lost_requests: set[object]) -> None:
        self._messages = messages
        self._state = state
        self._lost_requests = lost_requests
        """The ids of the requests whose session the server has lost. Servers use different messages for this error."""

    @property
    def last_context(self) -> Any:
        """The context of the last message, which the SDK reads for every message."""
        return getattr(self._messages, "last_context", None)

    def __aiter__(self) -> _MessageStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await anext(self._messages)
        except Exception:
            self._state.has_ended = True
            raise
        if not isinstance(item, Exception) and isinstance(item.message, JSONRPCError):
            if item.message.id in self._lost_requests:
                item.message.error.message = SESSION_LOST
            _hide_message(item.message.error)
        return item

    async def __aenter__(self) -> _MessageStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, because the transport closes its stream."""


# HTTP


@asynccontextmanager
async def _connect(address: ServerAddress, state: TransportState, connect_timeout: float) -> AsyncGenerator[Streams]:
    lost_requests: set[object] = set()

    async def on_response(response: httpx2.Response) -> None:
        state.http_status = response.status_code
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _LimitedStream(response, response.stream)
        request = response.request
        # In MCP, status 404 for a request with a session id means that the server has lost the session.
        if response.status_code == 404 and request.method == "POST" and "mcp-session-id" in request.headers:
            lost_requests.add(json.loads(request.content).get("id"))

    # A read timeout is not necessary, because a tool call has a timeout without a result or progress.
    timeout = httpx2.Timeout(min(connect_timeout, 30.0), read=None)
    hooks = {"response": [on_response]}
    headers = {"Accept-Encoding": "identity", **(address.headers or {})}
    async with (
        httpx2.AsyncClient(headers=headers, auth=address.auth, event_hooks=hooks, timeout=timeout) as client,
        streamable_http_client(address.target, http_client=client) as (messages, writer),
    ):
        yield _MessageStream(aiter(messages), state, lost_requests), writer


class _LimitedStream(httpx2.AsyncByteStream):
    """The body of an HTTP response, which raises an error if a message is too large or compressed.

    A small compressed message could fill the memory, and acorn does not ask for compression.
    """

    def __init__(self, response: httpx2.Response, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner
        self._is_compressed = response.headers.get("content-encoding", "identity").lower() != "identity"
        self._is_events = response.headers.get("content-type", "").startswith("text/event-stream")

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        if self._is_compressed:
            raise httpx2.DecodingError("the server sent a compressed response, which acorn does not accept")
        count = 0
        async for data in self._inner:
            count = 0 if self._is_events and (b"\n\n" in data or b"\r\n\r\n" in data) else count + len(data)
            if count > _MAX_MESSAGE:
                raise httpx2.ReadError(f"the server sent a message of more than {_MAX_MESSAGE} bytes")
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()


# Processes


@asynccontextmanager
async def _start_process(address: ServerAddress, state: TransportState) -> AsyncGenerator[Streams]:
    """Start a server process. At the end of the `with` block, stop the process and its child processes."""
    # Windows starts a command such as `npx` only by its full name, `npx.cmd`.
    command = address.target if os.name == "posix" else shutil.which(address.target) or address.target
    env = get_default_environment() | dict(address.env or {})
    loop = asyncio.get_running_loop()
    transport, process = await loop.subprocess_exec(
        _ServerProcess, command, *address.args,
        stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=address.cwd, start_new_session=True,
    )  # fmt: skip
    state.log_reader = asyncio.create_task(_read_log(process.log, address, state))
    exit_timeout = _FAST_EXIT_TIMEOUT
    try:
        yield _MessageStream(_read_messages(process.output, state), state, set()), process
        exit_timeout = _EXIT_TIMEOUT
    finally:
        with anyio.CancelScope(shield=True):
            await process.stop(exit_timeout)
            await asyncio.wait({state.log_reader}, timeout=_FAST_EXIT_TIMEOUT)
            transport.close()
        atexit.unregister(process.terminate_at_exit)


class _ServerProcess(SubprocessStreamProtocol):
    """A running server process and the stream to it, with the methods that the SDK expects from a stream."""

    def __init__(self) -> None:
        super().__init__(limit=_MAX_MESSAGE, loop=asyncio.get_running_loop())
        self._exited = asyncio.Event()
        self._owner = os.getpid()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.SubprocessTransport)
        assert self.stdin is not None
        assert self.stdout is not None
        assert self.stderr is not None
        self._transport = transport
        self._input, self.output, self.log = self.stdin, self.stdout, self.stderr
        atexit.register(self.terminate_at_exit)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        super().pipe_connection_lost(fd, exc)
        if fd == 0:  # A server that closed only its input has ended too, because it cannot receive a request.
            loop = asyncio.get_running_loop()
            loop.call_later(_FAST_EXIT_TIMEOUT, self.output.set_exception, BrokenPipeError())

    def process_exited(self) -> None:
        super().process_exited()
        self._exited.set()

    async def send(self, item: SessionMessage) -> None:
        try:
            self._input.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await self._input.drain()
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def __aenter__(self) -> _ServerProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, because `_start_process` stops the process after both streams are closed."""

    async def stop(self, seconds: float) -> None:
        """Stop the process as MCP specifies: close its input, then send SIGTERM, then SIGKILL."""
        self._input.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), seconds)
                break
            self._signal(number)
        self._signal(signal.SIGTERM)  # Child processes may still run.

    def terminate_at_exit(self) -> None:
        """Send SIGTERM to the server if the program exits without stopping it, for example after Ctrl-C."""
        if self._owner == os.getpid() and not self._exited.is_set():
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        """Send a signal to the process and its child processes. On Windows, kill the process."""
        with suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self._transport.get_pid(), number)
            else:
                self._transport.kill()


async def _read_log(stream: asyncio.StreamReader, address: ServerAddress, state: TransportState) -> None:
    """Store the last lines of the log of a server, and pass all lines to the logger, never to the terminal."""
    with suppress(ValueError):  # The server wrote an endless line.
        async for line in stream:
            text = truncate(clean(line.decode(errors="replace")).rstrip(), _MAX_LOG_LINE)
            if text:
                state.log_lines.append(text)
                if _logger.isEnabledFor(logging.DEBUG):
                    _logger.debug("%s: %s", address.label, address.redact(text))


async def _read_messages(stream: asyncio.StreamReader, state: TransportState) -> AsyncGenerator[SessionMessage]:
    """Yield the messages of a server. Ignore other output, but answer a request if its response is invalid."""
    try:
        async for line in stream:
            if not line.strip():
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                state.has_invalid_output = True
                request_id = _request_id(line)
                if request_id is None:
                    continue
                # Without a response, the call would wait for its timeout.
                error = ErrorData(code=INTERNAL_ERROR, message="the answer of the server is not an MCP message")
                message = JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
            if not isinstance(message, JSONRPCNotification) or message.method not in _IGNORED_METHODS:
                yield SessionMessage(message)
    except ValueError:
        state.end_reason = f"the server wrote a message of more than {_MAX_MESSAGE} bytes"
    except BrokenPipeError:
        return


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
