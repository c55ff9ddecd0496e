"""Says over HTTP whether a worker is well, for whoever decides to start another one: `GET /health`, 200 or 503."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

_PATIENCE = 10.0
"""Seconds for a question to come in."""

Health = Callable[[], tuple[bool, Mapping[str, Any]]]
"""Whether all is well, and what else is to be said."""


@asynccontextmanager
async def serve_health(host: str | None, port: int, health: Health) -> AsyncGenerator[int]:
    """Answer while the block lasts; the port, where any would do. Without a host, to whoever reaches this machine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass  # nothing in the head matters
            writer.write(_reply(line, health))
            await writer.drain()
        except (TimeoutError, ValueError, OSError):
            pass  # whoever asked has gone, or speaks no HTTP
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def _reply(line: bytes, health: Health) -> bytes:
    method, _, rest = line.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        status, body = HTTPStatus.METHOD_NOT_ALLOWED, b""
    elif path != b"/health":
        status, body = HTTPStatus.NOT_FOUND, b""
    else:
        is_well, facts = health()
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        body = json.dumps(facts).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)
