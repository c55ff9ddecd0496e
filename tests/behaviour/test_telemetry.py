"""Tests of OpenTelemetry: a program with a tracer provider gets one trace per run without further code."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import INVALID_SPAN, SpanKind, StatusCode, get_current_span
from tests.behaviour.schemas import Answer, Question
from tests.cases import each_case
from tests.telemetry import Spans, attributes, set_up

from acorn import DeclarationError, ModelError, Step, module, tool
from acorn._telemetry import conventions
from acorn.models.retry import RetryingModel, RetryPolicy
from acorn.testing import Failure, Reply, ScriptedModel, call, finish

FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
WAYS = ["call", "acall", "stream", "astream"]


@pytest.fixture
def spans() -> Iterator[Spans]:
    with set_up() as found:
        yield found


def work(name: str) -> None:
    """A span of the user."""
    with trace.get_tracer("program").start_as_current_span(name):
        pass


@tool
def search(query: str) -> str:
    """Search."""
    work("in search")
    return f"much on {query}"


@tool
async def fetch(url: str) -> str:
    """Fetch."""
    work("in fetch")
    return "a page"


@tool
def fail() -> str:
    """Fail."""
    raise KeyError("the words of a failure")


class Checker(module[None, Answer]):
    """Check."""


class Critic(module[Question, Answer]):
    """Criticise."""


class Researcher(module[Question, Answer]):
    """Research."""

    max_steps = 6
    tools = [search, fetch, fail, Critic]
    branches = {"check": Checker}

    def on_step(self, step: Step) -> None:
        work("in on_step")


def drive(agent: module[Any, Any], way: str, **given: Any) -> None:
    """Run it in one of the ways; between chunks and afterwards, no span is current."""

    async def walk() -> None:
        if way == "acall":
            await agent.acall(**given)
            return
        async for _ in agent.astream(**given):
            assert get_current_span() is INVALID_SPAN

    if way == "call":
        agent(**given)
    elif way == "stream":
        for _ in agent.stream(**given):
            assert get_current_span() is INVALID_SPAN
    else:
        asyncio.run(walk())
    assert get_current_span() is INVALID_SPAN


@each_case("way", WAYS)
def test_run_has_one_trace_with_spans_of_tools_branches_and_agents(spans: Spans, way: str) -> None:
    spans.clear()
    model = ScriptedModel(
        [
            call("search", query="nuts") & call("fetch", url="x"),
            call("check"),
            finish(answer="it holds"),
            call("critic", question="well?"),
            finish(answer="well"),
            finish(answer="done"),
        ]
    )
    drive(Researcher(model=model), way, question="What are nuts?")
    assert len(spans.traces) == 1
    (root,) = spans.below(None)
    assert root.name == "invoke_agent Researcher"
    assert sorted(map(str, spans.tree(root))) == sorted(
        map(
            str,
            [
                *["chat scripted"] * 4,
                ("execute_tool search", ["in search"]),
                ("execute_tool fetch", ["in fetch"]),
                ("invoke_agent Checker", ["chat scripted"]),
                ("invoke_agent Critic", ["chat scripted"]),
                *["in on_step"] * 3,
            ],
        )
    )
    kinds = {span.name: span.kind for span in spans.all if not span.name.startswith("in ")}
    assert {name for name, kind in kinds.items() if kind is SpanKind.CLIENT} == {"chat scripted"}
    assert {kind for name, kind in kinds.items() if name != "chat scripted"} == {SpanKind.INTERNAL}
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.all)
    has_first = [FIRST_CHUNK in attributes(span) for span in spans.like("chat")]
    assert all(has_first) if way in ("stream", "astream") else not any(has_first)


def test_spans_of_run_request_and_tool_contain_documented_attributes(spans: Spans) -> None:
    model = ScriptedModel([call("search", _id="call_7", query="nuts"), finish(answer="done")], name="openai/gpt-4o")
    run = Researcher(model=model, temperature=0.25, max_tokens=99).run(question="Nuts?")
    assert attributes(spans.named("invoke_agent Researcher")) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "Researcher",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.conversation.id": run.id,
        "gen_ai.aggregated_usage.input_tokens": run.usage.input_tokens,
        "gen_ai.aggregated_usage.output_tokens": run.usage.output_tokens,
        "acorn.run.id": run.id,
        "acorn.stop_reason": "finish",
    }
    first, second = spans.like("chat gpt-4o")
    said = attributes(first)
    tokens = said.pop("gen_ai.usage.input_tokens"), said.pop("gen_ai.usage.output_tokens")
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.temperature": 0.25,
        "gen_ai.request.max_tokens": 99,
        "gen_ai.response.model": "gpt-4o",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.conversation.id": run.id,
    }
    more = attributes(second)
    assert tokens[0] + more["gen_ai.usage.input_tokens"] == run.usage.input_tokens
    assert tokens[1] + more["gen_ai.usage.output_tokens"] == run.usage.output_tokens
    assert attributes(spans.named("execute_tool search")) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_7",
    }


def test_span_attribute_names_match_opentelemetry_conventions() -> None:
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    folder = Path(conventions.__file__).parent
    ours = {name for file in folder.glob("*.py") for name in re.findall(r'"(gen_ai\.[\w.]+)"', file.read_text())}
    assert FIRST_CHUNK in ours
    metrics = {conventions.DURATION, conventions.TOKENS}
    assert {each for each in ours - metrics if not each.startswith("gen_ai.aggregated_usage.")} <= known
    providers = {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    assert set(conventions._PROVIDERS.values()) <= providers


@each_case(
    ("name", "provider", "model"),
    [
        ("openai/gpt-4o", "openai", "gpt-4o"),
        ("openai/responses/gpt-5", "openai", "gpt-5"),
        ("gpt-4o", "openai", "gpt-4o"),
        ("claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("gemini/gemini-2.5-pro", "gcp.gemini", "gemini-2.5-pro"),
        ("vertex_ai/gemini-2.5-pro", "gcp.vertex_ai", "gemini-2.5-pro"),
        ("bedrock/converse/us.amazon.nova", "aws.bedrock", "us.amazon.nova"),
        ("azure/ours", "azure.ai.openai", "ours"),
        ("mistral/large", "mistral_ai", "large"),
        ("xai/grok", "x_ai", "grok"),
        ("openrouter/anthropic/claude", "openrouter", "anthropic/claude"),
        ("openai/gpt-4o (model[1])", "openai", "gpt-4o"),
        ("mine", "_OTHER", "mine"),
    ],
)
def test_span_model_name_has_no_provider_prefix(name: str, provider: str, model: str) -> None:
    assert conventions.provider_and_model(name) == (provider, model)


def test_metrics_count_requests_and_tokens(spans: Spans) -> None:
    model = ScriptedModel([call("search", query="nuts"), finish(answer="done")], name="openai/gpt-4o")
    run = Researcher(model=model).run(question="Nuts?")
    with pytest.raises(ModelError):
        Researcher(model=ScriptedModel([Failure(400)], name="openai/gpt-4o"))(question="Nuts?")
    found = spans.metrics()
    well, failed = sorted(found["gen_ai.client.operation.duration"], key=lambda point: "error.type" in point.attributes)
    assert (well.count, failed.count) == (2, 1)
    assert dict(well.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.model": "gpt-4o",
    }
    assert failed.attributes["error.type"] == "ModelError"
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in found["gen_ai.client.token.usage"]}
    assert tokens == {"input": run.usage.input_tokens, "output": run.usage.output_tokens}


@each_case("way", WAYS)
def test_failing_tool_sets_error_status_of_its_tool_span_but_not_of_run_span(spans: Spans, way: str) -> None:
    spans.clear()
    drive(Researcher(model=ScriptedModel([call("fail"), finish(answer="so be it")])), way, question="?")
    failed = spans.named("execute_tool fail")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description is None
    assert attributes(failed)["error.type"] == "KeyError"
    assert spans.named("invoke_agent Researcher").status.status_code is StatusCode.UNSET


@each_case("way", WAYS)
def test_failing_model_sets_error_status_of_run_span(spans: Spans, way: str) -> None:
    spans.clear()
    with pytest.raises(ModelError):
        drive(Researcher(model=ScriptedModel([Failure(400, "no words of it")])), way, question="?")
    for name in ("invoke_agent Researcher", "chat scripted"):
        assert spans.named(name).status.status_code is StatusCode.ERROR
        assert attributes(spans.named(name))["error.type"] == "ModelError"
    assert attributes(spans.named("chat scripted"))["http.response.status_code"] == 400
    assert "no words of it" not in spans.text


def test_tool_call_not_executed_is_recorded_as_span_event(spans: Spans) -> None:
    Researcher(model=ScriptedModel([call("no_such_thing"), call("search"), finish(answer="done")]))(question="?")
    assert not spans.like("execute_tool")
    events = spans.named("invoke_agent Researcher").events
    assert [event.name for event in events] == ["acorn.not_called"] * 2
    assert "no_such_thing" not in spans.text


@each_case("way", WAYS)
def test_retries_and_fallbacks_are_recorded_as_span_events(spans: Spans, way: str) -> None:
    spans.clear()
    first = ScriptedModel([Failure(503), Failure(503)], name="anthropic/claude")
    second = ScriptedModel([finish(answer="at last")], name="openai/gpt-4o")
    drive(Researcher(model=[RetryingModel(first, RetryPolicy(1, 0.0)), second]), way, question="?")
    chat = spans.named("chat gpt-4o")
    events = [(event.name, dict(event.attributes or {})) for event in chat.events]
    assert [name for name, _ in events] == ["acorn.retry", "acorn.fallback"]
    assert events[0][1]["acorn.failed"] == "anthropic/claude"
    assert events[0][1]["http.response.status_code"] == 503
    assert events[1][1]["acorn.to"] == "openai/gpt-4o"
    assert attributes(chat)["gen_ai.provider.name"] == "openai"
    assert chat.status.status_code is StatusCode.UNSET


def test_retries_of_failed_request_are_recorded_as_span_events(spans: Spans) -> None:
    model = RetryingModel(ScriptedModel([Failure(503), Failure(503), Failure(503)]), RetryPolicy(2, 0.0))
    with pytest.raises(ModelError):
        Researcher(model=model)(question="?")
    assert [event.name for event in spans.named("chat scripted").events] == ["acorn.retry"] * 2


class Manual(module[Question, Answer]):
    """Branch by hand."""

    max_steps = 3

    @tool
    def look(self) -> str:
        """Look."""
        with trace.get_tracer("program").start_as_current_span("mine"):
            both = self.branch_all([(Critic, {"question": "a"}), (Critic, {"question": "b"})], concurrency=1)
        one, other = self.branch(Critic, question="c"), Critic(model=self.model)(question="d")
        return f"{one.answer} {other.answer} {both}"

    @tool
    async def alook(self) -> str:
        """Look."""
        found = await self.abranch(Critic, question="e")
        return found.answer

    def on_step(self, step: Step) -> None:
        if step.counter == 1:
            self.branch(Critic, question="f")


@each_case("way", WAYS)
def test_span_of_branch_started_by_branch_method_is_child_of_span_of_calling_code(spans: Spans, way: str) -> None:
    spans.clear()

    def reply(request: Any) -> Reply:
        last = str(request.messages[-1]["content"])
        tools = [each["function"]["name"] for each in request.tools]
        if "look" not in tools or request.messages[-1]["role"] == "tool" or "<question>" not in last:
            return finish(answer="x")
        is_first = "<question>begin" in last
        return call("look") & call("alook") if is_first else finish(answer="y")

    agent = Manual(model=ScriptedModel(reply))
    drive(agent, way, question="begin")
    assert len(spans.traces) == 1
    (root,) = spans.below(None)
    critic = ("invoke_agent Critic", ["chat scripted"])
    assert sorted(map(str, spans.tree(root))) == sorted(
        map(
            str,
            [
                *["chat scripted"] * 2,
                ("execute_tool look", [("mine", [critic, critic]), critic, critic]),
                ("execute_tool alook", [critic]),
                critic,
            ],
        )
    )


def test_run_span_is_child_of_current_span(spans: Spans) -> None:
    with trace.get_tracer("program").start_as_current_span("request"):
        Critic(model=ScriptedModel([finish(answer="x")]))(question="?")
    assert spans.tree() == [("request", [("invoke_agent Critic", ["chat scripted"])])]


class Client(ScriptedModel):
    """A model whose client is traced too."""

    def complete(self, request: Any) -> Any:
        work("POST")
        return super().complete(request)

    async def acomplete(self, request: Any) -> Any:
        work("POST")
        return await super().acomplete(request)

    def stream(self, request: Any) -> Any:
        work("POST")
        yield from super().stream(request)

    async def astream(self, request: Any) -> Any:
        work("POST")
        async for delta in super().astream(request):
            yield delta


@each_case("way", WAYS)
def test_span_created_by_model_client_is_child_of_request_span(spans: Spans, way: str) -> None:
    spans.clear()
    drive(Critic(model=Client([finish(answer="x")])), way, question="?")
    assert spans.tree() == [("invoke_agent Critic", [("chat scripted", ["POST"])])]


def test_stream_left_early_ends_spans_of_run(spans: Spans) -> None:
    chunks = Researcher(model=ScriptedModel([call("search", query="a"), finish(answer="x")])).stream(question="?")
    next(chunks)
    del chunks
    gc.collect()
    assert {span.name for span in spans.all} >= {"invoke_agent Researcher", "chat scripted"}
    assert attributes(spans.named("invoke_agent Researcher"))["acorn.stop_reason"] == "cancelled"
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.all)

    async def leave() -> None:
        async for _ in Critic(model=ScriptedModel([finish(answer="x")])).astream(question="?"):
            break

    asyncio.run(leave())
    assert attributes(spans.named("invoke_agent Critic"))["acorn.stop_reason"] == "cancelled"


def test_cancelled_run_ends_open_spans(spans: Spans) -> None:
    class Waiter(module[Question, Answer]):
        """Wait."""

        max_steps = 2

        @tool
        async def wait(self) -> str:
            """Wait."""
            begun.set()
            await asyncio.Event().wait()
            return ""

    async def cancel() -> None:
        running = asyncio.create_task(Waiter(model=ScriptedModel([call("wait")])).acall(question="?"))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    begun = asyncio.Event()
    asyncio.run(cancel())
    assert spans.tree() == [("invoke_agent Waiter", ["chat scripted", "execute_tool wait"])]


def test_compaction_request_has_span(spans: Spans) -> None:
    replies = [call("search", query="a"), call("search", query="b"), call("search", query="c")]

    def reply(request: Any) -> Reply:
        if not request.tools:
            return Reply("a summary")
        return replies.pop(0) if replies else finish(answer="x")

    run = Researcher(model=ScriptedModel(reply), compact_at=1).run(question="?")
    assert run.usage.requests == len(spans.like("chat"))
    used = [attributes(span) for span in spans.like("chat")]
    assert sum(each["gen_ai.usage.input_tokens"] for each in used) == run.usage.input_tokens
    assert sum(each["gen_ai.usage.output_tokens"] for each in used) == run.usage.output_tokens


# Settings


@each_case(("variable", "value"), [("ACORN_TELEMETRY", "off"), ("OTEL_SDK_DISABLED", "True")])
def test_telemetry_turned_off_by_environment_variable_creates_no_spans(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(variable, value)
        Critic(model=ScriptedModel([finish(answer="x")]))(question="?")
    assert not spans.all
    assert not spans.metrics()


def test_unknown_value_of_telemetry_variable_raises_declaration_error_before_model_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACORN_TELEMETRY", "contents")
    model = ScriptedModel([finish(answer="x")])
    with pytest.raises(DeclarationError, match=r"`ACORN_TELEMETRY` has the unknown value 'contents'.* `off`"):
        Critic(model=model)(question="?")
    assert not model.requests


def test_run_without_tracer_provider_creates_no_spans() -> None:
    agent = Critic(model=Client([finish(answer="x")]))
    agent(question="?")
    assert get_current_span() is INVALID_SPAN


@dataclass
class ProxyTracerProvider(trace.TracerProvider):
    """A provider as Logfire sets it: called like the default one, and without a hash."""

    inner: trace.TracerProvider

    def get_tracer(self, *args: Any, **options: Any) -> Any:
        return self.inner.get_tracer(*args, **options)


@dataclass
class NoOpMeterProvider(metrics.MeterProvider):
    """The same for metrics."""

    inner: metrics.MeterProvider

    def get_meter(self, *args: Any, **options: Any) -> Any:
        return self.inner.get_meter(*args, **options)


def test_tracer_provider_of_other_library_receives_spans() -> None:
    with set_up(ProxyTracerProvider, NoOpMeterProvider) as spans:
        for _ in range(2):
            Critic(model=ScriptedModel([finish(answer="x")]))(question="?")
        assert spans.tree() == [("invoke_agent Critic", ["chat scripted"])] * 2
        assert spans.metrics()[conventions.DURATION][0].count == 2


WORDS = "what was said"


class Broken(SpanProcessor):
    """An instrumented client between acorn and the network."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._where == "on the way in":
            raise RuntimeError(WORDS)

    def on_end(self, span: ReadableSpan) -> None:
        if self._where == "on the way out":
            raise RuntimeError(WORDS)


@pytest.mark.parametrize("where", ["on the way in", "on the way out"])
@each_case("way", WAYS)
def test_failing_telemetry_does_not_affect_run(
    spans: Spans, caplog: pytest.LogCaptureFixture, way: str, where: str
) -> None:
    class Plain(module[Question, Answer]):
        """Do it."""

        max_steps = 4
        branches = {"check": Checker}

        @tool
        def add(self, one: int) -> int:
            """Add."""
            return one + 1

    spans.provider.add_span_processor(Broken(where))
    caplog.clear()
    model = ScriptedModel([call("add", one=1), call("check"), finish(answer="x"), finish(answer="y")])
    with caplog.at_level(logging.INFO, "acorn"):
        drive(Plain(model=model), way, question="?")
    model.done()
    assert any("RuntimeError" in record.getMessage() for record in caplog.records)
    assert WORDS not in caplog.text


class Unreachable(SpanExporter):
    """A backend that is down."""

    def export(self, spans: Any) -> Any:
        raise ConnectionError("down")


def test_failing_exporter_does_not_affect_run(spans: Spans) -> None:
    spans.provider.add_span_processor(SimpleSpanProcessor(Unreachable()))
    assert Critic(model=ScriptedModel([finish(answer="x")]))(question="?").answer == "x"
    assert spans.tree() == [("invoke_agent Critic", ["chat scripted"])]


# Content


def test_prompts_and_secrets_are_not_in_spans_by_default(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    canaries = [f"canary-{number}-{number * 7919:x}" for number in range(30)]
    for at in range(5):
        monkeypatch.setenv(f"SERVICE_{at}_API_KEY", canaries[at])

    class Careful(module[Question, Answer]):
        system_prompt = canaries[5]
        max_steps = 6
        branches = {"check": Checker}

        @tool
        def tell(self, what: str) -> dict[str, str]:
            """Tell."""
            return {"password": canaries[6], "text": canaries[7]}

        @tool
        def stumble(self, what: str) -> str:
            """Stumble."""
            raise ValueError(canaries[8])

        def on_step(self, step: Step) -> None:
            step.add_to_context(canaries[9])

    said = Reply(canaries[10], reasoning=canaries[11])
    replies = [
        said & call("tell", what=canaries[12]) & call("stumble", what=canaries[13]) & call(canaries[14]),
        call("tell", **{canaries[15]: canaries[16]}),
        call("check"),
        Reply(canaries[17]) & finish(answer=canaries[18]),
        finish(answer=[canaries[19]]),
        finish(answer=canaries[20]),
    ]
    for way in WAYS:
        drive(Careful(model=ScriptedModel(replies)), way, question=" ".join(canaries[21:28]))
    for status in (400, 503):
        failing = ScriptedModel([Failure(status, canaries[28])])
        with pytest.raises(ModelError):
            Careful(model=[failing, ScriptedModel([Failure(400, canaries[29])])])(question="?")
    refusing = ScriptedModel([Reply(refusal=canaries[29], stop_reason="content_filter")])
    with pytest.raises(ModelError):
        Careful(model=refusing)(question="?")
    assert len(spans.like("execute_tool")) == 4 * 2
    assert [each for each in canaries if each in spans.text] == []


def content_of(span: ReadableSpan, name: str) -> Any:
    return json.loads(attributes(span)[name])


@each_case(
    ("variable", "value"),
    [
        ("ACORN_TELEMETRY", "content"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_AND_EVENT"),
    ],
)
def test_environment_variable_that_enables_content_adds_message_content_to_spans(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    spans.clear()
    first = Reply("Let me see.", reasoning="hm") & call("search", _id="c1", query="nuts")
    with monkeypatch.context() as patch:
        patch.setenv(variable, value)
        Researcher(model=ScriptedModel([first, finish(answer="done")]))(question="Nuts?")
    begun, ended = spans.like("chat")
    (instruction,) = content_of(begun, "gen_ai.system_instructions")
    assert instruction["type"] == "text"
    assert instruction["content"].startswith("Research.")
    (asked,) = content_of(begun, "gen_ai.input.messages")
    assert asked["role"] == "user"
    assert "Nuts?" in asked["parts"][0]["content"]
    assert content_of(begun, "gen_ai.output.messages") == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "text", "content": "Let me see."},
                {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"query": "nuts"}},
            ],
            "finish_reason": "tool_call",
        }
    ]
    assert content_of(ended, "gen_ai.input.messages")[-1] == {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "c1", "response": "much on nuts"}],
    }
    used = attributes(spans.named("execute_tool search"))
    assert used["gen_ai.tool.call.arguments"] == '{"query":"nuts"}'
    assert used["gen_ai.tool.call.result"] == "much on nuts"
    root = spans.named("invoke_agent Researcher")
    assert content_of(root, "gen_ai.input.messages")[0]["role"] == "user"
    (output,) = content_of(root, "gen_ai.output.messages")
    assert json.loads(output["parts"][0]["content"]) == {"answer": "done"}


@each_case("value", ["NO_CONTENT", "false", "EVENT_ONLY", "perhaps"])
def test_unsupported_value_of_content_variable_adds_no_content_and_logs_warning(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "acorn"):
        Critic(model=ScriptedModel([finish(answer="x")]))(question="a canary")
    assert "a canary" not in spans.text
    assert len(caplog.records) == (value in ("EVENT_ONLY", "perhaps"))


def test_span_content_contains_no_secrets_or_base64(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_TELEMETRY", "content")
    monkeypatch.setenv("A_SERVICE_TOKEN", "opensesame-1")
    data = "iVBORw0KGgo" * 60

    class Shown(module[Question, Answer]):
        """Never say opensesame-1."""

        max_steps = 3

        @tool
        def show(self, password: str) -> Any:
            """Show."""
            return {"api_key": "opensesame-2", "picture": f"data:image/png;base64,{data}", "raw": data}

    signed = f"call_1__thought__{data}"
    replies = [
        call("show", _id=signed, password="opensesame-3"),
        Reply("\ud800") & finish(answer="sk-abcdefgh12345678"),
    ]
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}}
    paper = {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{data}", "filename": "a.pdf"}}
    linked = {"type": "image_url", "image_url": {"url": "https://x.example/a.png?token=opensesame-4"}}
    before = [{"role": "user", "content": [{"type": "text", "text": "see"}, picture, sound, paper, linked]}]
    Shown(model=ScriptedModel(replies)).using(history=before)(question="what is opensesame-1?")
    for hidden in ("opensesame", data[:40], "abcdefgh12345678"):
        assert hidden not in spans.text
    assert content_of(spans.like("chat")[0], "gen_ai.input.messages")[0]["parts"] == [
        {"type": "text", "content": "see"},
        {"type": "blob", "modality": "image", "mime_type": "image/png", "content": ""},
        {"type": "blob", "modality": "audio", "mime_type": "audio/mp3", "content": ""},
        {"type": "blob", "modality": "document", "mime_type": "application/pdf", "content": "", "name": "a.pdf"},
        {"type": "uri", "modality": "image", "uri": "https://x.example/a.png?token=***"},
    ]
    assert attributes(spans.named("execute_tool show"))["gen_ai.tool.call.id"] == "call_1"


@each_case(
    "text",
    [
        '{"password": "opensesame", "half": "\\ud83d"}',
        '{"password": "opensesame", "deep": %s}' % ("[" * 300 + "]" * 300),
    ],
)
def test_span_content_of_unusual_json_contains_no_secrets(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("ACORN_TELEMETRY", "content")

    class Shown(module[Question, Answer]):
        max_steps = 2

        @tool
        def show(self) -> str:
            """Show."""
            return text

    Shown(model=ScriptedModel([call("show"), finish(answer="x")]))(question="?")
    assert "opensesame" not in spans.text
