"""The HTTP client for LiteLLM's async requests: it sends each exactly once, over aiohttp.

LiteLLM speaks httpx, whose async pool grows dear with many requests at once; below it the session of the native
lanes does the sending, one for each event loop and closed with it. Called by the adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

from acorn.models.litellm.library import library
from acorn.models.timeouts import TIMEOUT
from acorn.models.transport import proxy_of
from acorn.models.transport_async import session

_clients: dict[asyncio.AbstractEventLoop, Any] = {}


async def http_client() -> Any:
    """One client for each event loop; there is nothing of its own to close."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        for ended in [known for known in list(_clients) if known.is_closed()]:
            _clients.pop(ended, None)
        _clients[loop] = _client_class()()
    return _clients[loop]


@lru_cache(maxsize=1)
def _client_class() -> Any:
    import httpx

    http: Any = library().llms.custom_httpx.http_handler

    class Once(http.AsyncHTTPHandler):  # type: ignore[misc]
        """Sends a request exactly once, and leaves nothing open when its loop is gone."""

        def create_client(self, timeout: Any = None, *_: Any, **__: Any) -> Any:
            return httpx.AsyncClient(
                timeout=timeout or TIMEOUT,
                transport=_transport_class()(http.get_ssl_configuration()),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                follow_redirects=True,
            )

        async def single_connection_post_request(self, *_: Any, **__: Any) -> Any:
            raise  # called while the error is being handled: hand it on

    return Once


@lru_cache(maxsize=1)
def _transport_class() -> Any:
    import aiohttp
    import httpx
    from yarl import URL

    def trouble(error: Exception) -> Exception:
        """The same in httpx's words, which LiteLLM understands."""
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return httpx.ConnectTimeout(str(error))
        if isinstance(error, TimeoutError):
            return httpx.ReadTimeout(str(error))
        kind = httpx.ConnectError if isinstance(error, aiohttp.ClientConnectorError) else httpx.ReadError
        return kind(str(error) or type(error).__name__)

    class Pieces(httpx.AsyncByteStream):
        def __init__(self, answer: Any) -> None:
            self._answer = answer

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in self._answer.content.iter_any():
                    yield piece
            except (aiohttp.ClientError, OSError) as error:
                raise trouble(error) from error

        async def aclose(self) -> None:
            self._answer.close()  # whose answer was read to its end is free already

    class Transport(httpx.AsyncBaseTransport):
        def __init__(self, verify: Any) -> None:
            self._verify = verify

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            # httpx has put what is secret in the address into a header; aiohttp refuses to have it twice.
            bare = request.url.copy_with(username=None, password=None) if request.url.userinfo else request.url
            url, patience = str(bare), request.extensions.get("timeout", {})
            timeout = aiohttp.ClientTimeout(sock_connect=patience.get("connect"), sock_read=patience.get("read"))
            sending = await session()
            try:
                answer = await sending.request(
                    request.method,
                    URL(url, encoded=True),
                    data=await request.aread() or None,
                    headers=request.headers,
                    timeout=timeout,
                    proxy=proxy_of(url),
                    ssl=self._verify,
                    allow_redirects=False,
                    auto_decompress=False,
                )
            except (aiohttp.ClientError, OSError) as error:
                raise trouble(error) from error
            return httpx.Response(answer.status, headers=answer.headers, stream=Pieces(answer), request=request)

    return Transport
