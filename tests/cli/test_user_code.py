"""Tests of user code that exits, fails in a validator, or raises errors with keys: each is reported in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn

RUDE = AGENTS / "rude.py"


def test_user_code_that_exits_is_reported_as_failed_run(acorn: Acorn) -> None:
    for cls, error in [
        ("Leaves", "SystemExit: 0"),
        ("LeavesBeside", "SystemExit: 0"),
        ("Parses", "SystemExit: 2"),
        ("Cancels", "CancelledError"),
        ("Strange", "StrangeError: out of this world"),
    ]:
        with case(cls):
            ended = acorn("run", f"{RUDE}:{cls}")
            assert (ended.code, ended.out) == (1, "")
            assert f"error: The agent's code ended the program: {error}" in ended.err.splitlines()
            assert "\nfailed: 1 step" in ended.err
            assert "Traceback" not in ended.err

            told = acorn("run", f"{RUDE}:{cls}", "--json")
            assert told.code == 1
            assert told.output["error"]["type"] == error.partition(":")[0]
            assert told.output["error"]["message"] == f"The agent's code ended the program: {error}"


def test_debug_option_names_function_that_called_sys_exit(acorn: Acorn) -> None:
    assert "in leaves" in acorn("run", f"{RUDE}:Leaves", "--debug").err


def test_api_key_in_error_of_user_code_is_redacted(acorn: Acorn, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in [[], ["--json"], ["--debug"]]:
        for cls in ["ToldKey", "DictKey"]:
            with case(words, cls):
                monkeypatch.setenv("MY_API_KEY", "swordfish-99")
                ended = acorn("run", f"{RUDE}:{cls}", *words)
                assert ended.code == 1
                assert "***" in ended.err.splitlines()[-1]
                for key in ("swordfish-99", "hush-hush-0815", "sk-1234567890abcdef"):
                    assert key not in ended.out + ended.err


def test_api_key_in_error_of_target_file_is_redacted(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "swordfish-99")
    file = tmp_path / "telling.py"
    file.write_text("raise ValueError('swordfish-99 is wrong')")
    ended = acorn("run", file)
    assert ended.code == 2
    assert ended.err.endswith(": ValueError: *** is wrong\n")


@pytest.mark.parametrize(("size", "error"), [("13", "RuntimeError: the validator is broken"), ("14", "SystemExit: 0")])
def test_failing_input_validator_error_contains_file_and_line(acorn: Acorn, size: str, error: str) -> None:
    ended = acorn("run", f"{RUDE}:Checking", "--name", "x", "--size", size)
    assert (ended.code, ended.out) == (2, "")
    line = ended.err.splitlines()[-1]
    assert line.startswith("error: ")
    assert "rude.py:" in line
    assert line.endswith(f"Cannot validate the input: {error}")
    assert "bug in acorn" not in line
