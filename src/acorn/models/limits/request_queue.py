"""Queues of requests that wait for a rate limit or a concurrency limit.

A `QueuedRequest` passes its limits in a fixed order. Each limit has a first-in, first-out queue. A concurrency limit
counts a request until the request is finished. A rate limit is a sliding window: it counts a request for a number of
seconds after the request was sent.

The code that sends a request sets the attributes of its `QueuedRequest` and then passes it to `RequestQueues.update`.
This module performs no I/O and reads no clock. `limiter.py` contains the clock and the thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from math import inf

from acorn._declare.settings import RateLimit

_UNCERTAINTY = 0.1
"""The fraction by which a window is extended, since the time when a request reaches the provider is unknown."""
_MAX_UNCERTAINTY = 1.0
"""The maximum extension of a window in seconds. A longer extension would waste too much of a long window."""
_TOKENS_PER_BYTE = 0.25
"""The estimated tokens per byte of a request before the first response reports the real number."""
_RESPONSE_TOKENS = 500.0
"""The estimated tokens of a response before the first response reports the real number."""
_LEARNING_RATE = 0.25
"""The weight of the latest response in the estimates."""


def _ignore(seconds: float) -> None:
    """Do nothing.

    This function replaces the callback of a request that does not wait any longer.
    """


class QueuedRequest:
    """The state of one request, from the time when it starts to wait for its limits until it is finished."""

    __slots__ = (
        "error", "is_finished", "is_queued", "limits", "max_response_tokens", "notify", "passed_limits",
        "response_started", "send_by", "sent_at", "size", "used_tokens",
    )  # fmt: skip

    def __init__(self, limits: tuple[Limit, ...], size: int = 0, max_response_tokens: int | None = None) -> None:
        self.limits = limits
        self.size = size
        """The size of the request in bytes."""
        self.max_response_tokens = max_response_tokens
        """The maximum tokens of the response, or None if the user did not set a maximum."""
        self.notify: Callable[[float], object] = _ignore
        """The callback of the sender. Its argument is 0 if the request may be sent, else the seconds to wait. If the
        seconds are unknown, the argument is `inf`."""
        self.error: Exception | None = None
        """The error because of which the request can never be sent."""
        self.send_by = inf
        """The time by which an admitted request must be sent. After this time the request must queue again."""
        self.sent_at: float | None = None
        """The time when the request was sent."""
        self.response_started: float | None = None
        """The time when the first part of the response arrived."""
        self.used_tokens: tuple[int, int] | None = None
        """The input tokens and the output tokens that the provider reported."""
        self.is_finished = False
        """Whether the request is finished or abandoned."""
        self.is_queued = False
        """Whether `RequestQueues` has put the request into its first queue."""
        self.passed_limits = 0
        """The number of limits that the request has passed."""


class Limit(ABC):
    """A limit on requests, with a queue of the requests that wait until the limit admits them."""

    name = ""
    """The name of the setting, such as `rate_limit`."""

    def __init__(self) -> None:
        self.queue: deque[QueuedRequest] = deque()

    @abstractmethod
    def seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        """Return the seconds until the limit may admit a request, or 0 if it may admit the request now.

        Return `inf` if the time is unknown because it depends on other requests.
        """

    @abstractmethod
    def admit(self, request: QueuedRequest) -> None:
        """Admit a request: count it as a request that passed the limit."""

    @abstractmethod
    def update(self, request: QueuedRequest, now: float) -> None:
        """Update the count of the limit after a request was sent or finished."""

    @property
    def is_waiting_for_store(self) -> bool:
        """True while a store decides whether the limit may admit further requests."""
        return False

    def report_if_due(self, now: float) -> float:
        """Report the used requests to the store if it is time to do so, and return the time of the next report.

        Only a limit that several processes share through a store sends reports. Other limits return `inf`.
        """
        return inf


class ConcurrencyLimit(Limit):
    """A limit on the number of requests that are in progress at the same time."""

    name = "max_concurrency"

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._in_progress: set[QueuedRequest] = set()

    def seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        return 0.0 if len(self._in_progress) < self._count else inf

    def admit(self, request: QueuedRequest) -> None:
        self._in_progress.add(request)

    def update(self, request: QueuedRequest, now: float) -> None:
        if request.is_finished:
            self._in_progress.discard(request)


class SlidingWindow(Limit):
    """A rate limit: a maximum number of requests and tokens in any period of a fixed length (the window)."""

    name = "rate_limit"

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self._uncertainty = min(_MAX_UNCERTAINTY, _UNCERTAINTY * limit.per)
        self._unsent: dict[QueuedRequest, int] = {}
        """A dict that maps the admitted requests that are not sent yet to their tokens."""
        self._sent: dict[QueuedRequest, int] = {}
        """A dict that maps the sent requests in the window to their tokens, in the order of sending."""
        self._tokens = 0
        """The sum of the tokens in `_unsent` and `_sent`."""
        self._tokens_per_byte = _TOKENS_PER_BYTE
        self._response_tokens = _RESPONSE_TOKENS

    @property
    def counts_tokens(self) -> bool:
        return self._limit.tokens is not None

    def seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        while self._sent and self._leave_time(first := next(iter(self._sent))) <= now:
            self._tokens -= self._sent.pop(first)
        count, tokens, needed = len(self._unsent) + len(self._sent), self._tokens, self.estimate(request)
        if self._has_room(count, tokens, needed):
            return 0.0
        due = now
        for earlier, used in self._sent.items():
            count, tokens, due = count - 1, tokens - used, max(due, self._leave_time(earlier))
            if self._has_room(count, tokens, needed):
                return due - now
        return inf

    def _has_room(self, count: int, tokens: int, needed: int) -> bool:
        limit = self._limit
        if count == 0:  # A request that exceeds the limit on its own may be sent when the window is empty.
            return True
        if limit.requests is not None and count >= limit.requests:
            return False
        return limit.tokens is None or tokens + needed <= limit.tokens

    def _leave_time(self, request: QueuedRequest) -> float:
        """Return the time from which the window no longer counts a sent request."""
        assert request.sent_at is not None
        latest = request.sent_at + self._uncertainty
        return (latest if request.response_started is None else min(latest, request.response_started)) + self._limit.per

    def admit(self, request: QueuedRequest) -> None:
        self._unsent[request] = tokens = self.estimate(request)
        self._tokens += tokens

    def update(self, request: QueuedRequest, now: float) -> None:
        if request in self._unsent:
            if request.sent_at is not None:
                self._sent[request] = self._unsent.pop(request)
            elif request.is_finished:
                self._tokens -= self._unsent.pop(request)
        if request.is_finished and request.used_tokens is not None and request in self._sent:
            self._count_used(request, *request.used_tokens)

    def _count_used(self, request: QueuedRequest, input_tokens: int, output_tokens: int) -> None:
        self._tokens += input_tokens + output_tokens - self._sent[request]
        self._sent[request] = input_tokens + output_tokens
        self.learn(request, input_tokens, output_tokens)

    def learn(self, request: QueuedRequest, input_tokens: int, output_tokens: int) -> None:
        """Adjust the token estimates for later requests, after a finished request has reported its real tokens."""
        request.used_tokens = None
        if input_tokens and request.size:
            self._tokens_per_byte += _LEARNING_RATE * (input_tokens / request.size - self._tokens_per_byte)
        if output_tokens:
            self._response_tokens += _LEARNING_RATE * (output_tokens - self._response_tokens)

    def estimate(self, request: QueuedRequest) -> int:
        """Return the estimated tokens of a request and its response, or 0 if the limit does not count tokens."""
        if not self.counts_tokens:
            return 0
        maximum = request.max_response_tokens
        output_tokens = self._response_tokens if maximum is None else maximum
        return max(1, round(request.size * self._tokens_per_byte + output_tokens))


class RequestQueues:
    """The queues of all limits of the process.

    They admit requests in the order of their arrival.
    """

    def __init__(self) -> None:
        self._due: dict[Limit, float] = {}
        """A dict that maps a limit to the time when the first request of its queue may pass. It contains no limit
        whose next admission depends on other requests."""
        self._changed: list[Limit] = []
        """The limits whose queues must be checked."""
        self._unnotified: dict[Limit, list[QueuedRequest]] = {}
        """A dict that maps a limit to the requests whose senders do not know yet whether they must wait."""

    @property
    def due(self) -> float:
        """The time when `admit_due` must be called next, or `inf` if no request waits for a known time.

        The time may change after each call of `update`.
        """
        return min(self._due.values(), default=inf)

    def update(self, request: QueuedRequest, now: float) -> None:
        """Put a new request into its first queue, or update the limits after a request was sent or finished."""
        is_new = not request.is_queued and not request.is_finished
        if is_new:
            request.is_queued = True
            request.limits[0].queue.append(request)
        self._update_limits(request, now)
        self._admit(now)
        if is_new and request.passed_limits < len(request.limits):
            limit = request.limits[request.passed_limits]
            if limit.is_waiting_for_store:
                self._unnotified.setdefault(limit, []).append(request)
                return
            self._notify(request, limit.seconds_to_wait(request, now) if limit.queue[0] is request else inf, now)
            self._admit(now)

    def on_store_answer(self, limit: Limit, seconds: float, now: float) -> None:
        """Admit the waiting requests of a shared limit after the store has answered.

        `seconds` is the answer of the store: 0 if requests may pass now, or else the number of seconds to wait.
        """
        self._changed.append(limit)
        self._admit(now)
        if not limit.is_waiting_for_store:
            for request in self._unnotified.pop(limit, ()):
                if request in limit.queue:
                    self._notify(request, seconds or inf if limit.queue[0] is request else inf, now)

    def fail(self, limit: Limit, error: Exception, now: float) -> None:
        """Remove all requests from the queue of a limit, and pass the error to their senders."""
        requests = list(limit.queue)
        limit.queue.clear()
        self._unnotified.pop(limit, None)
        for request in requests:
            request.error = error
            self._notify(request, inf, now)
        self._changed.append(limit)
        self._admit(now)

    def admit_due(self, now: float) -> None:
        """Admit the requests that have waited for their time and may pass now."""
        self._changed += [limit for limit, due in self._due.items() if due <= now]
        self._admit(now)

    def _update_limits(self, request: QueuedRequest, now: float) -> None:
        if request.is_finished:
            # A finished request may stay in a queue for a long time. Its callback would keep an event loop alive.
            request.notify = _ignore
        for limit in request.limits:
            limit.update(request, now)
        self._changed += request.limits

    def _admit(self, now: float) -> None:
        """Check the queues of the limits in `_changed`, and admit every request that may pass now."""
        while self._changed:
            limit = self._changed.pop()
            requests, wait = limit.queue, 0.0
            while requests and not wait:
                if requests[0].is_finished:
                    requests.popleft()
                    continue
                wait = max(0.0, limit.seconds_to_wait(requests[0], now))
                if not wait:
                    request = requests.popleft()
                    limit.admit(request)
                    self._move_to_next_limit(request, now)
            due = min(now + wait if wait else inf, limit.report_if_due(now))
            if due < inf:
                self._due[limit] = due
            else:
                self._due.pop(limit, None)

    def _move_to_next_limit(self, request: QueuedRequest, now: float) -> None:
        request.passed_limits += 1
        if request.passed_limits == len(request.limits):
            self._notify(request, 0.0, now)
        else:
            next_limit = request.limits[request.passed_limits]
            next_limit.queue.append(request)
            self._changed.append(next_limit)

    def _notify(self, request: QueuedRequest, seconds: float, now: float) -> None:
        try:
            request.notify(seconds)
        except RuntimeError:  # The event loop of the sender is closed, so the request will never be sent.
            request.is_finished = True
            self._update_limits(request, now)
        if not seconds:
            request.notify = _ignore
