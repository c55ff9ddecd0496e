"""Branches that one piece of the user's code has begun side by side: who waits for people lets the others finish.

`branch_all` knows by itself when all have come as far as they can; tasks that each await `abranch` do not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from acorn.record import Place

Key = tuple[str, str]
"""A run and one of its asks, inside of which the code is."""


class Siblings:
    """Those of one tree that go on."""

    def __init__(self) -> None:
        self._going_on: dict[Key, set[str]] = {}
        self._waiting: dict[Key, list[Callable[[], object]]] = {}
        self._lock = threading.Lock()

    def begin(self, place: Place, run_id: str) -> None:
        """A branch has begun."""
        with self._lock:
            self._going_on.setdefault((place.run_id, place.ask_id), set()).add(run_id)

    def end(self, place: Place, run_id: str) -> None:
        """It has ended, or waits for people; who waits for the last one hears of it."""
        key = (place.run_id, place.ask_id)
        with self._lock:
            others = self._going_on.get(key, set())
            others.discard(run_id)
            waiting = [] if others else self._waiting.pop(key, [])
        for wake in waiting:
            wake()

    async def finish(self, place: Place, run_id: str) -> None:
        """Let the others come as far as they can."""
        await asyncio.sleep(0)  # those that are only about to begin
        loop, key = asyncio.get_running_loop(), (place.run_id, place.ask_id)
        done = asyncio.Event()
        with self._lock:
            self._waiting.setdefault(key, []).append(lambda: loop.call_soon_threadsafe(done.set))
        self.end(place, run_id)
        await done.wait()
