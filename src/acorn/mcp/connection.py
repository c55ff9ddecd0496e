"""One connection to a server, held by one task from beginning to end; what it calls, and how it fails.

Everything here happens on the loop of servers. The task that enters the SDK's client is the task that leaves it, and
calls are made by other tasks: so a server that dies fails the calls, and never looks like a cancelled run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from pydantic import ValidationError

from acorn import __version__
from acorn._inside import describe_error, shorten
from acorn.errors import AcornError
from acorn.mcp.address import FORGOTTEN, ServerAddress, check_installed
from acorn.mcp.elicitation import Caller, Silence, answer_address, answer_form
from acorn.mcp.process import ErrorRedactor, ServerLog
from acorn.mcp.tools import Definition, ServerError, check_apart, clean, cut, define
from acorn.types import JsonObject

Progress = Callable[[str, float, float | None, str | None], object]
"""Hears the tool, how much is done, of how much in all, and what the server says to it."""

_logger = logging.getLogger("acorn.mcp")
_MOST_PAGES = 100
_LONGEST_WORDS = 2000
_MOST_FAULTS = 3
_FAREWELL = 2.0
"""Seconds in which calls that are cancelled may tell the server so, and a dead server's last words arrive."""

_LONGEST_CLOSE = 10.0
"""Seconds for the end of a process and of its session; an end over HTTP is a farewell and no more."""

_calling: ContextVar[Caller | None] = ContextVar("acorn_mcp_caller", default=None)


class Connection:
    """A session with one server."""

    def __init__(
        self, address: ServerAddress, to_connect: float, to_call: float, *, may_ask: bool, on_progress: Progress | None
    ) -> None:
        self.address = address
        self.may_ask = may_ask
        """Whether the server is told that there may be a person to ask."""
        self.is_lost = False
        """Whether nothing can be called here any more."""
        self.has_ended = False
        """Whether the server went away by itself, before it was open."""
        self.is_older = False
        """Whether it speaks the protocol with a handshake."""
        self.definitions: dict[str, Definition] = {}
        """What the server listed last, by its names."""
        self._to_connect = to_connect
        """Seconds that the server may take to open and list."""
        self._silence = Silence(to_call)
        self._on_progress = on_progress
        self._client: Any = None
        self._log: ServerLog | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._calls: dict[asyncio.Task[Any], Caller] = {}
        self._has_misheard = False
        self._why_lost: str | None = None
        self._status = 0
        """Of the last answer over HTTP."""

    # Opening and closing

    async def open(self, *, is_older: bool) -> None:
        """Connect and list the tools; an `AcornError` says why that failed. One that is older is not asked if it is."""
        check_installed()
        self.veil = ErrorRedactor()
        opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._own(opened, is_older))
        try:
            async with asyncio.timeout(self._to_connect):
                await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
                if opened.done():
                    await self.list_tools()
                    return
                await self._task
        except TimeoutError as error:
            await self._abandon()
            raise await self._failure(f"did not answer within {self._to_connect:g} s", error) from error
        except asyncio.CancelledError:
            us = asyncio.current_task()
            await self._abandon()
            if us is not None and us.cancelling():
                raise
            raise await self._failure("broke off while it was opened", None) from None
        except AcornError:
            await self._abandon()
            raise
        except Exception as error:
            await self._abandon()
            raise await self._failure(*_why(error)) from error
        raise await self._failure("ended while it was opened", None)

    async def _own(self, opened: asyncio.Future[None], is_older: bool) -> None:
        from mcp import Client, types

        self._log = None if self.address.is_web else ServerLog(self.address.label, self.address.hidden)
        try:
            client = Client(
                self.address.transport(self._log, self, self._to_connect),
                elicitation_callback=self._elicit if self.may_ask else None,
                client_info=types.Implementation(name="acorn", version=__version__),
                mode="legacy" if is_older else "auto",
            )
            async with client:
                self._client = client
                self.is_older = client.session.initialize_result is not None
                opened.set_result(None)
                await self._leaving.wait()
        finally:
            self.is_lost = True

    def lost(self, why: str | None = None) -> None:
        self.is_lost = True
        self.has_ended = self.has_ended or self._client is None
        self._why_lost = self._why_lost or why

    def misheard(self) -> None:
        self._has_misheard = not self.address.is_web

    def answered(self, status: int) -> None:
        self._status = status

    async def _abandon(self) -> None:
        assert self._task is not None
        self.is_lost = True
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()

    async def close(self) -> None:
        """End the calls that are under way, then the session and the server; one that is dead does not complain."""
        self.is_lost = True
        if self._calls:
            for task in self._calls:
                task.cancel()
            await asyncio.wait(list(self._calls), timeout=_FAREWELL)
        self._silence.close()
        self._leaving.set()
        if self._task is not None:
            _, left = await asyncio.wait({self._task}, timeout=_FAREWELL if self.address.is_web else _LONGEST_CLOSE)
            if left:
                await self._abandon()
            elif not self._task.cancelled() and (error := self._task.exception()) is not None:
                _logger.debug("closing `%s`: %s", self.address.label, self._words_of(error))

    # Using it

    async def list_tools(self) -> list[Definition]:
        """What the server defines now, all pages of it."""
        found: list[Definition] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found += [define(each, self.address.hidden) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                check_apart(found, self.address.label)
                self.definitions = {each.name: each for each in found}
                return found
        raise AcornError(f"The MCP server `{self.address.label}` lists tools without end; it is not used.")

    async def list_again(self) -> list[Definition]:
        """The same for a connection that is kept open."""
        try:
            async with asyncio.timeout(self._to_connect):
                return await self.list_tools()
        except AcornError:
            raise
        except Exception as error:
            self.is_lost = True
            raise await self._failure(*_why(error)) from error

    async def call(self, definition: Definition, arguments: JsonObject, caller: Caller) -> Any:
        """Call a tool once; whatever goes wrong is a `ServerError`."""
        task = asyncio.current_task()
        assert task is not None
        silence = caller.silence = self._silence
        caller.call = task
        self._calls[task] = caller
        _calling.set(caller)

        async def progress(done: float, total: float | None, message: str | None) -> None:
            silence.heard(task)
            self._tell(caller, done, total, message)

        silence.begin(task)
        try:
            returned = await self._client.call_tool(definition.name, arguments, progress_callback=progress)
        except asyncio.CancelledError as error:
            if not silence.is_ours(task):
                raise
            words = f"the server said nothing for {silence.seconds:g} s, and the call was cancelled"
            raise ServerError(words + self._misheard_words()) from error
        except Exception as error:
            raise await self._call_failure(caller, error) from error
        finally:
            silence.end(task)
            del self._calls[task]
        if caller.failure is not None:
            raise ServerError(caller.failure)
        return returned

    async def _call_failure(self, caller: Caller, error: Exception) -> ServerError:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        if caller.failure is not None:
            return ServerError(caller.failure)
        kind = innermost(error)
        said = self.veil.lift(_said_by(kind)) or type(kind).__name__
        words = cut(clean(self.address.hidden(said)), _LONGEST_WORDS)
        if isinstance(kind, MCPError) and said == FORGOTTEN:
            self.is_lost = True
            return NotCalledError(words)
        # A result that does not fit its schema (a `RuntimeError`, a `ValueError`) is no lost connection.
        # Servers use the SDK's code of a closed connection for errors of their own.
        is_answer = isinstance(kind, _UNFIT)
        if isinstance(kind, MCPError):
            is_answer = kind.code != CONNECTION_CLOSED or not said.startswith(_CLOSED)
        if is_answer and not self.is_lost:
            return ServerError(f"{words} (HTTP status {self._status})" if said == _REFUSED else words)
        self.is_lost = True
        words = self._why_lost or words
        return ServerError(
            f"the connection to the MCP server `{self.address.label}` was lost ({words}). The call may or may not have "
            f"taken effect and is not repeated; the next call connects anew.{await self._last_words()}"
        )

    def _tell(self, caller: Caller, done: float, total: float | None, message: str | None) -> None:
        words = None if message is None else cut(clean(message), _LONGEST_WORDS)
        _logger.debug("%s: %s of %s: %s", caller.tool, done, total, words)
        if self._on_progress is not None:
            caller.tell(partial(_heard, self._on_progress, caller.tool, done, total, words))

    # People

    async def _elicit(self, context: Any, params: Any) -> Any:
        """The server asks a person; every error is an answer to it, for an exception would end the session."""
        from mcp import types

        caller = _calling.get() or self._only_caller()
        if caller is None or caller.on_human is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message="Nobody is here to be asked")
        try:
            if params.mode == "url":
                return types.ElicitResult(action=await answer_address(caller, params.message, params.url))  # type: ignore[arg-type]
            action, content = await answer_form(caller, params.message, params.requested_schema)
            return types.ElicitResult(action=action, content=content)  # type: ignore[arg-type]
        except Exception as error:
            caller.failure = f"The answer of `on_human` cannot be used: {describe_error(error)}"
            return types.ErrorData(code=types.INVALID_PARAMS, message="There is no answer that can be used")

    def _only_caller(self) -> Caller | None:
        """Servers of the older protocol do not say in which call they ask: it is clear where one run is calling."""
        callers = list(self._calls.values())
        return callers[-1] if len({caller.run_id for caller in callers}) == 1 else None

    # Failures

    async def _failure(self, what: str, error: BaseException | None) -> AcornError:
        said = [] if error is None or isinstance(error, TimeoutError) else [clean(self._words_of(innermost(error)))]
        said += [f"HTTP status {self._status}"] if self._status >= 400 else []
        words = self.address.hidden(f" ({shorten('; '.join(said), 500)})") if said else ""
        words += self._misheard_words() + _ADVICE.get(self._status, "")
        return AcornError(f"The MCP server `{self.address.label}` {what}{words}.{await self._last_words()}")

    def _words_of(self, error: BaseException) -> str:
        words = _said_by(error) if isinstance(error, ValidationError) else describe_error(error)
        return self.address.hidden(self.veil.lift(words))

    def _misheard_words(self) -> str:
        return "; it wrote lines to its standard output that are no messages of MCP" if self._has_misheard else ""

    async def _last_words(self) -> str:
        lines = [] if self._log is None else await self._log.last_lines(_FAREWELL if self.is_lost else 0)
        return f" It wrote:\n{self.address.hidden(chr(10).join(lines))}" if lines else ""


class NotCalledError(ServerError):
    """The server does not know the session any more; it has refused the call, which can be made in another one."""


_REFUSED = "Server returned an error response"
"""What the SDK says where the server has said no more than a status."""
_CLOSED = ("Connection closed", "SSE stream")
"""How the SDK begins to say that no answer will come."""
_UNFIT = (RuntimeError, ValueError)


_NO_KEY = "; check the key in `headers`, or give `auth`"
_ADVICE: dict[int, str] = {401: _NO_KEY, 403: _NO_KEY, 404: "; check the path of the address"}


def _heard(on_progress: Progress, *told: Any) -> None:
    try:
        on_progress(*told)
    except Exception:
        _logger.warning("`on_progress` of an MCP server failed", exc_info=True)


def _said_by(error: BaseException) -> str:
    """What an error says; of a result that is none of MCP, what is wrong with it, without the result itself."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    words = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:_MOST_FAULTS])
    return f"the result of the server is not as MCP has it: {words}"


def _why(error: Exception) -> tuple[str, BaseException]:
    kind = innermost(error)
    if isinstance(kind, FileNotFoundError | PermissionError):
        return "cannot be started; is it installed, and is its name right? Arguments are given by `args=[...]`", kind
    if type(kind).__module__.partition(".")[0] == "httpx2":
        return "cannot be reached", kind
    return "could not be opened", kind


def innermost(error: BaseException) -> BaseException:
    """What went wrong, out of the groups in which task groups wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
