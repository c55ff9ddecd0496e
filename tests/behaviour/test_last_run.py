"""Tests of `agent.last`, `agent.history` and `agent.thread` outside a run.

They refer to the last run of the current task, or else of the current thread.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from tests.cases import each_case
from tests.waiting import PATIENCE

from acorn import Run, module, tool
from acorn.models import ModelRequest
from acorn.testing import Failure, ScriptedModel, finish
from acorn.testing import call as calling


class Who(module[Any, str]):
    """Say who."""

    initial_input = [("name", str, "nobody")]
    final_output = str


def by_name(request: ModelRequest) -> Any:
    content = str(request.messages[-1]["content"])
    if "fails" in content:
        return Failure(400)
    return finish(result=content.partition("<name>")[2].partition("<")[0])


def who() -> Who:
    return Who(model=ScriptedModel(by_name))


async def in_wait_for(agent: Who) -> None:
    await asyncio.wait_for(agent.acall(name="a"), PATIENCE)


async def in_a_task_group(agent: Who) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.acall(name="a"))


async def in_a_task(agent: Who) -> None:
    await asyncio.create_task(agent.acall(name="a"))


async def in_an_iterator(agent: Who) -> None:
    async def read() -> None:
        async for _ in agent.astream(name="a"):
            pass

    await asyncio.create_task(read())


@each_case("way", [in_wait_for, in_a_task_group, in_a_task, in_an_iterator])
def test_agent_last_contains_run_made_by_another_task_of_same_thread(way: Callable[[Who], Awaitable[None]]) -> None:
    agent = who()

    async def main() -> None:
        await way(agent)
        look()

    def look() -> None:
        assert agent.last is not None
        assert agent.last.output == "a"
        assert agent.history is agent.last.history
        assert agent.thread == agent.last.thread

    asyncio.run(main())
    look()


def test_agent_last_contains_run_of_earlier_notebook_cell() -> None:
    agent, loop = who(), asyncio.new_event_loop()

    async def first() -> None:
        assert agent.last is None
        await agent.acall(name="a")

    async def second() -> str | None:
        return None if agent.last is None else agent.last.output

    try:
        loop.run_until_complete(first())
        assert loop.run_until_complete(second()) == "a"
    finally:
        loop.close()


def test_last_run_is_separate_in_two_tasks() -> None:
    agent = who()

    async def one(name: str, ended: asyncio.Event, other: asyncio.Event) -> None:
        run = await agent.arun(name=name)
        ended.set()
        await other.wait()
        assert agent.last is run
        assert agent.history is run.history

    async def main() -> None:
        a, b = asyncio.Event(), asyncio.Event()
        await asyncio.gather(one("a", a, b), one("b", b, a))

    asyncio.run(main())


def test_last_run_is_separate_in_two_threads() -> None:
    agent = who()
    asyncio.run(agent.acall(name="here"))
    found: list[Any] = []

    def other() -> None:
        found.append(agent.last)
        asyncio.run(agent.acall(name="there"))
        found.append(agent.last)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(PATIENCE)
    assert [None if run is None else run.output for run in found] == [None, "there"]
    assert agent.last is not None
    assert agent.last.output == "here"


def test_agent_last_inside_async_tool_is_run_before_current_run() -> None:
    class Looker(module[Any, str]):
        """Look."""

        final_output = str
        max_steps = 3

        @tool
        async def look(self) -> str:
            """Look back."""
            return "nothing" if self.last is None else str(self.last.output)

    agent = Looker(model=ScriptedModel([calling("look"), finish(result="a"), calling("look"), finish(result="b")]))

    async def main() -> None:
        assert [(await agent.arun()).history[3]["content"] for _ in range(2)] == ["nothing", "a"]

    asyncio.run(main())


# Memory


def left_alive(references: list[weakref.ref[Run[Any]]]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


def test_last_runs_of_ended_tasks_are_freed_from_memory() -> None:
    agent, runs = who(), list[weakref.ref[Run[Any]]]()

    async def one() -> None:
        runs.append(weakref.ref(await agent.arun(name="a")))

    async def main() -> None:
        for _ in range(5):
            await asyncio.create_task(one())

    asyncio.run(main())
    assert left_alive(runs) == 1
    assert agent.last is runs[-1]()


def test_failed_runs_of_ended_tasks_are_freed_from_memory() -> None:
    agent, runs = who(), list[weakref.ref[Run[Any]]]()

    async def one() -> None:
        me = asyncio.current_task()  # As `asyncio.timeout() as limit` and a TaskGroup hold it.
        assert me is not None
        try:
            await agent.arun(name="fails")
        except Exception as error:
            runs.append(weakref.ref(error.run))  # type: ignore[attr-defined]

    async def main() -> None:
        for _ in range(100):
            await asyncio.create_task(one())

    asyncio.run(main())
    assert left_alive(runs) < 20


def test_failed_runs_of_ended_threads_are_freed_from_memory() -> None:
    agent, runs = who(), list[weakref.ref[Run[Any]]]()

    def one() -> None:
        me = threading.current_thread()
        assert me.is_alive()
        try:
            agent.run(name="fails")
        except Exception as error:
            runs.append(weakref.ref(error.run))  # type: ignore[attr-defined]

    for _ in range(100):
        thread = threading.Thread(target=one)
        thread.start()
        thread.join(PATIENCE)
    del thread
    assert left_alive(runs) < 20


def test_discarded_instance_and_its_last_run_are_freed_from_memory() -> None:
    async def main() -> tuple[weakref.ref[Who], weakref.ref[Run[Any]]]:
        agent = who()
        await agent.acall(name="a")
        assert agent.last is not None
        return weakref.ref(agent), weakref.ref(agent.last)

    references = asyncio.run(main())
    gc.collect()
    assert [reference() for reference in references] == [None, None]
