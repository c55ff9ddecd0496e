"""Providers on loopback: real HTTP, scripted answers, every way to fail.

    with Loopback([call("search", query="x"), finish(answer="y")]) as server:
        agent = Researcher(model=server.openai())

One server speaks OpenAI's chat completions and Responses (`loopback_responses.py`) and Anthropic's messages, plain and
streamed, whichever is asked of it. What it answers is a `Reply` of `acorn.testing`, a `Fault`, or raw bytes.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.loopback_responses import responses_answer, responses_stream
from tests.waiting import PATIENCE

from acorn.testing import Reply
from acorn.types import Usage


@dataclass
class Fault:
    """A way to fail."""

    status: int | None = None
    """Answer with this HTTP status and an error in the protocol's form."""
    message: str = "the script says so"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    reset: str | None = None
    """`before`, `inside` or `after`: break the connection before, in the middle of or behind the body."""
    body: bytes | None = None
    """Send exactly this, whatever it is."""
    content_type: str = "application/json"
    delay: float = 0.0
    """Seconds before anything is sent; at most until the server is closed."""
    drip: float = 0.0
    """Seconds between the pieces of the answer."""
    hold: threading.Event | None = None
    """What has to happen before the last event of a stream is sent."""
    cut: int | None = None
    """Send only so many bytes of what the body would be, then break the connection."""
    gently: bool = False
    """Close the connection in good order where `cut` breaks it."""
    chunked: bool = False
    """Send a stream in HTTP's chunks, one an event, so that its end can be told from a cut."""
    reply: Reply | None = None
    code: str | None = None
    """The provider's own error code."""


@dataclass
class Request:
    """A request that reached the server."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes
    at: float


Answer = Reply | Fault | bytes | str

EVENTS = "text/event-stream"


class Loopback:
    """A scripted server on 127.0.0.1."""

    def __init__(
        self,
        answers: Sequence[Answer] | Callable[[Request], Answer] = (),
        *,
        chunk: int = 8,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answers = answers
        self.chunk = chunk
        """How many characters a streamed piece has."""
        self._tls = tls
        self.requests: list[Request] = []
        self.accepted = 0
        """How many connections were made."""
        self.closed_early = 0
        """Connections that the client closed in the middle of a stream."""
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._open = True
        self._ended = threading.Event()
        self._connections: set[socket.socket] = set()

    def __enter__(self) -> Loopback:
        self._door = threading.Thread(target=self._accept, daemon=True)
        self._door.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._ended.set()
        with self._lock:
            for waiting in (self._listener, *self._connections):
                with suppress(OSError):  # Closing alone would not wake the thread that waits on it.
                    waiting.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):  # On systems where that does not wake it, a connection does.
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._door.join()  # Otherwise it might accept for the next server, whose listener gets the same number.
        self._listener.close()

    @property
    def is_connected(self) -> bool:
        with self._lock:
            return bool(self._connections)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def openai(self, name: str = "gpt-4o", **extra: Any) -> dict[str, Any]:
        """Return a model dict for this server as OpenAI."""
        given = {"api_key": "sk-test", "retry_delay": 0.01}
        return {"model": f"openai/{name}", "api_base": f"{self.url}/v1", **given, **extra}

    def responses(self, name: str = "gpt-4o", **extra: Any) -> dict[str, Any]:
        """Return a model dict for this server as OpenAI's Responses."""
        return self.openai(f"responses/{name}", **extra)

    def anthropic(self, name: str = "claude-sonnet-4-5", **extra: Any) -> dict[str, Any]:
        """Return a model dict for this server as Anthropic."""
        given = {"api_key": "sk-ant-test", "retry_delay": 0.01}
        return {"model": f"anthropic/{name}", "api_base": self.url, **given, **extra}

    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    # The server's side

    def _accept(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.accepted += 1
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            while (request := self._read(connection)) is not None:
                with self._lock:
                    self.requests.append(request)
                    number = len(self.requests) - 1
                if not self._send(connection, request, self._answer(request, number)):
                    break
        except OSError:
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _read(self, connection: socket.socket) -> Request | None:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = connection.recv(65536)
            if not chunk:
                return None
            data += chunk
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(rest) < length:
            chunk = connection.recv(65536)
            if not chunk:
                return None
            rest += chunk
        body = json.loads(rest) if rest.strip().startswith(b"{") else {}
        return Request(first.split(" ")[1], headers, body, rest, time.monotonic())

    def _answer(self, request: Request, number: int) -> Answer:
        if callable(self.answers):
            return self.answers(request)
        if number < len(self.answers):
            return self.answers[number]
        return Fault(status=418, message=f"request {number + 1} is not in the script")

    def _send(self, connection: socket.socket, request: Request, answer: Answer) -> bool:
        """Send an answer; return False if the connection is closed."""
        if isinstance(answer, str):
            answer = Reply(answer)
        fault = answer if isinstance(answer, Fault) else Fault()
        if fault.delay:
            self._ended.wait(fault.delay)
        if fault.reset == "before":
            return self._reset(connection)
        payload, is_stream = self._payload(request, answer, fault)
        data = payload if isinstance(answer, bytes) else _http(fault, payload, is_stream)
        if fault.cut is not None:
            head = data.index(b"\r\n\r\n") + 4
            connection.sendall(data[: head + fault.cut])
            return False if fault.gently else self._reset(connection)
        if fault.reset == "inside":
            connection.sendall(data[: len(data) - max(1, len(payload) // 2)])
            return self._reset(connection)
        try:
            self._trickle(connection, data, fault, is_stream)
        except OSError:
            self.closed_early += 1
            return False
        if fault.reset == "after":
            return self._reset(connection)
        return not is_stream

    def _trickle(self, connection: socket.socket, data: bytes, fault: Fault, is_stream: bool) -> None:
        if fault.hold is not None:
            at = data.rindex(b"\n\n", 0, -2) + 2
            connection.sendall(data[:at])
            assert fault.hold.wait(PATIENCE), "what the stream was held for never came"
            data = data[at:]
        if not fault.drip:
            connection.sendall(data)
            return
        pieces = data.split(b"\n\n") if is_stream else [data[at : at + 64] for at in range(0, len(data), 64)]
        for piece in pieces:
            connection.sendall(piece + (b"\n\n" if is_stream else b""))
            time.sleep(fault.drip)

    def _reset(self, connection: socket.socket) -> bool:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        return False

    def _payload(self, request: Request, answer: Answer, fault: Fault) -> tuple[bytes, bool]:
        if isinstance(answer, bytes):
            return answer, False
        if fault.body is not None:
            return fault.body, fault.content_type == EVENTS
        is_anthropic = request.path.endswith("/messages")
        if fault.status is not None and fault.status >= 400:
            kind = fault.code or "error"
            error: dict[str, Any] = {"message": fault.message, "type": kind, "code": fault.code}
            told = {"type": "error", "error": error} if is_anthropic else {"error": error}
            return json.dumps(told).encode(), False
        reply = fault.reply or (answer if isinstance(answer, Reply) else Reply("ok"))
        number = len(self.requests)
        is_responses = request.path.endswith("/responses")
        if request.body.get("stream"):
            events = anthropic_stream if is_anthropic else responses_stream if is_responses else openai_stream
            return events(reply, request.body, number, self.chunk), True
        whole = anthropic_message if is_anthropic else responses_answer if is_responses else openai_completion
        return json.dumps(whole(reply, request.body, number)).encode(), False


def _http(fault: Fault, payload: bytes, is_stream: bool) -> bytes:
    status = fault.status or 200
    lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {EVENTS if is_stream else fault.content_type}"]
    if is_stream and fault.chunked:
        lines.append("Transfer-Encoding: chunked")
        events = [event + b"\n\n" for event in payload.split(b"\n\n") if event]
        payload = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    lines += ["Connection: close"] if is_stream else [f"Content-Length: {len(payload)}"]
    lines += [f"{name}: {value}" for name, value in fault.headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


# OpenAI's chat completions


def _usage(reply: Reply) -> Usage:
    return reply.usage or Usage(100, 20)


def _openai_usage(reply: Reply) -> dict[str, Any]:
    usage = _usage(reply)
    read = {"cached_tokens": usage.cached_tokens}
    if usage.cache_write_tokens:
        read["cache_write_tokens"] = usage.cache_write_tokens
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": read,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def openai_completion(reply: Reply, body: dict[str, Any], number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": made.id or f"call_{number}_{at}",
                "type": "function",
                "function": {"name": made.name, "arguments": made.arguments},
            }
            for at, made in enumerate(reply.calls)
        ]
    if reply.refusal:
        message["refusal"] = reply.refusal
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    reason = reply.stop_reason or ("tool_calls" if reply.calls else "stop")
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": str(body.get("model")),
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": _openai_usage(reply),
    }


def openai_stream(reply: Reply, body: dict[str, Any], number: int, size: int) -> bytes:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {**base, "choices": [choice]}

    base = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": str(body.get("model")),
    }
    events: list[dict[str, Any]] = [chunk({"role": "assistant", "content": ""})]
    if reply.reasoning:
        events += [chunk({"reasoning_content": piece}) for piece in pieces(reply.reasoning, size)]
    events += [chunk({"content": piece}) for piece in pieces(reply.content, size)]
    for at, made in enumerate(reply.calls):
        head = {"index": at, "id": made.id or f"call_{number}_{at}", "type": "function"}
        events.append(chunk({"tool_calls": [{**head, "function": {"name": made.name, "arguments": ""}}]}))
        events += [
            chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
            for piece in pieces(made.arguments, size)
        ]
    events.append(chunk({}, reply.stop_reason or ("tool_calls" if reply.calls else "stop")))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**base, "choices": [], "usage": _openai_usage(reply)})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


# Anthropic's messages


def _anthropic_usage(reply: Reply) -> dict[str, Any]:
    usage = _usage(reply)
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


def _anthropic_blocks(reply: Reply, number: int) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": f"signature-{number}"})
    if text := reply.content or reply.refusal:
        blocks.append({"type": "text", "text": text})
    for at, made in enumerate(reply.calls):
        try:
            given = json.loads(made.arguments)
        except ValueError:
            given = {}
        blocks.append({"type": "tool_use", "id": made.id or f"toolu_{number}_{at}", "name": made.name, "input": given})
    return blocks


def _anthropic_reason(reply: Reply) -> str:
    known = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use", "content_filter": "refusal"}
    if reply.refusal:
        return "refusal"
    return known[reply.stop_reason or ("tool_calls" if reply.calls else "stop")]


def anthropic_message(reply: Reply, body: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": str(body.get("model")),
        "content": _anthropic_blocks(reply, number),
        "stop_reason": _anthropic_reason(reply),
        "stop_sequence": None,
        "usage": _anthropic_usage(reply),
    }


def anthropic_stream(reply: Reply, body: dict[str, Any], number: int, size: int) -> bytes:
    message = {**anthropic_message(reply, body, number), "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(_anthropic_blocks(reply, number)):
        kind = block["type"]
        start: dict[str, Any]
        deltas: list[tuple[str, str, Any]]
        if kind == "text":
            start, deltas = (
                {"type": "text", "text": ""},
                [("text_delta", "text", p) for p in pieces(block["text"], size)],
            )
        elif kind == "thinking":
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [("thinking_delta", "thinking", p) for p in pieces(block["thinking"], size)]
            deltas.append(("signature_delta", "signature", block["signature"]))
        else:
            start = {**block, "input": {}}
            made = next(c for at, c in enumerate(reply.calls) if (c.id or f"toolu_{number}_{at}") == block["id"])
            deltas = [("input_json_delta", "partial_json", p) for p in pieces(made.arguments, size)]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [
            {"type": "content_block_delta", "index": index, "delta": {"type": name, key: piece}}
            for name, key, piece in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    usage = {"output_tokens": _anthropic_usage(reply)["output_tokens"]}
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": _anthropic_reason(reply), "stop_sequence": None},
            "usage": usage,
        }
    )
    events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
