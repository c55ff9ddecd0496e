"""Keeps a tree of runs in its store: what has happened is committed before the next effect begins.

A commit holds what is new in all runs of the tree: their entries, and the memory of their machines. To go on is
to load what was committed, in whatever process; nothing is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from acorn._base.interrupts import is_signal
from acorn._formats.blobs import BlobReader, SavedText, save_text, save_texts, to_saved_data
from acorn._formats.json import describe_error, shorten
from acorn._machine.machine import Machine
from acorn._machine.saved_run import StepProgress, save_new, save_record
from acorn._record.saved_form import FORMAT, fields_of, written_record
from acorn.errors import AcornError, StoreError
from acorn.record import Run
from acorn.stores.lease import claim_of, claim_process, release_process, this_process
from acorn.stores.messages import claim_lost
from acorn.stores.port import Change, Commit, Medium, RunCancelledError, RunHeader, Status, Store, StoredRun
from acorn.types import JsonObject

_SOON = 5.0
"""Seconds in which a commit comes to something, where all is well."""


class Origin(NamedTuple):
    """What a store keeps of a root beside its run."""

    agent: str
    """`module:qualname` of its class."""
    overrides: Mapping[str, Any] = {}
    """What its instance set, as plain data."""
    file: str | None = None
    """Where its class is written, if in a file."""
    batch: str | None = None
    item: int | None = None


class RunCommitter:
    """Commits the runs of one tree."""

    def __init__(self, store: Store, root: str, origin: Origin, kept: Sequence[StoredRun] = ()) -> None:
        self.store = store
        self._root, self._origin = root, origin
        self._entries = {each.facts.id: len(each.entries) for each in kept if each.has_begun}
        """By run, how many entries of its journal are kept."""
        self._progress: dict[str, StepProgress] = {}
        """By run, where entries tell what the machine would remember."""
        self._born = {each.facts.id for each in kept}
        self.changed: set[str] = set()
        """The runs in which something has happened since the last commit."""
        self._media: set[str] = set()
        """Data that this process has committed for them."""
        self._new_media: list[Medium] = []
        self._first: Future[None] | None = None
        """The commit that bears the run, where it is a new one."""
        self._last: list[tuple[Future[None], Commit]] = []
        """The last commits, of which it may not be known yet whether they were kept."""
        self._is_over = False
        self._is_claimed = bool(kept)
        self._seat = claim_of(store, root)
        self._turn = self._seat.turn
        before = kept[0].facts.status if kept else "stopped"
        self._left: Status = "stopped" if before == "running" else before
        """What the run is at where nothing more can be kept."""
        self.first_span: str | None = notes_of_run(kept[0].birth).get("span") if kept else None
        """The span that the run has begun with, where it was traced; when it goes on, that is linked to it."""

    def begin(self, cancelled: Callable[[], None]) -> None:
        """The root is driven from now on, and others are to know; `cancelled` is called where one wants it to end."""
        claim_process(self.store, self._root, cancelled)

    def commit(self, machines: Mapping[str, Machine]) -> Future[None] | None:
        """Hand over what is new; None where nothing is."""
        if not self.changed:
            return None
        changes = [self._change(loop) for run_id, loop in machines.items() if run_id in self.changed]
        self.changed.clear()
        is_resting = status_of(machines[self._root]) == "waiting"
        requests = [each for loop in machines.values() for each in loop.calls.open_requests()] if is_resting else ()
        self._left = "stopped"
        media, self._new_media = self._new_media, []
        commit = Commit(self._root, this_process(), changes, requests, media)
        with self._seat.lock:
            if self._turn != self._seat.turn:
                raise claim_lost(self._root)
            future = self.store.commit(commit)
        self._first = self._first or future
        self._last = [each for each in self._last if not each[0].done()] if self._last else self._last
        self._last.append((future, commit))
        return future

    def requeue_rejected(self) -> None:
        """What was refused, since somebody wants the run cancelled, is kept with its end."""
        for future, commit in self._last:
            with suppress(TimeoutError):  # the end is not kept then, but for the word
                if future.exception(_SOON) is None:
                    continue
                for change in commit.changes:
                    self.changed.add(change.run_id)
                    self._progress.pop(change.run_id, None)
                    self._entries[change.run_id] = min(change.since, self._entries.get(change.run_id, 0))
                    if change.birth is not None:
                        del self._entries[change.run_id]
                self._new_media += commit.media
        self._last = []

    def end(self, lost: Exception | None) -> None:
        """The root is not driven any longer, as far as this process is concerned."""
        self._is_over = True
        release_process(self.store, self._root)
        if lost is not None:  # so the store believes that it goes on
            self._release("cancelled" if isinstance(lost, RunCancelledError) else self._left)

    def cancel(self) -> None:
        """Whoever drives the root does not hear that it was cancelled; everybody else is to see it."""
        if not self._is_over:
            self._is_over = True
            self._release("cancelled")

    def can_store_end(self, root: Machine) -> bool:
        """Whether the end of a cancelled run can be kept: nothing else of it is."""
        return not self._is_over and root.run.stop_reason is not None

    def release(self) -> None:
        """The root was claimed, and nobody drives it after all."""
        self._release(self._left)

    def failure(self, error: Exception) -> StoreError:
        """What went wrong in a store, as an error of ours."""
        if isinstance(error, StoreError):
            return error
        failed = StoreError(f"The run {self._root} could not be kept in {self.store.name}: {describe_error(error)}")
        failed.__cause__ = error
        return failed

    def _release(self, status: Status) -> None:
        # Another thread of this process may have begun a run by this name: that one is not ours.
        first = self._first
        if self._is_claimed or (first is not None and first.done() and first.exception() is None):
            with self._seat.lock, suppress(Exception):  # what the store failed of is known
                if self._turn == self._seat.turn:
                    self.store.release(self._root, this_process(), status)

    def _change(self, loop: Machine) -> Change:
        run, since = loop.run, self._entries.get(loop.run.id)
        new, state, progress = save_new(loop, since or 0, self._progress.pop(run.id, None))
        if progress is not None:
            self._progress[run.id] = progress
        texts = [self._text_of(each) for each in save_texts(new if state is None else [*new, state])]
        entries = texts[: len(new)]
        self._entries[run.id] = (since or 0) + len(entries)
        status = status_of(loop)
        # While it goes on, the facts beside it say all that changes of the record.
        record = save_record(loop) if since is None or status != "running" else None
        error = None if record is None else record["run"]["error"]
        return Change(
            run.id,
            self._birth(loop) if since is None and run.id not in self._born else None,
            since or 0,
            entries,
            None if record is None else self._text(record),
            None if state is None else texts[-1],
            status,
            run.model,
            run.steps,
            run.usage.copy(),
            run.cost,
            run.journal.now,
            run.stop_reason,
            None if error is None else shorten(error["words"]),
        )

    def _text(self, plain: Any) -> str:
        """What is kept of plain data; what is no text in it goes into the commit by itself."""
        return self._text_of(save_text(plain))

    def _text_of(self, made: SavedText) -> str:
        text, found = made
        for data in found:
            if data.sha256 not in self._media:
                self._media.add(data.sha256)
                self._new_media.append(Medium(data.sha256, data.raw()))
        return text

    def _birth(self, loop: Machine) -> RunHeader:
        run, context, origin = loop.run, loop.context, self._origin
        if context is None:
            notes: JsonObject = {"settings": origin.overrides, "file": origin.file}
            if self.first_span is not None:
                notes["span"] = self.first_span
            return RunHeader(
                origin.agent,
                None,
                None,
                self._text(to_saved_data(run.input)),
                run.started or datetime.now(UTC),
                self._text(notes),
                origin.batch,
                origin.item,
            )
        born = self._text(context.to_json())
        started = run.started or datetime.now(UTC)
        return RunHeader(loop.plan.module, context.parent_id, born, self._text(to_saved_data(run.input)), started)


def notes_of_run(birth: RunHeader) -> JsonObject:
    """What was noted beside a run when it was born; empty where that cannot be read."""
    try:
        found = json.loads(birth.overrides or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def status_of(loop: Machine) -> Status:
    """What a run is at."""
    run = loop.run
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


def saved_of(kept: StoredRun, shelf: BlobReader) -> JsonObject:
    """A run as `_loop/saved_run.py` writes and reads it."""
    record, facts = shelf.read(kept.record) if kept.has_begun else _unbegun(kept, shelf), kept.facts
    if facts.stop_reason is None:  # what it was at its birth, or before it went on
        usage = fields_of(facts.usage)
        now = {"model": facts.model, "steps": facts.steps, "usage": usage, "cost": facts.cost, "seconds": facts.seconds}
        record["run"] |= {**now, "stop_reason": None, "error": None, "output": None, "waits_for": None}
    return {
        **record,
        "branch": None if kept.birth.branch is None else shelf.read(kept.birth.branch),
        "since": 0,
        "journal": [shelf.read(entry) for entry in kept.entries],
        "state": shelf.read(kept.state),
    }


def _unbegun(kept: StoredRun, shelf: BlobReader) -> JsonObject:
    """The record of a run that nobody has begun yet."""
    facts = kept.facts
    run: Run = Run(facts.id, shelf.read(kept.birth.input), started=facts.started)
    return {"format": FORMAT, "module": facts.agent, "run": written_record(run)}


@contextmanager
def read_whole(run_id: str, store: Store) -> Generator[None]:
    """What is kept may be damaged, or of an acorn to come."""
    try:
        yield
    except AcornError:
        raise
    except Exception as error:
        raise StoreError(
            f"The run {run_id} in {store.name} cannot be read ({shorten(describe_error(error))}); another version of "
            f"acorn "
            f"may have written it. It was left as it is."
        ) from error
