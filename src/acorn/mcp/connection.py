"""A session with an MCP server: opening and closing it, listing and calling tools, and reporting failures.

All code here runs on the private event loop for MCP servers. One task enters and exits the SDK's client, and other
tasks make the tool calls. Therefore the tool calls fail with an error if a server dies. They are not cancelled, because
a cancelled tool call would mean that the run was cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import httpx2
from mcp import Client, MCPError, types
from mcp.client.session import ClientRequestContext
from mcp_types import CONNECTION_CLOSED
from pydantic import ValidationError

from acorn import __version__
from acorn._inside import describe_error, shorten
from acorn.errors import AcornError
from acorn.mcp.address import ServerAddress
from acorn.mcp.elicitation import Caller, Progress, answer_form, answer_url
from acorn.mcp.tools import Definition, NotCalledError, ServerError, check_result, clean, define_tool, truncate
from acorn.mcp.transport import SESSION_LOST, TransportState, error_message, open_transport
from acorn.types import JsonObject

_logger = logging.getLogger("acorn.mcp")
_MAX_PAGES = 100
_MAX_MESSAGE = 2000
_MAX_PROBLEMS = 3
_CANCEL_TIMEOUT = 2.0
"""The seconds to wait for cancelled calls, and for the last output of a server that has ended."""

_CLOSE_TIMEOUT = 10.0
"""The seconds to wait until a session and its process have ended. For HTTP, the limit is `_CANCEL_TIMEOUT`."""

_current_caller: ContextVar[Caller | None] = ContextVar("acorn_mcp_caller", default=None)


class Connection:
    """An open session with one MCP server, which lists and calls the tools of the server."""

    def __init__(
        self, address: ServerAddress, connect_timeout: float, *, can_ask: bool, on_progress: Progress | None
    ) -> None:
        self.address = address
        self.can_ask = can_ask
        """Whether the server may request human input."""
        self.is_legacy = False
        """Whether the server uses the older protocol, which starts with a handshake."""
        self.definitions: list[Definition] = []
        """The tool definitions that the server listed last."""
        self._connect_timeout = connect_timeout
        """The maximum seconds for opening the session and listing the tools."""
        self._on_progress = on_progress
        self._notifier = ThreadPoolExecutor(1, "acorn-mcp-progress")
        """The OS thread that calls `on_progress` for sync runs. It starts with the first notification."""
        self._transport = TransportState()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._is_closed = False
        self._calls: dict[asyncio.Task[Any], Caller] = {}

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended, so that no more calls are possible."""
        return self._is_closed or self._transport.has_ended

    @property
    def ended_early(self) -> bool:
        """Whether the server ended before the session was opened."""
        return self._client is None and self._transport.has_ended

    # Opening and closing

    async def open(self, *, is_legacy: bool) -> None:
        """Open the session and list the tools.

        With `is_legacy`, acorn uses the older MCP protocol and does not try the newer protocol first.
        """
        opened = asyncio.get_running_loop().create_future()
        session = self._task = asyncio.create_task(self._run_session(opened, is_legacy))
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.wait({session, opened}, return_when=asyncio.FIRST_COMPLETED)
                if not opened.done():
                    await session  # Raises the error of the session, if there is one.
                    raise EOFError
                await self.list_tools()
        except BaseException as error:
            await self._cancel_session(session)
            task = asyncio.current_task()
            if isinstance(error, AcornError) or (task is not None and task.cancelling()):
                raise
            raise await self._session_error(error) from error

    async def _run_session(self, opened: asyncio.Future[None], is_legacy: bool) -> None:
        try:
            client = Client(
                open_transport(self.address, self._transport, self._connect_timeout),
                elicitation_callback=self._elicit if self.can_ask else None,
                client_info=types.Implementation(name="acorn", version=__version__),
                mode="legacy" if is_legacy else "auto",
            )
            async with client:
                session: Any = client.session
                session.validate_tool_result = _check_later
                self._client = client
                self.is_legacy = client.session.initialize_result is not None
                opened.set_result(None)
                await self._closing.wait()
        finally:
            self._is_closed = True

    async def _cancel_session(self, session: asyncio.Task[None]) -> None:
        """Cancel the session if it has not ended, and log its error."""
        self._is_closed = True
        session.cancel()
        await asyncio.wait({session})
        if not session.cancelled() and (error := session.exception()) is not None:
            _logger.debug(
                "The session of the MCP server `%s` failed: %s", self.address.label, self._describe_error(error)
            )

    async def close(self) -> None:
        """Cancel the unfinished tool calls, close the session, and stop the server process if acorn started one."""
        self._is_closed = True
        if self._calls:
            for task in self._calls:
                task.cancel()
            await asyncio.wait(list(self._calls), timeout=_CANCEL_TIMEOUT)
        self._notifier.shutdown(wait=False)
        self._closing.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CANCEL_TIMEOUT if self.address.is_web else _CLOSE_TIMEOUT)
            await self._cancel_session(self._task)

    # Listing and calling tools

    async def list_tools(self) -> None:
        """Request the current list of tools from the server, and store the tool definitions."""
        assert self._client is not None
        definitions: list[Definition] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            definitions += [define_tool(tool, self.address.redact) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                self.definitions = definitions
                return
        raise AcornError(
            f"The MCP server `{self.address.label}` lists too many pages of tools (more than {_MAX_PAGES}), so acorn "
            f"does not use the server. Remove the server, or report the problem to its author."
        )

    async def list_again(self) -> None:
        """Request the list of tools again in an open session. It must arrive within the connect timeout."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self.list_tools()
        except AcornError:
            raise
        except Exception as error:
            self._is_closed = True
            raise await self._session_error(error) from error

    async def call(self, definition: Definition, arguments: JsonObject, caller: Caller) -> types.CallToolResult:
        """Send one tool call to the server and return its result, or raise `ServerError` if the call fails."""
        client, task = self._client, asyncio.current_task()
        assert client is not None
        assert task is not None
        self._calls[task] = caller
        _current_caller.set(caller)

        async def report(progress: float, total: float | None, message: str | None) -> None:
            caller.restart_timeout()
            self._report_progress(caller, progress, total, message)

        try:
            async with asyncio.timeout(caller.timeout) as caller.timer:
                result = await client.call_tool(definition.name, arguments, progress_callback=report)
            check_result(result, definition)
        except Exception as error:
            raise await self._call_error(caller, error) from error
        finally:
            del self._calls[task]
        if caller.failure is not None:
            raise ServerError(caller.failure)
        return result

    async def _call_error(self, caller: Caller, error: Exception) -> ServerError:
        if caller.timer.expired():
            message = f"the server said nothing for {caller.timeout:g} s, and the call was cancelled"
            return ServerError(message + self._invalid_output_note())
        if caller.failure is not None:
            return ServerError(caller.failure)
        cause = innermost_error(error)
        original = _message_of(cause) or type(cause).__name__
        message = truncate(clean(self.address.redact(original)), _MAX_MESSAGE)
        if isinstance(cause, MCPError) and original == SESSION_LOST:
            self._is_closed = True
            return NotCalledError(message)
        # A result that does not fit its schema raises `RuntimeError` or `ValueError`, and the connection is still open.
        # Some servers use the SDK's error code for a closed connection in their own errors.
        is_answer = isinstance(cause, _INVALID_RESULT)
        if isinstance(cause, MCPError):
            is_answer = cause.code != CONNECTION_CLOSED or not original.startswith(_CLOSED)
        if is_answer and not self.is_lost:
            status = self._transport.http_status
            return ServerError(f"{message} (HTTP status {status})" if original == _HTTP_ERROR else message)
        self._is_closed = True
        message = self._transport.end_reason or message
        return ServerError(
            f"the connection to the MCP server `{self.address.label}` was lost ({message}). The call may or may not "
            f"have taken effect and is not repeated. The next call opens a new connection.{await self._stderr_note()}"
        )

    def _report_progress(self, caller: Caller, done: float, total: float | None, message: str | None) -> None:
        text = None if message is None else truncate(clean(message), _MAX_MESSAGE)
        _logger.debug("MCP tool `%s` reports progress: %s of %s (%s)", caller.tool, done, total, text)
        if self._on_progress is None:
            return
        context = caller.context.copy()
        callback = partial(_call_on_progress, self._on_progress, caller.tool, done, total, text)
        with suppress(RuntimeError):  # The loop or the connection is closed, so the run is over.
            if caller.owner_loop is None:
                self._notifier.submit(context.run, callback)
            else:
                caller.owner_loop.loop.call_soon_threadsafe(callback, context=context)

    # Elicitation

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Pass a server's request for human input to `on_human`, and return the answer to the server.

        The method returns errors instead of raising them, because an exception would end the session.
        """
        caller = _current_caller.get() or self._caller_of_only_run()
        if caller is None or caller.on_human is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message="No person can be asked")
        try:
            if params.mode == "url":
                return types.ElicitResult(action=await answer_url(caller, params.message, params.url))
            action, content = await answer_form(caller, params.message, params.requested_schema)
            return types.ElicitResult(action=action, content=content)
        except Exception as error:
            caller.failure = f"The answer of `on_human` cannot be used: {describe_error(error)}"
            return types.ErrorData(code=types.INVALID_PARAMS, message="The answer is invalid")

    def _caller_of_only_run(self) -> Caller | None:
        """Return the caller of the latest tool call if all unfinished tool calls belong to one run, and otherwise None.

        The older MCP protocol does not report which tool call requests human input. If there are several runs, acorn
        cannot know which run to ask.
        """
        callers = list(self._calls.values())
        return callers[-1] if len({caller.run_id for caller in callers}) == 1 else None

    # Failures

    async def _session_error(self, error: BaseException) -> AcornError:
        cause = innermost_error(error)
        details = [] if isinstance(cause, _WITHOUT_DETAILS) else [clean(self._describe_error(cause))]
        status = self._transport.http_status
        details += [f"HTTP status {status}"] if status >= 400 else []
        note = self.address.redact(f" ({shorten('; '.join(details), 500)})") if details else ""
        note += self._invalid_output_note() + _ADVICE.get(status, "")
        problem = f"The MCP server `{self.address.label}` {_explain_problem(cause, self._connect_timeout)}"
        return AcornError(f"{problem}{note}.{await self._stderr_note()}")

    def _describe_error(self, error: BaseException) -> str:
        name = "" if isinstance(error, ValidationError) else type(error).__name__
        return self.address.redact(": ".join(filter(None, (name, _message_of(error)))))

    def _invalid_output_note(self) -> str:
        has_invalid_output = self._transport.has_invalid_output
        return ". It wrote lines to its standard output that are not MCP messages" if has_invalid_output else ""

    async def _stderr_note(self) -> str:
        log = self._transport
        if log.log_reader is not None and self.is_lost:
            await asyncio.wait({log.log_reader}, timeout=_CANCEL_TIMEOUT)
        return f" It wrote:\n{self.address.redact(chr(10).join(log.log_lines))}" if log.log_lines else ""


_HTTP_ERROR = "Server returned an error response"
"""The SDK's error message for a response that contains only an HTTP status."""
_CLOSED = ("Connection closed", "SSE stream")
"""The SDK's error messages for a closed connection start with one of these texts."""
_INVALID_RESULT = (RuntimeError, ValueError)
"""The exceptions of the SDK for a result that does not fit its schema."""

_KEY_ADVICE = ". Check the key in `headers`, or set `auth`"
_ADVICE: dict[int, str] = {401: _KEY_ADVICE, 403: _KEY_ADVICE, 404: ". Check the path of the URL"}


async def _check_later(name: str, result: types.CallToolResult) -> None:
    """Replace the SDK's check of a result, which takes exponential time for some patterns. `check_result` follows."""


def _call_on_progress(on_progress: Progress, tool: str, done: float, total: float | None, message: str | None) -> None:
    try:
        on_progress(tool, done, total, message)
    except Exception:
        _logger.warning("The function `on_progress` of an MCP server raised an exception.", exc_info=True)


def _message_of(error: BaseException) -> str:
    """Return the message of an error. For an invalid result, the message omits the data of the result."""
    if not isinstance(error, ValidationError):
        return error_message(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:_MAX_PROBLEMS]]
    return f"the result of the server does not follow the MCP specification: {'; '.join(lines)}"


_WITHOUT_DETAILS = (TimeoutError, asyncio.CancelledError, EOFError)


def _explain_problem(cause: BaseException, seconds: float) -> str:
    """Return the end of a sentence about an error that occurred while acorn opened a server."""
    match cause:
        case TimeoutError():
            return f"did not answer within {seconds:g} s"
        case asyncio.CancelledError():
            return "disconnected while acorn opened the session"
        case EOFError():
            return "ended while acorn opened the session"
        case FileNotFoundError() | PermissionError():
            return "cannot be started. Check its name and whether it is installed, and use `args=[...]` for arguments"
        case httpx2.HTTPError():
            return "cannot be reached. Check the URL, and check that the server is running"
        case _:
            return "could not be opened"


def innermost_error(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups, or the error itself if it is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
