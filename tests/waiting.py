"""Functions that wait in tests: long for expected events, and never for work that would take very long.

No test depends on the speed of the machine. The timeouts are so long that only a hang reaches them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds after which a test gives up on what should have come long before."""
AGES = 4 * PATIENCE
"""Seconds that something takes for which nobody may wait."""


@contextmanager
def waiting_for_nothing(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Fail if the block waits for something that takes very long."""
    began = clock()
    yield
    assert clock() - began < PATIENCE


def given_time(act: Callable[[float], T | None], *seconds: float) -> T:
    """Return the result of a function that should use up its seconds; repeat with more seconds if it returns None.

    It returns None if the time was over too early, which happens on a busy machine.
    """
    for each in (*(seconds or (0.2,)), 2.0, PATIENCE / 4):
        found = act(each)
        if found is not None:
            return found
    raise AssertionError("it did not get as far as it was meant to, however long it had")


def comes_true(claim: Callable[[], object]) -> bool:
    """Return whether a condition becomes true in time."""
    limit = time.monotonic() + PATIENCE
    while not claim():
        if time.monotonic() > limit:
            return False
        time.sleep(0.002)
    return True
