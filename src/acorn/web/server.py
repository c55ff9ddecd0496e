"""The HTTP server for the page and the service.

An open page reads a stream that never ends, so a server that waits for all responses would never stop. Therefore this
server first ends all streams and runs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from acorn._inside import interrupt_on_sigterm

_PORT_TRIES = 20
GRACE = 1
"""The number of seconds that open requests may take after the server begins to stop."""


class Server(uvicorn.Server):
    """A uvicorn server that ends all streams and runs (`close`) before it shuts down."""

    def __init__(self, app: ASGIApp, close: Callable[[], object], grace: int = GRACE) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_level="critical",
                access_log=False,
                server_header=False,
                ws="none",
                proxy_headers=False,  # The client's address is never used.
                timeout_graceful_shutdown=grace,
            )
        )
        self._close = close

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
