"""Conversion of a run's journal entries to thread events, and of thread events to journal entries, for forks.

`fork_entries` returns the journal entries of the steps that a fork shares with the original run. It is the reverse of
`events_of_journal`. An event has visible fields, such as `content`, and may also store the original keys of the message
in `rest`. If the two disagree, the user has edited the visible fields, so the visible fields take precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from acorn import journal, thread
from acorn._formats.json import copy_json, parse_json, text_of
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn._history.history import assistant_message, change_of
from acorn.thread import messages
from acorn.thread.events import ConversationEvent, ThreadEvents, to_finite_json
from acorn.types import TOOL_ERROR, JsonObject, Message, Usage, is_list_or_tuple

_TURN_KEYS = ("role", "content", "tool_calls")
_Here = tuple[str, int, float]
"""The first fields of each journal entry: the run id, the step and the time."""


# From the journal to events


def events_of_journal(run: Any) -> ThreadEvents:
    """Convert the journal of a run and its branches to a thread.

    The events of a branch follow the event at which the branch started.
    """
    events = ThreadEvents(_JournalReader(run, is_root=True).events)
    events.run_id, events.input = run.id, run.input
    return events


class _JournalReader:
    def __init__(self, run: Any, *, is_root: bool) -> None:
        self._run = run
        self._is_root = is_root
        self._started = None if run.started is None else run.started.timestamp()
        self.events: list[thread.AgentEvent] = []
        self._is_open = False
        """Whether calls wait for results. The results precede the messages that the user adds in the meantime."""
        self._waiting: list[thread.AgentEvent] = []
        entries = tuple(run.journal.entries)  # The run may be in progress.
        for index, entry in enumerate(entries):
            # If the run continued after an interruption or a pause, the entry is not an event.
            if not isinstance(entry, journal.RunInterrupted | journal.RunPaused) or index == len(entries) - 1:
                self._add_entry(entry)
        self.events += self._waiting

    def _add_entry(self, entry: journal.Entry) -> None:
        step = entry.step
        match entry:
            case journal.MessagesAdded():
                added = entry.messages if self._is_root else entry.messages[entry.inherited :]
                self._append(entry, _message_events(added, step))
            case journal.ModelResponded():
                if entry.refusal is None:
                    self._append(entry, messages.events_of(assistant_message(entry), step))
                    self._is_open = bool(entry.calls)
            case journal.ToolResultsAdded():
                self._append_results(entry, entry.results)
                if entry.context is not None:
                    self._append(entry, messages.events_of({"role": "user", "content": entry.context}, step))
                self._append_waiting()
            case journal.HistoryEdited():
                edited = _message_events([entry.messages[index] for index in entry.added], step)
                self._append(entry, edited, waits=self._is_open)
            case journal.BranchStarted():
                for child in list(self._run.branches):
                    if child.id == entry.child_id:
                        self.events += _JournalReader(child, is_root=False).events
            case journal.Compacted():
                if entry.summary:
                    event = thread.SummaryEvent(
                        iteration=step, summary=entry.summary, summarized_iterations=list(entry.steps)
                    )
                    self._append(entry, [event])
            case journal.RunFinished():
                self._append(entry, [_end_event(entry)])
            case journal.RunFailed() | journal.RunInterrupted() | journal.RunPaused():
                self._append_results(entry, entry.results)
                self._append_waiting()
                if not isinstance(entry, journal.RunPaused):
                    self._append(entry, [thread.ErrorEvent(iteration=step, error=entry.error)])
            case journal.InputRequested():
                ids: JsonObject = {"tool_call_id": entry.call_id, "request_id": entry.request_id}
                self._append(entry, [thread.HumanInputRequestedEvent(iteration=step, question=entry.question, **ids)])
            case journal.InputReceived():
                ids = {"tool_call_id": entry.call_id, "request_id": entry.request_id}
                self._append(entry, [thread.HumanInputReceivedEvent(iteration=step, response=entry.answer, **ids)])
            case journal.RunStarted() | journal.ModelRequested() | journal.BranchFinished():
                pass
            case journal.ToolStarted() | journal.ToolFinished():
                pass
            case _:
                assert_never(entry)

    def _append_results(self, entry: journal.Entry, results: tuple[journal.ResultMessage, ...]) -> None:
        self._append(entry, [_result_event(result, entry.step) for result in results])

    def _append_waiting(self) -> None:
        self.events += self._waiting
        self._waiting, self._is_open = [], False

    def _append(self, entry: journal.Entry, events: Sequence[thread.AgentEvent], *, waits: bool = False) -> None:
        run = self._run
        for event in events:
            if isinstance(event, ConversationEvent) and event.rest:
                event.rest = copy_json(event.rest)  # A change to an event must not change the journal.
            if self._started is not None:
                event.timestamp = int((self._started + entry.at) * 1000)
            if run.branch is not None:
                event.branch, event.run_id = run.branch, run.id
        (self._waiting if waits else self.events).extend(events)


def _message_events(history: Iterable[Message], iteration: int) -> list[thread.AgentEvent]:
    """Convert messages that the model did not write in this step to events with the same iteration."""
    events: list[thread.AgentEvent] = []
    for message in history:
        added = messages.events_of(message, iteration)
        if isinstance(added[0], thread.ToolCallEvent) and added[0].rest is None:
            added[0].rest = {}  # An empty `rest` makes this message a separate turn, even after another turn.
        events += added
    return events


def _result_event(result: journal.ResultMessage, iteration: int) -> thread.ToolResultEvent | thread.ErrorEvent:
    call_id = str(result.call_id or "")  # A hook may have replaced the id with any value.
    message = {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
    text = text_of(result.content)
    event: thread.ToolResultEvent | thread.ErrorEvent
    if result.form in ("stopped", "skipped"):
        is_recoverable = result.form == "skipped"
        event = thread.ErrorEvent(iteration=iteration, error=text, recoverable=is_recoverable, tool_call_id=call_id)
    elif result.form == "error":
        event = messages.outcome_event(call_id, text, iteration)
    else:
        output = parse_json(text) if result.form == "json" else text
        event = thread.ToolResultEvent(iteration=iteration, tool_call_id=call_id, result=output)
    seconds: Any = result.seconds
    event.seconds = seconds if isinstance(seconds, int | float) else None
    messages.attach_remainder([event], message)
    return event


def _end_event(entry: journal.RunFinished) -> thread.CompletionEvent | thread.ErrorEvent:
    if entry.form == "error":
        return thread.ErrorEvent(iteration=entry.step, error=entry.content)
    result = parse_json(entry.content) if entry.form == "json" else entry.content
    return thread.CompletionEvent(iteration=entry.step, result=result)


# From events to the journal


def fork_entries(events: Sequence[thread.AgentEvent], run_id: str, at: float) -> list[journal.Entry]:
    """Convert the events of one run to the journal entries with which a fork starts.

    The message history of these entries is equal to `to_messages(events)`.
    """
    return _ForkWriter(events, run_id, at).entries


class _ForkWriter:
    def __init__(self, events: Sequence[thread.AgentEvent], run_id: str, at: float) -> None:
        self.entries: list[journal.Entry] = []
        self._run_id, self._at = run_id, at
        self._history: list[messages.DatedMessage] = []
        self._called_tools: dict[str, tuple[str, str]] = {}
        """A dict that maps call ids to the tool name and the arguments of the call."""
        self._results: list[thread.ToolResultEvent | thread.ErrorEvent] = []
        first = next((index for index, event in enumerate(events) if event.iteration > 0), len(events))
        self._append(journal.MessagesAdded(run_id, 0, at, tuple(thread.to_messages(events[:first]))))
        for group in messages.message_groups(events[first:]):
            self._add(group)
        self._append_results()

    def _add(self, group: Sequence[thread.AgentEvent]) -> None:
        event = group[0]
        if self._results and event.iteration != self._results[-1].iteration:
            self._append_results()
        if isinstance(event, thread.ToolResultEvent) or (isinstance(event, thread.ErrorEvent) and event.tool_call_id):
            self._results.append(event)
            return
        self._append_results()
        here = (self._run_id, event.iteration, self._at)
        if messages.is_turn(event):
            self._append(self._turn_entry(here, group))
        elif isinstance(event, thread.SummaryEvent):
            self._apply_summary(here, event)
        elif isinstance(event, thread.HumanInputRequestedEvent) and event.tool_call_id is not None:
            call_id, (name, arguments) = event.tool_call_id, self._called_tools.get(event.tool_call_id, ("", ""))
            kind: Any = "question" if name == "ask_human" else "approval"
            request_id = event.request_id or ""
            self._append(journal.InputRequested(*here, request_id, call_id, kind, event.question, name, arguments))
        elif isinstance(event, thread.HumanInputReceivedEvent) and event.tool_call_id is not None:
            self._append(journal.InputReceived(*here, event.request_id or "", event.tool_call_id, event.response))
        elif added := messages.messages_of(group):
            self._append(journal.MessagesAdded(*here, tuple(added)))

    def _append(self, entry: journal.Entry) -> None:
        self.entries.append(entry)
        change = change_of(entry, len(self._history))
        if change is not None:
            where, removed, added = change
            self._history[where : where + removed] = [(message, entry.step) for message in added]

    def _append_results(self) -> None:
        if self._results:
            here = (self._run_id, self._results[0].iteration, self._at)
            results = tuple(map(_result_message, self._results))
            self._append(journal.ToolResultsAdded(*here, results, None, len(self._history)))
            self._results = []

    def _turn_entry(self, here: _Here, group: Sequence[thread.AgentEvent]) -> journal.Entry:
        message, text = messages.messages_of(group)[0], getattr(group[0], "content", "")
        called = [event for event in group if isinstance(event, thread.ToolCallEvent)]
        calls = tuple(
            journal.CalledTool(call.tool_call_id, call.tool_name, messages.arguments_of(call)) for call in called
        )
        self._called_tools |= {call.id: (call.name, call.arguments) for call in calls}
        extra = copy_json({key: value for key, value in message.items() if key not in _TURN_KEYS})
        stop = "tool_calls" if calls else "stop"
        response = journal.ModelResponded(
            *here, self._at, "", text, None, calls, extra, stop, None, Usage(), None, 0, ()
        )
        # A message that the user wrote in another format stays unchanged.
        return response if assistant_message(response) == message else journal.MessagesAdded(*here, (message,))

    def _apply_summary(self, here: _Here, event: thread.SummaryEvent) -> None:
        """Append a `Compacted` entry, which replaces a part of the message history with a summary."""
        start, stop, added = messages.summary_change(event, self._history)
        copies = tuple(copy_json([message for message, _ in added]))
        steps = tuple(event.summarized_iterations)
        self._append(
            journal.Compacted(*here, self._at, "", event.summary, start, stop - start, copies, steps, Usage(), None)
        )
        self._history[start : start + len(added)] = added


def _result_message(event: thread.ToolResultEvent | thread.ErrorEvent) -> journal.ResultMessage:
    content = messages.join_events([event])["content"]
    form: journal.Form
    if isinstance(event, thread.ToolResultEvent):
        form = "text" if isinstance(event.result, str) else "json"
    elif text_of(content).startswith((TOOL_ERROR, VALIDATION_ERROR_START)):
        form = "error"
    else:
        form = "skipped" if event.recoverable else "stopped"
    return journal.ResultMessage(event.tool_call_id or "", content, form, event.seconds)


# Edited events


def discard_outdated_extras(events: Sequence[thread.AgentEvent]) -> None:
    """Remove stored originals that disagree with the visible fields of the events, in place.

    They disagree if the user edited the visible fields. The originals are `raw_arguments`, and the keys `content` and
    `tool_calls` in `rest`.
    """
    for group in messages.message_groups(events):
        for event in group:
            if isinstance(event, thread.ToolCallEvent) and not _matches_arguments(event.raw_arguments, event.args):
                event.raw_arguments = None
        first = group[0]
        if isinstance(first, ConversationEvent) and first.rest:
            # An empty `rest` still makes this message a separate turn.
            rest = first.rest = dict(first.rest)
            if "content" in rest and not _content_agrees(first, text_of(rest["content"])):
                del rest["content"]
            if "tool_calls" in rest and not _calls_agree(group, rest["tool_calls"]):
                del rest["tool_calls"]


def _matches_arguments(raw: str | None, args: JsonObject) -> bool:
    return raw is None or bool(messages.make_call_event("", "", raw, 0).args == to_finite_json(args))


def _content_agrees(event: ConversationEvent, text: str) -> bool:
    """Return True if the visible fields of an event have the same meaning as the stored content of its message."""
    if isinstance(event, thread.ToolResultEvent):
        return bool(event.result == text or to_finite_json(event.result) == to_finite_json(parse_json(text)))
    if isinstance(event, thread.ErrorEvent):
        return event.error in (text, text.removeprefix(TOOL_ERROR))
    return text == event.content if isinstance(event, thread.MessageEvent) else True


def _calls_agree(group: Sequence[thread.AgentEvent], stored: object) -> bool:
    """Return True if the events of a message have the same tool calls as the stored message."""
    stored_calls = [messages.parse_call(call, 0) for call in stored] if is_list_or_tuple(stored) else []
    calls = [event for event in group if isinstance(event, thread.ToolCallEvent)]
    return [_call_key(call) for call in stored_calls] == [_call_key(call) for call in calls]


def _call_key(call: thread.ToolCallEvent) -> tuple[str, str, object]:
    return call.tool_call_id, call.tool_name, to_finite_json(call.args)
