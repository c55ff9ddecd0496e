"""Tests of compaction: the model summarizes a long conversation, and the run continues with the summary."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.long_version import IS_LONG
from tests.provider_rules import assert_complete, assert_request_valid, assert_thread_true, assert_valid
from tests.saved_tree import SavedTree
from tests.waiting import PATIENCE

from acorn import DeclarationError, LimitError, Run, Step, StreamChunk, listen, module, tool
from acorn._call.plan import new_machine
from acorn._drive.sync_driver import drive
from acorn._drive.tree import Tree
from acorn._history.history import history_of
from acorn._machine.saved_run import load, save
from acorn.journal import Compacted, Entry, ModelResponded
from acorn.models import ModelRequest, Price
from acorn.testing import AnyModel, Reply, ScriptedModel, finish
from acorn.testing import call as calling
from acorn.types import Usage

WAYS = ["sync", "async", "streamed", "streamed async", "saved"]
EVERY_WAY = pytest.mark.parametrize("way", WAYS)
"""For tests whose subject depends on the driver. Other tests run once, and in all ways in the long version."""
LONG = "x" * 400
SHORT = "The code is 4711."
INTRODUCTION = "The earlier part of this conversation, in short:\n\n"


@tool(repeatable=True)
def look(at: int) -> str:
    """Look."""
    return f"seen {at} {LONG}"


class Looker(module[Any, str]):
    """Look around."""

    initial_input = str
    final_output = str
    tools = [look]
    max_steps = 20
    compact_at = 350


@pytest.fixture(params=WAYS if IS_LONG else ["saved"])
def way(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def is_summary(request: ModelRequest) -> bool:
    return not request.tools


def looks(request: ModelRequest, *, times: int = 6, summary: Any = SHORT) -> Any:
    """Call the tool a number of times, then report what the conversation says."""
    if is_summary(request):
        return summary
    texts = [str(message.get("content")) for message in request.messages]
    seen = [int(text.split()[1]) for text in texts if text.startswith("seen ")]
    at = max(seen, default=0) + 1
    if at <= times:
        return calling("look", _id=f"c{at}", at=at)
    return finish("4711" if any(SHORT in text for text in texts) else "unknown")


def run_in(agent: module[Any, Any], way: str, **inputs: Any) -> Run[Any]:
    if way == "async":
        return asyncio.run(agent.arun("go", **inputs))
    if way == "streamed":
        return list(agent.stream("go", **inputs))[-1].run or pytest.fail("no record")
    if way == "streamed async":

        async def last() -> Any:
            return [chunk async for chunk in agent.astream("go", **inputs)][-1].run

        found: Run[Any] = asyncio.run(last())
        return found
    if way == "saved":
        loop = new_machine(agent, ("go",), inputs)
        drive(SavedTree(loop), loop.run.id)
        return loop.run
    return agent.run("go", **inputs)


def compactions(run: Run[Any]) -> list[Compacted]:
    return [entry for entry in run.journal.entries if isinstance(entry, Compacted)]


def roles(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(message["role"]) for message in messages]


def judge(model: ScriptedModel) -> None:
    for request in model.requests:
        if is_summary(request):
            assert_valid(request.messages)
        else:
            assert_request_valid(request)


def check(run: Run[Any], model: ScriptedModel) -> None:
    judge(model)
    assert_complete(run.history)
    assert history_of(run.journal.entries) == run.history
    assert_thread_true(run)


@EVERY_WAY
def test_compaction_replaces_older_steps_with_summary(way: str) -> None:
    model = ScriptedModel(looks)
    run = run_in(Looker(model=model), way)
    check(run, model)
    assert run.output == "4711"
    assert compactions(run)
    assert run.steps == 6
    at = next(at for at, request in enumerate(model.requests) if is_summary(request))
    before, asked, after = model.requests[at - 1 : at + 2]
    assert roles(before.messages)[:2] == roles(after.messages)[:2] == ["system", "user"]
    assert before.messages[:2] == after.messages[:2]
    assert after.messages[2] == {"role": "user", "content": f"{INTRODUCTION}{SHORT}"}
    assert roles(after.messages)[3:] == ["assistant", "tool"] * 2
    assert after.messages[-4:-2] == before.messages[-2:]
    assert "seen 1 " in str(asked.messages[-1]["content"])
    assert all(f"seen {at} " not in str(asked.messages[-1]["content"]) for at in (4, 5))
    assert asked.forced_tool is None
    assert run.usage.requests == len(model.requests)


def test_compaction_does_not_remove_events_from_event_thread(way: str) -> None:
    run = run_in(Looker(model=ScriptedModel(looks)), way)
    events = run.thread
    assert [event.args["at"] for event in events if event.type == "tool_call" and event.tool_name == "look"] == [
        *range(1, 7)
    ]
    summaries = [event for event in events if event.type == "summary"]
    assert [event.summary for event in summaries] == [f"{INTRODUCTION}{SHORT}"] * len(compactions(run))
    assert summaries[0].summarized_iterations == [1, 2, 3]


def test_second_compaction_request_contains_summary_of_first_compaction(way: str) -> None:
    asked: list[str] = []

    def reply(request: ModelRequest) -> Any:
        if is_summary(request):
            asked.append(str(request.messages[-1]["content"]))
            return f"{SHORT} Summary {len(asked)}."
        return looks(request, times=12)

    model = ScriptedModel(reply)
    run = run_in(Looker(model=model), way)
    check(run, model)
    assert len(asked) > 1
    assert "Summary 1." in asked[1]
    assert run.output == "4711"
    texts = [str(message.get("content")) for message in run.history]
    assert sum(text.startswith(INTRODUCTION) for text in texts) == 1


def test_compaction_whose_summary_response_is_empty_leaves_history_unchanged(way: str) -> None:
    for summary in ["", "  \n", Reply(refusal="No."), Reply("Half", stop_reason="content_filter")]:
        with case(summary):
            model = ScriptedModel(functools.partial(looks, summary=summary))
            run = run_in(Looker(model=model), way)
            check(run, model)
            assert run.output == "unknown"
            assert roles(run.history).count("assistant") == 7
            tried = compactions(run)
            assert 0 < len(tried) < 6
            assert all(not entry.summary and not entry.removed for entry in tried)
            assert all(not is_summary(request) for request in model.requests[-1:])
            assert run.usage.requests == len(model.requests)


def test_compaction_with_cut_off_summary_marks_summary_as_cut_off() -> None:
    model = ScriptedModel(functools.partial(looks, summary=Reply(SHORT, stop_reason="length")))
    assert run_in(Looker(model=model), "sync").output == "4711"
    assert f"{SHORT} (cut off here)" in str(model.requests[-1].messages)


def test_compaction_cost_is_added_to_run_cost(way: str) -> None:
    model = ScriptedModel(looks, price=Price(0.001, 0.002))
    run = run_in(Looker(model=model), way)
    spent = [entry for entry in run.journal.entries if isinstance(entry, Compacted | ModelResponded)]
    assert run.usage == functools.reduce(Usage.__add__, (entry.usage for entry in spent), Usage())
    assert run.cost == pytest.approx(sum(entry.cost or 0.0 for entry in spent))


def test_compaction_starts_at_token_count_reported_by_provider() -> None:
    def reply(request: ModelRequest) -> Any:
        made = looks(request, times=4)
        if isinstance(made, Reply):
            made.usage = Usage(input_tokens=100, output_tokens=1 if len(request.messages) < 8 else 300, requests=1)
        return made

    model = ScriptedModel(reply)
    assert len(compactions(run_in(Looker(model=model), "sync"))) == 1
    quiet = ScriptedModel(lambda request: _without_usage(looks(request, times=4)))
    assert compactions(run_in(Looker(model=quiet), "sync"))  # By an estimate.


def _without_usage(reply: Any) -> Any:
    made = Reply(reply) if isinstance(reply, str) else reply
    made.usage = Usage(requests=1)
    return made


def test_compaction_request_is_not_streamed_to_user() -> None:
    shown: list[StreamChunk[str]] = []

    class Watched(Looker):
        """Look around."""

        def on_stream(self, chunk: StreamChunk[str]) -> None:
            shown.append(chunk)

    agent = Watched(model=ScriptedModel(looks))
    chunks = list(agent.stream("go"))
    assert chunks[-1].run is not None
    assert compactions(chunks[-1].run)
    for each in (chunks, shown):
        assert "4711" not in "".join(chunk.content or "" for chunk in each)


def test_compaction_is_not_done_in_short_conversation() -> None:
    model = ScriptedModel(functools.partial(looks, times=2))
    assert not compactions(run_in(Looker(model=model, compact_at=100_000), "sync"))
    model = ScriptedModel(functools.partial(looks, times=1))
    assert not compactions(run_in(Looker(model=model, compact_at=1), "sync"))  # At least two turns are kept.


def test_compaction_is_not_done_if_it_saves_few_tokens() -> None:
    """Keep the remaining part long, so that a summary does not follow at every step."""
    model = ScriptedModel(functools.partial(looks, times=12))
    run = run_in(Looker(model=model, compact_at=3000), "sync")
    assert not compactions(run)

    class Wordy(Looker):
        __doc__ = "Look around. " + "y" * 20_000

    model = ScriptedModel(functools.partial(looks, times=12))
    run = run_in(Wordy(model=model, compact_at=3000), "sync")
    assert 0 < len(compactions(run)) < 6


def test_compaction_interrupted_during_request_is_resumed() -> None:
    state = {"strikes": 1}

    def reply(request: ModelRequest) -> Any:
        if is_summary(request) and state["strikes"]:
            state["strikes"] -= 1
            raise KeyboardInterrupt
        return looks(request)

    model = ScriptedModel(reply)
    loop = new_machine(Looker(model=model), ("go",), {})
    with pytest.raises(KeyboardInterrupt):
        drive(Tree(loop), loop.run.id)
    again = load(loop.plan, json.loads(json.dumps(save(loop))))
    assert again.state.phase == "compact"
    drive(Tree(again), again.run.id)
    assert again.run.output == "4711"
    check(again.run, ScriptedModel([]))
    assert again.run.usage.requests == len(model.requests) - 1


def test_compaction_in_run_saved_after_every_step_gives_same_history_as_unsaved_run() -> None:
    whole = run_in(Looker(model=ScriptedModel(looks)), "sync")
    saved = run_in(Looker(model=ScriptedModel(looks)), "saved")
    assert saved.history == whole.history
    assert saved.usage == whole.usage


def test_compaction_happens_before_forced_finish(way: str) -> None:
    model = ScriptedModel(functools.partial(looks, times=99))

    def reply(request: ModelRequest) -> Any:
        return finish("enough") if request.forced_tool else looks(request, times=99)

    model = ScriptedModel(reply)
    run = run_in(Looker(model=model, max_steps=5), way)
    check(run, model)
    assert (run.output, run.stop_reason, run.steps) == ("enough", "forced", 5)
    assert compactions(run)


def test_compaction_near_max_total_tokens_leaves_enough_tokens_for_answer() -> None:
    def reply(request: ModelRequest) -> Any:
        return finish("enough") if request.forced_tool else looks(request, times=99)

    for most in (1000, 1500, 2000, 3000):
        model = ScriptedModel(reply)
        try:
            run = run_in(Looker(model=model, max_total_tokens=most), "sync")
        except LimitError as error:
            pytest.fail(f"{most}: {error}")
        assert run.stop_reason == "limit"
        check(run, model)


class Inner(module[Any, str]):
    """Inner."""

    final_output = str
    max_steps = 9


class Outer(Looker):
    """Outer."""

    branches = {"inner": Inner}


@EVERY_WAY
def test_branch_with_smaller_compact_at_than_parent_compacts_inherited_history(way: str) -> None:
    def reply(request: ModelRequest) -> Any:
        if is_summary(request):
            return SHORT
        texts = [str(message.get("content")) for message in request.messages]
        if "Inner." in texts[0]:
            return finish("inner knows" if any(SHORT in text for text in texts) else "inner does not know")
        if any("inner " in text for text in texts[1:]):
            return finish(texts[-1])
        made = looks(request, times=4)
        return calling("inner", _id="b") if made.calls[0].name != "look" else made

    model = ScriptedModel(reply)
    run = run_in(Outer(model=model, compact_at=10_000), way)
    assert run.output == "inner does not know"
    (branch,) = run.branches
    assert not compactions(branch)

    class Small(Inner):
        """Inner."""

        compact_at = 350

    model = ScriptedModel(reply)
    run = run_in(Outer(model=model, compact_at=10_000, branches={"inner": Small}), way)
    judge(model)
    assert run.output == "inner knows"
    (branch,) = run.branches
    assert compactions(branch)
    assert not compactions(run)
    assert history_of(branch.journal.entries) == branch.history
    assert run.usage.requests == len(model.requests)


def test_branch_inherits_compact_at() -> None:
    model = ScriptedModel(lambda request: looks(request) if is_summary(request) else _branching(request))
    run = run_in(Outer(model=model), "sync")
    (branch,) = run.branches
    assert compactions(branch)


def _branching(request: ModelRequest) -> Any:
    texts = [str(message.get("content")) for message in request.messages]
    if "Inner." not in texts[0]:
        return finish("done") if "4711" in texts[-1] else calling("inner", _id="b")
    return looks(request)


def test_compaction_summarizes_prior_history(way: str) -> None:
    prior: list[dict[str, Any]] = []
    for number in range(4):
        prior += [{"role": "user", "content": f"ask {number}"}, {"role": "assistant", "content": LONG}]
    model = ScriptedModel(looks)
    run = run_in(Looker(model=model).using(history=prior), way)
    judge(model)
    assert history_of(run.journal.entries) == run.history
    assert is_summary(model.requests[0])
    assert run.output == "4711"
    assert run.history[0]["role"] == "system"
    assert {"role": "user", "content": "<input>go</input>"} in run.history or "go" in str(run.history[:4])


def test_compaction_summarizes_history_edited_by_hooks(way: str) -> None:
    class Editing(Looker):
        """Look around."""

        def on_step(self, step: Step) -> None:
            if step.counter == 2:
                self.history[1:1] = [{"role": "user", "content": "by the way"}]
            if step.counter == 3:
                del self.history[1]
            if step.counter == 4:
                self.history[-3]["content"] = "edited"

    model = ScriptedModel(looks)
    run = run_in(Editing(model=model), way)
    judge(model)
    assert_complete(run.history)
    assert history_of(run.journal.entries) == run.history
    assert compactions(run)
    assert run.output == "4711"


def test_compaction_never_separates_call_from_result() -> None:
    class Moving(Looker):
        """Look around."""

        def on_step(self, step: Step) -> None:
            if step.counter == 3:  # The result of the first call is at the end.
                found = next(each for each in self.history if each.get("tool_call_id") == "c1")
                self.history.remove(found)
                self.history.append(found)

    model = ScriptedModel(looks)
    run = run_in(Moving(model=model), "sync")
    judge(model)
    for messages in [run.history, *(request.messages for request in model.requests)]:
        called = {each["id"] for message in messages for each in message.get("tool_calls") or ()}
        answered = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
        assert called >= answered


def test_compaction_never_separates_calls_of_one_response(way: str) -> None:
    def reply(request: ModelRequest) -> Any:
        if is_summary(request):
            return SHORT
        turns = sum(message["role"] == "assistant" for message in request.messages)
        if any(SHORT in str(message["content"]) for message in request.messages):
            return finish("4711")
        return calling("look", _id=f"a{turns}", at=turns) & calling("look", _id=f"b{turns}", at=turns)

    model = ScriptedModel(reply)
    run = run_in(Looker(model=model), way)
    check(run, model)
    assert run.output == "4711"


def test_compaction_with_history_format_thread_sends_summary_in_thread_document() -> None:
    def reply(request: ModelRequest) -> Any:
        if is_summary(request):
            return SHORT
        text = str(request.messages[-1]["content"])
        seen = [at for at in range(1, 9) if f"seen {at} " in text]
        return (
            finish("4711" if SHORT in text else "unknown")
            if 6 in seen
            else calling("look", at=max(seen, default=0) + 1)
        )

    run = run_in(Looker(model=ScriptedModel(reply), history_format="thread"), "sync")
    assert run.output == "4711"
    assert compactions(run)


def test_compaction_is_reported_to_listeners() -> None:
    heard: list[Entry] = []
    with listen(heard.append):
        run = run_in(Looker(model=ScriptedModel(looks)), "sync")
    assert heard == run.journal.entries
    again = Run.from_json(run.to_json())
    assert again.journal.entries[1:] == run.journal.entries[1:]
    assert again.history == run.history


def test_any_model_answers_compaction_request() -> None:
    assert isinstance(Looker(model=AnyModel(), compact_at=1)("go"), str)


def test_compact_at_with_wrong_value_raises_declaration_error() -> None:
    for value in [0, -1, 1.5, "many", True]:
        words = r"`Looker\.compact_at` must be a whole number of tokens"
        with case(value), pytest.raises(DeclarationError, match=words):
            Looker(compact_at=value)


# Killed

VICTIM = """
import os, signal, sys
from pathlib import Path
from acorn import module, tool
from acorn.testing import ScriptedModel, call, finish

LOG = Path("log.txt")


def note(what):
    with LOG.open("a") as log:
        log.write(what + "\\n")
    return LOG.read_text().split("\\n").count(what)


@tool
def look(at: int) -> str:
    note(f"look {at}")
    return f"seen {at} " + ("the code is 4711" if at == 1 else "x" * 400)


def reply(request):
    if not request.tools:
        if note("summary") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "It was found that the code is 4711."
    texts = [str(message["content"]) for message in request.messages]
    if any("in short" in text for text in texts) and note("after") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = [int(text.split()[1]) for text in texts if text.startswith("seen ")]
    at = max(seen, default=0) + 1
    if at < 8:
        return call("look", _id=f"c{at}", at=at)
    return finish("4711" if "found that the code is 4711" in str(texts) else "unknown")


class Looker(module):
    '''Look around.'''

    model = ScriptedModel(reply)
    initial_input = str
    final_output = str
    tools = [look]
    max_steps = 20
    compact_at = 350
    store = "runs.db"


run = Looker().using(run_id="long").run("go")
print(run.output, run.usage.requests, [entry.removed for entry in run.journal.entries if hasattr(entry, "summary")])
assert not any(message.get("tool_call_id") == "c1" for message in run.history)
"""


@pytest.mark.torture
def test_compaction_interrupted_by_killed_process_is_resumed_by_next_process(tmp_path: Path) -> None:
    def go() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", VICTIM]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE)

    first, second, third = go(), go(), go()
    assert first.returncode == second.returncode == -signal.SIGKILL, first.stderr + second.stderr
    assert third.returncode == 0, third.stderr
    assert third.stdout.startswith("4711 ")
    log = (tmp_path / "log.txt").read_text().split("\n")
    assert [log.count(f"look {at}") for at in range(1, 8)] == [1] * 7
    assert log.count("summary") == 2  # Once cut off, once kept.
