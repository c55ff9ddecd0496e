"""Where a server is, and how it is reached: a command that is started, or an address on the web.

The one room that makes transports of the SDK. What is shown of a server never has a key in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from acorn._secrets import redact, secrets_in
from acorn.errors import AcornError
from acorn.mcp.stderr import ServerLog


@dataclass(frozen=True)
class Address:
    """How to reach one server."""

    target: str = field(repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    auth: Any = field(default=None, repr=False)

    @property
    def is_web(self) -> bool:
        return self.target.startswith(("http://", "https://"))

    @property
    def label(self) -> str:
        """The server in messages: neither its arguments nor a query, where keys may stand."""
        if not self.is_web:
            return os.path.basename(self.target)
        parts = urlsplit(self.target)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def key(self) -> str:
        """The server in a lock file: told apart from the same command with other arguments, but without them."""
        if not self.args:
            return self.label
        return f"{self.label} {hashlib.sha256(json.dumps(self.args).encode()).hexdigest()[:12]}"

    def hidden(self, text: str) -> str:
        """A text of the server's without the keys that it was given."""
        given = {"headers": dict(self.headers or {}), "env": dict(self.env or {}), "target": self.target}
        spoken = {value for value in (self.headers or {}).values() if len(value) >= 6}
        return redact(text, secrets_in(given) | spoken)

    @asynccontextmanager
    async def transport(self, log: ServerLog | None, lost: Any, seconds: float) -> AsyncGenerator[Any]:
        """The streams to and from the server; `lost` is called when nothing will come from it any more."""
        if self.is_web:
            async with self._over_http(seconds) as streams:
                yield streams
        else:
            assert log is not None
            async with self._over_stdio(log) as (reading, writing):
                yield _Watched(reading, lost), writing

    @asynccontextmanager
    async def _over_stdio(self, log: ServerLog) -> AsyncGenerator[Any]:
        from mcp.client.stdio import StdioServerParameters, stdio_client

        env = None if self.env is None else dict(self.env)
        server = StdioServerParameters(command=self.target, args=list(self.args), env=env, cwd=self.cwd)
        try:
            async with stdio_client(server, errlog=log.file) as streams:
                log.let_go()
                yield streams
        finally:
            log.let_go()

    @asynccontextmanager
    async def _over_http(self, seconds: float) -> AsyncGenerator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        # How long a call may be silent is for `timeout` to say, which hears of progress too.
        timeout = httpx2.Timeout(min(seconds, 30.0), read=None)
        async with (
            httpx2.AsyncClient(headers=dict(self.headers or {}), auth=self.auth, timeout=timeout) as client,
            streamable_http_client(self.target, http_client=client) as streams,
        ):
            yield streams


class _Watched:
    """A stream that tells when it has come to its end."""

    def __init__(self, inner: Any, lost: Any) -> None:
        self._inner = inner
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except BaseException:
            self._lost()
            raise

    async def receive(self) -> Any:
        try:
            return await self._inner.receive()
        except BaseException:
            self._lost()
            raise

    async def __aenter__(self) -> _Watched:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)


def check_installed() -> None:
    """Say what to install where the SDK is missing, or is of the generation before."""
    try:
        import mcp

        mcp.Client  # noqa: B018 - which the generation before does not have
    except (ImportError, AttributeError) as error:
        words = f"MCP needs the package `mcp`, version 2 or later: `pip install 'acorn-agents[mcp]'` ({error})."
        raise AcornError(words) from error
