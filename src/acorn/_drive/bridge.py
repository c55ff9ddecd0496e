"""The bridge between sync and async code: the only module that starts threads and private event loops for user code.

If a sync run uses an async function, such as an async tool, acorn awaits the function on a private event loop, which
runs permanently in its own thread. If an async run uses a sync function, acorn calls the function in a new thread. In
both cases the function has the context variables of the caller. All exceptions of the function, including
`KeyboardInterrupt`, are raised in the caller.

A caller always waits for an item of a `SimpleQueue`, because Ctrl-C during the wait for an `Event` or a `Future` can
leave the lock inside that object locked. The thread that later sets the `Event` or `Future` would then wait forever.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast

from acorn._base.forks import call_in_child
from acorn._base.interrupts import CancelToken, cancel_token, next_item

P = ParamSpec("P")
T = TypeVar("T")
Outcome = tuple[T | None, BaseException | None]
"""The result and the error of a call. The error is a value here, because futures reject or change some exceptions."""
NOT_AWAITABLE = frozenset((type(None), str, int, float, bool, list, dict))
"""The result types of most calls. These types are never awaitable, so a faster check is possible."""


class LoopBoundCall:
    """A call that must run on a particular event loop.

    Async code awaits the call, and sync code calls its method `wait`.

    A function that returns a `LoopBoundCall` has the attribute `is_loop_bound`, so that acorn treats the function as
    async.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError

    def wait(self) -> Any:
        """Wait in sync code until the call has ended, and return its result."""
        raise NotImplementedError


def is_async(function: Callable[..., object]) -> bool:
    """Return True if calling the function returns an awaitable.

    If `function` is an object with a `__call__` method, that method is checked.
    """
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
    return returned if args and returned is args[0] else await_value(returned)  # A hook may return its argument.


def await_value(value: Any) -> Any:
    """Wait in sync code for an awaitable and return its result, or return any other value unchanged."""
    if type(value) in NOT_AWAITABLE:
        return value
    if isinstance(value, LoopBoundCall):
        return value.wait()
    return wait_for(value) if inspect.isawaitable(value) else value


def wait_for(awaitable: Awaitable[T]) -> T:
    """Await an awaitable on a private event loop, from sync code, and return its result.

    The awaitable is cancelled if Ctrl-C interrupts the wait, or if the `CancelToken` of the caller is cancelled.
    """
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


def run_concurrently(functions: Sequence[Callable[[], T]], concurrency: int | None) -> list[T]:
    """Call the functions in threads, at most `concurrency` at a time, and return their results in the same order.

    If a function raises an exception, raise it immediately. The other functions continue.
    """
    slots = threading.Semaphore(concurrency or max(1, len(functions)))
    events: queue.SimpleQueue[tuple[int, Outcome[T]]] = queue.SimpleQueue()

    def work(index: int, function: Callable[[], T]) -> None:
        with slots:
            events.put((index, _outcome(function)))

    for index, function in enumerate(functions):
        start_thread(work, index, function)
    results: dict[int, T] = {}
    while len(results) < len(functions):
        index, outcome = next_item(events)
        results[index] = unpack(outcome)
    return [results[index] for index in range(len(functions))]


# From async code


async def call_async(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a sync or async function from async code, and return its result.

    A sync function runs in a new thread, so that it does not block the event loop.
    """
    if is_async(function):
        return await function(*args, **kwargs)
    returned: Any = unpack(await asyncio.wrap_future(start_thread(_outcome, function, *args, **kwargs)))
    return await returned if inspect.isawaitable(returned) else returned


# One core for both


class _SyncBridge:
    """The calls that one implementation needs in sync and in async code. The implementation is an async function.

    In sync code, `run_inline` or `iterate_inline` of `driver.py` executes the async function, and these methods block.
    """

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a sync or async function that may block, and return its result."""
        return call_sync(function, *args, **kwargs)

    async def complete(self, value: Any) -> Any:
        """Return the result of an awaitable, or any other value unchanged."""
        return await_value(value)

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)


class _AsyncBridge:
    """The same calls in async code, where the methods wait without blocking the event loop."""

    async def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await call_async(function, *args, **kwargs)

    async def complete(self, value: Any) -> Any:
        is_value = type(value) in NOT_AWAITABLE or not inspect.isawaitable(value)
        return value if is_value else await value

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


Bridge = _SyncBridge | _AsyncBridge
SYNC: Bridge = _SyncBridge()
ASYNC: Bridge = _AsyncBridge()


# Threads


def start_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a new thread with the context variables of the caller, and return a future of its result.

    This function does not use a thread pool, because a pool would limit the number of concurrent calls, and a function
    that hangs would prevent the end of the process.
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
        # Ctrl-C during `start` damages the lock inside the thread object, and Python raises this error.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def _outcome(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
    try:
        return function(*args, **kwargs), None
    except BaseException as error:
        return None, error


def unpack(outcome: Outcome[T]) -> T:
    """Return the result of a call, or raise its error."""
    returned, error = outcome
    if error is not None:
        raise error
    return cast(T, returned)


def _resolve(future: Future[T], returned: T | None, error: BaseException | None) -> None:
    """Set the result or the error of a future, unless the future was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast(T, returned))


class WorkerThread:
    """A thread that executes calls for a driver, one after the other, so that the driver can stop waiting for a call.

    If another process cancels the run, the driver abandons the current call and ignores its result. This would be
    impossible if the driver executed the call in its own thread.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] | None = None
        self._events: queue.SimpleQueue[Outcome[Any] | BaseException] = queue.SimpleQueue()
        self._is_abandoned = False

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the worker thread with the context variables of the caller, and return its result.

        If another thread calls `wake(error)` meanwhile, abandon the call and raise that error.
        """
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            start_thread(_work, self._jobs)
        token, context, events = CancelToken(), contextvars.copy_context(), self._events
        context.run(cancel_token.set, token)
        self._jobs.put(lambda: events.put(context.run(_outcome, function, *args, **kwargs)))
        try:
            outcome = next_item(events)
            if isinstance(outcome, BaseException):
                raise outcome
        except BaseException:
            self._is_abandoned = True
            token.cancel()
            raise
        returned, error = outcome  # Every step uses this code, so it does not call `unpack`.
        if error is not None:
            raise error
        return cast(T, returned)

    def wake(self, error: BaseException) -> None:
        """Make the current `call`, or else the next `call`, raise an error instead of waiting for its result."""
        self._events.put(error)

    def finish(self, function: Callable[[], object]) -> None:
        """Call a cleanup function, but not while an abandoned call is still running.

        After an abandoned call, the worker thread calls the function when that call has returned. Otherwise the
        caller's thread calls it.
        """
        if self._is_abandoned and self._jobs is not None:
            self._jobs.put(function)
        else:
            function()

    def close(self) -> None:
        """Stop the worker thread after it has executed all its calls."""
        if self._jobs is not None:
            self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()


# Private event loops

# An async tool that makes a blocking call of a module blocks its event loop. That module, and the threads of its tools,
# must await on the next loop, so code on a loop only waits for deeper loops. A thread that a tool has started itself
# does not have the depth. It tries the next loop when a loop does not respond.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("acorn_loop_depth", default=0)
_SECONDS_TO_RESPOND = 2.0
_guard = threading.Lock()
_loops: dict[int | str, asyncio.AbstractEventLoop] = {}


def start_on_loop(awaitable: Awaitable[T], future: Future[T]) -> None:
    """Await an awaitable on a private event loop, and set its result in `future`.

    The awaitable has the context variables of the caller. Cancelling the future cancels the awaitable.
    """
    is_taken = threading.Lock()

    async def work(depth: int) -> None:
        _depth.set(depth + 1)
        # Catch all exceptions, because a KeyboardInterrupt would end the thread of the loop.
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


def schedule_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Call a function on an event loop from another thread, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def private_loop(key: int | str) -> asyncio.AbstractEventLoop:
    """Return the private event loop that belongs to a number or name.

    The first call with a `key` starts the loop in a new thread. Later calls with this `key` return the same loop.
    """
    with _guard:
        if key not in _loops:
            loop = asyncio.new_event_loop()
            _start(threading.Thread(target=_run_loop, args=(loop,), name="acorn-loop", daemon=True))
            _loops[key] = loop  # The loop runs now, even if Ctrl-C was pressed while the thread started.
        return _loops[key]


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _reset_after_fork() -> None:
    """Remove all private event loops in a forked child process, because their threads exist only in the parent."""
    global _guard
    _guard = threading.Lock()
    _loops.clear()


call_in_child(_reset_after_fork)
