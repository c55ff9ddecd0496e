"""`NativeModel`, the model class for all native lanes.

It sends requests and converts failures to `ModelError`. A lane (`lane.py`) encodes the requests and decodes the
responses of one protocol. This module sends each request only once, with one exception: if the model rejects a default
setting, it sends the request again without that setting. All other retries are in `retry.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, NoReturn

from pydantic_core import from_json

from acorn._base.clock import current_clock
from acorn.errors import ModelError
from acorn.models.failures import (
    NO_CONNECTION,
    TIMED_OUT,
    UNREADABLE,
    FailureDetails,
    RejectedSettings,
    error_chain,
    is_strict_by_user,
    is_too_long,
    mentions,
    redact_errors,
    redactor_of,
    removable_settings,
    suggest_fix,
    without_rejected_strict,
)
from acorn.models.lanes.http import Post, ResponseTimeoutError, TransportError, send
from acorn.models.lanes.http_async import asend
from acorn.models.lanes.http_response import EventParser
from acorn.models.lanes.lane import COMMON_KEYS, Lane, ProviderError, UnsupportedContentError
from acorn.models.port import Delta, ModelResponse, Price, RequestNotSupportedError, ResendError, price_in
from acorn.models.providers import TokenCounts, custom_address, prices_of
from acorn.models.request import ModelRequest
from acorn.models.retry import DEFAULT_TIMEOUT, connect_timeout, parse_retry_after, parse_timeout
from acorn.types import JsonObject, JsonValue


class _NativeAttempt:
    """A request in progress, with the names of the settings that the model has rejected so far."""

    __slots__ = ("left_out", "outer_error", "request")

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.left_out: set[str] = set() if request.left_out is None else request.left_out
        """The parameters that the model rejected. acorn sends the request again without them."""
        self.outer_error = sys.exception()
        """The exception that the caller was already handling when the request started, or None."""


class NativeModel:
    """A model that acorn reaches through a native lane."""

    def __init__(self, config: JsonObject, lane: Lane) -> None:
        self.name: str = config.get("model") or config["id"]
        self.provider = lane.provider
        self.lane = lane
        self._config = config
        self._settings = {key: value for key, value in config.items() if key not in COMMON_KEYS}
        self.rejected = RejectedSettings(self.name, self._settings)
        self._timeout = parse_timeout(config.get("timeout", config.get("request_timeout", DEFAULT_TIMEOUT)))
        self._connect_timeout = connect_timeout(self._timeout)
        self._price = price_in(config)
        """The price that the user set in the model dict, or None."""

    def __repr__(self) -> str:
        return f"{type(self.lane).__name__}({self.name!r})"

    # Properties

    @property
    def thinks(self) -> bool:
        return self.lane.thinks

    @property
    def takes_strict(self) -> bool:
        return self.provider == "openai" and custom_address(self.provider, self._config) is None

    def takes_tool(self, tool: JsonObject) -> bool:
        return self.lane.takes_tool(tool)

    def can_force_tool(self, request: ModelRequest) -> bool:
        return "tool_choice" not in self.rejected.known and self.lane.can_force_tool()

    def price(self) -> Price | None:
        if self._price is not None:
            return self._price
        prices = prices_of(self.provider, self.lane.name)
        return None if prices is None else Price(prices.input / 1e6, prices.output / 1e6)

    def cost(self, used: TokenCounts | None) -> float | None:
        """Return the cost of a request in dollars, or None if acorn's price table does not contain the model.

        If the user set a price in the model dict, the result is also None, because the agent loop then computes the
        cost.
        """
        if used is None or self._price is not None:
            return None
        prices = prices_of(self.provider, self.lane.name)
        return None if prices is None else prices.cost_of(used)

    # Sending

    def complete(self, request: ModelRequest) -> ModelResponse:
        attempt = _NativeAttempt(request)
        while True:
            try:
                incoming = send(self._post(attempt, is_stream=False))
                try:
                    data = incoming.read()
                finally:
                    incoming.close()
            except TransportError as error:
                self._raise_transport_error(error, attempt)
            if incoming.status < 300:
                return self._read_response(data, attempt)
            self._remember_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        attempt = _NativeAttempt(request)
        while True:
            try:
                incoming = await asend(self._post(attempt, is_stream=False))
                try:
                    data = await incoming.read()
                finally:
                    incoming.close()
            except TransportError as error:
                self._raise_transport_error(error, attempt)
            if incoming.status < 300:
                return self._read_response(data, attempt)
            self._remember_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        attempt = _NativeAttempt(request)
        response = _NativeStream(self, attempt)
        try:
            while True:
                incoming = send(self._post(attempt, is_stream=True))
                try:
                    if incoming.status < 300:
                        self.rejected.remember(attempt.left_out)
                        response.is_event_stream = is_event_stream(incoming.header("content-type"))
                        for data in incoming.pieces():
                            yield from response.read(data)
                            if response.is_done:
                                incoming.finish()
                                break
                        break
                    data = incoming.read()
                    self._remember_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)
                finally:
                    incoming.close()
        except TransportError as error:
            if not response.is_complete:
                self._raise_transport_error(error, attempt)
        yield from response.finish()

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        attempt = _NativeAttempt(request)
        response = _NativeStream(self, attempt)
        try:
            while True:
                incoming = await asend(self._post(attempt, is_stream=True))
                try:
                    if incoming.status < 300:
                        self.rejected.remember(attempt.left_out)
                        response.is_event_stream = is_event_stream(incoming.header("content-type"))
                        async for data in incoming.pieces():
                            for delta in response.read(data):
                                yield delta
                            if response.is_done:
                                break
                        break
                    data = await incoming.read()
                    self._remember_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)
                finally:
                    incoming.close()
        except TransportError as error:
            if not response.is_complete:
                self._raise_transport_error(error, attempt)
        for delta in response.finish():
            yield delta

    def _post(self, attempt: _NativeAttempt, *, is_stream: bool) -> Post:
        request = attempt.request
        try:
            url, headers = self.lane.address()
            left_out = self.rejected.known | attempt.left_out
            body = self.lane.body(without_rejected_strict(request, left_out), left_out, is_stream=is_stream)
        except ProviderError as error:
            self.raise_failure(FailureDetails(), str(error), error, attempt, is_rejected=True)
        deadline = None if request.timeout is None else current_clock().monotonic() + request.timeout
        return Post(url, headers, body, self._connect_timeout, self._timeout, deadline)

    def _read_response(self, data: bytes, attempt: _NativeAttempt) -> ModelResponse:
        self.rejected.remember(attempt.left_out)
        try:
            response, used = self.lane.read(parse_json(data))
        except ProviderError as error:
            self.raise_provider_error(error, attempt)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.raise_unreadable(data, error, attempt)
        response.model = response.model or self.name
        response.cost = self.cost(used)
        called_names = {call.name for call in response.tool_calls}
        self.rejected.check_forced(attempt.request.forced_tool, called_names, response.stop_reason)
        return response

    # Failures

    def _remember_or_raise(self, status: int, data: bytes, retry_after: str | None, attempt: _NativeAttempt) -> None:
        """Remember that the model rejected a default setting, or raise `ModelError` for any other failure.

        If this method returns, the caller must send the request again without the rejected setting.
        """
        message = error_message_in(data)
        request, left_out = attempt.request, attempt.left_out
        set_by_user = self._set_by_user(attempt)
        if status in (400, 422) and not is_too_long(message):
            for name, mark in removable_settings(request, set_by_user):
                if mentions(message, name) and mark not in left_out | self.rejected.known:
                    left_out.add(mark)
                    if request.left_out is not None:
                        raise ResendError(
                            f"`{self.name}` rejected the setting `{name}`. acorn sends the request again without it.",
                            status=status,
                        )
                    return
        else:
            self.rejected.remember(left_out)
        wait = parse_retry_after(retry_after)
        self.raise_failure(FailureDetails(status), message, ProviderError(message, status), attempt, wait)

    def _set_by_user(self, attempt: _NativeAttempt) -> set[str]:
        """Return the names of the settings that the user set on the agent class or in the model dict."""
        names = {*attempt.request.declared, *self._settings} - {"strict"}
        return names | {"strict"} if is_strict_by_user(attempt.request) else names

    def _raise_transport_error(self, error: TransportError, attempt: _NativeAttempt) -> NoReturn:
        if isinstance(error, ResponseTimeoutError):
            self.raise_failure(FailureDetails(problem=TIMED_OUT), "", error, attempt)
        self.raise_failure(FailureDetails(problem=NO_CONNECTION), _as_sentence(str(error)), error, attempt)

    def raise_provider_error(self, error: ProviderError, attempt: _NativeAttempt) -> NoReturn:
        """Raise `ModelError` for an error that the provider reported although the HTTP status was a success."""
        problem = "" if error.status else UNREADABLE
        self.raise_failure(FailureDetails(error.status, problem=problem), str(error), error, attempt)

    def raise_unreadable(self, data: bytes, error: Exception, attempt: _NativeAttempt) -> NoReturn:
        text = data[:200].decode("utf-8", "replace").strip()
        message = f"The response was {text!r}." if text else "The response was empty."
        self.raise_failure(FailureDetails(problem=UNREADABLE), message, error, attempt)

    def raise_failure(
        self,
        failure: FailureDetails,
        message: str,
        cause: BaseException,
        attempt: _NativeAttempt,
        retry_after: float | None = None,
        *,
        is_rejected: bool = False,
    ) -> NoReturn:
        redactor = redactor_of(self._config, attempt.request)
        redact_errors(error_chain(cause, attempt.outer_error), redactor)
        message = redactor.text(message)
        suggestion = suggest_fix(
            failure,
            message,
            self._set_by_user(attempt),
            self.name,
            is_bad_request=is_rejected or failure.status in (400, 422),
            is_too_long=is_too_long(message),
        )
        details = " ".join(filter(None, (message, suggestion)))
        label = f" ({failure.label})" if failure.label else ""
        error_class = RequestNotSupportedError if isinstance(cause, UnsupportedContentError) else ModelError
        raise error_class(
            f"`{self.name}` failed{label}: {details}".removesuffix(": "),
            provider=self.provider,
            status=failure.status,
            retryable=failure.is_retryable,
            retry_after=retry_after,
            timed_out=failure.problem == TIMED_OUT,
        ) from cause


class _NativeStream:
    """A streamed response in progress.

    It converts the bytes of the response to deltas.
    """

    def __init__(self, model: NativeModel, attempt: _NativeAttempt) -> None:
        self._model, self._attempt = model, attempt
        self._events = EventParser()
        self._reader = model.lane.stream_reader()
        self._head: bytes | None = b""
        """The bytes before the first event, or None after the first event. If the response is not a stream, an error
        message quotes these bytes."""
        self.is_done = False
        """Whether the event that ends the stream has arrived."""
        self.is_event_stream = True
        """Whether the header `Content-Type` of the response is `text/event-stream`."""

    @property
    def is_complete(self) -> bool:
        """True if the complete response has arrived.

        If the connection breaks after that, the request has not failed.
        """
        return self.is_done or bool(self._reader.stop_reason)

    def read(self, data: bytes) -> Iterator[Delta]:
        model, read_event = self._model, self._reader.read
        for text in self._events.feed(data):
            self._head = None
            if text == b"[DONE]":
                self.is_done = True
                return
            try:
                delta = read_event(parse_json(text))
            except ProviderError as error:
                model.raise_provider_error(error, self._attempt)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                model.raise_unreadable(text, error, self._attempt)
            if delta is not None:
                yield delta if delta.usage is None else self._with_cost(delta)
        if self._head is not None and len(self._head) < 1000:
            self._head += data

    def _with_cost(self, delta: Delta) -> Delta:
        if delta.usage is not None:
            delta.cost = self._model.cost(self._reader.used)
        return delta

    def finish(self) -> Iterator[Delta]:
        model, reader = self._model, self._reader
        if not self.is_done and self._events.ends_with_event():
            yield from self.read(b"\n")
        if self._head and not self.is_event_stream:
            model.raise_unreadable(
                self._head,
                ProviderError(
                    "The response is not a stream of server-sent events, although the request asked for one."
                ),
                self._attempt,
            )
        if not self.is_complete:
            message = "The stream ended before the response was complete."
            model.raise_failure(FailureDetails(problem=NO_CONNECTION), message, TransportError(message), self._attempt)
        if (last := reader.finish()) is not None:
            yield self._with_cost(last)
        model.rejected.check_forced(self._attempt.request.forced_tool, reader.called_names, reader.stop_reason)


def is_event_stream(content_type: str | None) -> bool:
    return bool(content_type) and str(content_type).startswith("text/event-stream")


def parse_json(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        # The standard library is slower, but it accepts half of a surrogate pair. The next event may contain the
        # other half.
        return json.loads(data)


def error_message_in(data: bytes) -> str:
    """Return the error message in the body of a failed response.

    If none is found, return the start of the body.
    """
    try:
        answer: JsonValue = parse_json(data)
    except ValueError:
        return _as_sentence(data.decode("utf-8", "replace").strip()[:500])
    error: JsonValue = answer.get("error", answer) if isinstance(answer, dict) else answer
    message: JsonValue = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return _as_sentence(message if isinstance(message, str) else str(answer)[:500])


def _as_sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return text and f"{text}."
