"""Enforcement of the settings `rate_limit` and `max_concurrency` of an agent class.

`LimitedModel` wraps a model, and each request waits until the limits admit it. `resolve` puts this wrapper inside the
wrappers for retries and fallbacks. Every request that is sent therefore counts, and a request that waits for a retry
does not count as a concurrent request.

Synchronous code and the tasks of all event loops wait in the same queues (`request_queue.py`). One OS thread of the
process, started on first use, does all the counting. Other threads only pass their `QueuedRequest` objects to it.
Therefore Ctrl-C cannot leave a lock locked or a count half updated, and a blocked event loop does not block other
senders.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import cast
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from acorn._base.interrupts import StopSignal, cancel_token, next_item
from acorn._base.log import logger
from acorn._declare.settings import ClassLimit, RateLimit
from acorn._declare.spec_cache import agent_name
from acorn.errors import ModelError, StoreError
from acorn.models.limits.request_queue import ConcurrencyLimit, Limit, QueuedRequest, RequestQueues, SlidingWindow
from acorn.models.limits.shared_rate_limit import OrderOutcome, SharedWindow, StoreThreads
from acorn.models.port import (
    Delta,
    Model,
    ModelResponse,
    ModelWrapper,
    ResendError,
    StreamingModel,
    aclose_stream,
    close_stream,
)
from acorn.models.request import ModelRequest, message_json
from acorn.stores.port import SharedLimits, WindowOrder
from acorn.types import Usage

_LONGEST_SLEEP = 3600.0
"""The maximum seconds of a single wait, since operating systems limit the timeout of a queue."""
_ABANDONED = -1.0
"""The value that the queue of a sender receives, instead of seconds, if the request was abandoned."""


class _LimiterThread:
    """The OS thread that counts the requests of this process and decides which request may be sent."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start with empty queues.

        A forked child calls this method. The child has neither the thread of its parent process nor the waiting
        requests.
        """
        inbox: queue.SimpleQueue[QueuedRequest | OrderOutcome] = queue.SimpleQueue()
        self._inbox = inbox
        self.submit: Callable[[QueuedRequest | OrderOutcome], None] = inbox.put
        """Pass a new or changed request, or the result of an order, to the thread.

        This is a method of a C type, so Ctrl-C cannot interrupt it.
        """
        self.store_threads = StoreThreads(inbox.put)
        self._thread_lock = threading.Lock()
        self._is_running = False
        self.lock = threading.Lock()
        self.limits: WeakKeyDictionary[type, dict[tuple[RateLimit | int, str], Limit]] = WeakKeyDictionary()
        """A dict that maps a class, the value of its setting and the name of the shared store to the `Limit` object."""

    def ensure_running(self) -> None:
        """Start the limiter thread, which admits waiting requests, if the thread is not running."""
        # `threading.Thread.start` waits for the new thread. After Ctrl-C during that wait, it is unknown whether the
        # thread has started. `start_new_thread` does not wait. If two callers start a thread, the second thread ends
        # at once.
        if not self._is_running:
            _thread.start_new_thread(self._work, ())

    def _work(self) -> None:
        if not self._thread_lock.acquire(blocking=False):
            return
        self._is_running = True
        inbox, queues = self._inbox, RequestQueues()
        item: QueuedRequest | OrderOutcome | None = None
        while True:
            seconds = queues.due - monotonic()
            with suppress(queue.Empty):
                item = inbox.get(timeout=None if seconds == inf else min(max(0.0, seconds), _LONGEST_SLEEP))
            now = monotonic()
            queues.admit_due(now)
            if isinstance(item, QueuedRequest):
                queues.update(item, now)
            elif item is not None:
                self._on_outcome(queues, item, now)
            item = None

    def _on_outcome(self, queues: RequestQueues, outcome: OrderOutcome, now: float) -> None:
        seconds = outcome.window.on_outcome(outcome.slice, now)
        if outcome.error is None:
            queues.on_store_answer(outcome.window, seconds, now)
        else:
            queues.fail(outcome.window, outcome.error, now)


_limiter_thread = _LimiterThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limiter_thread.reset)


class Limiter:
    """The limits of one agent class.

    Each request of the class waits here until all limits admit it.
    """

    def __init__(self, owner: str, limits: tuple[Limit, ...]) -> None:
        self._owner = owner
        self._limits = limits
        self._counts_tokens = any(isinstance(limit, SlidingWindow) and limit.counts_tokens for limit in limits)
        self.release = _limiter_thread.submit
        """Report that a request is finished or will not be sent. Every `QueuedRequest` is released once."""

    def new_request(self, size: Callable[[], int], max_response_tokens: int | None) -> QueuedRequest:
        """Create a `QueuedRequest`, which represents one request in the queues of the limits.

        `size` computes the size of the request in bytes. It is called only if a limit counts tokens.
        """
        return QueuedRequest(self._limits, size() if self._counts_tokens else 0, max_response_tokens)

    def acquire(self, queued: QueuedRequest, seconds: float | None) -> None:
        """Wait until the limits admit a request, or raise `ModelError` if they do not admit it within `seconds`."""
        waits: queue.SimpleQueue[float] = queue.SimpleQueue()
        queued.notify = waits.put
        started = self._start(queued)
        deadline = inf if seconds is None or seconds > threading.TIMEOUT_MAX else started + seconds
        token = cancel_token.get()
        if token is not None:
            token.on_cancel(partial(waits.put, _ABANDONED))
        try:
            while wait := next_item(waits, deadline - monotonic()):
                if wait == _ABANDONED:
                    raise StopSignal("abandoned")
                self._on_wait(queued, wait)
        except queue.Empty:
            raise self._timeout_error(queued, started) from None
        finally:
            if token is not None:
                token.on_cancel(None)
        self._mark_sent(queued)

    async def aacquire(self, queued: QueuedRequest, seconds: float | None) -> None:
        waits: asyncio.Queue[float] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        queued.notify = lambda wait: loop.call_soon_threadsafe(waits.put_nowait, wait)
        started = self._start(queued)
        try:
            async with asyncio.timeout(seconds):
                while wait := await waits.get():
                    self._on_wait(queued, wait)
        except TimeoutError:
            raise self._timeout_error(queued, started) from None
        self._mark_sent(queued)

    def _start(self, queued: QueuedRequest) -> float:
        _limiter_thread.ensure_running()
        _limiter_thread.submit(queued)
        return monotonic()

    def _mark_sent(self, queued: QueuedRequest) -> None:
        # The request counts from this moment. A blocked event loop, for example, may have delayed the sender after the
        # request was admitted.
        now = monotonic()
        if now > queued.send_by:
            raise ResendError(
                f"A request of `{self._owner}` was not sent in time after its limits admitted it. It must wait again."
            )
        queued.sent_at = now
        _limiter_thread.submit(queued)

    def _on_wait(self, queued: QueuedRequest, seconds: float) -> None:
        if queued.error is not None:
            raise StoreError(
                f"A request of `{self._owner}` was not sent: the store that shares its `rate_limit` could not count "
                f"the request ({queued.error}). Check the store, or remove `shared` from the `rate_limit`."
            ) from queued.error
        duration = "" if seconds == inf else f" for {seconds:.2f} s"
        logger.info(
            "A request of `%s` waits%s because its `%s` is reached.", self._owner, duration, self._setting(queued)
        )

    def _timeout_error(self, queued: QueuedRequest, started: float) -> ModelError:
        return ModelError(
            f"A request of `{self._owner}` was not sent: it waited {monotonic() - started:.1f} s for "
            f"`{self._setting(queued)}`, and then the time limit of the run was reached. Raise one of these two limits."
        )

    def _setting(self, queued: QueuedRequest) -> str:
        """Return the name of the setting for which a request waits: `rate_limit` or `max_concurrency`."""
        return self._limits[min(queued.passed_limits, len(self._limits) - 1)].name


def _class_limiter(
    owner: str,
    max_concurrency: ClassLimit[int] | None,
    rate_limit: ClassLimit[RateLimit] | None,
    store: SharedLimits | None,
) -> Limiter:
    # A request passes the concurrency limit first. If it passed the rate limit first, it would count in the window
    # while it still waits.
    limits = [] if max_concurrency is None else [_class_limit(max_concurrency, ConcurrencyLimit)]
    if rate_limit is not None and store is None:
        limits.append(_class_limit(rate_limit, SlidingWindow))
    elif rate_limit is not None and store is not None:
        limits.append(_class_limit(rate_limit, partial(_shared_window, rate_limit, store), store.name))
    return Limiter(owner, tuple(limits))


def _shared_window(rate_limit: ClassLimit[RateLimit], store: SharedLimits, limit: RateLimit) -> SharedWindow:
    key = f"{agent_name(rate_limit.cls)} {limit.requests} {limit.tokens} {limit.per:g}"

    def send(window: SharedWindow, order: WindowOrder) -> None:
        _limiter_thread.store_threads.send(store, window, order)

    return SharedWindow(limit, key, send)


def _class_limit(
    class_limit: ClassLimit[RateLimit] | ClassLimit[int], create: Callable[..., Limit], store_name: str = ""
) -> Limit:
    """Return the `Limit` object of one setting, and create it on first use.

    All requests of an agent class share this object.
    """
    with _limiter_thread.lock:
        limits = _limiter_thread.limits.setdefault(class_limit.cls, {})
        key = (class_limit.limit, store_name)
        if key not in limits:
            limits[key] = create(class_limit.limit)
        return limits[key]


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
    if max_concurrency is None and rate_limit is None:
        return None
    return partial(LimitedModel, limiter=_class_limiter(owner, max_concurrency, rate_limit, store))


class LimitedModel(ModelWrapper):
    """A wrapper around a model.

    Its requests wait until a `Limiter` admits them.
    """

    def __init__(self, model: Model, limiter: Limiter) -> None:
        super().__init__(model)
        self._limiter = limiter
        self._prepare: Callable[[], object] = getattr(model, "prepare", _do_nothing)

    # Each method calls `release` itself, in the frame that created the `QueuedRequest`. `release` is a C function, so
    # Ctrl-C cannot prevent the call.

    def complete(self, request: ModelRequest) -> ModelResponse:
        attempts, release = _SendAttempts(request), self._limiter.release
        while True:
            queued = self._new_queued_request(request)
            try:
                self._limiter.acquire(queued, attempts.seconds_left)
                response = self._model.complete(attempts.request())
                _record_response(queued, response.usage)
                return response
            except ModelError as error:
                if not _must_resend(queued, error):
                    raise
            finally:
                queued.is_finished = True
                release(queued)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        attempts, release = _SendAttempts(request), self._limiter.release
        while True:
            queued = self._new_queued_request(request)
            try:
                await self._limiter.aacquire(queued, attempts.seconds_left)
                response = await self._model.acomplete(attempts.request())
                _record_response(queued, response.usage)
                return response
            except ModelError as error:
                if not _must_resend(queued, error):
                    raise
            finally:
                queued.is_finished = True
                release(queued)

    def _stream(self, request: ModelRequest) -> Iterator[Delta]:
        attempts, release = _SendAttempts(request), self._limiter.release
        while True:
            queued = self._new_queued_request(request)
            try:
                self._limiter.acquire(queued, attempts.seconds_left)
                deltas = cast("StreamingModel", self._model).stream(attempts.request())
                try:
                    for delta in deltas:
                        _record_response(queued, delta.usage)
                        yield delta
                finally:
                    close_stream(deltas)
                return
            except ModelError as error:
                if not _must_resend(queued, error):
                    raise
            finally:
                queued.is_finished = True
                release(queued)

    async def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        attempts, release = _SendAttempts(request), self._limiter.release
        while True:
            queued = self._new_queued_request(request)
            try:
                await self._limiter.aacquire(queued, attempts.seconds_left)
                deltas = cast("StreamingModel", self._model).astream(attempts.request())
                try:
                    async for delta in deltas:
                        _record_response(queued, delta.usage)
                        yield delta
                finally:
                    await aclose_stream(deltas)
                return
            except ModelError as error:
                if not _must_resend(queued, error):
                    raise
            finally:
                queued.is_finished = True
                release(queued)

    def _new_queued_request(self, request: ModelRequest) -> QueuedRequest:
        self._prepare()
        max_tokens = request.max_tokens if "max_tokens" in request.declared else None
        return self._limiter.new_request(partial(_size, request), max_tokens)


def _do_nothing() -> None:
    """Do nothing.

    This function replaces the method `prepare` of a model that has no such method.
    """


def _size(request: ModelRequest) -> int:
    """Return the size of the messages and tools of a request in bytes."""
    messages, tools = request.messages_json, request.tools_json
    size = sum(len(message_json(message)) for message in request.messages) if messages is None else len(messages())
    return size + len(to_json(request.tools) if tools is None else tools())


class _SendAttempts:
    """The attempts to send one request.

    If the model rejects a default setting, the next attempt sends the request again without that setting.
    """

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._left_out: set[str] = set()
        self._started = monotonic()

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the run has left, or None if it has no time limit."""
        timeout = self._request.timeout
        return None if timeout is None else max(0.001, timeout - (monotonic() - self._started))

    def request(self) -> ModelRequest:
        return self._request.but(timeout=self.seconds_left, left_out=self._left_out)


def _record_response(queued: QueuedRequest, usage: Usage | None) -> None:
    """Record that the response has started to arrive, and record the token usage if it is known.

    `usage` is None until the part of the response arrives that contains the token usage.
    """
    if queued.response_started is None:
        queued.response_started = monotonic()
    if usage is not None:
        queued.used_tokens = (usage.input_tokens, usage.output_tokens)


def _must_resend(queued: QueuedRequest, error: ModelError) -> bool:
    """Record that a request failed, and return True if the error is a `ResendError`.

    The caller must then send the request again. A rejected request has used 0 tokens. If the connection broke, the
    number of used tokens is unknown, so the limiter continues to count the estimated tokens.
    """
    if queued.response_started is None:
        queued.response_started = monotonic()
        if error.status is not None and 400 <= error.status < 500:
            queued.used_tokens = (0, 0)
    return isinstance(error, ResendError)
