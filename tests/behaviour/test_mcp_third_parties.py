"""Tests of third-party MCP servers from the package index, and in the long version of the tests also from npm."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.behaviour.conftest import Call, Script
from tests.ports import free_port, listens
from tests.waiting import comes_true

from acorn import Request, module
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling

BESIDE = Path(sys.executable).parent


class Worker(module[str, str]):
    """Use the tools."""

    max_steps = 9


def results(run: Any) -> list[Any]:
    return [message["content"] for message in run.history if message["role"] == "tool"][:-1]


@pytest.fixture(scope="module")
def clock() -> Iterator[MCPServer]:
    with MCPServer(str(BESIDE / "mcp-server-time"), ["--local-timezone", "UTC"]) as server:
        yield server


def test_mcp_time_server_returns_time_and_errors(call: Call, script: Script, clock: MCPServer) -> None:
    model = script(
        calling("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
        calling("get_current_time", timezone="Nowhere/None"),
        calling("get_current_time"),
        finish("done"),
    )
    converted, failed, unfit = results(call.run(Worker(model=model, tools=[clock]), "x"))
    assert "21:00:00+09:00" in converted
    assert failed.startswith("Tool error: ServerError: ")
    assert unfit.startswith("Tool error: argument `timezone` is missing (expected a string)")


def test_mcp_servers_are_called_concurrently_in_branches(call: Call, script: Script, clock: MCPServer) -> None:
    class Traveller(module[None, str]):
        """Go somewhere."""

        max_steps = 3

    class Planner(Worker):
        branches = {"east": Traveller, "west": Traveller}

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if last["role"] == "tool" and '"timezone"' in str(last["content"]):
            return finish("there")
        if "Go somewhere" in request.messages[0]["content"]:
            return calling("get_current_time", timezone="Asia/Tokyo")
        return finish("done") if last["role"] == "tool" else calling("east") & calling("west")

    run = call.run(Planner(model=script(reply), tools=[clock]), "x")
    assert run.output == "done"
    assert [branch.output for branch in run.branches] == ["there", "there"]


@pytest.mark.torture
def test_mcp_git_server_returns_repository_data(tmp_path: Path, script: Script) -> None:
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "begun", "--allow-empty"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    server = MCPServer(
        str(BESIDE / "mcp-server-git"), ["--repository", str(tmp_path)], prefix="repo_", allow=["git_log", "git_status"]
    )
    model = script(calling("repo_git_log", repo_path=str(tmp_path)), finish("done"))
    (log,) = results(Worker(model=model, tools=[server]).run("x"))
    assert "begun" in str(log)
    names = [each["function"]["name"] for each in model.requests[0].tools]
    assert sorted(names) == ["__finish__", "repo_git_log", "repo_git_status"]


# From npm

EVERYTHING = "@modelcontextprotocol/server-everything"
needs_node = pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("npm")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--prefix", str(folder), EVERYTHING], check=True)
    return str(folder / "node_modules" / ".bin" / "mcp-server-everything")


class Person(Worker):
    def on_human(self, request: Request) -> Any:
        return {"name": "Ada"}


@pytest.mark.torture
@needs_node
def test_mcp_everything_server_over_stdio_returns_text_sum_and_image(call: Call, everything: str) -> None:
    heard: list[Any] = []
    server = MCPServer(everything, ["stdio"], on_progress=lambda *told: heard.append(told))
    model = ScriptedModel([
        calling("echo", message="hello"),
        calling("get-sum", a=1, b=2),
        calling("get-tiny-image"),
        calling("get-structured-content", location="New York"),
        calling("trigger-long-running-operation", duration=1, steps=2),
        calling("trigger-elicitation-request"),
        finish("done"),
    ])  # fmt: skip
    echo, added, picture, weather, took, asked = results(call.run(Person(model=model, tools=[server]), "x"))
    assert echo == "Echo: hello"
    assert "3" in added
    assert [part["type"] for part in picture] == ["text", "image_url"]
    assert "temperature" in weather
    assert "completed" in took.lower()
    assert comes_true(lambda: len(heard) == 2)
    assert "Ada" in asked


@contextmanager
def served(everything: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PORT": str(port)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen([everything, "streamableHttp"], env=environment, stdout=quiet, stderr=quiet) as process:
        try:
            assert comes_true(lambda: listens(port))
            yield process
        finally:
            process.kill()


@pytest.mark.torture
@needs_node
def test_mcp_everything_server_killed_during_call_returns_tool_error(everything: str) -> None:
    port = free_port()

    async def main() -> Any:
        model = ScriptedModel([
            calling("echo", message="hello"),
            calling("trigger-long-running-operation", duration=600, steps=600),
            finish("done"),
        ])  # fmt: skip
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        server = MCPServer(
            f"http://127.0.0.1:{port}/mcp", on_progress=lambda *told: loop.call_soon_threadsafe(begun.set)
        )
        task = asyncio.create_task(Worker(model=model, tools=[server]).arun("x"))
        await begun.wait()
        process.kill()
        return results(await task)

    with served(everything, port) as process:
        echo, died = asyncio.run(main())
    assert echo == "Echo: hello"
    assert "may or may not have taken effect" in died
