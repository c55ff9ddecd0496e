"""One wheel from the package index, with progress in bytes.

Where the interpreter has pip, or Python's own bundled copy of it, pip downloads: it knows the user's index,
proxies, certificates and keys. Where there is none, the configured index is read here. No address of an index is
written down in acorn; passwords in one never show in an error, and of an address that does not parse nothing does.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from acorn.errors import ModelError
from acorn.models.index_config import configured, configured_indexes

Progress = Callable[[int, int], None]
"""Told how many bytes are there, and how many it will be."""

_BLOCK = 1 << 16
_TIMEOUT = 60.0
_ATTEMPTS = 3
_PAUSE = 0.2
"""Seconds between two looks at what pip has written."""


@dataclass(frozen=True)
class Wheel:
    """A wheel of pure Python."""

    package: str
    version: str
    size: int
    """Bytes, for the progress; an index that says otherwise is believed."""

    @property
    def filename(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def download(wheel: Wheel, place: Path, on_progress: Progress) -> Path:
    """The wheel in a directory, by pip where there is one."""
    return by_pip(wheel, place, on_progress) if pip_command() else by_index(wheel, place, on_progress)


# By pip


def pip_command() -> list[str]:
    """What runs pip here; nothing where there is none."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    if bundled and bundled.origin:
        for found in sorted(Path(bundled.origin).parent.glob("_bundled/pip-*.whl"), reverse=True):
            return [sys.executable, str(found / "pip")]
    return []


def by_pip(wheel: Wheel, place: Path, on_progress: Progress) -> Path:
    """Pip shows its progress to people only, so we watch what it writes."""
    arriving, arrived = place / "arriving", place / "arrived"
    arriving.mkdir()
    command = [*pip_command(), "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(arrived), f"{wheel.package}=={wheel.version}"]
    surroundings = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(arriving))}
    with (place / "said").open("w+b") as said:
        running = subprocess.Popen(
            command, env=surroundings, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
        try:
            while running.poll() is None:
                on_progress(min(_written(arriving), wheel.size), wheel.size)
                time.sleep(_PAUSE)
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait()
        said.seek(0)
        words = said.read().decode(errors="replace")
    made = arrived / wheel.filename
    if running.returncode or not made.exists():
        raise _failed(wheel, _last_words(words))
    size = made.stat().st_size
    on_progress(size, size)
    return made


def _written(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except OSError:  # gone in the meantime
            continue
    return total


def _last_words(said: str) -> str:
    lines = [line.removeprefix("ERROR: ").strip() for line in said.splitlines() if line.startswith("ERROR: ")]
    return lines[-1] if lines else "pip gave no reason."


# By ourselves


def by_index(wheel: Wheel, place: Path, on_progress: Progress) -> Path:
    """Read the configured index; what breaks off is begun anew."""
    indexes = list(configured_indexes())
    if not indexes:
        raise _failed(wheel, "there is no pip, and no package index is configured: set `PIP_INDEX_URL`.")
    reasons: list[str] = []
    for index in indexes:
        if not _is_clear(index):
            reasons.append("one address of an index that is configured is no URL of http, https or file.")
            continue
        for attempt in range(_ATTEMPTS):
            try:
                address, size = _find(index, wheel)
                return _save(_Address.of(address, index), place / wheel.filename, size or wheel.size, on_progress)
            except _AbsentError as error:
                reasons.append(str(error))
                break
            except (OSError, http.client.HTTPException, ValueError) as error:
                reasons.append(f"{_host(index)}: {getattr(error, 'reason', None) or error}")
            time.sleep(attempt * _PAUSE)
    raise _failed(wheel, "; ".join(dict.fromkeys(reasons)))


def _is_clear(url: str) -> bool:
    """Whether a URL parses, and so that it is plain where its password ends."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - a password with a slash in it looks like a port that is none
    except ValueError:
        return False
    if parts.scheme not in ("http", "https", "file") or not (parts.hostname or parts.scheme == "file"):
        return False
    return not re.search(r"[\s\x00-\x1f]", url) and "@" not in parts.path + parts.query + parts.fragment


def _host(index: str) -> str:
    return _Address.of(index).host


class _AbsentError(Exception):
    """The index does not have it."""


@dataclass(frozen=True)
class _Address:
    """A URL without its password, which is kept apart."""

    url: str
    authorization: str | None = None

    @classmethod
    def of(cls, url: str, index: str | None = None) -> _Address:
        """An address; a file on the index's own host is asked for with the index's password."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        authorization = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif index is not None and cls.of(index).host == host:
            authorization = cls.of(index).authorization
        return cls(urlunsplit(parts._replace(netloc=host)), authorization)

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc or urlsplit(self.url).path

    def open(self, accept: str) -> Any:
        request = urllib.request.Request(self.url, headers={"Accept": accept, "User-Agent": "acorn"})
        if self.authorization:
            request.add_unredirected_header("Authorization", self.authorization)  # not for another host's eyes
        return urllib.request.urlopen(request, timeout=_TIMEOUT, context=_certificates())


def _certificates() -> ssl.SSLContext:
    for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if (given := os.environ.get(name)) and Path(given).is_file():
            return ssl.create_default_context(cafile=given)
    given = next(configured("cert"), None)
    return ssl.create_default_context(cafile=given if given and Path(given).is_file() else None)


_SIMPLE = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


def _find(index: str, wheel: Wheel) -> tuple[str, int | None]:
    """Where the wheel is, and how large, where the index says so."""
    page = f"{index.rstrip('/')}/{wheel.package}/"
    if page.startswith("file:"):
        page += "index.html"
    try:
        with _Address.of(page).open(_SIMPLE) as answer:
            text = answer.read().decode("utf-8", "replace")
            base, kind = _with_password(answer.geturl(), page), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403, 404, 410):
            raise _AbsentError(f"{_host(index)} answers {error.code} {error.reason}") from None
        raise
    for filename, address, size in _listed(text, kind):
        if filename == wheel.filename:
            return urljoin(base, address), size
    raise _AbsentError(f"{_host(index)} has no {wheel.filename}")


def _with_password(final: str, asked: str) -> str:
    return asked if _Address.of(asked).url == final else final


def _listed(text: str, kind: str) -> Iterator[tuple[str, str, int | None]]:
    """The files of a project page, in either of its forms."""
    if kind.endswith("json"):
        yield from _listed_in_json(json.loads(text))
        return
    page = _Links()
    try:
        page.feed(text)
    except AssertionError as error:  # markup that is none
        raise ValueError("its page cannot be read") from error
    for address in page.found:
        yield unquote(urlsplit(address).path.rpartition("/")[2]), address, None


def _listed_in_json(page: Any) -> Iterator[tuple[str, str, int | None]]:
    files = page.get("files") if isinstance(page, dict) else None
    if not isinstance(files, list):
        raise ValueError("its page has no list of files")
    for file in files:
        if isinstance(file, dict) and isinstance(file.get("filename"), str) and isinstance(file.get("url"), str):
            size = file.get("size")
            yield file["filename"], file["url"], size if isinstance(size, int) else None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def _save(address: _Address, path: Path, size: int, on_progress: Progress) -> Path:
    with address.open("*/*") as answer, path.open("wb") as file:
        total, done = int(answer.headers.get("Content-Length") or size), 0
        while block := answer.read(_BLOCK):
            file.write(block)
            done += len(block)
            on_progress(done, max(total, done))
    if done < total:
        raise ConnectionError(f"the connection broke off after {done} of {total} bytes")
    return path


# Failing


def _failed(wheel: Wheel, why: str) -> ModelError:
    """No password and no key: neither in a URL nor behind a question mark."""
    text = re.sub(r"(\w+://)[^\s/@]+@", r"\1****@", why)
    text = re.sub(r"(\w+://[^\s?]+)\?\S+", r"\1?****", text)
    for secret in sorted(_secrets(), key=len, reverse=True):
        text = text.replace(secret, "****")
    return ModelError(
        f"{wheel.filename} could not be downloaded: {text} Check the connection and the package index that pip uses "
        f"(`pip config list`), then try `acorn pull` again.",
        provider="local",
        retryable=True,
    )


def _secrets() -> set[str]:
    """What no error may say: passwords and keys of the configured addresses, and all of those that are no URL."""
    found: set[str] = set()
    for index in configured_indexes():
        if _is_clear(index):
            parts = urlsplit(index)
            found |= {parts.password or "", unquote(parts.password or ""), parts.query}
        else:
            found |= {index, *re.split(r"[\s:/@?#]+", index)} - {"http", "https", "file", "simple"}
    return {secret for secret in found if len(secret) > 2}
