"""Fast parsers for HTTP responses: headers, chunked bodies and server-sent events.

The standard library parses HTTP headers with its email parser. For a small response, that takes as long as all other
work together. The standard library also returns one chunk at a time, even if several chunks have arrived. The parsers
for chunks and events perform no I/O: their callers read the bytes and pass them to `feed`.
"""

from __future__ import annotations

from http.client import HTTPException, HTTPResponse, IncompleteRead, LineTooLong, UnknownProtocol
from typing import Any, Protocol, cast

from pydantic_core import from_json

_MAX_LINE_LENGTH = 65536
_MAX_HEADERS = 100


class FastHTTPResponse(HTTPResponse):
    """A subclass of the standard library's `HTTPResponse` with a faster parser for headers and chunks.

    `headers` is a dict with lowercase names. If a header occurs several times, the dict contains the first value.
    """

    def begin(self) -> None:
        library = cast(Any, self)  # The type stubs do not contain the private members of `HTTPResponse`.
        while True:
            version, status, reason = library._read_status()
            if not version.startswith(("HTTP/1.", "HTTP/0.9")):
                raise UnknownProtocol(version)
            headers = read_headers(self.fp)
            if status >= 200:  # Skip interim responses such as `100 Continue`.
                break
        self.status = library.code = status
        self.reason = reason.strip()
        self.version = 10 if version in ("HTTP/1.0", "HTTP/0.9") else 11
        library.headers = library.msg = headers
        library.chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        library.chunk_left = None
        self.length = None if library.chunked else _parse_length(headers.get("content-length", ""))
        if status in (204, 304):
            self.length = 0
        has_end = library.chunked or self.length is not None
        library.will_close = library._check_close() or not has_end
        self._chunks = ChunkParser()

    def read1(self, n: int = -1) -> bytes:
        if not self.chunked or self.isclosed():
            return super().read1(n)
        while not self._chunks.is_finished:
            data = self.fp.read1(n)
            if not data:
                raise IncompleteRead(b"")
            if content := self._chunks.feed(data):
                return content
        if self._chunks.has_excess:  # The next request would read these bytes as its response.
            self.will_close = True
        cast(Any, self)._close_conn()
        return b""


class _LineReader(Protocol):
    def readline(self, size: int, /) -> bytes: ...


def read_headers(file: _LineReader) -> dict[str, str]:
    """Read the header lines up to the empty line, and return a dict that maps lowercase names to values."""
    headers: dict[str, str] = {}
    name = ""
    for _ in range(_MAX_HEADERS + 1):
        line = file.readline(_MAX_LINE_LENGTH + 1)
        if len(line) > _MAX_LINE_LENGTH:
            raise LineTooLong("header line")
        if line in (b"\r\n", b"\n", b""):
            return headers
        text = line.decode("iso-8859-1")
        if text[0] in " \t":  # This line continues the previous header.
            if name in headers:
                headers[name] += f" {text.strip()}"
            continue
        name, colon, value = text.partition(":")
        name = name.lower()
        if colon and name not in headers:
            headers[name] = value.strip()
        else:
            name = ""
    raise HTTPException(f"The response has more than {_MAX_HEADERS} headers")


def _parse_length(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


class ChunkParser:
    """A parser for a response body in HTTP's chunked transfer encoding."""

    def __init__(self) -> None:
        self._unread: bytes = b""
        self._left = 0
        """The number of bytes of the current chunk that have not arrived."""
        self._in_trailer = False
        self.is_finished = False
        self.has_excess = False
        """Whether bytes arrived after the end of the body."""

    def feed(self, data: bytes) -> bytes:
        """Parse the next bytes from the connection, and return the decoded part of the body.

        Raise `IncompleteRead` if the chunked encoding is not valid.
        """
        data = self._unread + data if self._unread else data
        pieces: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.is_finished:
            if self._left:
                pieces.append(data[at : at + self._left])
                at += len(pieces[-1])
                self._left -= len(pieces[-1])
                continue
            line_end = data.find(b"\n", at)
            if line_end < 0:
                if end - at > _MAX_LINE_LENGTH:
                    raise LineTooLong("chunk size")
                break
            self._read_line(data[at:line_end].strip())
            at = line_end + 1
        self._unread = data[at:]
        self.has_excess = self.is_finished and bool(self._unread)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.is_finished = not line
        elif line:  # An empty line ends a chunk.
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise IncompleteRead(b"") from None
            if self._left < 0:
                raise IncompleteRead(b"")
            self._in_trailer = not self._left


class EventParser:
    """A parser for a body that consists of server-sent events."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes of the body, and return the `data` values of the events that are now complete.

        The parser expects the data of an event in one line, because all supported providers send it in one line.
        """
        text = self._unread + data if self._unread else data
        # Many servers send exactly one event at a time, so this case has a faster path.
        if text.startswith(b"data: {") and text.find(b"\n") == len(text) - 2 and text.endswith(b"}\n\n"):
            self._unread = b""
            return [text[6:-2]]
        lines = text.split(b"\n")
        self._unread = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:") and len(line) > 6]

    def ends_with_event(self) -> bool:
        """Return True if the unparsed rest of the body is a complete event without a final line break.

        Some servers omit the line break after their last event.
        """
        line = self._unread.strip()
        if not line.startswith(b"data:"):
            return False
        try:
            from_json(line[5:])
        except ValueError:
            return line[5:].strip() == b"[DONE]"
        return True
