"""What `make test` runs the tests with: every test once, with what its folder shares, and no end that is not told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import AGES

ROOT = Path(__file__).parents[2]
SHARED = """
import pytest

@pytest.fixture
def note(request):
    with open({ran!r}, "a") as file:
        print(request.node.name, file=file)
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tools.side_by_side", "--processes=2", "-q", "-pno:cacheprovider", str(folder)]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=AGES, check=False)


def test_every_test_is_run_once_and_a_failure_is_shown(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for folder in ("contract", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conftest.py").write_text(SHARED.format(ran=str(ran)))
        for file in ("one", "two", "three"):
            text = f"def test_{folder}_{file}(note):\n    assert '{folder} {file}' != 'other two'\n"
            (tmp_path / folder / f"test_{folder}_{file}.py").write_text(text)
    done = run(tmp_path)
    expected = [f"test_{folder}_{file}" for folder in ("contract", "other") for file in ("one", "two", "three")]
    assert sorted(ran.read_text().split()) == sorted(expected), done.stdout + done.stderr
    assert done.returncode == 1
    assert "test_other_two.py:2: AssertionError" in done.stdout
    assert "\n1 failed, 5 passed\n" in done.stdout
    (tmp_path / "other" / "test_other_two.py").unlink()
    done = run(tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "5 passed")


def test_a_process_that_dies_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "test_fine.py").write_text("def test_fine():\n    pass\n")
    (tmp_path / "test_dies.py").write_text("import os\n\ndef test_dies():\n    os._exit(0)\n")
    done = run(tmp_path)
    assert done.returncode != 0, done.stdout + done.stderr
    assert "a process ended before its tests did" in done.stdout


def test_no_tests_are_no_success(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 5
