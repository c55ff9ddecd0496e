"""Words of a server's errors, kept from the SDK: it writes them to spans of its own, where nobody takes keys out.

The SDK sees a number in their place, and who tells of an error puts the words back.

What a server writes to standard error: never on the user's terminal; its last lines are kept for error messages.

All of it goes to the logger `acorn.mcp` at DEBUG.

A server as a process: messages of MCP, one a line, to its standard input and from its standard output.

The SDK has this too, and on Windows it is used. There every message passes through two streams and two tasks, which is
a quarter of what a call costs; here the callbacks of the loop do it, and bound what a server can make us keep.
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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from acorn.mcp.tools import clean, cut

_MOST = 1000
"""Errors whose words are kept; by then they have been told."""
_NUMBER = re.compile(r"error \d+ of the server")


class ErrorRedactor:
    """The words of one connection's errors, by what stands for them."""

    def __init__(self) -> None:
        from mcp_types import JSONRPCError

        self._is_error = JSONRPCError
        self._words: dict[str, str] = {}
        self._count = 0

    def over(self, item: Any) -> Any:
        """A message of the SDK's, without its words where it is an error."""
        if isinstance(item.message, self._is_error):
            self._count += 1
            number = f"error {self._count} of the server"
            self._words[number] = item.message.error.message
            self._words.pop(f"error {self._count - _MOST} of the server", None)
            item.message.error.message = number
        return item

    def lift(self, text: str) -> str:
        """A text with the words that the server gave to the errors in it."""
        return _NUMBER.sub(lambda found: self._words.get(found[0], found[0]), text)


_logger = logging.getLogger("acorn.mcp")
_LINES = 20
_LONGEST_LINE = 1000


class ServerLog:
    """A pipe that a server process writes to, read by a thread to its end."""

    def __init__(self, server: str, hidden: Callable[[str], str]) -> None:
        reading, writing = os.pipe()
        self.file = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - closed when the server has its copy
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._server = server
        self._hidden = hidden
        self._thread = threading.Thread(target=self._read, args=(reading,), name="acorn-mcp-stderr", daemon=True)
        self._thread.start()

    def _read(self, descriptor: int) -> None:
        with open(descriptor, encoding="utf-8", errors="replace") as pipe:
            while line := pipe.readline(_LONGEST_LINE * 10):
                text = cut(clean(line).rstrip(), _LONGEST_LINE)
                if text:
                    self._lines.append(text)
                    if _logger.isEnabledFor(logging.DEBUG):
                        _logger.debug("%s: %s", self._server, self._hidden(text))

    def let_go(self) -> None:
        """The server has its copy of the pipe, or is gone."""
        self.file.close()

    async def last_lines(self, seconds: float) -> list[str]:
        """What it wrote in the end; where it has died, all that it wrote arrives within that time."""
        if seconds and self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, seconds)
        return list(self._lines)


_LONGEST_MESSAGE = 100_000_000
"""Bytes; a server that never ends its line would fill the memory."""
_MOST_WAITING = 1000
"""Messages that nobody has taken yet; a server that writes more waits."""
_UNHEARD = ("notifications/message", "notifications/resources/updated")
"""Nobody here hears them, and each would cost the SDK a task of its own."""
_NUMBERED = re.compile(
    rb'\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,)?\s*"id"\s*:\s*(\d{1,15}|"[\w-]{1,80}")\s*,\s*"(?:result|error)"'
)
_TO_LEAVE = 2.0
"""Seconds in which a server may end after its input did, and again after it was asked to."""
_TO_LEAVE_AT_ONCE = 0.5
"""The same where it was given up, and somebody waits to hear of it."""


class Watcher(Protocol):
    """Hears of a transport what the SDK keeps to itself."""

    @property
    def veil(self) -> ErrorRedactor:
        """What is laid over the server's errors."""
        ...

    def lost(self, why: str | None = None) -> None:
        """Nothing will come from the server any more."""

    def misheard(self) -> None:
        """The server wrote a line that is no message."""

    def answered(self, status: int) -> None:
        """A request was answered over HTTP."""


@asynccontextmanager
async def start_process(
    command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, log: ServerLog, watcher: Watcher
) -> AsyncGenerator[tuple[Messages, Messages]]:
    """The server, and the stream of messages from and to it; in the end it is gone, with all that it started."""
    import anyio

    loop = asyncio.get_running_loop()
    try:
        _, server = await loop.subprocess_exec(
            lambda: _Server(loop, watcher), command, *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log.file,
            env=dict(env), cwd=cwd, start_new_session=True,
        )  # fmt: skip
    finally:
        log.let_go()
    messages = Messages(server)
    to_leave = _TO_LEAVE_AT_ONCE
    try:
        yield messages, messages
        to_leave = _TO_LEAVE
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop(to_leave)


class Messages:
    """Both streams as the SDK wants them."""

    last_context = None
    """For which the SDK looks at every message."""

    def __init__(self, server: _Server) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, jsonrpc_message_adapter

        self._server = server
        self._veil = server.watcher.veil
        self._read = jsonrpc_message_adapter.validate_json
        self._wrap = SessionMessage
        self._notice = JSONRPCNotification

        def refused(number: int | str) -> Any:
            told = ErrorData(code=INTERNAL_ERROR, message="the answer of the server is no message of MCP")
            return JSONRPCError(jsonrpc="2.0", id=number, error=told)

        self._refused = refused

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Any:
        while True:
            line = await self._server.next_line()
            if line is None:
                raise StopAsyncIteration
            if not line.strip():
                continue
            try:
                message = self._read(line, by_name=False)
            except ValueError:
                self._server.watcher.misheard()
                number = _answered(line)
                if number is None:
                    continue
                message = self._refused(number)  # or its call would wait until its time is up
            if not isinstance(message, self._notice) or message.method not in _UNHEARD:
                return self._veil.over(self._wrap(message))

    async def receive(self) -> Any:
        import anyio

        try:
            return await self.__anext__()
        except StopAsyncIteration as error:
            raise anyio.EndOfStream from error

    async def send(self, item: Any) -> None:
        import anyio

        if not self._server.is_writable:
            raise anyio.BrokenResourceError
        await self._server.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def aclose(self) -> None:
        """Nothing: the process is stopped by whoever started it, when both streams have been left."""

    async def __aenter__(self) -> Messages:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def _answered(line: bytes) -> int | str | None:
    """The number of the request that a line answers, though it is no message."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        known = _NUMBERED.match(line)
        found = None if known is None else {"result": None, "id": json.loads(known[1])}
    if not isinstance(found, dict) or found.keys().isdisjoint(("result", "error")):
        return None
    number = found.get("id")
    return number if isinstance(number, int | str) and not isinstance(number, bool) else None


class _Server(asyncio.SubprocessProtocol):
    """The process, and the lines that it wrote and nobody has taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watcher: Watcher) -> None:
        self.watcher = watcher
        self._loop = loop
        self._lines: deque[bytes] = deque()
        self._begun: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._size = 0
        self._has_ended = False
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Until the server has read what it was sent."""
        self._is_paused = False
        self._exited: asyncio.Future[None] = loop.create_future()

    # From the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process = transport
        self._input: Any = transport.get_pipe_transport(0)
        self._output: Any = transport.get_pipe_transport(1)
        self._owner = os.getpid()
        atexit.register(self._leave_none)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self._has_ended:
            return
        first, *rest = data.split(b"\n")
        self._begun.append(first)
        self._size += len(first)
        if rest:
            self._lines.append(b"".join(self._begun))
            self._lines.extend(rest[:-1])
            self._begun, self._size = [rest[-1]], len(rest[-1])
            if len(self._lines) > _MOST_WAITING and not self._is_paused:
                self._is_paused = True
                self._output.pause_reading()
            self._wake()
        elif self._size > _LONGEST_MESSAGE:
            self._end(f"the server wrote a message of more than {_LONGEST_MESSAGE} bytes")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._end()  # also where only its input was closed: no answer would come to a request

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)

    def _end(self, why: str | None = None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._begun = []
            self.watcher.lost(why)
            self._wake()
            self.resume_writing()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def next_line(self) -> bytes | None:
        """What it wrote next, None when it has ended."""
        while not self._lines:
            if self._has_ended:
                return None
            self._read_on()
            self._news = self._loop.create_future()
            await self._news
        return self._lines.popleft()

    def _read_on(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._output.resume_reading()

    # To the server

    @property
    def is_writable(self) -> bool:
        return not self._has_ended and not self._input.is_closing()

    async def write(self, data: bytes) -> None:
        self._input.write(data)
        if self._room is not None:
            await asyncio.shield(self._room)  # which others may be waiting for as well

    def pause_writing(self) -> None:
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # The end

    async def stop(self, seconds: float) -> None:
        """As the protocol has it: the end of its input, then a signal, then one that cannot be refused."""
        self._has_ended = True
        self._read_on()  # one that is stuck writing cannot read that its input has ended
        self._input.close()
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if await self._is_gone(seconds):
                    return
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.get_pid(), number)
            await self._is_gone(seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                self._process.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), signal.SIGTERM)  # what it has started, and left behind
            atexit.unregister(self._leave_none)

    def _leave_none(self) -> None:
        """The program ends before the server has, as after Ctrl-C; one that ends by itself has no harm of it."""
        if self._owner == os.getpid() and not self._exited.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.get_pid(), signal.SIGTERM)

    async def _is_gone(self, seconds: float) -> bool:
        return bool((await asyncio.wait({self._exited}, timeout=seconds))[0])
