"""Tests of hostile MCP servers: their faults affect only their own calls, and they receive no secrets of the user."""

from __future__ import annotations

import http.server
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.conftest import Call
from tests.behaviour.test_mcp_source import SERVERS, Human, Odd, Worker, results, together
from tests.cases import case
from tests.waiting import AGES, PATIENCE, comes_true, given_time, waiting_for_nothing

from acorn import AcornError, DeclarationError, Request
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling

PROGRAM = """
import asyncio, os, sys
from acorn import AcornError, module
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, call, finish

class Worker(module[str, str]):
    '''Use the tools.'''
    max_steps = 3

server = MCPServer(sys.executable, [sys.argv[1], sys.argv[2], "--variant", "chatty"])
"""


def run_program(lines: str, diary: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM + lines, str(SERVERS / "quick.py"), str(diary)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("file", ["quick.py", pytest.param("odd.py", marks=pytest.mark.torture)])
def test_mcp_server_error_returns_tool_error_without_reconnect(tmp_path: Path, file: str) -> None:
    odd = Odd(tmp_path / "diary", file=file)
    model = ScriptedModel([calling("refuse", text="not today"), calling("echo", text="a"), finish("done")])
    run = Worker(model=model, tools=[odd.server]).run("x")
    assert results(run) == ["Tool error: ServerError: not today", "echo: a"]
    assert odd.lines().count("started") == 1


def test_mcp_server_that_rejects_new_protocol_version_is_called_with_old_version(call: Call, tmp_path: Path) -> None:
    odd = Odd(tmp_path / "diary", "strict")
    for starts in (2, 3):  # The protocol is detected once.
        model = ScriptedModel([calling("echo", text="a"), finish("done")])
        run = call.run(Worker(model=model, tools=[odd.server]), "x")
        assert results(run) == ["echo: a"]
        assert odd.lines().count("started") == starts


def test_mcp_server_environment_is_redacted_in_errors_and_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "acorn")
    given = {"NOTE": "zebra-4711-note", "API_TOKEN": "zebratoken", "DSN": "postgres://me:zebrapass@host/db"}
    odd = Odd(tmp_path / "diary", env=given)
    said = " ".join(given.values())
    model = ScriptedModel([calling("fail", text=said), calling("refuse", text=said), finish("done")])
    run = Worker(model=model, tools=[odd.server]).run("x")
    failed, refused = (result.removeprefix("Tool error: ServerError: ") for result in results(run))
    assert failed == refused == "*** *** postgres://***@host/db"
    told = caplog.text.replace(repr(said), "")
    assert not any(canary in told for canary in ("4711", "zebratoken", "zebrapass"))


SECRET_ARGUMENTS: list[list[str]] = [
    ["--api-key", "zebra1234"],
    ["--token=zebra1234"],
    ["API_KEY=zebra1234"],
    ["--header", "Authorization: zebra1234"],
]


def test_mcp_server_argument_secrets_are_redacted_in_error() -> None:
    for args in SECRET_ARGUMENTS:
        with case(args):
            program = "import sys; sys.exit(f'wrong arguments: {sys.argv[1:]}')"
            server = MCPServer(sys.executable, ["-c", program, *args])
            with pytest.raises(AcornError, match="wrong arguments") as caught:
                Worker(model=ScriptedModel([]), tools=[server])("x")
            assert "zebra" not in str(caught.value)


def test_mcp_description_secrets_are_redacted_in_lock_file_and_request(tmp_path: Path) -> None:
    program = (SERVERS / "quick.py").read_text(encoding="utf-8").replace('f"Do {name}."', 'os.environ["API_TOKEN"]')
    (tmp_path / "quick.py").write_text(program, encoding="utf-8")
    args = [str(tmp_path / "quick.py"), str(tmp_path / "diary")]
    server = MCPServer(sys.executable, args, {"API_TOKEN": "zebratoken"}, pin=tmp_path / "mcp.lock")
    model = ScriptedModel([finish("done")])
    Worker(model=model, tools=[server])("x")
    assert '"description": "***"' in (tmp_path / "mcp.lock").read_text(encoding="utf-8")
    assert "zebra" not in json.dumps(model.requests[0].tools)


def test_mcp_schema_default_secrets_are_redacted_in_lock_file_and_request(tmp_path: Path) -> None:
    def run(token: str) -> ScriptedModel:
        odd = Odd(tmp_path / "diary", "keyed", env={"API_TOKEN": token}, pin=tmp_path / "mcp.lock")
        model = ScriptedModel([finish("done")])
        Worker(model=model, tools=[odd.server])("x")
        return model

    sent = run("zebratoken").requests[0].tools[0]["function"]["parameters"]["properties"]
    by = {"type": "string", "description": "Such as ***."}
    assert sent == {"by": by, "default": by, "tries": {"default": 3}}
    pinned = (tmp_path / "mcp.lock").read_text(encoding="utf-8")
    assert "zebra" not in pinned
    assert '"default": "*** (sha256 ' in pinned
    run("zebratoken")
    with pytest.raises(AcornError, match="differ from the pinned tools in") as raised:
        run("anothertoken")
    assert "another" not in str(raised.value)


TRACED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
model = ScriptedModel([call("refuse", text="zebra words"), call("fail", text="zebra result"), finish("done")])
run = Worker(model=model, tools=[server]).run("x")
print([message["content"] for message in run.history if message["role"] == "tool"][:2])
for span in kept.get_finished_spans():
    print("SPAN", span.to_json(indent=None))
"""


def test_mcp_server_error_text_is_not_in_spans_and_its_output_is_not_printed(tmp_path: Path) -> None:
    ended = run_program(TRACED, tmp_path / "diary")
    said, *spans = ended.stdout.splitlines()
    assert said == "['Tool error: ServerError: zebra words', 'Tool error: ServerError: zebra result']"
    assert any('"MCP send tools/call refuse"' in span for span in spans)
    assert not [span for span in spans if "zebra" in span]
    assert ended.stderr == ""  # The server also prints lines that are not messages.


NO_ANSWER = "Tool error: ServerError: the answer of the server is not an MCP message"
RUDE = {
    "twice": "first",
    "junk": "behind junk",
    "list": NO_ANSWER,
    "deep": NO_ANSWER,
    "half": NO_ANSWER,
    "empty": (
        "Tool error: ServerError: the result of the server does not follow the MCP specification: "
        "content: Field required"
    ),
    "chatter": "behind chatter",
}


def test_mcp_server_with_invalid_response_causes_tool_error_for_that_call_only(call: Call, tmp_path: Path) -> None:
    odd = Odd(tmp_path / "diary", "rude", timeout=AGES)
    model = ScriptedModel([together(*[calling("echo", text=how) for how in RUDE]), finish("done")])
    run = call.run(Worker(model=model, tools=[odd.server]), "x")
    assert results(run) == list(RUDE.values())
    assert odd.lines().count("started") == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("deaf", "Connection closed"),
        pytest.param("endless", "of more than 100000000 bytes", marks=pytest.mark.torture),
    ],
)
def test_mcp_server_that_does_not_exit_is_killed(tmp_path: Path, how: str, words: str) -> None:
    odd = Odd(tmp_path / "diary", "rude", timeout=AGES)
    model = ScriptedModel([calling("echo", text=how), calling("echo", text="twice"), finish("done")])
    lost, first = results(Worker(model=model, tools=[odd.server]).run("x"))
    assert words in lost
    assert first == "first"


def test_mcp_server_with_duplicate_tool_name_raises_acorn_error(tmp_path: Path) -> None:
    with pytest.raises(AcornError, match="offers `echo` and `echo`, but both tools would have the name `echo`"):
        Worker(model=ScriptedModel([]), tools=[Odd(tmp_path / "diary", "doubles").server])("x")


def test_mcp_connect_timeout_error_reports_invalid_lines_that_server_printed() -> None:
    program = "import time; print('hello, I am no protocol', flush=True); time.sleep(3600)"

    def connect(seconds: float) -> bool | None:
        server = MCPServer(sys.executable, ["-c", program], connect_timeout=seconds)
        with pytest.raises(AcornError, match=f"did not answer within {seconds:g} s") as caught:
            Worker(model=ScriptedModel([]), tools=[server])("x")
        return ". It wrote lines to its standard output that are not" in str(caught.value) or None

    assert given_time(connect, 0.3)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "way",
    [
        pytest.param("worker.run('x')", id="sync"),
        pytest.param("asyncio.run(worker.acall('x'))", id="async", marks=pytest.mark.torture),
    ],
)
def test_ctrl_c_while_mcp_server_starts_leaves_no_process(tmp_path: Path, way: str) -> None:
    diary = tmp_path / "diary"
    lines = f"worker = Worker(model=ScriptedModel([]), tools=[server])\n{way}\n"
    program = (PROGRAM + lines).replace("chatty", "silent")
    words = [sys.executable, "-W", "ignore", "-c", program, str(SERVERS / "quick.py"), str(diary)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert comes_true(lambda: diary.exists() and "process" in diary.read_text(encoding="utf-8"))
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]
    assert said.endswith("KeyboardInterrupt\n")
    number = int(diary.read_text(encoding="utf-8").split("process ")[1])
    assert comes_true(lambda: not _is_alive(number))


def _is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{number}/stat")
    return not stat.exists() or ") Z" not in stat.read_text(encoding="utf-8")  # A zombie process.


@pytest.mark.skipif(os.name != "posix", reason="groups of processes are of POSIX")
def test_mcp_server_child_processes_are_ended_with_server(tmp_path: Path) -> None:
    odd = Odd(tmp_path / "diary", "parent")
    Worker(model=ScriptedModel([finish("done")]), tools=[odd.server])("x")
    child = next(int(line.split()[1]) for line in odd.lines() if line.startswith("child"))
    assert comes_true(lambda: not _is_alive(child))


@pytest.mark.torture
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_use_of_parent_mcp_server_in_forked_child_process_raises_not_open_error(tmp_path: Path) -> None:
    lines = """
with server:
    asyncio.run(server.tools())
    if os.fork() == 0:
        try:
            asyncio.run(asyncio.wait_for(server.tools(), 30))
        except AcornError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
    print(Worker(model=ScriptedModel([call('echo', text='a'), finish('done')]), tools=[server])('x'))
"""
    ended = run_program(lines, tmp_path / "diary")
    assert "is not open. Call its tools in a run" in ended.stdout
    assert ended.stdout.endswith("done\n")


@pytest.mark.torture
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_process_that_leaves_mcp_server_block_can_call_server_again(tmp_path: Path) -> None:
    lines = """
def work():
    model = ScriptedModel([call('echo', text='a'), finish('done')])
    return Worker(model=model, tools=[server])('x')

with server:
    work()
    child = os.fork()
    if child == 0:
        print('inside', work(), flush=True)
if child == 0:
    print('behind', work(), flush=True)
    os._exit(0)
os.wait()
"""
    ended = run_program(lines, tmp_path / "diary")
    assert ended.stdout == "inside done\nbehind done\n"


class Rude(http.server.BaseHTTPRequestHandler):
    """A server with a session that ends when `leaving` is set."""

    protocol_version = "HTTP/1.1"
    status = 200
    leaving = threading.Event()

    def log_message(self, *args: Any) -> None:
        """Nothing."""

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Mcp-Session-Id", "1")):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(405)

    def do_DELETE(self) -> None:
        self.leaving.wait(AGES)
        self.answer(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.perform(message["method"], message)

    def perform(self, method: str, message: dict[str, Any]) -> None:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "rude", "version": "1"}}
        tools = [{"name": "busy", "inputSchema": {"type": "object"}}]
        known: dict[str, Any] = {"initialize": hello, "tools/list": {"tools": tools}}
        if self.status != 200 or method == "tools/call":
            self.answer(503 if self.status == 200 else self.status)
        elif "id" not in message:
            self.answer(202)
        elif method in known:
            self.reply(message, result=known[method])
        else:
            self.reply(message, error={"code": -32601, "message": "Method not found"})

    def reply(self, message: dict[str, Any], **content: Any) -> None:
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **content}).encode())


class Forgetful(Rude):
    """A server that loses its session at the first call, drops the connection at the second, and answers the third."""

    calls: list[str]

    def perform(self, method: str, message: dict[str, Any]) -> None:
        if method != "tools/call":
            super().perform(method, message)
            return
        self.calls.append(self.headers["Mcp-Session-Id"])
        if len(self.calls) == 1:
            self.answer(404)
        elif len(self.calls) == 2:
            self.close_connection = True
        else:
            self.reply(message, result={"content": [{"type": "text", "text": "done"}]})


@contextmanager
def rude(status: int, kind: type[Rude] = Rude, *, closes: bool = True) -> Iterator[str]:
    """Start a server that answers with a status. Without `closes`, it never answers the end of a session."""
    handler = type("Handler", (kind,), {"status": status, "leaving": threading.Event(), "calls": []})
    if closes:
        handler.leaving.set()  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
        finally:
            handler.leaving.set()  # type: ignore[attr-defined]
            server.shutdown()


def test_mcp_session_that_does_not_close_does_not_delay_end_of_run() -> None:
    with rude(200, closes=False) as address, waiting_for_nothing():
        assert Worker(model=ScriptedModel([finish("done")]), tools=[MCPServer(address)])("x") == "done"


def test_mcp_call_of_lost_session_is_repeated_and_call_of_lost_connection_is_not() -> None:
    with rude(200, Forgetful) as address, waiting_for_nothing():
        model = ScriptedModel([calling("busy"), calling("busy"), finish("done")])
        lost, done = results(Worker(model=model, tools=[MCPServer(address)]).run("x"))
    assert "The call may or may not have taken effect and is not repeated" in lost
    assert done == "done"


def test_mcp_url_secrets_are_not_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with rude(200) as address, waiting_for_nothing():
        keyed = address.replace("://", "://me:zebrapass@") + "/9b1a4c0e-77d1-zebra-3f2a?token=zebratoken"
        Worker(model=ScriptedModel([finish("done")]), tools=[MCPServer(keyed)])("x")
    assert f"HTTP Request: POST {address}/***" in caplog.text
    assert "zebra" not in caplog.text


def test_mcp_tool_call_rejected_over_http_returns_error_with_http_status() -> None:
    with rude(200) as address, waiting_for_nothing():
        model = ScriptedModel([calling("busy"), finish("done")])
        run = Worker(model=model, tools=[MCPServer(address)]).run("x")
    assert results(run) == ["Tool error: ServerError: Server returned an error response (HTTP status 503)"]


def test_mcp_url_secret_is_redacted_in_lock_file_and_error(tmp_path: Path) -> None:
    key, lock = "9b1a4c0e-77d1-zebra-3f2a", tmp_path / "mcp.lock"
    with rude(200) as address, waiting_for_nothing():
        Worker(model=ScriptedModel([finish("done")]), tools=[MCPServer(f"{address}/{key}", pin=lock)])("x")
        assert "zebra" not in lock.read_text(encoding="utf-8")
        assert f"{address}/*** " in lock.read_text(encoding="utf-8")
    with pytest.raises(AcornError, match=r"/mcp/\*\*\*` cannot be reached") as caught:
        Worker(model=ScriptedModel([]), tools=[MCPServer(f"{address}/{key}")])("x")
    assert "zebra" not in str(caught.value)


REJECTIONS: list[tuple[int, str]] = [
    (401, "HTTP status 401.*Check the key in `headers`"),
    (404, "HTTP status 404.*Check the path of the URL"),
]


def test_mcp_connection_rejected_over_http_raises_error_with_http_status() -> None:
    for status, words in REJECTIONS:
        with case(status, words), rude(status) as address, pytest.raises(AcornError, match=words):
            Worker(model=ScriptedModel([]), tools=[MCPServer(address)])("x")


def takes_one(arguments: dict[str, Any]) -> bool:
    return bool(arguments)


async def asks_later(name: str, arguments: dict[str, Any]) -> bool:
    return bool(arguments)


WRONG_SERVERS: list[tuple[str, dict[str, Any], str]] = [
    ("ftp://example.com/mcp", {}, "must be a command or an `http` or `https` URL"),
    ("http://[::1", {}, "must be a command or an `http` or `https` URL"),
    ("http://", {}, "must be a command or an `http` or `https` URL"),
    (
        "time",
        {"env": {"API_TOKEN": "zebratoken", "DEPTH": 1}},
        "strings without line ends, but 'DEPTH' is wrong: Input should be a valid string",
    ),
    ("time", {"env": "zebra"}, "must be a dict of strings without line ends, got a `str`"),
    (
        "http://a/mcp",
        {"headers": {"Authorization": "Bearer zebra\n"}},
        "without line ends, but 'Authorization' is wrong: Value error, the value contains a line end",
    ),
    ("http://a/mcp", {"auth": "zebra"}, "set a key with `headers=.*got a `str`"),
    ("time", {"cwd": "nowhere-at-all"}, "`cwd` .* must be an existing folder, got 'nowhere-at-all'"),
    ("time", {"pin": 5}, "`pin` .* must be the path of a file, got 5"),
    ("time", {"pin": ""}, "`pin` .* must be the path of a file, got ''"),
    ("time", {"prefix": None}, "`prefix` .* must consist of letters"),
    ("time", {"max_result": 1.5}, "`max_result` .* must be an integer"),
    ("time", {"approve": takes_one}, "`approve` .* sync function that receives the tool name"),
    ("time", {"approve": asks_later}, "`approve` .* sync function that receives the tool name"),
]


def test_mcp_error_secrets_are_redacted() -> None:
    for server, options, words in WRONG_SERVERS:
        with case(server, options):
            with pytest.raises(DeclarationError, match=words) as caught:
                MCPServer(server, **options)
            assert "zebra" not in str(caught.value)


def test_mcp_command_that_contains_arguments_raises_error_that_suggests_args() -> None:
    with pytest.raises(AcornError, match=r"`mcp-nowhere --verbose` .* use `args=\[...\]` for arguments"):
        Worker(model=ScriptedModel([]), tools=[MCPServer("mcp-nowhere --verbose")])("x")


@pytest.mark.parametrize("file", ["quick.py", pytest.param("odd.py", marks=pytest.mark.torture)])
def test_exception_in_on_human_is_in_tool_error_but_is_not_sent_to_mcp_server(tmp_path: Path, file: str) -> None:
    class Raising(Worker):
        def on_human(self, request: Request) -> Any:
            raise RuntimeError("zebra")

    odd = Odd(tmp_path / "diary", file=file)
    model = ScriptedModel([calling("ask"), finish("done")])
    (result,) = results(Raising(model=model, tools=[odd.server]).run("x"))
    assert result == "Tool error: ServerError: The answer of `on_human` cannot be used: RuntimeError: zebra"
    assert "zebra" not in "\n".join(odd.lines())


@pytest.mark.parametrize("file", ["quick.py", pytest.param("odd.py", marks=pytest.mark.torture)])
def test_lone_surrogate_in_answer_to_mcp_server_is_replaced_and_session_continues(tmp_path: Path, file: str) -> None:
    odd = Odd(tmp_path / "diary", file=file)
    model = ScriptedModel([calling("survey"), calling("echo", text="a"), finish("done")])
    assert results(Human({"name": "a\ud800b"}, model=model, tools=[odd.server]).run("x")) == [
        "accept {'name': 'a\ufffdb', 'age': 30, 'news': True}",
        "echo: a",
    ]


def test_mcp_question_with_hidden_characters_in_choices_is_rejected_before_on_human_is_called(tmp_path: Path) -> None:
    program = (SERVERS / "quick.py").read_text(encoding="utf-8").replace('"red", "blue"', r'"red\x1b[31m", "blue"')
    (tmp_path / "quick.py").write_text(program, encoding="utf-8")
    server = MCPServer(sys.executable, [str(tmp_path / "quick.py"), str(tmp_path / "diary")])
    human = Human("blue", model=ScriptedModel([calling("ask"), finish("done")]), tools=[server])
    (result,) = results(human.run("x"))
    assert "the choices of the server's form contain invisible characters" in result
    assert not human.asked


HIDDEN_DEFAULTS: list[tuple[str, str, str]] = [
    ('"default": None', r'"default": "a\u200b"', "accept {'name': 'Ada', 'age': 30, 'news': True}"),
    ('"default": None', '"default": {"a": 1}', "accept {'name': 'Ada', 'age': 30, 'news': True}"),
    ('"In years"', '"In years" + "x" * 9000', "argument `age` is missing"),
]


def test_mcp_default_that_question_does_not_show_is_not_sent_as_answer(tmp_path: Path) -> None:
    for honest, hostile, sent in HIDDEN_DEFAULTS:
        with case(honest, hostile):
            program = (SERVERS / "quick.py").read_text(encoding="utf-8")
            assert honest in program
            (tmp_path / "quick.py").write_text(program.replace(honest, hostile), encoding="utf-8")
            server = MCPServer(sys.executable, [str(tmp_path / "quick.py"), str(tmp_path / "diary")])
            model = ScriptedModel([calling("survey"), finish("done")])
            (result,) = results(Human({"name": "Ada"}, model=model, tools=[server]).run("x"))
            assert sent in result
