"""Which package index the user has configured, for pip or for uv: the environment and pip's files."""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def configured_indexes() -> Iterator[str]:
    """Every index of the environment and of pip's configuration, the most particular first."""
    known: set[str] = set()
    for index in (*_of_environment(), *configured("index-url"), *configured("extra-index-url")):
        if index not in known:
            known.add(index)
            yield index


def _of_environment() -> Iterator[str]:
    for name in (*_ONE, *_MANY):
        value = os.environ.get(name, "")
        for given in value.split() if name in _MANY else filter(None, [value.strip()]):
            yield re.sub(r"^[\w-]+=(?=\w+://)", "", given)  # uv lets an index have a name


_ONE = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_MANY = ("UV_INDEX", "PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL")


def configured(key: str) -> Iterator[str]:
    """What pip's configuration files say, that of the environment before the user's before the machine's."""
    for path in _files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in ("download", "install", "global"):
            for spelling in (key, key.replace("-", "_")):
                yield from parser.get(section, spelling, fallback="").split()


def _files() -> Iterator[Path]:
    if given := os.environ.get("PIP_CONFIG_FILE"):
        yield Path(given)
        if given == os.devnull:
            return
    name = "pip.ini" if sys.platform == "win32" else "pip.conf"
    yield Path(sys.prefix) / name
    if sys.platform == "win32":
        yield Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "pip" / name
        yield Path(os.environ.get("PROGRAMDATA") or "C:/ProgramData") / "pip" / name
        return
    yield Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip" / name
    if sys.platform == "darwin":
        yield Path.home() / "Library" / "Application Support" / "pip" / name
    yield Path.home() / ".pip" / name
    for shared in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep):
        yield Path(shared) / "pip" / name
    yield Path("/etc") / name
