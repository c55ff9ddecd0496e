"""LiteLLM's streams, timeouts and failures, seen through httpx, the HTTP library that LiteLLM uses.

`GuardedClient` is the HTTP client of LiteLLM for acorn's requests. It obeys the limits of a `ResponseWatch`: the time
and the size of the response. It follows no redirects, because another host would receive the headers and the
conversation.

`LiteLLMStream` reads a stream of LiteLLM. It reports the finish reason of the provider, obeys the deadline of the
request, and can be closed.

`find_failure` finds the HTTP status of a failed request. The types and statuses of LiteLLM's exceptions are not always
correct, but the original httpx exception is among their causes.

Importing this module loads httpx, so the adapter imports it with the first request.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from math import inf
from typing import Any

import httpcore
import httpx

from acorn._base.clock import current_clock
from acorn._formats.redact import Redactor, is_secret_name
from acorn.models.failures import NO_CONNECTION, TIMED_OUT, TOO_LARGE, UNREADABLE, FailureDetails, error_chain
from acorn.models.lanes.http_response import (
    ContentDecoder,
    EventParser,
    ResponseTimeoutError,
    ResponseTooLargeError,
    TransportError,
)
from acorn.models.lanes.lane import provider_error
from acorn.models.lanes.openai_chat import STATUSES
from acorn.models.litellm.library import litellm, silence
from acorn.models.litellm.translate import is_bad_request
from acorn.models.retry import connect_timeout

# Timeouts


def limit_timeout(timeout: float | httpx.Timeout | None, seconds_left: float | None) -> httpx.Timeout:
    """Convert the timeout in a model dict to an httpx object in which each timeout is at most `seconds_left`."""
    if not isinstance(timeout, httpx.Timeout):
        timeout = httpx.Timeout(timeout, connect=connect_timeout(timeout))
    if seconds_left is None:
        return timeout
    parts = {
        name: seconds_left if part is None else min(part, seconds_left) for name, part in timeout.as_dict().items()
    }
    return type(timeout)(**{name: max(0.001, part) for name, part in parts.items()})


# Streams


class ResponseWatch:
    """The limits of a response, the conditions that end it, and its HTTP response."""

    def __init__(
        self, seconds: float | None, timeout: float | httpx.Timeout | None, max_bytes: int, *, is_stream: bool
    ) -> None:
        self._run_deadline = inf if seconds is None else current_clock().monotonic() + seconds
        """The time on the monotonic clock by which the run must be complete."""
        seconds = timeout.read if isinstance(timeout, httpx.Timeout) else timeout
        self._timeout = inf if seconds is None else seconds
        self._deadline = self._run_deadline
        """The time by which the headers, and after them the body, must be complete."""
        self.max_bytes = max_bytes
        self.is_stream = is_stream
        self.is_abandoned = False
        """Whether the reader no longer needs the stream. Another thread may set it."""
        self.is_done = False
        """Whether the event that ends a stream of OpenAI's protocol has arrived."""
        self.response: httpx.Response | None = None
        """The response, or None if LiteLLM does not expose it."""

    @contextmanager
    def current(self) -> Generator[None]:
        """Watch all responses that LiteLLM reads in this `with` block."""
        token = _current_watch.set(self)
        try:
            yield
        finally:
            _current_watch.reset(token)

    def limit(self, timeout: float | None) -> float | None:
        """Return a timeout for the next bytes that ends no later than the deadline."""
        if self._deadline == inf:
            return timeout
        left = max(0.001, self._deadline - current_clock().monotonic())
        return left if timeout is None else min(timeout, left)

    def send(self, client: httpx.Client, request: httpx.Request, *, auth: Any, is_stream: bool) -> httpx.Response:
        """Send a request, and return the response. Its body is limited, and is complete if it is not a stream."""
        self._deadline = min(self._run_deadline, current_clock().monotonic() + self._timeout)
        request.headers["accept-encoding"] = "identity"
        response = client.send(request, stream=True, auth=auth, follow_redirects=False)
        is_events = is_stream and response.status_code < 300
        if is_events:  # A stream may take as long as its parts arrive.
            self._deadline = self._run_deadline
        decoder = ContentDecoder(response.headers.pop("content-encoding", None), self.max_bytes, is_stream=is_events)
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _LimitedResponse(response.stream, decoder, self)
        if not is_stream:
            try:
                response.read()
            finally:
                response.close()
        return response

    def check(self) -> None:
        """Raise an httpx exception if the reader must not wait for the rest of the stream.

        The timeout of httpx is not enough: it limits only the wait for the next bytes, and a server may send keep-alive
        comments forever.
        """
        if self.is_abandoned:
            raise httpx.ReadError("The reader closed the stream.")
        if current_clock().monotonic() > self._deadline:
            raise httpx.ReadTimeout("The complete response did not arrive before the deadline.")

    def add(self, response: httpx.Response, *, is_of_sdk: bool = False) -> None:
        """Check the conditions whenever LiteLLM, or the SDK of OpenAI, reads from a response."""
        self.response = response
        pieces = self._checked(response.iter_bytes())
        if is_of_sdk:
            pieces = self._usual_events(pieces)
        response.iter_bytes = lambda _=None: pieces  # type: ignore[method-assign, assignment]

    def _checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for data in pieces:
            self.check()
            yield data

    def _usual_events(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield server-sent events in their usual form, because the SDK rejects some other forms."""
        parser = EventParser(self.max_bytes)
        for data in pieces:
            yield from self._encode(parser.feed(data))
        if parser.ends_with_event():
            yield from self._encode(parser.feed(b"\n"))

    def _encode(self, events: list[bytes]) -> Iterator[bytes]:
        for event in events:
            self.is_done = self.is_done or event == b"[DONE]"
            yield b"data: %s\n\n" % event


_current_watch: ContextVar[ResponseWatch | None] = ContextVar("acorn_litellm_watch", default=None)
"""The watch of acorn's request in progress, or None in the requests of a program that uses LiteLLM itself."""


class GuardedClient(httpx.Client):
    """An HTTP client that passes requests to another client, and applies the limits of the current watch to them."""

    def __init__(self, find_client: Callable[[], httpx.Client]) -> None:
        super().__init__(transport=httpx.BaseTransport(), trust_env=False, follow_redirects=True)
        self._find_client = find_client

    def send(
        self,
        request: httpx.Request,
        *,
        stream: bool = False,
        auth: Any = httpx.USE_CLIENT_DEFAULT,
        follow_redirects: Any = httpx.USE_CLIENT_DEFAULT,
    ) -> httpx.Response:
        client, watch = self._find_client(), _current_watch.get()
        if watch is None:
            return client.send(request, stream=stream, auth=auth, follow_redirects=follow_redirects)
        return watch.send(client, request, auth=auth, is_stream=stream)


def guard_sdk() -> None:
    """Set the HTTP client for the SDK of OpenAI, unless the program has set one.

    LiteLLM has no other way to pass it. It has the settings of LiteLLM's own client for the SDK, and behaves like that
    client in a program that uses LiteLLM itself.
    """
    module = litellm()
    if module.client_session is None:
        http: Any = module.llms.custom_httpx.http_handler
        module.client_session = GuardedClient(lambda: _sdk_client(http.get_ssl_configuration(), http.http2_enabled()))


@lru_cache(maxsize=8)
def _sdk_client(verify: Any, http2: bool) -> httpx.Client:
    client = _with_limits(httpx.Client(verify=verify, http2=http2, follow_redirects=True))
    atexit.register(client.close)
    return client


def _with_limits(client: httpx.Client) -> httpx.Client:
    """Limit each wait for bytes to the deadline of the current watch, and return the client.

    A timeout of httpx starts again with each interim response such as `103 Early Hints`. httpx has no public setting
    for the network backend of httpcore.
    """
    inner: Any = client
    for transport in (inner._transport, *inner._mounts.values()):
        if (pool := getattr(transport, "_pool", None)) is not None:
            pool._network_backend = _Backend(pool._network_backend)
    return client


class _Backend(httpcore.NetworkBackend):
    """A network backend of httpcore that creates streams with a deadline."""

    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(*args, **kwargs))

    def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_unix_socket(*args, **kwargs))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """A connection that limits each wait for bytes to the deadline of the current watch."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        watch = _current_watch.get()
        if watch is not None:
            watch.check()
            timeout = watch.limit(timeout)
        return self._inner.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(*args, **kwargs))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _LimitedResponse(httpx.SyncByteStream):
    """The body of a response, decompressed, with a limit of its size and its time."""

    def __init__(self, inner: httpx.SyncByteStream, decoder: ContentDecoder, watch: ResponseWatch) -> None:
        self._inner, self._decoder, self._watch = inner, decoder, watch

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            self._watch.check()
            yield from self._decoder.decode(data)
        self._decoder.finish()

    def close(self) -> None:
        self._inner.close()


@lru_cache(maxsize=1)
def handler_class() -> Any:
    """Return the class of the HTTP clients for LiteLLM calls.

    Each call needs its own client, which gets the `ResponseWatch` of the call.
    """
    http: Any = litellm().llms.custom_httpx.http_handler
    shared = http.HTTPHandler()  # All calls share its connections.
    client = GuardedClient(lambda: shared.client)
    _with_limits(shared.client)

    class LineHandler(http.HTTPHandler):  # type: ignore[misc]
        """An HTTP client for LiteLLM that splits a response only at line feeds.

        httpx also splits lines at other characters, such as U+2028. JSON text may contain these characters, and LiteLLM
        would then lose the line.
        """

        def __init__(self, watch: ResponseWatch) -> None:
            parent: Any = super()
            parent.__init__(client=client)
            self._watch = watch

        def post(self, *args: Any, **kwargs: Any) -> Any:
            parent: Any = super()
            response = parent.post(*args, **kwargs)
            if self._watch.is_stream:
                self._watch.add(response)
                response.iter_lines = lambda: _split_lines(response.iter_bytes(), self._watch.max_bytes)
            return response

    return LineHandler


def is_unusable(handler: Any, error: Exception) -> bool:
    """Return True if a call failed because LiteLLM uses the SDK of OpenAI, and not `handler`, for this provider.

    LiteLLM then looks for attributes that only a client of the SDK has, before it sends a request.
    """
    return any(isinstance(cause, AttributeError) and cause.obj is handler for cause in error_chain(error, None))


def _split_lines(pieces: Iterable[bytes], max_bytes: int) -> Iterator[str]:
    unread = bytearray()
    for data in pieces:
        unread += data
        if b"\n" in data:  # A line may arrive in many small pieces, so an incomplete line is not searched.
            *lines, rest = bytes(unread).split(b"\n")
            unread[:] = rest
            for line in lines:
                yield line.decode("utf-8", "replace").rstrip("\r")
        if len(unread) > max_bytes:
            raise ResponseTooLargeError(max_bytes)
    yield unread.decode("utf-8", "replace")


class LiteLLMStream:
    """A LiteLLM stream, which yields its chunks."""

    def __init__(self, raw: Any, watch: ResponseWatch) -> None:
        self._raw = raw
        self._watch = watch
        self._inner = getattr(raw, "completion_stream", None)
        self._refusal: list[str] = []
        if self._inner is not None:
            raw.completion_stream = self._observe(iter(self._inner))
        if watch.response is None:  # The SDK of OpenAI sent the request.
            response = getattr(self._inner, "response", None)
            if isinstance(response, httpx.Response):
                watch.add(response, is_of_sdk=True)

    def _observe(self, chunks: Iterator[Any]) -> Iterator[Any]:
        """Yield the chunks that LiteLLM reads, and store their refusals, because LiteLLM ignores them."""
        for chunk in chunks:
            if choices := getattr(chunk, "choices", None):
                self._refusal.append(getattr(choices[0].delta, "refusal", None) or "")
            yield chunk

    @property
    def finish_reason(self) -> str | None:
        """The finish reason that the provider sent, or None if it has not arrived yet.

        The value is "" if LiteLLM does not expose the finish reason. The finish reason in the chunks is not reliable:
        if the connection breaks, LiteLLM adds a finish reason that the provider did not send.
        """
        reason: str | None = getattr(self._raw, "received_finish_reason", "")
        reason = getattr(self._raw, "intermittent_finish_reason", None) if reason is None else reason
        return "stop" if reason is None and self._watch.is_done else reason

    @property
    def refusal(self) -> str:
        return "".join(self._refusal)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            self._watch.check()
            with silence(), self._watch.current():
                return next(self._raw)
        except Exception as error:
            # If the connection failed only after the complete response had arrived, no data is lost.
            problem = find_failure(error_chain(error, None)).problem
            if self.finish_reason and problem in (NO_CONNECTION, TIMED_OUT):
                raise StopIteration from None
            raise

    def close(self) -> None:
        """Close the stream and its connection, even if the response is not complete."""
        for part in (self._inner, self._watch.response):
            if (close := getattr(part, "close", None)) is not None:
                close()


# Failures


def redact_message(value: object, redactor: Redactor) -> object:
    """Return an HTTP request, a response or headers without secrets, for an exception. Return other objects unchanged.

    A request contains the API key, and a response contains its request.
    """
    if isinstance(value, httpx.Request):
        with suppress(httpx.InvalidURL):  # A redacted host is not a valid URL.
            url, headers = redactor.text(str(value.url)), _redact_headers(value.headers, redactor)
            return httpx.Request(value.method, url, headers=headers)
        return None
    if isinstance(value, httpx.Response):
        copy = httpx.Response(value.status_code, headers=_redact_headers(value.headers, redactor))
        request = redact_message(getattr(value, "_request", None), redactor)
        if isinstance(request, httpx.Request):
            copy.request = request
        return copy
    return _redact_headers(value, redactor) if isinstance(value, httpx.Headers) else value


def _redact_headers(headers: httpx.Headers, redactor: Redactor) -> httpx.Headers:
    items = {name: "***" if is_secret_name(name) else redactor.text(value) for name, value in headers.items()}
    # A server may send any bytes.
    return httpx.Headers([(name.encode("utf-8"), value.encode("utf-8", "replace")) for name, value in items.items()])


_RELIABLE_ERRORS = (
    *("AuthenticationError", "NotFoundError", "RateLimitError", "PermissionDeniedError", "UnprocessableEntityError"),
    *("ContextWindowExceededError", "ContentPolicyViolationError"),
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
        if isinstance(cause, ResponseTooLargeError):
            return FailureDetails(problem=TOO_LARGE)
        if isinstance(cause, httpx.TimeoutException | ResponseTimeoutError):
            return FailureDetails(problem=TIMED_OUT)
        if isinstance(cause, httpx.TransportError | ConnectionError | TransportError):
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
            if type(cause).__name__ == "APIError":  # The SDK of OpenAI raised it.
                return FailureDetails(provider_error(getattr(cause, "body", None), STATUSES).status)
    is_unreadable = any(isinstance(cause, _PARSING_ERRORS) for cause in chain) or any(
        message in str(error) for message in _PARSING_MESSAGES
    )
    return FailureDetails(problem=UNREADABLE if is_unreadable and not is_bad_request(error) else "")
