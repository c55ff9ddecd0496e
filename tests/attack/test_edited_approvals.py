"""Attack: the tool or the arguments of a call are edited in the store before or after a person approved the call."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.attack.edited_store import edit_json, execute
from tests.cases import case

import acorn
from acorn import Paused, module, tool
from acorn.stores import SQLiteStore
from acorn.testing import ScriptedModel, call, finish
from acorn.types import JsonObject

DONE: list[tuple[str, JsonObject]] = []
GOOD: JsonObject = {"order": "17", "amount": 20.0}
EVIL: JsonObject = {"order": "17", "amount": 99999.0}


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@tool(approval=True)
def refund(order: str, amount: float) -> str:
    """Pay money back."""
    DONE.append(("refund", {"order": order, "amount": amount}))
    return "paid"


@tool(approval=True)
def wipe(order: str, amount: float) -> str:
    """Delete everything."""
    DONE.append(("wipe", {"order": order, "amount": amount}))
    return "wiped"


@tool
def crash() -> str:
    """Stop the process."""
    raise KeyboardInterrupt


class Inner(module[str, str]):
    """Help inside."""

    tools = [refund, wipe]
    max_steps = 5


class Desk(module[str, str]):
    """Help."""

    tools = [refund, wipe]
    max_steps = 5


class Office(module[str, str]):
    """Help."""

    branches = {"inner": Inner}
    max_steps = 5


def agent(store: SQLiteStore, *, in_branch: bool) -> Any:
    replies = [call("refund", **GOOD), finish("done")]
    if not in_branch:
        return Desk(store=store, model=ScriptedModel(replies, by_turn=True))
    said = {"deep": replies, "hello": [call("inner", input="deep"), finish("done")]}

    def answer(request: Any) -> Any:
        roles = [message["role"] for message in request.messages]
        deep = [at for at, message in enumerate(request.messages) if "deep</" in str(message["content"])]
        start = deep[0] if deep else 0
        return said["deep" if deep else "hello"][roles[start:].count("assistant")]

    return Office(store=store, model=ScriptedModel(answer))


def paused_run(path: Path, *, in_branch: bool) -> Paused:
    with closing(SQLiteStore(path)) as store:
        paused = agent(store, in_branch=in_branch).using(run_id="run-1")("hello")
        assert isinstance(paused, Paused)
        return paused


def resume(path: Path, *, in_branch: bool, **answers: Any) -> Any:
    with closing(SQLiteStore(path)) as store:
        return agent(store, in_branch=in_branch).resume("run-1", **answers)


def edit_state_request(path: Path, **changes: object) -> None:
    def change(state: Any) -> None:
        for request in state["requests"].values():
            request.update(changes)

    edit_json(path, "run_states", "state", change)


def edit_journal_call(path: Path, name: str, arguments: JsonObject) -> None:
    def change(entry: Any) -> None:
        for each in entry.get("calls") or []:
            if each[1] == "refund":
                each[1:3] = [name, json.dumps(arguments)]

    edit_json(path, "entries", "entry", change)


def edit_answer(path: Path, answer: object) -> None:
    execute(path, "UPDATE requests SET answer = ?", json.dumps(answer))


def edit_everything(path: Path) -> None:
    edit_journal_call(path, "wipe", EVIL)
    edit_state_request(path, tool="wipe", arguments=EVIL)


def edit_arguments_everywhere(path: Path) -> None:
    edit_journal_call(path, "refund", EVIL)
    edit_state_request(path, arguments=EVIL)


def remove_request(path: Path) -> None:
    edit_journal_call(path, "refund", EVIL)
    edit_json(path, "run_states", "state", lambda state: state.update(requests={}))


AFTER: dict[str, Callable[[Path], None]] = {
    "arguments in the state": lambda path: edit_state_request(path, arguments=EVIL),
    "tool in the state": lambda path: edit_state_request(path, tool="wipe"),
    "arguments in the answer": lambda path: edit_answer(path, {"approved": True, "arguments": EVIL}),
    "tool in the journal": lambda path: edit_journal_call(path, "wipe", GOOD),
    "tool and arguments in the journal and in the state": edit_everything,
    "arguments in the journal and in the state": edit_arguments_everywhere,
    "request removed from the state": remove_request,
}


@pytest.mark.parametrize("in_branch", [False, True])
def test_call_edited_after_approval_is_not_executed_and_approval_is_requested_again(
    tmp_path: Path, in_branch: bool
) -> None:
    for number, (name, attack) in enumerate(AFTER.items()):
        with case(name):
            DONE.clear()
            path = tmp_path / f"{number}.db"
            first = paused_run(path, in_branch=in_branch).request
            with closing(SQLiteStore(path)) as store:
                acorn.runs(store).answer(first.id, True)
            attack(path)
            again = resume(path, in_branch=in_branch)
            assert isinstance(again, Paused)
            assert not DONE
            assert again.request.id != first.id
            shown = (again.request.tool, again.request.arguments)
            with closing(SQLiteStore(path)) as store:
                (listed,) = store.requests()
            assert (listed.id, (listed.tool, listed.arguments)) == (again.request.id, shown)
            assert resume(path, in_branch=in_branch, answer=True) == "done"
            assert [shown] == DONE, "what the person saw at last"


@pytest.mark.parametrize("in_branch", [False, True])
def test_request_edited_before_answer_is_requested_again_with_real_arguments(tmp_path: Path, in_branch: bool) -> None:
    """The person approves a harmless call, but the run would execute another one."""
    for number, by_resume in enumerate((False, True)):
        path = tmp_path / f"{number}.db"
        first = paused_run(path, in_branch=in_branch).request
        execute(path, "UPDATE requests SET arguments = ?", json.dumps({**GOOD, "amount": 0.01}))
        if by_resume:
            again = resume(path, in_branch=in_branch, answer=True)
        else:
            with closing(SQLiteStore(path)) as store:
                acorn.runs(store).answer(first.id, True)
            again = resume(path, in_branch=in_branch)
        assert isinstance(again, Paused)
        assert not DONE
        assert again.request.arguments == GOOD
        assert resume(path, in_branch=in_branch, answer=True) == "done"
        assert DONE == [("refund", GOOD)]
        DONE.clear()


def test_accepted_approval_edited_before_the_call_starts_is_requested_again(tmp_path: Path) -> None:
    """The process stops after it committed the answer and before it executes the call."""

    class Stopping(Desk):
        tools = [refund, wipe, crash]

    path = tmp_path / "runs.db"
    script = [call("refund", **GOOD) & call("crash"), finish("done")]
    with closing(SQLiteStore(path)) as store, pytest.raises(KeyboardInterrupt):
        Stopping(store=store, model=ScriptedModel(script, by_turn=True)).using(run_id="run-1")("hello")

    def forge(state: Any) -> None:
        (call_id,) = state["requests"]
        state["answers"] = {call_id: {"approved": True, "arguments": EVIL}}

    edit_json(path, "run_states", "state", forge)
    with closing(SQLiteStore(path)) as store:
        Stopping.tools = [refund, wipe, tool(name="crash")(lambda: "calm")]
        paused = Stopping(store=store, model=ScriptedModel(script, by_turn=True)).resume("run-1")
    assert isinstance(paused, Paused)
    assert paused.request.arguments == GOOD
    assert not DONE


def test_approval_of_unedited_run_is_requested_once(tmp_path: Path) -> None:
    for in_branch in (False, True):
        path = tmp_path / f"{in_branch}.db"
        request = paused_run(path, in_branch=in_branch).request
        with closing(SQLiteStore(path)) as store:
            acorn.runs(store).answer(request.id, acorn.approve(arguments={**GOOD, "amount": 5}))
        assert resume(path, in_branch=in_branch) == "done"
        assert DONE == [("refund", {**GOOD, "amount": 5.0})]
        DONE.clear()
