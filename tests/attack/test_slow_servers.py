"""Attacks of providers that answer slowly or never: `timeout` ends the request on every lane."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.attack.lanes import Hostile, each_lane
from tests.cases import case
from tests.loopback import Request
from tests.waiting import waiting_for_nothing

TIMEOUT = 0.1
PAUSE = 0.02
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


def hints_and_silence(request: Request) -> Iterator[bytes]:
    yield HINTS
    while True:
        yield b""


def endless_hints(request: Request) -> Iterator[bytes]:
    while True:
        yield HINTS


def endless_headers(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nX-Slow: "
    while True:
        yield b"a"


def slow_body(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    while True:
        yield b" "


def slow_chunks(request: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\n \r\n"


Attack = Callable[[Request], Iterator[bytes]]


def test_response_whose_headers_never_end_raises_error_after_timeout() -> None:
    attacks: list[Attack] = [endless_hints, hints_and_silence, endless_headers]
    for turn, attack in enumerate(attacks):
        for lane in each_lane(turn=turn or None):
            with case(attack.__name__), Hostile(attack, PAUSE) as server, waiting_for_nothing():
                error = lane.fails(server, timeout=TIMEOUT)
                assert error.timed_out
                assert "Increase `timeout` in the model dict" in str(error)


def test_plain_response_whose_body_never_ends_raises_error_after_timeout() -> None:
    attacks: list[Attack] = [slow_body, slow_chunks]
    for attack in attacks:
        for lane in each_lane(is_stream=(False,)):
            with case(attack.__name__), Hostile(attack, PAUSE) as server, waiting_for_nothing():
                assert lane.fails(server, timeout=TIMEOUT).timed_out


def test_error_response_whose_body_never_ends_raises_error_after_timeout() -> None:
    def slow_error(request: Request) -> Iterator[bytes]:
        yield b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
        while True:
            yield b" "

    for lane in each_lane():
        with Hostile(slow_error, PAUSE) as server, waiting_for_nothing():
            lane.fails(server, timeout=TIMEOUT)
