"""Tests of piped text: it fills the only remaining text field, and unusable text is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn, Ended
from tests.cli.screen import Terminal
from tests.waiting import PATIENCE

ECHO = AGENTS / "echo.py"
Piped = Callable[..., Ended]


@pytest.fixture
def run(acorn: Acorn, monkeypatch: pytest.MonkeyPatch) -> Piped:
    """`run(target, ..., stdin=...)` runs `acorn run` with a text in a pipe or with an open file as standard input."""

    def run(*words: object, stdin: str | bytes | TextIO) -> Ended:
        with piped(stdin) if isinstance(stdin, str | bytes) else nullcontext(stdin) as file:
            monkeypatch.setattr(sys, "stdin", file)
            return acorn("run", *words)

    return run


def piped(content: str | bytes) -> TextIO:
    reading, writing = os.pipe()
    os.write(writing, content if isinstance(content, bytes) else content.encode())
    os.close(writing)
    return open(reading, encoding="utf-8")


def test_piped_text_fills_the_one_text_field_without_value(run: Piped) -> None:
    for cls, words, text, expected in [
        ("Plain", [], "hello\n", {"input": "hello"}),
        ("Plain", [], "  two\nlines\r\n", {"input": "  two\nlines"}),
        ("Plain", [], '{"a": 1}', {"input": '{"a": 1}'}),
        ("Needs", ["--born", "2000-01-02"], "Ann\n", {"name": "Ann", "born": "2000-01-02"}),
        ("Clash", [], "T", {"model": "T", "input": "", "help": "", "save": ""}),  # The required one.
        ("Kinds", ["--two-words", "x"], "zwölf\n", {"text": "zwölf", "two_words": "x"}),
        ("Foreign", [], "hello", {"text": "hello"}),
        ("Nothing", [], "hello", {}),
        ("Plain", ["given"], "", {"input": "given"}),
        ("Plain", ["given"], "\n", {"input": "given"}),
        ("Kinds", [], "", {"text": "nothing"}),
    ]:
        with case(cls, text):
            ended = run(f"{ECHO}:{cls}", *words, stdin=text)
            assert ended.code == 0, ended.err
            assert {name: ended.output[name] for name in expected} == expected


def test_piped_text_without_free_text_field_exits_with_2(run: Piped) -> None:
    for cls, words, text, message in [
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
        ("Kinds", ["--two-words", "x"], "rude", "`--text` is invalid: be polite (got 'rude')"),
        ("Plain", [], "", "the argument is missing (expected a string)"),
        ("Plain", [], "\n", "the argument is missing (expected a string)"),
        ("Needs", [], "", "`--name` is missing (expected a string). `--born` is missing"),
    ]:
        with case(cls, text):
            ended = run(f"{ECHO}:{cls}", *words, stdin=text)
            assert (ended.code, ended.out) == (2, "")
            assert message in ended.err
            assert ended.err.count("\n") == 1


def test_piped_bytes_that_are_not_utf8_exit_with_2(run: Piped) -> None:
    ended = run(f"{ECHO}:Plain", stdin=b"\xff")
    assert ended.code == 2
    assert ended.err.startswith("error: Standard input is not valid utf-8 text")


def test_redirected_stdin_fills_text_field_unless_input_file_set_it(run: Piped, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("from a file\n")
    (tmp_path / "input.json").write_text('{"name": "Ann"}')
    with open(tmp_path / "text", encoding="utf-8") as file:
        assert run(f"{ECHO}:Plain", stdin=file).output == {"input": "from a file"}
    with open(tmp_path / "text", encoding="utf-8") as file:
        words = ["--input", tmp_path / "input.json", "--born", "2000-01-02"]
        assert "every text field of the input already has a value" in run(f"{ECHO}:Needs", *words, stdin=file).err


def test_piped_json_is_parsed_if_input_option_is_dash(run: Piped) -> None:
    assert run(f"{ECHO}:Kinds", "--input", "-", stdin='{"text": "json"}').output["text"] == "json"


def test_dev_null_is_not_read_as_input(run: Piped) -> None:
    with open(os.devnull, encoding="utf-8") as file:
        assert run(f"{ECHO}:Plain", "given", stdin=file).output == {"input": "given"}


def test_closed_stdin_is_not_read_as_input() -> None:
    shell = f"'{sys.executable}' -m acorn run {ECHO}:Plain given <&-"
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE)
    assert json.loads(ended.stdout) == {"input": "given"}


def test_open_pipe_without_data_is_awaited_only_if_field_is_missing(run: Piped) -> None:
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stdin, open(writing, "w", encoding="utf-8") as source:
        assert run(f"{ECHO}:Plain", "given", stdin=stdin).output == {"input": "given"}
        ended = run(f"{ECHO}:Foreign", stdin=stdin)
        assert ended.output["text"] == "zwölf"
        assert "Standard input is a pipe without data. The run starts without `--text`." in ended.err
        command = [sys.executable, "-m", "acorn", "run", f"{ECHO}:Plain"]
        with subprocess.Popen(command, stdin=stdin, stdout=-1, stderr=-1, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "Waiting for text for the argument on standard input.\n"
            source.write("late")
            source.close()
            assert json.loads(process.communicate(timeout=PATIENCE)[0]) == {"input": "late"}


def test_terminal_stdin_is_not_read_as_pipe() -> None:
    terminal = Terminal(["run", f"{ECHO}:Plain"])
    assert terminal.end() == 2
    assert "the argument is missing" in terminal.screen.text
