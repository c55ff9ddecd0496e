"""Waiting for a turn: sync threads and tasks of any event loop in the same lines.

One thread in a process, started when first somebody needs a turn, has the desk (`gates.py`) and does all the counting;
others only hand it turns. So there is no lock that Ctrl-C could leave taken and no count that it could leave half made,
and an event loop that is blocked holds up nobody else.

Any model of the port, asked no oftener than `rate_limit` and `max_concurrency` of a class allow.

Around the model itself and inside of what retries it or falls back to another: so every request that is sent counts,
and none that waits to be sent again holds a slot. Put there by `resolve`.
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
from typing import Any, Protocol, cast
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
    ModelRequest,
    ModelResponse,
    ModelWrapper,
    ResendError,
    StreamingModel,
    aclose_stream,
    close_stream,
)
from acorn.models.request_body import message_json
from acorn.stores.port import SharedLimits, WindowOrder
from acorn.types import Usage

_LONGEST_SLEEP = 3600.0
"""Seconds: no platform is asked to wait for longer at a time."""
_NEVER = -1.0
"""Told instead of seconds to one that nobody waits for any more."""


class Allowance(Protocol):
    """What a request needs before it is sent."""

    def turn(self, size: Callable[[], int], longest: int | None) -> Waiter:
        """A turn for a request of so many bytes; nothing is taken yet."""
        ...

    def take(self, turn: Waiter, seconds: float | None) -> None:
        """Wait until the request may be sent, no longer than the seconds that are left; `ModelError` if that is up."""
        ...

    async def atake(self, turn: Waiter, seconds: float | None) -> None: ...

    def settle(self, turn: Waiter, /) -> None:
        """The request is over, or will not be sent. Called once for every turn, taken or not."""
        ...


class _LimiterThread:
    """The thread that has the desk."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """A forked child has the lines, but neither the thread nor those who wait in them."""
        news: queue.SimpleQueue[Waiter | OrderOutcome] = queue.SimpleQueue()
        self._news = news
        self.hand: Callable[[Waiter | OrderOutcome], None] = news.put
        """Have a turn looked at. Not code of ours, so that Ctrl-C cannot come in the midst of it."""
        self.carriers = StoreThreads(news.put)
        self._claim = threading.Lock()
        self._is_there = False
        self.guard = threading.Lock()
        self.gates: WeakKeyDictionary[type, dict[tuple[RateLimit | int, str], Gate]] = WeakKeyDictionary()
        """By the class whose requests they count, the limit, and the store that shares it."""

    def be_there(self) -> None:
        # Not `threading.Thread`, whose `start` waits, and Ctrl-C in that wait would leave us without knowing whether it
        # began. One too many goes home.
        if not self._is_there:
            _thread.start_new_thread(self._work, ())

    def _work(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        self._is_there = True
        news, desk = self._news, WaitingLine()
        new: Waiter | OrderOutcome | None = None
        while True:
            seconds = desk.due - monotonic()
            with suppress(queue.Empty):
                new = news.get(timeout=None if seconds == inf else min(max(0.0, seconds), _LONGEST_SLEEP))
            now = monotonic()
            desk.pass_time(now)
            if isinstance(new, Waiter):
                desk.see(new, now)
            elif new is not None:
                self._hear(desk, new, now)
            new = None

    def _hear(self, desk: WaitingLine, outcome: OrderOutcome, now: float) -> None:
        seconds = outcome.gate.hear(outcome.came, now)
        if outcome.error is None:
            desk.hear(outcome.gate, seconds, now)
        else:
            desk.fail(outcome.gate, outcome.error, now)


_clerk = _LimiterThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clerk.begin_anew)


class QueuedWaiter:
    """The allowance of this process: its gates, and a line before each."""

    def __init__(self, owner: str, gates: tuple[Gate, ...]) -> None:
        self._owner = owner
        self._gates = gates
        self._counts_tokens = any(isinstance(gate, Window) and gate.counts_tokens for gate in gates)
        self.settle = _clerk.hand

    def turn(self, size: Callable[[], int], longest: int | None) -> Waiter:
        return Waiter(self._gates, size() if self._counts_tokens else 0, longest)

    def take(self, turn: Waiter, seconds: float | None) -> None:
        news: queue.SimpleQueue[float] = queue.SimpleQueue()
        turn.tell = news.put
        began = self._begin(turn)
        until = inf if seconds is None or seconds > threading.TIMEOUT_MAX else began + seconds
        token = cancel_token.get()
        if token is not None:
            token.on_cancel(partial(news.put, _NEVER))
        try:
            while wait := next_item(news, until - monotonic()):
                if wait == _NEVER:
                    raise StopSignal("abandoned")
                self._hear(turn, wait)
        except queue.Empty:
            raise self._late(turn, began) from None
        finally:
            if token is not None:
                token.on_cancel(None)
        self._go(turn)

    async def atake(self, turn: Waiter, seconds: float | None) -> None:
        news: asyncio.Queue[float] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        turn.tell = lambda wait: loop.call_soon_threadsafe(news.put_nowait, wait)
        began = self._begin(turn)
        try:
            async with asyncio.timeout(seconds):
                while wait := await news.get():
                    self._hear(turn, wait)
        except TimeoutError:
            raise self._late(turn, began) from None
        self._go(turn)

    def _begin(self, turn: Waiter) -> float:
        _clerk.be_there()
        _clerk.hand(turn)
        return monotonic()

    def _go(self, turn: Waiter) -> None:
        # Counted from here: whoever was let through may have been kept from sending, by a blocked event loop, say.
        now = monotonic()
        if now > turn.send_by:
            raise ResendError(f"A request of `{self._owner}` came too late for its turn.")
        turn.sent = now
        _clerk.hand(turn)

    def _hear(self, turn: Waiter, seconds: float) -> None:
        if turn.error is not None:
            raise StoreError(
                f"A request of `{self._owner}` was not sent, as its `rate_limit` is shared and could not be counted: "
                f"{turn.error}"
            ) from turn.error
        how_long = "" if seconds == inf else f", {seconds:.2f} s"
        logger.info("A request of `%s` waits for its turn (`%s`%s).", self._owner, self._setting(turn), how_long)

    def _late(self, turn: Waiter, began: float) -> ModelError:
        return ModelError(
            f"A request of `{self._owner}` was not sent: in the {monotonic() - began:.1f} s that were left it did not "
            f"get its turn under `{self._setting(turn)}`; raise that, or give the run more time."
        )

    def _setting(self, turn: Waiter) -> str:
        return self._gates[min(turn.passed, len(self._gates) - 1)].name


def allowance(
    owner: str, slots: ClassLimit[int] | None, window: ClassLimit[RateLimit] | None, store: SharedLimits | None = None
) -> Allowance:
    """What a request of a class needs. A slot comes first: who has a place in a window sends at once.

    `store` is where a window is counted that machines share.
    """
    gates = [] if slots is None else [_gate(slots, Slots)]
    if window is not None and store is None:
        gates.append(_gate(window, Window))
    elif window is not None and store is not None:
        gates.append(_gate(window, partial(_shared_window, window, store), store.name))
    return QueuedWaiter(owner, tuple(gates))


def _shared_window(window: ClassLimit[RateLimit], store: SharedLimits, limit: RateLimit) -> SharedWindow:
    key = f"{agent_name(window.cls)} {limit.requests} {limit.tokens} {limit.per:g}"

    def send(gate: SharedWindow, order: WindowOrder) -> None:
        _clerk.carriers.send(store, gate, order)

    return SharedWindow(limit, key, send)


def _gate(counted: ClassLimit[RateLimit] | ClassLimit[int], make: Callable[..., Gate], where: str = "") -> Gate:
    """The one gate of a limit, which all of a class go through."""
    with _clerk.guard:
        gates = _clerk.gates.setdefault(counted.cls, {})
        key = (counted.limit, where)
        if key not in gates:
            gates[key] = make(counted.limit)
        return gates[key]


Throttle = Callable[[Model], "Throttled"]


def throttle(
    owner: str,
    max_concurrency: ClassLimit[int] | None,
    rate_limit: ClassLimit[RateLimit] | None,
    store: SharedLimits | None = None,
) -> Throttle | None:
    """What keeps a model to the limits of a class; None where it has none. A limit that is shared counts in a store."""
    if max_concurrency is None and rate_limit is None:
        return None
    return partial(Throttled, allowance=allowance(owner, max_concurrency, rate_limit, store))


class Throttled(ModelWrapper):
    """A model whose requests wait for their turn, and in all else the model that it wraps."""

    def __init__(self, model: Model, allowance: Allowance) -> None:
        super().__init__(model)
        self._allowance = allowance
        self._prepare: Callable[[], object] = getattr(model, "prepare", _at_once)

    # A turn is given back by `settle` and nothing before it, in the frame that took it: Ctrl-C cannot come between.

    def complete(self, request: ModelRequest) -> ModelResponse:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                self._allowance.take(turn, sending.left)
                response = self._model.complete(sending.request())
                _note(turn, response.usage)
                return response
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                await self._allowance.atake(turn, sending.left)
                response = await self._model.acomplete(sending.request())
                _note(turn, response.usage)
                return response
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    def _stream(self, request: ModelRequest) -> Iterator[Delta]:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                self._allowance.take(turn, sending.left)
                deltas: Any = cast("StreamingModel", self._model).stream(sending.request())
                try:
                    for delta in deltas:
                        _note(turn, delta.usage)
                        yield delta
                finally:
                    close_stream(deltas)
                return
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    async def _astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        sending, settle = _Sending(request), self._allowance.settle
        while True:
            turn = self._turn(request)
            try:
                await self._allowance.atake(turn, sending.left)
                deltas: Any = cast("StreamingModel", self._model).astream(sending.request())
                try:
                    async for delta in deltas:
                        _note(turn, delta.usage)
                        yield delta
                finally:
                    await aclose_stream(deltas)
                return
            except ModelError as error:
                if not _goes_on(turn, error):
                    raise
            finally:
                turn.is_over = True
                settle(turn)

    def _turn(self, request: ModelRequest) -> Waiter:
        self._prepare()
        longest = request.max_tokens if "max_tokens" in request.declared else None
        return self._allowance.turn(partial(_size, request), longest)


def _at_once() -> None:
    """Most models are ready."""


def _size(request: ModelRequest) -> int:
    """Bytes of what is sent."""
    messages, tools = request.messages_json, request.tools_json
    written = sum(len(message_json(message)) for message in request.messages) if messages is None else len(messages())
    return written + len(to_json(request.tools) if tools is None else tools())


class _Sending:
    """A request, sent once, or again where the model did not take something in it."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._left_out: set[str] = set()
        self._began = monotonic()

    @property
    def left(self) -> float | None:
        """Seconds that the run has; None is no end."""
        timeout = self._request.timeout
        return None if timeout is None else max(0.001, timeout - (monotonic() - self._began))

    def request(self) -> ModelRequest:
        return self._request.but(timeout=self.left, left_out=self._left_out)


def _note(turn: Waiter, usage: Usage | None) -> None:
    """Something of the answer has come."""
    if turn.answered is None:
        turn.answered = monotonic()
    if usage is not None:
        turn.used = (usage.input_tokens, usage.output_tokens)


def _goes_on(turn: Waiter, error: ModelError) -> bool:
    """Take note of a failure. Whether the request is to be sent again, without what the model does not take.

    What a provider refuses has used no tokens; of what broke nobody knows, and the estimate stands.
    """
    if turn.answered is None:
        turn.answered = monotonic()
        if error.status is not None and 400 <= error.status < 500:
            turn.used = (0, 0)
    return isinstance(error, ResendError)
