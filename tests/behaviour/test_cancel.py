"""Tests of cancelling `acall`: the running work is cancelled, and the history stays valid."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.behaviour.conftest import Script
from tests.provider_rules import assert_complete, assert_request_valid
from tests.waiting import PATIENCE

from acorn import Run, Step, ToolResult, capture, current_run, module, tool
from acorn.models import ModelRequest, ModelResponse
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling


class Pause:
    """A place to wait at, which reports arrival and cancellation."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.release = threading.Event()
        self.cancelled: list[bool] = []
        self.left: list[bool] = []

    async def aenter(self) -> None:
        self.reached.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            self.cancelled.append(True)
            await asyncio.sleep(0.01)  # Cleaning up takes time.
            self.left.append(True)
            raise

    def enter(self) -> None:
        self.reached.set()
        self.release.wait(PATIENCE)
        self.left.append(True)


class Worker(module[Any, str]):
    """Work."""

    final_output = str
    max_steps = 5


async def cancel(agent: Worker, pause: Pause) -> Run[Any]:
    """Cancel a call when it reaches the pause, and return its record."""
    with capture() as runs:
        task = asyncio.ensure_future(agent.acall())
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    run = runs[0]
    assert run.stop_reason == "cancelled"
    assert isinstance(run.error, asyncio.CancelledError)
    hung: Run[Any] = run.error.run  # type: ignore[attr-defined]
    assert hung is run
    assert run.output is None
    assert run.seconds > 0
    assert_complete(run.history)
    return run


def roles(run: Run[Any]) -> list[str]:
    return [message["role"] for message in run.history]


def told(run: Run[Any]) -> list[str]:
    return [message["content"] for message in run.history if message["role"] == "tool"]


STOPPED = "This call was not completed: the run was stopped."


def test_cancel_during_model_call_ends_run_with_result_for_every_call_in_history(script: Script) -> None:
    pause = Pause()

    class Slow(ScriptedModel):
        async def acomplete(self, request: ModelRequest) -> ModelResponse:
            if self.requests:
                await pause.aenter()
            return await super().acomplete(request)

    def look() -> str:
        return "seen"

    model = Slow([calling("look"), finish(result="never")])
    run = asyncio.run(cancel(Worker(model=model, tools=[look]), pause))
    assert pause.cancelled == pause.left == [True]
    assert roles(run) == ["system", "user", "assistant", "tool"]
    assert told(run) == ["seen"]
    assert (run.steps, run.usage.requests) == (1, 1)


def test_cancel_during_async_tool_cancels_tool_and_ends_run(script: Script) -> None:
    pause = Pause()

    async def hang() -> None:
        await pause.aenter()

    run = asyncio.run(cancel(Worker(model=script(calling("hang")), tools=[hang]), pause))
    assert pause.cancelled == pause.left == [True]  # The tool had time to clean up.
    assert told(run) == [STOPPED]


def test_cancel_during_sync_tool_ends_run_with_stopped_message_as_tool_result(script: Script) -> None:
    pause = Pause()

    threads: list[threading.Thread] = []

    def hang() -> None:
        threads.append(threading.current_thread())
        pause.enter()

    async def main() -> None:
        run = await cancel(Worker(model=script(calling("hang")), tools=[hang]), pause)
        assert pause.left == []  # A thread cannot be cancelled, and acorn does not wait for it.
        assert told(run) == [STOPPED]
        pause.release.set()
        await asyncio.to_thread(threads[0].join, PATIENCE)
        assert pause.left == [True]
        assert told(run) == [STOPPED]  # The result arrives too late.

    asyncio.run(main())


def test_cancel_during_awaitable_returned_by_sync_tool_ends_run(script: Script) -> None:
    pause = Pause()

    def hang() -> Awaitable[None]:
        return pause.aenter()

    run = asyncio.run(cancel(Worker(model=script(calling("hang")), tools=[hang]), pause))
    assert pause.left == [True]
    assert told(run) == [STOPPED]


def test_cancel_during_concurrent_tools_ends_all_calls(script: Script) -> None:
    pauses = [Pause(), Pause(), Pause()]
    all_there = Pause()
    done = threading.Event()

    async def hang(number: int) -> None:
        if all(pause.reached.is_set() for at, pause in enumerate(pauses) if at != number):
            all_there.reached.set()
        await pauses[number].aenter()

    def ready() -> str:
        done.set()
        return "ready"

    reply = calling("hang", number=0) & calling("ready") & calling("hang", number=1) & calling("hang", number=2)
    run = asyncio.run(cancel(Worker(model=script(reply), tools=[hang, ready]), all_there))
    assert [pause.left for pause in pauses] == [[True]] * 3
    assert len(told(run)) == 4
    assert done.wait(PATIENCE)


def test_cancel_does_not_start_remaining_tool_calls_of_response(script: Script) -> None:
    pause = Pause()
    made: list[int] = []

    @tool(parallel=False)
    async def hang() -> None:
        await pause.aenter()

    def other(number: int) -> None:
        made.append(number)

    reply = calling("other", number=1) & calling("hang") & calling("other", number=2)
    run = asyncio.run(cancel(Worker(model=script(reply), tools=[hang, other]), pause))
    assert made == [1]
    assert len(told(run)) == 3


def test_tool_that_ignores_cancellation_does_not_prevent_end_of_run(script: Script) -> None:
    pause = Pause()

    async def stubborn() -> str:
        try:
            await pause.aenter()
        except asyncio.CancelledError:
            return "I am still here"
        return "never"

    run = asyncio.run(cancel(Worker(model=script(calling("stubborn")), tools=[stubborn]), pause))
    assert told(run) == ["I am still here"]


class Hooked(Worker):
    """An agent that pauses in one of its hooks."""

    def __init__(self, pause: Pause, where: str, **settings: Any) -> None:
        self.pause = pause
        self.where = where
        super().__init__(**settings)

    async def system_prompt(self) -> str:
        if self.where == "system_prompt":
            await self.pause.aenter()
        return "Work."

    async def on_step(self, step: Step) -> None:  # type: ignore[override]
        if self.where == "on_step":
            step.tool_results[0].output = "changed"
            await self.pause.aenter()

    async def on_finish(self, output: str) -> None:
        if self.where == "on_finish":
            await self.pause.aenter()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("system_prompt", []),
        ("on_step", ["system", "user", "assistant", "tool"]),
        ("on_finish", ["system", "user", "assistant", "tool", "assistant", "tool"]),
    ],
)
def test_cancel_during_async_hook_ends_run(where: str, expected: list[str]) -> None:
    pause = Pause()

    def look() -> str:
        return "seen"

    model = ScriptedModel([calling("look"), finish(result="never")])
    run = asyncio.run(cancel(Hooked(pause, where, model=model, tools=[look]), pause))
    assert pause.cancelled == pause.left == [True]
    assert roles(run) == expected
    for request in model.requests:
        assert_request_valid(request)


def test_cancel_during_sync_hook_ends_run(script: Script) -> None:
    pause = Pause()

    class Slow(Worker):
        """Pause in the hook."""

        def on_step(self, step: Step) -> None:
            pause.enter()

    def look() -> str:
        return "seen"

    async def main() -> None:
        run = await cancel(Slow(model=script(calling("look")), tools=[look]), pause)
        assert pause.left == []
        assert told(run) == ["seen"]  # The tool had ended.
        pause.release.set()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["open", "tools"])
def test_cancel_while_tool_source_opens_closes_already_opened_tool_sources(script: Script, where: str) -> None:
    pause = Pause()
    diary: list[str] = []

    class Source:
        def __init__(self, name: str, pauses: bool) -> None:
            self.name, self.pauses = name, pauses

        async def open(self) -> None:
            diary.append(f"open {self.name}")
            if self.pauses and where == "open":
                await pause.aenter()

        async def tools(self) -> list[Callable[..., Any]]:
            if self.pauses and where == "tools":
                await pause.aenter()
            return []

        async def close(self) -> None:
            await asyncio.sleep(0)
            diary.append(f"close {self.name}")

    run = asyncio.run(cancel(Worker(model=script(), tools=[Source("a", False), Source("b", True)]), pause))
    assert diary == ["open a", "open b", *(["close b"] if where == "tools" else []), "close a"]
    assert run.history == []


def test_cancel_closes_open_tool_sources(script: Script) -> None:
    pause = Pause()
    diary: list[str] = []

    class Source:
        async def hang(self) -> None:
            await pause.aenter()

        def tools(self) -> list[Callable[..., Any]]:
            return [self.hang]

        async def close(self) -> None:
            await asyncio.sleep(0.01)
            diary.append(f"closed after {pause.left}")

    asyncio.run(cancel(Worker(model=script(calling("hang")), tools=[Source()]), pause))
    assert diary == ["closed after [True]"]


def test_cancel_of_outer_run_cancels_nested_run(script: Script) -> None:
    pause = Pause()
    records: list[Run[Any]] = []

    async def hang() -> None:
        records.append(current_run())
        await pause.aenter()

    inner = Worker(model=script(calling("hang")), tools=[hang])

    async def ask() -> str:
        return await inner.acall()

    outer = asyncio.run(cancel(Worker(model=script(calling("ask")), tools=[ask]), pause))
    assert pause.left == [True]
    assert records[0] is not outer
    assert records[0].stop_reason == "cancelled"
    assert told(records[0]) == [STOPPED]


def test_timeout_around_call_cancels_run(script: Script) -> None:
    pause = Pause()
    bound = asyncio.Timeout(None)

    async def hang() -> None:
        bound.reschedule(asyncio.get_running_loop().time())
        await pause.aenter()

    agent = Worker(model=script(calling("hang")), tools=[hang])

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with bound:
                await agent.acall()
        assert agent.last is not None
        assert agent.last.stop_reason == "cancelled"
        assert agent.history is agent.last.history
        assert told(agent.last) == [STOPPED]

    asyncio.run(main())
    assert pause.left == [True]


def test_cancel_before_start_sends_no_request() -> None:
    model = ScriptedModel([])

    async def main() -> None:
        with capture() as runs:
            task = asyncio.ensure_future(Worker(model=model).acall())
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert runs == []

    asyncio.run(main())
    assert model.requests == []


def test_cancel_of_one_call_does_not_cancel_other_calls_of_instance() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        busy = asyncio.Semaphore(0)

        async def hang() -> str:
            busy.release()
            await gate.wait()
            return "through"

        def reply(request: ModelRequest) -> Any:
            return finish(result="done") if request.messages[-1]["role"] == "tool" else calling("hang")

        agent = Worker(model=ScriptedModel(reply), tools=[hang])
        tasks = [asyncio.ensure_future(agent.acall()) for _ in range(10)]
        for _ in tasks:
            await busy.acquire()
        for task in tasks[::2]:
            task.cancel()
        gate.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended[::2])
        assert ended[1::2] == ["done"] * 5

    asyncio.run(main())


def test_cancelled_run_passed_as_history_sends_valid_messages(script: Script) -> None:
    pause = Pause()

    async def hang() -> None:
        await pause.aenter()

    agent = Worker(model=script(calling("hang")), tools=[hang])
    run = asyncio.run(cancel(agent, pause))
    model = script(finish(result="done after all"))
    assert agent.using(model=model, history=run)() == "done after all"
    assert [message["role"] for message in model.requests[0].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]


def test_cancelled_run_history_contains_finished_tool_results(script: Script) -> None:
    seen: list[list[ToolResult]] = []
    pause = Pause()

    class Slow(Worker):
        """Pause in the hook."""

        async def on_step(self, step: Step) -> None:  # type: ignore[override]
            seen.append(step.tool_results)
            await pause.aenter()

    def one() -> int:
        return 1

    def two() -> int:
        return 2

    run = asyncio.run(cancel(Slow(model=script(calling("one") & calling("two")), tools=[one, two]), pause))
    assert told(run) == ["1", "2"]
    assert [result.output for result in seen[0]] == [1, 2]
