"""Forks: new runs that start with the first steps of an original run.

`using(thread=..., before=...)` creates a `Fork`. It contains the events of the original run before the step `before`,
its input and its prompt. Invalid events raise an error before the first request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from acorn._declare.spec import Spec
from acorn._formats.json import describe_error, excerpt, shorten, text_of, to_json_data
from acorn._formats.schema.problems import input_problem
from acorn._formats.xml.decode import decode_xml
from acorn._history.request_messages import input_message
from acorn._history.saved_form import decode_instance
from acorn.errors import AcornError, InputError, ParseError
from acorn.journal import Entry
from acorn.record import Run
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    MessageEvent,
    ThreadEvents,
    ToolCallEvent,
    ToolResultEvent,
    parse_events,
)
from acorn.thread.journal_events import discard_outdated_extras, fork_entries
from acorn.thread.messages import events_of, join_events
from acorn.types import ForkedFrom, is_json_object, is_list_or_tuple, is_mapping


@dataclass(frozen=True, eq=False)
class Fork:
    """The part of an original run that a forked run starts with: events, input and prompt."""

    events: Sequence[AgentEvent]
    """The events of the original run before the chosen step, without the events of its branches."""
    origin: ForkedFrom
    source_input: Any = None
    """The input of the original run as JSON data or as an instance, or None if it is unknown."""

    @property
    def prompt(self) -> str:
        """The system prompt of the original run, or an empty string if the run had no prompt."""
        return text_of(join_events([system])["content"]) if (system := self._system) is not None else ""

    @property
    def _system(self) -> MessageEvent | None:
        first = self.events[0] if self.events else None
        return first if isinstance(first, MessageEvent) and first.role == "system" and first.iteration == 0 else None

    def entries(self, run_id: str, at: float, prompt: str) -> list[Entry]:
        """Return the events as journal entries, with which the journal of the forked run starts."""
        events = list(self.events)
        if prompt != self.prompt:
            others = events if self._system is None else events[1:]
            events = [MessageEvent(role="system", content=prompt), *others] if prompt.strip() else others
        return fork_entries(events, run_id, at)

    def input_for(self, spec: Spec) -> BaseModel:
        """Return the input of the original run as an instance of the input schema in `spec`."""
        if spec.input.is_empty:
            return spec.input.from_call(spec.owner, (), {})
        if (original := self._original_input(spec)) is not None:
            return original[0]
        failure: Exception | None = None
        for _, event in self._possible_inputs():
            try:
                return decode_xml(event.content, spec.input, spec.xml_input_root)
            except (ParseError, ValidationError, ValueError) as error:
                failure = failure or error
        reason = "" if failure is None else f" ({_describe(failure)})"
        message = (
            f"The input of the thread does not fit `{spec.owner}`{reason}. Pass the input in the call, as in "
            f"`{spec.owner}().using(thread=events, before={self.origin.before})(...)`, or fork with the class of the "
            f"run."
        )
        raise _error("", message, "the thread", "an input of the module") from failure

    def with_input(self, spec: Spec, run_input: BaseModel) -> Fork:
        """Return a copy of the fork in which a new input replaces the original input."""
        original = self._original_input(spec)
        indexes = [index for index, _ in self._possible_inputs()] if original is None else [original[1]]
        if not indexes:
            message = (
                f"The thread has no message with an input of `{spec.owner}`, so the input of the call cannot "
                f"replace it. Call the module without an input."
            )
            raise _error("", message, to_json_data(run_input), "no input")
        events = list(self.events)
        events[indexes[0] : indexes[0] + 1] = events_of(input_message(spec, run_input), 0)
        return replace(self, events=events, source_input=run_input)

    def _original_input(self, spec: Spec) -> tuple[BaseModel, int] | None:
        """Return the input of the original run and the event index of its message, or None if it is unknown."""
        try:
            source = decode_instance(spec.input.schema, to_json_data(self.source_input), "input")
        except AcornError:
            return None
        opening = input_message(spec, source)
        return next(
            ((source, index) for index, event in self._possible_inputs() if join_events([event]) == opening), None
        )

    def _possible_inputs(self) -> list[tuple[int, MessageEvent]]:
        """Return the user messages before the first response with their event indexes, from last to first.

        One of these messages may contain the input of the run.
        """
        inputs = [
            (index, event)
            for index, event in enumerate(self.events)
            if isinstance(event, MessageEvent) and event.role == "user" and event.iteration == 0
        ]
        return inputs[::-1]


def fork_of(thread: object, before: object, owner: str) -> Fork:
    """Return the fork for the arguments `thread` and `before` of `using`, or raise `InputError` if they are invalid.

    `owner` is the class name of the agent, for error messages.
    """
    if thread is None:
        raise _error("before", f"`before` of `{owner}.using` needs `thread`, the events of the run to fork.", before)
    source = thread.thread if isinstance(thread, Run) else thread
    events = _read_events(source, owner)
    outermost = min(events, key=_depth)
    if outermost.branch is not None:
        raise _error(
            "thread",
            f"The events in `thread` of `{owner}.using` belong to the branch `{outermost.branch}`, which starts with "
            f"the messages of the run above it. Fork the run that started the branch: before the step that called it "
            f"to call it again, or before the next step to keep its result.",
            source,
        )
    own = [event for event in events if (event.branch, event.run_id) == (outermost.branch, outermost.run_id)]
    step = _check_step(before, own, owner)
    kept = [event.model_copy(deep=True) for event in own if event.iteration < step and not _is_run_end(event)]
    discard_outdated_extras(kept)
    _check_calls(kept, owner)
    known = source if isinstance(source, ThreadEvents) else None
    origin = ForkedFrom(None if known is None else known.run_id, step)
    return Fork(kept, origin, None if known is None else known.input)


def _read_events(source: object, owner: str) -> list[AgentEvent]:
    expected = f"`thread` of `{owner}.using` must be the events of a run, such as `run.thread`, or its record"
    if not is_list_or_tuple(source):
        got = excerpt(source)
        if isinstance(source, str | bytes):
            got = "text. `acorn.thread.parse_events` reads events from JSON"
        elif is_mapping(source):
            got = "a dict. `acorn.Run.from_json(text)` reads a saved run"
        raise _error("thread", f"{expected}, got {got}.", source)
    if not source:
        raise _error(
            "thread",
            f"`thread` of `{owner}.using` has no events. Pass the events of a run, such as `run.thread`.",
            source,
        )
    try:
        return parse_events(source)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, event = f"thread[{first['loc'][0]}]", source[int(first["loc"][0])]
        hint = " Pass messages as `history`." if is_json_object(event) and "role" in event else ""
        message = f"`{where}` of `{owner}.using` is not an event: {_describe(error)}.{hint}"
        raise _error(where, message, event) from error


def _check_step(before: object, events: Sequence[AgentEvent], owner: str) -> int:
    last = max(event.iteration for event in events)
    is_over = any(event.iteration == last and _is_last(event) for event in events)
    maximum = max(last if is_over else last + 1, 1)
    if isinstance(before, int) and not isinstance(before, bool) and 1 <= before <= maximum:
        return before
    if before is None:
        message = (
            f"`before` is missing. Pass the step with which `{owner}` continues, 1 to {maximum}, as in "
            f"`using(thread=run.thread, before={maximum})`."
        )
    else:
        reason = f": the run ended in step {last}" if is_over else f": the thread has {last} complete"
        message = f"`before` of `{owner}.using` must be a step from 1 to {maximum}{reason}. Got {excerpt(before)}."
    raise _error("before", message, before)


def _is_last(event: AgentEvent) -> bool:
    """Return whether the run cannot continue after the step of this event.

    That is the case if the run ended in this step, or if a tool call of this step has no result.
    """
    return isinstance(event, CompletionEvent) or (
        isinstance(event, ErrorEvent) and event.tool_call_id is not None and not event.recoverable
    )


def _is_run_end(event: AgentEvent) -> bool:
    """Return whether an event only reports the end of the run, and is not part of the conversation."""
    return isinstance(event, CompletionEvent) or (isinstance(event, ErrorEvent) and event.tool_call_id is None)


def _check_calls(events: Sequence[AgentEvent], owner: str) -> None:
    """Raise `InputError` for a call without a result or a result without a call, because providers reject both."""
    open_calls: dict[str, ToolCallEvent] = {}
    for event in events:
        if isinstance(event, ToolCallEvent):
            open_calls.setdefault(event.tool_call_id, event)
        elif isinstance(event, ToolResultEvent | ErrorEvent) and not open_calls.pop(event.tool_call_id or "", None):
            raise _error(
                "thread",
                f"The thread for `{owner}.using` has a result in step {event.iteration} of `{event.tool_call_id}`, "
                f"which was not called before it. Keep the call, or leave both out.",
                event.tool_call_id,
            )
    for call_id, call in open_calls.items():
        raise _error(
            "thread",
            f"The call `{call.tool_name}` (`{call_id}`) in step {call.iteration} has no result in the thread for "
            f"`{owner}.using`. Keep a result, or leave both out.",
            call_id,
        )


def _describe(failure: Exception) -> str:
    """Return the message of an exception, shortened to one line."""
    if isinstance(failure, ValidationError):
        first = failure.errors(include_url=False)[0]
        return f"`{'.'.join(map(str, first['loc']))}`: {first['msg']}"
    return shorten(describe_error(failure))


def _depth(event: AgentEvent) -> int:
    return 0 if event.branch is None else event.branch.count("/") + 1


def _error(path: str, message: str, value: object, expected: str = "the part of a run to keep") -> InputError:
    return InputError(message, problems=[input_problem(path, expected, excerpt(value, 200), message)])
