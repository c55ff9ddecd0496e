"""`MCPServer`, a tool source (an object in `tools` that provides tools) for the tools of an MCP server.

All connections use one private event loop, so that sync, async and concurrent runs can share them. A run opens the
connection that it needs, and closes the connection when the run ends. `with server:` keeps the connection open for
several runs. Only code on the private event loop reads and changes the state of a connection.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, DirectoryPath, Field, ValidationError

from acorn import tool
from acorn._inside import Tool, excerpt, new_tool
from acorn._inside.runs import LoopBoundCall, OwnerLoop, current_machine, is_async
from acorn.errors import AcornError, DeclarationError, ToolConflictError
from acorn.mcp import tools as definitions
from acorn.mcp.address import ServerAddress, loading_sdk
from acorn.mcp.elicitation import Caller, Progress, can_ask_here
from acorn.mcp.tools import Definition, NotCalledError, ServerError
from acorn.types import JsonObject

if TYPE_CHECKING:
    from mcp import types

    from acorn.mcp.connection import Connection

_LINE_END = re.compile(r"[\x00\r\n]")
Approve = Callable[[str, JsonObject], object]
"""A function that receives a tool name and the arguments of a call, and returns whether the call needs approval."""


@dataclass(eq=False)
class _ServerState:
    """The changing state of an `MCPServer` in one process."""

    process: int = field(default_factory=os.getpid)
    users: int = 0
    connections: dict[bool, Connection] = field(default_factory=dict[bool, "Connection"])
    """The connection for runs with `on_human` (True), and the connection for runs without it (False).

    A server learns at the start of a session whether it may request human input."""
    is_legacy: bool = False
    """Whether to use the older protocol, because some servers do not answer a request of the newer protocol."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A lock for opening a connection."""
    tools: dict[str, Tool] = field(default_factory=dict[str, Tool])
    """A dict that maps the fingerprints of definitions to tools."""

    def usable_connection(self, can_ask: bool) -> Connection | None:
        connection = self.connections.get(can_ask)
        return None if connection is None or connection.is_lost else connection


class MCPServer:
    """A tool source that offers the tools of an MCP server. The server is a command or a URL.

        tools = [
            MCPServer("mcp-server-git", args=["--repository", "."], approve={"git_commit"}),
            MCPServer("https://example.com/mcp", headers={"Authorization": "Bearer ..."}, prefix="shop_"),
        ]

    acorn starts a command as a process, and connects to a URL. A run opens the server, and closes the server when the
    run ends. `with server:` keeps the server open for several runs.
    """

    def __init__(
        self,
        server: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
        prefix: str = "",
        allow: Iterable[str] | None = None,
        approve: Iterable[str] | Approve = (),
        pin: str | Path | None = None,
        timeout: float = 60.0,
        connect_timeout: float = 60.0,
        on_progress: Progress | None = None,
        max_description: int = 4_000,
        max_result: int = 100_000,
    ) -> None:
        _check_server(server)
        self.address = ServerAddress(server)
        options: JsonObject = {
            "args": args, "env": env, "cwd": cwd, "headers": headers, "auth": auth, "prefix": prefix, "allow": allow,
            "approve": approve, "pin": pin, "timeout": timeout, "connect_timeout": connect_timeout,
            "on_progress": on_progress, "max_description": max_description, "max_result": max_result,
        }  # fmt: skip
        self._options = checked = self._check_options(options)
        self.address = ServerAddress(server, checked.args, checked.env, checked.cwd, checked.headers, auth)
        self._last_state = _ServerState()

    def __repr__(self) -> str:
        return f"MCPServer({self.address.label!r})"

    @property
    def asks_people(self) -> bool:
        """True if a tool call may need approval by a person.

        A run checks this before it starts, because it needs `on_human` or a store to request an approval.
        """
        return bool(self._options.approve)

    def _check_options(self, options: JsonObject) -> _ServerOptions:
        """Return the options, or raise `DeclarationError` if one is invalid. The message omits values of secrets."""
        other_kind, unusable = ("a command", _COMMAND_OPTIONS) if self.address.is_web else ("a URL", _URL_OPTIONS)
        for option in unusable:
            if options[option]:
                raise DeclarationError(
                    f"`{option}` of `{self!r}` can only be used if the server is {other_kind}. Remove `{option}`."
                )
        try:
            return _ServerOptions.model_validate(options)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
        option, *keys = map(str, problem["loc"])
        value = options[option]
        got = f"got a `{type(value).__name__}`" if option in _SECRET_OPTIONS else f"got {excerpt(value)}"
        if keys and option in ("env", "headers"):
            got = f"but {excerpt(keys[0])} is wrong: {problem['msg']}"
        raise DeclarationError(
            f"`{option}` of `{self!r}` must {_ServerOptions.model_fields[option].description}, {got}."
        )

    # Opening and closing

    def __enter__(self) -> MCPServer:
        OwnerLoop.for_servers().wait(self._acquire)
        return self

    def __exit__(self, *_: object) -> None:
        OwnerLoop.for_servers().wait(self._release)

    async def __aenter__(self) -> MCPServer:
        await OwnerLoop.for_servers().run(self._acquire)
        return self

    async def __aexit__(self, *_: object) -> None:
        await OwnerLoop.for_servers().run(self._release)

    @property
    def _state(self) -> _ServerState:
        """The connections and their users. A forked child has neither the event loop nor the connections."""
        if self._last_state.process != os.getpid():
            self._last_state = _ServerState()
        return self._last_state

    async def _acquire(self) -> None:
        self._state.users += 1

    async def _release(self) -> None:
        state = self._state
        if state.users == 0:  # A forked child may exit the `with` of its parent.
            return
        state.users -= 1
        if state.users == 0:
            connections, state.connections = list(state.connections.values()), {}
            await asyncio.gather(*[connection.close() for connection in connections])

    async def _get_connection(self, can_ask: bool) -> Connection:
        """Return the open connection, or open a new connection.

        There is one connection for runs with `on_human` (`can_ask` is True) and another one for runs without it.
        """
        state = self._state
        if (known := state.usable_connection(can_ask)) is not None:
            return known
        async with state.lock:
            if (known := state.usable_connection(can_ask)) is not None:  # Another call opened it meanwhile.
                return known
            self._check_in_use()
            if (lost := state.connections.get(can_ask)) is not None:
                await lost.close()
            connection = await self._open(can_ask)
            if state.users == 0:  # All users have left meanwhile, so only this code can close the connection.
                await connection.close()
            self._check_in_use()
            state.connections[can_ask] = connection
            return connection

    def _check_in_use(self) -> None:
        if self._state.users == 0:
            raise AcornError(
                f"`{self!r}` is not open. Call its tools in a run of a module that has the server in `tools`, or "
                f"inside of `with server:`."
            )

    async def _open(self, can_ask: bool) -> Connection:
        """Open a new connection.

        If the server process exits because it does not support the newer MCP protocol, acorn starts the process again
        with the older protocol.
        """
        with loading_sdk():
            from acorn.mcp.connection import Connection

        state, is_process = self._state, not self.address.is_web
        while True:
            connection = Connection(
                self.address, self._options.connect_timeout, can_ask=can_ask, on_progress=self._options.on_progress
            )
            try:
                await connection.open(is_legacy=state.is_legacy)
            except AcornError:
                state.is_legacy = is_process and connection.ended_early and not state.is_legacy
                if not state.is_legacy:
                    raise
            else:
                state.is_legacy = is_process and connection.is_legacy
                return connection

    # Tools

    async def tools(self) -> list[Tool]:
        """Request the list of tools from the server, and return the tools that the current run may call."""
        tools: list[Tool] = await OwnerLoop.for_servers().run(partial(self._list_tools, can_ask_here()))
        _check_inherited_names(tools)
        return tools

    async def _list_tools(self, can_ask: bool) -> list[Tool]:
        known = self._state.connections.get(can_ask)
        connection = await self._get_connection(can_ask)
        if connection is known:
            try:
                await connection.list_again()
            except AcornError:
                if not connection.is_lost:
                    raise
                connection = await self._get_connection(can_ask)  # The session may have ended meanwhile.
        label, options = self.address.label, self._options
        approve = () if callable(options.approve) else options.approve
        allowed = definitions.allowed_tools(connection.definitions, options.allow, approve, label)
        if options.pin is not None:
            definitions.check_pinned(options.pin, f"{options.prefix}{self.address.key}", allowed)
        known_tools = self._state.tools
        tools: list[Tool] = []
        for name, definition in definitions.tool_names(allowed, options.prefix, label).items():
            if definition.fingerprint not in known_tools:
                known_tools[definition.fingerprint] = self._new_tool(name, definition)
            tools.append(known_tools[definition.fingerprint])
        return tools

    def _new_tool(self, name: str, definition: Definition) -> Tool:
        label, approve = self.address.label, self._options.approve

        def call(**arguments: Any) -> Any:
            return _ServerCall(
                lambda loop: partial(
                    self._call, definition, arguments, Caller.here(name, arguments, self._options.timeout, loop)
                )
            )

        clean_description = definitions.clean(definition.description)
        call.__name__ = call.__qualname__ = name
        call.is_loop_bound = True  # type: ignore[attr-defined]
        marked = tool(
            name=name,
            description=definitions.truncate(clean_description, self._options.max_description).strip() or None,
            schema=definitions.safe_schema(definition, self._options.max_description, label),
            once=True,  # The effects of the tool are unknown, and the hints of the server cannot be trusted.
            approval=partial(approve, definition.name) if callable(approve) else definition.name in approve,
        )(call)
        where = f"`{name}` of the MCP server `{label}` (its `prefix` can change the name)"
        try:
            return new_tool(marked, where)
        except DeclarationError as error:
            raise AcornError(
                f"The MCP server `{label}` describes the arguments of `{name}` with an invalid schema, so acorn cannot "
                f"validate them. To exclude the tool, set `allow` to the names of the other tools. {error}"
            ) from error

    async def _call(self, definition: Definition, arguments: JsonObject, caller: Caller) -> object:
        try:
            result = await self._call_once(definition, arguments, caller)
        except NotCalledError:
            result = await self._call_once(definition, arguments, caller)
        return definitions.tool_output(result, definition, self._options.max_result, self.address.redact)

    async def _call_once(self, definition: Definition, arguments: JsonObject, caller: Caller) -> types.CallToolResult:
        connection = await self._get_connection(caller.on_human is not None)
        if all(current.fingerprint != definition.fingerprint for current in connection.definitions):
            raise ServerError(
                f"the MCP server `{self.address.label}` changed the definition of `{definition.name}` during "
                f"the run, so acorn did not call it. Start a new run to use the new definition."
            )
        return await connection.call(definition, arguments, caller)


class _ServerCall(LoopBoundCall):
    """A prepared tool call. It starts when a coroutine awaits it, or when sync code calls `wait`."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[OwnerLoop | None], Callable[[], Awaitable[Any]]]) -> None:
        self._make = make

    def __await__(self) -> Any:
        return OwnerLoop.for_servers().run(self._make(OwnerLoop.here())).__await__()

    def wait(self) -> Any:
        return OwnerLoop.for_servers().wait(self._make(None))


def _check_inherited_names(tools: Sequence[Tool]) -> None:
    """Raise `ToolConflictError` if a tool of the server has the same name as a tool that a branch inherits.

    A branch may replace inherited tools only with tools that it declares itself.
    """
    if (machine := current_machine()) is None:
        return
    inherited = {tool.name: tool for tool in machine.plan.inherited}
    for listed in tools:
        other = inherited.get(listed.name)
        if other is not None and other.function is not listed.function:
            raise ToolConflictError(
                f"Tool '{listed.name}' of `{machine.spec.owner}` is defined twice: as {other.where} and as "
                f"{listed.where}. Set `prefix`, or use `allow=[...]` to leave the tool out."
            )


# The rules of the options


def _check_server(server: object) -> None:
    if not isinstance(server, str) or not server.strip():
        raise DeclarationError(f"`server` of an `MCPServer` must be a command or a URL, got {excerpt(server)}.")
    scheme, mark, _ = server.partition("://")
    try:
        is_valid = not mark or (scheme.lower() in ("http", "https") and bool(urlsplit(server).hostname))
    except ValueError:
        is_valid = False
    if not is_valid:
        raise DeclarationError("`server` of an `MCPServer` must be a command or an `http` or `https` URL.")


def _check_line(text: str) -> str:
    if _LINE_END.search(text):
        raise ValueError("the value contains a line end")
    return text


def _check_auth(auth: object) -> object:
    if isinstance(auth, str | bytes | Mapping):
        raise ValueError("the value is not an object that signs requests")
    return auth


def _check_pin(path: Path) -> Path:
    if not path.name:
        raise ValueError("the path is empty")
    return path


def _check_approve(approve: Approve) -> Approve:
    try:
        inspect.signature(approve).bind("name", {})
    except TypeError as error:
        raise ValueError(str(error)) from error
    if is_async(approve):
        raise ValueError("the function is async")
    return approve


_COMMAND_OPTIONS = ("args", "env", "cwd")
_URL_OPTIONS = ("headers", "auth")
_SECRET_OPTIONS = ("env", "headers", "auth")
_Line = Annotated[str, AfterValidator(_check_line)]
_Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False, description="be a number greater than 0")]
_Count = Annotated[int, Field(strict=True, gt=0, description="be an integer greater than 0")]
_Lines = Annotated[dict[_Line, _Line] | None, Field(description="be a dict of strings without line ends")]


class _ServerOptions(BaseModel):
    """The options of an `MCPServer`, with the rules for error messages as descriptions."""

    args: tuple[str, ...] = Field(repr=False, description="be a list of strings")
    env: _Lines = Field(repr=False)
    cwd: DirectoryPath | None = Field(description="be an existing folder")
    headers: _Lines = Field(repr=False)
    auth: Annotated[Any, AfterValidator(_check_auth)] = Field(
        repr=False,
        description="be an object that signs requests, such as the SDK's `OAuthClientProvider` (set a key with "
        '`headers={"Authorization": "Bearer ..."}`)',
    )
    prefix: str = Field(pattern="^[A-Za-z0-9_-]*$", description="consist of letters, digits, `_` and `-`")
    allow: tuple[str, ...] | None = Field(description="be a list of strings")
    approve: tuple[str, ...] | Annotated[Approve, AfterValidator(_check_approve)] = Field(
        description="be a set of tool names, or a sync function that receives the tool name and the arguments"
    )
    pin: Annotated[Path, AfterValidator(_check_pin)] | None = Field(description="be the path of a file")
    timeout: _Seconds
    """The maximum seconds of a call in which the server sends neither a result nor progress."""
    connect_timeout: _Seconds
    on_progress: Callable[..., object] | None = Field(description="be a function")
    max_description: _Count
    max_result: _Count
