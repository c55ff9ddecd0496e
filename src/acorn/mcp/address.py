"""The address of an MCP server (a command or a URL), the API keys in the address, and the log of the server.

Error messages and logs use the label of a server, which never contains an API key. This file does not import the MCP
SDK.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acorn._inside import Redactor, find_secrets
from acorn.errors import AcornError

_MAY_BE_KEY = re.compile(r"(?=.*[0-9])[^\s/\\]{8,}|[^\s/\\]{16,}")
"""Matches a value that may be a key: 8 characters with a digit, or 16 characters, without slashes and whitespace."""
_KEY_IN_PATH = re.compile(r"(?<=/)(?=(?:[^/]*[0-9]){3})[^/]{20,}")
"""Matches a URL path segment that may be a key, because some services give each user a secret URL."""
_URL = re.compile(r"https?://[^\s\"'<>]+")


@dataclass(frozen=True)
class ServerAddress:
    """The address of one MCP server: a command with its environment, or a URL with its headers."""

    target: str = field(repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: Path | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    auth: Any = field(default=None, repr=False)

    def __copy__(self) -> ServerAddress:
        return self

    def __deepcopy__(self, memo: object) -> ServerAddress:
        return self

    def __reduce__(self) -> tuple[type[ServerAddress], tuple[Any, ...]]:
        """Return the address for `pickle`, without the values that may be API keys."""
        secrets = self._secrets()
        env, headers = (
            None if values is None else {name: value for name, value in values.items() if value not in secrets}
            for values in (self.env, self.headers)
        )
        args = tuple(map(self.redact, self.args))
        return ServerAddress, (self.redact(self.target), args, env, self.cwd, headers, None)

    @property
    def is_web(self) -> bool:
        return self.target.lower().startswith(("http://", "https://"))

    @property
    def label(self) -> str:
        """The name of the server in messages. It omits arguments and the URL query, which may contain API keys."""
        if not self.is_web:
            return os.path.basename(self.target) or self.target
        return _safe_url(self.target)

    @property
    def key(self) -> str:
        """The JSON key of the server in a pin file: the label, and a hash of the parts that the label omits."""
        omitted = [*self.args, *self._path_keys()]
        if not omitted:
            return self.label
        return f"{self.label} {hashlib.sha256(json.dumps(omitted).encode()).hexdigest()[:12]}"

    def _path_keys(self) -> list[str]:
        return _KEY_IN_PATH.findall(urlsplit(self.target).path) if self.is_web else []

    def redact(self, text: str) -> str:
        """Remove the API keys and other secrets in this address from a text, and return the text."""
        return Redactor(self._secrets()).text(text)

    def _secrets(self) -> set[str]:
        """Return the texts to redact: values with secret names, header values, and values that look like API keys."""
        env, headers = dict(self.env or {}), dict(self.headers or {})
        pairs = [{option: value} for option, value in pairwise(self.args) if option.startswith("-")]
        pairs += map(_assignment, self.args)
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
    """Return {name: value} for an argument like `--token=x`, `TOKEN=x` or `Authorization: x`.

    The result is an empty dict for any other argument.
    """
    name, mark, value = re.match(r"([^=:\s]*)([=:]?)(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
    return {name: value.strip()} if mark else {}


@contextmanager
def loading_sdk() -> Generator[None]:
    """Convert an `ImportError` in the `with` block to an `AcornError`: the MCP SDK is missing or too old."""
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
    """Remove API keys from the URLs in the logs of the MCP SDK.

    The function also prevents these logs from reaching the terminal in a program that does not configure logging.
    """
    for name in ("mcp", "client"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    for name in ("httpx2", "mcp.client.streamable_http"):
        logging.getLogger(name).addFilter(_redact_record)


def _redact_record(record: logging.LogRecord) -> bool:
    """Remove API keys from the URLs in a log record, and return True so that the record is logged.

    This logging filter is necessary because the HTTP client logs the URL of every request at the level INFO.
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
