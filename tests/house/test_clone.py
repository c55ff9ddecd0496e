"""Tests of the commands in the README, as a new user types them in a clone of the repository.

The tests in a clone are part of `make release-check`, because they install acorn again. Their environment is empty
except for Python, the package index and downloaded weights.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.waiting import PATIENCE

from acorn.cli import main
from acorn.models.local.download import weights_folder

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
COMMANDS = [[line.partition("#")[0].strip() for line in block.strip().splitlines()] for block in BLOCKS]
# The settings of the package index and of certificates.
KEPT = re.compile(r"(PIP|UV|SSL|REQUESTS|CURL|HTTPS?|NO)_.*|HOME|TMPDIR|LANG|SYSTEMROOT", re.IGNORECASE)


def environment(clone: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    # The reader activates the environment that `make demo` creates.
    path = os.pathsep.join([str(clone / ".venv" / "bin"), os.environ.get("PATH", "")])
    return {**kept, "PATH": path, "ACORN_HOME": str(weights_folder()), "PIP_NO_COMPILE": "1"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stranger") / "acorn"
    if (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True, timeout=60)
    else:  # An unpacked archive.
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".venv*", ".*_cache", "__pycache__"))
    return place


def typed(commands: list[str], clone: Path) -> str:
    """Return the output of commands typed into one shell."""
    script = "\n".join(["set -e", *commands])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=clone,
        env=environment(clone),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_readme_start_section_contains_make_demo_and_make_test() -> None:
    assert COMMANDS[0] == ["make demo", "make test"]
    assert len(COMMANDS) == 2


def test_make_and_acorn_commands_of_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in COMMANDS[0]:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, flags=re.MULTILINE), command
    words = [command.split() for command in COMMANDS[1]]
    used = {each[1] for each in words if each[0] == "acorn"}
    assert used == {"pull", "new", "run", "show"}
    for name in used:
        assert main([name, "--help"]) == 0


def test_make_demo_announces_installation_before_pip_install(tmp_path: Path) -> None:
    command = ["make", "--dry-run", f"VENV={tmp_path / 'new'}", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    lines = done.stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if "pip install" in line)
    assert "echo" in lines[at - 1]
    assert "Installing acorn and its dependencies" in lines[at - 1]
    assert "--quiet" not in lines[at]


@pytest.mark.release
def test_make_demo_in_fresh_clone_prints_programs_and_their_output(clone: Path) -> None:
    said = typed(["make demo"], clone)
    for program in sorted((clone / "src" / "acorn" / "cli" / "programs").iterdir()):
        longest = max(program.read_text(encoding="utf-8").splitlines(), key=lambda line: (len(line) < 79, len(line)))
        assert longest in said
    assert re.search(r"^(positive|negative) - ", said, flags=re.MULTILINE)
    assert re.search(r"^Person\(name='.+', age=\d+\)$", said, flags=re.MULTILINE)


@pytest.mark.release
def test_first_agent_commands_of_readme_print_answer_in_fresh_clone(clone: Path) -> None:
    said = typed(COMMANDS[1], clone)
    answers = re.findall(r"^\{.*\}$", said, flags=re.MULTILINE)
    assert [json.loads(answer) for answer in answers] == [{"name": "Anna Berg", "age": 29}] * 2
    assert (clone / "my-agent" / "run.json").exists()
    assert "passed" in said
