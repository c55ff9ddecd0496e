"""Tests of model lists over HTTP with each kind of fault: the expected model answers, without superfluous requests."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cases import case
from tests.clock import FakeClock
from tests.contract.conftest import Wire
from tests.long_version import IS_LONG
from tests.loopback import Answer, Fault, Loopback
from tests.ports import free_port
from tests.waiting import AGES, PATIENCE, comes_true, waiting_for_nothing

from acorn import ModelError, Run, Step, module, tool
from acorn.journal import ModelResponded, RunFailed, RunInterrupted
from acorn.testing import Reply, call, finish


@tool
def look() -> str:
    """Look around."""
    return "seen"


class Plain(module):
    """You answer."""

    final_output = str
    tools = [look]
    max_steps = 5


DONE = finish(result="done")

PASSING: dict[str, tuple[Fault, dict[str, Any]]] = {
    "429": (Fault(status=429), {}),
    "500": (Fault(status=500), {}),
    "503": (Fault(status=503), {}),
    "529": (Fault(status=529), {}),
    "no response in time": (Fault(delay=AGES), {"timeout": 0.1}),
    "reset before the headers": (Fault(reset="before"), {}),
    "reset inside the answer": (Fault(reset="inside"), {}),
}
LASTING: dict[str, Fault] = {
    "400": Fault(status=400),
    "401": Fault(status=401),
    "a malformed answer": Fault(body=b'{"choices": [{"mess'),
}


class Pair:
    """Two providers: the first speaks the current protocol, the second the other one."""

    def __init__(self, wire: Wire, first: Any, second: Any) -> None:
        self.wire = wire
        self.first = wire.serve(first if callable(first) else list(first))
        self.second = wire.serve(list(second))

    def models(self, **extra: Any) -> list[Any]:
        """Return both models; other settings are for the first."""
        one, other = (
            (self.first.openai, self.second.anthropic)
            if self.wire.is_openai
            else (self.first.anthropic, self.second.openai)
        )
        return [one(**{"num_retries": 0, "retry_delay": 0.001, **extra}), other(num_retries=0)]

    def counts(self, expected: int = 0) -> tuple[int, int]:
        """Return the requests of both; the expected ones of the first may arrive after its client has given up."""
        comes_true(lambda: len(self.first.requests) >= expected)
        return len(self.first.requests), len(self.second.requests)


def always(answer: Answer) -> Any:
    return lambda request: answer


def run_streamed(wire: Wire, agent: module[Any, Any]) -> Run[Any]:
    async def main() -> Run[Any]:
        last = [chunk async for chunk in agent.astream()][-1]
        assert last.run is not None
        return last.run

    if wire.way == "async":
        return asyncio.run(main())
    last = list(agent.stream())[-1]
    assert last.run is not None
    return last.run


def ask(wire: Wire, agent: module[Any, Any], streams: bool) -> Run[Any]:
    return run_streamed(wire, agent) if streams else wire.run(agent)


def answers(run: Run[Any]) -> list[ModelResponded]:
    return [entry for entry in run.journal.entries if isinstance(entry, ModelResponded)]


# Answering models and numbers of requests


def test_request_that_fails_after_all_retries_is_sent_to_next_model(wire: Wire, clock: FakeClock) -> None:
    for name, (fault, extra) in PASSING.items():
        for count in (1, 0) if IS_LONG or name == "503" else (1,):
            pair = Pair(wire, always(fault), [DONE])
            models = pair.models(num_retries=count, **extra)
            with case(name, count), waiting_for_nothing():
                run = wire.run(Plain(model=models))
                assert run.output == "done"
                assert pair.counts(count + 1) == (count + 1, 1)
                assert run.model == models[1]["model"].partition("/")[2]
                (entry,) = answers(run)
                (fallback,) = entry.fallbacks
                assert entry.model == run.model
                assert (fallback.failed, fallback.to) == (models[0]["model"], models[1]["model"])
                assert models[0]["model"] in fallback.cause
                if fault.status:
                    assert f"HTTP {fault.status}" in fallback.cause


def test_stream_error_before_first_delta_is_sent_to_next_model_after_retries(wire: Wire, clock: FakeClock) -> None:
    for name, (fault, extra) in {**PASSING, "reset inside the answer": (Fault(cut=20), {})}.items():
        pair = Pair(wire, always(fault), [DONE])
        with case(name), waiting_for_nothing():
            run = run_streamed(wire, Plain(model=pair.models(num_retries=1, **extra)))
            assert run.output == "done"
            assert pair.counts(2) == (2, 1)
            assert len(answers(run)[0].fallbacks) == 1


def test_stream_error_after_first_delta_raises_model_error(wire: Wire) -> None:
    broken = Fault(reset="inside", reply=Reply("Let me see what there is to be seen, and then say it.") & DONE)
    pair = Pair(wire, always(broken), [DONE])
    with pytest.raises(ModelError) as caught:
        run_streamed(wire, Plain(model=pair.models(num_retries=2)))
    assert pair.counts() == (1, 0)
    assert caught.value.retryable
    assert isinstance(caught.value.run.journal.entries[-1], RunInterrupted)


def test_permanent_failure_raises_without_request_to_next_model(wire: Wire) -> None:
    for name, streams in [*((name, False) for name in LASTING), ("400", True), ("401", True)]:
        pair = Pair(wire, always(LASTING[name]), [])
        with case(name, streams), pytest.raises(ModelError) as caught:
            ask(wire, Plain(model=pair.models(num_retries=2)), streams)
        assert pair.counts() == (1, 0)
        assert (caught.value.status, caught.value.retryable) == (LASTING[name].status, False)
        assert isinstance(caught.value.run.journal.entries[-1], RunFailed)


def test_missing_api_key_of_first_model_raises_without_any_request() -> None:
    with Loopback([]) as server:
        for name in ("openai/gpt-4o", "anthropic/claude-sonnet-4-5"):
            with pytest.raises(ModelError, match="is not set") as caught:
                Plain(model=[name, server.openai()]).run()
            assert not caught.value.retryable
        assert server.requests == []


def test_refused_connection_sends_request_to_next_model(wire: Wire) -> None:
    port = free_port()
    for streams in (False, True):
        pair = Pair(wire, [], [DONE])
        run = ask(wire, Plain(model=pair.models(api_base=f"http://127.0.0.1:{port}", num_retries=1)), streams)
        assert run.output == "done"
        assert pair.counts() == (0, 1)
        assert "no connection" in answers(run)[0].fallbacks[0].cause


def test_failure_of_both_models_raises_error_that_contains_both_reasons(wire: Wire) -> None:
    pair = Pair(wire, always(Fault(status=503, message="no room here")), [Fault(status=429, message="too many there")])
    models = pair.models(num_retries=1)
    error = wire.fails(Plain(model=models))
    assert pair.counts() == (2, 1)
    assert (error.status, error.retryable) == (429, True)
    assert error.provider == wire.either(openai="anthropic", anthropic="openai")
    for words in (models[0]["model"], models[1]["model"], "no room here", "too many there", "HTTP 503", "HTTP 429"):
        assert words in str(error)
    assert isinstance(error.__cause__, ExceptionGroup)


def test_retry_after_of_more_than_a_minute_sends_request_to_next_model(wire: Wire) -> None:
    pair = Pair(wire, always(Fault(status=429, headers={"Retry-After": "3600"})), [DONE])
    with waiting_for_nothing():
        assert wire.run(Plain(model=pair.models(num_retries=3))).output == "done"
    assert pair.counts() == (1, 1)


# Circuits, threads, cancellation


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_open_circuit_of_model_is_shared_by_all_agent_classes(wire: Wire, streams: bool) -> None:
    class Other(Plain):
        """You answer too."""

    pair = Pair(wire, always(Fault(status=503)), [DONE] * 5)
    models = pair.models(num_retries=1)
    for agent in (Plain, Other, Plain):
        ask(wire, agent(model=models), streams)
    assert pair.counts() == (6, 3)
    run = ask(wire, Other(model=[{**models[0], "temperature": 0.1}, models[1]]), streams)
    assert pair.counts() == (6, 4)
    assert [fallback.cause for fallback in answers(run)[0].fallbacks] == ["its circuit is open"]
    elsewhere = wire.serve([DONE])
    ask(wire, Plain(model=[{**models[0], "api_base": pair_base(wire, elsewhere)}, models[1]]), streams)
    assert len(elsewhere.requests) == 1


def pair_base(wire: Wire, server: Loopback) -> str:
    base: str = (server.openai() if wire.is_openai else server.anthropic())["api_base"]
    return base


def test_open_circuit_of_model_is_shared_by_all_os_threads() -> None:
    many = 24
    with ExitStack() as stack:
        first = stack.enter_context(Loopback(always(Fault(status=503))))
        second = stack.enter_context(Loopback(always(DONE)))
        agent = Plain(model=[first.openai(num_retries=0), second.anthropic(num_retries=0)])
        found: list[Run[Any]] = []
        crowd = [threading.Thread(target=lambda: found.append(agent.run())) for _ in range(many)]
        for each in crowd:
            each.start()
        for each in crowd:
            each.join(PATIENCE)
        assert [run.output for run in found] == ["done"] * many
        assert {run.model for run in found} == {"claude-sonnet-4-5"}
        assert len(second.requests) == many
        assert 3 <= len(first.requests) <= many
        asked = len(first.requests)
        agent.run()
        assert len(first.requests) == asked


@pytest.mark.parametrize("which", [0, 1])
def test_cancelled_call_sends_no_request_to_next_model(which: int) -> None:
    hangs = Fault(delay=AGES)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(Loopback(always(hangs if which == 0 else Fault(status=503)))),
            stack.enter_context(Loopback(always(hangs))),
        ]
        stack.enter_context(waiting_for_nothing())

        async def give_up() -> None:
            task = asyncio.ensure_future(Plain(model=[server.openai(num_retries=0) for server in servers]).acall())
            assert await asyncio.to_thread(comes_true, lambda: servers[which].requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(give_up())
        assert [len(server.requests) for server in servers] == [1, which]


# Requests to each model


def test_each_model_in_list_receives_settings_of_its_model_dict(wire: Wire) -> None:
    pair = Pair(wire, [Fault(status=503)] * 3, [DONE] * 3)
    models = pair.models(temperature=0.1, max_tokens=11)
    wire.run(Plain(model=models, temperature=0.3))
    wire.run(Plain(model=models).using(temperature=0.4, max_tokens=22))
    wire.run(Plain(temperature=0.5).using(model=models))
    sent = [
        [(body["temperature"], body["max_tokens"]) for body in server.bodies()] for server in (pair.first, pair.second)
    ]
    assert sent == [[(0.1, 11), (0.4, 22), (0.1, 11)], [(0.3, 4096), (0.4, 22), (0.5, 4096)]]
    assert models[0]["temperature"] == 0.1


def test_setting_changed_by_hook_is_sent_to_every_model_in_list(wire: Wire) -> None:
    class Part(module):
        """You answer a part."""

        final_output = str

    class Hooked(Plain):
        branches = {"part": Part}

        def on_step(self, step: Step) -> None:
            if step.counter == 1:
                step.temperature = 0.9
            elif step.counter == 2:
                step.model = [{**models[0], "temperature": 0.2}, models[1]]

    first = [call("look"), call("look"), Fault(status=503), Fault(status=503), DONE]
    pair = Pair(wire, first, [call("part"), DONE])
    models = pair.models(temperature=0.1)
    wire.run(Hooked(model=models))
    assert [body["temperature"] for body in pair.first.bodies()] == [0.1, 0.9, 0.2, 0.2, 0.2]
    assert [body["temperature"] for body in pair.second.bodies()] == [0.9, 0.9]


def test_cost_is_computed_with_prices_of_answering_model(wire: Wire) -> None:
    pair = Pair(wire, always(Fault(status=503)), [DONE] * 3)
    models = pair.models()
    alone = wire.run(Plain(model=models[1]))
    assert alone.cost
    for streams in (False, True):
        run = ask(wire, Plain(model=models, max_cost=5), streams)
        assert run.cost == pytest.approx(alone.cost)
        assert run.usage == alone.usage


THINKING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 5000}


def thoughts(body: dict[str, Any]) -> list[str]:
    """Return the signatures of the reasoning in a request."""
    blocks = [block for message in body["messages"] for block in message["content"] or () if isinstance(block, dict)]
    return [block["signature"] for block in blocks if block.get("type") == "thinking"]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_signed_reasoning_is_sent_only_to_model_that_wrote_it(claude: Wire, streams: bool) -> None:
    thinking = Reply(reasoning="Hm.") & call("look")
    first = claude.serve([thinking, Fault(status=529), thinking, Fault(status=529), DONE])
    other = claude.serve([Reply(reasoning="Well.") & call("look"), Fault(status=529)])
    gpt = claude.serve([call("look")])
    models = [
        first.anthropic(num_retries=0, temperature=1, **THINKING),
        other.anthropic(num_retries=0, temperature=1, **THINKING),
        gpt.openai(),
    ]
    run = ask(claude, Plain(model=models, max_steps=9), streams)
    assert [entry.model for entry in answers(run)] == [
        "claude-sonnet-4-5",
        "claude-sonnet-4-5",
        "claude-sonnet-4-5",
        "gpt-4o",
        "claude-sonnet-4-5",
    ]
    one, three = "signature-1", "signature-3"
    assert [thoughts(body) for body in first.bodies()] == [[], [one], [one], [one, three], [one, three]]
    assert [thoughts(body) for body in other.bodies()] == [[], ["signature-1"]]
    assert b"thinking" not in gpt.requests[0].raw
    assert b"signature" not in gpt.requests[0].raw


def test_api_keys_of_model_list_are_absent_from_errors_and_journal(wire: Wire) -> None:
    key, other = "sk-first-0123456789", "another-0123456789"
    pair = Pair(
        wire,
        always(Fault(status=503, message=f"not with {key}")),
        [Fault(status=429, message=f"not with {other}")] * 2 + [DONE],
    )
    models = pair.models(api_key=key)
    models[1]["api_key"] = other
    for _ in range(2):
        error = wire.fails(Plain(model=models))
        told = f"{error} {error.__cause__!r} {error.run.journal.entries}"
        assert "0123456789" not in told
    run = wire.run(Plain(model=models))
    assert "0123456789" not in str(run.journal.entries)
    assert "not with" in answers(run)[0].fallbacks[0].cause
