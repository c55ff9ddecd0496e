"""Where sync meets async: the only place that starts threads and private event loops.

An async function in a sync run is awaited on one long-lived loop in a thread of its own; a sync function in
an async run gets a worker thread. Both see the caller's context variables. What a function raises, be it
`KeyboardInterrupt`, comes out on the caller's side.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await; a callable object is judged by its `__call__`."""
    inner: Any = function
    while hasattr(inner, "func") and hasattr(inner, "keywords"):  # functools.partial
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def call_sync(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call any function from sync code and wait for it."""
    returned = function(*args, **kwargs)
    return wait_for(returned) if inspect.isawaitable(returned) else returned


async def call_async(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call any function from async code; a sync one runs in a worker thread."""
    if is_async(function):
        return await function(*args, **kwargs)
    future: Future[Any] = Future()
    start_thread(future, _outcome, function, *args, **kwargs)
    returned, error = await asyncio.wrap_future(future)
    if error is not None:
        raise error
    return await returned if inspect.isawaitable(returned) else returned


def _outcome(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> tuple[Any, BaseException | None]:
    """What came of a call, as a value: asyncio's futures refuse a StopIteration and mistake other exceptions."""
    try:
        return function(*args, **kwargs), None
    except BaseException as error:
        return None, error


def start_thread(future: Future[Any], function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Begin a call in a thread of its own, with a copy of the caller's context.

    A thread of its own, because a pool bounds how many calls can be under way, and its threads would keep
    the process from ending while a function hangs.
    """
    context = contextvars.copy_context()

    def work() -> None:
        returned, error = context.run(_outcome, function, *args, **kwargs)
        if not future.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(returned)

    threading.Thread(target=work, name="acorn-call", daemon=True).start()


def wait_for(awaitable: Any) -> Any:
    """Await something from sync code, on the private loop; who is interrupted cancels it."""
    future: Future[Any] = Future()
    try:
        start_on_loop(awaitable, future)
        return future.result()
    finally:
        future.cancel()


def start_on_loop(awaitable: Any, future: Future[Any]) -> None:
    """Begin awaiting something on the private loop, with the caller's context; cancelling the future cancels it."""
    depth = _depth.get()
    loop = _private_loop(depth)

    async def work() -> None:
        _depth.set(depth + 1)
        # An exception such as KeyboardInterrupt would take the loop's thread with it.
        try:
            returned = await awaitable
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(returned)

    def begin() -> None:
        task = loop.create_task(work())
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(task.cancel))

    loop.call_soon_threadsafe(begin, context=contextvars.copy_context())


# An async tool that calls a module in the sync way blocks the loop it runs on. What that module awaits, here
# or in the threads of its own tools, needs the next one: code on a loop only ever waits for deeper loops.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("acorn_loop_depth", default=0)
_guard = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def _private_loop(depth: int) -> asyncio.AbstractEventLoop:
    """The loop to await on, started when it is first needed."""
    with _guard:
        if depth not in _loops:
            loop = _loops[depth] = asyncio.new_event_loop()
            threading.Thread(target=_turn, args=(loop,), name="acorn-loop", daemon=True).start()
        return _loops[depth]


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _begin_anew() -> None:
    """A forked child has the loops, but not their threads."""
    global _guard
    _guard = threading.Lock()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
