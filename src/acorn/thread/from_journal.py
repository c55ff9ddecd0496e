"""Conversion of a run's journal entries to thread events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from pydantic_core import from_json

from acorn._formats.json import copy_json, text_of
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    Compacted,
    Entry,
    HistoryEdited,
    InputReceived,
    InputRequested,
    MessagesAdded,
    ModelRequested,
    ModelResponded,
    ResultMessage,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunPaused,
    RunStarted,
    ToolFinished,
    ToolResultsAdded,
    ToolStarted,
)
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ConversationEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    SummaryEvent,
    ThreadEvents,
    ToolCallEvent,
    ToolResultEvent,
)
from acorn.thread.messages import MessagePart, attach_remainder, events_of, outcome_event
from acorn.types import JsonObject, Message


def events_of_journal(run: Any) -> ThreadEvents:
    """Convert the journal of a run and its branches to a thread.

    The events of a branch follow the event at which the branch started.
    """
    thread = ThreadEvents(_JournalReader(run, is_root=True).events)
    thread.run_id, thread.input = run.id, run.input
    return thread


class _JournalReader:
    def __init__(self, run: Any, *, is_root: bool) -> None:
        self._run = run
        self._is_root = is_root
        self._started = None if run.started is None else run.started.timestamp()
        self.events: list[AgentEvent] = []
        self._is_open = False
        """Whether calls wait for results. The results precede the messages that the user adds in the meantime."""
        self._waiting: list[AgentEvent] = []
        entries = tuple(run.journal.entries)  # The run may be in progress.
        for index, entry in enumerate(entries):
            # If the run continued after an interruption or a pause, the entry is not an event.
            if not isinstance(entry, RunInterrupted | RunPaused) or index == len(entries) - 1:
                self._add_entry(entry)
        self.events += self._waiting

    def _add_entry(self, entry: Entry) -> None:
        step = entry.step
        match entry:
            case MessagesAdded():
                messages = entry.messages if self._is_root else entry.messages[entry.inherited :]
                self._append(entry, _message_events(messages, step))
            case ModelResponded():
                if entry.refusal is None:
                    self._append(entry, _turn_events(entry))
                    self._is_open = bool(entry.calls)
            case ToolResultsAdded():
                self._append_results(entry, entry.results)
                if entry.context is not None:
                    self._append(entry, events_of({"role": "user", "content": entry.context}, step))
                self._append_waiting()
            case HistoryEdited():
                added = _message_events([entry.messages[index] for index in entry.added], step)
                self._append(entry, added, waits=self._is_open)
            case BranchStarted():
                children = [child for child in list(self._run.branches) if child.id == entry.child_id]
                for child in children:
                    self.events += _JournalReader(child, is_root=False).events
            case Compacted():
                if entry.summary:
                    steps = list(entry.steps)
                    self._append(
                        entry, [SummaryEvent(iteration=step, summary=entry.summary, summarized_iterations=steps)]
                    )
            case RunFinished():
                self._append(entry, [_end_event(entry)])
            case RunFailed() | RunInterrupted() | RunPaused():
                self._append_results(entry, entry.results)
                self._append_waiting()
                if not isinstance(entry, RunPaused):
                    self._append(entry, [ErrorEvent(iteration=step, error=entry.error)])
            case InputRequested():
                ids: JsonObject = {"tool_call_id": entry.call_id, "request_id": entry.request_id}
                self._append(entry, [HumanInputRequestedEvent(iteration=step, question=entry.question, **ids)])
            case InputReceived():
                ids = {"tool_call_id": entry.call_id, "request_id": entry.request_id}
                self._append(entry, [HumanInputReceivedEvent(iteration=step, response=entry.answer, **ids)])
            case RunStarted() | ModelRequested() | ToolStarted() | ToolFinished() | BranchFinished():
                pass
            case _:
                assert_never(entry)

    def _append_results(self, entry: Entry, results: tuple[ResultMessage, ...]) -> None:
        self._append(entry, [_result_event(result, entry.step) for result in results])

    def _append_waiting(self) -> None:
        self.events += self._waiting
        self._waiting, self._is_open = [], False

    def _append(self, entry: Entry, events: Sequence[AgentEvent], *, waits: bool = False) -> None:
        run = self._run
        for event in events:
            if isinstance(event, ConversationEvent) and event.rest:
                event.rest = copy_json(event.rest)  # A change to an event must not change the journal.
            if self._started is not None:
                event.timestamp = int((self._started + entry.at) * 1000)
            if run.branch is not None:
                event.branch, event.run_id = run.branch, run.id
        (self._waiting if waits else self.events).extend(events)


def _message_events(messages: Iterable[Message], iteration: int) -> list[AgentEvent]:
    """Convert messages that the model did not write in this step to events with the same iteration."""
    events: list[AgentEvent] = []
    for message in messages:
        added = events_of(message, iteration)
        if isinstance(added[0], ToolCallEvent) and added[0].rest is None:
            added[0].rest = {}  # An empty `rest` makes this message a separate turn, even after another turn.
        events += added
    return events


def _turn_events(entry: ModelResponded) -> list[MessagePart]:
    message: Message = {"role": "assistant", "content": entry.content}
    if entry.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in entry.calls
        ]
    return events_of(message | entry.extra, entry.step)


def _result_event(result: ResultMessage, iteration: int) -> ToolResultEvent | ErrorEvent:
    call_id = str(result.call_id or "")  # A hook may have replaced the id with any value.
    message = {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
    text = text_of(result.content)
    event: ToolResultEvent | ErrorEvent
    if result.form in ("stopped", "skipped"):
        is_recoverable = result.form == "skipped"
        event = ErrorEvent(iteration=iteration, error=text, recoverable=is_recoverable, tool_call_id=call_id)
    elif result.form == "error":
        event = outcome_event(call_id, text, iteration)
    else:
        output = parse_json(text) if result.form == "json" else text
        event = ToolResultEvent(iteration=iteration, tool_call_id=call_id, result=output)
    seconds: Any = result.seconds
    event.seconds = seconds if isinstance(seconds, int | float) else None
    attach_remainder([event], message)
    return event


def _end_event(entry: RunFinished) -> CompletionEvent | ErrorEvent:
    if entry.form == "error":
        return ErrorEvent(iteration=entry.step, error=entry.content)
    result = parse_json(entry.content) if entry.form == "json" else entry.content
    return CompletionEvent(iteration=entry.step, result=result)


def parse_json(text: str) -> Any:
    """Parse a JSON text and return its data, or return the text itself if it is not valid JSON."""
    try:
        return from_json(text)
    except ValueError:
        return text
