"""Tests of killed processes: the run still finishes, and no committed work is repeated.

The killed program logs its effects itself, so that the tests do not depend on the store alone.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.crash.copies import restore
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE

import acorn
from acorn.journal import ModelResponded, ToolFinished

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL of POSIX")

VICTIM = [sys.executable, "-m", "tests.crash.victim"]
ROOT = Path(__file__).parents[2]
WAYS = [("sqlite", "sync"), ("postgres", "async"), ("sqlite", "async"), ("postgres", "sync")]
"""Stores and ways of calling. The short version tries the first two."""


class Line(NamedTuple):
    pid: int
    phase: str
    key: str


class Due:
    """When to kill a process: after a number of finished effects, or some time after its first one has started."""

    def __init__(self, ends: int | None = None, wait: float = 0.0) -> None:
        self._ends, self._wait = ends, wait
        self._began: float | None = None

    def __call__(self, lines: list[Line], pid: int) -> bool:
        if self._ends is not None:
            return sum(line.phase == "end" for line in lines) >= self._ends
        if self._began is None and any(line.pid == pid for line in lines):
            self._began = time.monotonic()
        return self._began is not None and time.monotonic() - self._began >= self._wait


class Scene:
    """One run, the processes that drove it, and their effects."""

    def __init__(self, directory: Path, way: str, store: str | None = None) -> None:
        self.store, self.log, self.way = store or str(directory / "runs.db"), directory / "effects.log", way
        self.log.touch()
        self.deaths: list[tuple[int, set[str]]] = []
        """Each process that was killed, and what was committed by then."""

    def lines(self) -> list[Line]:
        return [Line(**json.loads(line)) for line in self.log.read_text().splitlines() if line.endswith("}")]

    def start(self) -> subprocess.Popen[bytes]:
        command = [*VICTIM, self.store, "one", str(self.log), self.way]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def kill_when(self, due: Due) -> bytes | None:
        """Let a process drive the run until the kill is due; return its output if it ended before."""
        others = self.backends()
        process = self.start()
        limit = time.monotonic() + PATIENCE
        while process.poll() is None and not due(self.lines(), process.pid):
            assert time.monotonic() < limit, "the victim neither ended nor got there"
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        out, errors = process.communicate(timeout=PATIENCE)
        if process.returncode == 0:
            return out
        assert process.returncode == -signal.SIGKILL, errors.decode()
        while not self.backends() <= others:  # PostgreSQL completes a commit that it received before the kill.
            assert time.monotonic() < limit + PATIENCE, "a connection of the killed process does not end"
            time.sleep(0.005)
        self.deaths.append((process.pid, self.committed()))
        return None

    def backends(self) -> set[int]:
        """Return the ids of the server processes that serve the connections to the PostgreSQL database."""
        if "://" not in self.store:
            return set()
        with psycopg.connect(self.store, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return {pid for (pid,) in rows}

    def finish(self) -> dict[str, Any]:
        process = self.start()
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors.decode()
        found: dict[str, Any] = json.loads(out)
        return found

    def committed(self) -> set[str]:
        """Return the keys of the effects whose results the store has."""
        if "://" not in self.store and not Path(self.store).exists():
            return set()
        try:
            record = acorn.runs(self.store).get("one")
        except acorn.StoreError:  # Killed before it started.
            return set()
        keys: set[str] = set()
        runs = [record]
        for run in runs:
            runs += run.branches
            for entry in run.journal.entries:
                if isinstance(entry, ModelResponded):
                    keys.add(entry.content)
                elif isinstance(entry, ToolFinished):
                    keys.add(str(entry.content))
            keys |= {f"hook {n}" for n in range(1, 20) if any(f"hook {n}" in str(m["content"]) for m in run.history)}
        return keys


def judge(scene: Scene) -> Iterator[tuple[str, int]]:
    """Compare the effects with the committed ones, and return the counts."""
    lines = scene.lines()
    order = [pid for pid, _ in scene.deaths]
    last = {line.pid for line in lines} - set(order)
    assert len(last) <= 1
    begun: dict[str, list[int]] = {}
    for line in lines:
        if line.phase == "begin":
            begun.setdefault(line.key, []).append(line.pid)
    ended = {(line.pid, line.key) for line in lines if line.phase == "end"}
    between = 0
    for at, (pid, committed) in enumerate(scene.deaths):
        later = {*order[at + 1 :], *last}
        for key, pids in begun.items():
            again = [other for other in pids if other in later]
            assert not (key in committed and again), f"{key} was committed, and was begun again"
        lost = {key for ended_by, key in ended if ended_by == pid and key not in committed}
        between += bool(lost)
        for key in lost:  # It has to be repeated, except for effects that may happen only once.
            if not key.endswith("-once"):
                assert any(other in later for other in begun[key]), f"{key} was lost, and never done again"
    for key, pids in begun.items():
        if key.endswith("-once"):
            assert len(pids) == 1, f"{key} may run once only, and was begun {len(pids)} times"
        # Each kill repeats it at most once.
        assert max(Counter(pids).values()) == 1, f"{key} was begun twice by one process"
    yield "kills", len(scene.deaths)
    yield "between an effect and its commit", between
    yield "begun again", sum(len(pids) - 1 for pids in begun.values())


@pytest.mark.torture
def test_run_without_killed_process_executes_each_tool_call_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "sync")
    assert scene.finish() == {"name": "one", "turns": 5}
    begun = Counter(line.key for line in scene.lines() if line.phase == "begin")
    assert set(begun.values()) == {1}
    assert scene.committed() >= set(begun)
    assert scene.finish() == {"name": "one", "turns": 5}
    assert len(scene.lines()) == 2 * len(begun), "the output is given again, and nothing is done again"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str | None:
    """None: a file."""
    return str(request.getfixturevalue("postgres")) if request.param == "postgres" else None


@pytest.mark.parametrize(
    ("url", "way"),
    [WAYS[0], *(pytest.param(*way, marks=pytest.mark.torture) for way in WAYS[1:])],
    indirect=["url"],
)
def test_run_resumed_from_each_commit_returns_same_output(tmp_path: Path, url: str | None, way: str) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    scene = Scene(tmp_path, way, url)
    command = [*VICTIM, scene.store, "one", str(scene.log), way, str(copies)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE, stdout=subprocess.PIPE)
    found = sorted(copies.iterdir())
    assert len(found) > 30
    for copied in found if IS_LONG else found[:: len(found) // 2]:
        scene = Scene(tmp_path, way, url or str(tmp_path / f"{copied.name}.db"))
        scene.log = tmp_path / f"{copied.name}.log"
        scene.log.touch()
        restore(scene.store, copied)
        before = scene.committed()
        assert scene.finish() == {"name": "one", "turns": 5}
        begun = Counter(line.key for line in scene.lines() if line.phase == "begin")
        assert not before & set(begun), "what was committed is not begun again"
        assert set(begun.values()) <= {1}


@pytest.mark.parametrize(
    ("url", "way"),
    [*WAYS[:2], *(pytest.param(*way, marks=pytest.mark.torture) for way in WAYS[2:])],
    indirect=["url"],
)
def test_run_whose_processes_are_killed_finishes(
    tmp_path: Path, url: str | None, way: str, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(17)
    seen: Counter[str] = Counter()
    for round in range(25 if IS_LONG else 1):
        directory = tmp_path / str(round)
        directory.mkdir()
        scene = Scene(directory, way, url)
        if round and url is not None:
            acorn.runs(url).delete("one")
        for kill in range(4 if IS_LONG else 2):  # A fifth process that dies at one step would be the last.
            # Directly after the end of an effect whose commit is not complete, or at any time.
            ends = sum(line.phase == "end" for line in scene.lines())
            out = scene.kill_when(
                Due(ends + chance.randint(1, 9)) if kill % 2 == 0 else Due(wait=chance.uniform(0, 0.3))
            )
            if out is not None:
                break
        assert scene.finish() == {"name": "one", "turns": 5}
        seen.update(dict(judge(scene)))
    record_property("tried", ", ".join(f"{count} {what}" for what, count in seen.items()))
    if IS_LONG:
        assert seen["between an effect and its commit"] >= 15
