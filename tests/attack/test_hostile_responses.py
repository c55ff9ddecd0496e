"""Attacks of providers with redirects, invalid responses and impossible usage: each one is an `AcornError` at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from tests.attack.lanes import Hostile, each_lane
from tests.cases import case
from tests.loopback import (
    EVENTS,
    Fault,
    Loopback,
    Request,
    anthropic_message,
    anthropic_stream,
    openai_completion,
    openai_stream,
)
from tests.loopback_responses import responses_answer, responses_stream
from tests.waiting import waiting_for_nothing

from acorn import AcornError, ModelError
from acorn.testing import finish

DEPTH = 100_000
DEEP = "[" * DEPTH + "]" * DEPTH
LOCATIONS = (
    "http://[",
    "http://a b/\x00",
    "//",
    "http://\xff",
    "http://127.0.0.1:99999999/",
    "a" * 60_000,
    "http:///x",
)
NUMBERS = ("1e400", "-1e400", "NaN", "-100000", "1" + "0" * 300, "1.5", '"7"', "true", "[]", "{}", '"x"')


def always(data: bytes) -> Callable[[Request], Iterable[bytes]]:
    return lambda request: [data]


def test_redirect_to_other_host_is_refused() -> None:
    for status in (302, 307):
        for lane in each_lane():
            with Loopback(lambda request: finish("stolen")) as thief:
                location = f"{thief.url}/v1/chat/completions"
                with case(status), Loopback([Fault(status=status, headers={"Location": location}, body=b"")]) as server:
                    error = lane.fails(server, headers={"X-Secret": "canary"})
                    assert (thief.accepted, len(server.requests)) == (0, 1)
                    assert error.status == status
                    assert "redirects the request to another address" in str(error)


def test_redirect_to_same_host_is_refused() -> None:
    for lane in each_lane():
        with Loopback([Fault(status=307, headers={"Location": "/other"}, body=b""), finish("x")]) as server:
            assert lane.fails(server).status == 307
            assert len(server.requests) == 1


def test_invalid_location_raises_model_error() -> None:
    for turn, location in enumerate(LOCATIONS):
        for lane in each_lane(turn=turn):
            with case(location[:80]):
                lines = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
                with Hostile(always(lines.encode("latin-1"))) as server:
                    lane.fails(server)


HEADS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=\xff\xfe\r\n\r\n\xff\xfe",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=idna\r\n\r\n\xff\xfe",
    b"HTTP/1.1 200 \xff\xfe\r\nX: \xff\xfe\r\n\r\n\xff\xfe\x00",
    b"HTTP/1.1 000 OK\r\n\r\n{}",
    b"HTTP/1.1 999 OK\r\n\r\n{}",
    b"HTTP/9.9 200 OK\r\n\r\n{}",
    b"\x00\xff\xfe\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\xff\xfe not gzip",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\n\xff\xfe",
    b"HTTP/1.1 200 OK\r\nSet-Cookie: \xff=\xfe; expires=1e400\r\n\r\n\xff",
    b"HTTP/1.1 429 Slow\r\nRetry-After: 1e400\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 429 Slow\r\nRetry-After: -1e400\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 Slow\r\nRetry-After: Mon, 01 Jan 99999999999 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 Slow\r\nRetry-After: \xff, (((\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\n\r\n" + DEEP.encode(),
    b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\n\r\n" + b'{"error":' * 50_000,
    b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\n\r\n\xff\xfe",
    b'HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\n\r\n{"error":{"code":"' + b"9" * 5000 + b'"}}',
)


def test_invalid_http_raises_model_error() -> None:
    for turn, data in enumerate(HEADS):
        for lane in each_lane(turn=turn):
            with case(data[:200]), Hostile(always(data)) as server, waiting_for_nothing():
                lane.fails(server, timeout=20)


def bodies(request: Request) -> tuple[str, bool]:
    """Return a valid body for a request, and whether it is a stream."""
    reply, is_stream = finish("done"), bool(request.body.get("stream"))
    if request.path.endswith("/messages"):
        make: Any = anthropic_stream if is_stream else anthropic_message
    elif request.path.endswith("/responses"):
        make = responses_stream if is_stream else responses_answer
    else:
        make = openai_stream if is_stream else openai_completion
    made = make(reply, request.body, 1, 8) if is_stream else make(reply, request.body, 1)
    return (made.decode() if is_stream else json.dumps(made)), is_stream


def changed(*changes: tuple[str, str]) -> Any:
    """Return an attack that sends a valid body with changed texts."""

    def pieces(request: Request) -> Iterator[bytes]:
        text, is_stream = bodies(request)
        for old, new in changes:
            text = text.replace(old, new)
        content_type = EVENTS if is_stream else "application/json"
        data = text.encode("utf-8", "surrogateescape")
        yield f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        yield data

    return pieces


DAMAGE: tuple[tuple[str, str], ...] = (
    ('"role"', '"deep": ' + DEEP + ', "role"'),
    ('"id"', '"deep": ' + DEEP + ', "id"'),
    ('"content": null', '"content": ' + DEEP),
    ('"index": 0', '"index": ' + DEEP),
    ('"index": 0', '"index": 1e400'),
    ('"index": 0', '"index": "\\ud800"'),
    ('"type": "tool_use"', '"type": ["tool_use"]'),
    ('"type": "function_call"', '"type": {"a": 1}'),
    ('"name": "__finish__"', '"name": 5'),
    ('"name": "__finish__"', '"name": "__finish__\\ud800"'),
    ('"finish_reason": "tool_calls"', '"finish_reason": [1]'),
    ('"stop_reason": "tool_use"', '"stop_reason": {}'),
    ('"created": 1', '"created": 1e400'),
    ('"model": ', '"model": 1e400, "x": '),
    ('"usage": {', '"usage": [1, {'),
    ('"usage": {', '"usage": 7, "x": {'),
    ("done", "\udcff\udcfe"),
    ('"id"', '"id\udcff'),
    ("{", "\udcff\udcfe{"),
    ('"choices": [', '"choices": {"a": ['),
    ('"choices": [', '"choices": 5, "x": ['),
    ('"output": [', '"output": 5, "x": ['),
    ('"content": [', '"content": 5, "x": ['),
    ('"arguments"', '"arguments": 1e400, "x"'),
    ('"partial_json": "', '"partial_json": 5, "x": "'),
)


def test_damaged_response_raises_only_acorn_errors() -> None:
    for turn, (old, new) in enumerate(DAMAGE):
        for lane in each_lane(turn=turn):
            attack = Hostile(changed((old, new)))
            with case(old, new[:80]), attack as server, waiting_for_nothing(), suppress(AcornError):
                lane.run(server, timeout=20)


def test_usage_is_clamped() -> None:
    for turn, number in enumerate(NUMBERS):
        for lane in each_lane(turn=turn):
            usage = [(f'"{key}": {value}', f'"{key}": {number}') for key, value in (
                ("prompt_tokens", 100), ("completion_tokens", 20), ("total_tokens", 120), ("input_tokens", 100),
                ("output_tokens", 20), ("cached_tokens", 0), ("cache_read_input_tokens", 0),
                ("cache_creation_input_tokens", 0), ("reasoning_tokens", 0),
            )]  # fmt: skip
            with case(number), Hostile(changed(*usage)) as server:
                try:
                    run = lane.run(server)
                except ModelError:
                    continue
                counts = (run.usage.input_tokens, run.usage.output_tokens, run.usage.cached_tokens)
                assert all(0 <= count <= 10**10 for count in counts), counts
                assert run.cost is None or 0 <= run.cost < 1e9
