"""Keeps a tree of runs in its store: what has happened is committed before the next effect begins.

A commit holds what is new in all runs of the tree: their entries, and the memory of their machines. To go on is
to load what was committed, in whatever process; nothing is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from acorn._json import shorten, to_plain
from acorn._loop.run import Loop
from acorn._loop.saved_run import save_new, save_record
from acorn._record_json import fields_of
from acorn.journal import Entry
from acorn.stores.holder import hold, let_go, this_process
from acorn.stores.port import Birth, Change, Commit, Kept, RunCancelledError, Status, Store


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


class Keeper:
    """Commits the runs of one tree."""

    def __init__(self, store: Store, root: str, origin: Origin, kept: Sequence[Kept] = ()) -> None:
        self.store = store
        self._root, self._origin = root, origin
        self._entries = {each.facts.id: len(each.entries) for each in kept}
        """By run, how many entries of its journal are kept."""
        self._changed: set[str] = set()
        self._is_held = False

    def hear(self, entry: Entry) -> None:
        """Something has happened in a run."""
        self._changed.add(entry.run_id)

    def commit(self, loops: Mapping[str, Loop]) -> Future[None] | None:
        """Hand over what is new; None where nothing is."""
        if not self._changed:
            return None
        if not self._is_held:
            hold(self.store, self._root)
            self._is_held = True
        changes = [self._change(loop) for run_id, loop in loops.items() if run_id in self._changed]
        self._changed.clear()
        is_resting = status_of(loops[self._root]) == "waiting"
        requests = [each for loop in loops.values() for each in loop.requests()] if is_resting else ()
        return self.store.commit(Commit(self._root, this_process(), changes, requests))

    def end(self, lost: Exception | None) -> None:
        """The root is not driven any longer, as far as this process is concerned."""
        let_go(self.store, self._root)
        if isinstance(lost, RunCancelledError):  # from when somebody wanted it, nothing is kept
            self.store.release(self._root, this_process(), "cancelled")

    def _change(self, loop: Loop) -> Change:
        run, since = loop.run, self._entries.get(loop.run.id)
        new, state = save_new(loop, since or 0)
        entries = [text_of(entry) for entry in new]
        self._entries[run.id] = (since or 0) + len(entries)
        status = status_of(loop)
        # While it goes on, the facts beside it say all that changes of the record.
        record = save_record(loop) if since is None or status != "running" else None
        error = None if record is None else record["run"]["error"]
        return Change(
            run.id,
            self._birth(loop) if since is None else None,
            since or 0,
            entries,
            None if record is None else text_of(record),
            text_of(state),
            status,
            run.model,
            run.steps,
            run.usage.copy(),
            run.cost,
            run.journal.now,
            run.stop_reason,
            None if error is None else shorten(error["words"]),
        )

    def _birth(self, loop: Loop) -> Birth:
        run, context, origin = loop.run, loop.context, self._origin
        if context is None:
            return Birth(
                origin.agent,
                None,
                None,
                text_of(to_plain(run.input)),
                run.started or datetime.now(UTC),
                text_of({"settings": origin.overrides, "file": origin.file}),
                origin.batch,
                origin.item,
            )
        born = text_of(context.to_json())
        started = run.started or datetime.now(UTC)
        return Birth(loop.plan.module, context.parent_id, born, text_of(to_plain(run.input)), started)


def status_of(loop: Loop) -> Status:
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
    return "failed" if isinstance(run.error, Exception) else "stopped"


def saved_of(kept: Kept) -> dict[str, Any]:
    """A run as `_loop/saved_run.py` writes and reads it."""
    record, facts = json.loads(kept.record), kept.facts
    if facts.stop_reason is None:  # what it was at its birth, or before it went on
        usage = fields_of(facts.usage)
        now = {"model": facts.model, "steps": facts.steps, "usage": usage, "cost": facts.cost, "seconds": facts.seconds}
        record["run"] |= {**now, "stop_reason": None, "error": None, "output": None}
    return {
        **record,
        "branch": None if kept.birth.branch is None else json.loads(kept.birth.branch),
        "since": 0,
        "journal": [json.loads(entry) for entry in kept.entries],
        "state": json.loads(kept.state),
    }


def text_of(plain: Any) -> str:
    """Plain data as JSON text."""
    try:
        return to_json(plain, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # half a surrogate pair, which a model may have written
        return json.dumps(plain, separators=(",", ":"))
