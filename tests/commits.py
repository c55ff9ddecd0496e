"""Commits of fictional runs for tests of stores, and identities of live, dead and remote processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from acorn.stores.lease import this_process
from acorn.stores.port import Change, Commit, Process, RunHeader, Status, Store
from acorn.types import Request, Usage

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


def birth(parent: str | None = None, **known: Any) -> RunHeader:
    branch = None if parent is None else '{"place": "1/a"}'
    facts: dict[str, Any] = {"agent": "desk:Desk", "branch": branch, "input": '{"n": 1}', "started": NOON, **known}
    return RunHeader(parent=parent, **facts)


def change(
    run_id: str,
    entries: Sequence[str] = (),
    *,
    since: int = 0,
    born: RunHeader | None = None,
    status: Status = "running",
    steps: int = 0,
    **known: Any,
) -> Change:
    facts: dict[str, Any] = {
        "record": '{"record": 1}',
        "state": '{"state": 1}',
        "model": "scripted",
        "usage": Usage(11, 7, 5, 3, 1),
        "cost": 0.25,
        "seconds": 1.5,
        "stop_reason": None,
        "error": None,
        **known,
    }
    return Change(
        run_id=run_id, header=born, offset=since, entries=list(entries), status=status, steps=steps, **facts
    )  # fmt: skip


def begin(
    store: Store, run_id: str, holder: Process | None = None, *, status: Status = "running", **known: Any
) -> None:
    """Return a new run with one entry."""
    first = change(run_id, ["0"], born=birth(**known), status=status)
    store.commit(Commit(run_id, holder or this_process(), [first])).result()


def go_on(
    store: Store,
    run_id: str,
    since: int,
    holder: Process | None = None,
    *,
    requests: Sequence[Request] = (),
    **known: Any,
) -> None:
    """Return one more entry: its own number."""
    more = change(run_id, [str(since)], since=since, **known)
    store.commit(Commit(run_id, holder or this_process(), [more], requests)).result()


def request(request_id: str, run_id: str, *, after: int = 0, **known: Any) -> Request:
    facts: dict[str, Any] = {
        "kind": "question",
        "question": "Which one?",
        "tool": "ask_human",
        "arguments": {"question": "Which one?"},
        "branch": None,
        **known,
    }
    return Request(id=request_id, run_id=run_id, asked=NOON + timedelta(seconds=after), **facts)


def elsewhere(name: str = "a") -> Process:
    """Return a process of another machine, known only by its lease."""
    return Process(f"holder-{name}", f"host-{name}", f"boot-{name}", 812, "77")


def dead_here(name: str = "dead") -> Process:
    """Return a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    here = this_process()
    return Process(f"holder-{name}", here.host, here.boot, process.pid, "1")
