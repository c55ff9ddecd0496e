"""The OpenTelemetry spans of a run and its branches, created from journal entries.

    invoke_agent Researcher
      chat gpt-4o
      execute_tool search        the parent of the spans of the function
      invoke_agent FactChecker   a branch, or an agent as a tool

Spans start and end when journal entries arrive. An ask is an operation that a run requests, such as a model request or
a tool call. Its span is the current span only while code outside of acorn runs: a tool, a hook, or a model request.
Therefore no span is current between two chunks of a stream. acorn logs errors of the telemetry, and they do not affect
the run. Only `start_trace` imports this file, after the program has set up OpenTelemetry.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from acorn import journal
from acorn._base.log import logger
from acorn._machine.asks import AskModel
from acorn._machine.machine import Machine
from acorn._telemetry import conventions
from acorn.journal import Entry
from acorn.models.port import RetryEvent, retry_listener
from acorn.record import TOOL_ASK_PREFIX
from acorn.types import JsonObject, Message

Attributes = JsonObject
_PROPAGATOR = TraceContextTextMapPropagator()
"""The converter between a span and its W3C `traceparent`."""


class _OpenRequest(NamedTuple):
    """A model request that has no response yet, with its span and the attributes of its metrics."""

    ask_id: str
    span: Span
    started: float
    attributes: Attributes
    """The attributes of the metrics, not of the span."""


class Trace:
    """The unfinished spans of a run and its branches. Journal entries start and end these spans."""

    def __init__(
        self,
        machines: Mapping[str, Machine],
        root: str,
        instruments: conventions.Instruments,
        first_span: str | None,
        *,
        has_content: bool,
    ) -> None:
        self._machines, self._root, self._first_span = machines, root, first_span
        self._instruments = instruments
        self._writer = conventions.ContentWriter() if has_content else None
        self._runs: dict[str, Span] = {}
        self._tools: dict[tuple[str, str], Span] = {}
        """A dict that maps (run id, ask id) to the span of a tool call."""
        self._requests: dict[str, _OpenRequest] = {}
        """A dict that maps run ids to the unanswered request of the run. A run has at most one."""
        self._has_failed = False

    # Start and end of a run

    def open(self, run_id: str) -> None:
        """Start the span of a run when the run starts or resumes."""
        with self._logging_errors():
            machine = self._machines[run_id]
            context, owner = machine.context, machine.spec.owner
            attributes: Attributes = {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": owner,
                "gen_ai.request.model": conventions.provider_and_model(machine.builder.model.name)[1],
                "gen_ai.conversation.id": self._root,
                "acorn.run.id": run_id,
            }
            if context is not None:
                attributes["acorn.branch"] = context.path
            # A branch that the model called is a child of the run's span. Any other branch is a child of the current
            # span.
            parent_span = None if context is None else self._runs.get(context.parent_id)
            is_called = context is not None and context.call_id is not None
            parent = None
            if parent_span is not None and (is_called or not otel.get_current_span().get_span_context().is_valid):
                parent = otel.set_span_in_context(parent_span)
            first_span = self._first_span if run_id == self._root else None
            links = [otel.Link(_span_context(first_span))] if first_span else None
            self._runs[run_id] = self._instruments.tracer.start_span(
                f"invoke_agent {owner}", parent, otel.SpanKind.INTERNAL, attributes, links
            )

    def root_traceparent(self) -> str | None:
        """Return the W3C `traceparent` of the span of the top-level run, or None without a valid span.

        acorn stores it, so that another process that resumes the run can link its span to this span.
        """
        carrier: dict[str, str] = {}
        if (span := self._runs.get(self._root)) is not None:
            _PROPAGATOR.inject(carrier, otel.set_span_in_context(span))
        return carrier.get("traceparent")

    def close(self, run_id: str) -> None:
        """End the span of a run, and the spans of its unfinished tool calls and model requests."""
        span = self._runs.pop(run_id, None)
        if span is None:
            return
        with self._logging_errors():
            run = self._machines[run_id].run
            error = run.error if run.stop_reason == "error" else None
            for key in [key for key in self._tools if key[0] == run_id]:
                self._tools.pop(key).end()
            if (request := self._requests.pop(run_id, None)) is not None:
                self._abort_request(request, error)
            span.set_attribute("acorn.stop_reason", run.stop_reason or "paused")  # A paused run has no stop reason.
            # The totals of a run have separate names. Otherwise, a sum over all spans would count the tokens twice.
            span.set_attribute("gen_ai.aggregated_usage.input_tokens", run.usage.input_tokens)
            span.set_attribute("gen_ai.aggregated_usage.output_tokens", run.usage.output_tokens)
            if run.cost is not None:
                span.set_attribute("acorn.cost", run.cost)
            if error is not None:
                self._mark_failed(span, type(error).__qualname__, str(error))
            span.end()

    # Code outside of acorn

    @contextmanager
    def inside(self, run_id: str, ask_id: str) -> Generator[None]:
        """Make the span of an ask (an operation of a run) the current span in a `with` block.

        If the ask has no span, the span of the run becomes the current span.
        """
        request = self._requests.get(run_id)
        if request is None or request.ask_id != ask_id:
            span = self._tools.get((run_id, ask_id)) or self._runs.get(run_id)
            listener = None
        else:
            span, retried = request.span, request
            listener = retry_listener.set(lambda retry: self._record_retry(retried, retry))
        context = None if span is None else otel_context.attach(otel.set_span_in_context(span))
        try:
            yield
        finally:
            if context is not None:
                otel_context.detach(context)
            if listener is not None:
                retry_listener.reset(listener)

    def record_first_chunk(self, run_id: str) -> None:
        """Record how many seconds after the start of a model request the first chunk of its response arrived."""
        request = self._requests.get(run_id)
        if request is not None:
            request.span.set_attribute("gen_ai.response.time_to_first_chunk", time.monotonic() - request.started)

    def _record_retry(self, request: _OpenRequest, retry: RetryEvent) -> None:
        with self._logging_errors():
            attributes: Attributes = {"acorn.failed": retry.model}
            if retry.status is not None:
                attributes["http.response.status_code"] = retry.status
            if retry.to is None:
                request.span.add_event("acorn.retry", attributes | {"acorn.wait": retry.wait})
                return
            request.span.add_event("acorn.fallback", attributes | {"acorn.to": retry.to})
            # The metrics must count the request for the model that responds.
            changed = self._chat_attributes(retry.to)
            request.attributes.update(changed)
            request.span.update_name(f"chat {changed['gen_ai.request.model']}")
            request.span.set_attributes(changed)

    # Journal entries

    def on_entry(self, entry: Entry) -> None:
        """Start, change or end the spans that a journal entry affects."""
        run_id = entry.run_id
        span = self._runs.get(run_id)
        if span is None:
            return
        # A `match` statement would be half as fast, and this code runs for every entry.
        if isinstance(entry, journal.ModelRequested):
            self._start_request(entry, span)
        elif isinstance(entry, journal.ModelResponded):
            request = self._requests.pop(run_id, None)
            if request is not None:
                self._finish_request(request, entry)
        elif isinstance(entry, journal.ToolStarted):
            self._start_tool(entry, span)
        elif isinstance(entry, journal.ToolFinished):
            self._finish_tool(entry, span)
        elif isinstance(entry, journal.Compacted):
            self._record_summary(entry, span)
        elif isinstance(entry, journal.MessagesAdded):
            if entry.step == 0:
                span.set_attributes(self._input_attributes(run_id, entry.messages))
        elif isinstance(entry, journal.RunFinished):
            if self._writer is not None:
                span.set_attribute("gen_ai.output.messages", self._writer.output(entry.content))
        elif isinstance(entry, journal.InputRequested):
            span.add_event("acorn.human_asked", {"acorn.request.id": entry.request_id, "gen_ai.tool.name": entry.name})
        elif isinstance(entry, journal.InputReceived):
            span.add_event("acorn.human_answered", {"acorn.request.id": entry.request_id})

    def _chat_attributes(self, model_id: str) -> Attributes:
        """Return the attributes that the span and the metrics of a model request have in common."""
        provider, model = conventions.provider_and_model(model_id)
        return {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider, "gen_ai.request.model": model}

    def _start_chat(self, run_span: Span, attributes: Attributes, start_time: int | None = None) -> Span:
        return self._instruments.tracer.start_span(
            f"chat {attributes['gen_ai.request.model']}",
            otel.set_span_in_context(run_span),
            otel.SpanKind.CLIENT,
            {**attributes, "gen_ai.conversation.id": self._root},
            start_time=start_time,
        )

    def _start_request(self, entry: journal.ModelRequested, run_span: Span) -> None:
        attributes = self._chat_attributes(entry.model)
        sent: Attributes = {}
        asks = self._machines[entry.run_id].asks(entry.at)
        request = next((ask.request for ask in asks if isinstance(ask, AskModel)), None)
        if request is not None:
            sent["gen_ai.request.temperature"] = request.temperature
            sent["gen_ai.request.max_tokens"] = request.max_tokens
            sent |= self._input_attributes(entry.run_id, request.messages)
        span = self._start_chat(run_span, attributes | sent)
        self._requests[entry.run_id] = _OpenRequest(entry.ask_id, span, time.monotonic(), attributes)

    def _finish_request(self, request: _OpenRequest, entry: journal.ModelResponded) -> None:
        model = conventions.provider_and_model(entry.model)[1]
        request.attributes["gen_ai.response.model"] = model
        attributes: Attributes = {
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": (conventions.finish_reason(entry.stop_reason),),
            **conventions.usage_attributes(entry.usage),
        }
        if self._writer is not None:
            attributes["gen_ai.output.messages"] = self._writer.response(entry)
        request.span.set_attributes(attributes)
        request.span.end()
        self._instruments.record(request.attributes, time.monotonic() - request.started, entry.usage)

    def _record_summary(self, entry: journal.Compacted, run_span: Span) -> None:
        """Record the span and the metrics of the model request for a summary.

        The span starts and ends here, because the journal contains this model request only after it is complete.
        """
        seconds, ended = entry.at - entry.asked, time.time_ns()
        attributes = self._chat_attributes(self._machines[entry.run_id].builder.model.name)
        attributes["gen_ai.response.model"] = conventions.provider_and_model(entry.model)[1]
        usage = conventions.usage_attributes(entry.usage)
        span = self._start_chat(run_span, attributes | usage, ended - int(seconds * 1e9))
        span.end(ended)
        self._instruments.record(attributes, seconds, entry.usage)

    def _abort_request(self, request: _OpenRequest, error: BaseException | None) -> None:
        """End the span of a model request without a response. If the request failed, record the error."""
        if error is not None:
            kind = type(error).__qualname__
            self._mark_failed(request.span, kind, str(error))
            status = getattr(error, "status", None)
            if isinstance(status, int):
                request.span.set_attribute("http.response.status_code", status)
            self._instruments.record(
                {**request.attributes, "error.type": kind}, time.monotonic() - request.started, None
            )
        request.span.end()

    def _start_tool(self, entry: journal.ToolStarted, run_span: Span) -> None:
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": entry.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": conventions.call_id(entry.call_id),
        }
        if self._writer is not None:
            attributes["gen_ai.tool.call.arguments"] = self._writer.json_text(entry.arguments)
        self._tools[_tool_key(entry)] = self._instruments.tracer.start_span(
            f"execute_tool {entry.name}", otel.set_span_in_context(run_span), otel.SpanKind.INTERNAL, attributes
        )

    def _finish_tool(self, entry: journal.ToolFinished, run_span: Span) -> None:
        span = self._tools.pop(_tool_key(entry), None)
        if span is None:
            if entry.error is not None:  # The tool is unknown, or the arguments are invalid.
                # The model chose the name of the tool, so the event does not contain the name.
                run_span.add_event("acorn.not_called", {"gen_ai.tool.call.id": conventions.call_id(entry.call_id)})
            return
        if self._writer is not None:
            span.set_attribute("gen_ai.tool.call.result", self._writer.result(entry.content))
        if entry.error is not None:
            kind = entry.error.partition(":")[0]
            self._mark_failed(span, kind if kind.replace(".", "_").isidentifier() else conventions.OTHER, entry.error)
        span.end()

    def _input_attributes(self, run_id: str, messages: Sequence[Message]) -> Attributes:
        """Return the attributes with the content of messages, or an empty dict if spans have no message content."""
        writer = self._writer
        if writer is None:
            return {}
        writer.use_secrets_of(self._machines[run_id].builder.model_setting)
        attributes: Attributes = {"gen_ai.input.messages": writer.messages(messages)}
        if instructions := writer.instructions(messages):
            attributes["gen_ai.system_instructions"] = instructions
        return attributes

    # Errors

    def _mark_failed(self, span: Span, kind: str, message: str) -> None:
        """Mark a span as failed.

        The span contains the error message only if the user allows message content in spans.
        """
        span.set_attribute("error.type", kind)
        span.set_status(otel.StatusCode.ERROR, None if self._writer is None else self._writer.text(message))

    @contextmanager
    def _logging_errors(self) -> Generator[None]:
        """Log the first exception of the `with` block instead of raising it, and ignore the others."""
        try:
            yield
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                logger.error("Telemetry of run %s failed with %s.", self._root, type(error).__name__)
                logger.debug("This error stopped the telemetry:", exc_info=error)


def _tool_key(entry: journal.ToolStarted | journal.ToolFinished) -> tuple[str, str]:
    return entry.run_id, f"{TOOL_ASK_PREFIX}{entry.step} {entry.call_id}"


def _span_context(traceparent: str) -> otel.SpanContext:
    return otel.get_current_span(_PROPAGATOR.extract({"traceparent": traceparent})).get_span_context()
