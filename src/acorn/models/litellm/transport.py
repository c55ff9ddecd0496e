"""HTTP for LiteLLM: a client that sends each asynchronous request exactly once, and streams that end correctly.

LiteLLM uses httpx, whose asynchronous connection pool becomes slow with many concurrent requests. The client in this
module therefore sends requests through the aiohttp session of the native lanes. Each event loop has one session.

`RawStream` wraps a LiteLLM stream. It splits the response into lines without loss, reports the finish reason of the
provider, checks the deadline of the request, and can be closed.

`find_failure` finds the HTTP status of a failed request. The types and statuses of LiteLLM's exceptions are not always
correct, but the original httpx exception is among their causes.

Importing this module loads httpx and aiohttp, so the adapter imports it with the first request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import aiohttp
import httpx
from yarl import URL

from acorn._base.clock import current_clock
from acorn.models.failures import NO_CONNECTION, TIMED_OUT, UNREADABLE, FailureDetails, error_chain
from acorn.models.lanes.http import proxy_of
from acorn.models.lanes.http_async import current_session
from acorn.models.litellm.library import ignore_warnings, library, without_callbacks
from acorn.models.litellm.translate import is_bad_request
from acorn.models.retry import DEFAULT_TIMEOUT, connect_timeout
from acorn.types import JsonObject

_clients: dict[asyncio.AbstractEventLoop, Any] = {}


async def http_client() -> Any:
    """Return the HTTP client for the running event loop.

    The caller does not need to close the client.
    """
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
        """An HTTP handler for LiteLLM that never sends a request a second time."""

        def create_client(self, timeout: Any = None, *_: object, **__: object) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                timeout=timeout or DEFAULT_TIMEOUT,
                transport=_AiohttpTransport(http.get_ssl_configuration()),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                follow_redirects=True,
            )

        async def single_connection_post_request(self, *_: object, **__: object) -> Any:
            # LiteLLM calls this method in an `except` block to send the request again. It raises the error instead.
            raise

    return SendOnceHandler


def _as_httpx_error(error: Exception) -> Exception:
    """Convert an aiohttp exception to an httpx exception, because LiteLLM handles only httpx exceptions."""
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
        # If the response was read to its end, the connection has already returned to the pool.
        self._response.close()


class _AiohttpTransport(httpx.AsyncBaseTransport):
    def __init__(self, verify: Any) -> None:
        self._verify = verify

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # httpx has copied the credentials of the URL to a header. aiohttp rejects a request that contains both.
        url = str(request.url.copy_with(username=None, password=None) if request.url.userinfo else request.url)
        timeouts = request.extensions.get("timeout", {})
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
    """Convert the timeout in a model dict to an httpx timeout object."""
    if isinstance(configured, httpx.Timeout):
        return configured
    return httpx.Timeout(configured, connect=connect_timeout(configured))


def limit_timeout(timeout: httpx.Timeout, seconds_left: float) -> httpx.Timeout:
    """Return a copy of an httpx timeout object in which each timeout is at most `seconds_left`."""
    parts = {
        name: seconds_left if part is None else min(part, seconds_left) for name, part in timeout.as_dict().items()
    }
    return type(timeout)(**{name: max(0.001, part) for name, part in parts.items()})


class RawStream:
    """A wrapper around one LiteLLM stream that yields its chunks, for synchronous and asynchronous code."""

    def __init__(self, raw: Any, deadline: float | None, arguments: JsonObject) -> None:
        ignore_warnings()
        self._raw = raw
        self._arguments = arguments
        """The arguments of the LiteLLM call, which may set callbacks."""
        self._deadline = deadline
        """The time on the monotonic clock by which the response must be complete, or None for no limit."""
        self._inner = getattr(raw, "completion_stream", None)
        self._refusal: list[str] = []
        self._response: Any = None
        """The httpx response, or None if LiteLLM does not expose it."""
        self._line_iterator: Any = None
        """The iterator that replaces httpx's iterator of lines, or None."""
        self._replace_lines()

    def _replace_lines(self) -> None:
        """Replace httpx's line iterator with an iterator that splits the response only at line feeds.

        httpx also splits at other characters, such as U+2028. JSON text may contain these characters, and LiteLLM then
        loses the line.
        """
        lines: Any = getattr(self._inner, "streaming_response", None)
        is_async = hasattr(lines, "ag_frame")
        if getattr(lines, "__name__", "") != ("aiter_lines" if is_async else "iter_lines"):
            # LiteLLM splits the events of OpenAI's Responses API correctly. `close` must close this response, because
            # the garbage collector could close it at any time, even while another request locks the pool.
            self._response = getattr(lines, "response", None)
            return
        # Only the frame of the line generator has a reference to the response.
        frame = lines.ag_frame if is_async else lines.gi_frame
        response = None if frame is None else frame.f_locals.get("self")
        if not isinstance(response, httpx.Response) or response.is_stream_consumed:
            return
        self._response = response
        self._line_iterator = self._alines() if is_async else self._lines()
        vars(self._inner).update(streaming_response=self._line_iterator, response_iterator=self._line_iterator)

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
        """Raise `httpx.ReadTimeout` if the deadline of the request has passed.

        The timeout of httpx is not enough: it limits only the wait for the next bytes, and a server may send keep-alive
        comments forever.
        """
        if self._deadline is not None and current_clock().monotonic() > self._deadline:
            raise httpx.ReadTimeout("The complete response did not arrive before the deadline.")

    def _decode_line(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if '"refusal"' in text:  # LiteLLM ignores a chunk that contains only a refusal.
            with suppress(ValueError, LookupError, TypeError, AttributeError):
                self._refusal.append(json.loads(text.removeprefix("data:"))["choices"][0]["delta"].get("refusal") or "")
        return text

    @property
    def finish_reason(self) -> str | None:
        """The finish reason that the provider sent, or None if it has not arrived yet.

        The value is "" if LiteLLM does not expose the finish reason. The finish reason in the chunks is not reliable:
        if the connection breaks, LiteLLM adds a finish reason that the provider did not send.
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
        """Return True if the connection failed only after the complete response had arrived, so no data is lost."""
        return bool(self.finish_reason) and find_failure(error_chain(error, None)).problem in (NO_CONNECTION, TIMED_OUT)

    def close(self) -> None:
        """Close the stream and its connection, even if the response is not complete."""
        for stream in (self._raw, self._inner, self._line_iterator, self._response):
            close = getattr(stream, "close", None)
            if callable(close):
                close()

    async def aclose(self) -> None:
        """Close the stream and its connection, even if the response is not complete."""
        for stream in (self._raw, self._inner, self._line_iterator, self._response):
            close = getattr(stream, "aclose", None)
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
"""The LiteLLM exceptions whose status is reliable. Other exceptions have the status 500 for an unreadable response."""
_PARSING_ERRORS = (LookupError, AttributeError, TypeError, json.JSONDecodeError)
"""The exceptions that LiteLLM's code raises if a response has an unexpected format."""
_PARSING_MESSAGES = ("Unable to get json response", "with no 'choices'")


def find_failure(chain: list[BaseException]) -> FailureDetails:
    """Find out why a request failed: return its HTTP status and headers, or a label such as "no connection".

    `chain` contains the exception of LiteLLM and all its causes.
    """
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
    if kind == "MidStreamFallbackError":  # LiteLLM raises this error if a provider reports an error in a stream.
        for cause in chain[1:]:
            if any(base.__name__ == "BaseLLMException" for base in type(cause).__mro__):
                return FailureDetails(getattr(cause, "status_code", None))
    is_unreadable = any(isinstance(cause, _PARSING_ERRORS) for cause in chain) or any(
        message in str(error) for message in _PARSING_MESSAGES
    )
    return FailureDetails(problem=UNREADABLE if is_unreadable and not is_bad_request(error) else "")
