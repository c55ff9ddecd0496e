"""The output of a command: text that is safe for a terminal, JSON, exit codes and error messages.

The text of a model may contain escape sequences that move the cursor and characters that change the reading direction.
The functions in this file remove them, so that they never reach a terminal.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TextIO

from pydantic_core import from_json, to_json
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text

from acorn._inside import (
    Redactor,
    describe_error,
    find_secrets,
    replace_surrogates,
    shorten,
    to_compact_json,
    to_json_data,
)
from acorn.cli.streams import flush_or_discard
from acorn.types import is_json_object

# Text for a terminal

# The pattern matches a complete escape sequence. `_CONTROL` removes the first character of an incomplete sequence.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|\x1b[@-Z\\^_]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_WHITESPACE = re.compile(r"\s+")
_CONTROL_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
"""Characters that are allowed in JSON strings but that a terminal interprets."""


def clean(text: str) -> str:
    """Return a text without the control characters that a terminal interprets. Line breaks remain."""
    text = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text.replace("\t", "    ").replace("\u2028", "\n").replace("\u2029", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """Return a text on one line. If the text is longer than `limit`, `…` replaces its middle."""
    # Cleaning a very long text is slow, and its middle is removed anyway.
    if len(text) > 20 * limit:
        text = f"{text[: 10 * limit]}{text[-10 * limit :]}"
    text = _WHITESPACE.sub(" ", clean(text)).strip()
    if len(text) <= limit:
        return text
    tail = max(0, limit // 4)
    return f"{text[: limit - tail - 1].rstrip()}…{text[len(text) - tail :].lstrip()}"


def end_of(text: str, limit: int) -> str:
    """Return the end of a growing text on one line, with at most `limit` characters."""
    text = _WHITESPACE.sub(" ", clean(text[-2 * limit :])).strip()
    return text if len(text) <= limit else f"…{text[len(text) - limit + 1 :]}"


def call_text(name: str, arguments: str, limit: int = 160) -> str:
    """Format a tool call like a Python call: `search(query="acorns", limit=3)`."""
    try:
        values = from_json(replace_surrogates(arguments) or "{}", allow_partial="trailing-strings")
    except ValueError:
        values = None
    if not is_json_object(values):
        return one_line(f"{name}({arguments})", limit)
    return one_line(f"{name}({', '.join(f'{key}={to_compact_json(value)}' for key, value in values.items())})", limit)


def seconds_text(seconds: float) -> str:
    """Format a duration: `0.21 s`, `3.1 s`, `2 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def totals_text(steps: int, tokens: int, cost: float | None, seconds: float, separator: str = " · ") -> str:
    """Format the totals of a run: `2 steps · 1,234 tokens · $0.0012 · 3.1 s`."""
    parts = [plural(steps, "step")] if steps else []  # A run that answers immediately has no steps.
    parts.append(plural(tokens, "token"))
    if cost is not None:
        parts.append(f"${cost:.4f}")
    return separator.join([*parts, seconds_text(seconds)])


def json_text(value: object, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """Return a value as JSON text.

    Characters that a terminal interprets, or that the encoding does not contain, are escaped.
    """
    data = replace_surrogates(to_json_data(value))
    text = to_json(data, indent=indent, inf_nan_mode="null").decode()
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = to_json(data, indent=indent, inf_nan_mode="null", ensure_ascii=True).decode()
    return _CONTROL_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


# Exit codes and errors

SUCCESS = 0
FAILED = 1
"""The exit code if the run or the command failed."""
USAGE_ERROR = 2
"""The exit code if the arguments of the command are wrong. No run was started."""
WAITING = 3
"""The exit code if the run paused and waits for human input."""
INTERRUPTED = 130
"""The exit code if Ctrl-C ended the command."""
TERMINATED = 143
"""The exit code if SIGTERM ended the command."""


class CommandError(Exception):
    """An error that ends a command. Its message is printed for the user on one line."""

    def __init__(self, message: str, code: int = USAGE_ERROR, secrets: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.secrets = frozenset(secrets)
        """The texts to redact in the traceback."""


class OutputClosedError(Exception):
    """The reader of the output has closed the pipe, as in `acorn runs | head -1`.

    This error ends the command.
    """


def write(stream: TextIO, text: str) -> None:
    """Write a text to a stream and flush the stream.

    Raises `OutputClosedError` if the reader has closed the stream, and `CommandError` for other errors.
    """
    try:
        print(text, end="", file=stream, flush=True)
    except BrokenPipeError as error:
        flush_or_discard(stream)
        raise OutputClosedError from error
    except OSError as error:
        flush_or_discard(stream)
        raise CommandError(write_error_text(error), FAILED) from error


@contextmanager
def os_errors(problem: str) -> Generator[None]:
    """Raise a `CommandError` for an `OSError` in the `with` block. `problem` is the start of its message."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{problem}: {error.strerror or error}") from error


def write_line(line: str) -> None:
    """Write a line to standard error, which is for all messages except the output of the command."""
    write(sys.stderr, f"{line}\n")


@contextmanager
def rich_console(out: TextIO, width: int | None = None) -> Generator[Console]:
    """Yield a console for one drawing, and write the drawing to a stream when the `with` block ends.

    `width` is the width of the drawing if the stream is not a terminal.
    """
    console = Console(file=out, width=None if out.isatty() else width)
    with console.capture() as captured:
        yield console
    write(out, captured.get())


def make_table(headings: Iterable[str], rows: Iterable[Iterable[str | Text]], text_columns: Collection[str]) -> Table:
    """Return a table with one column for each heading.

    The columns in `text_columns` are aligned to the left. All other columns contain numbers or times.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in text_columns else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def print_json(value: object, out: TextIO) -> None:
    """Print a value as JSON: indented and colored on a terminal, otherwise on one line."""
    is_terminal = out.isatty()
    text = json_text(value, indent=2 if is_terminal else None, encoding=out.encoding or "utf-8")
    if not is_terminal:
        write(out, f"{text}\n")
        return
    highlighted = Text(text, overflow="fold")
    JSONHighlighter().highlight(highlighted)
    with rich_console(out) as console:
        console.print(highlighted, soft_wrap=True)


def write_error_text(error: OSError) -> str:
    return f"Cannot write the output: {error.strerror or error}"


def print_error(error: CommandError, *, debug: bool) -> int:
    """Print the error that ended a command, and return the exit code of the command.

    If `debug` is true, print the traceback of its cause too.
    """
    if debug and error.__cause__ is not None:
        write_line(format_traceback(error.__cause__, error.secrets))
    write_line(f"error: {shorten(' '.join(clean(str(error)).split()), 2000)}")
    return error.code


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
    return (
        path.is_relative_to(directory)
        and "site-packages" not in path.parts
        and not path.is_relative_to(acorn)
        and not filename.startswith("<")
    )


def _relative(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
