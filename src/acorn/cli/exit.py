"""How a command ends: its output as JSON, its exit code, and the one line that says what went wrong and where."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from acorn._json import shorten, words_of
from acorn._secrets import redact, secrets_in
from acorn._startup import INTERRUPTED as INTERRUPTED
from acorn.cli.safe_text import clean, json_text
from acorn.cli.stdio import quieten

FINE = 0
FAILED = 1
"""The run went wrong."""
USAGE = 2
"""The command was used wrongly; nothing was run."""
WAITING = 3
"""The run rests, and waits for a person."""
TERMINATED = 143


class CommandError(Exception):
    """A command that cannot go on; its text is the line that the user reads."""

    def __init__(self, message: str, code: int = USAGE, *, debug: bool = False, secrets: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.debug = debug
        """Whether the traceback of the cause is shown as well."""
        self.secrets = frozenset(secrets)
        """What may not be seen in that traceback."""


class ReaderGoneError(Exception):
    """Whoever read our output has left, as `| head -1` does."""


def write(stream: Any, text: str) -> None:
    """Text to one of the standard streams, at once."""
    try:
        print(text, end="", file=stream, flush=True)
    except BrokenPipeError as error:
        quieten(stream)
        raise ReaderGoneError from error
    except OSError as error:
        quieten(stream)
        raise CommandError(unwritten(error), FAILED) from error


def write_line(line: str) -> None:
    """A line on standard error."""
    write(sys.stderr, f"{line}\n")


def print_json(value: Any, out: TextIO) -> None:
    """Indented and coloured on a terminal, one line otherwise."""
    is_terminal = out.isatty()
    text = json_text(value, indent=2 if is_terminal else None, encoding=out.encoding or "utf-8")
    if not is_terminal:
        write(out, f"{text}\n")
        return
    shown = Text(text, overflow="fold")
    JSONHighlighter().highlight(shown)
    console = Console(file=out, soft_wrap=True)
    with console.capture() as drawn:
        console.print(shown, soft_wrap=True)
    write(out, drawn.get())


def unwritten(error: OSError) -> str:
    return f"cannot write the output: {error.strerror or error}"


def complain(error: CommandError) -> int:
    """Say why a command ended, and give its exit code."""
    if error.debug and error.__cause__ is not None:
        write_line(trace_of(error.__cause__, error.secrets))
    write_line(f"error: {_on_one_line(str(error))}")
    return error.code


def _on_one_line(message: str) -> str:
    return shorten(" ".join(clean(message).split()), 2000)


# What an exception says; its text may be anybody's and hold a key


def trace_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """The traceback of an exception."""
    return without_keys("".join(traceback.format_exception(error)).rstrip("\n"), secrets)


def error_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """A foreign exception in words, with its type."""
    text = words_of(error)
    # This one names a module, and `skimage_tools` looks like a key.
    return text if isinstance(error, ModuleNotFoundError) else without_keys(text, secrets)


def message_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What an exception says, without its type."""
    return error_text(error, secrets).removeprefix(type(error).__name__).removeprefix(": ")


def without_keys(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without keys: these, those of the environment, and what looks like one."""
    return redact(text, {*secrets, *secrets_in({})})


# Where it happened


def line_reached(error: BaseException, loaded: ModuleType | None = None) -> str:
    """`agent.py:12: `, the deepest line of the user's own code that was reached."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno is not None:
        return f"{_shown(error.filename)}:{error.lineno}: "
    file = getattr(loaded, "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    near = [frame for frame in frames if file is not None and _is_near(frame.filename, Path(file).parent)]
    own = near or [frame for frame in frames if _is_near(frame.filename, Path.cwd())]
    return f"{_shown(own[-1].filename)}:{own[-1].lineno}: " if own else ""


def _is_near(filename: str, directory: Path) -> bool:
    """Whether a file lies in the user's project, and not in what is installed inside it."""
    path = Path(filename)
    acorn = Path(__file__).parents[1]
    return (
        path.is_relative_to(directory)
        and "site-packages" not in path.parts
        and not path.is_relative_to(acorn)
        and not filename.startswith("<")
    )


def _shown(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
