"""Tests of `acorn mcp` and `acorn.mcp.serve`: the official MCP client calls modules as tools."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.cases import case
from tests.waiting import PATIENCE, comes_true

from acorn import AcornError, DeclarationError, module
from acorn.cli import main
from acorn.mcp import MCPServer, serve
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling

KEY = "a-key-for-tests-and-nothing-else"
BEARER = {"Authorization": f"Bearer {KEY}"}
AGENTS = Path(__file__).parents[1] / "mcp_servers" / "agents.py"
NAMES = [
    "DeepThought",
    "Shout",
    "Failing",
    "Raising",
    "Waiting",
    "Nothing",
    "Slow",
    "Ancestry",
    "Rounding",
    "Rewriting",
    "Halving",
]
TARGETS = [f"{AGENTS}:{name}" for name in NAMES]

QUIET = """
from acorn import module
from acorn.mcp import serve

class Quiet(module[str, str]):
    '''Say nothing.'''

serve(Quiet)
"""


class Session:
    """The official client on its own loop, connected to acorn's server."""

    def __init__(self, folder: Path, target: Any) -> None:
        self.folder = folder
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._opened, self._leave = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._own(),), daemon=True)

    async def _own(self) -> None:
        async with Client(self._target()) as self.client:
            self._opened.set()
            await self._leave.wait()

    def __enter__(self) -> Session:
        self._thread.start()
        assert self._opened.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(PATIENCE)
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def call(self, name: str, **arguments: Any) -> Any:
        return self.wait(self.client.call_tool(name, arguments))


def environment(folder: Path) -> dict[str, str]:
    source = str(Path(__file__).parents[2] / "src")
    return {"ACORN_TEST_FOLDER": str(folder), "PYTHONPATH": source, "ACORN_SERVE_KEYS": KEY}


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return start_python(folder, "-m", "acorn", "mcp", *words)


def start_python(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment(folder)},
        start_new_session=True,
    )


def wait_for_line(process: subprocess.Popen[str], pattern: str, name: str = "stderr") -> str:
    """Return the text in the output of a process that matches a pattern. Fail if it ends or takes too long."""
    stream = process.stderr if name == "stderr" else process.stdout
    assert stream is not None
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        lines = []
        while line := stream.readline():
            if match := re.search(pattern, line):
                return match[0]
            lines.append(line)
    finally:
        timer.cancel()
    raise AssertionError(f"no line of {name} matches {pattern!r}: {lines}")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("served")
    words = ["-m", "acorn", "mcp", *TARGETS]
    server = StdioServerParameters(command=sys.executable, args=words, env=environment(folder))
    with open(folder / "stderr.txt", "w") as log, Session(folder, lambda: stdio_client(server, errlog=log)) as opened:
        yield opened


def text(result: Any) -> str:
    return "".join(block.text for block in result.content)


def test_mcp_serve_lists_modules_as_tools(session: Session) -> None:
    tools = {tool.name: tool for tool in session.wait(session.client.list_tools()).tools}
    assert list(tools) == ["deep_thought", *(name.lower() for name in NAMES[1:])]
    deep = tools["deep_thought"]
    assert deep.description == "Answer questions."
    assert deep.input_schema["required"] == ["question"]
    assert deep.input_schema["properties"]["question"]["description"] == "What to answer"
    assert set(deep.output_schema["properties"]) == {"answer", "depth"}
    assert tools["nothing"].output_schema is None


def test_mcp_serve_call_returns_output_and_sends_prints_of_module_to_stderr(session: Session) -> None:
    result = session.call("deep_thought", question="What is it?")
    assert not result.is_error
    assert result.structured_content == {"answer": "it, looked up, '' read", "depth": 3}
    assert json.loads(text(result)) == result.structured_content
    said = (session.folder / "stderr.txt").read_text()
    assert "a file that prints" in said
    assert "a tool that prints" in said
    assert "a child that prints" in said


def test_mcp_serve_plain_output_is_returned_as_text_and_structured_content(session: Session) -> None:
    result = session.call("shout", input="hello")
    assert (text(result), result.structured_content) == ("LOUD", {"result": "LOUD"})


def test_mcp_serve_lone_surrogate_is_replaced_in_result(session: Session) -> None:
    result = session.call("halving", input="x")
    assert (text(result), result.structured_content) == ("a\ufffdb", {"result": "a\ufffdb"})


def test_mcp_serve_output_schema_is_object_with_field_names_of_structured_content(session: Session) -> None:
    tools = {tool.name: tool for tool in session.wait(session.client.list_tools()).tools}
    promised = tools["ancestry"].output_schema
    assert promised["type"] == "object"  # Clients require this, also of a recursive model.
    result = session.call("ancestry", input="x")
    byron = {"full_name": "Byron", "children": []}
    assert result.structured_content == {"full_name": "Ada", "children": [byron]}
    assert set(promised["properties"]) == set(result.structured_content)


VIOLATIONS: list[tuple[str, str]] = [
    ("rounding", "`rounding` returned `null`"),
    ("rewriting", "`rewriting` returned `In a word: it`"),
]


def test_mcp_serve_output_that_violates_schema_returns_error(session: Session) -> None:
    for name, words in VIOLATIONS:
        with case(name, words):
            result = session.call(name, input="x")
            assert (result.is_error, result.structured_content) == (True, None)
            assert words in text(result)


def test_mcp_serve_call_of_module_without_input_and_output_returns_text_done(session: Session) -> None:
    result = session.call("nothing")
    assert (text(result), result.structured_content, result.is_error) == ("Done.", None, False)


FAILED: list[tuple[str, dict[str, Any], str]] = [
    ("failing", {"input": "x"}, r"the provider is down, key \*\*\*"),
    ("raising", {"input": "x"}, r"KeyError: .*a fault of the user's"),
    ("deep_thought", {"depth": 2}, r"question"),
    ("deep_thought", {"question": "x", "depht": 2}, r"depht"),
    ("unheard_of", {}, r"There is no tool `unheard_of`. There are: `deep_thought`"),
]


def test_mcp_serve_failed_run_returns_tool_error(session: Session) -> None:
    for name, arguments, words in FAILED:
        with case(name, arguments):
            result = session.call(name, **arguments)
            assert result.is_error
            assert re.search(words, text(result))


def test_mcp_serve_paused_run_returns_error_with_question(session: Session) -> None:
    result = session.call("waiting", input="x")
    assert result.is_error
    assert "is paused in its store and waits for human input" in text(result)
    assert "Shall I?" in text(result)
    assert (session.folder / "runs.db").exists()


def test_mcp_serve_sends_progress_if_client_requests_progress(session: Session) -> None:
    heard: list[Any] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    session.wait(session.client.call_tool("deep_thought", {"question": "x"}, progress_callback=progress))
    assert comes_true(lambda: len(heard) == 3)
    assert heard == [
        (1, "step 1: asking the model"),
        (2, "step 1: calling `look`"),
        (3, "step 2: asking the model"),
    ]


def test_mcp_serve_client_cancel_ends_run(session: Session) -> None:
    diary = session.folder / "diary.txt"

    async def begin_and_cancel() -> None:
        task = asyncio.create_task(session.client.call_tool("slow", {"input": "x"}))
        while not (diary.exists() and diary.read_text() == "begun"):
            await asyncio.sleep(0.01)
        task.cancel()

    session.wait(begin_and_cancel())
    assert comes_true(lambda: diary.read_text() == "ended in step 1")


# The end


@pytest.mark.torture
def test_mcp_serve_exits_with_0_when_stdin_closes(tmp_path: Path) -> None:
    process = start(tmp_path, TARGETS[1])
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


@pytest.mark.torture
@pytest.mark.parametrize("way", ["command", "function"])
def test_mcp_serve_exits_with_0_and_no_output_when_client_disconnects(tmp_path: Path, way: str) -> None:
    words = ["-m", "acorn", "mcp", TARGETS[1]] if way == "command" else ["-c", QUIET]
    process = start_python(tmp_path, *words)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    known = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": known}) + "\n")
    process.stdin.flush()
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read().replace("a file that prints while it is imported", "").strip() == ""
    process.stderr.close()
    process.stdin.close()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("http", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_mcp_serve_exits_with_130_on_ctrl_c(tmp_path: Path, http: bool) -> None:
    process = start(tmp_path, TARGETS[1], *(["--http", "0"] if http else []))
    assert process.stderr is not None
    assert process.stdin is not None
    if http:
        wait_for_line(process, "Serving MCP")
    else:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        assert json.loads(wait_for_line(process, ".+", "stdout"))["id"] == 1
    os.killpg(process.pid, signal.SIGINT)
    process.wait(PATIENCE)  # With its standard input open.
    _, err = process.communicate()
    assert process.returncode == 130
    assert err in ("", "a file that prints while it is imported\n")


# Over HTTP


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("web")
    process = start(folder, *TARGETS, "--http", "0")
    yield wait_for_line(process, r"http://\S+/mcp")
    process.kill()
    process.communicate()


def test_mcp_serve_over_http_returns_results_and_errors(tmp_path: Path, address: str) -> None:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Any]:
        async with (
            httpx2.AsyncClient(headers=BEARER, timeout=PATIENCE) as client,
            streamable_http_client(address, http_client=client) as streams,
        ):
            yield streams

    with Session(tmp_path, connect) as session:
        assert text(session.call("shout", input="hello")) == "LOUD"
        assert session.call("failing", input="x").is_error


def test_mcp_client_calls_module_served_by_mcp_serve(address: str) -> None:
    class Asker(module[str, str]):
        """Ask."""

        tools = [MCPServer(address, headers=BEARER)]
        max_steps = 3

    run = Asker(model=ScriptedModel([calling("shout", input="hello"), finish("done")])).run("x")
    assert next(m["content"] for m in run.history if m["role"] == "tool") == "LOUD"


def test_mcp_serve_rejects_request_with_foreign_host_header_or_foreign_origin_header(address: str) -> None:
    for headers in [{"Host": "evil.example"}, {"Origin": "http://evil.example"}]:
        with case(headers):
            host, _, path = address.removeprefix("http://").partition("/")
            connection = http.client.HTTPConnection(host, timeout=PATIENCE)
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
            sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            sent |= BEARER | headers
            connection.request("POST", f"/{path}", body, sent)
            assert connection.getresponse().status in (403, 421)
            connection.close()


# Wrong arguments


class Twin(module[str, str]):
    """One of two."""


def test_mcp_serve_with_invalid_modules_or_port_raises_declaration_error(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="needs at least one module"):
        serve()
    with pytest.raises(DeclarationError, match="accepts only classes derived from `module` and their instances, got 5"):
        serve(5)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="`serve` received two modules with the tool name `twin`"):
        serve(Twin, Twin())
    with pytest.raises(DeclarationError, match="`http` must be a port"):
        serve(Twin, http=70000)
    with pytest.raises(DeclarationError, match="`keys` of `serve` must be a list"):
        serve(Twin, http=0, keys="a-long-enough-key")
    with pytest.raises(DeclarationError, match="at least 8 characters"):
        serve(Twin, http=0, keys=["short"])


def test_mcp_serve_with_port_in_use_raises_error_with_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AcornError, match=f"Cannot use port {port} of 127.0.0.1"):
            serve(Twin, http=port)


def test_mcp_serve_with_wrong_arguments_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["nowhere.py"], "There is no file `nowhere.py`"),
        ([TARGETS[1], "--http", "70000"], "Invalid value for '--http'"),
        ([TARGETS[1], "--key", KEY], "are for a server with `--http`"),
        ([TARGETS[1], "--http", "0", "--key", KEY, "--no-key"], "cannot be combined"),
    ):
        assert main(["mcp", *words]) == 2
        assert said in capsys.readouterr().err
