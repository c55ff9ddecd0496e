"""Tests of the run record, and of its attributes during the run."""

import asyncio
import contextvars
import copy
import dataclasses
import datetime
import functools
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Optional

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Call, Script
from tests.behaviour.schemas import Answer
from tests.cases import each_case
from tests.provider_rules import assert_complete
from tests.waiting import PATIENCE

import acorn
from acorn import (
    AcornError,
    DeclarationError,
    InputError,
    ModelError,
    ParseError,
    Run,
    Step,
    Unfinished,
    Usage,
    capture,
    current_run,
    module,
    tool,
)
from acorn.models import Price
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as calling


class Question(BaseModel):
    question: str
    limit: int = 3


@tool
def search(query: str) -> list[str]:
    """Search for information."""
    return [f"about {query}"]


class Asker(module[Question, Answer]):
    """Answer the question."""


class Searcher(Asker):
    """Look it up, then answer."""

    tools = [search]
    max_steps = 5


def used(reply: Reply, *counts: Any) -> Reply:
    """A reply with costs: input, output, cached and reasoning tokens."""
    reply.usage = Usage(*counts)
    return reply


# Field by field


@pytest.mark.every_way
def test_record_of_successful_run_contains_input_output_usage_cost_and_steps(call: Call, script: Script) -> None:
    model = script(
        used(calling("search", "c1", query="acorns"), 100, 10, 40, 5),
        used(Reply("Let me think."), 130, 20, 90, 0),
        used(finish(answer="Nuts."), 160, 30, 120, 7),
        name="scripted-1",
        price=Price(0.01, 0.1),
    )
    deps = object()
    before, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    run = call.run(Searcher(model=model).using(deps=deps), question="What are acorns?")
    after, took = datetime.datetime.now(datetime.UTC), time.monotonic() - clock

    assert isinstance(run, Run)
    assert isinstance(run.id, str)
    assert run.id
    assert run.input == Question(question="What are acorns?", limit=3)
    assert run.output == Answer(answer="Nuts.")
    assert run.usage == Usage(390, 60, 250, 12, 3)
    assert run.usage.total_tokens == 450
    assert run.cost == pytest.approx(3.9 + 6.0)
    assert run.model == "scripted-1"
    assert run.steps == 2
    assert run.step == 2
    assert run.stop_reason == "finish"
    assert run.started is not None
    assert before <= run.started <= after
    assert run.started.tzinfo is not None
    assert 0 < run.seconds <= took
    assert run.branches == []
    assert run.error is None
    assert run.deps is deps
    assert_complete(run.history)
    assert [message["role"] for message in run.history] == [
        *("system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool")
    ]
    assert run.history[3] == {"role": "tool", "tool_call_id": "c1", "content": '["about acorns"]'}


def test_usage_addition_returns_sum() -> None:
    one, other = Usage(1, 2, 3, 4, 5), Usage(10, 20, 30, 40, 50)
    assert one + other == Usage(11, 22, 33, 44, 55)
    assert (one, other) == (Usage(1, 2, 3, 4, 5), Usage(10, 20, 30, 40, 50))
    assert sum([one, other], Usage()) == one + other
    assert sum(list[Usage](), Usage()) == Usage()
    assert (one + other) != one
    total = one
    total += other
    assert (total, one) == (Usage(11, 22, 33, 44, 55), Usage(1, 2, 3, 4, 5))
    with pytest.raises(TypeError):
        one + 1  # type: ignore[operator]


def test_run_seconds_include_tool_time(call: Call, script: Script) -> None:
    def rest() -> None:
        time.sleep(0.05)

    run = call.run(Searcher(model=script(calling("rest"), finish(answer="a")), tools=[rest]), question="?")
    assert run.seconds >= 0.05


def test_run_cost_without_price_is_none(call: Call, script: Script) -> None:
    run = call.run(Asker(model=script(used(finish(answer="a"), 10, 1))), question="?")
    assert run.cost is None
    assert run.usage == Usage(10, 1, requests=1)


def test_corrections_and_forced_requests_count_as_requests_but_not_as_steps(call: Call, script: Script) -> None:
    model = script(calling("search", query="a"), finish(), finish(answer=1), finish(answer="a"))
    run = call.run(Searcher(model=model, max_steps=1), question="?")
    assert (run.steps, run.usage.requests, run.stop_reason) == (1, 4, "forced")


class Switcher(Searcher):
    """Change the model on the way."""

    def on_step(self, step: Step) -> None:
        step.model = self.other

    def __init__(self, other: ScriptedModel, **settings: Any) -> None:
        self.other = other
        super().__init__(**settings)


def test_run_model_is_model_that_answered_last(call: Call, script: Script) -> None:
    first = script(used(calling("search", query="a"), 10, 1), name="first", price=Price(1, 1))
    second = script(used(finish(answer="a"), 20, 2), name="second", price=Price(2, 2))
    run = call.run(Switcher(second, model=first), question="?")
    assert run.model == "second"
    assert run.cost == 11 + 44


class Stopper(Searcher):
    """End in the hook."""

    def on_step(self, step: Step) -> None:
        step.finish(answer=f"after {step.counter}")


@pytest.mark.every_way
def test_stop_reason_names_way_in_which_run_ended(call: Call, script: Script) -> None:
    searching = calling("search", query="a")
    assert call.run(Asker(model=script(finish(answer="a"))), question="?").stop_reason == "finish"
    forced = Searcher(model=script(searching, finish(answer="a")), max_steps=1)
    assert call.run(forced, question="?").stop_reason == "forced"
    stopped = call.run(Stopper(model=script(searching)), question="?")
    assert (stopped.stop_reason, stopped.output) == ("step", Answer(answer="after 1"))
    unfinished = call.run(Searcher(model=script(searching), max_steps=None), question="?")
    assert unfinished.stop_reason == "unfinished"
    assert isinstance(unfinished.output, Unfinished)


def test_record_contains_plain_type_input_and_output(call: Call, script: Script) -> None:
    class Plain(module[str, list[int]]):
        """Count."""

    class Nothing(module[Any, Any]):
        """Do nothing."""

    run = call.run(Plain(model=script(finish(result=[1, 2]))), "a text")
    assert isinstance(run.input, BaseModel)
    assert run.input.model_dump() == {"input": "a text"}
    assert run.output == [1, 2]
    nothing = call.run(Nothing(model=script(finish())))
    assert isinstance(nothing.input, BaseModel)
    assert nothing.input.model_dump() == {}
    assert nothing.output is None
    assert nothing.stop_reason == "finish"


def test_record_repr_contains_no_history_or_deps(call: Call, script: Script) -> None:
    agent = Asker(model=script(finish(answer="a"))).using(deps="a secret of the deps")
    shown = repr(call.run(agent, question="?"))
    assert "stop_reason='finish'" in shown
    assert "secret" not in shown
    assert "role" not in shown


# Failure


class Picky(Asker):
    """Wants another answer."""

    def on_finish(self, output: Answer) -> None:
        raise LookupError("not this one")


def failures(script: Script) -> dict[type[BaseException], Asker]:
    return {
        ModelError: Asker(model=script(Failure(400))),
        ParseError: Asker(model=script(finish(), finish(), finish())),
        LookupError: Picky(model=script(finish(answer="a"))),
        KeyboardInterrupt: Asker(model=script(KeyboardInterrupt())),
    }


@pytest.mark.every_way
def test_failed_run_record_is_attached_to_error(call: Call, script: Script) -> None:
    for kind, agent in failures(script).items():
        with capture() as runs, pytest.raises(kind) as caught:
            call(agent, question="What?")
        run = caught.value.run  # type: ignore[attr-defined]
        assert runs == [run]
        assert run.error is caught.value
        assert run.stop_reason == ("error" if issubclass(kind, Exception) else "cancelled")
        assert run.output is None
        assert run.input == Question(question="What?")
        assert run.seconds > 0
        assert_complete(run.history)


def test_agent_last_is_record_of_last_ended_run(script: Script) -> None:
    agent = Asker(model=script(finish(answer="a"), Failure(400), finish(answer="b")))
    assert agent.last is None
    assert agent.history == []
    first = agent.run(question="1")
    assert agent.last is first
    assert agent.history is first.history
    with pytest.raises(ModelError) as caught:
        agent(question="2")
    assert agent.last is caught.value.run
    assert agent.history is caught.value.run.history
    assert agent.history[-1]["role"] == "user"
    assert agent(question="3") == Answer(answer="b")
    assert agent.last is not None
    assert agent.last.output == Answer(answer="b")


def test_agent_last_is_separate_per_task(script: Script) -> None:
    agent = Asker(model=script(finish(answer="a"), Failure(400)))

    async def main() -> None:
        await agent.acall(question="1")
        assert agent.last is not None
        assert agent.last.output == Answer(answer="a")
        with pytest.raises(ModelError) as caught:
            await agent.acall(question="2")
        assert agent.last is caught.value.run
        failed.append(agent.last)

    failed: list[Run[Any] | None] = []
    asyncio.run(main())
    assert [agent.last] == failed


def test_failure_before_start_creates_no_record(call: Call, script: Script) -> None:
    agent = Asker(model=script(finish(answer="a")))
    agent(question="?")
    before = agent.last
    with capture() as runs:
        with pytest.raises(InputError) as wrong:
            call(agent, questions="?")
        with pytest.raises(DeclarationError) as missing:
            call(Asker(), question="?")
    assert runs == []
    assert wrong.value.run is None
    assert missing.value.run is None
    assert agent.last is before


@pytest.mark.every_way
def test_error_whose_run_attribute_cannot_be_set_is_raised_unchanged(call: Call, script: Script) -> None:
    class ClosedError(Exception):
        @property
        def run(self) -> str:
            return "taken"

    class Closed(Asker):
        """Fail."""

        def on_finish(self, output: Answer) -> None:
            raise ClosedError("closed")

    agent = Closed(model=script(finish(answer="a")))
    with capture() as runs, pytest.raises(ClosedError, match="closed") as caught:
        call(agent, question="?")
    assert caught.value.run == "taken"
    assert runs[0].error is caught.value


@pytest.mark.every_way
def test_error_of_run_started_in_hook_has_record_of_outer_run(call: Call, script: Script) -> None:
    inner = Asker(model=script(Failure(400)))

    class Outer(Asker):
        """Ask another."""

        def on_finish(self, output: Answer) -> None:
            inner(question="inner")

    with capture() as runs, pytest.raises(ModelError) as caught:
        call(Outer(model=script(finish(answer="a"))), question="outer")
    assert [run.input.question for run in runs] == ["outer", "inner"]  # type: ignore[attr-defined]
    assert caught.value.run is runs[0]


# During the run


class Watcher(module[Question, Answer]):
    """Look at the run from everywhere."""

    max_steps = 5

    def __init__(self, **settings: Any) -> None:
        self.seen: list[tuple[str, Run[Any]]] = []
        super().__init__(**settings)

    async def system_prompt(self) -> str:
        self._look("prompt")
        await asyncio.sleep(0)
        self._look("prompt")
        return "Watch."

    @tool
    def sync(self) -> None:
        self._look("sync tool")

    @tool
    async def other(self) -> None:
        self._look("async tool")
        self.seen.append(("in a thread", await asyncio.to_thread(current_run)))

    @tool
    def later(self) -> Any:
        self._look("tool")
        return self.other()

    def on_step(self, step: Step) -> None:
        assert step.run is current_run()
        self._look("on_step")

    def on_finish(self, output: Answer) -> None:
        self._look("on_finish")

    def _look(self, where: str) -> None:
        run = current_run()
        assert (run.output, run.stop_reason, run.error) == (None, None, None)
        assert run.started is not None
        assert run.input == Question(question="?")
        assert self.history is run.history
        self.seen.append((f"{where} {run.step} {run.usage.requests}", run))


@pytest.mark.every_way
def test_current_run_in_tools_hooks_and_prompts_returns_run(call: Call, script: Script) -> None:
    several = functools.reduce(lambda one, other: one & other, map(calling, ["sync", "other", "later"]))
    agent = Watcher(model=script(calling("sync"), calling("other"), several, finish(answer="a")))
    run = call.run(agent, question="?")
    assert {id(seen) for _, seen in agent.seen} == {id(run)}
    places = [place for place, _ in agent.seen]
    assert places[:7] == [
        *("prompt 0 0", "prompt 0 0", "sync tool 1 1", "on_step 1 1", "async tool 2 2", "in a thread", "on_step 2 2")
    ]
    assert sorted(places[7:12]) == [
        *("async tool 3 3", "async tool 3 3", "in a thread", "in a thread", "sync tool 3 3")
    ] or sorted(places[7:13]) == [
        *("async tool 3 3", "async tool 3 3", "in a thread", "in a thread", "sync tool 3 3", "tool 3 3")
    ]
    assert places[-2:] == ["on_step 3 3", "on_finish 3 4"]


def test_current_run_called_outside_run_raises_acorn_error(call: Call, script: Script) -> None:
    def check() -> None:
        with pytest.raises(AcornError, match=r"Call `acorn\.current_run\(\)` in a tool, a hook or a prompt method"):
            current_run()

    check()
    call(Asker(model=script(finish(answer="a"))), question="?")
    with pytest.raises(ModelError):
        call(Asker(model=script(Failure(400))), question="?")
    check()


@pytest.mark.every_way
def test_current_run_in_nested_run_returns_inner_run(call: Call, script: Script) -> None:
    names: list[str] = []

    def note() -> None:
        names.append(current_run().input.question)  # type: ignore[attr-defined]

    inner = Searcher(model=script(calling("note"), finish(answer="inner")), tools=[note])

    def ask() -> str:
        note()
        answer = inner(question="inner").answer
        note()
        return answer

    call(Searcher(model=script(calling("ask"), finish(answer="outer")), tools=[ask]), question="outer")
    assert names == ["outer", "inner", "outer"]


@pytest.mark.every_way
def test_history_changed_by_tool_is_sent(call: Call, script: Script) -> None:
    def remember(text: str) -> str:
        current_run().history.append({"role": "user", "content": f"Remember: {text}"})
        return "noted"

    model = script(calling("remember", text="milk"), finish(answer="a"))
    call(Searcher(model=model, tools=[remember]), question="?")
    assert [message["role"] for message in model.requests[1].messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert model.requests[1].messages[-1]["content"] == "Remember: milk"


# The run as a parameter


def plain(query: str, run: Run) -> str:
    """Search.

    Args:
        query: What to look for
        run: The run
    """
    return f"{query} for {run.id}"


def of_anything(query: str, run: Run[Any]) -> str:
    return plain(query, run)


def optional(query: str, run: Optional[Run[Any]] = None) -> str:  # noqa: UP045 - the old form is a form too
    assert run is not None
    return plain(query, run)


def or_none(run: acorn.Run | None, query: str) -> str:
    assert run is not None
    return plain(query, run)


def in_quotes(query: str, run: "Run[Any]") -> str:
    return plain(query, run)


def annotated(query: str, run: Annotated[Run[Any], "the run"]) -> str:
    return plain(query, run)


def keyword_only(query: str, *, run: Run[Answer]) -> str:
    return plain(query, run)


def positional_only(run: Run, query: str, /) -> str:
    return plain(query, run)


def with_others(run: Run, query: str, **others: str) -> str:
    return plain(query, run)


async def awaited(run: Run, query: str) -> str:
    return plain(query, run)


TAKERS: list[Callable[..., Any]] = [
    plain,
    of_anything,
    optional,
    or_none,
    in_quotes,
    annotated,
    keyword_only,
    positional_only,
    with_others,
    awaited,
]


@each_case("function", TAKERS)
def test_tool_parameter_annotated_run_receives_run(call: Call, script: Script, function: Callable[..., Any]) -> None:
    name = function.__name__
    model = script(calling(name, query="x"), calling(name, query="y") & calling(name, query="z"), finish(answer="a"))
    run = call.run(Searcher(model=model, tools=[function]), question="?")
    told = [message["content"] for message in run.history if message["role"] == "tool"][:-1]
    assert told == [f"{query} for {run.id}" for query in "xyz"]
    parameters = model.requests[0].tools[0]["function"]["parameters"]
    assert list(parameters["properties"]) == ["query"]
    assert parameters["required"] == ["query"]


def test_method_tool_parameter_annotated_run_receives_run(call: Call, script: Script) -> None:
    class Own(Searcher):
        """Search."""

        tools = []

        @tool
        def mine(self, run: Run[Any], query: str) -> str:
            assert self.history is run.history
            return plain(query, run)

    model = script(calling("mine", query="x"), finish(answer="a"))
    run = call.run(Own(model=model), question="?")
    assert run.history[3]["content"] == f"x for {run.id}"
    assert list(model.requests[0].tools[0]["function"]["parameters"]["properties"]) == ["query"]


@each_case("function", [plain, with_others])
def test_run_argument_passed_by_model_returns_tool_error(
    call: Call, script: Script, function: Callable[..., Any]
) -> None:
    model = script(calling(function.__name__, query="x", run="mine"), finish(answer="a"))
    run = call.run(Searcher(model=model, tools=[function]), question="?")
    assert run.history[3]["content"].startswith("Tool error: ")
    assert "`run`" in run.history[3]["content"]


# Capture


def names(runs: list[Run[Any]]) -> list[str]:
    return [run.input.question for run in runs]  # type: ignore[attr-defined]


def quick() -> Asker:
    return Asker(model=ScriptedModel(lambda request: finish(answer="a")))


def test_capture_block_collects_runs_started_in_block(call: Call, script: Script) -> None:
    agent = quick()
    call(agent, question="before")
    with capture() as runs:
        assert runs == []
        first = call.run(agent, question="1")
        with pytest.raises(ModelError):
            call(Asker(model=script(Failure(400))), question="2")
        call(agent, question="3")
    call(agent, question="after")
    assert names(runs) == ["1", "2", "3"]
    assert runs[0] is first
    assert [run.stop_reason for run in runs] == ["finish", "error", "finish"]


@pytest.mark.every_way
def test_capture_block_contains_record_as_soon_as_run_starts(call: Call, script: Script) -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(len(runs))

    with capture() as runs:
        call(Searcher(model=script(calling("look"), finish(answer="a")), tools=[look]), question="?")
    assert seen == [1]


def test_nested_capture_blocks_each_collect_runs_started_in_their_block(call: Call) -> None:
    agent = quick()
    with capture() as outer:
        call(agent, question="1")
        with capture() as inner:
            call(agent, question="2")
        with capture() as other:
            pass
        call(agent, question="3")
    assert names(outer) == ["1", "2", "3"]
    assert names(inner) == ["2"]
    assert other == []


def test_capture_block_left_by_exception_collects_no_more_runs() -> None:
    agent = quick()
    kept: list[list[Run[Any]]] = []
    with suppress(LookupError), capture() as runs:
        kept.append(runs)
        agent(question="1")
        raise LookupError
    agent(question="2")
    assert names(kept[0]) == ["1"]


def test_capture_block_collects_runs_of_tasks_and_of_threads_started_by_tasks() -> None:
    agent = quick()

    async def main() -> None:
        before = asyncio.ensure_future(wait_then_call("begun before"))
        await asyncio.sleep(0)
        with capture() as runs:
            await agent.acall(question="here")
            await asyncio.gather(*(agent.acall(question=f"task {number}") for number in range(3)))
            await asyncio.to_thread(agent, question="to_thread")
            gate.set()
            await before
        assert sorted(names(runs)) == ["here", "task 0", "task 1", "task 2", "to_thread"]

    async def wait_then_call(question: str) -> None:
        await gate.wait()
        await agent.acall(question=question)

    gate = asyncio.Event()
    asyncio.run(main())


@pytest.mark.every_way
def test_capture_block_collects_runs_started_inside_tools(call: Call, script: Script) -> None:
    agent = quick()

    def ask(name: str) -> str:
        return agent(question=name).answer

    async def aask(name: str) -> str:
        return (await agent.acall(question=name)).answer

    model = script(
        calling("ask", name="1"),
        calling("aask", name="2"),
        calling("ask", name="3") & calling("aask", name="4") & calling("ask", name="5"),
        finish(answer="a"),
    )
    with capture() as runs:
        call(Searcher(model=model, tools=[ask, aask]), question="outer")
    assert names(runs)[:3] == ["outer", "1", "2"]
    assert sorted(names(runs)[3:]) == ["3", "4", "5"]


def test_capture_block_does_not_collect_runs_of_other_contextvars_contexts() -> None:
    agent = quick()
    with capture() as runs:
        contextvars.Context().run(agent, question="another context")
        thread = threading.Thread(target=agent, kwargs={"question": "a thread of the user's"}, daemon=True)
        contextvars.Context().run(thread.start)
        thread.join(PATIENCE)
    assert runs == []


# Copies


def test_pickled_error_and_its_run_record_contain_history_and_input(script: Script) -> None:
    agent = Asker(model=script(finish(), finish(), finish())).using(deps=threading.Lock())
    with pytest.raises(ParseError) as caught:
        agent(question="?")
    error = caught.value
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ParseError
    assert str(again) == str(error)
    assert again.attempts == 3
    assert again.run.history == error.run.history
    assert again.run.input == Question(question="?")
    assert again.run.error is again
    assert again.run.deps is None  # Objects used by tools can be anything and are not copied.


def test_record_with_local_classes_is_pickled_with_plain_data(script: Script) -> None:
    class Local(BaseModel):
        city: str

    class Finder(module[Any, Local]):
        """Find the city."""

        initial_input = ["country", ("places", list[Local], [])]

    run = Finder(model=script(finish(city="Rome"))).run(country="Italy", places=[{"city": "Bari"}])
    again = pickle.loads(pickle.dumps(run))
    assert again.input == {"country": "Italy", "places": [{"city": "Bari"}]}
    assert again.output == {"city": "Rome"}
    assert again.history == run.history


def test_unfinished_output_is_equal_after_pickling(script: Script) -> None:
    run = Searcher(model=script(calling("search", query="a")), max_steps=None).run(question="?")
    again = pickle.loads(pickle.dumps(run)).output
    assert isinstance(again, Unfinished)
    assert again.tool_results == run.output.tool_results  # type: ignore[union-attr]


def test_copied_record_has_identical_attributes(script: Script) -> None:
    run = Asker(model=script(finish(answer="a"))).using(deps=threading.Lock()).run(question="?")
    copied = copy.copy(run)
    assert copied is not run
    assert all(getattr(copied, each.name) is getattr(run, each.name) for each in dataclasses.fields(run))
