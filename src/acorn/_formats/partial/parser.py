"""A JSON parser that is fed text in pieces of any size and always has a value to show.

The work is constant for each character. It is lenient by nature: where the text is no JSON it stops and
keeps what it has. Nothing it accepts is final; the complete text is judged by Pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, nan
from typing import Any

from acorn._formats.partial.frames import NOT_READY, Frame, GrowingText

_STOP = re.compile(r'["\\]')
_BLANK = re.compile(r"[ \t\n\r]*")
_TOKEN_END = re.compile(r"[,\]} \t\n\r]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None, "NaN": nan, "Infinity": inf, "-Infinity": -inf}
"""Pydantic reads the last three too."""
_DEEPEST = 201
"""How many containers may be open; Pydantic reads no more."""
_LONGEST_TOKEN = 10_000
"""No number of sense is longer, but a word of nonsense may be; it is joined anew with each piece."""


class PushParser:
    """Builds one value by a plan (see `plan.py`) as its text comes in."""

    def __init__(self, plan: Any) -> None:
        self._plan: Any = plan
        """The plan of the value that is due."""
        self._stack: list[Frame] = []
        self._text: GrowingText | None = None
        """The string that is open, be it a value or a key."""
        self._shows = False
        """Whether the open string is a value that shows while it grows."""
        self._growing: GrowingText | None = None
        """The open string, where nothing but more of it is expected."""
        self._token = ""
        self._hex = ""
        self._high = ""
        self._state: Callable[[str, int], int] = self._value
        self._root: Any = NOT_READY
        self._outermost: Frame | None = None
        self._changed = True
        self._snapshot: Any = NOT_READY

    def feed(self, piece: str) -> None:
        """Take in more text."""
        text = self._growing
        # Most pieces are the middle of a string.
        if text is not None and piece and '"' not in piece and "\\" not in piece:
            self._changed = True
            self._snapshot = None  # it may hold the text, which then could not grow in place
            text.add(piece)
            return
        at, end = 0, len(piece)
        while at < end:
            at = self._state(piece, at)

    def value(self) -> Any:
        """A snapshot that later text does not change; the same object while nothing was added."""
        if self._changed:
            self._changed = False
            stack = self._stack
            if stack:
                found = self._text.snapshot() if self._shows and self._text is not None else NOT_READY
                for frame in reversed(stack):
                    found = frame.snapshot(found)
                self._snapshot = found
            elif self._shows and self._text is not None:
                self._snapshot = self._text.snapshot()
            else:
                self._snapshot = self._root
        return self._snapshot

    def completed(self) -> tuple[str, ...]:
        """The fields of the outermost model whose values are complete."""
        return getattr(self._outermost, "done", ())

    # One method for each thing that may come next; each gives the place where the next one goes on.

    def _value(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        sign = piece[at]
        if sign == '"':
            self._text = self._plan.new_text()
            self._shows = self._plan.grows
            self._growing = self._text if self._shows else None
            self._changed = self._changed or self._shows
            self._state = self._string
        elif sign in "{[" and len(self._stack) < _DEEPEST:
            self._open(self._plan.object_frame() if sign == "{" else self._plan.array_frame())
        elif sign == "]" and self._stack and not self._stack[-1].is_object:
            self._close()
        elif sign in "-0123456789tfnNI":
            self._token = ""
            self._state = self._scalar
            return at
        else:
            return self._stop(piece)
        return at + 1

    def _open(self, frame: Frame) -> None:
        if not self._stack:
            self._outermost = frame
        self._stack.append(frame)
        self._changed = True
        if frame.is_object:
            self._state = self._before_key
        else:
            self._plan = frame.enter("")
            self._state = self._value

    def _string(self, piece: str, at: int) -> int:
        text = self._text
        assert text is not None
        found = _STOP.search(piece, at)
        end = len(piece) if found is None else found.start()
        if end > at:
            if self._high:
                self._flush()
            if self._shows:
                self._changed = True
                self._snapshot = None  # it may hold the text, which then could not grow in place
            text.add(piece[at:end] if at or found else piece)
        if found is None:
            return end
        self._growing = None
        if piece[end] == "\\":
            self._state = self._escape
        else:
            if self._high:
                self._flush()
            self._text, self._shows = None, False
            self._done(self._plan.text(text.text))
        return end + 1

    def _escape(self, piece: str, at: int) -> int:
        sign = piece[at]
        if sign == "u":
            self._hex = ""
            self._state = self._unicode
        elif sign in _ESCAPES:
            self._add(_ESCAPES[sign])
        else:
            return self._stop(piece)
        return at + 1

    def _unicode(self, piece: str, at: int) -> int:
        taken = piece[at : at + 4 - len(self._hex)]
        self._hex += taken
        if len(self._hex) == 4:
            if not _HEX.fullmatch(self._hex):
                return self._stop(piece)
            code = int(self._hex, 16)
            if self._high and 0xDC00 <= code < 0xE000:
                pair, self._high = self._high + chr(code), ""
                self._add(pair.encode("utf-16", "surrogatepass").decode("utf-16"))
            elif 0xD800 <= code < 0xDC00:
                if self._high:
                    self._flush()
                self._high = chr(code)  # its other half may be in the next piece
                self._state = self._in_string()
            else:
                self._add("\ufffd" if 0xDC00 <= code < 0xE000 else chr(code))
        return at + len(taken)

    def _add(self, piece: str) -> None:
        assert self._text is not None
        if self._high:
            self._flush()
        self._text.add(piece)
        self._changed = self._changed or self._shows
        self._growing = self._text if self._shows else None
        self._state = self._in_string()

    def _flush(self) -> None:
        """The other half never came."""
        assert self._text is not None
        self._high = ""
        self._text.add("\ufffd")
        self._changed = self._changed or self._shows

    def _in_string(self) -> Callable[[str, int], int]:
        return self._key if self._stack and self._plan is None else self._string

    def _scalar(self, piece: str, at: int) -> int:
        found = _TOKEN_END.search(piece, at)
        end = len(piece) if found is None else found.start()
        self._token += piece[at:end]
        if len(self._token) > _LONGEST_TOKEN or (found is not None and not self._end_token()):
            return self._stop(piece)
        return end

    def _end_token(self) -> bool:
        token = self._token
        if token in _WORDS:
            self._done(self._plan.scalar(_WORDS[token], token))
            return True
        number = _NUMBER.fullmatch(token)
        if number is None:
            return False
        try:
            value = float(token) if number[1] or number[2] else int(token)
        except ValueError:  # more digits than Python and Pydantic allow
            return False
        self._done(self._plan.scalar(value, token))
        return True

    def finish(self) -> None:
        """No more text will come: a number at the very end is complete now."""
        if self._state == self._scalar and not self._stack:
            self._end_token()

    def _before_key(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        if piece[at] == '"':
            self._text = GrowingText()
            self._plan = None
            self._state = self._key
        elif piece[at] == "}":
            self._close()
        else:
            return self._stop(piece)
        return at + 1

    def _key(self, piece: str, at: int) -> int:
        text = self._text
        assert text is not None
        found = _STOP.search(piece, at)
        end = len(piece) if found is None else found.start()
        if end > at:
            if self._high:
                self._flush()
            text.add(piece[at:end])
        if found is None:
            return end
        if piece[end] == "\\":
            self._state = self._escape
        else:
            if self._high:
                self._flush()
            self._text = None
            frame = self._stack[-1]
            self._plan = frame.enter(text.text)
            self._changed = self._changed or frame.decides
            self._state = self._colon
        return end + 1

    def _colon(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        if piece[at] != ":":
            return self._stop(piece)
        self._state = self._value
        return at + 1

    def _after(self, piece: str, at: int) -> int:
        at = _BLANK.match(piece, at).end()  # type: ignore[union-attr]
        if at == len(piece):
            return at
        if not self._stack:
            return self._stop(piece)
        frame, sign = self._stack[-1], piece[at]
        if sign == ",":
            if frame.is_object:
                self._state = self._before_key
            else:
                self._plan = frame.enter("")
                self._state = self._value
        elif sign == ("}" if frame.is_object else "]"):
            self._close()
        else:
            return self._stop(piece)
        return at + 1

    def _close(self) -> None:
        self._done(self._stack.pop().close())

    def _done(self, value: Any) -> None:
        self._changed = True
        if self._stack:
            self._stack[-1].put(value)
        else:
            self._root = value
        self._state = self._after

    def _stop(self, piece: str) -> int:
        self._state = self._ignore
        return len(piece)

    def _ignore(self, piece: str, at: int) -> int:
        return len(piece)
