"""The HTTP server for the page and the services.

An open page reads a stream that never ends, so a server that waits for all responses would never stop. Therefore this
server first ends all streams and runs.

uvicorn waits without a limit for clients that send a request header slowly, that do not read their response, or that
keep sending the body of a rejected request. Such clients could occupy all connections. Therefore the server checks its
connections every second and closes those of slow clients. If too many connections are open, it closes those that have
waited longest for their clients.
"""

from __future__ import annotations

import asyncio
import heapq
import http
import logging
import operator
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from acorn._inside import interrupt_on_sigterm

resource: Any
try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

_PORT_TRIES = 20
GRACE = 1
"""The number of seconds that open requests may take after the server begins to stop."""
MAX_CONNECTIONS = 1_000
_ACCEPTED_AT_ONCE = 32
"""The number of connections by which the server may exceed its limit for a moment."""
_QUEUE = 1_024
"""The number of new connections that the system keeps until the server accepts them."""
_LOG_SECONDS = 60.0
"""The number of seconds for which the server does not repeat a message in the log."""


@dataclass(frozen=True)
class ConnectionLimits:
    """The seconds for which the server waits for a client that makes no progress, and the number of connections."""

    header: float = 20.0
    """The seconds in which the header of a request must arrive, on a new connection or after a response."""
    rest: float = 5.0
    """The seconds for which the server reads the rest of a request after its response.

    Many clients read the response only after they have sent the whole body.
    """
    read: float = 60.0
    """The seconds in which the client must read a part of the response."""
    connections: int | None = None
    """The maximum number of open connections. By default, it depends on the number of files that the process may open.
    """


DEFAULT_LIMITS = ConnectionLimits()


class LimitedProtocol(H11Protocol):
    """A connection of the server. It ends if its client is too slow."""

    since = 0.0
    """The time at which the connection began to wait for its client, or at which the client last made progress."""
    _wait: Literal["header", "rest", "read"] | None = None
    """The result of `current_wait` at the last check."""
    _waited_cycle: object = None
    _unread = 0
    """The number of bytes of the response that the client had not read at the last check."""
    _is_rejected = False
    """Whether the server has sent an error response, and reads the rest of the invalid request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = time.monotonic()
        if not self._shared.make_room(self):
            self.reject(503, "Too many connections are open. Try again later.")

    def data_received(self, data: bytes) -> None:
        if not self._is_rejected:
            super().data_received(data)

    @property
    def _shared(self) -> Connections:
        assert isinstance(self.server_state, Connections)
        return self.server_state

    def check_time(self, now: float) -> None:
        """Close the connection if its client is too slow."""
        unread = self.transport.get_write_buffer_size()
        wait = self.current_wait()
        is_same = wait == self._wait and self.cycle is self._waited_cycle
        if not is_same or (wait == "read" and unread < self._unread):
            self.since = now
        self._wait, self._waited_cycle, self._unread = wait, self.cycle, unread
        limits = self._shared.limits
        if wait is None or now - self.since <= getattr(limits, wait):
            return
        if wait == "header" and self.conn.trailing_data[0]:
            self.reject(408, f"The request header did not arrive within {limits.header:g} seconds.")
        elif wait == "read":
            self.transport.abort()
        else:
            self.transport.close()

    def current_wait(self) -> Literal["header", "rest", "read"] | None:
        """Return the action of the client for which the connection waits.

        The client sends a request header, or the rest of a request after the response, or it reads the response.
        """
        if self.transport.get_write_buffer_size() or self.transport.is_closing():
            return "read"
        if self._is_rejected:
            return "rest"
        if self.conn.their_state is h11.IDLE:
            return "header"
        is_answered = getattr(self.cycle, "response_complete", False)  # uvicorn sets `cycle` at the first request.
        return "rest" if is_answered and self.conn.their_state is h11.SEND_BODY else None

    def is_idle(self, now: float) -> bool:
        """Return True if the connection may be closed to make room for another one."""
        wait = self.current_wait()
        if wait == "read":  # A client without a key can cause unread responses too.
            return self._wait == wait and now - self.since > self._shared.limits.rest
        return wait is not None

    def send_400_response(self, msg: str) -> None:
        """Reject a request that is not valid HTTP. uvicorn calls this method while it handles the error."""
        status: int = getattr(sys.exception(), "error_status_hint", 400)
        self.reject(status, "The request header is too large." if status == 431 else msg)

    def reject(self, status: int, message: str) -> None:
        """Send an error response for a request that does not reach the application."""
        self._is_rejected = True
        if not getattr(self.cycle, "response_complete", True):  # An earlier response is not complete.
            self.transport.close()
            return
        body = f"{message}\n".encode()
        header = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(header.encode() + body)
        if status == 503:
            self.transport.close()
        else:  # If the server closed the connection at once, a client that still sends could lose the response.
            self.transport.write_eof()


class Connections(ServerState):
    """The open connections of the server, and their limit."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits
        self.limit = limits.connections or _connection_limit()
        self._logged_at: dict[str, float] = {}

    def make_room(self, newest: LimitedProtocol) -> bool:
        """Close idle connections if there are too many, the oldest ones first.

        Return False if there are too many connections and none of the others is idle.
        """
        if len(self.connections) <= self.limit:
            return True
        self.log_once(
            f"{self.limit} connections are open, which is the limit of this server. It closes the connections that "
            f"have waited longest for their clients."
        )
        now = time.monotonic()
        idle = [each for each in self._limited_connections() if each is not newest and each.is_idle(now)]
        # Close several connections at once, because the search takes time.
        for each in heapq.nsmallest(1 + self.limit // 50, idle, operator.attrgetter("since")):
            each.transport.abort()  # `close` would wait until the client has read everything.
            self.connections.discard(each)
        return bool(idle)

    def check_times(self) -> None:
        """Close the connections of slow clients."""
        now = time.monotonic()
        for each in self._limited_connections():
            each.check_time(now)

    def _limited_connections(self) -> list[LimitedProtocol]:
        connections: Collection[object] = self.connections
        return [each for each in connections if isinstance(each, LimitedProtocol)]

    def log_once(self, message: str) -> None:
        """Log a message, unless it was logged a short time ago. An attack would otherwise fill the log."""
        now = time.monotonic()
        if now - self._logged_at.get(message, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[message] = now
            logging.getLogger("acorn").error(message)


def _connection_limit() -> int:
    """Return the maximum number of connections, which is at most half of the files that the process may open."""
    if resource is None:
        return MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // 2)


class Server(uvicorn.Server):
    """A uvicorn server that limits connections, and that ends all streams and runs (`close`) before it shuts down."""

    def __init__(
        self,
        app: ASGIApp,
        close: Callable[[], object],
        grace: int = GRACE,
        *,
        lifespan: Literal["on", "off"] = "off",
        limits: ConnectionLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                lifespan=lifespan,
                log_level="critical",
                access_log=False,
                server_header=False,
                ws="none",
                proxy_headers=False,  # The client's address is never used.
                backlog=_ACCEPTED_AT_ONCE,
                timeout_graceful_shutdown=grace,
            )
        )
        self.server_state = self._connections = Connections(limits)
        self._close = close

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._report_loop_error)
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(
                _QUEUE
            )  # asyncio uses one number for the queue and for the connections that it accepts at once.

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # uvicorn calls this method ten times per second.
            self._connections.check_times()
        return await super().on_tick(counter)

    def _report_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message: str = context["message"]
        if message.startswith("socket.accept()"):  # asyncio reports this error many times per second.
            self._connections.log_once(f"The server cannot accept connections: {context.get('exception')}.")
        else:
            loop.default_exception_handler(context)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A new thread is necessary, because the interrupted code may hold the locks that `close` needs.
        threading.Thread(target=self._close, daemon=True).start()
        super().handle_exit(sig, frame)


def bind_socket(host: str, port: int, *, is_exact: bool) -> socket.socket:
    """Return a socket that listens on a port.

    If the port is in use, try the next ports. With `is_exact`, raise an error instead.
    """
    ports = [] if is_exact or port == 0 else [port + offset for offset in range(_PORT_TRIES)]
    for number in ports:
        with suppress(OSError):
            return _listen(host, number)
    return _listen(host, port if is_exact else 0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=128)
    # asyncio sets TCP_NODELAY only if the protocol of the socket is IPPROTO_TCP.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listener.detach())


def serve(app: ASGIApp, close: Callable[[], object], on: socket.socket, grace: int = GRACE) -> None:
    """Serve an application until the process receives Ctrl-C or SIGTERM."""
    server = Server(app, close, grace)
    try:
        # uvicorn sends the signal again after its shutdown. Without the handler, SIGTERM would kill the process.
        with suppress(KeyboardInterrupt), interrupt_on_sigterm():
            server.run(sockets=[on])
    finally:
        close()
        on.close()
