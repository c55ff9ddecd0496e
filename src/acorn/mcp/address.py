"""The address of an MCP server (a command or a URL), the keys in the address, and the log of the server.

Messages and logs use the label of a server, which never contains a key. This module does not import the MCP SDK.
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
"""Matches a value that may be a key: 8 characters with a digit, or 16 characters, without slashes and whitespace."""
_KEY_IN_PATH = re.compile(r"(?<=/)(?=(?:[^/]*[0-9]){3})[^/]{20,}")
"""Matches a URL path segment that may be a key, because some services give each user a secret URL."""
_URL = re.compile(r"https?://[^\s\"'<>]+")

_logger = logging.getLogger("acorn.mcp")
_MAX_LINES = 20
"""The number of log lines that are stored for error messages."""
_MAX_LINE = 1000
"""The maximum length of a stored log line, in characters."""


@dataclass(frozen=True)
class ServerAddress:
    """The address of one MCP server: a command with its environment, or a URL with its headers."""

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
        """The name of the server in messages, without the arguments and the URL query, which may contain keys."""
        if not self.is_web:
            return os.path.basename(self.target) or self.target
        return _safe_url(self.target)

    @property
    def key(self) -> str:
        """The name of the server in a pin file: the label, and a hash of the parts that the label omits."""
        omitted = [*self.args, *self._path_keys()]
        if not omitted:
            return self.label
        return f"{self.label} {hashlib.sha256(json.dumps(omitted).encode()).hexdigest()[:12]}"

    def _path_keys(self) -> list[str]:
        return _KEY_IN_PATH.findall(urlsplit(self.target).path) if self.is_web else []

    def redact(self, text: str) -> str:
        """Return a text from the server with the user's keys removed."""
        return redact(text, self._secrets())

    def _secrets(self) -> set[str]:
        """Return the values to redact: values with secret names, header values, and variables that may be keys."""
        env, headers = dict(self.env or {}), dict(self.headers or {})
        pairs = [*map(_assignment, self.args), *map(_option, self.args, self.args[1:])]
        env_keys = {
            value for name, value in env.items() if os.environ.get(name) != value and _MAY_BE_KEY.fullmatch(value)
        }
        values = env_keys | {value for value in headers.values() if len(value) >= 6} | set(self._path_keys())
        return (
            find_secrets({"headers": headers, "env": env, "target": self.target, "args": [*self.args, *pairs]}) | values
        )


def _safe_url(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{_KEY_IN_PATH.sub('***', parts.path)}"


def _assignment(argument: str) -> dict[str, str]:
    """Return a dict with the name and the value of `--token=x`, `TOKEN=x` or `Authorization: x`, or an empty dict."""
    name, mark, value = re.match(r"([^=:\s]*)([=:]?)(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
    return {name: value.strip()} if mark else {}


def _option(option: str, value: str) -> dict[str, str]:
    """Return a dict with the name and the value of the two arguments `--token x`, or an empty dict."""
    return {option: value} if option.startswith("-") else {}


@contextmanager
def loading_sdk() -> Generator[None]:
    """Raise `AcornError` if an import in this `with` block fails because the MCP SDK is missing or too old."""
    try:
        yield
        _configure_sdk_logs()
    except ImportError as error:
        message = (
            f"The MCP SDK is missing or too old ({error}). Install the package `mcp`, version 2 or later: "
            f"`pip install 'acorn-agents[mcp]'`."
        )
        raise AcornError(message) from error


@lru_cache(maxsize=1)
def _configure_sdk_logs() -> None:
    """Remove keys from the URLs in the SDK's logs, and hide these logs if the program does not configure logging."""
    for name in ("mcp", "client"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    for name in ("httpx2", "mcp.client.streamable_http"):
        logging.getLogger(name).addFilter(_redact_record)


def _redact_record(record: logging.LogRecord) -> bool:
    """Remove keys from the URLs in a log record, and let the record pass.

    The HTTP client logs the URL of every request at the level INFO.
    """
    record.msg, record.args = _redact_urls(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = _redact_urls(logging.Formatter().formatException(record.exc_info))
        record.exc_info = None
    return True


def _redact_urls(text: str) -> str:
    try:
        return _URL.sub(lambda match: _safe_url(match[0]), text)
    except ValueError:  # The text contains an invalid URL.
        return _URL.sub("***", text)


class ServerLog:
    """The standard error of a server process, which a thread reads line by line.

    The thread passes the lines to the logger `acorn.mcp` at the level DEBUG, never to the terminal. It stores the last
    lines for error messages.
    """

    def __init__(self, server: str, redact: Redact) -> None:
        reading, writing = os.pipe()
        self.file = open(writing, "w", encoding="utf-8")  # noqa: SIM115 - `close_writer` closes the file.
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
        """Close acorn's copy of the pipe after the server has started or failed to start."""
        self.file.close()

    async def last_lines(self, seconds: float) -> list[str]:
        """Return the last log lines, after waiting at most `seconds` until a stopping server has closed its log."""
        if seconds and self._thread.is_alive():
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, seconds)
        return list(self._lines)
