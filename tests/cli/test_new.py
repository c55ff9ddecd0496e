"""Tests of `acorn new`: the new project works without changes."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import Acorn

from acorn.models.local.download import KNOWN_MODELS, download_weights


def test_generated_project_passes_its_own_tests(acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = acorn("new", "my-agent")
    assert ended.code == 0
    assert "cd my-agent" in ended.out
    assert "acorn run agent.py --text" in ended.out
    project = tmp_path / "my-agent"
    assert {path.name for path in project.iterdir()} == {
        "agent.py",
        "test_agent.py",
        "README.md",
        "pyproject.toml",
        ".gitignore",
    }
    assert tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] == "my-agent"
    assert (project / "README.md").read_text().startswith("# my-agent\n")
    assert not [path for path in project.iterdir() if "{{" in path.read_text()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=project, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout

    monkeypatch.chdir(project)
    shown = acorn("run", "agent.py", "--help")
    assert shown.code == 0
    assert "--text" in shown.out
    assert "local/smollm2" in shown.out
    assert "`--text` is missing" in acorn("run", "agent.py").err


def test_new_command_with_dot_names_project_after_current_directory(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ended = acorn("new", ".")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("Created here. Next:\n\n  python -m pytest\n")
    assert tomllib.loads((tmp_path / "here" / "pyproject.toml").read_text())["project"]["name"] == "here"


def test_new_command_quotes_path_with_space_in_printed_cd_command(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "  cd 'my projects/agent'\n" in acorn("new", "my projects/agent").out


def test_generated_readme_contains_install_command(acorn: Acorn, tmp_path: Path) -> None:
    acorn("new", tmp_path / "here")
    readme = (tmp_path / "here" / "README.md").read_text()
    assert "not on the package index yet" in readme
    assert [line for line in readme.splitlines() if "pip install" in line] == ["pip install 'path/to/acorn[local]'"]
    project = (tmp_path / "here" / "pyproject.toml").read_text()
    assert tomllib.loads(project)["project"]["dependencies"] == ["acorn-agents[local]"]
    assert "# acorn is not on the package index yet" in project


@pytest.mark.release
def test_generated_agent_file_started_with_python_prints_answer(acorn: Acorn, tmp_path: Path) -> None:
    download_weights(KNOWN_MODELS["smollm2"])
    acorn("new", tmp_path / "here")
    done = subprocess.run(
        [sys.executable, "agent.py"], cwd=tmp_path / "here", capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "name='Anna Berg' age=29\n", "")


def test_new_command_in_existing_empty_directory_creates_files(acorn: Acorn, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    assert acorn("new", tmp_path / "here").code == 0
    assert (tmp_path / "here" / "agent.py").exists()


def test_new_command_with_invalid_project_name_exits_with_2(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ["1st", "a b", "-x", ".hidden", "x" * 70, "naïve", ""]:
        with case(name):
            monkeypatch.chdir(tmp_path)
            ended = acorn("new", "--", name)
            assert ended.code == 2
            assert "is not a valid project name" in ended.err
            assert "at most 64" in ended.err
            assert list(tmp_path.iterdir()) == []


def test_new_command_with_existing_target_exits_with_2_and_changes_nothing(acorn: Acorn, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "agent.py").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, what in (("taken", "the directory exists and is not empty"), ("file", "there is a file with this name")):
        ended = acorn("new", tmp_path / name)
        assert ended.code == 2
        assert ended.err == f"error: Cannot create `{tmp_path / name}`: {what}. Choose another name.\n"
    assert (tmp_path / "taken" / "agent.py").read_text() == "mine"
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["agent.py"]
