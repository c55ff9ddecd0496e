"""The part of the internal interface that starts, resumes and drives runs.

This module loads the drivers and `asyncio`. The other functions for surfaces are in `acorn._inside`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import Any

from acorn import Run
from acorn._base.threads import iterate_in_thread as iterate_in_thread
from acorn._call.batch import Batch as Batch
from acorn._call.batch import Item as Item
from acorn._call.call import AgentCaller as _AgentCaller
from acorn._call.call import aresume_stream as aresume_stream
from acorn._call.call import load_queued as _load_queued
from acorn._call.call import resume_stream as resume_stream
from acorn._call.explain import Explanation as Explanation
from acorn._call.explain import explain as _explain
from acorn._call.plan import plan_call as _plan_call
from acorn._declare import spec_cache as _specs
from acorn._drive.async_driver import adrive as _adrive
from acorn._drive.bridge import LoopBoundCall as LoopBoundCall
from acorn._drive.bridge import call_async as _call_async
from acorn._drive.bridge import call_sync as _call_sync
from acorn._drive.bridge import is_async as is_async
from acorn._drive.bridge import start_thread as _start_thread
from acorn._drive.commit import status_of as _status_of
from acorn._drive.commit import translate_read_errors as translate_read_errors
from acorn._drive.load import build_in_thread as build_in_thread
from acorn._drive.owner_loop import OwnerLoop as OwnerLoop
from acorn._drive.sync_driver import drive as _drive
from acorn._drive.tree import current_machine as current_machine
from acorn._inside import Agent, AgentOrClass, MisfitError, is_instance, stored_instance, with_stored_settings
from acorn.errors import DeclarationError
from acorn.stores.port import Status, Store, StoredRun

check_agent = _plan_call
explain_agent = _explain


async def aresume(agent: Agent, run_id: str, answers: object, *, is_single: bool) -> Run:
    """Resume a stored run on the event loop, and return the run.

    If `is_single` is true, `answers` is the answer to the only unanswered request for human input. Otherwise `answers`
    is a dict that maps request ids to answers.
    """
    return await _AgentCaller[Any, Any](agent).aresume(run_id, answers, is_single=is_single)


class ClaimedRun:
    """A run that a queue has delivered to this process and that this process has claimed."""

    def __init__(self, agent: AgentOrClass, stored: Sequence[StoredRun], store: Store, stop: Event | None) -> None:
        """Load the run with the settings of the agent instance that started it.

        After `stop` is set, the run stops at its next commit and raises `StopSignal`.
        """
        instance = _specs.instance_of(agent)
        assert is_instance(instance)
        changed = with_stored_settings(instance, stored[0], store)
        try:
            self._tree = _load_queued(changed, stored, store)
        except DeclarationError as error:
            if "model" not in stored_instance(stored[0]).settings:
                raise
            raise MisfitError(
                f"Run {stored[0].facts.id} in {store.name} has a model that cannot be used: {error}"
            ) from error
        self._tree.stop_event = stop

    def release(self) -> None:
        """Release the claim on the run, if nothing will execute it."""
        self._tree.release()

    def drive(self) -> Run:
        """Execute the run until it ends or pauses."""
        return _drive(self._tree)

    async def adrive(self) -> Run:
        """Execute the run on the event loop until it ends or pauses."""
        return await _adrive(self._tree)

    @property
    def status(self) -> Status:
        return _status_of(self._tree.machines[self._tree.root])

    @property
    def fatal_error(self) -> BaseException | None:
        """The error because of which the run could not be committed, or None if all commits succeeded."""
        return self._tree.fatal_error


async def call_on_loop(owner_loop: OwnerLoop | None, function: Callable[..., Any], *args: object) -> Any:
    """Call a synchronous or asynchronous user function on the event loop `owner_loop`, and return its result.

    If `owner_loop` is None, the function is called in a new OS thread with a copy of the `contextvars` context of the
    caller.
    """
    if owner_loop is not None:
        return await owner_loop.run(partial(_call_async, function, *args))
    return await asyncio.wrap_future(_start_thread(_call_sync, function, *args))
