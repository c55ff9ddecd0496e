"""Queued batches: `map(..., queue=True)` stores the rows in slices and waits for the results.

The workers of the store drive the runs. The runs continue if the caller leaves the loop. Another call with the same
`id` returns the results of the same runs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Generic

from acorn._call.batch import BatchProgress, Item, Out, RowJob, arguments_of
from acorn._call.submit import Submission, read_outcome
from acorn._declare.module_base import AgentBase, BatchItem
from acorn._drive.bridge import Bridge
from acorn._drive.load import is_final
from acorn.record import Run
from acorn.stores.lease import claim_run, this_process
from acorn.stores.port import QueuedRun, Status

_SLICE_SIZE = 500
"""The number of rows that one transaction stores."""
_MOST_PENDING = 10_000
"""The largest number of pending runs. The batch requests no more rows from the user's iterator meanwhile."""
_MOST_PENDING_WITH_MAX_COST = 100
"""The largest number of pending runs with `max_cost`. It is smaller, because pending runs may exceed the cost."""
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
"""The shortest and the longest wait in seconds before the next status query. The wait grows while no run ends."""


class QueuedBatch(Generic[Out]):
    """A batch whose runs are submitted to a store, with the runs that have not ended yet."""

    def __init__(self, agent: AgentBase, progress: BatchProgress[Out], *, retry: bool) -> None:
        self._agent, self._progress, self._retry = agent, progress, retry
        self._submission = Submission(agent)
        self._batch = progress.batch or os.urandom(16).hex()
        self._pending: dict[str, RowJob] = {}
        self._most_pending = _MOST_PENDING_WITH_MAX_COST if progress.max_cost is not None else _MOST_PENDING
        self._has_more_rows = True

    async def items(self, bridge: Bridge) -> AsyncGenerator[Item[Out]]:
        """Yield each item when its run ends."""
        pause = _FIRST_WAIT
        try:
            while self._pending or self._has_more_rows:
                items = [*await bridge.call(self._submit_rows), *await bridge.call(self._take_results)]
                for item in items:
                    yield item
                pause = _FIRST_WAIT if items else min(pause * 1.5, _LONGEST_WAIT)
                if not items:
                    await bridge.sleep(pause)
        finally:
            self._progress.finish()

    # Submitting rows

    def _submit_rows(self) -> list[Item[Out]]:
        """Submit the next slice of rows, and return the items of the rows that could not be submitted."""
        failed: list[Item[Out]] = []
        jobs: dict[str, RowJob] = {}
        runs: list[QueuedRun] = []
        while self._has_more_rows and len(runs) < _SLICE_SIZE and len(self._pending) + len(runs) < self._most_pending:
            job = self._progress.next()
            if job is None:
                self._has_more_rows = False
                break
            try:
                if job.error is not None:
                    raise job.error
                arguments = arguments_of(job.row, self._submission.shape)
                item = BatchItem(self._batch, job.row_index)
                queued = self._submission.new_run(*arguments, job.run_id, item)
            except Exception as error:  # The row does not fit the input, or the user's `key` function failed.
                failed.append(self._progress.end(job, None, error))
            else:
                jobs[queued.run_id] = job
                runs.append(queued)
                self._progress.progress.running += 1
        if runs:
            new_ids = self._submission.put(runs)
            self._pending |= jobs
            failed += self._check_existing([queued for queued in runs if queued.run_id not in new_ids])
        return failed

    def _check_existing(self, runs: Sequence[QueuedRun]) -> Iterator[Item[Out]]:
        """Check the runs that an earlier call submitted.

        If `retry` is set, submit the failed runs again.
        """
        for queued in runs:
            try:
                self._submission.check_existing(queued)
                if self._retry:
                    self._retry_failed(queued)
            except Exception as error:
                yield self._end(queued.run_id, None, error)

    def _retry_failed(self, queued: QueuedRun) -> None:
        store, run_id = self._submission.store, queued.run_id
        stored_runs = store.read(run_id)
        if not stored_runs or stored_runs[0].facts.status != "failed":
            return
        if is_final(stored_runs[0]):
            store.delete(run_id)
            self._submission.put([queued])
        elif claim_run(store, run_id):
            store.release(run_id, this_process(), "queued")

    # Results

    def _take_results(self) -> list[Item[Out]]:
        pending = list(self._pending)
        statuses = self._submission.store.statuses(pending)
        items = [self._take_result(run_id, statuses.get(run_id, "done")) for run_id in pending]
        return [item for item in items if item is not None]

    def _take_result(self, run_id: str, status: Status) -> Item[Out] | None:
        try:
            run = read_outcome(self._agent, self._submission.store, run_id, status)
        except Exception as error:
            return self._end(run_id, None, error)
        return None if run is None else self._end(run_id, run, None)

    def _end(self, run_id: str, run: Run | None, error: BaseException | None) -> Item[Out]:
        self._progress.progress.running -= 1
        return self._progress.end(self._pending.pop(run_id), run, error)
