"""Test of the README: its code runs as written, with model replies from hidden comments."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.pages import ROOT, run_page


def test_readme_code_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page(ROOT / "README.md", tmp_path, monkeypatch)
    assert names["run"].output.answer == "Brazil"
