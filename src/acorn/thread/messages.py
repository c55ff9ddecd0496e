"""Between a thread and a conversation: OpenAI's messages as events, and back to the same messages.

An assistant message is an event for its text, if it has any, and one for each call. What a message holds
beyond that travels on its first event, so that nothing is lost on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, assert_never

from pydantic_core import from_json

from acorn._formats.content import text_of
from acorn._formats.json import excerpt, to_json_text
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn.errors import InputError
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    as_events,
    plain_of,
)
from acorn.types import TOOL_ERROR, JsonObject

Message = JsonObject
Said = MessageEvent | ToolCallEvent | ToolResultEvent | ErrorEvent


def from_messages(messages: Iterable[Mapping[str, Any]]) -> list[AgentEvent]:
    """A conversation as events; each turn of the model begins an iteration.

    A message of a role that nobody knows is a `pydantic.ValidationError`, and what is no message an `InputError`.
    """
    events: list[AgentEvent] = []
    iteration = 0
    anything: Any = messages
    if not isinstance(anything, Iterable) or isinstance(anything, str | Mapping):
        raise InputError(f"`from_messages` takes a list of messages, got {excerpt(messages)}.")
    for index, message in enumerate(anything):
        if not isinstance(message, Mapping):
            raise InputError(f"`messages[{index}]` must be a dict with a `role`, got {excerpt(message)}.")
        iteration += message.get("role") == "assistant"
        events += events_of(message, iteration)
    return events


def events_of(message: Mapping[str, Any], iteration: int) -> list[Said]:
    """The events of one message."""
    role, text = message.get("role"), text_of(message.get("content"))
    made: list[Said]
    if role == "tool":
        made = [outcome(str(message.get("tool_call_id") or ""), text, iteration)]
    elif role == "assistant":
        calls = message.get("tool_calls")
        made = [read_call(call, iteration) for call in (calls if isinstance(calls, list | tuple) else ())]
        if text or not made:
            made.insert(0, MessageEvent(iteration=iteration, role="assistant", content=text))
    else:
        known: Any = "system" if role == "developer" else role
        made = [MessageEvent(iteration=iteration, role=known, content=text)]
    keep_rest(made, message)
    return made


def outcome(call_id: str, text: str, iteration: int) -> ToolResultEvent | ErrorEvent:
    """What came of a call, from the text that the model reads."""
    if text.startswith(TOOL_ERROR):
        error = text.removeprefix(TOOL_ERROR)
    elif text.startswith(VALIDATION_ERROR_START):
        error = text
    else:
        return ToolResultEvent(iteration=iteration, tool_call_id=call_id, result=text)
    return ErrorEvent(iteration=iteration, error=error, recoverable=True, tool_call_id=call_id)


def keep_rest(made: Sequence[Said], message: Mapping[str, Any]) -> None:
    """Let the first event carry, in place, what the events of a message would not give back."""
    plain = _message(made)
    if plain == message:
        return
    rest = {key: value for key, value in message.items() if key not in plain or plain[key] != value}
    made[0].rest = rest
    made[0].left_out = [key for key in plain if key not in message] or None


def read_call(call: Any, iteration: int) -> ToolCallEvent:
    """A call, whoever wrote it; what is wrong with it stays in the message's rest."""
    source: Mapping[str, Any] = call if isinstance(call, Mapping) else {}
    function = source.get("function")
    holder: Mapping[str, Any] = function if isinstance(function, Mapping) else source
    arguments = holder.get("arguments")
    text = arguments if isinstance(arguments, str) else to_json_text(arguments or {})
    return called(str(source.get("id") or ""), str(holder.get("name") or ""), text, iteration)


def called(call_id: str, name: str, arguments: str, iteration: int) -> ToolCallEvent:
    """A call with its arguments as text."""
    try:
        parsed = from_json(arguments, allow_inf_nan=False)
    except (ValueError, TypeError):  # no JSON, or half a surrogate pair in it
        parsed = None
    args: JsonObject = parsed if isinstance(parsed, dict) else {}
    if to_json_text(args) == arguments:
        return ToolCallEvent(iteration=iteration, tool_name=name, tool_call_id=call_id, args=args)
    return ToolCallEvent(
        iteration=iteration,
        tool_name=name,
        tool_call_id=call_id,
        args=plain_of(args),  # `1e999` is infinite
        raw_arguments=arguments,
    )


# Back


def to_messages(events: Iterable[AgentEvent]) -> list[Message]:
    """The conversation of a run, without those of its branches; a summary stands for the iterations that it sums up."""
    listed = as_events(events)
    outer = min(listed, key=_depth, default=None)
    messages: list[Message] = []
    iterations: list[int] = []
    turn: list[Said] = []
    for event in listed:
        if outer is None or (event.branch, event.run_id) != (outer.branch, outer.run_id):
            continue
        if turn and not (isinstance(event, ToolCallEvent) and goes_on(turn[-1], event)):
            messages.append(whole(turn))
            iterations.append(turn[0].iteration)
            turn = []
        if isinstance(event, ToolCallEvent) or (isinstance(event, MessageEvent) and event.role == "assistant"):
            turn.append(event)
        elif isinstance(event, SummaryEvent):
            sum_up(event, messages, iterations)
        else:
            made = messages_of(event)
            messages += made
            iterations += [event.iteration] * len(made)
    return [*messages, whole(turn)] if turn else messages


def sum_up(event: SummaryEvent, messages: list[Message], iterations: list[int]) -> None:
    """Put a summary, in place, where the last of the messages stood that it stands for."""
    said = [at for at, message in enumerate(messages) if message["role"] == "user" and iterations[at] == 0]
    gone = [
        at
        for at, message in enumerate(messages)
        if iterations[at] in event.summarized_iterations and message["role"] != "system" and at not in said[-1:]
    ]
    where = gone[-1] + 1 if gone else len(messages)
    messages.insert(where, {"role": "user", "content": event.summary})
    iterations.insert(where, event.iteration)
    for at in reversed(gone):
        del messages[at], iterations[at]


def _depth(event: AgentEvent) -> int:
    return 0 if event.branch is None else event.branch.count("/") + 1


def goes_on(last: Said, event: ToolCallEvent) -> bool:
    """Whether a call is part of the same turn; one with a rest begins its own."""
    return event.iteration == last.iteration and event.rest is None


def messages_of(event: AgentEvent) -> list[Message]:
    match event:
        case MessageEvent() | ToolResultEvent():
            return [whole([event])]
        case ErrorEvent():
            return [] if event.tool_call_id is None else [whole([event])]
        case HumanInputRequestedEvent():
            return [] if event.tool_call_id is not None else [{"role": "assistant", "content": event.question}]
        case HumanInputReceivedEvent():
            return [] if event.tool_call_id is not None else [{"role": "user", "content": event.response}]
        case CompletionEvent():
            return []
        case ToolCallEvent() | SummaryEvent():
            raise AssertionError("a call is part of a turn, and a summary stands for others")
        case _:
            assert_never(event)


def whole(made: Sequence[Said]) -> Message:
    """The message that these events are, with what its first event carries."""
    message = _message(made)
    first = made[0]
    for key in first.left_out or ():
        message.pop(key, None)
    return message | first.rest if first.rest else message


def _message(made: Sequence[Said]) -> Message:
    first = made[0]
    if isinstance(first, ToolResultEvent):
        text = first.result if isinstance(first.result, str) else to_json_text(first.result)
        return {"role": "tool", "tool_call_id": first.tool_call_id, "content": text}
    if isinstance(first, ErrorEvent):
        text = first.error if first.error.startswith(VALIDATION_ERROR_START) else TOOL_ERROR + first.error
        return {"role": "tool", "tool_call_id": first.tool_call_id, "content": text}
    message: Message = {"role": "assistant", "content": ""}
    if isinstance(first, MessageEvent):
        message = {"role": first.role, "content": first.content}
    calls = [event for event in made if isinstance(event, ToolCallEvent)]
    if calls:
        message["tool_calls"] = [_function(call) for call in calls]
    return message


def _function(call: ToolCallEvent) -> JsonObject:
    arguments = to_json_text(call.args) if call.raw_arguments is None else call.raw_arguments
    return {
        "id": call.tool_call_id,
        "type": "function",
        "function": {"name": call.tool_name, "arguments": arguments},
    }
