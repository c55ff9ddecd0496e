"""From the notes of a run to its events. `Run.thread` calls it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, assert_never

from pydantic_core import from_json

from acorn._ledger import Ledger, Note
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    MessageEvent,
    Spoken,
    ToolCallEvent,
    ToolResultEvent,
    parse_events,
)
from acorn.thread.messages import Said, events_of, keep_rest, outcome


def recall(ledger: Ledger, started: datetime | None, branch: str | None, run_id: str) -> list[AgentEvent]:
    """All that a run did, its branches where they began; a branch begins with what it has from its parent."""
    return _recall(ledger, started, branch, run_id, is_whole=True)


def _recall(
    ledger: Ledger, started: datetime | None, branch: str | None, run_id: str, *, is_whole: bool
) -> list[AgentEvent]:
    began = None if started is None else started.timestamp() - ledger.since
    events: list[AgentEvent] = []
    for note in tuple(ledger.notes):  # the run may be going on
        if note.kind == "branch":
            run = note.what[0]
            events += _recall(run.ledger, run.started, run.branch, run.id, is_whole=False)
            continue
        made = _events(note, 0 if is_whole else ledger.inherited)
        for event in made:
            if isinstance(event, Spoken) and event.rest:
                event.rest = _own(event.rest)
        if note.kind != "events":
            for event in made:
                if began is not None:
                    event.timestamp = int((began + note.at) * 1000)
                if branch is not None:
                    event.branch, event.run_id = branch, run_id
        events += made
    return events


def _events(note: Note, inherited: int) -> Iterable[AgentEvent]:
    what: Any = note.what
    match note.kind:
        case "messages":
            return _conversation(what[0][inherited:], note.iteration)
        case "said":
            return [MessageEvent(iteration=note.iteration, role=what[0], content=what[1])]
        case "turn":
            return _turn(note)
        case "result":
            return [_result(note)]
        case "error":
            return [ErrorEvent(iteration=note.iteration, error=what[0])]
        case "completion":
            text, form = what
            return [CompletionEvent(iteration=note.iteration, result=_read(text) if form == "json" else text)]
        case "events":
            return parse_events(_own(what[0]))
        case "branch":
            return []
        case _:
            assert_never(note.kind)


def _conversation(messages: list[dict[str, Any]], iteration: int) -> list[AgentEvent]:
    """Messages from before the run, all of one iteration."""
    events: list[AgentEvent] = []
    for message in messages:
        made = events_of(message, iteration)
        if isinstance(made[0], ToolCallEvent) and made[0].rest is None:
            made[0].rest = {}  # a turn of its own, though it may follow another
        events += made
    return events


def _turn(note: Note) -> list[Said]:
    content, calls, extra = note.what
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    return events_of(message | extra, note.iteration)


def _result(note: Note) -> ToolResultEvent | ErrorEvent:
    given, text, form, seconds = note.what
    call_id = str(given or "")  # a hook may have made anything of it
    made: ToolResultEvent | ErrorEvent
    if form in ("stopped", "skipped"):
        made = ErrorEvent(iteration=note.iteration, error=text, recoverable=form == "skipped", tool_call_id=call_id)
    elif form == "error":
        made = outcome(call_id, text, note.iteration)
    else:
        result = _read(text) if form == "json" else text
        made = ToolResultEvent(iteration=note.iteration, tool_call_id=call_id, result=result)
    made.seconds = seconds if isinstance(seconds, int | float) else None
    keep_rest([made], {"role": "tool", "tool_call_id": given, "content": text})
    return made


def _read(text: str) -> Any:
    """What the JSON says; the text itself where it is nested too deep for the reader."""
    try:
        return from_json(text)
    except ValueError:
        return text


def _own(value: Any) -> Any:
    """The value in dicts and lists that nobody else holds, so that who changes an event changes no note."""
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    return [_own(item) for item in value] if isinstance(value, list) else value
