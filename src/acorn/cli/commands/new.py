"""`acorn new`: a small project to begin with."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from acorn.cli.exit import FINE, CommandError, write

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
