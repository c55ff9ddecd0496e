"""Tests of `--save`, which writes a run to a file, also if the run fails."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn
from tests.waiting import PATIENCE, comes_true

from acorn import Run

ECHO, ENDS = AGENTS / "echo.py", AGENTS / "ends.py"
RESEARCHER = AGENTS / "researcher.py"


def load(file: Path) -> Run:
    return Run.from_json(file.read_text(encoding="utf-8"))


def test_save_option_writes_run_with_branches(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert acorn("run", RESEARCHER, "--question", "Who?", "--save", file).code == 0
    run = load(file)
    assert run.stop_reason == "finish"
    assert any(event.branch == "fact_check" for event in run.thread)
    assert run.to_json() == file.read_text(encoding="utf-8").rstrip("\n")
    assert list(tmp_path.iterdir()) == [file]


def test_save_option_of_failed_run_writes_error(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert acorn("run", f"{ENDS}:Invalid", "--save", file).code == 1
    assert load(file).stop_reason == "error"


def test_save_option_with_dash_prints_run_instead_of_output(acorn: Acorn, tmp_path: Path) -> None:
    ended = acorn("run", f"{ENDS}:Fine", "--save", "-")
    assert ended.code == 0
    assert Run.from_json(ended.out).stop_reason == "finish"
    ended = acorn("run", f"{ENDS}:Invalid", "--json", "--save", "-")
    assert ended.code == 1
    assert Run.from_json(ended.out).stop_reason == "error"


def test_save_option_with_unwritable_path_exits_with_2_before_run(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ["no/such/directory/run.json", ".", "new/", "file/run.json"]:
        with case(file):
            monkeypatch.chdir(tmp_path)
            (tmp_path / "file").write_text("")
            ended = acorn("run", f"{ENDS}:Fine", "--save", file)
            assert (ended.code, ended.out) == (2, "")
            assert f"`--save {file}`" in ended.err
            assert ended.err.count("\n") == 1


def test_save_option_replaces_existing_file(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text("something else")
    acorn("run", f"{ENDS}:Fine", "--save", file)
    assert load(file).stop_reason == "finish"


def test_save_option_preserves_file_mode(acorn: Acorn, tmp_path: Path) -> None:
    for mode in [0o664, 0o640, 0o600]:
        with case(mode):
            file = tmp_path / "run.json"
            file.write_text("")
            file.chmod(mode)
            acorn("run", f"{ENDS}:Fine", "--save", file)
            assert stat.S_IMODE(file.stat().st_mode) == mode
            assert load(file).stop_reason == "finish"


def test_save_option_with_named_pipe_writes_run_to_pipe(acorn: Acorn, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert acorn("run", RESEARCHER, "--question", "Who?", "--save", pipe).code == 0
    reader.join(PATIENCE)
    assert Run.from_json(read[0]).stop_reason == "finish"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("place", [">(cat >run.json)", "- >run.json"])
def test_save_option_writes_to_file_descriptor_opened_by_shell(tmp_path: Path, place: str) -> None:
    shell = f"'{sys.executable}' -m acorn run {ENDS}:Fine --save {place}"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert comes_true((tmp_path / "run.json").read_text)  # The other process may take a moment.
    assert load(tmp_path / "run.json").stop_reason == "finish"


AS_NOBODY = """
import os, sys
from acorn.cli import main
agent, file = sys.argv[1:]
assert main(["run", agent, "hello"]) == 0  # everything is loaded that nobody else may read
if os.getuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
sys.exit(main(["run", agent, "hello", "--save", file]))
"""


@pytest.mark.parametrize(("mode", "code"), [(0o444, 2), (0o666, 0)])
def test_save_option_with_read_only_file_is_rejected(mode: int, code: int) -> None:
    directory = Path(tempfile.mkdtemp(prefix="acorn_cli_save_"))
    try:
        agent, file = shutil.copy(ECHO, directory / "echo.py"), directory / "run.json"
        file.write_text("mine")
        file.chmod(mode)
        directory.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, f"{agent}:Plain", str(file)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, done.stderr
        assert ("Permission denied" in done.stderr) == (code == 2)
        assert (file.read_text() == "mine") == (code == 2)
        assert stat.S_IMODE(file.stat().st_mode) == mode
    finally:
        shutil.rmtree(directory)


REMOVING = """
import shutil
from acorn import module, tool
from acorn.testing import Failure, ScriptedModel, call, finish

@tool
def remove() -> None:
    \"\"\"Remove the place.\"\"\"
    shutil.rmtree({place!r})

@tool
def interrupt() -> None:
    \"\"\"As Ctrl-C does.\"\"\"
    raise KeyboardInterrupt

class Agent(module):
    final_output = str
    max_steps = 3
    tools = [remove, interrupt]
    model = ScriptedModel([call("remove"), {then}])
"""


@pytest.mark.parametrize(
    ("then", "code", "end"),
    [
        ("finish(result='x')", 0, "finished: "),
        ("Failure(status=500, message='on fire')", 1, "error: `scripted` failed (HTTP 500): on fire"),
        ("call('interrupt')", 130, "interrupted: "),
    ],
)
def test_save_error_is_printed_after_result_or_error_of_run(
    acorn: Acorn, tmp_path: Path, then: str, code: int, end: str
) -> None:
    (tmp_path / "place").mkdir()
    file = tmp_path / "place" / "run.json"
    (tmp_path / "removing.py").write_text(REMOVING.format(place=str(tmp_path / "place"), then=then))
    ended = acorn("run", tmp_path / "removing.py", "--save", file)
    assert ended.code == (code or 1)
    assert ended.err.splitlines()[-1] == f"error: Cannot write `--save {file}`: No such file or directory"
    assert any(line.startswith(end) for line in ended.err.splitlines())
    assert ended.out == ('"x"\n' if code == 0 else "")
