"""`MCPServer`: a server in `tools`, its tools beside those of the user, on the user's terms.

Connections live on a loop of their own, whatever the runs that use them are: sync, async, side by side. A run opens
what it needs and closes it in the end; inside of `with server:` it stays open over many. All state is touched on that
loop only.
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
from typing import Any
from urllib.parse import urlsplit

from acorn import tool
from acorn._inside import (
    LoopBoundCall,
    OwnerLoop,
    Tool,
    current_machine,
    excerpt,
    is_async,
    is_tool_name,
    new_tool,
)
from acorn.errors import AcornError, DeclarationError, ToolConflictError
from acorn.mcp.address import ServerAddress
from acorn.mcp.connection import Connection, NotCalledError, Progress
from acorn.mcp.elicitation import Caller, asks_people_here
from acorn.mcp.tools import (
    Definition,
    ServerError,
    admitted,
    check_offered,
    check_pinned,
    output_of,
    safe_description,
    safe_schema,
    tool_names,
)
from acorn.types import JsonObject

_NO_HEADER = re.compile(r"[\x00\r\n]")
Approve = Callable[[str, JsonObject], object]
"""Whether a call of the tool, by the server's name, with these arguments needs a person's yes."""


class MCPServer:
    """The tools of an MCP server: a command that is started, or the address of one that runs.

        tools = [
            MCPServer("mcp-server-git", args=["--repository", "."], approve={"git_commit"}),
            MCPServer("https://example.com/mcp", headers={"Authorization": "Bearer ..."}, prefix="shop_"),
        ]

    A run opens it and closes it in the end; `with server:` keeps it open over runs.
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
        where = None if cwd is None else str(cwd)
        self.address = ServerAddress(_text(server, "server"), _texts(args, "args"), env, where, headers, auth)
        self.prefix = prefix
        self.allow = None if allow is None else _texts(allow, "allow")
        self.approve: tuple[str, ...] | Approve = approve if callable(approve) else _texts(approve, "approve")
        self.pin = None if pin is None else _path(pin)
        self.timeout = timeout
        """Seconds that a server may be silent in a call: without a result and without progress."""
        self.connect_timeout = connect_timeout
        self.on_progress = on_progress
        self.max_description = max_description
        self.max_result = max_result
        self._check()
        self._begin_anew()

    def __repr__(self) -> str:
        return f"MCPServer({self.address.label!r})"

    @property
    def asks_people(self) -> bool:
        """Whether a call may wait for a person, which a run has to be prepared for before it begins."""
        return bool(self.approve)

    def _check(self) -> None:
        address = self.address
        _check_target(address.target)
        for option in ("headers", "auth") if not address.is_web else ("args", "env", "cwd"):
            if getattr(address, option):
                which = "an address" if option in ("headers", "auth") else "a command"
                raise DeclarationError(f"`{option}` of `{self!r}` is for {which}; leave it out.")
        texts: tuple[tuple[str, Any], ...] = (("env", address.env), ("headers", address.headers))
        for option, given in texts:
            if given is not None and not isinstance(given, Mapping):
                raise DeclarationError(f"`{option}` of `{self!r}` must be a dict of strings, got a {_kind(given)}.")
            for name, value in (given or {}).items():  # whose values may be keys, and are not shown
                if not isinstance(name, str) or not isinstance(value, str) or _NO_HEADER.search(name + value):
                    raise DeclarationError(
                        f"`{option}` of `{self!r}` must be a dict of strings without line ends; {excerpt(name)} has "
                        f"a {_kind(value)}{' with one' if isinstance(value, str) else ''}."
                    )
        if isinstance(address.auth, str | bytes | Mapping):
            raise DeclarationError(
                f"`auth` of `{self!r}` must be an object that signs requests, as the SDK's `OAuthClientProvider`, got "
                f'a {_kind(address.auth)}; a key is given as `headers={{"Authorization": "Bearer ..."}}`.'
            )
        if address.cwd is not None and not os.path.isdir(address.cwd):
            raise DeclarationError(f"`cwd` of `{self!r}` is no folder: {excerpt(address.cwd)}.")
        if callable(self.approve) and not _takes_two(self.approve):
            raise DeclarationError(
                f"`approve` of `{self!r}` must be a set of names or a plain function of name and arguments, got "
                f"{excerpt(self.approve)}."
            )
        prefix: Any = self.prefix
        if not isinstance(prefix, str) or (self.prefix and not is_tool_name(self.prefix)):
            raise DeclarationError(
                f"`prefix` of `{self!r}` must be letters, digits, `_` and `-`, got {excerpt(self.prefix)}."
            )
        for option in ("max_description", "max_result"):
            if not isinstance(getattr(self, option), int):
                words = excerpt(getattr(self, option))
                raise DeclarationError(f"`{option}` of `{self!r}` must be a whole number, got {words}.")
        for option in ("timeout", "connect_timeout", "max_description", "max_result"):
            number: Any = getattr(self, option)
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
                raise DeclarationError(f"`{option}` of `{self!r}` must be a number above 0, got {excerpt(number)}.")
        if self.on_progress is not None and not callable(self.on_progress):
            raise DeclarationError(f"`on_progress` of `{self!r}` must be a function, got {excerpt(self.on_progress)}.")

    # Opening and closing

    def __enter__(self) -> MCPServer:
        OwnerLoop.for_servers().wait(self._hold)
        return self

    def __exit__(self, *_: object) -> None:
        OwnerLoop.for_servers().wait(self._let_go)

    async def __aenter__(self) -> MCPServer:
        await OwnerLoop.for_servers().run(self._hold)
        return self

    async def __aexit__(self, *_: object) -> None:
        await OwnerLoop.for_servers().run(self._let_go)

    def _begin_anew(self) -> None:
        self._process = os.getpid()
        self._users = 0
        self._connections: dict[bool, Connection] = {}
        """One for runs that have somebody to ask, one for those that have not: a server is told so at the beginning."""
        self._is_older = False
        """Whether the process is known to speak the older protocol: some are long silent when they are asked."""
        self._turn: asyncio.Lock | None = None
        self._made: dict[str, Tool] = {}
        """The tools by the fingerprints of their definitions, so that the same one is made once."""

    async def _hold(self) -> None:
        if self._process != os.getpid():  # a forked child has neither the loop nor what it holds
            self._begin_anew()
        self._users += 1

    async def _let_go(self) -> None:
        if self._process != os.getpid() or self._users == 0:  # a forked child may leave what its parent has entered
            return
        self._users -= 1
        if self._users == 0:
            open_ones, self._connections = list(self._connections.values()), {}
            await asyncio.gather(*[connection.close() for connection in open_ones])

    async def _connected(self, may_ask: bool) -> Connection:
        """The connection for such runs, opened or opened anew where that is needed."""
        if self._process != os.getpid():
            self._begin_anew()
        known = self._connections.get(may_ask)
        if known is not None and not known.is_lost:
            return known
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            known = self._connections.get(may_ask)  # somebody else may have opened it meanwhile
            if known is not None and not known.is_lost:
                return known
            self._check_held()
            if known is not None:
                await known.close()
            made = await self._opened(may_ask)
            if self._users == 0:  # left meanwhile, and nobody would close it
                await made.close()
            self._check_held()
            self._connections[may_ask] = made
            return made

    def _check_held(self) -> None:
        if self._users == 0:
            raise AcornError(
                f"`{self!r}` is not open; its tools work in a run of a module that has it in `tools`, or inside of "
                f"`with server:`."
            )

    async def _opened(self, may_ask: bool) -> Connection:
        """Some servers end at the first question of the newer protocol; those are started anew with the older one."""
        is_process = not self.address.is_web
        while True:
            times = (self.connect_timeout, self.timeout)
            made = Connection(self.address, *times, may_ask=may_ask, on_progress=self.on_progress)
            try:
                await made.open(is_older=self._is_older)
            except AcornError:
                self._is_older = is_process and made.has_ended and not self._is_older
                if not self._is_older:
                    raise
            else:
                self._is_older = is_process and made.is_older
                return made

    # Its tools

    async def tools(self) -> list[Any]:
        """What a run, or whoever has it open, may call."""
        made: list[Tool] = await OwnerLoop.for_servers().run(partial(self._list, asks_people_here()))
        _check_shadows(made)
        return [_Listed(each) for each in made]

    async def _list(self, may_ask: bool) -> list[Tool]:
        known = self._connections.get(may_ask)
        connection = await self._connected(may_ask)
        if connection is known:
            try:
                await connection.list_again()
            except AcornError:
                if not connection.is_lost:
                    raise
                connection = await self._connected(may_ask)  # as calls do: a session may have ended meanwhile
        offered = list(connection.definitions.values())
        label = self.address.label
        let_in = admitted(offered, self.allow, label)
        if not callable(self.approve):
            check_offered(self.approve, let_in, "approve", label)
        if self.pin is not None:
            check_pinned(self.pin, f"{self.prefix}{self.address.key}", let_in)
        return [self._made_once(name, each) for name, each in tool_names(let_in, self.prefix, label).items()]

    def _made_once(self, name: str, definition: Definition) -> Tool:
        if definition.fingerprint not in self._made:
            self._made[definition.fingerprint] = self._make(name, definition)
        return self._made[definition.fingerprint]

    def _make(self, name: str, definition: Definition) -> Tool:
        label, approve = self.address.label, self.approve

        def call(**arguments: Any) -> Any:
            return _Called(lambda home: partial(self._call, definition, arguments, Caller.here(name, arguments, home)))

        call.__name__ = call.__qualname__ = name
        call.is_loop_bound = True  # type: ignore[attr-defined]
        marked = tool(
            name=name,
            description=safe_description(definition, self.max_description) or None,
            schema=safe_schema(definition, self.max_description, label),
            once=True,  # nobody knows what a server's tool does, and its hints are only its word
            approval=partial(approve, definition.name) if callable(approve) else definition.name in approve,
        )(call)
        where = f"`{name}` of the MCP server `{label}`, which a `prefix` would keep apart"
        try:
            return new_tool(marked, where)
        except DeclarationError as error:
            raise AcornError(
                f"The MCP server `{label}` describes the arguments of `{name}` wrongly, so that nothing can be checked "
                f"against it; leave the tool out by `allow=[...]`. {error}"
            ) from error

    async def _call(self, definition: Definition, arguments: JsonObject, caller: Caller) -> Any:
        try:
            result = await self._call_once(definition, arguments, caller)
        except NotCalledError:
            result = await self._call_once(definition, arguments, caller)
        return output_of(result, definition, self.max_result, self.address.hidden)

    async def _call_once(self, definition: Definition, arguments: JsonObject, caller: Caller) -> Any:
        connection = await self._connected(caller.on_human is not None)
        now = connection.definitions.get(definition.name)
        if now is None or now.fingerprint != definition.fingerprint:
            raise ServerError(
                f"the MCP server `{self.address.label}` has changed the definition of `{definition.name}` while the "
                f"run was under way; it was not called"
            )
        return await connection.call(definition, arguments, caller)


class _Called(LoopBoundCall):
    """A call that is made when somebody waits for it, on a loop or without one."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[OwnerLoop | None], Callable[[], Awaitable[Any]]]) -> None:
        self._make = make

    def __await__(self) -> Any:
        return OwnerLoop.for_servers().run(self._make(OwnerLoop.here())).__await__()

    def wait(self) -> Any:
        return OwnerLoop.for_servers().wait(self._make(None))


class _Listed:
    """A tool that is made already, in the list of a source."""

    def __init__(self, made: Tool) -> None:
        self._made = made

    def __acorn_as_tool__(self, where: str, owner: str) -> Tool:
        return self._made


def _check_shadows(made: Sequence[Tool]) -> None:
    """A server must not take the place of a tool that a branch has from the run above, as a tool of its own may."""
    machine = current_machine()
    if machine is None:
        return
    above = {each.name: each for each in machine.plan.inherited}
    for each in made:
        other = above.get(each.name)
        if each.name in machine.plan.branches or (other is not None and other.function is not each.function):
            where = f"as {other.where}" if other is not None else "as a branch"
            raise ToolConflictError(
                f"Tool '{each.name}' of `{machine.spec.owner}` is defined twice: {where} and as {each.where}; or leave "
                f"the tool out by `allow=[...]`."
            )


def _text(value: Any, option: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DeclarationError(f"`{option}` of an `MCPServer` must be a command or an address, got {excerpt(value)}.")
    return value


def _check_target(target: str) -> None:
    scheme, mark, _ = target.partition("://")
    if not mark:
        return
    try:
        is_web = scheme.lower() in ("http", "https") and bool(urlsplit(target).hostname)
    except ValueError:
        is_web = False
    if not is_web:
        raise DeclarationError("`server` of an `MCPServer` must be a command, or an address with `http` or `https`.")


def _path(pin: Any) -> Path:
    if not isinstance(pin, str | Path) or not str(pin):
        raise DeclarationError(f"`pin` of an `MCPServer` must be the path of a file, got {excerpt(pin)}.")
    return Path(pin)


def _takes_two(function: Callable[..., Any]) -> bool:
    if is_async(function):
        return False
    try:
        inspect.signature(function).bind("name", {})
    except TypeError:
        return False
    except ValueError:  # one that does not say what it takes
        return True
    return True


def _kind(value: Any) -> str:
    return f"`{type(value).__name__}`"


def _texts(values: Any, option: str) -> tuple[str, ...]:
    listed = () if isinstance(values, str | Mapping) or not isinstance(values, Iterable) else tuple(values)
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable) or not _all_texts(listed):
        what = "a set of names, or a function of name and arguments" if option == "approve" else "a list of strings"
        raise DeclarationError(f"`{option}` of an `MCPServer` must be {what}, got {excerpt(values)}.")
    return listed


def _all_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(each, str) for each in values)
