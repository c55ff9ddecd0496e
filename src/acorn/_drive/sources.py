"""One source of tools, held open: by one task on one event loop, or by nothing where it is all sync.

The task that enters an async source is the task that leaves it, since cancel scopes (anyio's, and so MCP's) demand
that. In an async run it lives on the caller's loop, in a sync run on a private one; what the source lists and is
async runs on the same loop, wherever it is called from. `tool_sources` decides when to open and to close.

The sources of tools that are open: those of a run, and those that an agent keeps open over many.

Whoever drives a run makes an `OpenSources` for it, opens each source of the spec and closes them all in the end.
`with agent:` opens them once; the runs in the block find them open and list their tools only.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

from acorn._declare.agent import AgentBase
from acorn._declare.spec_cache import current_overrides, spec_within
from acorn._declare.tools.collect import callable_docstring, callable_name
from acorn._drive.bridge import call_async, call_sync, is_async, start_thread
from acorn._drive.owner_loop import OwnerLoop
from acorn.errors import AcornError


class OpenSource:
    """A source that is open, from `open` or `aopen` until `close` or `aclose`."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self._home: OwnerLoop | None = None
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
            self._home = OwnerLoop.apart()
            if (manager := _manager(self.source)) is not None:
                self._home.wait(functools.partial(self._enter, manager))
            return
        enter, leave = _ways(self.source)
        returned = enter() if enter is not None else None
        if inspect.isawaitable(returned):  # async all the same, though it does not look so
            self._home = OwnerLoop.apart()
            self._home.wait(functools.partial(self._enter, _opened(lambda: returned, leave)))
        else:
            self._leave = leave

    async def aopen(self) -> None:
        if _is_async(self.source):
            self._home = OwnerLoop.here()
            if (manager := _manager(self.source)) is not None:
                await self._enter(manager)
            return
        enter, leave = _ways(self.source)
        (returned,) = await call_async(lambda: (enter() if enter is not None else None,))
        if inspect.isawaitable(returned):
            self._home = OwnerLoop.here()
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
        return [_on_owner_loop(function, self._home) for function in listed]

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


def _on_owner_loop(function: Any, home: OwnerLoop) -> Any:
    """The function as it is if it is sync; else one that looks the same and runs on the loop of its source."""
    if not is_async(function) and not _yields_items(function):
        return function

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await home.hop(functools.partial(_result, function, args, kwargs))

    # A partial or an object has no name to copy, and their words are those of their class.
    call.__name__, call.__doc__ = callable_name(function), callable_docstring(function)
    call.__qualname__ = getattr(function, "__qualname__", call.__name__)
    return call


async def _result(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    returned = function(*args, **kwargs)
    return [item async for item in returned] if inspect.isasyncgen(returned) else await returned


def _yields_items(function: Any) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(type(function).__call__)


def _seen(task: asyncio.Task[None]) -> None:
    """Python complains of an error that nobody has looked at, and a source that died may never be closed."""
    if not task.cancelled():
        task.exception()


def _nothing() -> None:
    """Stands where a source has nothing to open or close."""


Failed = Callable[[BaseException], object]
"""Is told of each error of closing, and may raise it."""


class OpenSources:
    """The sources of one run, or of one block, closed in the reverse of the order in which they were opened."""

    def __init__(self, agent: AgentBase | None = None) -> None:
        self._agent = agent
        """Whose sources may be open already."""
        self._held: list[OpenSource] = []

    def open(self, source: Any) -> Any:
        """Open a source and return what its `tools()` lists; one that its agent keeps open is only asked."""
        kept = open_sources_of(self._agent, source)
        return (kept or self.hold(source)).list_tools()

    async def aopen(self, source: Any) -> Any:
        """The same on the event loop."""
        kept = open_sources_of(self._agent, source)
        return await (kept or await self.ahold(source)).alist_tools()

    def hold(self, source: Any) -> OpenSource:
        """Open a source; one that fails leaves nothing open."""
        current_overrides = OpenSource(source)
        current_overrides.open()
        self._held.append(current_overrides)
        return current_overrides

    async def ahold(self, source: Any) -> OpenSource:
        """The same on the event loop."""
        current_overrides = OpenSource(source)
        await current_overrides.aopen()
        self._held.append(current_overrides)
        return current_overrides

    def find(self, source: Any) -> OpenSource | None:
        """The source as it is open here."""
        return next(
            (
                current_overrides
                for current_overrides in self._held
                if current_overrides.source is source and current_overrides.is_usable
            ),
            None,
        )

    def close(self, failed: Failed | None = None) -> None:
        """Close all; without `failed`, the first error is raised and the others are noted on it."""
        current_overrides, self._held = self._held, []
        failed = failed or _noting(None)
        with ExitStack() as ends:
            for one in current_overrides:
                ends.callback(_close, one, failed)

    async def aclose(self, failed: Failed | None = None) -> None:
        """The same on the event loop."""
        current_overrides, self._held = self._held, []
        failed = failed or _noting(None)
        async with AsyncExitStack() as ends:
            for one in current_overrides:
                ends.push_async_callback(_aclose, one, failed)


def _close(current_overrides: OpenSource, failed: Failed) -> None:
    try:
        current_overrides.close()
    except BaseException as error:
        failed(error)


async def _aclose(current_overrides: OpenSource, failed: Failed) -> None:
    try:
        await current_overrides.aclose()
    except BaseException as error:
        failed(error)


def _noting(first: BaseException | None) -> Failed:
    """Errors of closing hide nothing that went wrong before."""

    def failed(error: BaseException) -> None:
        nonlocal first
        if first is None:
            first = error
        elif isinstance(error, Exception):
            first.add_note(f"Closing a source of tools failed as well: {error!r}")
            return
        raise error

    return failed


_creating = threading.Lock()


class AgentSources:
    """What an agent keeps open while code is inside of `with agent:`."""

    def __init__(self, outer: AgentSources | None = None) -> None:
        self.outer = outer
        """What the agent that this one was made from keeps open."""
        self.sources = OpenSources()
        self.entered = 0
        self.turn = threading.Lock()
        """Held while sources are opened or closed."""

    def for_copy(self) -> AgentSources:
        """What `agent.using(...)` begins with."""
        return AgentSources(outer=self)


def _sources_of(agent: AgentBase) -> AgentSources | None:
    sources = agent.__acorn_open_sources__
    return sources if isinstance(sources, AgentSources) else None


def _new_sources(agent: AgentBase) -> AgentSources:
    with _creating:
        sources = agent.__acorn_open_sources__ = _sources_of(agent) or AgentSources()
    return sources


def open_sources_of(agent: AgentBase | None, source: Any) -> OpenSource | None:
    """The source as the agent, or the one that it was made from, keeps it open; None where it does not."""
    kept = None if agent is None else _sources_of(agent)
    while kept is not None:
        if (current_overrides := kept.sources.find(source)) is not None:
            return current_overrides
        kept = kept.outer
    return None


def open_sources(agent: AgentBase) -> None:
    """Enter `with agent:`; the outermost block opens the sources."""
    kept = _sources_of(agent) or _new_sources(agent)
    with kept.turn:
        try:
            for source in _to_open(agent, kept):
                kept.sources.hold(source)
        except BaseException as error:
            kept.sources.close(_noting(error))
            raise
        kept.entered += 1


def close_sources(agent: AgentBase, error: BaseException | None) -> None:
    """Leave it, with the error of the block if there is one; the outermost block closes the sources."""
    kept = _sources_of(agent)
    assert kept is not None
    with kept.turn:
        kept.entered -= 1
        if not kept.entered:
            kept.sources.close(_noting(error))


async def aopen_sources(agent: AgentBase) -> None:
    """`keep_open` on the event loop."""
    kept = _sources_of(agent) or _new_sources(agent)
    await _take(kept.turn)
    try:
        for source in _to_open(agent, kept):
            await kept.sources.ahold(source)
        kept.entered += 1
    except BaseException as error:
        await kept.sources.aclose(_noting(error))
        raise
    finally:
        kept.turn.release()


async def aclose_sources(agent: AgentBase, error: BaseException | None) -> None:
    """`let_go` on the event loop."""
    kept = _sources_of(agent)
    assert kept is not None
    await _take(kept.turn)
    try:
        kept.entered -= 1
        if not kept.entered:
            await kept.sources.aclose(_noting(error))
    finally:
        kept.turn.release()


def _to_open(agent: AgentBase, kept: AgentSources) -> list[Any]:
    if kept.entered:
        return []
    return [
        source for source in spec_within(current_overrides(), agent).sources if open_sources_of(agent, source) is None
    ]


async def _take(turn: threading.Lock) -> None:
    """Acquire a lock that threads use too, without blocking the event loop."""
    if turn.acquire(blocking=False):
        return
    taken = start_thread(turn.acquire)
    try:
        await asyncio.shield(asyncio.wrap_future(taken))
    except asyncio.CancelledError:
        taken.add_done_callback(lambda _: turn.release())
        raise
