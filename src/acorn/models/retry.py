"""Retries: timeouts in a model dict, the `Retry-After` header, and a model wrapper that repeats failed requests.

Adapters never retry a failed request. Their `ModelError` says whether the request may succeed later, and after how many
seconds. This module decides whether and when to retry. A stream is retried only before its first delta was delivered.
`resolve` wraps every model that needs retries. You can also wrap a model yourself:

    model = RetryingModel(MyModel(), RetryPolicy(count=5))
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from itertools import repeat
from typing import Any

from acorn._base.clock import current_clock
from acorn._base.log import logger
from acorn.errors import DeclarationError, ModelError
from acorn.models.attempts import Attempt, ModelWrapper, Outcome, TimeBudget
from acorn.models.port import Model, RetryEvent, report_retry
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

    def attempts(self, request: ModelRequest) -> Iterator[Attempt]:
        return repeat(_RetryAttempt(self._model, self.policy, request))


class _RetryAttempt(Attempt):
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
