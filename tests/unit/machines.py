"""Machines under one shared limit, in simulated time.

Each has the queue and the shared window of a process, and any number of senders; the store's rules are those of
PostgreSQL, over a list. Delays of a busy machine are random by seed: the way to the store and back, waking up, and
sending.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from operator import itemgetter
from random import Random
from typing import NamedTuple

from acorn._declare.settings import RateLimit
from acorn.models.limits.request_queue import QueuedRequest, RequestQueues
from acorn.models.limits.shared_rate_limit import SharedWindow
from acorn.stores.port import WindowOrder, WindowSlice
from acorn.stores.rules import grant_slice


class Sent(NamedTuple):
    at: float
    tokens: int


class Request(NamedTuple):
    size: int
    """Its bytes."""
    longest: int
    """The most tokens of its answer."""
    tokens: int
    """All that it uses."""
    seconds: float
    """Until its answer comes."""


class Clock:
    """A simulated clock that calls functions at their scheduled times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._coming: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._coming, (self.now + seconds, next(self._number), act))

    def run(self, until: float) -> None:
        while self._coming and self._coming[0][0] < until:
            self.now, _, act = heapq.heappop(self._coming)
            act()
        self.now = until


class Book:
    """A simulated store that grants slices of a shared limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slices: dict[int, tuple[int, int, float]] = {}
        self._number = count(1)

    def take(self, order: WindowOrder) -> WindowSlice:
        now = self._clock.now
        for number, requests, tokens, seconds in order.reports:
            if number in self._slices:
                self._slices[number] = (requests, tokens, now + seconds)
        self._slices = {number: each for number, each in self._slices.items() if each[2] > now and each[0]}
        soonest_first = sorted(self._slices.values(), key=itemgetter(2))
        came = grant_slice(order, [(requests, tokens, until - now) for requests, tokens, until in soonest_first])
        if not came.requests:
            return came
        number = next(self._number)
        self._slices[number] = (came.requests, came.tokens, now + order.seconds)
        return came._replace(number=number)


class Machine:
    """A simulated process whose senders send requests one after another."""

    def __init__(
        self, clock: Clock, book: Book, limit: RateLimit, chance: Random, slow: float, sent: list[Sent]
    ) -> None:
        self._clock, self._book, self._chance, self._slow, self._sent = clock, book, chance, slow, sent
        self._desk = RequestQueues()
        self._gate = SharedWindow(limit, "all", self._carry)
        self._alarm = 0

    def begin(self, senders: int, request: Request, pause: float) -> None:
        """Start senders that send requests without end, with a pause after each response."""
        for _ in range(senders):
            self._clock.later(self._delay(), lambda: self._ask(request, pause))

    def _ask(self, request: Request, pause: float) -> None:
        turn = QueuedRequest((self._gate,), request.size, request.longest)

        def told(wait: float) -> None:
            if not wait:
                self._clock.later(self._delay() / 4, send)

        def send() -> None:
            if self._clock.now > turn.send_by:
                turn.is_finished = True
                self._ask(request, pause)
            else:
                turn.sent_at = self._clock.now
                self._sent.append(Sent(turn.sent_at, request.tokens))
                self._clock.later(self._chance.uniform(0.0, 2 * request.seconds), answer)
            self._see(turn)

        def answer() -> None:
            turn.response_started, turn.is_finished = self._clock.now, True
            turn.used_tokens = (request.tokens // 2, request.tokens - request.tokens // 2)
            self._see(turn)
            self._clock.later(self._chance.uniform(0.0, 2 * pause), lambda: self._ask(request, pause))

        turn.notify = told
        self._see(turn)

    def _see(self, turn: QueuedRequest) -> None:
        self._desk.admit_due(self._clock.now)
        self._desk.update(turn, self._clock.now)
        self._set_alarm()

    # The way to the store and back

    def _carry(self, gate: SharedWindow, order: WindowOrder) -> None:
        self._clock.later(self._delay(), lambda: self._arrive(order))

    def _arrive(self, order: WindowOrder) -> None:
        came = self._book.take(order)
        self._clock.later(self._delay(), lambda: self._hear(came))

    def _hear(self, came: WindowSlice) -> None:
        now = self._clock.now
        self._desk.admit_due(now)
        self._desk.on_store_answer(self._gate, self._gate.on_outcome(came, now), now)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Schedule a call for the next time at which the queue may send a request."""
        self._alarm = alarm = self._alarm + 1

        def ring() -> None:
            if alarm == self._alarm:
                self._desk.admit_due(self._clock.now)
                self._set_alarm()

        if self._desk.due < inf:
            self._clock.later(max(0.0, self._desk.due - self._clock.now) + self._delay() / 4, ring)

    def _delay(self) -> float:
        return self._chance.uniform(0.0, 2 * self._slow)


def run(
    limit: RateLimit,
    windows: int,
    slow: float,
    *,
    senders: Sequence[int] = 8 * (4,),
    pause: Sequence[float] = 8 * (0.0,),
    longest: int = 50,
) -> list[Sent]:
    """Simulate machines for a number of windows and return all requests that they send."""
    clock, sent, chance = Clock(), list[Sent](), Random(0)
    book, request = Book(clock), Request(size=800, longest=longest, tokens=100, seconds=0.05)
    for number, seconds in zip(senders, pause, strict=True):
        Machine(clock, book, limit, chance, slow, sent).begin(number, request, seconds)
    clock.run(windows * limit.per)
    return sorted(sent)
