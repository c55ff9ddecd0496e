"""Tests of `--save`, which writes a run to a file, also if the run fails."""

from __future__ import annotations

import json
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

from acorn.thread import parse_events

ECHO, ENDS = AGENTS / "echo.py", AGENTS / "ends.py"
RESEARCHER, RUDE = AGENTS / "researcher.py", AGENTS / "rude.py"


def last_of(file: Path) -> str:
    return parse_events(file.read_text(encoding="utf-8"))[-1].type


def test_save_option_writes_run_as_events(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert acorn("run", RESEARCHER, "--question", "Who?", "--save", file).code == 0
    events = parse_events(file.read_text(encoding="utf-8"))
    assert [event.type for event in events if event.branch is None][-1] == "completion"
    assert any(event.branch == "fact_check" for event in events)
    assert list(tmp_path.iterdir()) == [file]


def test_save_option_of_failed_run_writes_error_event(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert acorn("run", f"{ENDS}:Invalid", "--save", file).code == 1
    assert last_of(file) == "error"


def test_save_option_with_unwritable_path_exits_with_2_before_run(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ["no/such/directory/run.json", ".", "new/", "file/run.json", "/dev/fd/9999"]:
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
    assert json.loads(file.read_text())[-1]["type"] == "completion"


def test_save_option_preserves_file_mode(acorn: Acorn, tmp_path: Path) -> None:
    for mode in [0o664, 0o640, 0o600]:
        with case(mode):
            file = tmp_path / "run.json"
            file.write_text("")
            file.chmod(mode)
            acorn("run", f"{ENDS}:Fine", "--save", file)
            assert stat.S_IMODE(file.stat().st_mode) == mode
            assert last_of(file) == "completion"


def test_save_option_creates_file_with_default_mode(acorn: Acorn, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    acorn("run", f"{ENDS}:Fine", "--save", tmp_path / "run.json")
    assert (tmp_path / "run.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_save_option_accepts_file_name_of_250_characters(acorn: Acorn, tmp_path: Path) -> None:
    file = tmp_path / ("x" * 250)
    assert acorn("run", f"{ENDS}:Fine", "--save", file).code == 0
    assert last_of(file) == "completion"


def test_save_option_writes_to_target_of_symlink(acorn: Acorn, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "first").write_text("")
    (tmp_path / "second").hardlink_to(tmp_path / "first")
    acorn("run", f"{ENDS}:Fine", "--save", tmp_path / "link")
    acorn("run", f"{ENDS}:fine", "--save", tmp_path / "first")
    assert (tmp_path / "link").is_symlink()
    assert last_of(tmp_path / "target") == last_of(tmp_path / "second") == "completion"


def test_save_option_with_named_pipe_writes_run_to_pipe(acorn: Acorn, tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert acorn("run", RESEARCHER, "--question", "Who?", "--save", pipe).code == 0
    reader.join(PATIENCE)
    assert parse_events(read[0])[-1].type == "completion"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("place", [">(cat >run.json)", "/dev/fd/7 7>run.json", "/dev/stdout | head -n -1 >run.json"])
def test_save_option_writes_to_file_descriptor_opened_by_shell(tmp_path: Path, place: str) -> None:
    shell = f"'{sys.executable}' -m acorn run {ENDS}:Fine --save {place}"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert comes_true((tmp_path / "run.json").read_text)  # The other process may take a moment.
    assert last_of(tmp_path / "run.json") == "completion"


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
    assert ended.err.splitlines()[-1] == f"error: Cannot write `{file}`: No such file or directory"
    assert any(line.startswith(end) for line in ended.err.splitlines())
    assert ended.out == ('"x"\n' if code == 0 else "")


def test_save_option_of_run_with_600_events_writes_all_events(acorn: Acorn, tmp_path: Path) -> None:
    assert acorn("run", f"{RUDE}:Many", "--save", tmp_path / "run.json").code == 0
    assert len(parse_events((tmp_path / "run.json").read_text())) > 600
