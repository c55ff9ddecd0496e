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
from collections.abc import Mapping
from contextvars import Token
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry import context as otel
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    set_span_in_context,
)

from acorn._base.log import logger
from acorn._machine.asks import AskModel
from acorn._machine.machine import Machine
from acorn._telemetry import conventions
from acorn._telemetry.conventions import ContentWriter, call_id, meters_of, tracer_of
from acorn.journal import (
    Compacted,
    Entry,
    InputReceived,
    InputRequested,
    MessagesAdded,
    ModelRequested,
    ModelResponded,
    RunFinished,
    ToolFinished,
    ToolStarted,
)
from acorn.models.port import RetryEvent, retry_listener
from acorn.record import TOOL_ASK_PREFIX
from acorn.types import JsonObject, Usage

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

Key = tuple[str, str]
"""A run id and the id of one ask, which is an operation that the run has requested."""
Attributes = JsonObject


class _OpenRequest(NamedTuple):
    """A model request that has no response yet, with its span and the attributes of its metrics."""

    span: Span
    started: float
    attributes: Attributes
    """The attributes of the metrics, not of the span."""


class _SpanBlock:
    """A context manager that makes the span of an ask (an operation of a run) the current span."""

    __slots__ = ("_ask_id", "_run_id", "_tokens", "_trace")

    def __init__(self, trace: Trace, run_id: str, ask_id: str) -> None:
        self._trace, self._run_id, self._ask_id = trace, run_id, ask_id

    def __enter__(self) -> None:
        self._tokens = self._trace.enter(self._run_id, self._ask_id)

    def __exit__(self, *_: object) -> None:
        self._trace.leave(self._tokens)


class ContextTokens(NamedTuple):
    """The `contextvars` tokens with which `Trace.leave` restores the previous span and the previous retry listener."""

    context: Token[otel.Context]
    retry_listener: Token[Any] | None


class Trace:
    """The unfinished spans of a run and its branches. Journal entries start and end these spans."""

    def __init__(
        self,
        machines: Mapping[str, Machine],
        root: str,
        tracer_provider: TracerProvider,
        meter_provider: MeterProvider | None,
        first_span: str | None,
        *,
        has_content: bool,
    ) -> None:
        self._machines, self._root, self._first_span = machines, root, first_span
        self._tracer = tracer_of(tracer_provider)
        self._meters = meters_of(meter_provider)
        self._writer = ContentWriter() if has_content else None
        self._runs: dict[str, Span] = {}
        self._tools: dict[Key, Span] = {}
        self._requests: dict[Key, _OpenRequest] = {}
        self._has_failed = False

    # Start and end of a run

    def open(self, run_id: str) -> None:
        """Start the span of a run when the run starts or resumes."""
        try:
            self._open(run_id)
        except Exception as error:
            self._log_error(error)

    def _open(self, run_id: str) -> None:
        machine = self._machines[run_id]
        context, owner = machine.context, machine.spec.owner
        attributes: Attributes = {
            conventions.OPERATION: conventions.INVOKE_AGENT,
            conventions.AGENT: owner,
            conventions.MODEL: conventions.provider_and_model(machine.builder.model.name)[1],
            conventions.CONVERSATION: self._root,
            conventions.RUN: run_id,
        }
        if context is not None:
            attributes[conventions.BRANCH] = context.path
        # A branch that the model called is a child of the run's span. Any other branch is a child of the current span.
        parent_span = None if context is None else self._runs.get(context.parent_id)
        is_called = context is not None and context.call_id is not None
        parent = None
        if parent_span is not None and (is_called or not get_current_span().get_span_context().is_valid):
            parent = set_span_in_context(parent_span)
        links = [Link(_parse_traceparent(self._first_span))] if self._first_span and run_id == self._root else None
        name = f"{conventions.INVOKE_AGENT} {owner}"
        self._runs[run_id] = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes, links)

    def root_traceparent(self) -> str | None:
        """Return the W3C `traceparent` of the span of the top-level run, or None without a valid span.

        acorn stores it, so that another process that resumes the run can link its span to this span.
        """
        span = self._runs.get(self._root)
        context = None if span is None else span.get_span_context()
        if context is None or not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def close(self, run_id: str) -> None:
        """End the span of a run, and the spans of its unfinished tool calls and model requests."""
        span = self._runs.pop(run_id, None)
        if span is not None:
            try:
                self._close(run_id, span)
            except Exception as error:
                self._log_error(error)

    def _close(self, run_id: str, span: Span) -> None:
        run = self._machines[run_id].run
        error = run.error if run.stop_reason == "error" else None
        for key in [key for key in self._tools if key[0] == run_id]:
            self._tools.pop(key).end()
        for key in [key for key in self._requests if key[0] == run_id]:
            self._abort_request(self._requests.pop(key), error)
        span.set_attribute(conventions.STOP_REASON, run.stop_reason or "paused")  # A paused run has no stop reason.
        span.set_attribute(conventions.TOTAL_INPUT_TOKENS, run.usage.input_tokens)
        span.set_attribute(conventions.TOTAL_OUTPUT_TOKENS, run.usage.output_tokens)
        if run.cost is not None:
            span.set_attribute(conventions.COST, run.cost)
        if error is not None:
            self._mark_failed(span, type(error).__qualname__, str(error))
        span.end()

    # Code outside of acorn

    def enter(self, run_id: str, ask_id: str) -> ContextTokens | None:
        """Make the span of an ask (an operation of a run) the current span until `leave` is called.

        If the ask has no span, the span of the run becomes the current span.
        """
        try:
            key = (run_id, ask_id)
            request = self._requests.get(key)
            span = self._tools.get(key) or self._runs.get(run_id) if request is None else request.span
            if span is None:
                return None
            listener = None if request is None else retry_listener.set(lambda retry: self._record_retry(request, retry))
            return ContextTokens(otel.attach(set_span_in_context(span)), listener)
        except Exception as error:
            self._log_error(error)
            return None

    def leave(self, tokens: ContextTokens | None) -> None:
        """Restore the span and the retry listener that were current before `enter`."""
        if tokens is not None:
            otel.detach(tokens.context)
            if tokens.retry_listener is not None:
                retry_listener.reset(tokens.retry_listener)

    def inside(self, run_id: str, ask_id: str) -> _SpanBlock:
        """Return a context manager that makes the span of an ask (an operation of a run) the current span."""
        return _SpanBlock(self, run_id, ask_id)

    def record_first_chunk(self, run_id: str, ask_id: str) -> None:
        """Record how many seconds after the start of a model request the first chunk of its response arrived."""
        request = self._requests.get((run_id, ask_id))
        if request is not None:
            request.span.set_attribute(conventions.FIRST_CHUNK, time.monotonic() - request.started)

    def _record_retry(self, request: _OpenRequest, retry: RetryEvent) -> None:
        try:
            attributes: Attributes = {conventions.FAILED: retry.model}
            if retry.status is not None:
                attributes[conventions.STATUS] = retry.status
            if retry.to is None:
                request.span.add_event(conventions.RETRY, attributes | {conventions.WAIT: retry.wait})
                return
            request.span.add_event(conventions.FALLBACK, attributes | {conventions.TO: retry.to})
            # The metrics must count the request for the model that responds.
            provider, model = conventions.provider_and_model(retry.to)
            request.attributes.update({conventions.PROVIDER: provider, conventions.MODEL: model})
            request.span.update_name(f"{conventions.CHAT} {model}")
            request.span.set_attributes({conventions.PROVIDER: provider, conventions.MODEL: model})
        except Exception as error:
            self._log_error(error)

    # Journal entries

    def on_entry(self, entry: Entry) -> None:
        """Start, change or end the spans that a journal entry affects."""
        run_id = entry.run_id
        span = self._runs.get(run_id)
        if span is None:
            return
        # A `match` statement would be half as fast, and this code runs for every entry.
        if isinstance(entry, ModelRequested):
            self._start_request(entry, span)
        elif isinstance(entry, ModelResponded):
            request = self._take_request(run_id)
            if request is not None:
                self._finish_request(request, entry)
        elif isinstance(entry, ToolStarted):
            self._start_tool(entry, span)
        elif isinstance(entry, ToolFinished):
            self._finish_tool(entry, span)
        elif isinstance(entry, Compacted):
            self._record_summary(entry, span)
        elif isinstance(entry, MessagesAdded):
            if self._writer is not None and entry.step == 0:
                self._record_input(entry, span)
        elif isinstance(entry, RunFinished):
            if self._writer is not None:
                span.set_attribute(conventions.OUTPUT, self._writer.output(entry.content))
        elif isinstance(entry, InputRequested):
            span.add_event(
                conventions.HUMAN_ASKED, {conventions.REQUEST: entry.request_id, conventions.TOOL: entry.name}
            )
        elif isinstance(entry, InputReceived):
            span.add_event(conventions.HUMAN_ANSWERED, {conventions.REQUEST: entry.request_id})

    def _start_request(self, entry: ModelRequested, run_span: Span) -> None:
        machine = self._machines[entry.run_id]
        provider, model = conventions.provider_and_model(entry.model)
        metric_attributes: Attributes = {
            conventions.OPERATION: conventions.CHAT,
            conventions.PROVIDER: provider,
            conventions.MODEL: model,
        }
        attributes: Attributes = {**metric_attributes, conventions.CONVERSATION: self._root}
        request = next((ask.request for ask in machine.asks(entry.at) if isinstance(ask, AskModel)), None)
        if request is not None:
            attributes[conventions.TEMPERATURE] = request.temperature
            attributes[conventions.MAX_TOKENS] = request.max_tokens
            if self._writer is not None:
                self._writer.use_secrets_of(machine.setting("model"))
                attributes[conventions.INPUT] = self._writer.messages(request.messages)
                if instructions := self._writer.instructions(request.messages):
                    attributes[conventions.INSTRUCTIONS] = instructions
        parent = set_span_in_context(run_span)
        span = self._tracer.start_span(f"{conventions.CHAT} {model}", parent, SpanKind.CLIENT, attributes)
        self._requests[entry.run_id, entry.ask_id] = _OpenRequest(span, time.monotonic(), metric_attributes)

    def _take_request(self, run_id: str) -> _OpenRequest | None:
        """Return the unanswered model request of a run and remove it from the trace, or return None.

        A run has at most one unanswered model request.
        """
        key = next((key for key in self._requests if key[0] == run_id), None)
        return None if key is None else self._requests.pop(key)

    def _finish_request(self, request: _OpenRequest, entry: ModelResponded) -> None:
        span = request.span
        model = conventions.provider_and_model(entry.model)[1]
        request.attributes[conventions.ANSWERED_BY] = model
        span.set_attributes(
            {
                conventions.ANSWERED_BY: model,
                conventions.FINISH_REASONS: (conventions.finish_reason(entry.stop_reason),),
                **_usage_attributes(entry.usage),
            }
        )
        if self._writer is not None:
            span.set_attribute(conventions.OUTPUT, self._writer.response(entry))
        span.end()
        self._meters.record(request.attributes, time.monotonic() - request.started, entry.usage)

    def _record_summary(self, entry: Compacted, run_span: Span) -> None:
        """Record the span and the metrics of the model request for a summary.

        The span starts and ends here, because the journal contains this model request only after it is complete.
        """
        seconds, ended = entry.at - entry.asked, time.time_ns()
        provider, model = conventions.provider_and_model(self._machines[entry.run_id].builder.model.name)
        metric_attributes: Attributes = {
            conventions.OPERATION: conventions.CHAT,
            conventions.PROVIDER: provider,
            conventions.MODEL: model,
            conventions.ANSWERED_BY: conventions.provider_and_model(entry.model)[1],
        }
        attributes = {**metric_attributes, conventions.CONVERSATION: self._root, **_usage_attributes(entry.usage)}
        self._tracer.start_span(
            f"{conventions.CHAT} {model}",
            set_span_in_context(run_span),
            SpanKind.CLIENT,
            attributes,
            start_time=ended - int(seconds * 1e9),
        ).end(ended)
        self._meters.record(metric_attributes, seconds, entry.usage)

    def _abort_request(self, request: _OpenRequest, error: BaseException | None) -> None:
        """End the span of a model request without a response. If the request failed, record the error."""
        if error is not None:
            kind = type(error).__qualname__
            self._mark_failed(request.span, kind, str(error))
            status = getattr(error, "status", None)
            if isinstance(status, int):
                request.span.set_attribute(conventions.STATUS, status)
            self._meters.record(
                {**request.attributes, conventions.ERROR: kind}, time.monotonic() - request.started, None
            )
        request.span.end()

    def _start_tool(self, entry: ToolStarted, run_span: Span) -> None:
        attributes: Attributes = {
            conventions.OPERATION: conventions.EXECUTE_TOOL,
            conventions.TOOL: entry.name,
            conventions.TOOL_TYPE: "function",
            conventions.CALL: call_id(entry.call_id),
        }
        if self._writer is not None:
            attributes[conventions.ARGUMENTS] = self._writer.arguments(entry.arguments)
        parent = set_span_in_context(run_span)
        span = self._tracer.start_span(
            f"{conventions.EXECUTE_TOOL} {entry.name}", parent, SpanKind.INTERNAL, attributes
        )
        self._tools[entry.run_id, f"{TOOL_ASK_PREFIX}{entry.step} {entry.call_id}"] = span

    def _finish_tool(self, entry: ToolFinished, run_span: Span) -> None:
        span = self._tools.pop((entry.run_id, f"{TOOL_ASK_PREFIX}{entry.step} {entry.call_id}"), None)
        if span is None:
            if entry.error is not None:  # The tool is unknown, or the arguments are invalid.
                # The model chose the name of the tool, so the event does not contain the name.
                run_span.add_event(conventions.NOT_CALLED, {conventions.CALL: call_id(entry.call_id)})
            return
        if self._writer is not None:
            span.set_attribute(conventions.RESULT, self._writer.result(entry.content))
        if entry.error is not None:
            kind = entry.error.partition(":")[0]
            self._mark_failed(span, kind if kind.replace(".", "_").isidentifier() else conventions.OTHER, entry.error)
        span.end()

    def _record_input(self, entry: MessagesAdded, span: Span) -> None:
        writer = self._writer
        if writer is not None:
            writer.use_secrets_of(self._machines[entry.run_id].setting("model"))
            span.set_attribute(conventions.INPUT, writer.messages(entry.messages))
            if instructions := writer.instructions(entry.messages):
                span.set_attribute(conventions.INSTRUCTIONS, instructions)

    # Errors

    def _mark_failed(self, span: Span, kind: str, message: str) -> None:
        """Mark a span as failed.

        The span contains the error message only if the user allows message content in spans.
        """
        span.set_attribute(conventions.ERROR, kind)
        span.set_status(Status(StatusCode.ERROR, None if self._writer is None else self._writer.text(message)))

    def _log_error(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.error("Telemetry of run %s failed with %s.", self._root, type(error).__name__)
            logger.debug("This error stopped the telemetry:", exc_info=error)


def _usage_attributes(usage: Usage) -> Attributes:
    attributes: Attributes = {
        conventions.INPUT_TOKENS: usage.input_tokens,
        conventions.OUTPUT_TOKENS: usage.output_tokens,
    }
    if usage.cached_tokens:
        attributes[conventions.CACHED_TOKENS] = usage.cached_tokens
    if usage.cache_write_tokens:
        attributes[conventions.CACHE_WRITE_TOKENS] = usage.cache_write_tokens
    if usage.reasoning_tokens:
        attributes[conventions.REASONING_TOKENS] = usage.reasoning_tokens
    return attributes


def _parse_traceparent(traceparent: str) -> SpanContext:
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
