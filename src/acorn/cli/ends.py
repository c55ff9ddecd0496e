"""How a command ends: its exit codes, and the one line that says what went wrong."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from typing import Any

from acorn._json import shorten
from acorn._secrets import redact, secrets_in
from acorn.cli.streams import quieten
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

    def __init__(self, message: str, code: int = USAGE, *, debug: bool = False, secrets: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.debug = debug
        """Whether the traceback of the cause is shown as well."""
        self.secrets = frozenset(secrets)
        """What may not be seen in that traceback."""


class ReaderGoneError(Exception):
    """Whoever read our output has left, as `| head -1` does."""


def tell(line: str) -> None:
    """A line on standard error."""
    write(sys.stderr, f"{line}\n")


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


def unwritten(error: OSError) -> str:
    return f"cannot write the output: {error.strerror or error}"


def complain(error: CommandError) -> int:
    """Say why a command ended, and give its exit code."""
    if error.debug and error.__cause__ is not None:
        tell(trace_of(error.__cause__, error.secrets))
    tell(f"error: {line_of(str(error))}")
    return error.code


def trace_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """The traceback of an exception."""
    return hidden("".join(traceback.format_exception(error)).rstrip("\n"), secrets)


def line_of(message: str) -> str:
    """A message on one line."""
    return shorten(" ".join(clean(message).split()), 2000)


def told(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """A foreign exception in words, with its type."""
    text = words_of(error, secrets)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def words_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What an exception says. Its text may be anybody's and hold a key."""
    try:
        if isinstance(error, ModuleNotFoundError):
            return str(error)  # it names a module, and `skimage_tools` looks like a key
        return hidden(str(error), secrets)
    except Exception:  # somebody's own `__str__`
        return ""


def hidden(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without keys: those given, those of the environment, and what looks like one."""
    return redact(text, {*secrets, *secrets_in({})})
