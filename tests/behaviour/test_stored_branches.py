"""Tests of the usage and the records of branches in their parent, if the run was interrupted, failed or loaded."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from typing import Any

import pytest
from tests.cases import each_case
from tests.provider_rules import assert_complete
from tests.waiting import PATIENCE

from acorn import Run, Step, Usage, module, tool
from acorn._call.plan import new_machine
from acorn._drive.async_driver import adrive
from acorn._drive.sync_driver import drive
from acorn._drive.tree import Tree
from acorn._machine.machine import Machine
from acorn._machine.saved_run import load, save
from acorn.journal import BranchStarted
from acorn.models import ModelRequest, Price
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.thread import dump_events, to_messages

WAYS = ["sync", "async"]


class Trouble:
    """The number of interruptions so far."""

    left = 1

    @classmethod
    def strike(cls) -> str:
        if cls.left:
            cls.left -= 1
            raise KeyboardInterrupt
        return "up again"


@tool
def stumble() -> str:
    """Be interrupted, once."""
    return Trouble.strike()


class Leaf(module[Any, str]):
    """Leaf."""

    initial_input = [("number", int, 0)]
    final_output = str
    tools = [stumble]
    max_steps = 5


class Twig(module[Any, str]):
    """Twig."""

    final_output = str
    branches = {"leaf": Leaf}
    max_steps = 5


class Trunk(module[Any, str]):
    """Trunk."""

    final_output = str
    branches = {"twig": Twig, "leaf": Leaf}
    max_steps = 9

    @tool
    def dig(self, number: int) -> str:
        """Begin one by hand."""
        return self.branch(Leaf, number=number)


def costing(reply: Reply) -> Reply:
    reply.usage = Usage(10, 1)
    return reply


def replies(request: ModelRequest) -> Reply:
    """Choose the reply by the conversation, so that a run can be asked again."""
    prompt = str(request.messages[0]["content"]).rsplit("\n\n", 1)[-1]
    turns = [message for message in request.messages if message["role"] == "assistant"]
    if prompt == "Trunk.":
        steps = [calling("leaf", "t1", number=1), calling("twig", "t2"), calling("dig", "t3", number=3)]
        return costing([*steps, calling("twig", "t4"), finish(result="done")][len(turns)])
    above = 2 if "t4" not in str(turns) else 4
    if prompt == "Twig.":
        return costing([calling("leaf", f"w{above}", number=2), finish(result="twig")][len(turns) - above])
    said = str(request.messages[-1]["content"])
    if "t4" in str(turns) and "up again" not in said:  # The last leaf, of the second twig.
        return costing(calling("stumble", "s1"))
    return costing(finish(result="leaf"))


def trunk() -> tuple[Machine, ScriptedModel]:
    model = ScriptedModel(replies, price=Price(0.001, 0.01))
    Trouble.left = 1
    return new_machine(Trunk(model=model), (), {}), model


def go(tree: Tree, run_id: str, way: str) -> None:
    if way == "sync":
        drive(tree, run_id)
    else:
        asyncio.run(adrive(tree, run_id))


def saved(tree: Tree) -> dict[str, Any]:
    return {run_id: json.loads(json.dumps(save(loop))) for run_id, loop in tree.machines.items()}


def loaded(first: Machine, texts: dict[str, Any]) -> tuple[Tree, Machine]:
    kept = dict(texts)
    again = load(first.plan, kept.pop(first.run.id))
    return Tree(again, dict(reversed(kept.items()))), again


def shape(run: Run[Any]) -> list[Any]:
    """Return the tree of records below a run."""
    return [(child.id, child.branch, shape(child)) for child in run.branches]


def begun(run: Run[Any]) -> list[str]:
    return [entry.child_id for entry in run.journal.entries if isinstance(entry, BranchStarted)]


def asked(model: ScriptedModel) -> Usage:
    count = len(model.requests)
    return Usage(10 * count, count, requests=count)


@each_case("way", WAYS)
def test_usage_of_interrupted_run_includes_its_unfinished_branches(way: str) -> None:
    first, model = trunk()
    with pytest.raises(KeyboardInterrupt):
        go(Tree(first), first.run.id, way)
    assert first.run.usage == asked(model)
    assert first.run.cost == pytest.approx(0.02 * len(model.requests))
    twig = first.run.branches[-1]
    assert twig.usage == Usage(20, 2, requests=2)
    assert twig.branches[0].usage == Usage(10, 1, requests=1)


@each_case("way", WAYS)
def test_usage_of_resumed_run_includes_each_branch_once(way: str) -> None:
    first, model = trunk()
    tree = Tree(first)
    Trouble.left = 3
    with pytest.raises(KeyboardInterrupt):
        go(tree, first.run.id, way)
    for _ in range(2):
        tree, again = loaded(first, saved(tree))
        with pytest.raises(KeyboardInterrupt):
            go(tree, again.run.id, way)
        assert again.run.usage == asked(model)
    tree, again = loaded(first, saved(tree))
    go(tree, again.run.id, way)
    assert again.run.output == "done"
    assert again.run.usage == asked(model)
    assert again.run.cost == pytest.approx(0.02 * len(model.requests))
    assert again.state.meter.spent.tokens == asked(model).total_tokens
    read = load(first.plan, saved(tree)[again.run.id])
    assert (read.run.usage, read.run.cost) == (again.run.usage, again.run.cost)


def test_usage_of_loaded_run_that_is_stopped_includes_its_branches() -> None:
    first, model = trunk()
    tree = Tree(first)
    with pytest.raises(KeyboardInterrupt):
        drive(tree, first.run.id)
    tree, again = loaded(first, saved(tree))
    tree.open(again.run.id)
    tree.stop(again.run.id, ValueError("not now"))
    assert again.run.usage == asked(model)
    tree.stop(again.run.id, ValueError("nor later"))
    assert again.run.usage == asked(model)


@each_case("end", ["fails", "finishes"])
def test_usage_of_ended_run_includes_branch_that_still_runs_in_thread(end: str) -> None:
    asks, release = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    class Slow(module[Any, str]):
        """Slow."""

        final_output = str
        max_steps = 5

        @tool
        def look(self) -> str:
            """Look."""
            return "seen"

    class Hasty(module[Any, str]):
        """Hasty."""

        final_output = str
        max_steps = 5

        def on_step(self, step: Step) -> None:
            context = contextvars.copy_context()
            threads.append(threading.Thread(target=context.run, args=(self.begin,)))
            threads[0].start()
            assert asks.wait(PATIENCE)
            if end == "fails":
                raise ValueError("no")
            step.finish(result="done")

        def begin(self) -> None:
            with pytest.raises(BaseException):  # noqa: B017 - the run above has ended
                self.branch(Slow)

    def reply(request: ModelRequest) -> Reply:
        if str(request.messages[0]["content"]).endswith("Hasty."):
            return costing(Reply("Hm."))
        if request.messages[-1]["role"] == "tool":
            asks.set()
            assert release.wait(PATIENCE)
            return costing(finish(result="late"))
        return costing(calling("look", "l1"))

    loop = new_machine(Hasty(model=ScriptedModel(reply)), (), {})
    try:
        if end == "fails":
            with pytest.raises(ValueError, match="no"):
                drive(Tree(loop), loop.run.id)
        else:
            drive(Tree(loop), loop.run.id)
        assert loop.run.usage == Usage(20, 2, requests=2)
    finally:
        release.set()
    threads[0].join(PATIENCE)
    assert loop.run.usage == Usage(20, 2, requests=2)
    assert loop.run.branches[0].usage == Usage(10, 1, requests=1)


# Records of branches in a loaded tree


@each_case("way", WAYS)
def test_loaded_run_contains_records_of_all_saved_branches(way: str) -> None:
    first, _ = trunk()
    tree = Tree(first)
    with pytest.raises(KeyboardInterrupt):
        go(tree, first.run.id, way)
    before = shape(first.run)
    assert [path for _, path, _ in before] == ["leaf", "twig", "Leaf", "twig"]
    tree, again = loaded(first, saved(tree))
    assert shape(again.run) == before
    leaf, twig, by_hand, open_twig = again.run.branches
    assert (leaf.output, twig.output, by_hand.output, open_twig.output) == ("leaf", "twig", "leaf", None)
    assert (leaf.stop_reason, open_twig.stop_reason) == ("finish", "cancelled")
    assert leaf.input == {"number": 1}  # type: ignore[comparison-overlap]
    assert twig.branches[0].history == first.run.branches[1].branches[0].history
    assert set(tree.machines) == {again.run.id}
    assert dump_events(again.run.thread) == dump_events(first.run.thread)

    go(tree, again.run.id, way)
    assert again.run.output == "done"
    assert shape(again.run) == before
    assert [child.id for child in again.run.branches] == begun(again.run)
    assert again.run.branches[:3] == [leaf, twig, by_hand]
    last = again.run.branches[3]
    assert (last.output, last.branches[0].output) == ("twig", "leaf")
    assert set(tree.machines) == {again.run.id, last.id, last.branches[0].id}
    for record in (again.run, last, last.branches[0]):
        assert_complete(record.history)
        assert to_messages(record.thread) == record.history
    fresh, _ = trunk()
    Trouble.left = 0
    drive(Tree(fresh), fresh.run.id)
    assert kinds(again.run) == kinds(fresh.run)


def kinds(run: Run[Any]) -> list[Any]:
    """Return the content of a thread, without times and run ids."""
    return [
        {name: value for name, value in event.items() if name not in ("timestamp", "run_id", "runId", "seconds")}
        for event in dump_events(run.thread)
    ]


def test_usage_of_finished_branches_counts_against_limits_after_load() -> None:
    first, model = trunk()
    tree = Tree(first)
    with pytest.raises(KeyboardInterrupt):
        drive(tree, first.run.id)
    _, again = loaded(first, saved(tree))
    open_ones = Usage(20, 2, requests=2).total_tokens
    assert again.state.meter.spent.tokens == asked(model).total_tokens - open_ones
