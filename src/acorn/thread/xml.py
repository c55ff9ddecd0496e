"""A thread as one XML document, and back.

The document has one event per line. All text from users and models is escaped, so that none of it can become markup.
The parser accepts exactly the output of the writer. The lossless form of a thread is the JSON of its events.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import assert_never

from acorn._formats.json import excerpt, shorten, to_json_text
from acorn._formats.xml.parse import FORBIDDEN_CHARACTER, FORBIDDEN_CHARACTERS, escape_anywhere
from acorn.errors import InputError
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
    as_events,
    to_finite_json,
)
from acorn.types import JsonObject, is_json_object

Names = dict[tuple[str, str | None], str]
UNKNOWN = "unknown"
_OPEN, _CLOSE = "<thread>\n", "</thread>"
_TYPES = {"user": "human", "assistant": "ai", "system": "system"}
_ROLES: JsonObject = {kind: role for role, kind in _TYPES.items()}

_REFERENCE = re.compile("&(amp|lt|gt|quot|apos);")
_MEANINGS = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


def escape_xml(text: str) -> str:
    """Escape `& < > " '` as references, and replace characters that XML forbids by U+FFFD."""
    return escape_anywhere(text)


def _unescape(text: str) -> str:
    return _REFERENCE.sub(lambda match: _MEANINGS[match[1]], text) if "&" in text else text


def _json_body(value: object) -> str:
    """Return compact JSON in which characters that XML forbids are written as JSON escapes."""
    text = to_json_text(value)
    if "\ufffd" in text:  # Possibly a lone surrogate, which Pydantic replaces.
        text = json.dumps(to_finite_json(value), ensure_ascii=False, separators=(",", ":"))
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")  # Join two halves of a pair.
    if not text.isprintable():
        text = FORBIDDEN_CHARACTER.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return escape_anywhere(text)


def _result_body(result: object) -> str:
    if isinstance(result, str):
        return escape_xml(str.__str__(result))
    return "null" if result is None else _json_body(result)


# Writing.


def serialize_thread_to_xml(events: Iterable[AgentEvent], response_prefix: str | None = None) -> str:
    """Return the `<thread>` document, followed by the prefix on a separate line. The prefix is not escaped.

    A thread that was read from a document with a prefix keeps that prefix, unless you pass another one.
    """
    if response_prefix is None:
        response_prefix = getattr(events, "response_prefix", None)
    prefix = f"\n{response_prefix}" if response_prefix else ""
    return f"{thread_document(event_lines(as_events(events), 0, {}))}{prefix}"


def thread_document(lines: Iterable[str]) -> str:
    """Return the `<thread>` document of these lines."""
    return f"{_OPEN}{''.join(lines)}{_CLOSE}"


def event_lines(events: Sequence[AgentEvent], first: int, names: Names) -> list[str]:
    """Return a line for each event, numbered from `first`, and add the names of calls to `names`."""
    names |= {_key(event): event.tool_name for event in events if event.type == "tool_call"}
    return [_line(event, index, names) for index, event in enumerate(events, start=first)]


def _key(event: ToolCallEvent | ToolResultEvent) -> tuple[str, str | None]:
    """Return the key of a call: its id and its run, because a branch may use the same ids."""
    return event.tool_call_id, event.run_id or event.branch


def _line(event: AgentEvent, index: int, names: Names) -> str:
    kind: str = event.type
    name_attributes = attributes = ""
    if event.type == "message":  # Comparing strings is faster than `isinstance` for Pydantic classes.
        kind, body = _TYPES[event.role], escape_xml(event.content)
    elif event.type == "tool_call":
        kind, body = "tool_input", _json_body(to_finite_json(event.args))
        name_attributes = f' name="{escape_xml(event.tool_name)}"'
    elif event.type == "tool_result":
        kind, body = "tool_output", _result_body(event.result)
        name = names.get(_key(event), event.tool_name)
        name_attributes = f' name="{escape_xml(UNKNOWN if name is None else name)}" status="success"'
    elif event.type == "error":
        body = escape_xml(event.error)
        attributes = f' recoverable="{"true" if event.recoverable else "false"}"'
    elif event.type == "human_input_requested":
        body, attributes = escape_xml(event.question), _ids(event)
    elif event.type == "human_input_received":
        body, attributes = escape_xml(event.response), _ids(event)
    elif event.type == "completion":
        body = _result_body(event.result)
    elif event.type == "summary":
        body = escape_xml(event.summary)
        attributes = f' summarizedIterations="{",".join(map(str, event.summarized_iterations))}"'
    else:
        assert_never(event)
    attributes = f'{name_attributes} iteration="{event.iteration}"{attributes}'
    return f'  <event type="{kind}" id="{index}"{attributes}>{body}</event>\n'


def _ids(event: HumanInputRequestedEvent | HumanInputReceivedEvent) -> str:
    """Return the attributes with the ids of a request for human input."""
    ids = (("toolCallId", event.tool_call_id), ("requestId", event.request_id))
    return "".join([f' {name}="{escape_xml(value)}"' for name, value in ids if value is not None])


# Reading.


class ParsedThread(list[AgentEvent]):
    """The events of a document, with the text that follows it."""

    response_prefix: str | None = None


_NUMBER = "(?:0|-?[1-9][0-9]*)"
_TEXT = f"[^&<>\"'{FORBIDDEN_CHARACTERS}]*(?:&(?:amp|lt|gt|quot|apos);[^&<>\"'{FORBIDDEN_CHARACTERS}]*)*"
_EVENT = re.compile(
    rf' {{2}}<event type="(?P<type>[a-z_]+)" id="(?P<id>[0-9]+)"(?: name="(?P<name>{_TEXT})")?'
    rf'(?P<status> status="success")? iteration="(?P<iteration>{_NUMBER})"'
    r'(?: recoverable="(?P<recoverable>true|false)"'
    rf'| summarizedIterations="(?P<summarized>(?:{_NUMBER}(?:,{_NUMBER})*)?)")?'
    rf'(?: toolCallId="(?P<call>{_TEXT})")?(?: requestId="(?P<request>{_TEXT})")?'
    rf">(?P<body>{_TEXT})</event>\n"
)
_GROUPS = {  # The groups of each kind of event, besides those of all events.
    "human": set[str](),
    "ai": set[str](),
    "system": set[str](),
    "tool_input": {"name"},
    "tool_output": {"name", "status"},
    "error": {"recoverable"},
    "human_input_requested": set[str](),
    "human_input_received": set[str](),
    "completion": set[str](),
    "summary": {"summarized"},
}


_HUMAN_INPUT = ("human_input_requested", "human_input_received")


def parse_thread_xml(text: str) -> ParsedThread:
    """Read the events of a `<thread>` document. Writing them again returns the same document.

    Results are read as text, and calls get new ids, which link each result to its call.
    """
    if not isinstance(text, str):
        raise InputError(f"A thread document must be a string, got {excerpt(text)}. Decode bytes first.")
    if not text.startswith(_OPEN):
        raise _line_error(text, 0, "is not `<thread>` alone on its line")
    thread, reader, at = ParsedThread(), _ThreadReader(), len(_OPEN)
    while not text.startswith(_CLOSE, at):
        match = _EVENT.match(text, at)
        if match is None or match["id"] != str(len(thread)) or not _is_complete(match):
            raise _line_error(text, at, f"is not event number {len(thread)} as `serialize_thread_to_xml` writes it")
        try:
            thread.append(reader.read(match))
        except (ValueError, RecursionError) as error:  # Arguments that are not JSON, or a number with too many digits.
            raise _line_error(text, at, f"is an event that cannot be read ({shorten(str(error))})") from error
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


def _is_complete(match: re.Match[str]) -> bool:
    groups = {
        name for name in ("name", "status", "recoverable", "summarized", "call", "request") if match[name] is not None
    }
    if match["type"] in _HUMAN_INPUT:
        groups -= {"call", "request"}
    return _GROUPS.get(match["type"]) == groups


def _read_ids(match: re.Match[str]) -> tuple[str | None, str | None]:
    call, request = match["call"], match["request"]
    return None if call is None else _unescape(call), None if request is None else _unescape(request)


class _ThreadReader:
    """Creates events and tracks the calls without an outcome; outcomes are in the order of their calls."""

    def __init__(self) -> None:
        self._open_calls: set[str] = set()
        self._waiting: dict[tuple[str | None, int | None], deque[str]] = defaultdict(deque)
        """Ids of calls by name and iteration, by iteration only (an error has no name), and by name only."""

    def read(self, line: re.Match[str]) -> AgentEvent:
        """Return the event of a line."""
        iteration, body = int(line["iteration"]), _unescape(line["body"])
        match line["type"]:
            case "human" | "ai" | "system" as kind:
                return MessageEvent(iteration=iteration, role=_ROLES[kind], content=body)
            case "tool_input":
                return self._call(_unescape(line["name"]), body, line["id"], iteration)
            case "tool_output":
                return self._result(_unescape(line["name"]), body, line["id"], iteration)
            case "error":
                recoverable = line["recoverable"] == "true"
                call_id = self._take_open_call((None, iteration)) if recoverable else None
                return ErrorEvent(iteration=iteration, error=body, recoverable=recoverable, tool_call_id=call_id)
            case "human_input_requested":
                call_id, request_id = _read_ids(line)
                return HumanInputRequestedEvent(
                    iteration=iteration, question=body, tool_call_id=call_id, request_id=request_id
                )
            case "human_input_received":
                call_id, request_id = _read_ids(line)
                return HumanInputReceivedEvent(
                    iteration=iteration, response=body, tool_call_id=call_id, request_id=request_id
                )
            case "completion":
                return CompletionEvent(iteration=iteration, result=body)
            case _:
                numbers = [int(number) for number in line["summarized"].split(",") if number]
                return SummaryEvent(iteration=iteration, summary=body, summarized_iterations=numbers)

    def _call(self, name: str, body: str, index: str, iteration: int) -> ToolCallEvent:
        args = json.loads(body)
        if not is_json_object(args):
            raise ValueError("arguments must be a JSON object")
        call_id = f"call_{index}"
        self._open_calls.add(call_id)
        for key in ((name, iteration), (None, iteration), (name, None)):
            self._waiting[key].append(call_id)
        return ToolCallEvent(iteration=iteration, tool_name=name, tool_call_id=call_id, args=args)

    def _result(self, name: str, body: str, index: str, iteration: int) -> ToolResultEvent:
        call_id = self._take_open_call((name, iteration), (name, None))
        if call_id is not None:
            return ToolResultEvent(iteration=iteration, tool_call_id=call_id, result=body)
        return ToolResultEvent(iteration=iteration, tool_call_id=f"output_{index}", tool_name=name, result=body)

    def _take_open_call(self, *keys: tuple[str | None, int | None]) -> str | None:
        """Return the first call under one of these keys without an outcome, and close it."""
        for key in keys:
            waiting = self._waiting[key]
            while waiting:
                call_id = waiting.popleft()
                if call_id in self._open_calls:
                    self._open_calls.remove(call_id)
                    return call_id
        return None
