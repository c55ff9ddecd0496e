"""A local server that simulates OpenAI's chat completions with scripted answers, complete or streamed.

The path of a request is `/FINISH/WORK/v1/chat/completions`, so the server stores no state between requests. WORK is the
name of the task. FINISH is the format of the typed answer that the framework expects: `json` (message content), `dspy`
(the format of DSPy), or the name of the tool whose arguments are the answer. Each tool result contains a mark. The
server counts the marks in a request to determine the next answer. `GET /take` returns the number of requests since the
previous call and resets it.

The server rejects a request without the required tools, output format or tool results.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from typing import Any

from peers.tasks import MARK, answer, kind_of, pieces, report

NUMBER = re.compile(rb"number (\d+)")
PATIENCE = 30.0
"""The seconds that the server waits for all requests of the task with concurrent runs."""


class RefusedError(Exception):
    """Raised if a request does not contain the data that the task requires."""


def calls_of(made: list[tuple[str, dict[str, Any]]], first: int) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{first + at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for at, (name, arguments) in enumerate(made)
    ]


def in_dspy(fields: dict[str, Any]) -> str:
    texts = [
        f"[[ ## {name} ## ]]\n{value if isinstance(value, str) else json.dumps(value)}"
        for name, value in fields.items()
    ]
    return "\n\n".join([*texts, "[[ ## completed ## ]]"])


def reply(finish: str, work: str, body: bytes) -> dict[str, Any]:
    """Return the scripted assistant message for a request."""
    kind, wanted = kind_of(work)
    done = body.count(MARK.encode())
    tool = {"loop": "look", "parallel": "wait"}.get(kind)
    if tool and tool.encode() not in body:
        raise RefusedError(f"the tool `{tool}` is not offered")
    missing = {"loop": wanted - done, "parallel": wanted - done}.get(kind, 0)
    if missing < 0 or (kind == "parallel" and missing not in (0, wanted)):
        raise RefusedError(f"{done} tool results where {wanted} were asked for")
    if missing and tool:
        made = [(tool, {"place": f"tree {done + at}", "depth": 2}) for at in range(1 if kind == "loop" else missing)]
        if finish == "dspy":
            step = {"next_thought": "Look.", "next_tool_name": tool, "next_tool_args": made[0][1]}
            return {"role": "assistant", "content": in_dspy(step)}
        return {"role": "assistant", "content": None, "tool_calls": calls_of(made, done)}
    found = NUMBER.search(body)
    if not found:
        raise RefusedError("the question is missing")
    return ending(finish, answer(int(found[1])), body)


def ending(finish: str, fields: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return the assistant message with the typed answer, in the format `finish`."""
    if finish == "dspy":
        if b"next_tool_name" in body:
            step = {"next_thought": "Enough.", "next_tool_name": "finish", "next_tool_args": {}}
            return {"role": "assistant", "content": in_dspy(step)}
        thought = {"reasoning": "It was there."} if b"## reasoning ##" in body else {}
        return {"role": "assistant", "content": in_dspy({**thought, "result": fields})}
    if finish == "json":
        if b'"response_format"' not in body:
            raise RefusedError("`response_format` is missing")
        return {"role": "assistant", "content": json.dumps(fields)}
    if f'"{finish}"'.encode() not in body:
        raise RefusedError(f"the tool `{finish}` is not offered")
    # The final tool of smolagents has one argument, which contains all fields.
    given = {"answer": fields} if finish == "final_answer" else fields
    return {"role": "assistant", "content": None, "tool_calls": calls_of([(finish, given)], 1000)}


USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
HEAD: dict[str, Any] = {"id": "chatcmpl-1", "created": 1700000000, "model": "gpt-4o"}
CHUNK = {**HEAD, "object": "chat.completion.chunk"}


def completion(message: dict[str, Any]) -> bytes:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    return json.dumps({**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()


@cache
def events(finish: str, size: int, with_usage: bool) -> bytes:
    """Return the report as server-sent events, with one HTTP chunk for each event."""
    by_tool = finish != "json"
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if by_tool else ""}]
    if by_tool:
        opened = {"index": 0, "id": "call_1", "type": "function", "function": {"name": finish, "arguments": ""}}
        deltas[0]["tool_calls"] = [opened]
    for piece in pieces(report(size)):
        part: dict[str, Any] = {"index": 0, "function": {"arguments": piece}}
        deltas.append({"tool_calls": [part]} if by_tool else {"content": piece})
    choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices.append([{"index": 0, "delta": {}, "finish_reason": "tool_calls" if by_tool else "stop"}])
    told: list[dict[str, Any]] = [{**CHUNK, "choices": each} for each in choices]
    if with_usage:
        told.append({**CHUNK, "choices": [], "usage": USAGE})
    texts = [b"data: %s\n\n" % json.dumps(each).encode() for each in told] + [b"data: [DONE]\n\n"]
    return b"".join(b"%x\r\n%s\r\n" % (len(text), text) for text in texts) + b"0\r\n\r\n"


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status.encode(),
        len(body),
        body,
    )


def refusal(words: str) -> bytes:
    error = {"message": words, "type": "invalid_request_error", "param": None, "code": None}
    return http(json.dumps({"error": error}).encode(), "400 Bad Request")


SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Model:
    """The state that all connections share: the number of requests, and the requests that wait for other runs."""

    def __init__(self) -> None:
        self.requests = 0
        self.refused: list[str] = []
        self.waiting: list[tuple[Connection, bytes]] = []
        self.watchdog: asyncio.TimerHandle | None = None

    def take(self) -> bytes:
        told = {"requests": self.requests, "refused": self.refused[:3]}
        self.requests, self.refused = 0, []
        return http(json.dumps(told).encode())

    def handle(self, connection: Connection, path: str, body: bytes) -> None:
        if path == "/take":
            connection.send(self.take())
            return
        self.requests += 1
        try:
            _, finish, work, *rest = path.split("/")
            if rest != ["v1", "chat", "completions"]:
                raise RefusedError(f"nothing is served at `{path}`")
            kind, size = kind_of(work)
            if kind == "stream":
                if finish != "json" and f'"{finish}"'.encode() not in body:
                    raise RefusedError(f"the tool `{finish}` is not offered")
                connection.send(SSE + events(finish, size, b'"include_usage"' in body))
                return
            ready = http(completion(reply(finish, work, body)))
        except RefusedError as refused:
            self.refused.append(str(refused))
            connection.send(refusal(str(refused)))
            return
        if kind == "many":
            self.gather(connection, ready, size)
        else:
            connection.send(ready)

    def gather(self, connection: Connection, ready: bytes, size: int) -> None:
        """Hold the answers until the requests of all runs have arrived, so that the runs are concurrent."""
        if self.watchdog is None:
            self.watchdog = asyncio.get_running_loop().call_later(PATIENCE, self.give_up, size)
        self.waiting.append((connection, ready))
        if len(self.waiting) == size:
            self.release([each for _, each in self.waiting])

    def give_up(self, size: int) -> None:
        words = f"only {len(self.waiting)} of {size} runs came at once"
        self.refused.append(words)
        self.release([refusal(words)] * len(self.waiting))

    def release(self, answers: list[bytes]) -> None:
        if self.watchdog is not None:
            self.watchdog.cancel()
        waiting, self.waiting, self.watchdog = self.waiting, [], None
        for (connection, _), each in zip(waiting, answers, strict=True):
            connection.send(each)


class Connection(asyncio.Protocol):
    def __init__(self, model: Model) -> None:
        self.model = model
        self.buffer = bytearray()
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[:end])
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            self.model.handle(self, head.split(b" ", 2)[1].decode(), body)


async def main() -> None:
    model = Model()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(model), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
