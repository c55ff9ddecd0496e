"""Telemetry: a program that sets up OpenTelemetry sees its agents as spans, all of one call in one trace.

    pip install 'acorn-agents[otel]' opentelemetry-sdk
    python examples/telemetry.py

No key and no network: the model is a script, and the spans are drawn as a tree. A real program takes
`OTLPSpanExporter()` of `opentelemetry-exporter-otlp-proto-http`, and its spans are in Jaeger, Phoenix, Grafana or
wherever you look.
"""

from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from acorn import module, tool
from acorn.testing import ScriptedModel, call, finish


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


class Verdict(BaseModel):
    is_true: bool


tracer = trace.get_tracer("shop")


@tool
def find_order(number: int) -> str:
    """Find an order.

    Args:
        number: Its number
    """
    with tracer.start_as_current_span("SELECT orders"):  # as a traced database client would
        return f"order {number}: on its way"


class FactChecker(module[None, Verdict]):
    """Check what was said so far."""


class Helper(module[Question, Answer]):
    """You answer customers."""

    max_steps = 5
    tools = [find_order]
    branches = {"check": FactChecker}


def script() -> ScriptedModel:
    """What the model will say."""
    replies = [
        call("find_order", number=17) & call("find_order", number=18),
        call("check"),
        finish(is_true=True),
        finish(answer="Both are on their way."),
    ]
    return ScriptedModel(replies, name="openai/gpt-4o")


def show(spans: Sequence[ReadableSpan], above: int | None = None, indent: str = "") -> None:
    """A trace as a tree: each span with how long it took and the tokens that it read."""
    below = [span for span in spans if (span.parent.span_id if span.parent else None) == above]
    for span in sorted(below, key=lambda span: span.start_time or 0):
        took = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
        tokens = (span.attributes or {}).get("gen_ai.usage.input_tokens")
        print(f"{indent + span.name:<36}{took:>8.1f} ms{f'{tokens:>6} tokens' if tokens else ''}")
        if span.context:
            show(spans, span.context.span_id, f"{indent}  ")


def main() -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(memory))
    trace.set_tracer_provider(provider)

    with tracer.start_as_current_span("POST /ask"):
        answer = Helper(model=script())(question="Where are 17 and 18?")
    print(answer.answer)
    provider.shutdown()
    print("\nThe trace: the request, the agent, what it asked its model, its tools with a span of ours, a branch.\n")
    show(memory.get_finished_spans())


if __name__ == "__main__":
    main()
