"""From events to the entries of a journal: what a fork keeps of another run. The way back of `recall.py`.

The visible fields of an event count. What travels beside them, to give a message back to the letter, is left out where
it says something else: then the event was edited.

A thread as the entries of a journal, as far as it tells: it knows neither requests nor when a call began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from acorn._formats.content import text_of
from acorn._formats.json import copy_json, to_compact_json
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn._history.history import change_of
from acorn.journal import (
    BranchStarted,
    CalledTool,
    Compacted,
    Entry,
    Form,
    InputReceived,
    InputRequested,
    Message,
    MessagesAdded,
    ModelResponded,
    ResultMessage,
    RunFailed,
    RunFinished,
    ToolResultsAdded,
)
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    Spoken,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    plain_of,
)
from acorn.thread.from_journal import read_json
from acorn.thread.messages import Said, called, goes_on, messages_of, outcome, read_call, sum_up, to_messages, whole
from acorn.types import TOOL_ERROR, JsonObject, Usage

_QUESTION = "ask_human"
_TURN_KEYS = ("role", "content", "tool_calls")


def entries_of_fork(events: Sequence[AgentEvent], run_id: str, at: float) -> list[Entry]:
    """The entries of a journal that tells these events, all of one run; `history_of` them is `to_messages`."""
    return _ForkWriter(events, run_id, at).entries


class _ForkWriter:
    def __init__(self, events: Sequence[AgentEvent], run_id: str, at: float) -> None:
        self.entries: list[Entry] = []
        self._run_id, self._at = run_id, at
        self._history: list[Message] = []
        self._iterations: list[int] = []
        self._names: dict[str, tuple[str, str]] = {}
        """The calls so far, by their ids: the tool, and its arguments."""
        self._turn: list[Said] = []
        self._results: list[ToolResultEvent | ErrorEvent] = []
        first = next((index for index, event in enumerate(events) if event.iteration > 0), len(events))
        self._put(MessagesAdded(run_id, 0, at, tuple(to_messages(events[:first]))))
        for event in events[first:]:
            self._add(event)
        self._flush()

    def _add(self, event: AgentEvent) -> None:
        is_turn = isinstance(event, ToolCallEvent) or (isinstance(event, MessageEvent) and event.role == "assistant")
        is_result = isinstance(event, ToolResultEvent) or (isinstance(event, ErrorEvent) and bool(event.tool_call_id))
        if self._turn and not (isinstance(event, ToolCallEvent) and goes_on(self._turn[-1], event)):
            self._flush()
        if self._results and not (is_result and event.iteration == self._results[-1].iteration):
            self._flush()
        here = (self._run_id, event.iteration, self._at)
        if is_turn and isinstance(event, ToolCallEvent | MessageEvent):
            self._turn.append(event)
        elif is_result and isinstance(event, ToolResultEvent | ErrorEvent):
            self._results.append(event)
        elif isinstance(event, SummaryEvent):
            self._sum_up(event)
        elif isinstance(event, HumanInputRequestedEvent) and event.tool_call_id is not None:
            call_id, (name, arguments) = event.tool_call_id, self._names.get(event.tool_call_id, ("", ""))
            kind: Any = "question" if name == _QUESTION else "approval"
            request_id = event.request_id or ""
            self._put(InputRequested(*here, request_id, call_id, kind, event.question, name, arguments))
        elif isinstance(event, HumanInputReceivedEvent) and event.tool_call_id is not None:
            self._put(InputReceived(*here, event.request_id or "", event.tool_call_id, event.response))
        elif said := messages_of(event):
            self._put(MessagesAdded(*here, tuple(said)))

    def _put(self, entry: Entry) -> None:
        self.entries.append(entry)
        change = change_of(entry, len(self._history))
        if change is not None:
            where, removed, made = change
            self._history[where : where + removed] = made
            self._iterations[where : where + removed] = [entry.step] * len(made)

    def _flush(self) -> None:
        if self._turn:
            turn, self._turn = self._turn, []
            self._put(self._answered(turn))
        if self._results:
            results, self._results = self._results, []
            here = (self._run_id, results[0].iteration, self._at)
            self._put(ToolResultsAdded(*here, tuple(map(_said, results)), None, len(self._history)))

    def _answered(self, turn: list[Said]) -> Entry:
        message = whole(turn)
        here = (self._run_id, turn[0].iteration, self._at)
        calls = _calls(message.get("tool_calls") or ())
        extra = {key: value for key, value in message.items() if key not in _TURN_KEYS}
        for call in calls or ():
            self._names[call.id] = (call.name, call.arguments)
        if calls is None or not isinstance(message.get("content"), str):  # somebody's own, which stays as it is
            return MessagesAdded(*here, (message,))
        stop = "tool_calls" if calls else "stop"
        return ModelResponded(
            *here, self._at, "", message["content"], None, calls, copy_json(extra), stop, None, Usage(), None, 0, ()
        )

    def _sum_up(self, event: SummaryEvent) -> None:
        """Say which stretch of the history the summary stands for, and what stays of it."""
        before, after, iterations = self._history, list(self._history), list(self._iterations)
        sum_up(event, after, iterations)
        where = _same(before, after)
        behind = _same(before[where:][::-1], after[where:][::-1])
        made = after[where : len(after) - behind]
        self._put(
            Compacted(
                self._run_id,
                event.iteration,
                self._at,
                self._at,
                "",
                event.summary,
                where,
                len(before) - behind - where,
                tuple(copy_json(made)),
                tuple(event.summarized_iterations),
                Usage(),
                None,
            )
        )
        self._iterations = iterations


def _same(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many of the first messages are the very same."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs:
            break
        count += 1
    return count


def _calls(made: Any) -> tuple[CalledTool, ...] | None:
    """The calls of a message as a model makes them; None where they are otherwise."""
    found: list[CalledTool] = []
    for call in made:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.keys() != {"id", "type", "function"}:
            return None
        one = CalledTool(call["id"], function.get("name", ""), function.get("arguments", ""))
        if not all(isinstance(part, str) for part in one) or function.keys() != {"name", "arguments"}:
            return None
        found.append(one)
    return tuple(found)


def _said(event: ToolResultEvent | ErrorEvent) -> ResultMessage:
    content = whole([event])["content"]
    form: Form
    if isinstance(event, ToolResultEvent):
        form = "text" if isinstance(event.result, str) else "json"
    elif text_of(content).startswith((TOOL_ERROR, VALIDATION_ERROR_START)):
        form = "error"
    else:
        form = "skipped" if event.recoverable else "stopped"
    return ResultMessage(event.tool_call_id or "", content, form, event.seconds)


# What was edited


def close_calls(events: Sequence[AgentEvent]) -> None:
    """Let the visible fields of the events count, in place."""
    for event in events:
        if isinstance(event, ToolCallEvent) and not _is_text_of(event.raw_arguments, event.args):
            event.raw_arguments = None
        rest = event.rest if isinstance(event, Spoken) else None
        if isinstance(event, Spoken) and rest and "content" in rest and not _agrees(event, text_of(rest["content"])):
            event.rest = {key: value for key, value in rest.items() if key != "content"} or None
    turn: list[Said] = []
    for event in events:
        if not (isinstance(event, ToolCallEvent) and turn and goes_on(turn[-1], event)):
            _settle_calls(turn)
            turn = []
        if isinstance(event, ToolCallEvent | MessageEvent):
            turn.append(event)
    _settle_calls(turn)


def _is_text_of(raw: str | None, args: JsonObject) -> bool:
    return raw is None or bool(called("", "", raw, 0).args == plain_of(args))


def _agrees(event: Spoken, text: str) -> bool:
    """Whether the content that travels along is what the event says."""
    if isinstance(event, ToolResultEvent):
        return bool(event.result == text or plain_of(event.result) == plain_of(read_json(text)))
    if isinstance(event, ErrorEvent):
        told = outcome("", text, 0)
        return event.error in (text, told.error if isinstance(told, ErrorEvent) else text)
    return text == event.content if isinstance(event, MessageEvent) else True


def _settle_calls(turn: list[Said]) -> None:
    if not turn or not turn[0].rest or "tool_calls" not in turn[0].rest:
        return
    written = turn[0].rest["tool_calls"]
    read = [read_call(call, 0) for call in written] if isinstance(written, list | tuple) else []
    calls = [event for event in turn if isinstance(event, ToolCallEvent)]
    if [_words(call) for call in read] != [_words(call) for call in calls]:
        # It stays a turn of its own, though nothing else travels along.
        turn[0].rest = {key: value for key, value in turn[0].rest.items() if key != "tool_calls"}


def _words(call: ToolCallEvent) -> tuple[str, str, Any]:
    return call.tool_call_id, call.tool_name, plain_of(call.args)


_At = tuple[str, int, float]
"""What all entries have: the run, the step, the time."""


@dataclass(eq=False)
class _ThreadFacts:
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
    runs = {"": _ThreadFacts("")}
    for event in events:
        key = (event.run_id or event.branch) if event.branch else ""
        if key not in runs:
            runs[key] = _ThreadFacts(key, event.branch or "")
            yield _begun(runs[key], event, list(runs.values()))
        run = runs[key]
        run.hear(event)
        yield _entry(event, run)


def _begun(child: _ThreadFacts, first: AgentEvent, runs: list[_ThreadFacts]) -> BranchStarted:
    """A branch begins with its first event: below the open call of its name, or else by the user's code."""
    above, _, name = child.path.rpartition("/")
    parent = next((run for run in reversed(runs) if run.path == above), runs[0])
    calls = [call_id for call_id, called in parent.open_calls.items() if called == name]
    free = [call_id for call_id in calls if call_id not in parent.branched] or calls
    parent.branched.update(free[:1])
    if first.timestamp is not None and parent.began is not None:
        parent.now = max(parent.now, (first.timestamp - parent.began) / 1000)
    return BranchStarted(parent.id, parent.step, parent.now, child.id, child.path, free[0] if free else None)


def _entry(event: AgentEvent, run: _ThreadFacts) -> Entry:
    at = (run.id, run.step, run.now)
    match event:
        case MessageEvent():
            return _message_entries(at, event.role, event.content)
        case HumanInputRequestedEvent():
            return _message_entries(at, event.type, event.question)
        case HumanInputReceivedEvent():
            return _message_entries(at, event.type, event.response)
        case SummaryEvent():
            return _message_entries(at, event.type, event.summary)
        case ToolCallEvent():
            run.open_calls[event.tool_call_id] = event.tool_name
            arguments = to_compact_json(event.args) if event.raw_arguments is None else event.raw_arguments
            calls = (CalledTool(event.tool_call_id, event.tool_name, arguments),)
            return ModelResponded(*at, run.now, "", "", None, calls, {}, "tool_calls", None, Usage(), None, 1, ())
        case ErrorEvent():
            if event.tool_call_id is None:
                return RunFailed(*at, event.error, ())
            return _result(at, run, ResultMessage(event.tool_call_id, event.error, "error", event.seconds))
        case ToolResultEvent():
            return _result(at, run, ResultMessage(event.tool_call_id, *_content(event.result), event.seconds))
        case CompletionEvent():
            return RunFinished(*at, "finish", *_content(event.result))
        case _:
            assert_never(event)


def _message_entries(at: _At, role: str, content: str) -> MessagesAdded:
    return MessagesAdded(*at, ({"role": role, "content": content},))


def _result(at: _At, run: _ThreadFacts, result: ResultMessage) -> ToolResultsAdded:
    run.open_calls.pop(result.call_id, None)
    return ToolResultsAdded(*at, (result,), None, None)


def _content(value: Any) -> tuple[str, Form]:
    return (value, "text") if isinstance(value, str) else (to_compact_json(value), "json")
