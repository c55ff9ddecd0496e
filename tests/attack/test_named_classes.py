"""Attack: a store names a file or a module, so that a process that reads the store executes it."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.attack.edited_store import edit_json, execute
from tests.waiting import PATIENCE

import acorn
from acorn import StoreError, module
from acorn.cli import main
from acorn.durable import perform
from acorn.stores import SQLiteStore
from acorn.testing import ScriptedModel, finish

EVIL = """
from pathlib import Path
Path({log!r}).write_text("executed")
from acorn import module
from acorn.testing import ScriptedModel, finish


class Desk(module[str, str]):
    model = ScriptedModel([finish("evil")])
"""


class Desk(module[str, str]):
    """Answer."""

    model: Any = ScriptedModel(lambda request: finish("good"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with the queued run `run-1`, whose class is in a file and a module of an attacker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.delenv("ACORN_STORE", raising=False)
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as opened:
        Desk(store=opened).using(run_id="run-1", deliver=False).submit("hello")
    evil = tmp_path / "evil_desk.py"
    evil.write_text(EVIL.format(log=str(tmp_path / "log")), encoding="utf-8")
    execute(path, "UPDATE runs SET agent = 'evil_desk:Desk'")
    edit_json(path, "run_headers", "overrides", lambda header: header.update(file=str(evil)))
    return path


@pytest.mark.parametrize("words", [("resume", "run-1"), ("fork", "run-1", "--before", "1")])
def test_command_without_agent_option_imports_nothing_and_names_the_file(
    store: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--store", str(store)]) == 2
    error = capsys.readouterr().err
    assert f"If you trust this file, use: acorn {' '.join(words)} --store {store} --agent evil_desk.py:Desk" in error
    assert not (store.parent / "log").exists()
    assert "evil_desk" not in sys.modules
    assert acorn.runs(store).list()[0].status == "queued"


def test_printed_command_quotes_a_file_name_with_shell_syntax(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_json(store, "run_headers", "overrides", lambda header: header.update(file="/tmp/a.py; touch x\x1b[2J\n#.py"))
    assert main(["resume", "run-1", "--store", str(store)]) == 2
    error = capsys.readouterr().err
    assert "--agent '/tmp/a.py; touch x" in error
    assert "\x1b" not in error
    assert len(error.splitlines()) == 1


def test_perform_without_agents_imports_nothing(store: Path) -> None:
    with pytest.raises(StoreError, match="acorn does not import what a store names"):
        perform(str(store), "run-1")
    program = f"from acorn.durable import perform; perform({str(store)!r}, 'run-1')"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert "StoreError" in ended.stderr
    assert not (store.parent / "log").exists()
    assert acorn.runs(store).list()[0].status == "queued"


def test_list_show_and_python_of_run_import_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["runs"], ["show", "run-1"], ["show", "run-1", "--json"], ["cancel", "run-1"], ["delete", "run-1"]):
        assert main([*words, "--store", str(store)]) == 0, capsys.readouterr().err
    assert not (store.parent / "log").exists()
    assert "evil_desk" not in sys.modules


def test_command_with_agent_option_uses_the_class_of_the_user(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good_desk.py"
    good.write_text(EVIL.format(log=str(tmp_path / "good_log")).replace("evil", "good"), encoding="utf-8")
    assert main(["resume", "run-1", "--store", str(store), "--agent", f"{good}:Desk"]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip() == '"good"'
    assert not (tmp_path / "log").exists()
