"""`MCPServer`, a tool source (an object in `tools` that provides tools) for the tools of an MCP server.

All connections use one private event loop, so that sync, async and concurrent runs can share them. A run opens the
connection that it needs, and closes the connection when the run ends. `with server:` keeps the connection open for
several runs. Only code on the private event loop reads and changes the state of a connection.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import urlsplit

from acorn import tool
from acorn._inside import Tool, excerpt, is_tool_name, new_tool
from acorn._inside.runs import LoopBoundCall, OwnerLoop, current_machine, is_async
from acorn.errors import AcornError, DeclarationError, ToolConflictError
from acorn.mcp.address import ServerAddress, loading_sdk
from acorn.mcp.elicitation import Caller, Progress, can_ask_here
from acorn.mcp.tools import (
    Definition,
    NotCalledError,
    SdkResult,
    ServerError,
    allowed_tools,
    check_offered,
    check_pinned,
    safe_description,
    safe_schema,
    tool_names,
    tool_output,
)
from acorn.types import JsonObject

if TYPE_CHECKING:
    from acorn.mcp.connection import Connection

_LINE_END = re.compile(r"[\x00\r\n]")
Approve = Callable[[str, JsonObject], object]
"""A function that receives a tool name and the arguments of a call, and returns whether the call needs approval."""


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
        folder = None if cwd is None else str(cwd)
        self.address = ServerAddress(_check_server(server), _check_strings(args, "args"), env, folder, headers, auth)
        self.prefix = prefix
        self.allow = None if allow is None else _check_strings(allow, "allow")
        self.approve: tuple[str, ...] | Approve = approve if callable(approve) else _check_strings(approve, "approve")
        self.pin = None if pin is None else _pin_path(pin)
        self.timeout = timeout
        """The maximum seconds of a call in which the server sends neither a result nor progress."""
        self.connect_timeout = connect_timeout
        self.on_progress = on_progress
        self.max_description = max_description
        self.max_result = max_result
        self._check_arguments()
        self._reset()

    def __repr__(self) -> str:
        return f"MCPServer({self.address.label!r})"

    @property
    def asks_people(self) -> bool:
        """True if a tool call may need approval by a person.

        A run checks this before it starts, because it needs `on_human` or a store to request an approval.
        """
        return bool(self.approve)

    def _check_arguments(self) -> None:
        """Raise `DeclarationError` if an argument of `MCPServer` is invalid."""
        address = self.address
        for option in ("headers", "auth") if not address.is_web else ("args", "env", "cwd"):
            if getattr(address, option):
                kind = "a URL" if option in ("headers", "auth") else "a command"
                raise DeclarationError(
                    f"`{option}` of `{self!r}` can only be used if the server is {kind}. Remove `{option}`."
                )
        mappings: tuple[tuple[str, object], ...] = (("env", address.env), ("headers", address.headers))
        for option, mapping in mappings:
            if mapping is not None and not isinstance(mapping, Mapping):
                raise DeclarationError(
                    f"`{option}` of `{self!r}` must be a dict of strings, got a {_type_name(mapping)}."
                )
            for name, value in (mapping or {}).items():  # The values may be keys, so the message omits them.
                if not isinstance(name, str) or not isinstance(value, str) or _LINE_END.search(name + value):
                    problem = "contains a line end" if isinstance(value, str) else f"has the type {_type_name(value)}"
                    raise DeclarationError(
                        f"`{option}` of `{self!r}` must be a dict of strings without line ends, but the value of "
                        f"{excerpt(name)} {problem}."
                    )
        auth_type = _type_name(address.auth)
        if isinstance(address.auth, str | bytes | Mapping):
            raise DeclarationError(
                f"`auth` of `{self!r}` must be an object that signs requests, such as the SDK's `OAuthClientProvider`, "
                f'got a {auth_type}. Set a key with `headers={{"Authorization": "Bearer ..."}}`.'
            )
        if address.cwd is not None and not os.path.isdir(address.cwd):
            raise DeclarationError(f"`cwd` of `{self!r}` must be an existing folder, got {excerpt(address.cwd)}.")
        if callable(self.approve) and not _accepts_name_and_arguments(self.approve):
            raise DeclarationError(
                f"`approve` of `{self!r}` must be a set of tool names, or a sync function that receives the tool name "
                f"and the arguments, got "
                f"{excerpt(self.approve)}."
            )
        prefix: object = self.prefix
        if not isinstance(prefix, str) or (self.prefix and not is_tool_name(self.prefix)):
            raise DeclarationError(
                f"`prefix` of `{self!r}` must consist of letters, digits, `_` and `-`, got {excerpt(self.prefix)}."
            )
        for option in ("max_description", "max_result"):
            if not isinstance(getattr(self, option), int):
                value = excerpt(getattr(self, option))
                raise DeclarationError(f"`{option}` of `{self!r}` must be an integer, got {value}.")
        for option in ("timeout", "connect_timeout", "max_description", "max_result"):
            number: object = getattr(self, option)
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
                raise DeclarationError(
                    f"`{option}` of `{self!r}` must be a number greater than 0, got {excerpt(number)}."
                )
        if self.on_progress is not None and not callable(self.on_progress):
            raise DeclarationError(f"`on_progress` of `{self!r}` must be a function, got {excerpt(self.on_progress)}.")

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

    def _reset(self) -> None:
        self._process = os.getpid()
        self._users = 0
        self._connections: dict[bool, Connection] = {}
        """The connection for runs with `on_human` (True), and the connection for runs without it (False).

        A server learns at the start of a session whether it may request human input."""
        self._is_legacy = False
        """Whether to use the older protocol, because some servers do not answer a request of the newer protocol."""
        self._open_lock: asyncio.Lock | None = None
        self._tools: dict[str, Tool] = {}
        """A dict that maps the fingerprints of definitions to tools."""

    async def _acquire(self) -> None:
        if self._process != os.getpid():  # A forked child has neither the event loop nor the connections.
            self._reset()
        self._users += 1

    async def _release(self) -> None:
        if self._process != os.getpid() or self._users == 0:  # A forked child may exit the `with` of its parent.
            return
        self._users -= 1
        if self._users == 0:
            connections, self._connections = list(self._connections.values()), {}
            await asyncio.gather(*[connection.close() for connection in connections])

    async def _get_connection(self, can_ask: bool) -> Connection:
        """Return the open connection, or open a new connection.

        There is one connection for runs with `on_human` (`can_ask` is True) and another one for runs without it.
        """
        if self._process != os.getpid():
            self._reset()
        known = self._connections.get(can_ask)
        if known is not None and not known.is_lost:
            return known
        if self._open_lock is None:
            self._open_lock = asyncio.Lock()
        async with self._open_lock:
            known = self._connections.get(can_ask)  # Another call may have opened the connection meanwhile.
            if known is not None and not known.is_lost:
                return known
            self._check_in_use()
            if known is not None:
                await known.close()
            connection = await self._open(can_ask)
            if self._users == 0:  # All users have left meanwhile, so only this code can close the connection.
                await connection.close()
            self._check_in_use()
            self._connections[can_ask] = connection
            return connection

    def _check_in_use(self) -> None:
        if self._users == 0:
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

        is_process = not self.address.is_web
        while True:
            connection = Connection(self.address, self.connect_timeout, can_ask=can_ask, on_progress=self.on_progress)
            try:
                await connection.open(is_legacy=self._is_legacy)
            except AcornError:
                self._is_legacy = is_process and connection.ended_early and not self._is_legacy
                if not self._is_legacy:
                    raise
            else:
                self._is_legacy = is_process and connection.is_legacy
                return connection

    # Tools

    async def tools(self) -> list[Any]:
        """Request the list of tools from the server, and return the tools that the current run may call."""
        tools: list[Tool] = await OwnerLoop.for_servers().run(partial(self._list_tools, can_ask_here()))
        _check_inherited_names(tools)
        return [_ListedTool(tool) for tool in tools]

    async def _list_tools(self, can_ask: bool) -> list[Tool]:
        known = self._connections.get(can_ask)
        connection = await self._get_connection(can_ask)
        if connection is known:
            try:
                await connection.list_again()
            except AcornError:
                if not connection.is_lost:
                    raise
                connection = await self._get_connection(can_ask)  # The session may have ended meanwhile.
        offered = list(connection.definitions.values())
        label = self.address.label
        allowed = allowed_tools(offered, self.allow, label)
        if not callable(self.approve):
            check_offered(self.approve, allowed, "approve", label)
        if self.pin is not None:
            check_pinned(self.pin, f"{self.prefix}{self.address.key}", allowed)
        definitions = tool_names(allowed, self.prefix, label)
        return [self._get_tool(name, definition) for name, definition in definitions.items()]

    def _get_tool(self, name: str, definition: Definition) -> Tool:
        """Return the tool for a definition. The tool is created once and reused until the definition changes."""
        if definition.fingerprint not in self._tools:
            self._tools[definition.fingerprint] = self._new_tool(name, definition)
        return self._tools[definition.fingerprint]

    def _new_tool(self, name: str, definition: Definition) -> Tool:
        label, approve = self.address.label, self.approve

        def call(**arguments: Any) -> Any:
            return _ServerCall(
                lambda loop: partial(
                    self._call, definition, arguments, Caller.here(name, arguments, self.timeout, loop)
                )
            )

        call.__name__ = call.__qualname__ = name
        call.is_loop_bound = True  # type: ignore[attr-defined]
        marked = tool(
            name=name,
            description=safe_description(definition, self.max_description) or None,
            schema=safe_schema(definition, self.max_description, label),
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
        return tool_output(result, definition, self.max_result, self.address.redact)

    async def _call_once(self, definition: Definition, arguments: JsonObject, caller: Caller) -> SdkResult:
        connection = await self._get_connection(caller.on_human is not None)
        current = connection.definitions.get(definition.name)
        if current is None or current.fingerprint != definition.fingerprint:
            raise ServerError(
                f"the MCP server `{self.address.label}` has changed the definition of `{definition.name}` while the "
                f"run was under way; it was not called"
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


class _ListedTool:
    """A wrapper around a tool in the list that `MCPServer.tools` returns."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def __acorn_as_tool__(self, where: str, owner: str) -> Tool:
        return self._tool


def _check_inherited_names(tools: Sequence[Tool]) -> None:
    """Raise `ToolConflictError` if a tool of the server has the same name as a tool or branch that a branch inherits.

    A branch may replace inherited tools only with tools that it declares itself.
    """
    machine = current_machine()
    if machine is None:
        return
    inherited = {tool.name: tool for tool in machine.plan.inherited}
    for listed in tools:
        other = inherited.get(listed.name)
        if listed.name in machine.plan.branches or (other is not None and other.function is not listed.function):
            where = f"as {other.where}" if other is not None else "as a branch"
            raise ToolConflictError(
                f"Tool '{listed.name}' of `{machine.spec.owner}` is defined twice: {where} and as {listed.where}. "
                f"Set `prefix`, or use `allow=[...]` to leave the tool out."
            )


def _check_server(server: object) -> str:
    if not isinstance(server, str) or not server.strip():
        raise DeclarationError(f"`server` of an `MCPServer` must be a command or a URL, got {excerpt(server)}.")
    _check_url(server)
    return server


def _check_url(target: str) -> None:
    scheme, mark, _ = target.partition("://")
    if not mark:
        return
    try:
        is_web = scheme.lower() in ("http", "https") and bool(urlsplit(target).hostname)
    except ValueError:
        is_web = False
    if not is_web:
        raise DeclarationError("`server` of an `MCPServer` must be a command or an `http` or `https` URL.")


def _pin_path(pin: object) -> Path:
    if not isinstance(pin, str | Path) or not str(pin):
        raise DeclarationError(f"`pin` of an `MCPServer` must be the path of a file, got {excerpt(pin)}.")
    return Path(pin)


def _accepts_name_and_arguments(function: Callable[..., object]) -> bool:
    if is_async(function):
        return False
    try:
        inspect.signature(function).bind("name", {})
    except TypeError:
        return False
    except ValueError:  # The function has no signature.
        return True
    return True


def _type_name(value: object) -> str:
    return f"`{type(value).__name__}`"


def _check_strings(values: object, option: str) -> tuple[str, ...]:
    items = tuple(values) if _is_collection(values) else None
    strings = tuple(item for item in items or () if isinstance(item, str))
    if items is None or len(strings) < len(items):
        expected = (
            "a set of tool names, or a function that receives the tool name and the arguments"
            if option == "approve"
            else "a list of strings"
        )
        raise DeclarationError(f"`{option}` of an `MCPServer` must be {expected}, got {excerpt(values)}.")
    return strings


def _is_collection(values: object) -> TypeGuard[Iterable[object]]:
    return isinstance(values, Iterable) and not isinstance(values, str | Mapping)
