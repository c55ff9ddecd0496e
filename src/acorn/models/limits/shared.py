"""Carries what shared windows want of their stores, and brings back what came of it.

A thread for each store, while there is something to carry: a store that has lost its connection holds up nobody else.

A window that all machines share: a gate that lets through what it has taken of the common allowance beforehand.

It takes a slice at a time, so that most requests need not ask anybody. A slice counts in the store from before its
first request is sent until a window after its last; what of it is not used soon is given back. Pure, as all gates: what
is wanted of the store is handed out as orders, and what came of them is told (`hear`); `turns.py` has them carried.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import NamedTuple

from acorn._declare.settings import RateLimit
from acorn._formats.json import describe_error
from acorn.errors import StoreError
from acorn.models.limits.gates import Waiter, Window
from acorn.stores.port import SharedLimits, WindowOrder, WindowReport, WindowSlice

_IDLE = 5.0
"""Seconds without work after which a thread ends."""


class OrderOutcome(NamedTuple):
    """What came of an order: a slice, or why there is none."""

    gate: SharedWindow
    came: WindowSlice | None
    error: Exception | None = None


_Orders = queue.SimpleQueue["tuple[SharedWindow, WindowOrder]"]


class StoreThreads:
    def __init__(self, tell: Callable[[OrderOutcome], None]) -> None:
        self._tell = tell
        self._guard = threading.Lock()
        self._orders: dict[int, _Orders] = {}

    def send(self, store: SharedLimits, gate: SharedWindow, order: WindowOrder) -> None:
        with self._guard:
            orders = self._orders.get(id(store))
            if orders is None:
                orders = self._orders[id(store)] = queue.SimpleQueue()
                thread = threading.Thread(target=self._carry, args=(store, orders), name="acorn-limits", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending, and nothing will be sent
                    thread.start()
            orders.put((gate, order))

    def _carry(self, store: SharedLimits, orders: _Orders) -> None:
        while True:
            try:
                gate, order = orders.get(timeout=_IDLE)
            except queue.Empty:
                with self._guard:
                    if orders.empty():
                        del self._orders[id(store)]
                        return
            else:
                self._tell(_outcome(store, gate, order))


def _outcome(store: SharedLimits, gate: SharedWindow, order: WindowOrder) -> OrderOutcome:
    try:
        return OrderOutcome(gate, store.take(order))
    except StoreError as error:
        return OrderOutcome(gate, None, error)
    except Exception as error:  # the store may be the user's
        return OrderOutcome(gate, None, StoreError(f"{store.name} failed: {describe_error(error)}"))


_SLICES = 50
"""An allowance is taken in no fewer parts, and what was taken is used within such a part of the window."""
_LONGEST_HOLD = 5.0
"""Seconds, or half a window: who was let through and has not sent by then has to come again, unless that was renewed.
A process that died, or is frozen, keeps its slice for so much longer than the window."""
_LOOKS = 20
"""How often in a window to look whether others have given something back."""
_SHORTEST_PAUSE = 0.005


class _Held:
    """A slice, and who has had something of it."""

    __slots__ = ("going", "is_final", "number", "renewed", "requests", "sent", "taken", "tokens", "until")

    def __init__(self, taken: WindowSlice, began: float, until: float) -> None:
        self.number = taken.number
        self.taken = taken.requests
        self.requests, self.tokens = taken.requests, taken.tokens
        """What nobody has had yet."""
        self.renewed = began
        """When it was last heard of in the store, or before that: at first when it was asked for."""
        self.until = until
        """When what is left of it is given back."""
        self.going: dict[Waiter, int] = {}
        self.sent: dict[Waiter, int] = {}
        """Those who have had something, with their tokens: not sent yet, and sent."""
        self.is_final = False
        """Whether nobody gets anything of it any more."""


class SharedWindow(Window):
    """So many requests and tokens in any so many seconds, over all machines."""

    def __init__(self, limit: RateLimit, key: str, send: Callable[[SharedWindow, WindowOrder], object]) -> None:
        super().__init__(limit)
        self._key, self._send = key, send
        self._soon = limit.per / _SLICES
        self._hold = max(self._soon, min(_LONGEST_HOLD, limit.per / 2))
        self._current: _Held | None = None
        self._held: dict[int, _Held] = {}
        """By number, those that still count."""
        self._of: dict[Waiter, _Held] = {}
        self._new: set[int] = set()
        """Those of which the store does not know the newest, ..."""
        self._tell_at = inf
        """... and when it is to be told."""
        self._under_way: tuple[float, tuple[int, ...]] | None = None
        """When the store was asked, and of which slices it was told then."""
        self._again = 0.0
        """When to ask again, after there was no room."""
        self._ahead = 1
        """How many requests to take at a time."""

    # By the desk

    @property
    def is_asking(self) -> bool:
        return self._under_way is not None

    def wait(self, turn: Waiter, now: float) -> float:
        wanted = self.estimate(turn)
        current = self._current
        if current is not None and now < current.until and current.requests and current.tokens >= wanted:
            return 0.0
        if self._under_way is not None:
            return inf
        if now < self._again:
            return self._again - now
        self._close(now)
        self._order(wanted, now)
        return inf

    def chores(self, now: float) -> float:
        """Tell the store what is new, where it is time; when it will be."""
        if self._current is not None and now >= self._current.until:
            self._close(now)
        for held in self._held.values():
            if held.going and now >= held.renewed + self._hold / 2:
                self._note(held, now)
        if self._under_way is None and now >= self._tell_at:
            self._order(0, now, only_tells=True)
        if self._under_way is not None:
            return inf
        stale = [held.renewed + self._hold / 2 for held in self._held.values() if held.going]
        stock = [] if self._current is None else [self._current.until]
        return min((self._tell_at, *stale, *stock))

    def enter(self, turn: Waiter) -> None:
        held, tokens = self._current, self.estimate(turn)
        assert held is not None
        held.requests, held.tokens = held.requests - 1, held.tokens - tokens
        held.going[turn] = tokens
        self._of[turn] = held
        turn.send_by = held.renewed + self._hold

    def look(self, turn: Waiter, now: float) -> None:
        held = self._of.get(turn)
        if held is None:
            return
        if turn in held.going:
            if turn.sent is not None:
                held.sent[turn] = held.going.pop(turn)
                self._note(held, now)
            elif turn.is_over:
                tokens = held.going.pop(turn)
                del self._of[turn]
                if held is self._current:
                    held.requests, held.tokens = held.requests + 1, held.tokens + tokens
                self._note(held, now)
        if turn.is_over and turn in held.sent:
            if turn.used is not None:
                held.sent[turn] = sum(turn.used)
                self.learn(turn, *turn.used)
            self._note(held, now)
            del self._of[turn]  # nothing more is heard of it

    # By whoever carries the orders

    def hear(self, came: WindowSlice | None, now: float) -> float:
        """What came of the order under way; None: it was lost. Seconds until there may be room, where there is none."""
        assert self._under_way is not None
        (asked, told), self._under_way = self._under_way, None
        if came is None:
            self._new.update(told)
            self._tell_at = min(self._tell_at, now + self._soon)
            return inf
        for number in told:
            self._renew(number, asked, now)
        if came.requests:
            self._held[came.number] = self._current = _Held(came, asked, min(now + self._soon, asked + self._hold))
            return 0.0
        if came.seconds:
            self._again = now + max(_SHORTEST_PAUSE, min(came.seconds, self._limit.per / _LOOKS))
        return came.seconds

    def _renew(self, number: int, asked: float, now: float) -> None:
        held = self._held.get(number)
        if held is None:
            return
        held.renewed = asked
        for turn in held.going:
            turn.send_by = asked + self._hold
        if held.is_final and number not in self._new and not held.going and self._left(held, now) <= 0:
            del self._held[number]

    # Slices

    def _close(self, now: float) -> None:
        """Nobody gets anything more of the slice at hand."""
        held, self._current = self._current, None
        if held is None:
            return
        used, is_soon = held.taken - held.requests, now < held.until
        self._ahead = 2 * held.taken if is_soon and not held.requests else max(1, used)
        self._note(held, now)
        if held.requests:  # others may wait for it
            self._tell_at = now
        held.requests = held.tokens = 0
        held.is_final = True

    def _note(self, held: _Held, now: float) -> None:
        """There is something new of a slice."""
        self._new.add(held.number)
        self._tell_at = min(self._tell_at, now + self._soon)

    def _order(self, need: int, now: float, *, only_tells: bool = False) -> None:
        for number in [number for number, held in self._held.items() if self._is_past(held, now)]:
            del self._held[number]
        told = tuple(number for number in self._new if number in self._held)
        self._new.clear()
        self._tell_at = inf
        if only_tells and not told:
            return
        self._under_way = (now, told)
        limit = self._limit
        most = inf if limit.requests is None else max(1, limit.requests // _SLICES)
        requests = 0 if only_tells else int(min(max(self._ahead, len(self.line)), most))
        most_tokens = 0 if limit.tokens is None else max(need, limit.tokens // _SLICES)
        seconds = self._hold + self._unsure + limit.per
        reports = [self._report(self._held[number], now) for number in told]
        tokens = min(need * requests, most_tokens)
        self._send(self, WindowOrder(self._key, limit.requests, limit.tokens, requests, tokens, need, seconds, reports))

    def _report(self, held: _Held, now: float) -> WindowReport:
        requests = held.requests + len(held.going) + len(held.sent)
        tokens = held.tokens + sum(held.going.values()) + sum(held.sent.values())
        return WindowReport(held.number, requests, tokens, self._left(held, now))

    def _left(self, held: _Held, now: float) -> float:
        """Seconds for which a slice counts."""
        if held.going or not held.is_final:
            return self._hold + self._unsure + self._limit.per
        return max((self._leaves(turn) - now for turn in held.sent), default=0.0)

    def _is_past(self, held: _Held, now: float) -> bool:
        return held.is_final and not held.going and self._left(held, now) <= 0
