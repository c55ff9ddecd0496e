"""Access to the runs of a store without their classes: `acorn.runs(store)`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from acorn._drive.bridge import SYNC, Bridge
from acorn._drive.driver import iterate_inline
from acorn._drive.load import read_record
from acorn._formats.blobs import BlobReader
from acorn._formats.json import excerpt, to_json_data
from acorn._history.saved_form import decode_entries
from acorn._machine.human_input import check_answer
from acorn.errors import StoreError
from acorn.journal import Entry
from acorn.record import Run
from acorn.stores.open import open_store
from acorn.stores.port import NotifyingStore, RunFacts, Status, Store, run_not_found_error
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
    return Runs(open_store(store, "`store` of `acorn.runs`"))


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
        if limit is not None and not isinstance(limit, int):
            raise StoreError(f"`limit` must be a whole number of runs, or None for all runs, got {excerpt(limit)}.")
        return self._store.list(status=statuses, agent=agent, limit=limit, before=before)

    def get(self, run_id: str) -> Run:
        """Return the record of a run and its branches.

        The record of a run in progress contains everything that was committed so far.
        """
        stored_runs = self._store.read(run_id)
        if not stored_runs:
            raise run_not_found_error(run_id, self._store.name)
        return read_record(stored_runs, self._store)

    def follow(self, run_id: str) -> Generator[Entry]:
        """Yield the journal entries of a run and its branches when they are committed, until the run ends."""
        return iterate_inline(follow_run(self._store, run_id, _CONTINUES, SYNC))

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


async def follow_run(store: Store, run_id: str, continues: Sequence[Status], bridge: Bridge) -> AsyncGenerator[Entry]:
    """Yield the journal entries of a run when they are committed, while its status is one of `continues`."""
    position = 0
    # Async code polls, because a task that waits for a notification in a thread could not be cancelled.
    watch = store.watch(run_id) if bridge is SYNC and isinstance(store, NotifyingStore) else None
    try:
        while True:
            status, rows = await bridge.call(store.follow, run_id, position)
            if status is None:
                raise run_not_found_error(run_id, store.name)
            blobs = BlobReader(store.media)
            for entry in decode_entries([blobs.read(row.entry) for row in rows]):
                yield entry
            if rows:
                position = rows[-1].position
            elif status not in continues:
                return
            elif watch is None:
                await bridge.sleep(_POLL_SECONDS)
            else:
                watch.wait(_LONGEST_WAIT)
    finally:
        if watch is not None:
            watch.close()
