"""Tests of `acorn fork`, which continues a stored run from one of its steps, and of `acorn show --python`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import AGENTS, Acorn

import acorn as library

SCOUT = AGENTS / "scout.py"
NEST = AGENTS / "nest.py"
AGENT = ("--agent", SCOUT)


@pytest.fixture(autouse=True)
def nobody_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.delenv("ACORN_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def run_id(acorn: Acorn, store: Path) -> str:
    ended = acorn("run", SCOUT, "--region", "north", "--store", store)
    assert ended.code == 0, ended.err
    return library.runs(store).list()[0].id


def test_fork_command_warns_which_tools_run_again(acorn: Acorn, store: Path, run_id: str) -> None:
    ended = acorn("fork", run_id[:8], *AGENT, "--before", 2, "--store", store)
    assert (ended.code, ended.output) == (0, {"report": "Look around. seen place 0; seen place 1; 3"})
    begin = ended.err.index("Scout on")
    said = ended.err[:begin]
    assert f"fork of {run_id[:8]}: keeps step 1 and continues at step 2" in said
    assert "tools that the model may call again" in said
    assert "`look` (1 time), `count` (1 time)" in said
    facts = library.runs(store).list()
    assert len(facts) == 2
    assert library.runs(store).get(facts[0].id).forked_from == (run_id, 2)


def test_fork_with_edited_tool_result_and_new_prompt_uses_both(
    acorn: Acorn, store: Path, run_id: str, tmp_path: Path
) -> None:
    (tmp_path / "prompt.md").write_text("Be brief.", encoding="utf-8")
    ended = acorn(
        "fork",
        run_id,
        *AGENT,
        "--before",
        3,
        "--edit",
        "look-1=nothing",
        "--prompt",
        "prompt.md",
        "--store",
        store,
        "--json",
    )
    assert ended.code == 0, ended.err
    assert ended.output["output"] == {"report": "Be brief. seen place 0; nothing; 3"}
    shown = acorn("show", library.runs(store).list()[0].id, "--store", store)
    assert "nothing" in shown.out
    assert f"forked from {run_id[:8]} before step 3" in shown.out


def test_fork_edit_with_ambiguous_tool_name_is_rejected(acorn: Acorn, store: Path, run_id: str) -> None:
    assert acorn("fork", run_id, *AGENT, "--before", 2, "--edit", "look=dark", "--store", store).output == {
        "report": "Look around. dark; seen place 1; 3"
    }
    ended = acorn("fork", run_id, *AGENT, "--before", 3, "--edit", "look=dark", "--store", store)
    assert ended.code == 2
    assert "`look` was called 2 times before step 3. Use one of these ids: `look-0`, `look-1`" in ended.err
    for edit, words in (("nobody=1", "no call `nobody` before step 3"), ("look", "CALL=VALUE")):
        ended = acorn("fork", run_id, *AGENT, "--before", 3, "--edit", edit, "--store", store)
        assert ended.code == 2
        assert words in ended.err


def test_fork_of_branch_is_rejected_and_fork_of_its_root_run_succeeds(acorn: Acorn, store: Path) -> None:
    assert acorn("run", NEST, "--store", store).code == 0
    run = library.runs(store).get(library.runs(store).list()[0].id)
    (outer,) = run.branches
    (inner,) = outer.branches
    for branch in (outer, inner):
        ended = acorn("fork", branch.id, "--before", 1, "--store", store)
        assert ended.code == 2
        assert (
            f"`acorn fork {run.id[:8]} --store {store} --agent {NEST}:Nest --before 2` calls `outer` again" in ended.err
        )
        assert "--before 3` keeps the result of `outer`" in ended.err
    ended = acorn("fork", run.id, "--agent", NEST, "--before", 2, "--store", store)
    assert ended.output == "done"
    ended = acorn("fork", run.id, "--agent", NEST, "--before", 3, "--store", store, "--json")
    assert (ended.code, ended.output["output"]) == (0, "done")


def test_fork_with_model_option_uses_that_model(
    acorn: Acorn, store: Path, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ended = acorn("fork", run_id, *AGENT, "--before", 2, "--model", "openai/none", "--store", store)
    assert ended.code in (1, 2)
    assert "openai/none" in ended.err


def test_fork_of_saved_file_prints_output(acorn: Acorn, store: Path, run_id: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(library.runs(store).get(run_id).to_json(), encoding="utf-8")
    ended = acorn("fork", "run.json", "--before", 3, "--agent", SCOUT)
    assert (ended.code, ended.output) == (0, {"report": "Look around. seen place 0; seen place 1; 3"}), ended.err
    ended = acorn("fork", "run.json", "--before", 3)
    assert ended.code == 2
    assert "--agent FILE:CLASS" in ended.err


@pytest.mark.parametrize("step", [0, 9, -1])
def test_fork_at_wrong_step_exits_with_2_and_one_line_error(acorn: Acorn, store: Path, run_id: str, step: int) -> None:
    ended = acorn("fork", run_id, *AGENT, "--before", step, "--store", store)
    assert (ended.code, ended.out) == (2, "")
    assert "must be a step from 1 to 4: the run ended in step 4" in ended.err


def test_fork_with_wrong_arguments_exits_with_2_and_error(
    acorn: Acorn, store: Path, run_id: str, tmp_path: Path
) -> None:
    for words, told in (
        (["fork", run_id, "--store", store], "--before"),
        (["fork", "zzz", "--before", 2, "--store", store], "There is no run `zzz`"),
        (["fork", "missing.json", "--before", 2], "There is no file `missing.json`, and there is no store here"),
        (["fork", run_id, "--before", "x", "--store", store], "--before"),
        (["fork", run_id, *AGENT, "--before", 2, "--prompt", "none.md", "--store", store], "none.md"),
        (["fork", run_id, "--before", 2, "--agent", f"{SCOUT}:Nobody", "--store", store], "Nobody"),
    ):
        ended = acorn(*words)
        assert (ended.code, ended.out) == (2, ""), (words, ended)
        assert told in ended.err
        assert "Traceback" not in ended.err
    (tmp_path / "bad.json").write_text('{"format": 1}', encoding="utf-8")
    ended = acorn("fork", "bad.json", "--before", 2, "--agent", SCOUT)
    assert ended.code == 2
    assert "is not a saved run" in ended.err


def test_show_with_python_option_prints_test_that_passes(
    acorn: Acorn, store: Path, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = acorn("show", run_id[:8], "--python", "--store", store)
    assert ended.code == 0
    assert "from scout import Scout" in ended.out
    monkeypatch.syspath_prepend(AGENTS)
    names: dict[str, Any] = {}
    exec(compile(ended.out, "made.py", "exec"), names)
    names["test_scout"]()
    (tmp_path / "record.json").write_text(library.runs(store).get(run_id).to_json(), encoding="utf-8")
    of_file = acorn("show", "record.json", "--python").out  # It is unknown whether it was in a store.
    assert of_file == ended.out.replace("    store = MemoryStore()\n", "").replace(", store=store", "").replace(
        "from acorn.stores import MemoryStore\n", ""
    )
    (tmp_path / "shown.json").write_text(acorn("show", run_id, "--json", "--store", store).out, encoding="utf-8")
    assert acorn("show", "shown.json", "--python").out == of_file
    assert "cannot be combined" in acorn("show", run_id, "--python", "--xml", "--store", store).err


def test_show_with_python_option_prints_no_api_key(acorn: Acorn, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-4711-0815-abcdef")
    assert acorn("run", SCOUT, "--region", "canary-4711-0815-abcdef", "--store", store).code == 0
    ended = acorn("show", library.runs(store).list()[0].id, "--python", "--store", store)
    assert ended.code == 0
    assert "canary-4711" not in ended.out


def test_fork_with_save_option_writes_copied_and_new_steps(
    acorn: Acorn, store: Path, run_id: str, tmp_path: Path
) -> None:
    assert acorn("fork", run_id, *AGENT, "--before", 3, "--store", store, "--save", "fork.json").code == 0
    events = library.Run.from_json((tmp_path / "fork.json").read_text(encoding="utf-8")).thread
    assert [event.iteration for event in events if event.type == "tool_call"] == [1, 2, 3, 4]
