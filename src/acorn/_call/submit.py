"""Queued runs: code that submits runs to a store, waits for their results, follows and cancels them.

`submit` and `map(..., queue=True)` check and store the input. The worker that claims the run creates its machine.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from acorn._call.plan import OPTIONS, Arguments, origin_of, plan_for, store_of
from acorn._call.runs import follow_run
from acorn._declare.generics import ORIG_CLASS, check_type_arguments
from acorn._declare.module_base import AgentBase, BatchItem
from acorn._declare.settings import SETTINGS
from acorn._declare.spec_cache import active_overrides, agent_name, read_spec, spec_within
from acorn._drive.bridge import ASYNC, SYNC, Bridge
from acorn._drive.driver import iterate_inline, run_inline
from acorn._drive.load import check_fit, read_record, stored_failure
from acorn._formats.blobs import BlobReader, save_text, to_saved_data
from acorn._formats.json import excerpt
from acorn._history.saved_form import decode_instance
from acorn._machine.state import MODEL_OBJECT
from acorn._machine.stored_settings import declared_addresses, has_address_or_key, undeclared_address
from acorn.errors import DeclarationError
from acorn.journal import Entry
from acorn.record import Run
from acorn.stores.port import MediaBlob, QueuedRun, RunCancelledError, RunHeader, Status, Store, run_not_found_error
from acorn.types import JsonObject, Paused, is_list_or_tuple

Out = TypeVar("Out", default=Any)

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 0.5
"""The shortest and the longest wait in seconds before the next status query. The wait grows with each query."""
_CONTINUES: tuple[Status, ...] = ("queued", "running", "waiting", "stopped")
"""The statuses of a run that has not ended. A worker resumes a stopped run."""


def submit_run(agent: AgentBase, args: Arguments, kwargs: JsonObject) -> tuple[str, Store]:
    """Submit one run, and return its id and its store."""
    submission = Submission(agent)
    queued = submission.new_run(args, kwargs, agent.__acorn_call_options__.run_id, None)
    if not submission.put([queued]):
        submission.check_existing(queued)
    return queued.run_id, submission.store


class Submission:
    """The submission of one or more runs of an instance, which checks and encodes their shared data only once."""

    def __init__(self, agent: AgentBase) -> None:
        self._agent, self._spec = agent, spec_within(active_overrides.get(), agent)
        self._options = agent.__acorn_call_options__
        self.shape = self._spec.input
        self._name = agent_name(type(agent))
        origin = origin_of(agent)
        self._check()
        self.store: Store = store_of(self._spec)
        self._check_settings(origin.overrides)
        self._settings, _ = save_text({"settings": origin.overrides, "file": origin.file})

    def new_run(self, args: Arguments, kwargs: JsonObject, run_id: str | None, item: BatchItem | None) -> QueuedRun:
        """Return a queued run for the arguments of a call.

        Raise `InputError` if the arguments do not match the input schema.
        """
        input = self.shape.from_call(self._spec.owner, args, kwargs, OPTIONS)
        batch, index = item or (None, None)
        now, options = datetime.now(UTC), self._options
        text, blobs = save_text(to_saved_data(input))
        header = RunHeader(self._name, None, None, text, now, self._settings, batch, index)
        media = [MediaBlob(blob.sha256, blob.raw()) for blob in blobs]
        start = start_time(options.not_before, now)
        return QueuedRun(run_id or os.urandom(16).hex(), header, options.priority, start, media)

    def put(self, runs: Iterable[QueuedRun]) -> set[str]:
        """Store the runs, and return the ids of the runs that the store did not contain before."""
        return set(self.store.enqueue(list(runs), deliver=self._options.deliver))

    def check_existing(self, queued: QueuedRun) -> None:
        """Raise `StoreError` if the stored run with the same id has another class or another input."""
        stored_runs = self.store.read(queued.run_id)
        if stored_runs:
            blobs = BlobReader(lambda _: dict(queued.media))
            input = decode_instance(self.shape.schema, blobs.read(queued.header.input), "input")
            check_fit(stored_runs[0], self.store, self._name, input)

    def _check(self) -> None:
        """Raise an error if a worker could not create the same agent from the class and the stored settings."""
        spec, owner, options = self._spec, self._spec.owner, self._options
        check_type_arguments(self._agent, owner, has_input=not spec.input.is_empty, has_output=not spec.output.is_empty)
        if options.deliver and (self._name.startswith("__main__:") or "<" in self._name):
            raise DeclarationError(
                f"A worker cannot import `{self._name}`. Define the class at the top level of a file, such as "
                f"`agents.py`."
            )
        if options.deps is not None:
            raise DeclarationError(
                f"`deps` of `{owner}` cannot be stored with a queued run. Set them in the worker: write "
                f"`desk = {owner}().using(deps=...)` in `agents.py`, and run `acorn work agents.py:desk`."
            )
        if options.prior or options.fork is not None:
            raise DeclarationError(
                f"`history`, `thread` and `before` of `{owner}.using` cannot be stored with a queued run. Call the "
                f"agent in this process instead."
            )
        if ORIG_CLASS in vars(self._agent):
            raise DeclarationError(
                f"The type arguments of this `{owner}[...]` cannot be stored with a queued run. Define a class, such "
                f"as `class Mine({owner}[...])`, and submit a run of that class."
            )
        if any(isinstance(self._agent, override.cls) for override in active_overrides.get()):
            raise DeclarationError(
                f"`{owner}.override(...)` has no effect on a queued run, which a worker drives. Submit the run "
                f"outside the `with` block."
            )

    def _check_settings(self, stored: Mapping[str, Any]) -> None:
        owner = self._spec.owner
        for name, value in list(vars(self._agent).items()):
            if name not in SETTINGS or name == "store":
                continue
            if name == "tools" and has_address_or_key(value):  # The error must not show the value.
                raise DeclarationError(
                    f"`tools` of this `{owner}` has a hosted tool with an address or a key, which cannot be stored "
                    f"with a queued run. Set it on the class."
                )
            if name not in stored or (name == "model" and _has_object(stored[name])):
                raise DeclarationError(
                    f"`{name}` of this `{owner}` is {excerpt(value)}, which cannot be stored with a queued run. Set it "
                    f"on the class."
                )
            lost = _lost_keys(value, stored[name])
            address = undeclared_address({name: stored[name]}, declared_addresses(read_spec(type(self._agent))))
            if lost or (name == "model" and address is not None):
                raise DeclarationError(
                    f"`{name}` of this `{owner}` has `{'`, `'.join(lost or [str(address)])}`, which cannot be stored "
                    f"with a queued run. Set it on the class, or set an API key in the environment of the workers."
                )


def _lost_keys(value: object, stored: Any) -> list[str]:
    """Return the keys of a model dict, or of the dicts in a list of models, that are not stored."""
    if is_list_or_tuple(value):
        return [key for each, saved in zip(value, stored, strict=True) for key in _lost_keys(each, saved)]
    return sorted(value.keys() - stored.keys()) if isinstance(value, dict) else []


def _has_object(model: object) -> bool:
    return MODEL_OBJECT in (model if isinstance(model, list) else [model])


def start_time(not_before: datetime | timedelta | float | None, now: datetime) -> datetime | None:
    """Return the earliest start of a queued run, which `using(not_before=...)` sets as a time or as a delay."""
    if isinstance(not_before, int | float):
        not_before = timedelta(seconds=not_before)
    return now + not_before if isinstance(not_before, timedelta) else not_before and not_before.astimezone(UTC)


class _RunHandle(Generic[Out]):
    def __init__(self, agent: AgentBase, run_id: str, store: Store) -> None:
        self.run_id = run_id
        self._agent, self._store = agent, store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the run {self.run_id} in {self._store.name}>"

    async def _wait_for_output(self, timeout: float | None, bridge: Bridge) -> Out:
        store, run_id, started, pause = self._store, self.run_id, time.monotonic(), _FIRST_WAIT
        while True:
            status: Status = await bridge.call(_status, store, run_id)
            run: Run[Out] | None = await bridge.call(read_outcome, self._agent, store, run_id, status)
            if run is not None:
                return cast(Out, run.output)
            left = math.inf if timeout is None else started + timeout - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Run {run_id} is still `{status}` after {timeout:g} s. It continues.")
            await bridge.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_WAIT)


class Handle(_RunHandle[Out]):
    """A handle to a submitted run, to wait for its result, follow it or cancel it."""

    def status(self) -> Status:
        """Return the status of the run."""
        return _status(self._store, self.run_id)

    def result(self, timeout: float | None = None) -> Out:
        """Wait for the run and return its output, or raise its error if the run failed.

        The output is a `Paused` object if the run waits for human input. After `timeout` seconds, the method raises
        `TimeoutError`, and the run continues.
        """
        return run_inline(self._wait_for_output(timeout, SYNC))

    def follow(self) -> Generator[Entry]:
        """Yield the journal entries of the run and its branches when they are committed, until the run ends."""
        return iterate_inline(follow_run(self._store, self.run_id, _CONTINUES, SYNC))

    def cancel(self) -> None:
        """Cancel the run, also if another process drives it."""
        self._store.cancel(self.run_id)


class AsyncHandle(_RunHandle[Out]):
    """A handle to a submitted run, like `Handle`, with async methods."""

    async def status(self) -> Status:
        """Return the status of the run."""
        return await asyncio.to_thread(_status, self._store, self.run_id)

    async def result(self, timeout: float | None = None) -> Out:
        """Wait for the run and return its output, or raise its error if the run failed.

        The output is a `Paused` object if the run waits for human input. After `timeout` seconds, the method raises
        `TimeoutError`, and the run continues.
        """
        return await self._wait_for_output(timeout, ASYNC)

    def follow(self) -> AsyncGenerator[Entry]:
        """Yield the journal entries of the run and its branches when they are committed, until the run ends."""
        return follow_run(self._store, self.run_id, _CONTINUES, ASYNC)

    async def cancel(self) -> None:
        """Cancel the run, also if another process drives it."""
        await asyncio.to_thread(self._store.cancel, self.run_id)


def read_outcome(agent: AgentBase, store: Store, run_id: str, status: Status) -> Run | None:
    """Return the record of a run that has ended or waits for human input, or None if the run continues.

    If the run failed, raise its error, with the record as `error.run`.
    """
    if status not in ("done", "failed", "cancelled", "waiting"):
        return None
    stored_runs = store.read(run_id)
    if not stored_runs:
        raise run_not_found_error(run_id, store.name)
    if stored_runs[0].facts.status != status:  # The run was resumed after the status query.
        return None
    if status == "cancelled":
        raise RunCancelledError(f"Run {run_id} was cancelled.")
    if status == "failed":
        raise stored_failure(stored_runs, store)
    run = read_record(stored_runs, store, plan_for(agent, active_overrides.get()))
    if status == "waiting":
        requests = store.requests(run_id)
        run.output = Paused(run_id, requests)
        return run if requests else None  # Without requests, a person has answered after the status query.
    return run


def _status(store: Store, run_id: str) -> Status:
    statuses = store.statuses([run_id])
    if run_id not in statuses:
        raise run_not_found_error(run_id, store.name)
    return statuses[run_id]
