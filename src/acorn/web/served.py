"""The server of the page: on a socket of ours, and gone at once when it is asked to end.

A page that is open keeps a stream open; a server that waits for its end waits forever. So streams and runs are ended
first.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

_TRIES = 20
_GRACE = 1
"""Seconds that what is under way may still take when the server ends."""


class Server(uvicorn.Server):
    """A server that ends what is open before it ends."""

    def __init__(self, app: ASGIApp, close: Callable[[], object]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_level="critical",
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=_GRACE,
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
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
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


def serve(app: ASGIApp, close: Callable[[], object], on: socket.socket) -> None:
    """Serve until Ctrl-C or a request to end."""
    server: Any = Server(app, close)
    try:
        server.run(sockets=[on])
    except KeyboardInterrupt:  # uvicorn hands the signal on when it is done
        return
    finally:
        close()
        on.close()
