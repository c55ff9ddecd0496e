"""The standard streams of a command: reserved for the output, captured during the live view, silent if not read.

Standard output is for the output of the command only. While the user's code runs, everything else that is written to
standard output goes to standard error, also from child processes. If the reader of standard error goes away or its disk
is full, the command continues without it. While the live view is drawn, text of child processes and of C code would
damage the drawing, so it is captured and printed above the view.
"""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO, TypeGuard

from typing_extensions import Buffer

_OUT, _ERR = 1, 2
_LAST_LINES_TIMEOUT = 0.3
"""Seconds to wait for the last captured lines. A child process that still runs may keep the pipe open for long."""


class Streams:
    """Standard output and standard error of one command."""

    def __init__(self) -> None:
        _open_descriptors()
        self._original = (sys.stdout, sys.stderr)
        self._original_errors: str | None = None
        self._output_descriptor: int | None = None
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open to the end
        self.out: TextIO = sys.stdout
        """The stream for the output of the command."""
        if _is_text_file(sys.stdout) and sys.stdout.errors == "strict":
            # A character that the terminal lacks is written as an escape, instead of ending the command.
            self._original_errors = sys.stdout.errors
            sys.stdout.reconfigure(errors="backslashreplace")
        if descriptor_of(sys.stderr) == _ERR:
            sys.stderr = open_forgiving(_ERR, sys.stderr.encoding, also_discards=self._redirected_descriptors)

    def reserve_stdout(self) -> TextIO:
        """Reserve standard output for the output of the command and return it.

        Until `restore`, everything else that is written to standard output goes to standard error, also from child
        processes and C code.
        """
        out = sys.stdout
        if self._output_descriptor is None and descriptor_of(out) == _OUT:
            out.flush()
            self._output_descriptor = os.dup(_OUT)  # Child processes do not inherit it.
            os.dup2(_ERR, _OUT)
            self.out = open(  # noqa: SIM115 - open to the end
                self._output_descriptor, "w", encoding=out.encoding, errors=out.errors
            )
        sys.stdout = sys.stderr
        return self.out

    def restore(self) -> None:
        """Restore the streams for a caller that continues after the command."""
        sys.stdout, sys.stderr = self._original
        if self._output_descriptor is not None:
            flush_or_discard(sys.stdout)
            os.dup2(self._output_descriptor, _OUT)
            flush_or_discard(self.out)
            self.out.close()
        if self._original_errors is not None and _is_text_file(sys.stdout):
            sys.stdout.reconfigure(errors=self._original_errors)

    def _redirected_descriptors(self) -> Sequence[int]:
        return () if self._output_descriptor is None else (_OUT,)


class StreamCapture:
    """Captures what is written to the descriptors of standard output and standard error, line by line."""

    def __init__(self, encoding: str) -> None:
        self._descriptor = os.dup(_ERR)
        self.terminal: TextIO = open_forgiving(self._descriptor, encoding)
        """The stream to draw the view on."""
        self._thread: threading.Thread | None = None

    def start(self, show: Callable[[str], None]) -> None:
        """Pass whole lines to `show` from now on."""
        reading, writing = os.pipe()
        os.dup2(writing, _OUT)
        os.dup2(writing, _ERR)
        os.close(writing)
        self._thread = threading.Thread(target=_pass_lines, args=(reading, show), name="acorn-capture", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Point both descriptors to the terminal again."""
        os.dup2(self._descriptor, _ERR)
        os.dup2(self._descriptor, _OUT)
        if self._thread is not None:
            self._thread.join(_LAST_LINES_TIMEOUT)


def _pass_lines(reading: int, show: Callable[[str], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    incomplete = ""
    with open(reading, "rb", buffering=0) as pipe:
        while data := pipe.read(65536):
            *lines, incomplete = (incomplete + decoder.decode(data)).split("\n")
            for line in lines:
                show(line)
    if incomplete:
        show(incomplete)


class _ForgivingWriter(io.RawIOBase):
    """A writer that never raises: after the first error it discards everything."""

    def __init__(self, descriptor: int, also_discards: Callable[[], Sequence[int]]) -> None:
        self._descriptor = descriptor
        self._also_discards = also_discards
        """The descriptors that lead to the same place at that moment."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Buffer, /) -> int:
        unwritten = memoryview(data).cast("B")
        length = len(unwritten)
        while unwritten:
            try:
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                for descriptor in (self._descriptor, *self._also_discards()):
                    redirect_to_null(descriptor)
                break
        return length


def open_forgiving(descriptor: int, encoding: str | None, also_discards: Callable[[], Sequence[int]] = tuple) -> TextIO:
    """Open a text stream on a descriptor that never raises."""
    # Unbuffered, although the type of `TextIOWrapper` asks for a buffered writer.
    writer: Any = _ForgivingWriter(descriptor, also_discards)
    return io.TextIOWrapper(writer, encoding=encoding or "utf-8", errors="backslashreplace", write_through=True)


def _is_text_file(stream: object) -> TypeGuard[io.TextIOWrapper]:
    return isinstance(stream, io.TextIOWrapper)


def descriptor_of(stream: Any) -> int | None:
    """Return the descriptor of a stream; None for one without, as tests and notebooks have."""
    try:
        descriptor: int = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return descriptor


def redirect_to_null(descriptor: int) -> None:
    """Discard everything that is written to a descriptor from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(null, descriptor)
    os.close(null)


def flush_or_discard(*streams: TextIO) -> None:
    """Flush streams and discard what cannot be written, so that Python does not report it at exit."""
    for stream in streams:
        try:
            stream.flush()
        except OSError:
            descriptor = descriptor_of(stream)
            if descriptor is not None:
                redirect_to_null(descriptor)
        except ValueError:  # The stream is closed.
            pass


def _open_descriptors() -> None:
    """Open the standard descriptors that the caller has closed, or another file would get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
