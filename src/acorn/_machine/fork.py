"""What a run keeps of another: its events before a step, the input, and the prompt.

`using(thread=..., before=...)` makes it; the loop begins with the entries that it tells. Whatever is wrong with it is
said before any model is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from acorn._declare.spec import Spec
from acorn._formats.content import text_of
from acorn._formats.json import describe_error, excerpt, shorten, to_json_data
from acorn._formats.schema.problems import input_problem
from acorn._formats.xml.decode import decode_xml
from acorn._history.first_messages import input_message
from acorn._record.saved_form import read_instance
from acorn.errors import AcornError, InputError, ParseError
from acorn.journal import Entry
from acorn.record import Message, Run
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    Event,
    MessageEvent,
    ThreadEvents,
    ToolCallEvent,
    ToolResultEvent,
    parse_events,
)
from acorn.thread.messages import events_of, whole
from acorn.thread.to_journal import close_calls, entries_of_fork
from acorn.types import ForkedFrom


@dataclass(frozen=True, eq=False)
class Fork:
    """The kept part of a run."""

    events: Sequence[AgentEvent]
    """Those of the run itself, before the step."""
    origin: ForkedFrom
    source: Any = None
    """The input of that run, where it is known: plain data, or an instance."""

    @property
    def before(self) -> int:
        return self.origin.before

    @property
    def prompt(self) -> str:
        """The prompt that was kept."""
        return text_of(whole([system])["content"]) if (system := self._system) is not None else ""

    @property
    def _system(self) -> MessageEvent | None:
        first = self.events[0] if self.events else None
        return first if isinstance(first, MessageEvent) and first.role == "system" and first.iteration == 0 else None

    def entries(self, run_id: str, at: float, prompt: str) -> list[Entry]:
        """The beginning of the journal of the new run."""
        events = list(self.events)
        if prompt != self.prompt:
            rest = events if self._system is None else events[1:]
            events = [MessageEvent(role="system", content=prompt), *rest] if prompt.strip() else rest
        return entries_of_fork(events, run_id, at)

    def input_for(self, spec: Spec) -> BaseModel:
        """The input of the run that is kept, as the module has it."""
        if spec.input.is_empty:
            return spec.input.from_call(spec.owner, (), {})
        if self.source is not None:
            given = self._restored(spec)
            if given is not None and self._where(input_message(spec, given)) is not None:
                return given
        failure: Exception | None = None
        for at in self._inputs():
            try:
                return decode_xml(_text(self.events[at]), spec.input, spec.xml_input_root)
            except (ParseError, ValidationError, ValueError) as error:
                failure = failure or error
        why = "" if failure is None else f" ({_words(failure)})"
        message = (
            f"The input of the thread does not fit `{spec.owner}`{why}; say the input in the call, as in "
            f"`{spec.owner}().using(thread=events, before={self.before})(...)`, or fork by the class of the run."
        )
        raise InputError(
            message, problems=[input_problem("", "an input of the module", "the thread", message)]
        ) from failure

    def with_input(self, spec: Spec, given: BaseModel) -> Fork:
        """The same with another input in the place of the one that was kept."""
        source = self._restored(spec) if self.source is not None else None
        at = None if source is None else self._where(input_message(spec, source))
        if at is None:
            at = next(iter(self._inputs()), None)
        if at is None:
            message = (
                f"The thread has no message that holds an input of `{spec.owner}`, so that the one of the call has no "
                f"place; call it without one."
            )
            raise InputError(
                message, problems=[input_problem("", "no input", excerpt(to_json_data(given), 200), message)]
            )
        events = list(self.events)
        events[at : at + 1] = events_of(input_message(spec, given), 0)
        return replace(self, events=events, source=given)

    def _restored(self, spec: Spec) -> BaseModel | None:
        try:
            return read_instance(spec.input.schema, to_json_data(self.source), "input")
        except AcornError:
            return None

    def _inputs(self) -> list[int]:
        """The messages that may hold the input, the last first: those of the user before the first turn."""
        found = [
            at
            for at, event in enumerate(self.events)
            if isinstance(event, MessageEvent) and event.role == "user" and event.iteration == 0
        ]
        return found[::-1]

    def _where(self, opening: Message) -> int | None:
        return next((at for at in self._inputs() if whole([self._said(at)]) == opening), None)

    def _said(self, at: int) -> MessageEvent:
        event = self.events[at]
        assert isinstance(event, MessageEvent)
        return event


def fork_of(thread: Any, before: Any, owner: str) -> Fork:
    """What is kept of a thread, checked; `owner` names the module in errors."""
    if thread is None:
        raise _wrong("before", f"`before` of `{owner}.using` needs `thread`, the events of the run to fork.", before)
    source = thread.thread if isinstance(thread, Run) else thread
    events = _events(source, owner)
    outer = min(events, key=_depth)
    if outer.branch is not None:
        raise _wrong(
            "thread",
            f"The events in `thread` of `{owner}.using` are those of the branch `{outer.branch}`, which has its "
            f"beginning from the run above it. Fork the run that began it: before the step that called the branch to "
            f"have it called anew, before the next one to keep what it returned.",
            source,
        )
    own = [event for event in events if (event.branch, event.run_id) == (outer.branch, outer.run_id)]
    step = _checked_step(before, own, owner)
    kept = [event.model_copy(deep=True) for event in own if event.iteration < step and not _is_end(event)]
    close_calls(kept)
    _check_calls(kept, owner)
    known = source if isinstance(source, ThreadEvents) else None
    origin = ForkedFrom(None if known is None else known.run_id, step)
    return Fork(kept, origin, None if known is None else known.input)


def _events(source: Any, owner: str) -> list[AgentEvent]:
    what = f"`thread` of `{owner}.using` must be the events of a run, such as `run.thread`, or its record"
    if isinstance(source, str | bytes):
        raise _wrong("thread", f"{what}, got text; `acorn.thread.parse_events` reads events from JSON.", source)
    if isinstance(source, Mapping):
        raise _wrong(
            "thread", f"{what}, got a dict; a run that was saved is read by `acorn.Run.from_json(text)`.", source
        )
    if not isinstance(source, list | tuple):
        raise _wrong("thread", f"{what}, got {excerpt(source)}.", source)
    if not source:
        raise _wrong("thread", f"`thread` of `{owner}.using` has no events; nothing can be kept of it.", source)
    for at, event in enumerate(source):
        if isinstance(event, Event):
            continue
        if not isinstance(event, dict) or "type" not in event:
            is_message = isinstance(event, dict) and "role" in event
            hint = "; messages go into `history`" if is_message else ""
            raise _wrong(
                f"thread[{at}]", f"`thread[{at}]` of `{owner}.using` is no event: {excerpt(event)}{hint}.", event
            )
    if all(isinstance(event, Event) for event in source):
        return list(source)
    try:
        return parse_events(source)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, *path = first["loc"]
        raise _wrong(
            f"thread[{where}]",
            f"`thread[{where}]` of `{owner}.using` is no event: {'.'.join(map(str, path))}: {first['msg']}.",
            source[int(where)],
        ) from error


def _checked_step(before: Any, events: Sequence[AgentEvent], owner: str) -> int:
    last = max(event.iteration for event in events)
    is_over = any(event.iteration == last and _is_stopped(event) for event in events)
    most = max(last if is_over else last + 1, 1)
    if isinstance(before, int) and not isinstance(before, bool) and 1 <= before <= most:
        return before
    if before is None:
        message = (
            f"`before` is missing: say with which step `{owner}` goes on, 1 to {most}, as in "
            f"`using(thread=run.thread, before={most})`."
        )
    else:
        why = f": the run ended in step {last}" if is_over else f": the thread has {last} whole"
        message = f"`before` of `{owner}.using` must be a step from 1 to {most}{why}; got {excerpt(before)}."
    raise _wrong("before", message, before)


def _is_stopped(event: AgentEvent) -> bool:
    """Whether its step is the last: the run has ended, or something in it was never completed."""
    return isinstance(event, CompletionEvent) or (
        isinstance(event, ErrorEvent) and event.tool_call_id is not None and not event.recoverable
    )


def _is_end(event: AgentEvent) -> bool:
    """What tells of the end of the other run, and is no part of the conversation."""
    return isinstance(event, CompletionEvent) or (isinstance(event, ErrorEvent) and event.tool_call_id is None)


def _check_calls(events: Sequence[AgentEvent], owner: str) -> None:
    """Every call has its result behind it, and every result a call before it, since no provider takes less."""
    opened: dict[str, ToolCallEvent] = {}
    for event in events:
        if isinstance(event, ToolCallEvent) and event.tool_call_id not in opened:
            opened[event.tool_call_id] = event
        elif isinstance(event, ToolResultEvent | ErrorEvent):
            call = opened.pop(event.tool_call_id or "", None)
            if call is None:
                raise _wrong(
                    "thread",
                    f"The thread for `{owner}.using` has a result in step {event.iteration} of `{event.tool_call_id}`, "
                    f"which was not called before it; keep the call, or leave both out.",
                    event.tool_call_id,
                )
    for call_id, call in opened.items():
        raise _wrong(
            "thread",
            f"The call `{call.tool_name}` (`{call_id}`) in step {call.iteration} has no result in the thread for "
            f"`{owner}.using`; keep one, or leave out both.",
            call_id,
        )


def _words(failure: Exception) -> str:
    """In one line."""
    if isinstance(failure, ValidationError):
        first = failure.errors(include_url=False)[0]
        return f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"
    return shorten(describe_error(failure))


def _text(event: AgentEvent) -> str:
    return event.content if isinstance(event, MessageEvent) else ""


def _depth(event: AgentEvent) -> int:
    return 0 if event.branch is None else event.branch.count("/") + 1


def _wrong(path: str, message: str, value: Any) -> InputError:
    return InputError(
        message, problems=[input_problem(path, "the part of a run to keep", excerpt(value, 200), message)]
    )
