"""The exit codes of commands, the error that ends a command, and the texts of exceptions."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import ModuleType

from acorn._inside import Redactor, describe_error, find_secrets


class ExitCode(IntEnum):
    """The exit codes of commands."""

    SUCCESS = 0
    FAILED = 1
    """The run or the command failed."""
    USAGE_ERROR = 2
    """The arguments of the command are wrong. No run was started."""
    WAITING = 3
    """The run paused and waits for human input."""
    INTERRUPTED = 130
    """Ctrl-C ended the command."""
    TERMINATED = 143
    """SIGTERM ended the command."""


class CommandError(Exception):
    """An error that ends a command. Its message is printed for the user on one line."""

    def __init__(self, message: str, code: int = ExitCode.USAGE_ERROR, secrets: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.secrets = frozenset(secrets)
        """The texts to redact in the traceback."""


class OutputClosedError(Exception):
    """The reader of the output has closed the pipe, as in `acorn runs | head -1`.

    This error ends the command.
    """


@contextmanager
def os_errors(problem: str) -> Generator[None]:
    """Raise a `CommandError` for an `OSError` in the `with` block. `problem` is the start of its message."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{problem}: {error.strerror or error}") from error


# Texts of exceptions, which may contain an API key


def format_traceback(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the traceback of an exception with secrets redacted."""
    return redactor(secrets).text("".join(traceback.format_exception(error)).rstrip("\n"))


def error_text(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the type and the message of an exception with secrets redacted."""
    text = describe_error(error)
    # The message contains the name of a module. A name such as `skimage_tools` looks like an API key.
    return text if isinstance(error, ModuleNotFoundError) else redactor(secrets).text(text)


def error_message(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the message of an exception, without its type, with secrets redacted."""
    return error_text(error, secrets).removeprefix(type(error).__name__).removeprefix(": ")


def redactor(secrets: Iterable[str] = ()) -> Redactor:
    """Return a redactor for the given secrets, and for the current secrets in environment variables."""
    return Redactor({*secrets, *find_secrets()})


# Source lines of exceptions


def user_code_line(error: BaseException, loaded: ModuleType | None = None) -> str:
    """Return the file and line of the user's code that raised an exception, such as `agent.py:12: `.

    Return an empty string if no user code is in the traceback. `loaded` is the Python module that contains the agent.
    Files in its directory have priority over files in the current directory.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno is not None:
        return f"{_relative(error.filename)}:{error.lineno}: "
    file = getattr(loaded, "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    beside_module = [frame for frame in frames if file is not None and _is_user_file(frame.filename, Path(file).parent)]
    user_frames = beside_module or [frame for frame in frames if _is_user_file(frame.filename, Path.cwd())]
    return f"{_relative(user_frames[-1].filename)}:{user_frames[-1].lineno}: " if user_frames else ""


def _is_user_file(filename: str, directory: Path) -> bool:
    """Return True if a file belongs to the user's project, and not to acorn or another installed package."""
    path = Path(filename)
    acorn = Path(__file__).parents[1]
    is_library = "site-packages" in path.parts or path.is_relative_to(acorn) or filename.startswith("<")
    return path.is_relative_to(directory) and not is_library


def _relative(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
