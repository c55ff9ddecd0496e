"""Tests of `python -OO`, which removes docstrings: acorn warns, because prompts and descriptions are lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import warnings
warnings.simplefilter("always")
from acorn import module, tool

class Poet(module[None, str]):
    """Write a poem."""

    @tool
    def rhyme(self, word: str) -> str:
        """Find a rhyme."""
        return word

class Prompted(module[None, str]):
    system_prompt = "Write."
'''


def run(tmp_path: Path, *flags: str) -> str:
    file = tmp_path / "poet.py"
    file.write_text(PROGRAM)
    done = subprocess.run([sys.executable, *flags, file], capture_output=True, text=True, check=True, timeout=60)
    return done.stderr


def test_class_defined_under_optimized_python_warns_that_docstrings_are_lost(tmp_path: Path) -> None:
    stderr = run(tmp_path, "-OO")
    assert stderr.count("-OO") == 1, "One warning is enough, however many classes there are."
    assert "Poet" in stderr
    assert "docstring" in stderr
    assert "system_prompt" in stderr


def test_class_defined_under_normal_python_does_not_warn(tmp_path: Path) -> None:
    assert run(tmp_path, "-O") == ""
