"""Attacks of providers whose responses are endless, very large or a bomb: the size and the CPU time are limited."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException

import pytest
from tests.attack.lanes import Hostile, Lane, each_lane
from tests.cases import case
from tests.loopback import EVENTS, Fault, Loopback, Request, openai_stream
from tests.waiting import PATIENCE, waiting_for_nothing

from acorn import DeclarationError
from acorn.models.lanes.http_response import ChunkParser, EventParser
from acorn.models.litellm.transport import _split_lines
from acorn.testing import finish

LIMIT = 50_000


def head(content_type: str, *others: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Type: {content_type}", *others, "", ""]).encode()


def endless(request: Request) -> Iterator[bytes]:
    """Send a body without an end. In a stream, it is one line."""
    yield head(EVENTS if request.body.get("stream") else "application/json")
    yield b"data: {" if request.body.get("stream") else b'{"a": "'
    while True:
        yield b"a" * 10_000


def announced(request: Request) -> Iterator[bytes]:
    yield head(EVENTS if request.body.get("stream") else "application/json", "Content-Length: 10000000")
    yield b" " * 10_000_000


def events(request: Request) -> Iterator[bytes]:
    """Send a stream without an end."""
    yield head(EVENTS if request.body.get("stream") else "application/json")
    while True:
        yield b": keep-alive\n\n" * 1000


def bomb(request: Request) -> Iterator[bytes]:
    """Send 200 MB as 200 KB."""
    yield head(EVENTS if request.body.get("stream") else "application/json", "Content-Encoding: gzip")
    compressor = zlib.compressobj(wbits=31)
    block = b"a" * 1_000_000
    yield from (compressor.compress(block) for _ in range(200))
    yield compressor.flush()


def after_end(request: Request) -> Iterator[bytes]:
    """Send compressed data, and other data after its end."""
    yield head(EVENTS if request.body.get("stream") else "application/json", "Content-Encoding: gzip")
    compressor = zlib.compressobj(wbits=31)
    yield compressor.compress(b"  ") + compressor.flush()
    while True:
        yield b"a" * 10_000


def empty_blocks(request: Request) -> Iterator[bytes]:
    """Send compressed data without content."""
    yield head(EVENTS if request.body.get("stream") else "application/json", "Content-Encoding: gzip")
    compressor = zlib.compressobj(wbits=31)
    yield compressor.compress(b"  ") + compressor.flush(zlib.Z_FULL_FLUSH)
    while True:
        yield b"\x00\x00\x00\xff\xff" * 2_000


def empty_lines(request: Request) -> Iterator[bytes]:
    yield head(EVENTS if request.body.get("stream") else "application/json", "Transfer-Encoding: chunked")
    while True:
        yield b"\r\n" * 5_000


def trailers(request: Request) -> Iterator[bytes]:
    yield head(EVENTS if request.body.get("stream") else "application/json", "Transfer-Encoding: chunked")
    yield b"0\r\n"
    while True:
        yield b"a: b\r\n" * 2_000


Attack = Callable[[Request], Iterator[bytes]]


def test_response_larger_than_limit_raises_model_error() -> None:
    attacks: list[Attack] = [endless, announced, events, bomb]
    for turn, attack in enumerate(attacks):
        for lane in each_lane(turn=turn):
            with case(attack.__name__), Hostile(attack) as server, waiting_for_nothing():
                error = lane.fails(server, max_response_bytes=LIMIT)
                assert "response too large" in str(error)
                assert "increase `max_response_bytes`" in str(error)
                assert not error.retryable


def test_endless_response_without_content_raises_model_error() -> None:
    attacks: list[Attack] = [after_end, empty_blocks, empty_lines, trailers]
    for turn, attack in enumerate(attacks):
        for lane in each_lane(turn=turn):
            with case(attack.__name__), Hostile(attack) as server, waiting_for_nothing():
                began = time.monotonic()
                lane.fails(server, max_response_bytes=LIMIT)
                assert time.monotonic() - began < PATIENCE / 4


def test_chunk_of_one_byte_with_extension_is_read() -> None:
    parser = ChunkParser()
    assert b"".join(parser.feed(b"1;a=b\r\nx\r\n") for _ in range(50_000)) == b"x" * 50_000


def test_chunks_with_large_extensions_raise_error() -> None:
    parser = ChunkParser()
    with pytest.raises(HTTPException, match="without content"):
        parser.feed((b"1;" + b"x" * 4_000 + b"\r\n \r\n") * 100)


def test_error_response_larger_than_limit_raises_model_error() -> None:
    def large(request: Request) -> Iterator[bytes]:
        yield b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n"
        while True:
            yield b"a" * 10_000

    for lane in each_lane():
        with Hostile(large) as server, waiting_for_nothing():
            lane.fails(server, max_response_bytes=LIMIT)


def test_response_has_size_limit_by_default() -> None:
    for lane in (Lane("openai", False, False), Lane("anthropic", True, True), Lane("litellm-openai", False, True)):
        with case(lane), Hostile(bomb) as server, waiting_for_nothing():
            assert "response too large" in str(lane.fails(server))


def test_stream_may_be_larger_than_limit_of_one_event() -> None:
    for lane in each_lane(is_stream=(True,)):
        with Loopback([finish(result="word " * 2_000)]) as server:
            assert lane.run(server, max_response_bytes=LIMIT).output == "word " * 2_000


def test_invalid_size_limit_raises_declaration_error() -> None:
    for lane in ("openai", "litellm-openai"):
        for limit in (0, -1, "1", 1.5, True, None):
            with Loopback() as server, pytest.raises(DeclarationError, match="`max_response_bytes` must be an integer"):
                Lane(lane, False, False).run(server, max_response_bytes=limit)


# Many small pieces


def seconds(work: Callable[[bytes], object], size: int) -> float:
    """Return the CPU time for a line of `size` bytes that arrives in pieces of 64 bytes."""
    data = b"data: " + json.dumps({"a": "x" * size}).encode() + b"\n\n"
    started = time.process_time()
    work(data)
    return time.process_time() - started


def parse_events(data: bytes) -> None:
    parser = EventParser(len(data))
    found = [event for at in range(0, len(data), 64) for event in parser.feed(data[at : at + 64])]
    assert found == [data[6:-2]]


def parse_lines(data: bytes) -> None:
    pieces = (data[at : at + 64] for at in range(0, len(data), 64))
    assert len(next(_split_lines(pieces, len(data)))) == len(data) - 2


def parse_chunks(data: bytes) -> None:
    parser = ChunkParser()
    text = b"".join(b"40\r\n%s\r\n" % data[at : at + 64].ljust(64) for at in range(0, len(data), 64))
    assert sum(len(parser.feed(text[at : at + 8])) for at in range(0, len(text), 8)) >= len(data)


def test_line_in_small_pieces_takes_linear_time() -> None:
    for work in (parse_events, parse_lines, parse_chunks):
        with case(work.__name__):
            # Quadratic time would be 64 times as long.
            assert min(seconds(work, 8_000_000) for _ in range(2)) < 24 * max(seconds(work, 1_000_000), 0.01)


def test_event_in_small_pieces_is_read_on_every_lane() -> None:
    text = "x" * 500_000

    def pieces(request: Request) -> Iterator[bytes]:
        data = openai_stream(finish(result=text), request.body, 1, len(text))
        yield head(EVENTS)
        yield from (data[at : at + 512] for at in range(0, len(data), 512))

    for name in ("openai", "litellm-openai"):
        for is_async in (False, True):
            with case(name, is_async), Hostile(pieces) as server:
                assert Lane(name, True, is_async).run(server).output == text


def test_many_small_chunks_are_read() -> None:
    reply = Fault(chunked=True, reply=finish(result="done"))
    for lane in each_lane(is_stream=(True,)):
        with Loopback([reply]) as server:
            assert lane.run(server).output == "done"
