"""Tests of `model = [first, second, ...]`: fallback to the next model, circuits, costs, and reports."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest
from pydantic import BaseModel
from tests.behaviour.conftest import Call, Script
from tests.cases import each_case
from tests.raw_model import RawModel, calling, finishing
from tests.waiting import PATIENCE, comes_true

from acorn import Audio, DeclarationError, ModelError, Run, Step, StreamChunk, ToolResult, Usage, module, tool
from acorn._call.plan import new_machine
from acorn._history.transcript import finish_call
from acorn._machine.asks import AskHook
from acorn._machine.saved_run import load, save
from acorn.journal import Fallback, ModelRequested, ModelResponded
from acorn.models import Delta, Model, ModelRequest, ModelResponse, Price
from acorn.models.fallback import (
    FAILURES,
    OPEN_SECONDS,
    CircuitRegistry,
    FallbackChain,
    FallbackLink,
    reasoning_reader,
)
from acorn.models.port import can_stream, is_model
from acorn.testing import Failure, Reply, ScriptedModel, finish
from acorn.testing import call as call_of


class Answer(BaseModel):
    text: str


@tool
def look() -> str:
    """Look around."""
    return "seen"


class Asker(module[Any, Answer]):
    """Answer."""

    tools = [look]
    max_steps = 5


DONE = finish(text="done")
BUSY = Failure(503)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def answered(run: Run[Any]) -> list[ModelResponded]:
    return [entry for entry in run.journal.entries if isinstance(entry, ModelResponded)]


def asked(run: Run[Any]) -> list[str]:
    return [entry.model for entry in run.journal.entries if isinstance(entry, ModelRequested)]


# Fallback


CLAUDE = {"model": "anthropic/claude-sonnet-4-5", "api_key": "none", "base_url": "http://127.0.0.1:9"}
SONG = Audio.from_bytes(b"RIFF1234", "audio/wav")


class Heard(BaseModel):
    song: Audio


class Listener(module[Heard, Answer]):
    """Listen."""

    max_steps = 2


def test_model_without_support_for_media_is_skipped(call: Call, script: Script) -> None:
    run = call.run(Listener(model=[CLAUDE, script(DONE, name="b")]), song=SONG)
    assert run.output == Answer(text="done")
    (fallback,) = answered(run)[0].fallbacks
    assert (fallback.failed, fallback.to) == ("anthropic/claude-sonnet-4-5", "b")
    assert "The model does not support audio, but the request contains audio in `song`" in fallback.cause


def test_media_that_no_model_supports_raises_error_with_all_models(call: Call) -> None:
    other = {**CLAUDE, "model": "anthropic/claude-haiku-4-5"}
    with pytest.raises(
        ModelError, match=r"claude-haiku-4-5.*does not support audio.*claude-sonnet-4-5.*does not support audio"
    ) as no:
        call(Listener(model=[CLAUDE, other]), song=SONG)
    assert not no.value.retryable


def test_hosted_tool_that_listed_models_do_not_support_raises_declaration_error(call: Call) -> None:
    class Searcher(module[str, str]):
        """Search."""

        tools = [{"type": "web_search_20250305", "name": "web_search"}]
        model = [CLAUDE, {"model": "openai/gpt-4o", "api_key": "none"}, {"model": "openai/gpt-5", "api_key": "none"}]
        max_steps = 2

    with pytest.raises(
        DeclarationError, match=r"`openai/gpt-4o` and `openai/gpt-5` cannot run the hosted tool `web_search`"
    ):
        call(Searcher(), "x")


@pytest.mark.every_way
@each_case("status", [None, 408, 409, 429, 500, 503, 529])
def test_retryable_failure_is_retried_with_next_model(call: Call, script: Script, status: int | None) -> None:
    first, second = script(Failure(status), name="first"), script(DONE, name="second")
    run = call.run(Asker(model=[first, second]))
    assert run.output == Answer(text="done")
    assert run.model == "second"
    entry = answered(run)[0]
    assert entry.model == "second"
    (fallback,) = entry.fallbacks
    assert (fallback.failed, fallback.to) == ("first", "second")
    assert "`first` failed" in fallback.cause
    assert asked(run) == ["first"]


@pytest.mark.every_way
@each_case("status", [400, 401, 403, 404, 413, 422])
def test_permanent_failure_is_not_retried_with_next_model(call: Call, script: Script, status: int) -> None:
    first, second = script(Failure(status), name="first"), script(name="second")
    with pytest.raises(ModelError) as caught:
        call(Asker(model=[first, second]))
    assert (caught.value.status, caught.value.retryable) == (status, False)
    assert "second" not in str(caught.value)


@pytest.mark.every_way
def test_other_exception_is_not_retried_with_next_model(call: Call, script: Script) -> None:
    first, second = script(KeyError("a bug"), name="first"), script(name="second")
    with pytest.raises(KeyError, match="a bug"):
        call(Asker(model=[first, second]))


def test_each_request_is_sent_to_first_model_of_list_first(call: Call, script: Script) -> None:
    first = script(BUSY, call_of("look"), BUSY, DONE, name="first")
    second = script(call_of("look"), call_of("look"), name="second")
    run = call.run(Asker(model=[first, second]))
    assert [entry.model for entry in answered(run)] == ["second", "first", "second", "first"]
    assert [len(entry.fallbacks) for entry in answered(run)] == [1, 0, 1, 0]
    assert run.model == "first"


def test_request_that_fails_is_sent_to_each_listed_model_in_order(call: Call, script: Script) -> None:
    models = [script(BUSY, name="a"), script(Failure(429), name="b"), script(Failure(), name="c")]
    run = call.run(Asker(model=[*models, script(DONE, name="d")]))
    told = [(each.failed, each.to) for each in answered(run)[0].fallbacks]
    assert told == [("a", "b"), ("b", "c"), ("c", "d")]
    assert run.model == "d"


def test_models_of_equal_name_in_list_are_reported_with_list_index(call: Call, script: Script) -> None:
    run = call.run(Asker(model=[script(BUSY, name="a"), script(BUSY, name="b"), script(DONE, name="a")]))
    told = [(each.failed, each.to) for each in answered(run)[0].fallbacks]
    assert told == [("a (model[0])", "b"), ("b", "a (model[2])")]
    assert asked(run) == ["a (model[0])"]
    assert run.model == "a"


def test_list_of_one_model_returns_output_and_raises_error_of_that_model(call: Call, script: Script) -> None:
    assert call.run(Asker(model=[script(DONE, name="only")])).model == "only"
    with pytest.raises(ModelError, match=r"^`only` failed \(HTTP 503\): scripted failure$"):
        call(Asker(model=[script(BUSY, name="only")]))


@pytest.mark.every_way
def test_failure_of_all_models_raises_error_with_each_reason(call: Call, script: Script) -> None:
    models = [
        script(Failure(503, "no room"), name="a"),
        script(Failure(429, "slowly"), name="b"),
        script(Failure(500, "a fire"), name="c"),
    ]
    with pytest.raises(ModelError) as caught:
        call(Asker(model=models))
    error = caught.value
    assert (error.status, error.retryable, error.provider) == (500, True, "scripted")
    assert str(error).startswith("`c` failed (HTTP 500): a fire")
    assert "`a` failed (HTTP 503): no room" in str(error)
    assert "`b` failed (HTTP 429): slowly" in str(error)
    cause = error.__cause__
    assert isinstance(cause, ExceptionGroup)
    assert [getattr(each, "status", None) for each in cause.exceptions] == [503, 429, 500]


def test_permanent_failure_of_later_model_is_reported_with_earlier_failure(call: Call, script: Script) -> None:
    models = [script(BUSY, name="a"), script(Failure(401, "no such key"), name="b"), script(name="c")]
    with pytest.raises(ModelError, match=r"`b` failed .HTTP 401.: no such key.*`a` failed") as caught:
        call(Asker(model=models))
    assert (caught.value.status, caught.value.retryable) == (401, False)


@pytest.mark.every_way
def test_retryable_failure_of_all_models_is_recorded_as_interruption_and_permanent_failure_as_end(
    call: Call, script: Script
) -> None:
    with pytest.raises(ModelError) as caught:
        call(Asker(model=[script(Failure(401), name="a")]))
    assert caught.value.run.journal.entries[-1]._fields[0] == "run_id"
    assert type(caught.value.run.journal.entries[-1]).__name__ == "RunFailed"
    with pytest.raises(ModelError) as caught:
        call(Asker(model=[script(BUSY, name="a"), script(BUSY, name="b")]))
    assert type(caught.value.run.journal.entries[-1]).__name__ == "RunInterrupted"


# Places for a list


def test_model_list_is_accepted_in_class_instance_using_and_override(call: Call, script: Script) -> None:
    def pair() -> list[Any]:
        return [script(BUSY, name="first"), script(DONE, name="second")]

    class Declared(Asker):
        model = pair()

    assert call.run(Declared()).model == "second"
    assert call.run(Asker(model=pair())).model == "second"
    assert call.run(Asker(model=tuple(pair()))).model == "second"
    assert call.run(Asker().using(model=pair())).model == "second"
    with Asker.override(model=pair()):
        assert call.run(Asker(model=script(name="unasked"))).model == "second"


@pytest.mark.every_way
@pytest.mark.live_objects
def test_model_list_set_by_hook_is_used(call: Call, script: Script) -> None:
    third = [script(BUSY, name="b"), script(DONE, name="c")]

    class Hooked(Asker):
        def on_step(self, step: Step) -> None:
            step.model = third

    run = call.run(Hooked(model=script(call_of("look"), name="a")))
    assert [entry.model for entry in answered(run)] == ["a", "c"]


@pytest.mark.live_objects
def test_model_list_edited_by_hook_affects_only_current_run(call: Call, script: Script) -> None:
    a, b, c = script(call_of("look"), BUSY, name="a"), script(BUSY, name="b"), script(DONE, name="c")
    declared = [a, b]

    class Hooked(Asker):
        model = declared

        def on_step(self, step: Step) -> None:
            step.model.append(c)

    run = call.run(Hooked())
    assert run.model == "c"
    assert declared == [a, b]


@each_case("kind", [list, tuple])
def test_model_list_read_in_hook_contains_declared_models_in_order(call: Call, script: Script, kind: Any) -> None:
    class Looking(Asker):
        def on_step(self, step: Step) -> None:
            assert [model.name for model in step.model] == ["a", "b"]

    first, second = script(call_of("look"), BUSY, name="a"), script(DONE, name="b")
    assert call.run(Looking(model=kind([first, second]))).model == "b"


def test_setting_assigned_by_hook_applies_to_declared_model_but_not_to_model_dict_added_by_hook() -> None:
    class Hooked(Asker):
        def on_start(self, step: Step) -> None:
            step.model.append({"model": "openai/gpt-4o-mini", "temperature": 0.2})
            step.temperature = 0.9
            assert step.model[0]["temperature"] == 0.1

    model = [{"model": "openai/gpt-4o", "temperature": 0.1, "api_key": "k", "api_base": "http://127.0.0.1:9/v1"}]
    agent = Hooked(model=model)
    loop = new_machine(agent, (), {})
    loop.start(0.0)
    (hook,) = loop.asks(0.0)
    assert isinstance(hook, AskHook)
    loop.tell(hook.id, hook.function(*hook.arguments), 0.0)
    assert [each.get("temperature") for each in loop.builder.model_setting] == [None, 0.2]
    assert (loop.builder.temperature, model[0]["temperature"]) == (0.9, 0.1)


@pytest.mark.every_way
def test_branch_inherits_model_list_of_current_step(call: Call, script: Script) -> None:
    class Part(module[Any, Answer]):
        """Answer a part."""

    class Whole(Asker):
        branches = {"part": Part}

    first = script(BUSY, BUSY, DONE, name="first")
    second = script(call_of("part"), finish(text="part"), name="second")
    run = call.run(Whole(model=[first, second]))
    assert run.branches[0].model == "second"
    assert answered(run.branches[0])[0].fallbacks[0].failed == "first"
    assert run.model == "first"


# Rejected lists


@each_case(
    ("model", "words"),
    [
        ([], r"`Asker\.model` must be .*, got a list of nothing\."),
        ((), r"`Asker\.model` must be .*, got a tuple of nothing\."),
        ([["openai/gpt-4o"]], r"`Asker\.model\[0\]` must be .*, got a list of "),
        (["openai/gpt-4o", None], r"`Asker\.model\[1\]` must be .*, got None\."),
        (["openai/gpt-4o", 5], r"`Asker\.model\[1\]` must be .*, got 5\."),
        (["openai/gpt-4o", " "], r"`Asker\.model\[1\]` must be .*"),
        (["openai/gpt-4o", {"api_key": "sk-123"}], r"`Asker\.model\[1\]` must be .*, got a dict with the keys api_key"),
        (
            ["openai/gpt-4o", ScriptedModel],
            r"`Asker\.model\[1\]` must be .*class `ScriptedModel` instead of an instance",
        ),
        (
            ["openai/gpt-4o", {"model": "x/y", "temperature": 5}],
            r"`Asker\.model\[1\]\['temperature'\]` must be a number",
        ),
        (["openai/gpt-4o", "x/y", "openai/gpt-4o"], r"`Asker\.model\[2\]` is the same as `Asker\.model\[0\]`.*num_ret"),
        (
            [{"model": "x/y", "max_tokens": 5, "max_completion_tokens": 6}],
            r"`Asker\.model\[0\]\['max_tokens'\]` and `Asker\.model\[0\]\['max_completion_tokens'\]` set the same",
        ),
    ],
)
def test_invalid_model_list_raises_declaration_error_with_index(model: Any, words: str) -> None:
    for make in (
        lambda: Asker(model=model).run(),
        lambda: Asker().using(model=model).run(),
        lambda: type("Asker", (Asker,), {"model": model}),
    ):
        with pytest.raises(DeclarationError, match=f"(?s)^{words}") as caught:
            make()
        assert "sk-123" not in str(caught.value)


def test_invalid_model_list_set_by_hook_raises_declaration_error_with_index(call: Call, script: Script) -> None:
    class Hooked(Asker):
        def on_step(self, step: Step) -> None:
            step.model = []

    with pytest.raises(DeclarationError, match=r"`Hooked\.model` must be .* got a list of nothing"):
        call(Hooked(model=script(call_of("look"))))


def test_unusable_model_in_list_raises_declaration_error_before_first_request(call: Call, script: Script) -> None:
    with pytest.raises(DeclarationError, match=r"`Asker\.model` cannot be used: the value of `lane` must be"):
        call(Asker(model=[script(name="unasked"), {"model": "openai/gpt-4o", "lane": "fast"}]))


def test_agent_repr_contains_models_without_secrets() -> None:
    agent = Asker(model=["openai/gpt-4o", {"model": "anthropic/claude-x", "api_key": "sk-123"}, ScriptedModel("")])
    assert repr(agent) == "<Asker model=['openai/gpt-4o', 'anthropic/claude-x', ScriptedModel]>"


# Streams


def streamed(agent: module[Any, Any], way: str) -> list[StreamChunk[Any]]:
    async def main() -> list[StreamChunk[Any]]:
        return [chunk async for chunk in agent.astream()]

    return asyncio.run(main()) if way == "async" else list(agent.stream())


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_stream_broken_before_first_delta_is_retried_with_next_model(way: str) -> None:
    first, second = ScriptedModel(BUSY, name="first"), ScriptedModel(Reply("Hm.") & DONE, name="second")
    last = streamed(Asker(model=[first, second]), way)[-1]
    assert last.run is not None
    assert (last.result, last.run.model) == (Answer(text="done"), "second")
    assert answered(last.run)[0].fallbacks[0].failed == "first"


def test_stream_broken_after_first_delta_is_not_retried_with_next_model(way: str) -> None:
    first, second = ScriptedModel(Failure(503, after=Reply("Let")), name="first"), ScriptedModel([], name="second")
    with pytest.raises(ModelError, match=r"^`first` failed \(HTTP 503\): scripted failure$") as caught:
        streamed(Asker(model=[first, second]), way)
    assert caught.value.retryable
    assert second.requests == []


def test_model_without_streaming_answers_stream_if_first_model_fails(way: str) -> None:
    first, second = ScriptedModel(BUSY, name="first"), RawModel([finishing(text="done")])
    last = streamed(Asker(model=[first, second]), way)[-1]
    assert last.run is not None
    assert (last.result, last.run.model) == (Answer(text="done"), "raw")


def test_leaving_stream_early_closes_stream_of_model(way: str) -> None:
    closed: list[str] = []

    class Watched(ScriptedModel):
        def stream(self, request: ModelRequest) -> Iterator[Delta]:
            try:
                yield from super().stream(request)
            finally:
                closed.append(self.name)

        async def astream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            try:
                async for delta in super().astream(request):
                    yield delta
            finally:
                closed.append(self.name)

    async def leave() -> None:
        deltas: Any = chain.astream(request_of())
        await anext(deltas)
        await deltas.aclose()

    chain = chain_of([Watched(BUSY, name="first"), Watched("Let me see.", name="second")], CircuitRegistry())
    if way == "async":
        asyncio.run(leave())
    else:
        deltas: Any = chain.stream(request_of())
        next(deltas)
        assert closed == ["first"]
        deltas.close()
    assert closed == ["first", "second"]


# Circuits


def chain_of(models: Sequence[Model], circuits: CircuitRegistry) -> FallbackChain:
    """Return a chain of model objects with the circuit breakers of a registry."""
    return FallbackChain([FallbackLink(model, circuits.of(model), reasoning_reader(model)) for model in models])


def request_of(**fields: Any) -> ModelRequest:
    return ModelRequest([{"role": "user", "content": "Where?"}], [], temperature=0.7, max_tokens=100, **fields)


class Switch(ScriptedModel):
    """A model that is up or down and counts its requests."""

    def __init__(self, name: str, *, is_up: bool = True) -> None:
        super().__init__(self._reply, name=name)
        self.is_up = is_up

    def _reply(self, request: ModelRequest) -> Any:
        return DONE if self.is_up else BUSY


Ask = Callable[[FallbackChain], ModelResponse]


def whole(chain: FallbackChain) -> ModelResponse:
    return chain.complete(request_of())


def awhole(chain: FallbackChain) -> ModelResponse:
    return asyncio.run(chain.acomplete(request_of()))


def pieces(chain: FallbackChain) -> ModelResponse:
    found = list(chain.stream(request_of()))
    return ModelResponse(model=next(delta.model for delta in reversed(found) if delta.model))


def apieces(chain: FallbackChain) -> ModelResponse:
    async def main() -> list[Delta]:
        return [delta async for delta in chain.astream(request_of())]

    found = asyncio.run(main())
    return ModelResponse(model=next(delta.model for delta in reversed(found) if delta.model))


@pytest.fixture(params=[whole, awhole, pieces, apieces], ids=["complete", "acomplete", "stream", "astream"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


def test_failing_model_is_skipped_after_three_failures_and_tried_again_after_thirty_seconds(ask: Ask) -> None:
    clock, a, b = Clock(), Switch("a", is_up=False), Switch("b")
    chain = chain_of([a, b], CircuitRegistry(clock))
    for count in range(1, FAILURES + 1):
        assert ask(chain).model == "b"
        assert len(a.requests) == count
    for _ in range(5):
        assert ask(chain).model == "b"
    assert len(a.requests) == FAILURES == 3

    clock.now += OPEN_SECONDS - 0.001
    ask(chain)
    assert len(a.requests) == 3

    clock.now += 0.001
    assert OPEN_SECONDS == 30
    ask(chain)  # One request tries it, and it is still down.
    assert len(a.requests) == 4
    ask(chain)
    assert len(a.requests) == 4

    clock.now += OPEN_SECONDS
    a.is_up = True
    assert ask(chain).model == "a"
    assert ask(chain).model == "a"
    assert len(a.requests) == 6

    a.is_up = False  # Closed again, so three failures are needed.
    for count in range(7, 10):
        assert ask(chain).model == "b"
        assert len(a.requests) == count
    ask(chain)
    assert len(a.requests) == 9


def test_success_between_failures_resets_failure_count_of_circuit(ask: Ask) -> None:
    a, b = Switch("a"), Switch("b")
    chain = chain_of([a, b], CircuitRegistry(Clock()))
    for is_up in (False, False, True, False, False, True, False, False):
        a.is_up = is_up
        assert ask(chain).model == ("a" if is_up else "b")
    assert len(a.requests) == 8


@each_case("status", [400, 401])
def test_permanent_failure_does_not_open_circuit(ask: Ask, status: int) -> None:
    a, b = ScriptedModel([Failure(status)] * 5, name="a"), Switch("b")
    chain = chain_of([a, b], CircuitRegistry(Clock()))
    for _ in range(5):
        with pytest.raises(ModelError):
            ask(chain)
    assert len(a.requests) == 5


def test_request_with_all_circuits_open_is_sent_to_first_model(ask: Ask) -> None:
    clock, a, b = Clock(), Switch("a", is_up=False), Switch("b", is_up=False)
    chain = chain_of([a, b], CircuitRegistry(clock))
    for _ in range(3):
        with pytest.raises(ModelError, match=r"^`b` failed.*`a` failed"):
            ask(chain)
    with pytest.raises(ModelError, match=r"^`a` failed.*`b` was skipped: its circuit is open"):
        ask(chain)
    assert (len(a.requests), len(b.requests)) == (4, 3)
    a.is_up = True
    assert ask(chain).model == "a"
    a.is_up = False
    with pytest.raises(ModelError, match=r"^`a` failed"):  # Its circuit is closed again.
        ask(chain)
    assert (len(a.requests), len(b.requests)) == (6, 3)


def test_model_skipped_for_open_circuit_is_reported() -> None:
    a, b = Switch("a", is_up=False), Switch("b")
    chain = chain_of([a, b], CircuitRegistry(Clock()))
    runs = [Asker(model=chain).run() for _ in range(4)]
    (fallback,) = answered(runs[-1])[0].fallbacks
    assert fallback == Fallback("a", "b", "its circuit is open")
    assert [asked(run) for run in runs] == [["a"], ["a"], ["a"], ["b"]]


def test_stream_broken_after_first_delta_counts_as_failure_of_model(way: str) -> None:
    a, b = ScriptedModel([Failure(503, after=Reply("Let"))] * 3, name="a"), Switch("b")
    chain = chain_of([a, b], CircuitRegistry(Clock()))
    asking = apieces if way == "async" else pieces
    for _ in range(3):
        with pytest.raises(ModelError):
            asking(chain)
    assert asking(chain).model == "b"


def test_open_circuit_admits_one_trial_request_at_a_time() -> None:
    """Send concurrent requests: one is let through, and the others use another model until it ends."""
    clock, b = Clock(), Switch("b")
    under_way, go = threading.Event(), threading.Event()
    is_down = True

    def reply(request: ModelRequest) -> Any:
        if is_down:
            return BUSY
        under_way.set()
        assert go.wait(PATIENCE)
        return DONE

    a = ScriptedModel(reply, name="a")
    chain = chain_of([a, b], CircuitRegistry(clock))
    for _ in range(3):
        whole(chain)
    is_down = False
    clock.now += OPEN_SECONDS
    answers: list[str] = []
    probing = threading.Thread(target=lambda: answers.append(whole(chain).model))
    probing.start()
    assert under_way.wait(PATIENCE)

    crowd = [threading.Thread(target=lambda: answers.append(whole(chain).model)) for _ in range(16)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join(PATIENCE)
    assert answers == ["b"] * 16
    assert len(a.requests) == 4
    go.set()
    probing.join(PATIENCE)
    assert answers[-1] == "a"
    assert whole(chain).model == "a"


def test_late_result_of_earlier_request_does_not_change_closed_circuit() -> None:
    clock = Clock()
    circuit = CircuitRegistry(clock).of("openai/gpt-4o")

    class Sender:
        """The sender of one request."""

        def __init__(self) -> None:
            self.is_admitted = circuit.admit(self)

    Sender()
    for _ in range(FAILURES):
        circuit.report_failure(Sender(), "m")
    assert not Sender().is_admitted
    clock.now += OPEN_SECONDS
    first = Sender()
    assert first.is_admitted
    assert not Sender().is_admitted
    circuit.report_success("m")
    for _ in range(FAILURES):
        circuit.report_failure(Sender(), "m")
    clock.now += OPEN_SECONDS
    second = Sender()
    assert not circuit.allows_request
    circuit.report_failure(first, "m")
    circuit.release(first)
    assert not circuit.allows_request
    circuit.report_rejection(second)
    assert circuit.allows_request
    interrupted = Sender()
    assert not circuit.allows_request
    del interrupted
    assert circuit.allows_request


def test_concurrent_failures_open_circuit_once() -> None:
    a, b = Switch("a", is_up=False), Switch("b")
    clock = Clock()
    chain = chain_of([a, b], CircuitRegistry(clock))
    crowd = [threading.Thread(target=whole, args=(chain,)) for _ in range(32)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join(PATIENCE)
    seen = len(a.requests)
    assert 3 <= seen <= 32
    assert whole(chain).model == "b"
    assert len(a.requests) == seen
    clock.now += OPEN_SECONDS
    a.is_up = True
    assert whole(chain).model == "a"


def test_circuit_breaker_state_is_shared_by_agents_with_same_model_object() -> None:
    a, b = Switch("a", is_up=False), Switch("b")
    for _ in range(3):
        Asker(model=[a, b]).run()

    class Another(module[Any, Answer]):
        """Answer too."""

        model = [a, b]

    assert asked(Another().run()) == ["b"]
    assert len(a.requests) == 3
    same_name = Switch("a")
    assert Another(model=[same_name, b]).run().model == "a"


def test_circuit_breaker_state_is_freed_with_model_object() -> None:
    circuits = CircuitRegistry()
    one = ScriptedModel("")
    freed = ref(circuits.of(one))
    assert circuits.of(one) is freed()
    del one
    assert comes_true(lambda: freed() is None)


@each_case(
    ("one", "other", "is_same"),
    [
        ("openai/gpt-4o", "openai/gpt-4o", True),
        ("openai/gpt-4o", {"model": "openai/gpt-4o"}, True),
        ({"id": "openai/gpt-4o"}, {"model": "openai/gpt-4o", "temperature": 1, "api_key": "x"}, True),
        ("openai/gpt-4o", "openai/gpt-4o-mini", False),
        ("openai/gpt-4o", {"model": "openai/gpt-4o", "base_url": "http://here/v1"}, False),
        (
            {"model": "openai/gpt-4o", "api_base": "http://here/v1/"},
            {"model": "openai/gpt-4o", "base_url": "http://here/v1"},
            True,
        ),
        (
            {"model": "openai/gpt-4o", "base_url": "http://there/v1"},
            {"model": "openai/gpt-4o", "base_url": "http://here/v1"},
            False,
        ),
    ],
)
def test_circuit_breaker_state_is_separate_for_each_model_name_and_endpoint(
    one: Any, other: Any, is_same: bool
) -> None:
    circuits = CircuitRegistry()
    assert (circuits.of(one) is circuits.of(other)) == is_same


# Cancellation


@each_case("streams", [False, True])
def test_cancelled_trial_request_does_not_open_or_close_circuit(streams: bool) -> None:
    clock, b = Clock(), Switch("b")
    is_down = True
    tried = threading.Event()

    def reply(request: ModelRequest) -> Any:
        tried.set()
        return BUSY if is_down else replace(DONE, delay=4 * PATIENCE)

    a = ScriptedModel(reply, name="a")
    chain = chain_of([a, b], CircuitRegistry(clock))
    for _ in range(3):
        whole(chain)
    clock.now += OPEN_SECONDS
    is_down = False

    async def give_up() -> None:
        tried.clear()
        agent = Asker(model=chain)
        task = asyncio.ensure_future(_drained(agent) if streams else agent.acall())
        assert await asyncio.to_thread(tried.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for count in (4, 5):  # It was let through as a trial and is free for the next one.
        asyncio.run(give_up())
        assert len(a.requests) == count
    assert b.requests[3:] == []


async def _drained(agent: module[Any, Any]) -> None:
    async for _ in agent.astream():
        pass


def test_cancelled_call_is_not_retried_with_next_model() -> None:
    a, b = ScriptedModel(replace(DONE, delay=4 * PATIENCE), name="a"), Switch("b")

    async def give_up() -> None:
        task = asyncio.ensure_future(Asker(model=[a, b]).acall())
        while not a.requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert b.requests == []


@pytest.mark.every_way
def test_timeout_of_run_is_not_retried_with_next_model(call: Call, script: Script) -> None:
    """A model that answers late because the run has no time left has not failed."""
    a, b = ScriptedModel(replace(DONE, delay=4 * PATIENCE), name="a"), ScriptedModel([], name="b")
    with pytest.raises(Exception, match="max_seconds"):
        call(Asker(model=[a, b], max_seconds=0.05))


def test_next_model_receives_remaining_time_as_timeout(call: Call, script: Script) -> None:
    first, second = script(BUSY, name="first"), script(DONE, name="second")
    call(Asker(model=[first, second], max_seconds=1000))
    before, after = first.requests[0].timeout, second.requests[0].timeout
    assert before is not None
    assert after is not None
    assert after <= before


# Capabilities


def test_request_to_fallback_model_that_cannot_be_forced_has_no_forced_tool(call: Call, script: Script) -> None:
    class Single(module[Any, Answer]):
        """Answer."""

    first = script(BUSY, BUSY, name="first")
    second = script("Well.", "<output><text>done</text></output>", name="second", forces=False)
    assert call(Single(model=[first, second])) == Answer(text="done")
    assert [request.forced_tool for request in first.requests] == ["__finish__", None]
    assert [request.forced_tool for request in second.requests] == [None, None]


def test_finish_is_not_forced_if_first_model_is_thinking_model(call: Call, script: Script) -> None:
    class Single(module[Any, Answer]):
        """Answer."""

    class Thinking(ScriptedModel):
        thinks = True

    first, second = Thinking(DONE, name="first"), script(name="second")
    call(Single(model=[first, second]))
    assert first.requests[0].forced_tool is None


@pytest.mark.every_way
def test_cost_is_computed_with_price_of_answering_model(call: Call, script: Script) -> None:
    reply = replace(DONE, usage=Usage(1000, 100, requests=1))
    for price, cost in ((Price(0.01, 0.1), 20.0), (None, None)):
        first = script(BUSY, name="first", price=Price(1.0, 1.0))
        second = script(reply, name="second", price=price)
        run = call.run(Asker(model=[first, second]))
        assert (run.cost, answered(run)[0].cost) == (cost, cost)
        assert run.usage.input_tokens == 1000


def test_stream_cost_is_computed_with_price_of_answering_model(way: str) -> None:
    reply = replace(DONE, usage=Usage(1000, 100, requests=1))
    first = ScriptedModel(BUSY, name="first", price=Price(1.0, 1.0))
    second = ScriptedModel(reply, name="second", price=Price(0.01, 0.1))
    run = streamed(Asker(model=[first, second]), way)[-1].run
    assert run is not None
    assert run.cost == 20.0


def test_max_cost_with_model_list_that_contains_model_without_price_raises_declaration_error(
    call: Call, script: Script
) -> None:
    first, second = script(name="first", price=Price(1.0, 1.0)), script(name="second")
    with pytest.raises(
        DeclarationError, match=r"`Asker\.max_cost` cannot be enforced: the prices of `second` are unknown"
    ):
        call(Asker(model=[first, second], max_cost=5))


def test_max_cost_counts_cost_of_fallback_model(call: Call, script: Script) -> None:
    dear = replace(call_of("look"), usage=Usage(100, 0, requests=1))
    first = script(BUSY, finish(text="done"), name="first", price=Price(0.001, 0.001))
    second = script(dear, name="second", price=Price(1.0, 1.0))
    run = call.run(Asker(model=[first, second], max_cost=100.15))
    assert run.stop_reason == "limit"
    assert run.cost is not None
    assert run.cost > 100


def test_refusal_error_contains_name_of_model_that_refused(call: Call, script: Script) -> None:
    first, second = script(BUSY, name="first"), script(Reply(refusal="No."), name="second")
    with pytest.raises(ModelError, match=r"^`second` refused to answer: No\."):
        call(Asker(model=[first, second]))


# Reasoning


class Thinker:
    """A model with its own reasoning, as objects of the port have it."""

    def __init__(self, name: str, *answers: Any) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._answers = list(answers)

    def can_force_tool(self, request: ModelRequest) -> bool:
        return False

    def price(self) -> None:
        return None

    def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        answer: ModelResponse | Exception = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        thoughts = [{"type": "thinking", "thinking": "Hm", "signature": f"{self.name} {len(self.requests)}"}]
        return replace(answer, extra={"thinking_blocks": thoughts})

    async def acomplete(self, request: ModelRequest) -> ModelResponse:
        return self.complete(request)

    def thoughts(self) -> list[list[str]]:
        """Return the signatures that came with each request."""
        return [
            [block["signature"] for message in request.messages for block in message.get("thinking_blocks", [])]
            for request in self.requests
        ]


def busy() -> ModelError:
    return ModelError("busy", status=503, retryable=True)


def looks(number: int) -> ModelResponse:
    return calling((f"c{number}", "look", "{}"))


@pytest.mark.every_way
@pytest.mark.message_list
def test_reasoning_is_sent_only_to_model_that_wrote_it(call: Call) -> None:
    a = Thinker("a", looks(1), busy(), looks(3), finishing(text="done"))
    b = Thinker("b", looks(2))
    run = call.run(Asker(model=[a, b]))
    assert a.thoughts() == [[], ["a 1"], ["a 1"], ["a 1", "a 3"]]
    assert b.thoughts() == [[]]
    kept = [message["thinking_blocks"][0]["signature"] for message in run.history if "thinking_blocks" in message]
    assert kept == ["a 1", "b 1", "a 3", "a 4"]


def test_streamed_reasoning_is_sent_only_to_model_that_wrote_it(way: str) -> None:
    a = Thinker("a", looks(1), busy(), finishing(text="done"))
    b = Thinker("b", looks(2))
    streamed(Asker(model=[a, b]), way)
    assert a.thoughts() == [[], ["a 1"], ["a 1"]]
    assert b.thoughts() == [[]]


def test_reasoning_written_by_unknown_model_is_sent_to_first_model() -> None:
    prior = Thinker("a", looks(1), finishing(text="before"))
    first = Asker(model=prior)
    first.run()
    history = [message.copy() for message in first.history]
    for message in history:
        for block in message.get("thinking_blocks", ()):
            block["signature"] = "from elsewhere"
    a, b = Thinker("a", finishing(text="done")), Thinker("b")
    Asker(model=[a, b]).using(history=history).run()
    assert a.thoughts() == [["from elsewhere"] * 2]
    a, b = Thinker("a", busy()), Thinker("b", finishing(text="done"))
    Asker(model=[a, b]).using(history=history).run()
    assert b.thoughts() == [[]]


# Reports


def test_log_contains_fallback_and_open_circuit(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    clock, a, b = Clock(), Switch("a", is_up=False), Switch("b")
    chain = chain_of([a, b], CircuitRegistry(clock))
    with caplog.at_level(logging.INFO, logger="acorn"):
        for _ in range(4):
            call(Asker(model=chain))
        clock.now += OPEN_SECONDS
        a.is_up = True
        call(Asker(model=chain))
    said = [record.getMessage() for record in caplog.records if not record.getMessage().startswith("Run ")]
    handed = "`a` failed (HTTP 503). The request goes to `b`."
    assert said == [
        handed,
        handed,
        "The circuit breaker skips `a` for 30 s, because the model failed 3 times in a row.",
        handed,
        "`a` is skipped (its circuit is open). The request goes to `b`.",
        "`a` answered again, so its circuit breaker is closed.",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_saved_run_contains_answering_model_and_model_list_without_secrets() -> None:
    class Hooked(Asker):
        def on_step(self, step: Step) -> None:
            step.model = ["openai/gpt-4o", {"model": "openai/gpt-4o-mini", "api_key": "sk-secret-123", "top_p": 0.5}]

    first, second = ScriptedModel(BUSY, name="first"), ScriptedModel(call_of("look"), name="second")
    agent = Hooked(model=[first, second])
    loop = new_machine(agent, (), {})
    while not loop.state.settings:
        for each in loop.asks(0.0):
            loop.begin(each.id, 0.0)
            given: Any = each
            if hasattr(each, "model"):
                loop.tell(each.id, given.model.complete(given.request), 0.0)
            elif hasattr(each, "tool"):
                loop.tell(each.id, finish_call(ToolResult(given.call.id, "look", "seen")), 0.0)
            else:
                loop.tell(each.id, given.function(*given.arguments), 0.0)
        if loop.state.phase == "new":
            loop.start(0.0)
    saved = save(loop)
    assert "sk-secret" not in str(saved)
    assert saved["state"]["settings"]["model"] == ["openai/gpt-4o", {"model": "openai/gpt-4o-mini", "top_p": 0.5}]
    again = load(new_machine(agent, (), {}).plan, json.loads(json.dumps(saved)))
    assert answered(again.run) == answered(loop.run)
    assert answered(again.run)[0].fallbacks[0].to == "second"
    assert [model.name for model in again.builder.model.models] == ["openai/gpt-4o", "openai/gpt-4o-mini"]  # type: ignore[attr-defined]


def test_fallback_chain_implements_model_protocol() -> None:
    chain = chain_of([Switch("a"), Switch("b")], CircuitRegistry())
    assert is_model(chain)
    assert can_stream(chain)
    assert chain.name == "a"
