"""Tests of runs that end while a child run or a sibling run is still active."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import pytest
from tests.waiting import PATIENCE, given_time

import acorn
from acorn import ModelError, Run, StreamChunk, current_run, module, tool
from acorn.journal import BranchStarted, Entry, RunFailed
from acorn.models import ModelRequest, ModelResponse
from acorn.testing import Failure, Reply, ScriptedModel, call, finish


def finishing(request: Any) -> Reply:
    return finish(x="1")


class Plain(module):
    """Say x."""

    final_output = [("x", str)]
    model = ScriptedModel(finishing)


@tool
def fast() -> str:
    return "f"


class Failed:
    """The first failure of a branch, as a listener, and a tool that waits for it."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, entry: Entry) -> None:
        if isinstance(entry, RunFailed):
            self.event.set()

    def slow(self) -> str:
        """Return after the failure."""
        assert self.event.wait(PATIENCE)
        return "s"


class Watched(module):
    """Watch."""

    final_output = [("x", str)]
    max_steps = 3

    def on_stream(self, chunk: StreamChunk[Any]) -> None:
        if chunk.tool_result:
            raise ValueError("boom")


class Top(module):
    """Top."""

    final_output = [("y", str)]
    max_steps = 3


def run(agent: Any, how: str) -> Run[Any]:
    return agent.run() if how == "sync" else asyncio.run(agent.arun())


def results(run: Run[Any]) -> list[str]:
    return [message["content"] for message in run.history if message["role"] == "tool"]


HOWS = pytest.mark.parametrize("how", ["sync", "async"])


@HOWS
def test_failing_branch_ends_nested_branches(how: str) -> None:
    over, failed = threading.Event(), Failed()

    class Waiting(ScriptedModel):
        def complete(self, request: ModelRequest) -> ModelResponse:
            over.wait(PATIENCE)
            return super().complete(request)

        async def acomplete(self, request: ModelRequest) -> ModelResponse:
            await asyncio.sleep(PATIENCE)
            return await super().acomplete(request)

    class Late(module):
        """Late."""

        final_output = [("x", str)]
        model = Waiting([finish(x="1")])

    child = Watched(tools=[Plain, Late], model=ScriptedModel([call("plain") & call("late")]))
    top = Top(tools=[child, failed.slow], model=ScriptedModel([call("watched") & call("slow"), finish(y="ok")]))
    with acorn.listen(failed):
        record = run(top, how)
    over.set()
    assert results(record)[:2] == ["Tool error: ValueError: boom", "s"]
    (child_run,) = record.branches
    assert [(each.branch, each.stop_reason) for each in child_run.branches] == [
        ("watched/plain", "finish"),
        ("watched/late", "cancelled"),
    ]


@HOWS
def test_single_turn_agent_tool_whose_hook_fails_returns_tool_error(how: str) -> None:
    child = Watched(max_steps=None, tools=[fast], model=ScriptedModel([call("fast")]))
    top = Top(tools=[child], model=ScriptedModel([call("watched"), finish(y="ok")]))
    assert results(run(top, how))[0] == "Tool error: ValueError: boom"


def test_run_cancelled_twice_has_stop_reason_cancelled_and_result_for_every_call() -> None:
    begun, tidies = asyncio.Event(), asyncio.Event()

    @tool
    async def tidy() -> str:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            tidies.set()
            await asyncio.sleep(PATIENCE)
        return ""

    async def main() -> Run[Any]:
        with acorn.capture() as runs:
            task = asyncio.create_task(Top(tools=[tidy], model=ScriptedModel([call("tidy")])).arun())
            for moment in (begun, tidies):
                await moment.wait()
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return runs[0]

    record = asyncio.run(main())
    assert record.stop_reason == "cancelled"
    assert [message["role"] for message in record.history] == ["system", "user", "assistant", "tool"]


class Branching(Top):
    """Branch."""

    branches = {"called": Plain}

    @tool
    def own(self) -> str:
        return str(self.branch(Plain).x)


@HOWS
@pytest.mark.parametrize("name", ["called", "own"])
def test_ctrl_c_raised_in_listener_at_branch_start_ends_run_as_cancelled(how: str, name: str) -> None:
    def interrupt(entry: Entry) -> None:
        if isinstance(entry, BranchStarted):
            raise KeyboardInterrupt

    with acorn.capture() as runs, acorn.listen(interrupt), pytest.raises(KeyboardInterrupt):
        run(Branching(model=ScriptedModel([call(name)])), how)
    assert [each.stop_reason for each in runs] == ["cancelled"]


@HOWS
def test_branch_started_by_timed_out_tool_is_cancelled_with_run(how: str) -> None:
    requests: list[Any] = []
    ended = threading.Event()

    def answer(request: Any) -> Reply:
        requests.append(request)
        return Reply(delay=0.01) & call("again")

    class Long(module):
        """Long."""

        final_output = [("x", str)]
        max_steps = 1000
        loop_guard = None
        model = ScriptedModel(answer)

        @tool
        def again(self) -> str:
            return "again"

    def hurry(seconds: float) -> Run[Any] | None:
        class Hasty(Top):
            """Hasty."""

            @tool(timeout=seconds)
            def begin(self) -> str:
                try:
                    return str(self.branch(Long).x)
                finally:
                    ended.set()

        ended.clear()
        record = run(Hasty(model=ScriptedModel([call("begin"), finish(y="ok")])), how)
        return record if record.branches else None

    record = given_time(hurry, 0.05)
    asked = len(requests)
    assert ended.wait(PATIENCE)
    assert len(requests) <= asked + 1
    assert [each.stop_reason for each in record.branches] == ["cancelled"]


def test_listener_does_not_receive_journal_entries_of_runs_that_it_starts() -> None:
    heard: list[str] = []

    def listener(entry: Entry) -> None:
        heard.append(entry.run_id)
        Plain()()

    with acorn.listen(listener):
        record = Plain().run()
    assert set(heard) == {record.id}


class TwoWordsError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def test_pickled_record_of_failed_branch_contains_error_text() -> None:
    class Odd(Plain):
        """Odd."""

        def on_finish(self, output: Any) -> None:
            odd: Any = {"role": "user", "content": "x", "odd": lambda: None}
            current_run().history.append(odd)
            raise TwoWordsError("a", "b")

    with pytest.raises(ModelError) as caught:
        Top(tools=[Odd], model=ScriptedModel([call("odd"), Failure(400)]))()
    (failed,) = pickle.loads(pickle.dumps(caught.value)).run.branches
    assert str(failed.error) == "TwoWordsError: a b"


@HOWS
def test_ctrl_c_in_nested_branch_ends_all_parents(how: str) -> None:
    @tool
    def stop() -> str:
        raise KeyboardInterrupt

    class Inner(Plain):
        """Inner."""

        max_steps = 2
        tools = [stop]
        model = ScriptedModel([call("stop")])

    class Middle(Plain):
        """Middle."""

        max_steps = 2
        tools = [Inner]
        model = ScriptedModel([call("inner")])

    with acorn.capture() as runs, pytest.raises(KeyboardInterrupt) as caught:
        run(Top(tools=[Middle], model=ScriptedModel([call("middle")])), how)
    (top,) = (each for each in runs if each.branch is None)
    (middle,) = top.branches
    (inner,) = middle.branches
    assert [each.error for each in (top, middle, inner)] == [caught.value] * 3
    assert [each.stop_reason for each in (top, middle, inner)] == ["cancelled"] * 3


@HOWS
def test_ctrl_c_while_closing_tool_sources_of_failed_run_raises_keyboard_interrupt(how: str) -> None:
    class Source:
        def tools(self) -> list[Any]:
            return [fast]

        def close(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Top(tools=[Source()], model=ScriptedModel([Failure(400)])), how)
