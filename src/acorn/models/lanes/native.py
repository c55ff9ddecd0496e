"""`NativeModel`, the model class for all native lanes.

It sends requests and converts failures to `ModelError`. A lane (`lane.py`) encodes the requests and decodes the
responses of one protocol. This module sends each request only once, with one exception: if the model rejects a default
setting, it sends the request again without that setting. All other retries are in `retry.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from math import inf
from typing import Any, NoReturn

from pydantic_core import from_json

from acorn._base.clock import current_clock
from acorn.errors import ModelError
from acorn.models.failures import (
    NO_CONNECTION,
    TIMED_OUT,
    TOO_LARGE,
    UNREADABLE,
    Attempt,
    FailureDetails,
    RejectedSettings,
)
from acorn.models.lanes.http import IncomingResponse, Post, send
from acorn.models.lanes.http_async import AsyncIncomingResponse, asend
from acorn.models.lanes.http_response import EventParser, ResponseTimeoutError, ResponseTooLargeError, TransportError
from acorn.models.lanes.lane import COMMON_KEYS, Lane, ProviderError, UnsupportedContentError
from acorn.models.port import Delta, ModelResponse, Price, RequestNotSupportedError
from acorn.models.request import ModelRequest
from acorn.models.retry import DEFAULT_TIMEOUT, connect_timeout, parse_max_bytes, parse_timeout
from acorn.types import JsonObject, JsonValue

_READ_ERRORS = (ProviderError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions of a lane that cannot read a response. If the response is nested too deep, it is `RecursionError`."""


class NativeModel:
    """A model that acorn reaches through a native lane."""

    def __init__(self, lane: Lane) -> None:
        config = lane.config
        self.name: str = config.get("model") or config["id"]
        self.provider = lane.provider
        self.lane = lane
        settings = {key: value for key, value in config.items() if key not in COMMON_KEYS}
        self.rejected = RejectedSettings(self.name, settings)
        self._timeout = parse_timeout(config.get("timeout", config.get("request_timeout", DEFAULT_TIMEOUT)))
        self._connect_timeout = connect_timeout(self._timeout)
        self.max_bytes = parse_max_bytes(config)

    def __repr__(self) -> str:
        return f"{type(self.lane).__name__}({self.name!r})"

    # Properties

    @property
    def thinks(self) -> bool:
        return self.lane.thinks

    @property
    def takes_strict(self) -> bool:
        return self.provider == "openai" and not self.lane.has_custom_address

    def takes_tool(self, tool: JsonObject) -> bool:
        return self.lane.takes_tool(tool)

    def can_force_tool(self, request: ModelRequest) -> bool:
        return "tool_choice" not in self.rejected.known and self.lane.can_force_tool()

    def price(self) -> Price | None:
        return self.lane.price()

    # Sending

    def complete(self, request: ModelRequest) -> ModelResponse:
        attempt = self._attempt(request)
        while True:
            try:
                with closing(send(self._post(attempt, is_stream=False))) as incoming:
                    data = incoming.read()
            except TransportError as error:
                self._raise_transport_error(error, attempt)
            if incoming.status < 300:
                return self._read_response(data, attempt)
            self._raise_unless_resent(incoming, data, attempt)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        attempt = self._attempt(request)
        while True:
            try:
                with closing(await asend(self._post(attempt, is_stream=False))) as incoming:
                    data = await incoming.read()
            except TransportError as error:
                self._raise_transport_error(error, attempt)
            if incoming.status < 300:
                return self._read_response(data, attempt)
            self._raise_unless_resent(incoming, data, attempt)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        response = _NativeStream(self, self._attempt(request))
        try:
            while not response.is_accepted:
                with closing(send(self._post(response.attempt, is_stream=True))) as incoming:
                    if incoming.status >= 300:
                        self._raise_unless_resent(incoming, incoming.read(), response.attempt)
                        continue
                    response.accept(incoming)
                    for data in incoming.pieces():
                        yield from response.read(data)
                        if response.is_done:
                            incoming.finish()
                            break
        except TransportError as error:
            if not response.is_complete:
                self._raise_transport_error(error, response.attempt)
        yield from response.finish()

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        response = _NativeStream(self, self._attempt(request))
        try:
            while not response.is_accepted:
                with closing(await asend(self._post(response.attempt, is_stream=True))) as incoming:
                    if incoming.status >= 300:
                        self._raise_unless_resent(incoming, await incoming.read(), response.attempt)
                        continue
                    response.accept(incoming)
                    async for data in incoming.pieces():
                        for delta in response.read(data):
                            yield delta
                        if response.is_done:
                            break
        except TransportError as error:
            if not response.is_complete:
                self._raise_transport_error(error, response.attempt)
        for delta in response.finish():
            yield delta

    def _attempt(self, request: ModelRequest) -> Attempt:
        return Attempt(request, self.rejected, self.lane.config)

    def _post(self, attempt: Attempt, *, is_stream: bool) -> Post:
        try:
            url, headers = self.lane.address()
            request, left_out = attempt.to_send()
            body = self.lane.body(request, left_out, is_stream=is_stream)
        except ProviderError as error:
            self.raise_failure(FailureDetails(), str(error), error, attempt)
        now = current_clock().monotonic()
        deadline = inf if request.timeout is None else now + request.timeout
        start_deadline = deadline if self._timeout is None else min(deadline, now + self._timeout)
        return Post(
            *(url, headers, body, self._connect_timeout, self._timeout),
            deadline=None if deadline == inf else deadline,
            start_deadline=None if start_deadline == inf else start_deadline,
            max_bytes=self.max_bytes,
            is_stream=is_stream,
        )

    def _read_response(self, data: bytes, attempt: Attempt) -> ModelResponse:
        attempt.on_accepted()
        try:
            response = self.lane.read(parse_json(data))
        except _READ_ERRORS as error:
            self.raise_unreadable(data, error, attempt)
        response.model = response.model or self.name
        called_names = {call.name for call in response.tool_calls}
        self.rejected.check_forced(attempt.request.forced_tool, called_names, response.stop_reason)
        return response

    # Failures

    def _raise_unless_resent(
        self, incoming: IncomingResponse | AsyncIncomingResponse, data: bytes, attempt: Attempt
    ) -> None:
        """Raise `ModelError` for a failed response, unless the model rejected a default setting.

        If this method returns, the caller must send the request again without the rejected setting.
        """
        status, message = incoming.status, error_message_in(data)
        if status not in (400, 422):
            attempt.on_accepted()
        elif attempt.on_rejected(message, status):
            return
        failure = FailureDetails(status, {"retry-after": incoming.header("retry-after") or ""})
        self.raise_failure(failure, message, ProviderError(message, status), attempt)

    def _raise_transport_error(self, error: TransportError, attempt: Attempt) -> NoReturn:
        if isinstance(error, ResponseTimeoutError):
            self.raise_failure(FailureDetails(problem=TIMED_OUT), "", error, attempt)
        if isinstance(error, ResponseTooLargeError):
            self.raise_failure(FailureDetails(problem=TOO_LARGE), str(error), error, attempt)
        self.raise_failure(FailureDetails(problem=NO_CONNECTION), _as_sentence(str(error)), error, attempt)

    def raise_unreadable(self, data: bytes, error: Exception, attempt: Attempt) -> NoReturn:
        """Raise `ModelError` for a response that reports an error, or that has an unexpected format."""
        if isinstance(error, ProviderError):
            problem = "" if error.status else UNREADABLE
            self.raise_failure(FailureDetails(error.status, problem=problem), str(error), error, attempt)
        text = data[:200].decode("utf-8", "replace").strip()
        message = f"The response was {text!r}." if text else "The response was empty."
        self.raise_failure(FailureDetails(problem=UNREADABLE), message, error, attempt)

    def raise_failure(self, failure: FailureDetails, message: str, cause: BaseException, attempt: Attempt) -> NoReturn:
        _, redactor = attempt.redact_causes(cause)
        message = redactor.text(message)
        # A failure without a label comes from acorn, which rejected the request before it was sent.
        is_bad_request = failure.status in (400, 422) or not failure.label
        suggestion = attempt.suggest_fix(failure, message, is_bad_request=is_bad_request)
        error_class = RequestNotSupportedError if isinstance(cause, UnsupportedContentError) else ModelError
        raise attempt.error(self.provider, failure, message, suggestion, error_class=error_class) from cause


class _NativeStream:
    """A streamed response in progress.

    It converts the bytes of the response to deltas.
    """

    def __init__(self, model: NativeModel, attempt: Attempt) -> None:
        self._model, self.attempt = model, attempt
        self._events = EventParser(model.max_bytes)
        self._reader = model.lane.stream_reader()
        self._head: bytes | None = b""
        """The bytes before the first event, or None if the response is a stream of events. An error message quotes
        these bytes."""
        self.is_done = False
        """Whether the event that ends the stream has arrived."""
        self.is_accepted = False
        """Whether the provider has accepted the request."""

    def accept(self, incoming: IncomingResponse | AsyncIncomingResponse) -> None:
        self.is_accepted = True
        if (incoming.header("content-type") or "").startswith("text/event-stream"):
            self._head = None
        self.attempt.on_accepted()

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
            except _READ_ERRORS as error:
                model.raise_unreadable(text, error, self.attempt)
            if delta is not None:
                yield delta
        if self._head is not None and len(self._head) < 1000:
            self._head += data

    def finish(self) -> Iterator[Delta]:
        model, reader = self._model, self._reader
        if not self.is_done and self._events.ends_with_event():
            yield from self.read(b"\n")
        if self._head:
            model.raise_unreadable(
                self._head,
                ValueError("The response is not a stream of server-sent events, although the request asked for one."),
                self.attempt,
            )
        if not self.is_complete:
            message = "The stream ended before the response was complete."
            model.raise_failure(FailureDetails(problem=NO_CONNECTION), message, TransportError(message), self.attempt)
        try:
            last = reader.finish()
        except _READ_ERRORS as error:
            model.raise_unreadable(b"", error, self.attempt)
        if last is not None:
            yield last
        model.rejected.check_forced(self.attempt.request.forced_tool, reader.called_names, reader.stop_reason)


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
        error: JsonValue = answer.get("error", answer) if isinstance(answer, dict) else answer
        message: JsonValue = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        return _as_sentence(message if isinstance(message, str) else str(answer)[:500])
    except (ValueError, RecursionError):
        return _as_sentence(data.decode("utf-8", "replace").strip()[:500])


def _as_sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return text and f"{text}."
