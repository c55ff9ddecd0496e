"""Tests of the examples: each runs directly and with `acorn run`, and respects its safety limits."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.cases import case
from tests.docs.pages import any_answer
from tests.loopback import Loopback
from tests.telemetry import no_provider

from acorn import module
from acorn.cli import main
from acorn.cli.targets import load_agent
from acorn.testing import ScriptedModel, call, finish

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WORDS = {
    "analyst": ("--question", "?", "--database", "shop.db"),
    "extraction": ("--letter", "Dear all"),
    "fact_checker": ("--text", "Oaks are trees."),
    "form": ("--wish", "The sea"),
    "mcp_client": ("Can I call Tokyo at nine?",),
    "research": ("--question", "?", "--folder", "."),
    "reviewer": ("--repository", "."),
    "sentiment": ("--text", "I love it."),
    "support": ("--message", "Where is it?", "--store", "runs.db"),
    "web_service": ("--question", "?"),
}
"""What `acorn run` is given, by example."""


@pytest.fixture
def loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the modules that the examples import after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.usefixtures("loaded_later")
def test_example_program_prints_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for example in EXAMPLES:
        with case(example.stem), no_provider():
            monkeypatch.setattr(sys, "argv", [str(example)])
            runpy.run_path(str(example), run_name="__main__")
            assert capsys.readouterr().out.strip()


@pytest.mark.release
def test_example_program_in_its_own_process_exits_with_0() -> None:
    for example in EXAMPLES:
        with case(example.stem):
            command = [sys.executable, "-W", "error", str(example)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip()


@pytest.mark.usefixtures("loaded_later")
def test_example_started_with_acorn_run_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")):
        pass
    for name, words in WORDS.items():
        with case(name), Loopback(any_answer) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
            code = main(["run", str(ROOT / "examples" / f"{name}.py"), *words])
            said = capsys.readouterr()
            assert code == 0, said.err
            assert json.loads(said.out)


def test_examples_listed_in_guide_exist_as_files() -> None:
    listed = re.findall(r"^\| `([\w.]+)`", (ROOT / "docs/guides/examples.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed
    assert [name for name in listed if not (ROOT / "examples" / name).exists()] == []


def read_notebook() -> Any:
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert all(not cell.get("outputs") for cell in notebook.cells), "clear the outputs before you commit the notebook"
    return notebook


def check_page(page: str) -> None:
    assert "&lt;b&gt;very&lt;/b&gt;" in page
    assert "<b>very" not in page
    assert "<script" not in page


async def run_cells(cells: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        waiting = eval(compile(cell, "notebook", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), names)
        if inspect.iscoroutine(waiting):
            await waiting
    return names


def test_code_of_notebook_runs_in_event_loop() -> None:
    names = asyncio.run(run_cells([cell.source for cell in read_notebook().cells if cell.cell_type == "code"]))
    assert names["seen"]
    check_page(names["run"]._repr_html_())


@pytest.mark.release
def test_notebook_runs_in_jupyter_without_errors() -> None:
    notebook = read_notebook()
    environment = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(env=environment)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    [page] = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    check_page(page)
    assert all(output["output_type"] != "error" for output in shown)


def asked(name: str, calls: list[Any], last: Any, **given: Any) -> list[str]:
    """Return what an example's tools answer to calls of a hostile model."""
    agent: module[Any, Any] = load_agent(str(ROOT / "examples" / f"{name}.py"))
    run = agent.using(model=ScriptedModel([*calls, last]), loop_guard=None, max_steps=len(calls)).run(**given)
    return [message["content"] for message in run.history if message["role"] == "tool"][:-1]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop #1?.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (customer TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?)", [(str(number),) for number in range(100)])
        connection.commit()
    return file


def test_analyst_example_returns_tool_error_for_write_statements(shop: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    statements = [
        "DELETE FROM orders",
        "INSERT INTO orders VALUES ('x')",
        "UPDATE orders SET customer = 'x'",
        "CREATE TABLE other (x)",
        "CREATE TEMP TABLE other (x)",
        "DROP TABLE orders",
        f"VACUUM INTO '{copy}'",
        f"ATTACH DATABASE '{copy}' AS other",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "SELECT load_extension('x')",
        "SELECT PRINTF('%.*c', 2000000000, 'x')",
        "SELECT format('%.*c', 2000000000, 'x')",
        "BEGIN IMMEDIATE",
        "SELECT 1; DELETE FROM orders",
        "SELECT zeroblob(2000000)",
    ]
    before = shop.read_bytes()
    calls = [call("query", sql=sql) for sql in statements]
    said = asked("analyst", calls, finish(answer="", query=""), question="?", database=shop)
    assert [text for text in said if not text.startswith("Tool error: ")] == []
    assert len(said) == len(statements)
    assert shop.read_bytes() == before
    assert not copy.exists()


def test_analyst_example_returns_at_most_50_rows(shop: Path) -> None:
    calls = [call("query", sql="SELECT * FROM orders"), call("query", sql="SELECT COUNT(*) FROM orders")]
    many, count = asked("analyst", calls, finish(answer="", query=""), question="?", database=shop)
    assert len(json.loads(many)["rows"]) == 50
    assert json.loads(many)["more"] is True
    assert json.loads(count)["rows"] == [[100]]


def test_analyst_example_limits_length_of_returned_text(shop: Path) -> None:
    long, wide = (
        "SELECT hex(zeroblob(1000)) FROM orders",
        f"SELECT {', '.join(['hex(zeroblob(40000))'] * 40)} FROM orders",
    )
    calls = [call("query", sql=sql) for sql in (long, wide, "SELECT 1 WHERE 0")]
    few, none, empty = asked("analyst", calls, finish(answer="", query=""), question="?", database=shop)
    assert len(few) < 25_000
    assert json.loads(few)["rows"]
    assert json.loads(few)["more"] is True
    assert (
        none == "Tool error: ValueError: a row is longer than 20000 characters; ask for a part: substr(text, 1, 1000)"
    )
    assert json.loads(empty) == {"columns": ["1"], "rows": [], "more": False}


def test_researcher_example_limits_length_of_returned_text(tmp_path: Path) -> None:
    (tmp_path / "one-line.json").write_text("acorn " * 100_000, encoding="utf-8")
    calls = [call("read_file", path="one-line.json"), call("search", text="acorn")]
    read, found = asked("research", calls, finish(answer="", sources=[]), question="?", folder=tmp_path)
    assert len(read) < 1000
    assert len(found) < 1000
    assert read.endswith(" (cut)")


def test_researcher_example_skips_hidden_files(tmp_path: Path) -> None:
    for name in (".env", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("secret", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / ".env")
    calls = [*[call("read_file", path=path) for path in (".env", ".git/config", "link")], call("search", text="secret")]
    *read, found = asked("research", calls, finish(answer="", sources=[]), question="?", folder=tmp_path)
    assert [text for text in read if "hidden" not in text] == []
    assert "nothing found" in found


def test_researcher_example_rejects_paths_outside_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "secret.txt"
    folder.mkdir()
    outside.write_text("secret", encoding="utf-8")
    (tmp_path / "folder-2").mkdir()
    (tmp_path / "folder-2" / "file").write_text("secret", encoding="utf-8")
    (folder / "link").symlink_to(outside)
    (folder / "up").symlink_to(tmp_path)
    (folder / "notes.txt").write_text("ours", encoding="utf-8")
    paths = ["../secret.txt", str(outside), "link", "up/secret.txt", "../folder-2/file", "~/x", "", ".", "\0"]
    calls = [
        *[call("read_file", path=path) for path in paths],
        call("search", text="secret"),
        call("list_files"),
        call("read_file", path="notes.txt"),
    ]
    *wrong, found, listed, right = asked("research", calls, finish(answer="", sources=[]), question="?", folder=folder)
    assert [text for text in wrong if not text.startswith("Tool error: ")] == []
    assert "nothing found" in found
    assert json.loads(listed) == ["notes.txt"]
    assert right == "ours"


def test_reviewer_example_reads_git_changes_without_running_git_hooks(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True)

    git("init", "-q")
    trap = tmp_path / "trap"
    (tmp_path / ".gitattributes").write_text("*.txt diff=evil\n", encoding="utf-8")
    for text in ("one\n", "two\n"):
        (tmp_path / "a ä.txt").write_text(text, encoding="utf-8")
        git("add", "-A")
        git("commit", "-q", "-m", text)
    git("config", "diff.external", f"touch {trap};")
    git("config", "diff.evil.textconv", f"touch {trap};")
    git("config", "core.fsmonitor", f"touch {trap};")
    paths = ["../x", "--output=trap", ":(top)", ".gitattributes", "/etc/passwd", ""]
    calls = [call("changed_files"), *[call("read_changes", path=path) for path in [*paths, "a ä.txt"]]]
    last = finish(verdict="merge", remarks=[])
    listed, *wrong, right = asked("reviewer", calls, last, repository=tmp_path)
    assert json.loads(listed) == ["a ä.txt"]
    assert [text for text in wrong if not text.startswith("Tool error: ")] == []
    assert "+two" in right
    assert not trap.exists()
    agent: module[Any, Any] = load_agent(str(ROOT / "examples" / "reviewer.py"))
    with pytest.raises(ValueError, match="base"):
        agent.using(model=ScriptedModel([]))(repository=tmp_path, base="--output=trap")


def test_reviewer_example_skips_submodules(tmp_path: Path) -> None:
    def git(folder: Path, *words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(folder), *author, *words], check=True, capture_output=True)

    below = tmp_path / "below"
    below.mkdir()
    for text in ("one", "two"):
        for folder in (below, tmp_path):
            (folder / "a.txt").write_text(text, encoding="utf-8")
            git(folder, "init", "-q")
            git(folder, "add", "-A")
            git(folder, "commit", "-q", "-m", text)
    trap = tmp_path / "trap"
    git(tmp_path, "config", "diff.submodule", "diff")
    git(below, "config", "diff.external", f"touch {trap};")
    (said,) = asked(
        "reviewer", [call("read_changes", path="below")], finish(verdict="merge", remarks=[]), repository=tmp_path
    )
    assert "+Subproject commit" in said
    assert not trap.exists()


def test_reviewer_example_does_not_run_programs_configured_in_git(tmp_path: Path) -> None:
    """Check that git fetches nothing: its configuration could name a program."""

    def git(*words: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(tmp_path), *author, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    for text in ("one", "two"):
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        git("add", "-A")
        git("commit", "-q", "-m", text)
    missing = git("rev-parse", "HEAD:a.txt")
    (tmp_path / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    trap = tmp_path / "trap"
    for name, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::sh -c touch% {trap}"),
        ("protocol.ext.allow", "always"),
    ):
        git("config", name, value)
    (said,) = asked(
        "reviewer", [call("read_changes", path="a.txt")], finish(verdict="merge", remarks=[]), repository=tmp_path
    )
    assert said.startswith("Tool error: ")
    assert not trap.exists()
