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


def call_sync(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call any function from sync code and wait for it."""
    returned = function(*args, **kwargs)
    return wait_for(returned) if hasattr(returned, "__await__") else returned


async def call_async(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call any function from async code; a sync one runs in a worker thread."""
    if is_async(function):
        return await function(*args, **kwargs)
    returned = await asyncio.wrap_future(start_thread(function, *args, **kwargs))
    return await returned if hasattr(returned, "__await__") else returned


def start_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Begin a call in a thread of its own, with a copy of the caller's context.

    A thread of its own, because a pool bounds how many calls can be under way, and its threads would keep
    the process from ending while a function hangs.
    """
    future: Future[Any] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            returned = context.run(function, *args, **kwargs)
        except BaseException as error:
            _settle(future, error=error)
        else:
            _settle(future, returned)

    threading.Thread(target=work, name="acorn-call", daemon=True).start()
    return future


def _settle(future: Future[Any], returned: Any = None, error: BaseException | None = None) -> None:
    """Give the outcome to whoever still waits for it."""
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(returned)


def wait_for(awaitable: Any, timeout: float | None = None) -> Any:
    """Await something from sync code, on the private loop."""
    return start_on_loop(awaitable).result(timeout)


def start_on_loop(awaitable: Any) -> Future[Any]:
    """Begin awaiting something on the private loop, with the caller's context."""
    loop = _private_loop()
    future: Future[Any] = Future()

    async def work() -> None:
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
    return future


class _PrivateLoop:
    """An event loop that runs in its own thread, for this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._work, name="acorn-loop", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_guard = threading.Lock()
_loops: list[_PrivateLoop] = []


def _private_loop() -> asyncio.AbstractEventLoop:
    """The loop to await on: the outermost that the calling thread is not itself running.

    An async tool that calls a module in the sync way blocks the loop it runs on; what that module awaits
    needs another.
    """
    here = threading.current_thread()
    with _guard:
        if _loops and _loops[0].pid != os.getpid():  # a forked child has the loops but not their threads
            _loops.clear()
        blocked = next((at for at, known in enumerate(_loops) if known.thread is here), -1)
        if blocked + 1 == len(_loops):
            _loops.append(_PrivateLoop())
        return _loops[blocked + 1].loop
