"""A session with an MCP server: opening and closing it, listing and calling tools, and reporting failures.

All code here runs on the private event loop for MCP servers. One task enters and exits the SDK's client, and other
tasks make the tool calls. Therefore the tool calls fail with an error if a server dies. They are not cancelled, because
a cancelled tool call would mean that the run was cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeGuard

from mcp import Client, MCPError, types
from mcp.client.session import ClientRequestContext
from mcp_types import CONNECTION_CLOSED
from pydantic import ValidationError

from acorn import __version__
from acorn._inside import describe_error, shorten
from acorn.errors import AcornError
from acorn.mcp.address import ServerAddress, ServerLog
from acorn.mcp.elicitation import Caller, CallTimeouts, Progress, answer_form, answer_url
from acorn.mcp.tools import Definition, NotCalledError, ServerError, check_unique, clean, define_tool, truncate
from acorn.mcp.transport import SESSION_LOST, ErrorRedactor, open_transport
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
        self,
        address: ServerAddress,
        connect_timeout: float,
        call_timeout: float,
        *,
        can_ask: bool,
        on_progress: Progress | None,
    ) -> None:
        self.address = address
        self.can_ask = can_ask
        """Whether the server may request human input."""
        self.is_lost = False
        """Whether the session has ended, so that no more calls are possible."""
        self.has_ended = False
        """Whether the server ended before the session was opened."""
        self.is_legacy = False
        """Whether the server uses the older protocol, which starts with a handshake."""
        self.definitions: dict[str, Definition] = {}
        """A dict that maps tool names to the definitions that the server listed last."""
        self._connect_timeout = connect_timeout
        """The maximum seconds for opening the session and listing the tools."""
        self._timeouts = CallTimeouts(call_timeout)
        self._on_progress = on_progress
        self._client: Client | None = None
        self._log: ServerLog | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._calls: dict[asyncio.Task[Any], Caller] = {}
        self._has_invalid_output = False
        self._loss_reason: str | None = None
        self._status = 0
        """The status of the last HTTP response, or 0."""

    # Opening and closing

    async def open(self, *, is_legacy: bool) -> None:
        """Open the session and list the tools.

        With `is_legacy`, acorn uses the older MCP protocol and does not try the newer protocol first.
        """
        self.error_redactor = ErrorRedactor()
        opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run_session(opened, is_legacy))
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
                if opened.done():
                    await self.list_tools()
                    return
                await self._task
        except TimeoutError as error:
            await self._cancel_session()
            problem = f"The MCP server `{self.address.label}` did not answer within {self._connect_timeout:g} s"
            raise await self._session_error(problem, error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            await self._cancel_session()
            if task is not None and task.cancelling():
                raise
            problem = f"The MCP server `{self.address.label}` disconnected while acorn opened the session"
            raise await self._session_error(problem, None) from None
        except AcornError:
            await self._cancel_session()
            raise
        except Exception as error:
            await self._cancel_session()
            raise await self._session_error(*_explain_problem(error, self.address.label)) from error
        problem = f"The MCP server `{self.address.label}` ended while acorn opened the session"
        raise await self._session_error(problem, None)

    async def _run_session(self, opened: asyncio.Future[None], is_legacy: bool) -> None:
        self._log = None if self.address.is_web else ServerLog(self.address.label, self.address.redact)
        try:
            client = Client(
                open_transport(self.address, self._log, self, self._connect_timeout),
                elicitation_callback=self._elicit if self.can_ask else None,
                client_info=types.Implementation(name="acorn", version=__version__),
                mode="legacy" if is_legacy else "auto",
            )
            async with client:
                self._client = client
                self.is_legacy = client.session.initialize_result is not None
                opened.set_result(None)
                await self._closing.wait()
        finally:
            self.is_lost = True

    def on_lost(self, reason: str | None = None) -> None:
        self.is_lost = True
        self.has_ended = self.has_ended or self._client is None
        self._loss_reason = self._loss_reason or reason

    def on_invalid_message(self) -> None:
        self._has_invalid_output = not self.address.is_web

    def on_http_status(self, status: int) -> None:
        self._status = status

    async def _cancel_session(self) -> None:
        assert self._task is not None
        self.is_lost = True
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()

    async def close(self) -> None:
        """Cancel the unfinished tool calls, close the session, and stop the server process if acorn started one."""
        self.is_lost = True
        if self._calls:
            for task in self._calls:
                task.cancel()
            await asyncio.wait(list(self._calls), timeout=_CANCEL_TIMEOUT)
        self._timeouts.close()
        self._closing.set()
        if self._task is not None:
            _, pending = await asyncio.wait(
                {self._task}, timeout=_CANCEL_TIMEOUT if self.address.is_web else _CLOSE_TIMEOUT
            )
            if pending:
                await self._cancel_session()
            elif not self._task.cancelled() and (error := self._task.exception()) is not None:
                _logger.debug("Closing the MCP server `%s` failed: %s", self.address.label, self._describe_error(error))

    # Listing and calling tools

    async def list_tools(self) -> list[Definition]:
        """Request the current list of tools from the server, and return the tool definitions."""
        assert self._client is not None
        definitions: list[Definition] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            definitions += [define_tool(tool, self.address.redact) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                check_unique(definitions, self.address.label)
                self.definitions = {definition.name: definition for definition in definitions}
                return definitions
        raise AcornError(
            f"The MCP server `{self.address.label}` lists too many pages of tools (more than {_MAX_PAGES}), so acorn "
            f"does not use the server. Remove the server, or report the problem to its author."
        )

    async def list_again(self) -> list[Definition]:
        """Request the list of tools again in an open session. It must arrive within the connect timeout."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self.list_tools()
        except AcornError:
            raise
        except Exception as error:
            self.is_lost = True
            raise await self._session_error(*_explain_problem(error, self.address.label)) from error

    async def call(self, definition: Definition, arguments: JsonObject, caller: Caller) -> types.CallToolResult:
        """Send one tool call to the server and return its result, or raise `ServerError` if the call fails."""
        client, task = self._client, asyncio.current_task()
        assert client is not None
        assert task is not None
        timeouts = caller.timeouts = self._timeouts
        caller.call = task
        self._calls[task] = caller
        _current_caller.set(caller)

        async def report(progress: float, total: float | None, message: str | None) -> None:
            timeouts.restart(task)
            self._report_progress(caller, progress, total, message)

        timeouts.start(task)
        try:
            result = await client.call_tool(definition.name, arguments, progress_callback=report)
        except asyncio.CancelledError as error:
            if not timeouts.is_expired(task):
                raise
            message = f"the server said nothing for {timeouts.seconds:g} s, and the call was cancelled"
            raise ServerError(message + self._invalid_output_note()) from error
        except Exception as error:
            raise await self._call_error(caller, error) from error
        finally:
            timeouts.finish(task)
            del self._calls[task]
        if caller.failure is not None:
            raise ServerError(caller.failure)
        return result

    async def _call_error(self, caller: Caller, error: Exception) -> ServerError:
        if caller.failure is not None:
            return ServerError(caller.failure)
        cause = innermost_error(error)
        original = self.error_redactor.restore(_error_message(cause)) or type(cause).__name__
        message = truncate(clean(self.address.redact(original)), _MAX_MESSAGE)
        if isinstance(cause, MCPError) and original == SESSION_LOST:
            self.is_lost = True
            return NotCalledError(message)
        # A result that does not fit its schema raises `RuntimeError` or `ValueError`, and the connection is still open.
        # Some servers use the SDK's error code for a closed connection in their own errors.
        is_answer = isinstance(cause, _INVALID_RESULT)
        if isinstance(cause, MCPError):
            is_answer = cause.code != CONNECTION_CLOSED or not original.startswith(_CLOSED)
        if is_answer and not self.is_lost:
            return ServerError(f"{message} (HTTP status {self._status})" if original == _HTTP_ERROR else message)
        self.is_lost = True
        message = self._loss_reason or message
        return ServerError(
            f"the connection to the MCP server `{self.address.label}` was lost ({message}). The call may or may not "
            f"have taken effect and is not repeated; the next call opens a new connection.{await self._stderr_note()}"
        )

    def _report_progress(self, caller: Caller, done: float, total: float | None, message: str | None) -> None:
        text = None if message is None else truncate(clean(message), _MAX_MESSAGE)
        _logger.debug("MCP tool `%s` reports progress: %s of %s (%s)", caller.tool, done, total, text)
        if self._on_progress is not None:
            caller.notify(partial(_call_on_progress, self._on_progress, caller.tool, done, total, text))

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

    async def _session_error(self, problem: str, error: BaseException | None) -> AcornError:
        details = (
            []
            if error is None or isinstance(error, TimeoutError)
            else [clean(self._describe_error(innermost_error(error)))]
        )
        details += [f"HTTP status {self._status}"] if self._status >= 400 else []
        note = self.address.redact(f" ({shorten('; '.join(details), 500)})") if details else ""
        note += self._invalid_output_note() + _ADVICE.get(self._status, "")
        return AcornError(f"{problem}{note}.{await self._stderr_note()}")

    def _describe_error(self, error: BaseException) -> str:
        message = _error_message(error) if isinstance(error, ValidationError) else describe_error(error)
        return self.address.redact(self.error_redactor.restore(message))

    def _invalid_output_note(self) -> str:
        return "; it wrote lines to its standard output that are not MCP messages" if self._has_invalid_output else ""

    async def _stderr_note(self) -> str:
        lines = [] if self._log is None else await self._log.last_lines(_CANCEL_TIMEOUT if self.is_lost else 0)
        return f" It wrote:\n{self.address.redact(chr(10).join(lines))}" if lines else ""


_HTTP_ERROR = "Server returned an error response"
"""The SDK's error message for a response that contains only an HTTP status."""
_CLOSED = ("Connection closed", "SSE stream")
"""The SDK's error messages for a closed connection start with one of these texts."""
_INVALID_RESULT = (RuntimeError, ValueError)
"""The exceptions of the SDK for a result that does not fit its schema."""

_KEY_ADVICE = ". Check the key in `headers`, or set `auth`"
_ADVICE: dict[int, str] = {401: _KEY_ADVICE, 403: _KEY_ADVICE, 404: ". Check the path of the URL"}


def _call_on_progress(on_progress: Progress, tool: str, done: float, total: float | None, message: str | None) -> None:
    try:
        on_progress(tool, done, total, message)
    except Exception:
        _logger.warning("The function `on_progress` of an MCP server raised an exception.", exc_info=True)


def _error_message(error: BaseException) -> str:
    """Return the message of an error. For an invalid result, the message omits the data of the result."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems[:_MAX_PROBLEMS]]
    return f"the result of the server does not follow the MCP specification: {'; '.join(lines)}"


def _explain_problem(error: Exception, server: str) -> tuple[str, BaseException]:
    """Return a sentence about an error that occurred while acorn opened a server, and the original error."""
    cause = innermost_error(error)
    if isinstance(cause, FileNotFoundError | PermissionError):
        return (
            f"The MCP server `{server}` cannot be started. Check its name and whether it is installed, and use "
            f"`args=[...]` for arguments",
            cause,
        )
    if type(cause).__module__.partition(".")[0] == "httpx2":
        return (
            f"The MCP server `{server}` cannot be reached. Check the URL, and check that the server is running",
            cause,
        )
    return f"The MCP server `{server}` could not be opened", cause


def innermost_error(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups, or the error itself if it is not a group."""
    while _is_group(error):
        error = error.exceptions[0]
    return error


def _is_group(error: BaseException) -> TypeGuard[BaseExceptionGroup[BaseException]]:
    return isinstance(error, BaseExceptionGroup)
