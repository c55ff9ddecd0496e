"""HTTP for the native lanes, asynchronous: the same as `transport.py`, on aiohttp; its session serves LiteLLM too.

One session for each event loop, made when it is first needed and closed with its loop. aiohttp is imported on first
use: who does not await needs none of it.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from acorn.models.lanes.http import Post, ResponseTimeoutError, TransportError, moved_to, proxy_of, tls

_sessions: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[Any], Any]] = {}


@lru_cache(maxsize=1)
def _library() -> Any:
    import aiohttp

    return aiohttp


async def session() -> Any:
    """The session of the running loop."""
    loop = asyncio.get_running_loop()
    known = _sessions.get(loop)
    if known is None:
        for ended in [other for other in list(_sessions) if other.is_closed()]:
            _drop(ended)
        keeper = _keep_session()
        known = _sessions[loop] = keeper, await anext(keeper)
    return known[1]


def _drop(loop: asyncio.AbstractEventLoop) -> None:
    """Close the session of a loop that ended without closing its generators: aiohttp complains of an open one."""
    _, client = _sessions.pop(loop, (None, None))
    if client is None or loop.is_running():
        return
    closing = client.close()
    with suppress(StopIteration, RuntimeError):
        if loop.is_closed():
            closing.send(None)  # there is nothing to wait for
        else:
            loop.run_until_complete(closing)
    closing.close()


@atexit.register
def _drop_all() -> None:
    for loop in list(_sessions):
        _drop(loop)


async def _keep_session() -> AsyncGenerator[Any]:
    """A loop that ends closes its async generators, and so this one's session."""
    aiohttp = _library()
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=50),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
    )
    try:
        yield client
    finally:
        await client.close()


class AsyncIncoming:
    """An answer on its way."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status

    def header(self, name: str) -> str | None:
        found: str | None = self._response.headers.get(name)
        return found

    async def read(self) -> bytes:
        """All of it."""
        try:
            data: bytes = await self._response.read()
            return data
        except (_library().ClientError, OSError) as error:
            raise _trouble(error) from error

    async def pieces(self) -> AsyncIterator[bytes]:
        """As it comes."""
        try:
            async for data in self._response.content.iter_any():
                yield data
        except (_library().ClientError, OSError) as error:
            raise _trouble(error) from error

    def close(self) -> None:
        """Nobody wants the rest; a connection whose answer was read to its end is free already."""
        self._response.close()


async def asend(post: Post) -> AsyncIncoming:
    """Send a request, and come back when its answer begins."""
    incoming = await _send(post)
    if (there := moved_to(post, incoming.status, incoming.header("location"))) is not None:
        incoming.close()
        return await _send(there)
    return incoming


async def _send(post: Post) -> AsyncIncoming:
    client, proxy = await session(), proxy_of(post.url)
    timeout = _library().ClientTimeout(post.patience(None), sock_connect=post.connect, sock_read=post.read)
    try:
        response = await client.post(
            post.url,
            data=post.body,
            headers=post.headers,
            timeout=timeout,
            proxy=proxy,
            ssl=tls() if post.url.startswith("https") else True,
            allow_redirects=False,
        )
    except (_library().ClientError, OSError) as error:
        raise _trouble(error) from error
    return AsyncIncoming(response)


def _trouble(error: Exception) -> TransportError:
    if isinstance(error, TimeoutError):
        return ResponseTimeoutError("no answer came in time.")
    if isinstance(error, _library().ClientResponseError):  # it tells the address, with what is secret in it
        told: Any = error
        told.request_info = SimpleNamespace(real_url=told.request_info.real_url.origin())
        told.args = ()
    return TransportError(str(error) or type(error).__name__)
