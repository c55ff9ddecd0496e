"""Tests of forks: a fork copies the events before its step unchanged and executes the later steps again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.cases import case
from tests.saved_tree import SavedTree

import acorn
from acorn import DeclarationError, InputError, Run, StoreError, listen, module, tool
from acorn._call.plan import new_machine
from acorn._drive.sync_driver import drive
from acorn.journal import Entry, ModelResponded, RunStarted
from acorn.models import ModelRequest
from acorn.testing import Failure, Reply, ScriptedModel, call, finish
from acorn.thread import AgentEvent, ErrorEvent, MessageEvent, ToolCallEvent, ToolResultEvent, dump_events, to_messages
from acorn.types import ForkedFrom


class Place(BaseModel):
    city: str
    tags: list[str] = []


class Question(BaseModel):
    question: str = Field(description="What to find out")
    place: Place = Place(city="Oslo")


class Answer(BaseModel):
    answer: str


SEARCHED: list[str] = []


class Researcher(module[Question, Answer]):
    """You are a research assistant."""

    max_steps = 6

    @tool
    def search(self, query: str) -> list[str]:
        """Search."""
        SEARCHED.append(query)
        return [f"{query}: an article"]

    @tool
    def weigh(self, stone: str) -> int:
        """Weigh it."""
        if stone == "none":
            raise ValueError("no such stone")
        return len(stone)


SCRIPT = [
    Reply("Let me see.") & call("search", query='a "quoted" ключ') & call("weigh", stone="none"),
    Reply("I think about it."),
    call("search", query="second"),
    finish(answers="wrong"),
    finish(answer="done"),
]


def first_run(**settings: Any) -> Run[Answer]:
    SEARCHED.clear()
    found = Researcher(model=ScriptedModel(SCRIPT), **settings).run(
        question="Who & <what>?", place=Place(city="Łódź", tags=["a", "b"])
    )
    SEARCHED.clear()
    return found


def told(events: Any) -> list[dict[str, Any]]:
    """Return the content of events without times."""
    return [{name: value for name, value in each.items() if name != "timestamp"} for each in dump_events(events)]


def asked(model: ScriptedModel) -> list[dict[str, Any]]:
    """Return the first request as the history has it."""
    return [{**each, "content": each["content"] or ""} for each in model.requests[0].messages]


def before(events: list[AgentEvent], step: int) -> list[AgentEvent]:
    return [event for event in events if event.iteration < step]


def forked(events: Any, step: int, *replies: Any, **settings: Any) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(replies or [finish(answer="forked")])
    return Researcher(model=model, **settings).using(thread=events, before=step), model


def test_fork_continues_at_given_step() -> None:
    run = first_run()
    agent, model = forked(run.thread, 3, call("search", query="other"), finish(answer="forked"))
    fork = agent.run()
    assert fork.output == Answer(answer="forked")
    assert fork.input == run.input
    assert fork.id != run.id
    assert SEARCHED == ["other"]
    assert asked(model) == to_messages(before(run.thread, 3))
    assert told(before(fork.thread, 3)) == told(before(run.thread, 3))
    assert [event.iteration for event in fork.thread if isinstance(event, ToolCallEvent)] == [1, 1, 3, 4]
    assert fork.steps == 3


def test_fork_at_each_step_copies_earlier_events_unchanged() -> None:
    for step in [1, 2, 3, 4]:
        with case(step):
            run = first_run()
            agent, model = forked(run.thread, step)
            fork = agent.run()
            assert told(before(fork.thread, step)) == told(before(run.thread, step))
            assert asked(model) == to_messages(before(run.thread, step))
            assert to_messages(fork.thread) == fork.history
            assert Run.from_json(fork.to_json()).thread == fork.thread


def test_fork_record_has_origin_and_zero_usage() -> None:
    run = first_run()
    model = ScriptedModel([Reply(calls=finish(answer="x").calls, usage=acorn.Usage(10, 5, requests=1))])
    fork = Researcher(model=model).using(thread=run.thread, before=3).run()
    assert fork.forked_from == (run.id, 3)
    assert (fork.usage.total_tokens, fork.usage.requests) == (15, 1)
    assert run.forked_from is None
    again = Run.from_json(fork.to_json(), Researcher)
    assert again.forked_from == ForkedFrom(run.id, before=3)


def test_fork_limits_do_not_count_usage_of_original_run() -> None:
    run = first_run()
    agent, _ = forked(run.thread, 4, finish(answer="x"), max_total_tokens=run.usage.total_tokens)
    assert agent.run().stop_reason == "finish"


def test_fork_created_from_run_record_stores_original_run_id_and_step() -> None:
    run = first_run()
    agent, _ = forked(run, 2)
    assert agent.run().forked_from == (run.id, 2)


def test_fork_with_edited_tool_result_sends_edited_result() -> None:
    events = first_run().thread
    for event in events:
        if isinstance(event, ToolResultEvent) and event.iteration == 1:
            event.result = ["edited"]
    agent, model = forked(events, 2)
    fork = agent.run()
    assert next(each["content"] for each in model.requests[0].messages if each["role"] == "tool") == '["edited"]'
    assert told(before(fork.thread, 2)) == told(before(events, 2))
    assert fork.forked_from.run is not None


def test_fork_with_edited_call_arguments_sends_edited_arguments() -> None:
    raw = Reply(calls=[call("search", query="x").calls[0]])
    raw.calls[0].arguments = '{ "query":  "x" }'  # Not in acorn's own form.
    run = Researcher(model=ScriptedModel([raw, finish(answer="a")])).run(question="q")
    events = run.thread
    (called,) = [each for each in events if isinstance(each, ToolCallEvent) and each.tool_name == "search"]
    assert called.raw_arguments is not None
    kept, model = forked(events, 2)
    kept.run()
    assert model.requests[0].messages[2]["tool_calls"][0]["function"]["arguments"] == '{ "query":  "x" }'
    called.args = {"query": "edited"}
    agent, model = forked(events, 2)
    agent.run()
    assert model.requests[0].messages[2]["tool_calls"][0]["function"]["arguments"] == '{"query":"edited"}'


def test_fork_with_edited_error_event_and_edited_assistant_message_sends_edited_texts() -> None:
    events = first_run().thread
    for event in events:
        if isinstance(event, ErrorEvent) and event.iteration == 1:
            event.error = "another reason"
        if isinstance(event, MessageEvent) and event.role == "assistant" and event.iteration == 1:
            event.content = "Edited."
    agent, model = forked(events, 2)
    agent.run()
    texts = [each["content"] for each in model.requests[0].messages]
    assert {"Tool error: another reason", "Edited."} <= set(texts)


def test_fork_with_edited_error_of_skipped_call_sends_edited_error() -> None:
    model = ScriptedModel([finish(answers="wrong") & call("search", query="x"), Reply("hm"), finish(answer="a")])
    events = Researcher(model=model).run(question="q").thread
    (skipped,) = [each for each in events if isinstance(each, ErrorEvent) and each.error.startswith("Skipped")]
    skipped.error = "Not now."
    agent, model = forked(events, 2)
    agent.run()
    assert "Tool error: Not now." in [each["content"] for each in model.requests[0].messages]


def test_fork_created_from_events_loaded_from_json_sends_original_messages() -> None:
    run = first_run()
    plain = json.loads(json.dumps(dump_events(run.thread)))
    agent, model = forked(plain, 3)
    fork = agent.run()
    assert fork.input == run.input  # Read from the message that holds it.
    assert fork.forked_from == (None, 3)
    assert asked(model) == to_messages(before(run.thread, 3))


def test_fork_ignores_edits_made_to_event_list_after_fork_was_created() -> None:
    events = first_run().thread
    agent, model = forked(events, 3)
    events.clear()
    agent.run()
    assert len(model.requests[0].messages) > 3


def test_fork_with_other_model_and_prompt_uses_new_model_and_prompt() -> None:
    run = first_run()
    model = ScriptedModel([finish(answer="x")], name="other")
    agent = Researcher().using(thread=run.thread, before=3, model=model, system_prompt="Be brief.")
    fork = agent.run()
    assert fork.model == "other"
    assert model.requests[0].messages[0] == {"role": "system", "content": "Be brief."}
    assert model.requests[0].messages[1:] == to_messages(before(run.thread, 3))[1:]
    assert to_messages(fork.thread) == fork.history


def test_fork_with_new_prompt_method_or_prompt_file_sends_new_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("From a file.", encoding="utf-8")
    run = first_run()
    for prompt, said in ((tmp_path / "prompt.md", "From a file."), (lambda: "Made now.", "Made now.")):
        agent, model = forked(run.thread, 3, system_prompt=prompt)
        agent.run()
        assert model.requests[0].messages[0]["content"] == said


def test_fork_with_changed_class_docstring_sends_prompt_of_original_thread() -> None:
    class Changed(Researcher):
        """Another prompt."""

    run, model = first_run(), ScriptedModel([finish(answer="x")])
    Changed(model=model).using(thread=run.thread, before=2).run()
    assert model.requests[0].messages[0]["content"] == "You are a research assistant."


def test_fork_with_new_input_replaces_original_input() -> None:
    run = first_run()
    agent, model = forked(run.thread, 3)
    fork = agent.run(question="Another?")
    assert fork.input == Question(question="Another?")
    assert "Another?" in model.requests[0].messages[1]["content"]
    assert model.requests[0].messages[2:] == to_messages(before(run.thread, 3))[2:]


def test_fork_with_edited_input_event_sends_edited_input() -> None:
    events = first_run().thread
    message = events[1]
    assert isinstance(message, MessageEvent)
    message.content = message.content.replace("Łódź", "Kraków")
    agent, model = forked(events, 2)
    assert agent.run().input.place.city == "Kraków"
    assert "Kraków" in model.requests[0].messages[1]["content"]


@pytest.mark.parametrize("way", ["stream", "arun", "astream", "acall"])
def test_fork_returns_output_through_stream_arun_astream_and_acall(way: str) -> None:
    run = first_run()
    agent, _ = forked(run.thread, 3)

    async def last() -> Any:
        return [chunk async for chunk in agent.astream()][-1].result

    if way == "stream":
        assert list(agent.stream())[-1].result == Answer(answer="forked")
    elif way == "astream":
        assert asyncio.run(last()) == Answer(answer="forked")
    elif way == "arun":
        assert asyncio.run(agent.arun()).forked_from == (run.id, 3)
    else:
        assert asyncio.run(agent.acall()) == Answer(answer="forked")


def test_fork_hooks_are_called_for_new_steps_only() -> None:
    seen: list[Any] = []

    class Hooked(Researcher):
        def on_start(self, step: acorn.Step[Any]) -> None:
            seen.append("start")
            step.add_to_context("Remember.")

        def on_step(self, step: acorn.Step[Any]) -> None:
            seen.append(step.counter)

    run = Hooked(model=ScriptedModel(SCRIPT)).run(question="q")
    assert seen == ["start", 1, 2, 3]
    seen.clear()
    model = ScriptedModel([call("search", query="x"), finish(answer="a")])
    fork = Hooked(model=model).using(thread=run.thread, before=2).run()
    assert seen == [2]
    assert any("Remember." in str(each["content"]) for each in model.requests[0].messages)
    assert fork.input == run.input


def test_listener_of_fork_receives_copied_and_new_journal_entries() -> None:
    run, heard = first_run(), list[Entry]()
    agent, _ = forked(run.thread, 3)
    with listen(heard.append):
        fork = agent.run()
    assert heard == fork.journal.entries
    assert isinstance(heard[0], RunStarted)
    assert heard[0].forked_from == (run.id, 3)
    assert [entry.step for entry in heard if isinstance(entry, ModelResponded)] == [1, 2, 3]


def test_fork_is_stored_and_forked_again(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run = first_run(store=store)
    agent, _ = forked(run.thread, 3, call("search", _id="c9", query="x"), finish(answer="f"), store=store)
    fork = agent.run()
    found = acorn.runs(store).get(fork.id)
    assert found.forked_from == (run.id, 3)
    assert found.thread == fork.thread
    assert found.usage == fork.usage
    assert len(acorn.runs(store).list()) == 2
    second, model = forked(found.thread, 4, store=store)
    again = second.run()
    assert again.forked_from == (fork.id, 4)
    assert again.input == run.input
    assert asked(model) == to_messages(before(fork.thread, 4))


def test_interrupted_fork_is_resumed(tmp_path: Path) -> None:
    store, run = tmp_path / "runs.db", first_run()
    failing = ScriptedModel([call("search", query="x"), Failure(status=503)])
    agent = Researcher(model=failing, store=store)
    with pytest.raises(acorn.ModelError) as caught:
        agent.using(thread=run.thread, before=3).run()
    stopped = caught.value.run
    model = ScriptedModel([finish(answer="resumed")])
    SEARCHED.clear()
    assert Researcher(model=model, store=store).resume(stopped.id) == Answer(answer="resumed")
    assert SEARCHED == []
    assert model.requests[0].messages[: len(to_messages(before(run.thread, 3)))] == to_messages(before(run.thread, 3))
    found = acorn.runs(store).get(stopped.id)
    assert found.forked_from == (run.id, 3)
    assert told(before(found.thread, 3)) == told(before(run.thread, 3))


def test_fork_saved_and_loaded_after_every_step_finishes() -> None:
    run = first_run()
    agent, _ = forked(run.thread, 3, call("search", query="x"), Reply("hm"), finish(wrong=1), finish(answer="f"))
    loop = new_machine(agent, (), {})
    tree = SavedTree(loop)
    drive(tree, loop.run.id)
    fork = tree.machines[loop.run.id].run
    assert fork.output == Answer(answer="f")
    assert told(before(fork.thread, 3)) == told(before(run.thread, 3))
    assert fork.forked_from == (run.id, 3)


def test_fork_with_run_id_of_finished_run_returns_stored_output(tmp_path: Path) -> None:
    run = first_run()
    agent, model = forked(run.thread, 3, store=tmp_path / "runs.db")
    assert agent.using(run_id="fork-1")() == agent.using(run_id="fork-1")()
    assert len(model.requests) == 1


def test_fork_of_failed_run_continues_at_failed_step() -> None:
    failing = ScriptedModel([call("search", query="x"), Failure(status=400)])
    with pytest.raises(acorn.ModelError) as caught:
        Researcher(model=failing).run(question="q")
    run = caught.value.run
    agent, model = forked(run, 2)
    fork = agent.run()
    assert fork.output == Answer(answer="forked")
    assert not [event for event in fork.thread if isinstance(event, ErrorEvent)]
    assert model.requests[0].messages[-1]["role"] == "tool"


def test_fork_sends_result_of_branch_that_ended_before_fork_step() -> None:
    class Check(module[None, str]):
        """Check."""

    class Above(Researcher):
        branches = {"check": Check}

    model = ScriptedModel([call("check"), finish("fine"), call("search", query="x"), finish(answer="a")])
    run = Above(model=model).run(question="q")
    assert run.branches
    script = ScriptedModel([finish(answer="b")])
    fork = Above(model=script).using(thread=run.thread, before=2).run()
    assert fork.branches == []
    assert script.requests[0].messages[-1]["content"] == "fine"
    of_branch = [event for event in run.thread if event.branch]
    with pytest.raises(
        InputError, match=r"branch `check`.*Fork the run that started the branch: before the step that called"
    ):
        Above(model=script).using(thread=of_branch, before=1)


def test_fork_sends_compaction_summary_of_original_run() -> None:
    long = "word " * 400

    class Long(Researcher):
        compact_at = 400

        @tool
        def read(self) -> str:
            """Read."""
            return long

    def reply(request: ModelRequest) -> Any:
        if not request.tools or "sum" in str(request.messages[-1]["content"]).lower()[:400]:
            return Reply("A SUMMARY")
        done.append("")
        return finish(answer="a") if len(done) > 7 else call("read", _id=f"c{len(done)}")

    done: list[str] = []
    run = Long(model=ScriptedModel(reply), max_steps=8).run(question="q")
    summaries = [event for event in run.thread if event.type == "summary"]
    assert summaries
    step = summaries[0].iteration + 1
    model = ScriptedModel([finish(answer="b")])
    fork = Researcher(model=model).using(thread=run.thread, before=step).run()
    assert asked(model) == to_messages(before(run.thread, step))
    assert told(before(fork.thread, step)) == told(before(run.thread, step))


def test_fork_at_last_step_is_forced_to_finish() -> None:
    agent, model = forked(first_run().thread, 3, max_steps=2)
    assert agent.run().stop_reason == "forced"
    assert model.requests[0].forced_tool == "__finish__"


def test_fork_with_thread_format_sends_document() -> None:
    run = first_run()
    agent, model = forked(run.thread, 3, history_format="thread")
    agent.run()
    assert "second" not in model.requests[0].messages[-1]["content"]
    assert "I think about it." in model.requests[0].messages[-1]["content"]


def test_fork_opens_tool_sources() -> None:
    opened: list[str] = []

    class Source:
        def open(self) -> None:
            opened.append("open")

        def tools(self) -> list[Any]:
            return [lookup]

        def close(self) -> None:
            opened.append("close")

    def lookup(word: str) -> str:
        """Look it up."""
        return word.upper()

    class Sourced(Researcher):
        tools = [Source()]

    run = Sourced(model=ScriptedModel([call("lookup", word="a"), finish(answer="a")])).run(question="q")
    model = ScriptedModel([call("lookup", word="b"), finish(answer="b")])
    fork = Sourced(model=model).using(thread=run.thread, before=2).run()
    assert opened == ["open", "close"] * 2
    assert [each.result for each in fork.thread if isinstance(each, ToolResultEvent)][:2] == ["A", "B"]


class Other(module[int, int]):
    """Something else."""


def test_fork_at_step_that_thread_does_not_contain_raises_input_error() -> None:
    for step, words in [
        (0, "`before` of `Researcher.using` must be a step from 1 to 4.*Got 0"),
        (5, "from 1 to 4: the run ended in step 4"),
        (-1, "from 1 to 4"),
        (True, "from 1 to 4"),
        ("3", "from 1 to 4"),
        (None, "`before` is missing"),
    ]:
        with case(step, words), pytest.raises(InputError, match=words):
            Researcher().using(thread=first_run().thread, before=step)


def test_fork_of_value_that_is_not_an_event_thread_raises_input_error() -> None:
    for thread, words in [
        ([], "has no events"),
        ("[]", "got text.*parse_events"),
        ({"run": {}, "journal": []}, "`acorn.Run.from_json"),
        ([{"role": "user", "content": "hi"}], r"`thread\[0\]`.*`history`"),
        ([3], r"`thread\[0\]`"),
        (7, "events of a run"),
        ([{"type": "message", "role": "nobody", "content": ""}], r"`thread\[0\]"),
    ]:
        with case(thread, words), pytest.raises(InputError, match=words):
            Researcher().using(thread=thread, before=1)


def test_fork_reset_with_using_thread_none_requires_input_again() -> None:
    agent, _ = forked(first_run().thread, 3)
    with pytest.raises(InputError, match="question"):
        agent.using(thread=None).run()


def test_fork_with_mutually_exclusive_arguments_raises_input_error() -> None:
    run = first_run()
    with pytest.raises(InputError, match=r"`before` .* needs `thread`"):
        Researcher().using(before=2)
    with pytest.raises(InputError, match="got both `history` and `thread`"):
        Researcher().using(thread=run.thread, before=2, history=run)
    with pytest.raises(InputError, match="got both `history` and `thread`"):
        Researcher().using(history=run).using(thread=run.thread, before=2)


def test_fork_with_input_of_wrong_type_raises_input_error_before_model_call() -> None:
    model = ScriptedModel([finish(3)])
    with pytest.raises(
        InputError, match=r"input of the thread does not fit `Other` \(`input`: .* valid integer.*\).*Other.*\(\.\.\.\)"
    ):
        Other(model=model).using(thread=first_run().thread, before=2).run()
    assert not model.requests


def test_fork_with_call_without_result_or_result_without_call_raises_input_error() -> None:
    events = first_run().thread
    lost = [event for event in events if not isinstance(event, ToolResultEvent)]
    with pytest.raises(InputError, match=r"call `search`.*in step 1 has no result"):
        Researcher().using(thread=lost, before=2)
    alone = [event for event in events if not isinstance(event, ToolCallEvent)]
    with pytest.raises(InputError, match=r"in step 1 .*which was not called"):
        Researcher().using(thread=alone, before=2)


def test_fork_declared_as_branch_or_as_tool_raises_declaration_error() -> None:
    fork = Researcher().using(thread=first_run().thread, before=2)
    with pytest.raises(DeclarationError, match=r"using\(thread=...\)"):
        type("Above", (Researcher,), {"branches": {"below": fork}})
    with pytest.raises(DeclarationError, match=r"using\(thread=...\)"):
        type("Above", (Researcher,), {"tools": [fork]})


def test_resume_of_stored_fork_interrupted_before_start_raises_store_error(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"

    def prompt() -> str:
        raise KeyboardInterrupt

    agent, _ = forked(first_run().thread, 2, store=store, system_prompt=prompt)
    with pytest.raises(KeyboardInterrupt):
        agent.run()
    for facts in acorn.runs(store).list():
        with pytest.raises(StoreError, match="stopped before it started"):
            Researcher(model=ScriptedModel([finish(answer="x")]), store=store).resume(facts.id)
