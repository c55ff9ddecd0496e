"""A batch whose runs begin elsewhere: the rows are put into the store in slices, and followed there.

What is put stays put: whoever leaves the loop leaves the runs to the workers, and the same call with its `id` finds
them again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from typing import Any, Generic

from acorn._call.batch import BatchProgress, Item, Out, RowJob, arguments_of
from acorn._call.plan import Agent
from acorn._call.submit import Submission, outcome
from acorn._declare.spec_cache import BatchItem
from acorn._drive.load import is_final
from acorn.record import Run
from acorn.stores.lease import claim_run, this_process
from acorn.stores.port import QueuedRun, Status

_SLICE = 500
"""Rows that are put in one go."""
_MOST = 10_000
"""Runs that are out at a time: rows behind them are not read yet."""
_MOST_OF_LIMITED = 100
"""The same where the batch has a `max_cost`: what is out may be spent beyond it."""
_SOON, _LATER = 0.05, 1.0
"""Seconds between two looks: while runs end, and while none does."""
_ENDED: tuple[Status, ...] = ("done", "failed", "waiting", "cancelled")


class QueuedBatch(Generic[Out]):
    """What is out, and what has come of it."""

    def __init__(self, agent: Agent[Out, Any], book: BatchProgress[Out], *, retry: bool) -> None:
        self._agent, self._book, self._retry = agent, book, retry
        self._intake = Submission(agent)
        self._batch = book.batch or os.urandom(16).hex()
        self._out: dict[str, RowJob] = {}
        self._most = _MOST_OF_LIMITED if book.has_max_cost else _MOST
        self._has_more = True

    def go(self) -> Generator[Item[Out]]:
        pause = _SOON
        try:
            while not self._is_over():
                items = [*self._fill(), *self._look()]
                yield from items
                pause = _SOON if items else min(pause * 1.5, _LATER)
                if not items:
                    time.sleep(pause)
        finally:
            self._end()

    async def ago(self) -> AsyncGenerator[Item[Out]]:
        pause = _SOON
        try:
            while not self._is_over():
                items = [*await asyncio.to_thread(self._fill), *await asyncio.to_thread(self._look)]
                for item in items:
                    yield item
                pause = _SOON if items else min(pause * 1.5, _LATER)
                if not items:
                    await asyncio.sleep(pause)
        finally:
            self._end()

    def _is_over(self) -> bool:
        return not self._out and not self._has_more

    def _end(self) -> None:
        self._book.look()
        self._book.is_over = True

    # Into the store

    def _fill(self) -> list[Item[Out]]:
        """Put the next slice, where there is room; what of it cannot be put has ended."""
        ended: list[Item[Out]] = []
        slice_: dict[str, tuple[RowJob, QueuedRun]] = {}
        while self._has_more and len(slice_) < _SLICE and len(self._out) + len(slice_) < self._most:
            job = self._book.next()
            if job is None:
                self._has_more = False
                break
            try:
                queued = self._queued(job)
            except Exception as error:  # the row does not fit, or `key` is wrong
                ended.append(self._book.end(job, None, error))
            else:
                slice_[queued.run_id] = job, queued
                self._book.progress.running += 1
        if slice_:
            new = self._intake.put([queued for _, queued in slice_.values()])
            self._out |= {run_id: job for run_id, (job, _) in slice_.items()}
            ended += self._take_up([queued for run_id, (_, queued) in slice_.items() if run_id not in new])
        return ended

    def _queued(self, job: RowJob) -> QueuedRun:
        if job.error is not None:
            raise job.error
        return self._intake.run(*arguments_of(job.row, self._intake.shape), job.run_id, BatchItem(self._batch, job.at))

    def _take_up(self, known: Sequence[QueuedRun]) -> Iterator[Item[Out]]:
        """Runs of an earlier call: they must be what they are called, and what had failed may be tried again."""
        for queued in known:
            try:
                self._intake.check_known(queued)
                if self._retry:
                    self._try_again(queued)
            except Exception as error:
                yield self._ended(queued.run_id, None, error)

    def _try_again(self, queued: QueuedRun) -> None:
        store, run_id = self._intake.store, queued.run_id
        before = store.read(run_id)
        if not before or before[0].facts.status != "failed":
            return
        if is_final(before[0]):
            store.delete(run_id)
            self._intake.put([queued])
        elif claim_run(store, run_id):
            store.release(run_id, this_process(), "queued")

    # Out of it

    def _look(self) -> list[Item[Out]]:
        statuses = self._intake.store.statuses(list(self._out))
        over = [run_id for run_id in self._out if statuses.get(run_id) in (*_ENDED, None)]
        items = [self._result(run_id, statuses.get(run_id, "done")) for run_id in over]
        return [item for item in items if item is not None]

    def _result(self, run_id: str, status: Status) -> Item[Out] | None:
        try:
            run = outcome(self._agent, self._intake.store, run_id, status)
        except Exception as error:
            return self._ended(run_id, None, error)
        return None if run is None else self._ended(run_id, run, None)

    def _ended(self, run_id: str, run: Run | None, error: BaseException | None) -> Item[Out]:
        self._book.progress.running -= 1
        return self._book.end(self._out.pop(run_id), run, error)
