"""Access to the runs of a store without their classes: `acorn.runs(store)`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from acorn._drive.commit import to_saved_run, translate_read_errors
from acorn._formats.blobs import BlobReader
from acorn._formats.json import excerpt, to_json_data
from acorn._history.saved_form import decode_entries, decode_record
from acorn._machine.human_input import check_answer
from acorn._machine.saved_run import attach_branch_records
from acorn.errors import StoreError
from acorn.journal import Entry
from acorn.record import Run
from acorn.stores.errors import run_not_found_error
from acorn.stores.open import open_store
from acorn.stores.port import NotifyingStore, RunFacts, Status, Store
from acorn.types import Request

_POLL_SECONDS = 0.1
"""The seconds between two queries for new entries, if the store cannot notify a reader."""
_LONGEST_WAIT = 1.0
"""The seconds between two queries if the store notifies a reader. A store does not report the end of a process."""
_CONTINUES: tuple[Status, ...] = ("queued", "running", "waiting")


def runs(store: str | Path | Store) -> Runs:
    """Open a store to list, read, follow, answer, cancel and delete its runs.

    for run in acorn.runs("runs.db").list(status="waiting"):
        print(run.id, run.agent, run.steps)
    """
    return Runs(open_store(store, "`acorn.runs`"))


class Runs:
    """The runs of one store, with methods to list, read, follow, answer, cancel and delete them."""

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
        """Return a list of the runs in the store, the newest first.

        The arguments select runs by one or more statuses, by agent class, and by a latest start time.
        """
        statuses: tuple[Any, ...] = (status,) if isinstance(status, str) else tuple(status)
        for name in statuses:
            if name not in get_args(Status):
                raise StoreError(
                    f"The status of a run must be one of {', '.join(get_args(Status))}, got {excerpt(name)}."
                )
        return self._store.list(status=statuses, agent=agent, limit=limit, before=before)

    def get(self, run_id: str) -> Run:
        """Return the record of a run and its branches.

        The record of a run in progress contains everything that was committed so far.
        """
        stored_runs = self._store.read(run_id)
        if not stored_runs:
            raise run_not_found_error(run_id, self._store.name)
        root, *branches = stored_runs
        with translate_read_errors(run_id, self._store):
            blobs = BlobReader(self._store.media)
            run: Run = decode_record(Run, to_saved_run(root, blobs), None)
            attach_branch_records(run, [to_saved_run(branch, blobs) for branch in branches])
        return run

    def follow(self, run_id: str) -> Generator[Entry]:
        """Yield the journal entries of a run and its branches when they are committed, until the run ends."""
        return follow_run(self._store, run_id, _CONTINUES)

    def requests(self, run_id: str | None = None) -> Sequence[Request]:
        """Return a list of the unanswered requests for human input, the oldest first."""
        return self._store.requests(run_id)

    def answer(self, request_id: str, value: Any) -> None:
        """Store the answer to a request for human input, which the run uses when it is resumed.

        Raise `InputError` if the answer is invalid.
        """
        answer = to_json_data(value)
        for request in self._store.requests():
            if request.id == request_id:
                check_answer(request, answer)
        self._store.answer(request_id, answer)

    def cancel(self, run_id: str) -> None:
        """Cancel a run.

        A paused run is cancelled immediately, and a running run within about a second.
        """
        self._store.cancel(run_id)

    def delete(self, run_id: str) -> None:
        """Delete a run and its branches."""
        self._store.delete(run_id)


def follow_run(store: Store, run_id: str, continues: Sequence[Status]) -> Generator[Entry]:
    """Yield the journal entries of a run when they are committed, while its status is one of `continues`."""
    position = 0
    with _watch(store, run_id) as wait:
        while True:
            is_over, position, entries = read_new_entries(store, run_id, position, continues)
            yield from entries
            if is_over:
                return
            if not entries:
                wait()


@contextmanager
def _watch(store: Store, run_id: str) -> Generator[Callable[[], None]]:
    """Return a context manager that yields a function, which waits until a run may have new journal entries."""
    if not isinstance(store, NotifyingStore):
        yield lambda: time.sleep(_POLL_SECONDS)
        return
    watch = store.watch(run_id)
    try:
        yield lambda: watch.wait(_LONGEST_WAIT)
    finally:
        watch.close()


def read_new_entries(
    store: Store, run_id: str, position: int, continues: Sequence[Status]
) -> tuple[bool, int, Sequence[Entry]]:
    """Return whether a run is over, the number of its last journal entry, and its entries after number `position`."""
    status, rows = store.follow(run_id, position)
    if status is None:
        raise run_not_found_error(run_id, store.name)
    blobs = BlobReader(store.media)
    entries = decode_entries([blobs.read(row.entry) for row in rows])
    return not rows and status not in continues, rows[-1].position if rows else position, entries
