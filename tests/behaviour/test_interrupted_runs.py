"""Tests of interrupted runs: the run record is complete, and the run resumes from its last state."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import pytest
from tests.cases import each_case
from tests.provider_rules import assert_complete, assert_request_valid
from tests.waiting import PATIENCE

from acorn import LimitError, ModelError, ParseError, Run, Step, Usage, listen, module, tool
from acorn._call.plan import new_machine
from acorn._drive.async_driver import adrive
from acorn._drive.sync_driver import drive, drive_stream
from acorn._drive.tree import Tree
from acorn._machine.machine import Machine
from acorn._machine.saved_run import load, save
from acorn.journal import Entry, RunFailed, RunFinished, RunInterrupted, ToolFinished, ToolStarted
from acorn.testing import Failure, Reply, ScriptedModel, call, finish
from acorn.thread import to_messages

STOPPED = "This call was not completed: the run was stopped."

Way = Literal["sync", "async"]
WAYS: list[Way] = ["sync", "async"]


class Trouble:
    """What the tools and hooks of a run have done, and which failure happens once, and where."""

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.called: Counter[str] = Counter()
        self.quick_has_returned = threading.Event()
        self.slow_has_begun = threading.Event()

    def at(self, place: str) -> None:
        self.called[place] += 1
        if self.where == place:
            self.where = ""
            raise KeyboardInterrupt

    def hear(self, entry: Entry) -> None:
        if isinstance(entry, ToolFinished) and entry.name == "quick":
            self.quick_has_returned.set()
        if isinstance(entry, ToolStarted) and entry.name == "slow":
            self.slow_has_begun.set()


def worker(trouble: Trouble, model: Any, **settings: Any) -> module[Any, Any]:
    """An agent with two tools, a hook and an output check."""

    @tool
    def quick(place: str = "here") -> str:
        """Return at once."""
        trouble.at("quick")
        return f"nothing in {place}"

    @tool
    async def slow() -> str:
        """Return when `quick` has returned; or never, if it is to be cancelled."""
        if trouble.where == "cancelled":
            trouble.where = ""
            await asyncio.Event().wait()
        await asyncio.to_thread(trouble.quick_has_returned.wait, PATIENCE)
        trouble.at("slow")
        return "at last"

    class Worker(module[Any, str]):
        """Work."""

        final_output = str
        tools = [quick, slow]
        max_steps = 6

        def on_step(self, step: Step) -> None:
            trouble.at("on_step")
            step.add_to_context("go on")

        def on_finish(self, output: str) -> None:
            trouble.at("on_finish")
            if output == "no":
                raise ValueError("not this")

    return Worker(model=model, **settings)


BOTH = call("quick", "q1") & call("slow", "s1")
SCRIPT: list[Any] = [BOTH, call("quick", "q2", place="there"), finish(result="no"), finish(result="yes")]


def with_ids(script: list[Any]) -> list[Any]:
    """Return the same calls with the same ids, whatever was asked in between."""
    for at, reply in enumerate(script):
        if isinstance(reply, Reply):
            for slot, made in enumerate(reply.calls):
                made.id = made.id or f"id_{SCRIPT.index(reply) if reply in SCRIPT else at}_{slot}"
    return script


with_ids(SCRIPT)


def go(loop: Machine, way: Way, trouble: Trouble | None = None) -> None:
    tree = Tree(loop)
    with listen((trouble or Trouble()).hear):
        if way == "sync":
            drive(tree, loop.run.id)
        else:
            asyncio.run(adrive(tree, loop.run.id))


def reloaded(loop: Machine, plan: Any = None) -> Machine:
    return load(plan or loop.plan, json.loads(json.dumps(save(loop))), loop.run.deps)


def undisturbed(**settings: Any) -> tuple[Run[Any], ScriptedModel, Trouble]:
    trouble, model = Trouble(), ScriptedModel(SCRIPT)
    loop = new_machine(worker(trouble, model, **settings), (), {})
    go(loop, "sync", trouble)
    assert loop.run.output == "yes"
    return loop.run, model, trouble


def assert_interrupted(loop: Machine, error: BaseException, reason: str) -> None:
    run = loop.run
    assert_complete(run.history)
    assert to_messages(run.thread) == run.history
    assert (run.stop_reason, run.error) == (reason, error)
    assert run.output is None
    last = run.journal.entries[-1]
    assert isinstance(last, RunInterrupted)
    assert last.error.startswith(type(error).__name__)
    assert loop.state.phase != "done"
    assert loop.asks(loop.journal.now) == ()


def assert_as_undisturbed(loop: Machine, model: ScriptedModel, trouble: Trouble, interruptions: int = 1) -> None:
    """Return everything visible of a run, except the interruption."""
    expected, asked, done = undisturbed()
    run = loop.run
    assert (run.output, run.stop_reason, run.steps, run.error) == ("yes", "finish", expected.steps, None)
    assert run.history == expected.history
    assert to_messages(run.thread) == run.history
    assert run.usage == expected.usage
    assert isinstance(run.journal.entries[-1], RunFinished)
    assert sum(isinstance(entry, RunInterrupted) for entry in run.journal.entries) == interruptions
    answered = [request.messages for request in model.requests]
    for repeated in [each for at, each in enumerate(answered) if each in answered[:at]]:
        answered.remove(repeated)  # It had no response; another test checks that it is sent once more.
    assert answered == [request.messages for request in asked.requests]
    for request in model.requests:
        assert_request_valid(request)
    assert trouble.called["quick"] == done.called["quick"]  # It had returned each time.


@each_case("way", WAYS)
@each_case("onwards", WAYS)
def test_ctrl_c_in_tool_leaves_finished_sibling_result_in_history(way: Way, onwards: Way) -> None:
    trouble, model = Trouble("slow"), ScriptedModel(SCRIPT)
    loop = new_machine(worker(trouble, model), (), {})
    with pytest.raises(KeyboardInterrupt) as caught:
        go(loop, way, trouble)
    assert_interrupted(loop, caught.value, "cancelled")
    told = {message["tool_call_id"]: message["content"] for message in loop.run.history if message["role"] == "tool"}
    assert told == {"q1": "nothing in here", "s1": STOPPED}
    again = reloaded(loop)
    go(again, onwards, trouble)
    assert_as_undisturbed(again, model, trouble)
    assert trouble.called["slow"] == 2
    assert len(model.requests) == len(SCRIPT)


@each_case("onwards", WAYS)
def test_cancellation_in_tool_leaves_finished_sibling_result_in_history(onwards: Way) -> None:
    trouble, model = Trouble("cancelled"), ScriptedModel(SCRIPT)
    loop = new_machine(worker(trouble, model), (), {})

    async def main() -> object:
        task = asyncio.ensure_future(adrive(Tree(loop), loop.run.id))
        while not (trouble.quick_has_returned.is_set() and trouble.slow_has_begun.is_set()):
            await asyncio.sleep(0)
        task.cancel()
        results = await asyncio.gather(task, return_exceptions=True)
        return results[0]

    with listen(trouble.hear):
        error = asyncio.run(main())
    assert isinstance(error, asyncio.CancelledError)
    assert isinstance(loop.run.error, asyncio.CancelledError)
    assert_interrupted(loop, loop.run.error, "cancelled")
    again = reloaded(loop)
    go(again, onwards, trouble)
    assert_as_undisturbed(again, model, trouble)
    assert len(model.requests) == len(SCRIPT)


@each_case("onwards", WAYS)
@each_case("way", WAYS)
@each_case("at", range(len(SCRIPT)))
@each_case("failure", [Failure(503), Failure(None), KeyboardInterrupt()])
def test_model_request_that_got_no_response_is_sent_again_on_resume(
    at: int, failure: Any, way: Way, onwards: Way
) -> None:
    trouble, model = Trouble(), ScriptedModel([*SCRIPT[:at], failure, *SCRIPT[at:]])
    loop = new_machine(worker(trouble, model), (), {})
    with pytest.raises((ModelError, KeyboardInterrupt)) as caught:
        go(loop, way, trouble)
    assert_interrupted(loop, caught.value, "error" if isinstance(failure, Failure) else "cancelled")
    again = reloaded(loop)
    go(again, onwards, trouble)
    assert_as_undisturbed(again, model, trouble)
    assert len(model.requests) == len(SCRIPT) + 1
    assert model.requests[at].messages == model.requests[at + 1].messages
    assert trouble.called["slow"] == 1


def test_run_interrupted_repeatedly_is_resumed_to_end() -> None:
    trouble, model = (
        Trouble(),
        ScriptedModel([each for reply in SCRIPT for each in (Failure(503), Failure(429), reply)]),
    )
    loop = new_machine(worker(trouble, model), (), {})
    interruptions = 0
    with listen(trouble.hear):
        while True:
            try:
                go(loop, "sync", trouble)
                break
            except ModelError as error:
                interruptions += 1
                assert_interrupted(loop, error, "error")
                loop = reloaded(loop)
    assert interruptions == 2 * len(SCRIPT)
    assert_as_undisturbed(loop, model, trouble, interruptions)
    assert trouble.called["slow"] == 1


@each_case("onwards", WAYS)
@each_case("way", WAYS)
@each_case("hook", ["on_step", "on_finish"])
def test_hook_interrupted_by_ctrl_c_is_called_again_on_resume(hook: str, way: Way, onwards: Way) -> None:
    trouble, model = Trouble(hook), ScriptedModel(SCRIPT)
    loop = new_machine(worker(trouble, model), (), {})
    with pytest.raises(KeyboardInterrupt) as caught:
        go(loop, way, trouble)
    assert_interrupted(loop, caught.value, "cancelled")
    again = reloaded(loop)
    go(again, onwards, trouble)
    assert_as_undisturbed(again, model, trouble)
    assert trouble.called == {"quick": 2, "slow": 1, "on_step": 2, "on_finish": 2} | {hook: 3}
    assert len(model.requests) == len(SCRIPT)


@each_case("onwards", WAYS)
@each_case("way", WAYS)
def test_run_stopped_at_limit_is_resumed_with_higher_limit(way: Way, onwards: Way) -> None:
    trouble = Trouble()
    large = Reply(calls=BOTH.calls, usage=Usage(700, 100, requests=1))
    model = ScriptedModel([large, *SCRIPT[1:]])
    loop = new_machine(worker(trouble, model, max_total_tokens=1000), (), {})
    with pytest.raises(LimitError) as caught:
        go(loop, way, trouble)
    assert_interrupted(loop, caught.value, "error")
    assert len(model.requests) == 1
    again = reloaded(loop)
    with pytest.raises(LimitError) as caught:  # The limit is unchanged.
        go(again, onwards, trouble)
    assert_interrupted(again, caught.value, "error")
    higher = new_machine(worker(trouble, model, max_total_tokens=100_000), (), {}).plan
    again = reloaded(again, higher)
    go(again, onwards, trouble)
    assert (again.run.output, again.run.stop_reason) == ("yes", "finish")
    assert again.run.history == undisturbed()[0].history
    assert to_messages(again.run.thread) == again.run.history
    assert trouble.called == {"quick": 2, "slow": 1, "on_step": 2, "on_finish": 2}
    assert len(model.requests) == len(SCRIPT)


def test_abandoned_stream_is_resumed() -> None:
    trouble, model = Trouble(), ScriptedModel(SCRIPT)
    loop = new_machine(worker(trouble, model), (), {})
    with listen(trouble.hear):
        chunks = drive_stream(Tree(loop), loop.run.id)
        for chunk in chunks:
            if chunk.tool_result is not None and chunk.tool_result.id == "q2":
                break
        chunks.close()
    assert isinstance(loop.run.error, GeneratorExit)
    assert_interrupted(loop, loop.run.error, "cancelled")
    again = reloaded(loop)
    go(again, "sync", trouble)
    assert_as_undisturbed(again, model, trouble)
    assert len(model.requests) == len(SCRIPT)


# Ends of a run


class Plain(module[Any, str]):
    """Work."""

    final_output = str
    max_steps = 3
    parse_retries = 0


class Failing(Plain):
    def on_step(self, step: Step) -> None:
        raise RuntimeError("the hook's own")


class Judging(Plain):
    def on_finish(self, output: str) -> None:
        raise RuntimeError("the judge's own")


CLOSED: dict[str, tuple[Callable[..., Any], list[Any], type[Exception]]] = {
    "a refusal": (Plain, [Reply(refusal="I will not.")], ModelError),
    "a content filter": (Plain, [Reply("half of", stop_reason="content_filter")], ModelError),
    "a request that is wrong": (Plain, [Failure(400)], ModelError),
    "an exception in on_step": (Failing, ["words"], RuntimeError),
    "an exception in on_finish": (Judging, [finish(result="yes")], RuntimeError),
    "an answer that cannot be parsed": (Plain, [finish(result=[1])], ParseError),
}


@each_case("way", WAYS)
@each_case("what", CLOSED)
def test_loaded_run_that_failed_permanently_sends_no_request(what: str, way: Way) -> None:
    kind, script, expected = CLOSED[what]
    model = ScriptedModel(script)
    loop = new_machine(kind(model=model), (), {})
    with pytest.raises(expected) as caught:
        go(loop, way)
    run = loop.run
    assert loop.state.phase == "done"
    assert (run.stop_reason, run.error) == ("error", caught.value)
    assert isinstance(run.journal.entries[-1], RunFailed)
    assert_complete(run.history)
    assert to_messages(run.thread) == run.history
    again = reloaded(loop)
    assert again.state.phase == "done"
    assert again.is_over
    assert again.asks(0.0) == ()
    assert again.run.stop_reason == "error"
    assert type(caught.value).__name__ in repr(again.run.error)
    assert len(model.requests) == len(script)


def test_output_passed_to_on_finish_is_equal_after_tool_sources_reopen() -> None:
    opened: list[str] = []
    seen: list[Any] = []

    class Source:
        def open(self) -> None:
            opened.append("opened")

        def tools(self) -> list[Any]:
            @tool
            def look() -> str:
                """Look."""
                return "nothing"

            return [look]

    class Judge(module[Any, str]):
        """Judge."""

        final_output = str
        tools = [Source()]
        max_steps = 3

        def on_finish(self, output: str) -> None:
            seen.append(output)
            if len(seen) == 1:
                raise KeyboardInterrupt
            if len(seen) == 2:
                raise ValueError("again")

    agent = Judge(model=ScriptedModel([call("look"), finish(result="no"), finish(result="yes")]))
    loop = new_machine(agent, (), {})
    with pytest.raises(KeyboardInterrupt):
        drive(Tree(loop), loop.run.id)
    again = load(loop.plan, json.loads(json.dumps(save(loop))))
    drive(Tree(again), again.run.id)
    assert (seen, again.run.output, opened) == (["no", "no", "yes"], "yes", ["opened", "opened"])
    assert_complete(again.run.history)
