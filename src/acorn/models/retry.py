"""Attempts: the base classes of models that send a request to other models in several attempts, and retries.

Retries, lists of models (`fallback.py`) and rate limits (`limits.py`) differ only in their attempts. `AttemptingModel`
sends the attempts in all four ways: complete or streamed, blocking or on the event loop.

Adapters never retry a failed request. Their `ModelError` says whether the request may succeed later, and after how many
seconds. `RetryingModel` decides whether and when to retry. A stream is retried only before its first delta was
delivered. `resolve` wraps every model that needs retries. You can also wrap a model yourself:

    model = RetryingModel(MyModel(), RetryPolicy(count=5))
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from itertools import repeat
from typing import Any, TypeVar

from acorn._base.clock import current_clock
from acorn._base.log import logger
from acorn.errors import DeclarationError, ModelError
from acorn.models.assemble import as_deltas
from acorn.models.port import (
    Delta,
    Model,
    ModelResponse,
    Price,
    RetryEvent,
    can_stream,
    check_response,
    complete_async,
    report_retry,
)
from acorn.models.request import ModelRequest
from acorn.types import JsonObject

# Timeouts


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


# Attempts

Outcome = TypeVar("Outcome", ModelResponse, Delta)


class ModelAttempt:
    """An attempt to get a response from one model, as a context manager.

    If the request fails in the `with` block and another attempt follows, the context manager suppresses the error. No
    other attempt may follow after the first delta of a stream, because the caller has already received it.
    """

    model: Model
    in_progress: AbstractContextManager[Any] = nullcontext()
    """A further context manager for the time of the attempt."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        raise NotImplementedError

    def acquire(self) -> None:
        """Wait until the request may be sent."""

    async def aacquire(self) -> None:
        """Wait until the request may be sent, without blocking the event loop."""

    def request(self) -> ModelRequest:
        """Return the request to send."""
        raise NotImplementedError

    def add_first(self, outcome: Outcome) -> Outcome:
        """Return a complete response, or the first delta of a stream, with the facts that this attempt adds."""
        return self.add(outcome)

    def add(self, outcome: Outcome) -> Outcome:
        """Return a further delta of a stream with the facts that this attempt adds."""
        return outcome


class AttemptingModel(ABC):
    """The base class of models that send each request in one or more attempts."""

    @abstractmethod
    def attempts(self, request: ModelRequest) -> Iterator[ModelAttempt]:
        """Yield the attempts to get a response. The last attempt must not suppress its error."""

    def complete(self, request: ModelRequest) -> ModelResponse:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                attempt.acquire()
                response = attempt.model.complete(attempt.request())
                return attempt.add_first(check_response(response, attempt.model))
        raise AssertionError("The attempts ended without a response or an error. This is a bug in acorn.")

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                await attempt.aacquire()
                response = await complete_async(attempt.model, attempt.request())
                return attempt.add_first(check_response(response, attempt.model))
        raise AssertionError("The attempts ended without a response or an error. This is a bug in acorn.")

    def stream(self, request: ModelRequest) -> Generator[Delta]:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                attempt.acquire()
                deltas = _stream(attempt.model, attempt.request())
                try:
                    yield attempt.add_first(next(deltas, Delta()))
                    yield from map(attempt.add, deltas)
                finally:
                    if (close := getattr(deltas, "close", None)) is not None:  # A user's model may return any iterator.
                        close()
                return

    async def astream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        for attempt in self.attempts(request):
            with attempt, attempt.in_progress:
                await attempt.aacquire()
                deltas = _astream(attempt.model, attempt.request())
                try:
                    yield attempt.add_first(await anext(deltas, Delta()))
                    async for delta in deltas:
                        yield attempt.add(delta)
                finally:
                    if (aclose := getattr(deltas, "aclose", None)) is not None:
                        await aclose()
                return


def _stream(model: Model, request: ModelRequest) -> Iterator[Delta]:
    return model.stream(request) if can_stream(model) else iter(as_deltas(model.complete(request)))


def _astream(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    return model.astream(request) if can_stream(model) else _acomplete_as_stream(model, request)


async def _acomplete_as_stream(model: Model, request: ModelRequest) -> AsyncIterator[Delta]:
    for delta in as_deltas(await complete_async(model, request)):
        yield delta


class ModelWrapper(AttemptingModel):
    """The base class of models that add behavior, such as retries, and send their requests to one other model.

    All attributes that a subclass does not define are those of the wrapped model.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    @property
    def name(self) -> str:
        return self._model.name

    def can_force_tool(self, request: ModelRequest) -> bool:
        return self._model.can_force_tool(request)

    def price(self) -> Price | None:
        return self._model.price()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # `copy` and `pickle` look for these before `_model` exists.
            raise AttributeError(name)
        return getattr(self._model, name)


class TimeBudget:
    """The time that a run has left for one request."""

    def __init__(self, request: ModelRequest) -> None:
        self.clock = current_clock()
        self._timeout, self._started = request.timeout, self.clock.monotonic()

    @property
    def left(self) -> float | None:
        """The seconds that are left, or None if the run has no time limit."""
        return None if self._timeout is None else self._timeout - (self.clock.monotonic() - self._started)


# Retries

LONGEST_WAIT = 60.0
"""The maximum seconds to wait before a retry. If a provider asks for a longer wait, acorn does not retry."""


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

    def attempts(self, request: ModelRequest) -> Iterator[ModelAttempt]:
        return repeat(_RetryAttempt(self._model, self.policy, request))


class _RetryAttempt(ModelAttempt):
    """All attempts to send one request to the same model."""

    def __init__(self, model: Model, policy: RetryPolicy, request: ModelRequest) -> None:
        self.model = model
        self.original_request = request
        self._policy, self._time = policy, TimeBudget(request)
        self._waits: tuple[float, ...] = ()
        """The seconds of waiting before each repeated attempt."""
        self._has_started = False

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self._has_started or not isinstance(error, ModelError):
            return False
        failures = len(self._waits) + 1
        wait = self._policy.wait(error, failures, self._time.left)
        if wait is None:
            return False
        self._waits += (wait,)
        cause = "no response" if error.status is None else f"HTTP {error.status}"
        # Do not log the error message: it may come from the provider and quote the conversation.
        logger.info(
            "`%s` failed (%s). Attempt %d of %d follows in %.2f s.",
            *(self.model.name, cause, failures + 1, self._policy.count + 1, wait),
        )
        report_retry(RetryEvent(self.model.name, error.status, wait))
        return True

    def acquire(self) -> None:
        if self._waits:
            self._time.clock.sleep(self._waits[-1])

    async def aacquire(self) -> None:
        if self._waits:
            await self._time.clock.asleep(self._waits[-1])

    def request(self) -> ModelRequest:
        """Return the request. In a repeated attempt, its timeout is the time that the run has left."""
        left = self._time.left if self._waits else None
        return self.original_request if left is None else replace(self.original_request, timeout=max(0.001, left))

    def add_first(self, outcome: Outcome) -> Outcome:
        """Return a copy of a response, or of its first delta, with the number of attempts and the waits."""
        self._has_started = True
        if not self._waits:
            return outcome
        return replace(outcome, attempts=len(self._waits) + 1, waits=self._waits)
