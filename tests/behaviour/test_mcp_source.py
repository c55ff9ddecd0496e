"""Tests of MCP servers in `tools`: runs call their tools like any other tool, even if a server fails."""

from __future__ import annotations

import asyncio
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

import httpx2
import pytest
from tests.behaviour.conftest import Call, Script
from tests.cases import case
from tests.ports import free_port, listens
from tests.waiting import PATIENCE, comes_true, given_time

from acorn import AcornError, DeclarationError, Paused, Request, Run, Step, ToolConflictError, deny, module, tool
from acorn.mcp import MCPServer
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling

SERVERS = Path(__file__).parents[1] / "mcp_servers"


class Worker(module[str, str]):
    """Use the tools."""

    max_steps = 9


class Human(Worker):
    """A worker whose person gives one answer, and who remembers the requests."""

    def __init__(self, answer: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.answer = answer
        self.asked: list[Request] = []

    def on_human(self, request: Request) -> Any:
        self.asked.append(request)
        return self.answer


class Odd:
    """A server of `tests/mcp_servers`, and the log that it writes."""

    def __init__(self, diary: Path, variant: str = "", *, file: str = "quick.py", **options: Any) -> None:
        self.diary = diary
        self.server = MCPServer(sys.executable, [str(SERVERS / file), str(diary), "--variant", variant], **options)

    def lines(self) -> list[str]:
        return self.diary.read_text(encoding="utf-8").splitlines() if self.diary.exists() else []


NEWER, OLDER = "odd.py", "quick.py"
both_protocols = pytest.mark.parametrize("odd", [NEWER, OLDER], ids=["newer", "older"], indirect=True)


@pytest.fixture(
    scope="module",
    params=[pytest.param(NEWER, id="newer"), pytest.param(OLDER, id="older", marks=pytest.mark.torture)],
)
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    """An open server for all tests that do not need their own.

    The short version uses the newer protocol. The tests that start a server use the older one.
    """
    made = Odd(tmp_path_factory.mktemp("odd") / "diary.txt", file=request.param)
    with made.server:
        yield made


def results(run: Any) -> list[Any]:
    """Return what the model read of its calls, except for the finish."""
    return [message["content"] for message in run.history if message["role"] == "tool"][:-1]


def together(*replies: Reply) -> Reply:
    """Return one response with several calls."""
    return Reply(calls=[each for reply in replies for each in reply.calls])


def sent_tools(model: ScriptedModel) -> dict[str, Any]:
    return {each["function"]["name"]: each["function"] for each in model.requests[0].tools}


# Calling


@both_protocols
@pytest.mark.every_way
def test_mcp_tools_are_sent_and_called_in_run(call: Call, script: Script, odd: Odd) -> None:
    model = script(calling("echo", text="hello"), finish("done"))
    run = call.run(Worker(model=model, tools=[odd.server]), "x")
    assert run.output == "done"
    assert results(run) == ["echo: hello"]
    echo = sent_tools(model)["echo"]
    assert echo["description"] == "Do echo."
    assert echo["parameters"]["required"] == ["text"]


def test_mcp_calls_of_one_response_return_all_results(call: Call, script: Script, odd: Odd) -> None:
    model = script(together(*[calling("echo", text=str(at)) for at in range(5)]), finish("done"))
    run = call.run(Worker(model=model, tools=[odd.server]), "x")
    assert results(run) == [f"echo: {at}" for at in range(5)]


def test_mcp_tool_name_that_providers_reject_is_mapped_to_valid_name(call: Call, script: Script, odd: Odd) -> None:
    model = script(calling("read_file_v2", text="a"), finish("done"))
    assert results(call.run(Worker(model=model, tools=[odd.server]), "x")) == ["read.file/v2: a"]


def test_mcp_call_with_invalid_arguments_returns_tool_error_without_calling_server(
    call: Call, script: Script, odd: Odd
) -> None:
    call.run(Worker(model=script(finish("done")), tools=[odd.server]), "x")  # This starts the server.
    before = len(odd.lines())
    model = script(calling("echo", text=5), finish("done"))
    run = call.run(Worker(model=model, tools=[odd.server]), "x")
    assert results(run) == ["Tool error: argument `text` must be a string, got 5"]
    assert len(odd.lines()) == before


STRUCTURED: list[tuple[str, str]] = [
    ("wrapped", "plain"),
    ("whole", '{"a":1,"b":"two"}'),
    ("linked", '[{"a":1},"b file:///b.txt","in a"]'),
    ("dirty", "abcd\nnext\tline"),
]


def test_mcp_result_with_structured_data_is_sent_to_model_as_that_data(script: Script, odd: Odd) -> None:
    for name, expected in STRUCTURED:
        with case(name, expected):
            model = script(calling(name), finish("done"))
            assert results(Worker(model=model, tools=[odd.server]).run("x")) == [expected]


@both_protocols
def test_mcp_images_and_audio_are_sent_after_text(call: Call, script: Script, odd: Odd) -> None:
    model = script(calling("mixed"), finish("done"))
    (content,) = results(call.run(Worker(model=model, tools=[odd.server]), "x"))
    assert [part["type"] for part in content] == ["text", "image_url", "input_audio"]
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert content[2]["input_audio"]["format"] == "wav"
    assert '"Look:"' in content[0]["text"]
    assert "in a" in content[0]["text"]
    assert "file:///b.txt" in content[0]["text"]


def test_mcp_server_error_returns_tool_error(call: Call, script: Script, odd: Odd) -> None:
    model = script(calling("fail", text="no such file"), finish("done"))
    run = call.run(Worker(model=model, tools=[odd.server]), "x")
    assert results(run) == ["Tool error: ServerError: no such file"]


def test_mcp_error_with_structured_data_returns_tool_error_with_data(script: Script, odd: Odd) -> None:
    model = script(calling("lament"), finish("done"))
    run = Worker(model=model, tools=[odd.server]).run("x")
    assert results(run) == ['Tool error: ServerError: {"code":"E42"}']


def test_mcp_branch_and_parent_share_connection(call: Call, script: Script, odd: Odd) -> None:
    class Inner(module[None, str]):
        """Look closer."""

        tools = [odd.server]
        max_steps = 3

    class Outer(Worker):
        branches = {"inner": Inner}

    started = max(1, odd.lines().count("started"))  # Other tests may have started the server.
    model = script(
        together(calling("echo", text="a"), calling("inner")),
        calling("echo", text="b"),
        finish("inside"),
        finish("done"),
    )
    run = call.run(Outer(model=model, tools=[odd.server]), "x")
    assert run.output == "done"
    assert results(run)[0] == "echo: a"
    assert "echo: b" in [message["content"] for message in run.branches[0].history]
    assert odd.lines().count("started") == started


def test_mcp_concurrent_runs_share_open_server(odd: Odd) -> None:
    async def one(at: int) -> Any:
        model = ScriptedModel([calling("echo", text=str(at)), finish("done")])
        return results(await Worker(model=model, tools=[odd.server]).arun("x"))

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*[one(at) for at in range(8)])

    assert asyncio.run(all_of_them()) == [[f"echo: {at}"] for at in range(8)]


# Environment of a server


def test_mcp_server_receives_only_declared_environment(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not for servers")
    server = Odd(tmp_path / "diary", env={"TOKEN": "mine"}).server
    model = script(calling("environment"), finish("done"))
    (given,) = results(Worker(model=model, tools=[server]).run("x"))
    assert json.loads(given)["TOKEN"] == "mine"
    assert "OPENAI_API_KEY" not in json.loads(given)


def test_mcp_server_used_by_agent_without_on_human_is_offered_no_client_capabilities(odd: Odd, script: Script) -> None:
    model = script(calling("sample"), finish("done"))
    assert results(Worker(model=model, tools=[odd.server]).run("x")) == ["capabilities: []"]


# Restrictions by the user


def test_mcp_prefix_is_added_to_tool_names(call: Call, script: Script, odd: Odd, tmp_path: Path) -> None:
    @tool
    def echo(text: str) -> str:
        """Mine."""
        return f"my {text}"

    toy = Odd(tmp_path / "diary", "paged", prefix="toy_")
    model = script(together(calling("echo", text="a"), calling("toy_echo", text="b")), finish("done"))
    run = call.run(Worker(model=model, tools=[echo, toy.server]), "x")
    assert results(run) == ["my a", "echo: b"]
    assert list(sent_tools(model)) == ["echo", "toy_echo", "toy_read_file_v2", "__finish__"]


def test_mcp_tool_named_like_user_tool_raises_tool_conflict_error(call: Call, odd: Odd) -> None:
    @tool
    def echo(text: str) -> str:
        """Mine."""
        return text

    agent = Worker(model=ScriptedModel([]), tools=[echo, odd.server])
    with pytest.raises(ToolConflictError, match=r"`echo` of the MCP server"):
        call.run(agent, "x")


def test_mcp_servers_with_equal_tool_names_raise_error_that_suggests_prefix(tmp_path: Path) -> None:
    servers = [Odd(tmp_path / name, "paged").server for name in ("a", "b")]
    with pytest.raises(ToolConflictError, match=r"Tool 'echo' of `Worker` is defined twice.*`prefix`"):
        Worker(model=ScriptedModel([]), tools=servers)("x")


def test_mcp_tool_of_branch_named_like_parent_tool_returns_tool_error(odd: Odd) -> None:
    class Inner(module[None, str]):
        """Look closer."""

        tools = [odd.server]

    @tool
    def echo(text: str) -> str:
        """Mine."""
        return text

    class Outer(Worker):
        branches = {"inner": Inner}
        tools = [echo]

    model = ScriptedModel([calling("inner"), finish("done")])
    run = Outer(model=model).run("x")
    assert results(run)[0].startswith("Tool error: ToolConflictError: Tool 'echo' of `Inner` is defined twice")


def test_mcp_allow_list_limits_sent_tools(odd: Odd, tmp_path: Path, script: Script) -> None:
    model = script(finish("done"))
    server = Odd(tmp_path / "diary", allow=["echo", "delete"]).server
    Worker(model=model, tools=[server]).run("x")
    assert list(sent_tools(model)) == ["echo", "delete", "__finish__"]


def test_mcp_allow_list_with_unknown_tool_name_raises_error_before_model_call(tmp_path: Path) -> None:
    for option in ["allow", "approve"]:
        with case(option):
            options: dict[str, Any] = {option: ["ecko"]}
            server = Odd(tmp_path / "diary", "paged", **options).server
            with pytest.raises(AcornError, match=rf"`{option}` of the MCP server .* contains `ecko`.*`echo`"):
                Human(True, model=ScriptedModel([]), tools=[server])("x")


def test_mcp_call_with_approval_pauses_run_in_store(tmp_path: Path, script: Script) -> None:
    odd = Odd(tmp_path / "diary", approve={"delete"})  # Its annotation says that it only reads.
    model = script(calling("delete", text="all"), finish("done"))
    agent = Worker(model=model, tools=[odd.server], store=str(tmp_path / "runs.db"))
    paused: Any = agent("x")
    assert isinstance(paused, Paused)
    assert paused.request.tool == "delete"
    assert odd.lines() == ["started"]
    again = Worker(model=model, tools=[odd.server], store=str(tmp_path / "runs.db"))
    assert again.resume(paused.run_id, answer=True) == "done"
    assert odd.lines() == ["started", "started", 'called delete {"text": "all"}']


def test_mcp_approve_function_selects_calls_that_need_approval(call: Call, script: Script, tmp_path: Path) -> None:
    def approve(name: str, arguments: dict[str, Any]) -> bool:
        return name == "delete" and arguments["text"] == "all"

    odd = Odd(tmp_path / "diary", approve=approve)
    model = script(together(calling("delete", text="all"), calling("delete", text="one")), finish("done"))
    human = Human(deny("Not today."), model=model, tools=[odd.server])
    run = call.run(human, "x")
    assert [request.arguments for request in human.asked] == [{"text": "all"}]
    assert "Not today." in results(run)[0]
    assert results(run)[1] == "delete: one"


def test_mcp_approval_without_on_human_and_store_raises_error_before_server_starts(tmp_path: Path) -> None:
    odd = Odd(tmp_path / "diary", approve={"delete"})
    with pytest.raises(DeclarationError, match="need a person's approval, but no one can answer"):
        Worker(model=ScriptedModel([]), tools=[odd.server])("x")
    assert odd.lines() == []


def test_mcp_server_with_pin_stores_tool_definitions_and_rejects_changed_definition(tmp_path: Path) -> None:
    lock = tmp_path / "mcp.lock"

    def ask() -> Any:
        server = Odd(tmp_path / "diary", "changes", pin=lock, allow=["echo"]).server
        return Worker(model=ScriptedModel([finish("done")]), tools=[server])("x")

    assert ask() == "done"
    pinned = json.loads(lock.read_text())
    (known,) = pinned["servers"].values()
    assert list(known) == ["echo"]
    with pytest.raises(AcornError, match=r"differ from the pinned tools in") as caught:
        ask()
    assert '-    "description": "Do echo 1.",' in str(caught.value)
    assert '+    "description": "Do echo 2.",' in str(caught.value)


def test_mcp_server_with_unchanged_pinned_tool_definitions_is_accepted(tmp_path: Path) -> None:
    for _ in range(2):
        server = Odd(tmp_path / "diary", pin=tmp_path / "mcp.lock").server
        assert Worker(model=ScriptedModel([finish("done")]), tools=[server])("x") == "done"


def test_mcp_server_with_pin_that_offers_new_tool_raises_acorn_error(tmp_path: Path) -> None:
    lock = tmp_path / "mcp.lock"
    Worker(model=ScriptedModel([finish("done")]), tools=[Odd(tmp_path / "diary", pin=lock, allow=["echo"]).server])("x")
    with pytest.raises(AcornError, match=r'\+  "delete": \{'):
        Worker(model=ScriptedModel([]), tools=[Odd(tmp_path / "diary", pin=lock, allow=["echo", "delete"]).server])("x")


WRONG_LOCKS: list[tuple[str, str]] = [
    ("[]", "is not a pin file"),
    ("[" * 100_000, "of an MCP server: maximum recursion depth"),
]


def test_mcp_lock_file_with_invalid_content_raises_acorn_error(tmp_path: Path) -> None:
    for text, words in WRONG_LOCKS:
        with case(words):
            (tmp_path / "mcp.lock").write_text(text)
            server = Odd(tmp_path / "diary", "paged", pin=tmp_path / "mcp.lock").server
            with pytest.raises(AcornError, match=words):
                Worker(model=ScriptedModel([]), tools=[server])("x")


def test_mcp_lock_file_that_cannot_be_written_raises_error_with_path(tmp_path: Path) -> None:
    server = Odd(tmp_path / "diary", "paged", pin=tmp_path / "missing" / "mcp.lock").server
    with pytest.raises(
        AcornError, match=r"missing/mcp.lock` of an MCP server: No such file or directory\. Set `pin` to"
    ):
        Worker(model=ScriptedModel([]), tools=[server])("x")


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"approve": "delete"}, r"`approve` of `MCPServer\('server'\)` must be a set of tool names"),
    ({"allow": "echo"}, r"`allow` of `MCPServer\('server'\)` must be a list of strings"),
    ({"args": "--help"}, r"`args` of `MCPServer\('server'\)` must be a list of strings"),
    ({"prefix": "a b"}, "`prefix` of .* must consist of letters"),
    ({"timeout": 0}, "`timeout` of .* must be a number greater than 0"),
    ({"headers": {"a": "b"}}, "`headers` of .* can only be used if the server is a URL"),
    ({"env": {"A": 5}}, "`env` of .* must be a dict of strings"),
    ({"on_progress": 5}, "`on_progress` of .* must be a function"),
]


def test_mcp_server_created_with_invalid_option_raises_declaration_error() -> None:
    for options, words in WRONG_OPTIONS:
        with case(options, words), pytest.raises(DeclarationError, match=words):
            MCPServer("server", **options)


def test_mcp_repr_contains_no_secret() -> None:
    server = MCPServer("https://me:secret@example.com/mcp?key=hidden", headers={"Authorization": "Bearer hidden"})
    assert repr(server) == "MCPServer('https://example.com/mcp')"
    assert "hidden" not in str(vars(server))
    server = MCPServer("https://example.com/v2/s/3f2a9c4e-77d1-4c0e-9b1a-hidden/mcp")
    assert repr(server) == "MCPServer('https://example.com/v2/s/***/mcp')"


# Hostile servers


def test_mcp_tool_description_is_sent_without_control_characters_and_is_shortened(
    tmp_path: Path, script: Script
) -> None:
    model = script(finish("done"))
    Worker(model=model, tools=[Odd(tmp_path / "diary", "poisoned", max_description=200).server])("x")
    add = sent_tools(model)["add"]["description"]
    assert add.startswith("Adds.[8m <IMPORTANT>")
    assert "[cut off after 200 of " in add
    assert len(add) < 300
    assert sent_tools(model)["words"]["parameters"]["properties"]["a"]["description"] == "An a."


INVALID_DEFINITIONS: list[tuple[str, str]] = [
    ("hidden", r"uses invisible characters in the arguments of `pick` \('x\\u200b'\)"),
    ("huge", r"describes the arguments of `echo` in \d+ characters"),
    ("twins", r"offers `a.b` and `a/b`, but both tools would have the name `a_b` in requests"),
    ("fetching", r"refers to `http://127.0.0.1:9/x.json`, which is not in it"),
    ("finish", r"offers a tool named `__finish__`, which is the name of the tool that ends a run. Set `prefix`"),
    ("endless", r"lists too many pages of tools"),
]


def test_mcp_server_with_invalid_tool_definition_raises_error_before_model_call(tmp_path: Path) -> None:
    for variant, words in INVALID_DEFINITIONS:
        with case(variant, words), pytest.raises(AcornError, match=words):
            Worker(model=ScriptedModel([]), tools=[Odd(tmp_path / "diary", variant).server])("x")


def test_mcp_long_tool_names_are_shortened_to_distinct_names(tmp_path: Path, script: Script) -> None:
    model = script(finish("done"))
    Worker(model=model, tools=[Odd(tmp_path / "diary", "long_names").server])("x")
    names = list(sent_tools(model))[:2]
    assert [len(name) for name in names] == [64, 64]
    assert names[0] != names[1]


def test_mcp_long_result_is_cut_off(odd: Odd, script: Script) -> None:
    model = script(calling("long"), finish("done"))
    (result,) = results(Worker(model=model, tools=[odd.server]).run("x"))
    assert result.endswith("[cut off after 100000 of 1000000 characters]")
    assert len(result) < 100_100


def test_mcp_tool_whose_definition_changes_during_run_returns_tool_error(tmp_path: Path, script: Script) -> None:
    odd = Odd(tmp_path / "diary", "changes")
    model = script(calling("die"), calling("echo", text="a"), calling("die"), finish("done"))
    run = Worker(model=model, tools=[odd.server]).run("x")
    assert "changed the definition of `echo` during the run" in results(run)[1]
    assert not any(line.startswith("called echo") for line in odd.lines())


def test_mcp_server_output_is_not_printed_to_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "acorn.mcp")
    model = ScriptedModel([calling("echo", text="a"), finish("done")])
    assert Worker(model=model, tools=[Odd(tmp_path / "diary", "chatty").server])("x") == "done"
    assert capfd.readouterr() == ("", "")
    assert "the server has started" in caplog.text


# Failures


@pytest.mark.every_way
def test_mcp_server_that_dies_during_call_returns_tool_error_and_next_call_reconnects(
    call: Call, script: Script, tmp_path: Path
) -> None:
    odd = Odd(tmp_path / "diary")
    model = script(calling("die"), calling("echo", text="again"), finish("done"))
    run = call.run(Worker(model=model, tools=[odd.server]), "x")
    assert run.output == "done"
    died, again = results(run)
    assert "The call may or may not have taken effect and is not repeated" in died
    assert "Traceback: it hurts, token ***" in died
    assert again == "echo: again"
    assert odd.lines().count("called die {}") == 1


def test_mcp_server_that_died_between_calls_is_restarted(tmp_path: Path, script: Script) -> None:
    odd = Odd(tmp_path / "diary")
    with odd.server:
        for _ in range(2):
            model = script(calling("die"), finish("done"))
            Worker(model=model, tools=[odd.server]).run("x")
        model = script(calling("echo", text="a"), finish("done"))
        assert results(Worker(model=model, tools=[odd.server]).run("x")) == ["echo: a"]


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("broken", r"The MCP server `python.*`.*It wrote:\n.*\nImportError: no module named `secret_sauce`"),
        ("silent", r"did not answer within 0.5 s"),
        ("shapeless", r"does not follow the MCP specification: tools.0.inputSchema.type: Field required\)\."),
    ],
)
def test_mcp_server_that_fails_to_start_raises_error_with_reason(
    call: Call, tmp_path: Path, variant: str, words: str
) -> None:
    options: dict[str, Any] = {"connect_timeout": 0.5} if variant == "silent" else {}
    agent = Worker(model=ScriptedModel([]), tools=[Odd(tmp_path / "diary", variant, **options).server])
    with pytest.raises(AcornError, match=f"(?s){words}"):
        call.run(agent, "x")


def test_mcp_missing_command_raises_error_with_command(call: Call) -> None:
    with pytest.raises(AcornError, match=r"`mcp-server-nowhere` cannot be started. Check its name"):
        call.run(Worker(model=ScriptedModel([]), tools=[MCPServer("mcp-server-nowhere")]), "x")


def test_mcp_unreachable_url_raises_error_with_url(call: Call) -> None:
    with pytest.raises(AcornError, match=r"`http://127.0.0.1:9/mcp` cannot be reached"):
        call.run(Worker(model=ScriptedModel([]), tools=[MCPServer("http://127.0.0.1:9/mcp")]), "x")


def test_mcp_call_without_response_is_cancelled_after_timeout(call: Call, script: Script, tmp_path: Path) -> None:
    def hurry(seconds: float) -> tuple[Odd, Run[Any], float] | None:
        odd = Odd(tmp_path / f"diary {seconds}", timeout=seconds)
        model = script(calling("hang"), finish("done"))
        run = call.run(Worker(model=model, tools=[odd.server]), "x")
        return (odd, run, seconds) if "called hang {}" in odd.lines() else None

    odd, run, seconds = given_time(hurry, 0.5)
    words = f"the server said nothing for {seconds:g} s, and the call was cancelled"
    assert results(run) == [f"Tool error: ServerError: {words}"]
    assert comes_true(lambda: "cancelled hang" in odd.lines())


def test_mcp_progress_notifications_are_passed_to_on_progress(call: Call, script: Script, tmp_path: Path) -> None:
    heard: list[Any] = []
    odd = Odd(tmp_path / "diary", on_progress=lambda *told: heard.append(told))
    model = script(calling("report"), finish("done"))
    assert results(call.run(Worker(model=model, tools=[odd.server]), "x")) == ["done"]
    assert comes_true(lambda: len(heard) == 3)
    assert heard == [("report", at, 3, f"part {at}") for at in (1, 2, 3)]


# Cancellation


@both_protocols
def test_cancelling_async_run_cancels_mcp_call(odd: Odd) -> None:
    before = odd.lines().count("cancelled hang")

    async def main() -> None:
        model = ScriptedModel([calling("hang")])
        task = asyncio.create_task(Worker(model=model, tools=[odd.server]).acall("x"))
        called = odd.lines().count("called hang {}")
        while odd.lines().count("called hang {}") == called:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert comes_true(lambda: odd.lines().count("cancelled hang") == before + 1)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_cancels_mcp_call(odd: Odd) -> None:
    before, called = odd.lines().count("cancelled hang"), odd.lines().count("called hang {}")

    def interrupt() -> None:
        comes_true(lambda: odd.lines().count("called hang {}") > called)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Worker(model=ScriptedModel([calling("hang")]), tools=[odd.server])("x")
    thread.join()
    assert comes_true(lambda: odd.lines().count("cancelled hang") == before + 1)


# Human input


ANSWERS: list[tuple[Any, str]] = [
    ("red", "accept {'colour': 'red'}"),
    ({"colour": "blue"}, "accept {'colour': 'blue'}"),
    (False, "decline None"),
    (None, "cancel None"),
]


@pytest.mark.every_way
def test_mcp_server_that_asks_user_receives_answer_of_on_human(call: Call, script: Script, odd: Odd) -> None:
    for answer, said in ANSWERS:
        with case(answer, said):
            human = Human(answer, model=script(calling("ask"), finish("done")), tools=[odd.server])
            run = call.run(human, "x")
            assert results(run) == [said]
            (request,) = human.asked
            assert (request.kind, request.question, request.tool) == ("question", "Which colour?", "ask")
            assert request.choices == ("red", "blue")
            assert request.run_id == run.id


def test_mcp_server_that_asks_user_gets_tool_error_if_on_human_answer_is_invalid(script: Script, odd: Odd) -> None:
    class Human(Worker):
        async def on_human(self, request: Request) -> Any:
            return "green"

    model = script(calling("ask"), finish("done"))
    (result,) = results(Human(model=model, tools=[odd.server]).run("x"))
    assert "The answer of `on_human` cannot be used" in result
    assert "must be one of" in result


@both_protocols
def test_mcp_server_question_shows_default_values_and_answer_contains_them(
    call: Call, script: Script, odd: Odd
) -> None:
    asked: list[str] = []

    class Human(Worker):
        def on_human(self, request: Request) -> Any:
            asked.append(request.question)
            return {"name": "Ada"} if len(asked) == 1 else {"name": "Ada", "age": 36, "news": False}

    model = script(calling("survey"), calling("survey"), finish("done"))
    defaults, given = results(call.run(Human(model=model, tools=[odd.server]), "x"))
    assert defaults == "accept {'name': 'Ada', 'age': 30, 'news': True}"
    assert given == "accept {'name': 'Ada', 'age': 36, 'news': False}"
    fields = ["- name: string", "- age: In years (default: 30)", "- news: boolean (default: true)", "- nick: string"]
    assert asked[0] == "\n".join(["Who are you?", "Answer with a dict of:", *fields])


FORMS: list[tuple[str, str | None, Any, Any]] = [
    ("titled", "Which colour? (one of: #f00 = Red, #00f = Blue)", ("#f00", "#00f"), "#f00"),
    ("several", "Which colours? (any of: #f00 = Red, #00f = Blue)", None, ["#f00"]),
    ("both", None, None, {"colour": "#f00", "size": "S"}),
]


def test_mcp_server_question_with_choices_passes_choices_to_on_human(script: Script, odd: Odd) -> None:
    for form, question, choices, answer in FORMS:
        with case(form, question):
            human = Human(answer, model=script(calling(form), finish("done")), tools=[odd.server])
            (result,) = results(human.run("x"))
            assert result.startswith("accept {'colour")
            fields = ["- colour: string (one of: #f00 = Red, #00f = Blue)", "- size: string (one of: S, M)"]
            assert human.asked[0].question == (question or "\n".join(["Which?", "Answer with a dict of:", *fields]))
            assert human.asked[0].choices == choices


def test_mcp_server_that_asks_user_is_declined_without_on_human(call: Call, script: Script, odd: Odd) -> None:
    model = script(calling("ask"), finish("done"))
    (result,) = results(call.run(Worker(model=model, tools=[odd.server]), "x"))
    assert "accept" not in result


# Over HTTP


@contextmanager
def over_http(diary: Path, port: int, variant: str = "") -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, str(SERVERS / "odd.py"), str(diary), "--http", str(port), "--variant", variant]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            assert comes_true(lambda: listens(port))
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    diary, port = tmp_path_factory.mktemp("web") / "diary.txt", free_port()
    with over_http(diary, port):
        yield diary, port


def test_mcp_http_server_returns_text_media_and_errors(call: Call, script: Script, web: tuple[Path, int]) -> None:
    server = MCPServer(f"http://127.0.0.1:{web[1]}/mcp", headers={"X-Test": "yes"})
    model = script(together(calling("echo", text="a"), calling("picture")), calling("fail", text="bad"), finish("done"))
    run = call.run(Worker(model=model, tools=[server]), "x")
    assert results(run)[0] == "echo: a"
    assert results(run)[1][1]["type"] == "image_url"
    assert results(run)[2] == "Tool error: ServerError: bad"


def test_mcp_headers_and_auth_are_sent_with_every_request(script: Script, web: tuple[Path, int]) -> None:
    seen: list[str] = []

    class Token(httpx2.Auth):
        def auth_flow(self, request: Any) -> Any:
            seen.append(request.headers["X-Test"])
            request.headers["Authorization"] = "Bearer mine"
            yield request

    server = MCPServer(f"http://127.0.0.1:{web[1]}/mcp", headers={"X-Test": "yes"}, auth=Token())
    model = script(calling("echo", text="a"), finish("done"))
    assert results(Worker(model=model, tools=[server]).run("x")) == ["echo: a"]
    assert set(seen) == {"yes"}


def test_cancelling_run_cancels_call_of_mcp_http_server(web: tuple[Path, int]) -> None:
    diary = web[0]
    server = MCPServer(f"http://127.0.0.1:{web[1]}/mcp")

    async def main() -> None:
        task = asyncio.create_task(Worker(model=ScriptedModel([calling("hang")]), tools=[server]).acall("x"))
        while "called hang" not in diary.read_text():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert comes_true(lambda: "cancelled hang" in diary.read_text())


# Kept open


def test_mcp_server_block_left_while_server_opens_closes_server(tmp_path: Path) -> None:
    odd = Odd(tmp_path / "diary", "telling")

    async def leave() -> None:
        async with odd.server:
            opening = asyncio.create_task(odd.server.tools())
            await asyncio.sleep(0)
        with pytest.raises(AcornError, match="is not open"):
            await opening

    asyncio.run(leave())
    assert comes_true(lambda: "ended" in odd.lines())


@pytest.mark.torture
@pytest.mark.parametrize("variant", ["", "old"], ids=["newer", "older"])
def test_mcp_session_ended_between_runs_is_reopened(script: Script, tmp_path: Path, variant: str) -> None:
    port, diary = free_port(), tmp_path / "diary.txt"
    server = MCPServer(f"http://127.0.0.1:{port}/mcp")
    with server:
        for _ in range(2):  # The server was restarted in the meantime and has no session.
            with over_http(diary, port, variant):
                model = script(calling("echo", text="a"), finish("done"))
                assert results(Worker(model=model, tools=[server]).run("x")) == ["echo: a"]


def test_mcp_server_tools_read_outside_run_raises_not_open_error(tmp_path: Path) -> None:
    server = Odd(tmp_path / "diary").server
    with pytest.raises(AcornError, match="is not open"):
        asyncio.run(server.tools())


def test_mcp_server_added_by_step_add_tool_raises_error_that_suggests_tools_attribute(tmp_path: Path) -> None:
    class Late(Worker):
        def on_start(self, step: Step) -> None:
            server: Any = Odd(tmp_path / "diary").server
            step.add_tool(server)

    with pytest.raises(DeclarationError, match=r"`Late.add_tool` must be a tool, but MCPServer.* Add it to `tools`"):
        Late(model=ScriptedModel([]))("x")


def test_agent_used_in_with_statement_starts_mcp_server_once_for_two_calls(tmp_path: Path, script: Script) -> None:
    odd = Odd(tmp_path / "diary")
    model = script(calling("echo", text="a"), finish("one"), calling("echo", text="b"), finish("two"))
    agent = Worker(model=model, tools=[odd.server])
    with agent:
        assert [agent("x"), asyncio.run(agent.acall("x"))] == ["one", "two"]
    assert odd.lines().count("started") == 1
