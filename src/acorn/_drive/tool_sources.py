"""The sources of tools that are open: those of a run, and those that an agent keeps open over many.

Whoever drives a run makes an `OpenSources` for it, opens each source of the spec and closes them all in the end.
`with agent:` opens them once; the runs in the block find them open and list their tools only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from acorn._declared import OPEN
from acorn._drive.bridge import start_thread
from acorn._drive.open_source import Held
from acorn._override import held, spec_within

Failed = Callable[[BaseException], object]
"""Is told of each error of closing, and may raise it."""


class OpenSources:
    """The sources of one run, or of one block, closed in the reverse of the order in which they were opened."""

    def __init__(self, agent: object = None) -> None:
        self._agent = agent
        """Whose sources may be open already."""
        self._held: list[Held] = []

    def open(self, source: Any) -> Any:
        """Open a source and return what its `tools()` lists; one that its agent keeps open is only asked."""
        kept = kept_open(self._agent, source)
        return (kept or self.hold(source)).list_tools()

    async def aopen(self, source: Any) -> Any:
        """The same on the event loop."""
        kept = kept_open(self._agent, source)
        return await (kept or await self.ahold(source)).alist_tools()

    def hold(self, source: Any) -> Held:
        """Open a source; one that fails leaves nothing open."""
        held = Held(source)
        held.open()
        self._held.append(held)
        return held

    async def ahold(self, source: Any) -> Held:
        """The same on the event loop."""
        held = Held(source)
        await held.aopen()
        self._held.append(held)
        return held

    def find(self, source: Any) -> Held | None:
        """The source as it is open here."""
        return next((held for held in self._held if held.source is source and held.is_usable), None)

    def close(self, failed: Failed | None = None) -> None:
        """Close all; without `failed`, the first error is raised and the others are noted on it."""
        held, self._held = self._held, []
        failed = failed or _noting(None)
        with ExitStack() as ends:
            for one in held:
                ends.callback(_close, one, failed)

    async def aclose(self, failed: Failed | None = None) -> None:
        """The same on the event loop."""
        held, self._held = self._held, []
        failed = failed or _noting(None)
        async with AsyncExitStack() as ends:
            for one in held:
                ends.push_async_callback(_aclose, one, failed)


def _close(held: Held, failed: Failed) -> None:
    try:
        held.close()
    except BaseException as error:
        failed(error)


async def _aclose(held: Held, failed: Failed) -> None:
    try:
        await held.aclose()
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


class Kept:
    """What an agent keeps open while code is inside of `with agent:`."""

    def __init__(self, outer: Kept | None = None) -> None:
        self.outer = outer
        """What the agent that this one was made from keeps open."""
        self.sources = OpenSources()
        self.entered = 0
        self.turn = threading.Lock()
        """Held while sources are opened or closed."""

    def for_copy(self) -> Kept:
        """What `agent.using(...)` begins with."""
        return Kept(outer=self)


def kept_open(agent: object, source: Any) -> Held | None:
    """The source as the agent, or the one that it was made from, keeps it open; None where it does not."""
    kept: Kept | None = None if agent is None else vars(agent).get(OPEN)
    while kept is not None:
        if (held := kept.sources.find(source)) is not None:
            return held
        kept = kept.outer
    return None


def keep_open(agent: object) -> None:
    """Enter `with agent:`; the outermost block opens the sources."""
    kept: Kept = vars(agent).setdefault(OPEN, Kept())
    with kept.turn:
        try:
            for source in _to_open(agent, kept):
                kept.sources.hold(source)
        except BaseException as error:
            kept.sources.close(_noting(error))
            raise
        kept.entered += 1


def let_go(agent: object, error: BaseException | None) -> None:
    """Leave it, with the error of the block if there is one; the outermost block closes the sources."""
    kept: Kept = vars(agent)[OPEN]
    with kept.turn:
        kept.entered -= 1
        if not kept.entered:
            kept.sources.close(_noting(error))


async def akeep_open(agent: object) -> None:
    """`keep_open` on the event loop."""
    kept: Kept = vars(agent).setdefault(OPEN, Kept())
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


async def alet_go(agent: object, error: BaseException | None) -> None:
    """`let_go` on the event loop."""
    kept: Kept = vars(agent)[OPEN]
    await _take(kept.turn)
    try:
        kept.entered -= 1
        if not kept.entered:
            await kept.sources.aclose(_noting(error))
    finally:
        kept.turn.release()


def _to_open(agent: object, kept: Kept) -> list[Any]:
    if kept.entered:
        return []
    return [source for source in spec_within(held(), agent).sources if kept_open(agent, source) is None]


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
