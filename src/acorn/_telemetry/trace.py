"""The spans of a tree of runs: a listener of its journal, and the span that code of the user's is inside of.

    invoke_agent Researcher
      chat gpt-4o
      execute_tool search        what the function does hangs below it
      invoke_agent FactChecker   a branch, or an agent that is a tool

Spans are begun and ended as entries are heard. None is current but while code runs that is not ours: a tool, a hook, a
model that is being asked. So none is left behind between two chunks of a stream. What fails here is logged, and harms
no run. Only `switch.py` loads this, where the program has set up OpenTelemetry.
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
from acorn._telemetry.conventions import ContentWriter, call_id
from acorn._telemetry.meters import meters_of, tracer_of
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
from acorn.models.port import RetryEvent, setbacks
from acorn.record import TOOL
from acorn.types import JsonObject, Usage

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

Key = tuple[str, str]
"""A run and one of its asks."""
Attributes = JsonObject


class _OpenRequest(NamedTuple):
    """A request that is under way."""

    span: Span
    began: float
    attributes: Attributes
    """What its metrics are counted by."""


class _OpenSpan:
    """Enters and leaves."""

    __slots__ = ("_ask_id", "_inside", "_run_id", "_trace")

    def __init__(self, trace: Trace, run_id: str, ask_id: str) -> None:
        self._trace, self._run_id, self._ask_id = trace, run_id, ask_id

    def __enter__(self) -> None:
        self._inside = self._trace.enter(self._run_id, self._ask_id)

    def __exit__(self, *_: object) -> None:
        self._trace.leave(self._inside)


class Inside(NamedTuple):
    """What is current while code runs that is not ours, and what was before it."""

    context: Token[otel.Context]
    setbacks: Token[Any] | None


class Trace:
    """Follows the runs of one tree."""

    def __init__(
        self,
        loops: Mapping[str, Machine],
        root: str,
        tracer_provider: TracerProvider,
        meter_provider: MeterProvider | None,
        first_part: str | None,
        *,
        has_content: bool,
    ) -> None:
        self._loops, self._root, self._first_part = loops, root, first_part
        self._tracer = tracer_of(tracer_provider)
        self._meters = meters_of(meter_provider)
        self._writer = ContentWriter() if has_content else None
        self._runs: dict[str, Span] = {}
        self._tools: dict[Key, Span] = {}
        self._requests: dict[Key, _OpenRequest] = {}
        self._has_failed = False

    # The ends of a run

    def open(self, run_id: str) -> None:
        """A run begins, or goes on."""
        try:
            self._open(run_id)
        except Exception as error:
            self._tell_of(error)

    def _open(self, run_id: str) -> None:
        loop = self._loops[run_id]
        context, owner = loop.context, loop.spec.owner
        attributes: Attributes = {
            conventions.OPERATION: conventions.INVOKE_AGENT,
            conventions.AGENT: owner,
            conventions.MODEL: conventions.provider_and_model(loop.builder.model.name)[1],
            conventions.CONVERSATION: self._root,
            conventions.RUN: run_id,
        }
        if context is not None:
            attributes[conventions.BRANCH] = context.path
        # A branch that was called is begun outside of all code; any other inside of what has begun it.
        above = None if context is None else self._runs.get(context.parent_id)
        is_called = context is not None and context.call_id is not None
        parent = None
        if above is not None and (is_called or not get_current_span().get_span_context().is_valid):
            parent = set_span_in_context(above)
        links = [Link(_read(self._first_part))] if self._first_part and run_id == self._root else None
        name = f"{conventions.INVOKE_AGENT} {owner}"
        self._runs[run_id] = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes, links)

    def span_of_root(self) -> str | None:
        """The span that the root has begun with, as W3C's `traceparent`, to be linked when it goes on elsewhere."""
        span = self._runs.get(self._root)
        context = None if span is None else span.get_span_context()
        if context is None or not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def close(self, run_id: str) -> None:
        """A run is over; what was under way in it ends with it."""
        span = self._runs.pop(run_id, None)
        if span is not None:
            try:
                self._close(run_id, span)
            except Exception as error:
                self._tell_of(error)

    def _close(self, run_id: str, span: Span) -> None:
        run = self._loops[run_id].run
        error = run.error if run.stop_reason == "error" else None
        for key in [key for key in self._tools if key[0] == run_id]:
            self._tools.pop(key).end()
        for key in [key for key in self._requests if key[0] == run_id]:
            self._end_request(self._requests.pop(key), error)
        span.set_attribute(conventions.STOP_REASON, run.stop_reason or "paused")  # code that waits for a branch is left
        span.set_attribute(conventions.TOTAL_INPUT_TOKENS, run.usage.input_tokens)
        span.set_attribute(conventions.TOTAL_OUTPUT_TOKENS, run.usage.output_tokens)
        if run.cost is not None:
            span.set_attribute(conventions.COST, run.cost)
        if error is not None:
            self._fail(span, type(error).__qualname__, str(error))
        span.end()

    # Where code is that is not ours

    def enter(self, run_id: str, ask_id: str) -> Inside | None:
        """What happens from here to `leave` hangs below the span of this ask, else of the run."""
        try:
            key = (run_id, ask_id)
            asked = self._requests.get(key)
            span = self._tools.get(key) or self._runs.get(run_id) if asked is None else asked.span
            if span is None:
                return None
            heard = None if asked is None else setbacks.set(lambda setback: self._hear_setback(asked, setback))
            return Inside(otel.attach(set_span_in_context(span)), heard)
        except Exception as error:
            self._tell_of(error)
            return None

    def leave(self, inside: Inside | None) -> None:
        """Back to what was current before."""
        if inside is not None:
            otel.detach(inside.context)
            if inside.setbacks is not None:
                setbacks.reset(inside.setbacks)

    def inside(self, run_id: str, ask_id: str) -> _OpenSpan:
        """Both, as a block."""
        return _OpenSpan(self, run_id, ask_id)

    def first_chunk(self, run_id: str, ask_id: str) -> None:
        """Something of an answer has come."""
        asked = self._requests.get((run_id, ask_id))
        if asked is not None:
            asked.span.set_attribute(conventions.FIRST_CHUNK, time.monotonic() - asked.began)

    def _hear_setback(self, asked: _OpenRequest, setback: RetryEvent) -> None:
        try:
            attributes: Attributes = {conventions.FAILED: setback.model}
            if setback.status is not None:
                attributes[conventions.STATUS] = setback.status
            if setback.to is None:
                asked.span.add_event(conventions.RETRY, attributes | {conventions.WAIT: setback.wait})
                return
            asked.span.add_event(conventions.FALLBACK, attributes | {conventions.TO: setback.to})
            # The one that answers is the one that is paid.
            provider, model = conventions.provider_and_model(setback.to)
            asked.attributes.update({conventions.PROVIDER: provider, conventions.MODEL: model})
            asked.span.update_name(f"{conventions.CHAT} {model}")
            asked.span.set_attributes({conventions.PROVIDER: provider, conventions.MODEL: model})
        except Exception as error:
            self._tell_of(error)

    # The journal

    def hear(self, entry: Entry) -> None:
        """Make of an entry what it means here."""
        run_id = entry.run_id
        span = self._runs.get(run_id)
        if span is None:
            return
        # Not `match`, which takes twice as long and is on the way of every entry.
        if isinstance(entry, ModelRequested):
            self._ask(entry, span)
        elif isinstance(entry, ModelResponded):
            asked = self._asked(run_id)
            if asked is not None:
                self._answer(asked, entry)
        elif isinstance(entry, ToolStarted):
            self._begin_tool(entry, span)
        elif isinstance(entry, ToolFinished):
            self._end_tool(entry, span)
        elif isinstance(entry, Compacted):
            self._sum_up(entry, span)
        elif isinstance(entry, MessagesAdded):
            if self._writer is not None and entry.step == 0:
                self._begin_content(entry, span)
        elif isinstance(entry, RunFinished):
            if self._writer is not None:
                span.set_attribute(conventions.OUTPUT, self._writer.output(entry.content))
        elif isinstance(entry, InputRequested):
            span.add_event(
                conventions.HUMAN_ASKED, {conventions.REQUEST: entry.request_id, conventions.TOOL: entry.name}
            )
        elif isinstance(entry, InputReceived):
            span.add_event(conventions.HUMAN_ANSWERED, {conventions.REQUEST: entry.request_id})

    def _ask(self, entry: ModelRequested, above: Span) -> None:
        loop = self._loops[entry.run_id]
        provider, model = conventions.provider_and_model(entry.model)
        counted: Attributes = {
            conventions.OPERATION: conventions.CHAT,
            conventions.PROVIDER: provider,
            conventions.MODEL: model,
        }
        attributes: Attributes = {**counted, conventions.CONVERSATION: self._root}
        request = next((ask.request for ask in loop.asks(entry.at) if isinstance(ask, AskModel)), None)
        if request is not None:
            attributes[conventions.TEMPERATURE] = request.temperature
            attributes[conventions.MAX_TOKENS] = request.max_tokens
            if self._writer is not None:
                self._writer.veil_for(loop.setting("model"))
                attributes[conventions.INPUT] = self._writer.messages(request.messages)
                if instructions := self._writer.instructions(request.messages):
                    attributes[conventions.INSTRUCTIONS] = instructions
        parent = set_span_in_context(above)
        span = self._tracer.start_span(f"{conventions.CHAT} {model}", parent, SpanKind.CLIENT, attributes)
        self._requests[entry.run_id, entry.ask_id] = _OpenRequest(span, time.monotonic(), counted)

    def _asked(self, run_id: str) -> _OpenRequest | None:
        """The request of a run that is under way, which is one at most."""
        key = next((key for key in self._requests if key[0] == run_id), None)
        return None if key is None else self._requests.pop(key)

    def _answer(self, asked: _OpenRequest, entry: ModelResponded) -> None:
        span = asked.span
        model = conventions.provider_and_model(entry.model)[1]
        asked.attributes[conventions.ANSWERED_BY] = model
        span.set_attributes(
            {
                conventions.ANSWERED_BY: model,
                conventions.FINISH_REASONS: (conventions.finish_reason(entry.stop_reason),),
                **_used(entry.usage),
            }
        )
        if self._writer is not None:
            span.set_attribute(conventions.OUTPUT, self._writer.answer(entry))
        span.end()
        self._meters.record(asked.attributes, time.monotonic() - asked.began, entry.usage)

    def _sum_up(self, entry: Compacted, above: Span) -> None:
        """A summary was asked for aside, and is heard of when it is there."""
        seconds, ended = entry.at - entry.asked, time.time_ns()
        provider, model = conventions.provider_and_model(self._loops[entry.run_id].builder.model.name)
        counted: Attributes = {
            conventions.OPERATION: conventions.CHAT,
            conventions.PROVIDER: provider,
            conventions.MODEL: model,
            conventions.ANSWERED_BY: conventions.provider_and_model(entry.model)[1],
        }
        attributes = {**counted, conventions.CONVERSATION: self._root, **_used(entry.usage)}
        self._tracer.start_span(
            f"{conventions.CHAT} {model}",
            set_span_in_context(above),
            SpanKind.CLIENT,
            attributes,
            start_time=ended - int(seconds * 1e9),
        ).end(ended)
        self._meters.record(counted, seconds, entry.usage)

    def _end_request(self, asked: _OpenRequest, error: BaseException | None) -> None:
        """A request that brought no answer; with an error, it failed of that."""
        if error is not None:
            kind = type(error).__qualname__
            self._fail(asked.span, kind, str(error))
            status = getattr(error, "status", None)
            if isinstance(status, int):
                asked.span.set_attribute(conventions.STATUS, status)
            self._meters.record({**asked.attributes, conventions.ERROR: kind}, time.monotonic() - asked.began, None)
        asked.span.end()

    def _begin_tool(self, entry: ToolStarted, above: Span) -> None:
        attributes: Attributes = {
            conventions.OPERATION: conventions.EXECUTE_TOOL,
            conventions.TOOL: entry.name,
            conventions.TOOL_TYPE: "function",
            conventions.CALL: call_id(entry.call_id),
        }
        if self._writer is not None:
            attributes[conventions.ARGUMENTS] = self._writer.arguments(entry.arguments)
        parent = set_span_in_context(above)
        span = self._tracer.start_span(
            f"{conventions.EXECUTE_TOOL} {entry.name}", parent, SpanKind.INTERNAL, attributes
        )
        self._tools[entry.run_id, f"{TOOL}{entry.step} {entry.call_id}"] = span

    def _end_tool(self, entry: ToolFinished, above: Span) -> None:
        span = self._tools.pop((entry.run_id, f"{TOOL}{entry.step} {entry.call_id}"), None)
        if span is None:
            if entry.error is not None:  # unknown, or with arguments that do not fit; its name is the model's word
                above.add_event(conventions.NOT_CALLED, {conventions.CALL: call_id(entry.call_id)})
            return
        if self._writer is not None:
            span.set_attribute(conventions.RESULT, self._writer.result(entry.content))
        if entry.error is not None:
            kind = entry.error.partition(":")[0]
            self._fail(span, kind if kind.replace(".", "_").isidentifier() else conventions.OTHER, entry.error)
        span.end()

    def _begin_content(self, entry: MessagesAdded, span: Span) -> None:
        writer = self._writer
        if writer is not None:
            writer.veil_for(self._loops[entry.run_id].setting("model"))
            span.set_attribute(conventions.INPUT, writer.messages(entry.messages))
            if instructions := writer.instructions(entry.messages):
                span.set_attribute(conventions.INSTRUCTIONS, instructions)

    # What goes wrong

    def _fail(self, span: Span, kind: str, words: str) -> None:
        """The words of an error may tell of the conversation."""
        span.set_attribute(conventions.ERROR, kind)
        span.set_status(Status(StatusCode.ERROR, None if self._writer is None else self._writer.text(words)))

    def _tell_of(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.error("Telemetry of run %s failed with %s.", self._root, type(error).__name__)
            logger.debug("The error:", exc_info=error)


def _used(usage: Usage) -> Attributes:
    used: Attributes = {conventions.INPUT_TOKENS: usage.input_tokens, conventions.OUTPUT_TOKENS: usage.output_tokens}
    if usage.cached_tokens:
        used[conventions.CACHED_TOKENS] = usage.cached_tokens
    if usage.cache_write_tokens:
        used[conventions.CACHE_WRITE_TOKENS] = usage.cache_write_tokens
    if usage.reasoning_tokens:
        used[conventions.REASONING_TOKENS] = usage.reasoning_tokens
    return used


def _read(traceparent: str) -> SpanContext:
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
