"""Who may send now, and who comes next: the lines before the gates of a throttle.

A request is a turn. It goes through its gates in order, and before each it stands in line: first come, first served. A
slot is held until the request is over; a place in a window until so many seconds after it was sent. What changes in a
turn, whoever waits for it writes down; the desk looks at it then. Pure: the time is passed in; `turns.py` keeps the
clock and the one desk of a process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

from acorn._declare.settings import RateLimit

_UNSURE = 0.1
"""Of a window: nobody knows when, between its sending and its answer, a request has reached the provider..."""
_MOST_UNSURE = 1.0
"""... but not so many seconds later, or slow answers would cost too many requests."""
_LETTERS = 0.25
"""Tokens a byte of a request, until answers have told better."""
_ANSWER = 500.0
"""Tokens of an answer, until there were some."""
_NEWS = 0.25
"""How much the last answer counts in what is learned."""


def _no_waiter(seconds: float) -> Any:
    """Nobody waits any more."""


class Waiter:
    """One request, on its way from when it is wanted until it is over."""

    __slots__ = (
        "answered", "error", "gates", "is_known", "is_over", "longest", "passed", "send_by", "sent", "size", "tell",
        "used",
    )  # fmt: skip

    def __init__(self, gates: tuple[Gate, ...], size: int = 0, longest: int | None = None) -> None:
        self.gates = gates
        self.size = size
        """Bytes of the request."""
        self.longest = longest
        """The most tokens of the answer, where the user has set them."""
        self.tell: Callable[[float], Any] = _no_waiter
        """Tells whoever waits: 0 is go, anything else how many seconds it will take; `inf` is unknown."""
        self.error: Exception | None = None
        """Why it will never get through."""
        self.send_by = inf
        """Let through and not sent by then, it is not counted any more, and has to come again."""
        self.sent: float | None = None
        """When it was sent."""
        self.answered: float | None = None
        """When the answer began to come."""
        self.used: tuple[int, int] | None = None
        """Tokens of the request and of the answer, as the provider counts them."""
        self.is_over = False
        """Whether the answer has come, or is not waited for any more."""
        self.is_known = False
        self.passed = 0
        """How many gates it is through."""


class Gate(ABC):
    """What lets turns through, one after the other."""

    name = ""
    """The setting that it keeps to."""

    def __init__(self) -> None:
        self.line: deque[Waiter] = deque()

    @abstractmethod
    def wait(self, turn: Waiter, now: float) -> float:
        """Seconds until it may go through; `inf` where that depends on others."""

    @abstractmethod
    def enter(self, turn: Waiter) -> None: ...

    @abstractmethod
    def look(self, turn: Waiter, now: float) -> None:
        """Something about a turn is new."""

    @property
    def is_asking(self) -> bool:
        """Whether it will soon be known how long those in line have to wait."""
        return False

    def chores(self, now: float) -> float:
        """Do what is due beside the line; when there is more to do."""
        return inf


class Slots(Gate):
    """So many requests at once."""

    name = "max_concurrency"

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._inside: set[Waiter] = set()

    def wait(self, turn: Waiter, now: float) -> float:
        return 0.0 if len(self._inside) < self._count else inf

    def enter(self, turn: Waiter) -> None:
        self._inside.add(turn)

    def look(self, turn: Waiter, now: float) -> None:
        if turn.is_over:
            self._inside.discard(turn)


class Window(Gate):
    """So many requests and tokens in any so many seconds."""

    name = "rate_limit"

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self._unsure = min(_MOST_UNSURE, _UNSURE * limit.per)
        self._going: dict[Waiter, int] = {}
        """Those that were let through and were not sent yet, with their tokens."""
        self._sent: dict[Waiter, int] = {}
        """Those that were, in that order."""
        self._tokens = 0
        """Of all of them."""
        self._rate = _LETTERS
        self._answer = _ANSWER

    @property
    def counts_tokens(self) -> bool:
        return self._limit.tokens is not None

    def wait(self, turn: Waiter, now: float) -> float:
        while self._sent and self._leaves(first := next(iter(self._sent))) <= now:
            self._tokens -= self._sent.pop(first)
        count, tokens, wanted = len(self._going) + len(self._sent), self._tokens, self.estimate(turn)
        if self._has_room(count, tokens, wanted):
            return 0.0
        due = now
        for earlier, used in self._sent.items():
            count, tokens, due = count - 1, tokens - used, max(due, self._leaves(earlier))
            if self._has_room(count, tokens, wanted):
                return due - now
        return inf

    def _has_room(self, count: int, tokens: int, wanted: int) -> bool:
        limit = self._limit
        if count == 0:  # what is greater than the whole allowance goes alone
            return True
        if limit.requests is not None and count >= limit.requests:
            return False
        return limit.tokens is None or tokens + wanted <= limit.tokens

    def _leaves(self, turn: Waiter) -> float:
        assert turn.sent is not None
        latest = turn.sent + self._unsure
        return (latest if turn.answered is None else min(latest, turn.answered)) + self._limit.per

    def enter(self, turn: Waiter) -> None:
        self._going[turn] = tokens = self.estimate(turn)
        self._tokens += tokens

    def look(self, turn: Waiter, now: float) -> None:
        if turn in self._going:
            if turn.sent is not None:
                self._sent[turn] = self._going.pop(turn)
            elif turn.is_over:
                self._tokens -= self._going.pop(turn)
        if turn.is_over and turn.used is not None and turn in self._sent:
            self._settle(turn, *turn.used)

    def _settle(self, turn: Waiter, asked: int, answered: int) -> None:
        self._tokens += asked + answered - self._sent[turn]
        self._sent[turn] = asked + answered
        self.learn(turn, asked, answered)

    def learn(self, turn: Waiter, asked: int, answered: int) -> None:
        """What a request has used is counted; estimate others by it."""
        turn.used = None
        if asked and turn.size:
            self._rate += _NEWS * (asked / turn.size - self._rate)
        if answered:
            self._answer += _NEWS * (answered - self._answer)

    def estimate(self, turn: Waiter) -> int:
        """The tokens that a request will use, its answer included."""
        if not self.counts_tokens:
            return 0
        answer = self._answer if turn.longest is None else turn.longest
        return max(1, round(turn.size * self._rate + answer))


class WaitingLine:
    """All lines: it looks at what is new, and lets through whoever may go."""

    def __init__(self) -> None:
        self._due: dict[Gate, float] = {}
        """When the first in a line can go through, where time alone decides."""
        self._open: list[Gate] = []
        """Gates to look at."""
        self._untold: dict[Gate, list[Waiter]] = {}
        """Those who do not know yet whether they have to wait."""

    @property
    def due(self) -> float:
        """When to look again, if nothing is new until then."""
        return min(self._due.values(), default=inf)

    def see(self, turn: Waiter, now: float) -> None:
        """Something about a turn is new: it has come, was sent, or is over."""
        has_come = not turn.is_known and not turn.is_over
        if has_come:
            turn.is_known = True
            turn.gates[0].line.append(turn)
        self._look(turn, now)
        self._let_through(now)
        if has_come and turn.passed < len(turn.gates):
            gate = turn.gates[turn.passed]
            if gate.is_asking:
                self._untold.setdefault(gate, []).append(turn)
                return
            self._tell(turn, gate.wait(turn, now) if gate.line[0] is turn else inf, now)
            self._let_through(now)

    def hear(self, gate: Gate, seconds: float, now: float) -> None:
        """A gate has heard what it asked for: there is room, or there may be in so many seconds."""
        self._open.append(gate)
        self._let_through(now)
        if not gate.is_asking:
            for turn in self._untold.pop(gate, ()):
                if turn in gate.line:
                    self._tell(turn, seconds or inf if gate.line[0] is turn else inf, now)

    def fail(self, gate: Gate, error: Exception, now: float) -> None:
        """Nobody gets through a gate: those in line are told why."""
        line = list(gate.line)
        gate.line.clear()
        self._untold.pop(gate, None)
        for turn in line:
            turn.error = error
            self._tell(turn, inf, now)
        self._open.append(gate)
        self._let_through(now)

    def pass_time(self, now: float) -> None:
        """Let through whose time has come."""
        self._open += [gate for gate, due in self._due.items() if due <= now]
        self._let_through(now)

    def _look(self, turn: Waiter, now: float) -> None:
        if turn.is_over:
            turn.tell = _no_waiter  # it may stand in a line for long, and holds an event loop
        for gate in turn.gates:
            gate.look(turn, now)
        self._open += turn.gates

    def _let_through(self, now: float) -> None:
        while self._open:
            gate = self._open.pop()
            line, wait = gate.line, 0.0
            while line and not wait:
                if line[0].is_over:
                    line.popleft()
                    continue
                wait = max(0.0, gate.wait(line[0], now))
                if not wait:
                    turn = line.popleft()
                    gate.enter(turn)
                    self._go_on(turn, now)
            due = min(now + wait if wait else inf, gate.chores(now))
            if due < inf:
                self._due[gate] = due
            else:
                self._due.pop(gate, None)

    def _go_on(self, turn: Waiter, now: float) -> None:
        turn.passed += 1
        if turn.passed == len(turn.gates):
            self._tell(turn, 0.0, now)
        else:
            behind = turn.gates[turn.passed]
            behind.line.append(turn)
            self._open.append(behind)

    def _tell(self, turn: Waiter, seconds: float, now: float) -> None:
        try:
            turn.tell(seconds)
        except RuntimeError:  # its event loop is closed, so nobody will ever go through
            turn.is_over = True
            self._look(turn, now)
        if not seconds:
            turn.tell = _no_waiter
