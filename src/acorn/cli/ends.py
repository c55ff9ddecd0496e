"""How a command ends: its exit codes, and the one line that says what went wrong."""

from __future__ import annotations

import os
import sys
import traceback

from acorn._json import shorten
from acorn.cli.text import clean

FINE = 0
FAILED = 1
"""The run went wrong."""
USAGE = 2
"""The command was used wrongly; nothing was run."""
INTERRUPTED = 130
TERMINATED = 143


class CommandError(Exception):
    """A command that cannot go on; its text is the line that the user reads."""

    def __init__(self, message: str, code: int = USAGE, *, debug: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.debug = debug
        """Whether the traceback of the cause is shown as well."""


class ReaderGoneError(Exception):
    """Whoever read our output has left, as `| head -1` does."""


def tell(line: str) -> None:
    """A line on standard error."""
    write(sys.stderr, f"{line}\n")


def write(stream: object, text: str) -> None:
    """Text to one of the standard streams, at once."""
    try:
        print(text, end="", file=stream, flush=True)  # type: ignore[call-overload]
    except BrokenPipeError as error:
        raise ReaderGoneError from error


def complain(error: CommandError) -> int:
    """Say why a command ended, and give its exit code."""
    try:
        if error.debug and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        tell(f"error: {line_of(str(error))}")
    except (ReaderGoneError, BrokenPipeError):
        leave_quietly()
    return error.code


def line_of(message: str) -> str:
    """A message on one line."""
    return shorten(" ".join(clean(message).split()), 2000)


def told(error: BaseException) -> str:
    """An exception in words: ours speak for themselves, of others the type is told."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def open_streams() -> None:
    """A standard stream that the caller has closed leads nowhere; Python would have none at all."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process


def leave_quietly() -> None:
    """Nobody reads any more: what is still buffered must not complain when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):
            pass
    os.close(nowhere)
