"""Conversion of OpenAI messages to thread events, and of the events back to the same messages.

An assistant message becomes one event for its text and one event for each tool call. The first event of a message
stores the other keys of the message, so that nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic_core import from_json

from acorn._formats.json import excerpt, text_of, to_json_text
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn.errors import InputError
from acorn.thread.events import (
    AgentEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    as_events,
    to_finite_json,
)
from acorn.types import (
    TOOL_ERROR,
    CalledFunction,
    JsonObject,
    Message,
    MessageCall,
    is_json_object,
    is_list_or_tuple,
    is_mapping,
)

DatedMessage = tuple[Message, int]
"""A message and its iteration."""
MessagePart = MessageEvent | ToolCallEvent | ToolResultEvent | ErrorEvent


def from_messages(messages: Iterable[Mapping[str, Any]]) -> list[AgentEvent]:
    """Convert a list of messages in the format of OpenAI to events.

    Each assistant message starts a new iteration. A message with an unknown role raises `pydantic.ValidationError`. A
    value that is not a message raises `InputError`.
    """
    events: list[AgentEvent] = []
    iteration = 0
    source: object = messages
    if isinstance(source, str | Mapping) or not isinstance(source, Iterable):
        raise InputError(f"`from_messages` needs a list of messages, got {excerpt(messages)}.")
    for index, message in enumerate(messages):
        if not is_mapping(message):
            raise InputError(f"`messages[{index}]` must be a dict with a `role`, got {excerpt(message)}.")
        iteration += message.get("role") == "assistant"
        events += events_of(message, iteration)
    return events


def events_of(message: Mapping[str, Any], iteration: int) -> list[MessagePart]:
    """Convert one message to the events that represent it."""
    role, text = message.get("role"), text_of(message.get("content"))
    events: list[MessagePart]
    if role == "tool":
        events = [outcome_event(str(message.get("tool_call_id") or ""), text, iteration)]
    elif role == "assistant":
        calls = message.get("tool_calls")
        events = [parse_call(call, iteration) for call in (calls if is_list_or_tuple(calls) else ())]
        if text or not events:
            events.insert(0, MessageEvent(iteration=iteration, role="assistant", content=text))
    else:
        known: Any = "system" if role == "developer" else role
        events = [MessageEvent(iteration=iteration, role=known, content=text)]
    attach_remainder(events, message)
    return events


def outcome_event(call_id: str, text: str, iteration: int) -> ToolResultEvent | ErrorEvent:
    """Convert the text of a tool result to an error event if it starts like an error, or else to a result event."""
    if not text.startswith((TOOL_ERROR, VALIDATION_ERROR_START)):
        return ToolResultEvent(iteration=iteration, tool_call_id=call_id, result=text)
    error = text.removeprefix(TOOL_ERROR)
    return ErrorEvent(iteration=iteration, error=error, recoverable=True, tool_call_id=call_id)


def attach_remainder(events: Sequence[MessagePart], message: Mapping[str, Any]) -> None:
    """Store the differences between a message and its events in `rest` and `left_out` of the first event."""
    described: Mapping[str, Any] = _message(events)
    if described == message:
        return
    events[0].rest = {key: value for key, value in message.items() if key not in described or described[key] != value}
    events[0].left_out = [key for key in described if key not in message] or None


def parse_call(call: object, iteration: int) -> ToolCallEvent:
    """Convert a tool call in a message to an event. Parts of the call that are invalid become empty fields.

    `attach_remainder` stores the original of an invalid call, so that nothing is lost.
    """
    source: Mapping[str, Any] = call if is_mapping(call) else {}
    function = source.get("function")
    fields = function if is_mapping(function) else source
    arguments = fields.get("arguments")
    text = arguments if isinstance(arguments, str) else to_json_text(arguments or {})
    return make_call_event(str(source.get("id") or ""), str(fields.get("name") or ""), text, iteration)


def make_call_event(call_id: str, name: str, arguments: str, iteration: int) -> ToolCallEvent:
    """Create the event for a tool call from its id, its name and the JSON text of its arguments."""
    try:
        parsed = from_json(arguments, allow_inf_nan=False)
    except (ValueError, TypeError):  # The text is not JSON, or it contains a lone surrogate.
        parsed = None
    args: JsonObject = parsed if is_json_object(parsed) else {}
    if to_json_text(args) == arguments:
        return ToolCallEvent(iteration=iteration, tool_name=name, tool_call_id=call_id, args=args)
    return ToolCallEvent(
        iteration=iteration,
        tool_name=name,
        tool_call_id=call_id,
        args=to_finite_json(args),  # `1e999` is infinite.
        raw_arguments=arguments,
    )


# Conversion of events to messages


def to_messages(events: Iterable[AgentEvent]) -> list[Message]:
    """Convert events back to messages in the format of OpenAI.

    The result contains the messages of the run itself, without its branches. A summary replaces the iterations that it
    summarizes.
    """
    all_events = as_events(events)
    outer = min(all_events, key=_depth, default=None)
    own = [event for event in all_events if outer and (event.branch, event.run_id) == (outer.branch, outer.run_id)]
    history: list[DatedMessage] = []
    for group in message_groups(own):
        first = group[0]
        if isinstance(first, SummaryEvent):
            start, stop, added = summary_change(first, history)
            history[start:stop] = added
        else:
            history += [(message, first.iteration) for message in messages_of(group)]
    return [message for message, _ in history]


def message_groups(events: Iterable[AgentEvent]) -> Iterator[list[AgentEvent]]:
    """Divide events into lists of the events that belong to the same message.

    An assistant message has one event for its text and one for each tool call. A tool call with the field `rest` always
    starts a new assistant message, because only the first event of a message has this field.
    """
    group: list[AgentEvent] = []
    for event in events:
        continues = isinstance(event, ToolCallEvent) and event.rest is None
        if not (continues and group and is_turn(group[0]) and event.iteration == group[-1].iteration):
            if group:
                yield group
            group = []
        group.append(event)
    if group:
        yield group


def is_turn(event: AgentEvent) -> bool:
    """Return True if an event is a part of an assistant message."""
    return isinstance(event, ToolCallEvent) or (isinstance(event, MessageEvent) and event.role == "assistant")


def summary_change(event: SummaryEvent, history: Sequence[DatedMessage]) -> tuple[int, int, list[DatedMessage]]:
    """Return the range of the history that a summary replaces, and the messages that replace this range.

    The summary follows the messages in the range that it does not summarize: system messages and the last input.
    """
    inputs = [index for index, (message, step) in enumerate(history) if message["role"] == "user" and step == 0]
    summarized = [
        index
        for index, (message, step) in enumerate(history)
        if step in event.summarized_iterations and message["role"] != "system" and index not in inputs[-1:]
    ]
    start, stop = (summarized[0], summarized[-1] + 1) if summarized else (len(history), len(history))
    kept = sorted({*range(start, stop)} - {*summarized})
    added = [history[index] for index in kept]
    added.append(({"role": "user", "content": event.summary}, event.iteration))
    return start, stop, added


def _depth(event: AgentEvent) -> int:
    return 0 if event.branch is None else event.branch.count("/") + 1


def messages_of(group: Sequence[AgentEvent]) -> list[Message]:
    """Convert the events of one message to a list with this message.

    The list is empty if the events do not represent a message.
    """
    match group[0]:
        case MessageEvent() | ToolCallEvent() | ToolResultEvent():
            return [join_events(cast(Sequence[MessagePart], group))]
        case ErrorEvent(tool_call_id=str()) as error:
            return [join_events([error])]
        case HumanInputRequestedEvent(tool_call_id=None) as request:
            return [{"role": "assistant", "content": request.question}]
        case HumanInputReceivedEvent(tool_call_id=None) as answer:
            return [{"role": "user", "content": answer.response}]
        case _:
            return []


def join_events(events: Sequence[MessagePart]) -> Message:
    """Convert the events of one message back to this message, including the keys that the first event stores."""
    first = events[0]
    message: JsonObject = {**_message(events), **(first.rest or {})}
    for key in first.left_out or ():
        message.pop(key, None)
    return cast(Message, message)


def _message(events: Sequence[MessagePart]) -> Message:
    first = events[0]
    if isinstance(first, ToolResultEvent):
        text = first.result if isinstance(first.result, str) else to_json_text(first.result)
        return {"role": "tool", "tool_call_id": first.tool_call_id, "content": text}
    if isinstance(first, ErrorEvent):
        text = first.error if first.error.startswith(VALIDATION_ERROR_START) else TOOL_ERROR + first.error
        return {"role": "tool", "tool_call_id": cast(str, first.tool_call_id), "content": text}
    message: Message = {"role": "assistant", "content": ""}
    if isinstance(first, MessageEvent):
        message = {"role": first.role, "content": first.content}
    calls = [event for event in events if isinstance(event, ToolCallEvent)]
    if calls:
        message["tool_calls"] = list(map(_message_call, calls))
    return message


def _message_call(event: ToolCallEvent) -> MessageCall:
    function: CalledFunction = {"name": event.tool_name, "arguments": arguments_of(event)}
    return {"id": event.tool_call_id, "type": "function", "function": function}


def arguments_of(event: ToolCallEvent) -> str:
    """Return the JSON text of the arguments of a tool call."""
    return to_json_text(event.args) if event.raw_arguments is None else event.raw_arguments
