"""Tests of `with agent:`, which opens the tool sources once for all calls in the block."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from tests.behaviour.conftest import Call, Script
from tests.cases import each_case
from tests.waiting import AGES, PATIENCE

from acorn import AcornError, Run, Step, module
from acorn._drive.sources import OpenSource, sources_of
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling


def open_sources_of(agent: module[Any, Any], source: Any) -> OpenSource | None:
    sources = sources_of(agent)
    return None if sources is None else sources.find(source)


class Worker(module[Any, str]):
    """Use the tools."""

    final_output = str
    max_steps = 5


class Source:
    """A source that keeps a log."""

    def __init__(self, name: str, diary: list[str], *, fails: str = "") -> None:
        self.name = name
        self.diary = diary
        self.fails = fails

    def write(self, what: str) -> None:
        self.diary.append(f"{what} {self.name}")
        if what == self.fails:
            raise OSError(f"{self.name} cannot {what}")

    def open(self) -> None:
        self.write("open")

    def close(self) -> None:
        self.write("close")

    def tools(self) -> Any:
        self.write("list")
        return [self.fetch]

    def fetch(self, what: str) -> str:
        """Fetch something."""
        return f"{what} from {self.name}"


class Server(Source):
    """An async source with a task group, which the task that entered it must leave."""

    loop: Any = None

    async def __aenter__(self) -> None:
        self.manager = self.session()
        await self.manager.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self.manager.__aexit__(*error)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            self.loop = asyncio.get_running_loop()
            self.write("open")
            yield
            group.cancel_scope.cancel()
            self.write("close")

    async def tools(self) -> Any:
        self.write("list")
        return [self.fetch]

    async def fetch(self, what: str) -> str:  # type: ignore[override]
        """Fetch something."""
        await anyio.lowlevel.checkpoint()
        assert asyncio.get_running_loop() is self.loop
        return f"{what} from {self.name}"


KINDS = each_case("kind", [Source, Server])


@contextmanager
def block(call: Call, agent: module[Any, Any]) -> Iterator[Callable[..., Any]]:
    """`with agent:` or `async with agent:`, and how to call an agent in it."""
    if call.way != "async":
        with agent as entered:
            assert entered is agent
            yield call.run
        return
    with asyncio.Runner() as runner:

        async def enter() -> None:
            assert await agent.__aenter__() is agent

        async def leave(error: BaseException | None) -> None:
            await agent.__aexit__(None if error is None else type(error), error, None)

        async def run(other: module[Any, Any]) -> Any:
            return await other.arun()

        runner.run(enter())
        try:
            yield lambda other: runner.run(run(other))
        except BaseException as error:
            runner.run(leave(error))
            raise
        runner.run(leave(None))


def read(run: Any) -> list[str]:
    """Return what the model read of its tools, without the answer to `__finish__`."""
    return [message["content"] for message in run.history if message["role"] == "tool"][:-1]


def twice(script: Script) -> ScriptedModel:
    return script(calling("fetch", what="1"), finish(result="a"), calling("fetch", what="2"), finish(result="b"))


@pytest.mark.every_way
@KINDS
def test_with_agent_block_opens_tool_sources_once_for_all_calls(call: Call, script: Script, kind: Any) -> None:
    diary: list[str] = []
    agent = Worker(model=twice(script), tools=[kind("a", diary)])
    with block(call, agent) as run:
        assert diary == ["open a"]
        assert [read(run(agent)), read(run(agent))] == [["1 from a"], ["2 from a"]]
        assert diary == ["open a", "list a", "list a"]
    assert diary == ["open a", "list a", "list a", "close a"]


@pytest.mark.every_way
@KINDS
def test_call_after_with_agent_block_opens_tool_sources_again(call: Call, script: Script, kind: Any) -> None:
    diary: list[str] = []
    agent = Worker(model=twice(script), tools=[kind("a", diary)])
    with block(call, agent) as run:
        run(agent)
    diary.clear()
    assert read(call.run(agent)) == ["2 from a"]
    assert diary == ["open a", "list a", "close a"]


@pytest.mark.every_way
@KINDS
def test_nested_with_agent_block_does_not_reopen_tool_sources(call: Call, kind: Any) -> None:
    diary: list[str] = []
    agent = Worker(model="none", tools=[kind("a", diary)])
    with block(call, agent):
        with block(call, agent), agent:
            assert diary == ["open a"]
        assert diary == ["open a"]
    assert diary == ["open a", "close a"]
    with agent:
        assert diary == ["open a", "close a", "open a"]
    assert diary == ["open a", "close a", "open a", "close a"]


@pytest.mark.every_way
@KINDS
def test_with_agent_block_left_by_exception_closes_tool_sources(call: Call, kind: Any) -> None:
    diary: list[str] = []
    agent = Worker(model="none", tools=[kind("a", diary), kind("b", diary)])
    with pytest.raises(LookupError, match="in the block"), block(call, agent):
        raise LookupError("in the block")
    assert diary == ["open a", "open b", "close b", "close a"]


@pytest.mark.every_way
@KINDS
def test_failed_call_in_with_agent_block_does_not_close_tool_sources(call: Call, script: Script, kind: Any) -> None:
    diary: list[str] = []

    class Broken(Worker):
        def on_step(self, step: Step) -> None:
            raise LookupError("in the hook")

    agent = Broken(model=script(calling("fetch", what="1")), tools=[kind("a", diary)])
    with block(call, agent) as run:
        with pytest.raises(LookupError, match="in the hook"):
            run(agent)
        assert diary == ["open a", "list a"]
    assert diary[-1] == "close a"


@pytest.mark.every_way
@KINDS
def test_tool_source_that_fails_to_open_closes_already_opened_tool_sources(call: Call, kind: Any) -> None:
    diary: list[str] = []
    sources = [kind("a", diary), kind("b", diary, fails="open"), kind("c", diary)]
    agent = Worker(model="none", tools=sources)
    with pytest.raises((OSError, ExceptionGroup)) as caught, block(call, agent):
        raise AssertionError("the block is not entered")
    assert "b cannot open" in repr(caught.value)
    assert diary == ["open a", "open b", "close a"]
    sources[1].fails = ""
    with block(call, agent):
        assert diary[3:] == ["open a", "open b", "open c"]


@pytest.mark.every_way
@KINDS
def test_second_tool_source_that_fails_to_close_is_reported_in_note_of_raised_error(call: Call, kind: Any) -> None:
    diary: list[str] = []
    agent = Worker(model="none", tools=[kind("a", diary, fails="close"), kind("b", diary, fails="close")])
    with pytest.raises((OSError, ExceptionGroup)) as caught, block(call, agent):
        pass
    assert "b cannot close" in repr(caught.value)
    assert ["a cannot close" in note for note in caught.value.__notes__] == [True]
    with pytest.raises(LookupError, match="in the block") as hidden, block(call, agent):
        raise LookupError("in the block")
    assert len(hidden.value.__notes__) == 2
    assert diary == ["open a", "open b", "close b", "close a"] * 2


@KINDS
def test_agent_copy_created_by_using_shares_open_tool_sources(call: Call, script: Script, kind: Any) -> None:
    diary: list[str] = []
    source, other = kind("a", diary), kind("b", diary)
    agent = Worker(model="none", tools=[source])
    with block(call, agent) as run:
        copied = agent.using(model=script(calling("fetch", what="1"), finish(result="a")), temperature=0.1)
        again = copied.using(deps="something")
        assert (
            open_sources_of(again, source)
            is open_sources_of(copied, source)
            is open_sources_of(agent, source)
            is not None
        )
        assert read(run(copied)) == ["1 from a"]
        assert diary == ["open a", "list a"]
        with again.using(tools=[source, other]) as more:
            assert diary == ["open a", "list a", "open b"]
            assert open_sources_of(more, other) is not None
            assert open_sources_of(agent, other) is None
        assert diary == ["open a", "list a", "open b", "close b"]
    assert diary[-1] == "close a"
    assert open_sources_of(copied, source) is None


def test_copied_or_pickled_agent_starts_with_closed_tool_sources() -> None:
    source = Source("a", [])
    agent = Worker(model="none", tools=[source])
    with agent:
        assert open_sources_of(agent, source) is not None
        for other in (copy.copy(agent), copy.deepcopy(agent)):
            assert [open_sources_of(other, entry) for entry in other.tools] == [None]
        loaded = pickle.loads(pickle.dumps(Worker(model="none")))
        assert open_sources_of(loaded, source) is None
        assert "_acorn_open" not in agent.__getstate__()


def test_second_agent_with_same_tool_source_opens_tool_source_again(call: Call, script: Script) -> None:
    diary: list[str] = []
    source = Source("a", diary)
    agent, other = Worker(model="none", tools=[source]), Worker(model=script(finish(result="b")), tools=[source])
    with block(call, agent) as run:
        run(other)
    assert diary == ["open a", "open a", "list a", "close a", "close a"]


def test_call_in_with_agent_block_without_tool_sources_returns_output(call: Call, script: Script) -> None:
    agent = Worker(model=script(finish(result="a")))
    with block(call, agent) as run:
        assert run(agent).output == "a"


def test_sync_async_and_stream_calls_in_with_agent_block_use_open_tool_sources(script: Script) -> None:
    diary: list[str] = []
    model = ScriptedModel(
        lambda request: (
            finish(result="done")
            if any(message["role"] == "tool" for message in request.messages)
            else calling("fetch", what="x") & calling("fetch", what="y")
        )
    )
    agent = Worker(model=model, tools=[Server("a", diary)])

    async def many() -> list[Run[str]]:
        return await asyncio.gather(*(agent.arun() for _ in range(5)))

    async def main() -> list[Any]:
        async with agent:
            return [*await many(), *await asyncio.gather(*(asyncio.to_thread(agent.run) for _ in range(5)))]

    with agent:
        runs = [agent.run(), *asyncio.run(many()), *agent.stream()]
    assert [read(run) for run in runs if hasattr(run, "history")] == [["x from a", "y from a"]] * 6
    assert [read(run) for run in asyncio.run(main())] == [["x from a", "y from a"]] * 10
    assert [diary.count(f"{what} a") for what in ("open", "list", "close")] == [2, 17, 2]


def test_sync_call_in_async_with_agent_block_raises_error_that_suggests_acall() -> None:
    agent = Worker(model=ScriptedModel([finish(result="done")]), tools=[Server("a", [])])

    async def main() -> None:
        async with agent:
            with pytest.raises(AcornError, match=r"`await agent\.acall\(\.\.\.\)` here"):
                agent()
            assert await agent.acall() == "done"

    asyncio.run(main())


def test_with_agent_block_entered_by_concurrent_tasks_opens_tool_source_only_after_it_was_closed() -> None:
    diary: list[str] = []
    source = Server("a", diary)
    agent = Worker(model="none", tools=[source])

    async def one(at: int) -> None:
        await asyncio.sleep(0.001 * (at % 3))
        async with agent:
            assert open_sources_of(agent, source) is not None
            await asyncio.sleep(0.001 * (at % 5))

    async def main() -> None:
        await asyncio.gather(*(one(at) for at in range(40)))

    asyncio.run(main())
    assert diary == ["open a", "close a"] * (len(diary) // 2)


def test_with_agent_block_entered_by_concurrent_threads_opens_tool_source_only_after_it_was_closed() -> None:
    diary: list[str] = []
    source = Server("a", diary)
    agent = Worker(model="none", tools=[source])
    wrong: list[Any] = []

    def one() -> None:
        for _ in range(20):
            with agent:
                if open_sources_of(agent, source) is None:
                    wrong.append("not open")

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert diary == ["open a", "close a"] * (len(diary) // 2)


def test_task_cancelled_while_entering_with_agent_block_does_not_affect_other_tasks() -> None:
    diary: list[str] = []

    class Slow(Server):
        async def __aenter__(self) -> None:
            await asyncio.sleep(0.05)
            await super().__aenter__()

    agent = Worker(model="none", tools=[Slow("a", diary)])

    async def enter() -> None:
        async with agent:
            await asyncio.sleep(0)

    async def main() -> None:
        first, second, third = (asyncio.create_task(enter()) for _ in range(3))
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.gather(first, third)
        with pytest.raises(asyncio.CancelledError):
            await second
        await asyncio.wait_for(enter(), 20)

    asyncio.run(main())
    assert diary == ["open a", "close a"] * (len(diary) // 2)


def test_with_agent_block_cancelled_while_opening_closes_opened_tool_sources() -> None:
    diary: list[str] = []

    class Stuck(Server):
        async def tools(self) -> Any:
            return []

        @asynccontextmanager
        async def session(self) -> AsyncIterator[None]:
            async with super().session():
                bound.reschedule(asyncio.get_running_loop().time())
                await asyncio.sleep(AGES)
                yield

    bound = asyncio.Timeout(None)
    first, stuck = Server("a", diary), Stuck("b", diary)
    agent = Worker(model="none", tools=[first, stuck])

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with bound, agent:
                raise AssertionError("the block is not entered")
        assert open_sources_of(agent, first) is None
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert diary == ["open a", "open b", "close a"]


class Mortal(Server):
    """Can be killed."""

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        self.task = asyncio.current_task()
        async with super().session():
            yield

    def die(self) -> asyncio.Task[Any]:
        assert self.task is not None
        self.loop.call_soon_threadsafe(self.task.cancel)
        return self.task


def test_tool_source_that_died_in_with_agent_block_is_reopened_by_next_call() -> None:
    diary: list[str] = []
    source = Mortal("a", diary)
    script = [calling("fetch", what="1"), finish(result="a"), calling("fetch", what="2"), finish(result="b")]
    agent = Worker(model=ScriptedModel(script), tools=[source])

    async def main() -> Any:
        async with agent:
            await asyncio.wait({source.die()}, timeout=PATIENCE)
            return await agent.arun()

    with agent:
        killed = source.die()
        while not killed.done():
            time.sleep(0.001)
        assert read(agent.run()) == ["1 from a"]
    assert read(asyncio.run(main())) == ["2 from a"]
    assert diary.count("open a") == 4
