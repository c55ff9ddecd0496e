"""What can happen in a run, one class for each kind of event.

Attributes have Python's names; JSON may spell them the original's way (`toolCallId`) or Python's. Fields that
nobody here knows are kept.
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
from acorn.types import JsonObject

_SCALARS = {str, int, bool, type(None)}


class Event(BaseModel):
    """What all events have."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow", defer_build=True)

    iteration: int = 0
    """The step it belongs to, counted from 1; 0 is what was there before the first."""
    timestamp: int | float | None = None
    """Milliseconds since 1970."""
    branch: str | None = None
    """The branch it happened in, `outer/inner`; None in the run itself."""
    run_id: str | None = None
    """The run of that branch, since a branch may be called twice."""


class Spoken(Event):
    """An event that stands for a message in a conversation, or for a part of one.

    The two attributes are set on the first event of a message that holds more, or less, than its events say.
    """

    rest: JsonObject | None = None
    """Further keys of the message, such as signed thinking blocks."""
    left_out: list[str] | None = None
    """Keys that the message lacks."""


class MessageEvent(Spoken):
    """Somebody said something."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system"]
    content: str


class ToolCallEvent(Spoken):
    """The model called a tool."""

    type: Literal["tool_call"] = "tool_call"
    tool_name: str
    tool_call_id: str
    args: JsonObject = Field(default_factory=JsonObject)
    raw_arguments: str | None = None
    """The text of the arguments, where it is not the compact JSON of `args`."""


class ToolResultEvent(Spoken):
    """A tool returned something."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    result: Any = None
    tool_name: str | None = None
    """For a result whose call is not among the events."""
    seconds: float | None = None
    """How long the tool took."""


class ErrorEvent(Spoken):
    """Something failed: a tool, an answer that did not validate, or the run."""

    type: Literal["error"] = "error"
    error: str
    recoverable: bool = False
    """Whether the run went on."""
    tool_call_id: str | None = None
    """The call that failed, if it was one."""
    seconds: float | None = None
    """How long it took to fail."""


class HumanInputRequestedEvent(Event):
    """The run asked a person."""

    type: Literal["human_input_requested"] = "human_input_requested"
    question: str
    tool_call_id: str | None = None
    """The call that waits for the answer, if it was one; the conversation has what came of that, and not this."""
    request_id: str | None = None


class HumanInputReceivedEvent(Event):
    """A person answered."""

    type: Literal["human_input_received"] = "human_input_received"
    response: str
    tool_call_id: str | None = None
    request_id: str | None = None


class CompletionEvent(Event):
    """The run ended with a result."""

    type: Literal["completion"] = "completion"
    result: Any = None


class SummaryEvent(Event):
    """Earlier iterations in short."""

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
"""Any of the events, told apart by `type`."""


class ThreadEvents(list[AgentEvent]):
    """The events of a run, with the id and the input of that run; a list in everything else."""

    run_id: str | None = None
    input: Any = None


@cache
def _adapter() -> TypeAdapter[list[AgentEvent]]:
    return TypeAdapter(list[AgentEvent])


def parse_events(source: str | bytes | Iterable[Any]) -> list[AgentEvent]:
    """Events from JSON text, or from a list of dicts (or events); either spelling.

    What is wrong is a `pydantic.ValidationError` that names the place.
    """
    if isinstance(source, str | bytes | bytearray):
        try:
            plain = json.loads(source)  # it reads half a surrogate pair, which Pydantic does not
        except (ValueError, RecursionError):
            return _adapter().validate_json(source)  # to raise, and say where
        return _adapter().validate_python(plain)
    return _adapter().validate_python(list(source))


def as_events(source: Iterable[Any]) -> list[AgentEvent]:
    """A list of events; plain dicts among them are read first."""
    listed = list(source)
    return parse_events(listed) if any(type(event) is dict for event in listed) else listed


def dump_events(events: Iterable[AgentEvent], *, camel: bool = True) -> list[JsonObject]:
    """The events as plain data for `json.dumps`: the lossless form. `camel=False` spells it Python's way."""
    return [_dump(event, camel) for event in events]


def _dump(event: AgentEvent, camel: bool) -> JsonObject:
    # What is not set is left out. A `result` that is null reads the same as none.
    plain: JsonObject = {"type": event.type}
    for name, written in _names(type(event)).items():
        value = getattr(event, name)
        if value is not None:
            plain[written if camel else name] = plain_of(value)
    for name, value in (event.model_extra or {}).items():
        plain.setdefault(name, plain_of(value))  # it may be a field in its other spelling, given beside the first
    return plain


@cache
def _names(kind: type[Event]) -> dict[str, str]:
    """The fields of an event, and how the original spells them."""
    return {name: to_camel(name) for name in kind.model_fields}


def plain_of(value: Any) -> Any:
    """Any value as data that JSON can hold; NaN is null."""
    return value if type(value) in _SCALARS else _without_nan(to_json_data(value))


def _without_nan(plain: Any) -> Any:
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else None
    if isinstance(plain, dict):
        return {key: _without_nan(item) for key, item in plain.items()}
    return [_without_nan(item) for item in plain] if isinstance(plain, list) else plain
