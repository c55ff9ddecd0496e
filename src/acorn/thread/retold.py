"""A thread as the entries of a journal, as far as it tells: it knows neither requests nor when a call began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, assert_never

from acorn._json import compact
from acorn.journal import (
    BranchBegun,
    Called,
    Entry,
    Failed,
    Finished,
    Form,
    MessagesSaid,
    ModelAnswered,
    ResultSaid,
    ResultsSaid,
)
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
)
from acorn.types import Usage

_At = tuple[str, int, float]
"""What all entries have: the run, the step, the time."""


@dataclass(eq=False)
class _Known:
    """A run of the thread, as far as it has been read."""

    id: str
    path: str = ""
    step: int = 0
    open_calls: dict[str, str] = field(default_factory=dict[str, str])
    """The names of those without a result, by their ids."""
    branched: set[str] = field(default_factory=set[str])
    """The calls below which a branch hangs already."""
    began: float | None = None
    """The time of its first event that has one, in milliseconds since 1970."""
    now: float = 0.0
    """Seconds into it."""

    def hear(self, event: AgentEvent) -> None:
        self.step = event.iteration or self.step
        if event.timestamp is not None:
            self.began = event.timestamp if self.began is None else self.began
            self.now = max(self.now, (event.timestamp - self.began) / 1000)


def entries_of(events: Iterable[AgentEvent]) -> Iterator[Entry]:
    """What happened, in the words of the journal; each event becomes one entry, of the same order."""
    runs = {"": _Known("")}
    for event in events:
        key = (event.run_id or event.branch) if event.branch else ""
        if key not in runs:
            runs[key] = _Known(key, event.branch or "")
            yield _begun(runs[key], event, list(runs.values()))
        run = runs[key]
        run.hear(event)
        yield _entry(event, run)


def _begun(child: _Known, first: AgentEvent, runs: list[_Known]) -> BranchBegun:
    """A branch begins with its first event: below the open call of its name, or else by the user's code."""
    above, _, name = child.path.rpartition("/")
    parent = next((run for run in reversed(runs) if run.path == above), runs[0])
    calls = [call_id for call_id, called in parent.open_calls.items() if called == name]
    free = [call_id for call_id in calls if call_id not in parent.branched] or calls
    parent.branched.update(free[:1])
    if first.timestamp is not None and parent.began is not None:
        parent.now = max(parent.now, (first.timestamp - parent.began) / 1000)
    return BranchBegun(parent.id, parent.step, parent.now, child.id, child.path, free[0] if free else None)


def _entry(event: AgentEvent, run: _Known) -> Entry:
    at = (run.id, run.step, run.now)
    match event:
        case MessageEvent():
            return _said(at, event.role, event.content)
        case HumanInputRequestedEvent():
            return _said(at, event.type, event.question)
        case HumanInputReceivedEvent():
            return _said(at, event.type, event.response)
        case SummaryEvent():
            return _said(at, event.type, event.summary)
        case ToolCallEvent():
            run.open_calls[event.tool_call_id] = event.tool_name
            arguments = compact(event.args) if event.raw_arguments is None else event.raw_arguments
            calls = (Called(event.tool_call_id, event.tool_name, arguments),)
            return ModelAnswered(*at, run.now, "", "", None, calls, {}, "tool_calls", None, Usage(), None, 1, ())
        case ErrorEvent():
            if event.tool_call_id is None:
                return Failed(*at, event.error, ())
            return _result(at, run, ResultSaid(event.tool_call_id, event.error, "error", event.seconds))
        case ToolResultEvent():
            return _result(at, run, ResultSaid(event.tool_call_id, *_content(event.result), event.seconds))
        case CompletionEvent():
            return Finished(*at, "finish", *_content(event.result))
        case _:
            assert_never(event)


def _said(at: _At, role: str, content: str) -> MessagesSaid:
    return MessagesSaid(*at, ({"role": role, "content": content},))


def _result(at: _At, run: _Known, result: ResultSaid) -> ResultsSaid:
    run.open_calls.pop(result.call_id, None)
    return ResultsSaid(*at, (result,), None, None)


def _content(value: Any) -> tuple[str, Form]:
    return (value, "text") if isinstance(value, str) else (compact(value), "json")
