"""A store from outside: what runs there are, what each did, and what people are asked. No class is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from acorn._drive.commit import read_whole, saved_of
from acorn._formats.blobs import BlobReader
from acorn._formats.json import excerpt, to_json_data
from acorn._machine.saved_run import hang_records
from acorn._machine.tool_calls import check_answer
from acorn._record.saved_form import read_entries, read_record
from acorn.errors import StoreError
from acorn.journal import Entry
from acorn.record import Run
from acorn.stores import messages
from acorn.stores.open import open_store
from acorn.stores.port import NotifyingStore, RunFacts, Status, Store
from acorn.types import Request

_PAUSE = 0.1
"""Seconds between two looks at a run that goes on."""
_LONG_PAUSE = 1.0
"""The same where the store tells what is new; that a process died, nobody tells."""
_GOES_ON: tuple[Status, ...] = ("queued", "running", "waiting")


@contextmanager
def watch(store: Store, run_id: str) -> Generator[Callable[[], None]]:
    """What waits until a run may have something new: told by the store, or found by looking now and then."""
    if not isinstance(store, NotifyingStore):
        yield lambda: time.sleep(_PAUSE)
        return
    watch = store.watch(run_id)
    try:
        yield lambda: watch.wait(_LONG_PAUSE)
    finally:
        watch.close()


class Runs:
    """The runs of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<runs of {self._store.name}>"

    def list(
        self,
        *,
        status: Status | Sequence[Status] = (),
        agent: str | None = None,
        limit: int | None = 50,
        before: datetime | None = None,
    ) -> Sequence[RunFacts]:
        """The newest first: in one state or several, of one class, begun before some time."""
        wanted: tuple[Any, ...] = (status,) if isinstance(status, str) else tuple(status)
        for each in wanted:
            if each not in get_args(Status):
                raise StoreError(f"A run is one of {', '.join(get_args(Status))}; got {excerpt(each)}.")
        return self._store.list(status=wanted, agent=agent, limit=limit, before=before)

    def get(self, run_id: str) -> Run:
        """The record of a run, its branches included: of one that goes on or was interrupted, what was committed."""
        kept = self._store.read(run_id)
        if not kept:
            raise messages.run_not_found(run_id, self._store.name)
        root, *below = kept
        with read_whole(run_id, self._store):
            shelf = BlobReader(self._store.media)
            run: Run = read_record(Run, saved_of(root, shelf), None)
            hang_records(run, [saved_of(each, shelf) for each in below])
        return run

    def follow(self, run_id: str) -> Generator[Entry]:
        """The entries of its journal and of its branches', from the first, as they are committed; ends with the run."""
        return followed(self._store, run_id, _GOES_ON)

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        """What people are asked and have not answered yet, the oldest first."""
        return self._store.requests(run_id)

    def answer(self, request_id: str, value: Any) -> None:
        """Answer a request; the run goes on when it is resumed. What is no answer to it is an `InputError`."""
        plain = to_json_data(value)
        for request in self._store.requests():
            if request.id == request_id:
                check_answer(request, plain)
        self._store.answer(request_id, plain)

    def cancel(self, run_id: str) -> None:
        """End a run: one that rests at once, one that is driven somewhere within about a second."""
        self._store.cancel(run_id)

    def delete(self, run_id: str) -> None:
        """Forget a run and its branches."""
        self._store.delete(run_id)


def followed(store: Store, run_id: str, goes_on: Sequence[Status]) -> Generator[Entry]:
    """The entries of a run as they are committed, while it is at one of these."""
    position = 0
    with watch(store, run_id) as wait:
        while True:
            is_over, position, entries = status_of_runs(store, run_id, position, goes_on)
            yield from entries
            if is_over:
                return
            if not entries:
                wait()


def status_of_runs(
    store: Store, run_id: str, position: int, goes_on: Sequence[Status]
) -> tuple[bool, int, Sequence[Entry]]:
    """Whether a run is over, and the entries behind a position, with the position of the last."""
    status, heard = store.follow(run_id, position)
    if status is None:
        raise messages.run_not_found(run_id, store.name)
    shelf = BlobReader(store.media)
    entries = read_entries([shelf.read(each.entry) for each in heard])
    return not heard and status not in goes_on, heard[-1].position if heard else position, entries


def runs(store: str | Path | Store) -> Runs:
    """The runs in a store, from Python.

    for run in acorn.runs("runs.db").list(status="waiting"):
        print(run.id, run.agent, run.steps)
    """
    return Runs(open_store(store, "`acorn.runs`"))
