"""Tests of the order in which runs end: children end before parents, and a branch that fails to start ends alone."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing, closing
from typing import Any

import pytest
from tests.behaviour.conftest import Call
from tests.waiting import AGES, PATIENCE

from acorn import capture, listen, module
from acorn.journal import Entry, RunFailed, RunInterrupted, RunStarted
from acorn.models.request import ModelRequest
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling


class Held:
    """A source without tools that records when it is closed."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary

    def open(self) -> None:
        pass

    def close(self) -> None:
        self.diary.append(self.name)

    def tools(self) -> list[Any]:
        return []


class Endings:
    """Return the branches that failed, in the order of their reports; None is the run itself."""

    def __init__(self) -> None:
        self.order: list[str | None] = []
        self._names: dict[str, str | None] = {}

    def __call__(self, entry: Entry) -> None:
        if isinstance(entry, RunStarted):
            self._names[entry.run_id] = entry.branch
        if isinstance(entry, RunFailed | RunInterrupted):
            self.order.append(self._names[entry.run_id])


def nested(diary: list[str]) -> module[Any, str]:
    """Nest three levels, each with an open source."""

    class Inner(module[Any, str]):
        """Go inside."""

        tools = [Held("inner", diary)]
        max_steps = 2

    class Outer(module[Any, str]):
        """Go outside."""

        tools = [Held("outer", diary)]
        branches = {"inner": Inner}
        max_steps = 2

    class Main(module[Any, str]):
        """Answer."""

        tools = [Held("main", diary)]
        branches = {"outer": Outer}
        max_steps = 2

    return Main(
        model=ScriptedModel([calling("outer"), calling("inner"), finish(result="a long answer " * 20)], chunk_size=8)
    )


@pytest.mark.parametrize("way", ["sync", "async"])
def test_leaving_stream_early_ends_deepest_runs_first(way: str) -> None:
    closed: list[str] = []
    agent, endings = nested(closed), Endings()
    with listen(endings):
        if way == "sync":
            with closing(agent.stream()) as chunks:
                next(chunk for chunk in chunks if chunk.branch == "outer/inner")
        else:
            asyncio.run(_leave(agent))
    assert closed == ["inner", "outer", "main"]
    assert endings.order == ["outer/inner", "outer", None]


async def _leave(agent: module[Any, str]) -> None:
    async with aclosing(agent.astream()) as chunks:
        async for chunk in chunks:
            if chunk.branch == "outer/inner":
                return


@pytest.mark.every_way
def test_branch_whose_prompt_method_raises_returns_tool_error(call: Call) -> None:
    error = ValueError("no prompt today")

    class Wordless(module[Any, str]):
        def system_prompt(self) -> str:
            raise error

    class Main(module[Any, str]):
        """Answer."""

        branches = {"wordless": Wordless}
        max_steps = 3

    model = ScriptedModel([calling("wordless"), finish(result="without it")])
    with capture() as runs:
        assert call(Main(model=model)) == "without it"
    assert [(child.stop_reason, child.error) for child in runs[0].branches] == [("error", error)]
    assert "no prompt today" in str(model.requests[1].messages[-1]["content"])


def test_ctrl_c_in_branch_ends_siblings_deepest_first() -> None:
    class Inner(module[Any, str]):
        """Go inside."""

    class Outer(module[Any, str]):
        """Go outside."""

        branches = {"inner": Inner}
        max_steps = 2

    class Aside(module[Any, str]):
        """Go aside."""

    class Main(module[Any, str]):
        """Answer."""

        branches = {"outer": Outer, "aside": Aside}
        max_steps = 2

    is_inside, may_go_on = threading.Event(), threading.Event()

    def reply(request: ModelRequest) -> Any:
        who = str(request.messages[0]["content"]).rsplit("\n\n", 1)[-1]
        if who == "Answer.":
            return calling("outer") & calling("aside")
        if who == "Go outside.":
            return calling("inner")
        if who == "Go inside.":
            is_inside.set()
            may_go_on.wait(AGES)
            return finish(result="late")
        assert is_inside.wait(PATIENCE)
        raise KeyboardInterrupt

    endings = Endings()
    try:
        with listen(endings), pytest.raises(KeyboardInterrupt):
            Main(model=ScriptedModel(reply))()
    finally:
        may_go_on.set()
    assert endings.order == ["aside", "outer/inner", "outer", None]
