"""Ports for servers that are told theirs, and for requests that nobody answers."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """One that nobody uses; from a range of which the system gives none by itself, so that nobody gets it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def listens(port: int) -> bool:
    """Whether somebody listens there; a socket may also happen to find itself."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0 and probe.getsockname() != probe.getpeername()
