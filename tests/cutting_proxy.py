"""A TCP proxy on loopback that cuts connections at a chosen moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Cut = Callable[[bytes], bool]
"""Whether what a client sends, or is sent, is where the connection ends."""


class CuttingProxy:
    """Forward each connection to a port, and cut it before or after the server receives the data."""

    def __init__(self, port: int, own_port: int = 0) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", own_port))
        self.port = int(self._server.getsockname()[1])
        self.before: Cut | None = None
        """Cut once before this reaches the server."""
        self.behind: Cut | None = None
        """Cut once when the server has this, and never let its answer through."""
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            deaf = threading.Event()
            threading.Thread(target=self._to_server, args=(client, server, deaf), daemon=True).start()
            threading.Thread(target=self._to_client, args=(client, server, deaf), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.before is not None and self.before(data):
                    self.before, self.cuts = None, self.cuts + 1
                    break
                if self.behind is not None and self.behind(data):
                    self.behind, self.cuts = None, self.cuts + 1
                    deaf.set()
                server.sendall(data)
        self._end(client, server)

    def _to_client(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if deaf.is_set():  # The server has done it.
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for one in self._open:
            self._end(one)
            one.close()
