"""What others write to the terminal while the live view is there: child processes, code below Python.

It would garble the view. So it is caught in a pipe, and printed above the view line by line.
"""

from __future__ import annotations

import codecs
import os
import threading
from collections.abc import Callable
from typing import TextIO

from acorn.cli.streams import lenient

_OUT, _ERR = 1, 2
_FAREWELL = 0.3
"""Seconds to wait for the last lines; a child that goes on may hold the pipe open for long."""


class Above:
    """Catches what is written to the descriptors of standard output and standard error."""

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
        self._thread = threading.Thread(target=_pass_on, args=(reading, show), name="acorn-above", daemon=True)
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
