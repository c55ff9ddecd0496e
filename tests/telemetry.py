"""An OpenTelemetry setup for the duration of a test, and access to the recorded spans and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once


class Spans:
    """The ended spans."""

    def __init__(self, exporter: InMemorySpanExporter, reader: InMemoryMetricReader, provider: TracerProvider) -> None:
        self._exporter, self._reader, self.provider = exporter, reader, provider

    def clear(self) -> None:
        """Forget the spans that ended so far."""
        self._exporter.clear()

    @property
    def all(self) -> list[ReadableSpan]:
        """Return all spans in the order of their start."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        (found,) = [span for span in self.all if span.name == name]
        return found

    def like(self, beginning: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name.startswith(beginning)]

    def below(self, span: ReadableSpan | None) -> list[ReadableSpan]:
        return [each for each in self.all if _parent(each) == (None if span is None else _id(span))]

    def tree(self, span: ReadableSpan | None = None) -> Any:
        """Return the names as a tree."""
        return [(each.name, self.tree(each)) if self.below(each) else each.name for each in self.below(span)]

    @property
    def traces(self) -> set[int]:
        return {span.context.trace_id for span in self.all if span.context}

    @property
    def text(self) -> str:
        """All that was exported."""
        return "\n".join(span.to_json() for span in self.all) + str(self._reader.get_metrics_data())

    def metrics(self) -> dict[str, list[Any]]:
        """Return the points of each metric."""
        data: Any = self._reader.get_metrics_data()
        found: dict[str, list[Any]] = {}
        for resource in [] if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = list(metric.data.data_points)
        return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def _id(span: ReadableSpan) -> int | None:
    return span.context.span_id if span.context else None


def _parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


@contextmanager
def no_provider() -> Iterator[None]:
    """Unset the providers afterwards; OpenTelemetry has no function for it."""
    tracing: Any = trace
    measuring: Any = metrics
    try:
        yield
    finally:
        for provider in (tracing._TRACER_PROVIDER, measuring._METER_PROVIDER):
            if provider is not None:
                getattr(provider, "inner", provider).shutdown()
        tracing._TRACER_PROVIDER, tracing._TRACER_PROVIDER_SET_ONCE = None, Once()
        measuring._METER_PROVIDER, measuring._METER_PROVIDER_SET_ONCE = None, Once()


def _as_it_is(provider: Any) -> Any:
    return provider


@contextmanager
def set_up(tracing: Callable[[Any], Any] = _as_it_is, measuring: Callable[[Any], Any] = _as_it_is) -> Iterator[Spans]:
    """Set both providers, or their wrappers."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider, meters = TracerProvider(), MeterProvider([reader])
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with no_provider():
        trace.set_tracer_provider(tracing(provider))
        metrics.set_meter_provider(measuring(meters))
        yield Spans(exporter, reader, provider)
