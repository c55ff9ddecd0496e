"""Tests of a rate limit that several machines share, in simulated time."""

from __future__ import annotations

import pytest
from tests.long_version import IS_LONG
from tests.unit.machines import run
from tests.windows import most_in_any_window

from acorn._declare.settings import RateLimit

PER = 10.0
WINDOWS = 40 if IS_LONG else 6
REQUESTS = RateLimit(requests=600, tokens=None, per=PER)
TOKENS = RateLimit(requests=None, tokens=60_000, per=PER)
BOTH = RateLimit(requests=600, tokens=60_000, per=PER)


@pytest.mark.parametrize("slow", [0.002, 0.02, 0.1])
@pytest.mark.parametrize("limit", [REQUESTS, TOKENS, BOTH], ids=["requests", "tokens", "both"])
def test_eight_machines_together_use_95_percent_of_shared_rate_limit(limit: RateLimit, slow: float) -> None:
    sent = run(limit, WINDOWS, slow)  # The delay of the store, in each direction.
    requests, tokens = most_in_any_window(sent, PER)
    assert requests <= 600
    assert tokens <= 60_000
    assert len(sent) >= 0.95 * 600 * WINDOWS


def test_busy_machine_can_use_share_of_idle_machines_in_shared_rate_limit() -> None:
    sent = run(REQUESTS, WINDOWS, 0.02, senders=[32, 1, 1, 1, 1, 1, 1, 1], pause=[0.0] + 7 * [5.0])
    assert most_in_any_window(sent, PER)[0] <= 600
    assert len(sent) >= 0.95 * 600 * WINDOWS


def test_unused_estimated_tokens_are_returned_to_shared_rate_limit() -> None:
    sent = run(TOKENS, WINDOWS, 0.02, longest=200)
    assert most_in_any_window(sent, PER)[1] <= 60_000
    assert len(sent) >= 0.95 * 600 * WINDOWS
