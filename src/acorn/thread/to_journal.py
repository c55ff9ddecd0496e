"""Conversion of thread events to journal entries, for forks.

`fork_entries` returns the journal entries of the steps that a fork shares with the original run. It is the reverse of
`from_journal.py`. An event has visible fields, such as `content`, and may also store the original keys of the message
in `rest`. If the two disagree, the user has edited the visible fields, so the visible fields take precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from acorn._formats.json import copy_json, text_of
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn._history.history import change_of
from acorn.journal import (
    CalledTool,
    Compacted,
    Entry,
    Form,
    InputReceived,
    InputRequested,
    MessagesAdded,
    ModelResponded,
    ResultMessage,
    ToolResultsAdded,
)
from acorn.thread.events import (
    AgentEvent,
    ConversationEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    to_finite_json,
)
from acorn.thread.from_journal import parse_json
from acorn.thread.messages import (
    apply_summary,
    is_turn,
    join_events,
    make_call_event,
    message_groups,
    messages_of,
    outcome_event,
    parse_call,
    to_messages,
)
from acorn.types import TOOL_ERROR, JsonObject, Message, Usage, is_json_object, is_list_or_tuple

_ASK_HUMAN = "ask_human"
_TURN_KEYS = ("role", "content", "tool_calls")


def fork_entries(events: Sequence[AgentEvent], run_id: str, at: float) -> list[Entry]:
    """Convert the events of one run to the journal entries with which a fork starts.

    The message history of these entries is equal to `to_messages(events)`.
    """
    return _ForkWriter(events, run_id, at).entries


class _ForkWriter:
    def __init__(self, events: Sequence[AgentEvent], run_id: str, at: float) -> None:
        self.entries: list[Entry] = []
        self._run_id, self._at = run_id, at
        self._history: list[Message] = []
        self._iterations: list[int] = []
        self._called_tools: dict[str, tuple[str, str]] = {}
        """A dict that maps call ids to the tool name and the arguments of the call."""
        self._results: list[ToolResultEvent | ErrorEvent] = []
        first = next((index for index, event in enumerate(events) if event.iteration > 0), len(events))
        self._append(MessagesAdded(run_id, 0, at, tuple(to_messages(events[:first]))))
        for group in message_groups(events[first:]):
            self._add(group)
        self._append_results()

    def _add(self, group: Sequence[AgentEvent]) -> None:
        event = group[0]
        if self._results and event.iteration != self._results[-1].iteration:
            self._append_results()
        if isinstance(event, ToolResultEvent) or (isinstance(event, ErrorEvent) and event.tool_call_id):
            self._results.append(event)
            return
        self._append_results()
        here = (self._run_id, event.iteration, self._at)
        if is_turn(event):
            self._append(self._turn_entry(messages_of(group)[0], event.iteration))
        elif isinstance(event, SummaryEvent):
            self._apply_summary(event)
        elif isinstance(event, HumanInputRequestedEvent) and event.tool_call_id is not None:
            call_id, (name, arguments) = event.tool_call_id, self._called_tools.get(event.tool_call_id, ("", ""))
            kind: Any = "question" if name == _ASK_HUMAN else "approval"
            request_id = event.request_id or ""
            self._append(InputRequested(*here, request_id, call_id, kind, event.question, name, arguments))
        elif isinstance(event, HumanInputReceivedEvent) and event.tool_call_id is not None:
            self._append(InputReceived(*here, event.request_id or "", event.tool_call_id, event.response))
        elif messages := messages_of(group):
            self._append(MessagesAdded(*here, tuple(messages)))

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry)
        change = change_of(entry, len(self._history))
        if change is not None:
            where, removed, added = change
            self._history[where : where + removed] = added
            self._iterations[where : where + removed] = [entry.step] * len(added)

    def _append_results(self) -> None:
        if self._results:
            results, self._results = self._results, []
            here = (self._run_id, results[0].iteration, self._at)
            self._append(ToolResultsAdded(*here, tuple(map(_result_message, results)), None, len(self._history)))

    def _turn_entry(self, message: Message, step: int) -> Entry:
        here = (self._run_id, step, self._at)
        calls = _parse_calls(message.get("tool_calls") or ())
        extra: JsonObject = {key: value for key, value in message.items() if key not in _TURN_KEYS}
        for call in calls or ():
            self._called_tools[call.id] = (call.name, call.arguments)
        if calls is None or not isinstance(message.get("content"), str):
            # The user wrote the message in another format, so it stays unchanged.
            return MessagesAdded(*here, (message,))
        stop = "tool_calls" if calls else "stop"
        return ModelResponded(
            *here, self._at, "", message["content"], None, calls, copy_json(extra), stop, None, Usage(), None, 0, ()
        )

    def _apply_summary(self, event: SummaryEvent) -> None:
        """Append a `Compacted` entry, which replaces a part of the message history with a summary."""
        before, after, iterations = self._history, list(self._history), list(self._iterations)
        apply_summary(event, after, iterations)
        where = _count_common(before, after)
        common_end = _count_common(before[where:][::-1], after[where:][::-1])
        added = after[where : len(after) - common_end]
        self._append(
            Compacted(
                self._run_id,
                event.iteration,
                self._at,
                self._at,
                "",
                event.summary,
                where,
                len(before) - common_end - where,
                tuple(copy_json(added)),
                tuple(event.summarized_iterations),
                Usage(),
                None,
            )
        )
        self._iterations = iterations


def _count_common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """Return the number of messages at the start of both lists that are identical objects."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left is not right:
            break
        count += 1
    return count


def _parse_calls(calls: Iterable[Any]) -> tuple[CalledTool, ...] | None:
    """Convert the tool calls of a message to `CalledTool` objects, or return None if a call has another format."""
    called: list[CalledTool] = []
    for call in calls:
        function = call.get("function") if is_json_object(call) else None
        if not is_json_object(function) or call.keys() != {"id", "type", "function"}:
            return None
        tool_call = CalledTool(call["id"], function.get("name", ""), function.get("arguments", ""))
        if not all(isinstance(value, str) for value in tool_call) or function.keys() != {"name", "arguments"}:
            return None
        called.append(tool_call)
    return tuple(called)


def _result_message(event: ToolResultEvent | ErrorEvent) -> ResultMessage:
    content = join_events([event])["content"]
    form: Form
    if isinstance(event, ToolResultEvent):
        form = "text" if isinstance(event.result, str) else "json"
    elif text_of(content).startswith((TOOL_ERROR, VALIDATION_ERROR_START)):
        form = "error"
    else:
        form = "skipped" if event.recoverable else "stopped"
    return ResultMessage(event.tool_call_id or "", content, form, event.seconds)


# Edited events


def discard_outdated_extras(events: Sequence[AgentEvent]) -> None:
    """Remove stored originals that disagree with the visible fields of the events, in place.

    They disagree if the user edited the visible fields. The originals are `raw_arguments`, and the keys `content` and
    `tool_calls` in `rest`.
    """
    for group in message_groups(events):
        for event in group:
            if isinstance(event, ToolCallEvent) and not _matches_arguments(event.raw_arguments, event.args):
                event.raw_arguments = None
        first = group[0]
        rest = first.rest if isinstance(first, ConversationEvent) else None
        if isinstance(first, ConversationEvent) and rest:
            content_agrees = "content" not in rest or _content_agrees(first, text_of(rest["content"]))
            calls_agree = "tool_calls" not in rest or _calls_agree(group, rest["tool_calls"])
            edited = (() if content_agrees else ("content",)) + (() if calls_agree else ("tool_calls",))
            # An empty `rest` still makes this message a separate turn.
            first.rest = {key: value for key, value in rest.items() if key not in edited}


def _matches_arguments(raw: str | None, args: JsonObject) -> bool:
    return raw is None or bool(make_call_event("", "", raw, 0).args == to_finite_json(args))


def _content_agrees(event: ConversationEvent, text: str) -> bool:
    """Return True if the visible fields of an event have the same meaning as the stored content of its message."""
    if isinstance(event, ToolResultEvent):
        return bool(event.result == text or to_finite_json(event.result) == to_finite_json(parse_json(text)))
    if isinstance(event, ErrorEvent):
        parsed = outcome_event("", text, 0)
        return event.error in (text, parsed.error if isinstance(parsed, ErrorEvent) else text)
    return text == event.content if isinstance(event, MessageEvent) else True


def _calls_agree(group: Sequence[AgentEvent], stored: object) -> bool:
    """Return True if the events of a message have the same tool calls as the stored message."""
    stored_calls = [parse_call(call, 0) for call in stored] if is_list_or_tuple(stored) else []
    calls = [event for event in group if isinstance(event, ToolCallEvent)]
    return [_call_key(call) for call in stored_calls] == [_call_key(call) for call in calls]


def _call_key(call: ToolCallEvent) -> tuple[str, str, object]:
    return call.tool_call_id, call.tool_name, to_finite_json(call.args)
