"""Attacks with slow and half-open connections on `acorn serve` and `acorn web`."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE, comes_true
from tests.web.desk import KEY as PAGE_KEY
from tests.web.desk import Desk
from tests.web.serve.served_agent import Echo
from tests.web.serve.server import KEY, app

import acorn
from acorn.stores import MemoryStore
from acorn.web.guard import LOOPBACK
from acorn.web.page.routes import page_app
from acorn.web.page.site import make_site
from acorn.web.serve.app import Service, service_app
from acorn.web.server import ConnectionLimits, Server, bind_socket

if sys.platform == "win32":
    pytest.skip("The limits of open files are those of POSIX", allow_module_level=True)

HALF_OPEN = 1_100 if IS_LONG else 300
FILES = 1_024 if IS_LONG else 256
"""The number of files that the attacked process may open, fewer than the attack opens."""
ROOT, SOURCE = str(Path(__file__).parents[2]), str(Path(acorn.__file__).parents[1])
FAST = ConnectionLimits(header=0.5, rest=0.5, read=0.5)
MORE_HEADER = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "


@contextmanager
def served(application: Any, limits: ConnectionLimits = FAST) -> Iterator[tuple[str, int]]:
    """Serve an application in a thread, and yield its address."""
    listener = bind_socket("127.0.0.1", 0, is_exact=True)
    server = Server(application, lambda: None, limits=limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    address: tuple[str, int] = listener.getsockname()
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE)
        listener.close()


def connect(address: tuple[str, int], data: bytes = b"", buffer: int | None = None) -> socket.socket:
    line = socket.socket()
    if buffer is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.settimeout(PATIENCE)
    line.connect(address)
    line.sendall(data)
    return line


def read_all(line: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    received = b""
    with line, suppress(ConnectionResetError):
        while piece := line.recv(65_536):
            received += piece
    return received


def status(address: tuple[str, int]) -> int:
    url = f"http://{address[0]}:{address[1]}/health"
    return httpx.get(url, timeout=PATIENCE, trust_env=False).status_code


def test_half_open_connections_above_file_limit_do_not_stop_service(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    # The shell lowers the limit of this process only.
    command = f"ulimit -n {FILES}; exec {sys.executable} -m acorn $0 $@"
    words = ["serve", "tests.web.serve.served_agent:Echo", "--port", "0"]
    environment = {**os.environ, "ACORN_SERVE_KEYS": KEY, "PYTHONPATH": os.pathsep.join([SOURCE, ROOT])}
    process = subprocess.Popen(["sh", "-c", command, *words], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    with closing(process.stderr), ExitStack() as lines:
        try:
            port = int(re.findall(r":(\d+)$", process.stderr.readline())[0])
            address = ("127.0.0.1", port)
            for number in range(HALF_OPEN):
                line = lines.enter_context(connect(address))
                with suppress(OSError):  # The server has closed it.
                    line.sendall(MORE_HEADER[: number % len(MORE_HEADER)])
            began = time.monotonic()
            answer = httpx.post(
                f"http://127.0.0.1:{port}/run",
                json="still there",
                headers={"authorization": f"Bearer {KEY}"},
                timeout=PATIENCE,
                trust_env=False,
            )
            seconds = time.monotonic() - began
            assert answer.json() == "still there"
            assert status(address) == 200
        finally:
            process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
        assert process.wait(PATIENCE) == 0
    assert log.count("which is the limit of this server") == 1
    assert len(log.splitlines()) == 2  # The other line says how to stop the server.
    assert seconds < PATIENCE / 4
    record_property("tried", f"{HALF_OPEN:,} half-open connections; a request took {seconds:.3f} s")


def test_slow_request_header_gets_408_and_silent_connection_is_closed() -> None:
    with served(app(Echo())) as address:
        assert read_all(connect(address, MORE_HEADER)).startswith(b"HTTP/1.1 408 ")
        assert read_all(connect(address)) == b""
        with connect(address, MORE_HEADER) as line:  # One byte after the other does not extend the time.
            received = b""
            line.settimeout(0.05)
            while not received:
                line.sendall(b"x")
                with suppress(TimeoutError):
                    received = line.recv(65_536)
            assert b" 408 " in received
        assert status(address) == 200


def test_header_time_limit_applies_to_later_requests_of_connection() -> None:
    with served(app(Echo())) as address, connect(address) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in line.recv(65_536)
        line.sendall(MORE_HEADER)
        assert b" 408 " in read_all(line)


def test_too_long_request_header_gets_431() -> None:
    with served(app(Echo())) as address, connect(address, MORE_HEADER + b"x" * 30_000) as line:
        assert read_all(line).startswith(b"HTTP/1.1 431 ")


def test_slow_request_body_gets_408() -> None:
    header = "host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    service = service_app(Service(Echo()), LOOPBACK, body_timeout=0.3)
    page = page_app(make_site(Desk(), MemoryStore()), LOOPBACK, PAGE_KEY, body_timeout=0.3)
    with served(service) as address, connect(address, f"POST /run HTTP/1.1\r\n{header}[".encode()) as line:
        assert read_all(line).startswith(b"HTTP/1.1 408 ")
    with served(page) as address:
        own = f"origin: http://127.0.0.1\r\ncookie: acorn_{address[1]}={PAGE_KEY}\r\n"
        with connect(address, f"POST /api/runs HTTP/1.1\r\n{own}{header}[".encode()) as line:
            assert read_all(line).startswith(b"HTTP/1.1 408 ")


def test_connection_that_keeps_sending_rejected_body_is_closed() -> None:
    header = "host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n"
    with served(app(Echo())) as address, connect(address, f"POST /run HTTP/1.1\r\n{header}".encode()) as line:
        assert b" 401 " in line.recv(65_536)
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < PATIENCE:
                line.sendall(b"x")
                time.sleep(0.01)
        assert time.monotonic() - began < PATIENCE


def test_connection_whose_client_reads_nothing_is_closed() -> None:
    ended = threading.Event()

    async def endless(request: Request) -> Response:
        async def pieces() -> Any:
            try:
                while True:
                    yield b"x" * 100_000
                    await asyncio.sleep(0)
            finally:
                ended.set()

        return StreamingResponse(pieces())

    async def large(request: Request) -> Response:
        return PlainTextResponse("x" * 30_000_000)

    routes = Starlette(routes=[Route("/endless", endless), Route("/large", large)])
    with served(routes) as address:
        for path in ("endless", "large"):
            with connect(address, f"GET /{path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), buffer=4096) as line:
                assert line.recv(15, socket.MSG_PEEK)
                assert path == "large" or ended.wait(PATIENCE)
                if path == "large":  # The server has passed the whole response to the connection.
                    time.sleep(FAST.read + 2)
                assert len(read_all(line)) < 30_000_000


def test_client_that_reads_slowly_but_steadily_receives_whole_response() -> None:
    async def large(request: Request) -> Response:
        return PlainTextResponse("x" * 12_000_000)

    limits = ConnectionLimits(read=1.5)
    request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with served(Starlette(routes=[Route("/", large)]), limits) as address, connect(address, request, 100_000) as line:
        received, began = 0, time.monotonic()
        while piece := line.recv(40_000):
            received += len(piece)
            time.sleep(0.01)
        assert received > 12_000_000
        assert time.monotonic() - began > limits.read


def test_server_at_limit_closes_oldest_idle_connection_and_refuses_only_if_all_are_busy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, release = threading.Semaphore(0), threading.Event()

    async def hold(request: Request) -> Response:
        begun.release()
        while not release.is_set():
            await asyncio.sleep(0.01)
        return PlainTextResponse("held")

    routes = Starlette(routes=[Route("/hold", hold), Route("/health", lambda _: PlainTextResponse("ok"))])
    request = b"GET /hold HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with (
        served(routes, ConnectionLimits(connections=4, rest=PATIENCE)) as address,
        caplog.at_level(logging.ERROR, "acorn"),
    ):
        busy = [connect(address, request) for _ in range(3)]
        assert all(begun.acquire(timeout=PATIENCE) for _ in busy)
        for data in (b"", b"GET", b"POST /health HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"):
            idle = connect(address, data)
            if data.startswith(b"POST"):
                assert b" 405 " in idle.recv(65_536)
            assert status(address) == 200
            assert len(read_all(idle)) < 100  # It ends, at most with the rest of the response.
        busy.append(connect(address, request))
        assert begun.acquire(timeout=PATIENCE)
        assert read_all(connect(address)).startswith(b"HTTP/1.1 503 ")
        release.set()
        assert all(read_all(line).endswith(b"held") for line in busy)
        assert comes_true(lambda: status(address) == 200)
    assert len(caplog.records) == 1


def test_server_at_limit_closes_connections_whose_clients_stopped_reading() -> None:
    limits = ConnectionLimits(connections=3, rest=0.5, read=PATIENCE)
    requests = b"GET /run HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 30
    with served(app(Echo()), limits) as address, ExitStack() as lines:
        stuck = [lines.enter_context(connect(address, buffer=2_048)) for _ in range(3)]
        for line in stuck:
            line.settimeout(0.2)
            with suppress(TimeoutError):  # The server stops reading once its responses are not read.
                while True:
                    line.sendall(requests)
        assert comes_true(lambda: status(address) == 200)


def test_garbage_after_request_does_not_reach_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(app(Echo())) as address:
        good = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        for data in (
            b"\x16\x03\x01" * 50,
            good + b"\0garbage\r\n\r\n",
            good * 5 + b"X\r\n\r\n",
            b"GET / HTTP/x\r\n\r\n",
        ):
            with connect(address, data) as line:
                assert b" 400 " in read_all(line)
        assert status(address) == 200
    assert caplog.records == []
