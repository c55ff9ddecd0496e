"""Tests of the limits of a run: tokens, dollars, seconds, and repeated calls."""

import asyncio
import dataclasses
import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Call, Script
from tests.cases import each_case
from tests.provider_rules import assert_complete, assert_request_valid
from tests.waiting import PATIENCE, given_time

from acorn import DeclarationError, LimitError, Run, Step, ToolResult, Usage, capture, module, tool
from acorn._call.plan import new_machine
from acorn._history.transcript import finish_call
from acorn._machine.asks import AskModel, AskTool
from acorn.models import ModelRequest, Price
from acorn.testing import Reply, ScriptedModel, finish
from acorn.testing import call as calling


class Report(BaseModel):
    summary: str


@tool
def look(at: int = 0) -> str:
    """Look at something."""
    return f"seen {at}"


class Worker(module[Any, Report]):
    """Look around, then report."""

    tools = [look]
    max_steps = 50
    loop_guard: str | None = None


def used(reply: Reply, tokens_in: int, tokens_out: int) -> Reply:
    return dataclasses.replace(reply, usage=Usage(tokens_in, tokens_out))


def eager(
    tokens_in: int, tokens_out: int, *, grows: int = 0, make: Any = ScriptedModel, **options: Any
) -> ScriptedModel:
    """A model that continues until it is forced; each request costs `grows` more than the previous one."""
    counter = itertools.count()

    def reply(request: ModelRequest) -> Reply:
        number = next(counter)
        made = finish(summary="done") if request.forced_tool else calling("look", at=number)
        return used(made, tokens_in + grows * number, tokens_out)

    return cast(ScriptedModel, make(reply, **options))


def forced(model: ScriptedModel) -> list[bool]:
    return [request.forced_tool == "__finish__" for request in model.requests]


# Tokens and dollars


@pytest.mark.every_way
@each_case(
    ("limit", "tokens", "grows"),
    [(1_000, (80, 20), 0), (1_000, (30, 10), 20), (10_000, (500, 100), 120), (100_000, (1_000, 500), 700)],
)
def test_run_near_token_limit_is_forced_to_finish(call: Call, limit: int, tokens: tuple[int, int], grows: int) -> None:
    model = eager(*tokens, grows=grows)
    run = call.run(Worker(model=model, max_total_tokens=limit))
    assert run.output == Report(summary="done")
    assert run.stop_reason == "limit"
    assert run.usage.total_tokens <= limit
    assert run.usage.total_tokens > limit / 3  # And not long before it is near.
    assert forced(model) == [False] * run.steps + [True]
    assert_complete(run.history)
    for request in model.requests:
        assert_request_valid(request)


def test_run_near_cost_limit_is_forced_to_finish(call: Call) -> None:
    model = eager(800, 200, price=Price(0.0001, 0.0006))  # 20 cents per request.
    run = call.run(Worker(model=model, max_cost=1.5))
    assert run.output == Report(summary="done")
    assert run.stop_reason == "limit"
    assert run.cost is not None
    assert 0.5 < run.cost <= 1.5
    assert forced(model)[-1]


def test_limit_set_for_one_call_applies_to_that_call(call: Call) -> None:
    agent = Worker(model=eager(800, 200, price=Price(0.0001, 0.0006)), max_steps=30)
    assert call.run(agent.using(max_cost=1.5)).stop_reason == "limit"
    assert call.run(agent.using(max_total_tokens=6_000)).stop_reason == "limit"
    free = call.run(agent)
    assert (free.stop_reason, free.steps) == ("forced", 30)


def test_run_below_limits_is_not_forced_to_finish(call: Call, script: Script) -> None:
    model = script(used(calling("look"), 50, 10), used(finish(summary="own"), 60, 10), price=Price(0.001, 0.001))
    run = call.run(Worker(model=model, max_total_tokens=1_000, max_cost=1, max_seconds=600))
    assert (run.output, run.stop_reason) == (Report(summary="own"), "finish")
    assert forced(model) == [False, False]


def test_forced_request_at_limit_has_equal_messages_and_tools(call: Call) -> None:
    model = eager(80, 20, make=call.scripted)
    call(Worker(model=model, max_total_tokens=600))
    *before, last = model.requests
    assert last.tools == before[-1].tools
    assert last.messages[: len(before[-1].messages)] == before[-1].messages


@pytest.mark.every_way
def test_run_without_enough_tokens_left_for_answer_raises_limit_error_with_run_record(
    call: Call, script: Script
) -> None:
    model = script(used(calling("look"), 900, 90))
    with capture() as runs, pytest.raises(LimitError) as caught:
        call(Worker(model=model, max_total_tokens=1_000))
    (run,) = runs
    assert caught.value.run is run
    assert (run.usage.total_tokens, run.steps, run.output) == (990, 1, None)
    assert (run.stop_reason, run.error) == ("error", caught.value)
    assert all(word in str(caught.value) for word in ("`Worker`", "`max_total_tokens`", "990 tokens", "1 step"))


def test_tool_result_too_long_for_token_limit_raises_limit_error(call: Call, script: Script) -> None:
    def dump() -> str:
        return "x" * 400_000

    with pytest.raises(LimitError, match="`max_total_tokens`"):
        call(Worker(model=script(used(calling("dump"), 100, 10)), tools=[dump], max_total_tokens=50_000))


def test_run_whose_input_uses_most_of_token_limit_is_forced_to_finish_in_first_request(call: Call) -> None:
    class Reader(Worker):
        """Read."""

        initial_input = str

    model = eager(3_000, 20)
    run = call.run(Reader(model=model, max_total_tokens=4_000), "word " * 2_400)
    assert (run.output, run.stop_reason) == (Report(summary="done"), "limit")
    assert forced(model) == [True]


def test_limits_apply_to_single_turn_run(call: Call, script: Script) -> None:
    class Once(module[Any, Report]):
        """Report."""

        parse_retries = 5

    model = script(used(finish(), 300, 50), used(finish(), 400, 50))
    with pytest.raises(LimitError, match="`max_total_tokens`"):
        call(Once(model=model, max_total_tokens=1_000))


@each_case("forces", [True, False])
def test_requests_that_correct_forced_answer_count_against_token_limit(
    call: Call, script: Script, forces: bool
) -> None:
    wrong = finish() if forces else Reply("no answer at all")
    model = script(
        used(calling("look"), 200, 50), used(wrong, 250, 60), used(wrong, 300, 60), name="stubborn", forces=forces
    )
    with pytest.raises(LimitError, match="`max_total_tokens`") as caught:
        call(Worker(model=model, max_total_tokens=1_100, parse_retries=10))
    assert caught.value.run.usage.total_tokens == 920


def test_run_that_exceeded_max_cost_raises_limit_error_instead_of_forcing_finish(call: Call, script: Script) -> None:
    model = script(used(calling("look"), 400, 50), price=Price(0.01, 0.01))
    with pytest.raises(LimitError, match="`max_cost`"):
        call(Worker(model=model, max_total_tokens=1_500, max_cost=5))


def test_max_cost_with_model_without_price_raises_declaration_error(call: Call, script: Script) -> None:
    with capture() as runs, pytest.raises(DeclarationError) as caught:
        call(Worker(model=script(name="mystery"), max_cost=1))
    assert runs == []
    assert all(word in str(caught.value) for word in ("`Worker.max_cost`", "`mystery`", "input_cost_per_token"))
    with pytest.raises(DeclarationError, match="`mystery`"):
        call(Worker(model=script(name="mystery")).using(max_cost=1))


def test_max_cost_with_switch_to_model_without_price_raises_declaration_error(call: Call, script: Script) -> None:
    class Switcher(Worker):
        """Change the model."""

        def on_step(self, step: Step) -> None:
            step.model = mystery

    mystery = script(name="mystery")
    with pytest.raises(DeclarationError, match="`mystery`"):
        call(Switcher(model=script(calling("look"), price=Price(0, 0)), max_cost=1))


@each_case("seed", range(150))
def test_random_run_exceeds_token_and_cost_limits_by_at_most_one_request(seed: int) -> None:
    chance = random.Random(seed)
    price = Price(chance.uniform(0, 1e-4), chance.uniform(0, 1e-3))
    spent: list[float] = [0.0, 0.0]
    limit_tokens, limit_cost = chance.randint(1, 20_000), chance.uniform(0.01, 5)

    def reply(request: ModelRequest) -> Reply:
        assert spent[0] < limit_tokens
        assert spent[1] < limit_cost
        assert_request_valid(request)
        used_up = Usage(chance.randint(1, 3_000), chance.choice([0, 5, 50, chance.randint(0, 3_000)]))
        spent[0] += used_up.total_tokens
        spent[1] += price.of(used_up)
        said = chance.choice(
            [calling("look", at=1), calling("look") & calling("look"), Reply("hm"), finish(), finish(x=1)]
        )
        if request.forced_tool and chance.random() < 0.5:
            said = finish(summary="done")
        return Reply(said.content, said.calls, usage=used_up)

    model = ScriptedModel(reply, price=price, forces=chance.random() < 0.7)
    agent = Worker(
        model=model,
        max_total_tokens=limit_tokens,
        max_cost=limit_cost,
        parse_retries=1_000,
        max_steps=chance.choice([1, 3, 1_000]),
    )
    try:
        run: Run[Any] = agent.run()
    except LimitError as error:
        run = error.run
        assert run.output is None
    else:
        assert run.output == Report(summary="done")
        assert run.stop_reason in ("limit", "forced")
    assert run.usage.total_tokens == spent[0]
    assert run.cost == pytest.approx(spent[1])
    assert run.usage.requests == len(model.requests)
    assert_complete(run.history)


@each_case("seed", range(40))
def test_run_with_steady_token_usage_returns_answer_before_token_limit(seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.randint(3_000, 30_000)

    def find(at: int) -> str:
        return "word " * chance.randint(1, 60)

    def reply(request: ModelRequest) -> Reply:
        # Usage as the scripted model counts it: the texts sent and received.
        return finish(summary="x" * 80) if request.forced_tool else calling("find", at=chance.randint(0, 9))

    model = ScriptedModel(reply)
    run = Worker(model=model, tools=[find], max_total_tokens=limit, max_steps=10_000).run()
    assert run.stop_reason == "limit"
    assert run.output == Report(summary="x" * 80)
    assert limit / 2 < run.usage.total_tokens <= limit


# Seconds


def on_a_clock(agent: Worker, model_takes: float, tools_take: float) -> tuple[Run[Any], float, list[float]]:
    """Drive a run with an injected clock; return its record, its time and what its tools received."""
    loop = new_machine(agent, (), {})
    now = 0.0
    given: list[float] = []
    loop.start(now)
    while asks := loop.asks(now):
        for ask in asks:
            loop.begin(ask.id, now)
        if isinstance(asks[0], AskModel):
            now += model_takes
            loop.tell(asks[0].id, asks[0].model.complete(asks[0].request), now)
            continue
        tools = [ask for ask in asks if isinstance(ask, AskTool)]
        given.append(tools[0].seconds)
        now += min(tools_take, tools[0].seconds)
        for ask in tools:
            loop.tell(ask.id, finish_call(ToolResult(ask.call.id, ask.call.name, "x")), now)
    return loop.run, now, given


def test_request_timeout_equals_remaining_time() -> None:
    loop = new_machine(Worker(model=ScriptedModel([calling("look"), finish(summary="done")]), max_seconds=60), (), {})
    loop.start(0.0)

    def given(now: float) -> float | None:
        (ask,) = loop.asks(now)
        assert isinstance(ask, AskModel)
        return ask.request.timeout

    assert [given(now) for now in (0.0, 2.5, 59.0)] == [60.0, 57.5, 1.0]
    (ask,) = loop.asks(3.0)
    assert isinstance(ask, AskModel)
    loop.begin(ask.id, 3.0)
    loop.tell(ask.id, ask.model.complete(ask.request), 10.0)
    (asked,) = loop.asks(10.0)
    assert isinstance(asked, AskTool)
    loop.begin(asked.id, 10.0)
    loop.tell(asked.id, finish_call(ToolResult(asked.call.id, "look", "x")), 15.0)
    assert given(15.0) == 45.0


@each_case(
    ("model_takes", "tools_take", "steps"),
    [
        (1.0, 1.0, 27),
        (0.1, 10.0, 5),
        (5.0, 0.1, 10),
        (9.0, 9.0, 2),
        (25.0, 0.0, 1),
        (1.0, 1_000.0, 1),  # Tools are stopped in time for the answer.
        (20.0, 1_000.0, 1),
        (0.0, 1_000.0, 1),
    ],
)
def test_run_near_time_limit_is_forced_to_finish(model_takes: float, tools_take: float, steps: int) -> None:
    model = eager(10, 10)
    run, took, given = on_a_clock(Worker(model=model, max_seconds=60), model_takes, tools_take)
    assert (run.output, run.stop_reason) == (Report(summary="done"), "limit")
    assert run.steps == steps
    assert took <= 60
    assert forced(model) == [False] * run.steps + [True]
    assert all(request.timeout is not None and request.timeout >= model_takes for request in model.requests)
    assert all(seconds >= min(tools_take, 20) for seconds in given)  # No tool is stopped without reason.


@each_case("way", ["sync", "async"])
def test_slow_tools_are_stopped_in_time_for_answer(way: str) -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait(PATIENCE)

    async def ahang() -> None:
        await asyncio.sleep(PATIENCE)

    def reply(request: ModelRequest) -> Reply:
        return finish(summary="done") if request.forced_tool else calling("hang") & calling("ahang")

    def hurry(seconds: float) -> Run[Any] | None:
        model = ScriptedModel(reply)
        try:
            return Call(way).run(Worker(model=model, tools=[hang, ahang], max_seconds=seconds))
        except LimitError:  # On a slow machine, there may be no time for the answer.
            return None

    run = given_time(hurry, 0.3)
    release.set()
    assert (run.output, run.stop_reason, run.steps) == (Report(summary="done"), "limit", 1)
    told = [message["content"] for message in run.history if message["role"] == "tool"][:-1]
    assert len(told) == 2
    assert all(
        text.startswith("Tool error: TimeoutError: the tool did not return within its time limit of ") for text in told
    )


@pytest.mark.every_way
def test_tools_that_run_one_after_another_share_remaining_time_of_run(call: Call) -> None:
    release = threading.Event()

    @tool(parallel=False)
    def hang() -> None:
        release.wait(PATIENCE)

    def reply(request: ModelRequest) -> Reply:
        return finish(summary="done") if request.forced_tool else Reply(calls=calling("hang").calls * 40)

    with capture() as runs, suppress(LimitError):  # On a slow machine, there may be no time for the answer.
        call(Worker(model=ScriptedModel(reply), tools=[hang], max_seconds=0.25))
    release.set()
    told = [message["content"] for message in runs[0].history if message["role"] == "tool"]
    allowed = [
        float(found)
        for found in re.findall(
            r"the tool did not return within its time limit of ([\d.]+) s", " ".join(map(str, told))
        )
    ]
    assert sum(allowed) <= 0.25 + 40 * 0.001  # Each gets at least a moment.


@pytest.mark.every_way
def test_tool_timeout_shorter_than_remaining_time_of_run_applies(call: Call, script: Script) -> None:
    @tool(timeout=0.05)
    async def hang() -> None:
        await asyncio.sleep(PATIENCE)

    run = call.run(Worker(model=script(calling("hang"), finish(summary="own")), tools=[hang], max_seconds=600))
    assert (
        run.history[3]["content"] == "Tool error: TimeoutError: the tool did not return within its time limit of 0.05 s"
    )
    assert run.stop_reason == "finish"


@pytest.mark.every_way
def test_slow_model_call_is_stopped_after_max_seconds(call: Call) -> None:
    slow = finish(summary="late")
    slow.delay = PATIENCE

    def hurry(seconds: float) -> LimitError | None:
        model = call.scripted([calling("look"), slow])
        with capture() as runs, pytest.raises(LimitError, match="`max_seconds`") as caught:
            call(Worker(model=model, max_seconds=seconds))
        assert caught.value.run is runs[0]
        return caught.value if len(model.requests) == 2 else None

    error = given_time(hurry, 0.3)
    assert error.run.seconds < PATIENCE / 2
    assert error.run.steps == 1
    assert error.__cause__ is not None


@pytest.mark.every_way
def test_time_limit_reached_in_hook_before_next_request_ends_run(call: Call) -> None:
    def hurry(seconds: float) -> LimitError | None:
        thought: list[Step] = []

        class Slow(Worker):
            """Think it over."""

            def on_step(self, step: Step) -> None:
                thought.append(step)
                time.sleep(seconds)

        with pytest.raises(LimitError, match="`max_seconds`") as caught:
            call(Slow(model=call.scripted([calling("look")]), max_seconds=seconds))
        return caught.value if thought else None

    assert given_time(hurry, 0.1).run.steps == 1


# Repetition

NOTICE = "You are repeating yourself"


class Circler(Worker):
    """Look around."""

    max_steps = 8
    loop_guard = "notice"


def notices(run: Run[Any]) -> list[int]:
    """Return after how many turns the model got the notice."""
    turns = itertools.accumulate(message["role"] == "assistant" for message in run.history)
    return [
        turn
        for turn, message in zip(turns, run.history, strict=True)
        if message["role"] == "user" and message["content"].startswith(NOTICE)
    ]


def walk(call: Call, script: Script, replies: list[Reply], agent: type[Worker] = Circler, **settings: Any) -> Run[Any]:
    model = script(*replies, finish(summary="done"))
    run = call.run(agent(model=model, **settings))
    assert run.output == Report(summary="done")
    return run


def test_loop_guard_sends_one_notice_at_third_identical_call(call: Call, script: Script) -> None:
    run = walk(call, script, [calling("look", at=1) for _ in range(6)])
    assert notices(run) == [3]
    assert run.stop_reason == "finish"
    position = next(at for at, message in enumerate(run.history) if message["content"].startswith(NOTICE))
    assert run.history[position - 1]["role"] == "tool"  # After the results.


def find(name: str, at: int = 0) -> str:
    return "nothing"


def refuse(page: int) -> str:
    raise ConnectionError("refused")


def refuse_page(page: int) -> str:
    raise ConnectionError(f"page {page} refused")


NUMBERS = itertools.count()


def count() -> int:
    return next(NUMBERS)


def count_pages() -> Iterator[int]:
    yield next(NUMBERS)


@tool(repeatable=True)
def poll() -> str:
    return "not yet"


@tool(repeatable=True)
def poll_in_vain() -> str:
    raise ConnectionError("not yet")


def spaced() -> Reply:
    reply = calling("find", name="a", at=1)
    reply.calls[0].arguments = '{ "name": "a",  "at": 1 }'
    return reply


ONE, TWO = calling("look", at=1), calling("look", at=2)
PATTERNS: dict[str, tuple[list[Reply], list[int]]] = {
    "two identical calls": ([ONE, ONE, TWO, ONE, ONE], []),
    "one call between others": ([ONE, TWO, ONE], []),
    "arguments in another order and form": (
        [calling("find", name="a", at=1), calling("find", at=1, name="a"), spaced()],
        [3],
    ),
    "alternating calls": ([ONE, TWO] * 3, [4]),
    "a response with two calls": ([ONE & TWO] * 4, [3]),
    "one error of different calls": ([calling("refuse", page=number) for number in range(5)], [3]),
    "different errors": ([calling("refuse_page", page=number) for number in range(5)], []),
    "different results": ([calling("count")] * 6, []),
    "different results of a generator": ([calling("count_pages")] * 5, []),
    "different arguments": ([calling("find", name=name) for name in "abcdef"], []),
    "a repeatable tool": ([calling("poll")] * 6, []),
    "a repeatable tool that fails": ([calling("poll_in_vain")] * 6, []),
    "a call next to a repeatable tool": ([calling("poll") & ONE] * 4, [3]),
}


@each_case("pattern", PATTERNS)
def test_loop_guard_reports_only_repeated_calls_with_equal_results(call: Call, script: Script, pattern: str) -> None:
    replies, expected = PATTERNS[pattern]
    tools = [look, find, refuse, refuse_page, count, count_pages, poll, poll_in_vain]
    assert notices(walk(call, script, replies, tools=tools)) == expected
    assert notices(walk(call, script, replies, tools=tools, loop_guard=None)) == []


@pytest.mark.every_way
def test_loop_guard_force_forces_finish_if_loop_continues_after_notice(call: Call, script: Script) -> None:
    model = script(*(calling("look", at=1) for _ in range(4)), finish(summary="done"))
    run = call.run(Circler(model=model, loop_guard="force"))
    assert notices(run) == [3]
    assert run.stop_reason == "loop"
    assert forced(model) == [False, False, False, False, True]


def test_loop_guard_force_does_not_force_finish_if_loop_ends_after_notice(call: Call, script: Script) -> None:
    replies = [*(calling("look", at=1) for _ in range(3)), *(calling("look", at=at) for at in (2, 3, 4))]
    run = walk(call, script, replies, loop_guard="force")
    assert notices(run) == [3]
    assert run.stop_reason == "finish"


def test_loop_guard_compares_results_changed_by_on_step(call: Call, script: Script) -> None:
    class Changing(Circler):
        """Say something else each time."""

        def on_step(self, step: Step) -> None:
            step.tool_results[0].output = f"{step.counter}"

    assert notices(walk(call, script, [calling("look", at=1) for _ in range(5)], Changing)) == []


Change = Callable[[Step], None]


@each_case(
    "change",
    [
        lambda step: step.tool_results.clear(),
        lambda step: step.tool_calls[0].arguments.update({1: 2, "a": object()}),
        lambda step: setattr(step.tool_results[0], "output", object()),
    ],
)
def test_loop_guard_accepts_unserializable_or_missing_results_set_by_on_step(call: Call, change: Change) -> None:
    class Changing(Circler):
        """Change things."""

        def on_step(self, step: Step) -> None:
            change(step)

    replies = [*(calling("look", at=1) for _ in range(5)), finish(summary="done")]
    assert call(Changing(model=ScriptedModel(replies))) == Report(summary="done")
