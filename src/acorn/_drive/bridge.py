"""Where sync meets async: the only place that starts threads and private event loops.

An async function in a sync run is awaited on one long-lived loop in a thread of its own; a sync function in
an async run gets a worker thread. Both see the caller's context variables. What a function raises, be it
`KeyboardInterrupt`, comes out on the caller's side.

The caller waits at a `SimpleQueue` and nowhere else: Ctrl-C in the midst of an `Event` or a `Future` can leave
their lock taken, and whoever should set them waits for ever.

A thread that does one thing after the other for a walk, which can stop waiting for it.

For runs that somebody may want cancelled: what is done in the walk's own thread nobody can take it away from. What it
does when the wait ends is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from acorn._base.interrupts import Ending, ending, next_of

T = TypeVar("T")
PLAIN = frozenset((type(None), str, int, float, bool, list, dict))
"""What most calls return, and nobody awaits."""


class LoopBoundCall:
    """Something that is awaited on an event loop of its own, and can be waited for without one of the caller's.

    A function that gives one says so by an attribute `gives_elsewhere`, and counts as async.
    """

    __slots__ = ()

    def __await__(self) -> Any:
        raise NotImplementedError

    def wait(self) -> Any:
        """What it comes to, from sync code."""
        raise NotImplementedError


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await; a callable object is judged by its `__call__`."""
    inner: Any = function
    while hasattr(inner, "func") and hasattr(inner, "keywords"):  # functools.partial
        inner = inner.func
    return (
        inspect.iscoroutinefunction(inner)
        or inspect.iscoroutinefunction(type(inner).__call__)
        or hasattr(inner, "gives_elsewhere")
    )


def call_sync(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call any function from sync code and wait for it."""
    returned = function(*args, **kwargs)
    if type(returned) in PLAIN or (args and returned is args[0]):  # a hook that gives back what it was given
        return returned
    return awaited(returned)


def awaited(value: Any) -> Any:
    """What an awaitable comes to, from sync code; anything else as it is."""
    if isinstance(value, LoopBoundCall):
        return value.wait()
    return wait_for(value) if inspect.isawaitable(value) else value


async def call_async(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call any function from async code; a sync one runs in a worker thread."""
    if is_async(function):
        return await function(*args, **kwargs)
    # As a value: asyncio's futures refuse a StopIteration, and take other exceptions for their own.
    returned, error = await asyncio.wrap_future(start_thread(_outcome, function, *args, **kwargs))
    if error is not None:
        raise error
    return await returned if inspect.isawaitable(returned) else returned


def start_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    """Begin a call in a thread of its own, with a copy of the caller's context.

    A thread of its own, because a pool bounds how many calls can be under way, and its threads would keep
    the process from ending while a function hangs.
    """
    future: Future[Any] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        _give(future, *context.run(_outcome, function, *args, **kwargs))

    _start(threading.Thread(target=work, name="acorn-call", daemon=True))
    return future


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        # Ctrl-C in the midst of it comes out as what it did to the lock that `start` waits at.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def result_of(future: Future[T]) -> T:
    """What a future comes to. One of a store's own knows better how it is waited for."""
    if future.done() or type(future) is not Future:
        return future.result()
    done: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
    future.add_done_callback(done.put)
    return next_of(done).result()


def run_concurrently(acts: Sequence[Callable[[], Any]], concurrency: int | None) -> list[Any]:
    """Do several things in threads, at most so many at a time; what they return, in order."""
    room = threading.Semaphore(concurrency or max(1, len(acts)))
    news: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def work(at: int, act: Callable[[], Any]) -> None:
        with room:
            news.put((at, *_outcome(act)))

    for at, act in enumerate(acts):
        start_thread(work, at, act)
    came: dict[int, tuple[Any, BaseException | None]] = {}
    while len(came) < len(acts):
        at, returned, error = next_of(news)
        if error is not None and not isinstance(error, Exception):
            raise error
        came[at] = (returned, error)
    ended = [came[at] for at in range(len(acts))]
    for _, error in ended:
        if error is not None:
            raise error
    return [returned for returned, _ in ended]


def _outcome(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, BaseException | None]:
    try:
        return function(*args, **kwargs), None
    except BaseException as error:
        return None, error


def _give(future: Future[Any], returned: Any, error: BaseException | None) -> None:
    """Give the outcome to whoever still waits for it."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(returned)


def wait_for(awaitable: Any) -> Any:
    """Await something from sync code, on a private loop; who is interrupted, or left behind, cancels it."""
    future: Future[Any] = Future()
    done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    future.add_done_callback(done.put)
    end = ending.get()
    if end is not None:
        end.watch(future.cancel)
    try:
        start_on_loop(awaitable, future)
        return next_of(done).result()
    finally:
        if end is not None:
            end.watch(None)
        future.cancel()


def start_on_loop(awaitable: Any, future: Future[Any]) -> None:
    """Begin awaiting something on a private loop, with the caller's context; cancelling the future cancels it."""
    to_begin = threading.Lock()

    async def work(depth: int) -> None:
        _depth.set(depth + 1)
        # An exception such as KeyboardInterrupt would take the loop's thread with it.
        try:
            returned = await awaitable
        except BaseException as error:
            _give(future, None, error)
        else:
            _give(future, returned, None)

    def begin(loop: asyncio.AbstractEventLoop, depth: int, begun: queue.SimpleQueue[None]) -> None:
        if to_begin.acquire(blocking=False):
            task = loop.create_task(work(depth))
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(task.cancel))
        begun.put(None)

    for depth in itertools.count(_depth.get()):
        loop, begun = _private_loop(depth), queue.SimpleQueue[None]()
        loop.call_soon_threadsafe(begin, loop, depth, begun, context=contextvars.copy_context())
        with suppress(queue.Empty):
            next_of(begun, _PATIENCE)
            return


# An async tool that calls a module in the sync way blocks the loop it runs on. What that module awaits, here
# or in the threads of its own tools, needs the next one: code on a loop only ever waits for deeper loops. A
# thread that a tool has started by itself and waits for does not know where it is, but finds the loop silent.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("acorn_loop_depth", default=0)
_PATIENCE = 2.0
_guard = threading.Lock()
_loops: dict[int | str, asyncio.AbstractEventLoop] = {}


def _private_loop(depth: int | str) -> asyncio.AbstractEventLoop:
    """The loop to await on, started when it is first needed."""
    with _guard:
        if depth not in _loops:
            loop = asyncio.new_event_loop()
            _start(threading.Thread(target=_turn, args=(loop,), name="acorn-loop", daemon=True))
            _loops[depth] = loop  # it turns, whatever happened while it was started
        return _loops[depth]


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _reset_after_fork() -> None:
    """A forked child has the loops, but not their threads."""
    global _guard
    _guard = threading.Lock()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


A = TypeVar("A")


class WokenError(BaseException):
    """The wait was ended from outside."""


class _ThreadJob(NamedTuple):
    context: contextvars.Context
    act: Callable[..., Any]
    given: tuple[Any, ...] = ()


class _ThreadResult(NamedTuple):
    value: Any
    error: BaseException | None


class WorkerThread:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_ThreadJob | None] | None = None
        self._news: queue.SimpleQueue[_ThreadResult | None] = queue.SimpleQueue()
        self._is_left = False

    def call(self, act: Callable[[A], T], given: A) -> T:
        """What it comes to; `WokenError` where nobody is to wait for it."""
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            start_thread(_work, self._jobs, self._news)
        end, context = Ending(), contextvars.copy_context()
        context.run(ending.set, end)
        self._jobs.put(_ThreadJob(context, act, (given,)))
        try:
            done = next_of(self._news)
            if done is None:
                raise WokenError
        except BaseException:
            self._is_left = True
            end.end()
            raise
        if done.error is not None:
            raise done.error
        return done.value  # type: ignore[no-any-return]

    def wake(self) -> None:
        """End the wait, or the next one."""
        self._news.put(None)

    def finish(self, act: Callable[[], object]) -> None:
        """Do it now; or where something was left behind, when that has returned."""
        if self._is_left and self._jobs is not None:
            self._jobs.put(_ThreadJob(contextvars.copy_context(), act))
        else:
            act()

    def close(self) -> None:
        if self._jobs is not None:
            self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[_ThreadJob | None], news: queue.SimpleQueue[_ThreadResult | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            value = job.context.run(job.act, *job.given)
        except BaseException as error:
            news.put(_ThreadResult(None, error))
        else:
            news.put(_ThreadResult(value, None))
