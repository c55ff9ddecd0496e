"""Iteration of blocking code in a thread, for readers on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def iterate_in_thread(create: Callable[[], Iterator[T]], name: str) -> AsyncIterator[T]:
    """Create an iterator in a new thread, and yield its items. `name` is the name of the thread.

    The thread is a daemon, so it does not keep the process alive. It is not a thread of a pool, which would limit
    concurrent iterations.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    items: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()

    def work() -> None:
        end: BaseException | None = None
        with suppress(RuntimeError):  # The event loop is closed, so no task waits for the items.
            try:
                for item in create():
                    loop.call_soon_threadsafe(items.put_nowait, (item,))
            except BaseException as error:
                end = error
            loop.call_soon_threadsafe(items.put_nowait, end)

    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    while isinstance(received := await items.get(), tuple):
        yield received[0]
    if received is not None:
        raise received
