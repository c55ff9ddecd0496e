"""Batches: one run for each row of an input list, several at a time.

    for item in agent.map(rows, concurrency=16, id="nightly-16"):
        print(item.index, item.output or item.error)

A sync batch drives its runs in threads, an async batch in tasks. The failure of one run does not affect the others.
With an `id` and a store, another call of the same batch does not repeat finished runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple

from pydantic import BaseModel
from typing_extensions import TypeVar

from acorn._base.interrupts import next_item
from acorn._declare.settings import AMOUNT, COUNT, TEXT, Rule
from acorn._drive.async_driver import adrive
from acorn._drive.bridge import start_thread
from acorn._drive.load import build_in_thread
from acorn._drive.sync_driver import drive
from acorn._drive.tree import Tree
from acorn._formats.json import excerpt
from acorn._formats.schema.shape import Shape
from acorn.errors import DeclarationError, InputError, LimitError
from acorn.record import Run
from acorn.types import JsonObject, Paused, Usage, is_mapping

Out = TypeVar("Out", default=Any)
StartRow = Callable[[Any, int, str | None], Tree]
"""A function that starts the run of a row. Its arguments are the row, the index of the row and the run id."""

_CONCURRENCY = 8
"""The default number of concurrent runs."""
_START_SECONDS = 5.0
"""The seconds that a stopped batch waits at most for runs that are starting."""
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Item(Generic[Out]):
    """The result of one row of a batch."""

    index: int
    """The position of the row in the batch, from 0."""
    input: Any
    """The row that was passed to `map`."""
    output: Out | Paused | None = None
    """The output of the run, or None if the run failed."""
    error: Exception | None = None
    """The error of the run, or None."""
    run: Run[Out] | None = None
    """The record of the run, or None if the run did not start."""
    key: str | None = None
    """The key of the row, or None if `map` was called without `key`."""


@dataclass(slots=True)
class Progress:
    """The progress of a batch: counts of its rows, with their usage, cost and time."""

    total: int | None = None
    """The number of rows, or None while it is not known."""
    done: int = 0
    """The number of runs that have finished."""
    failed: int = 0
    """The number of rows whose run failed or did not start."""
    waiting: int = 0
    """The number of runs that wait for human input."""
    running: int = 0
    """The number of runs in progress."""
    usage: Usage = field(default_factory=Usage)
    """The tokens and requests of all runs that have ended."""
    cost: float | None = None
    """The cost of all runs that have ended, in dollars. Models without a known price are not included."""
    seconds: float = 0.0
    """The seconds since the start of the batch."""
    eta: float | None = None
    """The estimated seconds until the batch ends, or None if there is no estimate."""

    @property
    def ended(self) -> int:
        """The number of rows that are done, failed or waiting."""
        return self.done + self.failed + self.waiting


class RowJob(NamedTuple):
    """One row of a batch before its run starts: the row, its index and its run id.

    If `error` is set, the run will not start.
    """

    row_index: int
    row: Any
    key: str | None
    run_id: str | None
    error: Exception | None


class BatchOptions(NamedTuple):
    """The options of `map`.

    `BatchProgress` checks their types, because the user may pass any value.
    """

    concurrency: Any = None
    id: Any = None
    key: Any = None
    max_cost: Any = None
    retry: bool = False
    queue: bool = False


_RULES = {
    "concurrency": COUNT.or_none(COUNT.expected),
    "id": TEXT.or_none("a name such as 'nightly-16'"),
    "key": Rule(callable, "a function of a row").or_none("a function of a row"),
    "max_cost": AMOUNT.or_none(AMOUNT.expected),
}


class BatchProgress(Generic[Out]):
    """The bookkeeping of one batch: the rows that have not started, and the counts of the rows that have ended.

    Batches in threads, in tasks and in a queue all use this class.
    """

    def __init__(self, rows: Any, owner: str, options: BatchOptions) -> None:
        """Check the arguments of `map`, and start the bookkeeping of a new batch."""
        if options.queue and options.concurrency is not None:
            raise DeclarationError(
                f"`concurrency` of `{owner}.map` has no effect with `queue=True`. Set the concurrency of the workers, "
                f"such as `acorn work --concurrency 32`."
            )
        if isinstance(rows, str | bytes | BaseModel) or is_mapping(rows) or not hasattr(rows, "__iter__"):
            raise DeclarationError(f"`{owner}.map` needs an iterable of inputs, such as a list, got {excerpt(rows)}.")
        for name, rule in _RULES.items():
            rule.check(f"`{name}` of `{owner}.map`", getattr(options, name))
        self.concurrency: int = options.concurrency or _CONCURRENCY
        self.batch: str | None = options.id
        self.max_cost: float | None = options.max_cost
        self._key: Callable[[Any], Any] | None = options.key
        self._rows: Iterator[tuple[int, Any]] = enumerate(rows)
        self._started = time.monotonic()
        self._keys: set[str] = set()
        self._outcomes: dict[int, Any] = {}
        """A dict that maps row indexes to outputs or errors. Run records would need too much memory."""
        self.is_over = False
        self.progress = Progress(total=len(rows) if isinstance(rows, Sized) else None)

    def next(self) -> RowJob | None:
        """Return the next row, or None after the last row."""
        for index, row in self._rows:
            return self._job(index, row)
        self.progress.total = self.progress.ended + self.progress.running
        return None

    def _job(self, index: int, row: Any) -> RowJob:
        try:
            key = None if self._key is None else str(self._key(row))
            if key is not None and key in self._keys:
                raise InputError(f"Two rows of the batch have the key {excerpt(key)}. Each row needs its own key.")
            self._keys |= set() if key is None else {key}
            run_id = None if self.batch is None else _run_id(self.batch, str(index) if key is None else f"key {key}")
            if self.max_cost is not None and (self.progress.cost or 0.0) >= self.max_cost:
                raise LimitError(
                    f"The run of this item was not started: the batch has used its `max_cost` of {self.max_cost} "
                    f"dollars. Raise `max_cost` to run the remaining items."
                )
        except Exception as error:  # The user's `key` function may raise any error.
            return RowJob(index, row, None, None, error)
        return RowJob(index, row, key, run_id, None)

    def end(self, job: RowJob, run: Run | None, error: BaseException | None) -> Item[Out]:
        """Add the result of a row to the counts, and return the item that the user receives."""
        record = run if run is not None else getattr(error, "run", None)
        failure = error if isinstance(error, Exception) else None
        output = None if record is None or failure is not None else record.output
        item: Item[Out] = Item(job.row_index, job.row, output, failure, record, job.key)
        progress = self.progress
        if failure is not None:
            progress.failed += 1
        elif isinstance(output, Paused):
            progress.waiting += 1
        else:
            progress.done += 1
        if record is not None:
            progress.usage.add(record.usage)
            if record.cost is not None:
                progress.cost = (progress.cost or 0.0) + record.cost
        self._outcomes[job.row_index] = output if failure is None else failure
        self.snapshot()
        return item

    def finish(self) -> None:
        """Record the duration of the batch, whose last run has ended."""
        self.snapshot()
        self.is_over = True

    def snapshot(self) -> Progress:
        """Return a copy of the current progress."""
        progress = self.progress
        if not self.is_over:
            progress.seconds = time.monotonic() - self._started
        left = None if progress.total is None else progress.total - progress.ended
        progress.eta = None if left is None or not progress.ended else progress.seconds / progress.ended * left
        return replace(progress, usage=progress.usage.copy())

    def results(self) -> list[Any]:
        return [self._outcomes[index] for index in sorted(self._outcomes)]


class Batch(Generic[Out]):
    """Concurrent runs of many rows.

    Iterate over the batch, once, to get each item when its run ends.
    """

    def __init__(self, progress: BatchProgress[Out], items: Generator[Item[Out]]) -> None:
        self._progress = progress
        # The generator must not refer to this object. Then Python closes the generator, and so stops the runs, when the
        # caller leaves the loop.
        self._items = items

    def __iter__(self) -> Iterator[Item[Out]]:
        return self._items

    @property
    def progress(self) -> Progress:
        """The current progress."""
        return self._progress.snapshot()

    def results(self) -> list[Out | Paused | Exception]:
        """Wait for all runs, and return a list with the output or the exception of each row, in row order."""
        for _ in self._items:
            pass
        return self._progress.results()


class AsyncBatch(Generic[Out]):
    """Concurrent runs of many rows on the event loop: `async for item in agent.amap(rows)`."""

    def __init__(self, progress: BatchProgress[Out], items: AsyncGenerator[Item[Out]]) -> None:
        self._progress = progress
        self._items = items

    def __aiter__(self) -> AsyncGenerator[Item[Out]]:
        return self._items

    @property
    def progress(self) -> Progress:
        """The current progress."""
        return self._progress.snapshot()

    async def results(self) -> list[Out | Paused | Exception]:
        """Wait for all runs, and return a list with the output or the exception of each row, in row order."""
        async for _ in self._items:
            pass
        return self._progress.results()


Ended = tuple[RowJob, Run | None, BaseException | None]
"""A row whose run has ended, with the record of the run or its error."""


class _RunningBatch(ABC, Generic[Out]):
    """A batch that drives its runs in this process."""

    def __init__(self, progress: BatchProgress[Out], start_row: StartRow) -> None:
        self._progress, self._start_row = progress, start_row

    async def items(self) -> AsyncGenerator[Item[Out]]:
        """Yield each item when its run ends."""
        batch, progress = self._progress, self._progress.progress
        has_more_rows = True
        try:
            while True:
                while has_more_rows and progress.running < batch.concurrency:
                    job = batch.next()
                    if job is None:
                        has_more_rows = False
                    elif job.error is not None:
                        yield batch.end(job, None, job.error)
                    else:
                        progress.running += 1
                        self._start(job)
                if not progress.running:
                    return
                job, run, error = await self._next_ended()
                progress.running -= 1
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield batch.end(job, run, error)
        except BaseException as error:
            await self._stop(error)
            raise
        finally:
            batch.finish()

    @abstractmethod
    def _start(self, job: RowJob) -> None:
        """Start the run of a row in a thread or a task."""

    @abstractmethod
    async def _next_ended(self) -> Ended:
        """Wait until a run has ended, and return its row and its result."""

    @abstractmethod
    async def _stop(self, error: BaseException) -> None:
        """Stop the running runs, because an error ends the batch. Stored runs can be resumed later."""


class ThreadedBatch(_RunningBatch[Out]):
    """A batch that drives each run in its own thread."""

    def __init__(self, progress: BatchProgress[Out], start_row: StartRow) -> None:
        super().__init__(progress, start_row)
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._trees: dict[int, Tree | None] = {}
        """A dict that maps the indexes of rows to their runs, or to None while a run is being created or claimed."""

    def _start(self, job: RowJob) -> None:
        self._trees[job.row_index] = None
        start_thread(self._work, job)

    async def _next_ended(self) -> Ended:
        return next_item(self._ended)

    def _work(self, job: RowJob) -> None:
        ended: Ended
        try:
            ended = job, drive(self._start_run(job)), None
        except BaseException as error:
            ended = job, None, error
        del self._trees[job.row_index]
        self._ended.put(ended)

    def _start_run(self, job: RowJob) -> Tree:
        tree = self._start_row(job.row, job.row_index, job.run_id)
        if self._progress.is_over:  # The run has not started here, so its stored state does not change.
            tree.release()
            raise GeneratorExit("the batch has ended")
        self._trees[job.row_index] = tree
        return tree

    async def _stop(self, error: BaseException) -> None:
        self._progress.is_over = True
        deadline = time.monotonic() + _START_SECONDS
        while None in list(self._trees.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        # An error of the batch, such as an error in the user's iterator of rows, does not fail these runs.
        stop = GeneratorExit("the batch has ended") if isinstance(error, Exception) else error
        for tree in list(self._trees.values()):
            with suppress(Exception):
                if tree is not None:
                    tree.stop(tree.root, stop)
                    tree.commit()


class TaskBatch(_RunningBatch[Out]):
    """A batch that drives each run in its own task."""

    def __init__(self, progress: BatchProgress[Out], start_row: StartRow) -> None:
        super().__init__(progress, start_row)
        self._ended: asyncio.Queue[Ended] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def _start(self, job: RowJob) -> None:
        task = asyncio.ensure_future(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _next_ended(self) -> Ended:
        return await self._ended.get()

    async def _work(self, job: RowJob) -> None:
        ended: Ended
        try:
            start = partial(self._start_row, job.row, job.row_index, job.run_id)
            ended = job, await adrive(await build_in_thread(start)), None
        except BaseException as error:
            ended = job, None, error
        self._ended.put_nowait(ended)

    async def _stop(self, error: BaseException) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def arguments_of(row: Any, shape: Shape) -> tuple[tuple[Any, ...], JsonObject]:
    """Return the call arguments for a row: keyword arguments for a dict, or else the row as the only argument."""
    if is_mapping(row) and (not shape.wrapped or shape.takes_fields or list(row) == [shape.wrapped]):
        return (), {str(name): value for name, value in row.items()}
    return (row,), {}


def _run_id(batch: str, row_key: str) -> str:
    return hashlib.sha256(f"batch {batch}/{row_key}".encode()).hexdigest()[:32]
