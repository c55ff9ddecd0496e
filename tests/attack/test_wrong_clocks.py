"""Attack: the clock of one process is wrong, so that it takes over a live run on the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.commits import begin
from tests.waiting import PATIENCE, comes_true

from acorn.stores import SQLiteStore
from acorn.stores.lease import this_process
from acorn.stores.port import RunClaimedError

CHILD = """
import sys, time

real, offset = time.time, float(sys.argv[2])
time.time = lambda: real() + offset

from acorn import StoreError
from acorn.stores import SQLiteStore
from acorn.stores.lease import this_process
from tests.commits import begin

store = SQLiteStore(sys.argv[1])
if sys.argv[3] == "hold":
    begin(store, "r")
    print("holds", flush=True)
    sys.stdin.read()
else:
    try:
        print(store.statuses(["r"])["r"], "claimed" if store.claim("r", this_process()) else "absent")
    except StoreError as error:
        print(store.statuses(["r"])["r"], error)
"""


def child(path: Path, offset: float, word: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CHILD, str(path), str(offset), word]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(words, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **pipes)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("offset", [3600.0, 86400.0 * 400, -3600.0])
def test_process_with_wrong_clock_does_not_take_over_live_run(tmp_path: Path, offset: float) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        begin(store, "r")
        out, _ = child(path, offset, "claim").communicate(timeout=PATIENCE)
        assert out.startswith(f"running Run r is driven by process {os.getpid()}"), out
        assert store.statuses(["r"]) == {"r": "running"}


def test_live_run_of_process_with_slow_clock_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    holder = child(path, -3600.0, "hold")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holds\n"
    with closing(SQLiteStore(path)) as store:
        with pytest.raises(RunClaimedError, match=f"is driven by process {holder.pid} "):
            store.claim("r", this_process())
        holder.communicate(timeout=PATIENCE)  # The end of a process counts at once, whatever its clock says.
        assert store.statuses(["r"]) == {"r": "stopped"}
        assert store.claim("r", this_process()) is not None


def test_run_of_process_without_heartbeats_and_with_fast_clock_is_taken_over_after_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACORN_LEASE", "0.3")
    path = tmp_path / "runs.db"
    holder = child(path, 3600.0, "hold")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holds\n"
    with closing(SQLiteStore(path)) as store:
        assert comes_true(lambda: store.statuses(["r"]) == {"r": "stopped"})
        assert store.claim("r", this_process()) is not None
    holder.communicate(timeout=PATIENCE)
