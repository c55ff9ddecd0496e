"""The agent of a service, the limits of its runs, and their cancellation.

The runs are executed on the event loop of the server. A run is cancelled when its client disconnects, when its time
limit is reached, or when the server stops.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Collection, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request

from acorn import DeclarationError
from acorn._inside import Redactor, describe_agent, excerpt, is_instance
from acorn._inside.runs import check_agent
from acorn.web.page.agent import Agent, secrets_of
from acorn.web.serve.responses import (
    ErrorReply,
    RejectedRequestError,
    Result,
    encode_json,
    without_exit,
)

TIMEOUT = 600.0
CONCURRENCY = 256
GRACE = 5
"""The number of seconds that runs may take after the server begins to stop."""


class Service:
    """The state of a service: its agent, the number of runs in progress, and whether the service is stopping."""

    def __init__(
        self, agent: object, keys: Collection[str], timeout: float, concurrency: int, grace: float = GRACE
    ) -> None:
        if not is_instance(agent):
            raise DeclarationError(
                f"`acorn.web.service` needs an instance of a module, such as `Researcher()`, but got {excerpt(agent)}."
            )
        check_agent(agent)  # Report a wrong declaration before the first request.
        self.agent: Agent = agent
        self.name = type(agent).__name__
        self.spec = describe_agent(agent)
        secrets = {*keys, *secrets_of(agent)}
        self.redactor = Redactor(secrets, finds_keys=False)
        """The redactor of answers. It ignores texts that only look like keys, because programs process the answers."""
        self.error_redactor = Redactor(secrets)
        self.timeout = timeout
        self.is_closing = False
        self._concurrency = concurrency
        self._grace = grace
        self._run_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Future[None] | None = None

    @contextmanager
    def reserve_run(self) -> Generator[None]:
        """Count a run toward the limit of concurrent runs inside the `with` block.

        Raise `RejectedRequestError` if the limit is reached or the server is stopping. Enter the block before you read
        the request body, because this also limits the number of request bodies in memory.
        """
        if self.is_closing:
            raise RejectedRequestError(503, "stopping", "The server is stopping. Try again later.", retry_after=1)
        if self._run_count >= self._concurrency:
            runs = "1 run is" if self._concurrency == 1 else f"{self._concurrency} runs are"
            message = f"{runs} in progress, which is the limit of this server. Try again later."
            raise RejectedRequestError(429, "busy", message, retry_after=1)
        self._run_count += 1
        try:
            yield
        finally:
            self._run_count -= 1

    async def perform(
        self, work: Coroutine[Any, Any, Result], deadline: float, request: Request | None = None
    ) -> Result:
        """Wait until a part of a run ends, and return its result.

        The work is cancelled if the deadline has passed, the server stops, or the client of the request disconnects.
        """
        loop = asyncio.get_running_loop()
        task, end = asyncio.ensure_future(without_exit(work)), self._end_future(loop)
        waits: set[asyncio.Future[Any]] = {task, end}
        disconnect = None if request is None else asyncio.ensure_future(_disconnect(request))
        if disconnect is not None:
            waits.add(disconnect)
        try:
            await asyncio.wait(waits, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if disconnect is not None and disconnect.done():
                raise ClientDisconnect
            if end.done():
                message = "The server is stopping and cancelled the run. Try again later."
                raise RejectedRequestError(503, "stopping", message, retry_after=1)
            raise self._timeout_error()
        finally:
            if disconnect is not None:
                disconnect.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    def _timeout_error(self) -> RejectedRequestError:
        message = f"The run took longer than {self.timeout:g} seconds, so the server cancelled it."
        return RejectedRequestError(504, "timeout", message)

    def log_error(self, error: BaseException) -> None:
        """Log an error and its traceback, with secrets redacted."""
        text = "".join(traceback.format_exception(error)).rstrip()
        logging.getLogger("acorn").error("%s", self.error_redactor.text(text))

    def error_body(self, reply: ErrorReply) -> bytes:
        """Return the encoded body of an error response. Secrets are redacted."""
        return encode_json(self.redactor, reply._replace(message=self.error_redactor.text(reply.message)).to_json())

    # Shutdown of the server

    def _end_future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        if self._end is None or self._loop is not loop:
            self._loop, self._end = loop, loop.create_future()
        return self._end

    def close(self) -> None:
        """Reject new runs. After the grace period, cancel the runs that have not ended.

        Any thread may call this method.
        """
        self.is_closing = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close_later)

    def _close_later(self) -> None:
        asyncio.get_running_loop().call_later(self._grace, self._close_now)

    def _close_now(self) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(None)


async def _disconnect(request: Request) -> None:
    """Wait until the client of a request disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
