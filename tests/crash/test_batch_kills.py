"""Tests of batches whose process is killed, and of approved calls during which the process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE, comes_true

import acorn

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL of POSIX")

PROGRAM = Path(__file__).with_name("batch_victim.py")


class Office:
    """The store, and the processes that work on it."""

    def __init__(self, directory: Path, store: str | None = None) -> None:
        self.store, self.log = store or str(directory / "runs.db"), directory / "log"
        self.log.touch()

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def has_begun(self) -> bool:
        return any(line.startswith("begin") for line in self.lines())

    def start(self, what: str, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), what, self.store, str(self.log), *map(str, words)]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, what: str, *words: object) -> str:
        process = self.start(what, *words)
        out, errors = process.communicate(timeout=2 * PATIENCE)
        assert process.returncode == 0, errors
        return out

    def kill_when(self, due: Callable[[], bool], what: str, *words: object) -> None:
        process = self.start(what, *words)
        assert comes_true(lambda: due() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.torture)])
def url(request: pytest.FixtureRequest) -> str | None:
    """None: a file."""
    return str(request.getfixturevalue("postgres")) if request.param == "postgres" else None


def test_killed_batch_executes_every_row_once(tmp_path: Path, url: str | None) -> None:
    count, kills = (200, 3) if IS_LONG else (40, 1)
    office = Office(tmp_path, url)
    for kill in range(1, kills + 1):
        goal = kill * count // (kills + 1)
        office.kill_when(lambda goal=goal: len(office.lines()) >= 2 * goal, "batch", count)  # type: ignore[misc]
    assert office.finish("batch", count) == ",".join(str(2 * number) for number in range(count))
    seen = Counter(office.lines())
    # Four concurrent rows may have been in progress at each kill; nothing else is repeated.
    assert sum(seen.values()) - len(seen) <= kills * 4
    assert max(seen.values()) <= kills + 1
    assert {facts.status for facts in acorn.runs(office.store).list(limit=None)} == {"done"}
    before = office.lines()
    assert office.finish("batch", count).count(",") == count - 1
    assert office.lines() == before


@pytest.mark.torture
@pytest.mark.parametrize("approved", [True, False])
def test_approved_tool_call_of_killed_process_is_never_executed_twice(
    tmp_path: Path, url: str | None, approved: bool
) -> None:
    for round in range(6):
        directory = tmp_path / str(round)
        directory.mkdir()
        office = Office(directory, url)
        if round and url is not None:
            acorn.runs(url).delete("pay")
        assert office.finish("pay", "ask") == "waits"
        runs = acorn.runs(office.store)
        requests = runs.requests()
        assert sorted(request.arguments["amount"] for request in requests) == [5, 20]
        for request in requests:
            runs.answer(request.id, approved)
        if approved:
            office.kill_when(office.has_begun, "pay", "resume")
        out = office.finish("pay", "resume")
        begun = Counter(line for line in office.lines() if line.startswith("begin"))
        if approved:
            assert set(begun.values()) == {1}
            # An effect that was about to start when the process died may not have started.
            assert len(begun) + out.count("Unknown: ") >= 2
        else:
            assert not begun
            assert "did not approve" in out
