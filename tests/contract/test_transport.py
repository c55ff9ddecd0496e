"""Tests of the HTTP transport of the native lanes: shared connections, proxies, certificates and forks."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.cases import case
from tests.loopback import EVENTS, Fault, Loopback, openai_completion, openai_stream
from tests.waiting import comes_true, waiting_for_nothing

from acorn import DeclarationError, LimitError, ModelError, Step, module, tool
from acorn.testing import call, finish

WAYS = ["sync", "async"]


class Plain(module):
    """You answer."""

    final_output = str
    max_steps = 5


class Looking(Plain):
    @tool
    def look(self, place: str) -> str:
        """Look somewhere."""
        return f"nothing at {place}"


DONE = finish(result="done")


def run(agent: module[Any, Any], way: str) -> Any:
    return agent() if way == "sync" else asyncio.run(agent.acall())


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_LANE", "native")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# Connections


@pytest.mark.parametrize("way", WAYS)
def test_requests_of_one_run_use_one_connection(way: str) -> None:
    steps = [call("look", place=f"the {number}th tree") for number in range(4)]
    with Loopback([*steps, DONE]) as server:
        assert run(Looking(model=server.openai()), way) == "done"
        assert (len(server.requests), server.accepted) == (5, 1)


def test_consecutive_runs_use_one_connection() -> None:
    with Loopback(lambda request: DONE) as server:
        for _ in range(5):
            Plain(model=server.openai())()
        assert (len(server.requests), server.accepted) == (5, 1)


@pytest.mark.parametrize("way", WAYS)
def test_connection_closed_by_server_is_not_reused(way: str) -> None:
    class Patient(Looking):
        def on_step(self, step: Step) -> None:
            assert comes_true(lambda: not server.is_connected)

    look = Fault(status=200, reset="after", reply=call("look", place="here"))
    with Loopback([look, look, DONE]) as server:
        assert run(Patient(model=server.openai(num_retries=0)), way) == "done"
        assert len(server.requests) == 3


@pytest.mark.parametrize("way", WAYS)
def test_stream_read_to_end_returns_connection_to_pool(way: str) -> None:
    streams = [Fault(chunked=True, reply=call("look", place="here")), Fault(chunked=True, reply=DONE)]

    async def aread(agent: module[Any, Any]) -> None:
        async for _ in agent.astream():
            pass

    with Loopback(streams) as server:
        agent = Looking(model=server.openai(num_retries=0))
        if way == "sync":
            for _ in agent.stream():
                pass
        else:
            asyncio.run(aread(agent))
        assert len(server.requests) == 2


def test_concurrent_threads_each_receive_response_to_their_own_request() -> None:
    def answer(request: Any) -> Any:
        return finish(result=request.body["messages"][-1]["content"])

    class Echo(module):
        initial_input = str
        final_output = str

    with Loopback(answer) as server:
        agent = Echo(model=server.openai(num_retries=0))
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(agent, [f"word {number}" for number in range(64)]))
        assert all(f"word {number}<" in text for number, text in enumerate(found))
        assert server.accepted <= 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_process_opens_its_own_connection() -> None:
    with Loopback(lambda request: DONE) as server:
        agent = Plain(model=server.openai(num_retries=0))
        assert agent() == "done"
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                code = 0 if agent() == "done" else 2
            os._exit(code)
        assert agent() == "done"
        assert os.waitpid(child, 0)[1] == 0
        assert agent() == "done"
        assert server.accepted == 2


def test_request_on_connection_reset_by_server_is_not_sent_twice() -> None:
    with Loopback(lambda request: Fault(reset="before")) as server:
        for way in WAYS:
            with pytest.raises(ModelError, match="no connection"):
                run(Plain(model=server.openai(num_retries=0)), way)
        assert len(server.requests) == 2


@pytest.mark.parametrize("way", WAYS)
def test_user_agent_header_is_acorn_unless_user_sets_it(way: str) -> None:
    with Loopback([DONE, DONE]) as server:
        run(Plain(model=server.openai()), way)
        run(Plain(model=server.openai(headers={"user-agent": "mine"})), way)
        assert [request.headers["user-agent"] for request in server.requests] == ["acorn", "mine"]


@pytest.mark.parametrize("way", WAYS)
def test_slow_response_headers_raise_limit_error_after_max_seconds(way: str) -> None:
    endless = Fault(reply=DONE, headers={f"X-{number}": "a" * 6000 for number in range(90)}, drip=0.01)
    limit = pytest.raises(LimitError, match="max_seconds")
    with Loopback(lambda request: endless) as server, waiting_for_nothing(), limit:
        run(Plain(model=server.openai(), max_seconds=0.1), way)


def _gzipped(data: bytes, *, cut: int | None = None) -> Fault:
    return Fault(body=gzip.compress(data)[:cut], headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize("way", WAYS)
def test_gzip_response_that_was_not_requested_is_decompressed(way: str) -> None:
    whole = json.dumps(openai_completion(call("look", place="here" * 50_000), {}, 1)).encode()
    with Loopback([_gzipped(whole), _gzipped(json.dumps(openai_completion(DONE, {}, 2)).encode())]) as server:
        assert run(Looking(model=server.openai(num_retries=0)), way) == "done"
        assert server.accepted == 1
        assert server.bodies()[1]["messages"][-1]["content"] == f"nothing at {'here' * 50_000}"


@pytest.mark.parametrize("way", WAYS)
def test_gzip_error_response_is_decompressed(way: str) -> None:
    told = Fault(
        status=400, body=gzip.compress(b'{"error": {"message": "no way"}}'), headers={"Content-Encoding": "gzip"}
    )
    with Loopback([told]) as server, pytest.raises(ModelError, match="no way"):
        run(Plain(model=server.openai(num_retries=0)), way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_cut", [True, False])
def test_incomplete_gzip_response_raises_model_error(way: str, is_cut: bool) -> None:
    whole = json.dumps(openai_completion(DONE, {}, 1)).encode()
    broken = _gzipped(whole, cut=60) if is_cut else Fault(body=whole, headers={"Content-Encoding": "gzip"})
    with Loopback([broken]) as server, pytest.raises(ModelError):
        run(Plain(model=server.openai(num_retries=0)), way)


def test_gzip_stream_is_decompressed_incrementally() -> None:
    events = gzip.compress(openai_stream(DONE, {"stream_options": {"include_usage": True}}, 1, 8))
    told = Fault(body=events, content_type=EVENTS, headers={"Content-Encoding": "gzip"})
    with Loopback([told]) as server:
        assert list(Plain(model=server.openai(num_retries=0)).stream())[-1].result == "done"


@pytest.mark.parametrize("lane", ["native", "litellm"])
def test_invalid_timeout_setting_raises_before_request(lane: str) -> None:
    for timeout in ["soon", -1, 0, float("nan"), float("inf"), [5]]:
        with case(timeout), Loopback([]) as server:
            with pytest.raises(
                DeclarationError, match="`timeout` must be a number of seconds greater than 0, or None for no limit"
            ):
                Plain(model=server.openai(timeout=timeout, lane=lane))()
            assert server.requests == []


# Certificates


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Loopback]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    with Loopback(lambda request: DONE, tls=context) as server:
        yield server


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("trusted")
def test_certificate_trusted_by_environment_is_accepted(secure: Loopback, way: str) -> None:
    assert run(Plain(model=secure.openai()), way) == "done"


@pytest.mark.parametrize("way", WAYS)
def test_untrusted_certificate_is_rejected(secure: Loopback, way: str) -> None:
    with pytest.raises(ModelError, match=r"(?i)certificate") as caught:
        run(Plain(model=secure.openai(num_retries=0)), way)
    assert caught.value.status is None
    assert secure.requests == []


# Proxies


class Proxy:
    """A proxy that forwards requests and records them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:secret@127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = client.recv(65536)
            if not more:
                return
            data += more
        method, target, _ = data.split(b"\r\n", 1)[0].decode().split(" ")
        with_key = b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in data
        self.asked.append(f"{method} {target}{' with its key' if with_key else ''}")
        host, _, port = target.removeprefix("http://").partition("/")[0].partition(":")
        server = socket.create_connection((host, int(port)))
        if method == "CONNECT":
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            server.sendall(data)
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        client.close()
        server.close()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


@pytest.mark.parametrize("way", WAYS)
def test_proxy_set_in_environment_receives_request(way: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    with Loopback([DONE]) as server:
        assert run(Plain(model=server.openai()), way) == "done"
        assert proxy.asked == [f"POST {server.url}/v1/chat/completions with its key"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("trusted")
def test_proxy_tunnels_https_requests(
    way: str, proxy: Proxy, secure: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy.url)
    assert run(Plain(model=secure.openai()), way) == "done"
    assert proxy.asked == [f"CONNECT 127.0.0.1:{secure.port} with its key"]
    assert "proxy-authorization" not in secure.requests[0].headers


@pytest.mark.parametrize("way", WAYS)
def test_no_proxy_hosts_are_requested_directly(way: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Loopback([DONE]) as server:
        assert run(Plain(model=server.openai()), way) == "done"
    assert proxy.asked == []
