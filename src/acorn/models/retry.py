"""Retries: timeouts in a model dict, the `Retry-After` header, and a model wrapper that repeats failed requests.

Adapters never retry a failed request. Their `ModelError` says whether the request may succeed later, and after how many
seconds. This module decides whether and when to retry. A stream is retried only before its first delta was delivered.
`resolve` wraps every model that needs retries. You can also wrap a model yourself:

    model = RetryingModel(MyModel(), RetryPolicy(count=5))
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from acorn._base.clock import current_clock
from acorn._base.log import logger
from acorn.errors import DeclarationError, ModelError
from acorn.models.port import (
    Delta,
    Model,
    ModelResponse,
    ModelWrapper,
    RetryEvent,
    StreamingModel,
    aclose_stream,
    close_stream,
    report_retry,
)
from acorn.models.request import ModelRequest
from acorn.types import JsonObject


def parse_retry_after(header: str | None) -> float | None:
    """Return the number of seconds to wait that a `Retry-After` header asks for, as a number or as a date.

    Return None if the header is missing or not valid.
    """
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - current_clock().time()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)


DEFAULT_TIMEOUT = 600.0
"""The maximum seconds to wait for a response if the user sets no timeout."""
CONNECT_TIMEOUT = 10.0
"""The maximum seconds to wait for a connection."""


def parse_timeout(timeout: Any) -> float | None:
    """Return the timeout of a model dict in seconds, or None for no limit.

    Raise `DeclarationError` if the timeout is not valid.
    """
    try:
        seconds = None if timeout is None else float(timeout)
    except (ValueError, TypeError):
        seconds = -1.0
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise DeclarationError(
            f"`timeout` must be a number of seconds greater than 0, or None for no limit, but it is {timeout!r}. "
            f"Change it in the model dict."
        )
    return seconds


def connect_timeout(timeout: float | None) -> float:
    """Return the maximum seconds to wait for a connection, which is never longer than the timeout for the response."""
    return CONNECT_TIMEOUT if timeout is None else min(timeout, CONNECT_TIMEOUT)


LONGEST_WAIT = 60.0
"""The maximum seconds to wait before a retry. If a provider asks for a longer wait, acorn does not retry."""

T = TypeVar("T")
Outcome = TypeVar("Outcome", ModelResponse, Delta)


@dataclass(frozen=True)
class RetryPolicy:
    """The maximum number of retries and the delay before each retry."""

    count: int = 2
    """The maximum number of retries after the first attempt."""
    delay: float = 0.5
    """The seconds before the first retry. The delay doubles before each further retry."""

    @classmethod
    def of(cls, config: JsonObject) -> RetryPolicy:
        """Create a policy from the keys `num_retries` and `retry_delay` of a model dict."""
        return cls(config.get("num_retries", cls.count), config.get("retry_delay", cls.delay))

    def wait(self, error: ModelError, failures: int, time_left: float | None) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the request must not be retried.

        `failures` is the number of failed attempts. `time_left` is the number of seconds that the run has left.
        """
        if failures > self.count or not error.retryable:
            return None
        requested = error.retry_after
        if requested is not None and requested > LONGEST_WAIT:
            return None
        wait = self.delay * 2 ** min(failures - 1, 20) * random.uniform(0.75, 1.25)
        wait = min(LONGEST_WAIT, wait) if requested is None else requested
        return None if time_left is not None and wait >= time_left else wait


class RetryingModel(ModelWrapper):
    """A wrapper around a model that sends a request again if it failed with a temporary error."""

    def __init__(self, model: Model, policy: RetryPolicy) -> None:
        super().__init__(model)
        self.policy = policy

    def wrap_inner(self, wrap: Callable[[Model], Model]) -> RetryingModel:
        """Return a copy of this wrapper around `wrap(model)`, where `model` is the model inside this wrapper."""
        return RetryingModel(wrap(self._model), self.policy)

    def complete(self, request: ModelRequest) -> ModelResponse:
        attempts = _RetryAttempts(self, request)
        return attempts.annotate(_send(self._model.complete, attempts))

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        attempts = _RetryAttempts(self, request)
        return attempts.annotate(await _asend(self._model.acomplete, attempts))

    # Only the start of a stream can be retried. After the first delta, the caller has received a part of the response.

    def _stream(self, request: ModelRequest) -> Iterator[Delta]:
        attempts = _RetryAttempts(self, request)
        first, deltas = _send(self._start_stream, attempts)
        try:
            yield attempts.annotate(first)
            yield from deltas
        finally:
            close_stream(deltas)

    def _start_stream(self, request: ModelRequest) -> tuple[Delta, Iterator[Delta]]:
        deltas = cast("StreamingModel", self._model).stream(request)
        try:
            return next(deltas, Delta()), deltas
        except BaseException:
            close_stream(deltas)
            raise

    async def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        attempts = _RetryAttempts(self, request)
        first, deltas = await _asend(self._astart_stream, attempts)
        try:
            yield attempts.annotate(first)
            async for delta in deltas:
                yield delta
        finally:
            await aclose_stream(deltas)

    async def _astart_stream(self, request: ModelRequest) -> tuple[Delta, AsyncIterator[Delta]]:
        deltas = cast("StreamingModel", self._model).astream(request)
        try:
            return await anext(deltas, Delta()), deltas
        except BaseException:
            await aclose_stream(deltas)
            raise


def _send(send: Callable[[ModelRequest], T], attempts: _RetryAttempts) -> T:
    """Send a request and return its result.

    Retry the request after temporary errors. If it must not be retried any more, raise the last error.
    """
    while True:
        try:
            return send(attempts.next_request())
        except ModelError as error:
            wait = attempts.wait_after(error)
            if wait is None:
                raise
        attempts.clock.sleep(wait)  # Sleep outside the handler, so that the next error is not chained to this one.


async def _asend(send: Callable[[ModelRequest], Awaitable[T]], attempts: _RetryAttempts) -> T:
    while True:
        try:
            return await send(attempts.next_request())
        except ModelError as error:
            wait = attempts.wait_after(error)
            if wait is None:
                raise
        await attempts.clock.asleep(wait)


class _RetryAttempts:
    """The attempts to send one request.

    This class records the waits between the attempts.
    """

    def __init__(self, model: RetryingModel, request: ModelRequest) -> None:
        self._model = model
        self._request = request
        self._waits: tuple[float, ...] = ()
        self.clock = current_clock()
        self._started = self.clock.monotonic()

    def next_request(self) -> ModelRequest:
        """Return the request for the next attempt.

        Its timeout is shortened to the time that the run has left.
        """
        time_left = self._time_left if self._waits else None
        return self._request if time_left is None else replace(self._request, timeout=max(0.001, time_left))

    @property
    def _time_left(self) -> float | None:
        """The seconds that the run has left, or None if it has no time limit."""
        timeout = self._request.timeout
        return None if timeout is None else timeout - (self.clock.monotonic() - self._started)

    def wait_after(self, error: ModelError) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the request must not be retried.

        If the request is retried, this method also logs and reports it.
        """
        policy, failures = self._model.policy, len(self._waits) + 1
        wait = policy.wait(error, failures, self._time_left)
        if wait is not None:
            self._waits += (wait,)
            cause = "no response" if error.status is None else f"HTTP {error.status}"
            # Do not log the error message: it may come from the provider and quote the conversation.
            logger.info(
                "`%s` failed (%s). Attempt %d of %d follows in %.2f s.",
                *(self._model.name, cause, failures + 1, policy.count + 1, wait),
            )
            report_retry(RetryEvent(self._model.name, error.status, wait))
        return wait

    def annotate(self, outcome: Outcome) -> Outcome:
        """Return a copy of a response, or of its first delta, with the number of attempts and the waits."""
        if not self._waits:
            return outcome
        return replace(outcome, attempts=len(self._waits) + 1, waits=self._waits)
