"""Tests of commands in real processes: signals, broken pipes, and the encoding of the terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE, comes_true

from acorn import Run

SLOW, ECHO, RESEARCHER = AGENTS / "slow.py", AGENTS / "echo.py", AGENTS / "researcher.py"
RUDE = AGENTS / "rude.py"


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "acorn", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def wait_until_saved(file: Path, kind: str) -> None:
    assert comes_true(lambda: file.exists() and kind in file.read_text())


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_run_is_saved_to_file(tmp_path: Path, how: signal.Signals, code: int) -> None:
    file = tmp_path / "run.json"
    process = start("run", f"{SLOW}:Stuck", "--text", "x", "--save", file)
    assert process.stderr is not None
    seen = next(line for line in process.stderr if "nothing in" in line)
    os.killpg(process.pid, how)
    out, err = process.communicate(timeout=PATIENCE)
    assert "nothing in the drawer" in seen
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    assert "interrupted: 1 step" in err
    assert err.count("interrupted") == 1
    assert "tool_result" in [event.type for event in Run.from_json(file.read_text()).thread]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_does_not_wait_for_concurrent_tools(tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    process = start("run", f"{SLOW}:Asleep", "--text", "x", "--json", SLOW_BUSY=str(busy))
    assert comes_true(busy.exists)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    told = json.loads(out)
    assert told["error"] == {"type": "KeyboardInterrupt", "message": "The run was interrupted."}
    assert told["output"] is None
    assert "Traceback" not in err
    assert err.count("interrupted") == 1


USER_PROGRAM = """
import signal, sys
sys.path.pop(0)
signal.signal(signal.SIGINT, signal.default_int_handler)
import acorn
print(signal.getsignal(signal.SIGINT).__name__)
"""


def test_user_program_that_imports_acorn_has_default_ctrl_c_handler(tmp_path: Path) -> None:
    for name in ("acorn", "acorn.py", "other") if IS_LONG else ("acorn",):
        with case(name):
            (tmp_path / name).write_text(USER_PROGRAM)
            command = [sys.executable, str(tmp_path / name)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            assert (done.stdout, done.stderr) == ("default_int_handler\n", "")


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_target_file_is_imported_prints_no_traceback(tmp_path: Path) -> None:
    file, sign = tmp_path / "waits.py", tmp_path / "sign"
    file.write_text(f"import pathlib, time\npathlib.Path({str(sign)!r}).write_text('here')\nwhile 1: time.sleep(0.1)\n")
    process = start("run", file)
    wait_until_saved(sign, "here")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


CLOSED_STDOUT = [
    f"run {ECHO}:Plain hello 2>&1 | head -c 1",
    f"run {RESEARCHER} --question hi 2>&1 >/dev/null | head -n 1",
    "--help | true",
]
if IS_LONG:
    CLOSED_STDOUT += [
        f"run {ECHO}:Plain hello 2>&- | head -c 1",
        f"run {ECHO}:Plain hello --json | true",
        f"run {ECHO}:Kinds --help | head -n 1",
        "--help | head -n 1",
    ]


def test_closed_stdout_exits_with_0_and_no_error() -> None:
    for command in CLOSED_STDOUT:
        with case(command):
            shell = f'set -o pipefail; "{sys.executable}" -m acorn {command}; echo "${{PIPESTATUS[0]}}" >&2'
            done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE)
            assert "Traceback" not in done.stderr
            assert "Error" not in done.stderr
            assert "Exception" not in done.stderr
            assert done.stderr.splitlines()[-1] == "0"


def test_run_with_closed_stderr_finishes(tmp_path: Path) -> None:
    for words in (f"{RUDE}:Parent", f"{RESEARCHER} --question hi") if IS_LONG else (f"{RUDE}:Parent",):
        with case(words):
            shell = f'"{sys.executable}" -m acorn run {words} 2>&1 >"{tmp_path}/out" | true; exit "${{PIPESTATUS[0]}}"'
            assert subprocess.run(["bash", "-c", shell], timeout=PATIENCE).returncode == 0
            output = json.loads((tmp_path / "out").read_text())
            assert output in ("fine", {"answer": "Guido van Rossum", "confidence": 0.9})


def full(stream: str, file: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command whose stream leads to a full disk."""
    limited = f"ulimit -f 0; exec '{sys.executable}' -m acorn {' '.join(map(str, words))} {stream}>'{file}'"
    return subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=PATIENCE)


def test_unwritable_stdout_exits_with_1_and_one_line_error(tmp_path: Path) -> None:
    commands = [["run", f"{RUDE}:Parent"], ["--version"], ["run", f"{ECHO}:Kinds", "--help"]]
    for words in commands if IS_LONG else commands[:2]:
        with case(*words):
            done = full("1", tmp_path / "out", *words)
            assert done.returncode == 1
            assert done.stderr.splitlines()[-1] == "error: Cannot write the output: File too large"
            assert "Traceback" not in done.stderr
            assert "Exception" not in done.stderr


def test_unwritable_stderr_does_not_affect_run(tmp_path: Path) -> None:
    done = full("2", tmp_path / "err", "run", f"{RUDE}:Parent")
    assert (done.returncode, done.stdout) == (0, '"fine"\n')


PRINTING: list[tuple[list[object], str, list[str]]] = [
    (["run", RESEARCHER, "--question", "hi"], '{"answer":"Guido van Rossum","confidence":0.9}', ["a tool that prints"]),
    (["run", f"{RUDE}:Parent"], '"fine"', ["by a child", "below Python"]),
    (["run", f"{RUDE}:Late"], '"fine"', ["too late"]),
    (["run", f"{RUDE}:Checking", "--size", "1"], '"fine"', ["a validator prints"]),
]
"""Commands whose code prints, the output of the run, and the printed lines."""


def test_stdout_contains_only_run_output_and_prints_are_written_to_stderr() -> None:
    for words, output, printed in PRINTING:
        with case(*words):
            process = start(*words)
            out, err = process.communicate(timeout=PATIENCE)
            assert (process.returncode, out) == (0, f"{output}\n")
            for line in printed:
                assert line in err


def test_ascii_encoding_escapes_output_and_prints_only_ascii_characters() -> None:
    process = start("run", f"{ECHO}:Plain", "zwölf", PYTHONIOENCODING="ascii")
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, '{"input":"zw\\u00f6lf"}\n')
    commands = [["run", f"{ECHO}:Foreign", "--help"], ["run", f"{ECHO}:Foreign"], ["--help"]]
    for words in commands if IS_LONG else commands[:1]:
        with case(*words):
            process = start(*words, PYTHONIOENCODING="ascii")
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
            assert out.isascii()


def test_run_with_closed_stdout_and_stderr_exits_with_0() -> None:
    streams = [(">&- 2>&-", ""), ("2>&-", '{"input":"hello"}\n'), (">&-", "")]
    for closed, out in streams if IS_LONG else streams[:2]:
        with case(closed):
            shell = f'"{sys.executable}" -m acorn run {ECHO}:Plain hello {closed}'
            done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE)
            assert (done.returncode, done.stdout) == (0, out)
            assert "Error" not in done.stderr
