"""Telemetry: a program with OpenTelemetry, in which all spans of an agent call belong to one trace.

    pip install 'acorn-agents[otel]' opentelemetry-sdk
    python examples/telemetry.py

The program needs no API key and no network, because it uses a scripted model and prints the spans as a tree. A real
program uses `OTLPSpanExporter()` from `opentelemetry-exporter-otlp-proto-http`, which sends the spans to Jaeger,
Phoenix, Grafana or another tool.
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
    with tracer.start_as_current_span("SELECT orders"):  # A traced database client would create such a span.
        return f"order {number}: on its way"


class FactChecker(module[None, Verdict]):
    """Check what was said so far."""


class Helper(module[Question, Answer]):
    """You answer customers."""

    max_steps = 5
    tools = [find_order]
    branches = {"check": FactChecker}


def script() -> ScriptedModel:
    """Return a model with scripted tool calls and answers."""
    replies = [
        call("find_order", number=17) & call("find_order", number=18),
        call("check"),
        finish(is_true=True),
        finish(answer="Both are on their way."),
    ]
    return ScriptedModel(replies, name="openai/gpt-4o")


def print_tree(spans: Sequence[ReadableSpan], parent: int | None = None, indent: str = "") -> None:
    """Print a trace as a tree, with the duration and the input tokens of each span."""
    children = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
    for span in sorted(children, key=lambda span: span.start_time or 0):
        duration = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
        tokens = (span.attributes or {}).get("gen_ai.usage.input_tokens")
        print(f"{indent + span.name:<36}{duration:>8.1f} ms{f'{tokens:>6} tokens' if tokens else ''}")
        if span.context:
            print_tree(spans, span.context.span_id, f"{indent}  ")


def main() -> None:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(memory))
    trace.set_tracer_provider(provider)

    with tracer.start_as_current_span("POST /ask"):
        answer = Helper(model=script())(question="Where are 17 and 18?")
    print(answer.answer)
    provider.shutdown()
    print("\nThe trace: the HTTP request, the agent, its model requests, its tools with our database span, a branch.\n")
    print_tree(memory.get_finished_spans())


if __name__ == "__main__":
    main()
