"""What needs a real process: signals, broken pipes, and the terminal's encoding."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import AGENTS

from acorn.thread import parse_events

SLOW, ECHO, RESEARCHER = AGENTS / "slow.py", AGENTS / "echo.py", AGENTS / "researcher.py"


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "acorn", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def wait_until_saved(file: Path, kind: str, seconds: float = 15) -> None:
    limit = time.monotonic() + seconds
    while not (file.exists() and kind in file.read_text()):
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_broken_off_is_saved_whole(tmp_path: Path, how: signal.Signals, code: int) -> None:
    file = tmp_path / "run.json"
    process = start("run", f"{SLOW}:Stuck", "--text", "x", "--save", file)
    wait_until_saved(file, "tool_result")
    os.killpg(process.pid, how)
    out, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    assert "interrupted: 1 step" in err
    kinds = [event.type for event in parse_events(file.read_text())]
    assert "tool_result" in kinds
    assert list(tmp_path.iterdir()) == [file]


def test_ctrl_c_does_not_wait_for_tools_that_run_side_by_side(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    process = start("run", f"{SLOW}:Asleep", "--text", "x", "--save", file, "--json")
    wait_until_saved(file, "[")
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_ctrl_c_while_a_file_is_imported_leaves_no_traceback(tmp_path: Path) -> None:
    file, sign = tmp_path / "waits.py", tmp_path / "sign"
    file.write_text(f"import pathlib, time\npathlib.Path({str(sign)!r}).write_text('here')\ntime.sleep(60)\n")
    process = start("run", file)
    wait_until_saved(sign, "here")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command",
    [
        f"run {ECHO}:Plain hello 2>&1 | head -c 1",
        f"run {ECHO}:Plain hello 2>&- | head -c 1",
        f"run {RESEARCHER} --question hi 2>&1 >/dev/null | head -n 1",
        f"run {ECHO}:Plain hello --json | true",
        f"run {ECHO}:Kinds --help | head -n 1",
        "--help | true",
    ],
)
def test_a_reader_who_leaves_is_no_error(command: str) -> None:
    shell = f'set -o pipefail; "{sys.executable}" -m acorn {command}; echo "${{PIPESTATUS[0]}}" >&2'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=30)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.stderr.splitlines()[-1] in ("0", "1")


def test_characters_that_the_encoding_lacks_are_written_as_escapes() -> None:
    process = start("run", f"{ECHO}:Plain", "zwölf", PYTHONIOENCODING="ascii")
    out, _ = process.communicate(timeout=15)
    assert (process.returncode, out) == (0, '{"result":"zw\\u00f6lf"}\n')


def test_what_a_tool_writes_to_standard_output_goes_to_standard_error() -> None:
    process = start("run", RESEARCHER, "--question", "hi")
    out, err = process.communicate(timeout=15)
    assert out == '{"answer":"Guido van Rossum","confidence":0.9}\n'
    assert "a tool that prints" in err


@pytest.mark.parametrize(("closed", "out"), [("2>&-", '{"result":"hello"}\n'), (">&-", ""), (">&- 2>&-", "")])
def test_a_closed_stream_is_no_error(closed: str, out: str) -> None:
    shell = f'"{sys.executable}" -m acorn run {ECHO}:Plain hello {closed}'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, out)
    assert "Error" not in done.stderr
