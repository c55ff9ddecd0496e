"""A tree in which nothing can go on without people: whether it may rest, and what they say when it goes on.

Branches that one piece of the user's code has begun side by side: who waits for people lets the others finish.

`branch_all` knows by itself when all have come as far as they can; tasks that each await `abranch` do not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from acorn._machine.machine import Machine
from acorn._machine.tool_calls import check_answer
from acorn._record.saved_form import read_request
from acorn.errors import AcornError, StoreError
from acorn.record import CallSite
from acorn.types import Request


class PauseSignal(BaseException):
    """A branch that the user's code has begun waits for people, and so does that code; no failure at all."""

    def __str__(self) -> str:
        return "a branch waits for people"


def check_pause(loop: Machine, requests: Sequence[Request], *, can_rest: bool) -> None:
    """Refuse a rest from which nobody could wake the run."""
    owner = loop.spec.owner
    if not requests:
        raise AcornError(f"The run {loop.run.id} of `{owner}` has nothing left to do, and no output.")
    if not can_rest:
        raise StoreError(
            f"`{owner}` waits for a person ({requests[0].question}), nobody answered, and a run can only rest in a "
            f"store; set `store` on `{owner}`, or let `on_human` answer."
        )


def check_answers(root: Machine, saved: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Any]) -> None:
    """Judge what people said before anything goes on; what a branch's function takes is known when it is there."""
    for request in root.calls.open_requests():
        if request.id in answers:
            root.calls.check_answer(request.id, answers[request.id])
    for each in saved.values():
        for plain in each["state"].get("requests", {}).values():
            request = read_request(plain)
            if request.id in answers:
                check_answer(request, answers[request.id])


Key = tuple[str, str]
"""A run and one of its asks, inside of which the code is."""


class Siblings:
    """Those of one tree that go on."""

    def __init__(self) -> None:
        self._going_on: dict[Key, set[str]] = {}
        self._waiting: dict[Key, list[Callable[[], object]]] = {}
        self._lock = threading.Lock()

    def begin(self, place: CallSite, run_id: str) -> None:
        """A branch has begun."""
        with self._lock:
            self._going_on.setdefault((place.run_id, place.ask_id), set()).add(run_id)

    def end(self, place: CallSite, run_id: str) -> None:
        """It has ended, or waits for people; who waits for the last one hears of it."""
        key = (place.run_id, place.ask_id)
        with self._lock:
            others = self._going_on.get(key, set())
            others.discard(run_id)
            waiting = [] if others else self._waiting.pop(key, [])
        for wake in waiting:
            wake()

    async def finish(self, place: CallSite, run_id: str) -> None:
        """Let the others come as far as they can."""
        await asyncio.sleep(0)  # those that are only about to begin
        loop, key = asyncio.get_running_loop(), (place.run_id, place.ask_id)
        done = asyncio.Event()
        with self._lock:
            self._waiting.setdefault(key, []).append(lambda: loop.call_soon_threadsafe(done.set))
        self.end(place, run_id)
        await done.wait()
