"""Tests of the thread: every run records events that describe the whole run, also if the history is edited."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Call, Script
from tests.behaviour.schemas import Answer, Question
from tests.cases import each_case
from tests.raw_model import RawModel, calling, finishing
from tests.waiting import AGES, PATIENCE

from acorn import (
    BranchError,
    LimitError,
    ModelError,
    ParseError,
    Run,
    Step,
    Usage,
    capture,
    current_run,
    listen,
    module,
    tool,
)
from acorn.journal import Entry, ToolFinished
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calls
from acorn.thread import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    MessageEvent,
    ToolCallEvent,
    ToolResultEvent,
    dump_events,
    serialize_thread_to_xml,
    to_messages,
)
from acorn.types import Message

SECRET = "sk-very-secret-12345678"


@tool(repeatable=True)
def look(place: str = "here") -> str:
    """Look somewhere."""
    return f"nothing in {place}"


def boom() -> str:
    """Fail."""
    raise ValueError("no")


@tool(timeout=0.02)
async def hang() -> str:
    """Take long."""
    await asyncio.sleep(20)
    return "late"


class Asker(module[Question, Answer]):
    """Answer the question."""


class Looker(Asker):
    """Look around, then answer."""

    tools = [look, boom, hang]
    max_steps = 5


class Claim(BaseModel):
    holds: bool


class Check(module[Any, Claim]):
    """Check it."""

    max_steps = 3


class Main(Looker):
    """Look, check, answer."""

    branches = {"check": Check}


DONE = finish(answer="nowhere")
TRUE = finish(holds=True)


def short(events: list[AgentEvent]) -> list[tuple[str, int]]:
    """Return kind and step of each event; a message by its role."""
    return [(event.role if isinstance(event, MessageEvent) else event.type, event.iteration) for event in events]


def errors(run: Run[Any]) -> list[ErrorEvent]:
    return [event for event in run.thread if isinstance(event, ErrorEvent)]


def results(run: Run[Any]) -> list[ToolResultEvent]:
    return [event for event in run.thread if isinstance(event, ToolResultEvent)]


def texts(events: list[AgentEvent]) -> list[str]:
    return [event.content for event in events if isinstance(event, MessageEvent)]


# The step of an event


def test_thread_iteration_equals_step_number(call: Call, script: Script) -> None:
    model = script(calls("look") & calls("look", place="b"), "Hm.", Reply("Well.") & calls("look"), DONE)
    run = call.run(Looker(model=model), question="?")
    assert short(run.thread) == [
        ("system", 0),
        ("user", 0),
        *[("tool_call", 1)] * 2,
        *[("tool_result", 1)] * 2,
        ("assistant", 2),
        ("user", 2),
        ("assistant", 3),
        ("tool_call", 3),
        ("tool_result", 3),
        ("tool_call", 4),
        ("tool_result", 4),
        ("completion", 4),
    ]
    assert run.steps == 3


def test_thread_correction_does_not_increase_iteration(call: Call, script: Script) -> None:
    run = call.run(Looker(model=script(calls("look"), finish(), finish(answer=5), DONE)), question="?")
    assert short(run.thread)[4:] == [
        *[("tool_call", 2), ("error", 2)] * 2,
        ("tool_call", 2),
        ("tool_result", 2),
        ("completion", 2),
    ]
    assert [(event.recoverable, event.error[:24]) for event in errors(run)] == [(True, '<error type="validation"')] * 2
    assert errors(run)[0].tool_call_id == run.history[4]["tool_calls"][0]["id"]


def test_thread_forced_finish_has_iteration_after_last_step(call: Call, script: Script) -> None:
    run = call.run(Looker(model=script(calls("look"), DONE), max_steps=1), question="?")
    assert short(run.thread)[2:] == [
        ("tool_call", 1),
        ("tool_result", 1),
        ("tool_call", 2),
        ("tool_result", 2),
        ("completion", 2),
    ]


def test_thread_contains_xml_form_and_xml_answer_as_message_events(call: Call, script: Script) -> None:
    wrong, right = "<output><other>1</other></output>", "<output><answer>nowhere</answer></output>"
    run = call.run(Looker(model=script(calls("look"), wrong, right, forces=False), max_steps=1), question="?")
    assert short(run.thread)[4:] == [("user", 1), ("assistant", 2), ("user", 2), ("assistant", 2), ("completion", 2)]
    assert texts(run.thread)[2].startswith("You must provide your final answer now.")
    assert texts(run.thread)[3::2] == [wrong, right]
    assert texts(run.thread)[4].startswith('<error type="validation"')


def test_thread_of_single_turn_contains_text_and_unfinished_error(call: Call, script: Script) -> None:
    run = call.run(Asker(model=script("Hm.", DONE)), question="?")
    assert short(run.thread)[2:4] == [("assistant", 1), ("user", 1)]
    run = call.run(Looker(model=script(calls("look")), max_steps=None), question="?")
    assert short(run.thread)[2:] == [("tool_call", 1), ("tool_result", 1), ("error", 1)]
    last = errors(run)[-1]
    assert last.error == "Unfinished: in a single turn the model called `look` and gave no answer."
    assert (last.recoverable, last.tool_call_id) == (False, None)


def test_thread_skipped_calls_are_error_events(call: Call, script: Script) -> None:
    run = call.run(Looker(model=script(calls("look", "a") & DONE)), question="?")
    assert [event.result for event in results(run)] == ["Finished."]
    (skipped,) = errors(run)
    assert skipped.error == "Skipped: `__finish__` was called in the same response, so this call was not executed."
    assert (skipped.recoverable, skipped.tool_call_id) == (True, "a")


# Results of calls


@pytest.mark.every_way
@each_case(
    ("made", "told"),
    [
        (calls("boom", "x"), "ValueError: no"),
        (calls("nothing", "x"), "There is no tool `nothing`. There are: "),
        (calls("look", "x", place=[1]), "place"),
        (calls("look", "x", where=1), "where"),
        (calls("hang", "x"), "0.02"),
    ],
)
def test_thread_failed_call_is_error_event_with_call_id(call: Call, script: Script, made: Reply, told: str) -> None:
    run = call.run(Looker(model=script(calls("look", "a") & made, DONE)), question="?")
    (error,) = errors(run)
    assert (error.tool_call_id, error.recoverable, error.iteration) == ("x", True, 1)
    assert told in error.error
    assert not error.error.startswith("Tool error: ")
    assert run.history[4]["content"] == f"Tool error: {error.error}"


@each_case("arguments", ["{", "[1]", "null", '{"place": "\ud800"}', '{"place": NaN}', " { }"])
def test_thread_stores_arguments_text_exactly(call: Call, arguments: str) -> None:
    model = call.raw([calling(("x", "look", arguments)), finishing(answer="nowhere")])
    run = call.run(Looker(model=model), question="?")
    made = next(event for event in run.thread if isinstance(event, ToolCallEvent))
    assert made.args == {}
    assert to_messages(run.thread) == run.history
    assert run.history[2]["tool_calls"][0]["function"]["arguments"] == made.raw_arguments == arguments


@each_case("name", [None, "", "\ud800", "a.b", 5])
def test_thread_accepts_tool_call_with_missing_or_invalid_name(call: Call, name: Any) -> None:
    run = call.run(Looker(model=call.raw([calling(("x", name, "{}")), finishing(answer="nowhere")])), question="?")
    assert to_messages(run.thread) == run.history
    assert errors(run)[0].tool_call_id == "x"


@pytest.mark.edits_history
@each_case("wrong", [None, 5, "", "other"])
def test_thread_accepts_result_id_changed_by_on_step(call: Call, wrong: Any) -> None:
    class Renaming(Looker):
        def on_step(self, step: Step) -> None:
            step.tool_results[0].id = wrong

    run = call.run(Renaming(model=call.scripted([calls("look"), DONE])), question="?")
    assert results(run)[0].tool_call_id == str(wrong or "")
    assert to_messages(run.thread) == run.history


class Color(StrEnum):
    red = "red"


VALUES: list[tuple[Any, Any]] = [
    ("text", "text"),
    ("5", "5"),
    ('"quoted"', '"quoted"'),
    ("Tool error: not really", "Tool error: not really"),
    ("", ""),
    (Color.red, "red"),
    (5, 5),
    (1.5, 1.5),
    (True, True),
    (None, None),
    ([1, "a", None], [1, "a", None]),
    ({"a": {"b": [1.0]}}, {"a": {"b": [1.0]}}),
    (Answer(answer="x"), {"answer": "x"}),
    ({1}, [1]),
    (float("nan"), None),
    (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
]


@each_case(("value", "kept"), VALUES)
def test_thread_result_events_contain_values_of_json_types(call: Call, script: Script, value: Any, kept: Any) -> None:
    def fetch() -> Any:
        """Fetch it."""
        return value

    run = call.run(Looker(model=script(calls("fetch"), DONE), tools=[fetch]), question="?")
    result = results(run)[0]
    assert (result.result, type(result.result)) == (kept, type(kept))
    assert to_messages(run.thread) == run.history


@each_case("depth", [100, 190, 210, 250, 400])
def test_thread_accepts_deeply_nested_result(call: Call, script: Script, depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]

    def fetch() -> Any:
        """Fetch it."""
        return deep

    class Deep(Looker):
        def on_finish(self, output: Answer) -> Any:
            return deep

    run = call.run(Deep(model=script(calls("fetch"), DONE), tools=[fetch]), question="?")
    assert to_messages(run.thread) == run.history
    assert isinstance(run.thread[-1], CompletionEvent)
    json.dumps(dump_events(run.thread))


def test_thread_contains_result_changed_by_on_step(call: Call, script: Script) -> None:
    class Changing(Looker):
        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = {"seen": step.counter}
            step.tool_results[1].error = None
            step.tool_results[1].output = "mended"
            step.tool_results[2].error = "spoilt"
            step.add_to_context("Look again")

    run = call.run(Changing(model=script(calls("look") & calls("boom") & calls("look", "c"), DONE)), question="?")
    assert [event.result for event in results(run)[:2]] == [{"seen": 1}, "mended"]
    assert [(event.tool_call_id, event.error) for event in errors(run)] == [("c", "spoilt")]
    assert texts(run.thread)[2].startswith("<context>")


# Ends of a run


class Given(Looker):
    """Give another answer."""

    value: Any = None

    def on_finish(self, output: Any) -> Any:
        return self.value


def test_thread_completion_event_contains_output(call: Call, script: Script) -> None:
    def ends(kind: Any, **fields: Any) -> Any:
        class Ending(module[Any, Any]):
            """End."""

            final_output = kind

        run = call.run(Ending(model=script(finish(**fields))))
        last = run.thread[-1]
        assert isinstance(last, CompletionEvent)
        return last.result

    assert ends(Answer, answer="x") == {"answer": "x"}
    assert ends(str, result="5") == "5"
    assert ends(int, result=5) == 5
    assert ends(list[int], result=[1, 2]) == [1, 2]
    assert ends(dict[str, Any], result={"a": None}) == {"a": None}
    assert ends(Color, result="red") == "red"
    assert type(ends(Color, result="red")) is str
    assert ends(None) is None


@each_case("value", ["other", {"a": [1]}, 5, Answer(answer="other"), object()])
def test_thread_completion_event_contains_output_replaced_by_on_finish(call: Call, script: Script, value: Any) -> None:
    agent = Given(model=script(DONE))
    agent.value = value
    run = call.run(agent, question="?")
    last = run.thread[-1]
    assert isinstance(last, CompletionEvent)
    plain = {"answer": "other"} if isinstance(value, Answer) else value
    assert last.result == plain or "object" in str(last.result)
    json.dumps(dump_events(run.thread))


def test_thread_answer_rejected_by_on_finish_is_error_event(call: Call, script: Script) -> None:
    class Picky(Looker):
        def on_finish(self, output: Answer) -> None:
            if output.answer == "bad":
                raise ValueError("say more")

    run = call.run(Picky(model=script(finish(answer="bad") & calls("look", "b"), DONE)), question="?")
    error, skipped = errors(run)
    assert (skipped.tool_call_id, skipped.recoverable) == ("b", True)
    assert error.recoverable
    assert error.tool_call_id == run.history[2]["tool_calls"][0]["id"]
    assert "say more" in error.error


def test_thread_step_finish_is_completion_event(call: Call, script: Script) -> None:
    class Hasty(Looker):
        def on_step(self, step: Step) -> None:
            step.finish(answer="soon")

    run = call.run(Hasty(model=script(calls("look"))), question="?")
    assert short(run.thread)[2:] == [("tool_call", 1), ("tool_result", 1), ("completion", 1)]
    assert run.thread[-1].result == {"answer": "soon"}  # type: ignore[union-attr]


class Failing(Looker):
    """Fail in a hook."""

    def on_step(self, step: Step) -> None:
        raise LookupError("enough")


class Unwilling(Looker):
    """Fail in the other hook."""

    def on_finish(self, output: Answer) -> None:
        raise LookupError("not this one")


class Promptless(Looker):
    """Fail before anything is said."""

    def system_prompt(self) -> str:
        raise LookupError("no prompt")


def test_thread_of_failed_run_ends_with_unrecoverable_error(call: Call, script: Script) -> None:
    costly = calls("look")
    costly.usage = Usage(1000, 1000)
    for kind, agent, told in (
        (ModelError, Looker(model=script(calls("look"), Failure(400))), "ModelError: `scripted` failed"),
        (ModelError, Looker(model=script(Reply(refusal="No."))), "ModelError: "),
        (ParseError, Looker(model=script(finish(), finish()), parse_retries=1), "ParseError: `Looker` got no valid"),
        (LookupError, Failing(model=script(calls("look") & calls("boom"))), "LookupError: enough"),
        (LookupError, Unwilling(model=script(DONE & calls("look"))), "LookupError: not this one"),
        (LookupError, Promptless(model=script()), "LookupError: no prompt"),
        (LimitError, Looker(model=script(costly), max_total_tokens=2500), "LimitError: `Looker` has no room"),
        (KeyboardInterrupt, Looker(model=script(KeyboardInterrupt())), "KeyboardInterrupt"),
        (SystemExit, Looker(model=script(calls("look"), SystemExit(1))), "SystemExit: 1"),
    ):
        with pytest.raises(kind) as caught:
            call(agent, question="?")
        run: Run[Any] = caught.value.run  # type: ignore[attr-defined]
        last = run.thread[-1]
        assert isinstance(last, ErrorEvent)
        assert last.error.startswith(told)
        assert (last.recoverable, last.tool_call_id) == (False, None)
        assert not any(isinstance(event, CompletionEvent) for event in run.thread)
        assert to_messages(run.thread) == run.history
        assert [event for event in errors(run) if not event.recoverable and event.tool_call_id is None] == [last]


@pytest.mark.every_way
def test_thread_of_run_that_failed_in_hook_contains_tool_results(call: Call, script: Script) -> None:
    with pytest.raises(LookupError) as caught:
        call(Failing(model=script(calls("look", "a") & calls("boom", "b"))), question="?")
    run: Run[Any] = caught.value.run  # type: ignore[attr-defined]
    assert [(event.tool_call_id, event.result) for event in results(run)] == [("a", "nothing in here")]
    assert [(event.tool_call_id, event.error) for event in errors(run)] == [
        ("b", "ValueError: no"),
        (None, "LookupError: enough"),
    ]


def test_thread_of_cancelled_run_ends_with_error(script: Script) -> None:
    looked = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(AGES)
        return "late"

    def hear(entry: Entry) -> None:
        if isinstance(entry, ToolFinished):
            looked.set()

    async def main() -> Run[Any]:
        agent = Looker(model=script(calls("wait", "w") & calls("look", "a")), tools=[wait, look])
        with listen(hear):
            task = asyncio.ensure_future(agent.arun(question="?"))
        await looked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return caught.value.run  # type: ignore[attr-defined,no-any-return]

    run = asyncio.run(main())
    assert run.stop_reason == "cancelled"
    assert errors(run)[-1].error == "CancelledError"
    assert not errors(run)[-1].recoverable
    stopped = [(event.tool_call_id, event.recoverable) for event in errors(run)[:-1]]
    assert stopped == [("w", False)]
    assert [(event.tool_call_id, event.result) for event in results(run)] == [("a", "nothing in here")]
    assert to_messages(run.thread) == run.history


def test_thread_error_without_text_is_class_name(call: Call, script: Script) -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    class Broken(Looker):
        def on_step(self, step: Step) -> None:
            raise BrokenError

    with pytest.raises(BrokenError) as caught:
        call(Broken(model=script(calls("look"))), question="?")
    assert caught.value.run.thread[-1].error == "BrokenError"  # type: ignore[attr-defined]


def test_thread_contains_no_secret() -> None:
    class Leaky(Looker):
        model = {"model": "nobody/nothing", "api_key": SECRET, "extra_headers": {"Authorization": f"Bearer {SECRET}"}}

        def system_prompt(self) -> str:
            raise RuntimeError(f"could not log in with {SECRET}")

    with pytest.raises(RuntimeError) as caught:
        Leaky()(question="?")
    told = json.dumps(dump_events(caught.value.run.thread))  # type: ignore[attr-defined]
    assert "could not log in with" in told
    assert SECRET not in told
    assert SECRET not in repr(caught.value.run.journal.entries)  # type: ignore[attr-defined]


# Access


@pytest.mark.every_way
def test_thread_inside_run_contains_events_so_far(call: Call, script: Script) -> None:
    seen: list[tuple[str, int]] = []

    class Watching(module[Question, Answer]):
        """Watch."""

        max_steps = 3

        def system_prompt(self) -> str:
            seen.append(("prompt", len(self.thread)))
            return "Watch."

        @tool
        def peek(self) -> str:
            assert self.thread == current_run().thread
            seen.append((self.thread[-1].type, len(self.thread)))
            return "seen"

        def on_step(self, step: Step) -> None:
            assert self.thread == step.run.thread
            seen.append(("on_step", len(self.thread)))

        def on_finish(self, output: Answer) -> None:
            seen.append(("on_finish", len(self.thread)))

    agent = Watching(model=script(calls("peek"), DONE))
    assert agent.thread == []
    run = call.run(agent, question="?")
    assert seen == [("prompt", 0), ("tool_call", 3), ("on_step", 3), ("on_finish", 5)]
    assert len(run.thread) == 7


def test_thread_outside_run_contains_events_of_last_run(script: Script) -> None:
    agent = Asker(model=script(DONE, Failure(400), finish(answer="else"), finish(answer="task")))
    assert agent.thread == []
    first = agent.run(question="1")
    assert agent.thread == first.thread
    with pytest.raises(ModelError) as caught:
        agent(question="2")
    assert agent.thread == caught.value.run.thread
    assert isinstance(agent.thread[-1], ErrorEvent)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: agent.thread).result() == []
        other = pool.submit(lambda: (agent.run(question="3"), agent.thread)).result()
    assert other[0].thread == other[1]
    assert agent.thread == caught.value.run.thread

    async def main() -> Run[Answer]:
        run = await agent.arun(question="4")
        assert agent.thread == run.thread
        return run

    assert agent.thread == caught.value.run.thread
    assert asyncio.run(main()).thread == agent.thread  # Its task belonged to this thread.


def test_thread_of_streamed_run_equals_thread_of_plain_run(script: Script) -> None:
    def make() -> Looker:
        return Looker(model=script(calls("look") & calls("boom"), "Hm.", finish(), DONE))

    async def astreamed() -> Any:
        return [chunk async for chunk in make().astream(question="?")][-1].run

    plain = make().run(question="?")
    streamed = list(make().stream(question="?"))[-1].run
    assert streamed is not None
    for other in (streamed, asyncio.run(make().arun(question="?")), asyncio.run(astreamed())):
        assert untimed(other.thread) == untimed(plain.thread)


def untimed(events: list[AgentEvent]) -> list[dict[str, Any]]:
    return [{**event, "timestamp": None, "seconds": None} for event in dump_events(events)]


def test_thread_of_stream_left_early_ends_with_error_event(script: Script) -> None:
    def early(agent: Looker) -> None:
        seen = 0
        for chunk in agent.stream(question="?"):
            seen += chunk.tool_result is not None
            if seen == 2:
                break

    async def aearly(agent: Looker) -> None:
        seen, stream = 0, agent.astream(question="?")
        async for chunk in stream:
            seen += chunk.tool_result is not None
            if seen == 2:
                break
        await stream.aclose()

    with capture() as runs:
        early(Looker(model=script(calls("look") & calls("look", "b", place="b"))))
        asyncio.run(aearly(Looker(model=script(calls("look") & calls("look", "b", place="b")))))
    assert len(runs) == 2
    for run in runs:
        assert run.stop_reason == "cancelled"
        last = run.thread[-1]
        assert isinstance(last, ErrorEvent)
        assert not last.recoverable
        assert len(results(run)) == 2
        assert to_messages(run.thread) == run.history


@pytest.mark.every_way
def test_thread_events_are_in_time_order(call: Call, script: Script) -> None:
    def nap() -> None:
        """Sleep."""
        time.sleep(0.03)

    before = time.time() * 1000
    run = call.run(Main(model=script(calls("nap"), calls("check"), TRUE, DONE), tools=[nap]), question="?")
    for branch in (None, "check"):  # Each by its own clock.
        stamps: list[Any] = [event.timestamp for event in run.thread if event.branch == branch]
        assert stamps == sorted(stamps)
        assert int(before) <= stamps[0] <= stamps[-1] <= time.time() * 1000 + 1
    of_nap = [event.timestamp for event in run.thread if event.iteration == 1 and event.branch is None]
    assert of_nap[1] - of_nap[0] >= 25  # type: ignore[operator]


# Branches


def at(events: list[AgentEvent]) -> list[tuple[str | None, str]]:
    return [(event.branch, event.type) for event in events]


def assert_branch_true(run: Run[Any]) -> None:
    """Check that the thread of a branch's record is its conversation with inherited messages."""
    assert to_messages(run.thread) == run.history
    assert {event.branch for event in run.thread if event.run_id == run.id} == {run.branch}
    for below in run.branches:
        assert_branch_true(below)


@pytest.mark.every_way
def test_thread_events_of_branch_are_placed_after_call_that_started_branch(call: Call, script: Script) -> None:
    model = script(calls("look"), calls("look") & calls("check", "c"), calls("boom"), TRUE, DONE)
    run = call.run(Main(model=model), question="?")
    assert at(run.thread)[2:] == [
        *[(None, "tool_call"), (None, "tool_result")],
        *[(None, "tool_call")] * 2,
        *[("check", "tool_call"), ("check", "error"), ("check", "tool_call"), ("check", "tool_result")],
        ("check", "completion"),
        *[(None, "tool_result")] * 2,
        *[(None, "tool_call"), (None, "tool_result"), (None, "completion")],
    ]
    inside = [event for event in run.thread if event.branch]
    assert {event.run_id for event in inside} == {run.branches[0].id}
    assert [event.iteration for event in inside] == [1, 1, 2, 2, 2]
    assert {event.run_id for event in run.thread if event.branch is None} == {None}
    assert_branch_true(run.branches[0])
    assert len(run.branches[0].thread) == 6 + 2 + 5  # The inherited messages, the answered pending calls, and its own.


def test_thread_of_branch_with_input_starts_with_input(call: Call, script: Script) -> None:
    class Ask(module[Question, Claim]):
        """Ask it."""

    class Asking(Looker):
        """Ask."""

        branches = {"ask": Ask}

    run = call.run(Asking(model=script(calls("ask", question="Is it?"), TRUE, DONE)), question="?")
    first = next(event for event in run.thread if event.branch)
    assert isinstance(first, MessageEvent)
    assert (first.role, first.iteration) == ("user", 0)
    assert "Is it?" in first.content
    assert_branch_true(run.branches[0])


def test_thread_of_branch_started_inside_branch_contains_events_of_both_branches(call: Call, script: Script) -> None:
    class Inner(module[Any, Claim]):
        """Check deeper."""

    class Outer(Check):
        """Check by checking."""

        branches = {"inner": Inner}

    class Byhand(Looker):
        def on_step(self, step: Step) -> None:
            assert self.branch(Outer).holds

    run = call.run(Byhand(model=script(calls("look"), calls("inner"), TRUE, TRUE, DONE)), question="?")
    assert at(run.thread)[2:] == [
        (None, "tool_call"),
        ("Outer", "tool_call"),
        *[("Outer/inner", "tool_call"), ("Outer/inner", "tool_result"), ("Outer/inner", "completion")],
        *[("Outer", "tool_result"), ("Outer", "tool_call"), ("Outer", "tool_result"), ("Outer", "completion")],
        *[(None, "tool_result"), (None, "tool_call"), (None, "tool_result"), (None, "completion")],
    ]
    assert_branch_true(run.branches[0])
    assert at(run.branches[0].branches[0].thread)[-3:] == at(run.thread)[4:7]


@pytest.mark.every_way
def test_thread_of_branch_called_twice_in_step_contains_events_of_both_runs(call: Call, script: Script) -> None:
    replies = iter([calls("check", "a") & calls("check", "b"), DONE])
    model = script(lambda request: TRUE if "Check it." in request.messages[0]["content"] else next(replies))
    run = call.run(Main(model=model), question="?")
    one, two = run.branches
    inside = [(event.run_id, event.type) for event in run.thread if event.branch == "check"]
    assert inside == [(each.id, kind) for each in (one, two) for kind in ("tool_call", "tool_result", "completion")]
    assert_branch_true(one)
    assert_branch_true(two)
    assert "check" in serialize_thread_to_xml(run.thread)


@pytest.mark.every_way
def test_thread_of_concurrent_branches_started_by_branch_method_contains_events_of_each_branch(
    call: Call, script: Script
) -> None:
    class Wide(Looker):
        def on_step(self, step: Step) -> None:
            self.branch_all([(Check, {})] * 6)

    replies = iter([calls("look"), DONE])
    model = script(lambda request: TRUE if "Check it." in request.messages[0]["content"] else next(replies))
    run = call.run(Wide(model=model), question="?")
    assert len({event.run_id for event in run.thread if event.branch == "Check"}) == 6
    for each in run.branches:
        own = [event for event in run.thread if event.run_id == each.id]
        assert [event.type for event in own] == ["tool_call", "tool_result", "completion"]
        assert own == each.thread[-3:]
        assert_branch_true(each)


@pytest.mark.every_way
def test_thread_of_failing_branch_contains_error_of_branch_and_parent(call: Call, script: Script) -> None:
    run = call.run(Main(model=script(calls("check", "c"), Failure(400), DONE)), question="?")
    inner, outer = errors(run)
    assert (inner.branch, inner.recoverable, inner.tool_call_id) == ("check", False, None)
    assert (outer.branch, outer.recoverable, outer.tool_call_id) == (None, True, "c")
    assert inner.error.startswith("ModelError: ")
    assert outer.error == inner.error
    assert_branch_true(run.branches[0])


@pytest.mark.every_way
def test_thread_of_run_ended_by_uncaught_branch_error_contains_error_of_branch_and_parent(
    call: Call, script: Script
) -> None:
    class Byhand(Looker):
        def on_step(self, step: Step) -> None:
            self.branch(Check)

    with pytest.raises(BranchError) as caught:
        call(Byhand(model=script(calls("look"), Failure(400))), question="?")
    assert [event.branch for event in errors(caught.value.run)] == ["Check", None]
    assert [event.recoverable for event in errors(caught.value.run)] == [False, False]


@pytest.mark.edits_history
def test_thread_is_not_changed_if_branch_edits_inherited_history(call: Call, script: Script) -> None:
    class Vandal(Check):
        """Vandalise it."""

        def on_step(self, step: Step) -> None:
            for message in self.history:
                message["content"] = "EDITED"
                for made in message.get("tool_calls", ()):
                    made["function"]["name"] = "EDITED"

    class Vandalised(Looker):
        """Look."""

        branches = {"vandal": Vandal}

    run = call.run(Vandalised(model=script(calls("vandal"), calls("look"), TRUE, DONE)), question="?")
    for each in (run, run.branches[0]):
        assert "EDITED" not in json.dumps(dump_events(each.thread))


# The history belongs to the user, the thread does not


def test_thread_of_continued_run_starts_with_prior_conversation(call: Call, script: Script) -> None:
    agent = Looker(model=script(calls("look") & calls("boom"), "Hm.", DONE, finish(answer="again")))
    first = call.run(agent, question="One?")
    second = call.run(agent.using(history=first), question="Two?")
    assert to_messages(second.thread) == second.history
    earlier = second.thread[: len(first.thread) - 1]  # Without its completion.
    assert {event.iteration for event in earlier} == {0}
    assert [event.type for event in earlier] == [event.type for event in first.thread[:-1]]
    assert short(second.thread)[-4:] == [("user", 0), ("tool_call", 1), ("tool_result", 1), ("completion", 1)]


@pytest.mark.edits_history
def test_thread_contains_prior_messages_with_images_names_and_developer_role(call: Call, script: Script) -> None:
    made = {"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    prior: list[Any] = [
        {"role": "developer", "content": "Old."},
        {"role": "user", "content": [{"type": "text", "text": "See:"}, image], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "assistant", "content": "", "tool_calls": [{**made, "id": "y"}], "thinking_blocks": [{"a": [1]}]},
        {"role": "tool", "tool_call_id": "y", "content": [{"type": "text", "text": "five"}]},
        {"role": "assistant", "tool_calls": [{"id": "z", "name": "look", "arguments": {}}]},
        {"role": "assistant", "content": "Hm."},
    ]
    run = call.run(Asker(model=script(DONE)).using(history=prior), question="?")
    assert to_messages(run.thread) == run.history
    kept = json.dumps(dump_events(run.thread))
    image["image_url"] = {"url": "EDITED"}
    run.history[2]["content"] = "EDITED"
    assert json.dumps(dump_events(run.thread)) == kept


class Editing(Looker):
    """Edit the history."""

    def __init__(self, edit: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.edit = edit

    def on_step(self, step: Step) -> None:
        self.edit(self, step)


def note(text: str) -> Message:
    return {"role": "user", "content": text}


NOTE = note("Hurry.")


@pytest.mark.every_way
def test_thread_contains_messages_appended_by_hooks_and_tools(call: Call, script: Script) -> None:
    def add() -> str:
        """Add a message."""
        current_run().history.append(note("from the tool"))
        return "added"

    class Adding(Looker):
        tools = [add]

        def on_step(self, step: Step) -> None:
            self.history.append(note(f"from step {step.counter}"))
            self.history.append(NOTE)

        def on_finish(self, output: Answer) -> None:
            self.history.append(note("from the end"))

    run = call.run(Adding(model=script(calls("add") & calls("add"), calls("add"), DONE)), question="?")
    assert texts(run.thread)[2:] == [
        *["from the tool", "from the tool", "from step 1", "Hurry."],
        *["from the tool", "from step 2", "Hurry.", "from the end"],
    ]
    assert to_messages(run.thread) == run.history


@pytest.mark.edits_history
def test_thread_contains_messages_trimmed_from_history(call: Call, script: Script) -> None:
    def trim(self: Looker, step: Step) -> None:
        self.history = [self.history[0], self.history[-1]]

    run = call.run(Editing(trim, model=script(calls("look"), calls("look", place="b"), DONE)), question="?")
    assert len(run.history) < 7
    assert len(to_messages(run.thread)) == 8
    assert [event.result for event in results(run)[:2]] == ["nothing in here", "nothing in b"]


@pytest.mark.edits_history
def test_thread_contains_message_that_replaced_trimmed_messages(call: Call, script: Script) -> None:
    def sum_up(self: Looker, step: Step) -> None:
        self.history = [self.history[0], note(f"So far: {step.counter} looks."), self.history[-1]]

    replies = [calls("look", place=str(number)) for number in range(3)]
    run = call.run(Editing(sum_up, model=script(*replies, DONE)), question="?")
    assert texts(run.thread)[2:] == [f"So far: {number} looks." for number in (1, 2, 3)]
    assert [event.iteration for event in run.thread if isinstance(event, MessageEvent)] == [0, 0, 1, 2, 3]
    assert len(results(run)) == 4


@pytest.mark.edits_history
@each_case("copied", [copy.deepcopy, lambda history: json.loads(json.dumps(history)), list])
def test_thread_does_not_repeat_messages_if_hook_replaces_history_by_copy(
    call: Call, script: Script, copied: Any
) -> None:
    def replace(self: Looker, step: Step) -> None:
        self.history = copied(self.history)
        if step.counter == 2:
            self.history.append(note("new"))

    replies = [calls("look", place=str(number)) & calls("boom") for number in range(3)]
    run = call.run(Editing(replace, model=script(*replies, DONE), loop_guard=None), question="?")
    assert texts(run.thread)[2:] == ["new"]
    assert to_messages(run.thread) == run.history


@pytest.mark.edits_history
def test_thread_does_not_repeat_edited_copies_of_messages(call: Call, script: Script) -> None:
    def shorten(self: Looker, step: Step) -> None:
        self.history = [
            {**message, "content": "cut"} if message["role"] in ("tool", "assistant") else message
            for message in self.history
        ]

    replies = [calls("look", place=str(number)) & calls("boom") for number in range(3)]
    run = call.run(Editing(shorten, model=script(*replies, DONE)), question="?")
    assert "cut" not in json.dumps(dump_events(run.thread))
    assert len(results(run)) == 4
    assert len(errors(run)) == 3


@pytest.mark.edits_history
def test_thread_does_not_repeat_moved_message(call: Call, script: Script) -> None:
    def move(self: Looker, step: Step) -> None:
        if step.counter == 1:
            self.history.append(self.history.pop(1))

    run = call.run(Editing(move, model=script(calls("look"), calls("look", place="b"), DONE)), question="?")
    assert len(to_messages(run.thread)) == 8


@pytest.mark.edits_history
def test_thread_is_not_changed_by_in_place_edits(call: Call, script: Script) -> None:
    held: list[Any] = [1]

    def fetch(of: dict[str, Any]) -> Any:
        """Fetch it."""
        of["x"] = "EDITED"
        return held

    def spoil(self: Looker, step: Step) -> None:
        if step.counter == 1:
            self.history.append({"role": "user", "content": [{"type": "text", "text": "parts"}]})
            return
        held.append("EDITED")
        step.tool_calls[0].arguments["of"] = "EDITED"
        for message in self.history[:-1]:
            message["content"] = "EDITED"
            for made in message.get("tool_calls", ()):
                made["function"]["arguments"] = "EDITED"

    agent = Editing(spoil, model=script(calls("fetch", of={"x": 1}), calls("look"), DONE), tools=[fetch, look])
    run = call.run(agent, question="?")
    assert "EDITED" not in json.dumps(dump_events(run.thread))
    assert results(run)[0].result == [1]
    kept = dump_events(run.thread)
    run.history.clear()
    assert dump_events(run.thread) == kept


def test_thread_lists_returned_by_two_reads_are_independent(call: Call, script: Script) -> None:
    def add(self: Looker, step: Step) -> None:
        self.history.append({"role": "user", "content": [{"type": "text", "text": "parts"}]})

    run = call.run(Editing(add, model=script(calls("look", place="a"), DONE)), question="?")
    kept = dump_events(run.thread)
    for event in run.thread:
        event.iteration = 99
        if isinstance(event, MessageEvent) and event.rest:
            event.rest["content"][0]["text"] = "EDITED"
        if isinstance(event, ToolCallEvent):
            event.args["place"] = "EDITED"
        if isinstance(event, CompletionEvent):
            event.result["answer"] = "EDITED"
    run.thread.clear()
    assert dump_events(run.thread) == kept


def test_thread_contains_provider_specific_fields(call: Call) -> None:
    blocks = [{"type": "thinking", "signature": "abc"}]
    first = calling(("a", "look", "{}"), extra={"thinking_blocks": blocks})
    run = call.run(Looker(model=call.raw([first, finishing(answer="nowhere")])), question="?")
    assert to_messages(run.thread) == run.history
    blocks[0]["signature"] = "EDITED"
    for event in run.thread:
        if isinstance(event, ToolCallEvent) and event.rest:
            event.rest["thinking_blocks"].append("EDITED")
    assert to_messages(run.thread)[2]["thinking_blocks"] == [{"type": "thinking", "signature": "abc"}]


@each_case("wrong", [{"role": "robot", "content": "Hi"}, {"content": "Hi"}, {}, None, "text", 5])
def test_thread_of_run_that_failed_on_invalid_message_contains_valid_messages(call: Call, wrong: Any) -> None:
    def spoil(self: Looker, step: Step) -> None:
        self.history.append(wrong)
        self.history.append(note("new"))

    with pytest.raises(Exception, match=r"`history\[3\]` must be a dict with a `role`") as caught:
        call(Editing(spoil, model=call.scripted([calls("look")])), question="?")
    run: Run[Any] = caught.value.run  # type: ignore[attr-defined]
    assert texts(run.thread)[2:] == ["new"]
    assert errors(run)[-1].error.startswith("AcornError: ")


@each_case("wrong", [None, (), "history"])
def test_thread_contains_all_events_although_hook_replaced_history_by_non_list(call: Call, wrong: Any) -> None:
    def spoil(self: Looker, step: Step) -> None:
        step.run.history = wrong
        step.finish(answer="soon")

    def end(self: Looker, output: Any) -> None:
        current_run().history = wrong

    with pytest.raises(Exception, match="`history` must be a list of messages") as caught:
        call(Editing(spoil, model=call.scripted([calls("look")])), question="?")
    assert short(caught.value.run.thread)[-1] == ("error", 1)  # type: ignore[attr-defined]
    form = "<output><answer>nowhere</answer></output>"
    kind = type("Ending", (Looker,), {"on_finish": end})
    with pytest.raises(Exception, match="`history` must be a list of messages") as caught:
        call.run(kind(model=call.scripted([calls("look"), form], forces=False), max_steps=1), question="?")
    assert short(caught.value.run.thread)[-1] == ("error", 2)  # type: ignore[attr-defined]


# Pickled records


def test_thread_of_copied_or_pickled_record_is_equal(call: Call, script: Script) -> None:
    model = script(calls("look") & calls("boom"), calls("check"), TRUE, DONE)
    run = call.run(Main(model=model), question="?")
    for other in (copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert other.thread == run.thread
        assert other.branches[0].thread == run.branches[0].thread
    with pytest.raises(ModelError) as caught:
        call(Looker(model=script(Failure(400))), question="?")
    sent = pickle.loads(pickle.dumps(caught.value))
    assert sent.run.thread == caught.value.run.thread


def test_thread_of_record_pickled_during_run_does_not_get_later_events(call: Call, script: Script) -> None:
    kept: list[Run[Any]] = []

    def keep(self: Looker, step: Step) -> None:
        kept.append(pickle.loads(pickle.dumps(step.run)))

    run = call.run(Editing(keep, model=script(calls("look"), DONE)), question="?")
    assert [len(each.thread) for each in (*kept, run)] == [3, 7]


def test_threads_of_concurrent_runs_contain_only_their_events() -> None:
    barrier = threading.Barrier(8, timeout=PATIENCE)

    def meet(name: str) -> str:
        """Meet the others."""
        barrier.wait()
        return name

    class Meeting(module[str, str]):
        """Meet."""

        tools = [meet]
        max_steps = 4

    def reply(request: Any) -> Reply:
        name = request.messages[1]["content"].split("<input>")[1].split("</")[0]
        done = sum(message["role"] == "assistant" for message in request.messages)
        return finish(result=name) if done == 3 else calls("meet", name=name)

    agent = Meeting(model=ScriptedModel(reply))

    def one(name: str) -> Run[Any]:
        run = agent.run(name)
        assert agent.thread == run.thread
        return run

    names = [f"run-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(one, names))
    for name, run in zip(names, runs, strict=True):
        assert [event.result for event in results(run)[:3]] == [name] * 3
        assert to_messages(run.thread) == run.history
        told = json.dumps(dump_events(run.thread))
        assert not any(other in told for other in names if other != name)


def test_thread_read_by_other_os_threads_during_run_raises_no_error() -> None:
    stop = threading.Event()
    trouble: list[BaseException] = []
    model = RawModel([calling((f"c{at}", "look", "{}")) for at in range(150)] + [finishing(answer="nowhere")])

    def read() -> None:
        try:
            length = 0
            while not stop.is_set():
                events = runs[0].thread if runs else []
                assert len(events) >= length
                length = len(events)
        except BaseException as error:
            trouble.append(error)

    with capture() as runs:
        reader = threading.Thread(target=read)
        reader.start()
        Looker(model=model, max_steps=200, loop_guard=None)(question="?")
        stop.set()
        reader.join()
    assert trouble == []
