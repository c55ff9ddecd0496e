"""Attack: a step of a run kills its process every time, so that each further call loses one more process."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import PATIENCE

import acorn
from acorn import StoreError
from acorn.cli import main
from acorn.durable import perform
from acorn.stores import SQLiteStore

PROGRAM = """
import os, signal, sys
from pathlib import Path

from acorn import module, tool
from acorn.testing import ScriptedModel, call, finish


@tool
def explode() -> str:
    "End the process."
    with Path("log").open("a") as log:
        log.write("x")
    if not Path("defused").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "quiet"


class Desk(module[str, str]):
    "Work."
    model = ScriptedModel([call("explode"), finish("done")], by_turn=True)
    tools = [explode]
    max_steps = 3
    store = "runs.db"


if __name__ == "__main__":
    print(eval(sys.argv[1]))
"""


def test_step_that_kills_its_process_stays_failed_until_it_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk.py").write_text(PROGRAM, encoding="utf-8")

    def run(code: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "desk.py", code]
        return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def deaths() -> int:
        return len((tmp_path / "log").read_text(encoding="utf-8"))

    start = "Desk().using(run_id='run-1')('hello')"
    for death in range(1, 6):
        assert run(start).returncode == -signal.SIGKILL
        assert deaths() == death
    for code in (start, "Desk().resume('run-1')", "list(Desk().using(run_id='run-1').stream('hello'))", start):
        ended = run(code)
        assert ended.returncode == 1
        assert "Run run-1 failed: five processes died while they executed this step" in ended.stderr
        assert "retry=True" in ended.stderr
    assert main(["resume", "run-1", "--agent", "desk.py:Desk", "--store", "runs.db"]) == 2
    assert "five processes died" in capsys.readouterr().err
    with closing(SQLiteStore("runs.db")) as store:
        assert perform(store, "run-1", []) == "failed"
        assert store.statuses(["run-1"]) == {"run-1": "failed"}
    assert deaths() == 5
    assert run("Desk().resume('run-1', retry=True)").returncode == -signal.SIGKILL
    assert deaths() == 6, "the user asked for one more"
    (tmp_path / "defused").touch()
    monkeypatch.delitem(sys.modules, "desk", raising=False)
    words = ["resume", "run-1", "--retry", "--agent", "desk.py:Desk", "--store", "runs.db"]
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip() == '"done"'
    assert acorn.runs("runs.db").list()[0].status == "done"


def test_retry_of_other_runs_changes_nothing(tmp_path: Path) -> None:
    from acorn import module
    from acorn.testing import ScriptedModel, finish

    class Desk(module[str, str]):
        """Answer."""

        model = ScriptedModel([finish("once")])

    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        agent = Desk(store=store)
        assert agent.using(run_id="run-1")("hello") == "once"
        assert agent.resume("run-1", retry=True) == "once"
        with pytest.raises(StoreError, match="is not in"):
            agent.resume("run-2", retry=True)
