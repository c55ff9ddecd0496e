"""Ports for servers that need a given port, and for requests without a response."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return an unused port from a range that the system does not assign itself."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def listens(port: int) -> bool:
    """Return whether a server listens there; a socket may also connect to itself."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0 and probe.getsockname() != probe.getpeername()
