"""Measure the cost of OpenTelemetry without a tracer provider, and with a provider that stores spans in memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import opentelemetry.metrics
import opentelemetry.trace  # noqa: F401
from loop import Busy, Looker
from measure import Line
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

API = "opentelemetry.trace"
STEPS = 20


def best_in_turn(acts: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the minimum CPU seconds of each function; they take turns so that noise affects them equally."""
    best = dict.fromkeys(acts, float("inf"))
    for _ in range(rounds):
        for name, act in acts.items():
            start = time.process_time()
            act()
            best[name] = min(best[name], time.process_time() - start)
    return best


def lines() -> list[Line]:
    agent = Looker(model=Busy(STEPS))
    loaded: Any = sys.modules[API]

    def without() -> None:
        del sys.modules[API]  # Simulate a program that has not imported OpenTelemetry.
        agent(question="Where?")
        sys.modules[API] = loaded

    def installed() -> None:
        agent(question="Where?")

    cost = best_in_turn({"without": without, "installed": installed}, rounds=300)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    installed()
    spans = len(exporter.get_finished_spans())

    def traced() -> None:
        exporter.clear()
        agent(question="Where?")

    cost |= best_in_turn({"traced": traced}, rounds=100)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    cost |= best_in_turn({"measured": traced}, rounds=100)

    def a_span(how: str) -> float:
        return (cost[how] - cost["installed"]) / spans * 1e6

    return [
        Line("a step, installed and not set up / without", cost["installed"] / cost["without"], 1.02),
        Line("a span, kept in memory", a_span("traced"), 100, " us"),
        Line("the same, with metrics", a_span("measured"), None, " us"),
    ]
