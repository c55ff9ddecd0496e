"""Attacks of MCP servers over HTTP with compressed or endless messages: only the call fails."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cases import case
from tests.long_version import IS_LONG
from tests.waiting import waiting_for_nothing

from acorn import module
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, call, finish


class Server(BaseHTTPRequestHandler):
    """An MCP server whose tool `attack` sends a hostile response."""

    protocol_version = "HTTP/1.1"
    attack = ""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.answer(b"", 405)

    def do_DELETE(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, version = message["method"], {"protocolVersion": "2025-06-18"}
        hello = {**version, "capabilities": {}, "serverInfo": {"name": "hostile", "version": "1"}}
        results: dict[str, Any] = {
            "initialize": hello,
            "tools/list": {"tools": [{"name": "attack", "inputSchema": {"type": "object"}}]},
        }
        if "id" not in message:
            self.answer(b"", 202)
        elif method == "tools/call":
            self.send_attack(message["id"])
        elif method in results:
            self.answer(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[method]}).encode())
        else:
            error = {"code": -32601, "message": "Method not found"}
            self.answer(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())

    def send_attack(self, request_id: object) -> None:
        kind, _, way = self.attack.partition(" ")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if way == "events" else "application/json")
        self.send_header("Connection", "close")
        self.close_connection = True
        if kind == "bomb":
            self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            text = json.dumps({"jsonrpc": "2.0", "id": request_id, "result": {"content": []}, "x": "a" * 30_000_000})
            self.wfile.write(gzip.compress(text.encode()))
            return
        self.end_headers()
        self.wfile.write(b"data: " if way == "events" else b'{"x": "')
        with suppress(OSError):  # The client closes the connection.
            while True:
                self.wfile.write(b"a" * 1_000_000)

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(attack: str) -> Iterator[str]:
    kind = type("Attack", (Server,), {"attack": attack})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
        server.shutdown()
        thread.join()


class Worker(module[str, str]):
    """Use the tools."""

    max_steps = 3


def test_hostile_mcp_message_over_http_fails_only_its_call() -> None:
    attacks = ["bomb json", "endless events", *(["bomb events", "endless json"] if IS_LONG else [])]
    for attack in attacks:
        with case(attack), serving(attack) as url, waiting_for_nothing():
            model = ScriptedModel([call("attack"), finish("done")])
            run = Worker(model=model, tools=[MCPServer(url, timeout=60)]).run("x")
            assert run.output == "done"
            (result,) = [message["content"] for message in run.history if message["role"] == "tool"][:1]
            assert result.startswith("Tool error"), result[:200]
