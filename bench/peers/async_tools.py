"""Async versions of the tools, for frameworks that run async tools faster than sync tools."""

from __future__ import annotations

import asyncio

from peers import tools
from peers.tasks import PAUSE


async def look(place: str, depth: int = 1) -> str:
    """Look somewhere.

    Args:
        place: Where to look.
        depth: How far.
    """
    return tools.look(place, depth)


async def wait(place: str, depth: int = 1) -> str:
    """Wait somewhere.

    Args:
        place: Where to wait.
        depth: How far.
    """
    await asyncio.sleep(PAUSE)
    return tools.look(place, depth)
