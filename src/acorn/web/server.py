"""The server of the page: on a socket of ours, and gone at once when it is asked to end.

A page that is open keeps a stream open; a server that waits for its end waits forever. So streams and runs are ended
first.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

_TRIES = 20
GRACE = 1
"""Seconds that what is under way may still take when the server ends."""


class Server(uvicorn.Server):
    """A server that ends what is open before it ends."""

    def __init__(self, app: ASGIApp, close: Callable[[], object], grace: int = GRACE) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_level="critical",
                access_log=False,
                server_header=False,
                ws="none",
                proxy_headers=False,  # nothing here asks who the client is
                timeout_graceful_shutdown=grace,
            )
        )
        self._close = close

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        threading.Thread(target=self._close, daemon=True).start()  # never from within a signal: locks may be held
        super().handle_exit(sig, frame)


def bound(host: str, port: int, *, is_given: bool) -> socket.socket:
    """A socket on this port, or on the next free one where nobody asked for this very port."""
    tried = [port] if is_given or port == 0 else [port + at for at in range(_TRIES)] + [0]
    failure: OSError | None = None
    for each in tried:
        # With the protocol named: asyncio sends small pieces at once (TCP_NODELAY) only where it knows that it is TCP.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, each))
            made.listen(128)
        except OSError as error:
            made.close()
            failure = error
            continue
        return made
    assert failure is not None
    raise failure


def serve(app: ASGIApp, close: Callable[[], object], on: socket.socket, grace: int = GRACE) -> None:
    """Serve until Ctrl-C or a request to end."""
    server: Any = Server(app, close, grace)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        server.run(sockets=[on])
    except KeyboardInterrupt:  # uvicorn hands the signal on when it is done
        return
    finally:
        signal.signal(signal.SIGTERM, before)
        close()
        on.close()


def _end(sig: int, frame: FrameType | None) -> None:
    """A request to end is no failure: without this, the process would be killed by it once more."""
    raise KeyboardInterrupt
