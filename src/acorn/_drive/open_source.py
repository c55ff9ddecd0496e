"""One source of tools, held open: by one task on one event loop, or by nothing where it is all sync.

The task that enters an async source is the task that leaves it, since cancel scopes (anyio's, and so MCP's) demand
that. In an async run it lives on the caller's loop, in a sync run on a private one; what the source lists and is
async runs on the same loop, wherever it is called from. `tool_sources` decides when to open and to close.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from acorn._drive.bridge import call_async, call_sync, is_async
from acorn._drive.home_loop import Home
from acorn._tools.collect import docstring, own_name
from acorn.errors import AcornError


class Held:
    """A source that is open, from `open` or `aopen` until `close` or `aclose`."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self._home: Home | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._escaped: BaseException | None = None
        self._leave: Callable[[], Any] | None = None
        """How to close what no task holds."""
        self._process = os.getpid()

    @property
    def is_usable(self) -> bool:
        """Whether it is open here: not in a process that was forked since, and not if the task that held it died."""
        return self._process == os.getpid() and not (self._task is not None and self._task.done())

    # Opening

    def open(self) -> None:
        if _is_async(self.source):
            self._home = Home.apart()
            if (manager := _manager(self.source)) is not None:
                self._home.wait(functools.partial(self._enter, manager))
            return
        enter, leave = _ways(self.source)
        returned = enter() if enter is not None else None
        if inspect.isawaitable(returned):  # async all the same, though it does not look so
            self._home = Home.apart()
            self._home.wait(functools.partial(self._enter, _opened(lambda: returned, leave)))
        else:
            self._leave = leave

    async def aopen(self) -> None:
        if _is_async(self.source):
            self._home = Home.here()
            if (manager := _manager(self.source)) is not None:
                await self._enter(manager)
            return
        enter, leave = _ways(self.source)
        (returned,) = await call_async(lambda: (enter() if enter is not None else None,))
        if inspect.isawaitable(returned):
            self._home = Home.here()
            await self._enter(_opened(lambda: returned, leave))
        else:
            self._leave = leave

    async def _enter(self, manager: AbstractAsyncContextManager[Any]) -> None:
        """Start the task that holds the source, and wait until it is open."""
        opened = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._hold(manager, opened))
        task.add_done_callback(_seen)
        try:
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if not opened.done():
            await self._ended()
            raise AcornError(f"The source of tools `{type(self.source).__name__}` was broken off while it opened.")

    async def _hold(self, manager: AbstractAsyncContextManager[Any], opened: asyncio.Future[None]) -> None:
        try:
            async with manager:
                opened.set_result(None)
                await self._leaving.wait()
        except (KeyboardInterrupt, SystemExit) as error:  # in a task they would stop the loop; whoever waits gets them
            self._escaped = error

    # Listing

    def list_tools(self) -> Any:
        """What `tools()` gives; its async functions hop to the loop of the source."""
        tools, home = self.source.tools, self._home
        if home is None:
            return call_sync(tools)
        if home.is_here:
            raise AcornError(
                f"`{type(self.source).__name__}` is held open by the event loop that this call would block; "
                f"`await agent.acall(...)` here, or keep it open by `with agent:` instead of `async with`."
            )
        listed = home.wait(tools) if is_async(tools) else tools()
        return self._at_home(home.wait(lambda: listed) if inspect.isawaitable(listed) else listed)

    async def alist_tools(self) -> Any:
        """The same on the event loop."""
        tools, home = self.source.tools, self._home
        if home is None or not is_async(tools):
            return self._at_home(await call_async(tools))
        return self._at_home(await home.hop(tools))

    def _at_home(self, listed: Any) -> Any:
        if self._home is None or not isinstance(listed, list | tuple):
            return listed
        return [_homed(function, self._home) for function in listed]

    # Closing

    def close(self) -> None:
        if self._process != os.getpid():  # a forked child has neither the loop nor what it holds
            return
        if self._home is None or self._task is None:
            call_sync(self._leave or _nothing)
        elif self._task.done():
            self._report()
        elif self._home.is_here:
            self._leaving.set()  # a dropped iterator, say, whose end Python has brought here: nobody can wait
        else:
            self._home.wait(self._exit)

    async def aclose(self) -> None:
        if self._process != os.getpid():
            return
        if self._home is None or self._task is None:
            await call_async(self._leave or _nothing)
        elif self._task.done():
            self._report()
        else:
            await self._home.hop(self._exit)

    async def _exit(self) -> None:
        self._leaving.set()
        await self._ended()

    async def _ended(self) -> None:
        """Wait for the end of the task; cancelling this cancels it, but its own cancellation is not ours."""
        assert self._task is not None
        try:
            await self._task
        except asyncio.CancelledError:
            us = asyncio.current_task()
            if us is not None and us.cancelling():
                raise
        self._report()

    def _report(self) -> None:
        """What went wrong while the source was open or closed."""
        assert self._task is not None
        error = self._escaped or (None if self._task.cancelled() else self._task.exception())
        if error is not None:
            raise error


def _is_async(source: Any) -> bool:
    if _is_manager(source, "a"):
        return True
    return any(way is not None and is_async(way) for way in (*_ways(source), source.tools))


def _is_manager(source: Any, prefix: str) -> bool:
    return all(hasattr(type(source), f"__{prefix}{end}__") for end in ("enter", "exit"))


def _ways(source: Any) -> tuple[Callable[[], Any] | None, Callable[[], Any] | None]:
    """How to open and to close a source.

    A context manager that has `open` and `close` as well is entered and left: that is the whole of what it does
    around a block, of which the two may be only a part.
    """
    if _is_manager(source, ""):
        return source.__enter__, functools.partial(source.__exit__, None, None, None)
    return getattr(source, "open", None), getattr(source, "close", None)


def _manager(source: Any) -> AbstractAsyncContextManager[Any] | None:
    """What the task enters; an async context manager comes before a sync one, which may only say so."""
    if _is_manager(source, "a"):
        return source  # type: ignore[no-any-return]
    enter, leave = _ways(source)
    return None if enter is None and leave is None else _opened(enter, leave)


@asynccontextmanager
async def _opened(enter: Callable[[], Any] | None, leave: Callable[[], Any] | None) -> AsyncGenerator[None]:
    awaits = await _call(enter, here=is_async(enter or _nothing))
    try:
        yield
    finally:
        # Of a pair, both await or none: a thread for one that does would be cut off by a scope that is cancelled.
        await _call(leave, here=awaits or is_async(leave or _nothing))


async def _call(function: Callable[[], Any] | None, *, here: bool) -> bool:
    """Call a function here or in a thread, and await what it gives; whether it gave something to await."""
    if function is None:
        return False
    (returned,) = (function(),) if here else await call_async(lambda: (function(),))
    if inspect.isawaitable(returned):
        await returned
    return inspect.isawaitable(returned)


def _homed(function: Any, home: Home) -> Any:
    """The function as it is if it is sync; else one that looks the same and runs on the loop of its source."""
    if not is_async(function) and not _gives_items(function):
        return function

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await home.hop(functools.partial(_result, function, args, kwargs))

    # A partial or an object has no name to copy, and their words are those of their class.
    call.__name__, call.__doc__ = own_name(function), docstring(function)
    call.__qualname__ = getattr(function, "__qualname__", call.__name__)
    return call


async def _result(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    returned = function(*args, **kwargs)
    return [item async for item in returned] if inspect.isasyncgen(returned) else await returned


def _gives_items(function: Any) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(type(function).__call__)


def _seen(task: asyncio.Task[None]) -> None:
    """Python complains of an error that nobody has looked at, and a source that died may never be closed."""
    if not task.cancelled():
        task.exception()


def _nothing() -> None:
    """Stands where a source has nothing to open or close."""
