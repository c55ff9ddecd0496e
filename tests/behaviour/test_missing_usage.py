"""Tests of providers that report no usage: acorn estimates it, marks the record, and applies the limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.clock import FakeClock
from tests.loopback import EVENTS, Fault, Loopback, Request, anthropic_message, openai_completion, openai_stream
from tests.loopback_responses import responses_answer
from tests.telemetry import attributes, set_up

import acorn
from acorn import LimitError, Run, Usage, module, tool
from acorn._base.clock import use_clock
from acorn.models import ModelRequest
from acorn.models.port import ModelResponse, RawCall
from acorn.testing import Reply, call, finish

PRICE: Any = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.001}
TEXT = "All work and no play makes an oak a dull tree. " * 20
"""About 940 characters, thus 200 to 300 tokens."""


@tool(repeatable=True)
def look(at: int = 0) -> str:
    """Look."""
    return TEXT


class Worker(module[Any, str]):
    """Look around, then answer."""

    initial_input: Any = []
    final_output = str
    tools = [look]
    max_steps = 60
    loop_guard: str | None = None


def reply(body: dict[str, Any]) -> Reply:
    """Return an answer if it is forced, otherwise the call of a tool."""
    is_forced = isinstance(body.get("tool_choice"), dict)
    return finish("done") if is_forced else call("look", at=len(body.get("messages", body.get("input", ()))))


def without_usage(request: Request) -> Fault:
    """Answer like a server that reports no usage."""
    body, number = request.body, len(request.raw)
    if request.path.endswith("/responses"):
        made: Any = responses_answer(reply(body), body, number)
        del made["usage"]
    elif body.get("stream"):
        text = openai_stream(reply(body), {**body, "stream_options": {}}, number, 8)
        return Fault(body=text, content_type=EVENTS)
    else:
        made = openai_completion(reply(body), body, number)
        del made["usage"]
    return Fault(body=json.dumps(made).encode())


def changed(usage: Any) -> Callable[[Request], Fault]:
    def answer(request: Request) -> Fault:
        made = openai_completion(reply(request.body), request.body, len(request.raw))
        made["usage"] = usage
        return Fault(body=json.dumps(made).encode())

    return answer


WAYS: dict[str, Callable[[Any], Run[Any]]] = {
    "sync": lambda agent: agent.run(),
    "streamed": lambda agent: [chunk.run for chunk in agent.stream()][-1],
}


def test_token_limit_forces_answer_without_reported_usage() -> None:
    for way, start in WAYS.items():
        with case(way), Loopback(without_usage) as server:
            run = start(Worker(model=server.openai(), max_total_tokens=6000))
            assert run.stop_reason == "limit"
            assert run.output == "done"
            assert 3 < len(server.requests) < 40
            assert run.usage.is_estimated
            assert 2000 < run.usage.total_tokens < 6000 * 1.5


def test_token_limit_forces_answer_without_reported_usage_of_responses_lane() -> None:
    with Loopback(without_usage) as server:
        run = Worker(model=server.responses(), max_total_tokens=6000).run()
        assert run.stop_reason == "limit"
        assert run.usage.is_estimated


def test_cost_limit_forces_answer_without_reported_usage() -> None:
    for way, start in WAYS.items():
        with case(way), Loopback(without_usage) as server:
            run = start(Worker(model=server.openai(**PRICE), max_cost=6.0))
            assert run.stop_reason == "limit"
            assert 3 < len(server.requests) < 40
            assert run.cost is not None
            assert 2.0 < run.cost < 9.0


def test_usage_of_zero_is_estimated() -> None:
    for usage in (None, {}, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}):
        with case(usage), Loopback(changed(usage)) as server:
            run = Worker(model=server.openai(), max_total_tokens=6000).run()
            assert run.stop_reason == "limit"
            assert run.usage.is_estimated


def test_number_that_is_missing_in_usage_is_estimated() -> None:
    for usage in ({"completion_tokens": 1}, {"prompt_tokens": 0, "completion_tokens": 1}, {"prompt_tokens": -1}):
        with case(usage), Loopback(changed(usage)) as server:
            run = Worker(model=server.openai(**PRICE), max_total_tokens=6000).run()
            assert run.stop_reason == "limit"
            assert run.usage.is_estimated
            assert run.usage.input_tokens > 2000
            assert run.usage.output_tokens >= len(server.requests)
            assert run.cost == pytest.approx(run.usage.total_tokens * 0.001)


def test_limit_smaller_than_first_answer_raises_limit_error() -> None:
    with Loopback(without_usage) as server:
        with pytest.raises(LimitError, match="max_total_tokens") as caught:
            Worker(model=server.openai(), max_total_tokens=20).run()
        assert len(server.requests) <= 2
        run: Any = caught.value.run
        assert run.usage.is_estimated


def test_reported_usage_is_not_estimated() -> None:
    with Loopback(lambda request: reply(request.body)) as server:
        run = Worker(model=server.openai(), max_steps=3).run()
        assert not run.usage.is_estimated
        assert run.usage.input_tokens == 100 * len(server.requests)


def test_record_is_marked_without_limits_too() -> None:
    with Loopback(without_usage) as server:
        run = Worker(model=server.openai(), max_steps=3).run()
        assert run.usage.is_estimated
        assert run.usage.input_tokens > 300
        assert run.usage.output_tokens > 0
        assert run.usage.requests == 4


def test_one_response_without_usage_marks_the_sum() -> None:
    numbers = iter(range(10))

    def answer(request: Request) -> Any:
        return without_usage(request) if next(numbers) == 1 else reply(request.body)

    with Loopback(answer) as server:
        run = Worker(model=server.openai(), max_steps=3).run()
        assert run.usage.is_estimated
        assert run.usage.input_tokens > 300


def test_sum_of_usages_is_estimated_if_one_is() -> None:
    estimated: Any = Usage(10, 5)
    estimated.is_estimated = True
    assert (Usage(1, 1) + estimated).is_estimated
    assert (estimated + Usage(1, 1)).is_estimated
    assert not (Usage(1, 1) + Usage(1, 1)).is_estimated


def test_mark_is_in_saved_record_and_store(tmp_path: Path) -> None:
    with Loopback(without_usage) as server:
        run = Worker(model=server.openai(), max_steps=3, store=tmp_path / "runs.db").run()
    assert Run.from_json(run.to_json(), Worker).usage.is_estimated
    assert acorn.runs(tmp_path / "runs.db").get(run.id).usage.is_estimated


def test_usage_of_branches_without_report_counts_against_limit() -> None:
    class Inner(Worker):
        """Look inside."""

    class Outer(module[Any, str]):
        """Delegate."""

        initial_input: Any = []
        final_output = str
        branches = {"inner": Inner}
        max_total_tokens = 8000
        max_steps = 5

    def answer(request: Request) -> Fault:
        is_inside = "Look inside." in str(request.body["messages"][0]["content"])
        is_forced = isinstance(request.body.get("tool_choice"), dict)
        is_new = len(request.body["messages"]) < 4
        made = openai_completion(
            finish("done") if is_forced or not (is_inside or is_new) else call("look" if is_inside else "inner"),
            request.body,
            len(request.raw),
        )
        del made["usage"]
        return Fault(body=json.dumps(made).encode())

    with Loopback(answer) as server:
        run = Outer(model=server.openai()).run()
        assert run.branches[0].stop_reason == "limit"
        assert run.usage.is_estimated
        assert run.usage.total_tokens < 12_000


class SilentModel:
    """A model of a user that reports no usage."""

    name = "silent"

    def __init__(self) -> None:
        self.count = 0

    def can_force_tool(self, request: ModelRequest) -> bool:
        return True

    def price(self) -> None:
        return None

    def complete(self, request: ModelRequest) -> ModelResponse:
        self.count += 1
        name, text = ("__finish__", '{"result": "done"}') if request.forced_tool else ("look", "{}")
        return ModelResponse("", [RawCall(f"call_{self.count}", name, text)], "tool_calls")

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return self.complete(request)


def test_token_limit_forces_answer_of_model_object_without_usage() -> None:
    model = SilentModel()
    run = Worker(model=model, max_total_tokens=6000).run()
    assert run.stop_reason == "limit"
    assert run.usage.is_estimated
    assert 3 < model.count < 40


def uncounted(request: Request) -> Reply:
    """Answer like a server that reports a usage of 0."""
    said = reply(request.body)
    return Reply(said.content, said.calls, usage=Usage())


def test_token_limit_forces_answer_without_usage_on_every_lane() -> None:
    with Loopback(uncounted) as server:
        lanes = {
            "openai": server.openai(),
            "responses": server.responses(),
            "anthropic": server.anthropic(),
            "openai by LiteLLM": server.openai(lane="litellm"),
            "anthropic by LiteLLM": server.anthropic(lane="litellm"),
        }
        for lane, model in lanes.items():
            for way, start in WAYS.items():
                with case(lane, way):
                    run = start(Worker(model=model, max_total_tokens=6000))
                    assert (run.stop_reason, run.output) == ("limit", "done")
                    # LiteLLM counts the tokens itself in some of its streams.
                    assert run.usage.is_estimated or "LiteLLM" in lane
                    assert 1500 < run.usage.total_tokens < 6000 * 1.5


def test_anthropic_response_without_usage_is_estimated() -> None:
    def answer(request: Request) -> Fault:
        made = anthropic_message(reply(request.body), request.body, len(request.raw))
        del made["usage"]
        return Fault(body=json.dumps(made).encode())

    with Loopback(answer) as server:
        run = Worker(model=server.anthropic(), max_total_tokens=6000).run()
    assert run.stop_reason == "limit"
    assert run.usage.is_estimated


def test_cost_of_litellm_without_usage_is_estimated() -> None:
    with Loopback(uncounted) as server:
        run = Worker(model=server.openai(lane="litellm"), max_steps=3).run()
    assert run.cost
    assert run.usage.is_estimated


def test_span_of_response_without_usage_reports_an_estimate() -> None:
    with set_up() as spans, Loopback(uncounted) as server:
        Worker(model=server.openai(), max_steps=1).run()
        flags = [attributes(span).get("acorn.usage.is_estimated") for span in spans.like("chat ")]
    assert flags == [True, True]


def test_rate_limit_counts_its_estimate_of_response_without_usage() -> None:
    class Limited(Worker):
        """Look around, then answer."""

        rate_limit = {"tokens": 3000, "per": 60}

    clock = FakeClock()
    with use_clock(clock), Loopback(uncounted) as server:
        Limited(model=server.openai(), max_steps=4).run()
    assert sum(clock.waits) > 30
