"""The address of a server and its transport: a command to start, or a URL.

This is the only module that creates transports of the SDK. The label of a server never contains a key.
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
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from acorn._inside import find_secrets, redact
from acorn.errors import AcornError
from acorn.mcp.process import ServerLog, Watcher, start_process

if TYPE_CHECKING:
    import httpx2

Streams = tuple[Any, Any]
"""The streams from and to a server, in the order of the SDK."""

_MAY_BE_KEY = re.compile(r"(?=.*[0-9])[^\s/\\]{8,}|[^\s/\\]{16,}")
"""Long words and words with a digit, except paths."""
_KEY_IN_PATH = re.compile(r"(?<=/)(?=(?:[^/]*[0-9]){3})[^/]{20,}")
"""Some services give each user a secret URL."""
_URL = re.compile(r"https?://[^\s\"'<>]+")

SESSION_LOST = "Session terminated"
"""The message of the SDK if the server does not know the session."""


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
        """The server in messages, without arguments and query, which may contain keys."""
        if not self.is_web:
            return os.path.basename(self.target) or self.target
        return _safe_url(self.target)

    @property
    def key(self) -> str:
        """The server in a lock file: its label, and a hash of the parts that the label omits."""
        omitted = [*self.args, *self._path_keys()]
        if not omitted:
            return self.label
        return f"{self.label} {hashlib.sha256(json.dumps(omitted).encode()).hexdigest()[:12]}"

    def _path_keys(self) -> list[str]:
        return _KEY_IN_PATH.findall(urlsplit(self.target).path) if self.is_web else []

    def redact(self, text: str) -> str:
        """Remove the keys of the user from a text of the server."""
        return redact(text, self._secrets())

    def _secrets(self) -> set[str]:
        """Return the values with names of secrets, all headers, and variables of this server that may be keys."""
        env, headers = dict(self.env or {}), dict(self.headers or {})
        named = [*map(_assignment, self.args), *map(_option, self.args, self.args[1:])]
        own = {value for name, value in env.items() if os.environ.get(name) != value and _MAY_BE_KEY.fullmatch(value)}
        values = own | {value for value in headers.values() if len(value) >= 6} | set(self._path_keys())
        return (
            find_secrets({"headers": headers, "env": env, "target": self.target, "args": [*self.args, *named]}) | values
        )

    @asynccontextmanager
    async def transport(self, log: ServerLog | None, watcher: Watcher, timeout: float) -> AsyncGenerator[Streams]:
        """Yield the streams to and from the server. The watcher is told about their failures."""
        if self.is_web:
            lost_requests: set[object] = set()
            async with self._over_http(watcher, timeout, lost_requests) as (reading, writing):
                yield _WatchedStream(reading, watcher, lost_requests), writing
            return
        assert log is not None
        if os.name == "posix":
            from mcp.client.stdio import get_default_environment

            env = get_default_environment() | dict(self.env or {})
            async with start_process(self.target, self.args, env, self.cwd, log, watcher) as streams:
                yield streams
        else:
            async with self._over_sdk_stdio(log) as (reading, writing):
                yield _WatchedStream(reading, watcher), writing

    @asynccontextmanager
    async def _over_sdk_stdio(self, log: ServerLog) -> AsyncGenerator[Streams]:
        """Start the server with the SDK, which knows how Windows finds commands and ends child processes."""
        from mcp.client.stdio import StdioServerParameters, stdio_client

        env = None if self.env is None else dict(self.env)
        server = StdioServerParameters(command=self.target, args=list(self.args), env=env, cwd=self.cwd)
        try:
            async with stdio_client(server, errlog=log.file) as streams:
                log.close_writer()
                yield streams
        finally:
            log.close_writer()

    @asynccontextmanager
    async def _over_http(
        self, watcher: Watcher, connect_timeout: float, lost_requests: set[object]
    ) -> AsyncGenerator[Streams]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def on_response(response: httpx2.Response) -> None:
            watcher.on_http_status(response.status_code)
            request = response.request
            # In the protocol, a 404 for a session means only that the server does not know it any more.
            if response.status_code == 404 and request.method == "POST" and "mcp-session-id" in request.headers:
                lost_requests.add(json.loads(request.content).get("id"))

        # No read timeout: `CallTimeouts` limits the silence of a call and counts progress, too.
        timeout = httpx2.Timeout(min(connect_timeout, 30.0), read=None)
        hooks = {"response": [on_response]}
        headers = dict(self.headers or {})
        async with (
            httpx2.AsyncClient(headers=headers, auth=self.auth, event_hooks=hooks, timeout=timeout) as client,
            streamable_http_client(self.target, http_client=client) as streams,
        ):
            yield streams


def _safe_url(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{_KEY_IN_PATH.sub('***', parts.path)}"


def _assignment(argument: str) -> dict[str, str]:
    """Return the name and the value of `--token=x`, `TOKEN=x` or `Authorization: x`."""
    name, mark, value = re.match(r"([^=:\s]*)([=:]?)(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
    return {name: value.strip()} if mark else {}


def _option(option: str, value: str) -> dict[str, str]:
    """Return the name and the value of `--token x`."""
    return {option: value} if option.startswith("-") else {}


class _WatchedStream:
    """A stream of the SDK that reports its end and invalid messages to a watcher."""

    def __init__(self, inner: Any, watcher: Watcher, lost_requests: Collection[object] = ()) -> None:
        self._inner = inner
        self._watcher = watcher
        self._lost_requests = lost_requests
        """The requests whose session the server does not know. Servers use different messages for this."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        return await self._receive(self._inner.__anext__())

    async def receive(self) -> Any:
        return await self._receive(self._inner.receive())

    async def _receive(self, pending: Awaitable[Any]) -> Any:
        try:
            item = await pending
        except BaseException:
            self._watcher.on_lost()
            raise
        if isinstance(item, Exception):
            self._watcher.on_invalid_message()
            return item
        if self._lost_requests and getattr(item.message, "id", None) in self._lost_requests:
            item.message.error.message = SESSION_LOST
        return self._watcher.error_redactor.hide(item)

    async def __aenter__(self) -> _WatchedStream:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.__aexit__(*error)


def check_installed() -> None:
    """Raise `AcornError` if the SDK is missing or too old."""
    try:
        import mcp

        mcp.Client  # noqa: B018 - missing in version 1
        _configure_sdk_logs()
    except (ImportError, AttributeError) as error:
        message = f"MCP needs the package `mcp`, version 2 or later: `pip install 'acorn-agents[mcp]'` ({error})."
        raise AcornError(message) from error


@lru_cache(maxsize=1)
def _configure_sdk_logs() -> None:
    """Keep the logs of the SDK from the terminal if logging is not configured, and remove keys from URLs in them."""
    for name in ("mcp", "client"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    for name in ("httpx2", "mcp.client.streamable_http"):
        logging.getLogger(name).addFilter(_redact_record)


def _redact_record(record: logging.LogRecord) -> bool:
    """Remove keys from the URLs in a log record. The HTTP client logs the URL of every request at INFO."""
    record.msg, record.args = _redact_urls(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = _redact_urls(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


def _redact_urls(text: str) -> str:
    try:
        return _URL.sub(lambda match: _safe_url(match[0]), text)
    except ValueError:  # an invalid URL
        return _URL.sub("***", text)
