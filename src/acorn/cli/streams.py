"""The standard streams of a command: kept for the output, captured while a view is drawn, quiet when nobody reads.

Standard output is for the output alone: while the user's code runs, it is set aside and leads to standard
error, for child processes too. Standard error is for whoever wants to watch: when he leaves, or his disk is
full, the command goes on without him. While the live view is drawn, what child processes and code below
Python write would garble it, so it is captured, to be printed above the view.
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
from typing import Any, TextIO

_OUT, _ERR = 1, 2
_FAREWELL = 0.3
"""Seconds to wait for the last captured lines; a child that goes on may hold the pipe open for long."""


class Streams:
    """Standard output and standard error of one command."""

    def __init__(self) -> None:
        _open_descriptors()
        self._before = (sys.stdout, sys.stderr)
        self._errors: str | None = None
        self._kept: int | None = None
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open to the end
        self.out: TextIO = sys.stdout
        """Where the output goes."""
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            # A character that the terminal lacks is written as an escape, instead of ending the command.
            self._errors = sys.stdout.errors
            sys.stdout.reconfigure(errors="backslashreplace")
        if descriptor_of(sys.stderr) == _ERR:
            sys.stderr = lenient(_ERR, sys.stderr.encoding, also=self._also)

    def set_aside(self) -> TextIO:
        """Keep standard output for the output; until `restore`, what anybody else writes goes to standard error.

        Below Python too, where child processes and C code write.
        """
        out = sys.stdout
        if self._kept is None and descriptor_of(out) == _OUT:
            out.flush()
            self._kept = os.dup(_OUT)  # which children do not inherit
            os.dup2(_ERR, _OUT)
            self.out = open(self._kept, "w", encoding=out.encoding, errors=out.errors)  # noqa: SIM115 - open to the end
        sys.stdout = sys.stderr
        return self.out

    def restore(self) -> None:
        """As it was before the command, for a caller who goes on."""
        sys.stdout, sys.stderr = self._before
        if self._kept is not None:
            quieten(sys.stdout)
            os.dup2(self._kept, _OUT)
            quieten(self.out)
            self.out.close()
        if self._errors is not None and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors=self._errors)

    def _also(self) -> Sequence[int]:
        return () if self._kept is None else (_OUT,)


class Capture:
    """Takes what is written to the descriptors of standard output and standard error, and hands it on line by line."""

    def __init__(self, encoding: str) -> None:
        self._descriptor = os.dup(_ERR)
        self.terminal: TextIO = lenient(self._descriptor, encoding)
        """Where the view itself is drawn."""
        self._thread: threading.Thread | None = None

    def begin(self, show: Callable[[str], None]) -> None:
        """From here on, whole lines go to `show`."""
        reading, writing = os.pipe()
        os.dup2(writing, _OUT)
        os.dup2(writing, _ERR)
        os.close(writing)
        self._thread = threading.Thread(target=_pass_on, args=(reading, show), name="acorn-capture", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Both lead to the terminal again."""
        os.dup2(self._descriptor, _ERR)
        os.dup2(self._descriptor, _OUT)
        if self._thread is not None:
            self._thread.join(_FAREWELL)


def _pass_on(reading: int, show: Callable[[str], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    with open(reading, "rb", buffering=0) as pipe:
        while data := pipe.read(65536):
            *lines, rest = (rest + decoder.decode(data)).split("\n")
            for line in lines:
                show(line)
    if rest:
        show(rest)


class _Lenient(io.RawIOBase):
    """A descriptor that never complains: what cannot be written goes nowhere, from then on."""

    def __init__(self, descriptor: int, also: Any) -> None:
        self._descriptor = descriptor
        self._also = also
        """Which descriptors lead to the same end at that moment."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        rest = memoryview(data).cast("B")
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                for descriptor in (self._descriptor, *self._also()):
                    lead_nowhere(descriptor)
                break
        return len(data)


def lenient(descriptor: int, encoding: str | None, also: Any = tuple) -> TextIO:
    """A text stream onto a descriptor that never complains."""
    raw: Any = _Lenient(descriptor, also)
    return io.TextIOWrapper(raw, encoding=encoding or "utf-8", errors="backslashreplace", write_through=True)


def descriptor_of(stream: Any) -> int | None:
    """The descriptor of a stream, if it has one; a test's or a notebook's has not."""
    try:
        found: int = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return found


def lead_nowhere(descriptor: int) -> None:
    """Whatever is written there is not kept."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def quieten(*streams: Any) -> None:
    """What is still buffered for somebody who does not take it must not complain when Python ends."""
    for stream in streams:
        try:
            stream.flush()
        except OSError:
            descriptor = descriptor_of(stream)
            if descriptor is not None:
                lead_nowhere(descriptor)
        except ValueError:  # closed
            pass


def _open_descriptors() -> None:
    """A standard stream that the caller has closed leads nowhere, or another file would take its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
            os.set_inheritable(number, True)
