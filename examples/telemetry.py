"""Telemetry: a program that sets up OpenTelemetry sees its agents as spans, all of one call in one trace.

    python examples/telemetry.py

No key and no network: the model is a script, and the spans are printed. A real program takes `OTLPSpanExporter()` of
`opentelemetry-exporter-otlp-proto-http`, and its spans are in Jaeger, Phoenix, Grafana or wherever you look.
"""

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
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


def line(span: ReadableSpan) -> str:
    """A span in a line: its id, what it hangs below, its name, and what it used."""
    above = f"{span.parent.span_id:016x}" if span.parent else "-" * 16
    own = f"{span.context.span_id:016x}" if span.context else ""
    tokens = (span.attributes or {}).get("gen_ai.usage.input_tokens", "")
    return f"{own}  below {above}  {span.name:<28}{tokens}\n"


def main() -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=line)))
    trace.set_tracer_provider(provider)

    with tracer.start_as_current_span("POST /ask"):
        answer = Helper(model=script())(question="Where are 17 and 18?")
    print(answer.answer)
    print("\nIts spans, in the order in which they ended; the last column is tokens:\n")
    provider.shutdown()


if __name__ == "__main__":
    main()
