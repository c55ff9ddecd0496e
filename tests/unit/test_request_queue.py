"""Tests of the queue for rate limits, with an injected clock: limits, order of arrival, and cancelled requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acorn._declare.settings import RateLimit
from acorn.models.limits.request_queue import ConcurrencyLimit, Limit, QueuedRequest, RequestQueues, SlidingWindow


@dataclass(eq=False)
class Sender:
    """A fake sender that records the calls of the queue and the outcome of its request."""

    turn: QueuedRequest
    told: list[float] = field(default_factory=list[float])
    estimate: int = 0
    reached: float = 0.0
    used: int = 0

    @property
    def may_go(self) -> bool:
        return bool(self.told) and self.told[-1] == 0.0


class World:
    """A desk and its clock."""

    def __init__(self, *gates: Limit) -> None:
        self.gates = gates
        self.desk = RequestQueues()
        self.now = 0.0
        self.senders: list[Sender] = []
        self.gone_through: list[Sender] = []

    def come(self, size: int = 0, longest: int | None = None) -> Sender:
        sender = Sender(QueuedRequest(self.gates, size, longest))

        def tell(seconds: float) -> None:
            sender.told.append(seconds)
            if not seconds:
                self.gone_through.append(sender)
                sender.estimate = sum(
                    gate.estimate(sender.turn) for gate in self.gates if isinstance(gate, SlidingWindow)
                )

        sender.turn.notify = tell
        self.senders.append(sender)
        self.desk.update(sender.turn, self.now)
        return sender

    def send(self, sender: Sender) -> None:
        sender.turn.sent_at = self.now
        self.desk.update(sender.turn, self.now)

    def end(self, sender: Sender, used: tuple[int, int] | None = None) -> None:
        if sender.turn.sent_at is not None:
            sender.turn.response_started = self.now
            sender.turn.used_tokens = used
            sender.used = sender.estimate if used is None else sum(used)
        sender.turn.is_finished = True
        self.desk.update(sender.turn, self.now)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.desk.due <= until:
            self.now = max(self.now, self.desk.due)
            self.desk.admit_due(self.now)
        self.now = until


def all_at_once(world: World, sender: Sender, used: tuple[int, int] | None = None) -> None:
    world.send(sender)
    world.end(sender, used)


def test_rate_limit_admits_next_request_when_oldest_request_expires() -> None:
    world = World(SlidingWindow(RateLimit(2, None, 60)))
    first = world.come()
    all_at_once(world, first)
    world.pass_time(30)
    all_at_once(world, world.come())
    third, fourth = world.come(), world.come()
    assert third.told == [30.0]
    assert fourth.told == [math.inf]
    world.pass_time(29.9)
    assert not third.may_go
    world.pass_time(0.2)
    assert third.may_go
    all_at_once(world, third)
    world.pass_time(29.7)
    assert not fourth.may_go
    world.pass_time(0.3)
    assert fourth.may_go


def test_admitted_request_counts_in_rate_limit_before_it_is_sent() -> None:
    world = World(SlidingWindow(RateLimit(1, None, 60)))
    late, other = world.come(), world.come()
    assert late.may_go
    world.pass_time(1000)  # Its event loop is blocked.
    assert not other.may_go
    world.send(late)
    world.pass_time(59)
    assert not other.may_go
    world.pass_time(3)
    assert other.may_go


def test_rate_limit_counts_slow_request_from_time_of_its_response() -> None:
    world = World(SlidingWindow(RateLimit(1, None, 60)))
    slow, other = world.come(), world.come()
    world.send(slow)
    world.pass_time(20)
    world.end(slow)
    world.pass_time(40.9)
    assert not other.may_go
    world.pass_time(0.2)
    assert other.may_go
    world.send(other)
    third = world.come()
    world.pass_time(0.25)
    world.end(other)
    world.pass_time(59.9)
    assert not third.may_go
    world.pass_time(0.2)
    assert third.may_go


def test_concurrency_limit_slot_is_occupied_until_request_ends() -> None:
    world = World(ConcurrencyLimit(2))
    first, second, third, fourth = (world.come() for _ in range(4))
    assert [each.may_go for each in (first, second, third, fourth)] == [True, True, False, False]
    assert third.told == [math.inf]
    world.send(first)
    assert not third.may_go
    world.end(second)  # The request was never sent.
    assert third.may_go
    world.end(first)
    assert fourth.may_go


def test_requests_pass_rate_limit_in_order_of_concurrency_limit() -> None:
    window = SlidingWindow(RateLimit(1, None, 60))
    world = World(ConcurrencyLimit(2), window)
    senders = [world.come() for _ in range(5)]
    assert [each.may_go for each in senders] == [True, False, False, False, False]
    world.end(senders[1])  # Leaves the second gate and releases its slot.
    all_at_once(world, senders[0])
    world.pass_time(61)
    assert senders[2].may_go
    assert not senders[3].may_go
    all_at_once(world, senders[2])
    world.pass_time(61)
    assert senders[3].may_go


def test_requests_queued_after_cancelled_requests_move_up() -> None:
    world = World(ConcurrencyLimit(1))
    senders = [world.come() for _ in range(5)]
    world.end(senders[1])
    world.end(senders[2])
    world.end(senders[0])
    assert [each.may_go for each in senders] == [True, False, False, True, False]
    world.end(senders[3])
    assert senders[4].may_go


def test_queued_request_of_closed_event_loop_is_removed_from_queue() -> None:
    world = World(ConcurrencyLimit(1), SlidingWindow(RateLimit(1, None, 60)))
    holder = world.come()
    lost = QueuedRequest(world.gates)
    loop = asyncio.new_event_loop()
    lost.notify = lambda seconds: loop.call_soon_threadsafe(print, seconds)
    world.desk.update(lost, world.now)
    loop.close()
    behind = world.come()
    all_at_once(world, holder)
    world.pass_time(61)
    assert behind.may_go


def test_queued_request_ended_before_admission_occupies_no_concurrency_slot() -> None:
    world = World(ConcurrencyLimit(1))
    turn = QueuedRequest(world.gates)
    turn.is_finished = True
    world.desk.update(turn, 0.0)
    assert world.come().may_go


# Tokens


def test_token_estimate_is_computed_from_request_bytes_and_max_tokens() -> None:
    window = SlidingWindow(RateLimit(None, 1000, 60))
    assert window.estimate(QueuedRequest((window,), 400, 100)) == 200


def test_token_estimate_adapts_to_usage_of_earlier_responses() -> None:
    world = World(window := SlidingWindow(RateLimit(None, 10**9, 60)))
    for _ in range(40):
        all_at_once(world, world.come(1000), (500, 20))
    assert window.estimate(QueuedRequest((window,), 2000)) == pytest.approx(1020, abs=5)


def test_tokens_estimated_too_high_are_available_again_after_response() -> None:
    world = World(SlidingWindow(RateLimit(None, 1000, 60)))
    first, second = world.come(0, 900), world.come(0, 900)
    world.send(first)
    assert not second.may_go
    world.end(first, (10, 20))
    assert second.may_go


def test_tokens_estimated_too_low_delay_next_request() -> None:
    world = World(SlidingWindow(RateLimit(None, 1000, 60)))
    all_at_once(world, world.come(0, 10), (2000, 0))
    second = world.come(0, 10)
    assert second.told == [60.0]


def test_request_larger_than_token_limit_is_sent_when_window_is_empty() -> None:
    world = World(SlidingWindow(RateLimit(None, 1000, 60)))
    small = world.come(0, 1)
    all_at_once(world, small, (1, 1))
    great, behind = world.come(0, 5000), world.come(0, 1)
    assert not great.may_go
    world.pass_time(60)
    assert great.may_go
    assert not behind.may_go  # First come, first served.
    all_at_once(world, great, (5000, 0))
    world.pass_time(59)
    assert not behind.may_go
    world.pass_time(1)
    assert behind.may_go


def test_unanswered_request_that_expires_early_does_not_admit_other_requests() -> None:
    world = World(SlidingWindow(RateLimit(None, 1000, 60)))
    unanswered = world.come(0, 400)
    world.send(unanswered)
    world.pass_time(0.1)
    all_at_once(world, world.come(0, 500))
    third = world.come(0, 900)
    world.pass_time(60.1)
    assert not third.may_go
    world.pass_time(0.9)
    assert third.may_go


# Random events

LIMITS = st.builds(
    RateLimit,
    requests=st.none() | st.integers(1, 6),
    tokens=st.none() | st.integers(1, 3000),
    per=st.sampled_from([1.0, 10.0, 60.0]),
).filter(lambda limit: limit.requests is not None or limit.tokens is not None)


@settings(max_examples=300, deadline=None)
@given(LIMITS, st.none() | st.integers(1, 4), st.integers(0, 2**32), st.integers(1, 120))
def test_random_requests_never_exceed_rate_limit(limit: RateLimit, slots: int | None, seed: int, moves: int) -> None:
    chance = random.Random(seed)
    gates = (SlidingWindow(limit),) if slots is None else (ConcurrencyLimit(slots), SlidingWindow(limit))
    world = World(*gates)
    unsure = min(1.0, limit.per / 10)

    def end(sender: Sender) -> None:
        is_told = chance.random() < 0.8
        world.end(sender, (chance.randrange(500), chance.randrange(500)) if is_told else None)
        if sender.turn.sent_at is not None:
            sender.reached = min(world.now, sender.turn.sent_at + unsure)

    def under_way() -> list[Sender]:
        return [each for each in world.senders if not each.turn.is_finished]

    def move() -> None:
        match chance.randrange(6):
            case 0 | 1:
                world.come(chance.randrange(4000), chance.choice([None, 10, 500]))
            case 2:
                world.pass_time(chance.choice([0.0, 0.01, 0.3, 1.0]) * limit.per * chance.random())
            case 3:
                going = [each for each in under_way() if each.may_go and each.turn.sent_at is None]
                if going:
                    world.send(chance.choice(going))
            case 4:
                sent = [each for each in under_way() if each.turn.sent_at is not None]
                if sent:
                    end(chance.choice(sent))
            case _:
                if under_way() and chance.random() < 0.3:
                    end(chance.choice(under_way()))
        if slots is not None:
            assert len([each for each in under_way() if each.may_go]) <= slots

    for _ in range(moves):
        move()
    for _ in range(10 * len(world.senders)):  # Then all are sent, and end.
        for each in under_way():
            if each.may_go:
                if each.turn.sent_at is None:
                    world.send(each)
                end(each)
        world.pass_time(limit.per)
    assert not under_way()
    assert math.isinf(world.desk.due)
    places = [world.senders.index(each) for each in world.gone_through]
    assert places == sorted(places)

    sent = sorted((each for each in world.senders if each.turn.sent_at is not None), key=lambda each: each.reached)
    for at, first in enumerate(sent):
        within = list(itertools.takewhile(lambda each: each.reached < first.reached + limit.per - 1e-6, sent[at:]))  # noqa: B023
        if limit.requests is not None:
            assert len(within) <= limit.requests
        if limit.tokens is not None and len(within) > 1:
            wrong = sum(max(0, each.used - each.estimate) for each in within)
            assert sum(each.used for each in within) <= limit.tokens + wrong
