"""A local HTTP server in a separate process, which simulates a model for acorn and for the baselines.

The server answers every POST request with the same small JSON: a tool call, or a call of `__finish__` if the request
forces a tool. With `python server.py stream 100000`, the server streams an answer of 100,000 characters in pieces
instead. With the argument `paced`, it sends one piece at a time.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

BODY = (
    b'{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"","tool_calls":[{"id":"call_1","type":"function","function":{"name":"look","arguments":"{\\"place\\":\\"here\\"}"}}]},'
    b'"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
FINISH = BODY.replace(b"look", b"__finish__").replace(b"place", b"answer")
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
LAST = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(FINISH), FINISH)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = 8
"""The number of characters in one streamed event, as in `streaming.py`. Most providers send fewer characters."""
PAUSE = 0.0001


def nested(size: int) -> str:
    item = {"title": "A title", "body": "Some words about it. " * 5, "score": 0.75, "tags": ["a", "b"]}
    return json.dumps({"name": "report", "items": [item] * max(1, size // len(json.dumps(item)))})


def event(delta: dict[str, object] | None, reason: str | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    chunk: dict[str, object] = {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": choices}
    if delta is None:
        chunk["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return chunked(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def events(size: int) -> list[bytes]:
    """Return the server-sent events of a streamed `__finish__` call."""
    text = nested(size)
    function: dict[str, object] = {"name": "__finish__", "arguments": ""}
    first = event({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})
    cuts = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    pieces = [event({"tool_calls": [{"index": 0, "function": {"arguments": cut}}]}) for cut in cuts]
    return [first, *pieces, event({}, "tool_calls"), event(None), chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def serve(connection: socket.socket, stream: list[bytes], is_paced: bool) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        buffer = b""
        while chunk := connection.recv(65536):
            buffer += chunk
            while b"\r\n\r\n" in buffer:
                head, _, rest = buffer.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                if len(rest) < length:
                    break
                body, buffer = rest[:length], rest[length:]
                if stream:
                    answer(connection, stream, is_paced)
                else:
                    connection.sendall(LAST if b'"tool_choice"' in body else RESPONSE)


def answer(connection: socket.socket, stream: list[bytes], is_paced: bool) -> None:
    connection.sendall(STREAM)
    for piece in stream if is_paced else [b"".join(stream)]:
        connection.sendall(piece)
        if is_paced:
            time.sleep(PAUSE)


def main(words: list[str]) -> None:
    stream = events(int(words[1])) if words[:1] == ["stream"] else []
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    while True:
        arguments = (listener.accept()[0], stream, "paced" in words)
        threading.Thread(target=serve, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
