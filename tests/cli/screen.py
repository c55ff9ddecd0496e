"""A command in a pseudo-terminal, and the screen that its user would see.

The screen interprets the output of rich: text, line breaks, cursor up, carriage return, and erased lines. It records
all other control codes, so that a test can require that there are none.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cli.warm_process import Command
from tests.waiting import PATIENCE

_PIECE = re.compile(
    r"\x1b\[(?P<args>[0-9;?]*)(?P<act>[A-Za-z])|(?P<control>[\x00-\x1f\x7f-\x9f])|(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
)
_HALF = re.compile(r"\x1b(\[[0-9;?]*)?$")
"""A sequence whose end is still to come."""
_AGAIN = "\r\x1b[2K"
"""A view begins to be drawn anew."""


class Screen:
    """The screen of a terminal that received these bytes."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.width, self.height = width, height
        self.rows: list[str] = [""]
        """Every line since the beginning, those scrolled out of sight included."""
        self.row, self.column = 0, 0
        self.is_cursor_hidden = False
        self.has_colour = False
        self.strange: list[str] = []
        self._rest = ""

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        if half := _HALF.search(text):
            text, self._rest = text[: half.start()], half[0]
        for piece in _PIECE.finditer(text):
            if piece["text"]:
                self._write(piece["text"])
            elif piece["control"]:
                self._control(piece["control"])
            else:
                self._act(piece["act"], piece["args"])

    @property
    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows)

    def _write(self, text: str) -> None:
        for character in text:
            if self.column >= self.width:
                self._down()
                self.column = 0
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    def _control(self, character: str) -> None:
        if character == "\n":
            self._down()
        elif character == "\r":
            self.column = 0
        else:
            self.strange.append(character)

    def _act(self, act: str, args: str) -> None:
        if act == "A":
            self.row = max(self.row - int(args or 1), len(self.rows) - self.height, 0)
        elif act == "K":
            self.rows[self.row] = ""
        elif act in "hl" and args == "?25":
            self.is_cursor_hidden = act == "l"
        elif act == "m":
            self.has_colour = self.has_colour or any(part[:1] in "349" and len(part) == 2 for part in args.split(";"))
        else:
            self.strange.append(f"{args}{act}")


class Terminal:
    """A running command whose standard streams are a terminal."""

    def __init__(
        self, words: Sequence[str], *, width: int = 80, height: int = 24, cwd: Path | None = None, **environment: str
    ) -> None:
        self.screen = Screen(width, height)
        self.raw = ""
        self._unseen = ""
        """What was read and is not on the screen yet: who reads late sees all that there was to see, frame by frame."""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        settings = {**kept, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}
        self.process = Command(words, (slave, slave, slave), settings, cwd)
        os.close(slave)

    def until(self, is_seen: Callable[[Screen], object], seconds: float = PATIENCE) -> Screen:
        """Read until the screen shows a text."""
        limit = time.monotonic() + seconds
        while not is_seen(self.screen):
            assert time.monotonic() < limit, f"never seen; the screen is:\n{self.screen.text}"
            end = self._unseen.find(_AGAIN, 1)
            if end > 0:
                self._show(self._unseen[:end], self._unseen[end:])
            elif self._unseen and not self._unseen.startswith(_AGAIN):  # Plain text without a view.
                self._show(self._unseen)
            elif not self._read(0.2):  # The frame is complete, because nothing more comes.
                if not self._unseen and self.process.poll() is not None:
                    break
                self._show(self._unseen)
        assert is_seen(self.screen), f"never seen; the screen is:\n{self.screen.text}"
        return self.screen

    def _show(self, frame: str, rest: str = "") -> None:
        self.screen.feed(frame)
        self._unseen = rest

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, seconds: float = PATIENCE) -> int:
        """Read to the end and return the exit code."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and (self._read(0.2) or self.process.poll() is None):
            pass
        self._show(self._unseen)
        code = self.process.wait(timeout=PATIENCE)
        os.close(self._master)
        return code

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # The other side is closed.
            return False
        text = self._decode(data)
        self.raw += text
        self._unseen += text
        return bool(data)
