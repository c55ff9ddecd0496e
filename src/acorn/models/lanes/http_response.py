"""Parsers for HTTP responses: headers, bodies and server-sent events.

The standard library parses HTTP headers with its email parser. For a small response, that takes as long as all other
work together. The standard library also returns one chunk at a time, even if several chunks have arrived. The parsers
for chunks and events perform no I/O: their callers read the bytes and pass them to `feed`.

A server may be hostile, so every part of a response has a maximum size, and the time to parse it is linear.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from io import BufferedIOBase

from pydantic_core import from_json

_FIRST_LINE = re.compile(rb"HTTP/1\.(\d) (\d{3})\b")
_MAX_LINE_LENGTH = 65536
_MAX_HEADERS = 100
_PIECE_SIZE = 65536
"""The maximum number of bytes that one read returns."""
_MAX_CHUNK_LINE = 4096
"""The maximum length of a line with a chunk size, or of a trailer."""
_MAX_OVERHEAD = 65536
"""The maximum number of bytes in such lines before the next content."""
_OVERHEAD_FACTOR = 16
"""The number of bytes in such lines that one byte of content allows. Even chunks of one byte need fewer."""
_GZIP_OR_ZLIB = 47
"""The `wbits` value with which zlib accepts both zlib and gzip headers."""
_MAX_DECOMPRESSED = 1 << 20
"""The maximum number of bytes that the decompressor returns at once. One byte may become a thousand bytes."""
_STREAM_FACTOR = 10
"""A stream may have this many times the bytes of a plain response, because most of its bytes are not content."""
_BROKEN = "The connection broke before the complete response arrived"


class TransportError(Exception):
    """An error because of which the complete response did not arrive, such as a broken connection."""


class ResponseTimeoutError(TransportError):
    """An error for a response that did not arrive before the timeout."""


class ResponseTooLargeError(TransportError):
    """An error for a response, or for one event of a stream, that has more bytes than the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The response is larger than the limit of {limit:,} bytes.")
        self.limit = limit


class ContentDecoder:
    """A decompressor of a body, which also counts the bytes.

    A server may compress its response although the request does not accept it.
    """

    def __init__(self, encoding: str | None, max_bytes: int, *, is_stream: bool) -> None:
        is_compressed = (encoding or "").lower() in ("gzip", "x-gzip", "deflate")
        self._decompressor = zlib.decompressobj(_GZIP_OR_ZLIB) if is_compressed else None
        self._max_bytes = max_bytes
        self._left = max_bytes * _STREAM_FACTOR if is_stream else max_bytes

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data. Raise `TransportError` if there is too much of it, or if it is not valid."""
        if self._decompressor is None:
            self._count(len(data))
            yield data
            return
        while data:
            if self._decompressor.eof:  # The decompressor would keep all data after the end in memory.
                self._count(len(data))
                return
            try:
                piece = self._decompressor.decompress(data, _MAX_DECOMPRESSED)
            except zlib.error as error:
                raise TransportError(f"The compressed response is not valid: {error}.") from error
            rest = self._decompressor.unconsumed_tail
            # Compressed data may be endless without any content.
            self._count(max(len(piece), len(data) - len(rest)))
            if piece:
                yield piece
            data = rest

    def finish(self) -> None:
        """Raise `TransportError` if the compressed data is not complete."""
        if self._decompressor is not None and not self._decompressor.eof:
            raise TransportError(f"{_BROKEN}.")

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ResponseTooLargeError(self._max_bytes)


class ResponseReader:
    """A reader for one HTTP response."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self.status, is_old, self.headers = read_head(file)
        while self.status < 200:  # Skip interim responses such as `100 Continue`.
            self.status, is_old, self.headers = read_head(file)
        length = self.headers.get("content-length", "")
        is_chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self._chunks = ChunkParser() if is_chunked else None
        has_length = length.isascii() and length.isdigit() and len(length) < 20 and not is_chunked
        self._left = int(length) if has_length else None
        """The number of bytes of the body that have not arrived, or None if the server did not send its length."""
        if self.status in (204, 304):
            self._left = 0
        has_end = is_chunked or self._left is not None
        self.is_reusable = has_end and not is_old and "close" not in self.headers.get("connection", "").lower()
        """Whether the connection accepts another request after this response."""

    def read_piece(self) -> bytes:
        """Return the next part of the body as soon as it arrives, or b"" at the end of the body.

        Raise `HTTPException` if the connection broke, or if the chunked encoding is not valid.
        """
        while self._chunks is not None and not self._chunks.is_finished:
            data = self._file.read1(_PIECE_SIZE)
            if not data:
                raise HTTPException(_BROKEN)
            content = self._chunks.feed(data)
            if self._chunks.has_excess:  # The next request would read these bytes as its response.
                self.is_reusable = False
            if content:
                return content
        if self._chunks is not None or self._left == 0:
            return b""
        data = self._file.read1(_PIECE_SIZE if self._left is None else min(self._left, _PIECE_SIZE))
        if self._left is not None:
            if not data:
                raise HTTPException(_BROKEN)
            self._left -= len(data)
        return data

    def close(self) -> None:
        self._file.close()


def read_head(file: BufferedIOBase) -> tuple[int, bool, dict[str, str]]:
    """Read the lines before the body: return the status, whether the version is HTTP/1.0, and the headers.

    The names of the headers are lowercase. If a header occurs several times, the first value is returned.
    """
    lines = _read_lines(file)
    if not lines:
        raise HTTPException("The server closed the connection without a response")
    if (first := _FIRST_LINE.match(lines[0])) is None:
        raise HTTPException(f"The server did not send an HTTP/1.1 response, but {lines[0][:80]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.decode("iso-8859-1").partition(":")
        headers.setdefault(name.lower(), value.strip())
    return int(first[2]), first[1] == b"0", headers


def _read_lines(file: BufferedIOBase) -> list[bytes]:
    lines: list[bytes] = []
    while len(lines) <= _MAX_HEADERS + 1:  # The first line is not a header.
        line = file.readline(_MAX_LINE_LENGTH)
        if line in (b"\r\n", b"\n", b""):
            return lines
        if not line.endswith(b"\n"):
            raise HTTPException("The response has an incomplete header, or a header that is too long")
        lines.append(line)
    raise HTTPException(f"The response has more than {_MAX_HEADERS} headers")


class ChunkParser:
    """A parser for a response body in HTTP's chunked transfer encoding."""

    def __init__(self) -> None:
        self._unread: bytes = b""
        self._left = 0
        """The number of bytes of the current chunk that have not arrived."""
        self._overhead = 0
        """The number of bytes outside the content, without those that the content allows."""
        self._in_trailer = False
        self.is_finished = False
        self.has_excess = False
        """Whether bytes arrived after the end of the body."""

    def feed(self, data: bytes) -> bytes:
        """Parse the next bytes from the connection, and return the decoded part of the body.

        Raise `HTTPException` if the chunked encoding is not valid.
        """
        data = self._unread + data if self._unread else data
        pieces: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.is_finished:
            if self._left:
                pieces.append(data[at : at + self._left])
                at += len(pieces[-1])
                self._left -= len(pieces[-1])
                self._overhead = max(0, self._overhead - _OVERHEAD_FACTOR * len(pieces[-1]))
                continue
            line_end = data.find(b"\n", at)
            if line_end < 0:
                if end - at > _MAX_CHUNK_LINE:
                    raise HTTPException("The response has a chunk size that is too long")
                break
            self._overhead += line_end + 1 - at
            if self._overhead > _MAX_OVERHEAD:  # The size limit of the response counts only the content.
                raise HTTPException("The response has too many chunk sizes or trailers without content")
            self._read_line(data[at:line_end].strip())
            at = line_end + 1
        self._unread = data[at:]
        self.has_excess = self.is_finished and bool(self._unread)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.is_finished = not line
        elif line:  # An empty line ends a chunk.
            size = line.partition(b";")[0].strip()
            try:
                self._left = int(size, 16)
            except ValueError:
                self._left = -1
            if self._left < 0:
                raise HTTPException(f"The response has a chunk of the invalid size {size[:80]!r}")
            self._in_trailer = not self._left


class EventParser:
    """A parser for a body that consists of server-sent events."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        """The maximum number of bytes of one line, and so of one event."""
        self._unread = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes of the body, and return the `data` values of the events that are now complete.

        The parser expects the data of an event in one line, because all supported providers send it in one line.
        """
        if not self._unread:
            # Many servers send exactly one event at a time, so this case has a faster path.
            if data.startswith(b"data: {") and data.find(b"\n") == len(data) - 2 and data.endswith(b"}\n\n"):
                return [data[6:-2]]
        elif b"\n" in data:
            data = bytes(self._unread) + data
            self._unread.clear()
        # A line may arrive in many small pieces, so an incomplete line is not searched and not copied.
        at = data.rfind(b"\n") + 1
        self._unread += data[at:]
        if len(self._unread) > self._max_bytes:
            raise ResponseTooLargeError(self._max_bytes)
        if not at:
            return []
        return [line[5:].strip() for line in data[:at].split(b"\n") if line.startswith(b"data:") and len(line) > 6]

    def ends_with_event(self) -> bool:
        """Return True if the unparsed rest of the body is a complete event without a final line break.

        Some servers omit the line break after their last event.
        """
        line = bytes(self._unread).strip()
        if not line.startswith(b"data:"):
            return False
        try:
            from_json(line[5:])
        except ValueError:
            return line[5:].strip() == b"[DONE]"
        return True
