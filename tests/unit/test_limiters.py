"""Tests of the limiters with a fake clock: limits, order of arrival, token estimates and abandoned requests.

A sender is a generator that the test advances, so no test needs threads. A sender that is not advanced behaves like a
task on a blocked event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clock import FakeClock

from acorn._declare.settings import RateLimit
from acorn.models.limits import ConcurrencyLimiter, Limiter, QueuedRequest, RateLimiter


class Sender:
    """One request and its sender."""

    def __init__(self, world: World, size: int, max_response_tokens: int | None) -> None:
        self.queued = QueuedRequest("Agent", world.limiters, inf, size, max_response_tokens, world.clock)
        self.queued.in_progress.acquire()
        self.queued.notify = self._on_wake
        self.clock, self.was_woken = world.clock, False
        self.wait = 0.0
        """The seconds that the sender waits at most, or 0 if the request was sent."""
        self._waits = self.queued.waits()
        self.look()

    def _on_wake(self) -> None:
        self.was_woken = True

    def look(self) -> bool:
        """Check the limiters again, and return whether the request was sent."""
        if self.queued.sent_at is None and self.queued.in_progress.locked():
            self.was_woken = False
            self.wait = next(self._waits, 0.0)
        return self.queued.sent_at is not None

    def end(self, *used: int) -> Sender:
        """Finish the request, with its input and output tokens if they are known, or abandon it if it still waits."""
        if self.queued.sent_at is not None:
            self.queued.response_started = self.clock.monotonic()
            self.queued.used_tokens = (used[0], used[1]) if used else None
        self.queued.in_progress.release()
        self.queued.__exit__(None, None, None)
        return self


class World:
    """The limiters of a process, their clock and their senders."""

    def __init__(self, *limiters: Limiter) -> None:
        self.limiters, self.clock = limiters, FakeClock()
        self.senders: list[Sender] = []

    def come(self, size: int = 0, max_response_tokens: int | None = None) -> Sender:
        self.senders.append(Sender(self, size, max_response_tokens))
        return self.senders[-1]

    def look(self) -> None:
        """Advance every sender that was woken."""
        while woken := [sender for sender in self.senders if sender.was_woken]:
            for sender in woken:
                sender.look()

    def after(self, seconds: float, sender: Sender) -> bool:
        """Let some time pass, and return whether the request of a sender was sent then."""
        self.clock.advance(seconds)
        return sender.look()


def requests(count: int, per: float = 60.0) -> RateLimiter:
    return RateLimiter(RateLimit(count, None, per))


def tokens(count: int) -> RateLimiter:
    return RateLimiter(RateLimit(None, count, 60.0))


def test_rate_limit_admits_next_request_when_oldest_request_expires() -> None:
    world = World(requests(2))
    world.come().end()
    world.clock.advance(30)
    world.come().end()
    third, fourth = world.come(), world.come()
    assert (third.wait, fourth.wait) == (30.0, 31.0)  # The second waits longer, in case that the first is blocked.
    assert not world.after(29.9, third)
    assert world.after(0.1, third)
    third.end()
    assert not world.after(29.9, fourth)
    assert world.after(0.1, fourth)


def test_request_of_blocked_event_loop_counts_until_one_window_after_it_is_sent() -> None:
    world = World(requests(1))
    first, late, other = world.come().end(), world.come(), world.come()
    assert first.queued.sent_at is not None
    assert not world.after(60, other)  # This admits the request of the other sender, which does not run.
    assert late.was_woken
    assert not world.after(1000, other)
    assert late.look()
    assert not world.after(60, other)
    assert world.after(1, other)


def test_sender_of_later_request_admits_request_of_blocked_event_loop() -> None:
    world = World(requests(3))
    for _ in range(3):
        world.come().end()
    blocked, other = world.come(), world.come()
    assert world.after(other.wait, other)
    assert blocked.was_woken


def test_rate_limit_counts_slow_request_from_time_of_its_response() -> None:
    world = World(requests(1))
    slow, other = world.come(), world.come()
    world.clock.advance(20)
    slow.end()
    assert not world.after(40.9, other)
    assert world.after(0.1, other)
    third = world.come()
    world.clock.advance(0.25)
    other.end()
    assert third.was_woken  # It may be sent earlier than expected.
    assert not world.after(59.9, third)
    assert world.after(0.1, third)


def test_concurrency_limit_slot_is_occupied_until_request_ends() -> None:
    world = World(ConcurrencyLimiter(2))
    first, second, third, fourth = (world.come() for _ in range(4))
    assert [sender.wait for sender in world.senders] == [0.0, 0.0, inf, inf]
    second.end()
    assert third.was_woken
    assert not fourth.was_woken
    first.end()
    world.look()
    assert fourth.look()


def test_requests_pass_rate_limit_in_order_of_concurrency_limit() -> None:
    world = World(ConcurrencyLimiter(2), requests(1))
    senders = [world.come() for _ in range(5)]
    senders[1].end()  # It waits for the rate limit, and releases its slot.
    senders[0].end()
    world.look()
    world.clock.advance(60)
    assert [sender.look() for sender in senders] == [True, False, True, False, False]
    senders[2].end()
    world.look()
    assert world.after(60, senders[3])
    assert not senders[4].look()


def test_requests_queued_after_cancelled_requests_move_up() -> None:
    world = World(ConcurrencyLimiter(1))
    senders = [world.come() for _ in range(5)]
    for at in (1, 2, 0):
        senders[at].end()
    assert [sender.look() for sender in senders] == [True, False, False, True, False]
    senders[3].end()
    assert senders[4].look()


def test_admitted_request_that_is_cancelled_before_it_is_sent_does_not_count() -> None:
    world = World(tokens(100))
    world.come(0, 100).end()
    cancelled, other = world.come(0, 100), world.come(0, 100)
    assert not world.after(60, other)
    assert cancelled.was_woken
    cancelled.end()
    assert other.look()


def test_queued_request_of_closed_event_loop_is_removed_from_queue() -> None:
    world = World(ConcurrencyLimiter(1), requests(1))
    first, lost, other = world.come(), world.come(), world.come()
    loop = asyncio.new_event_loop()
    lost.queued.notify = lambda: loop.call_soon_threadsafe(print)
    loop.close()
    first.end()
    other.look()
    assert world.after(60, other)


@pytest.mark.parametrize("limiter", [ConcurrencyLimiter(1), requests(1)], ids=["concurrency", "rate"])
def test_interrupted_release_and_admission_are_repaired_by_next_sender(limiter: Limiter) -> None:
    world = World(limiter)
    interrupted = world.come()
    waiting = world.come()
    interrupted.queued.response_started = world.clock.monotonic()
    interrupted.queued.in_progress.release()  # Ctrl-C has interrupted the rest.
    assert world.after(60, waiting)
    # Ctrl-C interrupts the sender that admits itself, after it was counted.
    again = world.come()
    waiting.end()
    world.clock.advance(60)
    limiter._take(again.queued)
    assert again.look()


def test_release_by_garbage_collector_during_update_of_same_thread_is_handled_after_update() -> None:
    world = World(ConcurrencyLimiter(1))
    first, second, third, fourth = (world.come() for _ in range(4))
    second.queued.notify = third.end  # While the limiter wakes the second sender, the third request is abandoned.
    first.end()
    assert second.look()
    assert not third.look()
    second.end()
    assert fourth.look()


# Tokens


def test_token_estimate_is_computed_from_request_bytes_and_max_tokens() -> None:
    assert tokens(1000).estimate(QueuedRequest("Agent", (), inf, 400, 100)) == 200


def test_token_estimate_adapts_to_usage_of_earlier_responses() -> None:
    world = World(limiter := tokens(10**9))
    for _ in range(40):
        world.come(1000).end(500, 20)
    assert limiter.estimate(QueuedRequest("Agent", (), inf, 2000)) == pytest.approx(1020, abs=5)


def test_tokens_estimated_too_high_are_available_again_after_response() -> None:
    world = World(tokens(1000))
    first, second = world.come(0, 900), world.come(0, 900)
    assert second.wait > 0
    first.end(10, 20)
    assert second.look()


def test_tokens_estimated_too_low_delay_next_request() -> None:
    world = World(tokens(1000))
    world.come(0, 10).end(2000, 0)
    assert world.come(0, 10).wait == 60.0


def test_request_larger_than_token_limit_is_sent_when_window_is_empty() -> None:
    world = World(tokens(1000))
    world.come(0, 1).end(1, 1)
    great, other = world.come(0, 5000), world.come(0, 1)
    assert not great.look()
    assert world.after(60, great)
    assert not other.look()  # First come, first served.
    great.end(5000, 0)
    assert not world.after(59, other)
    assert world.after(1, other)


def test_unanswered_request_that_expires_later_does_not_admit_other_requests_early() -> None:
    world = World(tokens(1000))
    world.come(0, 400)
    world.clock.advance(0.1)
    world.come(0, 500).end()
    third = world.come(0, 900)
    assert not world.after(60.1, third)
    assert world.after(0.9, third)


def test_token_count_that_ctrl_c_left_too_high_is_corrected() -> None:
    world = World(limiter := tokens(1000))
    world.come(0, 600).end(100, 0)
    limiter._tokens += 900
    assert world.come(0, 600).wait == 0.0
    assert limiter._tokens == 700


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
    chance, limiter = random.Random(seed), RateLimiter(limit)
    world = World(limiter) if slots is None else World(ConcurrencyLimiter(slots), limiter)
    uncertainty = min(1.0, limit.per / 10)
    estimates: dict[Sender, int] = {}
    reached: dict[Sender, float] = {}
    order: list[Sender] = []

    def in_progress() -> list[Sender]:
        return [sender for sender in world.senders if sender.queued.in_progress.locked()]

    def look(senders: list[Sender]) -> None:
        for sender in senders:
            if sender not in estimates and sender.look():
                estimates[sender] = sender.queued.tokens
                order.append(sender)

    def end(sender: Sender) -> None:
        is_reported = chance.random() < 0.8
        sender.end(*((chance.randrange(500), chance.randrange(500)) if is_reported else ()))
        if sender.queued.sent_at is not None:
            reached[sender] = min(world.clock.monotonic(), sender.queued.sent_at + uncertainty)

    def move() -> None:
        match chance.randrange(5):
            case 0 | 1:
                look([world.come(chance.randrange(4000), chance.choice([None, 10, 500]))])
            case 2:
                world.clock.advance(chance.choice([0.0, 0.01, 0.3, 1.0]) * limit.per * chance.random())
            case 3:
                look(chance.sample(in_progress(), chance.randint(0, len(in_progress()))))
            case _:
                if in_progress():
                    end(chance.choice(in_progress()))
        if slots is not None:
            assert sum(sender.queued.waits_for is not world.limiters[0] for sender in in_progress()) <= slots

    for _ in range(moves):
        move()
    for _ in range(10 * len(world.senders)):  # Then all requests are sent, and end.
        look(in_progress())
        for sender in in_progress():
            if sender in estimates:
                end(sender)
        world.clock.advance(limit.per)
    assert not in_progress()
    assert not limiter._queue
    assert limiter._tokens == sum(counted.tokens for counted in limiter._window)

    sent = sorted(order, key=lambda sender: reached[sender])
    for at, first in enumerate(sent):
        within = list(itertools.takewhile(lambda each: reached[each] < reached[first] + limit.per - 1e-6, sent[at:]))  # noqa: B023
        if limit.requests is not None:
            assert len(within) <= limit.requests
        if limit.tokens is not None and len(within) > 1:
            too_low = sum(max(0, each.queued.tokens - estimates[each]) for each in within)
            assert sum(each.queued.tokens for each in within) <= limit.tokens + too_low
