"""Attack: the database is down when a worker starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cutting_proxy import CuttingProxy
from tests.ports import free_port
from tests.waiting import PATIENCE, comes_true

from acorn.stores import PostgresStore

AGENT = """
from acorn import module
from acorn.testing import ScriptedModel, finish


class Desk(module[str, str]):
    "Answer."
    model = ScriptedModel(lambda request: finish("done"))
"""
SUBMIT = "import agents, sys; print(agents.Desk(store=sys.argv[1]).submit('hello').result(60))"

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    (tmp_path / "agents.py").write_text(AGENT, encoding="utf-8")

    def start(store: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "acorn", "work", "agents.py", "--store", store]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (tmp_path / "log").open("wb") as log:
            return subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=log, stderr=log)

    return start


def test_worker_waits_for_absent_database_and_then_works(postgres: str, start: Start, tmp_path: Path) -> None:
    parts, port = urlsplit(postgres), free_port()
    store = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    worker = start(store)
    try:
        said = (tmp_path / "log").read_text
        assert comes_true(lambda: "The worker waits and tries again" in said())
        assert said().count("Cannot connect to") == 1
        proxy = CuttingProxy(parts.port or 5432, own_port=port)
        try:
            assert comes_true(lambda: "working on `agents:Desk`" in said())
            words = [sys.executable, "-c", SUBMIT, postgres]
            ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert ended.stdout == "done\n", ended.stderr
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        finally:
            proxy.close()
    finally:
        worker.kill()
        worker.wait()


def test_waiting_worker_stops_at_sigterm(start: Start, tmp_path: Path) -> None:
    worker = start(f"postgresql://me@127.0.0.1:{free_port()}/x")
    try:
        assert comes_true(lambda: "The worker waits" in (tmp_path / "log").read_text())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()
        worker.wait()


def test_worker_with_wrong_user_or_database_exits_with_2(postgres: str, start: Start, tmp_path: Path) -> None:
    with closing(PostgresStore(postgres)) as store:
        store.list()
    parts = urlsplit(postgres)
    for url in (
        f"postgresql://nobody_{os.getpid()}:geheim@127.0.0.1:{parts.port}{parts.path}",
        f"postgresql://{parts.username}@127.0.0.1:{parts.port}/no_such_database",
    ):
        assert start(url).wait(PATIENCE) == 2
        assert "geheim" not in (tmp_path / "log").read_text()
