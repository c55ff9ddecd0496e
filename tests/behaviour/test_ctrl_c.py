"""Tests of Ctrl-C: the call raises immediately, every run record ends, and no request is repeated.

One test sends the signal while all work is in progress and lets the work continue after the call has raised. Because a
signal can arrive at any time, another test raises it at each line of acorn, one line after the other.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from tests.cases import case
from tests.ctrl_c import Strike
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete
from tests.waiting import PATIENCE

from acorn import Run, Step, StreamChunk, capture, module, tool
from acorn._drive import bridge
from acorn.models import ModelRequest, ModelResponse
from acorn.testing import ScriptedModel, finish
from acorn.testing import call as calling
from acorn.thread import to_messages

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
    # A thread that Python was starting when the signal came may fail in Python's own lock; nothing waits for it.
    pytest.mark.filterwarnings("ignore:Exception ignored in thread started by:pytest.PytestUnraisableExceptionWarning"),
]

TRIES = 500 if IS_LONG else 3


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, also if the tests run under nohup, and let threads switch often.

    Python drops exceptions that are raised during garbage collection, for example in a callback for an ended thread.
    """
    before, pace = signal.signal(signal.SIGINT, signal.default_int_handler), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    gc.disable()
    yield
    gc.enable()
    sys.setswitchinterval(pace)
    signal.signal(signal.SIGINT, before)


class Gate:
    """Hold every caller until it is opened."""

    made = 0

    def __init__(self) -> None:
        Gate.made += 1
        if Gate.made % 50 == 0:
            gc.collect()
        self.busy = threading.Semaphore(0)
        self.opened = threading.Event()
        self.waited_in_vain = False
        self.inside = 0
        self._lock = threading.Lock()
        self._is_empty = threading.Condition(self._lock)
        self._others = set(threading.enumerate())
        """The threads of earlier tests. A tool that a test abandoned may still wait."""

    def stay(self) -> str:
        self._count(1)
        try:
            self.busy.release()  # The signal may come from here on.
            # In the main thread, a signal that arrives just before a wait is noticed after it.
            is_main = threading.current_thread() is threading.main_thread()
            waits = itertools.repeat(0.005, int(PATIENCE / 0.005)) if is_main else [PATIENCE]
            self.waited_in_vain = not any(map(self.opened.wait, waits))
        finally:
            self._count(-1)
        return "late"

    async def astay(self) -> str:
        self._count(1)
        try:
            self.busy.release()
            await asyncio.sleep(PATIENCE)
            self.waited_in_vain = True
        finally:
            self._count(-1)
        return "late"

    def _count(self, change: int) -> None:
        with self._lock:
            self.inside += change
            self._is_empty.notify_all()

    def interrupt_when_busy(self, count: int) -> None:
        def interrupt() -> None:
            for _ in range(count):
                assert self.busy.acquire(timeout=PATIENCE)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()

    def open_and_wait(self) -> None:
        """Release all callers, and wait until their work is done."""
        self.opened.set()
        with self._is_empty:
            assert self._is_empty.wait_for(lambda: not self.inside, PATIENCE)
        for thread in threading.enumerate():
            if thread.name == "acorn-call" and thread not in self._others:
                with suppress(RuntimeError):  # A thread that was interrupted while it was started.
                    thread.join(PATIENCE)
                    assert not thread.is_alive()


class Inner(module[None, bool]):
    """Inner."""

    max_steps = 3


class Outer(module[None, bool]):
    """Outer."""

    max_steps = 3


Scene = Callable[[Gate], tuple[module[Any, Any], ScriptedModel]]
"""An agent that gets busy at the gate, and its model."""


def two_tools(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("stay") & calling("stay")])
    return Outer(model=model, tools=[gate.stay]), model


def two_tools_with_a_time_limit(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("stay") & calling("stay")])
    return Outer(model=model, tools=[tool(timeout=PATIENCE)(gate.stay)]), model


def one_tool_with_a_time_limit(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("stay")])
    return Outer(model=model, tools=[tool(timeout=PATIENCE)(gate.stay)]), model


def two_branches(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("inner") & calling("inner"), calling("stay"), calling("stay")])
    return Outer(model=model, branches={"inner": Inner}, tools=[gate.stay]), model


def two_branches_of_two_tools(gate: Gate) -> tuple[Outer, ScriptedModel]:
    both = calling("stay") & calling("stay")
    model = ScriptedModel([calling("inner") & calling("inner"), both, both])
    return Outer(model=model, branches={"inner": Inner}, tools=[gate.stay]), model


def one_branch(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("inner"), calling("stay")])
    return Outer(model=model, branches={"inner": Inner}, tools=[gate.stay]), model


def branch_all_in_a_tool(gate: Gate) -> tuple[Outer, ScriptedModel]:
    class Asking(Outer):
        """Outer."""

        @tool
        def ask(self) -> list[bool]:
            return self.branch_all([(Inner, {}), (Inner, {})])

    model = ScriptedModel([calling("ask"), calling("stay"), calling("stay")])
    return Asking(model=model, tools=[gate.stay]), model


def branch_all_in_a_tool_beside_another(gate: Gate) -> tuple[Outer, ScriptedModel]:
    agent, _ = branch_all_in_a_tool(gate)
    model = ScriptedModel([calling("ask") & calling("stay"), calling("stay"), calling("stay")])
    return agent.using(model=model), model


def branch_all_in_on_step(gate: Gate) -> tuple[Outer, ScriptedModel]:
    class Asking(Outer):
        """Outer."""

        def on_step(self, step: Step) -> None:
            if step.branch is None:
                self.branch_all([(Inner, {}), (Inner, {})])

    model = ScriptedModel([calling("look"), calling("stay"), calling("stay")])
    return Asking(model=model, tools=[gate.stay, look]), model


def more_branches_than_may_run_at_once(gate: Gate) -> tuple[Outer, ScriptedModel]:
    class Asking(Outer):
        """Outer."""

        def on_step(self, step: Step) -> None:
            self.branch_all([(Inner, {})] * 6, concurrency=2)

    model = ScriptedModel([calling("look"), calling("stay"), calling("stay")])
    return Asking(model=model, tools=[gate.stay, look]), model


def a_branch_in_a_tool_beside_another(gate: Gate) -> tuple[Outer, ScriptedModel]:
    class Asking(Outer):
        """Outer."""

        @tool
        def ask(self) -> bool:
            return self.branch(Inner)

    model = ScriptedModel([calling("ask") & calling("stay"), calling("stay")])
    return Asking(model=model, tools=[gate.stay]), model


def an_async_tool(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("astay")])
    return Outer(model=model, tools=[gate.astay]), model


def two_async_tools(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("astay") & calling("astay")])
    return Outer(model=model, tools=[gate.astay]), model


def an_async_tool_beside_a_plain_one(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = ScriptedModel([calling("astay") & calling("stay")])
    return Outer(model=model, tools=[gate.astay, gate.stay]), model


def an_async_hook(gate: Gate) -> tuple[Outer, ScriptedModel]:
    class Hooked(Outer):
        """Outer."""

        async def on_step(self, step: Step) -> None:  # type: ignore[override]
            await gate.astay()

    model = ScriptedModel([calling("look")])
    return Hooked(model=model, tools=[look]), model


def a_branch_awaited_in_an_async_tool(gate: Gate) -> tuple[Outer, ScriptedModel]:
    class Asking(Outer):
        """Outer."""

        @tool
        async def ask(self) -> bool:
            return await self.abranch(Inner)

    model = ScriptedModel([calling("ask"), calling("astay")])
    return Asking(model=model, tools=[gate.astay]), model


class StayingModel(ScriptedModel):
    """Wait at the gate with the last of its replies."""

    def __init__(self, gate: Gate, replies: list[Any], *, answers: int) -> None:
        super().__init__(replies)
        self.gate, self.answers = gate, itertools.count(-answers)

    def complete(self, request: ModelRequest) -> ModelResponse:
        response = super().complete(request)
        if next(self.answers) >= 0:
            self.gate.stay()
        return response


def the_model_of_two_branches(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = StayingModel(gate, [calling("inner") & calling("inner"), calling("look"), calling("look")], answers=1)
    return Outer(model=model, branches={"inner": Inner}, tools=[look]), model


def the_model_of_one_branch(gate: Gate) -> tuple[Outer, ScriptedModel]:
    model = StayingModel(gate, [calling("inner"), calling("look")], answers=1)
    return Outer(model=model, branches={"inner": Inner}, tools=[look]), model


def the_model_of_branches_in_a_hook(gate: Gate) -> tuple[Outer, ScriptedModel]:
    agent, _ = branch_all_in_on_step(gate)
    model = StayingModel(gate, [calling("look"), finish(result=True), finish(result=True)], answers=1)
    return agent.using(model=model), model


def a_listener_to_the_stream(gate: Gate) -> tuple[Outer, ScriptedModel]:
    class Hearing(Outer):
        """Outer."""

        def on_stream(self, chunk: StreamChunk[bool]) -> None:
            pass

    model = ScriptedModel([calling("inner") & calling("inner"), calling("stay"), calling("stay")])
    return Hearing(model=model, branches={"inner": Inner}, tools=[gate.stay]), model


def look() -> str:
    """Look."""
    return "seen"


SCENES: list[tuple[Scene, int]] = [
    (two_tools, 2),
    (two_tools_with_a_time_limit, 2),
    (one_tool_with_a_time_limit, 1),
    (two_branches, 2),
    (two_branches_of_two_tools, 4),
    (one_branch, 1),
    (branch_all_in_a_tool, 2),
    (branch_all_in_a_tool_beside_another, 3),
    (branch_all_in_on_step, 2),
    (more_branches_than_may_run_at_once, 2),
    (a_branch_in_a_tool_beside_another, 2),
    (an_async_tool, 1),
    (two_async_tools, 2),
    (an_async_tool_beside_a_plain_one, 2),
    (an_async_hook, 1),
    (a_branch_awaited_in_an_async_tool, 1),
    (the_model_of_two_branches, 2),
    (the_model_of_one_branch, 1),
    (the_model_of_branches_in_a_hook, 2),
    (a_listener_to_the_stream, 2),
]


def whole(run: Run[Any]) -> Iterator[Run[Any]]:
    yield run
    for branch in run.branches:
        yield from whole(branch)


def picture(run: Run[Any]) -> list[Any]:
    return [
        (each.id, each.stop_reason, repr(each.error), each.seconds, len(each.journal.entries), list(each.history))
        for each in whole(run)
    ]


def assert_cancelled(run: Run[Any]) -> None:
    for each in whole(run):
        assert each.stop_reason == "cancelled"
        assert each.output is None
        assert_complete(each.history)
        assert to_messages(each.thread) == each.history


def interrupted(act: Callable[[], Any], gate: Gate, busy: int) -> Run[Any]:
    """Run it, interrupt it, and return the record."""
    gate.interrupt_when_busy(busy)
    with pytest.raises(KeyboardInterrupt) as caught:
        act()
    assert not gate.waited_in_vain
    run: Run[Any] = caught.value.run  # type: ignore[attr-defined]
    return run


def check(scene: Scene, busy: int, *, streams: bool = False) -> Run[Any]:
    """Interrupt a run, and check its record before and after the abandoned work ends."""
    gate = Gate()
    agent, model = scene(gate)
    run = interrupted(partial(list, agent.stream()) if streams else agent, gate, busy)
    assert isinstance(run.error, KeyboardInterrupt)
    record: Run[Any] = run.error.run  # type: ignore[attr-defined]
    assert record is run
    assert_cancelled(run)
    left, asked = picture(run), len(model.requests)
    gate.open_and_wait()
    assert picture(run) == left
    assert len(model.requests) == asked
    return run


@pytest.mark.parametrize("scenes", [[each] for each in SCENES] if IS_LONG else [SCENES])
def test_ctrl_c_during_call_raises_keyboard_interrupt_immediately(scenes: list[tuple[Scene, int]]) -> None:
    for scene, busy in scenes:
        for _ in range(10 * TRIES if scene is two_branches else TRIES):
            with case(scene.__name__):
                check(scene, busy)


def test_ctrl_c_during_stream_iteration_raises_keyboard_interrupt_immediately() -> None:
    for scene in (two_tools, two_branches, one_branch, branch_all_in_on_step):
        for _ in range(TRIES):
            with case(scene.__name__):
                check(scene, dict(SCENES)[scene], streams=True)


def test_ctrl_c_during_branches_is_recorded_in_event_thread() -> None:
    run = check(two_branches, 2)
    assert [event.error for event in run.thread if event.type == "error" and event.tool_call_id is None] == [
        "StopSignal: the parent run has ended",
        "StopSignal: the parent run has ended",
        "KeyboardInterrupt",
    ]


class Everything(module[None, bool]):
    """All the ways in which a run can be at something."""

    max_steps = 9
    branches = {"inner": Inner}

    @tool
    async def listen(self) -> str:
        """Listen."""
        return "heard"

    @tool
    def ask(self) -> bool:
        return self.branch(Inner)

    @tool
    def ask_all(self) -> list[bool]:
        return self.branch_all([(Inner, {}), (Inner, {})])

    def on_step(self, step: Step) -> None:
        step.add_to_context("noted")

    def on_finish(self, output: bool) -> None:
        if not output:
            raise ValueError("think again")


YES, NO = finish(result=True), finish(result=False)
SCRIPT = [
    calling("look"),
    calling("listen"),
    calling("look") & calling("listen"),
    calling("inner") & calling("inner"),
    *(calling("look"), calling("look"), YES, YES),
    *(calling("ask"), YES),
    *(calling("ask_all"), YES, YES),
    *(NO, YES),
]


def struck(at: int) -> Strike:
    model, gate = ScriptedModel(SCRIPT), Gate()
    agent, strike = Everything(model=model, tools=[look]), Strike(at)
    with capture() as runs:
        try:
            # In a separate context: a block that is interrupted at its start or end leaves its variable set.
            contextvars.copy_context().run(strike, agent)
        except KeyboardInterrupt:
            assert strike.where is not None
        else:
            assert strike.where is None, f"Ctrl-C was lost at {strike.where}"
    asked = len(model.requests)
    gate.open_and_wait()
    assert len(model.requests) == asked
    for run in runs[:1]:
        for each in whole(run):
            # A branch may have ended before, and the run itself just before the line.
            assert each.stop_reason == ("cancelled" if each.output is None else "finish")
            assert_complete(each.history)
            assert to_messages(each.thread) == each.history
    return strike


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning")
def test_ctrl_c_at_any_line_of_acorn_code_ends_run_and_next_call_succeeds() -> None:
    lines = struck(0).count
    loops = len(bridge._loops)
    for at in range(1, lines, 7 if IS_LONG else 347):
        where = struck(at).where
        assert bridge.call_sync(Everything.listen, None) == "heard"
        assert len(bridge._loops) == loops, f"the loop for async tools is dead after Ctrl-C at {where}"


CHILD = '''
import sys, threading
from acorn import module
from acorn.testing import ScriptedModel, call

busy = threading.Semaphore(0)

def stay() -> None:
    busy.release()
    threading.Event().wait()

class Inner(module[None, bool]):
    """Inner."""
    max_steps = 3

class Outer(module[None, bool]):
    """Outer."""
    max_steps = 3
    branches = {"inner": Inner}

def say_when_busy():
    busy.acquire()
    busy.acquire()
    print("busy", flush=True)

model = ScriptedModel([call("inner") & call("inner"), call("stay"), call("stay")])
threading.Thread(target=say_when_busy, daemon=True).start()
try:
    Outer(model=model, tools=[stay])()
except KeyboardInterrupt as interrupt:
    run = interrupt.run
    print(len(model.requests), *[each.stop_reason for each in (run, *run.branches)], flush=True)
    raise
'''


def test_ctrl_c_ends_process_with_endless_tools() -> None:
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "busy\n"
        child.send_signal(signal.SIGINT)
        said, complaint = child.communicate(timeout=PATIENCE)
    assert said == "3 cancelled cancelled cancelled\n"
    assert "KeyboardInterrupt" in complaint
    assert child.returncode == -signal.SIGINT
