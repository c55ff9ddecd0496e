"""Tests of piped text: it fills the only remaining text field, and unusable text is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import AGENTS
from tests.cli.screen import Terminal
from tests.waiting import PATIENCE

ECHO = AGENTS / "echo.py"


def acorn(*words: object, **streams: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "acorn", "run", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **streams)


@pytest.mark.parametrize(
    ("cls", "words", "piped", "expected"),
    [
        ("Plain", [], "hello\n", {"result": "hello"}),
        ("Plain", [], "  two\nlines\r\n", {"result": "  two\nlines"}),
        ("Plain", [], '{"a": 1}', {"result": '{"a": 1}'}),
        ("Needs", ["--born", "2000-01-02"], "Ann\n", {"name": "Ann", "born": "2000-01-02"}),
        ("Clash", [], "T", {"model": "T", "input": "", "help": "", "save": ""}),  # The required one.
        ("Kinds", ["--two-words", "x"], "zwölf\n", {"text": "zwölf", "two_words": "x"}),
        ("Foreign", [], "hello", {"text": "hello"}),
        ("Nothing", [], "hello", {}),
        ("Plain", ["given"], "", {"result": "given"}),
        ("Plain", ["given"], "\n", {"result": "given"}),
        ("Kinds", [], "", {"text": "nothing"}),
    ],
)
def test_piped_text_fills_the_one_text_field_without_value(
    cls: str, words: list[str], piped: str, expected: dict[str, Any]
) -> None:
    ended = acorn(f"{ECHO}:{cls}", *words, input=piped)
    assert ended.returncode == 0, ended.stderr
    output = json.loads(ended.stdout)
    assert {name: output[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("cls", "words", "piped", "message"),
    [
        ("Plain", ["given"], "more", "Cannot use the piped text: every text field of the input already has a value"),
        (
            "Clash",
            ["--model", "T"],
            "more",
            "every text field of the input already has a value",
        ),  # Not those with defaults.
        (
            "Numbers",
            ["1"],
            "more",
            "every text field of the input already has a value. If the text is the whole input as JSON, use `--input",
        ),
        (
            "Kinds",
            [],
            "more",
            "Cannot use the piped text: it could be the value of `--text` or `--two-words`. Set all but one of them",
        ),
        ("Kinds", ["--two-words", "x"], "rude", "`--text` is not valid: be polite (got 'rude')"),
        ("Plain", [], "", "the argument is missing (string)"),
        ("Plain", [], "\n", "the argument is missing (string)"),
        ("Needs", [], "", "`--name` is missing (string). `--born` is missing"),
    ],
)
def test_piped_text_without_free_text_field_exits_with_2(cls: str, words: list[str], piped: str, message: str) -> None:
    ended = acorn(f"{ECHO}:{cls}", *words, input=piped)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_piped_bytes_that_are_not_utf8_exit_with_2() -> None:
    with subprocess.Popen(["printf", r"\377"], stdout=subprocess.PIPE) as source:
        ended = acorn(f"{ECHO}:Plain", stdin=source.stdout)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: Standard input is not valid utf-8 text")


def test_redirected_stdin_fills_text_field_unless_input_file_set_it(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("from a file\n")
    (tmp_path / "input.json").write_text('{"name": "Ann"}')
    with open(tmp_path / "text") as file:
        assert json.loads(acorn(f"{ECHO}:Plain", stdin=file).stdout) == {"result": "from a file"}
    with open(tmp_path / "text") as file:
        words = ["--input", tmp_path / "input.json", "--born", "2000-01-02"]
        assert "every text field of the input already has a value" in acorn(f"{ECHO}:Needs", *words, stdin=file).stderr


def test_piped_json_is_parsed_if_input_option_is_dash() -> None:
    ended = acorn(f"{ECHO}:Kinds", "--input", "-", input='{"text": "json"}')
    assert json.loads(ended.stdout)["text"] == "json"


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, "closed"])
def test_dev_null_and_closed_stdin_are_not_read_as_input(stdin: Any) -> None:
    shell = f"'{sys.executable}' -m acorn run {ECHO}:Plain given {'<&-' if stdin == 'closed' else '</dev/null'}"
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE)
    assert json.loads(ended.stdout) == {"result": "given"}


def test_open_pipe_without_data_is_awaited_only_if_field_is_missing() -> None:
    reading, writing = os.pipe()
    try:
        ended = acorn(f"{ECHO}:Plain", "given", stdin=reading)
        assert (ended.returncode, json.loads(ended.stdout)) == (0, {"result": "given"})
        ended = acorn(f"{ECHO}:Foreign", stdin=reading)
        assert json.loads(ended.stdout)["text"] == "zwölf"
        assert "Standard input is a pipe without data. The run starts without `--text`." in ended.stderr
        command = [sys.executable, "-m", "acorn", "run", f"{ECHO}:Plain"]
        with subprocess.Popen(command, stdin=reading, stdout=-1, stderr=-1, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "Waiting for text for the argument on standard input.\n"
            os.write(writing, b"late")
            os.close(writing)
            writing = -1
            assert json.loads(process.communicate(timeout=PATIENCE)[0]) == {"result": "late"}
    finally:
        os.close(reading)
        if writing != -1:
            os.close(writing)


def test_terminal_stdin_is_not_read_as_pipe() -> None:
    terminal = Terminal(["run", f"{ECHO}:Plain"])
    assert terminal.end() == 2
    assert "the argument is missing" in terminal.screen.text
