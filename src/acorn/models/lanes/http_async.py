"""Asynchronous HTTP for the native lanes, with aiohttp.

The rules for proxies, TLS and timeouts are the same as in `http.py`. Each event loop has one aiohttp
session, which is created on first use and closed when the event loop ends. aiohttp is imported on first use, so that
synchronous programs do not load it.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from acorn.models.lanes.http import Post, limit_timeout, proxy_of, tls_context, transport_error
from acorn.models.lanes.http_response import ContentDecoder, TransportError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_sessions: dict[asyncio.AbstractEventLoop, tuple[AsyncGenerator[ClientSession], ClientSession]] = {}


@lru_cache(maxsize=1)
def _aiohttp() -> Any:
    import aiohttp

    return aiohttp


async def current_session() -> ClientSession:
    """Return the aiohttp session of the running event loop, and create it on first use."""
    loop = asyncio.get_running_loop()
    entry = _sessions.get(loop)
    if entry is None:
        for closed_loop in [other for other in list(_sessions) if other.is_closed()]:
            _close_session(closed_loop)
        generator = _open_session()
        entry = _sessions[loop] = generator, await anext(generator)
    return entry[1]


def _close_session(loop: asyncio.AbstractEventLoop) -> None:
    """Close the aiohttp session of an event loop, if the event loop did not close the session at its end.

    Without this function, aiohttp would log a warning about an unclosed session.
    """
    _, session = _sessions.pop(loop, (None, None))
    if session is None or loop.is_running():
        return
    closing: Any = session.close()
    with suppress(StopIteration, RuntimeError):
        if loop.is_closed():
            closing.send(None)  # On a closed loop, one step is enough because no operation can wait.
        else:
            loop.run_until_complete(closing)
    closing.close()


@atexit.register
def _close_all_sessions() -> None:
    for loop in list(_sessions):
        _close_session(loop)


async def _open_session() -> AsyncGenerator[ClientSession]:
    """Yield a new aiohttp session, and close the session after the generator ends.

    An event loop closes its async generators before it ends, and with them the session.
    """
    aiohttp = _aiohttp()
    session: ClientSession = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=50),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # aiohttp does not limit the size.
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
    )
    try:
        yield session
    finally:
        await session.close()


class AsyncIncomingResponse:
    """A response with complete headers, for asynchronous code.

    Its body may still be arriving.
    """

    def __init__(self, response: ClientResponse, post: Post) -> None:
        self._response = response
        self._post = post
        self.status: int = response.status
        is_stream = post.is_stream and self.status < 300
        self._decoder = ContentDecoder(self.header("content-encoding"), post.max_bytes, is_stream=is_stream)

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    async def read(self) -> bytes:
        """Return the complete body."""
        try:
            async with asyncio.timeout(self._post.limit_timeout(None)):
                return b"".join([data async for data in self.pieces()])
        except TimeoutError as error:
            raise transport_error(error) from error

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive."""
        try:
            async for data in self._response.content.iter_any():
                for piece in self._decoder.decode(data):
                    yield piece
        except _errors() as error:
            raise _transport_error(error) from error
        self._decoder.finish()

    def close(self) -> None:
        """Close the response.

        If its body was not read to the end, also close the connection.
        """
        self._response.close()


async def asend(post: Post) -> AsyncIncomingResponse:
    """Send a request, and return the response as soon as its headers have arrived."""
    session, proxy = await current_session(), proxy_of(post.url)
    deadline = post.deadline if post.is_stream else post.start_deadline
    timeout = _aiohttp().ClientTimeout(
        limit_timeout(None, deadline), sock_connect=post.connect_timeout, sock_read=post.read_timeout
    )
    try:
        # The timeouts of aiohttp do not limit the time after an interim response such as `103 Early Hints`.
        async with asyncio.timeout(post.limit_timeout(None)):
            response = await session.post(
                post.url,
                data=post.body,
                headers=post.headers,
                timeout=timeout,
                proxy=proxy,
                ssl=tls_context() if post.url.startswith("https") else True,
                allow_redirects=False,
            )
    except _errors() as error:
        raise _transport_error(error) from error
    return AsyncIncomingResponse(response, post)


@lru_cache(maxsize=1)
def _errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of aiohttp for a broken connection or an invalid response."""
    # aiohttp raises ValueError for some invalid headers.
    return (_aiohttp().ClientError, OSError, ValueError)


def _transport_error(error: Exception) -> TransportError:
    if isinstance(error, _aiohttp().ClientResponseError):  # Its text contains the URL, which may contain secrets.
        response_error: Any = error
        response_error.request_info = SimpleNamespace(real_url=response_error.request_info.real_url.origin())
        response_error.args = ()
    return transport_error(error)
