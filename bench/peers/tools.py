"""The tools that the scripted model calls; they count the calls, so that no contender can skip a call."""

from __future__ import annotations

import time

from peers.tasks import PARAGRAPH, PAUSE

ran: list[int] = []
"""The numbers of the tool calls in the current run."""


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
