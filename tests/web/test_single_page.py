"""Tests of the page in one file: `acorn show --html`, and its content. `browser/test_one_file.py` opens it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.web.desk import Desk

from acorn.cli import main

SECRET = "sk-" + "Zq7" * 12


def test_show_html_writes_page_of_saved_file_and_of_stored_run_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Desk(store="runs.db").run(question=f"leak acorns {SECRET}")
    Path("saved.json").write_text(run.to_json())
    page = Path("out.html")
    for words in (["saved.json"], [run.id[:8], "--store", "runs.db"]):
        assert main(["show", *words, "--html", str(page)]) == 0, capsys.readouterr().err
        assert "found acorns" in page.read_text()
        assert SECRET not in page.read_text()
        page.unlink()
    assert main(["show", "nothing", "--html", str(page)]) == 2
    assert "there is no store here" in capsys.readouterr().err
