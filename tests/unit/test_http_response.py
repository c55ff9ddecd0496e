"""Tests of the parser for HTTP responses, compared with the standard library."""

from __future__ import annotations

import http.client
import io
from typing import Any, cast

import pytest
from tests.cases import case

from acorn.models.lanes.http_response import ChunkParser, ResponseReader, read_head


class Line:
    """A fake socket for the standard library that contains all data of a response."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(cast(Any, io.BytesIO(self._said)))


def reader(said: bytes) -> ResponseReader:
    return ResponseReader(io.BytesIO(said))


def body(response: ResponseReader) -> bytes:
    return b"".join(iter(response.read_piece, b""))


BODY = b"hello, and more"
HEADS = {
    "plain": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "small letters, no space": b"HTTP/1.1 200 OK\r\ncontent-length:5\r\n\r\n",
    "bare line ends": b"HTTP/1.1 200 OK\nContent-Length: 5\n\n",
    "no reason": b"HTTP/1.1 429\r\nRetry-After: 3\r\nContent-Length: 5\r\n\r\n",
    "no length": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n",
    "no headers": b"HTTP/1.1 200 OK\r\n\r\n",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Length: 99\r\n\r\n",
    "closed": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n",
    "old": b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
    "old and kept": b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\n",
    "odd lengths": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "a length below nothing": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "twice": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "nothing to say": b"HTTP/1.1 204 No Content\r\n\r\n",
    "said on the way": b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "folded": b"HTTP/1.1 200 OK\r\nX: a\r\n  b\r\nContent-Length: 5\r\n\r\n",
    "latin": b"HTTP/1.1 200 OK\r\nX: caf\xe9\r\nContent-Length: 5\r\n\r\n",
}


def test_http_response_head_is_parsed_like_standard_library() -> None:
    for name, head in HEADS.items():
        with case(name):
            ours = reader(head + BODY)
            theirs = http.client.HTTPResponse(cast(Any, Line(head + BODY)), method="POST")
            theirs.begin()
            assert ours.status == theirs.status
            # A connection of HTTP/1.0 is never used again.
            assert ours.is_reusable == (not theirs.will_close and theirs.version == 11)
            assert {name.lower() for name in theirs.headers} <= set(ours.headers)
            if not theirs.chunked:
                assert body(ours) == theirs.read()


def test_http_interim_responses_are_skipped() -> None:
    head = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    response = reader(head + BODY)
    assert (response.status, response.headers) == (200, {"content-length": "5"})


@pytest.mark.parametrize(
    "head", [b"HTTP/2 200\r\n\r\n", b"hello\r\n\r\n", b"", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: y"]
)
def test_invalid_http_response_head_raises(head: bytes) -> None:
    with pytest.raises(http.client.HTTPException):
        reader(head)


def test_http_response_with_100_headers_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 99 + b"Content-Length: 5\r\n\r\n"
    assert body(reader(head + BODY)) == BODY[:5]
    with pytest.raises(http.client.HTTPException, match="more than 100 headers"):
        reader(head.replace(b"X: y", b"X: y\r\nX: z", 1) + BODY)


def test_endless_http_headers_raise() -> None:
    for name, head in {"long": b"X: " + b"y" * 100_000, "many": b"X: y\r\n" * 200}.items():
        with case(name), pytest.raises(http.client.HTTPException, match=r"too long|more than 100 headers"):
            read_head(io.BytesIO(b"HTTP/1.1 200 OK\r\n" + head))


CHUNKED = b"5\r\nhello\r\n6; name=value\r\n, and \r\nA\r\n\r\n12345\n\r\n\r\n0\r\nTrailer: x\r\n\r\n"
WHOLE = b"hello, and \r\n12345\n\r\n"


def test_chunked_http_body_split_at_any_size_is_parsed() -> None:
    for size in range(1, len(CHUNKED) + 1):
        with case(size):
            chunks = ChunkParser()
            found = b"".join(chunks.feed(CHUNKED[at : at + size]) for at in range(0, len(CHUNKED), size))
            assert (found, chunks.is_finished, chunks.has_excess) == (WHOLE, True, False)


def test_connection_is_reusable_after_chunked_response_is_read() -> None:
    response = reader(HEADS["chunked"] + CHUNKED)
    assert body(response) == WHOLE
    assert response.is_reusable


def test_connection_with_data_after_response_is_not_reused() -> None:
    response = reader(HEADS["chunked"] + CHUNKED + b"HTTP/1.1 200 OK\r\n\r\n")
    assert body(response) == WHOLE
    assert not response.is_reusable


def test_invalid_chunked_http_body_raises() -> None:
    for data in [b"5\r\nhel", b"5\r\nhello\r\n", b"0\r\n", b"x\r\nhello\r\n", b"-1\r\nhello\r\n", b""]:
        with case(data), pytest.raises(http.client.HTTPException):
            body(reader(HEADS["chunked"] + data))
