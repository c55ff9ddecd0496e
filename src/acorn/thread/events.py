"""The events of a thread, with one class for each kind of event.

The attributes of an event have Python names. The JSON data of an event may have Python names (`tool_call_id`) or camel
case names (`toolCallId`). Events preserve unknown fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from acorn._formats.json import to_json_data
from acorn.types import JsonObject, JsonValue

_SCALARS = {str, int, bool, type(None)}


class Event(BaseModel):
    """The base class of all events, with the fields that every event has."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow", defer_build=True)

    iteration: int = 0
    """The number of the step, counted from 1. Events before the first step have the number 0."""
    timestamp: int | float | None = None
    """The time in milliseconds since 1970."""
    branch: str | None = None
    """The path of the branch in which the event happened, such as `outer/inner`, or None for the run itself."""
    run_id: str | None = None
    """The id of the branch's run. The path is not enough, because the model may call a branch twice."""


class ConversationEvent(Event):
    """An event that represents a message of a conversation, or a part of a message.

    The fields `rest` and `left_out` store the differences between the original message and its events, so that
    `to_messages` can restore the message exactly. They are set only on the first event of a message, and only if there
    are differences.
    """

    rest: JsonObject | None = None
    """The additional keys of the message and their values, such as signed thinking blocks."""
    left_out: list[str] | None = None
    """The keys that the events describe, but the message does not have."""


class MessageEvent(ConversationEvent):
    """A message of the user, the assistant or the system."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system"]
    content: str


class ToolCallEvent(ConversationEvent):
    """A tool call of the model."""

    type: Literal["tool_call"] = "tool_call"
    tool_name: str
    tool_call_id: str
    args: JsonObject = Field(default_factory=JsonObject)
    raw_arguments: str | None = None
    """The arguments as the model wrote them, if this text differs from the compact JSON of `args`."""


class ToolResultEvent(ConversationEvent):
    """The result of a tool call."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    result: Any = None
    tool_name: str | None = None
    """The name of the tool, if the thread does not contain the tool call."""
    seconds: float | None = None
    """The duration of the call in seconds."""


class ErrorEvent(ConversationEvent):
    """An error: a failed tool call, an invalid output, or the failure of the whole run."""

    type: Literal["error"] = "error"
    error: str
    recoverable: bool = False
    """Whether the run continued after the error."""
    tool_call_id: str | None = None
    """The id of the failed tool call, or None if the error did not happen in a tool call."""
    seconds: float | None = None
    """The seconds from the start of the call to the error."""


class HumanInputRequestedEvent(Event):
    """A question or approval request that the run sent to a person."""

    type: Literal["human_input_requested"] = "human_input_requested"
    question: str
    tool_call_id: str | None = None
    """The id of the tool call that waits for the answer, or None if no tool call waits."""
    request_id: str | None = None


class HumanInputReceivedEvent(Event):
    """A person's answer to a request for human input."""

    type: Literal["human_input_received"] = "human_input_received"
    response: str
    tool_call_id: str | None = None
    request_id: str | None = None


class CompletionEvent(Event):
    """The output of the run."""

    type: Literal["completion"] = "completion"
    result: Any = None


class SummaryEvent(Event):
    """A summary that replaces the messages of earlier iterations in the conversation."""

    type: Literal["summary"] = "summary"
    summary: str
    summarized_iterations: list[int] = Field(default_factory=list[int])


AgentEvent = Annotated[
    MessageEvent
    | ToolCallEvent
    | ToolResultEvent
    | ErrorEvent
    | HumanInputRequestedEvent
    | HumanInputReceivedEvent
    | CompletionEvent
    | SummaryEvent,
    Field(discriminator="type"),
]
"""Any event of a thread. The field `type` identifies the class."""


class ThreadEvents(list[AgentEvent]):
    """The list of events of a run, with the id and the input of the run as attributes."""

    run_id: str | None = None
    input: Any = None


@cache
def _adapter() -> TypeAdapter[list[AgentEvent]]:
    return TypeAdapter(list[AgentEvent])


def parse_events(source: str | bytes | Iterable[object]) -> list[AgentEvent]:
    """Parse JSON text, or convert an iterable of dicts and events, and return a list of events.

    The field names may be in snake case or camel case. An invalid event raises `pydantic.ValidationError`, which
    contains the position of the error.
    """
    if isinstance(source, str | bytes | bytearray):
        try:
            data = json.loads(source)  # Accepts lone surrogates, which Pydantic rejects.
        except (ValueError, RecursionError):
            return _adapter().validate_json(source)  # Raises an error with the position.
        return _adapter().validate_python(data)
    return _adapter().validate_python(list(source))


def as_events(source: Iterable[Any]) -> list[AgentEvent]:
    """Return a list of events. Dicts in the iterable become events, and events stay unchanged."""
    listed = list(source)
    return parse_events(listed) if any(type(event) is dict for event in listed) else listed


def dump_events(events: Iterable[AgentEvent], *, camel: bool = True) -> list[JsonObject]:
    """Convert events to a list of dicts with JSON data, from which `parse_events` restores the same events.

    The field names are in camel case by default, and in snake case with `camel=False`.
    """
    return [_dump(event, camel) for event in events]


def _dump(event: AgentEvent, camel: bool) -> JsonObject:
    # The data omits fields without a value. A missing `result` has the same meaning as null.
    data: JsonObject = {"type": event.type}
    for name, camel_name in _camel_names(type(event)).items():
        value = getattr(event, name)
        if value is not None:
            data[camel_name if camel else name] = to_finite_json(value)
    for name, value in (event.model_extra or {}).items():
        data.setdefault(name, to_finite_json(value))  # An unknown field may repeat a known field in the other spelling.
    return data


@cache
def _camel_names(kind: type[Event]) -> dict[str, str]:
    """Return a dict that maps the field names of an event class to their camel case names."""
    return {name: to_camel(name) for name in kind.model_fields}


def to_finite_json(value: object) -> Any:
    """Convert a value to JSON data, with null in place of NaN and infinity."""
    return value if type(value) in _SCALARS else _without_nan(to_json_data(value))


def _without_nan(data: JsonValue) -> object:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _without_nan(item) for key, item in data.items()}
    return [_without_nan(item) for item in data] if isinstance(data, list) else data
