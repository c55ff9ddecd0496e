"""Rate limits (`rate_limit`) and concurrency limits (`max_concurrency`) for the requests to any model.

`LimitedModel` wraps a model, and each request waits until the limits of its agent class admit it. `resolve` puts this
wrapper inside the wrappers for retries and fallbacks. Every request that is sent therefore counts, and a request that
waits for a retry does not count as a concurrent request.

A `Limiter` has a queue of requests in the order of arrival. Threads and the tasks of all event loops wait in the same
queue. Each sender that arrives, leaves or has waited long enough admits all requests that may pass, not only its own:
the event loop of another sender may be blocked.

Ctrl-C can interrupt the main thread anywhere, also while it updates a limiter. Three rules keep the counts correct:

- A request is in progress while its lock `in_progress` is locked. C code releases this lock, so Ctrl-C cannot prevent
  the release.
- Every step of `Limiter._update` can be repeated after an interruption.
- A waiting sender checks its limiter again after a few seconds, even if no other sender wakes it (`Clock.wait`).

The garbage collector can close an abandoned stream anywhere too, also in the thread that updates the limiter of this
stream. Therefore `release` only adds the request to a list if its thread already updates the limiter.
"""

from __future__ import annotations

import _thread
import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from weakref import WeakKeyDictionary

from acorn._base.clock import Clock, current_clock
from acorn._base.forks import call_in_child
from acorn._base.interrupts import StopSignal, cancel_token
from acorn._base.log import logger
from acorn._declare.settings import ClassLimit, RateLimit
from acorn._declare.spec_cache import agent_name
from acorn._formats.json import describe_error
from acorn.errors import ModelError, StoreError
from acorn.models.port import Model, ResendError
from acorn.models.request import ModelRequest
from acorn.models.retry import ModelAttempt, ModelWrapper, Outcome
from acorn.stores.port import PlaceOrder, SharedLimits
from acorn.types import Usage


def _do_nothing() -> None: ...


@dataclass(eq=False)
class QueuedRequest(ModelAttempt):
    """One attempt to send a request: `with queued, queued.in_progress: queued.acquire(); ...`.

    The `with` block suppresses `ResendError`. The caller must then make another attempt.
    """

    owner: str
    limiters: tuple[Limiter, ...]
    deadline: float = inf
    size: int = 0
    """The size of the request in bytes."""
    max_response_tokens: int | None = None
    """The maximum tokens of the response, or None if the user did not set a maximum."""
    clock: Clock = field(default_factory=current_clock)
    in_progress: threading.Lock = field(  # pyright: ignore[reportIncompatibleVariableOverride] - it is never replaced
        default_factory=threading.Lock
    )
    waits_for: Limiter | None = None
    notify: Callable[[], object] = _do_nothing
    """The function that wakes the sender."""
    is_lost: bool = False
    """Whether the event loop of the sender was closed, so that the request will never be sent."""
    error: BaseException | None = None
    """The error because of which the sender must stop waiting."""
    is_counted: bool = False
    """Whether the window of a `RateLimiter` counts the request."""
    tokens: int = 0
    """The tokens that count: first an estimate, then the number that the provider reported."""
    place: float | None = None
    """The place that a store granted under a shared limit: the time when the place expires."""
    send_by: float = inf
    """The time by which the request must be sent. After this time, the place is not valid."""
    sent_at: float | None = None
    response_started: float | None = None
    used_tokens: tuple[int, int] | None = None
    """The input tokens and the output tokens that the provider reported."""

    model: Model = field(init=False)
    original_request: ModelRequest = field(init=False)

    @property
    def is_finished(self) -> bool:
        return self.is_lost or not self.in_progress.locked()

    def wake(self) -> None:
        """Make the sender check its limiter."""
        try:
            self.notify()
        except RuntimeError:  # The event loop of the sender is closed.
            self.is_lost = True

    def fail(self, error: BaseException) -> None:
        """Make the sender stop waiting and raise an error."""
        self.error = error
        self.wake()

    def acquire(self) -> None:
        """Wait until the limits admit the request.

        Raise `ModelError` if they do not admit it before the deadline.
        """
        wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.notify = partial(wakeups.put, None)
        token = cancel_token.get()
        if token is not None:
            token.on_cancel(lambda: self.fail(StopSignal("abandoned")))
        try:
            for seconds in self.waits():
                self.clock.wait(wakeups, seconds)
        finally:
            if token is not None:
                token.on_cancel(None)

    async def aacquire(self) -> None:
        wakeup, loop = asyncio.Event(), asyncio.get_running_loop()
        self.notify = lambda: loop.call_soon_threadsafe(wakeup.set)
        for seconds in self.waits():
            await self.clock.await_event(wakeup, seconds)
            wakeup.clear()

    def waits(self) -> Iterator[float]:
        """Yield the maximum seconds of each wait until the request may be sent."""
        for limiter in self.limiters:
            self.waits_for = limiter
            yield from limiter.waits(self)
        now = self.clock.monotonic()
        if now > self.send_by:
            raise ResendError(
                f"A request of `{self.owner}` was not sent in time after its limits admitted it. It must wait again."
            )
        self.sent_at = now

    def request(self) -> ModelRequest:
        left = None if self.deadline == inf else max(0.001, self.deadline - self.clock.monotonic())
        return replace(self.original_request, timeout=left)

    def add(self, outcome: Outcome) -> Outcome:
        self.on_response(outcome.usage)
        return outcome

    def on_response(self, usage: Usage | None) -> None:
        """Record that the response has started to arrive, and record the token usage if it is known."""
        if self.response_started is None:
            self.response_started = self.clock.monotonic()
        if usage is not None and usage.total_tokens:  # If no usage was reported, the estimate continues to count.
            self.used_tokens = (usage.input_tokens, usage.output_tokens)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.notify = _do_nothing  # The function may have the last reference to an event loop.
        if isinstance(error, ModelError) and self.response_started is None:
            # A rejected request has used 0 tokens. If the connection broke, the number is unknown, and the estimate
            # continues to count.
            is_rejected = error.status is not None and 400 <= error.status < 500
            self.on_response(None)
            if is_rejected:
                self.used_tokens = (0, 0)
        for limiter in self.limiters:
            limiter.release(self)
        return isinstance(error, ResendError)


_TAKEOVER_SECONDS = 1.0
"""The seconds after which another sender admits the first request of a queue, because its own sender is blocked."""


class Limiter(ABC):
    """A limit on the requests of all runs of an agent class, with a queue of the requests that wait."""

    name = ""
    """The name of the setting, such as `rate_limit`."""
    is_asking = False
    """Whether a store decides now about the first request of the queue."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_updating = False
        self._queue: deque[QueuedRequest] = deque()
        self._finished: deque[QueuedRequest] = deque()
        """The finished requests that `_update` has not handled yet."""

    # The rule. These methods are called while `_lock` is locked.

    @abstractmethod
    def _seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        """Return the seconds until the first request of the queue may pass, or 0 if it may pass now.

        Return `inf` if the time depends on other requests. Return 0 if `_take` has already counted the request.
        """

    @abstractmethod
    def _take(self, request: QueuedRequest) -> None:
        """Count a request that passes."""

    @abstractmethod
    def _on_finished(self, request: QueuedRequest) -> None:
        """Update the count after a request was finished or abandoned."""

    # The queue

    def waits(self, request: QueuedRequest) -> Iterator[float]:
        """Add a request to the queue, and yield the maximum seconds of each wait until the request is admitted."""
        started, is_logged = request.clock.monotonic(), False
        self._queue.append(request)
        while True:
            now = request.clock.monotonic()
            with self._lock:
                seconds = self._update(now, request)
                is_first = bool(self._queue) and self._queue[0] is request
            if request.error is not None:
                raise request.error
            if request.waits_for is None:
                return
            if now >= request.deadline:
                raise ModelError(
                    f"A request of `{request.owner}` was not sent: it waited {now - started:.1f} s for `{self.name}`, "
                    f"and then the time limit of the run was reached. Raise one of these two limits."
                )
            if not is_logged and not self.is_asking:
                is_logged = True
                duration = f" for {seconds:.2f} s" if is_first and seconds < inf else ""
                logger.info(
                    "A request of `%s` waits%s because its `%s` is reached.", request.owner, duration, self.name
                )
            yield min(request.deadline - now, seconds if is_first else seconds + _TAKEOVER_SECONDS)

    def release(self, request: QueuedRequest) -> None:
        """Update the count after a request was finished or abandoned, and admit the requests that may pass now."""
        self._finished.append(request)
        with self._lock:
            self._update(request.clock.monotonic())

    def _update(self, now: float, caller: QueuedRequest | None = None) -> float:
        """Admit every request that may pass now, and return the seconds until the next request may pass.

        The method does not wake the sender of the request `caller`.
        """
        if self._is_updating:  # This thread is already in `_update`.
            return inf
        self._is_updating = True
        try:
            while True:
                while self._finished:
                    self._on_finished(self._finished[0])
                    self._finished.popleft()
                seconds = self._admit(now, caller)
                if not self._finished:
                    return seconds
        finally:
            self._is_updating = False

    def _admit(self, now: float, caller: QueuedRequest | None) -> float:
        while self._queue:
            request = self._queue[0]
            if request.waits_for is self and not request.is_finished:
                if (seconds := self._seconds_to_wait(request, now)) > 0:
                    return seconds
                if request is not caller:
                    # The sender now waits for the lock. If Ctrl-C interrupts this method, the sender repeats it.
                    request.wake()
                if not request.is_lost:
                    self._take(request)
                    request.waits_for = None
            self._queue.popleft()
        return inf


class ConcurrencyLimiter(Limiter):
    """A limit on the number of requests that are in progress at the same time."""

    name = "max_concurrency"

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._admitted: set[QueuedRequest] = set()

    def _seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        if len(self._admitted) >= self._count:
            self._admitted = {admitted for admitted in self._admitted if not admitted.is_finished}
        return 0.0 if len(self._admitted) < self._count or request in self._admitted else inf

    def _take(self, request: QueuedRequest) -> None:
        self._admitted.add(request)

    def _on_finished(self, request: QueuedRequest) -> None:
        self._admitted.discard(request)


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


class RateLimiter(Limiter):
    """A sliding window: a maximum number of requests and tokens in any period of a fixed length."""

    name = "rate_limit"

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self._uncertainty = min(_MAX_UNCERTAINTY, _UNCERTAINTY * limit.per)
        self._window: deque[QueuedRequest] = deque()
        """The admitted requests that count, in the order of sending."""
        self._tokens = 0
        """The sum of the tokens in `_window`."""
        self._tokens_per_byte = _TOKENS_PER_BYTE
        self._response_tokens = _RESPONSE_TOKENS

    @property
    def counts_tokens(self) -> bool:
        return self._limit.tokens is not None

    def _seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        window = self._window
        if request.is_counted:
            return 0.0
        for _ in range(len(window)):
            if self._leave_time(window[0], now) <= now:
                window[0].is_counted = False
                self._tokens -= window.popleft().tokens
            elif window[0].sent_at is None:  # The event loop of its sender may be blocked. It will be sent later.
                window.rotate(-1)
            else:
                break
        needed, count, due = self.estimate(request), len(window), now
        if self._has_room(count, self._tokens, needed):
            return 0.0
        if self.counts_tokens:  # Ctrl-C may have interrupted a subtraction.
            self._tokens = sum(counted.tokens for counted in window)
        tokens = self._tokens
        for counted in window:
            if self._has_room(count, tokens, needed):
                break
            count, tokens, due = count - 1, tokens - counted.tokens, max(due, self._leave_time(counted, now))
        return due - now

    def _has_room(self, count: int, tokens: int, needed: int) -> bool:
        limit = self._limit
        if count == 0:  # A request that exceeds the limit on its own may be sent when the window is empty.
            return True
        if limit.requests is not None and count >= limit.requests:
            return False
        return limit.tokens is None or tokens + needed <= limit.tokens

    def _leave_time(self, request: QueuedRequest, now: float) -> float:
        """Return the time from which the window no longer counts a request.

        For a request that is not sent yet, this is the earliest possible time.
        """
        if request.sent_at is None:
            return now if request.is_finished else now + self._limit.per
        latest = request.sent_at + self._uncertainty
        return (latest if request.response_started is None else min(latest, request.response_started)) + self._limit.per

    def _take(self, request: QueuedRequest) -> None:
        tokens = self.estimate(request)
        # Ctrl-C can interrupt Python only at calls and jumps, so it cannot interrupt these lines.
        request.tokens, request.is_counted = tokens, True
        self._tokens += tokens
        self._window.append(request)

    def _on_finished(self, request: QueuedRequest) -> None:
        if request.is_counted and request.sent_at is None:
            request.is_counted = False
            self._window.remove(request)
            self._tokens -= request.tokens
        elif request.used_tokens is not None:
            used = sum(request.used_tokens)
            if request.is_counted and self.counts_tokens:
                self._tokens += used - request.tokens
                request.tokens = used
            self._learn(request, *request.used_tokens)
        if self._queue:  # The first request of the queue may have to wait for a shorter time now.
            self._queue[0].wake()

    def _learn(self, request: QueuedRequest, input_tokens: int, output_tokens: int) -> None:
        """Adjust the token estimates for later requests, after a finished request has reported its real tokens."""
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


_SEND_SECONDS = 0.5
"""The minimum seconds for which a place is valid. The request must be sent within this time."""
_CHECKS_PER_WINDOW = 20
"""The number of times per window at which a process checks whether responses have used fewer tokens than estimated."""
_STEPS_PER_WINDOW = 100
"""The number of different times per window at which places expire. It limits the size of the row in the database."""


class SharedRateLimiter(RateLimiter):
    """A rate limit for all processes that use the same store, which grants a place for each request.

    The process asks for one place at a time, for the first request of its queue. A thread waits for the answer of the
    store, so that cancellation and time limits can end the wait of the sender.
    """

    def __init__(self, limit: RateLimit, store: SharedLimits, key: str) -> None:
        super().__init__(limit)
        self._store, self._key = store, key
        self._retry_at = 0.0
        """The time of the next order, if the store had no place left."""
        self._valid_seconds = _SEND_SECONDS
        """The seconds for which the next place is valid, from the time when the process asks for it."""
        self._corrections: dict[float, tuple[int, int]] = {}
        """A dict that maps places to the changes of their requests and tokens. The next order contains the changes."""

    def _seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        if request.place is not None:
            return 0.0
        if not self.is_asking and now < self._retry_at:
            return self._retry_at - now
        self._start_asking(request.clock, request)
        return inf

    def _take(self, request: QueuedRequest) -> None:
        """Do nothing, because the store has counted the request."""

    def _on_finished(self, request: QueuedRequest) -> None:
        place, request.place = request.place, None
        if place is None:
            return
        if request.sent_at is None:
            self._correct(place, -1, -request.tokens)
        elif request.used_tokens is not None and self.counts_tokens:
            self._correct(place, 0, sum(request.used_tokens) - request.tokens)
            self._learn(request, *request.used_tokens)
        if self._corrections:
            self._start_asking(request.clock)

    def _correct(self, place: float, requests: int, tokens: int) -> None:
        earlier_requests, earlier_tokens = self._corrections.get(place, (0, 0))
        self._corrections[place] = (earlier_requests + requests, earlier_tokens + tokens)

    def _start_asking(self, clock: Clock, request: QueuedRequest | None = None) -> None:
        """Send an order to the store, unless an order is in progress: a place for a request, and the corrections."""
        if self.is_asking:
            return
        limit, tokens = self._limit, None if request is None else self.estimate(request)
        seconds, step = limit.per + self._uncertainty + self._valid_seconds, limit.per / _STEPS_PER_WINDOW
        corrections = [(place, *change) for place, change in self._corrections.items()]
        order = PlaceOrder(self._key, limit.requests, limit.tokens, tokens, seconds, step, corrections)
        # If Ctrl-C interrupts this method after the next line, the process may send a second order. It does no harm.
        _thread.start_new_thread(self._ask, (order, request, clock))
        self.is_asking = True
        self._corrections = {}

    def _ask(self, order: PlaceOrder, request: QueuedRequest | None, clock: Clock) -> None:
        """Send an order to the store, wait for the answer, and admit the request. This method runs in a thread."""
        asked_at = clock.monotonic()
        try:
            place, seconds = self._store.take_place(order)
        except Exception as error:  # A store that the user wrote may raise any exception.
            self._fail(error)
            return
        with self._lock:
            now = clock.monotonic()
            self.is_asking = False
            send_by, self._valid_seconds = asked_at + self._valid_seconds, max(_SEND_SECONDS, 2 * (now - asked_at))
            if request is not None and seconds > 0:
                self._retry_at = now + min(seconds, self._limit.per / _CHECKS_PER_WINDOW)
                request.wake()
            elif request is not None and (request.is_finished or request.place is not None):
                self._correct(place, -1, -(order.tokens or 0))
            elif request is not None:
                request.place, request.send_by, request.tokens = place, send_by, order.tokens or 0
            self._update(now)  # This sends the order of the next request.
            if self._corrections:
                self._start_asking(clock)

    def _fail(self, error: Exception) -> None:
        """Report an error of the store to all waiting senders."""
        reason = error if isinstance(error, StoreError) else f"{self._store.name} failed: {describe_error(error)}"
        with self._lock:
            self.is_asking = False
            waiting, self._queue = self._queue, deque()
        if not waiting:
            logger.warning("The store of a shared `rate_limit` could not correct the used tokens (%s).", reason)
        for request in waiting:
            failure = StoreError(
                f"A request of `{request.owner}` was not sent: the store that shares its `rate_limit` could not count "
                f"the request ({reason}). Check the store, or remove `shared` from the `rate_limit`."
            )
            failure.__cause__ = error
            request.fail(failure)


# The limits of agent classes

_limiters: WeakKeyDictionary[type, dict[tuple[RateLimit | int, str], Limiter]] = WeakKeyDictionary()
"""A dict that maps a class, the value of its setting and the name of the shared store to the `Limiter` object."""
# A forked child has neither the requests of its parent nor the threads that may have locked a limiter.
call_in_child(_limiters.clear)

LimitWrapper = Callable[[Model], "LimitedModel"]


def limit_wrapper(
    owner: str,
    max_concurrency: ClassLimit[int] | None,
    rate_limit: ClassLimit[RateLimit] | None,
    store: SharedLimits | None = None,
) -> LimitWrapper | None:
    """Return a function that wraps a model in a `LimitedModel`, or None if the agent class has no limits.

    If several processes share the rate limit, `store` counts their requests.
    """
    # A request passes the concurrency limit first. If it passed the rate limit first, it would count in the window
    # while it still waits.
    limiters: list[Limiter] = []
    if max_concurrency is not None:
        limiters.append(_class_limiter(max_concurrency, ConcurrencyLimiter))
    if rate_limit is not None and store is None:
        limiters.append(_class_limiter(rate_limit, RateLimiter))
    elif rate_limit is not None and store is not None:
        limit = rate_limit.limit
        key = f"{agent_name(rate_limit.cls)} {limit.requests} {limit.tokens} {limit.per:g}"
        limiters.append(_class_limiter(rate_limit, partial(SharedRateLimiter, store=store, key=key), store.name))
    return partial(LimitedModel, owner=owner, limiters=tuple(limiters)) if limiters else None


def _class_limiter(
    limit: ClassLimit[RateLimit] | ClassLimit[int], create: Callable[..., Limiter], store: str = ""
) -> Limiter:
    """Return the limiter of one setting, which all requests of an agent class share, and create it on first use."""
    limiters, key = _limiters.setdefault(limit.cls, {}), (limit.limit, store)
    # `setdefault` is atomic, so all threads get the same limiter.
    return limiters.get(key) or limiters.setdefault(key, create(limit.limit))


class LimitedModel(ModelWrapper):
    """A wrapper around a model. Its requests wait until the limiters admit them."""

    def __init__(self, model: Model, owner: str, limiters: tuple[Limiter, ...]) -> None:
        super().__init__(model)
        self._owner, self._limiters = owner, limiters
        self._counts_tokens = any(isinstance(each, RateLimiter) and each.counts_tokens for each in limiters)
        self._prepare: Callable[[], object] = getattr(model, "prepare", _do_nothing)

    def attempts(self, request: ModelRequest) -> Iterator[ModelAttempt]:
        deadline = inf if request.timeout is None else current_clock().monotonic() + request.timeout
        size = len(request.messages_json()) + len(request.tools_json()) if self._counts_tokens else 0
        max_tokens = request.max_tokens if "max_tokens" in request.declared else None
        # If the model rejects a default setting, it adds the setting to `left_out`, and the next attempt omits it.
        request = replace(request, left_out=set())
        while True:
            self._prepare()
            queued = QueuedRequest(self._owner, self._limiters, deadline, size, max_tokens)
            queued.model, queued.original_request = self._model, request
            yield queued
