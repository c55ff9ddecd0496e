"""Rate limits that several machines share through a store.

A `SharedWindow` takes a slice of the common limit in advance, so that most requests do not need the store. A slice
counts in the store from before its first request is sent until one window after its last request. Requests that are not
used soon are given back. Like all gates, it performs no I/O: it creates orders for the store, and `on_answer` receives
their outcomes.

`StoreThreads` executes the orders, with one thread for each store, so that a store without a connection does not block
others.
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

_IDLE_SECONDS = 5.0
"""The seconds without work after which a thread ends."""


class OrderOutcome(NamedTuple):
    """The outcome of an order: a slice, or the error."""

    gate: SharedWindow
    slice: WindowSlice | None
    error: Exception | None = None


_Orders = queue.SimpleQueue["tuple[SharedWindow, WindowOrder]"]


class StoreThreads:
    """The threads that execute the orders of shared windows."""

    def __init__(self, report: Callable[[OrderOutcome], None]) -> None:
        self._report_outcome = report
        self._lock = threading.Lock()
        self._orders: dict[int, _Orders] = {}

    def send(self, store: SharedLimits, gate: SharedWindow, order: WindowOrder) -> None:
        with self._lock:
            orders = self._orders.get(id(store))
            if orders is None:
                orders = self._orders[id(store)] = queue.SimpleQueue()
                thread = threading.Thread(target=self._work, args=(store, orders), name="acorn-limits", daemon=True)
                with suppress(RuntimeError):  # The interpreter is ending, so no request will be sent.
                    thread.start()
            orders.put((gate, order))

    def _work(self, store: SharedLimits, orders: _Orders) -> None:
        while True:
            try:
                gate, order = orders.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if orders.empty():
                        del self._orders[id(store)]
                        return
            else:
                self._report_outcome(_execute(store, gate, order))


def _execute(store: SharedLimits, gate: SharedWindow, order: WindowOrder) -> OrderOutcome:
    try:
        return OrderOutcome(gate, store.take(order))
    except StoreError as error:
        return OrderOutcome(gate, None, error)
    except Exception as error:  # The store may be the user's own.
        return OrderOutcome(gate, None, StoreError(f"{store.name} failed: {describe_error(error)}"))


_SLICES = 50
"""A limit is divided into at least this many slices, and a slice is used within this part of the window."""
_LONGEST_HOLD = 5.0
"""The seconds, or half a window, for which a slice is held. A request that passed must be sent before, or queue again,
unless the slice was renewed. The slice of a process that died or is frozen counts for this time after the window."""
_CHECKS_PER_WINDOW = 20
"""The number of checks per window whether others have given requests back."""
_SHORTEST_PAUSE = 0.005


class _HeldSlice:
    """A slice of the limit, with the waiters that used it."""

    __slots__ = ("is_final", "number", "renewed", "requests", "sent", "taken", "tokens", "unsent", "until")

    def __init__(self, taken: WindowSlice, began: float, until: float) -> None:
        self.number = taken.number
        self.taken = taken.requests
        self.requests, self.tokens = taken.requests, taken.tokens
        """The requests and tokens that are left."""
        self.renewed = began
        """The time of the last report to the store. At first, the time of the order."""
        self.until = until
        """The time when the remainder is given back."""
        self.unsent: dict[Waiter, int] = {}
        self.sent: dict[Waiter, int] = {}
        """The waiters that used the slice, with their tokens."""
        self.is_final = False
        """Whether no further waiter may use it."""


class SharedWindow(Window):
    """A limit on requests and tokens in any period of a given length, over all machines."""

    def __init__(self, limit: RateLimit, key: str, send: Callable[[SharedWindow, WindowOrder], object]) -> None:
        super().__init__(limit)
        self._key, self._send = key, send
        self._slice_seconds = limit.per / _SLICES
        self._hold_seconds = max(self._slice_seconds, min(_LONGEST_HOLD, limit.per / 2))
        self._current: _HeldSlice | None = None
        self._held: dict[int, _HeldSlice] = {}
        """The slices that still count, by number."""
        self._slice_of: dict[Waiter, _HeldSlice] = {}
        self._unreported: set[int] = set()
        """The slices with changes that the store does not know."""
        self._report_at = inf
        """The time when to report them."""
        self._pending: tuple[float, tuple[int, ...]] | None = None
        """The time of the order in progress, and the slices that it reports."""
        self._retry_at = 0.0
        """The time of the next order, after there was no room."""
        self._slice_size = 1
        """The number of requests to take at a time."""

    # Called by the `WaitingLine`

    @property
    def is_asking(self) -> bool:
        return self._pending is not None

    def wait(self, waiter: Waiter, now: float) -> float:
        needed = self.estimate(waiter)
        current = self._current
        if current is not None and now < current.until and current.requests and current.tokens >= needed:
            return 0.0
        if self._pending is not None:
            return inf
        if now < self._retry_at:
            return self._retry_at - now
        self._close(now)
        self._order(needed, now)
        return inf

    def run_due_work(self, now: float) -> float:
        """Report changes to the store if it is time, and return the time of the next report."""
        if self._current is not None and now >= self._current.until:
            self._close(now)
        for held in self._held.values():
            if held.unsent and now >= held.renewed + self._hold_seconds / 2:
                self._mark_changed(held, now)
        if self._pending is None and now >= self._report_at:
            self._order(0, now, is_report=True)
        if self._pending is not None:
            return inf
        stale = [held.renewed + self._hold_seconds / 2 for held in self._held.values() if held.unsent]
        stock = [] if self._current is None else [self._current.until]
        return min((self._report_at, *stale, *stock))

    def enter(self, waiter: Waiter) -> None:
        held, tokens = self._current, self.estimate(waiter)
        assert held is not None
        held.requests, held.tokens = held.requests - 1, held.tokens - tokens
        held.unsent[waiter] = tokens
        self._slice_of[waiter] = held
        waiter.send_by = held.renewed + self._hold_seconds

    def update(self, waiter: Waiter, now: float) -> None:
        held = self._slice_of.get(waiter)
        if held is None:
            return
        if waiter in held.unsent:
            if waiter.sent is not None:
                held.sent[waiter] = held.unsent.pop(waiter)
                self._mark_changed(held, now)
            elif waiter.is_over:
                tokens = held.unsent.pop(waiter)
                del self._slice_of[waiter]
                if held is self._current:
                    held.requests, held.tokens = held.requests + 1, held.tokens + tokens
                self._mark_changed(held, now)
        if waiter.is_over and waiter in held.sent:
            if waiter.used is not None:
                held.sent[waiter] = sum(waiter.used)
                self.learn(waiter, *waiter.used)
            self._mark_changed(held, now)
            del self._slice_of[waiter]  # It will not change any more.

    # Called with the outcome of an order

    def on_answer(self, new_slice: WindowSlice | None, now: float) -> float:
        """Handle the outcome of the current order, or None if it failed. Return the seconds until there may be room."""
        assert self._pending is not None
        (ordered_at, reported), self._pending = self._pending, None
        if new_slice is None:
            self._unreported.update(reported)
            self._report_at = min(self._report_at, now + self._slice_seconds)
            return inf
        for number in reported:
            self._renew(number, ordered_at, now)
        if new_slice.requests:
            self._held[new_slice.number] = self._current = _HeldSlice(
                new_slice, ordered_at, min(now + self._slice_seconds, ordered_at + self._hold_seconds)
            )
            return 0.0
        if new_slice.seconds:
            self._retry_at = now + max(_SHORTEST_PAUSE, min(new_slice.seconds, self._limit.per / _CHECKS_PER_WINDOW))
        return new_slice.seconds

    def _renew(self, number: int, ordered_at: float, now: float) -> None:
        held = self._held.get(number)
        if held is None:
            return
        held.renewed = ordered_at
        for waiter in held.unsent:
            waiter.send_by = ordered_at + self._hold_seconds
        if held.is_final and number not in self._unreported and not held.unsent and self._seconds_left(held, now) <= 0:
            del self._held[number]

    # Slices

    def _close(self, now: float) -> None:
        """Close the current slice, so that no further waiter uses it."""
        held, self._current = self._current, None
        if held is None:
            return
        used, is_soon = held.taken - held.requests, now < held.until
        self._slice_size = 2 * held.taken if is_soon and not held.requests else max(1, used)
        self._mark_changed(held, now)
        if held.requests:  # Other machines may wait for them.
            self._report_at = now
        held.requests = held.tokens = 0
        held.is_final = True

    def _mark_changed(self, held: _HeldSlice, now: float) -> None:
        """Remember that a slice has changed."""
        self._unreported.add(held.number)
        self._report_at = min(self._report_at, now + self._slice_seconds)

    def _order(self, need: int, now: float, *, is_report: bool = False) -> None:
        for number in [number for number, held in self._held.items() if self._is_past(held, now)]:
            del self._held[number]
        reported = tuple(number for number in self._unreported if number in self._held)
        self._unreported.clear()
        self._report_at = inf
        if is_report and not reported:
            return
        self._pending = (now, reported)
        limit = self._limit
        most = inf if limit.requests is None else max(1, limit.requests // _SLICES)
        requests = 0 if is_report else int(min(max(self._slice_size, len(self.queue)), most))
        most_tokens = 0 if limit.tokens is None else max(need, limit.tokens // _SLICES)
        seconds = self._hold_seconds + self._uncertainty + limit.per
        reports = [self._report(self._held[number], now) for number in reported]
        tokens = min(need * requests, most_tokens)
        self._send(self, WindowOrder(self._key, limit.requests, limit.tokens, requests, tokens, need, seconds, reports))

    def _report(self, held: _HeldSlice, now: float) -> WindowReport:
        requests = held.requests + len(held.unsent) + len(held.sent)
        tokens = held.tokens + sum(held.unsent.values()) + sum(held.sent.values())
        return WindowReport(held.number, requests, tokens, self._seconds_left(held, now))

    def _seconds_left(self, held: _HeldSlice, now: float) -> float:
        """Return the seconds for which a slice still counts."""
        if held.unsent or not held.is_final:
            return self._hold_seconds + self._uncertainty + self._limit.per
        return max((self._leave_time(waiter) - now for waiter in held.sent), default=0.0)

    def _is_past(self, held: _HeldSlice, now: float) -> bool:
        return held.is_final and not held.unsent and self._seconds_left(held, now) <= 0
