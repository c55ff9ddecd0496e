"""The standard streams of a command: standard output for its result only, standard error for everything else.

While the user's code runs, text that it or its child processes print to standard output goes to standard error. If
standard error cannot be written, because its reader has closed it or its disk is full, the command continues without
it. During the live view, text of child processes and of C code would damage the drawing. `capture_lines` therefore
captures the text and prints it above the view.

All other files of the command line write with the functions of this file.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text
from typing_extensions import Buffer

from acorn._inside import shorten
from acorn.cli.errors import CommandError, ExitCode, OutputClosedError, format_traceback
from acorn.cli.text import clean, json_text

_OUT, _ERR = 1, 2
_LAST_LINES_TIMEOUT = 0.3
"""Seconds to wait for the last captured lines. A child process that is still running may keep the pipe open."""


class Streams:
    """The redirection of standard output and standard error during one command."""

    def __init__(self) -> None:
        self._output_descriptor: int | None = None
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:
                # The parent process has closed the descriptor. This file gets its number, so that no other file does.
                stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - open until the process ends
                os.set_inheritable(stream.fileno(), True)
                setattr(sys, name, stream)
        self._original = (sys.stdout, sys.stderr)
        self.out: TextIO = sys.stdout
        """The stream for the result of the command."""
        reconfigure: Callable[..., None] | None = getattr(self.out, "reconfigure", None)
        if reconfigure and self.out.errors == "strict":
            # Write a character that the terminal lacks as an escape sequence instead of raising an error.
            reconfigure(errors="backslashreplace")
        if descriptor_of(sys.stderr) == _ERR:
            sys.stderr = open_forgiving(_ERR, sys.stderr.encoding)

    def reserve_stdout(self) -> TextIO:
        """Reserve standard output for the result of the command, and return its stream.

        Until `restore`, other text for standard output goes to standard error, including text of child processes and
        C code.
        """
        out = sys.stdout
        if self._output_descriptor is None and descriptor_of(out) == _OUT:
            out.flush()
            self._output_descriptor = os.dup(_OUT)  # Child processes do not inherit this descriptor.
            os.dup2(_ERR, _OUT)
            self.out = open(  # noqa: SIM115 - open until the process ends
                self._output_descriptor, "w", encoding=out.encoding, errors=out.errors
            )
        sys.stdout = sys.stderr
        return self.out

    def restore(self) -> None:
        """Restore the original streams for a Python program that called `main` and continues."""
        sys.stdout, sys.stderr = self._original
        if self._output_descriptor is not None:
            flush_or_discard(sys.stdout)
            os.dup2(self._output_descriptor, _OUT)
            flush_or_discard(self.out)
            self.out.close()


def open_terminal(encoding: str) -> TextIO:
    """Return a stream for the terminal that `capture_lines` does not capture. The live view is drawn on this stream."""
    return open_forgiving(os.dup(_ERR), encoding)


@contextmanager
def capture_lines(terminal: TextIO, show: Callable[[str], None]) -> Generator[None]:
    """Capture the text that child processes and C code write to standard output and standard error.

    A thread passes each complete line to `show`. When the `with` block ends, both streams lead to the terminal again.
    """
    reading, writing = os.pipe()
    os.dup2(writing, _OUT)
    os.dup2(writing, _ERR)
    os.close(writing)
    thread = threading.Thread(target=_pass_lines, args=(reading, show), name="acorn-capture", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(terminal.fileno(), _ERR)
        os.dup2(terminal.fileno(), _OUT)
        thread.join(_LAST_LINES_TIMEOUT)


def _pass_lines(reading: int, show: Callable[[str], None]) -> None:
    with open(reading, encoding="utf-8", errors="replace", newline="\n") as pipe:
        for line in pipe:
            show(line.removesuffix("\n"))


class _ForgivingWriter(io.FileIO):
    """A writer that never raises an error and discards all text after the first failed write."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            redirect_to_null(self.fileno())
            if sys.stdout is sys.stderr:  # Standard output is reserved, so its descriptor leads to the same file.
                redirect_to_null(_OUT)
            return memoryview(data).nbytes


def open_forgiving(descriptor: int, encoding: str | None) -> TextIO:
    """Return a text stream for a file descriptor. Writing to this stream never raises an error."""
    writer = io.BufferedWriter(_ForgivingWriter(descriptor, "w", closefd=False))
    return io.TextIOWrapper(writer, encoding=encoding or "utf-8", errors="backslashreplace", line_buffering=True)


def descriptor_of(stream: Any) -> int | None:
    """Return the file descriptor of a stream.

    Return None if the stream has no file descriptor, as in tests and notebooks.
    """
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def redirect_to_null(descriptor: int) -> None:
    """Redirect a file descriptor to the null device, which discards all text."""
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(null, descriptor)
    os.close(null)


def flush_or_discard(*streams: TextIO) -> None:
    """Flush streams, and discard text that cannot be written, so that Python reports no error at exit."""
    for stream in streams:
        try:
            stream.flush()
        except OSError:
            descriptor = descriptor_of(stream)
            if descriptor is not None:
                redirect_to_null(descriptor)
        except ValueError:  # The stream is closed.
            pass


# Writing


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
        raise CommandError(write_error_text(error), ExitCode.FAILED) from error


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


def print_error(error: CommandError, *, debug: bool, cause: BaseException | None = None) -> int:
    """Print the error that ended a command, and return the exit code of the command.

    If `debug` is true, print the traceback of its cause too.
    """
    cause = cause or error.__cause__
    if debug and cause is not None:
        write_line(format_traceback(cause, error.secrets))
    write_line(f"error: {shorten(' '.join(clean(str(error)).split()), 2000)}")
    return error.code
