"""Committing a tree of runs to its store, before the next effect begins.

A commit contains what is new in all runs of the tree: their journal entries and the states of their machines. Any
process resumes a run by loading what was committed. Nothing is replayed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import NamedTuple

from acorn._base.interrupts import is_signal
from acorn._formats.blobs import BlobReader, save_texts, to_saved_data
from acorn._formats.json import describe_error, shorten
from acorn._history.saved_form import FORMAT, fields_of, write_record
from acorn._machine.machine import Machine
from acorn._machine.saved_run import StepProgress, save_new, save_record
from acorn.errors import AcornError, StoreError
from acorn.record import Run
from acorn.stores.lease import claim_of, start_heartbeat, stop_heartbeat
from acorn.stores.port import Change, Commit, MediaBlob, RunCancelledError, RunHeader, Status, Store, StoredRun
from acorn.stores.rules import claim_lost_error
from acorn.types import JsonObject, JsonValue

_SECONDS_TO_COMMIT = 5.0
"""Seconds in which a healthy store finishes a commit."""
_SECONDS_TO_NOTICE = 0.5
"""Seconds in which the driver of a cancelled run notices the cancellation."""
_SECONDS_TO_END = 15.0
"""Seconds in which it then ends the run: tools clean up and tool sources are closed."""


class Origin(NamedTuple):
    """Facts about a root that a store keeps in addition to its run."""

    agent: str
    """`module:qualname` of its class."""
    overrides: JsonObject = {}
    """The settings of the instance, as JSON data."""
    file: str | None = None
    """The file of the class, if it has one."""
    batch: str | None = None
    item: int | None = None


class RunCommitter:
    """Commits the runs of one tree."""

    def __init__(self, store: Store, root: str, origin: Origin, stored: Sequence[StoredRun] = ()) -> None:
        self.store = store
        self._root, self._origin = root, origin
        self._entry_counts = {each.facts.id: len(each.entries) for each in stored if each.has_started}
        """By run, the number of stored journal entries."""
        self._progress: dict[str, StepProgress] = {}
        """By run, the last complete state, if later entries tell how it changed."""
        self._created = {each.facts.id for each in stored}
        """The runs whose headers are stored."""
        self.changed: set[str] = set()
        """The runs with changes since the last commit."""
        self._media: set[str] = set()
        """The hashes of the binary data that this process has committed."""
        self._new_media: list[MediaBlob] = []
        self._first: Future[None] | None = None
        """The commit that creates a new run."""
        self._recent: list[tuple[Future[None], Commit]] = []
        """The last commits, which may not be finished."""
        self._is_over = False
        self._is_claimed = bool(stored)
        self._claim = claim_of(store, root)
        self._generation = self._claim.generation
        status = stored[0].facts.status if stored else "stopped"
        self._last_status: Status = "stopped" if status == "running" else status
        """The status of the run if nothing more can be stored."""
        self.first_span: str | None = notes_of_run(stored[0].header).get("span") if stored else None
        """The telemetry span that the run started with. The span of a resumed run links to it."""

    def begin(self, on_cancel: Callable[[], None]) -> None:
        """Register the run as driven by this process. `on_cancel` is called when another process cancels the run."""
        start_heartbeat(self.store, self._root, on_cancel)

    def commit(self, machines: Mapping[str, Machine]) -> Future[None] | None:
        """Hand over what is new to the store. Return None if nothing is."""
        if not self.changed:
            return None
        changes = [self._change(machine) for run_id, machine in machines.items() if run_id in self.changed]
        self.changed.clear()
        is_paused = machines[self._root].run.stop_reason == "paused"
        requests = (
            [request for machine in machines.values() for request in machine.calls.open_requests()] if is_paused else ()
        )
        self._last_status = "stopped"
        media, self._new_media = self._new_media, []
        commit = Commit(self._root, self._claim.process, changes, requests, media)
        with self._claim.lock:
            if self._generation != self._claim.generation:
                raise claim_lost_error(self._root)
            future = self.store.commit(commit)
        self._first = self._first or future
        if self._recent:
            self._recent = [each for each in self._recent if not each[0].done()]
        self._recent.append((future, commit))
        return future

    def requeue_rejected(self) -> None:
        """Add commits that the store rejected, because the run was cancelled, to the commit of its end."""
        for future, commit in self._recent:
            with suppress(TimeoutError):  # Then only the status of the run is stored, not its end.
                if future.exception(_SECONDS_TO_COMMIT) is None:
                    continue
                for change in commit.changes:
                    self.changed.add(change.run_id)
                    self._progress.pop(change.run_id, None)
                    self._entry_counts[change.run_id] = min(change.offset, self._entry_counts.get(change.run_id, 0))
                    if change.header is not None:
                        del self._entry_counts[change.run_id]
                self._new_media += commit.media
        self._recent = []

    def end(self, fatal_error: Exception | None) -> None:
        """Stop driving the run in this process."""
        self._is_over = True
        stop_heartbeat(self.store, self._root)
        if fatal_error is not None:  # The end was not stored, so the store still shows the run as running.
            self._release("cancelled" if isinstance(fatal_error, RunCancelledError) else self._last_status)

    def cancel_soon(self, is_ending: Callable[[], bool]) -> None:
        """Mark the run as cancelled in the store, unless its driver notices the cancellation and stores the end."""

        def cancel_unnoticed() -> None:
            if is_ending():
                _call_later(_SECONDS_TO_END, self._cancel)
            else:
                self._cancel()

        _call_later(_SECONDS_TO_NOTICE, cancel_unnoticed)

    def _cancel(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._release("cancelled")

    def can_store_end(self, root: Machine) -> bool:
        """Return whether the end of a cancelled run can be stored. Nothing else of it is stored."""
        return not self._is_over and root.run.stop_reason is not None

    def release(self) -> None:
        """Release the claim of a run that is not driven after all."""
        self._release(self._last_status)

    def failure(self, error: Exception) -> StoreError:
        """Return the error of a store as a `StoreError`."""
        if isinstance(error, StoreError):
            return error
        failure = StoreError(f"Run {self._root} could not be stored in {self.store.name}: {describe_error(error)}")
        failure.__cause__ = error
        return failure

    def _release(self, status: Status) -> None:
        # Another thread of this process may have started a run with this id. That one must not be released.
        first = self._first
        if self._is_claimed or (first is not None and first.done() and first.exception() is None):
            with self._claim.lock, suppress(Exception):  # The error of the store is known already.
                if self._generation == self._claim.generation:
                    self.store.release(self._root, self._claim.process, status)

    def _change(self, machine: Machine) -> Change:
        run, since = machine.run, self._entry_counts.get(machine.run.id)
        entries, state, progress = save_new(machine, since or 0, self._progress.pop(run.id, None))
        if progress is not None:
            self._progress[run.id] = progress
        self._entry_counts[run.id] = (since or 0) + len(entries)
        status = status_of(machine)
        # While a run continues, the facts in the change contain everything that changes in its record.
        record = save_record(machine) if since is None or status != "running" else None
        error = None if record is None else record["run"]["error"]
        is_new = since is None and run.id not in self._created
        texts = iter(self._texts([*entries, state, record, *(self._header_parts(machine) if is_new else ())]))
        return Change(
            run_id=run.id,
            offset=since or 0,
            entries=[next(texts) for _ in entries],
            state=_text_or_none(state, next(texts)),
            record=_text_or_none(record, next(texts)),
            header=self._header(machine, *texts) if is_new else None,
            status=status,
            model=run.model,
            steps=run.steps,
            usage=run.usage.copy(),
            cost=run.cost,
            seconds=run.journal.now,
            stop_reason=run.stop_reason,
            error=None if error is None else shorten(error["message"]),
        )

    def _texts(self, parts: Sequence[object]) -> list[str]:
        """Write JSON data as texts. Binary data in it goes into the commit separately."""
        texts: list[str] = []
        for text, blobs in save_texts(parts):
            texts.append(text)
            for blob in blobs:
                if blob.sha256 not in self._media:
                    self._media.add(blob.sha256)
                    self._new_media.append(MediaBlob(blob.sha256, blob.raw()))
        return texts

    def _header_parts(self, machine: Machine) -> tuple[object, object]:
        """Return the texts in the header of a run: its input, and its notes or its branch context."""
        context, origin = machine.context, self._origin
        if context is not None:
            return to_saved_data(machine.run.input), context.to_json()
        notes: JsonObject = {"settings": origin.overrides, "file": origin.file}
        if self.first_span is not None:
            notes["span"] = self.first_span
        return to_saved_data(machine.run.input), notes

    def _header(self, machine: Machine, input_text: str, other_text: str) -> RunHeader:
        context, origin = machine.context, self._origin
        started = machine.run.started or datetime.now(UTC)
        if context is not None:
            return RunHeader(machine.plan.module, context.parent_id, other_text, input_text, started)
        return RunHeader(origin.agent, None, None, input_text, started, other_text, origin.batch, origin.item)


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def _text_or_none(part: object, text: str) -> str | None:
    return None if part is None else text


def notes_of_run(header: RunHeader) -> JsonObject:
    """Return the notes in the header of a run. They are empty if they cannot be read."""
    try:
        notes: JsonValue = json.loads(header.overrides or "{}")
    except ValueError:
        return {}
    return notes if isinstance(notes, dict) else {}


def status_of(machine: Machine) -> Status:
    """Return the status of a run, as its store shows it."""
    run = machine.run
    if run.stop_reason is None:
        return "running"
    if run.stop_reason == "paused":
        return "waiting"
    if run.error is None:
        return "done"
    if isinstance(run.error, RunCancelledError):
        return "cancelled"
    if is_signal(run.error, "handed_back"):
        return "queued"
    return "failed" if isinstance(run.error, Exception) else "stopped"


def to_saved_run(stored: StoredRun, blobs: BlobReader) -> JsonObject:
    """Return a stored run in the form that `_machine/saved_run.py` loads."""
    record, facts = blobs.read(stored.record) if stored.has_started else _new_record(stored, blobs), stored.facts
    if facts.stop_reason is None:  # The record is from the start of the run, or from before it was resumed.
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


def _new_record(stored: StoredRun, blobs: BlobReader) -> JsonObject:
    """Return the record of a queued run that has not started."""
    facts = stored.facts
    run: Run = Run(facts.id, blobs.read(stored.header.input), started=facts.started)
    return {"format": FORMAT, "module": facts.agent, "run": write_record(run)}


@contextmanager
def translate_read_errors(run_id: str, store: Store) -> Generator[None]:
    """Raise a `StoreError` if a stored run is damaged or was written by a newer version of acorn."""
    try:
        yield
    except AcornError:
        raise
    except Exception as error:
        raise StoreError(
            f"Cannot read run {run_id} in {store.name}: {shorten(describe_error(error))}. Another version of acorn may "
            f"have written it. Nothing was changed."
        ) from error
