"""HTTP for LiteLLM: a client that sends each asynchronous request exactly once, and streams that end correctly.

LiteLLM uses httpx, whose asynchronous pool becomes slow with many concurrent requests. The client here sends through
the aiohttp session of the native lanes, of which there is one for each event loop.

This module loads httpx and aiohttp, so the adapter imports it with the first request.

`RawStream` adds to a stream of LiteLLM what it lacks: lines as they were sent, the provider's finish reason, a deadline
and a way to close it. `find_failure` reads errors: LiteLLM's types and statuses are partly guesses, and the original
error of httpx is in the chain of causes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from time import monotonic
from typing import Any

import aiohttp
import httpx
from yarl import URL

from acorn.models.failures import NO_CONNECTION, TIMED_OUT, UNREADABLE, FailureDetails, error_chain
from acorn.models.lanes.http import proxy_of
from acorn.models.lanes.http_async import current_session
from acorn.models.litellm.library import ignore_warnings, library, without_callbacks
from acorn.models.litellm.translate import is_bad_request
from acorn.models.retry import DEFAULT_TIMEOUT, connect_timeout
from acorn.types import JsonObject

_clients: dict[asyncio.AbstractEventLoop, Any] = {}


async def http_client() -> Any:
    """Return the client of the running event loop. It holds nothing that must be closed."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        for closed_loop in [other for other in list(_clients) if other.is_closed()]:
            _clients.pop(closed_loop, None)
        _clients[loop] = _client_class()()
    return _clients[loop]


@lru_cache(maxsize=1)
def _client_class() -> Any:
    http: Any = library().llms.custom_httpx.http_handler

    class SendOnceHandler(http.AsyncHTTPHandler):  # type: ignore[misc]
        """Sends a request exactly once, and leaves nothing open after its event loop."""

        def create_client(self, timeout: Any = None, *_: object, **__: object) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                timeout=timeout or DEFAULT_TIMEOUT,
                transport=_AiohttpTransport(http.get_ssl_configuration()),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                follow_redirects=True,
            )

        async def single_connection_post_request(self, *_: object, **__: object) -> Any:
            raise  # LiteLLM calls this in an `except` block to resend the request. Raise the error instead.

    return SendOnceHandler


def _as_httpx_error(error: Exception) -> Exception:
    """Return the equivalent error of httpx, which LiteLLM understands."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return httpx.ConnectTimeout(str(error))
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(str(error))
    error_class = httpx.ConnectError if isinstance(error, aiohttp.ClientConnectorError) else httpx.ReadError
    return error_class(str(error) or type(error).__name__)


class _ResponseBody(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise _as_httpx_error(error) from error

    async def aclose(self) -> None:
        self._response.close()  # If it was read to the end, its connection is already back in the pool.


class _AiohttpTransport(httpx.AsyncBaseTransport):
    def __init__(self, verify: Any) -> None:
        self._verify = verify

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # httpx has copied the credentials of the URL into a header. aiohttp rejects having both.
        bare = request.url.copy_with(username=None, password=None) if request.url.userinfo else request.url
        url, timeouts = str(bare), request.extensions.get("timeout", {})
        timeout = aiohttp.ClientTimeout(sock_connect=timeouts.get("connect"), sock_read=timeouts.get("read"))
        session = await current_session()
        try:
            response = await session.request(
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
            raise _as_httpx_error(error) from error
        body = _ResponseBody(response)
        return httpx.Response(response.status, headers=response.headers, stream=body, request=request)


def timeout_of(configured: float | httpx.Timeout | None) -> httpx.Timeout:
    """Return a configured timeout as a timeout of httpx."""
    if isinstance(configured, httpx.Timeout):
        return configured
    return httpx.Timeout(configured, connect=connect_timeout(configured))


def limit_timeout(timeout: httpx.Timeout, seconds_left: float) -> httpx.Timeout:
    """Return a copy of a timeout of httpx that does not exceed the seconds left."""
    parts = {
        name: seconds_left if part is None else min(part, seconds_left) for name, part in timeout.as_dict().items()
    }
    return type(timeout)(**{name: max(0.001, part) for name, part in parts.items()})


class RawStream:
    """The chunks of one response. It can be iterated and closed synchronously or asynchronously."""

    def __init__(self, raw: Any, deadline: float | None, arguments: JsonObject) -> None:
        ignore_warnings()
        self._raw = raw
        self._arguments = arguments
        """The arguments of the call, which may set callbacks."""
        self._deadline = deadline
        """The time on the monotonic clock by which the response must be complete."""
        self._inner = getattr(raw, "completion_stream", None)
        self._refusal: list[str] = []
        self._response: Any = None
        self._own_lines: Any = None
        self._replace_lines()

    def _replace_lines(self) -> None:
        """Split the lines here: httpx also splits at U+2028 and similar, which JSON may contain, and loses the line."""
        lines: Any = getattr(self._inner, "streaming_response", None)
        is_async = hasattr(lines, "ag_frame")
        if getattr(lines, "__name__", "") != ("aiter_lines" if is_async else "iter_lines"):
            # These are the events of OpenAI's Responses API, which LiteLLM splits correctly. The response must be
            # closed: the garbage collector would close it at any time, even while another request locks the pool.
            self._response = getattr(lines, "response", None)
            return
        # LiteLLM holds the response only in the generator of its lines.
        frame = lines.ag_frame if is_async else lines.gi_frame
        response = None if frame is None else frame.f_locals.get("self")
        if not isinstance(response, httpx.Response) or response.is_stream_consumed:
            return
        self._response = response
        self._own_lines = self._alines() if is_async else self._lines()
        vars(self._inner).update(streaming_response=self._own_lines, response_iterator=self._own_lines)

    def _lines(self) -> Iterator[str]:
        unread = b""
        for data in self._response.iter_bytes():
            self._check_deadline()
            *lines, unread = (unread + data).split(b"\n")
            yield from map(self._decode_line, lines)
        yield self._decode_line(unread)

    async def _alines(self) -> AsyncIterator[str]:
        unread = b""
        async for data in self._response.aiter_bytes():
            self._check_deadline()
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                yield self._decode_line(line)
        yield self._decode_line(unread)

    def _check_deadline(self) -> None:
        """Raise if the time is up. The timeout of httpx limits only the wait for the next piece, even a keep-alive."""
        if self._deadline is not None and monotonic() > self._deadline:
            raise httpx.ReadTimeout("The response was not complete in time.")

    def _decode_line(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if '"refusal"' in text:  # LiteLLM drops a chunk that contains only a refusal.
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                self._refusal.append(json.loads(text.removeprefix("data:"))["choices"][0]["delta"].get("refusal") or "")
        return text

    @property
    def finish_reason(self) -> str | None:
        """The provider's finish reason, None before it has arrived, or "" if LiteLLM does not expose it.

        The chunks are not reliable: LiteLLM takes any end of a stream for the end of the response, and invents a
        reason.
        """
        reason: str | None = getattr(self._raw, "received_finish_reason", "")
        return getattr(self._raw, "intermittent_finish_reason", None) if reason is None else reason

    @property
    def refusal(self) -> str:
        return "".join(self._refusal)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            self._check_deadline()
            with without_callbacks(self._arguments):
                return next(self._raw)
        except Exception as error:
            if not self._is_after_end(error):
                raise
            raise StopIteration from None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            self._check_deadline()
            with without_callbacks(self._arguments):
                return await anext(self._raw)
        except Exception as error:
            if not self._is_after_end(error):
                raise
            raise StopAsyncIteration from None

    def _is_after_end(self, error: Exception) -> bool:
        """Return whether the connection broke after the response was complete, so that nothing is lost."""
        return bool(self.finish_reason) and find_failure(error_chain(error, None)).problem in (NO_CONNECTION, TIMED_OUT)

    def close(self) -> None:
        """End the request, even if the response is not complete."""
        for holder in (self._raw, self._inner, self._own_lines, self._response):
            close = getattr(holder, "close", None)
            if callable(close):
                close()

    async def aclose(self) -> None:
        """End the request, even if the response is not complete."""
        for holder in (self._raw, self._inner, self._own_lines, self._response):
            close = getattr(holder, "aclose", None)
            if close is not None:
                await close()


# Failures

_RELIABLE_ERRORS = (
    "AuthenticationError",
    "NotFoundError",
    "RateLimitError",
    "PermissionDeniedError",
    "ContextWindowExceededError",
    "ContentPolicyViolationError",
    "UnprocessableEntityError",
)
"""LiteLLM's errors with a reliable status. It also raises others for an unreadable response, with a made-up 500."""
_PARSING_ERRORS = (LookupError, AttributeError, TypeError, json.JSONDecodeError)
"""Errors within LiteLLM if a response has an unexpected form."""
_PARSING_MESSAGES = ("Unable to get json response", "with no 'choices'")


def find_failure(chain: list[BaseException]) -> FailureDetails:
    """Return the HTTP status and headers of the response, or the problem with the connection."""
    for cause in chain:
        if isinstance(cause, httpx.HTTPStatusError):
            return FailureDetails(cause.response.status_code, cause.response.headers)
    for cause in chain:
        if isinstance(cause, httpx.TimeoutException):
            return FailureDetails(problem=TIMED_OUT)
        if isinstance(cause, httpx.TransportError | ConnectionError):
            return FailureDetails(problem=NO_CONNECTION)
    error = chain[0]
    kind, status = type(error).__name__, getattr(error, "status_code", None)
    if kind == "Timeout":
        return FailureDetails(problem=TIMED_OUT)
    if isinstance(status, int) and kind in _RELIABLE_ERRORS:
        return FailureDetails(status, getattr(error, "litellm_response_headers", None) or {})
    if kind == "MidStreamFallbackError":  # LiteLLM raises it if a provider reports an error within a stream.
        for cause in chain[1:]:
            if any(base.__name__ == "BaseLLMException" for base in type(cause).__mro__):
                return FailureDetails(getattr(cause, "status_code", None))
    is_unreadable = any(isinstance(cause, _PARSING_ERRORS) for cause in chain) or any(
        message in str(error) for message in _PARSING_MESSAGES
    )
    return FailureDetails(problem=UNREADABLE if is_unreadable and not is_bad_request(error) else "")
