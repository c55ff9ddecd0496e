"""What an HTTP answer says of asking again: its status, and its `Retry-After`.

For adapters, which put it into their `ModelError`; whether and when it is done is decided in `retrying`.

How long is waited for a provider: what a model dict may say of it, and what counts where it says nothing.

For the adapters of providers.

Any model of the port, asked again when it fails. The only rule there is: nothing below us retries.

What may pass, and when to come back, an adapter says in its `ModelError`; here it is decided whether and when.
A stream is asked for again only while nothing of it was handed out. Put around a model by `resolve`, or by hand:

    model = Retrying(MyModel(), Retries(count=5))
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

from acorn._base.log import logger
from acorn.errors import DeclarationError, ModelError
from acorn.models.port import (
    Delta,
    Model,
    ModelRequest,
    ModelResponse,
    ModelWrapper,
    RetryEvent,
    StreamingModel,
    aclose_stream,
    close_stream,
    report_retry,
)

_PASSING = (408, 409, 429)


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in _PASSING or status >= 500


def retry_after(header: str | None) -> float | None:
    """`Retry-After` in seconds; a date is read too."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)


TIMEOUT = 600.0
"""Seconds for an answer where nobody has said otherwise."""
CONNECT_TIMEOUT = 10.0


def seconds_of(timeout: Any) -> float | None:
    """A timeout in seconds; None for no end."""
    try:
        seconds = None if timeout is None else float(timeout)
    except (ValueError, TypeError):
        seconds = -1.0
    if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
        raise DeclarationError(f"`timeout` must be a number of seconds above 0, or None for no end, got {timeout!r}.")
    return seconds


def connect_seconds(timeout: float | None) -> float:
    """How much of a timeout a connection may take."""
    return CONNECT_TIMEOUT if timeout is None else min(timeout, CONNECT_TIMEOUT)


LONGEST_WAIT = 60.0
"""A provider that asks for more is not waited for."""

T = TypeVar("T")
Noted = TypeVar("Noted", ModelResponse, Delta)


@dataclass(frozen=True)
class Retries:
    """How often, and after how long."""

    count: int = 2
    delay: float = 0.5
    """Seconds before the first retry; each further one waits twice as long."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Retries:
        """As a model dict has it."""
        return cls(config.get("num_retries", cls.count), config.get("retry_delay", cls.delay))

    def wait(self, error: ModelError, failed: int, left: float | None) -> float | None:
        """Seconds to wait after so many failures, or None to give up; `left` is what the run has."""
        if failed > self.count or not error.retryable:
            return None
        asked = error.retry_after
        if asked is not None and asked > LONGEST_WAIT:
            return None
        wait = self.delay * 2 ** min(failed - 1, 20) * random.uniform(0.75, 1.25)
        wait = min(LONGEST_WAIT, wait) if asked is None else asked
        return None if left is not None and wait >= left else wait


class Retrying(ModelWrapper):
    """A model that is asked again when it fails, and in all else the model that it wraps."""

    def __init__(self, model: Model, retries: Retries) -> None:
        super().__init__(model)
        self._retries = retries

    def around(self, wrap: Callable[[Model], Model]) -> Retrying:
        """The same with something between it and its model."""
        return Retrying(wrap(self._model), self._retries)

    def complete(self, request: ModelRequest) -> ModelResponse:
        attempts = _RetryAttempts(self, request)
        return attempts.noted(_ask(self._model.complete, attempts))

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        attempts = _RetryAttempts(self, request)
        return attempts.noted(await _aask(self._model.acomplete, attempts))

    # Whoever has the first piece has something of the answer: to begin a stream is what may be done again.

    def _stream(self, request: ModelRequest) -> Iterator[Delta]:
        attempts = _RetryAttempts(self, request)
        first, deltas = _ask(self._begin, attempts)
        try:
            yield attempts.noted(first)
            yield from deltas
        finally:
            close_stream(deltas)

    def _begin(self, request: ModelRequest) -> tuple[Delta, Iterator[Delta]]:
        deltas = cast("StreamingModel", self._model).stream(request)
        try:
            return next(deltas, Delta()), deltas
        except BaseException:
            close_stream(deltas)
            raise

    async def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        attempts = _RetryAttempts(self, request)
        first, deltas = await _aask(self._abegin, attempts)
        try:
            yield attempts.noted(first)
            async for delta in deltas:
                yield delta
        finally:
            await aclose_stream(deltas)

    async def _abegin(self, request: ModelRequest) -> tuple[Delta, AsyncIterator[Delta]]:
        deltas = cast("StreamingModel", self._model).astream(request)
        try:
            return await anext(deltas, Delta()), deltas
        except BaseException:
            await aclose_stream(deltas)
            raise


def _ask(act: Callable[[ModelRequest], T], attempts: _RetryAttempts) -> T:
    """Do it until it succeeds, or fails for good."""
    while True:
        try:
            return act(attempts.request())
        except ModelError as error:
            wait = attempts.wait(error)
            if wait is None:
                raise
        time.sleep(wait)  # behind the handler: what fails next has not failed because of this


async def _aask(act: Callable[[ModelRequest], Awaitable[T]], attempts: _RetryAttempts) -> T:
    while True:
        try:
            return await act(attempts.request())
        except ModelError as error:
            wait = attempts.wait(error)
            if wait is None:
                raise
        await asyncio.sleep(wait)


class _RetryAttempts:
    """The attempts at one request."""

    def __init__(self, model: Retrying, request: ModelRequest) -> None:
        self._model = model
        self._request = request
        self._waits: tuple[float, ...] = ()
        self._began = time.monotonic()

    def request(self) -> ModelRequest:
        """What to send next: at first the request itself, later with what is left of its time."""
        left = self._left if self._waits else None
        return self._request if left is None else replace(self._request, timeout=max(0.001, left))

    @property
    def _left(self) -> float | None:
        """Seconds that the run has; None is no end."""
        timeout = self._request.timeout
        return None if timeout is None else timeout - (time.monotonic() - self._began)

    def wait(self, error: ModelError) -> float | None:
        """Seconds to wait before it is sent again; None to give up."""
        retries, failed = self._model._retries, len(self._waits) + 1
        wait = retries.wait(error, failed, self._left)
        if wait is not None:
            self._waits += (wait,)
            what = "no answer" if error.status is None else f"HTTP {error.status}"
            # Not the error's own words: they may be the provider's, and tell of the conversation.
            logger.info(
                "`%s` failed (%s); attempt %d of %d follows in %.2f s.",
                *(self._model.name, what, failed + 1, retries.count + 1, wait),
            )
            report_retry(RetryEvent(self._model.name, error.status, wait))
        return wait

    def noted(self, outcome: Noted) -> Noted:
        """The outcome, with what it took."""
        if not self._waits:
            return outcome
        return replace(outcome, attempts=len(self._waits) + 1, waits=self._waits)
