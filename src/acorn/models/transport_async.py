"""HTTP for the native lanes, asynchronous: the same as `transport.py`, on aiohttp.

One session for each event loop, made when it is first needed and closed with its loop. Imported on first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp

from acorn.models.transport import LateError, Post, TransportError, moved_to, proxy_of, tls

_sessions: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[aiohttp.ClientSession], aiohttp.ClientSession]] = {}


async def _session() -> aiohttp.ClientSession:
    loop = asyncio.get_running_loop()
    known = _sessions.get(loop)
    if known is None:
        for ended in [other for other in list(_sessions) if other.is_closed()]:
            _sessions.pop(ended, None)
        keeper = _keep_session()
        known = _sessions[loop] = keeper, await anext(keeper)
    return known[1]


async def _keep_session() -> AsyncGenerator[aiohttp.ClientSession]:
    """A loop that ends closes its async generators, and so this one's session."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=50),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
    )
    try:
        yield session
    finally:
        await session.close()


class AsyncIncoming:
    """An answer on its way."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    async def read(self) -> bytes:
        """All of it."""
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _trouble(error) from error

    async def pieces(self) -> AsyncIterator[bytes]:
        """As it comes."""
        try:
            async for data in self._response.content.iter_any():
                yield data
        except (aiohttp.ClientError, OSError) as error:
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
    session, proxy = await _session(), proxy_of(post.url)
    timeout = aiohttp.ClientTimeout(post.patience(None), sock_connect=post.connect, sock_read=post.read)
    try:
        response = await session.post(
            post.url,
            data=post.body,
            headers=post.headers,
            timeout=timeout,
            proxy=proxy,
            ssl=tls() if post.url.startswith("https") else True,
            allow_redirects=False,
        )
    except (aiohttp.ClientError, OSError) as error:
        raise _trouble(error) from error
    return AsyncIncoming(response)


def _trouble(error: Exception) -> TransportError:
    if isinstance(error, TimeoutError):
        return LateError("no answer came in time.")
    return TransportError(str(error) or type(error).__name__)
