"""The events of a thread, one class for each kind.

Attributes have Python names. JSON may use them or the camel case of the original format (`toolCallId`). Unknown fields
are kept.
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
    """The fields of all events."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow", defer_build=True)

    iteration: int = 0
    """The step of the event, counted from 1. Events before the first step have 0."""
    timestamp: int | float | None = None
    """The time in milliseconds since 1970."""
    branch: str | None = None
    """The path of its branch, `outer/inner`. None in the run itself."""
    run_id: str | None = None
    """The id of the run of that branch, because a branch may be called twice."""


class ConversationEvent(Event):
    """An event that is a message of a conversation, or a part of one.

    The two attributes are set on the first event of a message that has more or fewer keys than its events describe.
    """

    rest: JsonObject | None = None
    """Further keys of the message, such as signed thinking blocks."""
    left_out: list[str] | None = None
    """Keys that the message does not have."""


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
    """The text of the arguments, if it is not the compact JSON of `args`."""


class ToolResultEvent(ConversationEvent):
    """The result of a tool call."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    result: Any = None
    tool_name: str | None = None
    """The name of the tool, if its call is not among the events."""
    seconds: float | None = None
    """The duration of the call."""


class ErrorEvent(ConversationEvent):
    """An error of a tool, of an answer that did not validate, or of the run."""

    type: Literal["error"] = "error"
    error: str
    recoverable: bool = False
    """Whether the run continued."""
    tool_call_id: str | None = None
    """The id of the failed call, if the error belongs to one."""
    seconds: float | None = None
    """The duration until the error."""


class HumanInputRequestedEvent(Event):
    """A request of the run for human input."""

    type: Literal["human_input_requested"] = "human_input_requested"
    question: str
    tool_call_id: str | None = None
    """The id of the call that waits for the answer, if any. The conversation then has the result of the call."""
    request_id: str | None = None


class HumanInputReceivedEvent(Event):
    """The answer of a person."""

    type: Literal["human_input_received"] = "human_input_received"
    response: str
    tool_call_id: str | None = None
    request_id: str | None = None


class CompletionEvent(Event):
    """The result of the run."""

    type: Literal["completion"] = "completion"
    result: Any = None


class SummaryEvent(Event):
    """A summary of earlier iterations."""

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
"""Any event. The field `type` distinguishes them."""


class ThreadEvents(list[AgentEvent]):
    """A list of the events of a run, with the id and the input of the run."""

    run_id: str | None = None
    input: Any = None


@cache
def _adapter() -> TypeAdapter[list[AgentEvent]]:
    return TypeAdapter(list[AgentEvent])


def parse_events(source: str | bytes | Iterable[object]) -> list[AgentEvent]:
    """Read events from JSON text, or from a list of dicts or events, in snake case or camel case.

    Invalid events raise `pydantic.ValidationError` with the place of the error.
    """
    if isinstance(source, str | bytes | bytearray):
        try:
            data = json.loads(source)  # Accepts lone surrogates, which Pydantic rejects.
        except (ValueError, RecursionError):
            return _adapter().validate_json(source)  # Raises an error with the position.
        return _adapter().validate_python(data)
    return _adapter().validate_python(list(source))


def as_events(source: Iterable[Any]) -> list[AgentEvent]:
    """Return a list of events; dicts among them are parsed."""
    listed = list(source)
    return parse_events(listed) if any(type(event) is dict for event in listed) else listed


def dump_events(events: Iterable[AgentEvent], *, camel: bool = True) -> list[JsonObject]:
    """Return the events as JSON data, the lossless form. `camel=False` uses Python names."""
    return [_dump(event, camel) for event in events]


def _dump(event: AgentEvent, camel: bool) -> JsonObject:
    # Fields that are not set are omitted. A `result` of null has the same meaning as none.
    data: JsonObject = {"type": event.type}
    for name, camel_name in _names(type(event)).items():
        value = getattr(event, name)
        if value is not None:
            data[camel_name if camel else name] = to_finite_json(value)
    for name, value in (event.model_extra or {}).items():
        data.setdefault(name, to_finite_json(value))  # It may repeat a field in the other spelling.
    return data


@cache
def _names(kind: type[Event]) -> dict[str, str]:
    """Return the fields of an event with their camel case names."""
    return {name: to_camel(name) for name in kind.model_fields}


def to_finite_json(value: object) -> Any:
    """Convert a value to JSON data; NaN and infinity become null."""
    return value if type(value) in _SCALARS else _without_nan(to_json_data(value))


def _without_nan(data: JsonValue) -> object:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _without_nan(item) for key, item in data.items()}
    return [_without_nan(item) for item in data] if isinstance(data, list) else data
