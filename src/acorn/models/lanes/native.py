"""A model that is asked by its own protocol, without LiteLLM.

A lane (`lane.py`) knows how its protocol is written and read; here a request is sent once, what the model will not
take is learned, and what goes wrong becomes a `ModelError`. Retries are made around it, by `retrying.py`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NoReturn

from pydantic_core import from_json

from acorn._formats.redact import redact
from acorn.errors import ModelError
from acorn.models.failures import (
    BROKEN,
    GARBLED,
    LATE,
    FailureDetails,
    Refusals,
    advice,
    as_taken,
    causes,
    clean,
    droppable,
    is_too_long,
    secrets_of,
    speaks_of,
    strict_by_user,
)
from acorn.models.lanes.http import Post, ResponseTimeoutError, TransportError, send
from acorn.models.lanes.http_async import asend
from acorn.models.lanes.http_response import Events
from acorn.models.lanes.lane import OURS, PRICES, ConnectionLostError, Lane, ProviderError
from acorn.models.port import Delta, ModelRequest, ModelResponse, Price, RequestNotSupportedError, ResendError, price_in
from acorn.models.providers import Tokens, own_address, prices_of
from acorn.models.retry import TIMEOUT, connect_seconds, retry_after, seconds_of


class _NativeAttempt:
    """One request under way."""

    __slots__ = ("left_out", "outer", "request")

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.left_out: set[str] = set() if request.left_out is None else request.left_out
        """What it found the model not to take."""
        self.outer = sys.exception()
        """What the caller was handling when it began: no cause of what happens here."""


class NativeModel:
    """One model of one provider, asked by a lane."""

    def __init__(self, config: Mapping[str, Any], lane: Lane) -> None:
        self.name: str = config.get("model") or config["id"]
        self.provider = lane.provider
        self.lane = lane
        self._config = config
        self._settings = {key: value for key, value in config.items() if key not in (*OURS, *PRICES)}
        self._refusals = Refusals(self.name, self._settings)
        self._timeout = seconds_of(config.get("timeout", config.get("request_timeout", TIMEOUT)))
        self._connect = connect_seconds(self._timeout)
        self._price = price_in(config)
        """What the model dict says that a token costs."""

    def __repr__(self) -> str:
        return f"{type(self.lane).__name__}({self.name!r})"

    # What it can do

    @property
    def thinks(self) -> bool:
        return self.lane.thinks

    @property
    def takes_strict(self) -> bool:
        return self.provider == "openai" and own_address(self.provider, self._config) is None

    def takes_tool(self, tool: Mapping[str, Any]) -> bool:
        return self.lane.takes_tool(tool)

    def can_force_tool(self, request: ModelRequest) -> bool:
        return "tool_choice" not in self._refusals.known and self.lane.can_force_tool()

    def price(self) -> Price | None:
        if self._price is not None:
            return self._price
        known = prices_of(self.provider, self.lane.name)
        return None if known is None else Price(known.input / 1e6, known.output / 1e6)

    def cost(self, used: Tokens | None) -> float | None:
        """Dollars; None where nobody knows, or where the loop counts by a price that was given."""
        if used is None or self._price is not None:
            return None
        known = prices_of(self.provider, self.lane.name)
        return None if known is None else known.of(used)

    # Asking it

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
                self._raise_broken(error, attempt)
            if incoming.status < 300:
                return self._response(data, attempt)
            self._learn_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)

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
                self._raise_broken(error, attempt)
            if incoming.status < 300:
                return self._response(data, attempt)
            self._learn_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)

    def stream(self, request: ModelRequest) -> Iterator[Delta]:
        attempt = _NativeAttempt(request)
        reading = _Reading(self, attempt)
        try:
            while True:
                incoming = send(self._post(attempt, is_stream=True))
                try:
                    if incoming.status < 300:
                        self._refusals.remember(attempt.left_out)
                        reading.is_stream = is_stream(incoming.header("content-type"))
                        for data in incoming.pieces():
                            yield from reading.read(data)
                            if reading.is_over:
                                incoming.finish()
                                break
                        break
                    data = incoming.read()
                    self._learn_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)
                finally:
                    incoming.close()
        except TransportError as error:
            if not reading.is_whole:
                self._raise_broken(error, attempt)
        yield from reading.end()

    async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        attempt = _NativeAttempt(request)
        reading = _Reading(self, attempt)
        try:
            while True:
                incoming = await asend(self._post(attempt, is_stream=True))
                try:
                    if incoming.status < 300:
                        self._refusals.remember(attempt.left_out)
                        reading.is_stream = is_stream(incoming.header("content-type"))
                        async for data in incoming.pieces():
                            for delta in reading.read(data):
                                yield delta
                            if reading.is_over:
                                break
                        break
                    data = await incoming.read()
                    self._learn_or_raise(incoming.status, data, incoming.header("retry-after"), attempt)
                finally:
                    incoming.close()
        except TransportError as error:
            if not reading.is_whole:
                self._raise_broken(error, attempt)
        for delta in reading.end():
            yield delta

    def _post(self, attempt: _NativeAttempt, *, is_stream: bool) -> Post:
        request = attempt.request
        try:
            url, headers = self.lane.address()
            left_out = self._refusals.known | attempt.left_out
            body = self.lane.body(as_taken(request, left_out), left_out, is_stream=is_stream)
        except ProviderError as error:
            self._raise(FailureDetails(), str(error), error, attempt, is_refused=True)
        until = None if request.timeout is None else time.monotonic() + request.timeout
        return Post(url, headers, body, self._connect, self._timeout, until)

    # Reading the answer

    def _response(self, data: bytes, attempt: _NativeAttempt) -> ModelResponse:
        self._refusals.remember(attempt.left_out)
        try:
            response, used = self.lane.read(json_of(data))
        except ProviderError as error:
            self._raise_told(error, attempt)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self._raise_garbled(data, error, attempt)
        response.model = response.model or self.name
        response.cost = self.cost(used)
        self._refusals.check_forced(
            attempt.request.forced_tool, {made.name for made in response.tool_calls}, response.stop_reason
        )
        return response

    # Failing

    def _learn_or_raise(self, status: int, data: bytes, wait: str | None, attempt: _NativeAttempt) -> None:
        """Return where the same request without a refused parameter may work; raise `ModelError` otherwise."""
        text = words_of_answer(data)
        request, left_out = attempt.request, attempt.left_out
        set_by_user = self._set_by_user(attempt)
        if status in (400, 422) and not is_too_long(text):
            for name, mark in droppable(request, set_by_user):
                if speaks_of(text, name) and mark not in left_out | self._refusals.known:
                    left_out.add(mark)
                    if request.left_out is not None:
                        raise ResendError(f"`{self.name}` does not take `{name}`", status=status)
                    return
        else:
            self._refusals.remember(left_out)
        self._raise(FailureDetails(status), text, ProviderError(text, status), attempt, retry_after(wait))

    def _set_by_user(self, attempt: _NativeAttempt) -> set[str]:
        """What the user has set, one way or the other."""
        found = {*attempt.request.declared, *self._settings} - {"strict"}
        return found | {"strict"} if strict_by_user(attempt.request) else found

    def _raise_broken(self, error: TransportError, attempt: _NativeAttempt) -> NoReturn:
        is_late = isinstance(error, ResponseTimeoutError)
        self._raise(
            FailureDetails(trouble=LATE if is_late else BROKEN),
            "" if is_late else _sentence(str(error)),
            error,
            attempt,
        )

    def _raise_told(self, error: ProviderError, attempt: _NativeAttempt) -> NoReturn:
        """What a provider says went wrong in an answer that seemed well: its code is as good as a status."""
        self._raise(FailureDetails(error.status, trouble="" if error.status else GARBLED), str(error), error, attempt)

    def _raise_garbled(self, data: bytes, error: Exception, attempt: _NativeAttempt) -> NoReturn:
        text = data[:200].decode("utf-8", "replace").strip()
        words = f"It answered with {text!r}." if text else "It answered with nothing."
        self._raise(FailureDetails(trouble=GARBLED), words, error, attempt)

    def _raise(
        self,
        wire: FailureDetails,
        text: str,
        cause: BaseException,
        attempt: _NativeAttempt,
        wait: float | None = None,
        *,
        is_refused: bool = False,
    ) -> NoReturn:
        secrets = secrets_of(self._config, attempt.request)
        clean(causes(cause, attempt.outer), secrets)
        text = redact(text, secrets)
        is_refused = is_refused or wire.status in (400, 422)
        hint = advice(
            wire, text, self._set_by_user(attempt), self.name, is_bad_request=is_refused, is_too_long=is_too_long(text)
        )
        words = filter(None, (text, hint))
        what = f" ({wire.what})" if wire.what else ""
        kind = RequestNotSupportedError if isinstance(cause, ConnectionLostError) else ModelError
        raise kind(
            f"`{self.name}` failed{what}: {' '.join(words)}".removesuffix(": "),
            provider=self.provider,
            status=wire.status,
            retryable=wire.may_pass,
            retry_after=wait,
        ) from cause


class _Reading:
    """A streamed answer as it comes."""

    def __init__(self, model: NativeModel, attempt: _NativeAttempt) -> None:
        self._model, self._attempt = model, attempt
        self._events = Events()
        self._reader = model.lane.reader()
        self._head: bytes | None = b""
        """What came before the first event, to show what came instead of a stream."""
        self.is_over = False
        self.is_stream = True
        """Whether the server says that this is one."""

    @property
    def is_whole(self) -> bool:
        """Whether the answer has its end, so that nothing is lost if the connection breaks now."""
        return self.is_over or bool(self._reader.stop_reason)

    def read(self, data: bytes) -> Iterator[Delta]:
        model, understand = self._model, self._reader.read
        for text in self._events.feed(data):
            self._head = None
            if text == b"[DONE]":
                self.is_over = True
                return
            try:
                delta = understand(json_of(text))
            except ProviderError as error:
                model._raise_told(error, self._attempt)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                model._raise_garbled(text, error, self._attempt)
            if delta is not None:
                yield delta if delta.usage is None else self._priced(delta)
        if self._head is not None and len(self._head) < 1000:
            self._head += data

    def _priced(self, delta: Delta) -> Delta:
        if delta.usage is not None:
            delta.cost = self._model.cost(self._reader.used)
        return delta

    def end(self) -> Iterator[Delta]:
        model, reader = self._model, self._reader
        if not self.is_over and self._events.ends_well():
            yield from self.read(b"\n")
        if self._head and not self.is_stream:
            model._raise_garbled(self._head, ProviderError("no stream"), self._attempt)
        if not self.is_whole:
            words = "the stream broke off before the answer was complete."
            model._raise(FailureDetails(trouble=BROKEN), words, TransportError(words), self._attempt)
        if (last := reader.end()) is not None:
            yield self._priced(last)
        model._refusals.check_forced(self._attempt.request.forced_tool, reader.called, reader.stop_reason)


def is_stream(content_type: str | None) -> bool:
    return bool(content_type) and str(content_type).startswith("text/event-stream")


def json_of(data: bytes) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)  # slower, but it takes half a letter, whose other half may come with the next event


def words_of_answer(data: bytes) -> str:
    """What a provider says of a request that it does not take."""
    try:
        answer: Any = json_of(data)
    except ValueError:
        return _sentence(data.decode("utf-8", "replace").strip()[:500])
    inner: Any = answer.get("error", answer) if isinstance(answer, dict) else answer
    found: Any = inner.get("message", inner.get("detail")) if isinstance(inner, dict) else inner
    return _sentence(found if isinstance(found, str) else str(answer)[:500])


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return text and f"{text}."
