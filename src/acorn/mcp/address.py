"""Where a server is, and how it is reached: a command that is started, or an address on the web.

The one room that makes transports of the SDK. What is shown of a server never has a key in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from acorn._inside import find_secrets, redact
from acorn.errors import AcornError
from acorn.mcp.process import ServerLog, Watcher, start_process

_MAY_BE_KEY = re.compile(r"(?=.*[0-9])[^\s/\\]{8,}|[^\s/\\]{16,}")
"""Long words and those with a figure in them, but no paths."""
_KEY_IN_PATH = re.compile(r"(?<=/)(?=(?:[^/]*[0-9]){3})[^/]{20,}")
"""Some services give everybody an address of their own, which whoever knows it may use."""
_ADDRESS = re.compile(r"https?://[^\s\"'<>]+")

FORGOTTEN = "Session terminated"
"""How the SDK says that a server does not know the session any more."""


@dataclass(frozen=True)
class ServerAddress:
    """How to reach one server."""

    target: str = field(repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    auth: Any = field(default=None, repr=False)

    @property
    def is_web(self) -> bool:
        return self.target.lower().startswith(("http://", "https://"))

    @property
    def label(self) -> str:
        """The server in messages: neither its arguments nor a query, where keys may stand."""
        if not self.is_web:
            return os.path.basename(self.target) or self.target
        return _shown(self.target)

    @property
    def key(self) -> str:
        """The server in a lock file: told apart from others of its label by what the label leaves out, as a hash."""
        left_out = [*self.args, *self._in_path()]
        if not left_out:
            return self.label
        return f"{self.label} {hashlib.sha256(json.dumps(left_out).encode()).hexdigest()[:12]}"

    def _in_path(self) -> list[str]:
        return _KEY_IN_PATH.findall(urlsplit(self.target).path) if self.is_web else []

    def hidden(self, text: str) -> str:
        """A text of the server's without the keys that it was given."""
        return redact(text, self._secrets())

    def _secrets(self) -> set[str]:
        """What is named like one; every header; and of the variables that this server alone has, what may be one."""
        env, headers = dict(self.env or {}), dict(self.headers or {})
        named = [*map(_named, self.args), *map(_followed, self.args, self.args[1:])]
        own = {value for name, value in env.items() if os.environ.get(name) != value and _MAY_BE_KEY.fullmatch(value)}
        told = own | {value for value in headers.values() if len(value) >= 6} | set(self._in_path())
        return (
            find_secrets({"headers": headers, "env": env, "target": self.target, "args": [*self.args, *named]}) | told
        )

    @asynccontextmanager
    async def transport(self, log: ServerLog | None, watcher: Watcher, seconds: float) -> AsyncGenerator[Any]:
        """The streams to and from the server; the watcher hears what goes wrong with them."""
        if self.is_web:
            forgotten: set[Any] = set()
            async with self._over_http(watcher, seconds, forgotten) as (reading, writing):
                yield _Watched(reading, watcher, forgotten), writing
            return
        assert log is not None
        if os.name == "posix":
            from mcp.client.stdio import get_default_environment

            env = get_default_environment() | dict(self.env or {})
            async with start_process(self.target, self.args, env, self.cwd, log, watcher) as streams:
                yield streams
        else:
            async with self._by_the_sdk(log) as (reading, writing):
                yield _Watched(reading, watcher), writing

    @asynccontextmanager
    async def _by_the_sdk(self, log: ServerLog) -> AsyncGenerator[Any]:
        """On Windows, where it knows how a command is found, and how it ends with all that it has started."""
        from mcp.client.stdio import StdioServerParameters, stdio_client

        env = None if self.env is None else dict(self.env)
        server = StdioServerParameters(command=self.target, args=list(self.args), env=env, cwd=self.cwd)
        try:
            async with stdio_client(server, errlog=log.file) as streams:
                log.let_go()
                yield streams
        finally:
            log.let_go()

    @asynccontextmanager
    async def _over_http(self, watcher: Watcher, seconds: float, forgotten: set[Any]) -> AsyncGenerator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def hear(response: Any) -> None:
            watcher.answered(response.status_code)
            asked = response.request
            if response.status_code == 404 and asked.method == "POST" and "mcp-session-id" in asked.headers:
                forgotten.add(json.loads(asked.content).get("id"))  # the protocol has no other meaning for it

        # How long a call may be silent is for `timeout` to say, which hears of progress too.
        timeout = httpx2.Timeout(min(seconds, 30.0), read=None)
        options: Any = {"headers": dict(self.headers or {}), "auth": self.auth, "event_hooks": {"response": [hear]}}
        async with (
            httpx2.AsyncClient(**options, timeout=timeout) as client,
            streamable_http_client(self.target, http_client=client) as streams,
        ):
            yield streams


def _shown(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{_KEY_IN_PATH.sub('***', parts.path)}"


def _named(argument: str) -> dict[str, str]:
    """`--token=x`, `TOKEN=x` and `Authorization: x` as names with values."""
    name, mark, value = re.match(r"([^=:\s]*)([=:]?)(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
    return {name: value.strip()} if mark else {}


def _followed(option: str, value: str) -> dict[str, str]:
    """`--token x` the same."""
    return {option: value} if option.startswith("-") else {}


class _Watched:
    """A stream of the SDK's that tells when it has come to its end, and of what is no message."""

    def __init__(self, inner: Any, watcher: Watcher, forgotten: Collection[Any] = ()) -> None:
        self._inner = inner
        self._watcher = watcher
        self._forgotten = forgotten
        """The requests that were refused, since the server does not know the session; each may say so in its words."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        return await self._heard(self._inner.__anext__())

    async def receive(self) -> Any:
        return await self._heard(self._inner.receive())

    async def _heard(self, coming: Awaitable[Any]) -> Any:
        try:
            item = await coming
        except BaseException:
            self._watcher.lost()
            raise
        if isinstance(item, Exception):
            self._watcher.misheard()
            return item
        if self._forgotten and getattr(item.message, "id", None) in self._forgotten:
            item.message.error.message = FORGOTTEN
        return self._watcher.veil.over(item)

    async def __aenter__(self) -> _Watched:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)


def check_installed() -> None:
    """Say what to install where the SDK is missing, or is of the generation before."""
    try:
        import mcp

        mcp.Client  # noqa: B018 - which the generation before does not have
        _quiet()
    except (ImportError, AttributeError) as error:
        words = f"MCP needs the package `mcp`, version 2 or later: `pip install 'acorn-agents[mcp]'` ({error})."
        raise AcornError(words) from error


@lru_cache(maxsize=1)
def _quiet() -> None:
    """What the SDK logs quotes the server; where nobody has set up logging, Python would write it to the terminal."""
    for name in ("mcp", "client"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    for name in ("httpx2", "mcp.client.streamable_http"):
        logging.getLogger(name).addFilter(_without_keys)


def _without_keys(record: logging.LogRecord) -> bool:
    """The client logs the address of every request, at INFO, and keys may stand in it."""
    record.msg, record.args = _without_addresses(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = _without_addresses(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


def _without_addresses(text: str) -> str:
    try:
        return _ADDRESS.sub(lambda found: _shown(found[0]), text)
    except ValueError:  # an address that is none
        return _ADDRESS.sub("***", text)
