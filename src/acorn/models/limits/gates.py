"""Gates and queues of the limiter: which request may be sent now, and which one is next.

Each request has a `Waiter`, which passes its gates in order. Before each gate there is a queue, first come, first
served. A slot is occupied until the request is finished. A place in a window is occupied until a number of seconds
after the request was sent. The code that sends the request records changes in its `Waiter`, and then the
`WaitingLine` reads them. Nothing here performs I/O or reads a clock. `throttle.py` has the clock and the thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from math import inf

from acorn._declare.settings import RateLimit

_UNCERTAINTY = 0.1
"""The part of a window that is added, since it is unknown when a request reaches the provider."""
_MAX_UNCERTAINTY = 1.0
"""The maximum in seconds, so that slow responses do not cost too many requests."""
_TOKENS_PER_BYTE = 0.25
"""The tokens per byte of a request, until responses report the real number."""
_RESPONSE_TOKENS = 500.0
"""The tokens of a response, until there was one."""
_LEARNING_RATE = 0.25
"""The weight of the last response in the estimates."""


def _ignore(seconds: float) -> None:
    """Notify no one, since the request is not waiting any more."""


class Waiter:
    """One request, from its arrival at the limiter until it is finished."""

    __slots__ = (
        "answered", "error", "gates", "is_known", "is_over", "longest", "notify", "passed", "send_by", "sent", "size",
        "used",
    )  # fmt: skip

    def __init__(self, gates: tuple[Gate, ...], size: int = 0, longest: int | None = None) -> None:
        self.gates = gates
        self.size = size
        """The bytes of the request."""
        self.longest = longest
        """The maximum tokens of the response, if the user set it."""
        self.notify: Callable[[float], object] = _ignore
        """Called with 0 if the request may be sent, else with the seconds to wait. `inf` means unknown."""
        self.error: Exception | None = None
        """The reason why the request will never pass."""
        self.send_by = inf
        """The time by which a request that passed must be sent. Later it is not counted, and has to queue again."""
        self.sent: float | None = None
        """The time when the request was sent."""
        self.answered: float | None = None
        """The time when the response started."""
        self.used: tuple[int, int] | None = None
        """The tokens of the request and of the response, as the provider reports them."""
        self.is_over = False
        """Whether the request is finished or abandoned."""
        self.is_known = False
        self.passed = 0
        """The number of gates that it has passed."""


class Gate(ABC):
    """A limit that waiters pass one after the other."""

    name = ""
    """The name of the setting."""

    def __init__(self) -> None:
        self.queue: deque[Waiter] = deque()

    @abstractmethod
    def wait(self, waiter: Waiter, now: float) -> float:
        """Return the seconds until a waiter may pass, or `inf` if that depends on other requests."""

    @abstractmethod
    def enter(self, waiter: Waiter) -> None:
        """Let a waiter pass."""

    @abstractmethod
    def update(self, waiter: Waiter, now: float) -> None:
        """Read the changes of a waiter."""

    @property
    def is_asking(self) -> bool:
        """Whether the gate waits for a store, which will say how long the queue has to wait."""
        return False

    def run_due_work(self, now: float) -> float:
        """Do the work that is due besides the queue, and return the time of the next work."""
        return inf


class Slots(Gate):
    """A limit on concurrent requests."""

    name = "max_concurrency"

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._inside: set[Waiter] = set()

    def wait(self, waiter: Waiter, now: float) -> float:
        return 0.0 if len(self._inside) < self._count else inf

    def enter(self, waiter: Waiter) -> None:
        self._inside.add(waiter)

    def update(self, waiter: Waiter, now: float) -> None:
        if waiter.is_over:
            self._inside.discard(waiter)


class Window(Gate):
    """A limit on requests and tokens in any period of a given length."""

    name = "rate_limit"

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self._uncertainty = min(_MAX_UNCERTAINTY, _UNCERTAINTY * limit.per)
        self._unsent: dict[Waiter, int] = {}
        """The waiters that passed but are not sent yet, with their tokens."""
        self._sent: dict[Waiter, int] = {}
        """The waiters that were sent, in this order, with their tokens."""
        self._tokens = 0
        """The tokens of all of them."""
        self._tokens_per_byte = _TOKENS_PER_BYTE
        self._response_tokens = _RESPONSE_TOKENS

    @property
    def counts_tokens(self) -> bool:
        return self._limit.tokens is not None

    def wait(self, waiter: Waiter, now: float) -> float:
        while self._sent and self._leave_time(first := next(iter(self._sent))) <= now:
            self._tokens -= self._sent.pop(first)
        count, tokens, needed = len(self._unsent) + len(self._sent), self._tokens, self.estimate(waiter)
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
        if count == 0:  # A request that exceeds the limit alone is sent alone.
            return True
        if limit.requests is not None and count >= limit.requests:
            return False
        return limit.tokens is None or tokens + needed <= limit.tokens

    def _leave_time(self, waiter: Waiter) -> float:
        assert waiter.sent is not None
        latest = waiter.sent + self._uncertainty
        return (latest if waiter.answered is None else min(latest, waiter.answered)) + self._limit.per

    def enter(self, waiter: Waiter) -> None:
        self._unsent[waiter] = tokens = self.estimate(waiter)
        self._tokens += tokens

    def update(self, waiter: Waiter, now: float) -> None:
        if waiter in self._unsent:
            if waiter.sent is not None:
                self._sent[waiter] = self._unsent.pop(waiter)
            elif waiter.is_over:
                self._tokens -= self._unsent.pop(waiter)
        if waiter.is_over and waiter.used is not None and waiter in self._sent:
            self._count_used(waiter, *waiter.used)

    def _count_used(self, waiter: Waiter, input_tokens: int, output_tokens: int) -> None:
        self._tokens += input_tokens + output_tokens - self._sent[waiter]
        self._sent[waiter] = input_tokens + output_tokens
        self.learn(waiter, input_tokens, output_tokens)

    def learn(self, waiter: Waiter, input_tokens: int, output_tokens: int) -> None:
        """Improve the estimates by the tokens that a request has used."""
        waiter.used = None
        if input_tokens and waiter.size:
            self._tokens_per_byte += _LEARNING_RATE * (input_tokens / waiter.size - self._tokens_per_byte)
        if output_tokens:
            self._response_tokens += _LEARNING_RATE * (output_tokens - self._response_tokens)

    def estimate(self, waiter: Waiter) -> int:
        """Return the tokens that a request and its response will probably use."""
        if not self.counts_tokens:
            return 0
        output_tokens = self._response_tokens if waiter.longest is None else waiter.longest
        return max(1, round(waiter.size * self._tokens_per_byte + output_tokens))


class WaitingLine:
    """The queues of all gates. It reads the changes of waiters and lets through the ones that may pass."""

    def __init__(self) -> None:
        self._due: dict[Gate, float] = {}
        """The time when the first of a queue may pass, if only time decides."""
        self._changed: list[Gate] = []
        """The gates to check."""
        self._unnotified: dict[Gate, list[Waiter]] = {}
        """The waiters that were not notified yet whether they have to wait."""

    @property
    def due(self) -> float:
        """The time of the next check, if nothing changes before."""
        return min(self._due.values(), default=inf)

    def update(self, waiter: Waiter, now: float) -> None:
        """Read the changes of a waiter: it is new, was sent, or is finished."""
        is_new = not waiter.is_known and not waiter.is_over
        if is_new:
            waiter.is_known = True
            waiter.gates[0].queue.append(waiter)
        self._update_gates(waiter, now)
        self._let_through(now)
        if is_new and waiter.passed < len(waiter.gates):
            gate = waiter.gates[waiter.passed]
            if gate.is_asking:
                self._unnotified.setdefault(gate, []).append(waiter)
                return
            self._notify(waiter, gate.wait(waiter, now) if gate.queue[0] is waiter else inf, now)
            self._let_through(now)

    def on_answer(self, gate: Gate, seconds: float, now: float) -> None:
        """Handle the answer that a gate got from its store: there is room now (0), or maybe in this many seconds."""
        self._changed.append(gate)
        self._let_through(now)
        if not gate.is_asking:
            for waiter in self._unnotified.pop(gate, ()):
                if waiter in gate.queue:
                    self._notify(waiter, seconds or inf if gate.queue[0] is waiter else inf, now)

    def fail(self, gate: Gate, error: Exception, now: float) -> None:
        """Reject all waiters before a gate with an error."""
        waiters = list(gate.queue)
        gate.queue.clear()
        self._unnotified.pop(gate, None)
        for waiter in waiters:
            waiter.error = error
            self._notify(waiter, inf, now)
        self._changed.append(gate)
        self._let_through(now)

    def pass_time(self, now: float) -> None:
        """Let through the waiters whose time has come."""
        self._changed += [gate for gate, due in self._due.items() if due <= now]
        self._let_through(now)

    def _update_gates(self, waiter: Waiter, now: float) -> None:
        if waiter.is_over:
            waiter.notify = _ignore  # It may stay in a queue for long, and would keep an event loop alive.
        for gate in waiter.gates:
            gate.update(waiter, now)
        self._changed += waiter.gates

    def _let_through(self, now: float) -> None:
        while self._changed:
            gate = self._changed.pop()
            waiters, wait = gate.queue, 0.0
            while waiters and not wait:
                if waiters[0].is_over:
                    waiters.popleft()
                    continue
                wait = max(0.0, gate.wait(waiters[0], now))
                if not wait:
                    waiter = waiters.popleft()
                    gate.enter(waiter)
                    self._move_on(waiter, now)
            due = min(now + wait if wait else inf, gate.run_due_work(now))
            if due < inf:
                self._due[gate] = due
            else:
                self._due.pop(gate, None)

    def _move_on(self, waiter: Waiter, now: float) -> None:
        waiter.passed += 1
        if waiter.passed == len(waiter.gates):
            self._notify(waiter, 0.0, now)
        else:
            next_gate = waiter.gates[waiter.passed]
            next_gate.queue.append(waiter)
            self._changed.append(next_gate)

    def _notify(self, waiter: Waiter, seconds: float, now: float) -> None:
        try:
            waiter.notify(seconds)
        except RuntimeError:  # Its event loop is closed, so the request will never be sent.
            waiter.is_over = True
            self._update_gates(waiter, now)
        if not seconds:
            waiter.notify = _ignore
