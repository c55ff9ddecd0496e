"""From the journal of a run to its events. `Run.thread` calls it."""

from __future__ import annotations

from typing import Any, assert_never

from pydantic_core import from_json

from acorn._formats.content import text_of
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    Compacted,
    Entry,
    HistoryEdited,
    InputReceived,
    InputRequested,
    Message,
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
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    Spoken,
    SummaryEvent,
    ThreadEvents,
    ToolCallEvent,
    ToolResultEvent,
)
from acorn.thread.messages import Said, events_of, keep_rest, outcome


def events_of_journal(run: Any) -> ThreadEvents:
    """All that a run did, its branches where they began; a branch begins with what it has from its parent."""
    thread = ThreadEvents(_JournalReader(run, is_whole=True).events)
    thread.run_id, thread.input = run.id, run.input
    return thread


class _JournalReader:
    def __init__(self, run: Any, *, is_whole: bool) -> None:
        self._run = run
        self._is_whole = is_whole
        self._began = None if run.started is None else run.started.timestamp()
        self.events: list[AgentEvent] = []
        self._is_open = False
        """Whether calls wait for their results, which come before what the user has added meanwhile."""
        self._waiting: list[AgentEvent] = []
        entries = tuple(run.journal.entries)  # the run may be going on
        for at, entry in enumerate(entries):
            # An interruption that was not the end is no part of the story.
            if not isinstance(entry, RunInterrupted | RunPaused) or at == len(entries) - 1:
                self._add(entry)
        self.events += self._waiting

    def _add(self, entry: Entry) -> None:
        step = entry.step
        match entry:
            case MessagesAdded():
                said = entry.messages if self._is_whole else entry.messages[entry.inherited :]
                is_first = not self.events and self._is_whole
                self._tell(entry, _conversation(said, step) if is_first or entry.inherited else _spoken(said, step))
            case ModelResponded():
                if entry.refusal is None:
                    self._tell(entry, _turn(entry))
                    self._is_open = bool(entry.calls)
            case ToolResultsAdded():
                self._close(entry, entry.results)
                if entry.context is not None:
                    self._tell(entry, events_of({"role": "user", "content": entry.context}, step))
                self._release()
            case HistoryEdited():
                added = _conversation([entry.messages[at] for at in entry.added], step)
                self._tell(entry, added, waits=self._is_open)
            case BranchStarted():
                children = [child for child in list(self._run.branches) if child.id == entry.child_id]
                for child in children:
                    self.events += _JournalReader(child, is_whole=False).events
            case Compacted():
                if entry.summary:
                    steps = list(entry.steps)
                    self._tell(
                        entry, [SummaryEvent(iteration=step, summary=entry.summary, summarized_iterations=steps)]
                    )
            case RunFinished():
                self._tell(entry, [_end(entry)])
            case RunFailed() | RunInterrupted():
                self._close(entry, entry.results)
                self._release()
                self._tell(entry, [ErrorEvent(iteration=step, error=entry.error)])
            case RunPaused():
                self._close(entry, entry.results)
                self._release()
            case InputRequested():
                asked = HumanInputRequestedEvent(iteration=step, question=entry.question)
                asked.tool_call_id, asked.request_id = entry.call_id, entry.request_id
                self._tell(entry, [asked])
            case InputReceived():
                answered = HumanInputReceivedEvent(iteration=step, response=entry.answer)
                answered.tool_call_id, answered.request_id = entry.call_id, entry.request_id
                self._tell(entry, [answered])
            case RunStarted() | ModelRequested() | ToolStarted() | ToolFinished() | BranchFinished():
                pass
            case _:
                assert_never(entry)

    def _close(self, entry: Entry, results: tuple[ResultMessage, ...]) -> None:
        self._tell(entry, [_result(result, entry.step) for result in results])

    def _release(self) -> None:
        self.events += self._waiting
        self._waiting, self._is_open = [], False

    def _tell(self, entry: Entry, made: Any, *, waits: bool = False) -> None:
        run = self._run
        for event in made:
            if isinstance(event, Spoken) and event.rest:
                event.rest = _own(event.rest)
            if self._began is not None:
                event.timestamp = int((self._began + entry.at) * 1000)
            if run.branch is not None:
                event.branch, event.run_id = run.branch, run.id
        (self._waiting if waits else self.events).extend(made)


def _conversation(messages: Any, iteration: int) -> list[AgentEvent]:
    """Messages that were not said in this run, all of one iteration."""
    events: list[AgentEvent] = []
    for message in messages:
        made = events_of(message, iteration)
        if isinstance(made[0], ToolCallEvent) and made[0].rest is None:
            made[0].rest = {}  # a turn of its own, though it may follow another
        events += made
    return events


def _spoken(messages: Any, iteration: int) -> list[AgentEvent]:
    return [event for message in messages for event in events_of(message, iteration)]


def _turn(entry: ModelResponded) -> list[Said]:
    message: Message = {"role": "assistant", "content": entry.content}
    if entry.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in entry.calls
        ]
    return events_of(message | entry.extra, entry.step)


def _result(said: ResultMessage, iteration: int) -> ToolResultEvent | ErrorEvent:
    call_id = str(said.call_id or "")  # a hook may have made anything of it
    message = {"role": "tool", "tool_call_id": said.call_id, "content": said.content}
    text = text_of(said.content)
    made: ToolResultEvent | ErrorEvent
    if said.form in ("stopped", "skipped"):
        is_recoverable = said.form == "skipped"
        made = ErrorEvent(iteration=iteration, error=text, recoverable=is_recoverable, tool_call_id=call_id)
    elif said.form == "error":
        made = outcome(call_id, text, iteration)
    else:
        result = read_json(text) if said.form == "json" else text
        made = ToolResultEvent(iteration=iteration, tool_call_id=call_id, result=result)
    seconds: Any = said.seconds
    made.seconds = seconds if isinstance(seconds, int | float) else None
    keep_rest([made], message)
    return made


def _end(entry: RunFinished) -> CompletionEvent | ErrorEvent:
    if entry.form == "error":
        return ErrorEvent(iteration=entry.step, error=entry.content)
    result = read_json(entry.content) if entry.form == "json" else entry.content
    return CompletionEvent(iteration=entry.step, result=result)


def read_json(text: str) -> Any:
    """What the JSON says; the text itself where it is nested too deep for the reader."""
    try:
        return from_json(text)
    except ValueError:
        return text


def _own(value: Any) -> Any:
    """The value in dicts and lists that nobody else holds, so that who changes an event changes no entry."""
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    return [_own(item) for item in value] if isinstance(value, list) else value
