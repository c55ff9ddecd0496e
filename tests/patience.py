"""How tests wait: long for what must come, and never for what takes ages.

No test depends on how fast the machine is. What is bounded here is bounded so generously that only a hang gets there.
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
    """Fails where what happens inside waits for something that takes ages."""
    began = clock()
    yield
    assert clock() - began < PATIENCE


def given_time(act: Callable[[float], T | None], *seconds: float) -> T:
    """What comes of an act that has so many seconds and is meant to use them up; more of them, if it gives None.

    It does that where the seconds were over before it was where they should end it: on a busy machine that happens.
    """
    for each in (*(seconds or (0.2,)), 2.0, PATIENCE / 4):
        found = act(each)
        if found is not None:
            return found
    raise AssertionError("it did not get as far as it was meant to, however long it had")


def comes_true(claim: Callable[[], object]) -> bool:
    """Whether it comes true while there is patience."""
    limit = time.monotonic() + PATIENCE
    while not claim():
        if time.monotonic() > limit:
            return False
        time.sleep(0.002)
    return True
