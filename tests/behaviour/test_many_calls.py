"""Tests of many tool calls in one response: the cost per call is constant, and no call is repeated."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.behaviour.conftest import Call
from tests.cases import each_case
from tests.long_version import IS_LONG

import acorn
from acorn import module, tool
from acorn.stores import MemoryStore
from acorn.stores.port import Commit, PendingCommit
from acorn.stores.sqlite import SQLiteStore
from acorn.testing import Reply, ScriptedModel, call, finish

HERE = str(Path(acorn.__file__).parent)
FEW, MANY = 20, 200


@tool(repeatable=True)
def look(number: int) -> dict[str, int]:
    """Look."""
    return {"seen": number}


@tool(repeatable=True)
async def alook(number: int) -> dict[str, int]:
    """Look."""
    return {"seen": number}


@tool(repeatable=True, parallel=False)
def look_alone(number: int) -> dict[str, int]:
    """Look."""
    return {"seen": number}


@tool(repeatable=True, timeout=3600)
def look_in_time(number: int) -> dict[str, int]:
    """Look."""
    return {"seen": number}


class Inner(module[Any, str]):
    """Look."""

    final_output = str


class Looker(module[Any, str]):
    """Look at many things."""

    final_output = str
    tools = [look, alook, look_alone, look_in_time, Inner]
    max_steps = 10


def calls(name: str, count: int) -> Reply:
    every = Reply()
    for number in range(count):
        every = every & (call(name) if name == "Inner" else call(name, f"c{number}", number=number))
    return every


def model(name: str, count: int) -> ScriptedModel:
    def reply(request: Any) -> Reply:
        if "Look at many things" not in str(request.messages[0]["content"]):
            return finish("seen")
        return finish("done") if len(request.messages) > 2 else calls(name, count)

    return ScriptedModel(reply)


class Counter:
    """Count the executed lines of acorn in all threads: like time, but equal on every machine."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, given: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        return self._count

    def _count(self, frame: FrameType, event: str, given: Any) -> Any:
        self.lines += event == "line"
        return self._count


def lines_of(act: Callable[[], Any]) -> int:
    counter, before = Counter(), sys.gettrace()
    threading.settrace(counter)
    sys.settrace(counter)
    try:
        act()
    finally:
        sys.settrace(before)
        threading.settrace(None)
    return counter.lines


class Weighing(MemoryStore):
    """A store that records how much it received."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def commit(self, commit: Commit) -> PendingCommit:
        for change in commit.changes:
            self.size += sum(map(len, change.entries)) + len(change.state or "") + len(change.record or "")
        return super().commit(commit)


@pytest.mark.parametrize(
    ("name", "way", "is_kept"),
    [
        (name, way, is_kept)
        for number, name in enumerate(["look", "alook", "look_alone", "look_in_time", "Inner"])
        for at, way in enumerate(["sync", "async"])
        for is_kept in (False, True)
        if IS_LONG or (number + at + is_kept) % 2  # Pairs; in the long version of the tests, triples.
    ],
)
def test_work_and_stored_bytes_per_tool_call_do_not_grow_with_number_of_calls(
    name: str, way: str, is_kept: bool
) -> None:
    def work(count: int) -> tuple[float, float]:
        store = Weighing() if is_kept else None
        agent = Looker(model=model(name, count), store=store)
        lines = lines_of(lambda: Call(way)(agent))
        return lines / count, (store.size if store is not None else 0) / count

    work(2)  # Built once.
    few, many = work(FEW), work(MANY)
    assert many[0] < 1.5 * few[0]
    assert many[1] <= 1.5 * few[1]


@each_case("kind", ["memory", "sqlite"])
def test_finished_tool_calls_of_large_response_are_not_repeated_on_resume(kind: str, tmp_path: Path) -> None:
    store: Any = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "runs.db")
    made: list[int] = []

    class Stops(module[Any, str]):
        """Look at many things."""

        final_output = str
        max_steps = 10

        @tool(repeatable=True, parallel=False)
        def look(self, number: int) -> Any:
            """Look."""
            made.append(number)
            if made == list(range(15)):
                raise KeyboardInterrupt
            return {"seen": number} if number % 2 else f"seen {number}"

    agent = Stops(model=ScriptedModel([calls("look", 20), finish("done")]), store=store)
    with pytest.raises(KeyboardInterrupt):
        agent.using(run_id="many")()
    assert agent.resume("many") == "done"
    assert made == [*range(15), *range(14, 20)]
    (kept,) = store.read("many")
    said = next(json.loads(entry) for entry in kept.entries if '"ToolResultsAdded"' in entry)
    told = [content for _, content, *_ in said["results"]]
    assert told == [f'{{"seen":{number}}}' if number % 2 else f"seen {number}" for number in range(20)]
