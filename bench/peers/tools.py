"""The tools that the scripted model calls. They count calls, so that no contender can skip one."""

from __future__ import annotations

import time

from peers.tasks import PARAGRAPH, PAUSE

ran: list[int] = []
"""The numbers of the calls since the last run began."""


def look(place: str, depth: int = 1) -> str:
    """Look somewhere.

    Args:
        place: Where to look.
        depth: How far.
    """
    ran.append(int(place.split()[-1]))
    return PARAGRAPH


def wait(place: str, depth: int = 1) -> str:
    """Wait somewhere.

    Args:
        place: Where to wait.
        depth: How far.
    """
    time.sleep(PAUSE)
    return look(place, depth)
