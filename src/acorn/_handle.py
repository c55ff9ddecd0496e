"""A run that goes on elsewhere, from here: what it is at, what came of it, and an end to it.

`submit` gives a `Handle`, `asubmit` an `AsyncHandle`, which does the same without holding up the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from acorn._data import Shelf
from acorn._drive.keeping import read_whole, saved_of
from acorn._drive.kept_tree import recorded_failure
from acorn._loop.saved_run import hang_records, load
from acorn._override import held
from acorn._planning import Agent, plan_for
from acorn._runs import followed, look
from acorn.journal import Entry
from acorn.record import Run
from acorn.stores import words
from acorn.stores.port import Kept, RunCancelledError, Status, Store
from acorn.types import Paused

Out = TypeVar("Out", default=Any)
_SOON, _LATER = 0.05, 0.5
"""Seconds between two looks at a run: at first, and when it takes its time."""

_GOES_ON: tuple[Status, ...] = ("queued", "running", "waiting", "stopped")
"""Somebody goes on with what was stopped."""


class Handle(Generic[Out]):
    """A run that was put into a store, to be driven by whoever is handed its id."""

    def __init__(self, agent: Agent[Out, Any], run_id: str, store: Store) -> None:
        self.run_id = run_id
        self._agent, self._store = agent, store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the run {self.run_id} in {self._store.name}>"

    def status(self) -> Status:
        """What the run is at."""
        return _status(self._store, self.run_id)

    def result(self, timeout: float | None = None) -> Out:
        """Wait for the output; `Paused` where the run waits for people. What the run failed of is raised.

        A `TimeoutError` after so many seconds; the run goes on.
        """
        began, pause = time.monotonic(), _SOON
        while True:
            status = self.status()
            found = outcome(self._agent, self._store, self.run_id, status)
            if found is not None:
                return found.output  # type: ignore[return-value]
            left = _left(timeout, began, self.run_id, status)
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LATER)

    def follow(self) -> Generator[Entry]:
        """The entries of its journal and of its branches', from the first, as they are committed; ends with the run."""
        return followed(self._store, self.run_id, _GOES_ON)

    def cancel(self) -> None:
        """End the run, wherever it is driven."""
        self._store.cancel(self.run_id)


class AsyncHandle(Generic[Out]):
    """The same on the event loop."""

    def __init__(self, agent: Agent[Out, Any], run_id: str, store: Store) -> None:
        self.run_id = run_id
        self._agent, self._store = agent, store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the run {self.run_id} in {self._store.name}>"

    async def status(self) -> Status:
        """What the run is at."""
        return await asyncio.to_thread(_status, self._store, self.run_id)

    async def result(self, timeout: float | None = None) -> Out:
        """Wait for the output; `Paused` where the run waits for people. What the run failed of is raised.

        A `TimeoutError` after so many seconds; the run goes on.
        """
        began, pause = time.monotonic(), _SOON
        while True:
            status = await self.status()
            found = await asyncio.to_thread(outcome, self._agent, self._store, self.run_id, status)
            if found is not None:
                return found.output  # type: ignore[return-value]
            left = _left(timeout, began, self.run_id, status)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _LATER)

    async def follow(self) -> AsyncGenerator[Entry]:
        """The entries of its journal and of its branches', from the first, as they are committed; ends with the run."""
        position = 0
        while True:
            is_over, position, entries = await asyncio.to_thread(look, self._store, self.run_id, position, _GOES_ON)
            for entry in entries:
                yield entry
            if is_over:
                return
            if not entries:
                await asyncio.sleep(_SOON)

    async def cancel(self) -> None:
        """End the run, wherever it is driven."""
        await asyncio.to_thread(self._store.cancel, self.run_id)


def outcome(agent: Agent[Any, Any], store: Store, run_id: str, status: Status) -> Run[Any] | None:
    """The record of a run that has ended or waits for people, its output typed; None: it goes on.

    What it failed of is raised, with the record.
    """
    if status not in ("done", "failed", "cancelled", "waiting"):
        return None
    kept = store.read(run_id)
    if not kept:
        raise words.no_run(run_id, store.name)
    if kept[0].facts.status != status:  # it has gone on this moment
        return None
    if status == "cancelled":
        raise RunCancelledError(f"The run {run_id} was cancelled.")
    plan = plan_for(agent, held())
    if status == "failed":
        raise recorded_failure(kept, plan, store)
    with read_whole(run_id, store):
        run = _record(plan, kept, Shelf(store.media))
    if status == "waiting":
        requests = store.requests(run_id)
        run.output = Paused(run_id, requests)
        return run if requests else None  # they were answered this moment
    return run


def _record(plan: Any, kept: Sequence[Kept], shelf: Shelf) -> Run[Any]:
    run = load(plan, saved_of(kept[0], shelf)).run
    hang_records(run, [saved_of(each, shelf) for each in kept[1:]])
    return run


def _status(store: Store, run_id: str) -> Status:
    found = store.statuses([run_id])
    if run_id not in found:
        raise words.no_run(run_id, store.name)
    return found[run_id]


def _left(timeout: float | None, began: float, run_id: str, status: Status) -> float:
    """Seconds until nobody wants to wait any longer."""
    if timeout is None:
        return _LATER
    left = began + timeout - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"The run {run_id} is still `{status}` after {timeout:g} s; it goes on.")
    return left
