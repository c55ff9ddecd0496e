"""The address of a server, which is a command to start or a URL, and its logs.

The label of a server never contains a key. This module does not need the SDK.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from acorn._inside import find_secrets, redact
from acorn.errors import AcornError
from acorn.mcp.tools import Redact, clean, truncate

_MAY_BE_KEY = re.compile(r"(?=.*[0-9])[^\s/\\]{8,}|[^\s/\\]{16,}")
"""Long words and words with a digit, except paths."""
_KEY_IN_PATH = re.compile(r"(?<=/)(?=(?:[^/]*[0-9]){3})[^/]{20,}")
"""Some services give each user a secret URL."""
_URL = re.compile(r"https?://[^\s\"'<>]+")

_logger = logging.getLogger("acorn.mcp")
_MAX_LINES = 20
"""Lines of a server's log that are kept for error messages."""
_MAX_LINE = 1000


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


@contextmanager
def loading_sdk() -> Generator[None]:
    """Raise `AcornError` if the code inside imports a file that needs the SDK, and the SDK is missing or too old."""
    try:
        yield
        _configure_sdk_logs()
    except ImportError as error:
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


class ServerLog:
    """The standard error of a server process, read by a thread.

    It goes to the logger `acorn.mcp` at DEBUG, never to the terminal. The last lines are kept for error messages.
    """

    def __init__(self, server: str, redact: Redact) -> None:
        reading, writing = os.pipe()
        self.file = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close_writer`
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._server = server
        self._redact = redact
        self._thread = threading.Thread(target=self._read, args=(reading,), name="acorn-mcp-stderr", daemon=True)
        self._thread.start()

    def _read(self, descriptor: int) -> None:
        with open(descriptor, encoding="utf-8", errors="replace") as pipe:
            while line := pipe.readline(_MAX_LINE * 10):
                text = truncate(clean(line).rstrip(), _MAX_LINE)
                if text:
                    self._lines.append(text)
                    if _logger.isEnabledFor(logging.DEBUG):
                        _logger.debug("%s: %s", self._server, self._redact(text))

    def close_writer(self) -> None:
        """Close our end of the pipe, after the server has its copy or could not start."""
        self.file.close()

    async def last_lines(self, seconds: float) -> list[str]:
        """Return the last lines. For a dead server, wait at most `seconds` for the rest of its output."""
        if seconds and self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, seconds)
        return list(self._lines)
