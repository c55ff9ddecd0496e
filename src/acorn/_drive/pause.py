"""Pauses for human input: checks of the pause and of the answers, and branches that wait for each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from acorn._history.saved_form import decode_request
from acorn._machine.human_input import check_answer
from acorn._machine.machine import Machine
from acorn.record import CallSite
from acorn.types import JsonObject


def check_answers(root: Machine, saved: Mapping[str, JsonObject], answers: Mapping[str, object]) -> None:
    """Raise an error if an answer does not fit its request for human input, before the run is resumed.

    `saved` contains the branches that are not loaded yet. Each branch checks the type of its answer again when it is
    loaded.
    """
    for request in root.calls.open_requests():
        if request.id in answers:
            root.calls.check_answer(request.id, answers[request.id])
    for branch in saved.values():
        for saved_request in branch["state"].get("requests", {}).values():
            request = decode_request(saved_request)
            if request.id in answers:
                check_answer(request, answers[request.id])


AskKey = tuple[str, str]
"""The id of a run and the id of one of its asks."""


@dataclass(eq=False, slots=True)
class SiblingBranches:
    """The active branches that the same tool call or hook has started.

    When one of these branches waits for human input, the others continue until they end or pause too. `branch_all`
    waits for all its branches itself. Branches that user code awaits in separate tasks with `abranch` wait for each
    other with this class.
    """

    _active: dict[AskKey, set[str]] = field(default_factory=dict[AskKey, set[str]])
    _callbacks: dict[AskKey, list[Callable[[], object]]] = field(
        default_factory=dict[AskKey, list[Callable[[], object]]]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, site: CallSite, run_id: str) -> None:
        """Add a branch that has started in the tool call or hook `site`."""
        with self._lock:
            self._active.setdefault((site.run_id, site.ask_id), set()).add(run_id)

    def end(self, site: CallSite, run_id: str) -> None:
        """Remove a branch that ended or paused.

        If no other branch of this tool call or hook is active, wake the branches in `wait_for_others`.
        """
        key = (site.run_id, site.ask_id)
        with self._lock:
            others = self._active.get(key, set())
            others.discard(run_id)
            callbacks = [] if others else self._callbacks.pop(key, [])
        for callback in callbacks:
            callback()

    async def wait_for_others(self, site: CallSite, run_id: str) -> None:
        """Wait until all other branches of the same tool call or hook have ended or paused too."""
        await asyncio.sleep(0)  # Other tasks may be scheduled that start siblings. Let them run first.
        loop, key = asyncio.get_running_loop(), (site.run_id, site.ask_id)
        done = asyncio.Event()
        with self._lock:
            self._callbacks.setdefault(key, []).append(lambda: loop.call_soon_threadsafe(done.set))
        self.end(site, run_id)
        await done.wait()
