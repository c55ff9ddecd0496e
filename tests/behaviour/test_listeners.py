"""Tests of `acorn.listen` and of the logger `acorn`: both report the journal entries of runs."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.behaviour.schemas import Question
from tests.cases import each_case

from acorn import AcornError, ModelError, Run, Step, Usage, listen, module, tool
from acorn._call.plan import new_machine
from acorn._drive.sync_driver import drive
from acorn._drive.tree import Tree
from acorn._machine.machine import Machine
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    Entry,
    MessagesAdded,
    ModelRequested,
    ModelResponded,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolResultsAdded,
    ToolStarted,
)
from acorn.models import ModelRequest
from acorn.models.retry import RetryingModel, RetryPolicy
from acorn.testing import Failure, Reply, ScriptedModel, call, finish

SECRET = "sk-very-secret-12345678"
SAID = "the words of the question"


@tool
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"nothing in {place}"


class Note(module[Any, str]):
    """Note it."""

    final_output = str


class Inner(module[Any, str]):
    """Go inside."""

    final_output = str


class Outer(module[Any, str]):
    """Go outside."""

    final_output = str
    branches = {"inner": Inner}
    max_steps = 3


class Main(module[Question, str]):
    """Answer."""

    tools = [look]
    branches = {"outer": Outer}
    max_steps = 2

    @tool
    def dig(self) -> str:
        """Dig."""
        return self.branch(Note)

    def on_step(self, step: Step) -> None:
        if len(step.tool_calls) == 1:
            self.branch(Note)


def replies() -> Callable[[ModelRequest], Any]:
    """Choose replies by sender, in any order."""
    scripts: dict[str, list[Any]] = {
        "Answer.": [
            Failure(503),
            call("look", "l1") & call("look", "l2", place="there") & call("outer", "o1"),
            finish(result=[1]),
            call("dig", "d1"),
            finish(result="done"),
        ],
        "Go outside.": [call("inner", "i1"), finish(result="outside")],
        "Go inside.": [finish(result="inside")],
        "Note it.": [finish(result="noted"), finish(result="noted again")],
    }
    lock = threading.Lock()

    def reply(request: ModelRequest) -> Any:
        with lock:
            return scripts[str(request.messages[0]["content"]).rsplit("\n\n", 1)[-1]].pop(0)

    return reply


class Ear:
    """Record entries from any thread."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def __call__(self, entry: Entry) -> None:
        self.entries.append(entry)

    def per_run(self) -> dict[str, list[Entry]]:
        """Return the path of the run, and its number among those of the same path."""
        paths: dict[str, str] = {}
        told: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if isinstance(entry, RunStarted):
                path = entry.branch or ""
                paths[entry.run_id] = f"{path} {[*paths.values()].count(f'{path} 1') + 1}"
            told.setdefault(paths[entry.run_id], []).append(entry)
        return told


def line(entry: Entry) -> str:
    """Return the kind of an entry, its step, and the names in it."""
    kind = f"{entry.step} {type(entry).__name__}"
    match entry:
        case ModelRequested():
            return f"{kind} {entry.forced}"
        case ModelResponded():
            return f"{kind} {' '.join(called.name for called in entry.calls)}"
        case ToolStarted() | ToolFinished():
            return f"{kind} {entry.name} {entry.call_id}"
        case BranchStarted():
            return f"{kind} {entry.branch} {entry.call_id} {entry.inside}"
        case BranchFinished():
            return f"{kind} {entry.branch} {entry.call_id} {entry.stop_reason}"
        case MessagesAdded():
            return f"{kind} {len(entry.messages)} {entry.inherited}"
        case ToolResultsAdded():
            return f"{kind} {' '.join(said.form for said in entry.results)}"
        case RunFinished():
            return f"{kind} {entry.stop_reason}"
        case _:
            return kind


def start(agent: module[Any, Any], way: str) -> Run[Any]:
    if way == "sync":
        return agent.run(question=SAID)
    if way == "async":
        return asyncio.run(cast(Any, agent.arun(question=SAID)))
    if way == "stream":
        return [chunk.run for chunk in agent.stream(question=SAID)][-1]  # type: ignore[return-value]
    return asyncio.run(streamed(agent))


async def streamed(agent: module[Any, Any]) -> Any:
    return [chunk.run async for chunk in agent.astream(question=SAID)][-1]


WAYS = ["sync", "async", "stream", "astream"]

NOTE = [
    "0 RunStarted",
    "0 MessagesAdded 10 10",
    "1 ModelRequested None",
    "1 ModelResponded __finish__",
    "1 ToolResultsAdded text",
    "1 RunFinished finish",
]
EXPECTED = {
    " 1": [
        "0 RunStarted",
        "0 MessagesAdded 2 0",
        "1 ModelRequested None",
        "1 ModelResponded look look outer",
        "1 ToolStarted look l1",
        "1 ToolStarted look l2",
        "1 ToolFinished look l1",
        "1 ToolFinished look l2",
        "1 BranchStarted outer o1 None",
        "1 BranchFinished outer o1 finish",
        "1 ToolResultsAdded text text text",
        "2 ModelRequested None",
        "2 ModelResponded __finish__",
        "2 ToolResultsAdded error",
        "2 ModelRequested None",
        "2 ModelResponded dig",
        "2 ToolStarted dig d1",
        "2 BranchStarted Note None d1",
        "2 BranchFinished Note None finish",
        "2 ToolFinished dig d1",
        "2 BranchStarted Note None None",
        "2 BranchFinished Note None finish",
        "2 ToolResultsAdded text",
        "3 ModelRequested forced",
        "3 ModelResponded __finish__",
        "3 ToolResultsAdded text",
        "3 RunFinished forced",
    ],
    "outer 1": [
        "0 RunStarted",
        "0 MessagesAdded 6 6",
        "1 ModelRequested None",
        "1 ModelResponded inner",
        "1 BranchStarted outer/inner i1 None",
        "1 BranchFinished outer/inner i1 finish",
        "1 ToolResultsAdded text",
        "2 ModelRequested None",
        "2 ModelResponded __finish__",
        "2 ToolResultsAdded text",
        "2 RunFinished finish",
    ],
    "outer/inner 1": [line.replace("10 10", "8 8") for line in NOTE],
    "Note 1": NOTE,
    "Note 2": NOTE,
}


def lines(entries: list[Entry]) -> list[str]:
    """Return the lines of a run; concurrent results are sorted by name."""
    made = [line(entry) for entry in entries]
    for at in range(1, len(made)):
        if "ToolFinished" in made[at] and "ToolFinished" in made[at - 1]:
            made[at - 1 : at + 1] = sorted(made[at - 1 : at + 1])
    return made


@each_case("way", WAYS)
def test_listener_receives_all_journal_entries_of_run(way: str) -> None:
    ear = Ear()
    model = RetryingModel(ScriptedModel(replies()), RetryPolicy(count=1, delay=0.001))
    with listen(ear):
        run = start(Main(model=model), way)
    assert (run.output, run.stop_reason) == ("done", "forced")
    told = ear.per_run()
    assert {path: lines(entries) for path, entries in told.items()} == EXPECTED
    assert told[" 1"] == run.journal.entries
    answers = [entry for entry in told[" 1"] if isinstance(entry, ModelResponded)]
    assert [answer.attempts for answer in answers] == [2, 1, 1, 1]
    assert [len(answer.waits) for answer in answers] == [1, 0, 0, 0]
    assert answers[0].waits[0] > 0
    for entries in told.values():
        assert_paired(entries)
    parents = {entry.run_id: entry.parent_id for entry in ear.entries if isinstance(entry, RunStarted)}
    born = {entry.child_id: entry.run_id for entry in ear.entries if isinstance(entry, BranchStarted)}
    assert parents == {**born, run.id: None}


def assert_paired(entries: list[Entry]) -> None:
    """Check that times never go back and everything that started has ended."""
    times = [entry.at for entry in entries]
    assert times == sorted(times)
    asked = [entry.at for entry in entries if isinstance(entry, ModelRequested)]
    assert asked == [entry.asked for entry in entries if isinstance(entry, ModelResponded)]
    begun = {entry.call_id: entry.at for entry in entries if isinstance(entry, ToolStarted)}
    assert begun == {entry.call_id: entry.began for entry in entries if isinstance(entry, ToolFinished)}
    born = [entry.child_id for entry in entries if isinstance(entry, BranchStarted)]
    assert sorted(born) == sorted(entry.child_id for entry in entries if isinstance(entry, BranchFinished))


# Failing listeners


class Broken:
    """A listener that fails at one kind of entry, once or always."""

    def __init__(self, kind: type[Any], error: BaseException, *, times: int = 1) -> None:
        self.kind, self.error, self.times = kind, error, times

    def __call__(self, entry: Entry) -> None:
        if isinstance(entry, self.kind) and self.times:
            self.times -= 1
            raise self.error


@each_case("way", WAYS)
def test_failing_listener_is_logged_and_does_not_affect_run(way: str, caplog: pytest.LogCaptureFixture) -> None:
    ear, broken = Ear(), Broken(object, ValueError(SAID), times=-1)
    caplog.clear()
    caplog.set_level(logging.DEBUG, "acorn")
    with listen(broken), listen(ear):
        run = start(Main(model=RetryingModel(ScriptedModel(replies()), RetryPolicy(delay=0.001))), way)
    assert run.output == "done"
    assert {path: lines(entries) for path, entries in ear.per_run().items()} == EXPECTED
    failures = [each for each in caplog.records if each.levelno == logging.ERROR]
    runs = {entry.run_id for entry in ear.entries}
    assert len(failures) == len(runs)  # Once per listener, not at every entry.
    assert all(sum(run_id in each.getMessage() for each in failures) == 1 for run_id in runs)
    for each in failures:
        assert "`Broken`, failed with ValueError:\n" in each.getMessage()
        assert f'File "{__file__}"' in each.getMessage()
        assert "in __call__" in each.getMessage()
    for each in caplog.records:
        assert each.levelno <= logging.DEBUG or (SAID not in each.getMessage() and each.exc_info is None)


def test_each_failing_listener_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def deaf(entry: Entry) -> None:
        raise LookupError

    with listen(Broken(object, ValueError(), times=-1)), listen(deaf):
        start(Main(model=a_look()), "sync")
    first, second = (each.getMessage() for each in caplog.records if each.levelno == logging.ERROR)
    assert "`Broken`, failed with ValueError:" in first
    assert "deaf`, failed with LookupError:" in second


def a_look() -> ScriptedModel:
    return ScriptedModel([call("look", "l1") & call("look", "l2"), finish(result="done")])


OWN = [RunStarted, MessagesAdded, ModelRequested, ModelResponded, ToolStarted, ToolFinished, ToolResultsAdded]


@each_case("way", ["sync", "async"])
@each_case("kind", OWN)
def test_keyboard_interrupt_in_listener_is_raised_to_caller(way: str, kind: type[Any]) -> None:
    error = KeyboardInterrupt()
    with listen(Broken(kind, error)), pytest.raises(KeyboardInterrupt):
        start(Main(model=a_look()), way)
    run: Run[Any] = error.run  # type: ignore[attr-defined]
    assert (run.stop_reason, run.output) == ("cancelled", None)


# Scope


def test_nested_listen_blocks_each_receive_entries_of_runs_in_their_block() -> None:
    outer, inner = Ear(), Ear()
    with listen(outer):
        with listen(inner):
            first = start(Main(model=a_look()), "sync")
        second = start(Main(model=a_look()), "sync")
    start(Main(model=a_look()), "sync")
    assert {entry.run_id for entry in inner.entries} == {first.id}
    assert outer.entries[: len(inner.entries)] == inner.entries
    assert {entry.run_id for entry in outer.entries} == {first.id, second.id}


def test_listener_added_after_run_start_receives_no_entries_of_that_run() -> None:
    ear = Ear()
    before = Main(model=a_look()).stream(question=SAID)
    next(before)
    with listen(ear):
        *_, last = before
        inside = Main(model=a_look()).stream(question=SAID)
        next(inside)
    assert last.result == "done"
    *_, last = inside
    assert last.run is not None
    assert ear.entries == last.run.journal.entries


def test_listen_block_receives_entries_of_runs_in_threads_and_tasks_started_in_block() -> None:
    async def main() -> list[Run[Any]]:
        with listen(ear):
            thread = asyncio.ensure_future(asyncio.to_thread(start, Main(model=a_look()), "sync"))
            task = asyncio.ensure_future(Main(model=a_look()).arun(question=SAID))
        runs = [await thread, await task]
        await Main(model=a_look()).arun(question=SAID)
        return runs

    ear = Ear()
    runs = asyncio.run(main())
    assert {entry.run_id for entry in ear.entries} == {run.id for run in runs}
    for run in runs:
        assert [entry for entry in ear.entries if entry.run_id == run.id] == run.journal.entries


async def awaited(entry: Entry) -> None:
    """No listener."""


@each_case("wrong", [awaited, None, "print"])
def test_listener_that_is_not_plain_function_raises_acorn_error(wrong: Any) -> None:
    with (
        pytest.raises(AcornError, match=r"`acorn\.listen` needs a sync function with one parameter, got "),
        listen(wrong),
    ):
        pass


# The log


class Plain(module[Question, str]):
    """Answer."""

    tools = [look]
    max_steps = 3


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return the log of a run with a key that comes near its limit."""
    large = Reply(calls=call("look", "l1").calls, usage=Usage(400, 10, requests=1))
    model = ScriptedModel([large, finish(result="the words of the answer")], name="the-model")
    first = new_machine(
        Plain(model={"model": "openai/x", "api_key": SECRET}, max_total_tokens=1200), (), {"question": SAID}
    )
    loop = Machine(replace(first.plan, resolve=lambda *_: model), Run("the run", first.run.input))
    caplog.clear()
    caplog.set_level(level, "acorn")
    drive(Tree(loop), "the run")
    assert loop.run.stop_reason == "limit"
    text = caplog.text
    assert SECRET not in text
    for said in (SAID, "the words of the answer", "nothing in here"):
        assert said not in text
    assert {each.name for each in caplog.records} <= {"acorn"}
    return [each.getMessage() for each in caplog.records]


def test_info_log_contains_start_of_run_end_of_run_and_limit_notice(caplog: pytest.LogCaptureFixture) -> None:
    begin, limit, end = logged(caplog, logging.INFO)
    assert begin == f"Run the run of {__name__}:Plain started."
    assert limit == "Run the run is near a limit and must answer in step 2."
    assert end.startswith("Run the run ended after ")
    assert end.endswith(" s: limit.")
    assert logged(caplog, logging.WARNING) == []


def test_debug_log_contains_each_step(caplog: pytest.LogCaptureFixture) -> None:
    told = logged(caplog, logging.DEBUG)
    for step in (1, 2):
        assert f"Run the run, step {step}: request to the-model, {2 * step} messages." in told
        assert any(each.startswith(f"Run the run, step {step}: response of the-model, ") for each in told)
    assert "Run the run, step 1: the tool look is called." in told
    assert "Run the run, step 1: the tool look returned." in told


@each_case(
    ("error", "expected"),
    [
        (ModelError(f"{SECRET} is no key for {SAID}"), r"Run \w+ failed after [\d.]+ s: \w*ModelError\."),
        (KeyboardInterrupt(SAID), r"Run \w+ was interrupted after [\d.]+ s: KeyboardInterrupt\."),
    ],
)
def test_error_log_contains_only_error_type(
    caplog: pytest.LogCaptureFixture, error: BaseException, expected: str
) -> None:
    caplog.clear()
    caplog.set_level(logging.INFO, "acorn")
    with pytest.raises(type(error)):
        start(Main(model=ScriptedModel([error])), "sync")
    assert SECRET not in caplog.text
    assert SAID not in caplog.text
    _, last = [each.getMessage() for each in caplog.records]
    assert re.fullmatch(expected, last)
