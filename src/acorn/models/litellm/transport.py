"""The HTTP client for LiteLLM's async requests: it sends each exactly once, over aiohttp.

LiteLLM speaks httpx, whose async pool grows dear with many requests at once; below it the session of the native
lanes does the sending, one for each event loop and closed with it. Called by the adapter.

A stream of LiteLLM's, with what it lacks: lines as they were sent, its true end, a time by which it must be there,
and a way to close it.

Called by the LiteLLM adapter alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from time import monotonic
from typing import Any

from acorn.models.failures import BROKEN, LATE, causes
from acorn.models.lanes.http import proxy_of
from acorn.models.lanes.http_async import session
from acorn.models.litellm.library import ignore_warnings, library, unheard
from acorn.models.litellm.translate import on_the_wire
from acorn.models.retry import TIMEOUT

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


class RawStream:
    """The chunks of one answer, to be iterated over and closed in either way."""

    def __init__(self, raw: Any, until: float | None, arguments: Mapping[str, Any]) -> None:
        ignore_warnings()
        self._raw = raw
        self._arguments = arguments
        """Of the call, which say who listens to it."""
        self._until = until
        """The reading of the clock at which its time is up."""
        self._inner = getattr(raw, "completion_stream", None)
        self._refusal: list[str] = []
        self._response: Any = None
        self._own_lines: Any = None
        self._read_lines_ourselves()

    def _read_lines_ourselves(self) -> None:
        """httpx also breaks lines at U+2028 and the like, which JSON may hold as they are; such a line is lost."""
        import httpx

        lines: Any = getattr(self._inner, "streaming_response", None)
        is_async = hasattr(lines, "ag_frame")
        if getattr(lines, "__name__", "") != ("aiter_lines" if is_async else "iter_lines"):
            # The events of OpenAI's Responses, read by bytes already. Whoever leaves the response open has it closed
            # by chance, in the midst of another request and of the lock that its pool holds then.
            self._response = getattr(lines, "response", None)
            return
        # LiteLLM keeps the response nowhere but in the generator that reads its lines.
        frame = lines.ag_frame if is_async else lines.gi_frame
        response = None if frame is None else frame.f_locals.get("self")
        if not isinstance(response, httpx.Response) or response.is_stream_consumed:
            return
        self._response = response
        self._own_lines = self._alines() if is_async else self._lines()
        vars(self._inner).update(streaming_response=self._own_lines, response_iterator=self._own_lines)

    def _lines(self) -> Iterator[str]:
        rest = b""
        for data in self._response.iter_bytes():
            self._check_time()
            *lines, rest = (rest + data).split(b"\n")
            yield from map(self._text, lines)
        yield self._text(rest)

    async def _alines(self) -> AsyncIterator[str]:
        rest = b""
        async for data in self._response.aiter_bytes():
            self._check_time()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield self._text(line)
        yield self._text(rest)

    def _check_time(self) -> None:
        """A timeout of httpx's bounds the wait for the next piece, and signs of life that say nothing come for ever."""
        if self._until is not None and monotonic() > self._until:
            import httpx

            raise httpx.ReadTimeout("the answer was not complete in time")

    def _text(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if '"refusal"' in text:  # LiteLLM leaves out a chunk that holds nothing else
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                self._refusal.append(json.loads(text.removeprefix("data:"))["choices"][0]["delta"].get("refusal") or "")
        return text

    # What it says

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped; None where the provider has not said so, "" where LiteLLM does not let us know.

        The chunks cannot be asked: LiteLLM takes any end of a stream for the end of the answer and makes up a reason.
        """
        found: str | None = getattr(self._raw, "received_finish_reason", "")
        return getattr(self._raw, "intermittent_finish_reason", None) if found is None else found

    @property
    def refusal(self) -> str:
        return "".join(self._refusal)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            self._check_time()
            with unheard(self._arguments):
                return next(self._raw)
        except Exception as error:
            if not self._is_over(error):
                raise
            raise StopIteration from None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            self._check_time()
            with unheard(self._arguments):
                return await anext(self._raw)
        except Exception as error:
            if not self._is_over(error):
                raise
            raise StopAsyncIteration from None

    def _is_over(self, error: Exception) -> bool:
        """A connection that breaks behind the end of an answer takes nothing of it away."""
        return bool(self.finish_reason) and on_the_wire(causes(error, None)).trouble in (BROKEN, LATE)

    # Leaving it

    def close(self) -> None:
        """End the request, whatever of the answer is still on its way."""
        for holder in (self._raw, self._inner, self._own_lines, self._response):
            close = getattr(holder, "close", None)
            if callable(close):
                close()

    async def aclose(self) -> None:
        for holder in (self._raw, self._inner, self._own_lines, self._response):
            close: Any = getattr(holder, "aclose", None)
            if close is not None:
                await close()
