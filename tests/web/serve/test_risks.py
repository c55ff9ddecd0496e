"""Tests of `acorn serve --check`, and of the warnings about risky settings at the start."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from tests.cases import case
from tests.web.serve.server import APPROVER, CLERK, KEY, serving

from acorn.cli import main

ECHO = "tests.web.serve.served_agent:Echo"
SAFE = {"ACORN_SERVE_KEYS": f"shop={KEY}", "ACORN_SERVE_APPROVER_KEYS": f"ann={APPROVER}"}


def check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str, **environment: str
) -> tuple[int, list[str]]:
    """Return the exit code and the printed lines of `acorn serve --check`."""
    with monkeypatch.context() as patch:
        for name in ("ACORN_SERVE_KEYS", "ACORN_SERVE_APPROVER_KEYS", "ACORN_STORE"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        code = main(["serve", *words, "--check"])
    printed = capsys.readouterr()
    assert printed.out == ""
    return code, printed.err.splitlines()


RISKS: list[tuple[list[str], dict[str, str], list[str]]] = [
    ([CLERK], SAFE, []),
    ([CLERK], {}, []),  # Both keys are generated.
    ([ECHO, "--host", "0.0.0.0", "--behind-tls"], SAFE, []),
    ([ECHO, "--host", "0.0.0.0"], SAFE, ["without encryption"]),
    ([ECHO, "--host", "0.0.0.0", "--behind-tls"], {}, ["changes at each start"]),
    ([ECHO, "--no-key"], {}, ["clients need no key"]),
    ([CLERK, "--no-key"], {}, ["clients need no key", "can approve its own tool calls"]),
    ([CLERK], {"ACORN_SERVE_KEYS": KEY}, [r"\(`refund`\), because there is no approver key"]),
    ([ECHO], {"ACORN_SERVE_KEYS": "desk=12345678"}, ["The key `desk` may be guessed"]),
    ([ECHO, "--key", KEY], {}, ["can read `--key`"]),
    ([ECHO, "--approver-key", APPROVER], {}, ["can read `--approver-key`"]),
]


def test_check_prints_risky_settings_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, environment, risks in RISKS:
        with case(words, environment):
            code, lines = check(capsys, monkeypatch, *words, "--store", "runs.db", **environment)
            assert code == (1 if risks else 0), lines
            assert len(lines) == max(len(risks), 1), lines
            for risk, line in zip(risks or ["No risky settings"], lines, strict=True):
                assert re.search(risk, line)
                assert line.startswith("risk: ") == bool(risks)
            assert not [key for key in (KEY, APPROVER, "12345678") if key in "".join(lines)]


@pytest.mark.skipif(sys.platform == "win32", reason="The modes of files are those of POSIX")
def test_check_reports_store_that_other_users_can_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / "runs.db"
    words = (ECHO, "--store", str(store))
    assert check(capsys, monkeypatch, *words, **SAFE)[0] == 0  # The command creates the store.
    store.chmod(0o644)
    code, lines = check(capsys, monkeypatch, *words, **SAFE)
    assert code == 1
    assert f"chmod 600 {store}" in lines[0]
    store.chmod(0o600)
    tmp_path.chmod(0o777)
    code, lines = check(capsys, monkeypatch, *words, **SAFE)
    assert code == 1
    assert f"chmod go-w {tmp_path}" in lines[-1]
    tmp_path.chmod(0o700)


def test_server_prints_warnings_about_risky_settings_at_start(tmp_path: Path) -> None:
    with serving(tmp_path, "--key", "12345678", "--store", "runs.db") as served:
        warnings = [line for line in served.printed if line.startswith("warning: ")]
    assert len(warnings) == 3
    assert "12345678" not in "".join(served.printed)
    with serving(tmp_path, "--store", "runs.db", **SAFE) as served:
        assert len(served.printed) == 2
    assert os.path.exists(tmp_path / "runs.db")
