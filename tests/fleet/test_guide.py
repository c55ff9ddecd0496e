"""Tests of the guide to fleets: its commands run as written, except for the model and the address of the store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.fleet.fleet import SOURCE, Fleet
from tests.waiting import PATIENCE, comes_true

import acorn

DOCS = Path(__file__).parents[2] / "docs" / "guides"
SCRIPT = "from acorn.testing import AnyModel\n"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "fleet.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def write_agents(folder: Path) -> None:
    text = re.sub(r'    model = ".*"', "    model = AnyModel()", blocks()[0])
    (folder / "agents.py").write_text(SCRIPT + text)


@pytest.mark.torture
def test_commands_of_workers_guide_run_as_written(postgres: str, tmp_path: Path) -> None:
    write_agents(tmp_path)
    program = blocks()[1].replace("postgresql://user:password@host/name", postgres)
    with Fleet(postgres, tmp_path) as fleet:
        fleet.start("Desk", file=tmp_path / "agents.py")
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(tmp_path)])},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=True,
        )
    first, *items = done.stdout.splitlines()
    assert len(first.split()[0]) == 32
    assert sorted(line.split()[0] for line in items) == ["0", "1"]


def _recipe(name: str) -> str:
    text = (DOCS / "fleet.md").read_text(encoding="utf-8").partition(f"### {name}\n")[2]
    return text.partition("```python\n")[2].partition("```")[0]


@pytest.mark.torture
@pytest.mark.parametrize(("name", "package"), [("Celery", "celery"), ("DBOS", "dbos")])
def test_runs_are_delivered_by_celery_and_dbos_as_in_guide(name: str, package: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", package, str(SOURCE.parent)]
    subprocess.run(install, check=True)
    write_agents(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "tasks.py").write_text(_recipe(name))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    serve = {
        "Celery": [python, "-m", "celery", "-A", "tasks", "worker", "--pool", "threads", "--concurrency", "4"],
        "DBOS": [
            python, "-c",
            "import tasks, time\ntasks.serve()\n"
            "[tasks.begin(question=str(at)) for at in range(5)]\ntime.sleep(600)",
        ],
    }[name]  # fmt: skip
    log = (tmp_path / "engine.log").open("wb")
    engine = subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        if name == "Celery":
            begin = "import tasks\n[tasks.begin(question=str(at)) for at in range(5)]"
            subprocess.run([python, "-c", begin], cwd=tmp_path, env=environment, check=True)
        runs = acorn.runs(tmp_path / "runs.db")
        assert comes_true(lambda: (tmp_path / "runs.db").exists() and len(runs.list(status="done")) == 5), (
            tmp_path / "engine.log"
        ).read_text()
    finally:
        engine.kill()
        engine.wait()
        log.close()
