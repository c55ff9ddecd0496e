"""Commits of a run and its branches to a store.

A driver commits all changes before it performs the next operation, such as a model request or a tool call. A commit
contains the changes of the run and of all its branches: new journal entries, and the states of the state machines. To
resume a run, a process loads the committed state, so it does not repeat a committed step.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from acorn._base.clock import current_clock
from acorn._base.interrupts import is_signal
from acorn._formats.blobs import BlobReader, save_texts
from acorn._formats.json import describe_error, shorten
from acorn._history.saved_form import encode_saved_record, fields_of
from acorn._machine.machine import Machine
from acorn._machine.saved_run import save_new
from acorn._machine.state import State
from acorn.errors import AcornError, StoreError
from acorn.record import Run
from acorn.stores import port
from acorn.stores.lease import shared_claim, start_heartbeat, stop_heartbeat
from acorn.types import JsonObject, Request

_SECONDS_TO_NOTICE = 0.5
"""The seconds that the driver of a cancelled run needs at most to notice the cancellation."""
_SECONDS_TO_END = 15.0
"""The seconds that the driver then needs at most to end the run, while tools clean up and tool sources close."""


class Origin(NamedTuple):
    """The origin of a top-level run: its agent class, settings and batch, which a store saves in the run header."""

    agent: str
    """The class of the run, as `module:qualname`."""
    overrides: JsonObject = {}
    """The settings of the instance, as JSON data."""
    file: str | None = None
    """The path of the file that defines the class, or None."""
    batch: str | None = None
    item: int | None = None
    owner: str | None = None
    """The digest of the access key of the client that started the run."""


class RunCommitter:
    """The object that commits a run and its branches to a store, and finally releases the claim on the run."""

    def __init__(self, store: port.Store, root: str, origin: Origin, stored: Sequence[port.StoredRun] = ()) -> None:
        self.store = store
        self._root, self._origin = root, origin
        self._clock = current_clock()
        self._entry_counts = {run.facts.id: len(run.entries) for run in stored if run.has_started}
        """A dict that maps run ids to the number of stored journal entries."""
        self._states: dict[str, State] = {}
        """A dict that maps run ids to the committed states."""
        self._created = {run.facts.id for run in stored}
        """The ids of the runs whose headers are stored."""
        self.changed: set[str] = set()
        """The ids of the runs that changed since the last commit."""
        self._media: set[str] = set()
        """The hashes of the binary data that this process has committed."""
        self._new_media: list[port.MediaBlob] = []
        self._first: port.PendingCommit | None = None
        """The first commit, which creates the run if the run is new."""
        self._on_cancel: Callable[[], None] | None = None
        """The function that the heartbeat of the run calls. None before the heartbeat has started."""
        self._is_over = False
        self._is_claimed = bool(stored)
        self._claim = shared_claim(store, root)
        self._generation = self._claim.generation
        status = stored[0].facts.status if stored else "stopped"
        self._last_status: port.Status = "stopped" if status == "running" else status
        """The status that the store gets if the run stops without another commit."""
        notes: JsonObject = json.loads(stored[0].header.overrides or "{}") if stored else {}
        self.first_span: str | None = notes.get("span")
        """The first telemetry span of the run. The span of a resumed run links to this span."""

    def begin(self, on_cancel: Callable[[], None]) -> None:
        """Start the heartbeat, which renews this process's claim on the run in the store.

        The heartbeat calls `on_cancel` when another process cancels the run.
        """
        self._on_cancel = on_cancel
        start_heartbeat(self.store, self._root, on_cancel)

    def commit(self, machines: Mapping[str, Machine]) -> port.PendingCommit | None:
        """Pass all changes since the last commit to the store, and return the commit that the caller must wait for.

        Return None if nothing has changed.
        """
        if not self.changed:
            return None
        changes = [self._change(machine) for run_id, machine in machines.items() if run_id in self.changed]
        self.changed.clear()
        requests: list[Request] = []
        if machines[self._root].run.stop_reason == "paused":
            requests = [request for machine in machines.values() for request in machine.calls.open_requests()]
        self._last_status = "stopped"
        media, self._new_media = self._new_media, []
        commit = port.Commit(self._root, self._claim.process, changes, requests, media)
        with self._claim.lock:
            if self._generation != self._claim.generation:
                raise StoreError(
                    f"Run {self._root} was stopped, and another call in this process resumed the run. The stopped call "
                    f"writes nothing more to the run."
                )
            pending = self.store.commit(commit)
        self._first = self._first or pending
        return pending

    def end(self, fatal_error: Exception | None) -> None:
        """Stop the heartbeat of the run, and after a fatal error also release the claim on the run.

        After a fatal error the end of the run was not committed, so the store still reports the run as running.
        """
        self._is_over = True
        if self._on_cancel is not None:
            stop_heartbeat(self.store, self._root, self._on_cancel)
        if fatal_error is not None:  # The end was not committed, so the store still reports the run as running.
            self.release("cancelled" if isinstance(fatal_error, port.RunCancelledError) else None)

    def cancel_soon(self, is_ending: Callable[[], bool]) -> None:
        """Mark the run as cancelled in the store after a short time, unless its driver commits its end first."""

        def wait_and_cancel() -> None:
            self._clock.sleep(_SECONDS_TO_NOTICE)
            if is_ending():
                self._clock.sleep(_SECONDS_TO_END)
            if not self._is_over:
                self._is_over = True
                self.release("cancelled")

        threading.Thread(target=wait_and_cancel, daemon=True).start()

    def can_store_end(self, root: Machine, fatal_error: Exception) -> bool:
        """Return True if the end of a run can still be committed after a fatal error.

        This is possible only if the run was cancelled and has ended, and if its claim has not been released.
        """
        return (
            isinstance(fatal_error, port.RunCancelledError) and not self._is_over and root.run.stop_reason is not None
        )

    def failure(self, error: Exception) -> StoreError:
        """Convert an exception that the store raised to a `StoreError` that names the run and the store."""
        if isinstance(error, StoreError):
            return error
        failure = StoreError(
            f"Run {self._root} could not be stored in {self.store.name}: {describe_error(error)}. Check the store, and "
            f"resume the run."
        )
        failure.__cause__ = error
        return failure

    def release(self, status: port.Status | None = None) -> None:
        """Release the claim on the run. By default, the store gets the status after the last commit."""
        # If the store has already failed, the run reports its first error.
        with self._claim.lock, suppress(Exception):
            if not self._is_claimed:
                if self._first is None:
                    return
                # If the commit failed, another thread of this process may have started a run with this id.
                self._first.result()
            if self._generation == self._claim.generation:
                self.store.release(self._root, self._claim.process, status or self._last_status)

    def _change(self, machine: Machine) -> port.Change:
        run, status = machine.run, status_of(machine)
        is_first, offset = run.id not in self._entry_counts, self._entry_counts.get(run.id, 0)
        entries, state, self._states[run.id] = save_new(machine, offset, self._states.get(run.id))
        self._entry_counts[run.id] = offset + len(entries)
        record: JsonObject | None = None
        header_values: list[JsonObject] = []
        if is_first or status != "running":  # Otherwise the other fields of `Change` contain all changes of the record.
            record = encode_saved_record(run, machine.plan.module)
            if is_first and run.id not in self._created:
                header_values = [record["run"]["input"], self._start_data(machine)]
        texts, blobs = save_texts([state, record, *entries, *header_values])
        for blob in blobs:
            if blob.sha256 not in self._media:
                self._media.add(blob.sha256)
                self._new_media.append(port.MediaBlob(blob.sha256, blob.raw()))
        return port.Change(
            run_id=run.id,
            header=self._header(machine, *texts[-2:]) if header_values else None,
            offset=offset,
            entries=texts[2 : 2 + len(entries)],
            record=None if record is None else texts[1],
            state=None if state is None else texts[0],
            status=status,
            model=run.model,
            steps=run.steps,
            usage=replace(run.usage),
            cost=run.cost,
            seconds=run.journal.now,
            stop_reason=run.stop_reason,
            error=shorten(record["run"]["error"]["message"]) if record and record["run"]["error"] else None,
        )

    def _start_data(self, machine: Machine) -> JsonObject:
        """Return the data with which a run starts: the context of a branch, or the notes about a top-level run."""
        if machine.context is not None:
            return machine.context.to_json()
        notes: JsonObject = {"settings": self._origin.overrides, "file": self._origin.file}
        if self._origin.owner is not None:
            notes["owner"] = self._origin.owner
        return notes if self.first_span is None else {**notes, "span": self.first_span}

    def _header(self, machine: Machine, input_text: str, start_text: str) -> port.RunHeader:
        context, origin = machine.context, self._origin
        started = machine.run.started or datetime.now(UTC)
        if context is not None:
            return port.RunHeader(machine.plan.module, context.parent_id, start_text, input_text, started)
        return port.RunHeader(origin.agent, None, None, input_text, started, start_text, origin.batch, origin.item)


def status_of(machine: Machine) -> port.Status:
    """Return the status that a store saves for a run, such as 'running', 'waiting' or 'done'."""
    run = machine.run
    if run.stop_reason is None:
        return "running"
    if run.stop_reason == "paused":
        return "waiting"
    if run.error is None:
        return "done"
    if isinstance(run.error, port.RunCancelledError):
        return "cancelled"
    if is_signal(run.error, "handed_back"):
        return "queued"
    return "failed" if isinstance(run.error, Exception) else "stopped"


def to_saved_run(stored: port.StoredRun, blobs: BlobReader) -> JsonObject:
    """Return a stored run in the JSON form that `load` in `_machine/saved_run.py` needs."""
    facts = stored.facts
    if stored.has_started:
        record = blobs.read(stored.record)
    else:
        run: Run = Run(facts.id, blobs.read(stored.header.input), started=facts.started)
        record = encode_saved_record(run, facts.agent)
    if facts.stop_reason is None:  # The record was saved when the run started, or before it was resumed.
        usage = fields_of(facts.usage)
        now = {"model": facts.model, "steps": facts.steps, "usage": usage, "cost": facts.cost, "seconds": facts.seconds}
        record["run"] |= {**now, "stop_reason": None, "error": None, "output": None, "requests": None}
    return {
        **record,
        "branch": None if stored.header.branch is None else blobs.read(stored.header.branch),
        "since": 0,
        "journal": [blobs.read(entry) for entry in stored.entries],
        "state": blobs.read(stored.state),
    }


@contextmanager
def translate_read_errors(run_id: str, store: port.Store) -> Generator[None]:
    """Convert any error in a `with` block that loads a stored run to a `StoreError`.

    The stored run may be damaged, or a newer version of acorn may have written it.
    """
    try:
        yield
    except AcornError:
        raise
    except Exception as error:
        raise StoreError(
            f"Cannot read run {run_id} in {store.name}: {shorten(describe_error(error))}. Another version of acorn may "
            f"have written it. Nothing was changed."
        ) from error
