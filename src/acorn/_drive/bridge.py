"""The bridge between sync and async code: the only place that starts threads and private event loops for user code.

A sync run awaits an async function on a long-lived private loop in its own thread. An async run calls a sync function
in a new thread. Both see the context variables of the caller. Whatever a function raises, `KeyboardInterrupt` included,
is raised in the caller.

A caller waits at a `SimpleQueue` and nowhere else. Ctrl-C during the wait for an `Event` or a `Future` can leave its
lock taken, and then the thread that should set it waits forever.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from acorn._base.interrupts import CancelToken, cancel_token, next_item

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")
NOT_AWAITABLE = frozenset((type(None), str, int, float, bool, list, dict))
"""The types that most calls return. They need no check for an awaitable."""


class LoopBoundCall:
    """A call that must run on a particular event loop, and that sync code can wait for.

    A function that returns one has the attribute `is_loop_bound`, and counts as async.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError

    def wait(self) -> Any:
        """Wait for the result in sync code."""
        raise NotImplementedError


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a call of the function returns an awaitable. A callable object is judged by its `__call__`."""
    inner: Any = function
    while hasattr(inner, "func") and hasattr(inner, "keywords"):  # A `functools.partial`.
        inner = inner.func
    return (
        inspect.iscoroutinefunction(inner)
        or inspect.iscoroutinefunction(type(inner).__call__)
        or hasattr(inner, "is_loop_bound")
    )


# From sync code


def call_sync(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a sync or async function from sync code, and return its result."""
    returned = function(*args, **kwargs)
    if type(returned) in NOT_AWAITABLE or (args and returned is args[0]):  # A hook that returns its argument.
        return returned
    return await_value(returned)


def await_value(value: Any) -> Any:
    """Return the result of an awaitable from sync code. Return any other value unchanged."""
    if isinstance(value, LoopBoundCall):
        return value.wait()
    return wait_for(value) if inspect.isawaitable(value) else value


def wait_for(awaitable: Awaitable[T]) -> T:
    """Await something on a private loop, from sync code. An interrupt, or a cancelled token, cancels it."""
    future: Future[T] = Future()
    done: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
    future.add_done_callback(done.put)
    token = cancel_token.get()
    if token is not None:
        token.on_cancel(future.cancel)
    try:
        start_on_loop(awaitable, future)
        return next_item(done).result()
    finally:
        if token is not None:
            token.on_cancel(None)
        future.cancel()


def result_of(future: Future[T]) -> T:
    """Wait for the result of a future. A subclass, such as the future of a store, waits in its own way."""
    if future.done() or type(future) is not Future:
        return future.result()
    done: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
    future.add_done_callback(done.put)
    return next_item(done).result()


def run_concurrently(functions: Sequence[Callable[[], T]], concurrency: int | None) -> list[T]:
    """Call the functions in threads, at most `concurrency` at a time, and return their results in order."""
    slots = threading.Semaphore(concurrency or max(1, len(functions)))
    events: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()

    def work(index: int, function: Callable[[], T]) -> None:
        with slots:
            events.put((index, *_outcome(function)))

    for index, function in enumerate(functions):
        start_thread(work, index, function)
    outcomes: dict[int, tuple[T | None, BaseException | None]] = {}
    while len(outcomes) < len(functions):
        index, returned, error = next_item(events)
        if error is not None and not isinstance(error, Exception):
            raise error
        outcomes[index] = (returned, error)
    in_order = [outcomes[index] for index in range(len(functions))]
    for _, error in in_order:
        if error is not None:
            raise error
    return [cast(T, returned) for returned, _ in in_order]


# From async code


async def call_async(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a sync or async function from async code. A sync function runs in a new thread."""
    if is_async(function):
        return await function(*args, **kwargs)
    # The outcome is a value, because an asyncio future rejects a StopIteration and handles some exceptions itself.
    returned, error = await asyncio.wrap_future(start_thread(_outcome, function, *args, **kwargs))
    if error is not None:
        raise error
    return await returned if inspect.isawaitable(returned) else returned


# Threads


def start_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a new thread, with a copy of the caller's context.

    A pool would limit the number of concurrent calls, and its threads would keep the process from ending while a
    function hangs.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        _resolve(future, *context.run(_outcome, function, *args, **kwargs))

    _start(threading.Thread(target=work, name="acorn-call", daemon=True))
    return future


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        # Ctrl-C during `start` damages the lock that it waits at, and appears as this error.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def _outcome(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, BaseException | None]:
    try:
        return function(*args, **kwargs), None
    except BaseException as error:
        return None, error


def _resolve(future: Future[T], returned: T | None, error: BaseException | None) -> None:
    """Set the outcome of a future that was not cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast(T, returned))


class _ThreadJob(NamedTuple):
    context: contextvars.Context
    function: Callable[..., object]
    arguments: tuple[object, ...] = ()


class _ThreadResult(NamedTuple):
    value: Any
    error: BaseException | None


class WorkerThread:
    """A thread that makes calls, one after the other, for a driver that can stop waiting.

    A run that another process may cancel needs it: a call in the driver's own thread cannot be abandoned. The result
    of an abandoned call is ignored.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_ThreadJob | None] | None = None
        self._events: queue.SimpleQueue[_ThreadResult | BaseException] = queue.SimpleQueue()
        self._is_abandoned = False

    def call(self, function: Callable[[A], T], argument: A) -> T:
        """Call a function in the thread and wait for its result, or raise the error of `wake`."""
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            start_thread(_work, self._jobs, self._events)
        token, context = CancelToken(), contextvars.copy_context()
        context.run(cancel_token.set, token)
        self._jobs.put(_ThreadJob(context, function, (argument,)))
        try:
            result = next_item(self._events)
            if isinstance(result, BaseException):
                raise result
        except BaseException:
            self._is_abandoned = True
            token.cancel()
            raise
        if result.error is not None:
            raise result.error
        return cast(T, result.value)

    def wake(self, error: BaseException) -> None:
        """End the current wait, or the next one, with an error."""
        self._events.put(error)

    def finish(self, function: Callable[[], object]) -> None:
        """Call a function now, or after an abandoned call has returned."""
        if self._is_abandoned and self._jobs is not None:
            self._jobs.put(_ThreadJob(contextvars.copy_context(), function))
        else:
            function()

    def close(self) -> None:
        """End the thread after its last job."""
        if self._jobs is not None:
            self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[_ThreadJob | None], events: queue.SimpleQueue[_ThreadResult | BaseException]) -> None:
    while (job := jobs.get()) is not None:
        events.put(_ThreadResult(*job.context.run(_outcome, job.function, *job.arguments)))


# Private event loops

# An async tool that calls a module in the sync way blocks the loop that it runs on. Whatever that module awaits, here
# or in the threads of its tools, needs the next loop: code on a loop only ever waits for deeper loops. A thread
# that a tool has started by itself does not know its depth. It notices that the loop does not respond.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("acorn_loop_depth", default=0)
_SECONDS_TO_RESPOND = 2.0
_guard = threading.Lock()
_loops: dict[int | str, asyncio.AbstractEventLoop] = {}


def start_on_loop(awaitable: Awaitable[T], future: Future[T]) -> None:
    """Await something on a private loop, with the caller's context. Cancelling the future cancels it."""
    is_taken = threading.Lock()

    async def work(depth: int) -> None:
        _depth.set(depth + 1)
        # An exception such as KeyboardInterrupt would end the thread of the loop.
        try:
            returned = await awaitable
        except BaseException as error:
            _resolve(future, None, error)
        else:
            _resolve(future, returned, None)

    def begin(loop: asyncio.AbstractEventLoop, depth: int, started: queue.SimpleQueue[None]) -> None:
        if is_taken.acquire(blocking=False):
            task = loop.create_task(work(depth))
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(task.cancel))
        started.put(None)

    for depth in itertools.count(_depth.get()):
        loop, started = private_loop(depth), queue.SimpleQueue[None]()
        loop.call_soon_threadsafe(begin, loop, depth, started, context=contextvars.copy_context())
        with suppress(queue.Empty):
            next_item(started, _SECONDS_TO_RESPOND)
            return


def private_loop(key: int | str) -> asyncio.AbstractEventLoop:
    """Return a private loop, which runs in its own thread. The first call with a key starts it."""
    with _guard:
        if key not in _loops:
            loop = asyncio.new_event_loop()
            _start(threading.Thread(target=_run_loop, args=(loop,), name="acorn-loop", daemon=True))
            _loops[key] = loop  # The loop runs now, even if Ctrl-C came while the thread started.
        return _loops[key]


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _reset_after_fork() -> None:
    """Forget the loops in a forked child, which does not have their threads."""
    global _guard
    _guard = threading.Lock()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
