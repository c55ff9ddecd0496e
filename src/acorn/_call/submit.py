"""Runs that begin elsewhere: checked here, and put into their store as nothing but their input.

`submit` puts one, `map(..., queue=True)` many in a go; no machine is made for any of them.

A run that goes on elsewhere, from here: what it is at, what came of it, and an end to it.

`submit` gives a `Handle`, `asubmit` an `AsyncHandle`, which does the same without holding up the event loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic

from typing_extensions import TypeVar

from acorn._call.plan import OPTIONS, Agent, plan_for
from acorn._call.runs import followed, status_of_runs
from acorn._call.start import origin_of, store_of
from acorn._declare.generics import ORIG_CLASS, check_type_arguments
from acorn._declare.settings import SETTINGS
from acorn._declare.spec_cache import BatchItem, Queueing, agent_name, call_options, current_overrides, spec_within
from acorn._drive.commit import read_whole, saved_of
from acorn._drive.load import check_fit, stored_failure
from acorn._formats.blobs import BlobReader, save_text, to_saved_data
from acorn._formats.json import excerpt
from acorn._formats.schema.shape import Shape
from acorn._machine.saved_run import hang_records, load
from acorn._machine.state import OBJECT
from acorn._record.saved_form import restored
from acorn.errors import DeclarationError
from acorn.journal import Entry
from acorn.record import Run
from acorn.stores import messages
from acorn.stores.port import MediaBlob, QueuedRun, RunCancelledError, RunHeader, Status, Store, StoredRun
from acorn.types import Paused

_FARTHEST = 2**31
"""Priorities are whole numbers of this size at most, as the engine keeps them."""


class Submission:
    """Makes runs of inputs, for one instance: what they have in common is judged and written once."""

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._agent, self._spec = agent, spec_within(current_overrides(), agent)
        self._brought, self.queueing = call_options(agent), call_options(agent).queueing or Queueing()
        self.name = agent_name(type(agent))
        self._check()
        self.store: Store = store_of(self._spec)
        origin = origin_of(agent)
        self._overrides, _ = save_text({"settings": origin.overrides, "file": origin.file})

    @property
    def shape(self) -> Shape:
        """What a run takes."""
        return self._spec.input

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run_id: str | None, item: BatchItem | None
    ) -> QueuedRun:
        """The run of one input; `InputError` where it does not fit."""
        given = self._spec.input.from_call(self._spec.owner, args, kwargs, OPTIONS)
        batch, at = (None, None) if item is None else item
        now = datetime.now(UTC)
        text, found = save_text(to_saved_data(given))
        birth = RunHeader(self.name, None, None, text, now, self._overrides, batch, at)
        priority, not_before, _ = self.queueing
        media = [MediaBlob(data.sha256, data.raw()) for data in found]
        return QueuedRun(run_id or os.urandom(16).hex(), birth, priority, _moment(not_before, now), media)

    def put(self, runs: Iterable[QueuedRun]) -> set[str]:
        """Put them into the store; the ids of those that it did not know."""
        return set(self.store.enqueue(list(runs), deliver=self.queueing.deliver))

    def check_known(self, queued: QueuedRun) -> None:
        """A name stands for one class and one input, whoever put it there."""
        before = self.store.read(queued.run_id)
        if before:
            shelf = BlobReader(lambda _: dict(queued.media))
            given = restored(self._spec.input.schema, shelf.read(queued.header.input), "input")
            check_fit(before[0], self.store, self.name, given)

    def _check(self) -> None:
        """What an instance has and a store does not keep, no worker would have."""
        owner, brought = self._spec.owner, self._brought
        empty = self._spec.input.is_empty, self._spec.output.is_empty
        check_type_arguments(self._agent, owner, has_input=not empty[0], has_output=not empty[1])
        if self.queueing.deliver and (self.name.startswith("__main__:") or "<" in self.name):
            raise DeclarationError(
                f"No worker can find `{self.name}`, since it is not written in a file, at its top; put it there, as in "
                f"`agents.py`."
            )
        if brought.deps is not None:
            raise DeclarationError(
                f"`deps` of `{owner}` are not kept with a run that begins elsewhere; give them where it is driven, as "
                f"in `desk = {owner}().using(deps=...)` in `agents.py` and `acorn work agents.py:desk`."
            )
        if brought.prior or brought.fork is not None:
            raise DeclarationError(
                f"`history` of `{owner}` is not kept with a run that begins elsewhere, and neither is what `thread` "
                f"and `before` bring; call it here."
            )
        if ORIG_CLASS in vars(self._agent):
            raise DeclarationError(
                f"What stands in the brackets of this `{owner}` is not kept with a run that begins elsewhere; write a "
                f"class of its own, as in `class Mine({owner}[...])`."
            )
        if any(isinstance(self._agent, each.cls) for each in current_overrides()):
            raise DeclarationError(f"`{owner}.override(...)` holds in this process only, and the run begins elsewhere.")
        self._check_settings(owner)

    def _check_settings(self, owner: str) -> None:
        own = {name: value for name, value in list(vars(self._agent).items()) if name in SETTINGS and name != "store"}
        kept = origin_of(self._agent).overrides
        for name, value in own.items():
            if name not in kept or (name == "model" and _has_object(kept[name])):
                raise DeclarationError(
                    f"`{name}` of this `{owner}` is {excerpt(value)}, which is not kept with a run that begins "
                    f"elsewhere; set it on the class."
                )
            lost = sorted(value.keys() - kept[name].keys()) if isinstance(value, dict) else []
            if lost:
                raise DeclarationError(
                    f"`{name}` of this `{owner}` has `{'`, `'.join(lost)}`, which is not kept with a run that begins "
                    f"elsewhere; set it on the class, or give a key to the workers by their environment."
                )


def _has_object(model: Any) -> bool:
    return OBJECT in (model if isinstance(model, list) else [model])


def _moment(not_before: Any, now: datetime) -> datetime | None:
    if not_before is None or isinstance(not_before, datetime):
        return None if not_before is None else not_before.astimezone(UTC)
    return now + (not_before if isinstance(not_before, timedelta) else timedelta(seconds=not_before))


def _is_time(not_before: Any) -> bool:
    if isinstance(not_before, bool) or not isinstance(not_before, int | float | datetime | timedelta | None):
        return False
    try:
        _moment(not_before, datetime.now(UTC))
    except (OverflowError, ValueError):  # no calendar has it
        return False
    return True


def check_queueing(before: Queueing | None, owner: str, given: Mapping[str, Any]) -> Queueing:
    """What `using` was given for runs that begin elsewhere, on top of what it was given before."""
    whole = (before or Queueing())._replace(**given)
    priority, not_before, deliver = tuple[Any, Any, Any](whole)
    is_count = isinstance(priority, int) and not isinstance(priority, bool) and -_FARTHEST <= priority < _FARTHEST
    rules = [
        ("priority", priority, is_count, "a whole number, the higher the sooner"),
        (
            "not_before",
            not_before,
            _is_time(not_before),
            "a datetime, a timedelta or a number of seconds from now, in the years 1 to 9999",
        ),
        ("deliver", deliver, isinstance(deliver, bool), "True or False"),
    ]
    for name, value, is_right, allowed in rules:
        if not is_right:
            raise DeclarationError(f"`{name}` of `{owner}.using` must be {allowed}, got {excerpt(value)}.")
    if not deliver and (priority or not_before is not None):
        raise DeclarationError(
            f"`priority` and `not_before` of `{owner}.using` are for the workers of the store; with `deliver=False` "
            f"the engine that you hand the run to sees to them."
        )
    return whole


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
            is_over, position, entries = await asyncio.to_thread(
                status_of_runs, self._store, self.run_id, position, _GOES_ON
            )
            for entry in entries:
                yield entry
            if is_over:
                return
            if not entries:
                await asyncio.sleep(_SOON)

    async def cancel(self) -> None:
        """End the run, wherever it is driven."""
        await asyncio.to_thread(self._store.cancel, self.run_id)


def outcome(agent: Agent[Any, Any], store: Store, run_id: str, status: Status) -> Run | None:
    """The record of a run that has ended or waits for people, its output typed; None: it goes on.

    What it failed of is raised, with the record.
    """
    if status not in ("done", "failed", "cancelled", "waiting"):
        return None
    kept = store.read(run_id)
    if not kept:
        raise messages.run_not_found(run_id, store.name)
    if kept[0].facts.status != status:  # it has gone on this moment
        return None
    if status == "cancelled":
        raise RunCancelledError(f"The run {run_id} was cancelled.")
    plan = plan_for(agent, current_overrides())
    if status == "failed":
        raise stored_failure(kept, plan, store)
    with read_whole(run_id, store):
        run = _record(plan, kept, BlobReader(store.media))
    if status == "waiting":
        requests = store.requests(run_id)
        run.output = Paused(run_id, requests)
        return run if requests else None  # they were answered this moment
    return run


def _record(plan: Any, kept: Sequence[StoredRun], shelf: BlobReader) -> Run:
    run = load(plan, saved_of(kept[0], shelf)).run
    hang_records(run, [saved_of(each, shelf) for each in kept[1:]])
    return run


def _status(store: Store, run_id: str) -> Status:
    found = store.statuses([run_id])
    if run_id not in found:
        raise messages.run_not_found(run_id, store.name)
    return found[run_id]


def _left(timeout: float | None, began: float, run_id: str, status: Status) -> float:
    """Seconds until nobody wants to wait any longer."""
    if timeout is None:
        return _LATER
    left = began + timeout - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"The run {run_id} is still `{status}` after {timeout:g} s; it goes on.")
    return left
