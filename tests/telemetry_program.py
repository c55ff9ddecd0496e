"""A user's program that sends telemetry to a collector: `python telemetry_program.py FILE begin|crash|resume`.

`OTEL_EXPORTER_OTLP_ENDPOINT` is the address of the collector. No line of the program is about acorn's telemetry.
"""

from __future__ import annotations

import os
import sys

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic import BaseModel

from acorn import ask_human, module, tool
from acorn.testing import Reply, ScriptedModel, call, finish

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))


class Question(BaseModel):
    question: str


class Answer(BaseModel):
    answer: str


@tool
def pay(amount: int) -> str:
    """Pay."""
    if sys.argv[2] == "crash":
        os._exit(3)
    return f"{amount} \ud800 paid"  # No protocol can hold it.


class Clerk(module[Question, Answer]):
    """Pay what is asked for."""

    max_steps = 5
    tools = [ask_human, pay]
    store = sys.argv[1]
    model = ScriptedModel(
        [
            Reply("\ud800") & call("pay", amount=3),
            call("ask_human", question="Really?"),
            finish(answer="done"),
        ],
        by_turn=True,
    )


if sys.argv[2] == "resume":
    kept = Clerk().resume("order-1") if len(sys.argv) < 4 else Clerk().resume("order-1", answer=sys.argv[3])
else:
    Clerk().using(run_id="order-1")(question="Three, please.")
