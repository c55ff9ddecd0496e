"""What stands behind the addresses: the agent, and the runs that are under way.

Runs go on the event loop of the server. One is ended where its client leaves, its time is up, or the server ends.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Collection, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from acorn import DeclarationError, module
from acorn._inside import check_agent, describe_agent, excerpt
from acorn.web.page.agent import secrets_of
from acorn.web.serve.exchange import ClientDisconnectedError, ErrorReply, Exchange, WrongError
from acorn.web.serve.secrets import ServiceRedactor
from acorn.web.serve.streams import CodeEndedError

TIMEOUT = 600.0
CONCURRENCY = 256
GRACE = 5
"""Seconds that runs may still take when the server ends."""

Agent = module[Any, Any]
Made = TypeVar("Made")


class Service:
    """An agent that is served."""

    def __init__(self, agent: Any, keys: Collection[str], timeout: float, concurrency: int) -> None:
        if not isinstance(agent, module):
            raise DeclarationError(
                f"`acorn.web.service` takes an instance of a module, such as `Researcher()`; got {excerpt(agent)}."
            )
        check_agent(agent)  # what could never be called is told before anybody calls
        self.agent: Agent = agent
        self.name = type(agent).__name__
        self.spec = describe_agent(agent)
        self.secrets = ServiceRedactor({*keys, *secrets_of(agent)})
        self.timeout = timeout
        self.is_closing = False
        self._concurrency = concurrency
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[None] | None = None

    @contextmanager
    def place(self) -> Generator[None]:
        """A place among the runs at once. It is taken before a body is read, so that bodies cannot pile up."""
        if self.is_closing:
            raise WrongError(503, "stopping", "The server is ending; ask again when it is back.", wait=1)
        if self._count >= self._concurrency:
            count = "1 run is" if self._concurrency == 1 else f"{self._concurrency} runs are"
            words = f"{count} under way, which is all that this server takes; ask again later."
            raise WrongError(429, "busy", words, wait=1)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def attended(self, exchange: Exchange, work: Coroutine[Any, Any, Made], until: float) -> Made:
        """What the work comes to, as long as somebody waits for it."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(_kept_in(work))
        gone = asyncio.ensure_future(exchange.gone())
        try:
            waits: set[asyncio.Future[Any]] = {task, gone, self._ending(loop)}
            await asyncio.wait(waits, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientDisconnectedError
            if self._ending(loop).done():
                raise WrongError(503, "stopping", "The server is ending, and the run was ended with it.", wait=1)
            raise self.late()
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    def late(self) -> WrongError:
        return WrongError(504, "timeout", f"The run took longer than {self.timeout:g} seconds, and was ended.")

    def log(self, error: BaseException) -> None:
        """Tell whoever runs the server what its clients are not told."""
        logging.getLogger("acorn").error("%s", self.secrets.words("".join(traceback.format_exception(error)).rstrip()))

    def told(self, told: ErrorReply) -> bytes:
        """What a client reads of a failure."""
        plain = told._replace(words=self.secrets.words(told.words)).plain
        return self.secrets.json(plain)

    # The end of the server

    def _ending(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        if self._end is None or self._loop is not loop:
            self._loop, self._end = loop, loop.create_future()
        return self._end

    def close(self) -> None:
        """Begin nothing more, and end what is still under way a few seconds later. From any thread."""
        self.is_closing = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close_soon)

    def _close_soon(self) -> None:
        asyncio.get_running_loop().call_later(GRACE, self._close_now)

    def _close_now(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)


async def _kept_in(work: Coroutine[Any, Any, Made]) -> Made:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:  # in a task, either would stop the event loop
        raise CodeEndedError(f"{type(error).__name__}: {error}") from error
