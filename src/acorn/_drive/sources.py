"""Open tool sources: those of one run, and those that `with agent:` opens for several runs.

A tool source is an object whose method `tools()` lists tools, such as an MCP server. For each run, a driver creates an
`OpenSources` object, which opens the agent's tool sources and closes them at the end of the run. If `with agent:` has
already opened the tool sources, the runs inside the block only list the tools.

The same task must enter and exit an async tool source, because the cancel scopes of anyio, which MCP uses, require
this. The task and the async functions of the tool source run on the same event loop. This is the caller's loop in an
async run, and a private loop in a sync run. A sync tool source needs no task.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from acorn._declare.module_base import AgentBase, set_private
from acorn._declare.spec_cache import active_overrides, spec_within
from acorn._declare.tools.collect import callable_docstring, callable_name
from acorn._drive.bridge import ASYNC, SYNC, Bridge, call_async, is_async, start_thread
from acorn._drive.owner_loop import OwnerLoop
from acorn.errors import AcornError
from acorn.types import is_list_or_tuple

Method = Callable[[], Any]
"""A method of a tool source. Its result may be an awaitable."""


class AnySource(Protocol):
    """A tool source: an object whose method `tools`, which may be sync or async, lists tools."""

    @property
    def tools(self) -> Method: ...


OnCloseError = Callable[[BaseException], object]
"""A callback that receives each error while sources are closed, and may raise the error."""


class OpenSource:
    """A tool source that was opened with `open` and must be closed with `close`."""

    def __init__(self, source: AnySource) -> None:
        self.source = source
        self._owner: OwnerLoop | None = None
        """The event loop of an async source, or None for a sync source."""
        self._task: asyncio.Task[None] | None = None
        """The task that has entered an async source, and exits it when `_should_close` is set."""
        self._should_close = asyncio.Event()
        self._interrupt: BaseException | None = None
        self._leave: Method = _do_nothing
        """The method that closes a source that no task has entered."""
        self._process = os.getpid()

    @property
    def is_usable(self) -> bool:
        """Whether this process opened the tool source, and its task, if it has one, is still running.

        After a fork, a child process cannot use a tool source that its parent process opened.
        """
        return self._process == os.getpid() and not (self._task is not None and self._task.done())

    # Opening

    async def open(self, bridge: Bridge) -> None:
        source: Any = self.source
        enter, leave = _open_and_close(source)
        has_async_manager = _is_manager(source, "a")
        if not has_async_manager and not any(map(is_async, (enter, leave, source.tools))):
            await bridge.call(enter)
            self._leave = leave
            return
        self._owner = OwnerLoop.for_sources() if bridge is SYNC else OwnerLoop.here()
        if has_async_manager:  # If the source also has sync context methods, they may only raise an error.
            await self._owner.perform(functools.partial(self._enter, source), bridge)
        elif not enter is leave is _do_nothing:
            await self._owner.perform(functools.partial(self._enter, _manager(enter, leave)), bridge)

    async def _enter(self, manager: AbstractAsyncContextManager[Any]) -> None:
        """Start the task that opens the tool source and later closes it, and wait until the source is open."""
        opened = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._stay_open(manager, opened))
        # asyncio logs an exception that no code retrieves, and a source whose task failed may never be closed.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if not opened.done():
            await self._wait_for_task()
            name = type(self.source).__name__
            raise AcornError(f"The tool source `{name}` was cancelled while it opened. Check the method that opens it.")

    async def _stay_open(self, manager: AbstractAsyncContextManager[Any], opened: asyncio.Future[None]) -> None:
        try:
            async with manager:
                opened.set_result(None)
                await self._should_close.wait()
        except (KeyboardInterrupt, SystemExit) as error:  # These would stop the loop. The caller raises them.
            self._interrupt = error

    # Listing

    async def list_tools(self, bridge: Bridge) -> Any:
        """Return the list of tools from the tool source's method `tools()`.

        The async tools in the list run on the event loop of the tool source.
        """
        tools, owner = self.source.tools, self._owner
        if owner is None:
            return await bridge.call(tools)
        if bridge is SYNC and owner.is_here:
            raise AcornError(
                f"This call would block the event loop that the tool source `{type(self.source).__name__}` needs. Use "
                f"`await agent.acall(...)` here, or open the source with `with agent:` instead of `async with agent:`."
            )
        listed = await owner.perform(functools.partial(call_async, tools), bridge)
        return [_on_loop(function, owner) for function in listed] if is_list_or_tuple(listed) else listed

    # Closing

    async def close(self, bridge: Bridge) -> None:
        if self._process != os.getpid():  # In a forked child, the loop and the task do not exist.
            return
        if self._owner is None or self._task is None:
            await bridge.call(self._leave)
        elif self._task.done():
            self._raise_error()
        elif bridge is SYNC and self._owner.is_here:
            self._should_close.set()  # The garbage collector closes an iterator on the loop, where nothing may block.
        else:
            await self._owner.perform(self._exit, bridge)

    async def _exit(self) -> None:
        self._should_close.set()
        await self._wait_for_task()

    async def _wait_for_task(self) -> None:
        """Wait until the task of the tool source has ended, and cancel that task if the wait is cancelled."""
        assert self._task is not None
        try:
            await self._task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
        self._raise_error()

    def _raise_error(self) -> None:
        """Raise the exception of the tool source's task, if the task failed."""
        assert self._task is not None
        error = self._interrupt or (None if self._task.cancelled() else self._task.exception())
        if error is not None:
            raise error


def _is_manager(source: object, prefix: str) -> bool:
    return all(hasattr(type(source), f"__{prefix}{end}__") for end in ("enter", "exit"))


def _open_and_close(source: Any) -> tuple[Method, Method]:
    """Return two functions: the first opens a tool source, and the second closes it.

    They are the methods `__enter__` and `__exit__`, or else `open` and `close`, or functions that do nothing.
    """
    if _is_manager(source, ""):  # If the source also has `open` and `close`, they may do only part of the work.
        return source.__enter__, functools.partial(source.__exit__, None, None, None)
    return getattr(source, "open", None) or _do_nothing, getattr(source, "close", None) or _do_nothing


@asynccontextmanager
async def _manager(enter: Method, leave: Method) -> AsyncGenerator[None]:
    await call_async(enter)
    try:
        yield
    finally:  # Do not use a thread, because a cancelled scope of the source would interrupt the wait for it.
        await ASYNC.complete(leave())


def _on_loop(function: Any, owner: OwnerLoop) -> Any:
    """Return a function that runs an async tool on the event loop of its tool source.

    Return a sync tool unchanged.
    """
    yields_items = inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(type(function).__call__)
    if not is_async(function) and not yields_items:
        return function

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        async def work() -> Any:
            returned = function(*args, **kwargs)
            return [item async for item in returned] if inspect.isasyncgen(returned) else await returned

        return await owner.run(work)

    # For a partial or a callable object, `wraps` sets no name, and it copies the docstring of the class.
    call.__name__, call.__doc__ = callable_name(function), callable_docstring(function)
    call.__qualname__ = getattr(function, "__qualname__", call.__name__)
    return call


def _do_nothing() -> None:
    """Do nothing: the `open` or `close` method of a tool source that has none."""


class OpenSources:
    """The tool sources that one run or the `with agent:` blocks of one agent have opened.

    They are closed in reverse order.
    """

    def __init__(self, outer: OpenSources | None = None) -> None:
        self._outer = outer
        """Sources that are not opened again: those of the run's agent, or of the agent that `using` copied."""
        self._open: list[OpenSource] = []
        self.depth = 0
        """The number of nested `with` blocks of the agent."""
        self.lock = threading.Lock()
        """A lock for entering and leaving these blocks."""

    def for_copy(self) -> OpenSources:
        """Return a new collection for a copy of the agent that `agent.using(...)` creates.

        The copy also uses the tool sources that the original agent has opened.
        """
        return OpenSources(self)

    async def open(self, source: AnySource, bridge: Bridge) -> Any:
        """Open a tool source, unless it is already open, and return the list from its method `tools()`."""
        return await (self.find(source) or await self.add(source, bridge)).list_tools(bridge)

    async def add(self, source: AnySource, bridge: Bridge) -> OpenSource:
        """Open a tool source, add it to this collection and return it."""
        opened = OpenSource(source)
        await opened.open(bridge)
        self._open.append(opened)
        return opened

    def find(self, source: AnySource) -> OpenSource | None:
        """Return the `OpenSource` for a tool source, or None if the source is not open."""
        for opened in self._open:
            if opened.source is source and opened.is_usable:
                return opened
        return None if self._outer is None else self._outer.find(source)

    async def close(self, bridge: Bridge, on_error: OnCloseError) -> None:
        """Close all tool sources in reverse order, and pass each error to `on_error`."""
        opened, self._open = self._open, []
        async with AsyncExitStack() as stack:
            for source in opened:
                stack.push_async_callback(_close, source, bridge, on_error)


async def _close(opened: OpenSource, bridge: Bridge, on_error: OnCloseError) -> None:
    try:
        await opened.close(bridge)
    except BaseException as error:
        on_error(error)


def raise_first(first: BaseException | None) -> OnCloseError:
    """Return a callback that raises the first error, and adds notes about later errors to it.

    `first` is an exception that is already being handled, or None.
    """

    def on_error(error: BaseException) -> None:
        nonlocal first
        if first is None:
            first = error
        elif isinstance(error, Exception):
            first.add_note(f"A tool source could not be closed either: {error!r}")
            return
        raise error

    return on_error


# The sources of an agent


_create_lock = threading.Lock()


def sources_of(agent: AgentBase | None) -> OpenSources | None:
    """Return the tool sources that an agent has opened with `with agent:`, or None if it never did."""
    sources = None if agent is None else agent.__acorn_open_sources__
    return sources if isinstance(sources, OpenSources) else None


def _get_or_create_sources(agent: AgentBase) -> OpenSources:
    with _create_lock:
        sources = sources_of(agent) or OpenSources()
        set_private(agent, "__acorn_open_sources__", sources)
    return sources


async def open_sources(agent: AgentBase, bridge: Bridge) -> None:
    """Enter `with agent:`, and open the agent's tool sources if this is the outermost block."""
    sources = _get_or_create_sources(agent)
    await _acquire(sources.lock, bridge)
    try:
        if not sources.depth:
            for source in spec_within(active_overrides.get(), agent).sources:
                if sources.find(source) is None:
                    await sources.add(source, bridge)
        sources.depth += 1
    except BaseException as error:
        await sources.close(bridge, raise_first(error))
        raise
    finally:
        sources.lock.release()


async def close_sources(agent: AgentBase, bridge: Bridge, error: BaseException | None) -> None:
    """Exit `with agent:`, and close the agent's tool sources if this is the outermost block.

    `error` is the exception that ended the block, or None.
    """
    sources = _get_or_create_sources(agent)
    await _acquire(sources.lock, bridge)
    try:
        sources.depth -= 1
        if not sources.depth:
            await sources.close(bridge, raise_first(error))
    finally:
        sources.lock.release()


async def _acquire(lock: threading.Lock, bridge: Bridge) -> None:
    """Acquire a lock that other threads may have acquired, without blocking an event loop."""
    if lock.acquire(blocking=bridge is SYNC):
        return
    acquired = start_thread(lock.acquire)
    try:
        await asyncio.shield(asyncio.wrap_future(acquired))
    except asyncio.CancelledError:
        acquired.add_done_callback(lambda _: lock.release())
        raise
