"""Tests of interrupted and loaded run trees: their branches resume at their last state."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.cases import each_case
from tests.provider_rules import assert_complete

from acorn import Run, listen, module, tool
from acorn._call.plan import new_machine
from acorn._drive.async_driver import adrive
from acorn._drive.sync_driver import drive
from acorn._drive.tree import Tree
from acorn._machine.saved_run import load, save
from acorn.journal import BranchFinished, BranchStarted, Entry
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.thread import to_messages

CALLED: list[str] = []


@tool
def look() -> str:
    """Look."""
    CALLED.append("look")
    return "seen"


@tool
def stumble() -> str:
    """Be interrupted the first time."""
    CALLED.append("stumble")
    if CALLED.count("stumble") == 1:
        raise KeyboardInterrupt
    return "up again"


class Inner(module[Any, str]):
    """Inner."""

    final_output = str
    tools = [look, stumble]
    max_steps = 5


class ByModel(module[Any, str]):
    """Outer."""

    final_output = str
    branches = {"inner": Inner}
    max_steps = 5


class ByAgent(ByModel):
    tools = [Inner]
    branches = {}


class ByHand(ByModel):
    branches = {}

    @tool
    def inner(self) -> str:
        """Begin it by hand."""
        return self.branch(Inner)


def reply(request: ModelRequest) -> Reply:
    is_inner = "Inner." in str(request.messages[0]["content"])
    said = [message["content"] for message in request.messages if message["role"] == "tool"]
    if not is_inner:
        return finish(result="done") if "inner done" in str(said) else calling("inner", _id="a")
    if "up again" in str(said):
        return finish(result="inner done")
    return calling("stumble", _id="c") if "seen" in str(said) else calling("look", _id="b")


@each_case("way", ["sync", "async"])
@each_case("kind", [ByModel, ByAgent, ByHand])
def test_resumed_branch_does_not_repeat_finished_tool_calls(kind: type[ByModel], way: str) -> None:
    CALLED.clear()
    model = ScriptedModel(reply)
    first = new_machine(kind(model=model), (), {})
    tree = Tree(first)
    with pytest.raises(KeyboardInterrupt):
        drive(tree, first.run.id)
    assert first.run.stop_reason == "cancelled"
    saved = {run_id: json.loads(json.dumps(save(loop))) for run_id, loop in tree.machines.items()}
    asked = len(model.requests)
    assert asked == 3

    again = load(first.plan, saved.pop(first.run.id))
    later = Tree(again, saved)
    if way == "sync":
        drive(later, again.run.id)
    else:
        asyncio.run(adrive(later, again.run.id))
    run: Run[Any] = again.run
    assert (run.output, run.stop_reason, run.branches[0].output) == ("done", "finish", "inner done")
    assert CALLED == ["look", "stumble", "stumble"]
    assert len(model.requests) == run.usage.requests == asked + 2
    assert [type(entry) for entry in run.journal.entries if isinstance(entry, BranchStarted | BranchFinished)] == [
        BranchStarted,
        BranchFinished,
    ]
    for record in (run, run.branches[0]):
        assert_complete(record.history)
        assert to_messages(record.thread) == record.history


def interrupted_and_loaded(agent: ByModel) -> tuple[Tree, Run[Any]]:
    first = new_machine(agent, (), {})
    tree = Tree(first)
    with pytest.raises(KeyboardInterrupt):
        drive(tree, first.run.id)
    saved = {run_id: json.loads(json.dumps(save(loop))) for run_id, loop in tree.machines.items()}
    again = load(first.plan, saved.pop(first.run.id))
    return Tree(again, saved), again.run


@each_case("kind", [ByModel, ByAgent, ByHand])
def test_listener_of_resumed_run_receives_only_journal_entries_after_resume(kind: type[ByModel]) -> None:
    CALLED.clear()
    tree, run = interrupted_and_loaded(kind(model=ScriptedModel(reply)))
    known = len(run.journal.entries)
    heard: list[Entry] = []
    with listen(heard.append):
        drive(tree, run.id)
    assert [entry for entry in heard if entry.run_id == run.id] == run.journal.entries[known:]
    (branch,) = run.branches
    of_branch = [entry for entry in heard if entry.run_id == branch.id]
    assert of_branch == branch.journal.entries[-len(of_branch) :]
    assert 0 < len(of_branch) < len(branch.journal.entries)


class Other(Inner):
    """Inner. Another one."""


class Changing(ByHand):
    kind: type[Inner] = Inner

    @tool
    def inner(self) -> str:
        """Begin it by hand."""
        return self.branch(self.kind)


def test_resumed_branch_whose_class_changed_starts_again() -> None:
    CALLED.clear()
    agent = Changing(model=ScriptedModel(reply))
    tree, run = interrupted_and_loaded(agent)
    agent.kind = Other
    drive(tree, run.id)
    assert run.output == "done"
    assert CALLED == ["look", "stumble", "look", "stumble"]
