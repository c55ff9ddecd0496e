"""Tests of the native lanes with unusual providers: the requests to them and their responses."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.cases import case
from tests.loopback import EVENTS, Fault, Loopback, openai_completion, openai_stream
from tests.waiting import AGES, PATIENCE, comes_true, waiting_for_nothing

from acorn import ModelError, module
from acorn.models.lanes.anthropic import Anthropic
from acorn.models.lanes.http import Post, send
from acorn.models.request import ModelRequest
from acorn.testing import finish
from acorn.types import Message, MessageCall

WAYS = ["sync", "async"]
DONE = finish(result="done")


class Plain(module):
    """You answer."""

    final_output = str
    max_steps = 2


def run(agent: module[Any, Any], way: str) -> Any:
    return agent() if way == "sync" else asyncio.run(agent.acall())


def run_stream(agent: module[Any, Any], way: str) -> Any:
    async def aread() -> list[Any]:
        return [chunk async for chunk in agent.astream()]

    chunks = list(agent.stream()) if way == "sync" else asyncio.run(aread())
    return chunks[-1].result


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_LANE", "native")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def completion(result: str) -> bytes:
    return json.dumps(openai_completion(finish(result=result), {}, 1)).encode()


# Connections


@pytest.mark.parametrize("way", WAYS)
def test_http_interim_responses_before_answer_are_skipped(way: str) -> None:
    said = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    with Loopback([said + http(completion("one")), http(completion("two"))]) as server:
        agent = Plain(model=server.openai(num_retries=0))
        assert [run(agent, way), run(agent, way)] == ["one", "two"]


@pytest.mark.parametrize("way", WAYS)
def test_finished_stream_returns_connection_to_pool(way: str) -> None:
    events = openai_stream(DONE, {}, 1, 8)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    stream = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events)

    async def twice(agent: module[Any, Any]) -> None:
        for _ in range(2):
            assert [chunk async for chunk in agent.astream()][-1].result == "done"

    with Loopback([stream, stream]) as server:
        agent = Plain(model=server.openai())
        if way == "async":
            asyncio.run(twice(agent))
        else:
            assert [run_stream(agent, way), run_stream(agent, way)] == ["done", "done"]
        assert (len(server.requests), server.accepted) == (2, 1)


@pytest.mark.parametrize("way", WAYS)
def test_stream_is_not_read_after_done_event(way: str) -> None:
    for limits in [{}, {"max_seconds": AGES}]:
        with case(limits):
            events = openai_stream(DONE, {}, 1, 8)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            with Loopback([head + b"%x\r\n%s\r\n" % (len(events), events)]) as server, waiting_for_nothing():
                assert run_stream(Plain(model=server.openai(timeout=AGES), **limits), way) == "done"


def test_connections_closed_by_server_are_not_reused() -> None:
    with Loopback(lambda request: DONE) as server:
        post = Post(f"{server.url}/v1/chat/completions", {}, b"{}", PATIENCE, PATIENCE, None, None, 1_000_000, False)
        together = [send(post) for _ in range(3)]
        socks = [incoming._reader.sock for incoming in together]
        served = {sock.getpeername(): sock for sock in server._connections}
        ends = [served[sock.getsockname()] for sock in socks]
        for incoming in together:  # The last connection is reused first.
            incoming.read()
        for end in ends[:2]:
            end.shutdown(socket.SHUT_RDWR)
        assert comes_true(lambda: all(select.select([sock], [], [], 0)[0] for sock in socks[:2]))
        send(post).read()
        assert [sock.fileno() < 0 for sock in socks] == [True, True, False]
        assert server.accepted == 3


def test_program_that_closes_its_event_loop_prints_no_warnings() -> None:
    code = """
import asyncio, sys
from acorn import module
class Plain(module):
    '''You answer.'''
    final_output = str
for must_close in (True, True, False):
    loop = asyncio.new_event_loop()
    print(loop.run_until_complete(Plain(model={"model": "openai/gpt-4o", "api_base": sys.argv[1]}).acall()))
    if must_close:
        loop.close()
"""
    with Loopback(lambda request: DONE) as server:
        ran = subprocess.run(
            [sys.executable, "-c", code, f"{server.url}/v1"], capture_output=True, text=True, timeout=PATIENCE
        )
    assert (ran.stdout.split(), ran.stderr) == (["done"] * 3, "")


def test_concurrent_conversations_with_one_model_object_are_not_mixed() -> None:
    lane = Anthropic({"model": "anthropic/claude-sonnet-4-5", "api_key": "sk-ant-test"})

    def talk(name: str) -> None:
        for _ in range(400):
            messages: list[Message] = []
            for _ in range(4):
                messages = [*messages, {"role": "user", "content": name}, {"role": "assistant", "content": name}]
                body = json.loads(lane.body(ModelRequest(messages, [], 0.5, 10), (), is_stream=False))
                said = [block["text"] for turn in body["messages"] for block in turn["content"]]
                assert said == [name] * len(messages)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(talk, "abcd"))
    finally:
        sys.setswitchinterval(interval)


# Secrets


@contextmanager
def saying(data: bytes) -> Generator[int]:
    """A server that sends the same bytes to every request and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                client.recv(65536)
                client.sendall(data)
                client.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


REFUSED = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("way", WAYS)
def test_proxy_password_is_absent_from_error(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for said in [REFUSED, b"lalala\r\n\r\n"]:
        with case(said):
            with saying(said) as port:
                monkeypatch.setenv("https_proxy", f"http://me:opensesame@127.0.0.1:{port}")
                with pytest.raises(ModelError) as caught:
                    run(Plain(model={"model": "openai/m", "api_base": "https://10.0.0.1/v1", "num_retries": 0}), way)
            assert "opensesame" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("way", WAYS)
def test_api_key_in_server_address_is_absent_from_error(way: str) -> None:
    with saying(b"lalala\r\n\r\n") as port:
        base = f"http://127.0.0.1:{port}/v1?api_key=opensesame"
        with pytest.raises(ModelError) as caught:
            run(Plain(model={"model": "openai/m", "api_base": base, "num_retries": 0}), way)
    assert "opensesame" not in "".join(traceback.format_exception(caught.value))


# Requests that cannot be sent

UNSENDABLE: dict[str, dict[str, Any]] = {
    "a key with a line end": {"api_key": "sk-abcdef\n"},
    "a header that is a number": {"headers": {"X-Number": 5}},
    "a header that is nothing": {"headers": {"X-Nothing": None}},
    "a header with other letters": {"headers": {"X-Word": "Wört"}},
    "a port that is a word": {"api_base": "http://127.0.0.1:abc/v1"},
    "a port that is too high": {"api_base": "http://127.0.0.1:99999/v1"},
    "no protocol": {"api_base": "localhost:8000/v1"},
    "another protocol": {"api_base": "ftp://localhost/v1"},
    "no host": {"api_base": "http:///v1"},
    "an empty label": {"api_base": "http://.example/v1"},
    "half an address": {"api_base": "http://[::1/v1"},
}


@pytest.mark.parametrize("way", WAYS)
def test_setting_with_characters_invalid_in_http_raises_without_retry(way: str) -> None:
    for name in UNSENDABLE:
        with case(name):
            config = {"model": "openai/m", "api_base": "http://127.0.0.1:9/v1", **UNSENDABLE[name]}
            with pytest.raises(ModelError, match="is not valid") as caught:
                run(Plain(model=config), way)
            assert not caught.value.retryable
            assert "sk-abcdef" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("way", WAYS)
def test_invalid_proxy_raises_error_without_password(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://me:opensesame@127.0.0.1:abc")
    with pytest.raises(ModelError, match="proxy") as caught:
        run(Plain(model={"model": "openai/m", "api_base": "http://10.0.0.1/v1", "num_retries": 0}), way)
    assert "opensesame" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("way", WAYS)
def test_space_in_address_is_percent_encoded(way: str) -> None:
    with Loopback([DONE]) as server:
        assert run(Plain(model=server.openai(api_base=f"{server.url}/my server/v1")), way) == "done"
        assert server.requests[0].path == "/my%20server/v1/chat/completions"


def test_setting_with_value_none_is_not_sent_to_provider() -> None:
    with Loopback([DONE, DONE]) as server:
        Plain(model=server.openai(top_p=None, stop=None, seed=None))()
        Plain(model=server.anthropic(top_p=None, thinking=None, stop=None))()
        assert all(value is not None for body in server.bodies() for value in body.values())


def test_empty_text_part_is_not_sent_to_anthropic() -> None:
    lane = Anthropic({"model": "anthropic/claude-sonnet-4-5", "api_key": "sk-ant-test"})
    parts = [{"type": "text", "text": text} for text in ("", "Why?", " \n")]
    called: MessageCall = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages: list[Message] = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": parts[:1], "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    turns = json.loads(lane.body(ModelRequest(messages, [], 0.5, 10), (), is_stream=False))["messages"]
    assert [[block["type"] for block in turn["content"]] for turn in turns] == [["text"], ["tool_use"], ["tool_result"]]
    assert turns[2]["content"][0]["content"] == [{"type": "text", "text": "Why?"}]


# Responses


@pytest.mark.parametrize("way", WAYS)
def test_split_surrogate_halves_in_stream_are_joined(way: str) -> None:
    def event(arguments: str) -> str:
        delta = {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}
        return json.dumps({"choices": [{"index": 0, "delta": delta}]})

    begun = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "__finish__", "arguments": '{"result":"'}}]}
    texts = [json.dumps({"choices": [{"index": 0, "delta": begun}]}), *map(event, ("\ud83c", "\udf30", '"}'))]
    texts += [json.dumps({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}), "[DONE]"]
    body = "".join(f"data: {text}\n\n" for text in texts).encode()
    with Loopback([Fault(body=body, content_type=EVENTS)]) as server:
        assert run_stream(Plain(model=server.openai()), way) == "\U0001f330"


ERRORS_INSIDE: dict[str, tuple[str, Any, int]] = {
    "a number": ("openai", {"message": "busy", "code": 503}, 503),
    "a number as text": ("openai", {"message": "busy", "code": "429"}, 429),
    "a word": ("openai", {"message": "busy", "code": "rate_limit_exceeded"}, 429),
    "a type": ("openai", {"message": "busy", "type": "server_error", "code": None}, 500),
    "of Responses": ("responses", {"message": "busy", "code": "server_error"}, 500),
    "of Anthropic": ("anthropic", {"message": "busy", "type": "overloaded_error"}, 529),
}


@pytest.mark.parametrize("way", WAYS)
def test_error_in_response_with_status_200_is_retried_according_to_code(way: str) -> None:
    for name in ERRORS_INSIDE:
        with case(name):
            spoken, error, status = ERRORS_INSIDE[name]
            told = Fault(body=json.dumps({"type": "error", "error": error}).encode())
            with Loopback([told, DONE]) as server:
                assert run(Plain(model=getattr(server, spoken)(num_retries=1)), way) == "done"
            with Loopback([told] * 3) as server, pytest.raises(ModelError, match="busy") as caught:
                run(Plain(model=getattr(server, spoken)(num_retries=1)), way)
            assert (caught.value.status, caught.value.retryable, len(server.requests)) == (status, True, 2)


def test_permanent_error_in_response_with_status_200_is_raised() -> None:
    told = Fault(body=b'{"error": {"message": "no way", "code": "invalid_prompt"}}')
    with Loopback([told, DONE]) as server, pytest.raises(ModelError, match="no way") as caught:
        run(Plain(model=server.openai(num_retries=1)), "sync")
    assert (caught.value.status, caught.value.retryable, len(server.requests)) == (400, False, 1)


def test_error_code_that_is_not_http_status_raises_error_with_status_none() -> None:
    for code in [1302, True, 0]:
        with case(code):
            body = f"data: {json.dumps({'error': {'code': code, 'message': 'no'}})}\n\n".encode()
            with Loopback([Fault(body=body, content_type=EVENTS)]) as server, pytest.raises(ModelError) as caught:
                run_stream(Plain(model=server.openai()), "sync")
            assert (caught.value.status, caught.value.retryable) == (None, False)


def test_error_field_with_null_in_successful_response_is_ignored() -> None:
    block = {"type": "tool_use", "id": "c", "name": "__finish__", "input": {"result": "done"}}
    body = {"error": None, "content": [block], "stop_reason": "tool_use"}
    with Loopback([Fault(body=json.dumps(body).encode())]) as server:
        assert Plain(model=server.anthropic())() == "done"


def test_response_content_that_is_not_text_raises_model_error() -> None:
    for content in [{"a": 1}, 5]:
        with case(content):
            body = json.dumps({"choices": [{"message": {"content": content}}]}).encode()
            with Loopback([Fault(body=body)]) as server, pytest.raises(ModelError, match="unreadable response"):
                Plain(model=server.openai())()


def test_token_counts_sent_as_text_are_added_to_usage() -> None:
    body = json.loads(completion("done")) | {"usage": {"prompt_tokens": "3", "completion_tokens": 2.0}}
    with Loopback([Fault(body=json.dumps(body).encode())]) as server:
        done = Plain(model=server.openai()).run()
    assert (done.usage.input_tokens, done.usage.output_tokens) == (3, 2)


def test_tool_call_executed_by_provider_is_not_executed_by_acorn() -> None:
    theirs = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    ours = {"type": "tool_use", "id": "c", "name": "__finish__", "input": {"result": "done"}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": theirs},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": ours},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    with Loopback([Fault(body=body, content_type=EVENTS)]) as server:
        assert run_stream(Plain(model=server.anthropic()), "sync") == "done"
