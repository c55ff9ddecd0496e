"""Rate limits that several processes share through a store.

A process asks the store for a slice, which is a small part of the shared limit: a number of requests and tokens that
the process may use. Most requests therefore do not need the store. The store counts a slice from the time when the
process asks for it until one window after the last request of the slice was sent. A process soon returns the unused
requests of a slice.

A `SharedWindow` performs no I/O, like every `Limit`. It creates orders, which are messages to the store that ask for a
slice or report the use of earlier slices. `StoreThreads` sends the orders to the store, and `SharedWindow.on_outcome`
receives the answers. Each store has its own OS thread, so that a store without a connection does not block other
stores.
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
from acorn.models.limits.request_queue import QueuedRequest, SlidingWindow
from acorn.stores.port import SharedLimits, WindowOrder, WindowReport, WindowSlice

_IDLE_SECONDS = 5.0
"""The seconds without an order after which the thread of a store ends."""


class OrderOutcome(NamedTuple):
    """The answer of a store to an order: a slice (a part of the shared rate limit), or an error."""

    window: SharedWindow
    slice: WindowSlice | None
    error: Exception | None = None


_Orders = queue.SimpleQueue["tuple[SharedWindow, WindowOrder]"]


class StoreThreads:
    """The OS threads that send the orders of shared rate limits to their stores.

    Each store has one thread.
    """

    def __init__(self, report: Callable[[OrderOutcome], None]) -> None:
        self._report_outcome = report
        self._lock = threading.Lock()
        self._orders: dict[int, _Orders] = {}

    def send(self, store: SharedLimits, window: SharedWindow, order: WindowOrder) -> None:
        with self._lock:
            orders = self._orders.get(id(store))
            if orders is None:
                orders = self._orders[id(store)] = queue.SimpleQueue()
                thread = threading.Thread(target=self._work, args=(store, orders), name="acorn-limits", daemon=True)
                with suppress(RuntimeError):  # The interpreter is ending, so no request will be sent.
                    thread.start()
            orders.put((window, order))

    def _work(self, store: SharedLimits, orders: _Orders) -> None:
        while True:
            try:
                window, order = orders.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if orders.empty():
                        del self._orders[id(store)]
                        return
            else:
                self._report_outcome(_execute(store, window, order))


def _execute(store: SharedLimits, window: SharedWindow, order: WindowOrder) -> OrderOutcome:
    try:
        return OrderOutcome(window, store.take(order))
    except StoreError as error:
        return OrderOutcome(window, None, error)
    except Exception as error:  # A store that the user wrote may raise any exception.
        return OrderOutcome(window, None, StoreError(f"{store.name} failed: {describe_error(error)}"))


_SLICES = 50
"""The minimum number of slices of a limit. It is also the divisor that turns the seconds of a window into the seconds
of a slice."""
_MAX_RESERVE_SECONDS = 5.0
"""The maximum seconds for which a process reserves a slice. For a short window, the maximum is half the window.

An admitted request must be sent within this time, unless a report to the store has renewed the slice. Otherwise the
request must queue again. If a process dies or freezes, the store counts its slice for this time plus one window.
"""
_CHECKS_PER_WINDOW = 20
"""The number of times per window at which a process checks whether other processes have returned requests."""
_SHORTEST_PAUSE = 0.005
"""The minimum seconds between two checks."""


class _ReservedSlice:
    """A slice (a part of the shared rate limit) that this process has reserved, with the requests that use it."""

    __slots__ = ("granted", "is_final", "number", "renewed", "requests", "sent", "tokens", "unsent", "until")

    def __init__(self, new_slice: WindowSlice, ordered_at: float, until: float) -> None:
        self.number = new_slice.number
        self.granted = new_slice.requests
        """The number of requests that the store granted."""
        self.requests, self.tokens = new_slice.requests, new_slice.tokens
        """The requests and tokens of the slice that are not used yet."""
        self.renewed = ordered_at
        """The time of the last report to the store. Before the first report, it is the time of the order."""
        self.until = until
        """The time when the process returns the unused requests."""
        self.unsent: dict[QueuedRequest, int] = {}
        """A dict that maps the admitted requests that are not sent yet to their tokens."""
        self.sent: dict[QueuedRequest, int] = {}
        """A dict that maps the sent requests to their tokens."""
        self.is_final = False
        """Whether no further request may use the slice."""


class SharedWindow(SlidingWindow):
    """A rate limit on the requests and tokens of all processes that use the same store."""

    def __init__(self, limit: RateLimit, key: str, send: Callable[[SharedWindow, WindowOrder], object]) -> None:
        super().__init__(limit)
        self._key, self._send = key, send
        self._slice_seconds = limit.per / _SLICES
        self._reserve_seconds = max(self._slice_seconds, min(_MAX_RESERVE_SECONDS, limit.per / 2))
        self._current: _ReservedSlice | None = None
        self._reserved: dict[int, _ReservedSlice] = {}
        """A dict that maps slice numbers to the slices that still count."""
        self._slice_of: dict[QueuedRequest, _ReservedSlice] = {}
        self._unreported: set[int] = set()
        """The numbers of the slices with changes that were not reported to the store."""
        self._report_at = inf
        """The time when to report the changed slices."""
        self._pending: tuple[float, tuple[int, ...]] | None = None
        """The time of the order in progress, and the numbers of the slices that the order reports."""
        self._retry_at = 0.0
        """The time of the next order, if the store had no requests left for the last order."""
        self._slice_size = 1
        """The number of requests to reserve with the next order."""

    # `RequestQueues` calls these methods.

    @property
    def is_waiting_for_store(self) -> bool:
        return self._pending is not None

    def seconds_to_wait(self, request: QueuedRequest, now: float) -> float:
        needed = self.estimate(request)
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

    def report_if_due(self, now: float) -> float:
        """Report the use of the reserved slices to the store if it is time, and return the time of the next report."""
        if self._current is not None and now >= self._current.until:
            self._close(now)
        for reservation in self._reserved.values():
            if reservation.unsent and now >= reservation.renewed + self._reserve_seconds / 2:
                self._mark_changed(reservation, now)
        if self._pending is None and now >= self._report_at:
            self._order(0, now, is_report=True)
        if self._pending is not None:
            return inf
        unsent = [reservation for reservation in self._reserved.values() if reservation.unsent]
        renewals = [reservation.renewed + self._reserve_seconds / 2 for reservation in unsent]
        current_end = [] if self._current is None else [self._current.until]
        return min((self._report_at, *renewals, *current_end))

    def admit(self, request: QueuedRequest) -> None:
        reservation, tokens = self._current, self.estimate(request)
        assert reservation is not None
        reservation.requests, reservation.tokens = reservation.requests - 1, reservation.tokens - tokens
        reservation.unsent[request] = tokens
        self._slice_of[request] = reservation
        request.send_by = reservation.renewed + self._reserve_seconds

    def update(self, request: QueuedRequest, now: float) -> None:
        reservation = self._slice_of.get(request)
        if reservation is None:
            return
        if request in reservation.unsent:
            if request.sent_at is not None:
                reservation.sent[request] = reservation.unsent.pop(request)
                self._mark_changed(reservation, now)
            elif request.is_finished:
                tokens = reservation.unsent.pop(request)
                del self._slice_of[request]
                if reservation is self._current:
                    reservation.requests, reservation.tokens = reservation.requests + 1, reservation.tokens + tokens
                self._mark_changed(reservation, now)
        if request.is_finished and request in reservation.sent:
            if request.used_tokens is not None:
                reservation.sent[request] = sum(request.used_tokens)
                self.learn(request, *request.used_tokens)
            self._mark_changed(reservation, now)
            del self._slice_of[request]  # The request will not change any more.

    def on_outcome(self, new_slice: WindowSlice | None, now: float) -> float:
        """Handle the answer of the store to the last order, and return the seconds until a request may pass.

        `new_slice` is None if the order failed. The result is then `inf`.
        """
        assert self._pending is not None
        (ordered_at, reported), self._pending = self._pending, None
        if new_slice is None:
            self._unreported.update(reported)
            self._report_at = min(self._report_at, now + self._slice_seconds)
            return inf
        for number in reported:
            self._renew(number, ordered_at, now)
        if new_slice.requests:
            self._reserved[new_slice.number] = self._current = _ReservedSlice(
                new_slice, ordered_at, min(now + self._slice_seconds, ordered_at + self._reserve_seconds)
            )
            return 0.0
        if new_slice.seconds:
            self._retry_at = now + max(_SHORTEST_PAUSE, min(new_slice.seconds, self._limit.per / _CHECKS_PER_WINDOW))
        return new_slice.seconds

    def _renew(self, number: int, ordered_at: float, now: float) -> None:
        reservation = self._reserved.get(number)
        if reservation is None:
            return
        reservation.renewed = ordered_at
        for request in reservation.unsent:
            request.send_by = ordered_at + self._reserve_seconds
        if number not in self._unreported and self._is_expired(reservation, now):
            del self._reserved[number]

    # Slices

    def _close(self, now: float) -> None:
        """Close the current slice.

        New requests cannot use it, and the store gets its unused requests back.
        """
        reservation, self._current = self._current, None
        if reservation is None:
            return
        used, is_early = reservation.granted - reservation.requests, now < reservation.until
        self._slice_size = 2 * reservation.granted if is_early and not reservation.requests else max(1, used)
        self._mark_changed(reservation, now)
        if reservation.requests:  # Other processes may wait for the unused requests.
            self._report_at = now
        reservation.requests = reservation.tokens = 0
        reservation.is_final = True

    def _mark_changed(self, reservation: _ReservedSlice, now: float) -> None:
        """Remember that the use of a slice has changed, so that the next order reports it to the store."""
        self._unreported.add(reservation.number)
        self._report_at = min(self._report_at, now + self._slice_seconds)

    def _order(self, need: int, now: float, *, is_report: bool = False) -> None:
        """Send an order to the store, which reports the changed slices and asks for a new slice.

        If `is_report` is true, the order does not ask for a new slice. `need` is the number of tokens of the next
        request.
        """
        for number in [number for number, reservation in self._reserved.items() if self._is_expired(reservation, now)]:
            del self._reserved[number]
        reported = tuple(number for number in self._unreported if number in self._reserved)
        self._unreported.clear()
        self._report_at = inf
        if is_report and not reported:
            return
        self._pending = (now, reported)
        limit = self._limit
        max_requests = inf if limit.requests is None else max(1, limit.requests // _SLICES)
        requests = 0 if is_report else int(min(max(self._slice_size, len(self.queue)), max_requests))
        max_tokens = 0 if limit.tokens is None else max(need, limit.tokens // _SLICES)
        seconds = self._reserve_seconds + self._uncertainty + limit.per
        reports = [self._report(self._reserved[number], now) for number in reported]
        tokens = min(need * requests, max_tokens)
        self._send(self, WindowOrder(self._key, limit.requests, limit.tokens, requests, tokens, need, seconds, reports))

    def _report(self, reservation: _ReservedSlice, now: float) -> WindowReport:
        requests = reservation.requests + len(reservation.unsent) + len(reservation.sent)
        tokens = reservation.tokens + sum(reservation.unsent.values()) + sum(reservation.sent.values())
        return WindowReport(reservation.number, requests, tokens, self._seconds_left(reservation, now))

    def _seconds_left(self, reservation: _ReservedSlice, now: float) -> float:
        """Return for how many more seconds the store must count the requests of a slice."""
        if reservation.unsent or not reservation.is_final:
            return self._reserve_seconds + self._uncertainty + self._limit.per
        return max((self._leave_time(request) - now for request in reservation.sent), default=0.0)

    def _is_expired(self, reservation: _ReservedSlice, now: float) -> bool:
        return reservation.is_final and not reservation.unsent and self._seconds_left(reservation, now) <= 0
