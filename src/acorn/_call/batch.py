"""Many inputs, one run each: so many at a time, each item as it ends, and with an id in a store never one twice.

    for item in agent.map(rows, concurrency=16, id="nightly-16"):
        print(item.index, item.output or item.error)

The sync batch drives its runs in threads, the async one in tasks. What goes wrong with an item is its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple

from pydantic import BaseModel
from typing_extensions import TypeVar

from acorn._base.interrupts import next_item
from acorn._drive.bridge import result_of, start_thread
from acorn._drive.load import build_in_thread
from acorn._drive.tree import Tree
from acorn._formats.json import excerpt
from acorn._formats.schema.shape import RESULT, Shape
from acorn.errors import DeclarationError, InputError, LimitError
from acorn.record import Run
from acorn.types import JsonObject, Paused, Usage

Out = TypeVar("Out", default=Any)
StartRow = Callable[[Any, int, str | None], tuple[Tree, str]]
"""Makes a run of a row, the number of its item, and the id that it is kept under."""

_CONCURRENCY = 8
"""Runs at a time, where nobody says how many."""
_SOON = 5.0
"""Seconds in which a run is made, or claimed, where its store is well."""
_GLANCE = 0.002


@dataclass(frozen=True, slots=True)
class Item(Generic[Out]):
    """What became of one input."""

    index: int
    input: Any
    """The row as it was given."""
    output: Out | Paused | None = None
    error: Exception | None = None
    run: Run[Out] | None = None
    key: str | None = None
    """What `key` said of the row."""


@dataclass(slots=True)
class Progress:
    """How far a batch is."""

    total: int | None = None
    """How many rows there are, as soon as that is known."""
    done: int = 0
    failed: int = 0
    waiting: int = 0
    """Runs that rest until people have answered."""
    running: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    seconds: float = 0.0
    eta: float | None = None
    """Seconds until the end, by the pace so far."""

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.waiting


class RowJob(NamedTuple):
    """A row, before anything has come of it."""

    at: int
    row: Any
    key: str | None
    run_id: str | None
    error: Exception | None


class BatchProgress(Generic[Out]):
    """What both batches share: the rows as they are needed, and the account of what became of them."""

    def __init__(
        self,
        rows: Iterable[Any],
        concurrency: int,
        batch: str | None,
        key: Callable[[Any], Any] | None,
        max_cost: float | None,
    ) -> None:
        self.concurrency, self.batch, self._key, self._max_cost = concurrency, batch, key, max_cost
        self._rows: Iterator[tuple[int, Any]] = enumerate(rows)
        self._began = time.monotonic()
        self._keys: set[str] = set()
        self._outcomes: dict[int, Any] = {}
        """Of those that have ended, the output or the error: all records together would be too much to keep."""
        self.is_over = False
        self.progress = Progress(total=len(rows) if hasattr(rows, "__len__") else None)  # type: ignore[arg-type]

    @property
    def has_max_cost(self) -> bool:
        return self._max_cost is not None

    def next(self) -> RowJob | None:
        """The next row; None behind the last."""
        for index, row in self._rows:
            return self._job(index, row)
        self.progress.total = self.progress.ended + self.progress.running
        return None

    def _job(self, index: int, row: Any) -> RowJob:
        try:
            key = None if self._key is None else str(self._key(row))
            if key is not None and key in self._keys:
                raise InputError(f"Two rows of the batch have the key {excerpt(key)}; a key stands for one of them.")
            self._keys |= set() if key is None else {key}
            run_id = None if self.batch is None else _run_id(self.batch, str(index) if key is None else f"key {key}")
            if self._max_cost is not None and (self.progress.cost or 0.0) >= self._max_cost:
                raise LimitError(
                    f"The batch has spent its `max_cost` of {self._max_cost} dollars, so this item was not begun."
                )
        except Exception as error:  # `key` is the user's
            return RowJob(index, row, None, None, error)
        return RowJob(index, row, key, run_id, None)

    def end(self, job: RowJob, run: Run | None, error: BaseException | None) -> Item[Out]:
        """Count what became of a row."""
        record = run if run is not None else getattr(error, "run", None)
        failure = error if isinstance(error, Exception) else None
        output = None if record is None or failure is not None else record.output
        item: Item[Out] = Item(job.at, job.row, output, failure, record, job.key)
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
        self._outcomes[job.at] = output if failure is None else failure
        self.look()
        return item

    def look(self) -> Progress:
        """How far it is now."""
        progress = self.progress
        if not self.is_over:
            progress.seconds = time.monotonic() - self._began
        left = None if progress.total is None else progress.total - progress.ended
        progress.eta = None if left is None or not progress.ended else progress.seconds / progress.ended * left
        return replace(progress, usage=progress.usage.copy())

    def results(self) -> list[Any]:
        return [self._outcomes[at] for at in sorted(self._outcomes)]


class Batch(Generic[Out]):
    """Runs side by side, in threads or elsewhere; iterate over it, once, for the items as they end."""

    def __init__(self, book: BatchProgress[Out], steps: Generator[Item[Out]]) -> None:
        self._book = book
        # Which do not know the batch, so that a loop that is left ends what is under way.
        self._steps = steps

    def __iter__(self) -> Iterator[Item[Out]]:
        return self._steps

    @property
    def progress(self) -> Progress:
        """How far it is, at this moment."""
        return self._book.look()

    def results(self) -> list[Out | Paused | Exception]:
        """Wait for all, and give what became of each row, in the order of the rows: a failure is its exception."""
        for _ in self._steps:
            pass
        return self._book.results()


class ThreadedBatch(Generic[Out]):
    """The runs of a batch, each in a thread."""

    def __init__(self, book: BatchProgress[Out], begin: StartRow, drive: Callable[[Tree, str], Run]) -> None:
        self._book, self._begin, self._drive = book, begin, drive
        self._news: queue.SimpleQueue[tuple[RowJob, Run | None, BaseException | None]] = queue.SimpleQueue()
        self._trees: dict[int, tuple[Tree, str]] = {}
        self._lock = threading.Lock()
        self._beginning: set[int] = set()
        """Rows whose runs are being made, or claimed."""

    def go(self) -> Generator[Item[Out]]:
        book, progress = self._book, self._book.progress
        has_more = True
        try:
            while True:
                while has_more and progress.running < book.concurrency:
                    job = book.next()
                    if job is None:
                        has_more = False
                    elif job.error is not None:
                        yield book.end(job, None, job.error)
                    else:
                        progress.running += 1
                        self._beginning.add(job.at)
                        start_thread(self._work, job)
                if not progress.running:
                    return
                job, run, error = next_item(self._news)
                progress.running -= 1
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield book.end(job, run, error)
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            book.look()
            book.is_over = True

    def _work(self, job: RowJob) -> None:
        run: Run | None = None
        failure: BaseException | None = None
        try:
            tree, run_id = self._begun(job)
            run = self._drive(tree, run_id)
        except BaseException as error:
            failure = error
        finally:
            with self._lock:
                self._trees.pop(job.at, None)
            self._news.put((job, run, failure))

    def _begun(self, job: RowJob) -> tuple[Tree, str]:
        try:
            tree, run_id = self._begin(job.row, job.at, job.run_id)
            if self._book.is_over:  # it has not begun, or goes on from where it was
                tree.release()
                raise GeneratorExit("the batch has ended")
            with self._lock:
                self._trees[job.at] = tree, run_id
            return tree, run_id
        finally:
            self._beginning.discard(job.at)

    def _stop(self, error: BaseException) -> None:
        """Nobody waits any more: what is under way ends where it is, and can go on from there."""
        self._book.is_over = True
        late = time.monotonic() + _SOON
        while self._beginning and time.monotonic() < late:
            time.sleep(_GLANCE)
        with self._lock:
            trees = list(self._trees.values())
        # What ended the batch, rows that cannot be read, say, is no failure of these runs.
        stopped = GeneratorExit("the batch has ended") if isinstance(error, Exception) else error
        for tree, run_id in trees:
            with suppress(Exception):
                tree.stop(run_id, stopped)
                future = tree.commit()
                if future is not None:
                    result_of(future)


class AsyncBatch(Generic[Out]):
    """The same on the event loop: `async for item in agent.amap(rows)`."""

    def __init__(self, book: BatchProgress[Out], steps: AsyncGenerator[Item[Out]]) -> None:
        self._book = book
        self._steps = steps

    def __aiter__(self) -> AsyncGenerator[Item[Out]]:
        return self._steps

    @property
    def progress(self) -> Progress:
        """How far it is, at this moment."""
        return self._book.look()

    async def results(self) -> list[Out | Paused | Exception]:
        """Wait for all, and give what became of each row, in the order of the rows: a failure is its exception."""
        async for _ in self._steps:
            pass
        return self._book.results()


class TaskBatch(Generic[Out]):
    """The runs of a batch, each in a task."""

    def __init__(self, book: BatchProgress[Out], begin: StartRow, drive: Callable[[Tree, str], Awaitable[Run]]) -> None:
        self._book, self._begin, self._drive = book, begin, drive

    async def go(self) -> AsyncGenerator[Item[Out]]:
        book, progress = self._book, self._book.progress
        news: asyncio.Queue[tuple[RowJob, Run | None, BaseException | None]] = asyncio.Queue()
        tasks: set[asyncio.Task[None]] = set()
        has_more = True
        try:
            while True:
                while has_more and progress.running < book.concurrency:
                    job = book.next()
                    if job is None:
                        has_more = False
                    elif job.error is not None:
                        yield book.end(job, None, job.error)
                    else:
                        progress.running += 1
                        task = asyncio.ensure_future(self._work(job, news))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                if not progress.running:
                    return
                job, run, error = await news.get()
                progress.running -= 1
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield book.end(job, run, error)
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.gather(*tasks, return_exceptions=True)
            book.look()
            book.is_over = True

    async def _work(self, job: RowJob, news: asyncio.Queue[Any]) -> None:
        run: Run | None = None
        failure: BaseException | None = None
        try:
            run = await self._drive(*await build_in_thread(partial(self._begin, job.row, job.at, job.run_id)))
        except BaseException as error:
            failure = error
        news.put_nowait((job, run, failure))


class BatchOptions(NamedTuple):
    """What `map` was given beside the rows."""

    concurrency: Any = None
    id: Any = None
    key: Any = None
    max_cost: Any = None
    retry: Any = False
    queue: Any = False


def batch_progress(rows: Any, owner: str, options: BatchOptions) -> BatchProgress[Any]:
    """Judge what `map` was given, before anything is begun."""
    concurrency, id, key, max_cost, _, queue = options
    if queue and concurrency is not None:
        raise DeclarationError(
            f"`concurrency` of `{owner}.map` is for runs in this process; with `queue=True` the workers say how many "
            f"they drive, as in `acorn work --concurrency 32`."
        )
    concurrency = _CONCURRENCY if concurrency is None else concurrency
    if isinstance(rows, str | bytes | Mapping | BaseModel) or not hasattr(rows, "__iter__"):
        raise DeclarationError(f"`{owner}.map` takes the inputs of many runs, as in a list, got {excerpt(rows)}.")
    is_count = isinstance(concurrency, int) and not isinstance(concurrency, bool) and concurrency >= 1
    is_amount = isinstance(max_cost, int | float) and not isinstance(max_cost, bool) and max_cost > 0
    rules = [
        ("concurrency", concurrency, is_count, "a whole number of at least 1"),
        ("id", id, id is None or (isinstance(id, str) and bool(id.strip())), "a name such as 'nightly-16'"),
        ("key", key, key is None or callable(key), "a function of a row"),
        ("max_cost", max_cost, max_cost is None or is_amount, "dollars above 0"),
    ]
    for name, value, is_right, allowed in rules:
        if not is_right:
            raise DeclarationError(f"`{name}` of `{owner}.map` must be {allowed}, got {excerpt(value)}.")
    return BatchProgress(rows, concurrency, id, key, max_cost)


def arguments_of(row: Any, shape: Shape) -> tuple[tuple[Any, ...], JsonObject]:
    """A row as the arguments of a call: a dict by name, anything else as the one value."""
    if isinstance(row, Mapping) and (not shape.wrapped or list(row) == [RESULT]):
        return (), {str(name): value for name, value in row.items()}
    return (row,), {}


def _run_id(batch: str, what: str) -> str:
    return hashlib.sha256(f"batch {batch}/{what}".encode()).hexdigest()[:32]
