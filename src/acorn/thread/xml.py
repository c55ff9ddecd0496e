"""Conversion of a thread to one XML document, and of the document back to a thread.

The document has one event per line. All text from users and models is escaped, so that it cannot become markup. The
parser accepts only documents that `serialize_thread_to_xml` has written. The XML omits some fields of an event. To
preserve all fields, use `dump_events`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import unescape
from typing import assert_never

from acorn._formats.json import excerpt, shorten, to_json_text
from acorn._formats.xml.encode import FORBIDDEN_CHARACTER, escape_xml
from acorn.errors import InputError
from acorn.thread import events as event_types
from acorn.thread.events import AgentEvent, as_events, to_finite_json
from acorn.thread.messages import events_of
from acorn.types import Content, JsonObject, JsonValue, Message, is_json_object

Names = dict[tuple[str, str | None], str]
"""A dict that maps the keys of calls, as `_call_key` returns them, to tool names."""
UNKNOWN = "unknown"
_OPEN, _CLOSE = "<thread>\n", "</thread>"
_TYPES = {"user": "human", "assistant": "ai", "system": "system"}
_ROLES: JsonObject = {kind: role for role, kind in _TYPES.items()}


def _json_body(value: object) -> str:
    """Convert a value to compact JSON text for the body of an XML element.

    Characters that XML forbids become JSON escapes, and XML markup is escaped.
    """
    text = to_json_text(value)
    if "\ufffd" in text:  # The value may contain a lone surrogate, which Pydantic replaces.
        text = json.dumps(to_finite_json(value), ensure_ascii=False, separators=(",", ":"))
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # This joins surrogate pairs.
    if not text.isprintable():
        text = FORBIDDEN_CHARACTER.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return escape_xml(text)


def _result_body(result: object) -> str:
    return escape_xml(str.__str__(result)) if isinstance(result, str) else _json_body(result)


# Writing


def serialize_thread_to_xml(events: Iterable[AgentEvent], response_prefix: str | None = None) -> str:
    """Return the events as a `<thread>` document, followed by `response_prefix` on a separate line.

    `response_prefix` is the beginning of the model's answer, and it is not escaped. By default, a thread from
    `parse_thread_xml` uses the text that followed its document.
    """
    if response_prefix is None:
        response_prefix = getattr(events, "response_prefix", None)
    prefix = f"\n{response_prefix}" if response_prefix else ""
    return f"{thread_document(event_lines(as_events(events), 0, {}))}{prefix}"


def thread_document(lines: Iterable[str]) -> str:
    """Return a `<thread>` document that contains the given event lines."""
    return f"{_OPEN}{''.join(lines)}{_CLOSE}"


def event_lines(events: Sequence[AgentEvent], first: int, names: Names) -> list[str]:
    """Return a list with one XML line for each event, numbered from `first`.

    The function also adds the tool name of each tool call to `names`, because the line of a result needs this name.
    """
    names |= {_call_key(event): event.tool_name for event in events if event.type == "tool_call"}
    return [_event_line(event, index, names) for index, event in enumerate(events, start=first)]


def _call_key(event: event_types.ToolCallEvent | event_types.ToolResultEvent) -> tuple[str, str | None]:
    """Return a dict key that identifies a tool call: its id, and the run or branch that made the call.

    The id is not enough, because a branch may use the same call ids as its parent.
    """
    return event.tool_call_id, event.run_id or event.branch


def _event_line(event: AgentEvent, index: int, names: Names) -> str:
    kind: str = event.type
    name_attributes = attributes = ""
    if event.type == "message":  # Comparing strings is faster than `isinstance` for Pydantic classes.
        kind, body = _TYPES[event.role], escape_xml(event.content)
    elif event.type == "tool_call":
        kind, body = "tool_input", _json_body(to_finite_json(event.args))
        name_attributes = f' name="{escape_xml(event.tool_name)}"'
    elif event.type == "tool_result":
        kind, body = "tool_output", _result_body(event.result)
        name = names.get(_call_key(event), event.tool_name)
        name_attributes = f' name="{escape_xml(UNKNOWN if name is None else name)}" status="success"'
    elif event.type == "error":
        body = escape_xml(event.error)
        attributes = f' recoverable="{"true" if event.recoverable else "false"}"'
    elif event.type == "human_input_requested":
        body, attributes = escape_xml(event.question), _id_attributes(event)
    elif event.type == "human_input_received":
        body, attributes = escape_xml(event.response), _id_attributes(event)
    elif event.type == "completion":
        body = _result_body(event.result)
    elif event.type == "summary":
        body = escape_xml(event.summary)
        attributes = f' summarizedIterations="{",".join(map(str, event.summarized_iterations))}"'
    else:
        assert_never(event)
    attributes = f'{name_attributes} iteration="{event.iteration}"{attributes}'
    return f'  <event type="{kind}" id="{index}"{attributes}>{body}</event>\n'


def _id_attributes(event: event_types.HumanInputRequestedEvent | event_types.HumanInputReceivedEvent) -> str:
    """Return the XML attributes for the tool call id and the request id of a human input event."""
    ids = (("toolCallId", event.tool_call_id), ("requestId", event.request_id))
    return "".join([f' {name}="{escape_xml(value)}"' for name, value in ids if value is not None])


# Parsing


class ParsedThread(list[AgentEvent]):
    """The list of events in a `<thread>` document, with the text after the document as `response_prefix`."""

    response_prefix: str | None = None


_LINE = re.compile(r' {2}<event type="([a-z_]+)" id="[0-9]+"((?: [A-Za-z]+="[^"<>]*")*)>([^<>]*)</event>\n')
_ATTRIBUTE = re.compile(r'([A-Za-z]+)="([^"]*)"')


def parse_thread_xml(text: str) -> ParsedThread:
    """Parse a `<thread>` document and return its events.

    `serialize_thread_to_xml` converts these events to the same document again. The document contains neither the ids of
    tool calls nor the types of results. Therefore all results are texts, and each tool call and its result receive a
    new id.
    """
    if not isinstance(text, str):
        raise InputError(
            f"A thread document must be a string, got {excerpt(text)}. Decode bytes before you parse them."
        )
    if not text.startswith(_OPEN):
        raise _line_error(text, 0, "is not `<thread>` alone on its line")
    thread, reader, names, at = ParsedThread(), _ThreadParser(), Names(), len(_OPEN)
    while not text.startswith(_CLOSE, at):
        number = len(thread)
        match = _LINE.match(text, at)
        try:
            event = None if match is None else reader.read(match, number)
        except (ValueError, RecursionError) as error:  # The arguments are not JSON, or a number has too many digits.
            raise _line_error(text, at, f"is an invalid event ({shorten(str(error))})") from error
        if match is None or event is None or event_lines([event], number, names) != [match[0]]:
            raise _line_error(text, at, f"is not event number {number} as `serialize_thread_to_xml` writes it")
        thread.append(event)
        at = match.end()
    at += len(_CLOSE)
    if at < len(text):
        if text[at] != "\n":
            raise _line_error(text, at, "continues after `</thread>`")
        thread.response_prefix = text[at + 1 :]
    return thread


def _line_error(text: str, at: int, why: str) -> InputError:
    line = text.count("\n", 0, at) + 1
    return InputError(f"Line {line} of the thread {why}: {shorten(repr(text[at : at + 100]), 100)}")


class _ThreadParser:
    """A parser for the event lines of one document, which finds the tool call of each result and each error.

    Results and errors have the same order as their tool calls.
    """

    def __init__(self) -> None:
        self._open_calls: dict[str, tuple[str, int]] = {}
        """A dict that maps the ids of open calls, which have no result yet, to (tool name, iteration)."""

    def read(self, line: re.Match[str], number: int) -> AgentEvent | None:
        """Convert one line of the document to an event, or return None if the type is unknown."""
        kind, attributes, body = line[1], line[2], unescape(line[3])
        values = {name: unescape(value) for name, value in _ATTRIBUTE.findall(attributes)}
        iteration, name = int(values.get("iteration", "")), values.get("name", "")
        ids: JsonObject = {"tool_call_id": values.get("toolCallId"), "request_id": values.get("requestId")}
        match kind:
            case "human" | "ai" | "system":
                return event_types.MessageEvent(iteration=iteration, role=_ROLES[kind], content=body)
            case "tool_input":
                return self._call_event(name, body, number, iteration)
            case "tool_output":
                return self._result_event(name, body, number, iteration)
            case "error":
                recoverable = values.get("recoverable") == "true"
                ids = {"tool_call_id": self._take_open_call(None, iteration) if recoverable else None}
                return event_types.ErrorEvent(iteration=iteration, error=body, recoverable=recoverable, **ids)
            case "human_input_requested":
                return event_types.HumanInputRequestedEvent(iteration=iteration, question=body, **ids)
            case "human_input_received":
                return event_types.HumanInputReceivedEvent(iteration=iteration, response=body, **ids)
            case "completion":
                return event_types.CompletionEvent(iteration=iteration, result=body)
            case "summary":
                steps = [int(step) for step in values.get("summarizedIterations", "").split(",") if step]
                return event_types.SummaryEvent(iteration=iteration, summary=body, summarized_iterations=steps)
            case _:
                return None

    def _call_event(self, name: str, body: str, number: int, iteration: int) -> event_types.ToolCallEvent:
        args = json.loads(body)
        if not is_json_object(args):
            raise ValueError("the arguments are not a JSON object")
        call_id = f"call_{number}"
        self._open_calls[call_id] = name, iteration
        return event_types.ToolCallEvent(iteration=iteration, tool_name=name, tool_call_id=call_id, args=args)

    def _result_event(self, name: str, body: str, number: int, iteration: int) -> event_types.ToolResultEvent:
        call_id = self._take_open_call(name, iteration) or self._take_open_call(name, None)
        ids: JsonObject = {"tool_call_id": call_id}
        if call_id is None:
            ids = {"tool_call_id": f"output_{number}", "tool_name": name}
        return event_types.ToolResultEvent(iteration=iteration, result=body, **ids)

    def _take_open_call(self, name: str | None, iteration: int | None) -> str | None:
        """Return the id of the first tool call without a result that has the name and the iteration, or None.

        The method also marks this tool call as answered. As an argument, None matches any value.
        """
        for call_id, call in self._open_calls.items():
            if name in (None, call[0]) and iteration in (None, call[1]):
                del self._open_calls[call_id]
                return call_id
        return None


# The conversation as one message, for `history_format = "thread"`


class ThreadMessage:
    """A converter of a conversation to one message with an XML thread, for `history_format = "thread"`.

    It stores the XML lines of earlier requests, so that each request only converts the new messages.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._messages: list[Message] = []
        """The messages that are in the document."""
        self._lines: list[str] = []
        self._parts: list[JsonObject] = []
        self._names: Names = {}
        self._iteration = 0

    def wrap(self, messages: list[Message]) -> list[Message]:
        """Return the system messages, and one user message that contains all other messages as XML."""
        first = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
        conversation = messages[first:]
        if not _starts_with(conversation, self._messages):
            self._start()
        for message in conversation[len(self._messages) :]:
            self._iteration += message["role"] == "assistant"
            self._parts += _media_parts(message, len(self._lines))
            self._lines += event_lines(events_of(message, self._iteration), len(self._lines), self._names)
        self._messages = conversation
        text = thread_document(self._lines)
        content: Content = [{"type": "text", "text": text}, *self._parts] if self._parts else text
        return [*messages[:first], {"role": "user", "content": content}]


def _starts_with(messages: list[Message], known: list[Message]) -> bool:
    """Return True if the first messages in `messages` are identical to the objects in `known`.

    Comparing identities is enough, because a message does not change after it was sent.
    """
    return len(messages) >= len(known) and all(one is other for one, other in zip(messages, known, strict=False))


def _media_parts(message: Message, event: int) -> list[JsonObject]:
    """Return the images, audio and files of a message, each after a text that names the number of its XML event."""
    content: JsonValue = message.get("content")
    if not isinstance(content, list):
        return []
    media = (part for part in content if not isinstance(part.get("text"), str))
    labelled: list[JsonObject] = []
    for number, part in enumerate(media, start=1):
        labelled += [{"type": "text", "text": f"Media {number} of event {event}:"}, part]
    return labelled
