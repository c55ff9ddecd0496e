"""Waiting for a turn: sync threads and tasks of any event loop in the same lines.

One thread in a process, started when first somebody needs a turn, has the desk (`gates.py`) and does all the counting;
others only hand it turns. So there is no lock that Ctrl-C could leave taken and no count that it could leave half made,
and an event loop that is blocked holds up nobody else.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Protocol
from weakref import WeakKeyDictionary

from acorn._declared import agent_name
from acorn._log import logger
from acorn._rate_limit import Counted, RateLimit
from acorn._waiting import AbandonedError, ending, next_of
from acorn.errors import ModelError, StoreError
from acorn.models.gates import Desk, Gate, Slots, Turn, Window
from acorn.models.orders import Carriers, Outcome
from acorn.models.port import SendAgainError
from acorn.models.shared_window import SharedWindow
from acorn.stores.port import Order, Shares

_LONGEST_SLEEP = 3600.0
"""Seconds: no platform is asked to wait for longer at a time."""
_NEVER = -1.0
"""Told instead of seconds to one that nobody waits for any more."""


class Allowance(Protocol):
    """What a request needs before it is sent."""

    def turn(self, size: Callable[[], int], longest: int | None) -> Turn:
        """A turn for a request of so many bytes; nothing is taken yet."""
        ...

    def take(self, turn: Turn, seconds: float | None) -> None:
        """Wait until the request may be sent, no longer than the seconds that are left; `ModelError` if that is up."""
        ...

    async def atake(self, turn: Turn, seconds: float | None) -> None: ...

    def settle(self, turn: Turn, /) -> None:
        """The request is over, or will not be sent. Called once for every turn, taken or not."""
        ...


class _Clerk:
    """The thread that has the desk."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """A forked child has the lines, but neither the thread nor those who wait in them."""
        news: queue.SimpleQueue[Turn | Outcome] = queue.SimpleQueue()
        self._news = news
        self.hand: Callable[[Turn | Outcome], None] = news.put
        """Have a turn looked at. Not code of ours, so that Ctrl-C cannot come in the midst of it."""
        self.carriers = Carriers(news.put)
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
        news, desk = self._news, Desk()
        new: Turn | Outcome | None = None
        while True:
            seconds = desk.due - monotonic()
            with suppress(queue.Empty):
                new = news.get(timeout=None if seconds == inf else min(max(0.0, seconds), _LONGEST_SLEEP))
            now = monotonic()
            desk.pass_time(now)
            if isinstance(new, Turn):
                desk.see(new, now)
            elif new is not None:
                self._hear(desk, new, now)
            new = None

    def _hear(self, desk: Desk, outcome: Outcome, now: float) -> None:
        seconds = outcome.gate.hear(outcome.came, now)
        if outcome.error is None:
            desk.hear(outcome.gate, seconds, now)
        else:
            desk.fail(outcome.gate, outcome.error, now)


_clerk = _Clerk()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clerk.begin_anew)


class Queued:
    """The allowance of this process: its gates, and a line before each."""

    def __init__(self, owner: str, gates: tuple[Gate, ...]) -> None:
        self._owner = owner
        self._gates = gates
        self._counts_tokens = any(isinstance(gate, Window) and gate.counts_tokens for gate in gates)
        self.settle = _clerk.hand

    def turn(self, size: Callable[[], int], longest: int | None) -> Turn:
        return Turn(self._gates, size() if self._counts_tokens else 0, longest)

    def take(self, turn: Turn, seconds: float | None) -> None:
        news: queue.SimpleQueue[float] = queue.SimpleQueue()
        turn.tell = news.put
        began = self._begin(turn)
        until = inf if seconds is None or seconds > threading.TIMEOUT_MAX else began + seconds
        end = ending.get()
        if end is not None:
            end.watch(partial(news.put, _NEVER))
        try:
            while wait := next_of(news, until - monotonic()):
                if wait == _NEVER:
                    raise AbandonedError
                self._hear(turn, wait)
        except queue.Empty:
            raise self._late(turn, began) from None
        finally:
            if end is not None:
                end.watch(None)
        self._go(turn)

    async def atake(self, turn: Turn, seconds: float | None) -> None:
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

    def _begin(self, turn: Turn) -> float:
        _clerk.be_there()
        _clerk.hand(turn)
        return monotonic()

    def _go(self, turn: Turn) -> None:
        # Counted from here: whoever was let through may have been kept from sending, by a blocked event loop, say.
        now = monotonic()
        if now > turn.send_by:
            raise SendAgainError(f"A request of `{self._owner}` came too late for its turn.")
        turn.sent = now
        _clerk.hand(turn)

    def _hear(self, turn: Turn, seconds: float) -> None:
        if turn.error is not None:
            raise StoreError(
                f"A request of `{self._owner}` was not sent, as its `rate_limit` is shared and could not be counted: "
                f"{turn.error}"
            ) from turn.error
        how_long = "" if seconds == inf else f", {seconds:.2f} s"
        logger.info("A request of `%s` waits for its turn (`%s`%s).", self._owner, self._setting(turn), how_long)

    def _late(self, turn: Turn, began: float) -> ModelError:
        return ModelError(
            f"A request of `{self._owner}` was not sent: in the {monotonic() - began:.1f} s that were left it did not "
            f"get its turn under `{self._setting(turn)}`; raise that, or give the run more time."
        )

    def _setting(self, turn: Turn) -> str:
        return self._gates[min(turn.passed, len(self._gates) - 1)].name


def allowance(
    owner: str, slots: Counted[int] | None, window: Counted[RateLimit] | None, store: Shares | None = None
) -> Allowance:
    """What a request of a class needs. A slot comes first: who has a place in a window sends at once.

    `store` is where a window is counted that machines share.
    """
    gates = [] if slots is None else [_gate(slots, Slots)]
    if window is not None and store is None:
        gates.append(_gate(window, Window))
    elif window is not None and store is not None:
        gates.append(_gate(window, partial(_shared_window, window, store), store.name))
    return Queued(owner, tuple(gates))


def _shared_window(window: Counted[RateLimit], store: Shares, limit: RateLimit) -> SharedWindow:
    key = f"{agent_name(window.of)} {limit.requests} {limit.tokens} {limit.per:g}"

    def send(gate: SharedWindow, order: Order) -> None:
        _clerk.carriers.send(store, gate, order)

    return SharedWindow(limit, key, send)


def _gate(counted: Counted[RateLimit] | Counted[int], make: Callable[..., Gate], where: str = "") -> Gate:
    """The one gate of a limit, which all of a class go through."""
    with _clerk.guard:
        gates = _clerk.gates.setdefault(counted.of, {})
        key = (counted.limit, where)
        if key not in gates:
            gates[key] = make(counted.limit)
        return gates[key]
