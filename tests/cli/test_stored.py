"""Tests of the commands for stored runs: list, show, resume, answer, cancel, delete, batch and chat."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn, Ended
from tests.cli.warm_process import CapturedCommand
from tests.waiting import PATIENCE, comes_true

import acorn as library

DESK = AGENTS / "desk.py"
AGENT = ("--agent", f"{DESK}:Desk")


@pytest.fixture(autouse=True)
def nobody_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.delenv("ACORN_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def waiting(acorn: Acorn, store: Path, cls: str = "Desk") -> Any:
    ended = acorn("run", f"{DESK}:{cls}", "order 17", "--store", store)
    assert ended.code == 3, ended.err
    (facts,) = library.runs(store).list(status="waiting")
    return facts


def test_paused_run_exits_with_3_and_prints_resume_command(acorn: Acorn, store: Path) -> None:
    ended = acorn("run", f"{DESK}:Desk", "order 17", "--store", store)
    (facts,) = library.runs(store).list()
    assert ended.code == 3
    assert ended.out == ""
    assert "May `refund` be called" in ended.err
    assert f"To answer: acorn resume {facts.id[:8]} --agent {DESK}:Desk --store {store} --yes" in ended.err


def test_printed_commands_contain_no_password_of_store(acorn: Acorn, postgres: str) -> None:
    parts = urlsplit(postgres)
    url = urlunsplit(parts._replace(netloc=f"{parts.username}:geheim@{parts.hostname}:{parts.port}"))
    ended = acorn("run", f"{DESK}:Desk", "order 17", "--store", url)
    (request,) = library.runs(url).requests()
    name = url.replace(":geheim", "")
    assert f"To answer: acorn resume {request.run_id[:8]} --agent {DESK}:Desk --store {name} --yes" in ended.err
    answered = acorn("answer", request.id[:8], "yes", "--store", url)
    assert f"To resume the run: acorn resume {request.run_id[:8]} --agent " in answered.err
    assert f":Desk --store {name}" in answered.err
    assert "geheim" not in ended.err + answered.err


def test_list_without_matching_runs_names_filter(acorn: Acorn, store: Path) -> None:
    waiting(acorn, store)
    assert (
        f"There are no runs with this status or class in {store}."
        in acorn("runs", "--status", "failed", "--store", store).err
    )


def test_resume_with_yes_option_finishes_run(acorn: Acorn, store: Path) -> None:
    facts = waiting(acorn, store)
    ended = acorn("resume", facts.id[:8], "--yes", *AGENT, "--store", store)
    assert (ended.code, ended.output) == (0, "settled")
    again = acorn("resume", facts.id[:8], *AGENT, "--store", store)
    assert (again.code, again.output) == (0, "settled")


def test_resume_with_rejection_option_stores_reason(acorn: Acorn, store: Path) -> None:
    facts = waiting(acorn, store)
    assert acorn("resume", facts.id, "--no", "too much", *AGENT, "--store", store).code == 0
    shown = acorn("show", facts.id[:8], "--store", store, "--full").out
    assert "The reason: too much" in shown


def test_answer_command_stores_answer_and_prints_resume_command(
    acorn: Acorn, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACORN_STORE", str(store))
    facts = waiting(acorn, store, "Curious")
    (request,) = library.runs(store).requests()
    assert "Which colour?" in acorn("runs").out
    ended = acorn("answer", request.id[:8], "blue")
    assert ended.code == 0
    assert f"acorn resume {facts.id[:8]} --agent {DESK}:Curious" in ended.err
    assert acorn("answer", request.id, "red").code == 2
    assert acorn("resume", facts.id[:8], "--agent", f"{DESK}:Curious").output == "blue"


def test_json_option_of_paused_run_prints_open_questions_and_approvals(acorn: Acorn, store: Path) -> None:
    ended = acorn("run", f"{DESK}:Desk", "x", "--store", store, "--json")
    assert ended.code == 3
    assert (ended.output["stop_reason"], ended.output["output"]) == ("paused", None)
    assert ended.output["requests"][0]["tool"] == "refund"


def test_runs_and_show_commands_print_stored_runs(acorn: Acorn, store: Path) -> None:
    facts = waiting(acorn, store)
    acorn("run", f"{DESK}:Echo", "hello", "--store", store)
    lines = acorn("runs", "--store", store).out.splitlines()
    assert [line.split()[1:3] for line in lines[1:3]] == [["done", "Echo"], ["waiting", "Desk"]]
    listed = acorn("runs", "--store", store, "--json", "--status", "waiting").output
    assert [each["id"] for each in listed] == [facts.id]
    assert acorn("runs", "--store", store, "--status", "sleepy").code == 2
    shown = acorn("show", facts.id[:8], "--store", store).out
    assert "look()" in shown
    assert " tokens · " in shown
    assert library.Run.from_json(acorn("show", facts.id, "--store", store, "--json").out).id == facts.id
    assert "refund" in acorn("show", facts.id, "--store", store, "--xml").out


def test_cancel_and_delete_commands_change_stored_runs(acorn: Acorn, store: Path) -> None:
    facts = waiting(acorn, store)
    assert acorn("cancel", facts.id[:6], "--store", store).code == 0
    assert acorn("resume", facts.id, "--yes", *AGENT, "--store", store).code != 0
    assert acorn("delete", facts.id[:6], "--store", store).code == 0
    assert not library.runs(store).list()
    acorn("run", f"{DESK}:Echo", "hello", "--store", store)
    assert "Deleted 0 runs" in acorn("delete", "--before", "2020-01-01", "--store", store).err
    assert "Deleted 1 run" in acorn("delete", "--before", "2999-01-01", "--store", store).err


def test_wrong_usage_of_stored_run_commands_exits_with_2_and_one_line_error(acorn: Acorn, store: Path) -> None:
    waiting(acorn, store)
    for words, complaint in [
        (["runs"], "There is no store here"),
        (["runs", "--store", "none.db"], "There is no store `none.db`"),
        (["show", "zzz", "--store", "{store}"], "There is no run `zzz`"),
        (["resume", "zzz", "--store", "{store}"], "There is no run `zzz`"),
        (["cancel", "zzz", "--store", "{store}"], "There is no run `zzz`"),
        (["delete", "--store", "{store}"], "needs either the id of a run or `--before DATE`"),
        (["delete", "--before", "soon", "--store", "{store}"], "is not a date"),
        (["answer", "zzz", "1", "--store", "{store}"], "zzz"),
        (["resume", "x", "--yes", "--no", "y", "--store", "{store}"], "cannot be combined"),
        (["work", str(DESK), "--store", "none.db"], "There is no store `none.db`"),
        (["work", f"{DESK}:Desk", "--store", "{store}"], "Without PostgreSQL, use `acorn batch` instead"),
        (["work", f"{DESK}:Desk", "--store", "memory"], "workers need a PostgreSQL store"),
        (["work", str(DESK)], "There is no store here"),
        (["work", "desk.py", "--store", "mysql://me:secret@host/db"], "got 'mysql://...'"),
        (["runs", "--store", "postgresql://me:secret@127.0.0.1:9/db"], "Cannot connect to"),
    ]:
        with case(words):
            ended = acorn(*[word.format(store=store) for word in words])
            assert ended.code == 2
            assert complaint in ended.err
            assert len(ended.err.splitlines()) == 1
            assert "secret" not in ended.err


# Processes


def start(*words: object, **environment: object) -> CapturedCommand:
    return CapturedCommand(words, {**os.environ, **{name: str(value) for name, value in environment.items()}})


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_prints_resume_command_and_run_is_resumed(tmp_path: Path, store: Path) -> None:
    busy, go = tmp_path / "busy", tmp_path / "go"
    process = start("run", f"{DESK}:Slow", "x", "--store", store, SLOW_BUSY=busy, SLOW_GO=go)
    assert comes_true(busy.exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    (facts,) = library.runs(store).list()
    assert facts.status == "stopped"
    assert f"Stopped at step 1. To resume: acorn resume {facts.id[:8]} --agent {DESK}:Slow --store {store}" in errors
    go.touch()
    process = start("resume", facts.id[:8], "--agent", f"{DESK}:Slow", "--store", store, SLOW_BUSY=busy, SLOW_GO=go)
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, json.loads(out)) == (0, "awake"), errors


IN_TROUBLE = """
from acorn import module, tool
from acorn.testing import Failure, ScriptedModel, call


@tool
def look() -> str:
    \"\"\"Look.\"\"\"
    return "seen"


class Unlucky(module[str, str]):
    model = ScriptedModel([call("look"), *[Failure(503)] * 9])
    tools = [look]
    max_steps = 3
"""


def test_run_stopped_by_retryable_model_failure_prints_resume_command(tmp_path: Path, store: Path) -> None:
    agent = tmp_path / "unlucky.py"
    agent.write_text(IN_TROUBLE)
    process = start("run", agent, "x", "--store", store)
    _, errors = process.communicate(timeout=PATIENCE)
    (facts,) = library.runs(store).list()
    assert process.returncode == 1
    assert f"Stopped at step 1. To resume: acorn resume {facts.id[:8]} --agent {agent} --store {store}" in errors


def test_show_follow_prints_run_of_other_process(tmp_path: Path, store: Path) -> None:
    busy, go = tmp_path / "busy", tmp_path / "go"
    process = start("run", f"{DESK}:Slow", "x", "--store", store, SLOW_BUSY=busy, SLOW_GO=go)
    assert comes_true(busy.exists)
    (facts,) = library.runs(store).list()
    assert facts.status == "running"
    watcher = start("show", facts.id, "--follow", "--store", store)
    other = start("resume", facts.id, "--agent", f"{DESK}:Slow", "--store", store)
    _, errors = other.communicate(timeout=PATIENCE)
    assert other.returncode == 1 or other.returncode == 2
    assert "is driven by process" in errors
    go.touch()
    out, _ = watcher.communicate(timeout=PATIENCE)
    process.communicate(timeout=PATIENCE)
    assert "wait() -> waited" in out
    assert out.splitlines()[-1].startswith("done: ")


def test_paused_run_of_killed_process_is_answered_from_second_terminal(tmp_path: Path, store: Path) -> None:
    log = tmp_path / "paid"
    first = start("run", f"{DESK}:Desk", "order 17", "--store", store, DESK_LOG=log)
    first.communicate(timeout=PATIENCE)
    assert first.returncode == 3
    (request,) = library.runs(store).requests()
    second = start("answer", request.id[:8], "true", "--store", store)
    second.communicate(timeout=PATIENCE)
    assert second.returncode == 0
    third = start("resume", library.runs(store).list()[0].id, *AGENT, "--store", store, DESK_LOG=log)
    out, errors = third.communicate(timeout=PATIENCE)
    assert (third.returncode, json.loads(out)) == (0, "settled"), errors
    assert log.read_text() == "20.0\n"


# Batches


def lines(ended: Ended) -> dict[int, Any]:
    found = [json.loads(line) for line in ended.out.splitlines()]
    return {each["index"]: each for each in found}


def test_batch_writes_one_line_per_row(acorn: Acorn, store: Path, tmp_path: Path) -> None:
    rows = tmp_path / "in.jsonl"
    rows.write_text('"a"\n\n"bad"\n{"input": "c"}\n')
    ended = acorn("batch", f"{DESK}:Echo", rows, "--store", store, "--id", "n", "--concurrency", 2)
    found = lines(ended)
    assert ended.code == 1
    assert found[0]["output"] == "a (1)"
    assert found[1]["error"]["type"] == "ModelError"
    assert "1 failed" in ended.err
    again = tmp_path / "out.jsonl"
    acorn("batch", f"{DESK}:Echo", rows, "--store", store, "--id", "n", "-o", again)
    assert {json.loads(line)["run"] for line in again.read_text().splitlines()} == {
        each["run"] for each in found.values()
    }


def test_batch_treats_unicode_line_separators_as_text(acorn: Acorn, tmp_path: Path) -> None:
    rows, table = tmp_path / "in.jsonl", tmp_path / "in.csv"
    rows.write_text('"a\u2028b\x85c"\r\n"d"\n', encoding="utf-8")
    table.write_text("input\na\u2028b\x85c\nd\n", encoding="utf-8")
    for file in (rows, table):
        ended = acorn("batch", f"{DESK}:Echo", file)
        assert len(lines(ended)) == 2, ended.err


def test_batch_reads_csv_rows(acorn: Acorn, tmp_path: Path) -> None:
    rows = tmp_path / "in.csv"
    rows.write_text("input\nhello\nthere\n")
    ended = acorn("batch", f"{DESK}:Echo", rows)
    assert sorted(each["output"] for each in lines(ended).values()) == ["hello (1)", "there (1)"]


def test_batch_with_invalid_rows_or_options_exits_with_2_before_any_run(acorn: Acorn, tmp_path: Path) -> None:
    for content, words, complaint in [
        ('"a"\n{"b"\n', [], "Line 2 of "),
        ('"a"\n', ["--id", "n"], "has no store"),
        ('"a"\n', ["--max-cost", "0"], "`max_cost`"),
    ]:
        with case(content):
            rows = tmp_path / "in.jsonl"
            rows.write_text(content)
            ended = acorn("batch", f"{DESK}:Echo", rows, *words)
            assert ended.code == 2
            assert complaint in ended.err
            assert ended.out == ""


# A chat


def test_chat_fills_text_field_of_dataclass(acorn: Acorn, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n/quit\n"))
    assert "<text>hello</text>" in acorn("chat", f"{DESK}:Orders", "--store", store).out


def test_chat_continues_stored_conversation(acorn: Acorn, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(text: str) -> Ended:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return acorn("chat", f"{DESK}:Echo", "--id", "c", "--store", store)

    first = talk("hello\nthere\n/quit\n")
    assert first.out == "hello (1)\nthere (2)\n"
    assert "acorn chat" in first.err
    second = talk("again\n/retry\n/history\n/run\n/nothing\n/help\n/model local/none\n/model\n")
    assert second.out.startswith("again (3)\nagain (3)\n")
    assert "user: <input>hello</input>" in second.out
    assert "completed again (3)" in second.out
    assert "There is no command `/nothing`" in second.err
    assert {facts.batch for facts in library.runs(store).list()} == {"chat c"}


def test_chat_with_class_without_text_field_exits_with_2(acorn: Acorn, store: Path) -> None:
    ended = acorn("chat", f"{DESK}:Counting", "--store", store)
    assert ended.code == 2
    assert "Cannot chat with" in ended.err


def test_resume_with_moved_agent_file_uses_agent_option(acorn: Acorn, store: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old_desk.py", tmp_path / "new_desk.py"
    old.write_text(DESK.read_text())
    acorn("run", f"{old}:Desk", "order 17", "--store", store)
    (facts,) = library.runs(store).list()
    old.rename(new)
    sys.modules.pop("old_desk", None)
    ended = acorn("resume", facts.id[:8], "--yes", "--store", store, "--agent", f"{old}:Desk")
    assert ended.code == 2
    assert library.runs(store).list()[0].status == "waiting"
    ended = acorn("resume", facts.id[:8], "--yes", "--store", store, "--agent", f"{new}:Desk")
    assert (ended.code, ended.output) == (0, "settled")


def test_run_of_killed_python_program_is_resumed_with_acorn_resume(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import os, signal, sys\n"
        "from acorn import module, tool\n"
        "from acorn.testing import ScriptedModel, call, finish\n"
        "def answer(request):\n"
        "    said = [each['role'] for each in request.messages]\n"
        "    deep = [at for at, each in enumerate(request.messages) if 'deep' in str(each['content'])]\n"
        "    if deep:\n"
        "        return [call('look'), call('stop'), finish('found')][said[deep[0]:].count('assistant')]\n"
        "    return [call('inner', input='deep'), finish('settled')][said.count('assistant')]\n"
        "class Inner(module[str, str]):\n"
        "    'Inside.'\n"
        "    max_steps = 5\n"
        "    @tool\n"
        "    def look(self) -> str:\n"
        "        'Look.'\n"
        "        print('looked', file=sys.stderr)\n"
        "        return 'seen'\n"
        "    @tool\n"
        "    def stop(self) -> str:\n"
        "        'Stop.'\n"
        "        if __name__ == '__main__':\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return 'went on'\n"
        "class Outer(module[str, str]):\n"
        "    'Outside.'\n"
        "    max_steps = 5\n"
        "    model = ScriptedModel(answer)\n"
        "    branches = {'inner': Inner}\n"
        f"    store = {str(store)!r}\n"
        "if __name__ == '__main__':\n"
        "    Outer()('why?')\n"
    )
    killed = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (facts,) = library.runs(store).list()
    assert facts.status == "stopped"
    words = [sys.executable, "-m", "acorn", "resume", facts.id[:8], "--agent", f"{file}:Outer"]
    words += ["--store", str(store)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, '"settled"'), ended.stderr
    assert "looked" not in ended.stderr, "what was committed in the branch is not done again"


def test_resume_command_prints_only_new_steps_and_total_tokens(acorn: Acorn, store: Path) -> None:
    facts = waiting(acorn, store)
    ended = acorn("resume", facts.id[:8], "--yes", *AGENT, "--store", store)
    (facts,) = library.runs(store).list()
    assert "step 1: refund(amount=20.0) -> 20.0 paid" in ended.err
    assert f"finished: 1 step, {facts.usage.total_tokens} tokens" in ended.err
    assert "look()" not in ended.err, "what was shown before"
    again = acorn("resume", facts.id[:8], *AGENT, "--store", store)
    assert f"finished: 1 step, {facts.usage.total_tokens} tokens" in again.err


def test_batch_mistakes_state_row_column_and_option(acorn: Acorn, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    for text, arguments, words in [
        ('{"a": 1}\n{oops\n', [], "is not valid JSON: Expecting property name enclosed in double quotes at column 2."),
        ('{"text": "a"}\n{"b": 1}\n', ["--key", "text"], "has no field `text`. Use a field that every row has."),
        ('"a"\n', ["--id", "n"], "`--id` needs a store, but `Echo` has no store. Use `--store`, as in"),
    ]:
        rows.write_text(text)
        ended = acorn("batch", f"{DESK}:Echo", rows, *arguments)
        assert (ended.code, words in ended.err) == (2, True), ended.err
