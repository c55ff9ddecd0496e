"""The part of the interface between the library and its surfaces that starts and drives runs.

It loads the drivers and `asyncio`. `acorn._inside` has the rest of the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Event
from typing import Any

from acorn import Run
from acorn._call.batch import Batch, Item
from acorn._call.call import AgentCaller as _AgentCaller
from acorn._call.call import adrive_tree as _adrive_tree
from acorn._call.call import aresume_stream, resume_stream, stored_settings
from acorn._call.call import drive_tree as _drive_tree
from acorn._call.call import load_queued as _load_queued
from acorn._call.explain import Explanation, tool_name
from acorn._call.explain import example_input as _example_input
from acorn._call.explain import explain as explain_agent
from acorn._call.plan import plan_call as check_agent
from acorn._declare.spec_cache import spec_of
from acorn._drive.bridge import LoopBoundCall, call_async, is_async
from acorn._drive.bridge import call_sync as _call_sync
from acorn._drive.bridge import start_thread as _start_thread
from acorn._drive.commit import status_of as _status_of
from acorn._drive.load import build_in_thread as _build_in_thread
from acorn._drive.owner_loop import OwnerLoop
from acorn._drive.tree import current_machine
from acorn._inside import Agent
from acorn.stores.port import Status, Store, StoredRun

__all__ = [
    "Batch",
    "ClaimedRun",
    "Explanation",
    "Item",
    "LoopBoundCall",
    "OwnerLoop",
    "aresume",
    "aresume_stream",
    "call_async",
    "call_in_thread",
    "check_agent",
    "current_machine",
    "example_input",
    "explain_agent",
    "is_async",
    "resume_stream",
    "stored_settings",
    "tool_name",
]


def example_input(agent: Agent) -> Any:
    """Make up an input that an agent accepts; None if it takes no input."""
    return _example_input(spec_of(agent))


async def aresume(agent: Agent, run_id: str, answers: object, *, is_one: bool) -> Run:
    """Resume a stored run on the event loop. `answers` is one answer if `is_one`, else answers by request id."""
    return await _AgentCaller[Any, Any](agent).aresume(run_id, answers, is_single=is_one)


class ClaimedRun:
    """A run that a queue delivered and that this process has claimed."""

    def __init__(self, agent: Agent, stored: Sequence[StoredRun], store: Store, stop: Event | None) -> None:
        """Load the run. Once `stop` is set, the run stops at its next commit with a `StopSignal`."""
        self._run_id = stored[0].facts.id
        self._tree = _load_queued(agent, stored, store)
        self._tree.stop_event = stop

    @classmethod
    async def build(cls, build: Callable[[], ClaimedRun]) -> ClaimedRun:
        """Load a run in a thread. If the caller is cancelled meanwhile, the claim is released."""
        loaded: list[ClaimedRun] = []

        def load() -> tuple[Any, str]:
            loaded.append(build())
            return loaded[0]._tree, loaded[0]._run_id

        await _build_in_thread(load)
        return loaded[0]

    def drive(self) -> Run:
        """Drive the run until it ends or pauses."""
        return _drive_tree(self._tree, self._run_id)

    async def adrive(self) -> Run:
        """Drive the run on the event loop until it ends or pauses."""
        return await _adrive_tree(self._tree, self._run_id)

    @property
    def status(self) -> Status:
        return _status_of(self._tree.machines[self._run_id])

    @property
    def fatal_error(self) -> BaseException | None:
        """The error after which the run could not be committed."""
        return self._tree.fatal_error


def call_in_thread(function: Callable[..., Any], *args: object) -> Future[Any]:
    """Call a sync or async function in a new thread, with a copy of the caller's context."""
    return _start_thread(_call_sync, function, *args)
