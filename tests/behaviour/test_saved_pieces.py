"""Tests of incremental saving: acorn writes only new entries, `asks` has no effect, and branch ids are stable."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tests.cases import each_case
from tests.waiting import PATIENCE

from acorn import Run, Step, current_run, listen, module, tool
from acorn._call.plan import new_machine
from acorn._drive.async_driver import adrive
from acorn._drive.sync_driver import call_tool, drive
from acorn._drive.tree import Tree
from acorn._history.transcript import finish_call
from acorn._machine.asks import Ask, AskHook, AskModel, AskTool
from acorn._machine.machine import Machine
from acorn._machine.saved_run import load, save
from acorn._machine.state import branch_id
from acorn.journal import BranchStarted, Entry
from acorn.models import ModelRequest
from acorn.record import CallSite
from acorn.testing import ScriptedModel, call, finish
from acorn.thread import dump_events


@tool
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"nothing in {place}"


class Looker(module[Any, str]):
    """Look."""

    final_output = str
    tools = [look]
    max_steps = 300


def fixed(agent: module[Any, Any], run_id: str = "fixed") -> Machine:
    """Return a call whose run has a known id."""
    first = new_machine(agent, (), {})
    return Machine(first.plan, Run(run_id, first.run.input))


def text_of(loop: Machine, since: int = 0) -> str:
    return json.dumps(save(loop, since))


def told(loop: Machine) -> Iterator[Ask]:
    """Drive a run without branches on a clock that advances by itself; yield each ask with its outcome."""
    now = 0.0
    loop.start(now)
    while asks := loop.asks(now):
        ask, now = asks[0], round(now + 1.0, 1)
        loop.begin(ask.id, now)
        if isinstance(ask, AskModel):
            outcome: Any = ask.model.complete(ask.request)
        elif isinstance(ask, AskTool):
            result = replace(call_tool(ask).result, seconds=0.5)
            outcome = finish_call(result)
        else:
            assert isinstance(ask, AskHook)
            with CallSite(Tree(loop), loop.run.id, ask.id):
                outcome = ask.function(*ask.arguments)
        loop.tell(ask.id, outcome, now)
        yield ask


# Writing


def many_steps(count: int) -> ScriptedModel:
    replies = [call("look", f"id_{at:04}", place=f"{at:04}") for at in range(count)]
    return ScriptedModel([*replies, finish(result="done")])


def test_saved_increments_joined_together_load_as_whole_run() -> None:
    class Hooked(Looker):
        def on_step(self, step: Step) -> None:
            if current_run().step == 3:
                del current_run().history[2:4]

        def on_finish(self, output: str) -> None:
            pass

    loop = fixed(Hooked(model=many_steps(6)))
    journal: list[Any] = []
    for _ in told(loop):
        since = len(journal)
        piece = json.loads(text_of(loop, since))
        assert piece["since"] == since
        journal += piece["journal"]
        whole = json.loads(text_of(loop))
        assert whole == {**piece, "since": 0, "journal": journal}
        loaded = load(loop.plan, {**piece, "since": 0, "journal": journal})
        assert loaded.run.history == loop.run.history
        assert dump_events(loaded.run.thread) == dump_events(loop.run.thread)
        assert loaded.run.journal.entries == loop.run.journal.entries
        assert json.loads(text_of(loaded))["state"] == whole["state"]
        assert (loaded.run.steps, loaded.run.usage) == (loop.run.steps, loop.run.usage)
    assert loop.run.output == "done"
    assert (loaded.run.output, loaded.run.stop_reason) == ("done", "finish")


def test_saved_increment_without_new_journal_entries_has_empty_journal() -> None:
    loop = fixed(Looker(model=many_steps(1)))
    for _ in told(loop):
        assert save(loop, len(loop.journal.entries))["journal"] == []
    assert save(loop, len(loop.journal.entries))["journal"] == []


def test_saved_increment_size_does_not_grow_in_long_run() -> None:
    loop = fixed(Looker(model=many_steps(210)))
    sizes: dict[int, int] = {}
    since = 0
    for ask in told(loop):
        if isinstance(ask, AskTool):
            sizes[loop.run.steps] = len(text_of(loop, since).encode())
            since = len(loop.journal.entries)
    assert sizes[200] < sizes[10] * 1.05, (sizes[10], sizes[200])


def calls_in(function: Callable[[], Any]) -> int:
    """Count the function calls made by a function."""
    made: list[str] = []

    def count(frame: Any, event: str, argument: Any) -> None:
        made.append(event)

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len([event for event in made if event in ("call", "c_call")])


def test_work_of_saving_one_step_does_not_grow_in_long_run() -> None:
    loop = fixed(Looker(model=many_steps(210)))
    calls: dict[int, int] = {}
    since = 0
    for ask in told(loop):
        if isinstance(ask, AskTool):
            calls[loop.run.steps] = calls_in(partial(save, loop, since))
            since = len(loop.journal.entries)
    assert calls[200] == calls[10], (calls[10], calls[200])


def test_saved_increment_contains_in_place_history_edit() -> None:
    loop = fixed(Looker(model=many_steps(8)))
    journal: list[Any] = []
    for ask in told(loop):
        since = len(journal)
        if isinstance(ask, AskTool) and loop.run.steps in (3, 5):
            loop.run.history[2]["content"] = f"edited in step {loop.run.steps}"
            loop.run.history[1]["content"] = [{"type": "text", "text": f"in step {loop.run.steps}"}]
        piece = json.loads(text_of(loop, since))
        journal += piece["journal"]
        assert load(loop.plan, {**piece, "since": 0, "journal": journal}).run.history == loop.run.history
    assert loop.run.history[2]["content"] == "edited in step 5"


# Asks


class Checked(Tree):
    """A tree that inspects every machine after each event."""

    def __init__(self, root: Machine) -> None:
        super().__init__(root)
        self.phases: set[str] = set()

    def open(self, run_id: str) -> None:
        with self._lock:
            super().open(run_id)
            self.look()

    def begin(self, run_id: str, ask_id: str) -> None:
        with self._lock:
            super().begin(run_id, ask_id)
            self.look()

    def tell(self, run_id: str, ask_id: str, outcome: Any) -> None:
        with self._lock:
            super().tell(run_id, ask_id, outcome)
            self.look()

    def look(self) -> None:
        for run_id, loop in list(self.machines.items()):
            if run_id in self.driven:
                assert_still(loop, self.now(run_id))
                self.phases.add(loop.state.phase)


def assert_still(loop: Machine, now: float) -> None:
    """Check that asking changes nothing and is repeatable, also after the run was saved and loaded."""
    before = text_of(loop)
    asks = loop.asks(now)
    again = loop.asks(now)
    assert list(map(seen, asks)) == list(map(seen, again))
    assert text_of(loop) == before
    assert text_of(loop) == before, "saving changed the run"
    loaded = load(replace(loop.plan, above=()), json.loads(before))  # Nothing is counted twice.
    loaded.start(now)
    ids = [ask.id for ask in loaded.asks(now)]
    assert ids == [ask.id for ask in asks]
    assert list(map(seen, loaded.asks(now))) == list(map(seen, loaded.asks(now)))


def seen(ask: Ask) -> Any:
    match ask:
        case AskModel():
            request = ask.request
            return ask.id, ask.model, json.dumps(request.messages), request.tools, request.forced_tool, request.timeout
        case AskTool():
            return ask.id, ask.call, ask.tool, ask.args, ask.kwargs, ask.seconds
        case AskHook():
            return ask.id, ask.function, [id(argument) for argument in ask.arguments]
        case _:
            return ask.id


class Checker(module[Any, str]):
    """Check it."""

    final_output = str


class Everything(module[Any, str]):
    final_output = str
    tools = [look]
    branches = {"check": Checker, "verify": Checker}
    max_steps = 5

    def system_prompt(self) -> str:
        return "Answer."

    def on_step(self, step: Step) -> None:
        step.add_to_context("so far")

    def on_finish(self, output: str) -> None:
        if output == "no":
            raise ValueError("not this")


def of_everything() -> Callable[[ModelRequest], Any]:
    replies = [
        call("look", "l1") & call("look", "l2", place="there") & call("check", "c1") & call("verify", "c2"),
        finish(result="no"),
        finish(result="yes"),
    ]
    lock = threading.Lock()

    def reply(request: ModelRequest) -> Any:
        with lock:
            is_branch = str(request.messages[0]["content"]).endswith("Check it.")
            return finish(result="checked") if is_branch else replies.pop(0)

    return reply


@each_case("way", ["sync", "async"])
@each_case("settings", [{}, {"max_seconds": 1000.0}])
def test_reading_pending_asks_repeatedly_does_not_change_saved_state(way: str, settings: dict[str, Any]) -> None:
    loop = fixed(Everything(model=ScriptedModel(of_everything()), **settings))
    fresh = text_of(loop)
    assert loop.asks(0.0) == ()  # It has not started.
    assert text_of(loop) == fresh
    tree = Checked(loop)
    if way == "sync":
        drive(tree, "fixed")
    else:
        asyncio.run(adrive(tree, "fixed"))
    assert loop.run.output == "yes"
    assert [run.output for run in loop.run.branches] == ["checked", "checked"]
    tree.look()
    assert tree.phases == {"prompt", "model", "tools", "branches", "step", "judge", "done"}


# Ids of branches


class Inner(module[Any, str]):
    """Go inside."""

    final_output = str


class Outer(module[Any, str]):
    """Go outside."""

    final_output = str
    branches = {"inner": Inner}
    max_steps = 3


class ByHand(module[Any, str]):
    """Go by hand."""

    final_output = str


class Brancher(module[Any, str]):
    """Branch."""

    final_output = str
    branches = {"outer": Outer, "inner": Inner}
    max_steps = 4

    @tool
    def dig(self, times: int) -> str:
        """Dig."""
        return ", ".join([str(self.branch(ByHand)) for _ in range(times)])

    def on_step(self, step: Step) -> None:
        self.branch(ByHand)
        self.branch(Inner)


def of_branches() -> Callable[[ModelRequest], Any]:
    main = [
        call("dig", "d1", times=2) & call("dig", "d2", times=1) & call("outer", "o1") & call("inner", "i1"),
        call("inner", "i2"),
        finish(result="done"),
    ]
    outer = [call("inner", "i3"), finish(result="outer")]
    lock = threading.Lock()

    def reply(request: ModelRequest) -> Any:
        with lock:
            last = str(request.messages[0]["content"]).rsplit("\n\n", 1)[-1]
            if last == "Branch.":
                return main.pop(0)
            return outer.pop(0) if last == "Go outside." else finish(result="there")

    return reply


def places(run: Run[Any]) -> list[tuple[Any, ...]]:
    """Return where each branch of a run started, and its id."""
    begun = [entry for entry in run.journal.entries if isinstance(entry, BranchStarted)]
    own = [(each.run_id, each.step, each.branch, each.call_id, each.inside, each.child_id) for each in begun]
    assert {each.child_id for each in begun} == {child.id for child in run.branches}
    below = [place for child in run.branches for place in places(child)]
    return sorted(own + below, key=repr)


def branched(run_id: str, way: str) -> list[tuple[Any, ...]]:
    loop = fixed(Brancher(model=ScriptedModel(of_branches())), run_id)
    tree = Tree(loop)
    if way == "sync":
        drive(tree, run_id)
    else:
        asyncio.run(adrive(tree, run_id))
    assert loop.run.output == "done"
    for child_id, child in tree.machines.items():
        if child.context is not None:
            assert child_id == branch_id(child.context.parent_id, child.context.place)
    return places(loop.run)


def test_branch_ids_are_equal_for_equal_run_id_and_differ_for_other_run_id() -> None:
    first = branched("fixed", "sync")
    assert len({place[-1] for place in first}) == len(first) == 11
    assert branched("fixed", "sync") == first
    assert branched("fixed", "async") == first
    others = branched("other", "sync")
    assert not {place[-1] for place in others} & {place[-1] for place in first}
    assert [place[1:5] for place in others if place[0] == "other"] == [
        place[1:5] for place in first if place[0] == "fixed"
    ]


@each_case("where", ["hook", "tool"])
def test_ids_of_concurrent_branches_do_not_depend_on_order_in_which_threads_start_them(where: str) -> None:
    def ids(first_is_late: bool) -> tuple[list[str], dict[str, str]]:
        begun = {"First": threading.Event(), "Second": threading.Event()}
        order: list[str] = []

        def hear(entry: Entry) -> None:
            if isinstance(entry, BranchStarted):
                order.append(entry.branch)
                begun[entry.branch].set()

        class First(module[Any, str]):
            """Be first."""

            final_output = str

            def __init__(self) -> None:
                super().__init__()
                assert not first_is_late or begun["Second"].wait(PATIENCE)

        class Second(module[Any, str]):
            """Be second."""

            final_output = str

            def __init__(self) -> None:
                super().__init__()
                assert first_is_late or begun["First"].wait(PATIENCE)

        class Both(module[Any, str]):
            """Do both."""

            final_output = str
            max_steps = 3

            @tool
            def dig(self) -> str:
                """Dig."""
                return self.both("tool")

            def on_step(self, step: Step) -> None:
                self.both("hook")

            def both(self, here: str) -> str:
                if here == where:
                    assert self.branch_all([(First, {}), (Second, {})]) == ["there", "there"]
                return "dug"

        def reply(request: ModelRequest) -> Any:
            if not str(request.messages[0]["content"]).endswith("Do both."):
                return finish(result="there")
            return call("dig", "d1") if len(request.messages) == 2 else finish(result="done")

        loop = fixed(Both(model=ScriptedModel(reply)))
        with listen(hear):
            drive(Tree(loop), "fixed")
        assert loop.run.output == "done"
        return order, {str(run.branch): run.id for run in loop.run.branches}

    (order, made), (other_order, other) = ids(first_is_late=False), ids(first_is_late=True)
    assert (order, other_order) == (["First", "Second"], ["Second", "First"])
    assert made == other
