"""Tests of `acorn serve` as a process: the official client, concurrency, disconnects, and shutdown."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE, comes_true, given_time
from tests.web.serve.served_agent import CANARIES
from tests.web.serve.server import CLERK, KEY, Served, serving

import acorn
from acorn.cli.app import main

ECHO = "tests.web.serve.served_agent:Echo"
FLOOD = "tests.web.serve.served_agent:Flood"
SECOND_KEY = "second-key-of-all"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = f"{KEY}, {SECOND_KEY}"
    with serving(tmp_path_factory.mktemp("served"), "--store", "runs.db", ACORN_SERVE_KEYS=keys) as found:
        yield found


def client_of(served: Served) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{served.address}/v1",
        api_key=KEY,
        max_retries=0,
        timeout=PATIENCE,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


# OpenAI's own client


def test_openai_client_receives_answer(served: Served) -> None:
    with client_of(served) as client:
        assert [model.id for model in client.models.list()] == ["Clerk"]
        answer = client.chat.completions.create(
            model="Clerk",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Ho"},
                {"role": "user", "content": "history"},
            ],
        )
        assert "assistant: Ho" in str(answer.choices[0].message.content)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens > 0


def test_openai_client_receives_stream(served: Served) -> None:
    with client_of(served) as client:
        chunks = list(
            client.chat.completions.create(
                model="Clerk",
                messages=[{"role": "user", "content": "wherefore art thou"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert json.loads(text)["answer"] == "wherefore art thou"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_openai_client_raises_exception_that_matches_failure(served: Served) -> None:
    chat: Any = {"model": "Clerk", "messages": [{"role": "user", "content": "fail 400"}]}
    with client_of(served) as client:
        with pytest.raises(openai.InternalServerError, match="no, said") as failed:
            client.chat.completions.create(**chat)
        assert failed.value.status_code == 502
        with pytest.raises(openai.NotFoundError, match="Use `Clerk`"):
            client.chat.completions.create(**chat | {"model": "gpt-5"})
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        wrong: Any = [{"role": "user", "content": '{"question": "x", "limit": 99}'}]
        with pytest.raises(openai.UnprocessableEntityError, match="limit"):
            client.chat.completions.create(**chat | {"messages": wrong})


def test_many_concurrent_requests_are_answered(served: Served) -> None:
    count = 200 if IS_LONG else 60

    async def main() -> None:
        limits = httpx.Limits(max_connections=None)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(
            base_url=served.address, timeout=PATIENCE, limits=limits, headers=headers, trust_env=False
        ) as client:
            names = [f"hold all{at}" if at % 2 else f"question {at}" for at in range(count)]
            asks = [asyncio.ensure_future(client.post("/run", json={"question": name})) for name in names]
            await asyncio.to_thread(lambda: [served.has_begun(f"all{at}") for at in range(1, count, 2)])
            for at in range(1, count, 2):
                served.let_go(f"all{at}")
            answers = await asyncio.gather(*asks)
        assert {answer.status_code for answer in answers} == {200}
        found = [answer.json()["answer"] for answer in answers]
        assert found == ["held" if at % 2 else f"question {at}" for at in range(count)]

    asyncio.run(main())


# Disconnects


@pytest.mark.parametrize("path", ["/run", "/stream", "/v1/chat/completions"])
def test_run_of_disconnected_client_is_cancelled(served: Served, path: str) -> None:
    name = f"left{path.replace('/', '-')}"
    chat = {"messages": [{"role": "user", "content": f"wait {name}"}], "stream": True}
    body = json.dumps(chat if "chat" in path else {"question": f"wait {name}"})
    parts = urlsplit(served.address)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as line:
        line.sendall(
            f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
        )
        assert served.has_begun(name)
    assert served.is_cancelled(name)
    assert served.client.get("/health").status_code == 200


def test_client_that_disconnects_while_sending_body_does_not_affect_other_requests(served: Served) -> None:
    parts = urlsplit(served.address)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as line:
        line.sendall(
            f"POST /run HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{{".encode()
        )
    assert served.client.post("/run", json={"question": "x"}).status_code == 200


def test_run_of_disconnected_client_is_stored_and_resumable(served: Served) -> None:
    store = acorn.runs(served.traces / "runs.db")
    with served.client.stream("POST", "/stream", json={"question": "hold kept"}) as stream:
        assert served.has_begun("kept")
        run_id = store.list(status="running", limit=1)[0].id
        stream.close()
    assert comes_true(lambda: store.list(status="stopped", limit=1))
    served.let_go("kept")
    ended = served.client.post(f"/runs/{run_id}/answer", json={"answers": {}})
    assert (ended.status_code, ended.json()["answer"]) == (200, "held")


def test_run_of_client_that_stops_reading_is_cancelled_at_time_limit(tmp_path: Path) -> None:
    def stall(limit: float) -> bool | None:
        """Return whether the run was cancelled, or None if the limit was over before the tool was called."""
        folder = tmp_path / str(limit)
        folder.mkdir()
        with (
            serving(folder, "--timeout", limit, "--concurrency", 1, target=FLOOD) as served,
            socket.socket() as line,
        ):
            parts = urlsplit(served.address)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(PATIENCE)
            line.connect((parts.hostname or "", parts.port or 0))
            line.sendall(
                f"POST /stream HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {KEY}\r\n"
                f'content-type: application/json\r\ncontent-length: 3\r\n\r\n"x"'.encode()
            )
            if b" 200 " not in line.recv(15, socket.MSG_PEEK):
                return None
            # The input is invalid, so the service reads it only if the slot is free.
            assert comes_true(lambda: served.client.post("/run", json=5).status_code == 422)
            return (folder / "flood.cancelled").exists() if (folder / "flood.begun").exists() else None

    assert given_time(stall, 2.0, 10.0)


def test_too_long_body_is_rejected_over_http(served: Served) -> None:
    headers = {"content-length": "999999999", "content-type": "application/json"}
    parts = urlsplit(served.address)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as line:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        line.sendall(
            f"POST /run HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {KEY}\r\n{lines}\r\n".encode()
        )
        line.settimeout(PATIENCE)
        assert b" 413 " in line.recv(65536).splitlines()[0]


# Shutdown


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.torture)])
def test_shutdown_waits_for_running_runs(tmp_path: Path, how: signal.Signals) -> None:
    async def main(served: Served) -> httpx.Response:
        async with httpx.AsyncClient(base_url=served.address, timeout=PATIENCE, trust_env=False) as client:
            headers = {"authorization": f"Bearer {KEY}"}
            run = asyncio.ensure_future(client.post("/run", json={"question": "hold on"}, headers=headers))
            assert await asyncio.to_thread(served.has_begun, "on")
            served.process.send_signal(how)
            assert await asyncio.to_thread(comes_true, lambda: not is_listening(served.address))
            served.let_go("on")
            return await run

    with serving(tmp_path, "--store", "runs.db") as served:
        answer = asyncio.run(main(served))
        assert (answer.status_code, answer.json()["answer"]) == (200, "held")
        code, printed = served.ends()
        assert code == 0
        assert "Traceback" not in printed


def is_listening(address: str) -> bool:
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0)).close()
    except OSError:
        return False
    return True


# Output and rejections


def test_service_keys_come_from_variable(served: Served) -> None:
    for key, status in ((KEY, 200), (SECOND_KEY, 200), (f"{KEY}, {SECOND_KEY}", 401)):
        headers = {"authorization": f"Bearer {key}"}
        assert served.client.post("/run", json={"question": "x"}, headers=headers).status_code == status
    assert not [key for key in (KEY, SECOND_KEY) if key in "".join(served.printed)]


@pytest.mark.torture
def test_service_with_no_key_option_accepts_requests_without_key(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-key", target=ECHO) as served:
        assert served.client.post("/run", json="x", headers={"authorization": ""}).json() == "x"


UNUSABLE: list[tuple[Any, str]] = [
    ((ECHO, "--key", ""), "A key of `acorn serve` must be"),
    ((ECHO, "--key", "with a blank in it"), "A key of `acorn serve` must be"),
    ((ECHO, "--key", KEY, "--no-key"), "cannot be combined"),
    ((ECHO, "--no-key", "--host", "0.0.0.0"), "allows only connections from this machine"),
    ((ECHO, "--timeout", "0"), "greater than or equal to 0.1"),
    ((ECHO, "--concurrency", "0"), "concurrency"),
    ((ECHO, "--max-body", "0"), "max-body"),
    ((ECHO, "--key", "shop=short"), "at least 8 characters"),
    ((ECHO, "--key", KEY, "--approver-key", KEY), "occurs more than once"),
    ((ECHO, "--port", "TAKEN"), "Cannot listen on 127.0.0.1"),
    ((ECHO, "--model", ""), "model"),
    (("nowhere.py",), "There is no file"),
    ((CLERK,), "no one can answer"),
]


def test_serve_command_with_unusable_options_exits_with_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for words, said in UNUSABLE:
        with case(words, said):
            monkeypatch.chdir(tmp_path)
            monkeypatch.delenv("ACORN_STORE", raising=False)
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = str(taken.getsockname()[1])
                assert main(["serve", *(port if word == "TAKEN" else word for word in words)]) != 0
            printed = capsys.readouterr().err
            assert said in printed
            assert "Traceback" not in printed


def test_server_without_key_generates_key_and_its_log_contains_no_secret(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "runs.db", ACORN_SERVE_KEYS="") as served:
        (key,) = re.findall(r"^key: (\S+)", "".join(served.printed), re.MULTILINE)
        (approver_key,) = re.findall(r"^approver key: (\S+)", "".join(served.printed), re.MULTILINE)
        assert served.client.post("/run", json={"question": "x"}).status_code == 401
        served.client.headers["authorization"] = f"Bearer {key}"
        assert served.client.post("/run", json={"question": "boom"}).status_code == 500
        served.process.send_signal(signal.SIGTERM)
        code, printed = served.ends()
    assert code == 0
    assert "RuntimeError: it broke over ***" in printed
    assert not [canary for canary in CANARIES if canary in printed]
    assert printed.count(key) == printed.count(approver_key) == 1
