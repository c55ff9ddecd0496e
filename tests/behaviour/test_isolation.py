"""Tests of concurrent calls of one instance: each run has separate state."""

import asyncio
import copy
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Call, Script
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete, assert_request_valid
from tests.waiting import PATIENCE

from acorn import AcornError, Run, Step, current_run, module, tool
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling

THREADS = 64 if IS_LONG else 16
TASKS = 256 if IS_LONG else 64


class Who(BaseModel):
    name: str


class Sight(BaseModel):
    """What one run could see."""

    inputs: list[str] = []
    deps: list[str] = []
    ids: list[str] = []
    names: list[str] = []


def names_in(value: object) -> list[str]:
    """Return the runs that are mentioned; each has a name such as `<17>`."""
    return sorted(set(re.findall(r"<(\d+)>", str(value).replace("&lt;", "<").replace("&gt;", ">"))))


class Crowd(module[Who, str]):
    """Look around, then say who you are."""

    max_steps = 4

    def __init__(self, **settings: Any) -> None:
        self.sights: dict[str, Sight] = {}
        self.meet: Callable[[], Any] = lambda: None
        super().__init__(**settings)

    def system_prompt(self) -> str:
        self._look("prompt")
        return f"You are {current_run().deps}."

    @tool
    def look(self, name: str) -> str:
        self._look(name)
        self.meet()
        self._look(name)
        return f"{name} looked"

    @tool
    async def alook(self, name: str) -> str:
        self._look(name)
        await asyncio.sleep(0)
        self._look(name)
        return f"{name} looked"

    def on_step(self, step: Step) -> None:
        self._look(str(step.tool_calls) + str(step.tool_results))
        step.add_to_context(f"step of {step.run.input.name}")  # type: ignore[attr-defined]
        assert step.run is current_run()

    def on_finish(self, output: str) -> None:
        self._look(output)

    def _look(self, text: str) -> None:
        run = current_run()
        sight = self.sights.setdefault(run.id, Sight())
        sight.inputs.append(run.input.name)  # type: ignore[attr-defined]
        sight.deps.append(str(run.deps))
        sight.ids.append(run.id)
        sight.names += names_in([text, run.history, self.history])
        assert self.history is run.history


class Crowded(ScriptedModel):
    """A model of two steps that records requests in which two runs are mixed."""

    def __init__(self) -> None:
        self.mixed: list[list[str]] = []
        super().__init__(self._reply)

    def _reply(self, request: ModelRequest) -> Reply:
        found = names_in(request.messages)
        if len(found) != 1:
            self.mixed.append(found)
        name = f"<{found[0]}>"
        steps = sum(message["role"] == "assistant" for message in request.messages)
        if steps == 2:
            return finish(result=name)
        return calling("look", name=name) & calling("alook", name=name) if steps else calling("look", name=name)

    def judge(self, count: int) -> None:
        assert self.mixed == []
        assert len(self.requests) == 3 * count
        for request in self.requests[:: len(self.requests) // 16 or 1]:
            assert_request_valid(request)


def judge(agent: Crowd, run: Run[Any], number: int) -> None:
    """Check that one run saw nothing of another."""
    name = f"<{number}>"
    assert run.output == name
    assert run.input == Who(name=name)
    assert run.steps == 2
    assert run.usage.requests == 3
    assert names_in(run.history) == [str(number)]
    assert_complete(run.history)
    sight = agent.sights[run.id]
    assert set(sight.inputs) == {name}
    assert set(sight.ids) == {run.id}
    assert set(sight.names) == {str(number)}


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads switch as often as Python allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call a function in many threads at once."""
    ready = threading.Barrier(count, timeout=PATIENCE)

    def begin(number: int) -> Any:
        ready.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


@pytest.mark.usefixtures("hasty")
def test_one_instance_called_in_concurrent_threads_has_separate_runs() -> None:
    model = Crowded()
    agent = Crowd(model=model)
    barrier = threading.Barrier(THREADS, timeout=PATIENCE)
    agent.meet = barrier.wait  # Each tool waits until all runs are inside theirs.

    def work(number: int) -> Run[str]:
        assert agent.last is None
        assert agent.history == []
        run = agent.run(name=f"<{number}>")
        assert agent.last is run
        assert agent.history is run.history
        assert agent.sights[run.id].deps[0] == "None"
        with pytest.raises(AcornError, match="This code is not inside a run"):
            current_run()
        return run

    runs = in_threads(THREADS, work)
    for number, run in enumerate(runs):
        judge(agent, run, number)
    assert len({run.id for run in runs}) == THREADS
    assert agent.last is None  # No run has ended in this thread.
    model.judge(THREADS)


def test_one_instance_called_in_concurrent_tasks_has_separate_runs() -> None:
    model = Crowded()
    agent = Crowd(model=model)
    inside: list[int] = []

    async def work(number: int) -> Run[str]:
        name = f"<{number}>"
        assert agent.last is None
        outcome = await (agent.acall(name=name) if number % 2 else agent.arun(name=name))
        run = agent.last
        assert run is not None
        assert outcome == name or outcome is run
        assert agent.history is run.history
        inside.append(number)
        return run

    async def main() -> None:
        runs = await asyncio.gather(*(work(number) for number in range(TASKS)))
        for number, run in enumerate(runs):
            judge(agent, run, number)
        assert agent.last in runs  # This task has no run, but runs ended in this thread.

    asyncio.run(main())
    assert sorted(inside) == list(range(TASKS))
    model.judge(TASKS)


@pytest.mark.usefixtures("hasty")
def test_one_instance_called_in_threads_with_and_without_event_loops_has_separate_runs() -> None:
    model = Crowded()
    agent = Crowd(model=model)

    def work(number: int) -> Run[str]:
        if number % 3 == 0:
            return agent.run(name=f"<{number}>")
        if number % 3 == 1:
            return asyncio.run(_acall(agent, number))
        return asyncio.run(_call_inside(agent, number))

    for number, run in enumerate(in_threads(24, work)):
        judge(agent, run, number)
    model.judge(24)


async def _acall(agent: Crowd, number: int) -> Run[str]:
    return await agent.arun(name=f"<{number}>")


async def _call_inside(agent: Crowd, number: int) -> Run[str]:
    return agent.run(name=f"<{number}>")


@pytest.mark.usefixtures("hasty")
def test_copies_created_by_using_and_called_concurrently_have_separate_settings_and_last_runs() -> None:
    model = Crowded()
    agent = Crowd(model=model)

    def work(number: int) -> Run[str]:
        other = agent.using(deps=f"deps of <{number}>", temperature=number / 100)
        assert other.last is None
        run = other.run(name=f"<{number}>")
        assert other.last is run
        assert run.deps == f"deps of <{number}>"
        assert other.using().last is None
        assert other.using().history == []
        assert set(agent.sights[run.id].deps) == {run.deps}
        return run

    for number, run in enumerate(in_threads(32, work)):
        judge(agent, run, number)
        assert run.history[0]["content"] == f"You are deps of <{number}>."
    assert agent.last is None
    for request in model.requests:
        (name,) = names_in(request.messages)
        assert request.temperature == int(name) / 100
    assert agent.temperature == 0.7


@pytest.mark.usefixtures("hasty")
def test_concurrent_first_calls_of_new_instance_all_return_outputs() -> None:
    def reply(request: ModelRequest) -> Reply:
        return finish(result="done")

    class Quick(module[Any, str]):
        final_output = str

    for _ in range(20):
        agent = Quick(model=ScriptedModel(reply), temperature=0.1)

        def work(number: int, agent: Quick = agent) -> list[Any]:
            return [
                agent() if number % 2 else agent.using(temperature=0.2)(),
                agent.using(deps=1)(),
                copy.copy(agent)(),
            ]

        assert in_threads(8, work) == [["done"] * 3] * 8


# State of one run


class Editor(module[Who, str]):
    """Changes its run in the hook."""

    system_prompt = "You edit."
    max_steps = 3

    @tool
    def look(self) -> str:
        return "looked"

    def on_step(self, step: Step) -> None:
        if step.run.input == Who(name="changed"):
            step.temperature = 0.1
            step.remove_tool("look")
            self.history = [{"role": "user", "content": "changed"}]


def test_hook_changes_affect_only_current_run() -> None:
    meeting = threading.Barrier(2, timeout=PATIENCE)

    def reply(request: ModelRequest) -> Reply:
        meeting.wait()
        return calling("look") if request.temperature == 0.7 and len(request.messages) == 2 else finish(result="done")

    model = ScriptedModel(reply)
    agent = Editor(model=model)
    changed, kept = in_threads(2, lambda number: agent.run(name=["changed", "kept"][number]))
    assert changed.history[0] == {"role": "user", "content": "changed"}
    assert [message["role"] for message in kept.history] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    after = {len(request.messages): request for request in model.requests[2:]}
    assert sorted(after) == [2, 4]  # acorn puts the input back.
    assert [len(after[2].tools), len(after[4].tools)] == [1, 2]
    assert [after[2].temperature, after[4].temperature] == [0.1, 0.7]


@pytest.mark.every_way
def test_each_call_starts_with_empty_history(call: Call, script: Script) -> None:
    model = script(*(finish(result=str(number)) for number in range(3)))

    class Fresh(module[Who, str]):
        """Answer."""

    agent = Fresh(model=model)
    runs = [call.run(agent, name=str(number)) for number in range(3)]
    assert [len(request.messages) for request in model.requests] == [2, 2, 2]
    assert [run.output for run in runs] == ["0", "1", "2"]
    histories = [run.history for run in runs]
    assert all(one is not other for one in histories for other in histories if one != other)


@pytest.mark.every_way
@pytest.mark.edits_history
def test_prior_history_is_not_changed_by_new_run(call: Call, script: Script) -> None:
    class Meddler(module[Who, str]):
        """Rewrite history."""

        max_steps = 3

        def on_step(self, step: Step) -> None:
            messages: list[Any] = self.history
            for message in messages:
                if message["role"] == "user" and isinstance(message["content"], list):
                    message["content"][0]["text"] = "rewritten"
                message["note"] = "rewritten"
            self.history.append({"role": "user", "content": "more"})

    prior: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": "hi"},
    ]
    kept = copy.deepcopy(prior)
    agent = Meddler(model=script("hm", finish(result="done"), "hm", finish(result="done"))).using(history=prior)
    first, second = call.run(agent, name="a"), call.run(agent, name="b")
    assert prior == kept
    assert first.history[1] is not second.history[1]
    again = Meddler(model=script("hm", finish(result="done"))).using(history=first)
    before = copy.deepcopy(first.history)
    call(again, name="c")
    assert first.history == before


def test_copy_does_not_change_original(call: Call, script: Script) -> None:
    class Answerer(module[Who, str]):
        """Answer."""

    one, other = script(finish(result="one"), name="one"), script(finish(result="other"), name="other")
    agent = Answerer(model=one)
    copied = agent.using(model=other, temperature=0, deps={"a": 1}, history=[{"role": "user", "content": "before"}])
    assert call(copied, name="x") == "other"
    assert call(agent, name="x") == "one"
    assert (agent.model, agent.temperature) == (one, 0.7)
    assert len(one.requests[0].messages) == 2
    assert len(other.requests[0].messages) == 3


def test_sync_call_inside_running_loop_returns_output() -> None:
    model = Crowded()
    agent = Crowd(model=model)
    other_ran: list[bool] = []

    async def other() -> None:
        other_ran.append(True)

    async def main() -> Run[str]:
        task = asyncio.ensure_future(other())
        run = agent.run(name="<1>")
        assert other_ran == []  # It blocks the loop like any ordinary call.
        assert agent.last is run
        await task
        return run

    run = asyncio.run(main())
    judge(agent, run, 1)
    assert agent.last is run


@pytest.mark.every_way
def test_history_read_in_outer_method_called_by_inner_agent_is_history_of_outer_run(call: Call, script: Script) -> None:
    seen: list[Any] = []

    class Outer(module[Who, str]):
        """Ask another."""

        max_steps = 3

        @tool
        def ask(self) -> str:
            return Inner(model=script(calling("tell"), finish(result="inner")), tools=[self.tell])(name="inner")

        def tell(self) -> str:
            seen.append((self.history, current_run().input))
            return "told"

    class Inner(module[Who, str]):
        """Be asked."""

        max_steps = 3

    agent = Outer(model=script(calling("ask"), finish(result="outer")))
    run = call.run(agent, name="outer")
    ((history, given),) = seen
    assert history is run.history
    assert given == Who(name="inner")


@pytest.mark.every_way
def test_instance_that_calls_itself_inside_its_tool_returns_inner_and_outer_output(call: Call, script: Script) -> None:
    class Recursive(module[Who, str]):
        """Ask yourself."""

        max_steps = 3

        @tool
        def again(self) -> str:
            before = self.history
            inner = self.run(name="inner")
            assert self.history is before
            assert self.last is inner
            assert current_run().input == Who(name="outer")
            return f"inner was {inner.output}"

    replies = [calling("again"), finish(result="first"), finish(result="second")]
    agent = Recursive(model=script(*replies))
    run = call.run(agent, name="outer")
    assert run.output == "second"
    assert run.history[3]["content"] == "inner was first"


def test_last_run_of_ended_thread_is_freed_from_memory() -> None:
    class Plain(module[Any, str]):
        final_output = str

    agent = Plain(model=ScriptedModel(lambda request: finish(result="done")))
    mine = agent.run()
    left: list[weakref.ref[Run[str]]] = []
    thread = threading.Thread(target=lambda: left.append(weakref.ref(agent.run())))
    thread.start()
    thread.join(PATIENCE)
    del thread
    gc.collect()
    assert [kept() for kept in left] == [None]
    assert agent.last is mine


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_process_executes_async_tools() -> None:
    program = """
        import asyncio, os, sys, threading
        from acorn import capture, module, tool
        from acorn.testing import ScriptedModel, call, finish

        @tool
        async def work() -> str:
            await asyncio.sleep(0)
            return str(os.getpid())

        class Worker(module):
            final_output = str
            max_steps = 3
            tools = [work]

        def use():
            model = ScriptedModel([call("work"), call("work") & call("work"), finish(result="done")])
            run = Worker(model=model).run()
            assert run.output == "done"
            pids = {message["content"] for message in run.history if message["role"] == "tool"}
            assert pids == {str(os.getpid()), "Finished."}, pids

        use()  # the parent has its private loop
        children = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                threading.Timer(20, os._exit, [3]).start()
                use()
                os._exit(0)
            children.append(child)
        use()
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(codes)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "[0, 0]\n"), ended.stderr
