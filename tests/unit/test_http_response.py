"""Tests of the parser for HTTP responses, compared with the standard library."""

from __future__ import annotations

import http.client
import io
from functools import partial
from typing import Any, cast

import pytest
from tests.cases import case

from acorn.models.lanes.http_response import ChunkParser, FastHTTPResponse, read_headers


class Line:
    """A fake socket that contains all data of a response."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(cast(Any, io.BytesIO(self._said)))


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
            ours = FastHTTPResponse(cast(Any, Line(head + BODY)), method="POST")
            theirs = http.client.HTTPResponse(cast(Any, Line(head + BODY)), method="POST")
            for response in (ours, theirs):
                response.begin()
            for name in ("status", "reason", "version", "length", "chunked", "will_close"):
                assert getattr(ours, name) == getattr(theirs, name), name
            assert set(ours.headers) == {name.lower() for name in theirs.headers}
            if not ours.chunked:
                assert ours.read() == theirs.read()


def test_http_interim_responses_are_skipped() -> None:
    head = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    response = FastHTTPResponse(cast(Any, Line(head + BODY)), method="POST")
    response.begin()
    assert (response.status, dict(response.headers)) == (200, {"content-length": "5"})


@pytest.mark.parametrize("head", [b"HTTP/2 200\r\n\r\n", b"hello\r\n\r\n", b"", b"HTTP/1.1 abc\r\n\r\n"])
def test_invalid_http_response_head_raises(head: bytes) -> None:
    with pytest.raises((http.client.HTTPException, OSError)):
        FastHTTPResponse(cast(Any, Line(head)), method="POST").begin()


def test_endless_http_headers_raise() -> None:
    with pytest.raises(http.client.LineTooLong):
        read_headers(io.BytesIO(b"X: " + b"y" * 100_000))
    with pytest.raises(http.client.HTTPException, match="more than 100 headers"):
        read_headers(io.BytesIO(b"X: y\r\n" * 200))
    assert read_headers(io.BytesIO(b" folded\r\nX\r\n more\r\nA: b\r\n\r\nrest")) == {"a": "b"}


CHUNKED = b"5\r\nhello\r\n6; name=value\r\n, and \r\nA\r\n\r\n12345\n\r\n\r\n0\r\nTrailer: x\r\n\r\n"
WHOLE = b"hello, and \r\n12345\n\r\n"


def test_chunked_http_body_split_at_any_size_is_parsed() -> None:
    for size in range(1, len(CHUNKED) + 1):
        with case(size):
            chunks = ChunkParser()
            found = b"".join(chunks.feed(CHUNKED[at : at + size]) for at in range(0, len(CHUNKED), size))
            assert (found, chunks.is_finished, chunks.has_excess) == (WHOLE, True, False)


def test_connection_is_reusable_after_chunked_response_is_read() -> None:
    head = HEADS["chunked"]
    response = FastHTTPResponse(cast(Any, Line(head + CHUNKED)), method="POST")
    response.begin()
    assert response.read1(1000) + response.read1(1000) == WHOLE
    assert response.read1(1000) == b""
    assert not response.will_close


def test_connection_with_data_after_response_is_not_reused() -> None:
    response = FastHTTPResponse(cast(Any, Line(HEADS["chunked"] + CHUNKED + b"HTTP/1.1 200 OK\r\n\r\n")), method="POST")
    response.begin()
    assert response.read1(1000) == WHOLE
    assert response.read1(1000) == b""
    assert response.will_close


def test_invalid_chunked_http_body_raises() -> None:
    for data in [b"5\r\nhel", b"5\r\nhello\r\n", b"0\r\n", b"x\r\nhello\r\n", b"-1\r\nhello\r\n", b""]:
        with case(data):
            response = FastHTTPResponse(cast(Any, Line(HEADS["chunked"] + data)), method="POST")
            response.begin()
            with pytest.raises(http.client.HTTPException):
                list(iter(partial(response.read1, 1000), b""))
