"""The standard library's response, but for its head and its chunks, which are read here.

The library reads the head with its parser for mail, which takes as long as all the rest of a small answer; and of
chunks it gives one at a time, however many have come.

Server-sent events, from bytes as they come to the data of each event. Pure; fed by the native lanes.
"""

from __future__ import annotations

from http.client import HTTPException, HTTPResponse, IncompleteRead, LineTooLong, UnknownProtocol
from typing import Any, cast

from pydantic_core import from_json

_LONGEST = 65536
_MOST = 100


class Response(HTTPResponse):
    """An answer whose headers are a dict, their names in small letters; of several with one name the first counts."""

    def begin(self) -> None:
        library = cast(Any, self)
        while True:
            version, status, reason = library._read_status()
            if not version.startswith(("HTTP/1.", "HTTP/0.9")):
                raise UnknownProtocol(version)
            found = read_headers(self.fp)
            if status >= 200:  # some say one thing or another on the way
                break
        self.status = library.code = status
        self.reason = reason.strip()
        self.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        library.headers = library.msg = found
        library.chunked = found.get("transfer-encoding", "").lower() == "chunked"
        library.chunk_left = None
        self.length = None if library.chunked else _length(found.get("content-length", ""))
        if status in (204, 304):
            self.length = 0
        has_end = library.chunked or self.length is not None
        library.will_close = library._check_close() or not has_end
        self._chunks = Chunks()

    def read1(self, n: int = -1) -> bytes:
        if not self.chunked or self.isclosed():
            return super().read1(n)
        while not self._chunks.is_over:
            data = self.fp.read1(n)
            if not data:
                raise IncompleteRead(b"")
            if found := self._chunks.feed(data):
                return found
        if self._chunks.has_more:  # it would be taken for the answer to the next request
            self.will_close = True
        cast(Any, self)._close_conn()
        return b""


def read_headers(file: Any) -> dict[str, str]:
    """The lines up to the empty one."""
    found: dict[str, str] = {}
    name = ""
    for _ in range(_MOST + 1):
        line: bytes = file.readline(_LONGEST + 1)
        if len(line) > _LONGEST:
            raise LineTooLong("header line")
        if line in (b"\r\n", b"\n", b""):
            return found
        text = line.decode("iso-8859-1")
        if text[0] in " \t":  # more of the one before
            if name in found:
                found[name] += f" {text.strip()}"
            continue
        name, colon, value = text.partition(":")
        name = name.lower()
        if colon and name not in found:
            found[name] = value.strip()
        else:
            name = ""
    raise HTTPException(f"got more than {_MOST} headers")


def _length(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


class Chunks:
    """Data out of HTTP's chunks, from bytes as they come: what has arrived at once is given at once."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        """Bytes of the chunk that are still to come."""
        self._in_trailer = False
        self.is_over = False
        self.has_more = False
        """Whether something came behind the end."""

    def feed(self, data: bytes) -> bytes:
        """The data in these bytes; raises `IncompleteRead` where they are no chunks."""
        data = self._rest + data if self._rest else data
        found: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.is_over:
            if self._left:
                found.append(data[at : at + self._left])
                at += len(found[-1])
                self._left -= len(found[-1])
                continue
            line = data.find(b"\n", at)
            if line < 0:
                if end - at > _LONGEST:
                    raise LineTooLong("chunk size")
                break
            self._take_line(data[at:line].strip())
            at = line + 1
        self._rest = data[at:]
        self.has_more = self.is_over and bool(self._rest)
        return found[0] if len(found) == 1 else b"".join(found)

    def _take_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.is_over = not line
        elif line:  # an empty one ends a chunk
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise IncompleteRead(b"") from None
            if self._left < 0:
                raise IncompleteRead(b"")
            self._in_trailer = not self._left


class Events:
    """The events of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are whole now. Every provider writes an event's data in one line."""
        text = self._rest + data if self._rest else data
        if text.startswith(b"data: {") and text.find(b"\n") == len(text) - 2 and text.endswith(b"}\n\n"):
            self._rest = b""  # one event, as many servers send them
            return [text[6:-2]]
        lines = text.split(b"\n")
        self._rest = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:") and len(line) > 6]

    def ends_well(self) -> bool:
        """Whether the last event is whole, though its line did not end."""
        line = self._rest.strip()
        if not line.startswith(b"data:"):
            return False
        try:
            from_json(line[5:])
        except ValueError:
            return line[5:].strip() == b"[DONE]"
        return True
