"""Models whose requests respect the `rate_limit` and the `max_concurrency` of a class.

The throttle is directly around the model and inside of retries and fallbacks. Every request that is sent therefore
counts, and a request that waits for a retry occupies no slot. `resolve` adds it.

Synchronous threads and tasks of any event loop wait in the same queues (`gates.py`). One thread of the process, started
on first use, does all the counting. Others only pass it their `Waiter`. Ctrl-C can therefore not leave a lock taken or
a count half updated, and a blocked event loop blocks no one else.
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
from typing import Protocol, cast
from weakref import WeakKeyDictionary

from pydantic_core import to_json

from acorn._base.interrupts import StopSignal, cancel_token, next_item
from acorn._base.log import logger
from acorn._declare.settings import ClassLimit, RateLimit
from acorn._declare.spec_cache import agent_name
from acorn.errors import ModelError, StoreError
from acorn.models.limits.gates import Gate, Slots, Waiter, WaitingLine, Window
from acorn.models.limits.shared import OrderOutcome, SharedWindow, StoreThreads
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
"""The longest single wait in seconds, since platforms limit it."""
_ABANDONED = -1.0
"""The value instead of seconds for a request that was abandoned."""


class Allowance(Protocol):
    """The permission that a request needs before it is sent."""

    def new_waiter(self, size: Callable[[], int], longest: int | None) -> Waiter:
        """Create the waiter of a request with this size in bytes. It does not count yet."""
        ...

    def take(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until the request may be sent. Raise `ModelError` if that takes more than these seconds."""
        ...

    async def atake(self, waiter: Waiter, seconds: float | None) -> None: ...

    def finish(self, waiter: Waiter, /) -> None:
        """Report that the request is finished or will not be sent. Called once for every waiter."""
        ...


class _LimiterThread:
    """The thread that counts the requests of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start with empty queues. A forked child has neither the thread nor the waiting requests."""
        inbox: queue.SimpleQueue[Waiter | OrderOutcome] = queue.SimpleQueue()
        self._inbox = inbox
        self.submit: Callable[[Waiter | OrderOutcome], None] = inbox.put
        """Have a waiter checked. It is a method of a C type, so that Ctrl-C cannot interrupt it."""
        self.store_threads = StoreThreads(inbox.put)
        self._thread_lock = threading.Lock()
        self._is_running = False
        self.lock = threading.Lock()
        self.gates: WeakKeyDictionary[type, dict[tuple[RateLimit | int, str], Gate]] = WeakKeyDictionary()
        """The gates by the class whose requests they count, the limit, and the store that shares it."""

    def ensure_running(self) -> None:
        """Start the thread if it is not running."""
        # Not `threading.Thread`: its `start` waits, and after Ctrl-C in that wait it is unknown whether the thread
        # started. A second thread ends at once.
        if not self._is_running:
            _thread.start_new_thread(self._work, ())

    def _work(self) -> None:
        if not self._thread_lock.acquire(blocking=False):
            return
        self._is_running = True
        inbox, line = self._inbox, WaitingLine()
        item: Waiter | OrderOutcome | None = None
        while True:
            seconds = line.due - monotonic()
            with suppress(queue.Empty):
                item = inbox.get(timeout=None if seconds == inf else min(max(0.0, seconds), _LONGEST_SLEEP))
            now = monotonic()
            line.pass_time(now)
            if isinstance(item, Waiter):
                line.update(item, now)
            elif item is not None:
                self._on_outcome(line, item, now)
            item = None

    def _on_outcome(self, line: WaitingLine, outcome: OrderOutcome, now: float) -> None:
        seconds = outcome.gate.on_answer(outcome.slice, now)
        if outcome.error is None:
            line.on_answer(outcome.gate, seconds, now)
        else:
            line.fail(outcome.gate, outcome.error, now)


_limiter = _LimiterThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limiter.reset)


class GateAllowance:
    """The allowance of this process: its gates, with a queue before each."""

    def __init__(self, owner: str, gates: tuple[Gate, ...]) -> None:
        self._owner = owner
        self._gates = gates
        self._counts_tokens = any(isinstance(gate, Window) and gate.counts_tokens for gate in gates)
        self.finish = _limiter.submit

    def new_waiter(self, size: Callable[[], int], longest: int | None) -> Waiter:
        return Waiter(self._gates, size() if self._counts_tokens else 0, longest)

    def take(self, waiter: Waiter, seconds: float | None) -> None:
        waits: queue.SimpleQueue[float] = queue.SimpleQueue()
        waiter.notify = waits.put
        started = self._start(waiter)
        deadline = inf if seconds is None or seconds > threading.TIMEOUT_MAX else started + seconds
        token = cancel_token.get()
        if token is not None:
            token.on_cancel(partial(waits.put, _ABANDONED))
        try:
            while wait := next_item(waits, deadline - monotonic()):
                if wait == _ABANDONED:
                    raise StopSignal("abandoned")
                self._on_wait(waiter, wait)
        except queue.Empty:
            raise self._timeout_error(waiter, started) from None
        finally:
            if token is not None:
                token.on_cancel(None)
        self._mark_sent(waiter)

    async def atake(self, waiter: Waiter, seconds: float | None) -> None:
        waits: asyncio.Queue[float] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        waiter.notify = lambda wait: loop.call_soon_threadsafe(waits.put_nowait, wait)
        started = self._start(waiter)
        try:
            async with asyncio.timeout(seconds):
                while wait := await waits.get():
                    self._on_wait(waiter, wait)
        except TimeoutError:
            raise self._timeout_error(waiter, started) from None
        self._mark_sent(waiter)

    def _start(self, waiter: Waiter) -> float:
        _limiter.ensure_running()
        _limiter.submit(waiter)
        return monotonic()

    def _mark_sent(self, waiter: Waiter) -> None:
        # The request counts from now, since for example a blocked event loop may have delayed it after it passed.
        now = monotonic()
        if now > waiter.send_by:
            raise ResendError(f"A request of `{self._owner}` was sent too late for its turn.")
        waiter.sent = now
        _limiter.submit(waiter)

    def _on_wait(self, waiter: Waiter, seconds: float) -> None:
        if waiter.error is not None:
            raise StoreError(
                f"A request of `{self._owner}` was not sent: its `rate_limit` is shared, and the store could not count "
                f"it ({waiter.error})."
            ) from waiter.error
        duration = "" if seconds == inf else f", {seconds:.2f} s"
        logger.info("A request of `%s` waits for its turn (`%s`%s).", self._owner, self._setting(waiter), duration)

    def _timeout_error(self, waiter: Waiter, started: float) -> ModelError:
        return ModelError(
            f"A request of `{self._owner}` was not sent: in the {monotonic() - started:.1f} s that were left it did "
            f"not get its turn under `{self._setting(waiter)}`. Raise that limit, or give the run more time."
        )

    def _setting(self, waiter: Waiter) -> str:
        return self._gates[min(waiter.passed, len(self._gates) - 1)].name


def allowance(
    owner: str, slots: ClassLimit[int] | None, window: ClassLimit[RateLimit] | None, store: SharedLimits | None = None
) -> Allowance:
    """Return the allowance for the requests of a class.

    The slot comes first, so that a place in a window is used at once. `store` counts a
    window that several machines share.
    """
    gates = [] if slots is None else [_gate(slots, Slots)]
    if window is not None and store is None:
        gates.append(_gate(window, Window))
    elif window is not None and store is not None:
        gates.append(_gate(window, partial(_shared_window, window, store), store.name))
    return GateAllowance(owner, tuple(gates))


def _shared_window(window: ClassLimit[RateLimit], store: SharedLimits, limit: RateLimit) -> SharedWindow:
    key = f"{agent_name(window.cls)} {limit.requests} {limit.tokens} {limit.per:g}"

    def send(gate: SharedWindow, order: WindowOrder) -> None:
        _limiter.store_threads.send(store, gate, order)

    return SharedWindow(limit, key, send)


def _gate(
    class_limit: ClassLimit[RateLimit] | ClassLimit[int], create: Callable[..., Gate], store_name: str = ""
) -> Gate:
    """Return the gate of a limit, which all requests of a class share."""
    with _limiter.lock:
        gates = _limiter.gates.setdefault(class_limit.cls, {})
        key = (class_limit.limit, store_name)
        if key not in gates:
            gates[key] = create(class_limit.limit)
        return gates[key]


Throttle = Callable[[Model], "ThrottledModel"]


def throttle(
    owner: str,
    max_concurrency: ClassLimit[int] | None,
    rate_limit: ClassLimit[RateLimit] | None,
    store: SharedLimits | None = None,
) -> Throttle | None:
    """Return a function that applies the limits of a class to a model, or None if there are none.

    `store` counts a limit that several machines share.
    """
    if max_concurrency is None and rate_limit is None:
        return None
    return partial(ThrottledModel, allowance=allowance(owner, max_concurrency, rate_limit, store))


class ThrottledModel(ModelWrapper):
    """A model whose requests wait until the limits allow them."""

    def __init__(self, model: Model, allowance: Allowance) -> None:
        super().__init__(model)
        self._allowance = allowance
        self._prepare: Callable[[], object] = getattr(model, "prepare", _do_nothing)

    # `finish` is called in the frame that created the waiter, and is a C function: Ctrl-C cannot prevent it.

    def complete(self, request: ModelRequest) -> ModelResponse:
        sending, finish = _Sending(request), self._allowance.finish
        while True:
            waiter = self._new_waiter(request)
            try:
                self._allowance.take(waiter, sending.seconds_left)
                response = self._model.complete(sending.request())
                _record(waiter, response.usage)
                return response
            except ModelError as error:
                if not _must_resend(waiter, error):
                    raise
            finally:
                waiter.is_over = True
                finish(waiter)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        sending, finish = _Sending(request), self._allowance.finish
        while True:
            waiter = self._new_waiter(request)
            try:
                await self._allowance.atake(waiter, sending.seconds_left)
                response = await self._model.acomplete(sending.request())
                _record(waiter, response.usage)
                return response
            except ModelError as error:
                if not _must_resend(waiter, error):
                    raise
            finally:
                waiter.is_over = True
                finish(waiter)

    def _stream(self, request: ModelRequest) -> Iterator[Delta]:
        sending, finish = _Sending(request), self._allowance.finish
        while True:
            waiter = self._new_waiter(request)
            try:
                self._allowance.take(waiter, sending.seconds_left)
                deltas = cast("StreamingModel", self._model).stream(sending.request())
                try:
                    for delta in deltas:
                        _record(waiter, delta.usage)
                        yield delta
                finally:
                    close_stream(deltas)
                return
            except ModelError as error:
                if not _must_resend(waiter, error):
                    raise
            finally:
                waiter.is_over = True
                finish(waiter)

    async def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        sending, finish = _Sending(request), self._allowance.finish
        while True:
            waiter = self._new_waiter(request)
            try:
                await self._allowance.atake(waiter, sending.seconds_left)
                deltas = cast("StreamingModel", self._model).astream(sending.request())
                try:
                    async for delta in deltas:
                        _record(waiter, delta.usage)
                        yield delta
                finally:
                    await aclose_stream(deltas)
                return
            except ModelError as error:
                if not _must_resend(waiter, error):
                    raise
            finally:
                waiter.is_over = True
                finish(waiter)

    def _new_waiter(self, request: ModelRequest) -> Waiter:
        self._prepare()
        longest = request.max_tokens if "max_tokens" in request.declared else None
        return self._allowance.new_waiter(partial(_size, request), longest)


def _do_nothing() -> None:
    """Prepare nothing, since most models need no preparation."""


def _size(request: ModelRequest) -> int:
    """Return the size of the messages and tools in bytes."""
    messages, tools = request.messages_json, request.tools_json
    written = sum(len(message_json(message)) for message in request.messages) if messages is None else len(messages())
    return written + len(to_json(request.tools) if tools is None else tools())


class _Sending:
    """A request that is resent if the model rejects a parameter."""

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


def _record(waiter: Waiter, usage: Usage | None) -> None:
    """Record the start of a response, or its usage."""
    if waiter.answered is None:
        waiter.answered = monotonic()
    if usage is not None:
        waiter.used = (usage.input_tokens, usage.output_tokens)


def _must_resend(waiter: Waiter, error: ModelError) -> bool:
    """Record a failure, and return whether the request must be resent without a rejected parameter.

    A rejected request has used no tokens. For a broken connection the number is unknown, and the estimate stays.
    """
    if waiter.answered is None:
        waiter.answered = monotonic()
        if error.status is not None and 400 <= error.status < 500:
            waiter.used = (0, 0)
    return isinstance(error, ResendError)
